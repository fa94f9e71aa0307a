"""Rows through replicas that die: each ends once, whatever happens in which order."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from manyhands.cluster.rows import ALONE, MOST, TOGETHER, Rows


@settings(max_examples=30, deadline=None)
@given(st.data(), st.integers(0, 80), st.integers(1, 40), st.integers(1, 4))
def test_every_row_ends_exactly_once(data: st.DataObject, num: int, quota: int, most: int) -> None:
    rows = Rows(range(num), quota)
    killer = data.draw(st.sampled_from([None, *range(min(num, 3))]))
    held: dict[int, list[int]] = {}
    ended: list[int] = []
    names = iter(range(10_000))
    alive = [next(names) for _ in range(most)]
    for _ in range(2000):
        if not rows.num_left:
            break
        name = data.draw(st.sampled_from(alive)) if len(ended) % 7 == 3 else alive[0]
        alive = alive[1:] + alive[:1]
        piece = rows.piece(name, len(alive))
        assert len(piece) <= MOST
        mine = held.setdefault(name, [])
        mine += [number for number, row in piece if number == row]
        assert len(mine) == rows.has(name) <= max(quota, 1)
        dies = killer in mine or (len(mine) > 1 and data.draw(st.integers(0, 30)) == 0)
        if dies:
            ended += rows.lose(name)
            del held[name]
            alive[alive.index(name)] = next(names)
        elif mine:
            size = data.draw(st.integers(1, len(mine)))
            told = mine[:size]
            ended += rows.finish(name, [*told, *told])  # news told twice counts once
            del mine[:size]
    assert rows.num_left == 0
    assert sorted(ended) == list(range(num))


def test_a_row_that_ends_its_replicas_is_left_alone_and_then_given_up() -> None:
    rows = Rows(["bad", "good", "fine"], quota=8)
    for turn in range(TOGETHER):
        assert [row for _, row in rows.piece(turn, 1)] == ["bad", "good", "fine"]
        assert rows.lose(turn) == []
    assert [row for _, row in rows.piece("a", 1)] == ["bad"], "with nothing beside it"
    assert rows.piece("a", 1) == []
    assert [row for _, row in rows.piece("b", 1)] == ["good"]
    assert rows.finish("b", [1]) == [1]
    for turn in range(ALONE):
        name = "a" if turn == 0 else f"c{turn}"
        if turn:
            found = rows.piece(name, 1)
            while found and found[0][1] != "bad":
                rows.finish(name, [found[0][0]])
                found = rows.piece(name, 1)
        given_up = rows.lose(name)
    assert given_up == [0]
    assert rows.num_left in (0, 1)


def test_a_replica_gets_its_share_and_no_more() -> None:
    rows = Rows(range(10), quota=64)
    assert len(rows.piece("first", 2)) == 5, "half of it is for the other"
    assert rows.piece("first", 2) == []
    assert len(rows.piece("second", 2)) == 5
    rows = Rows(range(1000), quota=80)
    assert [len(rows.piece("first", 2)) for _ in range(4)] == [32, 32, 16, 0]


def test_an_answer_of_a_replica_that_was_given_up_counts_no_more() -> None:
    rows = Rows("ab", quota=8)
    rows.piece("slow", 1)
    rows.lose("slow")
    assert rows.finish("slow", [0, 1]) == []
    rows.piece("other", 1)
    assert rows.finish("other", [0, 1]) == [0, 1]
    assert rows.num_left == 0
