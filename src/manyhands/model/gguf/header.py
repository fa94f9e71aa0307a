"""The header of a GGUF file: facts by name, and where each tensor lies.

    magic "GGUF" | version | number of tensors | number of facts
    facts:    name, type, value (numbers, text, or a list of one type)
    tensors:  name, sizes (fastest first), type, offset
    padding to `general.alignment` | the tensors' bytes, at their offsets

All integers are little-endian. Every length is a claim of the file, and is held against the bytes that
are left before anything is made of it: a file that was cut off, or written to do harm, ends in an error
that names the place. Nothing is read but the header, and neither numpy nor torch is needed.
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, NoReturn

from manyhands.errors import ModelNotFound, UnsupportedModel, counted
from manyhands.hub import check_readable, damaged

MAGIC = b"GGUF"
_VERSIONS = (2, 3)  # version 1 counted in 32 bits, for a few weeks of 2023
_ALIGNMENT = 32
_LONGEST_NAME = 1 << 16  # bytes; ggml allows 64 for tensors and 65,535 for facts
_MOST_DIMS = 4
_TEXT, _LIST = 8, 9
_NUMBERS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
_HINT = "the file is truncated, or no GGUF file; download it again"
_TOKEN_ID = "_token_id"  # how names of facts end that name a token
# The facts that are read by these names, and their types; in lists, whose values have one type, that of the first.
_FORMS: MappingProxyType[str, tuple[type[Any], type[Any] | None, str]] = MappingProxyType(
    {
        "split.count": (int, None, "a whole number"),
        "tokenizer.chat_template": (str, None, "a text"),
        "tokenizer.ggml.model": (str, None, "a text"),
        "tokenizer.ggml.pre": (str, None, "a text"),
        "tokenizer.ggml.tokens": (list, str, "a list of texts"),
        "tokenizer.ggml.merges": (list, str, "a list of texts"),
        "tokenizer.ggml.token_type": (list, int, "a list of whole numbers"),
        "tokenizer.ggml.scores": (list, float, "a list of numbers"),
        "tokenizer.ggml.add_bos_token": (bool, None, "true or false"),
        "tokenizer.ggml.add_space_prefix": (bool, None, "true or false"),
    }
)
_ID = int, None, "the number of a token"


class Kind(NamedTuple):
    """How ggml stores numbers: so many of them in a block of so many bytes."""

    name: str
    block: int
    size: int


# By ggml's number of the type (ggml.h). Types that are only used while computing are left out.
KINDS = MappingProxyType(
    {
        0: Kind("F32", 1, 4),
        1: Kind("F16", 1, 2),
        2: Kind("Q4_0", 32, 18),
        3: Kind("Q4_1", 32, 20),
        6: Kind("Q5_0", 32, 22),
        7: Kind("Q5_1", 32, 24),
        8: Kind("Q8_0", 32, 34),
        10: Kind("Q2_K", 256, 84),
        11: Kind("Q3_K", 256, 110),
        12: Kind("Q4_K", 256, 144),
        13: Kind("Q5_K", 256, 176),
        14: Kind("Q6_K", 256, 210),
        16: Kind("IQ2_XXS", 256, 66),
        17: Kind("IQ2_XS", 256, 74),
        18: Kind("IQ3_XXS", 256, 98),
        19: Kind("IQ1_S", 256, 50),
        20: Kind("IQ4_NL", 32, 18),
        21: Kind("IQ3_S", 256, 110),
        22: Kind("IQ2_S", 256, 82),
        23: Kind("IQ4_XS", 256, 136),
        28: Kind("F64", 1, 8),
        29: Kind("IQ1_M", 256, 56),
        30: Kind("BF16", 1, 2),
    }
)


@dataclass(frozen=True)
class TensorAt:
    """One tensor of the file: its shape in torch's order, its type, its bytes."""

    name: str
    shape: tuple[int, ...]
    kind: Kind
    number: int  # of the type, in ggml
    start: int  # of its bytes in the file
    size: int  # bytes


@dataclass(frozen=True)
class Header:
    """The header of a GGUF file: its metadata and the list of its tensors."""

    path: Path
    facts: MappingProxyType[str, Any]
    tensors: MappingProxyType[str, TensorAt]

    @property
    def architecture(self) -> str:
        """As llama.cpp names it: "llama", "qwen3", ..."""
        return str(self.facts["general.architecture"])

    def fact(self, name: str) -> Any:
        """A fact of the architecture, `llama.block_count` by the name "block_count"; None: not said."""
        return self.facts.get(f"{self.architecture}.{name}")


def read_header(path: Path) -> Header:
    """Raises ModelNotFound where there is no such file or it is damaged, UnsupportedModel for what we cannot read."""
    path = path.expanduser()
    check_readable(path)
    if not path.is_file():
        raise ModelNotFound(f"no file {str(path)!r}", hint="check the path of the GGUF file")
    about = path.stat()
    return _read(path, about.st_mtime_ns, about.st_size)


@lru_cache(maxsize=4)  # read before torch is loaded, and again when the network is made
def _read(path: Path, modified: int, size: int) -> Header:
    try:
        with path.open("rb") as file:
            if size < 24:
                raise _damage(
                    path, f"{counted(size, 'byte')}, less than the beginning of a GGUF file"
                )
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
                return _Reader(path, content).header()
    except OSError as error:
        raise ModelNotFound(
            f"the file {str(path)!r} cannot be read: {error.strerror}", hint="check its permissions"
        ) from error


class _Reader:
    """A place in the file that moves on; every step is checked against the end."""

    def __init__(self, path: Path, content: mmap.mmap) -> None:
        self._path, self._content, self._at = path, content, 0

    def header(self) -> Header:
        magic = self._bytes(4, "the magic")
        if magic != MAGIC:
            self._fail(f"{magic!r} where a GGUF file has {MAGIC!r}")
        version = self._number("I", "the version")
        if version not in _VERSIONS:
            swapped = int.from_bytes(version.to_bytes(4, "little"), "big") in _VERSIONS
            found = "big-endian numbers" if swapped else f"version {version}"
            raise UnsupportedModel(
                f"the GGUF file {str(self._path)!r} has {found}; versions 2 and 3 are read, little-endian",
                hint="convert the model anew with a llama.cpp of today",
            )
        num_tensors = self._count("Q", "the number of tensors", least=24)
        num_facts = self._count("Q", "the number of facts", least=13)
        facts: dict[str, Any] = {}
        for index in range(num_facts):
            name = self._name(f"the name of fact {index + 1}")
            if name in facts:
                self._fail(f"the fact {name!r} twice")
            facts[name] = self._value(self._number("I", f"the type of {name}"), name)
            self._check_form(name, facts[name])
        if not isinstance(facts.get("general.architecture"), str):
            self._fail("no general.architecture")
        if facts.get("split.count", 1) not in (0, 1):
            raise UnsupportedModel(
                f"{str(self._path)!r} is one of {facts['split.count']} parts of a model",
                hint="join the parts with llama-gguf-split --merge, and give the whole",
            )
        return Header(self._path, MappingProxyType(facts), self._tensors(num_tensors, facts))

    def _tensors(self, count: int, facts: dict[str, Any]) -> MappingProxyType[str, TensorAt]:
        entries = []
        for index in range(count):
            name = self._name(f"the name of tensor {index + 1}")
            dims = self._number("I", f"the dimensions of {name}")
            if not 1 <= dims <= _MOST_DIMS:
                self._fail(f"{name} with {dims} dimensions; expected 1 to {_MOST_DIMS}")
            sizes = [self._number("Q", f"a size of {name}") for _ in range(dims)]
            number = self._number("I", f"the type of {name}")
            entries.append((name, sizes[::-1], number, self._number("Q", f"the offset of {name}")))
        alignment = facts.get("general.alignment", _ALIGNMENT)
        if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
            self._fail(f"an alignment of {alignment!r}; expected a power of two")
        data = -(-self._at // alignment) * alignment
        tensors: dict[str, TensorAt] = {}
        for name, shape, number, offset in entries:
            if name in tensors:
                self._fail(f"the tensor {name!r} twice")
            tensors[name] = self._tensor(name, tuple(shape), number, data + offset)
        return MappingProxyType(tensors)

    def _tensor(self, name: str, shape: tuple[int, ...], number: int, start: int) -> TensorAt:
        kind = KINDS.get(number)
        if kind is None:
            raise UnsupportedModel(
                f"the tensor {name!r} of {str(self._path)!r} has numbers of ggml's type {number}; known are "
                + ", ".join(each.name for each in KINDS.values()),
                hint="use a file in another quantisation",
            )
        if min(shape) < 1 or shape[-1] % kind.block:
            self._fail(f"{name} of shape {shape} in blocks of {kind.block} ({kind.name})")
        count = 1
        for length in shape:
            count *= length  # Python's integers do not overflow
        size = count // kind.block * kind.size
        if start + size > len(self._content):
            self._fail(
                f"{name}, which ends at byte {start + size:,}, in a file of {len(self._content):,} bytes"
            )
        return TensorAt(name, shape, kind, number, start, size)

    def _check_form(self, name: str, value: Any) -> None:
        """Fail for a fact of another type than the one by which it is read."""
        form = _ID if name.endswith(_TOKEN_ID) else _FORMS.get(name)
        if form is None:
            return
        kind, inner, expected = form
        is_right = isinstance(value, kind) and isinstance(value, bool) == (kind is bool)
        if is_right and inner is not None:
            is_right = all(isinstance(each, inner) for each in value[:1])
        if not is_right:
            self._fail(f"{str(value)[:60]!r} as {name}; expected {expected}")

    # -- one value after the other -----------------------------------------------------------------

    def _value(self, kind: int, name: str) -> Any:
        if kind in _NUMBERS:
            return self._number(_NUMBERS[kind], name)
        if kind == _TEXT:
            return self._text(name)
        if kind != _LIST:
            self._fail(f"{name} of type {kind}; expected 0 to 12")
        inner = self._number("I", f"the type of {name}")
        if inner in _NUMBERS:
            letter = _NUMBERS[inner]
            count = self._count("Q", f"the length of {name}", least=struct.calcsize(letter))
            return list(
                struct.unpack(
                    f"<{count}{letter}", self._bytes(count * struct.calcsize(letter), name)
                )
            )
        if inner != _TEXT:  # lists of lists are allowed, and no model has one
            self._fail(f"{name}, a list of type {inner}; expected numbers or texts")
        return self._texts(self._count("Q", f"the length of {name}", least=8), name)

    def _name(self, what: str) -> str:
        return self._text(what, longest=_LONGEST_NAME)

    def _text(self, what: str, longest: int | None = None) -> str:
        length = self._count("Q", f"the length of {what}", least=1)
        if longest is not None and length > longest:
            self._fail(f"{what} of {length:,} bytes; expected at most {longest:,}")
        try:
            return self._bytes(length, what).decode("utf-8")
        except UnicodeDecodeError:
            self._fail(f"{what} that is no UTF-8")

    def _texts(self, count: int, what: str) -> list[str]:
        """`_text` so many times: a vocabulary and its merges are hundreds of thousands."""
        content, at, end = self._content, self._at, len(self._content)
        found = []
        for _ in range(count):
            start = at + 8
            at = start + int.from_bytes(content[at:start], "little")
            if start > end or at > end:
                self._fail(f"its end at byte {end:,}, within {what}")
            found.append(content[start:at])
        self._at = at
        try:
            return [text.decode("utf-8") for text in found]
        except UnicodeDecodeError:
            self._fail(f"{what} that is no UTF-8")

    def _count(self, letter: str, what: str, *, least: int) -> int:
        """How many things follow, each of which takes at least so many bytes."""
        count: int = self._number(letter, what)
        if count * least > len(self._content) - self._at:
            self._fail(f"{count:,} for {what}, more than the file has bytes for")
        return count

    def _number(self, letter: str, what: str) -> Any:
        return struct.unpack(f"<{letter}", self._bytes(struct.calcsize(letter), what))[0]

    def _bytes(self, count: int, what: str) -> bytes:
        end = self._at + count
        if end > len(self._content):
            self._fail(f"its end at byte {len(self._content):,}, within {what}")
        found = self._content[self._at : end]
        self._at = end
        return found

    def _fail(self, what: str) -> NoReturn:
        raise _damage(self._path, what)


def _damage(path: Path, what: str) -> ModelNotFound:
    error = damaged(str(path), what)
    error.hint = _HINT
    return error
