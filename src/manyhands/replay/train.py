"""Training by replay: every pass of every run in one parallel forward, in plain torch.

What is learned is exactly what an engine would have asked the model at that moment of a concurrent
run: same blocks, same positions, same half-written words of others (Hogwild! Inference, app. B).

The learning rate warms up, stays, and falls linearly to zero. How far training is counts in steps,
or in minutes if those run out first, so that a training can be given a fixed time. Checkpoints hold
everything: a training that was ended, by a person or a power cut, goes on where it was.
"""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader

from manyhands.model.adapter import ModelAdapter
from manyhands.replay.forward import fits_kernels
from manyhands.replay.lessons import Batch, Batches, Lessons
from manyhands.replay.settings import TrainSettings
from manyhands.schema.lines import Format, LineFile

LOG_LINES = Format(
    "the log of a training",
    line="a line of the log of a training",
    fields=("step", "loss"),
    begins=b'{"step": ',
    hint="remove it; the training goes on from its checkpoint",
)
_SECONDS_BETWEEN_REPORTS = 2.0
_DECISIVE = 4.0  # tokens of this weight or more are watched by themselves


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
    """One training of one model. `folder` holds its checkpoint and its log."""

    def __init__(
        self, adapter: ModelAdapter, lessons: Lessons, settings: TrainSettings, folder: Path
    ) -> None:
        self.adapter = adapter
        self.settings = settings
        self.batches = Batches(
            lessons,
            settings.seed,
            settings.tokens_per_step,
            fused=fits_kernels(adapter),
            parts=settings.parts,
        )
        self.folder = folder
        self.step = 0
        self.tokens = 0
        self.seconds = 0.0
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
        return self.folder / "checkpoint.pt"

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

    def run(self, report: Callable[[Progress], None] = lambda _: None) -> None:
        """Train to the end. Interrupted or failing, it leaves a checkpoint of the last whole step.

        InvalidRequest if another training writes to the same folder, OutputFailed if its log cannot be
        written.
        """
        # What a power cut may take from the log is said nowhere else, and not worth waiting for the disk.
        with LineFile(self.log, LOG_LINES, sync=False) as log:
            log.resume()
            log.keep(lambda line: line["step"] <= self.step)  # later steps are made again
            self._run(log, report)

    def _run(self, log: LineFile, report: Callable[[Progress], None]) -> None:
        began = time.monotonic() - self.seconds
        saved = told = time.monotonic()
        batches = self._load()
        precision = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("high")  # TF32 on a GPU: enough for gradients
        try:
            while self.done < 1:
                parts = next(batches)
                loss, right = self._learn(parts)
                self.tokens += sum(part.num_tokens for part in parts)
                self.seconds = time.monotonic() - began
                is_logged = self.step % self.settings.log_every == 0 or self.done >= 1
                # Between lines of the log only now and then: reading the loss waits for the device.
                if is_logged or time.monotonic() - told > _SECONDS_BETWEEN_REPORTS:
                    progress = self._progress(float(loss), right.tolist())
                    told = time.monotonic()
                    if is_logged:
                        log.append(asdict(progress))
                    report(progress)
                if time.monotonic() - saved > 60 * self.settings.checkpoint_minutes:
                    self.save()
                    saved = time.monotonic()
        finally:
            torch.set_float32_matmul_precision(precision)
            self.save()

    def _learn(self, parts: Sequence[Batch]) -> tuple[torch.Tensor, torch.Tensor]:
        """One step over the parts of its batch; what `batch_loss` says of it, still on the device."""
        for group in self.optimizer.param_groups:
            group["lr"] = self._rate()
        self.optimizer.zero_grad(set_to_none=True)
        whole = sum(part.weight for part in parts)
        device, losses, rights = self.adapter.device, [], []
        for part in parts:
            share = part.weight / whole
            with torch.autocast(
                device.type, torch.bfloat16, enabled=self.settings.products == "bfloat16"
            ):
                loss, right = batch_loss(self.adapter, part.to(device))
            torch.autograd.backward(loss * share)
            losses.append(loss.detach() * share)
            rights.append(right * share)
        torch.nn.utils.clip_grad_norm_(self.adapter.model.parameters(), self.settings.clip)
        self.optimizer.step()
        self.step += 1
        return torch.stack(losses).sum(), torch.stack(rights).sum(dim=0)

    def _rate(self) -> float:
        """The learning rate at this moment."""
        settings, done = self.settings, self.done
        warmth = min(1.0, (self.step + 1) / max(1, settings.warmup_steps))
        fall = min(1.0, (1 - done) / (1 - settings.constant))
        return settings.learning_rate * min(warmth, fall)

    def _seconds_left(self) -> float:
        return self.seconds * (1 - self.done) / max(self.done, 1e-9)

    def _load(self) -> Iterator[list[Batch]]:
        # More than there are processors would only wait for each other; the batches are the same.
        processes = min(self.settings.processes, os.cpu_count() or 1)
        loader: Any = DataLoader(
            self.batches,
            batch_size=None,
            sampler=range(self.step, self.settings.steps),
            num_workers=processes,
            prefetch_factor=4 if processes else None,
            worker_init_fn=_leave_interrupts_to_the_training,
        )
        return iter(loader)

    def _progress(self, loss: float, right: list[float]) -> Progress:
        return Progress(
            step=self.step,
            loss=loss,
            accuracy=right[0],
            learning_rate=self._rate(),
            tokens=self.tokens,
            seconds=self.seconds,
            seconds_left=self._seconds_left(),
            decisive=None if math.isnan(right[1]) else right[1],
        )

    def save(self) -> None:
        """Write the checkpoint; the old one stays until the new one is whole."""
        state = {
            "model": trained(self.adapter.model),
            "optimizer": self.optimizer.state_dict(),
            "step": self.step,
            "tokens": self.tokens,
            "seconds": self.seconds,
        }
        fresh = self.checkpoint.with_suffix(".new")
        with fresh.open("wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())  # or a power cut may leave an empty file under the right name
        os.replace(fresh, self.checkpoint)

    def _resume(self) -> None:
        state = torch.load(self.checkpoint, map_location=self.adapter.device, weights_only=True)
        self.adapter.model.load_state_dict(state["model"], strict=False)
        self.optimizer.load_state_dict(state["optimizer"])
        self.step, self.tokens, self.seconds = state["step"], state["tokens"], state["seconds"]


def trained(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The weights that a training changes, and buffers, by their names."""
    frozen = {name for name, weight in model.named_parameters() if not weight.requires_grad}
    return {name: value for name, value in model.state_dict().items() if name not in frozen}


def recompute_layers(adapter: ModelAdapter) -> None:
    """Have each layer keep its input alone, and be computed once more on the way back."""
    base: Any = adapter.model.base_model
    for layer in base.layers:
        layer.forward = partial(checkpoint, layer.forward, use_reentrant=False)


def _leave_interrupts_to_the_training(number: int) -> None:
    """Ctrl-C reaches all processes of a terminal; those that make batches are ended by the training."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def batch_loss(adapter: ModelAdapter, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    """Weighted cross-entropy of a batch, and the shares of tokens predicted right.

    Two shares: of all tokens, and of the decisive ones (not a number if there are none).
    """
    logits = batch.replay.logits(adapter).float()
    losses = functional.cross_entropy(logits, batch.targets, reduction="none")
    loss = (losses * batch.weights).sum() / batch.weights.sum()
    right = (logits.argmax(-1) == batch.targets).float()
    decisive = batch.weights >= _DECISIVE
    return loss, torch.stack((right.mean(), (right * decisive).sum() / decisive.sum()))
