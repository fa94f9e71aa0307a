"""Every mistake a user can make, in one tree.

Each error says what was found and what was expected (the message) and how to mend it (the hint).
The command line prints both and exits with `exit_code`; a library user catches `ManyhandsError`.
A broken promise between our own rooms is a bug, and an `assert`.

    ManyhandsError            1
    ├── InvalidRequest        2   an option, argument or prompt that cannot be used
    ├── ModelNotFound         3   no such model, or its folder lacks weights or a tokenizer
    ├── UnsupportedModel      4   an architecture that would give wrong answers, and why
    ├── ContextTooLong        5   more tokens than the model's positions reach
    ├── OutOfMemory           6   more keys and values than the memory holds
    ├── BrokenTrace           7   a trace file that is damaged, truncated or of another version
    ├── OutputFailed          8   a file could not be written (disk full, no permission)
    ├── RanksFailed           1   a rank of the model has ended, or made another pass than the others
    ├── RunCancelled          2   an InvalidRequest: a run that was cancelled has no answer
    └── of a Service          1   Busy, DeadlineExceeded, ServiceStopped: no command ends with them
"""

from __future__ import annotations

import errno
import os
import re


class ManyhandsError(Exception):
    """Root of the tree. `str(error)` is the problem, `error.hint` the mend (may be empty), which a traceback shows as a note."""

    exit_code = 1

    def __init__(self, problem: str, *, hint: str = "") -> None:
        super().__init__(problem)
        self.hint = hint

    @property
    def hint(self) -> str:
        """The mend."""
        return self._hint

    @hint.setter
    def hint(self, hint: str) -> None:
        self._hint = hint
        self.__notes__ = [f"hint: {hint}"] if hint else []


class InvalidRequest(ManyhandsError):
    """An option, argument, step or prompt that cannot be used as given."""

    exit_code = 2


class ModelNotFound(ManyhandsError):
    """No such model here, or its folder lacks weights, configuration or tokenizer."""

    exit_code = 3


class UnsupportedModel(ManyhandsError):
    """An architecture that shared blocks would silently break; the message names the reason."""

    exit_code = 4


class ContextTooLong(ManyhandsError):
    """A view is longer than the positions the model was made for."""

    exit_code = 5


class OutOfMemory(ManyhandsError):
    """The keys and values asked for do not fit the memory, now or ever."""

    exit_code = 6


class BrokenTrace(ManyhandsError):
    """A trace that is damaged, truncated, or written with another version of the schema."""

    exit_code = 7


def counted(number: float, noun: str, form: str = "") -> str:
    """A number before its noun: "1 block", "3 blocks", "2 passes". `form` formats the number."""
    plural = noun + ("es" if noun.endswith("s") else "s")
    return f"{number:{form}} {noun if number == 1 else plural}"


def install_hint(extra: str) -> str:
    """The hint where packages of an extra are missing. This package is on no index; its clone is what pip installs."""
    return f"in a clone of manyhands: pip install '.[{extra}]'"


_NO_SUCH_PLACE = (
    *(errno.ENOENT, errno.ENOTDIR, errno.EEXIST, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP),
    *(errno.ENODEV, errno.ENXIO, errno.EINVAL),
)


# Errors of a disk that takes no more: its blocks or names, a user's share, the length of a file.
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def place_or_room(error: OSError) -> str:
    """The hint where a file cannot be written: another place, or room on the disk."""
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return "choose a place that you may write to"
    if error.errno in _NO_SUCH_PLACE:
        return "choose another place"
    return "make room"


_OS_ERROR = re.compile(r"\(os error (\d+)\)")


def os_error_of(error: BaseException) -> OSError | None:
    """The system's own error behind one of a library, if there is one.

    Those in Rust (safetensors, tokenizers) tell of it in their message alone: "No space left on device (os error 28)".
    """
    if isinstance(error, OSError):
        return error
    if isinstance(error, ManyhandsError) or not (told := _OS_ERROR.search(str(error))):
        return None
    number = int(told[1])
    return OSError(number, os.strerror(number))


def no_room_of(error: BaseException) -> OSError | None:
    """The system's error of a disk that takes no more, or may only be read; None for other errors."""
    found = os_error_of(error)
    return found if found is not None and found.errno in (*NO_ROOM, errno.EROFS) else None


_SCARCE = (errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM)
_NO_THREAD = "can't start new thread"  # Python's whole account of it, in a RuntimeError


def scarcity_of(error: BaseException | None) -> str | None:
    """The system's words where it gives no more files, processes, threads or memory; None for other errors.

    The limit may be behind an error as its cause.
    """
    seen: set[int] = set()  # an error may be its own cause
    while error is not None and id(error) not in seen:
        is_output = hasattr(error, "characters_written")  # a reader who is slow is no limit
        if isinstance(error, OSError) and error.errno in _SCARCE and not is_output:
            return error.strerror or type(error).__name__
        if isinstance(error, RuntimeError) and str(error) == _NO_THREAD:
            return _NO_THREAD
        if isinstance(error, MemoryError):
            return str(error) or "no memory is left"
        seen.add(id(error))
        error = error.__cause__
    return None


def no_thread(said: str) -> RuntimeError | None:
    """The error of another process that ended with these words, if it was given no more threads."""
    return RuntimeError(_NO_THREAD) if said.endswith(_NO_THREAD) else None


class OutputFailed(ManyhandsError):
    """A result could not be written; what was written so far is kept."""

    exit_code = 8


class RanksFailed(ManyhandsError):
    """The ranks of one model cannot go on: one has ended, or differs from the others."""


class Busy(ManyhandsError):
    """A service has as many runs as it takes, or as many words wait for a run as may; ask again later."""


class DeadlineExceeded(ManyhandsError):
    """A run was ended because it took longer than it was given."""


class RunCancelled(InvalidRequest):
    """A run was asked for its answer, and had been cancelled."""


class ServiceStopped(ManyhandsError):
    """A service takes no runs any more: it was closed, or its engine failed (`__cause__`)."""
