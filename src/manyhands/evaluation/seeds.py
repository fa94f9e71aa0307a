"""The seeds of an exam: each question has random numbers of its own.

With one seed for all questions their draws would be the same, the first of every answer, the second, and so on.
An unlikely draw is one for all of them, so they go wrong together, and a mean over them is less sure than an interval
says, which takes samples as independent.
"""

from __future__ import annotations

import hashlib

_BITS = 30  # some servers take seeds of 32 bits, and a vote of several counts on from its first


def seed_of(seed: int, *names: object) -> int:
    """The seed of what has these names, such as a sample's id: 0 to 2**30 - 1, the same whenever it is asked for."""
    said = "/".join(map(str, (seed, *names))).encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.sha256(said).digest()[:8]) >> (64 - _BITS)
