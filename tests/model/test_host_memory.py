"""Free memory of the host: the machine's, a control group's and the process's own, the smallest of all."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest
import torch

from manyhands.model import memory
from manyhands.model.host_memory import free_host_bytes, most_host_bytes

MIB = 1 << 20
NEVER = "9223372036854771712"  # a group of version 1 without a limit says so


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with 1000 MiB, of which nothing else takes a part."""
    monkeypatch.setattr(resource, "getrlimit", lambda which: (resource.RLIM_INFINITY,) * 2)
    write(
        tmp_path, {"proc/meminfo": f"MemTotal: 9 kB\nMemFree: 5 kB\nMemAvailable: {1000 << 10} kB"}
    )
    return tmp_path


def second(root: Path, group: str, mounted: str = "/") -> Path:
    """The folder of groups of version 2."""
    write(
        root,
        {
            "proc/self/cgroup": f"0::{group}",
            "proc/self/mountinfo": f"22 1 0:5 / /proc rw - proc proc rw\n31 23 0:28 {mounted} /sys/fs/cgroup rw shared:9 - cgroup2 cgroup2 rw",
        },
    )
    return root / "sys/fs/cgroup"


def first(root: Path, group: str, mounted: str = "/") -> Path:
    """The folder of groups of version 1 that count memory, beside one of version 2 that does not."""
    write(
        root,
        {
            "proc/self/cgroup": f"5:devices:/elsewhere\n4:memory,hugetlb:{group}\n0::/",
            "proc/self/mountinfo": f"34 31 0:31 {mounted} /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory,hugetlb\n"
            "35 31 0:32 / /sys/fs/cgroup/devices rw - cgroup cgroup rw,devices\n"
            "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw",
        },
    )
    return root / "sys/fs/cgroup/memory"


def limited(limit: str, held: int, inactive: int = 0, high: str = "max") -> dict[str, str]:
    return {
        "memory.max": limit,
        "memory.high": high,
        "memory.current": str(held),
        "memory.stat": f"anon 5\ninactive_file {inactive}\nactive_file 7",
    }


def limited_first(limit: str, held: int, inactive: int = 0) -> dict[str, str]:
    return {
        "memory.limit_in_bytes": limit,
        "memory.usage_in_bytes": str(held),
        "memory.stat": f"cache 5\ninactive_file 1\ntotal_inactive_file {inactive}",
    }


def test_a_machine_alone(root: Path) -> None:
    """Files that it holds are free, as the system says."""
    assert free_host_bytes(root) == 1000 * MIB


def test_a_group_of_version_2(root: Path) -> None:
    folder = second(root, "/a/b")
    write(folder / "a/b", limited(str(100 * MIB), 60 * MIB, 20 * MIB))
    assert free_host_bytes(root) == 60 * MIB
    write(folder / "a", limited(str(90 * MIB), 80 * MIB, 20 * MIB))  # the one around it is fuller
    assert free_host_bytes(root) == 30 * MIB
    write(folder / "a", limited("max", 80 * MIB))
    assert free_host_bytes(root) == 60 * MIB
    write(folder / "a/b", limited("max", 60 * MIB, high=str(65 * MIB)))
    assert free_host_bytes(root) == 5 * MIB
    write(folder / "a/b", limited(str(50 * MIB), 60 * MIB))
    assert free_host_bytes(root) == 0
    write(folder / "a/b", limited(str(5000 * MIB), 60 * MIB))
    assert free_host_bytes(root) == 1000 * MIB


@pytest.mark.parametrize("mounted", ["/", "/docker/x"])
def test_a_container_of_version_1(root: Path, mounted: str) -> None:
    """Its group is named as the machine names it, and seen where a container sees it."""
    folder = first(root, "/docker/x", mounted)
    own = folder if mounted != "/" else folder / "docker/x"
    write(own, limited_first(str(100 * MIB), 60 * MIB, 20 * MIB))
    assert free_host_bytes(root) == 60 * MIB
    write(own, limited_first(NEVER, 60 * MIB))
    assert free_host_bytes(root) == 1000 * MIB


def test_a_container_of_version_2(root: Path) -> None:
    """With a namespace of its own it is the outermost group."""
    write(second(root, "/"), limited(str(100 * MIB), 60 * MIB))
    assert free_host_bytes(root) == 40 * MIB


@pytest.mark.parametrize("group", ["/../../other", "/not/there", "/elsewhere"])
def test_a_group_that_is_not_seen(root: Path, group: str) -> None:
    """The outermost that is seen is around it."""
    write(second(root, group, "/mounted"), limited(str(100 * MIB), 60 * MIB))
    assert free_host_bytes(root) == 40 * MIB


def test_files_that_say_nothing(root: Path) -> None:
    """They bound nothing, nor do lines that are cut off."""
    folder = second(root, "/a")
    write(
        folder / "a", {"memory.max": "", "memory.current": "many", "memory.stat": "inactive_file"}
    )
    assert free_host_bytes(root) == 1000 * MIB
    write(folder / "a", {"memory.max": str(100 * MIB), "memory.current": str(60 * MIB)})
    assert free_host_bytes(root) == 40 * MIB
    write(
        root,
        {"proc/self/mountinfo": "a b\n- cgroup2\n\n1 2 3 / - cgroup2", "proc/self/cgroup": "x"},
    )
    assert free_host_bytes(root) == 1000 * MIB


@pytest.mark.parametrize(("limit", "held"), [("RLIMIT_AS", "VmSize"), ("RLIMIT_DATA", "VmData")])
def test_a_limit_of_the_process(
    root: Path, monkeypatch: pytest.MonkeyPatch, limit: str, held: str
) -> None:
    def getrlimit(which: int) -> tuple[int, int]:
        soft = 100 * MIB if which == getattr(resource, limit) else resource.RLIM_INFINITY
        return soft, resource.RLIM_INFINITY

    monkeypatch.setattr(resource, "getrlimit", getrlimit)
    write(root, {"proc/self/status": f"Name:\tpython\n{held}:\t  {70 << 10} kB"})
    assert free_host_bytes(root) == 30 * MIB
    write(root, {"proc/self/status": f"{held}: {200 << 10} kB"})
    assert free_host_bytes(root) == 0


def test_a_system_without_such_files(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert 0 < free_host_bytes(root / "nowhere") < 1 << 50
    monkeypatch.setattr(os, "sysconf_names", {})
    assert free_host_bytes(root / "nowhere") == 4 << 30


def test_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """The real files, and the one place where the engine asks."""
    assert 0 < free_host_bytes() < 1 << 50
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    size = int(status["VmSize"].split()[0]) << 10
    limit = size + 100 * MIB
    monkeypatch.setattr(resource, "getrlimit", lambda which: (limit, resource.RLIM_INFINITY))
    assert 0 < memory.free_bytes(torch.device("cpu")) <= 101 * MIB


# -- the most that there may ever be -------------------------------------------------------------------


@pytest.mark.parametrize("version", [1, 2])
def test_all_files_of_a_group_may_be_given_up(root: Path, version: int) -> None:
    """Files that were read lately, too: weights that another process has read may not refuse this one."""
    first_stat = "cache 5\ntotal_inactive_file 1\ntotal_active_file {}"
    made, stat = (
        (first, first_stat) if version == 1 else (second, "inactive_file 1\nactive_file {}")
    )
    limit = (limited_first if version == 1 else limited)(str(100 * MIB), 60 * MIB)
    write(made(root, "/a") / "a", {**limit, "memory.stat": stat.format(50 * MIB)})
    assert free_host_bytes(root) == 40 * MIB + 1
    assert most_host_bytes(root) == 90 * MIB + 1


def test_what_others_hold_on_the_machine_may_come_back(root: Path) -> None:
    write(root, {"proc/meminfo": f"MemAvailable: {1 << 10} kB"})
    assert free_host_bytes(root) == MIB
    assert most_host_bytes(root) == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def test_a_limit_of_the_process_bounds_all_that_it_may_have(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(root, {"proc/self/status": f"VmSize: {70 << 10} kB\nVmData: {20 << 10} kB"})
    monkeypatch.setattr(resource, "getrlimit", lambda which: (100 * MIB, resource.RLIM_INFINITY))
    assert most_host_bytes(root) == 30 * MIB


def test_nothing_is_refused_where_nothing_tells(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sysconf_names", {})
    assert most_host_bytes(root / "nowhere") == 1 << 60
