"""The settings of a team, the seeds of its workers, the memory that it reserves."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from manyhands.cache.layouts import LAYOUTS
from manyhands.cache.step import Choice
from manyhands.errors import InvalidRequest
from manyhands.strategies.hogwild import hogwild
from manyhands.strategies.listening import Heard, Listen
from manyhands.strategies.settings import Away, EndSettings, TeamSettings
from tests.strategies.driver import (
    PROMPT,
    Dice,
    Played,
    Scripts,
    SeenRow,
    holding,
    play,
    small_text,
)

TEXT = small_text()
SAMPLED = Choice(temperature=0.7, top_p=0.9)


def run(settings: TeamSettings, predict: Callable[[SeenRow], int] | None = None) -> Played:
    return play(hogwild("2+3", TEXT, settings, PROMPT), predict or Dice(TEXT, boxes=0, ends=0))


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ({"workers": 0}, "workers is 0; expected 1 to 256"),
        ({"workers": -3}, "workers is -3; expected 1 to 256"),
        ({"workers": 10_000}, "workers is 10000; expected 1 to 256"),
        ({"budget": 0}, "budget is 0; expected 1 or more forward passes"),
        ({"budget": -1}, "budget is -1; expected 1 or more forward passes"),
        ({"check_every": -1}, "check_every is -1; expected 0 (never) or more tokens"),
        (
            {"layout": "spiral"},
            f"layout is 'spiral'; expected one of {', '.join(LAYOUTS)}",
        ),
        ({"headers": "both"}, "headers is 'both'; expected one of in_context, alone"),
        ({"moves": "none"}, "moves is 'none'; expected one of rotate, reencode"),
        (
            {"moves": "reencode", "layout": "contiguous"},
            "moves is 'reencode', and in the contiguous layout nothing moves",
        ),
        (
            {"budget": 9, "snapshots": (9,)},
            "snapshots are (9,); expected passes below the budget of 9",
        ),
        ({"snapshots": (0, 3)}, "snapshots are (0, 3); expected passes below the budget of 2048"),
    ],
)
def test_settings_out_of_range(setting: Any, expected: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        TeamSettings(**setting)
    assert str(caught.value) == expected


@pytest.mark.parametrize("name", ["finisher_tokens", "reply_tokens"])
def test_endings_have_room(name: str) -> None:
    with pytest.raises(InvalidRequest, match=f"{name} is 0; expected 1 or more"):
        EndSettings(**{name: 0})  # type: ignore[arg-type]


@pytest.mark.parametrize("workers", [1, 2, 3, 4, 5, 40])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_any_number_of_workers(layout: str, workers: int) -> None:
    settings = TeamSettings(workers=workers, layout=layout, budget=8, check_every=20)
    played = run(settings, Scripts(TEXT))
    assert played.answer.tokens == (8,) * workers
    assert played.answer.forward_passes == 8
    names = PROMPT.team(workers)
    assert played.passes[1].writers == names
    assert len(set(names)) == workers


def draws(played: Played, name: str) -> list[float]:
    return [row.choice.draw for row in played.rows(name)]


def test_greedy_rows_draw_nothing() -> None:
    assert set(draws(run(TeamSettings(budget=5)), "Alice")) == {0.0}


def test_a_workers_luck_is_its_own() -> None:
    """The k-th draw of a worker depends on the seed and its name: on no other worker or layout."""
    first = run(TeamSettings(workers=1, budget=10, choice=SAMPLED, seed=5))
    expected = draws(first, "Alice")
    assert len(set(expected)) == 10
    for workers, layout in ((2, "combined"), (5, "interleaved"), (3, "contiguous")):
        team = TeamSettings(workers=workers, layout=layout, budget=10, choice=SAMPLED, seed=5)
        played = run(team)
        assert draws(played, "Alice") == expected
        assert draws(played, "Bob") != expected
        assert played.rows("Alice")[3].choice.top_p == 0.9


def test_a_pause_costs_no_luck() -> None:
    team = TeamSettings(workers=2, budget=10, choice=SAMPLED, away=(Away(0, 2, 4),))
    expected = draws(run(TeamSettings(workers=2, budget=10, choice=SAMPLED)), "Alice")
    assert draws(run(team), "Alice") == expected[:7]


def test_the_same_seed_draws_the_same() -> None:
    settings = TeamSettings(workers=3, budget=20, choice=SAMPLED, seed=11, check_every=10)
    one, again = run(settings), run(settings)
    assert one.passes == again.passes
    assert one.answer == again.answer
    other = run(TeamSettings(workers=3, budget=20, choice=SAMPLED, seed=12, check_every=10))
    assert draws(other, "Alice") != draws(one, "Alice")


def test_finisher_and_reply_have_draws_of_their_own() -> None:
    played = run(TeamSettings(budget=3, choice=SAMPLED, end=EndSettings(reply_tokens=4)))
    finisher, reply = draws(played, "finisher"), draws(played, "reply")
    assert len({*finisher, *reply, *draws(played, "Alice"), *draws(played, "Bob")}) == (
        len(finisher) + len(reply) + 6
    )


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("workers", [1, 2, 5])
def test_what_is_reserved_suffices_for_ordinary_steps(workers: int, layout: str) -> None:
    """An estimate for steps of a dozen tokens or more; counted in tokens fed to living blocks."""
    settings = TeamSettings(workers=workers, layout=layout, budget=60, check_every=0)
    step = [*["a"] * 15, ".\n\n"]
    said = dict.fromkeys(PROMPT.team(workers), step * 4)
    played = run(settings, Scripts(TEXT, **said))
    fed = sum(len(row.feed) for one in played.passes for row in one.rows)
    (reserved,) = played.reserved
    assert fed <= reserved.num_tokens
    assert reserved.num_tokens < 3 * fed + 2 * 600


@pytest.mark.parametrize("number", range(12))
def test_a_team_that_fills_the_context_holds_what_it_has_reserved_and_no_more(number: int) -> None:
    """It reserved the context twice. Steps of any length, prompts encoded again, snapshots, endings that read all anew."""
    luck = random.Random(number)
    workers, layout = luck.choice((1, 2, 3, 5)), luck.choice(list(LAYOUTS))
    moves = "rotate" if layout == "contiguous" else luck.choice(("rotate", "reencode"))
    is_anew = number % 3 == 0
    end = EndSettings(reply_tokens=8, finisher_tokens=6, reencode=is_anew)
    team = TeamSettings(
        workers=workers,
        layout=layout,
        moves=moves,
        budget=900,
        check_every=luck.choice((0, 20)),
        snapshots=luck.choice(((), (20, 40))),
        end=end,
    )
    context, held = luck.choice((400, 600, 900)), list[int]()
    strategy = hogwild("2+3", TEXT, team, PROMPT, context=context)
    dice = Dice(TEXT, boxes=0, ends=0)
    box = TEXT.encode("\\boxed{8")[0]
    dice.tokens = [token for token in dice.tokens if token != box]
    played = play(holding(strategy, held), dice)
    (reserved,) = played.reserved
    assert played.answer.finish_reason == "context"
    assert max(held) <= reserved.num_tokens
    marker = len(TEXT.words(PROMPT.more_to_come))
    slack = (
        2 * workers * marker + 30 * workers
    )  # copies and stands of the marker; a pass in which all begin a step
    if not is_anew:
        assert reserved.num_tokens <= context + workers * marker
        assert max(held) >= reserved.num_tokens - slack


def test_default_settings_run() -> None:
    played = play(hogwild("2+3", TEXT), Scripts(TEXT, Alice=["\\boxed{7}"], reply=["ok", None]))
    assert (played.answer.answer, played.answer.text) == ("7", "ok")


def test_closing_the_generator_ends_the_run() -> None:
    strategy = hogwild("2+3", TEXT, TeamSettings(), PROMPT)
    assert isinstance(next(strategy), Listen)
    strategy.send(Heard())  # answered with what it reserves; then two steps begun, the first pass
    for _ in range(3):
        next(strategy)
    strategy.close()
    with pytest.raises(StopIteration):
        next(strategy)
