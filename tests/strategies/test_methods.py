"""The table of methods: every row is whole, and goes through a trace's header and back."""

from __future__ import annotations

import json
import random
from dataclasses import fields, is_dataclass, replace
from operator import attrgetter
from typing import Any

import pytest

from manyhands.cache.step import Step
from manyhands.cli.screens import _more_of
from manyhands.errors import InvalidRequest
from manyhands.prompts.load import TABLES, Prompts
from manyhands.schema.plain import from_plain, to_plain
from manyhands.strategies.account import Account
from manyhands.strategies.base import Answer, Sent, Strategy
from manyhands.strategies.events import AnswerFound, EngineEvent, Event, StepEnded
from manyhands.strategies.listening import Heard, Listen
from manyhands.strategies.methods import METHODS, Method
from manyhands.strategies.run_spec import RunSpec
from manyhands.strategies.settings import AttemptSettings, Settings, SharedSettings, SoloSettings
from manyhands.strategies.shared_prefix import shared_prefix
from manyhands.text import Text
from tests.strategies.driver import Dice, Played, Scripts, feed, holding, play, small_text
from tests.text.small_tokenizers import byte_level

TEXT = Text(byte_level())
SHARED = {field.name for field in fields(Settings)}


@pytest.fixture(params=METHODS)
def method(request: pytest.FixtureRequest) -> Method:
    return METHODS[request.param]


def test_a_row_of_the_table(method: Method) -> None:
    assert METHODS[method.name] is method
    assert method.about
    assert "\n" not in method.about
    assert method.prompt in TABLES
    assert is_dataclass(method.settings)
    assert {field.name for field in fields(method.settings)} >= SHARED
    assert issubclass(method.answer, Answer)
    settings = method.settings()
    assert isinstance(settings, Settings)
    assert method.names(settings, getattr(Prompts(), method.prompt))


def test_a_method_of_ones_own_is_looked_at_where_it_is_made() -> None:
    wrong: Any = SoloSettings()
    with pytest.raises(
        InvalidRequest, match=r"are SoloSettings\(.*; expected a class that inherits"
    ):
        replace(METHODS["sequential"], settings=wrong)
    wrong = METHODS["sequential"].make("1 + 1", TEXT)
    with pytest.raises(InvalidRequest, match="to make runs of the method sequential; expected a f"):
        replace(METHODS["sequential"], make=wrong)


def test_a_method_that_listens_says_so(method: Method) -> None:
    prompt = getattr(Prompts(), method.prompt)
    strategy = method.make("1 + 1", TEXT, method.settings(budget=4), prompt)
    assert isinstance(next(strategy), Listen) == method.listens
    strategy.close()


def test_every_method_has_settings_of_its_own() -> None:
    assert len({method.settings for method in METHODS.values()}) == len(METHODS)


def test_a_run_is_told_by_its_header_and_its_events(method: Method) -> None:
    """Through JSON and back: the same requests, events, answer; and every event fits the account."""
    settings = replace(method.settings(), budget=12, snapshots=(5,), seed=3)
    prompt = getattr(Prompts(), method.prompt)
    spec = RunSpec(method, settings, prompt, "1 + 2")
    again = RunSpec.from_plain(json.loads(json.dumps(spec.to_plain())))
    assert again == spec
    first = told(method.make("1 + 2", TEXT, settings, prompt, context=None))
    second = told(again.strategy(TEXT))
    assert first == second
    *events, answer = first
    account = Account(method.names(settings, prompt), solo=method.solo)
    for event in events:
        if isinstance(event, Event):
            plain = json.loads(json.dumps(to_plain(event)))
            assert from_plain(type(event), plain) == event
            account.take(event)
    assert type(answer) is method.answer
    assert from_plain(method.answer, json.loads(json.dumps(to_plain(answer)))) == answer
    assert set(_more_of(answer)) == {f.name for f in fields(answer)} - {
        f.name for f in fields(Answer)
    }
    assert answer.forward_passes <= 12
    assert len(account.hands) == len(answer.tokens)


@pytest.mark.parametrize("number", range(6))
def test_events_tell_what_the_answer_says(method: Method, number: int) -> None:
    """Passes, tokens, steps, answers and the reply, of runs in which anything may come."""
    settings = method.settings(budget=40, snapshots=(10, 20))
    settings = replace(settings, end=replace(settings.end, reply_tokens=8, finisher_tokens=6))
    prompt, text = getattr(Prompts(), method.prompt), small_text()
    strategy = method.make(f"{number} + 2", text, settings, prompt, context=None)
    played = play(strategy, Dice(text, ends=2))
    check_told(method, settings, played)
    numbers = [(step.worker, step.step) for step in played.answer.steps]
    assert len(set(numbers)) == len(numbers)
    for worker, step in numbers:  # the steps of each worker are counted from one on
        assert 0 <= worker < len(played.answer.tokens)
        assert step == 1 or (worker, step - 1) in numbers


def check_told(method: Method, settings: Any, played: Played) -> None:
    """Events of a run tell what its answer says."""
    names = method.names(settings, getattr(Prompts(), method.prompt))
    answer, account = played.answer, Account(names, solo=method.solo)
    for event in played.events:
        account.take(event)
        worker = getattr(event, "worker", None)
        assert worker is None or 0 <= worker < len(account.hands)
    passes = [event.forward_pass for event in played.events if not isinstance(event, EngineEvent)]
    assert passes == sorted(passes)
    assert passes[0] >= 0
    assert account.forward_passes == answer.forward_passes
    assert (account.answer, account.snapshots) == (answer.answer, answer.snapshots)
    if method.name != "async_think":  # an answer leaves out what its workers were asked
        assert account.reply.strip() == answer.text
    # The main strand of some methods is the reply, and may be told as that alone.
    own = int(method.solo)
    assert tuple(hand.num_tokens for hand in account.hands)[own:] == answer.tokens[own:]
    order = attrgetter("worker", "step", "first_pass")
    told = [step for step in account.steps() if step.worker >= own]
    assert sorted(told, key=order) == sorted(
        (step for step in answer.steps if step.worker >= own), key=order
    )
    assert min(step.first_pass for step in answer.steps) == 1
    for step in answer.steps:
        assert 1 <= step.first_pass <= step.last_pass <= answer.forward_passes
    whole = [(step.worker, step.step, step.text) for step in answer.steps]
    for event in played.events:
        if isinstance(event, StepEnded) and event.text:
            assert (event.worker, event.step, event.text) in whole


PARTS: dict[str, dict[str, list[str | int | None]]] = {
    "branches": {
        "writer": ["Look.\n####A:", "B:", "%%%%", "Then.\n####C:", "%%%%", "So \\boxed{7}."],
        **{f"branch {n}": [f"{'one and ' * n}####"] for n in range(1, 9)},
    },
    "skeleton": {
        "writer": [" a\n2. b\n3. c\n\n"],
        **{f"point {n}": [f" {'one and ' * n}.\n\n", None] for n in range(1, 9)},
    },
    "async_think": {
        "writer": [
            "Two.<FORK-1>a?</FORK-1> <FORK-2>b?</FORK-2>",
            "<JOIN-2>",
            "So <JOIN-1>",
            "Both.",
            None,
        ],
        "worker 1": ["Long thoughts. <RETURN>one</RETURN>"],
        "worker 2": ["two", None],
    },
}


@pytest.mark.parametrize("budget", [12, 30, 50, 80, 200])
@pytest.mark.parametrize("name", PARTS)
def test_events_of_parts_tell_what_the_answer_says(name: str, budget: int) -> None:
    method, text = METHODS[name], small_text()
    settings = method.settings(budget=budget)
    settings = replace(settings, end=replace(settings.end, reply_tokens=8, finisher_tokens=6))
    prompt = getattr(Prompts(), method.prompt)
    strategy = method.make("1 + 2", text, settings, prompt, context=None)
    played = play(strategy, Scripts(text, **PARTS[name]))
    check_told(method, settings, played)
    assert budget < 50 or len(played.answer.tokens) > 2


@pytest.mark.parametrize("number", range(6))
def test_an_answer_is_asked_for_where_the_work_has_found_none(method: Method, number: int) -> None:
    settings = method.settings(budget=40)
    settings = replace(settings, end=replace(settings.end, finisher_tokens=6))
    prompt, text = getattr(Prompts(), method.prompt), small_text()
    played = play(
        method.make(f"{number} + 2", text, settings, prompt, context=None),
        Dice(text, boxes=3, ends=2),
    )
    found = [event.worker for event in played.events if isinstance(event, AnswerFound)]
    asked = [one for one in played.passes if "finisher" in one.writers]
    by_work = [worker for worker in found if worker is not None]
    if not issubclass(method.settings, AttemptSettings):  # these make one answer of several
        assert bool(asked) == (not by_work)
        assert found.count(None) <= (not by_work)


_SIZES = (
    *("workers", "max_points", "thread_tokens", "outline_tokens", "title_tokens", "max_blocks"),
    *("max_branches", "branch_tokens", "max_forks", "worker_tokens", "part_tokens"),
)


@pytest.mark.parametrize("number", range(4))
def test_no_method_holds_more_than_it_has_reserved(method: Method, number: int) -> None:
    """Of whatever size its parts are, and if nothing ends by itself."""
    luck = random.Random(number)
    settings = method.settings(budget=(10, 30, 100, 30)[number])
    sizes: dict[str, Any] = {
        name: luck.choice((2, 4, 8)) for name in _SIZES if hasattr(settings, name)
    }
    end = replace(settings.end, reply_tokens=8, finisher_tokens=6)
    settings = replace(settings, **sizes, end=end)
    prompt, text, held = getattr(Prompts(), method.prompt), small_text(), list[int]()
    strategy = method.make(f"{number} + 2", text, settings, prompt, context=None)
    played = play(holding(strategy, held), Dice(text, boxes=0, ends=0))
    (reserved,) = played.reserved
    assert max(held) <= reserved.num_tokens


@pytest.mark.parametrize("total", [1, 20, 45])
def test_a_total_bounds_what_is_reserved(method: Method, total: int) -> None:
    """A request with `max_tokens` has one: it reserved for its whole budget, and others waited for memory that it could not use."""
    prompt, text = getattr(Prompts(), method.prompt), small_text()

    def played(budget: int, total: int | None, held: list[int]) -> int:
        settings = method.settings(budget=budget)
        end = replace(settings.end, reply_tokens=60, finisher_tokens=6, total=total)
        settings = replace(settings, end=end)
        strategy = method.make("3 + 2", text, settings, prompt, context=None)
        (reserved,) = play(holding(strategy, held), Dice(text, boxes=0, ends=0)).reserved
        return reserved.num_tokens

    held = list[int]()
    bounded = played(400, total, held)
    assert max(held) <= bounded
    free = played(400, None, [])
    if method.name != "profiled":  # its parts have a bound of their own
        assert bounded < free
    assert played(400, 10**6, []) == free


@pytest.mark.parametrize("rows", [1, 3, 256])
@pytest.mark.parametrize("samples", [1, 5])
def test_completions_hold_no_more_than_they_have_reserved(rows: int, samples: int) -> None:
    text, held = small_text(), list[int]()
    settings = SharedSettings(samples=samples, max_tokens=30, rows=rows)
    prompts = ["So the answer", "So the next step"]
    strategy = shared_prefix(prompts, text, settings)
    played = play(holding(strategy, held), Scripts(text))
    assert sum(played.answer.tokens) == 2 * samples * 30
    assert max(held) <= max(one.num_tokens for one in played.reserved)


def told(strategy: Strategy) -> list[Any]:
    """All that a strategy asks and reports, if every token is answered by a letter in turn."""
    seen: list[Any] = []
    tokens: Sent = None
    letters = TEXT.encode("abc. #:\n")
    try:
        while True:
            asked = strategy.send(tokens)
            tokens = Heard() if isinstance(asked, Listen) else None
            if isinstance(asked, Step):
                seen.append([(row.feed, row.choice, row.writer) for row in feed(asked)])
                tokens = tuple(
                    letters[(len(seen) + i) % len(letters)] for i in range(len(asked.rows))
                )
            elif isinstance(asked, Event):
                seen.append(asked)
    except StopIteration as end:
        return [*seen, end.value]
