"""The two files of `manyhands batch`: requests in, answers out, and nothing lost in between.

The output is a `LineFile` (`schema/lines.py`): an answer is appended when it is there, and on disk before
the next pass. So the output is at any moment what has been done, and a second start goes on from it:
requests that have an answer are left out.

An answer belongs to its request by `custom_id`, or by the number of its line if that has none of its
own. Its fingerprint says whether the request is still the one that was answered. With `retry_failures`,
the lines of failed requests are taken out first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from manyhands.cli.batch_lines import decode_line, error_line, fingerprint
from manyhands.errors import InvalidRequest
from manyhands.schema.lines import Format, Line, LineFile, raw_lines
from manyhands.schema.openai import InvalidField
from manyhands.strategies.requests import Defaults

ANSWER_LINES = Format(
    "a file of answers",
    line="an answer of a batch",
    fields=("custom_id", "error", "fingerprint"),
    begins=b'{"id": "batch_req_',
    hint="nothing is added to it: give another name, or remove the file first",
)


@dataclass
class Input:
    """All requests of a file: those that can be looked at, and an error line for each of the others."""

    lines: list[tuple[int, Line]] = field(default_factory=list)  # number and request
    faulty: list[Line] = field(default_factory=list)
    fingerprints: dict[str | int, str] = field(default_factory=dict)  # by custom_id or line number

    @property
    def num_requests(self) -> int:
        """How many lines are to be answered, in one way or another."""
        return len(self.fingerprints)


def read_input(path: Path, defaults: Defaults) -> Input:
    """Read all requests; a line that is none does not keep the others from being answered."""
    found, seen = Input(), dict[str, int]()
    for number, raw in raw_lines(path, "a file with one request a line (JSONL)"):
        raw = raw.removesuffix(b"\n")
        if not raw.strip():
            continue
        try:
            line = decode_line(raw.removeprefix(b"\xef\xbb\xbf"), number)
            name = line["custom_id"]
            if name in seen:
                raise InvalidField(
                    f"line {number} has the custom_id {name!r} of line {seen[name]}",
                    param="custom_id",
                    hint="give every request a custom_id of its own",
                )
        except InvalidRequest as error:
            mark = fingerprint(raw.decode("utf-8", "replace"), defaults)
            found.fingerprints[number] = mark
            found.faulty.append(error_line(error, number, None, mark))
        else:
            seen[name] = number
            found.fingerprints[name] = fingerprint(line, defaults)
            found.lines.append((number, line))
    if not found.num_requests:
        raise InvalidRequest(
            f"{str(path)!r} holds no request", hint="write one JSON object a line into it"
        )
    return found


class Output:
    """The file of answers. `done` are the requests that stand in it, `num_failed` those without answer.

    `retry_failures`: those without answer are taken out of it, and so are to be done again. `num_torn`:
    bytes of a last line that was cut short.
    """

    def __init__(self, path: Path, given: Input, *, retry_failures: bool = False) -> None:
        self.path = path
        self.retry_failures = retry_failures
        self.done: set[str | int] = set()
        self.num_failed = 0
        self._file = LineFile(path, ANSWER_LINES, elsewhere="give another output file")
        try:
            for number, line in enumerate(self._file.resume(), 1):
                if self._is_kept(line):
                    ANSWER_LINES.checked(path, number, partial(_key, line))
                    self._check(line, given)
                    self._note(line)
            self._file.keep(self._is_kept)
        except BaseException:
            self._file.close()
            raise
        self.num_torn = self._file.num_torn

    def write(self, lines: Sequence[Line]) -> None:
        """Append lines, all of them or none; when this returns, they are on disk."""
        self._file.append(*lines)
        for line in lines:
            self._note(line)

    def __enter__(self) -> Output:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def _is_kept(self, line: Line) -> bool:
        return not self.retry_failures or line["error"] is None

    def _check(self, line: Line, given: Input) -> None:
        key = _key(line)
        expected = given.fingerprints.get(key)
        name = f"the request {key!r}" if isinstance(key, str) else f"line {key}"
        hint = "give another output file, or the requests, model and options it was begun with"
        if line["error"] is not None:
            hint += "; with --retry-failures, what failed is asked again as it is now"
        if expected is None:
            raise InvalidRequest(
                f"{str(self.path)!r} holds an answer to {name}, which is not in the input",
                hint=hint,
            )
        if expected != line["fingerprint"]:
            raise InvalidRequest(
                f"{name} has changed since {str(self.path)!r} was begun (or the model or an option has)",
                hint=hint,
            )
        if key in self.done:
            raise InvalidRequest(f"{str(self.path)!r} holds two answers to {name}", hint=hint)

    def _note(self, line: Line) -> None:
        self.done.add(_key(line))
        self.num_failed += line["error"] is not None


def _key(line: Line) -> str | int:
    """By what an answer is found again: the custom_id, or the number of a line that has none.

    TypeError for a line that is neither an answer nor an error.
    """
    name, error = line["custom_id"], line["error"]
    if error is None and not isinstance(line.get("response"), dict):
        raise TypeError("it has neither a response nor an error")
    if isinstance(name, str):
        return name
    place = error.get("line") if isinstance(error, dict) else None
    if name is not None or not isinstance(place, int):
        raise TypeError("it does not say which request it is about")
    return place
