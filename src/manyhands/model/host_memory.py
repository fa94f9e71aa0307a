"""Memory of the host that is free for this process, and the most that it may ever have.

Three may bound it: the machine, a control group, as a container has one, and the limits of the process (`ulimit -v`, `ulimit -d`). The
smallest counts. What a group holds of files that were not read lately is free: the system gives it up before it ends a process. The
same holds for the machine. Groups lie in each other, and each may have a limit; those outside of a container are not seen in it.

What cannot fit is refused before it is begun (`check_room`). There all files of a group are given up, and all other programs on the machine have ended.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from manyhands.errors import OutOfMemory

_NEVER_MORE = 1 << 60  # bytes; a group of version 1 without a limit says more
_UNKNOWN_FREE = 4 << 30
# Of the limits of a process: the name in `resource`, and the line of /proc/self/status that says what counts.
_PROCESS_LIMITS = (("RLIMIT_AS", "VmSize"), ("RLIMIT_DATA", "VmData"))


@dataclass(frozen=True)
class _Files:
    """The names of a version of control groups: files with limits, one with what is held, and what of that is free."""

    limits: tuple[str, ...]
    held: str
    free: tuple[str, ...]  # the first that is there
    read_lately: tuple[str, ...]  # likewise, of files that are free where it must be


_VERSIONS = {
    1: _Files(
        ("memory.limit_in_bytes",),
        "memory.usage_in_bytes",
        ("total_inactive_file", "inactive_file"),
        ("total_active_file", "active_file"),
    ),
    # Beyond `memory.high` a process is not ended, but hardly goes on.
    2: _Files(
        ("memory.max", "memory.high"), "memory.current", ("inactive_file",), ("active_file",)
    ),
}


def free_host_bytes(root: Path = Path("/")) -> int:
    """Free memory of the host for this process; 4 GiB where nothing tells. `root`: where `proc` and `sys` are."""
    found = [*_of_machine(root), *_of_groups(root), *_of_process(root)]
    return max(0, min(found, default=_UNKNOWN_FREE))


def most_host_bytes(root: Path = Path("/")) -> int:
    """The most memory of the host that this process may have yet, whatever others hold now; an exbibyte where nothing tells."""
    found = [*_of_whole_machine(), *_of_groups(root, all_files=True), *_of_process(root)]
    return max(0, min(found, default=_NEVER_MORE))


def check_room(subject: str, num_bytes: int) -> None:
    """Raise OutOfMemory if a network of so many bytes is larger than the memory that this process may have.

    `subject` names in the error what makes it.
    """
    most = most_host_bytes()
    if num_bytes <= most:
        return
    raise OutOfMemory(
        f"{subject} makes a network of {_in_gib(num_bytes)}, and this process may have {_in_gib(most)}",
        hint="if its sizes are right, load the model on a larger machine, or where a container or `ulimit -v` allows more",
    )


def _in_gib(size: int) -> str:
    return f"{size / 2**30:,.1f} GiB"


def _of_whole_machine() -> Iterator[int]:
    names = ("SC_PHYS_PAGES", "SC_PAGE_SIZE")
    if all(name in os.sysconf_names for name in names):
        yield os.sysconf(names[0]) * os.sysconf(names[1])


def _of_machine(root: Path) -> Iterator[int]:
    available = _sizes(root / "proc/meminfo").get("MemAvailable")
    names = ("SC_AVPHYS_PAGES", "SC_PAGE_SIZE")
    if available is not None:
        yield available
    elif all(name in os.sysconf_names for name in names):
        yield os.sysconf(names[0]) * os.sysconf(names[1])


def _of_process(root: Path) -> Iterator[int]:
    try:
        import resource
    except ImportError:  # not on every system
        return
    held = _sizes(root / "proc/self/status")
    for name, what in _PROCESS_LIMITS:
        limit = resource.getrlimit(getattr(resource, name))[0]
        if limit != resource.RLIM_INFINITY and 0 <= limit < _NEVER_MORE:
            yield limit - held.get(what, 0)


def _of_groups(root: Path, *, all_files: bool = False) -> Iterator[int]:
    """Of each group with a limit that this process is in."""
    for version, folder, mounted in _group_folders(root):
        files = _VERSIONS[version]
        while True:
            if (found := _of_group(folder, files, all_files)) is not None:
                yield found
            if folder == mounted:
                break
            folder = folder.parent


def _of_group(folder: Path, files: _Files, all_files: bool) -> int | None:
    limits = [limit for name in files.limits if (limit := _number(folder / name)) is not None]
    held = _number(folder / files.held)
    if not limits or held is None or min(limits) >= _NEVER_MORE:
        return None
    counts = dict(_words(folder / "memory.stat"))
    free = _first(counts, files.free) + (_first(counts, files.read_lately) if all_files else 0)
    return min(limits) - max(0, held - free)


def _first(counts: Mapping[str, str], names: Sequence[str]) -> int:
    return next((int(counts[name]) for name in names if counts.get(name, "").isdigit()), 0)


def _group_folders(root: Path) -> Iterator[tuple[int, Path, Path]]:
    """Of each version that counts memory: the folder of this process's group, and that of the outermost which is seen."""
    groups = {}
    for line in _lines(root / "proc/self/cgroup"):
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            groups[2] = path
        elif "memory" in controllers.split(","):
            groups[1] = path
    for line in _lines(root / "proc/self/mountinfo"):
        before, _, behind = line.partition(" - ")
        where, what = before.split(" "), behind.split(" ")
        if len(where) < 5 or len(what) < 3:
            continue
        version = {"cgroup2": 2, "cgroup": 1}.get(what[0])
        if version not in groups or (version == 1 and "memory" not in what[2].split(",")):
            continue
        mounted = root / _unescaped(where[4]).lstrip("/")
        yield version, _below(mounted, groups[version], _unescaped(where[3])), mounted


def _below(mounted: Path, group: str, mounted_group: str) -> Path:
    """Where a group is seen below a mount of another one; that one itself where it is not below it."""
    try:
        parts: Sequence[str] = PurePosixPath(group).relative_to(mounted_group).parts
    except ValueError:
        return mounted
    folder = mounted.joinpath(*parts)
    return folder if ".." not in parts and folder.is_dir() else mounted


def _unescaped(path: str) -> str:
    """A path as mountinfo writes it, in which blanks are octal numbers."""
    for code in ("\\040", "\\011", "\\012", "\\134"):
        path = path.replace(code, chr(int(code[1:], 8)))
    return path


def _sizes(path: Path) -> dict[str, int]:
    """Bytes by name, of a file with lines such as `VmSize: 12 kB`."""
    found = {}
    for name, rest in _words(path):
        size, _, unit = rest.strip().partition(" ")
        if size.isdigit() and unit == "kB":
            found[name.rstrip(":")] = int(size) << 10
    return found


def _words(path: Path) -> Iterator[tuple[str, str]]:
    for line in _lines(path):
        parts = line.split(None, 1)
        if len(parts) == 2:
            yield parts[0], parts[1].strip()


def _number(path: Path) -> int | None:
    text = "".join(_lines(path)).strip()
    return int(text) if text.isdigit() else None


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:  # not on every system, nor in every container
        return []
