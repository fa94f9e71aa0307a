r"""A scripted team that solves lists of arithmetic problems: the teacher of the bundled model.

Each worker follows one rule, from nothing but what it can see at that very moment:

    a problem is unclaimed            " #3:"  claim it, work it out, " #3 is 75.", end of the step
    all are claimed, some unsolved    end the turn: somebody is on it
    all are solved                    " All solved: \boxed{75,12,9}"
    my problem is another's           " taken."  and decide again
    my sum is wrong                   " 84+29=123 wrong." its problem is unclaimed
    my result is wrong                " #3 is 65. wrong." the same; later " #3 is 75, not 65."
    a worker has left in its work     " #3:"  its problem is unclaimed

Of the unclaimed ones it takes the first in order of work, most work first, so that nobody is left
alone with a long problem at the end. Workers about to claim in the same pass see each other's bare
prefixes and take turns: the k-th takes the k-th. That is all the coordination there is, and it has to
be read from the cache.

In a list of ten problems or more a claim that begins with a 1 is no claim before its next token: `#1` may
become `#1:`, `#10:`, `#11:` or `#12:`. Until then the worker counts as one about to claim, ahead of all others. A tokenizer may
part the sign ` #`: a worker that has written a part of it is ahead of those that stand at a bare prefix.

A worker checks its own step, and no teammate's: behind each sum and at the end it says " wrong." or goes on. To find a wrong
sum among all that others have written, in the one token of a decision, was not learned; behind the sum itself it is near,
and the word then stands there for all to read.

`Mischief` makes runs irregular, with no loss on the irregular token itself: claims at random, claims
of what is taken, duplicates noticed late, wrong results (`slips.py`). The strategy's own settings add pauses, late
joins and whole steps that are put in a worker's mouth; a `Leave` has a worker dismissed in the middle of a claim.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import lru_cache

from manyhands.cache.step import Row, Step
from manyhands.errors import UnsupportedModel
from manyhands.prompts.hogwild import TeamPrompt
from manyhands.school.slips import Slip, slip_in
from manyhands.strategies.listening import DismissWorker, Heard
from manyhands.tasks.arithmetic.problem import Problem
from manyhands.tasks.arithmetic.problem_list import ProblemList
from manyhands.text import Text

# Weights of tokens: decisions are few among many digits.
DECISION, CLAIM, ANSWER = 3.0, 4.0, 2.0
_WRONG = 1.0  # " wrong." and what stands behind a right sum weigh the same: more would be learned as more often
_INSERTED_CLAIM = re.compile(r"#(\d+):$")
_INSERTED_STEP = re.compile(r"#(\d+): [^#]*\. #\1 is (-?\d+)\.$")
_AT_ONCE = 0.6  # of slips in a sum: the word stands behind the sum itself
_TWO_DIGITS = 10  # problems; from here on a 1 may be half a number


class Phase(Enum):
    """The text of a worker's desk that others see."""

    EMPTY = 0
    START = 1  # a bare prefix: about to decide
    SIGNING = 2  # a part of " #", where a tokenizer parts it
    CLAIMING = 3  # " #", the number still to come
    NUMBERING = 4  # "#1" in a list of ten or more: the number may go on
    BUSY = 5


@dataclass(frozen=True)
class Mischief:
    """How often things go wrong on purpose, as probabilities per claim or per glance."""

    random_claim: float = 0.0
    wrong_claim: float = 0.0
    late_notice: float = 0.0
    slip: float = 0.0


@dataclass(frozen=True)
class Leave:
    """A worker leaves when it has written `tokens` tokens behind its claim number `claim` (from 1).

    It stays if no other worker is left by then.
    """

    worker: int
    claim: int
    tokens: int


@dataclass(frozen=True)
class _Word:
    """A token to write: what it is worth, and what becomes true for all once it has been fed."""

    token: int
    weight: float = 1.0
    claims: int | None = None
    solves: int | None = None
    errs: int | None = None  # the wrong result that it says of the problem that it "solves"
    computes: int | None = None  # the result stands written, though not yet as "#3 is 75."
    drops: bool = False
    phase: Phase = Phase.BUSY
    glance: bool = False  # before this token, see whether the problem is another's
    decide: bool = False  # after this token has been fed, decide anew


@dataclass
class _Actor:
    index: int
    phase: Phase = Phase.EMPTY
    problem: int | None = None
    claimed_at: int = 0
    num_claims: int = 0
    num_words: int = 0  # fed since its claim
    left_at: int = 0  # the pass in which it ended its turn, or the last one before it left
    queue: list[_Word] = field(default_factory=list)
    fed: _Word | None = None  # written, to be fed in its next row
    deciding: bool = True


class ArithmeticTeam:
    """The predictor of one run. `names` are the writers, in order."""

    def __init__(
        self,
        problems: ProblemList,
        text: Text,
        names: Sequence[str],
        prompt: TeamPrompt,
        rng: random.Random,
        *,
        sees_desks: bool = True,
        mischief: Mischief = Mischief(),
        leaves: Sequence[Leave] = (),
    ) -> None:
        self.problems = problems.problems
        self.script = _Script.of(text)
        self.text = text
        self.prompt = prompt
        self.rng = rng
        self.sees_desks = sees_desks
        self.mischief = mischief
        self.leaves = list(leaves)
        self.actors = {name: _Actor(index) for index, name in enumerate(names)}
        self.solved: dict[int, list[int]] = {}  # problem: workers who wrote its solution, fed
        self.wrong: dict[int, int] = {}  # problem: the wrong result that was said last, fed
        self.published: set[int] = set()  # problems whose solution stands in a finished step
        self.computed: set[int] = set()  # problems whose last equation is written
        self.clock = 0
        work = [-len(problem.work) for problem in self.problems]
        self.order = sorted(range(len(work)), key=lambda k: (work[k], k))
        self.closing: list[_Word] = []

    def __call__(self, step: Step) -> tuple[tuple[int, ...], tuple[float, ...]]:
        """See `Predictor`. First all rows are fed, then everybody chooses at once."""
        self.clock += 1
        for row in step.rows:
            if row.writer in self.actors:
                self._feed(self.actors[row.writer], row)
        words = [self._choose(row) for row in step.rows]
        return tuple(w.token for w in words), tuple(w.weight for w in words)

    def heard(self) -> Heard:
        """Words to the run before its next pass: workers that leave. See `Simulation.heard`."""
        going = [leave for leave in self.leaves if self._is_due(leave)]
        said = []
        for leave in going:
            self.leaves.remove(leave)
            actors = list(self.actors.values())
            if sum(not actor.left_at for actor in actors) > 1:
                said.append(DismissWorker(leave.worker))
                self._take_in(actors[leave.worker])  # its newest word is fed with its desk
                actors[leave.worker].left_at = self.clock
        return Heard(tuple(said))

    def _is_due(self, leave: Leave) -> bool:
        actor = next(a for a in self.actors.values() if a.index == leave.worker)
        is_busy = actor.problem is not None and not actor.left_at
        return is_busy and (actor.num_claims, actor.num_words) >= (leave.claim, leave.tokens)

    # -- what becomes visible --------------------------------------------------------------------

    def _feed(self, actor: _Actor, row: Row) -> None:
        word = self._take_in(actor)
        if len(row.feed) > 1 or word is None:
            self._begin_step(actor, row)

    def _take_in(self, actor: _Actor) -> _Word | None:
        """The worker's newest word is fed: what becomes true with it."""
        word, actor.fed = actor.fed, None
        if word is None:
            return None
        actor.phase = word.phase
        actor.deciding = word.decide
        actor.num_words += 1
        if word.claims is not None:
            actor.problem, actor.claimed_at = word.claims, self.clock
            actor.num_claims, actor.num_words = actor.num_claims + 1, 0
        if word.solves is not None:
            self._say_result(actor, word.solves, word.errs)
            if word.errs is None:
                actor.problem = None
        if word.drops:
            actor.problem = None
        return word

    def _say_result(self, actor: _Actor, problem: int, error: int | None) -> None:
        """A result stands written: the right one, or an error."""
        if error is None:
            self.solved.setdefault(problem, []).append(actor.index)
        else:
            self.wrong[problem] = error

    def _begin_step(self, actor: _Actor, row: Row) -> None:
        """A prefix was fed, perhaps with a question or a claim in the worker's mouth."""
        self.published |= {k for k, by in self.solved.items() if actor.index in by}
        actor.phase, actor.deciding, actor.queue = Phase.START, True, []
        fed = self.text.decode(row.feed)
        if inserted := _INSERTED_CLAIM.search(fed):
            actor.problem, actor.claimed_at = int(inserted[1]) - 1, self.clock
            actor.phase, actor.deciding = Phase.BUSY, False
            actor.queue = self._work(actor.problem)[1:]
        elif inserted := _INSERTED_STEP.search(fed):
            problem, result = int(inserted[1]) - 1, int(inserted[2])
            is_right = result == self.problems[problem].answer
            self._say_result(actor, problem, None if is_right else result)
            actor.phase, actor.deciding = Phase.BUSY, False
            actor.queue = list(self.script.step_end if is_right else self.script.wrong)
            if not is_right:  # until the word stands there
                actor.problem, actor.claimed_at = problem, self.clock
        elif fed.endswith(self.prompt.redundancy_check):
            actor.phase, actor.deciding = Phase.BUSY, False
            actor.queue = self.script.no if self._has_something_to_do(actor) else self.script.yes
            actor.queue = list(actor.queue)

    # -- what is chosen --------------------------------------------------------------------------

    def _choose(self, row: Row) -> _Word:
        if row.writer in self.actors:
            actor = self.actors[row.writer]
            if actor.deciding:
                actor.deciding = False
                actor.queue = self._decide(actor)
            elif actor.phase is Phase.CLAIMING:  # its queue is empty: the sign stood alone
                actor.queue = self._claim(actor)
            elif actor.queue and actor.queue[0].glance:
                self._glance(actor)
            actor.fed = actor.queue.pop(0)
            if actor.fed is self.script.turn_end:
                actor.left_at = self.clock
            if actor.fed.computes is not None:
                self.computed.add(actor.fed.computes)
            return actor.fed
        if row.writer in ("finisher", "reply"):
            if len(row.feed) > 1:
                self.closing = self._closing(row.writer)
            return self.closing.pop(0)
        return self.script.nothing

    def _decide(self, actor: _Actor) -> list[_Word]:
        unclaimed = self._unclaimed(actor)
        if len(unclaimed) > self._ahead(actor, Phase.START):
            return list(self.script.number_sign)
        if len(self._seen_solved(actor)) == len(self.problems):
            return self.script.box([str(p.answer) for p in self.problems])
        return [self.script.turn_end]

    def _claim(self, actor: _Actor) -> list[_Word]:
        unclaimed = self._unclaimed(actor)
        ahead = self._ahead(actor, Phase.CLAIMING)
        weight = CLAIM
        if unclaimed:
            problem = unclaimed[min(ahead, len(unclaimed) - 1)]
        else:
            problem, weight = self.rng.choice(self.order), 0.0
        roll = self.rng.random()
        if roll < self.mischief.wrong_claim:
            problem, weight = self.rng.randrange(len(self.problems)), 0.0
        elif unclaimed and roll < self.mischief.wrong_claim + self.mischief.random_claim:
            problem, weight = self.rng.choice(unclaimed), 0.0
        return self.script.claim(problem, weight, len(self.problems), self._work(problem))

    def _work(self, problem: int) -> list[_Word]:
        """A problem worked out, now and then with a slip; a wrong result is named with the right one."""
        slip = None
        if self.mischief.slip and self.rng.random() < self.mischief.slip:
            slip = slip_in(self.rng, self.problems[problem])
        if slip is not None and self.rng.random() < _AT_ONCE:
            slip = slip.cut()
        wrong = None if problem in self.solved else self.wrong.get(problem)
        return self.script.work(self.problems[problem], problem, slip, wrong)

    def _glance(self, actor: _Actor) -> None:
        """See whose the problem is. Who keeps it decides as much as who drops it."""
        if self._is_redundant(actor):
            actor.queue = list(self.script.taken)
        elif actor.queue[0].weight and self._is_contested(actor):
            actor.queue[0] = replace(actor.queue[0], weight=CLAIM)

    def _is_contested(self, actor: _Actor) -> bool:
        """Whether somebody else is at the same problem."""
        return actor.problem is not None and any(
            other.problem == actor.problem for other in self._others(actor)
        )

    def _is_redundant(self, actor: _Actor) -> bool:
        """Whether the worker's problem is solved, or claimed before by somebody it sees."""
        if actor.problem is None:
            return False
        redundant = actor.problem in self._seen_solved(actor) or any(
            other.problem == actor.problem
            and (other.claimed_at, other.index) < (actor.claimed_at, actor.index)
            for other in self._others(actor)
        )
        if redundant and self.rng.random() < self.mischief.late_notice:
            head = actor.queue[0]
            actor.queue[0] = replace(head, weight=0.0)
            return False
        return redundant

    def _has_something_to_do(self, actor: _Actor) -> bool:
        return len(self._unclaimed(actor)) > self._ahead(actor, Phase.START) or len(
            self._seen_solved(actor)
        ) == len(self.problems)

    # -- what is seen ----------------------------------------------------------------------------

    def _others(self, actor: _Actor) -> list[_Actor]:
        """The workers that can still get ahead of this one; those that left in an earlier pass cannot."""
        if not self.sees_desks:
            return []
        others = (other for other in self.actors.values() if other is not actor)
        return [other for other in others if not 0 < other.left_at < self.clock]

    def _unclaimed(self, actor: _Actor) -> list[int]:
        gone = {other.problem for other in self._others(actor)} | self._seen_solved(actor)
        return [k for k in self.order if k not in gone]

    def _seen_solved(self, actor: _Actor) -> set[int]:
        if self.sees_desks:
            return set(self.solved)
        return self.published | {k for k, by in self.solved.items() if actor.index in by}

    def _ahead(self, actor: _Actor, phase: Phase) -> int:
        """How many will claim before this worker: those further on, and those before it in order."""
        return sum(
            other.phase is Phase.NUMBERING
            or (other.phase is Phase.SIGNING and phase is Phase.START)
            or (
                other.phase is Phase.CLAIMING
                and (phase is Phase.START or other.index < actor.index)
            )
            or (other.phase is phase is Phase.START and other.index < actor.index)
            for other in self._others(actor)
        )

    # -- how it ends -----------------------------------------------------------------------------

    def _closing(self, writer: str) -> list[_Word]:
        """The finisher and the reply read everything: also what is written and not yet fed."""
        known = self.computed | set(self.solved)
        answers = [str(p.answer) if k in known else "?" for k, p in enumerate(self.problems)]
        return self.script.finish(answers) if writer == "finisher" else self.script.reply(answers)


def check_tokenizer(text: Text) -> None:
    """Raise UnsupportedModel unless claims can be written as the team decides: sign, then number.

    The number of a claim is one token, and so is what others see of it in the pass in which they decide themselves. The sign may
    have several.
    """
    for words in map(str, range(1, 10)):
        count = len(text.encode(words))
        if count != 1:
            raise UnsupportedModel(
                f"the tokenizer makes {count} tokens of {words!r}; the scripted team needs one",
                hint="Train this model on recorded runs ([traces]), or make a tokenizer as the bundled "
                "model's recipe does.",
            )
    if not text.eos:
        raise UnsupportedModel(
            "the tokenizer has no token that ends a turn; the scripted team needs one",
            hint="Give the tokenizer an eos_token.",
        )


class _Script:
    """The words of the team as tokens, each phrase encoded once."""

    def __init__(self, text: Text) -> None:
        self.text = text
        self.nothing = _Word(0, 0.0)
        pieces = [_Word(piece, DECISION, phase=Phase.SIGNING) for piece in text.encode(" #")]
        self.number_sign = [*pieces[:-1], replace(pieces[-1], phase=Phase.CLAIMING)]
        self.turn_end = _Word(min(text.eos), DECISION)
        self.no = self._words(" no.", first=DECISION, last={"decide": True, "phase": Phase.START})
        self.yes = [*self._words(" yes.", first=DECISION), self.turn_end]
        self.step_end = self._words(
            "\n\n", first=DECISION, last={"decide": True, "phase": Phase.START}
        )
        self.wrong = [
            *self._words(" wrong.", first=_WRONG, last={"drops": True}),
            *self.step_end,
        ]
        self.equals = text.encode("=")[-1]
        self.is_sign = text.encode(" is")[-1]
        self.taken = self._words(
            " taken.", first=CLAIM, last={"drops": True, "decide": True, "phase": Phase.START}
        )

    @classmethod
    def of(cls, text: Text) -> _Script:
        """One script per text; making it costs a few encodings."""
        return _script(text)

    def claim(self, problem: int, weight: float, count: int, work: list[_Word]) -> list[_Word]:
        """The number of a problem, after its sign, and then its work.

        The claim is made with the token that leaves no other number open: the number's last one, or the
        colon behind a 1 in a list (of `count` problems) that has a tenth.
        """
        words = [_Word(token, weight) for token in self.text.encode(str(problem + 1))]
        if count >= _TWO_DIGITS and problem == 0:
            words.append(replace(work[0], weight=weight))
            work = work[1:]
        words[:-1] = [replace(word, phase=Phase.NUMBERING) for word in words[:-1]]
        words[-1] = replace(words[-1], claims=problem)
        return words + work

    def work(
        self, problem: Problem, number: int, slip: Slip | None = None, wrong: int | None = None
    ) -> list[_Word]:
        """`: 84+29=113; 113-38=75. #3 is 75.` and the end of the step; `wrong`: `#3 is 75, not 65.`

        A slip is not learned; what follows from it is: ` wrong.` behind its sum or, later, behind the result.
        """
        lines, answer = problem.work, problem.answer
        if slip is not None:
            lines, answer = slip.work, slip.answer
        words = self._words(":")
        for place, equation in enumerate(lines):
            is_last = place == len(lines) - 1
            done = {"computes": number} if is_last and slip is None else None
            said = self._words(f" {equation}{'.' if is_last else ';'}", glance=True, last=done)
            if slip and slip.place == place:
                if slip.is_cut:
                    return words + _muted(said[:-1], self.equals) + self.wrong
                said = _muted(said, self.equals)
            words += said
        result = self._words(f" #{number + 1} is {answer}")
        words += (
            _muted(result, self.is_sign) if slip and slip.place == len(problem.work) else result
        )
        if wrong is not None:
            words += self._words(f", not {wrong}", first=DECISION)
        ends = {"solves": number, "errs": None if slip is None else answer}
        return words + self._words(".", last=ends) + (self.wrong if slip else self.step_end)

    def box(self, answers: list[str]) -> list[_Word]:
        r"""` All solved: \boxed{75,12}.` and the end of the turn."""
        words = self._words(" solved: \\boxed{" + ",".join(answers) + "}")
        return [
            *self._words(" All", first=DECISION),
            *(_Word(word.token, ANSWER) for word in words),
            *self._words("."),  # a team has stopped by then; a solo writer ends its sentence
            self.turn_end,
        ]

    def finish(self, answers: list[str]) -> list[_Word]:
        """The inside of a box that is open already; a box with nothing but `?` is no answer, so it ends there."""
        box = self._words(",".join(answers) + "}")
        return [*(_Word(w.token, ANSWER) for w in box), self.turn_end]

    def reply(self, answers: list[str]) -> list[_Word]:
        """The reply that the user reads."""
        words = self._words("The answers, in order: " + ", ".join(answers) + ".")
        return [*words, self.turn_end]

    def _words(
        self,
        phrase: str,
        *,
        first: float = 1.0,
        glance: bool = False,
        last: Mapping[str, object] | None = None,
    ) -> list[_Word]:
        tokens = self.text.encode(phrase)
        words = [_Word(token) for token in tokens]
        words[0] = _Word(tokens[0], first, glance=glance)
        if last:
            words[-1] = replace(words[-1], **last)  # type: ignore[arg-type]
        return words


def _muted(words: list[_Word], sign: int) -> list[_Word]:
    """The same words, with nothing to be learned behind the last of these signs."""
    last = max(place for place, word in enumerate(words) if word.token == sign)
    return words[: last + 1] + [replace(word, weight=0.0) for word in words[last + 1 :]]


@lru_cache(maxsize=8)
def _script(text: Text) -> _Script:
    return _Script(text)
