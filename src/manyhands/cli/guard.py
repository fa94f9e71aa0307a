"""Every way a command can fail, turned into its exit code. No user's mistake shows a traceback.

Whatever a command raises leaves through `guarded` (`command.py` sees to it). Help and version are written
before any command begins: `GuardedGroup` and `GuardedCommand` let them leave by the same way.
"""

from __future__ import annotations

import errno
import os
import sys
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command_from_info
from typer.models import CommandInfo

from manyhands.cli.narrow import narrow_help, narrow_width
from manyhands.cli.stopping import (
    exit_code_of,
    interrupt_behind,
    interruptible,
    number_of,
    word_for,
)
from manyhands.errors import (
    InvalidRequest,
    ManyhandsError,
    OutOfMemory,
    OutputFailed,
    no_room_of,
    place_or_room,
    scarcity_of,
)

EXIT_NO_ANSWER = 9  # behind those of `errors.py`: the run is over, and has none
EXIT_READER_GONE = 141
_AMPLE = 16 << 30  # bytes of address space; under a wider limit other errors are what they seem


@contextmanager
def guarded() -> Iterator[None]:
    """Errors and interrupts raised inside become a message on stderr and an exit code."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # a terminal that lacks a character shows a "?"
            stream.reconfigure(errors="replace")
    try:
        with interruptible():
            yield
    except typer.Exit:  # a RuntimeError by its class, and no failure
        raise
    except ManyhandsError as error:
        complain(error)
        raise typer.Exit(error.exit_code) from error
    except KeyboardInterrupt as error:
        raise _told(error) from error
    except BrokenPipeError as error:
        hush(sys.stdout)
        raise typer.Exit(EXIT_READER_GONE) from error
    except (MemoryError, ImportError, SystemError, OSError, RuntimeError) as error:
        told = (
            out_of_memory(error)
            or impossible_path(error)
            or forbidden_path(error)
            or no_temporary_folder(error)
            or limit_of_system(error)
            or full_disk(error)
        )
        if (interrupt := interrupt_behind(error)) is not None:
            raise _told(interrupt) from error
        if told is None:
            raise
        complain(told)
        raise typer.Exit(told.exit_code) from None
    except SystemExit as error:  # rich leaves by itself when the reader is gone
        if not isinstance(error.__context__, BrokenPipeError):
            raise
        hush(sys.stdout)
        raise typer.Exit(EXIT_READER_GONE) from error


def _told(interrupt: KeyboardInterrupt) -> typer.Exit:
    """Say that a command was interrupted; what it leaves with."""
    number = number_of(interrupt)
    tell(word_for(number))
    return typer.Exit(exit_code_of(number))


@contextmanager
def going_on(kept: str) -> Iterator[None]:
    """An interrupt inside loses nothing, and the user is told what is `kept`."""
    try:
        yield
    except KeyboardInterrupt as error:
        number = number_of(error)
        tell(f"{word_for(number)}; {kept}, and the same command goes on")
        raise typer.Exit(exit_code_of(number)) from error


def out_of_memory(error: BaseException) -> OutOfMemory | None:
    """The error of a process that may not have the memory it needs; None if that is not the reason.

    Under a limit of address space (`ulimit -v`) loading torch fails in many ways: libraries that cannot be
    mapped, modules that cannot be read, threads that cannot be started.
    """
    limit = _address_space()
    if limit is None and not isinstance(error, MemoryError):
        return None
    reason = f"{error}".strip().rpartition("\n")[2] or type(error).__name__
    if limit is None:
        return OutOfMemory(f"the memory does not suffice: {reason}", hint="Close other programs.")
    return OutOfMemory(
        f"the {limit / 1e6:.0f} MB of address space that this process may use do not suffice: {reason}",
        hint="Raise the limit (`ulimit -v unlimited`); torch alone needs a few thousand MB.",
    )


def impossible_path(error: BaseException) -> InvalidRequest | None:
    """The error of a path that no file can have, wherever it was first looked at; None for other errors."""
    if not isinstance(error, OSError) or error.errno != errno.ENAMETOOLONG:
        return None
    found = textwrap.shorten(str(error.filename), 60, placeholder=" ...")[:60]
    return InvalidRequest(
        f"the path {found!r} has {len(str(error.filename))} characters, more than a file system takes",
        hint="give the path of a file or folder, or a shorter one",
    )


def forbidden_path(error: BaseException) -> InvalidRequest | None:
    """The error of a path that this user may not look at, wherever that was first tried; None for other errors."""
    if not isinstance(error, PermissionError) or error.filename is None:
        return None
    return InvalidRequest(
        f"{str(error.filename)!r} cannot be used: {error.strerror}",
        hint="check its permissions, and those of the folders above it",
    )


def no_temporary_folder(error: BaseException) -> OutputFailed | None:
    """The error of a process that may write to none of the folders for temporary files; None for other errors.

    Libraries look for one while they are imported.
    """
    if not isinstance(error, FileNotFoundError) or "temporary directory" not in str(error.strerror):
        return None
    return OutputFailed(
        "there is no folder for temporary files that can be written to, as on a file system that is read-only",
        hint="Give one: TMPDIR=FOLDER, or a tmpfs at /tmp.",
    )


def full_disk(error: BaseException) -> OutputFailed | None:
    """The error of a disk that takes no more, or may only be read, wherever something was written; None for other errors.

    Libraries write, too: what they fetch, compile or put aside for a while.
    """
    failed = no_room_of(error)
    if failed is None:
        return None
    where = "a file" if failed.filename is None else repr(str(failed.filename))
    return OutputFailed(
        f"{where} cannot be written: {failed.strerror or failed}", hint=place_or_room(failed)
    )


def limit_of_system(error: BaseException) -> ManyhandsError | None:
    """The error of a process to which the system gives no more files, processes or threads; None for other errors."""
    said = scarcity_of(error)
    if said is None:
        return None
    return ManyhandsError(
        f"the system gives this process no more of what it needs: {said}",
        hint="Allow more open files (`ulimit -n`), more processes and threads (`ulimit -u`, a container's limit), or end other programs.",
    )


def _address_space() -> int | None:
    """Bytes of address space that this process may use, if they are limited to what may be too little."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return None
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    return limit if 0 <= limit < _AMPLE else None


class GuardedCommand(TyperCommand):
    """A command whose help leaves through `guarded`, as the command itself does.

    A callback with an attribute `whole` (`command.py::takes`) stands for a function that is made, of the arguments, when the
    parameters are first looked at: the list of all commands needs their names and first sentences alone.
    """

    def __init__(self, *args: Any, **more: Any) -> None:
        self._late = getattr(more["callback"], "whole", None)
        super().__init__(*args, **more)

    @property
    def params(self) -> list[Any]:
        """Typer's parameters, made when they are first asked for."""
        self._make(())
        return self._params

    @params.setter
    def params(self, params: list[Any]) -> None:
        self._params = params

    def _make(self, args: Sequence[str]) -> None:
        if self._late is not None:
            whole = get_command_from_info(
                CommandInfo(name=self.name, callback=self._late(args)),
                pretty_exceptions_short=True,
                rich_markup_mode=self.rich_markup_mode,
            )
            self._params, self.callback, self._late = whole.params, whole.callback, None

    def make_context(self, info_name: str | None, args: list[str], *rest: Any, **more: Any) -> Any:
        """Read the arguments; if they ask for help, write it and leave."""
        with guarded():
            self._make(args)  # an error of their imports is not one of writing help
        with guarded(), _help_written():
            return super().make_context(info_name, args, *rest, **more)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Typer's own, or where that would cut words, that of `narrow.py`."""
        if width := narrow_width():
            formatter.write(narrow_help(self, ctx, width))
        else:
            super().format_help(ctx, formatter)


class GuardedGroup(TyperGroup):
    """All commands: their common help and the version leave through `guarded`, too."""

    def make_context(self, *args: Any, **more: Any) -> Any:
        """Read what stands before a command; if it asks for help or the version, write it and leave."""
        with guarded(), _help_written():
            return super().make_context(*args, **more)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """See `GuardedCommand.format_help`."""
        if width := narrow_width():
            formatter.write(narrow_help(self, ctx, width))
        else:
            super().format_help(ctx, formatter)


@contextmanager
def _help_written() -> Iterator[None]:
    """Typer writes the help, and knows nothing of full disks and closed outputs."""
    try:
        with writing():
            yield
    except typer.Exit as left:
        if sys.stdout is None and left.exit_code == 0:
            raise unwritten("it is closed") from left
        raise


@contextmanager
def writing() -> Iterator[None]:
    """A full disk or a terminal that has gone, while stdout is written: OutputFailed. A closed pipe stays one."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        hush(sys.stdout)
        raise unwritten(error.strerror) from error


def unwritten(reason: str | None) -> OutputFailed:
    """The error of an output that cannot be written."""
    elsewhere = (
        "send it elsewhere" if sys.stdout is None else "make room on its disk, or send it elsewhere"
    )
    return OutputFailed(f"the output could not be written: {reason}", hint=elsewhere)


def complain(error: ManyhandsError) -> None:
    """Say on stderr what is wrong, and how to mend it."""
    tell(str(error), "error: ", "bold red")
    if error.hint:
        tell(error.hint, "hint: ", "bold")


def tell(message: str, label: str = "", style: str = "") -> None:
    """One message to the user, beside the output."""
    if sys.stderr is None:  # the user closed it
        return
    from rich.console import Console
    from rich.text import Text

    from manyhands.text.clean import printable

    console = Console(stderr=True)
    try:
        # Rich itself would leave if the reader is gone. Even so it flushes what others have left in the stream.
        with console.capture() as said:
            console.print(Text.assemble((label, style), printable(message)), soft_wrap=True)
        sys.stderr.write(said.get())
        sys.stderr.flush()
    except OSError:  # no reader is left to be told, or its disk is full
        hush(sys.stderr)


def hush(stream: Any) -> None:
    """Point a stream that cannot be written to nowhere, so that leaving does not try it again."""
    if stream is None:  # the user closed it
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
