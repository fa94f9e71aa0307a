"""How many tokens a text has at least, told by its characters alone: before it is encoded, which takes seconds for megabytes.

A token of n characters can stand for n of a text. If L(c) is the length of the longest token with the character c in it, each
token takes at most one from the sum of 1 / L(c) over all characters, so the text has at least as many tokens as the
sum says. A text is refused by it only if its encoding would be refused.

Characters beyond ASCII, and those in front of one, are left out of the sum: normalisers may put them together.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

# Normalisers that take no character of ASCII away from a text, but one that has a mark behind it.
_NORMALISERS = frozenset({"NFC", "NFD", "NFKC", "NFKD", "Prepend"})
_CUTS = frozenset({"ByteLevel", "Digits", "Metaspace", "Punctuation", "Split"})
_BLANK = "\u2581"  # a blank in the vocabularies of SentencePiece
_MAY_BE_COMPOSED = re.compile(r"[\x00-\x7f]?[^\x00-\x7f]+")
_SAFE = 1 - 1e-9  # sums of floats are not exact


def shares(
    library: Any, vocabulary: Iterable[str], byte_letters: Mapping[int, str]
) -> dict[str, float]:
    """1 / L(c) for each character of ASCII; empty for a tokenizer of which that cannot be said.

    It can be of byte-pair encodings that have a token for every byte, so that nothing is left out or unknown. `library` is
    the tokenizer as the library `tokenizers` has it, `byte_letters` the names of bytes in vocabularies of bytes.
    """
    names = frozenset(vocabulary)
    cuts = _parts(library.pre_tokenizer)
    needed = {f"<0x{byte:02X}>" for byte in range(256)}
    if any(part["type"] == "ByteLevel" for part in cuts):
        needed = set(byte_letters.values())
    elif not getattr(library.model, "byte_fallback", False):
        return {}
    if (
        type(library.model).__name__ != "BPE"
        or not needed <= names
        or not all(map(_keeps, _parts(library.normalizer)))
        or not all(part["type"] in _CUTS and part.get("behavior") != "Removed" for part in cuts)
        or any(word.lstrip or word.rstrip for word in library.get_added_tokens_decoder().values())
    ):
        return {}
    longest: dict[str, int] = {}
    for name in names:
        for letter in set(name):
            longest[letter] = max(len(name), longest.get(letter, 1))
    left_out = {word.content for word in library.get_added_tokens_decoder().values()}
    found = {}
    for code in range(128):
        char = chr(code)
        letters = {char, byte_letters[code], *([_BLANK] if char == " " else [])}
        if char not in left_out:  # a control token of one character cannot be written otherwise
            found[char] = 1 / max(longest.get(letter, 1) for letter in letters)
    return found


def fewest_tokens(text: str, shares: Mapping[str, float]) -> int:
    """Tokens that the text has at least; 0 where nothing can be said."""
    if not text.isascii():
        text = _MAY_BE_COMPOSED.sub("", text)
    return int(sum(text.count(char) * share for char, share in shares.items()) * _SAFE)


def _parts(part: Any) -> list[dict[str, Any]]:
    """A normaliser, or what cuts a text, as the library writes it down: part by part."""
    if part is None:
        return []
    written: dict[str, Any] = json.loads(part.__getstate__())
    return [*written.get("normalizers", written.get("pretokenizers", [written]))]


def _keeps(normaliser: Mapping[str, Any]) -> bool:
    replaced = normaliser.get("pattern") == {"String": " "} and normaliser["content"] == _BLANK
    return normaliser["type"] in _NORMALISERS or (normaliser["type"] == "Replace" and replaced)
