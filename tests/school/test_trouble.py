"""Teams in trouble: every lesson's sums are right, and what was lost or wrong is done again."""

from __future__ import annotations

import random
import re
from dataclasses import replace

import numpy as np
import pytest

from manyhands.replay.simulate import Simulation
from manyhands.school import arithmetic_team
from manyhands.school.arithmetic_team import ArithmeticTeam, Leave, Mischief, Phase
from manyhands.school.slips import slip_in, written_step
from manyhands.strategies.base import Answer
from manyhands.strategies.hogwild import hogwild
from manyhands.strategies.settings import EndSettings, TeamSettings
from manyhands.tasks.arithmetic.problem_list import ProblemList, problem_list
from manyhands.text import Text
from tests.replay.runs import LIST_PROMPT, list_text
from tests.text.small_tokenizers import byte_level, sentence_piece

TEXT = list_text()
_RESULT = re.compile(r"#(\d+) is (-?\d+)(?:, not (-?\d+))?\.")


def solved(
    problems: ProblemList,
    workers: int,
    rng: random.Random,
    *,
    slip: float = 0.0,
    leaves: tuple[Leave, ...] = (),
    insertions: dict[tuple[int, int], str] | None = None,
    text: Text = TEXT,
) -> tuple[Answer, ArithmeticTeam, Simulation]:
    names = LIST_PROMPT.team(workers)
    team = ArithmeticTeam(
        problems, text, names, LIST_PROMPT, rng, mischief=Mischief(slip=slip), leaves=leaves
    )
    settings = TeamSettings(
        workers=workers,
        budget=3000,
        check_every=0,
        insertions=insertions or {},
        end=EndSettings(reply=False),
    )
    strategy = hogwild(problems.question, text, settings, LIST_PROMPT)
    simulation = Simulation(strategy, team, team.heard)
    return simulation.run(), team, simulation


def box(problems: ProblemList) -> str:
    return ",".join(map(str, problems.gold))


@pytest.mark.parametrize("workers", [1, 2, 4, 8])
def test_long_lists_are_shared_out(workers: int) -> None:
    """No problem is done twice, the first and the tenth ones included, whose claims begin alike."""
    for seed in range(4):
        rng = random.Random(f"long/{seed}")
        problems = problem_list(rng, 12, "wide")
        answer, team, _ = solved(problems, workers, rng)
        assert answer.answer == box(problems)
        assert all(len(by) == 1 for by in team.solved.values())


PARTED = {"bytes": Text(byte_level()), "pieces": Text(sentence_piece())}  # " #" is two tokens


@pytest.mark.parametrize("workers", [1, 2, 4, 8])
@pytest.mark.parametrize("text", PARTED.values(), ids=PARTED)
def test_a_sign_of_two_tokens_shares_work_out_as_well(text: Text, workers: int) -> None:
    """A worker that has written a part of the sign comes before all that stand at a bare prefix."""
    assert len(text.encode(" #")) == 2
    for seed in range(3):
        rng = random.Random(f"parted/{seed}")
        problems = problem_list(rng, 12, "wide")
        answer, team, _ = solved(problems, workers, rng, text=text, slip=0.2 * (seed == 2))
        assert answer.answer == box(problems)
        assert all(len(by) == 1 for by in team.solved.values())
        assert all("taken" not in step.text for step in answer.steps)


def test_control_a_part_of_a_sign_that_counts_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A list in which one worker stands at a bare prefix while another writes the sign of the last problem."""

    def collisions() -> int:
        rng = random.Random("parted/24")
        answer, _, _ = solved(problem_list(rng, 5, "bare"), 4, rng, text=PARTED["bytes"])
        return sum("taken" in step.text for step in answer.steps)

    assert collisions() == 0
    script = arithmetic_team._Script(PARTED["bytes"])
    script.number_sign[0] = replace(script.number_sign[0], phase=Phase.BUSY)
    monkeypatch.setattr(arithmetic_team, "_script", lambda text: script)
    assert collisions() > 0


@pytest.mark.parametrize("workers", [1, 3, 8])
def test_a_wrong_result_is_named_and_put_right(workers: int) -> None:
    num_named = 0
    for seed in range(6):
        rng = random.Random(f"slips/{seed}")
        problems = problem_list(rng, rng.choice((2, 5, 12)), "wide")
        answer, _, _ = solved(problems, workers, rng, slip=0.3)
        assert answer.answer == box(problems)
        said: dict[int, list[tuple[int, str]]] = {}
        for step in answer.steps:
            for number, result, named in _RESULT.findall(step.text):
                said.setdefault(int(number), []).append((int(result), named))
        for number, gold in enumerate(problems.gold, start=1):
            *wrong, last = said[number]
            assert last[0] == gold
            assert [str(result) for result, _ in wrong] == [named for _, named in said[number][1:]]
            num_named += len(wrong)
    assert num_named > 3  # of about seventy problems


def test_a_slip_itself_is_not_learned() -> None:
    """Of a wrong number no token has a weight; the same list without slips has weights everywhere."""
    problems = problem_list(random.Random("muted"), 5, "wide")
    runs = {}
    for slip in (0.0, 0.5):
        _, team, simulation = solved(problems, 2, random.Random("muted"), slip=slip)
        weights = np.array(simulation.weights)
        targets = np.array(simulation.targets)
        written = weights[targets != team.script.nothing.token]
        runs[slip] = int((written == 0).sum())
    assert runs[0.0] == 0
    assert runs[0.5] > 0


_SUM = re.compile(r"(-?\d+)([-+])(\d+)=(-?\d+)( wrong\.)?")
_CLAIMED = re.compile(r"#(\d+) is (-?\d+)(?:, not -?\d+)?\.( wrong\.)?")


@pytest.mark.parametrize("workers", [1, 3])
def test_the_word_wrong_stands_behind_what_is_wrong_and_nowhere_else(workers: int) -> None:
    """Behind a wrong sum at once, or behind the result that follows from it, and then it is learned."""
    at_once = at_the_end = 0
    for seed in range(8):
        rng = random.Random(f"word/{workers}/{seed}")
        problems = problem_list(rng, 6, "wide")
        answer, team, simulation = solved(problems, workers, rng, slip=0.4)
        said = 0
        for step in answer.steps:
            sums = [
                (int(left) + int(f"{sign}{right}") == int(result), bool(word))
                for left, sign, right, result, word in _SUM.findall(step.text)
            ]
            results = [
                (int(result) == problems.gold[int(number) - 1], bool(word))
                for number, result, word in _CLAIMED.findall(step.text)
            ]
            is_wrong = not all(right for right, _ in sums + results)
            ends = step.text.endswith(" wrong.")
            assert ends == is_wrong, step.text
            at_once += ends and not results
            at_the_end += ends and bool(results)
            said += ends
            assert not any(right and word for right, word in sums + results)
        weight = team.script.wrong[0].weight
        word = team.script.wrong[0].token
        weights = [
            each
            for target, each in zip(simulation.targets, simulation.weights, strict=True)
            if target == word
        ]
        assert weights == [weight] * said
    assert at_once > 3
    assert at_the_end > 3


@pytest.mark.parametrize("wrong", [True, False])
def test_a_planted_step_is_done_again_if_it_is_wrong(wrong: bool) -> None:
    for seed in range(6):
        rng = random.Random(f"planted/{seed}")
        problems = problem_list(rng, 5, "wide")
        slip = None
        while wrong and slip is None:
            slip = slip_in(rng, problems.problems[2])
        work, said = problems.problems[2].work, problems.gold[2]
        if slip is not None:
            work, said = slip.work, slip.answer
        words = {(1, 1): written_step(3, work, said)}
        answer, _, _ = solved(problems, 3, rng, insertions=words)
        assert answer.answer == box(problems)
        again = [step.text for step in answer.steps if step.text.startswith("#3:")]
        assert len(again) == wrong
        assert all(text.endswith(f"#3 is {problems.gold[2]}, not {said}.") for text in again)


def test_the_work_of_those_who_leave_is_done_by_others() -> None:
    for seed in range(8):
        rng = random.Random(f"leaves/{seed}")
        problems = problem_list(rng, 5, "wide")
        leaves = tuple(Leave(worker, 1, rng.randint(0, 12)) for worker in rng.sample(range(4), 3))
        answer, team, _ = solved(problems, 4, rng, leaves=leaves)
        assert not team.leaves
        assert answer.answer == box(problems)
        left = {leave.worker for leave in leaves}
        (stays,) = {0, 1, 2, 3} - left
        results = [step for step in answer.steps if " is " in step.text]
        assert {step.worker for step in results} == {stays}


def test_the_last_worker_does_not_leave() -> None:
    problems = problem_list(random.Random(1), 2, "wide")
    leaves = (Leave(0, 1, 3), Leave(1, 1, 3))
    answer, team, _ = solved(problems, 2, random.Random(1), leaves=leaves)
    assert not team.leaves
    assert answer.answer == box(problems)
