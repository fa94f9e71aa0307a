"""A saved run as records, and the page that shows it: what `manyhands view` does.

    records = records_of(read_trace("run.jsonl"))      the same list that a server streams
    document(records)                                  server/page: one file, to be mailed
    serve_page(make, port)                             the same at http://127.0.0.1:PORT/

A trace holds the views of all rows, so who read what is derived from them, as `engine/seating.py` does while
a run goes on. It holds no times: a record of it has none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress

from manyhands.errors import InvalidRequest, install_hint
from manyhands.replay.retold import answer_from, empty_account
from manyhands.replay.trace import Trace, flat
from manyhands.schema.plain import to_plain
from manyhands.server.page import HEADERS, HTML
from manyhands.server.records import Record, end_record, pass_record
from manyhands.strategies.events import Event, UsageCounted, ViewsChanged
from manyhands.strategies.methods import METHODS

LOOPBACK = "127.0.0.1"
CUT_SHORT = {
    "message": "The trace ends here: the run was interrupted, or it still goes on.",
    "type": "interrupted",
    "param": None,
    "code": None,
}
# Rights that the saved page may ask of a browser besides the policy that stands in it.
_HEADERS = {name: value for name, value in HEADERS.items() if name != "Content-Security-Policy"}


def records_of(trace: Trace) -> list[Record]:
    """The run as records (`server/records.py`), without times.

    A trace that was cut off ends with an error that says so. Raises BrokenTrace for a header or an answer
    that makes no sense.
    """
    answer = answer_from(trace)
    passes = enumerate(_events_after(trace))
    records = [_begin(trace), *(pass_record(number, 0.0, events) for number, events in passes)]
    usages = (event.usage for event in trace.engine_events if isinstance(event, UsageCounted))
    usage = to_plain(next(usages, None))
    records.append(end_record(0.0, answer, None if answer else CUT_SHORT, usage))
    return [record | {"time": None} if "time" in record else record for record in records]


def _begin(trace: Trace) -> Record:
    """As `begin_record`; what the header leaves out, a trace of a strategy of one's own for instance, is null."""
    header, account = trace.header, empty_account(trace)
    settings = header.get("settings") or {}
    method = METHODS.get(str(header.get("method")))
    return {
        "kind": "begin",
        "run": None,
        "method": header.get("method"),
        "names": [hand.name for hand in account.hands],
        "problem": header.get("problem"),
        "model": header.get("model"),
        "budget": settings.get("budget"),
        "settings": settings,
        "solo": method is not None and method.solo,
        "listens": False,
        "created": None,
        "warning": None,
    }


def _events_after(trace: Trace) -> Iterator[list[Event]]:
    """For each number of passes from 0 on, the events until the next pass is made."""
    told = iter(
        [*zip(trace.event_passes, trace.events, strict=True), (len(trace.passes) + 1, None)]
    )
    views = _views_changed(trace)
    own = [event for event in trace.engine_events if not isinstance(event, ViewsChanged)]
    at, event = next(told)
    for number in range(len(trace.passes) + 1):
        found: list[Event] = []
        while at <= number and event is not None:
            found.append(event)
            at, event = next(told)
        found += [one for one in own if one.forward_pass == number]
        if number < len(trace.passes):
            found += next(views)
        yield found


def _views_changed(trace: Trace) -> Iterator[list[ViewsChanged]]:
    """Before each pass, what its rows read that they have not read before."""
    seats: dict[str, int] = {}  # of each writer, the number of its view
    met: set[int] = set()
    unnamed: dict[int, str] = {}
    for number, rows in enumerate(trace.passes, 1):
        views = {}
        for row in rows:
            items = trace.views[row.view]
            unnamed |= {block: trace.blocks[block] for block in flat(items) if block not in met}
            met.update(unnamed)
            if row.writer is not None and seats.get(row.writer) != row.view:
                seats[row.writer] = row.view
                views[row.writer] = items
        if views:
            yield [ViewsChanged(number, views, unnamed)]
            unnamed = {}
        else:
            yield []


def serve_page(make: Callable[[], str], port: int, ready: Callable[[str], None]) -> None:
    """Serve a page on the loopback until Ctrl-C; `make` makes it anew each time it is asked for.

    `ready` is told the address once it answers; port 0 is any that is free. Raises InvalidRequest if the port
    is taken, and where the extra of the server is not installed.
    """
    try:
        import uvicorn
        from starlette.applications import Starlette
        from starlette.middleware.trustedhost import TrustedHostMiddleware
        from starlette.requests import Request
        from starlette.responses import Response
        from starlette.routing import Route
        from starlette.types import Receive, Scope, Send

        from manyhands.server.connection import Connection
        from manyhands.server.gate import take_absolute
        from manyhands.server.process import Place, listening
    except ImportError as error:
        raise InvalidRequest(
            f"the page cannot be served: {error}",
            hint=f"{install_hint('serve')}; or write it to a file with --out",
        ) from error

    def page(request: Request) -> Response:
        return Response(make(), media_type=HTML, headers=_HEADERS)

    routed = Starlette(routes=[Route("/", page)])
    routed.add_middleware(TrustedHostMiddleware, allowed_hosts=[LOOPBACK, "localhost"])

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        take_absolute(scope)  # one without a host is refused by its name
        await routed(scope, receive, send)

    with listening(Place(LOOPBACK, port)) as bound:
        ready(f"http://{LOOPBACK}:{bound.getsockname()[1]}/")
        server = uvicorn.Server(
            uvicorn.Config(app, http=Connection, ws="none", log_level="warning", lifespan="off")
        )
        with suppress(KeyboardInterrupt):  # which is how it ends
            server.run(sockets=[bound])
