"""Many strategies at once, what they cost, and the candidate made of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from manyhands.cache.block import Block
from manyhands.cache.step import Row, Step
from manyhands.cache.view import View
from manyhands.errors import ManyhandsError
from manyhands.evaluation.candidates import Answered, Asked, MethodCandidate, check_endpoint
from manyhands.evaluation.sitting import Sitting, sit
from manyhands.prompts.hogwild import TeamPrompt
from manyhands.strategies.base import Answer, Strategy
from manyhands.strategies.events import Snapshot, TokenWritten, WorkerJoined
from manyhands.strategies.hogwild import hogwild
from manyhands.strategies.methods import METHODS
from manyhands.strategies.run_spec import RunSpec
from manyhands.strategies.settings import EndSettings, SoloSettings, TeamSettings
from manyhands.tasks.task import Sample
from manyhands.text import Text
from tests.evaluation.doubles import Doubles
from tests.evaluation.small import TEXT, engine


def candidate(settings: SoloSettings, concurrency: int = 3, **more: object) -> MethodCandidate:
    method = METHODS["sequential"]
    prompt = TeamPrompt()
    spec = RunSpec(method, settings, prompt)
    return MethodCandidate(engine(), TEXT, spec, concurrency, **more)  # type: ignore[arg-type]


def all_answered(one: MethodCandidate, count: int = 5) -> dict[str, Answered]:
    asked = [Asked(sample) for sample in Doubles(count).samples()]
    return {answered.asked.sample.id: answered for answered in one.answered(asked)}


def test_all_are_asked_whatever_the_concurrency() -> None:
    end = EndSettings(reply=False)
    found = [
        all_answered(candidate(SoloSettings(budget=99, end=end), at_once)) for at_once in (1, 2, 9)
    ]
    for each in found:
        assert sorted(each) == [f"d{n}" for n in range(1, 6)]
        assert {a.answer for a in each.values()} == {"2"}
        assert {a.finish_reason for a in each.values()} == {"answer"}
        assert [a.tokens for a in each.values()] == [found[0]["d1"].tokens] * 5


def test_one_run_gives_the_whole_curve() -> None:
    length = len(TEXT.encode("So \\boxed{2}"))
    settings = SoloSettings(budget=99, snapshots=(2, 50), end=EndSettings(reply=False))
    answered = all_answered(candidate(settings))["d1"]
    assert answered.answers == {2: "5", 50: "2", 99: "2"}  # at 2 passes it had to be asked
    assert answered.spent[2]["tokens"] == answered.spent[2]["passes"] == 2
    assert answered.spent[50]["passes"] == answered.forward_passes == length + 1
    assert 0 < (answered.spent[2]["seconds"] or 0) <= (answered.spent[99]["seconds"] or 0)
    assert answered.extra_passes > 0
    assert answered.memory["kv_tokens"] >= 0


def test_writing_is_kept_only_where_it_is_wanted() -> None:
    found = all_answered(candidate(SoloSettings(budget=99), watched=frozenset({"d2"})))
    assert "".join(text for _, _, text in found["d2"].writing) == "So \\boxed{2}"
    assert [at for _, at, _ in found["d2"].writing][:3] == [1, 2, 3]
    assert not found["d1"].writing


def test_a_question_that_cannot_be_asked_is_a_failure_of_its_own() -> None:
    asked = [Asked(Sample("bad", "\x00\x01", 1)), *map(Asked, Doubles(2).samples())]
    found = list(candidate(SoloSettings(budget=99)).answered(asked))
    assert len(found) == 3
    assert [a.asked.sample.id for a in found if a.error is not None] == ["bad"]


def test_a_document_stands_before_its_question() -> None:
    assert Asked(Sample("a", "Who?", 1, document="Long.")).text == "Long.\n\nWho?"


def test_an_error_ends_one_run_and_a_bug_ends_all() -> None:
    def fails(error: Exception) -> Strategy:
        yield TokenWritten(1, 0, 1, "x")
        raise error

    def works() -> Strategy:
        yield TokenWritten(1, 0, 1, "x")
        return Answer("fine")

    found = list(sit(engine(), [("a", fails(ManyhandsError("no"))), ("b", works())], 2))
    assert {s.key: (s.error is None) for s in found} == {"a": False, "b": True}
    with pytest.raises(ZeroDivisionError):
        list(sit(engine(), [("a", fails(ZeroDivisionError()))], 2))


def test_leaving_early_cancels_what_is_under_way() -> None:
    one = engine("x" * 50)
    strategies = [(n, hogwild("p", TEXT, TeamSettings(budget=9 + 40 * n))) for n in range(3)]
    running = sit(one, strategies, 3)
    next(running)
    running.close()  # type: ignore[attr-defined]
    assert not one.runs


def test_snapshots_cost_no_time_and_the_end_does() -> None:
    sitting = Sitting("key")
    sitting.pass_ended(
        1.0, {"kv_tokens": 5}, [TokenWritten(1, 0, 7, "a"), TokenWritten(1, 1, 7, "b")]
    )
    sitting.pass_ended(10.0, {"kv_tokens": 9}, [])
    sitting.pass_ended(10.0, {"kv_tokens": 6}, [Snapshot(1, "5")])
    sitting.pass_ended(1.0, {}, [WorkerJoined(1, 2, "Eve"), TokenWritten(2, 0, 7, "c")])
    sitting.pass_ended(0.5, {}, [])
    sitting.end()
    assert sitting.seconds == 2.5
    assert sitting.memory == {"kv_tokens": 9}
    assert sitting.spent_by(1) == (1, 2, 1.0)
    assert sitting.spent_by(2) == (2, 3, 2.5)
    assert sitting.spent_by(0) == (0, 0, 0.0)
    assert sitting.names == {2: "Eve"}


def test_what_an_endpoint_cannot_do() -> None:
    check_endpoint("self_consistency", (64,))
    with pytest.raises(ManyhandsError, match="cannot take the exam as 'hogwild'"):
        check_endpoint("hogwild", (64,))
    with pytest.raises(ManyhandsError, match="2 budgets"):
        check_endpoint("sequential", (32, 64))


@pytest.mark.parametrize("counts", [True, False])
def test_a_strategy_that_tells_nothing_is_charged_all_the_same(counts: bool) -> None:
    """One of a reader's own: it reports no token, and may leave its passes uncounted."""

    def quiet(question: object, text: Text, *given: object, context: int | None = None) -> Strategy:
        view, feed = View([Block()]), text.encode("So")
        for _ in range(6):
            (token,) = yield Step([Row(view, feed)])
            feed = (token,)
        return Answer("2", "2", "answer", forward_passes=6 if counts else 0, tokens=(6,))

    method = replace(METHODS["sequential"], name="quiet", make=quiet)
    spec = RunSpec(method, SoloSettings(budget=9, snapshots=(4, 6)), TeamPrompt())
    answered = all_answered(MethodCandidate(engine(), TEXT, spec), 1)["d1"]
    assert answered.answers == {4: None, 6: "2", 9: "2"}  # nothing was known at 4
    assert answered.forward_passes == 6
    assert answered.spent[4] == {"passes": 4, "tokens": None, "seconds": None}
    for budget in (6, 9):
        assert answered.spent[budget]["passes"] == answered.spent[budget]["tokens"] == 6
        assert (answered.spent[budget]["seconds"] or 0) > 0


def test_no_two_questions_have_the_same_draws() -> None:
    """With one seed for all, whatever is unlikely is drawn in all of them at once; yet every exam has the same seeds."""
    settings = SoloSettings(budget=4, seed=3, end=EndSettings(finisher=False, reply=False))
    asked = [Asked(sample, repeat) for sample in Doubles(3).samples() for repeat in (0, 1)]

    def seeds(settings: SoloSettings) -> dict[tuple[str, int], int]:
        one = candidate(settings, traced={"model": "small"})
        answered = list(one.answered(asked))
        assert [each.seed for each in answered] == [each.trace[0]["seed"] for each in answered]
        return {each.asked.key: each.trace[0]["seed"] for each in answered}

    found = seeds(settings)
    assert len(set(found.values())) == 6
    assert seeds(settings) == found
    later = seeds(replace(settings, seed=4))
    assert later["d1", 0] == found["d1", 1], (
        "a repeat has the seed of a first one that is as much larger"
    )
