"""Judges: another model says how well a team worked together, or how good an answer is.

    collaborativeness   three votes on a level from 1 to 6, averaged (Hogwild! Inference, app. H). What
                        the workers wrote stands one worker after the other, as in the contiguous
                        layout: a judge is not to be swayed by the number of pieces.
    quality             one vote of 1 to 5 points, beside a reference answer (PDOS, app. C)

A judge may be an endpoint or a model of our own engine. Each vote is a line of a file as soon as it is
cast, so judging can be stopped and go on like the exam itself, and be done long after it:

    DIR/<task>/judgements/<rubric>/<label>.jsonl

A vote that names no level is kept as it was said, with the value None: it is counted and told, and only
the votes that can be read are averaged. A vote says what it was cast on (`of`): where a sample was asked again, the votes on
its earlier answer count no more, and are asked for again.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from manyhands.errors import InvalidRequest, ManyhandsError
from manyhands.evaluation.record import EXAM_LINES, Key, Record, Results, header_line
from manyhands.evaluation.voices import Ballot, Voice
from manyhands.prompts.judging import READINGS, JudgingPrompt
from manyhands.schema.lines import Line, LineFile, read_lines
from manyhands.schema.plain import from_plain
from manyhands.strategies.methods import METHODS
from manyhands.tasks.task import Sample
from manyhands.text.boxed import boxed_answer

JUDGEMENTS = "judgements"  # the folder beside the records
_LEVEL = re.compile(
    r"(?:level|score|points?)?\s*:?\s*(\d{1,9}(?:\.\d+)?)\s*(?:/\s*\d+)?", re.IGNORECASE
)


class NothingToJudge(InvalidRequest):
    """A file has no record that a rubric has something to say about."""


@dataclass(frozen=True)
class Rubric:
    """A quality that is judged: levels from 1 to `highest`, by `votes` votes at this temperature."""

    name: str
    highest: int
    votes: int
    temperature: float


RUBRICS: Mapping[str, Rubric] = MappingProxyType(
    {
        rubric.name: rubric
        for rubric in (
            # Three votes at temperature 0 would be one.
            Rubric("collaborativeness", highest=6, votes=3, temperature=1.0),
            Rubric("quality", highest=5, votes=1, temperature=0.0),
        )
    }
)


@dataclass(frozen=True)
class Judging:
    """A judge, its rubric and its words. `judge` names the model in the header of the votes."""

    rubric: Rubric
    prompt: JudgingPrompt
    voice: Voice
    judge: Mapping[str, Any]
    retry: bool = False  # votes that could not be read or were not cast

    def header(self, results: Results) -> dict[str, Any]:
        """The first line of the file of votes."""
        return {
            "task": results.header.task,
            "label": results.header.label,
            "rubric": self.rubric.name,
            "highest": self.rubric.highest,
            "votes": self.rubric.votes,
            "message": getattr(self.prompt, self.rubric.name),
            **self.judge,
        }


@dataclass(frozen=True)
class VoteMoment:
    """How far a judging is. `unreadable`: the votes on record that name no level."""

    done: int
    total: int
    unreadable: Sequence[Line] = ()

    @property
    def unread(self) -> int:
        """How many they are."""
        return len(self.unreadable)

    @property
    def unread_samples(self) -> tuple[str, ...]:
        """The samples whose votes they are, each once."""
        return tuple(dict.fromkeys(str(vote["sample"]) for vote in self.unreadable))


def judge(judging: Judging, results: Results) -> Iterator[VoteMoment]:
    """Ask for every vote that is missing, and keep each; yields at the beginning and after each."""
    wanted = judged_records(judging.rubric, results)
    path = votes_file(results.path, judging.rubric.name)
    with LineFile(path, EXAM_LINES, make_folder=True) as file:
        kept = file.resume(header_line(judging.header(results)))
        votes = _by_ballot(path, kept, judging.rubric.highest)
        marks = {record.key: mark_of(record) for record in wanted}
        messages = {
            (record.key, vote): _message(judging, results, record)
            for record in wanted
            for vote in range(judging.rubric.votes)
        }
        missing = [
            (ballot, message)
            for ballot, message in messages.items()
            if not _is_on(votes.get(ballot), marks[ballot[0]])
            or (judging.retry and votes[ballot]["value"] is None)
        ]
        left = {ballot for ballot, _ in missing}
        cast = {at: votes[ballot] for at, ballot in enumerate(messages) if ballot not in left}
        unreadable = {at: vote for at, vote in cast.items() if vote["value"] is None}
        places = {ballot: at for at, ballot in enumerate(messages)}
        done, total = len(cast), len(messages)

        def moment() -> VoteMoment:
            """In the order of the records, whichever came first."""
            return VoteMoment(done, total, [unreadable[at] for at in sorted(unreadable)])

        yield moment()
        for ballot, told in judging.voice.replies(missing):
            line = _vote(ballot, told, judging.rubric, marks[ballot[0]])
            file.append(line)
            done += 1
            if line["value"] is None:
                unreadable[places[ballot]] = line
            yield moment()


def judged_records(rubric: Rubric, results: Results) -> list[Record]:
    """The records that a rubric has something to say about. A failed run has nothing to be read."""
    found = [record for record in results.records if record.error is None]
    if rubric.name == "collaborativeness":
        if _reading_of(results) is None:
            raise NothingToJudge(
                f"{str(results.path)!r} is of the method {results.header.method}, which has parts of one text and no "
                "workers, so nothing in it can be judged for collaborativeness",
                hint="choose records of hogwild, or of attempts beside it (self_consistency)",
            )
        found = [record for record in found if len({s["worker"] for s in record.steps}) > 1]
    if not found:
        raise NothingToJudge(
            f"{str(results.path)!r} has nothing to be judged for {rubric.name}",
            hint="collaborativeness needs the finished steps of two workers or more",
        )
    return found


def votes_file(records: Path, rubric: str) -> Path:
    """Where the votes on a file of records lie."""
    return records.parent / JUDGEMENTS / rubric / records.name


def with_judgements(results: Results) -> Results:
    """The same results, each record with what the judges said of it, if they did.

    A judgement is {"value": the mean of the votes that can be read, or None; "votes": their values;
    "unread": how many cannot be; "highest"}.
    """
    records = list(results.records)
    for rubric in RUBRICS:
        path = votes_file(results.path, rubric)
        if not path.is_file():
            continue
        line, *lines = read_lines(path, EXAM_LINES)
        highest = _highest(path, line, rubric)
        votes: defaultdict[Key, list[Line]] = defaultdict(list)
        for (key, _), line in sorted(_by_ballot(path, lines, highest).items()):
            votes[key].append(line)
        for index, record in enumerate(records):
            own = votes[record.key]
            mark = mark_of(record) if own else ""
            cast = [line["value"] for line in own if _is_on(line, mark)]
            if cast:
                judgement = _mean(cast) | {"highest": highest}
                records[index] = replace(
                    record, judgements={**record.judgements, rubric: judgement}
                )
    return replace(results, records=tuple(records))


def mark_of(record: Record) -> str:
    """A digest of what is judged: question, gold, answer, and the finished steps."""
    judged = (
        record.question,
        record.gold,
        record.facts.get("reference"),
        record.answer,
        record.text,
    )
    steps = [(step["worker"], step["step"], step["text"]) for step in record.steps]
    return hashlib.sha256(json.dumps([judged, steps]).encode()).hexdigest()[:16]


def _is_on(vote: Line | None, mark: str) -> bool:
    """Whether there is such a vote, on what has this mark. A vote from before there were marks is taken for one."""
    return vote is not None and vote.get("of", mark) == mark


def graded_by_judges(results: Results) -> Results:
    """Values where only a judge can give them: 1 point is 0, the most points are 1, a failure is 0.

    A sample asks for its judge in its facts (`tasks/planning.py`). Judges read finished answers, so what
    is left of the curve is its last budget. A vote that cannot be read gives no value: None. Results
    that no judge has seen come back as they are.
    """
    if not any(_own_judgement(record) for record in results.records):
        return results
    last = str(results.header.budgets[-1])

    def graded(record: Record) -> Record:
        judgement = _own_judgement(record)
        if judgement is None:
            value = 0.0 if record.error is not None else None
        else:
            level, highest = judgement["value"], judgement["highest"]
            value = None if level is None else (level - 1) / (highest - 1)
        return replace(record, scores={last: {**record.scores[last], "value": value}})

    records = tuple(graded(record) for record in results.records)
    if all(record.scores[last]["value"] is None for record in records):
        return results
    header = replace(results.header, budgets=[results.header.budgets[-1]])
    return replace(results, header=header, records=records)


def needs_judge(asked: Sample | Record) -> bool:
    """Whether no rule can grade the answer to this."""
    return "judge" in asked.facts


def own_level(record: Record) -> float | None:
    """The level that the judge asked for by the sample gave it; None if it gave none to be read."""
    judgement = _own_judgement(record)
    return None if judgement is None else judgement["value"]


def _own_judgement(record: Record) -> Mapping[str, Any] | None:
    """The judgement by the judge that a sample asks for, if there is one."""
    return record.judgements.get(str(record.facts.get("judge")))


def read_level(text: str, highest: int) -> int | None:
    """The level that a judge's text names in its last box; None if that is no level."""
    boxed = boxed_answer(text)
    found = _LEVEL.fullmatch(boxed.strip()) if boxed else None
    if found is None:
        return None
    level = float(found[1])
    return int(level) if level == int(level) and 1 <= level <= highest else None


def transcript(record: Record, names: Sequence[str], check: str = "") -> str:
    """The text of each worker, one worker after the other.

    `check` is the question whether work is redundant. It stands where a worker was asked, or else the
    answer to it would be a "yes" out of nowhere.
    """
    workers = sorted({step["worker"] for step in record.steps})
    parts = []
    for worker in workers:
        own = (step for step in record.steps if step["worker"] == worker)
        text = "\n\n".join(
            f"{check.strip()} {step['text']}".strip() if step.get("checked") else step["text"]
            for step in own
        )
        parts.append(f"## {name_of(worker, record, names)}\n\n{text}")
    return "\n\n".join(parts)


def name_of(worker: int, record: Record, names: Sequence[str]) -> str:
    """A worker's name: from the start, or of one that came on the way."""
    joined = record.names.get(str(worker))
    return joined or (names[worker] if worker < len(names) else f"Worker {worker + 1}")


def _message(judging: Judging, results: Results, record: Record) -> str:
    if judging.rubric.name == "collaborativeness":
        check = str(results.header.prompts.get("redundancy_check", ""))
        spoken = transcript(record, results.header.names, check)
        return judging.prompt.message(
            "collaborativeness",
            question=record.question,
            transcript=spoken,
            reading=READINGS[_reading_of(results) or "words"],
        )
    reference = record.facts.get("reference", record.gold)
    return judging.prompt.message(
        "quality",
        question=record.question,
        reference=reference if isinstance(reference, str) else str(reference),
        answer=record.text or record.answer or "(no answer)",
    )


def _reading_of(results: Results) -> str | None:
    """The text that workers of these runs could read of each other (`Method.reading`); None without workers.

    Of a method that is not ours the records say nothing, and its workers are taken to be a team.
    """
    method = METHODS.get(results.header.method)
    if method is None:
        return "words"
    return method.reading(from_plain(method.settings, results.header.settings, "settings"))


def _vote(ballot: Ballot, told: str | ManyhandsError, rubric: Rubric, mark: str) -> Line:
    (sample, repeat), vote = ballot
    failed = isinstance(told, ManyhandsError)
    text = "" if isinstance(told, ManyhandsError) else told
    return {
        "kind": "vote",
        "sample": sample,
        "repeat": repeat,
        "vote": vote,
        "of": mark,
        "value": None if failed else read_level(text, rubric.highest),
        "error": str(told) if failed else None,
        "text": text,
    }


def _highest(path: Path, header: Line, rubric: str) -> int:
    """The highest level of a file of votes, of its first line. InvalidRequest if that is none."""

    def read() -> int:
        highest = header.get("highest", RUBRICS[rubric].highest)
        if type(highest) is not int or highest < 2:
            raise ValueError(
                f"its highest level is {highest!r}; expected a whole number, 2 or more"
            )
        return highest

    found: int = EXAM_LINES.checked(path, 1, read)
    return found


def _by_ballot(path: Path, lines: Sequence[Line], highest: int) -> dict[Ballot, Line]:
    """Every vote; a later one counts instead of one that could not be read, or was cast on an earlier answer."""
    found: dict[Ballot, Line] = {}
    for number, line in enumerate(lines, start=2):

        def ballot(line: Line = line) -> Ballot:
            value = line["value"]
            is_level = type(value) is int and 1 <= value <= highest
            if line.get("kind") != "vote" or not (value is None or is_level):
                raise ValueError(f"it is no vote for a level from 1 to {highest}")
            return (str(line["sample"]), int(line["repeat"])), int(line["vote"])

        found[EXAM_LINES.checked(path, number, ballot)] = line
    return found


def _mean(cast: Sequence[int | None]) -> dict[str, Any]:
    read = [value for value in cast if value is not None]
    return {
        "value": sum(read) / len(read) if read else None,
        "votes": list(cast),
        "unread": len(cast) - len(read),
    }
