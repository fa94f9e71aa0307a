"""`manyhands serve --ray`: the door here, the replicas on the cluster, an end for both."""

from __future__ import annotations

import socket
from collections.abc import Callable

from manyhands.cli.guard import tell
from manyhands.cli.serve_options import ServeOptions
from manyhands.cluster.joining import joined, share_of
from manyhands.errors import counted
from manyhands.server.front import Front
from manyhands.server.keys import Keys
from manyhands.server.limits import Limits
from manyhands.server.process import Place, serve_app


def serve_on(
    options: ServeOptions,
    make: Callable[[str], Front],
    name: str,
    keys: Keys,
    limits: Limits,
    place: Place,
    taken: socket.socket,
    ready: Callable[[str], None],
) -> int:
    """Serve at a socket until a signal, as `server/process.py` does; the code to exit with.

    `make` is called in each replica.
    """
    with joined(options, tell) as ray:
        from manyhands.cluster.serving import Door, deploy

        share = share_of(ray, options)
        tell(f"starting {counted(share.replicas, 'replica')}")
        fleet = deploy(make, share, options, limits, name=name, drain=place.drain)
        try:
            door = Door(fleet, keys, limits)
            app = door.app(hosts=place.names, origins=place.origins)
            return serve_app(app, door, place, taken, ready=ready)
        finally:
            fleet.delete()
