"""`manyhands train`: a recipe becomes a folder that `solve` and `transformers` take; mistakes are clear."""

from __future__ import annotations

import errno
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

import pytest
import torch
from transformers import AutoModelForCausalLM

from manyhands.cli import main
from manyhands.errors import OutputFailed
from manyhands.model.quiet import quiet
from manyhands.prompts import model_prompts
from manyhands.replay.gradients import Learned
from manyhands.replay.lessons import Batch
from manyhands.replay.train import Training
from manyhands.schema.lines import LineFile
from manyhands.schema.whole import whole_files
from manyhands.school.recipe import Recipe
from tests.cli.conftest import DONE, Cli, module_of, run_cli
from tests.text.small_tokenizers import byte_level
from tests.warm import COMMAND, Warm, run

RECIPE = """
[model]
tokenizer = "tokenizer"
saved_dtype = "bfloat16"
[model.config]
model_type = "qwen3"
hidden_size = 32
intermediate_size = 32
num_hidden_layers = 1
num_attention_heads = 2
num_key_value_heads = 1
head_dim = 16
max_position_embeddings = 4096
tie_word_embeddings = true
[team]
rules = "{names} count.\\n{problem}"
"""
TRAINING = """
[training]
steps = 2
tokens_per_step = 200
log_every = 1
"""


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Path:
    """A folder with a tokenizer, and a run recorded with another network."""
    folder = tmp_path_factory.mktemp("recorded")
    with quiet():
        byte_level().save_pretrained(folder / "tokenizer")
    (folder / "runs").mkdir()
    short = ("--budget", 8, "--reply-tokens", 3, "--finisher-tokens", 2, "--quiet")
    run = folder / "runs" / "one.jsonl"
    solved = run_cli("solve", "2 + 3", "--model", model, *short, "--transcript", run)
    assert solved.exit_code in DONE
    return folder


@pytest.fixture
def recipe(tmp_path: Path, recorded: Path) -> Path:
    """A tiny network that learns from a run recorded with another."""
    shutil.copytree(recorded, tmp_path, dirs_exist_ok=True)
    path = tmp_path / "recipe.toml"
    path.write_text(RECIPE + '[traces]\nfiles = ["runs/*.jsonl"]\n' + TRAINING)
    return path


def test_a_recipe_becomes_a_model(cli: Cli, recipe: Path, tmp_path: Path) -> None:
    out = tmp_path / "made"
    done = cli("train", recipe, "--out", out, "--device", "cpu")
    assert done.exit_code == 0, done.output
    assert len({path.stat().st_mode for path in out.iterdir() if path.is_file()}) == 1
    account = json.loads((out / "training.json").read_text())
    assert account["steps"] == 2
    assert account["command"].startswith("manyhands train ")
    lines = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2]
    with quiet():
        network = AutoModelForCausalLM.from_pretrained(out)
    assert str(network.dtype) == "torch.bfloat16"
    # It brings the words it was trained with, and solve uses them.
    run = tmp_path / "run.jsonl"
    cli("solve", "2 + 3", "--model", out, "--budget", 2, "--transcript", run, "--no-reply")
    assert json.loads(run.read_text().splitlines()[0])["prompt"]["rules"].endswith("{problem}")
    assert "count" in json.loads(run.read_text().splitlines()[0])["prompt"]["rules"]


def test_a_further_training_keeps_the_words(cli: Cli, recipe: Path, tmp_path: Path) -> None:
    made, further = tmp_path / "made", tmp_path / "further.toml"
    assert cli("train", recipe, "--out", made, "--device", "cpu").exit_code == 0
    further.write_text(f'[model]\nstart = "{made}"\n[traces]\nfiles = ["runs/*.jsonl"]\n{TRAINING}')
    done = cli("train", further, "--out", tmp_path / "again", "--device", "cpu")
    assert done.exit_code == 0, done.output
    assert model_prompts(tmp_path / "again").team.rules == "{names} count.\n{problem}"


def test_a_training_goes_on_where_it_was(cli: Cli, recipe: Path, tmp_path: Path) -> None:
    once, twice = tmp_path / "once", tmp_path / "twice"
    cli("train", recipe, "--out", once, "--device", "cpu", "--steps", 4)
    for steps in (4, 4):  # the second finds the first one's checkpoint, and nothing left to do
        cli("train", recipe, "--out", twice, "--device", "cpu", "--steps", steps)
    assert (once / "model.safetensors").read_bytes() == (twice / "model.safetensors").read_bytes()
    assert json.loads((twice / "training.json").read_text())["steps"] == 4


def test_a_pause_and_an_end(cli: Cli, recipe: Path, tmp_path: Path) -> None:
    """A pause leaves a checkpoint and no model; at the end there is a model and no optimizer."""
    out = tmp_path / "made"
    command = ("train", recipe, "--out", out, "--device", "cpu")
    paused = cli(*command, "--pause", 1e-9)
    assert paused.exit_code == 0
    assert "paused after 0 steps; the same command goes on from there" in paused.output
    assert not (out / "model.safetensors").exists()
    assert cli(*command).exit_code == 0
    model = (out / "model.safetensors").stat()
    left = sum(path.stat().st_size for path in (out / "checkpoint").iterdir())
    assert (
        left < 0.5 * model.st_size
    )  # the recipe, some kB; weights and averages are three times the model
    again = cli(*command)
    assert "the training has ended after 2 steps" in again.output
    assert (out / "model.safetensors").stat().st_mtime_ns == model.st_mtime_ns
    further = cli(*command, "--steps", 9)
    assert further.exit_code == 2
    assert "what it would need to go on" in further.output


def test_what_a_training_has_left_is_named_where_it_does_not_fit(
    cli: Cli, recipe: Path, tmp_path: Path, model: Path
) -> None:
    """A training that is under way, an adapter, a whole model: each has another mend."""
    half, whole, adapter = tmp_path / "half", tmp_path / "whole", tmp_path / "adapter"
    assert cli("train", recipe, "--out", half, "--device", "cpu", "--pause", 1e-9).exit_code == 0
    assert cli("train", recipe, "--out", whole, "--device", "cpu").exit_code == 0
    recipe.write_text(recipe.read_text() + "[lora]\nrank = 2\n")
    started = ("train", recipe, "--model", whole, "--out", adapter, "--device", "cpu")
    assert cli(*started).exit_code == 0
    for options, hint in (
        (("--model", half), "its training has not ended"),
        (("--model", adapter), "it is a LoRA adapter: give it by --adapter"),
        (("--model", model, "--adapter", half), "its training has not ended"),
        (("--model", model, "--adapter", whole), "it is a whole model: give it by --model"),
    ):
        refused = cli("solve", "2 + 3", *options)
        assert refused.exit_code == 3, refused.output
        assert hint in " ".join(refused.stderr.split())


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("tokens_per_step = 200", "tokens_per_step = 300", "training.tokens_per_step was 200 and is 300"),
        ('files = ["runs/*.jsonl"]', 'files = ["runs/o*.jsonl"]', "traces.files was ['runs/*.jsonl'] and is"),
        ("{names} count", "{names} add", "team.rules was '{names} count"),
        ("hidden_size = 32", "hidden_size = 64", "model.config.hidden_size was 32 and is 64"),
        ("head_dim = 16", "head_dim = 16\nrms_norm_eps = 1e-5", "model.config.rms_norm_eps was not there and is 1e-05 now"),
        ("[traces]", "[lora]\nalpha = 2.0\n[traces]", "lora.alpha was 64.0 and is 2.0 now"),
        ("[traces]", '[reading]\nfiles = ["*.toml"]\n[traces]', "reading was not there and is a table"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("pause", [(), ("--pause", 1e-9)], ids=["ended", "paused"])
def test_another_recipe_does_not_go_on_in_its_folder(
    cli: Cli, recipe: Path, tmp_path: Path, pause: tuple[Any, ...], old: str, new: str, said: str
) -> None:
    """Else it is told that it has ended, or one model learns from both without a word."""
    command = ("train", recipe, "--out", tmp_path / "made", "--device", "cpu")
    assert cli(*command, *pause).exit_code == 0
    recipe.write_text(recipe.read_text().replace(old, new))
    refused = cli(*command)
    assert refused.exit_code == 2, refused.output
    output = " ".join(refused.output.split())
    assert "was begun by another recipe" in output
    assert said in output
    assert "or another folder" in output


def test_what_changes_no_gradient_may_change(cli: Cli, recipe: Path, tmp_path: Path) -> None:
    """How long, how fast, and what is kept; and a checkpoint from before recipes were marked goes on."""
    out = tmp_path / "made"
    command = ("train", recipe, "--out", out, "--device", "cpu")
    assert cli(*command, "--pause", 1e-9).exit_code == 0
    changed = "steps = 1\nminutes = 5\nparts = 2\nprocesses = 1\nrecompute = true\ncheckpoint_minutes = 1.0"
    recipe.write_text(recipe.read_text().replace("steps = 2", changed))
    assert cli(*command, "--pause", 1e-9).exit_code == 0
    checkpoint = out / "checkpoint" / "checkpoint.pt"
    state = torch.load(checkpoint, weights_only=True)
    del state["made_of"]
    torch.save(state, checkpoint)
    recipe.write_text(recipe.read_text().replace("{names} count", "{names} add"))
    assert cli(*command).exit_code == 0


@pytest.mark.parametrize(("command", "follows"), [("train", 0), ("solve", 1)])
def test_a_rank_of_torchrun_trains_and_does_not_follow(
    monkeypatch: pytest.MonkeyPatch, command: str, follows: int
) -> None:
    """In every other command rank 1 follows rank 0; a training would wait for ever."""
    asked: list[str] = []
    monkeypatch.setattr("manyhands.cli.follow_if_other", lambda: asked.append(command))
    monkeypatch.setattr("sys.argv", ["manyhands", command, "--help"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    assert len(asked) == follows


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_interrupted_it_leaves_a_checkpoint(
    recipe: Path, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    out = tmp_path / "made"
    command = [*COMMAND, "train", str(recipe), "--out", str(out)]
    more = str((os.cpu_count() or 1) + 1)  # than there are cores, which torch warns of
    command += ["--device", "cpu", "--steps", "100000", "--processes", more]
    with Warm(
        command,
        stderr=subprocess.PIPE,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        start_new_session=True,
    ) as process:
        assert process.stderr is not None
        assert process.stderr.readline() == ("training on cpu: up to 100000 steps of 200 tokens\n")
        assert "step 1," in process.stderr.readline()
        os.killpg(process.pid, number)  # as a terminal does, `timeout`, systemd and Slurm
        try:
            _, rest = process.communicate(timeout=120)
        finally:
            process.kill()
    assert process.returncode == code
    last = rest.splitlines()[-1]
    assert re.fullmatch(r"interrupted after \d+ steps?; the same command goes on from there", last)
    assert not re.search("Traceback|Warning", rest)
    assert (out / "checkpoint" / "checkpoint.pt").is_file()
    assert not (out / "model.safetensors").exists()


def test_a_training_that_is_killed_leaves_no_process(recipe: Path, tmp_path: Path) -> None:
    """Processes that make batches have more ready than goes through a pipe, and nothing takes them any more."""
    command = [*COMMAND, "train", str(recipe), "--out", str(tmp_path / "made"), "--device", "cpu"]
    command += ["--steps", "100000", "--processes", "2"]
    with Warm(
        command,
        stderr=subprocess.PIPE,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        start_new_session=True,
    ) as process:
        assert process.stderr is not None
        process.stderr.readline()
        assert "step 1," in process.stderr.readline()
        os.kill(process.pid, signal.SIGSTOP)
        time.sleep(1)
        os.kill(process.pid, signal.SIGKILL)
        try:
            process.communicate(timeout=60)  # to the end of the last one that could write there
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def test_a_training_that_fails_leaves_no_process(recipe: Path, tmp_path: Path) -> None:
    """Processes that make batches ignore SIGTERM, with which Python ends children; it would wait for ever."""
    program = """
import sys
from manyhands.cli import main
from manyhands.errors import OutputFailed
from manyhands.replay.train import Training
learn = Training._learn

def failing(self, parts):
    if self.step == 2:
        raise RuntimeError("the device is lost")
    return learn(self, parts)

Training._learn = failing
main()
"""
    (tmp_path / "failing.py").write_text(program)
    words = ["failing", "train", str(recipe), "--out", str(tmp_path / "made"), "--device", "cpu"]
    done = run(
        [sys.executable, "-m", *words, "--steps", "1000", "--processes", "2"],
        cwd=tmp_path,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        timeout=120,
    )
    assert done.returncode == 1
    assert done.stderr.endswith("RuntimeError: the device is lost\n")


def _struck(error: BaseException) -> Callable[[object, BinaryIO], None]:
    """`torch.save`, which meets the error while it writes."""
    save = torch.save

    def struck(state: object, file: BinaryIO) -> None:
        written = 0

        class Struck(io.RawIOBase):
            def writable(self) -> bool:
                return True

            def write(self, data: Any) -> int:
                nonlocal written
                written += 1
                if written == 3:
                    raise error
                return file.write(data)

        save(state, Struck())  # type: ignore[arg-type]

    return struck


def test_a_second_interrupt_while_the_checkpoint_is_written(
    cli: Cli, recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch's own writer fails as it is left; the interrupt is told all the same, and where the training goes on."""
    out, save = tmp_path / "made", torch.save
    train = ("train", recipe, "--out", out, "--device", "cpu", "--steps", 4)
    learn, steps = Training._learn, 0

    def interrupted(self: Training, parts: Sequence[Batch]) -> Learned:
        nonlocal steps
        steps += 1
        if steps % 2 == 0:
            raise KeyboardInterrupt
        return learn(self, parts)

    struck = _struck(KeyboardInterrupt())
    monkeypatch.setattr(Training, "_learn", interrupted)
    monkeypatch.setattr(torch, "save", struck)
    told = cli(*train)
    assert told.exit_code == 130
    assert (
        "interrupted after 1 step, before the checkpoint was whole; the same command begins anew"
        in told.stderr
    )
    monkeypatch.setattr(torch, "save", save)
    assert "interrupted after 1 step; the same command goes on from there" in cli(*train).stderr

    def press(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Recipe, "load", press)
        told = cli(*train)
    assert told.exit_code == 130
    said = " ".join(told.stderr.split())
    assert "a checkpoint in" in said
    assert "if there is one, is whole, and the same command goes on" in said
    monkeypatch.setattr(torch, "save", struck)
    told = cli(*train)
    assert told.exit_code == 130
    assert (
        "after 2 steps, before the checkpoint was whole; the same command goes on behind step 1"
        in told.stderr
    )


@pytest.mark.parametrize(
    ("change", "code", "says"),
    [
        (lambda text: text.replace("[training]", "[trainings]"), 2, "trainings"),
        (lambda text: text.replace("steps = 2", 'steps = "two"'), 2, "expected a whole number"),
        (lambda text: text.replace("qwen3", "qwen33"), 2, "config cannot be used"),
        (lambda text: text.replace('"tokenizer"', '"nothing"'), 3, "tokenizer is not at"),
        (lambda text: text.replace("runs/*", "walks/*"), 2, "no trace matches"),
    ],
)
def test_mistakes(
    cli: Cli, recipe: Path, tmp_path: Path, change: Callable[[str], str], code: int, says: str
) -> None:
    recipe.write_text(change(recipe.read_text()))
    done = cli("train", recipe, "--out", tmp_path / "made", "--device", "cpu")
    assert done.exit_code == code, done.output
    assert says in done.output


def test_a_model_of_another_training_is_not_replaced(
    cli: Cli, recipe: Path, tmp_path: Path
) -> None:
    out = tmp_path / "made"
    out.mkdir()
    (out / "model.safetensors").write_bytes(b"weights")
    done = cli("train", recipe, "--out", out, "--device", "cpu")
    assert done.exit_code == 2
    assert "holds a model and no checkpoint of its training, so it is not replaced" in done.output
    assert [path.name for path in out.iterdir()] == ["model.safetensors"]


def test_a_place_that_cannot_be_written(cli: Cli, recipe: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = cli("train", recipe, "--out", tmp_path / "file" / "made", "--device", "cpu")
    assert done.exit_code == 8
    assert "cannot be written" in done.output
    assert cli("train", tmp_path / "nothing.toml", "--out", tmp_path / "made").exit_code == 2


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="asks a device that is always full")
@pytest.mark.parametrize(
    "where",
    [
        "checkpoint.new",
        "tokenizer.json",
        "config.json",
        "manyhands.toml",
        "log.jsonl",
        "training.json",
    ],
)
def test_a_full_disk(
    cli: Cli, recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """Each library has an error of its own for it; no half of a model is left, and with room the same command goes on."""
    out = tmp_path / "made"
    (out / "checkpoint").mkdir(parents=True)
    is_checkpoint = where.startswith("checkpoint")
    if is_checkpoint:
        (out / "checkpoint" / where).symlink_to("/dev/full")

    @contextmanager
    def full_there(folder: Path, last: Sequence[str]) -> Iterator[Path]:
        with whole_files(folder, last) as fresh:
            (fresh / where).symlink_to("/dev/full")
            yield fresh

    command = ("train", recipe, "--out", out, "--device", "cpu")
    with monkeypatch.context() as patch:
        if not is_checkpoint:
            patch.setattr(module_of("train"), "whole_files", full_there)
        full = cli(*command)
    assert "cannot be written: No space left on device" in full.output
    if is_checkpoint:  # behind the last step the model is worth more
        assert full.exit_code == 0, full.output
        assert "there is no older one; the model is saved without it" in full.output
    else:
        assert full.exit_code == 8, full.output
        assert "make room" in full.output
        assert "the checkpoint of step 2 is whole, and the same command goes on" in full.output
        assert os.listdir(out) == ["checkpoint"]
    (out / "checkpoint" / where).unlink(missing_ok=True)
    done = cli(*command)
    assert done.exit_code == 0, done.output
    once = tmp_path / "once"
    cli("train", recipe, "--out", once, "--device", "cpu")
    assert (once / "model.safetensors").read_bytes() == (out / "model.safetensors").read_bytes()
    assert sorted(os.listdir(once)) == sorted(os.listdir(out))


def test_a_disk_that_is_full_within_a_checkpoint(
    cli: Cli, recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch's own writer fails as it is left. Half a checkpoint does not stay: it may be what fills the disk.

    The model is whole, which the last one of them was to note: nothing of the training is lost.
    """
    out = tmp_path / "made"
    monkeypatch.setattr("torch.save", _struck(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))))
    full = cli("train", recipe, "--out", out, "--device", "cpu")
    assert full.exit_code == 0, full.output
    told = " ".join(full.stderr.split())
    assert "cannot be written: No space left on device" in told
    assert "made has the model, but it cannot be noted that the training has ended" in told
    assert told.endswith("No space left on device; the same command would begin anew")
    assert (out / "model.safetensors").exists()
    assert os.listdir(out / "checkpoint") == ["log.jsonl"]


def test_a_log_without_room_does_not_cost_the_model(
    cli: Cli, recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log beside the model has all of its lines."""
    out, append = tmp_path / "made", LineFile.append

    def full(self: LineFile, *lines: Any) -> None:
        if lines:
            raise OutputFailed("full")
        append(self)

    with monkeypatch.context() as patch:
        patch.setattr(LineFile, "append", full)
        done = cli("train", recipe, "--out", out, "--device", "cpu")
    assert done.exit_code == 0, done.output
    lines = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2]
    assert json.loads((out / "training.json").read_text())["last"] == lines[-1]


def test_a_training_whose_folder_is_removed_is_not_lost(
    cli: Cli, recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, learn = tmp_path / "made", Training._learn

    def removed(self: Training, parts: Sequence[Batch]) -> Learned:
        if self.step == 1:
            shutil.rmtree(out)
        return learn(self, parts)

    with monkeypatch.context() as patch:
        patch.setattr(Training, "_learn", removed)
        done = cli("train", recipe, "--out", out, "--device", "cpu")
    assert done.exit_code == 0, done.output
    once = tmp_path / "once"
    cli("train", recipe, "--out", once, "--device", "cpu")
    assert (once / "model.safetensors").read_bytes() == (out / "model.safetensors").read_bytes()
    lines = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [2], "the first one went with the folder"


FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_checkpoint_without_room_does_not_end_the_training(
    cli: Cli, recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is told once, the older one stays, and the next one that finds room is whole."""
    monkeypatch.setattr("manyhands.replay.train._SECONDS_UNTIL_KEPT", 0)
    save, struck, saved = torch.save, _struck(FULL), list[int]()

    def sometimes(state: dict[str, Any], file: BinaryIO) -> None:
        saved.append(state["step"])
        (struck if state["step"] in (2, 3, 5) else save)(state, file)

    recipe.write_text(recipe.read_text() + "checkpoint_minutes = 0\n")
    out = tmp_path / "made"
    train = ("train", recipe, "--out", out, "--device", "cpu", "--steps", 6)
    once = cli("train", recipe, "--out", tmp_path / "once", "--device", "cpu", "--steps", 6)
    assert once.exit_code == 0, once.output
    monkeypatch.setattr(torch, "save", sometimes)
    done = cli(*train)
    assert done.exit_code == 0, done.output
    assert set(saved) == {1, 2, 3, 4, 5, 6}
    told = [" ".join(part.split()) for part in done.stderr.split("warning: ")[1:]]
    assert [part.partition(";")[0] for part in told] == [
        f"the checkpoint of step {step} cannot be written: No space left on device"
        for step in (2, 5)
    ]
    assert "that of step 1 is whole; the training goes on, and tries again in a minute" in told[0]
    models = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("once", "made")]
    assert models[0] == models[1]


def test_a_last_checkpoint_without_room_says_what_is_lost(
    cli: Cli, recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An interrupt keeps what was kept before; with room, the same command goes on from there."""
    out, save, learn = tmp_path / "made", torch.save, Training._learn

    def up_to(last: int) -> Callable[[Training, Sequence[Batch]], Learned]:
        def interrupted(self: Training, parts: Sequence[Batch]) -> Learned:
            if self.step == last:
                raise KeyboardInterrupt
            return learn(self, parts)

        return interrupted

    train = ("train", recipe, "--out", out, "--device", "cpu", "--steps", 6)
    monkeypatch.setattr(Training, "_learn", up_to(2))
    assert cli(*train).exit_code == 130
    monkeypatch.setattr(Training, "_learn", up_to(5))
    monkeypatch.setattr(torch, "save", _struck(FULL))
    full = cli(*train)
    assert full.exit_code == 8
    told = " ".join(full.stderr.split())
    assert "No space left on device, and 3 steps behind step 2 are lost" in told
    assert "the checkpoint of step 2 is whole, and the same command goes on from there" in told
    monkeypatch.setattr(torch, "save", save)
    monkeypatch.setattr(Training, "_learn", learn)
    assert cli(*train).exit_code == 0


def test_too_little_room_for_a_checkpoint_is_told_beforehand(
    cli: Cli, recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint is as large as it is said to be."""
    sizes = list[int]()
    size: Any = Training.checkpoint_bytes

    def noted(self: Training) -> int:
        sizes.append(size.fget(self))
        return sizes[-1]

    learn = Training._learn

    def interrupted(self: Training, parts: Sequence[Batch]) -> Learned:
        if self.step:
            raise KeyboardInterrupt
        return learn(self, parts)

    monkeypatch.setattr(Training, "checkpoint_bytes", property(noted))
    monkeypatch.setattr(Training, "free_bytes", 10_000)
    monkeypatch.setattr(Training, "_learn", interrupted)
    out = tmp_path / "made"
    told = cli("train", recipe, "--out", out, "--device", "cpu")
    assert "warning: a checkpoint takes" in told.stderr
    assert "9.8 KiB are free" in told.stderr
    written = (out / "checkpoint" / "checkpoint.pt").stat().st_size
    assert 0.9 < sizes[0] / written < 1
    monkeypatch.setattr(Training, "free_bytes", 10**9)
    again = cli("train", recipe, "--out", tmp_path / "other", "--device", "cpu")
    assert "a checkpoint takes" not in again.stderr


def test_lines_of_the_log_without_room_wait_for_the_next(
    cli: Cli, recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append, asked = LineFile.append, 0

    def sometimes(self: LineFile, *lines: Any) -> None:
        nonlocal asked
        asked += bool(lines)
        if lines and asked in (2, 3):
            raise OutputFailed("full") from FULL
        append(self, *lines)

    monkeypatch.setattr(LineFile, "append", sometimes)
    out = tmp_path / "made"
    done = cli("train", recipe, "--out", out, "--device", "cpu", "--steps", 5)
    assert done.exit_code == 0, done.output
    lines = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5]
