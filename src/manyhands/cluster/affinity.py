"""Which replica a conversation belongs to.

Its keys and values lie in one replica's memory; another one would compute them again. There is no list of
conversations: what two requests of one conversation have in common is how they begin, and a hash of that names the
replica (rendezvous hashing, Thaler and Ravishankar 1998). Of n replicas one that goes takes the conversations of its
own along, and of the others none moves; one that comes takes 1 / (n + 1) of all.

    key = key_of(owner, body)            None where nothing is known of the beginning
    ranked(key, ["a", "b", "c"])         ["b", "c", "a"]: first choice, second choice, …
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any

BEGINNING = 4096  # characters. A long document that many ask about is in them, a short question behind it is not
_MARK = 8  # characters of a replica's mark in the id of a run


def key_of(owner: str, body: Any) -> str | None:
    """The key that requests of one conversation share: whose it is, and how what the model reads begins.

    `body` is the JSON of a request to any route that makes text. Between two owners nothing is shared, so they
    may lie anywhere.
    """
    beginning = _beginning(body) if isinstance(body, Mapping) else ""
    if not beginning:
        return None
    return blake2b(f"{owner}\n{beginning}".encode("utf-8", "replace"), digest_size=16).hexdigest()


def ranked(key: str, replicas: Sequence[str]) -> list[str]:
    """Replicas by name, in the order in which this key would have them."""
    return sorted(replicas, key=lambda name: _weight(key, name), reverse=True)


def replica_of_run(run: str) -> str | None:
    """The mark of the replica that has a run, by the run's id."""
    mark = run.removeprefix("run_")
    return mark[:_MARK] if run != mark and mark[_MARK : _MARK + 1] == "-" else None


def bare_mark(replica: str) -> str:
    """The mark of a replica, as `replica_of_run` finds it."""
    return f"{replica[:_MARK]:_<{_MARK}}"


def mark_of(replica: str) -> str:
    """The mark as it stands in the ids of a replica's runs."""
    return f"{bare_mark(replica)}-"


def _weight(key: str, name: str) -> bytes:
    return blake2b(f"{key}/{name}".encode(), digest_size=8).digest()


def _beginning(body: Mapping[str, Any]) -> str:
    """How the prompt begins, whichever route it is for: a problem, or an input of one text, is a user's message."""
    said = body.get("messages", body.get("input", body.get("problem")))
    if isinstance(said, str) and said:
        said = [{"role": "user", "content": said}]
    said = body.get("prompt") if said is None else said
    parts = [str(body.get("instructions") or "")]
    if isinstance(said, list) and said and isinstance(said[0], Mapping):
        first = next((at for at, one in enumerate(said) if _role(one) == "user"), 0)
        parts += [f"{_role(one)}: {_written(one)}" for one in said[: first + 1]]
    elif said:
        parts.append(_text(said))
    return "\n".join(part for part in parts if part)[:BEGINNING]


def _role(message: Any) -> str:
    return str(message.get("role", "")) if isinstance(message, Mapping) else ""


def _written(message: Any) -> str:
    return _text(message.get("content")) if isinstance(message, Mapping) else ""


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)[: 2 * BEGINNING]
