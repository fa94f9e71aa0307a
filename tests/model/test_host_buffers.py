"""Pieces of the host's memory: no two holders of one, none is used before its device is done, none is needed."""

from __future__ import annotations

import threading

import pytest
import torch

from manyhands.model.host_buffers import HostBuffers

SIZE, COUNT = 5000, 3


def test_no_two_holders_share_a_piece() -> None:
    """Eight threads write their number and find it again; some take more than there is, or too much for a piece."""
    buffers = HostBuffers(SIZE, COUNT, pin=False)
    wrong: list[int] = []

    def work(number: int) -> None:
        for turn in range(200):
            content = buffers.take(SIZE - turn if turn % 7 else 9 * SIZE)
            content.fill_(number)
            if not bool((content == number).all()):
                wrong.append(number)
            buffers.give_back(content)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert buffers.num_free == COUNT


def test_a_piece_is_taken_again_when_its_device_is_done() -> None:
    buffers = HostBuffers(SIZE, 1, pin=False)
    first, waited = buffers.take(SIZE), []
    place = first.data_ptr()
    second = buffers.take(SIZE)
    assert second.data_ptr() != place, "it is out"
    buffers.give_back(second, lambda: waited.append("of its own"))
    buffers.give_back(first, lambda: waited.append("a piece"))
    assert waited == []
    assert buffers.take(10).data_ptr() == place
    assert waited == ["a piece"]


def test_a_host_that_cannot_pin_has_no_pieces(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    empty = torch.empty

    def refuse(size: int, **options: object) -> torch.Tensor:
        if options.get("pin_memory") and size > SIZE:
            raise RuntimeError("out of memory")
        return empty(size, dtype=torch.uint8)

    monkeypatch.setattr(torch, "empty", refuse)
    buffers = HostBuffers(SIZE, COUNT, pin=True)
    assert buffers.num_free == 0
    assert len(buffers.take(SIZE)) == SIZE
    assert "can be pinned: out of memory" in caplog.text


def test_where_no_more_can_be_pinned_memory_is_ordinary(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host that has pinned all it may, beside sheets that are wanted: each of them ended every run."""
    empty, asked = torch.empty, []

    def refuse(size: int, **options: object) -> torch.Tensor:
        asked.append(options.get("pin_memory"))
        if options.get("pin_memory") or size > 10 * SIZE:
            raise RuntimeError("out of memory")
        return empty(size, dtype=torch.uint8)

    monkeypatch.setattr(torch, "empty", refuse)
    buffers = HostBuffers(SIZE, COUNT, pin=True)
    asked.clear()
    assert len(buffers.take(SIZE)) == SIZE
    assert asked == [True, False]
    with pytest.raises(MemoryError, match=str(20 * SIZE)):
        buffers.take(20 * SIZE)
