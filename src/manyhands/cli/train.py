"""`manyhands train`: from a recipe to a model folder.

What is left in the output folder: the model and its tokenizer, as `transformers` loads them, the
prompt it was trained with (`manyhands.toml`, which `solve` finds there), the log, and `training.json`,
which says how it came about. `checkpoint/` is what a training that was interrupted goes on from.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from manyhands.cli.guard import going_on, tell
from manyhands.cli.options import TrainOptions
from manyhands.cli.output import in_bytes, version_of
from manyhands.cli.stopping import exit_code_of, number_of
from manyhands.errors import InvalidRequest, OutputFailed, counted, os_error_of, place_or_room
from manyhands.hub import CHECKPOINT_FOLDER
from manyhands.prompts import PROMPT_FILE, dump_prompts
from manyhands.schema.lines import Line
from manyhands.schema.whole import whole_files
from manyhands.text import Text

if TYPE_CHECKING:
    from collections.abc import Callable

    from manyhands.model.adapter import ModelAdapter
    from manyhands.replay import train as training
    from manyhands.school.recipe import Recipe

_SECONDS_BETWEEN_LINES = 15.0
# Files by which a folder is known as a model, or as an adapter of one: they come behind all others.
_LAST = ("config.json", "adapter_config.json")
_MANY_TOKENS = 4096  # of a step: more than a CPU does in a few seconds


def train(options: TrainOptions) -> None:
    """Do what the command says; see `manyhands train --help`."""
    from manyhands.school.recipe import read_recipe

    recipe = read_recipe(options.recipe, options.model)
    settings = recipe.training
    changes = {name: getattr(options, name) for name in ("minutes", "steps", "processes")}
    settings = replace(settings, **{k: v for k, v in changes.items() if v is not None})
    import torch

    from manyhands.model.quiet import quiet
    from manyhands.replay.train import Training

    kept = f"a checkpoint in {options.out}, if there is one, is whole"
    with going_on(kept), _together(options.device) as (device, rank):
        with quiet():
            recipe = recipe.in_words_of_start()
            adapter, tokenizer = recipe.load(device)
        if tokenizer is None:
            raise InvalidRequest("the model to train has no tokenizer")
        runs: list[Training] = []  # the one, once it is there
        with _writing(options.out, runs):
            options.out.mkdir(parents=True, exist_ok=True)
            _check_replaceable(options.out)
            # Batches come from other processes; with many of them, descriptors would run out.
            processes: Any = torch.multiprocessing  # torch leaves it untyped
            processes.set_sharing_strategy("file_system")
            run = Training(
                adapter,
                recipe.lessons(Text(tokenizer)),
                settings,
                options.out / CHECKPOINT_FOLDER,
                made_of=recipe.made_of(),
            )
            runs.append(run)
            if run.has_ended:
                if not rank:
                    made = counted(run.step, "step")
                    tell(f"the training has ended after {made}: {options.out} has its model")
                return
            if not rank:
                _announce(run, adapter)
            try:
                with _reporting(is_silent=bool(rank)) as report:
                    run.run(report, pause=options.pause, unkept=_Unkept(run))
            except KeyboardInterrupt as error:
                tell(_interrupted(run))
                raise typer.Exit(exit_code_of(number_of(error))) from error
            if rank:
                return
            if run.done < 1:
                tell(
                    f"paused after {counted(run.step, 'step')}; the same command goes on from there"
                )
                return
            # Half of a model would be taken for one: without its words it would speak others, say.
            with quiet(), whole_files(options.out, _LAST) as fresh:
                _save(recipe, adapter, tokenizer, fresh)
                log = run.whole_log()
                (fresh / "log.jsonl").write_text(log, encoding="utf-8")
                last = json.loads(log.splitlines()[-1]) if log else None
                account = _account(options, recipe, adapter, run, last)
                (fresh / "training.json").write_text(
                    json.dumps(account, indent=2) + "\n", encoding="utf-8"
                )
            try:
                run.end()
            except OSError as error:
                _tell_unended(options.out, run, error)


def _tell_unended(out: Path, run: training.Training, error: OSError) -> None:
    """The model is whole, and nothing tells the same command so."""
    there = f"train again from step {run.kept} on" if run.kept else "begin anew"
    tell(
        f"{out} has the model, but it cannot be noted that the training has ended: {error.strerror or error}; the same command "
        f"would {there}",
        "warning: ",
        "yellow",
    )


def _interrupted(run: training.Training) -> str:
    """Where an interrupted training goes on: a second interrupt may have struck while its checkpoint was written."""
    told = f"interrupted after {counted(run.step, 'step')}"
    if run.rank or run.kept == run.step:
        return f"{told}; the same command goes on from there"
    there = f"goes on behind step {run.kept}" if run.kept else "begins anew"
    return f"{told}, before the checkpoint was whole; the same command {there}"


@contextmanager
def _together(device: str) -> Iterator[tuple[str, int]]:
    """The device and the number of this process, among those that `torchrun` has started."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield device, 0
        return
    import torch

    from manyhands.model.devices import resolve_device

    on_gpu = resolve_device(device).type == "cuda"
    if on_gpu:
        device = f"cuda:{os.environ.get('LOCAL_RANK', '0')}"
        torch.cuda.set_device(device)
    torch.distributed.init_process_group("nccl" if on_gpu else "gloo")
    try:
        yield device, torch.distributed.get_rank()
    finally:
        torch.distributed.destroy_process_group()


def _announce(run: training.Training, adapter: ModelAdapter) -> None:
    """A notice of what begins: a first step can take a while, most of all on a CPU."""
    settings, device = run.settings, adapter.device.type
    limit = f" or {counted(settings.minutes, 'minute', 'g')}" if settings.minutes else ""
    size = settings.tokens_per_step
    each = counted(size, "token")
    tell(f"training on {device}: up to {counted(settings.steps, 'step')} of {each}{limit}")
    if (free := run.free_bytes) < run.checkpoint_bytes:
        tell(
            f"a checkpoint takes {in_bytes(run.checkpoint_bytes)}, and {in_bytes(free)} are free in {run.folder}: without "
            "more room an interrupt loses all steps"
            + (f" behind step {run.kept}" if run.kept else ""),
            "warning: ",
            "yellow",
        )
    if device == "cpu" and size > _MANY_TOKENS:
        tell(
            f"steps of {each} are made for a GPU; on a CPU each may take minutes",
            "warning: ",
            "yellow",
        )


def _check_replaceable(out: Path) -> None:
    """A model that is there already is not replaced, unless it comes of the training that goes on."""
    if not (out / CHECKPOINT_FOLDER).is_dir() and any(out.glob("*.safetensors")):
        raise InvalidRequest(
            f"{out} holds a model and no checkpoint of its training, so it is not replaced",
            hint="give another folder, or remove it first",
        )


class _Unkept:
    """The user is told of checkpoints that cannot be written: of the first in a row, for others follow a minute later."""

    def __init__(self, run: training.Training) -> None:
        self.run, self.told_of = run, -1

    def __call__(self, error: OSError) -> None:
        run = self.run
        if self.told_of == run.kept:
            return
        self.told_of = run.kept
        then = "the model is saved without it"
        if run.done < 1:
            then = f"the training goes on, and tries again in a minute; {place_or_room(error)}"
        older = f"that of step {run.kept} is whole" if run.kept else "there is no older one"
        tell(
            f"the checkpoint of step {run.step} cannot be written: {error.strerror or error}; {older}; {then}",
            "warning: ",
            "yellow",
        )


def _lost(run: training.Training) -> str:
    """The steps of which nothing is on the disk."""
    if run.rank or run.kept == run.step:
        return ""
    return f", and {counted(run.step - run.kept, 'step')} behind step {run.kept} are lost"


def _goes_on(runs: Sequence[training.Training]) -> str:
    """Where the same command would go on."""
    kept = max((run.kept for run in runs), default=None)
    if kept is None:
        return "a checkpoint, if there is one, is whole"
    if not kept:
        return "there is no checkpoint, so the same command begins anew"
    return f"the checkpoint of step {kept} is whole, and the same command goes on from there"


@contextmanager
def _writing(folder: Path, runs: Sequence[training.Training]) -> Iterator[None]:
    """Say of a disk that takes no more, and of the training, if there is one yet, what is kept of it."""
    try:
        yield
    except Exception as error:
        failed = os_error_of(error)
        if failed is None:
            raise
        raise OutputFailed(
            f"{folder} cannot be written: {failed.strerror or failed}{''.join(map(_lost, runs))}",
            hint=f"{place_or_room(failed)}, or name another folder with --out; {_goes_on(runs)}",
        ) from error


@contextmanager
def _reporting(*, is_silent: bool = False) -> Iterator[Callable[[training.Progress], None]]:
    """A progress bar on a terminal, a line now and then elsewhere; both on stderr."""
    if is_silent:
        yield lambda _: None
        return
    console = Console(stderr=True)
    if not console.is_terminal:
        last = 0.0

        def line(progress: training.Progress) -> None:
            nonlocal last
            if time.monotonic() - last > _SECONDS_BETWEEN_LINES or progress.seconds_left <= 0:
                last = time.monotonic()
                print(
                    f"step {progress.step}, {_described(progress)}, "
                    f"{progress.seconds:.0f} s, {progress.seconds_left:.0f} s left",
                    file=sys.stderr,
                    flush=True,
                )

        yield line
        return
    columns = (
        TextColumn("step {task.fields[step]}"),
        BarColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("", total=1.0, step=0)

        def show(progress: training.Progress) -> None:
            done = progress.seconds / max(progress.seconds + progress.seconds_left, 1e-9)
            bar.update(task, completed=done, step=progress.step, description=_described(progress))

        yield show


def _described(progress: training.Progress) -> str:
    speed = progress.tokens / max(progress.seconds, 1e-9)
    return f"loss {progress.loss:.4f}, right {progress.accuracy:.2%}, {speed:,.0f} tokens/s"


def _save(recipe: Recipe, adapter: ModelAdapter, tokenizer: Any, out: Path) -> None:
    import torch

    from manyhands.model.lora import save_lora

    dtype = getattr(torch, recipe.model.saved_dtype)
    if recipe.lora.rank:
        save_lora(adapter.model, out, base=Path(recipe.model.start).name, dtype=dtype)
    else:
        adapter.model.to(dtype).save_pretrained(out)
        for weights in out.glob("*.safetensors"):  # that only the owner may read, unlike the rest
            shutil.copymode(out / "config.json", weights)
        tokenizer.save_pretrained(out)
    (out / PROMPT_FILE).write_text(dump_prompts(recipe.prompts), encoding="utf-8")


def _account(
    options: TrainOptions,
    recipe: Recipe,
    adapter: ModelAdapter,
    run: training.Training,
    last: Line | None,
) -> dict[str, Any]:
    """How the model came about; the loss curve is the log beside it."""
    import torch

    device = adapter.device
    hardware = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
    return {
        "date": time.strftime("%Y-%m-%d"),
        "command": f"manyhands train {options.recipe.as_posix()} --out {options.out.as_posix()}",
        "hardware": hardware,
        "processors": os.cpu_count(),
        "versions": {
            "python": platform.python_version(),
            **{name: version_of(name) for name in ("manyhands", "torch", "transformers")},
        },
        "parameters": sum(parameter.numel() for parameter in adapter.model.parameters()),
        "steps": run.step,
        "tokens": run.tokens,
        "seconds": round(run.seconds, 1),
        "last": last,
        "model": asdict(recipe.model),
        "lora": asdict(recipe.lora) if recipe.lora.rank else None,
        "curriculum": asdict(recipe.curriculum) if recipe.curriculum else None,
        "parts": asdict(recipe.parts),
        "traces": asdict(recipe.traces) if recipe.traces else None,
        "reading": asdict(recipe.reading) if recipe.reading else None,
        "training": asdict(run.settings),
    }
