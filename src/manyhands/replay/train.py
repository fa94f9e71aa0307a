"""Training by replay: every pass of every run in one parallel forward, in plain torch.

What is learned is exactly what an engine would have asked the model at that moment of a concurrent
run: same blocks, same positions, same half-written words of others (Hogwild! Inference, app. B).

The learning rate warms up, stays, and falls linearly to zero. How far training is counts in steps,
or in minutes if those run out first, so that a training can be given a fixed time. Checkpoints hold
everything: a training that was ended, by a person or a power cut, goes on where it was. At the end they are
three times the model, and `Training.end` leaves nothing of them but how far it came.

Several processes of `torch.distributed` train one model together: each learns its share of every batch,
all make the same step, and the first one writes log and checkpoint.
"""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from pickle import UnpicklingError
from textwrap import shorten
from typing import Any, BinaryIO

import torch
from torch import distributed
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader

from manyhands.errors import InvalidRequest, OutputFailed, counted
from manyhands.hub import CHECKPOINT_FILE
from manyhands.model.adapter import ModelAdapter
from manyhands.replay.forward import fits_kernels
from manyhands.replay.gradients import DECISIVE, Learned, learn
from manyhands.replay.lessons import Batch, Batches, Lessons
from manyhands.replay.settings import TrainSettings
from manyhands.sandbox import held_back, leave_ends_to_caller
from manyhands.schema.lines import Format, LineFile

LOG_LINES = Format(
    "the log of a training",
    line="a line of the log of a training",
    fields=("step", "loss"),
    begins=b'{"step": ',
    hint="remove it; the training goes on from its checkpoint",
    hint_of_first="choose another --out; the log of your own training may be removed: it goes on from its checkpoint",
)
_SECONDS_BETWEEN_REPORTS = 2.0
# From a checkpoint that found no room to the next, if that would come later.
_SECONDS_UNTIL_KEPT = 60.0
_SECONDS_BETWEEN_LOOKS = 0.5  # of a process that makes batches, whether the training is there


@dataclass(frozen=True)
class Progress:
    """A line of the log."""

    step: int
    loss: float
    accuracy: float  # of the likeliest token, over all tokens that are learned
    learning_rate: float
    tokens: int  # trained on so far
    seconds: float
    seconds_left: float
    decisive: float | None = None  # accuracy over the tokens of great weight, if there are any


class Training:
    """One training of one model. `folder` holds its checkpoint and its log.

    `made_of` is plain data, table by table: what is trained, and on what. With it, InvalidRequest is raised for a checkpoint
    that was made of anything else; without, for one of other weights alone.
    """

    def __init__(
        self,
        adapter: ModelAdapter,
        lessons: Lessons,
        settings: TrainSettings,
        folder: str | Path,
        *,
        made_of: Mapping[str, Any] | None = None,
    ) -> None:
        folder = Path(folder)
        self.made_of = None if made_of is None else json.dumps(made_of, sort_keys=True)
        self.adapter = adapter
        self.settings = settings
        together = distributed.is_initialized()
        self.rank = distributed.get_rank() if together else 0
        ranks = distributed.get_world_size() if together else 1
        self.batches = Batches(
            lessons,
            settings.seed,
            settings.tokens_per_step,
            fused=fits_kernels(adapter),
            parts=-(-settings.parts // ranks) * ranks,  # as many for each
            rank=self.rank,
            ranks=ranks,
        )
        self.folder = folder
        self.step = 0
        self.kept = 0  # the step of the checkpoint that lies on disk
        self.tokens = 0
        self.seconds = 0.0
        self.has_ended = False  # and nothing is left to go on from
        self.progress: Progress | None = None  # of the newest step that was looked at
        self.unlogged: list[dict[str, Any]] = []  # lines for which the log has no room
        parameters = [p for p in adapter.model.parameters() if p.requires_grad]
        decayed = [p for p in parameters if p.ndim > 1]
        others = [p for p in parameters if p.ndim <= 1]  # norms and biases
        self.optimizer = torch.optim.AdamW(
            [
                {"params": decayed, "weight_decay": settings.weight_decay},
                {"params": others, "weight_decay": 0.0},
            ],
            lr=settings.learning_rate,
            betas=(0.9, 0.98),
            fused=adapter.device.type == "cuda",
        )
        if settings.recompute:
            recompute_layers(adapter)
        folder.mkdir(parents=True, exist_ok=True)
        if self.checkpoint.exists():
            self._resume()

    @property
    def checkpoint(self) -> Path:
        """Where everything needed to go on is kept."""
        return self.folder / CHECKPOINT_FILE

    @property
    def log(self) -> Path:
        """One JSON line for every `log_every` steps."""
        return self.folder / "log.jsonl"

    @property
    def done(self) -> float:
        """How much of the training is behind us, 0 to 1."""
        by_steps = self.step / self.settings.steps
        by_time = self.seconds / 60 / self.settings.minutes if self.settings.minutes else 0.0
        return min(1.0, max(by_steps, by_time))

    @property
    def checkpoint_bytes(self) -> int:
        """The size of a checkpoint, without a few kilobytes of names."""
        learned = [p for p in self.adapter.model.parameters() if p.requires_grad]
        # Weights that are tied have two names and are written once.
        weights = {w.data_ptr(): w.nbytes for w in trained(self.adapter.model).values()}
        return sum(weights.values()) + 2 * sum(p.nbytes for p in learned)

    @property
    def free_bytes(self) -> int:
        """The room for a checkpoint, which lies beside the old one until it is whole."""
        return shutil.disk_usage(self.folder).free

    def run(
        self,
        report: Callable[[Progress], None] = lambda _: None,
        *,
        pause: float = 0.0,
        unkept: Callable[[OSError], None] | None = None,
    ) -> None:
        """Train to the end. Interrupted or failing, it leaves a checkpoint of the last whole step.

        `pause`: minutes after which it stops for now, with a checkpoint (0: never). With `unkept`, a checkpoint that cannot
        be written does not end the training: the error is told there, the older one stays, and another is tried
        a minute later. Behind the last step only the model is left to save, so that is told as well, and lines that the log has
        no room for stay in `unlogged`. The system's error is raised for the last checkpoint of a training that is to go on, and without `unkept` for every one. Raises InvalidRequest if
        another training writes to the same folder, OutputFailed if its log cannot be written.
        """
        until = time.monotonic() + 60 * pause if pause else float("inf")
        if self.rank:
            self._run(None, report, until, unkept)
            return
        # Lines that a power cut may take from the log are not worth waiting for the disk.
        with LineFile(self.log, LOG_LINES, sync=False) as log:
            log.resume()
            log.keep(lambda line: line["step"] <= self.step)  # later steps are made again
            self._run(log, report, until, unkept)

    def _run(
        self,
        log: LineFile | None,
        report: Callable[[Progress], None],
        until: float,
        unkept: Callable[[OSError], None] | None,
    ) -> None:
        began = time.monotonic() - self.seconds
        told = time.monotonic()
        between = 60 * self.settings.checkpoint_minutes
        due = told + between
        batches = self._load()
        precision = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("high")  # TF32 on a GPU: enough for gradients
        try:
            while self.done < 1 and not self._agreed(time.monotonic() >= until):
                # An interrupt in the midst of a queue leaves its lock taken, and torch's end of the queue would wait for it for ever.
                with held_back(most=1):
                    parts = next(batches)
                learned = self._learn(parts)
                self.seconds = self._agreed(time.monotonic() - began)
                is_logged = self.step % self.settings.log_every == 0 or self.done >= 1
                # Between lines of the log only now and then: reading the loss waits for the device.
                if is_logged or time.monotonic() - told > _SECONDS_BETWEEN_REPORTS:
                    self.progress = progress = self._progress(learned)
                    told = time.monotonic()
                    if is_logged and log is not None:
                        self.unlogged.append(asdict(progress))
                        self._log(log, may_wait=unkept is not None)
                    report(progress)
                if time.monotonic() > due:
                    is_kept = self._keep(unkept)
                    wait = between if is_kept else min(between, _SECONDS_UNTIL_KEPT)
                    due = time.monotonic() + wait
            if log is not None:
                # Behind the last step the model is worth more than lines of its log.
                self._log(log, may_wait=unkept is not None and self.done >= 1)
        finally:
            torch.set_float32_matmul_precision(precision)
            try:
                self._keep(unkept if self.done >= 1 else None)
            finally:
                batches.close()  # its processes do not hear SIGTERM, by which Python would end them

    def _agreed(self, number: float) -> float:
        """The first process's number, in all of them: so they pause, and end, before the same step."""
        if not distributed.is_initialized():
            return number
        told = torch.tensor(number, dtype=torch.float64, device=self.adapter.device)
        distributed.broadcast(told, 0)
        return float(told)

    def _learn(self, parts: Sequence[Batch]) -> Learned:
        """One step over the parts of its batch; what was learned, still on the device."""
        for group in self.optimizer.param_groups:
            group["lr"] = self._rate()
        products = torch.bfloat16 if self.settings.products == "bfloat16" else None
        learned = learn(self.adapter, parts, products)
        torch.nn.utils.clip_grad_norm_(self.adapter.model.parameters(), self.settings.clip)
        with held_back():  # a checkpoint of half a step would have it made twice for some weights
            self.optimizer.step()
            self.step += 1
            self.tokens += learned.num_tokens
        return learned

    def _rate(self) -> float:
        """The learning rate at this moment."""
        settings, done = self.settings, self.done
        warmth = min(1.0, (self.step + 1) / max(1, settings.warmup_steps))
        fall = min(1.0, (1 - done) / (1 - settings.constant))
        return settings.learning_rate * min(warmth, fall)

    def _seconds_left(self) -> float:
        return self.seconds * (1 - self.done) / max(self.done, 1e-9)

    def _load(self) -> Generator[list[Batch], None, None]:
        # More than there are processors would only wait for each other; the batches are the same.
        processes = min(self.settings.processes, os.cpu_count() or 1)
        loader: Any = DataLoader(
            self.batches,
            batch_size=None,
            sampler=range(self.step, self.settings.steps),
            num_workers=processes,
            prefetch_factor=4 if processes else None,
            worker_init_fn=partial(_serve_the_training, os.getpid()),
        )
        yield from loader

    def _progress(self, learned: Learned) -> Progress:
        return Progress(
            step=self.step,
            loss=learned.loss,
            accuracy=learned.accuracy,
            learning_rate=self._rate(),
            tokens=self.tokens,
            seconds=self.seconds,
            seconds_left=self._seconds_left(),
            decisive=learned.decisive,
        )

    def save(self) -> None:
        """Write the checkpoint; the old one stays until the new one is whole."""
        if self.has_ended or self.rank:
            return
        model, optimizer = trained(self.adapter.model), self.optimizer.state_dict()
        self._write({"model": model, "optimizer": optimizer})

    def _log(self, log: LineFile, *, may_wait: bool) -> None:
        """Add lines to the log; those that find no room wait for the next ones."""
        try:
            log.append(*self.unlogged)
        except OutputFailed:
            if not may_wait:
                raise
        else:
            self.unlogged.clear()

    def whole_log(self) -> str:
        """The lines of the log, and behind them those for which it had no room."""
        logged = self.log.read_text(encoding="utf-8") if self.log.exists() else ""
        return logged + "".join(json.dumps(line) + "\n" for line in self.unlogged)

    def _keep(self, unkept: Callable[[OSError], None] | None) -> bool:
        """Write the checkpoint, or tell that it cannot be."""
        try:
            self.save()
        except OSError as error:
            if unkept is None:
                raise
            unkept(error)
            return False
        return True

    def end(self) -> None:
        """Leave nothing of the checkpoint but how far the training came: its model was saved elsewhere."""
        self.has_ended = True
        if not self.rank:
            self._write({})

    def _write(self, state: dict[str, Any]) -> None:
        state |= {"step": self.step, "tokens": self.tokens, "seconds": self.seconds}
        state |= {"made_of": self.made_of}
        # Once more where somebody has removed it: what was learned is worth a folder.
        self.folder.mkdir(parents=True, exist_ok=True)
        fresh = self.checkpoint.with_suffix(".new")
        try:
            with fresh.open("wb") as file:
                _put(state, file)
                file.flush()
                # Else a power cut may leave an empty file under the right name.
                os.fsync(file.fileno())
            os.replace(fresh, self.checkpoint)
        except BaseException:
            # Half of one serves for nothing, and may be what fills the disk.
            fresh.unlink(missing_ok=True)
            raise
        self.kept = self.step

    def _resume(self) -> None:
        state = self._kept_state()
        self._check_made_of(state.get("made_of"))  # versions before 2026-11-27 wrote none
        self.step, self.tokens, self.seconds = state["step"], state["tokens"], state["seconds"]
        self.kept = self.step
        if "optimizer" not in state:
            self.has_ended = True
            if self.done < 1:
                raise InvalidRequest(
                    f"the training in {self.folder} has ended after {counted(self.step, 'step')}, and what it would need to go on "
                    "is gone",
                    hint="begin another, elsewhere, that starts from its model",
                )
            return
        wanted, found = (
            {(name, tuple(weight.shape)) for name, weight in weights.items()}
            for weights in (trained(self.adapter.model), state["model"])
        )
        if wanted != found:
            name, shape = min(wanted ^ found)
            raise InvalidRequest(
                f"the checkpoint in {self.folder} is of another training: {name!r} of shape {shape} is trained by only one "
                "of the two",
                hint=_OTHER,
            )
        self.adapter.model.load_state_dict(state["model"], strict=False)
        self.optimizer.load_state_dict(state["optimizer"])

    def _kept_state(self) -> dict[str, Any]:
        """The checkpoint as it was saved. InvalidRequest for a file that is damaged, or something else."""
        try:
            state = torch.load(self.checkpoint, map_location=self.adapter.device, weights_only=True)
            if isinstance(state, dict) and state.keys() >= _KEPT:
                return state
        except (
            _UNREADABLE
        ):  # their words speak of torch's insides, or recommend to run what is in the file
            pass
        raise InvalidRequest(
            f"{self.checkpoint} is damaged, or no checkpoint of a training",
            hint="put a copy of it in its place, or remove it: the training begins anew then",
        )

    def _check_made_of(self, told: str | None) -> None:
        """Raise InvalidRequest for a checkpoint that was made of something else."""
        if told is None or self.made_of is None:
            return
        was, is_now = dict(_leaves(json.loads(told))), dict(_leaves(json.loads(self.made_of)))
        # Names that the checkpoint lacks are newer than it, and no difference, but for a recipe's own.
        known = was.keys() | {name for name in is_now if name.startswith(_OWN_NAMES)}
        missing = object()
        other = [n for n in sorted(known) if was.get(n, missing) != is_now.get(n, missing)]
        if not other:
            return
        more = f" (and {len(other) - 1} more differ)" if other[1:] else ""
        raise InvalidRequest(
            f"the training in {self.folder} was begun by another recipe: {other[0]} was {_said(was, other[0])} and is "
            f"{_said(is_now, other[0])} now{more}",
            hint=_OTHER,
        )


# The configuration of a network, whose names no field of ours declares.
_OWN_NAMES = "model.config."
# Keys of every checkpoint, that of an ended training too; and errors in which torch ends in a file that is none.
_KEPT = {"step", "tokens", "seconds"}
_UNREADABLE = (RuntimeError, ValueError, LookupError, EOFError, UnpicklingError)
_OTHER = "give the recipe that began it, or another folder"


def _leaves(table: Mapping[str, Any], inside: str = "") -> Iterator[tuple[str, Any]]:
    """The values of nested tables, each with its dotted name."""
    for name, value in table.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{inside}{name}.")
        else:
            yield f"{inside}{name}", value


def _said(leaves: Mapping[str, Any], name: str) -> str:
    """One value of a recipe in a message; None: its table was left out."""
    value = leaves.get(name)
    if value is not None:
        return shorten(repr(value), 60, placeholder=" ...")
    return "a table" if any(one.startswith(f"{name}.") for one in leaves) else "not there"


def trained(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The weights that a training changes, and buffers, by their names."""
    frozen = {name for name, weight in model.named_parameters() if not weight.requires_grad}
    return {name: value for name, value in model.state_dict().items() if name not in frozen}


def recompute_layers(adapter: ModelAdapter) -> None:
    """Have each layer keep its input alone, and be computed once more on the way back."""
    base: Any = adapter.model.base_model
    for layer in base.layers:
        layer.forward = partial(checkpoint, layer.forward, use_reentrant=False)


def _put(state: dict[str, Any], file: BinaryIO) -> None:
    """`torch.save`, whose writer is left half done by an interrupt or a full disk, and then fails itself: the first error is raised."""
    try:
        torch.save(state, file)
    except RuntimeError as error:
        if isinstance(error.__context__, KeyboardInterrupt | OSError):
            raise error.__context__ from None
        raise


def _serve_the_training(training: int, number: int) -> None:
    """In a process that makes batches: the training ends it, and has a checkpoint to write before.

    Where that was killed it ends by itself. Torch's way out would wait for batches to be taken that nothing takes any more.
    """
    leave_ends_to_caller()
    threading.Thread(target=_end_behind, args=(training,), daemon=True).start()


def _end_behind(process: int) -> None:
    while os.getppid() == process:
        time.sleep(_SECONDS_BETWEEN_LOOKS)
    os._exit(1)


def batch_loss(adapter: ModelAdapter, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    """Weighted cross-entropy of a batch, and the shares of tokens predicted right.

    Two shares: of all tokens, and of the decisive ones (not a number if there are none).
    """
    logits = batch.replay.logits(adapter).float()
    losses = functional.cross_entropy(logits, batch.targets, reduction="none")
    loss = (losses * batch.weights).sum() / batch.weights.sum()
    right = (logits.argmax(-1) == batch.targets).float()
    decisive = batch.weights >= DECISIVE
    return loss, torch.stack((right.mean(), (right * decisive).sum() / decisive.sum()))
