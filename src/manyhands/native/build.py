"""The loops of `native.c`, compiled once for this machine and kept.

Triton compiles its launchers in the same way, so wherever there are kernels there is a C compiler. Without one, or without
Python's headers, `plain.py` serves: the same integers, later. The environment variable
`MANYHANDS_NATIVE=off` has it so.

What is compiled is kept by a digest of all that it was made of, under `$XDG_CACHE_HOME/manyhands/native` (`~/.cache` without
the variable), and put there in one move: processes that start together may all compile it, and none finds half a file.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from types import ModuleType

SOURCE = Path(__file__).with_name("native.c")
_COMPILERS = ("cc", "gcc", "clang")
_SECONDS = 120.0  # for one compilation, after which it counts as failed
_FLAGS = ("-O2", "-fPIC", "-shared")
_OF_MACOS = ("-undefined", "dynamic_lookup")  # Python's own symbols are found when it is loaded
VARIABLE, OFF = "MANYHANDS_NATIVE", "off"


class _CannotCompile(Exception):
    """There are no compiled loops here; its text says why."""


@functools.cache
def _made() -> tuple[ModuleType | None, str]:
    if os.environ.get(VARIABLE) == OFF:
        return None, f"{VARIABLE} is {OFF}"
    try:
        return _load(), ""
    except (_CannotCompile, OSError, ImportError, RuntimeError) as error:  # the last: no home
        return None, " ".join(str(error).split())


def module() -> ModuleType | None:
    """The compiled loops; None where there are none. Compiled at the first call."""
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
    place = _place(compiler)
    if place.is_file():
        try:
            return _imported(place)
        except ImportError:
            place.unlink()  # damaged, or of another machine that shares the home
    try:
        place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        _compile(compiler, place)
    except OSError:
        # Nothing can be kept there; what is loaded needs no file any more.
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder) / place.name
            _compile(compiler, place)
            return _imported(place)
    return _imported(place)


def _compiler() -> str:
    wanted = os.environ.get("CC")
    found = next(filter(None, map(shutil.which, [wanted] if wanted else _COMPILERS)), None)
    if found is None:
        raise _CannotCompile(f"no C compiler was found ({wanted or ', '.join(_COMPILERS)})")
    return found


def _place(compiler: str) -> Path:
    cache = os.environ.get("XDG_CACHE_HOME")
    folder = (Path(cache) if cache else Path("~/.cache").expanduser()) / "manyhands" / "native"
    suffix = sysconfig.get_config_var("EXT_SUFFIX") or ".so"
    return folder / f"{_digest(compiler)}{suffix}"


def _digest(compiler: str) -> str:
    made_of = (SOURCE.read_bytes(), sys.version.encode(), compiler.encode(), repr(_FLAGS).encode())
    return hashlib.sha256(b"\0".join(made_of)).hexdigest()[:16]


def _compile(compiler: str, place: Path) -> None:
    """Compile into a file beside `place`, and move it there."""
    handle, name = tempfile.mkstemp(dir=place.parent, suffix=place.suffix)
    os.close(handle)
    flags = [*_FLAGS, *(_OF_MACOS if sys.platform == "darwin" else ())]
    include = f"-I{sysconfig.get_path('include')}"
    try:
        done = subprocess.run(
            [compiler, *flags, include, str(SOURCE), "-o", name],
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
        )
        if done.returncode:
            lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
            raise _CannotCompile(f"{compiler} failed: {lines[0][:200]}")
        os.replace(name, place)
    except subprocess.TimeoutExpired as error:
        raise _CannotCompile(f"{compiler} took longer than {_SECONDS:.0f} s") from error
    finally:
        Path(name).unlink(missing_ok=True)


def _imported(place: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("native", place)
    assert spec is not None, "the suffix is that of a module"
    assert spec.loader is not None, "a file has a loader"
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made
