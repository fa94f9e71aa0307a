"""The loops of `native.c`, compiled once for this machine and kept.

Triton compiles its launchers in the same way, so wherever there are kernels there is a C compiler. Without one, or without
Python's headers, `plain.py` serves: the same integers, later. The environment variable
`MANYHANDS_NATIVE=off` has it so.

What is compiled is kept under `$XDG_CACHE_HOME/manyhands/native` (`~/.cache` without the variable), named by a digest of all that
it was made of and by one of itself, and put there in one move: processes that start together may all compile it, and none loads
half a file, also where a linker has left one on a full disk and not said so. Where nothing can be kept it is compiled at each start. Whatever goes wrong, `plain.py` serves.
"""

from __future__ import annotations

import errno
import functools
import hashlib
import importlib.util
import os
import shlex
import shutil
import struct
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import ModuleType

from manyhands.errors import InvalidRequest

SOURCE = Path(__file__).with_name("native.c")
_COMPILERS = ("cc", "gcc", "clang")
_SECONDS = 120.0  # for one compilation, after which it counts as failed
_FLAGS = ("-O2", "-fPIC", "-shared")
_OF_MACOS = ("-undefined", "dynamic_lookup")  # Python's own symbols are found when it is loaded
_SUFFIX = sysconfig.get_config_var("EXT_SUFFIX") or ".so"
VARIABLE, ON, OFF = "MANYHANDS_NATIVE", "on", "off"


class _CannotCompile(Exception):
    """There are no compiled loops here; its text says why."""


@functools.cache
def _made() -> tuple[ModuleType | None, str]:
    found = os.environ.get(VARIABLE, ON)
    if found == OFF:
        return None, f"{VARIABLE} is {OFF}"
    if found not in ("", ON):
        raise InvalidRequest(
            f"the environment variable {VARIABLE} is {found!r}; expected {ON} or {OFF}",
            hint=f"Leave it out to have the loops compiled, or set it to {OFF} to have numpy's.",
        )
    try:
        return _load(), ""
    except Exception as error:  # it is optional, and never stops an engine
        return None, " ".join(str(error).split()) or type(error).__name__


def module() -> ModuleType | None:
    """The compiled loops; None where there are none. Compiled at the first call.

    Raises InvalidRequest where the environment says neither on nor off.
    """
    return _made()[0]


def reason() -> str:
    """Why there are no compiled loops; empty where there are."""
    return _made()[1]


def about() -> str:
    """The kind of code that serves here, and why, in a few words."""
    module, reason = _made()
    return f"numpy: {reason}" if module is None else "native code"


def _load() -> ModuleType:
    compiler = _compiler()
    with suppress(OSError, ImportError, RuntimeError):  # the last: no home
        folder = _folder()
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        return _imported(_kept(folder, compiler) or _compile(compiler, folder))
    # Nothing can be kept there; what is loaded needs no file any more.
    with tempfile.TemporaryDirectory() as name:
        return _imported(_compile(compiler, Path(name)))


def _compiler() -> tuple[str, ...]:
    """The words of the command that compiles: those of CC, or the first compiler that there is."""
    words = shlex.split(os.environ.get("CC", ""))
    for name in words[:1] or _COMPILERS:
        if (found := shutil.which(name)) is not None:
            return found, *words[1:]
    raise _CannotCompile(f"no C compiler was found ({' '.join(words) or ', '.join(_COMPILERS)})")


def _folder() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path("~/.cache").expanduser()) / "manyhands" / "native"


def _kept(folder: Path, compiler: Sequence[str]) -> Path | None:
    """The file that was made of the same, if it is whole: half a library would end the process. Others are taken away."""
    for place in sorted(folder.glob(f"{_made_of(compiler)}-*{_SUFFIX}")):
        library = place.read_bytes()
        if place == _named(folder, compiler, library) and _is_whole(library):
            return place
        place.unlink(missing_ok=True)
    return None


def _named(folder: Path, compiler: Sequence[str], library: bytes) -> Path:
    return folder / f"{_made_of(compiler)}-{hashlib.sha256(library).hexdigest()[:16]}{_SUFFIX}"


def _made_of(compiler: Sequence[str]) -> str:
    made_of = (SOURCE.read_bytes(), sys.version.encode(), repr((compiler, _FLAGS)).encode())
    return hashlib.sha256(b"\0".join(made_of)).hexdigest()[:16]


def _compile(compiler: Sequence[str], folder: Path) -> Path:
    """Compile into a file of this folder, and move it to its name."""
    handle, name = tempfile.mkstemp(dir=folder, suffix=_SUFFIX)
    os.close(handle)
    flags = [*_FLAGS, *(_OF_MACOS if sys.platform == "darwin" else ())]
    include = f"-I{sysconfig.get_path('include')}"
    try:
        done = subprocess.run(
            [*compiler, *flags, include, str(SOURCE), "-o", name],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_SECONDS,
            check=False,
        )
        if done.returncode:
            lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
            raise _CannotCompile(f"{compiler[0]} failed: {lines[0][:200]}")
        library = Path(name).read_bytes()
        if not _is_whole(library):
            raise OSError(
                errno.ENOSPC, f"{compiler[0]} has made half a library and said nothing", name
            )
        place = _named(folder, compiler, library)
        os.replace(name, place)
        return place
    except subprocess.TimeoutExpired as error:
        raise _CannotCompile(f"{compiler[0]} took longer than {_SECONDS:.0f} s") from error
    finally:
        Path(name).unlink(missing_ok=True)


def _is_whole(library: bytes) -> bool:
    """Whether a library holds all that its header speaks of.

    GNU's ld (2.40) ends with 0 where the disk is full when it closes what it wrote, and leaves a file that is empty or cut off. The
    table of sections stands at the end of an ELF file. Other formats are not looked into.
    """
    if not library.startswith(b"\x7fELF"):
        return sys.platform != "linux" and bool(library)
    is_64, order = library[4:5] == b"\2", "<" if library[5:6] == b"\1" else ">"
    try:
        (table,) = struct.unpack_from(
            f"{order}{'Q' if is_64 else 'I'}", library, 40 if is_64 else 32
        )
        size, count = struct.unpack_from(f"{order}HH", library, 58 if is_64 else 46)
    except struct.error:
        return False
    return bool(0 < table <= table + size * count <= len(library))


def _imported(place: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("native", place)
    assert spec is not None, "the suffix is that of a module"
    assert spec.loader is not None, "a file has a loader"
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made
