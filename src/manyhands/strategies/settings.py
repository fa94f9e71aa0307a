"""All choices of the strategies: frozen dataclasses that are checked when they are made.

    settings = TeamSettings(workers=3, budget=500, choice=Choice(temperature=0.6))

`Settings` has what every method has; each method adds its own. Default, help and range of a field stand
at the field and nowhere else: errors quote them, `--set` reads by them, and the options of
`manyhands solve`, `eval` and `batch` are made of them (`cli/command.py`). So a new choice of a strategy is
a field here, and needs no other line.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from manyhands.cache.layouts import HEADERS, LAYOUTS, MOVES
from manyhands.cache.prefixes import PrefixTree
from manyhands.cache.step import GREEDY, Choice
from manyhands.errors import InvalidRequest
from manyhands.schema.setting import as_found, check, is_whole, like, own_number, setting
from manyhands.strategies.branch_joins import JOINS
from manyhands.strategies.profiles import PROFILES
from manyhands.strategies.voting import MODES
from manyhands.text.boxed import BoxWatch
from manyhands.text.code import AnswerWatch, CodeWatch
from manyhands.text.grammar import Grammar
from manyhands.text.markers import MarkerProfile

_Kind = TypeVar("_Kind")

MAX_WORKERS = 256
SAMPLED = Choice(temperature=0.7)  # as Wang et al. (2022) mostly sample
ANSWERS = ("boxed", "code", "none", "auto")
_BOX = re.compile(r"\d|\bbox(ed)?\b", re.IGNORECASE)  # said by problems whose answer stands in one

_SAMPLING, _END = "Choice of tokens", "How it ends"  # groups of options in the help


def or_usual(given: _Kind | None, kind: type[_Kind]) -> _Kind:
    """The settings that a method was given, or its usual ones. Raises InvalidRequest for those of another method."""
    if given is None:
        return kind()
    found: object = given
    if not isinstance(found, kind):
        raise InvalidRequest(
            f"the settings of the method are of type {type(found).__name__}; expected {kind.__name__}",
            hint=f"Write {kind.__name__}(...), or leave them out.",
        )
    return found


def checked_context(context: Any) -> int | None:
    """The longest view that a method was told of, in tokens; None: no limit. Raises InvalidRequest for none of them."""
    found = own_number(context)
    if found is None or (is_whole(found) and found >= 1):
        return found if found is None else int(found)
    raise InvalidRequest(
        f"context is {as_found(context)}; expected a whole number of tokens, 1 or more",
        hint="Leave it out for a model without a limit.",
    )


def check_tree(tree: object) -> None:
    """Raise InvalidRequest for what is no tree of prefixes."""
    if not isinstance(tree, PrefixTree):
        raise InvalidRequest(
            f"a {type(tree).__name__} was given as a tree of prefixes; expected a PrefixTree",
            hint="Give engine.prefixes.",
        )


def _check_stop(stop: tuple[str, ...]) -> None:
    wrong = [each for each in stop if not isinstance(each, str)]
    if wrong:
        raise InvalidRequest(
            f"stop has {as_found(wrong[0])}; expected texts", hint='Write stop=("first", ...).'
        )
    if not all(stop):
        raise InvalidRequest(
            "stop has an empty text; expected texts to stop at", hint="Leave it out."
        )


@dataclass(frozen=True)
class EndSettings:
    """How to end. The paper allows 16 tokens for integers, 64 for formulae, 1024 for code.

    The finisher encodes all text anew with `reencode`, as one ordinary sequence; the reply reads the
    blocks in any case. With a `total`, the work ends in time for the finisher, which is followed by a reply
    as far as passes are left; snapshots count, too. `stop` are texts that end the reply and are no part of it;
    what workers write is not searched for them, but where it is the reply itself.
    """

    finisher: bool = setting(True, "Without an answer at the end, ask for one.")
    finisher_tokens: int = setting(64, "Tokens for that answer, at most.", at_least=1)
    reencode: bool = setting(False, "Ask over text that is encoded anew, as one ordinary sequence.")
    reply: bool = setting(True, "Write a reply to the user at the end.")
    reply_tokens: int = setting(512, "Tokens for that reply, at most.", at_least=1)
    answer: str = setting(
        "auto",
        "Whether the run is for an answer in a box, which is then asked for if none was found: boxed; code, "
        "a program in a fenced block; none, for open questions, whose reply is the answer; or auto, boxed if "
        "the problem speaks of a box or holds a digit.",
        one_of=ANSWERS,
    )
    total: int | None = setting(
        None,
        "Passes of the whole run, at most: work, snapshots, finisher and reply.",
        at_least=1,
        unit="forward passes",
        unset="no bound",
    )
    stop: tuple[str, ...] = setting((), "Texts at which the reply ends.", by="code")

    def __post_init__(self) -> None:
        check(self)
        _check_stop(self.stop)

    def expects(self, problem: str) -> bool:
        """Whether an answer to this problem stands in a box, or in a block of code."""
        return self.answer in ("boxed", "code") or (
            self.answer == "auto" and bool(_BOX.search(problem))
        )

    @property
    def is_code(self) -> bool:
        """Whether the answer is a program. One in the middle of thinking is a draft and ends nothing."""
        return self.answer == "code"

    def watch(self) -> AnswerWatch:
        """A watch that finds the answer in text that goes by."""
        return CodeWatch() if self.is_code else BoxWatch()

    def asks(self, problem: str) -> bool:
        """Whether an answer to this problem is asked for, if none was found."""
        return self.finisher and self.expects(problem)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings that every method has.

    `budget` counts forward passes, `choice` says how tokens are chosen, `seed` drives every draw.
    `most_workers` bounds those who join a team as well, and the parts that a model chooses. `snapshots` are smaller budgets at which the answer is also wanted, `end` says how the run ends.
    """

    budget: int = setting(
        2048,
        "Forward passes of the work, at most; snapshots, finisher and reply are extra (--total bounds all).",
        at_least=1,
        unit="forward passes",
    )
    choice: Choice = setting(GREEDY, "How tokens are chosen.", panel=_SAMPLING)
    seed: int = setting(0, "Of all random numbers.", panel=_SAMPLING)
    snapshots: tuple[int, ...] = setting(
        (),
        "Smaller budgets whose answers are also wanted: 100,200. A run that ends before has none.",
        panel=_END,
    )
    end: EndSettings = setting(EndSettings(), "How the run ends.", panel=_END)
    most_workers: int | None = setting(
        None,
        "Workers that write at the same time, at most, whoever asks for them.",
        at_least=1,
        unset="no bound but the method's own",
        by="code",
    )

    def __post_init__(self) -> None:
        check(self)
        workers = getattr(self, "workers", 1)
        if self.most_workers is not None and workers > self.most_workers:
            raise InvalidRequest(
                f"workers is {workers}; expected at most most_workers, {self.most_workers}",
                hint="Ask for fewer workers.",
            )
        if not all(0 < snapshot < self.budget for snapshot in self.snapshots):
            raise InvalidRequest(
                f"snapshots are {self.snapshots}; expected passes below the budget of {self.budget}"
            )


@dataclass(frozen=True)
class Away:
    """Worker `worker` takes no part in passes `first`..`last` (from 1): joins late, or pauses."""

    worker: int = setting(..., "Its number, from 0.", at_least=0, by="code")
    first: int = setting(..., "The first pass without it, from 1.", at_least=1, by="code")
    last: int = setting(..., "The last pass without it.", at_least=1, by="code")

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, kw_only=True)
class TeamSettings(Settings):
    """All choices of a team run.

    `layout`, `headers` and `moves` are names of `cache/layouts.py`. `insertions` put words in a worker's mouth at the beginning
    of a step: (worker, step from 1) -> text.
    """

    workers: int = setting(
        2, "How many.", at_least=1, at_most=MAX_WORKERS, names=("--workers", "-n")
    )
    layout: str = setting("combined", "Who reads what, in which order.", one_of=LAYOUTS)
    check_every: int = setting(
        1024,
        "Tokens, over all workers, between the questions whether work is redundant.",
        at_least=0,
        zero="never",
        unit="tokens",
    )
    headers: str = setting("in_context", "How section headers are encoded.", one_of=HEADERS)
    moves: str = setting(
        "rotate", "How a finished step comes into the history.", one_of=MOVES, by="set"
    )
    away: tuple[Away, ...] = setting((), "Pauses of workers.", by="code")
    insertions: Mapping[tuple[int, int], str] = setting(
        {}, "Words that begin a worker's step.", by="code"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for away in self.away:
            if not isinstance(away, Away):
                raise InvalidRequest(
                    f"away has {as_found(away)}; expected pauses of workers",
                    hint="Write away=(Away(worker, first, last), ...).",
                )
        if self.insertions:
            held = dict(_insertion(place, words) for place, words in self.insertions.items())
            object.__setattr__(self, "insertions", held)
        if MOVES[self.moves].encodes_again and not LAYOUTS[self.layout].keeps_history:
            raise InvalidRequest(
                f"moves is {self.moves!r}, and in the {self.layout} layout nothing moves",
                hint="choose a layout that keeps a history: "
                + ", ".join(name for name, layout in LAYOUTS.items() if layout.keeps_history),
            )


def _insertion(place: Any, words: Any) -> tuple[tuple[int, int], str]:
    """One of `insertions`, its place in Python's own numbers."""
    numbers = tuple(map(own_number, place)) if isinstance(place, tuple) else ()
    if len(numbers) != 2 or not all(map(is_whole, numbers)) or not isinstance(words, str):
        raise InvalidRequest(
            f"insertions has {as_found(place)}: {as_found(words)}; expected numbers of a worker and of a step, and a text",
            hint="Write insertions={(worker, step): text}.",
        )
    return (numbers[0], numbers[1]), words


@dataclass(frozen=True, kw_only=True)
class SoloSettings(Settings):
    """All choices of a sequential run."""


@dataclass(frozen=True, kw_only=True)
class BranchSettings(Settings):
    """All choices of a run with parallel branches.

    `join` says how finished branches become one text again (`strategies/branch_joins.py`). With no
    blocks allowed, and after the last of them, the run is ordinary sequential decoding. With
    `join_distance`, whatever drives the run is asked to measure how far each join was from the exact text
    (`replay/joins.py`); the run itself stays as it is.
    """

    join: str = setting("reencode", "How branches become one text again.", one_of=JOINS)
    max_blocks: int = setting(4, "Blocks of branches, at most.", at_least=0, zero="none")
    max_branches: int = setting(16, "Branches of one block, at most.", at_least=1)
    branch_tokens: int = setting(256, "Tokens of one branch, at most.", at_least=1)
    title_tokens: int = setting(48, "Tokens of one title, at most.", at_least=1)
    join_distance: bool = setting(
        False, "At the end, compute how far each join was from the exact text."
    )
    markers: MarkerProfile = setting(MarkerProfile(), "The marks of branches.")

    @property
    def at_once(self) -> int:
        """Branches of one block, at most: all of them write at the same time."""
        return min(self.max_branches, self.most_workers or self.max_branches)


@dataclass(frozen=True, kw_only=True)
class ProfileSettings(Settings):
    """All choices of a run of a model that was trained to think in parallel (`strategies/profiles.py`)."""

    profile: str = setting(
        "npr",
        "How the model was trained to part; asks for this method.",
        one_of=PROFILES,
        names_method=True,
    )
    parts_join: str | None = setting(
        None, "How parts become one text again.", one_of=JOINS, unset="the profile's", by="set"
    )
    part_tokens: int | None = setting(
        None, "Tokens of one part, at most.", at_least=1, unset="the profile's"
    )
    run_tokens: int | None = setting(
        None,
        "Tokens that the run writes, at most, all workers together.",
        at_least=1,
        unit="tokens",
        unset="the budget, times the most parts of one fork",
    )
    same_choice: bool = setting(
        False, "Choose tokens inside parts as elsewhere, and not as the profile does.", by="set"
    )


@dataclass(frozen=True, kw_only=True)
class SkeletonSettings(Settings):
    """All choices of a run of skeleton-of-thought.

    Of k workers, worker i takes points i, i + k, i + 2k, …, one after another. An outline that is not
    closed within its tokens is taken for ordinary text.
    """

    workers: int = like(TeamSettings, "workers", default=0, at_least=0, zero="one for each point")
    outline_tokens: int = setting(256, "Tokens until the outline is closed, at most.", at_least=1)
    title_tokens: int = like(BranchSettings, "title_tokens")
    max_points: int = setting(32, "Points that are worked out, at most.", at_least=1)
    thread_tokens: int = setting(1024, "Tokens of one point, at most.", at_least=1)

    @property
    def at_once(self) -> int:
        """Points that are worked out at the same time, at most; 0: all of them."""
        return self.workers or self.most_workers or 0


@dataclass(frozen=True, kw_only=True)
class AsyncReasoningSettings(Settings):
    """All choices of a thinker and a writer that read each other."""

    probe_every: int = setting(
        20,
        "Passes of the thinker between two checks whether its thoughts suffice to write on; the end of a "
        "paragraph is checked besides.",
        at_least=0,
        zero="at the ends of paragraphs alone",
        unit="forward passes",
    )


@dataclass(frozen=True, kw_only=True)
class AsyncThinkSettings(Settings):
    """All choices of an organiser with workers, of which `workers` may be at work at one time."""

    workers: int = like(TeamSettings, "workers")
    max_forks: int = setting(16, "Sub-queries that workers are given, at most.", at_least=1)
    worker_tokens: int = setting(
        1024, "Tokens that a worker writes for one sub-query, at most.", at_least=1
    )


@dataclass(frozen=True, kw_only=True)
class AttemptSettings(Settings):
    """The settings that the methods of independent attempts share.

    The likeliest tokens are the same for everybody, so more than one worker needs a temperature.
    """

    method: ClassVar[str]

    workers: int = like(TeamSettings, "workers", default=4)
    choice: Choice = like(Settings, "choice", default=SAMPLED)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.workers > 1 and self.choice.temperature == 0:
            raise InvalidRequest(
                f"{self.method} was given {self.workers} workers at temperature 0, who would all "
                "write the same",
                hint=f"Set a temperature, {SAMPLED.temperature} for instance.",
            )


@dataclass(frozen=True, kw_only=True)
class VoteSettings(AttemptSettings):
    """All choices of self-consistency."""

    method: ClassVar[str] = "self_consistency"

    mode: str = setting(
        "final",
        "One answer from all attempts: a final row that reads them, or a vote.",
        one_of=MODES,
    )


@dataclass(frozen=True, kw_only=True)
class BestSettings(AttemptSettings):
    """All choices of best-of-n."""

    method: ClassVar[str] = "best_of_n"


@dataclass(frozen=True, kw_only=True)
class SharedSettings:
    """All choices of a batch of completions.

    Together, `rows` and `prefill` should stay below what the engine feeds in one pass. `stop` are texts
    that end a completion and are no part of it; they are looked for behind `choice.min_tokens` tokens. With
    `grammar`, the text follows it; a thinking before it is free. `echo` puts the prompt before each
    completion, and with `choice.logprobs` also tells those of the prompt: then it is fed anew, and nothing of
    it is shared. A `tenant` shares with nobody but itself. With `keep`, what was written stays in the tree
    behind its prompt.
    """

    samples: int = setting(1, "Completions of one prompt.", at_least=1, by="code")
    max_tokens: int = setting(
        256, "Tokens of a completion, at most.", at_least=0, zero="none, with an echo"
    )
    choice: Choice = setting(GREEDY, "How tokens are chosen.")
    seed: int = like(Settings, "seed")
    stop: tuple[str, ...] = setting((), "Texts at which a completion ends.", by="code")
    echo: bool = setting(False, "Begin with the prompt.", by="code")
    grammar: Grammar | None = setting(None, "The form of the text.", by="code")
    rows: int = setting(
        256, "Completions of one request written at the same time, at most.", at_least=1, by="set"
    )
    prefill: int = setting(
        4096, "Tokens of prompts that are fed in one pass, at most.", at_least=1, by="set"
    )
    shareable: int | None = setting(
        None,
        "Tokens at the beginning of a prompt that are shared, at most; each row reads the others for itself.",
        at_least=0,
        unset="all but the last",
        by="code",
    )
    keep: bool = setting(False, "Keep completions for a next turn.", by="code")
    tenant: str | None = setting(None, "Shares keys and values with nobody else.", by="code")

    def __post_init__(self) -> None:
        check(self)
        _check_stop(self.stop)
        if not self.max_tokens and not self.echo:
            raise InvalidRequest("max_tokens is 0; expected 1 or more")
        if self.choice.min_tokens > self.max_tokens:
            raise InvalidRequest(
                f"min_tokens is {self.choice.min_tokens}; expected at most max_tokens, "
                f"{self.max_tokens}"
            )

    @property
    def tells_prompts(self) -> bool:
        """Whether logprobs of prompts are told, too: keys can be found in memory, logits cannot."""
        return self.echo and self.choice.logprobs is not None


# Values of a request of OpenAI's API where it says nothing, but for the limit of tokens, which is ours.
UNSAID = SharedSettings(max_tokens=1024, choice=Choice(temperature=1.0))
