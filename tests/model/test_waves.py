"""Rows of a pass in integers: alike, one token each, chunks and launches."""

from __future__ import annotations

import pytest
import torch

from manyhands.cache.states import EMPTY, RowStates
from manyhands.model import waves
from manyhands.model.recurrent import StateCall, States
from tests.model.families_zoo import tiny_model
from tests.model.test_recurrent import CONFIGS


def call_of(rows: RowStates) -> StateCall:
    return StateCall.of(States(tiny_model(CONFIGS["qwen3_5_text"]), 9), rows)


def test_a_wave_has_rows_of_all_lengths_those_of_fewest_tokens_first() -> None:
    """The last row goes on from what the first one leaves, so it is a wave of its own."""
    call = call_of(
        RowStates((0, 70, 71, 73, 75, 76, 78), (3, 3, EMPTY, 2, 1, 4), (4, 5, 6, 7, 8, 9))
    )
    first, behind = call.waves
    assert (first.counts, first.first_tokens) == ((1, 1, 2, 2, 70), (70, 75, 71, 73, 0))
    assert first.sources.tolist() == [3, 1, EMPTY, 2, 3]
    assert first.targets.tolist() == [5, 8, 6, 7, 4]
    assert (behind.counts, behind.first_tokens) == ((2,), (76,))
    assert (behind.sources.tolist(), behind.targets.tolist()) == ([4], [9])
    assert (first.num_single, behind.num_single) == (2, 0)
    assert first.single_tokens is not None
    assert first.single_tokens.tolist() == [70, 75]
    ones, twos, long = first.alike
    assert ones.at.tolist() == [[70], [75]]
    assert twos.at.tolist() == [[71, 72], [73, 74]]
    assert twos.sources.tolist() == [EMPTY, 2]
    assert long.at.tolist() == [list(range(70))]
    assert first.chunks.tolist() == [
        [71, 2, 0, 2, 1],
        [73, 2, 0, 3, 1],
        [0, 64, 0, 4, 0],
        [64, 6, 64, 4, 1],
    ]
    (cut,) = first.cuts
    assert cut.chunks.tolist() == first.chunks.tolist()
    assert cut.pieces.tolist() == [[71, 2, 0, 2, 0], [73, 2, 1, 3, 0], [0, 70, 2, 4, 0]]


def test_a_row_that_is_cut_by_the_end_of_a_launch_has_begun_in_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(waves, "MOST_CHUNKS", 3)
    (wave,) = call_of(RowStates((0, 100, 400), (1, 2), (3, 4))).waves
    assert [cut.pieces.tolist() for cut in wave.cuts] == [
        [[0, 100, 0, 0, 0], [100, 64, 2, 1, 0]],
        [[164, 192, 0, 1, 1]],
        [[356, 44, 0, 1, 1]],
    ]
    assert [len(cut.chunks) for cut in wave.cuts] == [3, 3, 1]


def test_rows_of_one_token_each_have_no_chunks_and_no_list_of_tokens() -> None:
    (wave,) = call_of(RowStates((0, 1, 2), (3, 3), (4, 5))).waves
    assert (wave.cuts, wave.single_tokens) == ((), None)
    states = States(tiny_model(CONFIGS["qwen3_5_text"]), 9)
    (recorded,) = StateCall.one_each(states, torch.tensor([3, 3]), torch.tensor([4, 5])).waves
    assert (recorded.cuts, recorded.single_tokens) == ((), None)
    assert [each.tolist() for each in recorded.alike[0]] == [[[0], [1]], [3, 3], [4, 5]]
