"""A run before it begins: everything that a strategy is made of.

    spec = RunSpec(METHODS["branches"], BranchSettings(budget=500), prompts.branches, "What is ...?")
    strategy = spec.strategy(text)
    RunSpec.from_plain(json.loads(json.dumps(spec.to_plain()))) == spec

A spec is made at the door, from options or from a trace's header, and goes as it is to where the strategy
is made. It becomes plain data only when a file is written. Nothing is said here of any one method:
`methods.py` knows what belongs to each. A header that does not make a spec is a `BrokenTrace`; a setting
that it leaves out has its default, so that traces outlive a new setting.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from manyhands.errors import BrokenTrace, InvalidRequest
from manyhands.prompts.load import TABLES
from manyhands.schema.conversation import Conversation, Message, conversation_of
from manyhands.schema.plain import from_plain, to_plain
from manyhands.schema.setting import as_found, check_given
from manyhands.strategies.base import Answer, Asked, Sent, Strategy, check_generator
from manyhands.strategies.events import Event, WorkerJoined
from manyhands.strategies.methods import METHODS, Method
from manyhands.strategies.settings import Settings
from manyhands.text import Text


@dataclass(frozen=True)
class RunSpec:
    """A question, the method by which it is thought about, and the words.

    An exam has one without a problem, and fills in each of its own.
    `prompt` is the table of `Prompts` that the method reads. `context` is the longest view that the model
    bears, in tokens; None: any. `problem` is what is asked now, `earlier` what was said before it, and the
    reply begins with `prefill`: together they are a `Conversation`.
    """

    method: Method
    settings: Settings
    prompt: Any
    problem: str = ""
    context: int | None = None
    earlier: tuple[Message, ...] = ()
    prefill: str = ""

    def __post_init__(self) -> None:
        method: object = self.method
        if not isinstance(method, Method):
            raise InvalidRequest(
                f"the method of a run is of type {type(method).__name__}; expected a Method",
                hint='Write METHODS["hogwild"], for instance.',
            )
        settings: object = self.settings
        if not isinstance(settings, method.settings):
            raise InvalidRequest(
                f"the settings of a run are of type {type(settings).__name__}; expected {method.settings.__name__}",
                hint=f"Write {method.settings.__name__}(...).",
            )
        table = TABLES.get(method.prompt)
        if table is not None and not isinstance(self.prompt, table):
            raise InvalidRequest(
                f"the words of a run are of type {type(self.prompt).__name__}; expected {table.__name__}",
                hint=f"Write engine.prompts.{method.prompt}, which the method {method.name!r} reads.",
            )
        _ = self.conversation  # one that cannot be refuses itself

    @property
    def conversation(self) -> Conversation:
        """The question, with the turns before it."""
        return Conversation(self.problem, self.earlier, self.prefill)

    def asked(self, asked: str | Conversation, seed: int | None = None) -> RunSpec:
        """The same run, asked this, with this seed; None: with its own."""
        settings = self.settings if seed is None else replace(self.settings, seed=seed)
        return replace(self, **vars(conversation_of(asked)), settings=settings)

    def samples(self, count: int) -> list[RunSpec]:
        """So many runs that differ in their luck alone: the seed, and those behind it."""
        seeds = range(self.settings.seed, self.settings.seed + count)
        return [replace(self, settings=replace(self.settings, seed=seed)) for seed in seeds]

    @property
    def names(self) -> tuple[str, ...]:
        """The workers who are there from the start; others may come while it runs."""
        return self.method.names(self.settings, self.prompt)

    def strategy(self, text: Text) -> Strategy:
        """The strategy at its beginning."""
        strategy = self.method.make(
            self.conversation, text, self.settings, self.prompt, context=self.context
        )
        check_generator(strategy)
        return _of_known_workers(strategy, len(self.names))

    def facts(self) -> dict[str, Any]:
        """The first facts of a run: its method, how many work from the start, layout and seed."""
        return {
            "method": self.method.name,
            "workers": getattr(self.settings, "workers", 1),
            "layout": getattr(self.settings, "layout", None),
            "seed": self.settings.seed,
        }

    def to_plain(self) -> dict[str, Any]:
        """All of it as numbers, words, lists and dictionaries: a trace's header."""
        return {
            **self.facts(),
            "names": list(self.names),
            "settings": to_plain(self.settings),
            "context": self.context,
            "prompt": to_plain(self.prompt),
            **to_plain(self.conversation),
        }

    @classmethod
    def from_plain(cls, header: Mapping[str, Any]) -> RunSpec:
        """`to_plain` backwards; what else stands in the header is left alone.

        Raises BrokenTrace for one that does not say all, InvalidRequest for what is no header.
        """
        check_given(header, Mapping, "as the header of a trace", "Give trace.header.")
        name = header.get("method")
        if not isinstance(name, str) or name not in METHODS:
            raise _unclear("method", name, _NO_METHOD)
        method = METHODS[name]
        return cls(
            method,
            _part(header, "settings", method.settings),
            _part(header, "prompt", TABLES[method.prompt]),
            _part(header, "problem", str),
            _part(header, "context", int | None),
            _part(header, "earlier", tuple[Message, ...], ()),
            _part(header, "prefill", str, ""),
        )


def _of_known_workers(strategy: Strategy, num_workers: int) -> Strategy:
    """The strategy itself, whose workers are so many from the start.

    InvalidRequest, in the run, for an event of a worker that has not come: whatever tells of a run has no name for it.
    """
    advance: Callable[[Any], Asked] = strategy.send
    value: Sent | Exception = None
    try:
        while True:
            try:
                asked = advance(value)
            except StopIteration as end:
                answer: Answer = end.value
                return answer
            if isinstance(asked, Event):
                worker = getattr(asked, "worker", None)
                if isinstance(asked, WorkerJoined):
                    if worker != num_workers:
                        raise _unknown(asked, worker, num_workers)
                    num_workers += 1
                elif worker is not None and worker not in range(num_workers):
                    raise _unknown(asked, worker, num_workers)
            sent: Sent = None
            try:
                sent = yield asked
            except Exception as error:  # the strategy's to handle, see `strategies.base`
                advance, value = strategy.throw, error
            else:
                advance, value = strategy.send, sent
            del asked  # or its views would hold what the strategy lets go of
    finally:
        strategy.close()


def _unknown(event: Event, worker: object, num_workers: int) -> InvalidRequest:
    """The complaint about an event of a worker that nothing has named, or that comes out of order."""
    kind, found = type(event).__name__, as_found(worker)
    if isinstance(event, WorkerJoined):
        expected = (
            f"expected {num_workers}, for workers are numbered in the order in which they come"
        )
        hint = "Count those that Method.names has."
    else:
        known = "0 or 1" if num_workers == 2 else f"0 to {num_workers - 1}"
        expected = f"expected {'0' if num_workers == 1 else known}, for no other has come"
        hint = "Let Method.names name all who are there from the start, and yield WorkerJoined for others."
    return InvalidRequest(
        f"the worker of a {kind} in pass {event.forward_pass} is {found}; {expected}", hint=hint
    )


def _part(header: Mapping[str, Any], field: str, kind: Any, unsaid: Any = None) -> Any:
    try:
        return from_plain(kind, header.get(field, unsaid), field)
    except (TypeError, ValueError, InvalidRequest) as error:
        raise _unclear(field, error) from error


_DAMAGED = "The file is damaged, or comes from another version of manyhands."
_NO_METHOD = (
    "A method of another distribution is known where that is installed. A strategy of your own is no method, so no command runs it again: in a program engine.restore(strategy, trace) goes on "
    "with it, and engine.replay(merge_trace(trace)) gives its logits. Otherwise the file comes from another version of manyhands."
)


def _unclear(field: str, found: object, hint: str = _DAMAGED) -> BrokenTrace:
    reason = str(found) if isinstance(found, Exception) else f"found {found!r}"
    return BrokenTrace(
        f"the trace's header does not say how to run it again: field '{field}', {reason[:200]}",
        hint=hint,
    )
