"""Keys: which clients may come in, and what is theirs.

A key opens every route. Its digest names an *owner*: runs belong to the owner that began them, and keys and
values of prompts are shared within one owner only, since the time that an answer takes tells what was asked
before. Without keys everybody is the same owner.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Iterable

from manyhands.errors import InvalidRequest, counted

ANYBODY = "anybody"  # the owner where there are no keys
_SHORTEST = 8  # characters of a key


class Keys:
    """The keys of a server; none at all lets everybody in."""

    def __init__(self, keys: Iterable[str] = ()) -> None:
        found = [key.strip() for key in keys]
        for key in found:
            if len(key) < _SHORTEST or not key.isascii() or not key.isprintable() or " " in key:
                raise InvalidRequest(
                    f"an API key has {counted(len(key), 'character')}; expected {_SHORTEST} or more, letters, digits "
                    "and signs without blanks",
                    hint="make one: python -c 'import secrets; print(secrets.token_urlsafe(32))'",
                )
        self._owners = {key.encode(): _digest(key) for key in found}

    def __bool__(self) -> bool:
        return bool(self._owners)

    def owner_of(self, authorization: bytes) -> str | None:
        """The owner whose key a header `Authorization` holds; None if it is no owner's.

        Every key is compared, each in constant time.
        """
        if not self._owners:
            return ANYBODY
        given, owner = _key_in(authorization), None
        for key, name in self._owners.items():
            if hmac.compare_digest(given, key):
                owner = name
        return owner


def _key_in(authorization: bytes) -> bytes:
    """The key of `Bearer KEY`, or of `Basic` as its password, as browsers send it."""
    scheme, _, rest = authorization.strip().partition(b" ")
    if scheme.lower() == b"bearer":
        return rest.strip()
    if scheme.lower() == b"basic":
        try:
            return base64.b64decode(rest.strip(), validate=True).partition(b":")[2]
        except binascii.Error:
            return b""
    return b""


def _digest(key: str) -> str:
    return hashlib.sha256(b"manyhands owner " + key.encode()).hexdigest()[:16]
