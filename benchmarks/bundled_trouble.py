"""Trouble in a team, for exams: workers that leave in the middle of a claim, and a mistake that is planted.

    leaving           some workers are sent away in the middle of their first claims
    planted           a worker's first step is put in its mouth, with one wrong sum and all that follows from it
    planted_right     the same step without the mistake: a team that claims its problem again raises a false alarm

All of it follows from the question, so it is the same in every run. Mistakes are drawn here and not by the
school (`school/slips.py`): a wrong sum is off by 1 to 99.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random

from manyhands.evaluation.record import Record
from manyhands.strategies.base import Answer, Sent, Strategy
from manyhands.strategies.listening import DismissWorker, Heard, Listen
from manyhands.strategies.settings import TeamSettings
from manyhands.tasks.arithmetic.bare import Bare, parse_bare
from manyhands.tasks.arithmetic.problem_list import parse_question

# A first claim stands from pass 3 on, and the shortest problem is worked out with the 16th token behind it.
FIRST_PASS, LAST_PASS = 5, 14
_FURTHEST = 99

Dismissals = Mapping[int, Sequence[int]]  # pass: the workers that leave before it


def leaving(question: str, workers: int, count: int) -> Dismissals:
    """Workers that leave, of so many: `count` of them, each in the middle of its first claim."""
    rng = Random(f"leaving/{count}/{question}")
    found: dict[int, list[int]] = {}
    for worker in rng.sample(range(workers), count):
        found.setdefault(rng.randint(FIRST_PASS, LAST_PASS), []).append(worker)
    return found


def dismissing(strategy: Strategy, dismissals: Dismissals) -> Strategy:
    """The same strategy, which hears before these passes that workers leave.

    A team listens once before its work and then before every pass.
    """
    sent: Sent = None
    listened = 0
    try:
        while True:
            try:
                asked = strategy.send(sent)
            except StopIteration as end:
                answer: Answer = end.value
                return answer
            sent = yield asked
            if isinstance(asked, Listen):
                assert isinstance(sent, Heard), "a Listen is answered with what was heard"
                leave = (DismissWorker(worker) for worker in dismissals.get(listened, ()))
                sent = Heard((*sent.items, *leave))
                listened += 1
    finally:
        strategy.close()


@dataclass(frozen=True)
class Plant:
    """A step that is put in a worker's mouth. `number`: its problem, from 1; `said`: its result."""

    worker: int
    number: int
    work: tuple[str, ...]
    said: int
    gold: int

    @property
    def words(self) -> str:
        """As a worker writes it."""
        return f" #{self.number}: {'; '.join(self.work)}. #{self.number} is {self.said}."


def plant(question: str, workers: int, *, wrong: bool = True) -> Plant:
    """The planted step of this question; bare lines alone are asked."""
    rng = Random(f"planted/{question}")
    lines = parse_question(question)
    assert lines is not None, "the task asks numbered lists"
    number = rng.randrange(len(lines))
    line = parse_bare(lines[number])
    assert line is not None, "mistakes are planted in bare lines"
    worker, place = rng.randrange(workers), rng.randrange(len(line.rest))
    off = rng.choice((-1, 1)) * rng.randint(1, _FURTHEST) if wrong else 0
    # behind the mistake each result is off by as much
    before, work, said = line.first, list[str](), line.first
    for step, (sign, operand) in enumerate(line.rest):
        said = before + operand if sign == "+" else before - operand
        said += off if step == place else 0
        work.append(f"{before}{sign}{operand}={said}")
        before = said
    return Plant(worker, number + 1, tuple(work), said, _value(line))


def planted(question: str, settings: TeamSettings) -> TeamSettings:
    """The settings of a team with a mistake in one worker's first step."""
    return _with(settings, plant(question, settings.workers))


def planted_right(question: str, settings: TeamSettings) -> TeamSettings:
    """The settings of a team with a right step in one worker's mouth."""
    return _with(settings, plant(question, settings.workers, wrong=False))


def corrections(records: Sequence[Record], workers: int, *, wrong: bool) -> dict[str, float]:
    """Of planted steps: how often their problem was claimed again, the result was named and put right.

    `noticed`: some step claims the problem. `said`: a step says "#3 is 84, not 168". `corrected`: the answer's
    place of it is right. Where the step was right, `noticed` is a false alarm, and so is `said`.
    """
    noticed = said = corrected = 0
    for record in records:
        found = plant(record.question, workers, wrong=wrong)
        texts = [step["text"].strip() for step in record.steps]
        noticed += any(re.match(rf"#{found.number}:", text) for text in texts)
        named = rf"#{found.number} is {found.gold if wrong else '-?[0-9]+'}, not {found.said}\b"
        said += any(re.search(named, text) for text in texts)
        places = [place.strip() for place in (record.answer or "").split(",")]
        is_whole = len(places) == len(record.gold)
        corrected += is_whole and places[found.number - 1] == str(found.gold)
    shares = {"noticed": noticed, "said": said, "corrected": corrected}
    return {name: round(count / len(records), 4) for name, count in shares.items()}


def claimed_again(records: Sequence[Record]) -> float:
    """The share of right results that a later step claims again: false alarms where nothing is planted."""
    again = right = 0
    for record in records:
        said: dict[int, int] = {}  # problem: the pass in which its right result stood there
        for step in sorted(record.steps, key=lambda step: step["last_pass"]):
            text = step["text"].strip()
            claim = re.match(r"#(\d+):", text)
            if claim and said.get(int(claim[1]), step["first_pass"]) < step["first_pass"]:
                again += 1
            for number, result in re.findall(r"#(\d+) is (-?\d+)", text):
                place = int(number)
                is_new = place <= len(record.gold) and place not in said
                if is_new and int(result) == record.gold[place - 1]:
                    said[place] = step["last_pass"]
        right += len(said)
    return round(again / max(1, right), 4)


def _with(settings: TeamSettings, found: Plant) -> TeamSettings:
    return replace(settings, insertions={(found.worker, 1): found.words})


def _value(line: Bare) -> int:
    return (line.first, *line.results)[-1]
