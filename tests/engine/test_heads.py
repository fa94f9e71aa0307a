"""A head is as long as the host takes: by marks of a device that is simulated."""

from __future__ import annotations

import itertools
import random

import pytest

from manyhands.engine.heads import Heads, part_ends


@pytest.mark.parametrize(
    ("num_bytes", "num_layers", "expected"),
    [
        (16 << 30, 36, (3, 7, 10)),
        (62 << 30, 64, (2, 3, 5)),
        (1 << 20, 6, (3,)),
        (1 << 20, 1, (0,)),
        (0, 2, (1,)),
    ],
)
def test_parts_are_half_a_millisecond_long(
    num_bytes: int, num_layers: int, expected: tuple[int, ...]
) -> None:
    assert part_ends(num_bytes, num_layers) == expected


@pytest.mark.parametrize(
    ("num_bytes", "attending", "expected"),
    [
        (48 << 30, range(3, 48, 4), (3,)),  # without them 2, 3 and 4
        (24 << 30, range(3, 48, 4), (3, 7)),  # 3, 6 and 9
        (16 << 30, range(3, 48, 4), (3, 7, 11)),  # 4, 9 and 14
        (16 << 30, range(0, 48, 2), (4, 8, 14)),
    ],
)
def test_parts_end_where_there_is_attention(
    num_bytes: int, attending: range, expected: tuple[int, ...]
) -> None:
    """Of a network whose other layers keep states."""
    assert part_ends(num_bytes, 48, attending) == expected


class Device:
    """Parts take a while each, one behind the other; the host looks at marks when it likes."""

    def __init__(self, part: float) -> None:
        self.part = part
        self.now = self.free = 0.0

    def repeat(self) -> None:
        """A part."""
        self.free = max(self.free, self.now) + self.part

    def mark(self) -> DeviceMark:
        """A mark of this device."""
        return DeviceMark(self)


class DeviceMark:
    """A mark behind what was asked for."""

    def __init__(self, device: Device) -> None:
        self.device, self.at = device, 0.0

    def record(self) -> None:
        self.at = self.device.free

    def synchronize(self) -> None:
        self.device.now = max(self.device.now, self.at)

    def query(self) -> bool:
        return self.at <= self.device.now


def lengths(host: float, *, noise: float = 0.0, passes: int = 400, right: float = 1.0) -> list[int]:
    """The parts of each head, where a host takes so long, in parts of the device's."""
    device, rng = Device(1.0), random.Random(3)
    heads = Heads((1, 2, 3), device.mark)
    found = []
    for _ in range(passes):
        found.append(heads.num_parts)
        heads.begin([device.repeat] * heads.num_parts)
        device.now += max(0.01, rng.gauss(host, noise))
        if rng.random() < right:
            heads.was_right()
        device.repeat()  # the rest, or the next pass anew
        device.now = device.free
    return found


@pytest.mark.parametrize(("host", "parts"), [(0.3, 1), (0.9, 1), (1.4, 2), (2.5, 3), (9.0, 3)])
@pytest.mark.parametrize("right", [1.0, 0.7])
def test_a_head_is_as_long_as_the_host_takes(host: float, parts: int, right: float) -> None:
    assert set(lengths(host, right=right)[200:]) == {parts}


def test_a_host_that_is_slow_now_and_then_changes_little() -> None:
    found = lengths(0.7, noise=0.15, passes=2000)
    assert sum(one != other for one, other in itertools.pairwise(found)) < 20
    assert found[100:].count(1) > 1500


def test_a_host_that_becomes_slow_is_followed() -> None:
    device = Device(1.0)
    heads = Heads((1, 2, 3), device.mark)

    def passes(host: float) -> int:
        for _ in range(100):
            heads.begin([device.repeat] * heads.num_parts)
            device.now += host
            heads.was_right()
            device.now = max(device.now, device.free)
        return heads.num_parts

    assert [passes(host) for host in (0.5, 2.5, 1.5, 0.5)] == [1, 3, 2, 1]


def test_a_head_that_has_become_longer_is_looked_at_afresh() -> None:
    """Looks at the shorter one say nothing of it: it would grow once more at once."""
    device = Device(1.0)
    heads = Heads((1, 2, 3), device.mark)
    found = []
    for host in [0.5] * 60 + [1.4] * 60:
        heads.begin([device.repeat] * heads.num_parts)
        device.now += host
        heads.was_right()
        device.now = max(device.now, device.free)
        found.append(heads.num_parts)
    assert found[59] == 1
    assert set(found[60:]) == {1, 2}


def test_what_was_not_begun_tells_nothing() -> None:
    device = Device(1.0)
    heads = Heads((1, 2, 3), device.mark)
    for _ in range(100):
        heads.was_right()  # all marks say that the device is done
    assert heads.num_parts == 2
    heads.begin([device.repeat] * 2)
    device.now += 9
    for _ in range(100):
        heads.was_right()  # the first of these counts
    assert heads.num_parts == 2


def test_where_no_head_is_long_enough_it_is_said() -> None:
    device = Device(1.0)
    heads = Heads((1, 2), device.mark)
    found = []
    for host in [9.0] * 30 + [0.5] * 60:
        heads.begin([device.repeat] * heads.num_parts)
        device.now += host
        heads.was_right()
        device.now = max(device.now, device.free)
        found.append((heads.num_parts, heads.are_too_short))
    assert found[2] == (2, False)
    assert found[29] == (2, True)
    assert found[-1] == (1, False)
