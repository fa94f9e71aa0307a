"""Training: the loss falls, nothing is lost by an interruption, the rate is what was promised."""

from __future__ import annotations

import json
import shutil
import signal
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from manyhands.errors import InvalidRequest
from manyhands.replay.lessons import Recorded
from manyhands.replay.settings import TrainSettings
from manyhands.replay.simulate import Lesson
from manyhands.replay.train import Progress, Training
from manyhands.school.curriculum import Curriculum
from manyhands.school.simulated import Simulated
from tests.replay.runs import LIST_PROMPTS, SETTINGS, list_network, list_text, network, team_run

SHORT = TrainSettings(
    steps=6, tokens_per_step=500, learning_rate=5e-3, warmup_steps=2, log_every=2, seed=3
)


@cache
def drawn(seed: str) -> Lesson:
    """A small simulated lesson, made once: to make it takes longer than to learn from it."""
    return Lessons(is_fresh=True).draw(seed)


class Lessons:
    """Small simulated lessons; `stop_at` interrupts the making of that training step's batch.

    Those that are fresh are made anew each time.
    """

    def __init__(self, stop_at: int | None = None, is_fresh: bool = False) -> None:
        curriculum = Curriculum(fewest_problems=2, most_problems=2, word_problems=0.0)
        self.source = Simulated(curriculum, list_text(), LIST_PROMPTS)
        self.stop_at, self.is_fresh = stop_at, is_fresh

    def draw(self, seed: str) -> Lesson:
        if self.stop_at is not None and int(seed.split("/")[1]) >= self.stop_at:
            raise KeyboardInterrupt
        return self.source.draw(seed) if self.is_fresh else drawn(seed)


def training(folder: Path, settings: TrainSettings = SHORT, **how: Any) -> Training:
    return Training(list_network(), Lessons(**how), settings, folder)


def parameters(training: Training) -> dict[str, torch.Tensor]:
    return training.adapter.model.state_dict()


def assert_same(one: Training, other: Training) -> None:
    for name, parameter in parameters(one).items():
        assert torch.equal(parameter, parameters(other)[name]), name


def log(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


def test_the_loss_falls(tmp_path: Path) -> None:
    reports: list[Progress] = []
    settings = replace(SHORT, steps=20, log_every=2, constant=0.5)
    trained = training(tmp_path, settings)
    trained.run(reports.append)
    # On a busy machine there may be reports between the lines of the log.
    losses = [report.loss for report in reports if report.step % 2 == 0]
    assert len(losses) == 10
    assert losses[0] > 5  # about the logarithm of the vocabulary
    assert losses[-1] < 0.6 * losses[0]
    assert reports[-1].accuracy > reports[0].accuracy
    assert reports[-1].step == 20
    assert reports[-1].tokens >= 20 * 500
    assert reports[-1].seconds_left == 0
    assert [line["step"] for line in log(tmp_path)] == list(range(2, 21, 2))
    assert trained.done == 1


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Training:
    """A training of `SHORT` from its first step to its last; tests compare with it and leave it as it is."""
    one = training(tmp_path_factory.mktemp("whole"))
    one.run()
    return one


def test_training_is_reproducible(tmp_path: Path, whole: Training) -> None:
    other = training(tmp_path / "other", is_fresh=True)
    other.run()
    assert_same(whole, other)
    different = training(tmp_path / "different", replace(SHORT, seed=4))
    different.run()
    assert not torch.equal(
        parameters(whole)["model.embed_tokens.weight"],
        parameters(different)["model.embed_tokens.weight"],
    )


@pytest.mark.parametrize("stop_at", [0, 1, 4])
def test_an_interrupted_training_goes_on_where_it_was(
    tmp_path: Path, whole: Training, stop_at: int
) -> None:
    broken = training(tmp_path / "broken", stop_at=stop_at)
    with pytest.raises(KeyboardInterrupt):
        broken.run()
    assert broken.step == stop_at
    resumed = training(tmp_path / "broken")
    assert (resumed.step, resumed.tokens) == (stop_at, broken.tokens)
    resumed.run()
    assert_same(resumed, whole)
    assert resumed.tokens == whole.tokens
    steps = [line["step"] for line in log(tmp_path / "broken")]
    assert steps == [line["step"] for line in log(whole.folder)]


@pytest.mark.parametrize("is_late", [False, True], ids=["in front of a step", "behind it"])
def test_an_interrupt_in_a_step_leaves_a_whole_one(
    tmp_path: Path, whole: Training, is_late: bool
) -> None:
    """Weights that had made the step were saved as if they had not, and made it again."""
    broken = training(tmp_path / "broken")
    step, count = broken.optimizer.step, 0

    def struck() -> None:
        nonlocal count
        count += 1
        if not is_late and count == 2:
            signal.raise_signal(signal.SIGINT)
        step()
        if is_late and count == 2:
            signal.raise_signal(signal.SIGINT)

    broken.optimizer.step = struck  # type: ignore[method-assign, assignment]  # it gives no loss
    with pytest.raises(KeyboardInterrupt):
        broken.run()
    assert broken.step == 2
    resumed = training(tmp_path / "broken")
    assert resumed.step == 2
    resumed.run()
    assert_same(resumed, whole)


def test_a_killed_training_goes_on_from_its_last_checkpoint(tmp_path: Path) -> None:
    """A power cut leaves an older checkpoint, and perhaps half of a newer one."""
    whole = training(tmp_path / "whole", replace(SHORT, checkpoint_minutes=0))
    copies = []

    def keep_a_copy(progress: Progress) -> None:
        if whole.checkpoint.exists():
            copies.append(shutil.copy(whole.checkpoint, tmp_path / f"{progress.step}.pt"))

    whole.run(keep_a_copy)
    folder = tmp_path / "killed"
    folder.mkdir()
    shutil.copy(copies[0], folder / "checkpoint.pt")
    (folder / "checkpoint.new").write_bytes(b"half a file")
    told = whole.log.read_text(encoding="utf-8")  # more than the old checkpoint knows, and cut off
    (folder / "log.jsonl").write_text(told[:-9], encoding="utf-8")
    resumed = training(folder)
    assert 0 < resumed.step < SHORT.steps
    resumed.run()
    assert_same(resumed, whole)
    assert [line["step"] for line in log(folder)] == [line["step"] for line in log(whole.folder)]
    assert not (folder / "checkpoint.new").exists()


@pytest.mark.parametrize("kind", ["half", "empty", "text", "another"])
def test_a_checkpoint_that_cannot_be_read(tmp_path: Path, whole: Training, kind: str) -> None:
    """It is named, with what can be done; torch's own words recommend to run what is in it."""
    shutil.copytree(whole.folder, tmp_path / "again")
    file = tmp_path / "again" / "checkpoint.pt"
    data = file.read_bytes()
    if kind == "another":
        torch.save({"weights": torch.zeros(2)}, file)
    else:
        file.write_bytes({"half": data[: len(data) // 2], "empty": b"", "text": b"hello"}[kind])
    with pytest.raises(InvalidRequest, match=r"checkpoint.pt is damaged, or no checkpoint"):
        training(tmp_path / "again")


def test_a_finished_training_stays_as_it_is(tmp_path: Path, whole: Training) -> None:
    shutil.copytree(whole.folder, tmp_path / "again")
    again = training(tmp_path / "again", stop_at=0)  # would be interrupted if it asked for a batch
    again.run()
    assert_same(whole, again)
    assert again.step == SHORT.steps


def test_batches_made_by_processes_are_the_same(tmp_path: Path) -> None:
    alone, helped = (
        training(
            tmp_path / f"{count}", replace(SHORT, processes=count, steps=4), is_fresh=count > 0
        )
        for count in (0, 2)
    )
    alone.run()
    helped.run()
    assert_same(alone, helped)


def test_a_trace_can_be_learned_by_heart(tmp_path: Path) -> None:
    """Fine-tuning on recorded runs, one of them graded: what they wrote becomes likelier."""
    adapter = network.__wrapped__("qwen3")  # a network of our own: training changes it
    trace, _, _ = team_run(network("qwen3"), SETTINGS)
    graded = replace(trace, header=trace.header | {"score": 0.5})
    settings = TrainSettings(steps=12, tokens_per_step=1, warmup_steps=1, log_every=1)
    reports: list[Progress] = []
    Training(adapter, Recorded([trace, graded]), settings, tmp_path).run(reports.append)
    assert reports[-1].loss < 0.5 * reports[0].loss


# -- settings ------------------------------------------------------------------------------------


def rates(tmp_path: Path, settings: TrainSettings, steps: list[int]) -> list[float]:
    one = training(tmp_path, settings)
    found = []
    for one.step in steps:
        found.append(one._rate())
    return found


def test_the_rate_warms_up_stays_and_falls(tmp_path: Path) -> None:
    settings = TrainSettings(steps=100, learning_rate=1.0, warmup_steps=10, constant=0.5)
    assert rates(tmp_path, settings, [0, 4, 9, 10, 49, 50, 60, 75, 99, 100]) == pytest.approx(
        [0.1, 0.5, 1.0, 1.0, 1.0, 1.0, 0.8, 0.5, 0.02, 0.0]
    )


def test_no_warm_up_and_no_constant_part(tmp_path: Path) -> None:
    settings = TrainSettings(steps=10, learning_rate=2.0, warmup_steps=0, constant=0.0)
    assert rates(tmp_path, settings, [0, 1, 5, 9]) == pytest.approx([2.0, 1.8, 1.0, 0.2])


def test_time_counts_if_it_runs_out_first(tmp_path: Path) -> None:
    settings = TrainSettings(
        steps=100, minutes=2.0, learning_rate=1.0, warmup_steps=1, constant=0.5
    )
    one = training(tmp_path, settings)
    one.step, one.seconds = 10, 90.0
    assert one.done == pytest.approx(0.75)
    assert one._rate() == pytest.approx(0.5)
    one.step = 90
    assert one.done == pytest.approx(0.9)
    one.seconds = 1e9
    assert one.done == 1


def test_a_training_with_no_time_left_learns_nothing_more(tmp_path: Path) -> None:
    one = training(tmp_path, replace(SHORT, steps=1000, minutes=0.05))
    one.seconds = 2.9
    one.run()
    assert 0 < one.step < 1000
    assert one.done == 1


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ({"steps": 0}, "steps is 0; expected 1 or more"),
        ({"tokens_per_step": 0}, "tokens_per_step is 0; expected 1 or more"),
        ({"log_every": -1}, "log_every is -1; expected 1 or more"),
        ({"learning_rate": 0.0}, "learning_rate is 0.0; expected above 0"),
        ({"clip": float("nan")}, "clip is nan; expected above 0"),
        ({"constant": 1.0}, "constant is 1.0; expected 0 or more, below 1"),
    ],
)
def test_settings_out_of_range(setting: dict[str, Any], expected: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        TrainSettings(**setting)
    assert str(caught.value) == expected


def test_norms_are_not_decayed(tmp_path: Path) -> None:
    one = training(tmp_path, replace(SHORT, weight_decay=0.3))
    decayed, others = one.optimizer.param_groups
    assert (decayed["weight_decay"], others["weight_decay"]) == (0.3, 0.0)
    assert all(parameter.ndim > 1 for parameter in decayed["params"])
    assert all(parameter.ndim == 1 for parameter in others["params"])
    total = len(decayed["params"]) + len(others["params"])
    assert total == len(list(one.adapter.model.parameters()))
