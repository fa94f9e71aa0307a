"""The methods: every strategy that can be asked for by its name, and what belongs to it.

    method = METHODS["branches"]
    strategy = method.make(question, text, method.settings(budget=500), prompts.branches)

The command line, traces, the exam and the report look here and know no strategy by themselves. A new
one is a row of this table, or a Method that an installed distribution offers (`schema/open_registry.py`), under an entry
point of the group "manyhands.methods". Its options on the command line are made of the fields of its settings.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cache
from inspect import get_annotations, signature
from typing import Any

from manyhands.cache.layouts import LAYOUTS
from manyhands.cache.states import FORKING
from manyhands.errors import InvalidRequest
from manyhands.prompts.hogwild import TeamPrompt
from manyhands.prompts.load import TABLES, Prompts
from manyhands.schema.choosing import choosable
from manyhands.schema.open_registry import Offers, OpenRegistry
from manyhands.schema.setting import check_function, in_brief
from manyhands.strategies.async_reasoning import NAMES, async_reasoning
from manyhands.strategies.async_think import async_think
from manyhands.strategies.base import Answer, Strategy
from manyhands.strategies.best_of_n import best_of_n
from manyhands.strategies.branches import BranchAnswer, branches
from manyhands.strategies.hogwild import hogwild
from manyhands.strategies.profiled import profiled
from manyhands.strategies.profiles import PROFILES
from manyhands.strategies.self_consistency import self_consistency
from manyhands.strategies.sequential import sequential
from manyhands.strategies.settings import (
    AsyncReasoningSettings,
    AsyncThinkSettings,
    AttemptSettings,
    BestSettings,
    BranchSettings,
    ProfileSettings,
    Settings,
    SkeletonSettings,
    SoloSettings,
    TeamSettings,
    VoteSettings,
)
from manyhands.strategies.shared_prefix import shared_prefix
from manyhands.strategies.skeleton import skeleton

LONE_WORKER = "Writer"


def _alone(settings: Any, prompt: Any) -> tuple[str, ...]:
    return (LONE_WORKER,)


def _parts(settings: Any) -> None:
    return None


def _reorders(settings: Any) -> bool:
    return False


def _forks(settings: Any) -> bool:
    return True


@dataclass(frozen=True)
class Method:
    """One strategy and what belongs to it.

    `make` takes a `Conversation`, or a problem alone as a text; without a prompt it speaks the model's own words.
    `prompt` is the field of `Prompts` that it reads. `names` says, from settings and prompt, which
    workers are there from the start; others may come while it runs (`WorkerJoined`). `solo`: what
    worker 0 writes is the reply itself, if it is not thinking. `listens`: what is said to a run of it is heard
    (`strategies/listening.py`). `reading` says, from settings, what workers read of each other while they write: "words",
    "steps" that are finished, "nothing"; None: there are no workers, but parts of one text. `forks` says, from settings,
    whether each block is read behind one text alone, which networks that keep states need (`check_forks`).
    """

    name: str
    about: str  # one line
    settings: type[Settings]
    prompt: str
    make: Callable[..., Strategy]  # (conversation, text, settings, prompt, *, context=None)
    answer: type[Answer] = Answer
    names: Callable[[Any, Any], tuple[str, ...]] = _alone
    solo: bool = False
    listens: bool = False
    reading: Callable[[Any], str | None] = _parts
    forks: Callable[[Any], bool] = _reorders

    def __post_init__(self) -> None:
        kind: object = self.settings
        if not (isinstance(kind, type) and issubclass(kind, Settings)):
            raise InvalidRequest(
                f"the settings of the method {self.name} are {in_brief(kind)}; expected a class that inherits from Settings",
                hint="Give the class itself, as TeamSettings; a run's own stand in its RunSpec.",
            )
        check_function(self.make, f"to make runs of the method {self.name}", "Give it uncalled.")


def _sight(settings: TeamSettings) -> str:
    return "words" if LAYOUTS[settings.layout].sees_desks else "steps"


def _words(settings: AsyncReasoningSettings) -> str:
    return "words"


def _none(settings: AttemptSettings) -> str:
    return "nothing"


def _joins_anew(settings: BranchSettings) -> bool:
    return settings.join == "reencode"


def _parts_join_anew(settings: ProfileSettings) -> bool:
    return (settings.parts_join or PROFILES[settings.profile].join) == "reencode"


def _votes(settings: VoteSettings) -> bool:
    return settings.mode == "vote"


def _team(settings: TeamSettings, prompt: TeamPrompt) -> tuple[str, ...]:
    return prompt.team(settings.workers)


def _pair(settings: AsyncReasoningSettings, prompt: Any) -> tuple[str, ...]:
    return NAMES


def _attempts(settings: AttemptSettings, prompt: Any) -> tuple[str, ...]:
    return tuple(f"Attempt {number}" for number in range(1, settings.workers + 1))


_ROWS: tuple[Method, ...] = (
    Method(
        "hogwild",
        "a team in one cache; everybody reads everybody while they write",
        TeamSettings,
        "team",
        hogwild,
        names=_team,
        listens=True,
        reading=_sight,
    ),
    Method(
        "sequential",
        "one worker alone, ordinary decoding",
        SoloSettings,
        "team",
        sequential,
        solo=True,
        forks=_forks,
    ),
    Method(
        "branches",
        "one text that parts into branches for independent parts, and joins them again",
        BranchSettings,
        "branches",
        branches,
        answer=BranchAnswer,
        solo=True,
        forks=_joins_anew,
    ),
    Method(
        "skeleton",
        "an outline first, then every point by a worker of its own, then a conclusion",
        SkeletonSettings,
        "skeleton",
        skeleton,
        solo=True,
    ),
    Method(
        "profiled",
        "a model that was trained to think in parallel, as it was trained",
        ProfileSettings,
        "profiled",
        profiled,
        solo=True,
        forks=_parts_join_anew,
    ),
    Method(
        "async_reasoning",
        "a thinker and a writer that read each other; the reply begins while thoughts go on",
        AsyncReasoningSettings,
        "async_reasoning",
        async_reasoning,
        names=_pair,
        solo=True,
        reading=_words,
    ),
    Method(
        "async_think",
        "an organiser gives sub-questions to workers, goes on, and reads results when it asks for them",
        AsyncThinkSettings,
        "async_think",
        async_think,
        solo=True,
        forks=_forks,
    ),
    Method(
        "self_consistency",
        "independent attempts, and one answer from all of them",
        VoteSettings,
        "votes",
        self_consistency,
        names=_attempts,
        reading=_none,
        forks=_votes,
    ),
    Method(
        "best_of_n",
        "independent attempts, of which the model chooses the best",
        BestSettings,
        "votes",
        best_of_n,
        names=_attempts,
        reading=_none,
        forks=_forks,
    ),
)


def _look(name: str, found: object) -> Method:
    """A method of an installed distribution, as this version calls one. InvalidRequest, or its own error, if it is none."""
    if not isinstance(found, Method):
        raise InvalidRequest(f"it is {_article(type(found).__name__)}; expected a Method")
    if found.name != name:
        raise InvalidRequest(f"its Method is named {found.name!r}; expected {name!r}")
    if found.prompt not in TABLES:
        raise InvalidRequest(
            f"it reads the words {found.prompt!r}; expected one of {', '.join(TABLES)}"
        )
    if not (isinstance(found.answer, type) and issubclass(found.answer, Answer)):
        raise InvalidRequest(f"its answer is {in_brief(found.answer)}; expected a kind of Answer")
    kind = found.settings
    if get_annotations(kind) and "__dataclass_fields__" not in vars(kind):
        raise InvalidRequest(
            f"{kind.__name__} has fields and is no dataclass of its own; expected @dataclass(frozen=True, kw_only=True)"
        )
    settings = kind()
    for path, one in choosable(settings).items():
        same = _own_settings().get(path, one.kind)
        if same != one.kind:
            raise InvalidRequest(
                f"its setting {path} is of type {_typed(one.kind)}; expected {_typed(same)}, as methods here have it"
            )
    prompt = getattr(Prompts(), found.prompt)
    names: object = found.names(settings, prompt)
    if not (isinstance(names, tuple) and all(isinstance(one, str) for one in names)):
        raise InvalidRequest(f"its names are {in_brief(names)}; expected a tuple of texts")
    for said in (found.reading, found.forks):
        _ = said(settings)
    _check_signature(found.make, prompt)
    _check_told(found.about, settings)
    return found


def _check_told(about: str, settings: Settings) -> None:
    """Raise InvalidRequest for texts and numbers that JSON does not hold: a server lists all methods in one answer."""
    told = [about, *(one.schema for one in choosable(settings).values())]
    try:
        json.dumps(told, ensure_ascii=False, allow_nan=False).encode()
    except (TypeError, ValueError) as error:
        raise InvalidRequest(
            f"what it says of itself cannot be told over HTTP: {error}; expected texts and numbers that JSON has"
        ) from error


def _check_signature(make: Callable[..., object], prompt: object) -> None:
    """Raise InvalidRequest if a function cannot be called as `Method.make` is."""
    try:
        taken = signature(make)
    except (TypeError, ValueError):  # of a function in C nothing is known
        return
    try:
        taken.bind("question", "text", "settings", prompt, context=None)
    except TypeError as error:
        raise InvalidRequest(
            f"its make takes {taken} ({error}); expected (conversation, text, settings, prompt, *, context=None)"
        ) from error


def _typed(kind: Any) -> str:
    return kind.__name__ if isinstance(kind, type) else str(kind)


def _article(noun: str) -> str:
    return f"{'an' if noun[0] in 'aeiouAEIOU' else 'a'} {noun}"


@cache
def _own_settings() -> Mapping[str, Any]:
    """The types of the settings of methods here, by their paths."""
    return {path: one.kind for row in _ROWS for path, one in choosable(row.settings()).items()}


# A plain completion has no row, and is asked for as methods are.
_TAKEN = (*(row.name for row in _ROWS), shared_prefix.__name__)
METHODS: OpenRegistry[Method] = OpenRegistry(
    {row.name: row for row in _ROWS}, Offers("method", "manyhands.methods", _TAKEN, _look)
)


def method_named_by(chosen: Collection[str]) -> str | None:
    """The method that one of these settings asks for, as a profile does; None if none does."""
    for name, method in METHODS.working().items():
        for path, one in choosable(method.settings()).items():
            if one.setting.names_method and path in chosen:
                return name
    return None


def check_forks(method: Method, settings: Settings) -> None:
    """Raise InvalidRequest if a method with these settings reads a block behind several texts.

    For networks some of whose layers keep one state of a text instead of keys and values (`ModelFacts.num_states`).
    """
    if not method.forks(settings):
        raise InvalidRequest(
            f"the method {method.name} with these settings reads what was written behind other texts, and layers of this "
            "network keep one state of a text, which depends on the order of all its tokens",
            hint=f"methods that only fork run on it: {', '.join((*FORKING, *_forking_others()))}",
        )


def _forking_others() -> list[str]:
    """Installed methods that, as they come, only fork."""
    found = METHODS.working()
    return [
        name
        for name in found
        if name not in METHODS.rows and found[name].forks(found[name].settings())
    ]
