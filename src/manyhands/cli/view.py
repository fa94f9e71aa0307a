"""`manyhands view`: a saved run on a page, in the browser or in a file.

The page is made anew at every reload, so a run that is still being written shows how far it has come.
"""

from __future__ import annotations

import webbrowser
from pathlib import Path

from manyhands.cli.options import ViewOptions
from manyhands.cli.output import say
from manyhands.errors import InvalidRequest, OutputFailed, place_or_room
from manyhands.replay.trace import read_trace
from manyhands.schema.whole import write_whole
from manyhands.server.page import document
from manyhands.server.view import records_of, serve_page

_PAGE_BEGINS = b'<!doctype html>\n<html lang="en" data-page="manyhands"'


def view(options: ViewOptions) -> None:
    """Do what the command says; see `manyhands view --help`."""

    def make() -> str:
        return document(records_of(read_trace(options.trace)))

    def ready(address: str) -> None:
        say(f"{options.trace.name} is shown at {address} until Ctrl-C")
        if options.browser:
            webbrowser.open(address)

    page = make()  # an error of the trace is told before anything is opened
    if options.out is None:
        serve_page(make, options.port, ready)
    else:
        _write(options.out, page)
        say(f"{options.out} shows the run; it needs no server, and no network")


def _is_page(path: Path) -> bool:
    with path.open("rb") as opened:
        return opened.read(len(_PAGE_BEGINS)) == _PAGE_BEGINS


def _write(path: Path, page: str) -> None:
    """Put the page in the place of nothing, or of an earlier page; never half of it."""
    try:
        if path.exists() and not _is_page(path):
            raise InvalidRequest(
                f"{str(path)!r} exists and is not a page of manyhands, so it is not replaced",
                hint="give another name, or remove it first",
            )
        write_whole(path, page)
    except OSError as error:
        raise OutputFailed(
            f"{str(path)!r} cannot be written: {error.strerror}",
            hint=f"{place_or_room(error)}, or name another with --out",
        ) from error
