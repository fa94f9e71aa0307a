"""The router of Ray Serve for conversations: the replica that has the keys, else the least busy of two.

Serve asks it for groups of replicas and takes, of the first group in which one has room, the one with the shortest
queue. A request with a key is given groups of one, in the order of `affinity.py`: its own replica, and when that is
full the next, which is the same for all requests of the conversation. It keeps no state, so any number of doors agree.

Without `should_backoff` Serve asks again at once while all replicas are full, and does nothing else.

Serve tells its routers which replicas there are; the router notes it for the door (`known.py`), which asks all of them
for their runs.
"""

from __future__ import annotations

import random

from ray.serve.request_router import PendingRequest, RequestRouter, RunningReplica

from manyhands.cluster.affinity import bare_mark, ranked
from manyhands.cluster.forwarding import Forwarded
from manyhands.cluster.known import know

_CHOICES = 3  # replicas that a conversation may come to before the least busy takes it


class ConversationRouter(RequestRouter):
    """See the head of this file. The first argument of a request is a `Forwarded`."""

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        """Serve says which replicas there are."""
        super().update_replicas(replicas)
        names = (each.replica_id.unique_id for each in replicas)
        know(self.app_name, map(bare_mark, names))

    async def choose_replicas(
        self,
        candidate_replicas: list[RunningReplica],
        pending_request: PendingRequest | None = None,
    ) -> list[list[RunningReplica]]:
        """Groups of replicas, the best first."""
        any_two = random.sample(candidate_replicas, min(2, len(candidate_replicas)))
        if pending_request is None:
            return [any_two]
        pending_request.routing_context.should_backoff = True
        asked = next(iter(pending_request.args), None)
        if not isinstance(asked, Forwarded):
            return [any_two]
        by_name = {each.replica_id.unique_id: each for each in candidate_replicas}
        if asked.replica is not None:
            having = [each for name, each in by_name.items() if bare_mark(name) == asked.replica]
            return [having] if having else [any_two]
        if asked.key is None:
            return [any_two]
        wanted = ranked(asked.key, list(by_name))[:_CHOICES]
        return [*([by_name[name]] for name in wanted), any_two]
