"""A Step: what a strategy asks for in one forward pass.

A Row is a view and the tokens to feed at its end. All rows of a step are written before any of them
reads, so rows see each other's tokens in the very pass in which they are fed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass, replace
from operator import index
from typing import Any

from manyhands.cache.tally import Tally
from manyhands.cache.view import View
from manyhands.errors import InvalidRequest, counted
from manyhands.schema.setting import (
    as_found,
    check,
    check_function,
    in_brief,
    is_number,
    is_whole,
    own_number,
    setting,
)

MAX_LOGPROBS = 20
MAX_BIAS = 100


@dataclass(frozen=True)
class Choice:
    """How a row's next token is chosen from its logits.

    temperature 0 takes the likeliest token. Otherwise logits are divided by the temperature and cut
    by `top_k` (0: all), `top_p` (smallest set of these with at least that share of them) and `min_p` (relative
    to the likeliest), and `draw`, a number in [0, 1) from the row's own seeded generator, picks from
    what is left. The draw comes with the row, so no other row can change a row's luck.

    Before that, the logits are weighed by what the writer has written: the three penalties and
    `logit_bias` (token id -> -100 to 100, added). A writer counts in a `Tally`, which has the formulas and
    comes with the row. Before `min_tokens` tokens a writer does not end its text.

    `logprobs` asks to be told the log-probability of the token, and of so many of the likeliest ones (0:
    of none). They are those of the model: of the logits as they are, before anything above.

    `allowed` keeps only these token ids (one id: a forced token), `forbidden` removes some. `mask` has a bit
    for every token id, the first one in the lowest bit of the first byte, and keeps those that are set; a
    vocabulary is so large that a grammar's many ids are sent in no other form.
    """

    temperature: float = setting(0.0, "0 takes the likeliest token.", at_least=0, at_most=100)
    top_k: int = setting(0, "Only the k likeliest.", at_least=0, zero="all")
    top_p: float = setting(1.0, "Only the likeliest, up to this probability.", above=0, at_most=1)
    min_p: float = setting(
        0.0, "Only those at least this likely, relative to the likeliest.", at_least=0, at_most=1
    )
    draw: float = setting(0.0, "Picks from what is left.", at_least=0, below=1, by="code")
    allowed: frozenset[int] | None = setting(None, "The only tokens to choose from.", by="code")
    forbidden: frozenset[int] = setting(frozenset(), "Tokens that are not chosen.", by="code")
    repetition_penalty: float = setting(
        1.0, "Weakens tokens that were read or written; 1: none.", above=0, at_most=100
    )
    frequency_penalty: float = setting(
        0.0, "Weakens a token by this for each time it was written.", at_least=-2, at_most=2
    )
    presence_penalty: float = setting(
        0.0, "Weakens a token by this once it was written.", at_least=-2, at_most=2
    )
    logit_bias: Mapping[int, float] = setting(
        {}, "Added to the logits of these token ids: 50:-100,7:2.5.", by="set"
    )
    min_tokens: int = setting(0, "Tokens of a text, at least.", at_least=0)
    logprobs: int | None = setting(
        None,
        "Tell the log-probabilities of tokens, and of so many of the likeliest.",
        at_least=0,
        at_most=MAX_LOGPROBS,
        by="set",
    )
    mask: bytes | None = setting(None, "A bit for every token that may be chosen.", by="code")

    def __post_init__(self) -> None:
        check(self)
        if self.logit_bias:
            held = dict(self.logit_bias)
            if not _are_own_biases(held):
                held = dict(_own_bias(token, bias) for token, bias in held.items())
            object.__setattr__(self, "logit_bias", held)
        mask: object = self.mask
        if mask is not None and not isinstance(mask, bytes):
            raise InvalidRequest(
                f"mask is of type {type(mask).__name__}; expected bytes, a bit for every token id"
            )
        if self.allowed is None and type(self.forbidden) is frozenset and not self.forbidden:
            return
        for name, found in (("allowed", self.allowed), ("forbidden", self.forbidden)):
            if not isinstance(found, frozenset) and not (found is None and name == "allowed"):
                raise InvalidRequest(
                    f"{name} is {in_brief(found)}; expected a frozenset of token ids",
                    hint=f"Write {name}=frozenset({{id, ...}}).",
                )
            if found and not _ARE_OWN.issuperset(map(type, found)):
                object.__setattr__(self, name, _own_tokens(name, found))
        if self.allowed is not None and not self.allowed - self.forbidden:
            raise InvalidRequest(
                "no token is left to choose from: every allowed token is forbidden",
                hint="Allow at least one token that is not forbidden.",
            )

    @property
    def weighs(self) -> bool:
        """Whether logits are weighed, for which a row needs a tally."""
        return bool(
            self.repetition_penalty != 1
            or self.frequency_penalty
            or self.presence_penalty
            or self.logit_bias
        )

    def unweighed(self) -> Choice:
        """The choice without what a tally holds, for rows that have one."""
        return replace(
            self,
            repetition_penalty=1.0,
            frequency_penalty=0.0,
            presence_penalty=0.0,
            logit_bias={},
        )

    def drawn(self, draw: float) -> Choice:
        """The choice with a row's own draw. It is made for every token, so nothing is checked again."""
        assert 0 <= draw < 1, "a draw lies in [0, 1)"
        choice, values = object.__new__(Choice), self.__dict__.copy()
        values["draw"] = draw
        object.__setattr__(choice, "__dict__", values)
        return choice

    def tally(self, prompt: Iterable[int] = ()) -> Tally | None:
        """A new tally for one writer; None if logits stay as they are. `prompt`: tokens that it has read."""
        if not self.weighs:
            return None
        return Tally(
            repetition=self.repetition_penalty,
            frequency=self.frequency_penalty,
            presence=self.presence_penalty,
            bias=self.logit_bias,
            prompt=prompt,
        )


_ARE_OWN = frozenset({int})  # types of token ids, as settings hold numbers
_ARE_OWN_NUMBERS = frozenset({float, int})


def _are_own_biases(held: Mapping[Any, Any]) -> bool:
    """Whether a `logit_bias` is as settings hold it, so that no part of it needs a closer look."""
    found = held.values()
    are_numbers = _ARE_OWN.issuperset(map(type, held)) and _ARE_OWN_NUMBERS.issuperset(
        map(type, found)
    )
    return are_numbers and min(held) >= 0 and all(-MAX_BIAS <= bias <= MAX_BIAS for bias in found)


def _own_bias(token: Any, bias: Any) -> tuple[int, float]:
    """One part of a `logit_bias`, in Python's own numbers."""
    token, bias = own_number(token), own_number(bias)
    if not (is_whole(token) and is_number(bias)):
        raise InvalidRequest(
            f"logit_bias has {as_found(token)}: {as_found(bias)}; expected token ids, and numbers for them"
        )
    if token < 0 or not -MAX_BIAS <= bias <= MAX_BIAS:
        found = f"{bias:g}" if isinstance(bias, float) else as_found(bias)
        raise InvalidRequest(
            f"logit_bias adds {found} to token {as_found(token)}; expected a token id, and "
            f"{-MAX_BIAS} to {MAX_BIAS}"
        )
    return token, bias if type(bias) in (float, int) else float(bias)


def _own_tokens(name: str, found: frozenset[Any]) -> frozenset[int]:
    """Token ids of another library as Python's own."""
    held = frozenset(map(own_number, found))
    for token in held:
        if not is_whole(token):
            raise InvalidRequest(
                f"{name} has {as_found(token)}; expected token ids",
                hint="Make them of a text with engine.text.encode(text).",
            )
    return held


GREEDY = Choice()


@dataclass(frozen=True, eq=False)
class Row:
    """One writer in one pass: feed these token ids at the end of this view.

    `writer` says whose words the chosen token becomes, for traces; None if it is not used. A strategy
    decides itself what a token that ends a turn means (`Text.turn_end`); fed on, it is just a token.

    `tally` is the writer's, as it stands before this pass, if its choice weighs. `targets` are the tokens that
    follow the fed ones in the text, one for each of the first of them: their logprobs are
    told too (`Tokens.prompt_logprobs`), with as many of the likeliest as the choice asks for.

    `draft` are tokens that may follow the fed ones, by a guess of the engine's (`engine/speculation.py`). Their
    keys are written behind the block's end, on the page on which its feed ends; they are no part of the block.
    """

    view: View
    feed: tuple[int, ...]
    choice: Choice = GREEDY
    writer: str | None = None
    tally: Tally | None = None
    targets: tuple[int, ...] = ()
    draft: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        try:  # nothing but types is looked at ahead: rows are made in every pass
            if type(self.feed) is not tuple:
                _check_order(self, "feed")
            object.__setattr__(self, "feed", tuple(map(index, self.feed)))
            if len(self.targets) or len(self.draft):
                _check_order(self, "targets")
                _check_order(self, "draft")
                object.__setattr__(self, "targets", tuple(map(index, self.targets)))
                object.__setattr__(self, "draft", tuple(map(index, self.draft)))
            own = self.view.own
            if self.tally is not None and not isinstance(self.tally, Tally):
                raise TypeError
            if self.writer is not None and not isinstance(self.writer, str):
                raise TypeError
            if self.tally is None and self.choice is not GREEDY and self.choice.weighs:
                raise InvalidRequest(
                    f"the row that writes to {own!r} has penalties or a bias, and no tally",
                    hint="Make one for each writer with choice.tally(), give it to the row, and let it "
                    "take every token that is written; strategies/writer.py does.",
                )
        except (TypeError, AttributeError):
            _explain(self)
            raise
        if len(self.targets) > len(self.feed):
            raise InvalidRequest(
                f"the row that writes to {own!r} feeds {counted(len(self.feed), 'token')} and has "
                f"{len(self.targets)} targets; expected no more than it feeds",
                hint="A target is the token that follows a fed one.",
            )
        if not self.feed:
            raise InvalidRequest(
                f"the row that writes to {own!r} feeds no token",
                hint="Feed at least one token, or leave the row out of the step.",
            )
        own.check_writable()

    def over(self, view: View) -> Row:
        """The same row over another view whose blocks hold the same tokens. Nothing is checked again."""
        row, values = object.__new__(Row), self.__dict__.copy()
        values["view"] = view
        object.__setattr__(row, "__dict__", values)
        return row

    @classmethod
    def checked(
        cls, view: View, feed: tuple[int, ...], choice: Choice, writer: str, tally: Tally | None
    ) -> Row:
        """The row of a writer that is known to be one: nothing is checked again."""
        row = object.__new__(cls)
        values = row.__dict__
        values["view"], values["feed"], values["choice"] = view, feed, choice
        values["writer"], values["tally"] = writer, tally
        return row


def _check_order(row: Row, name: str) -> None:
    """Raise InvalidRequest for tokens of a row, by the name of their field, that are whole numbers in no order, or bytes."""
    tokens = getattr(row, name)
    if isinstance(tokens, bytes | bytearray | Set | Mapping):
        raise InvalidRequest(
            f"the {name} of the row that writes to {row.view.own!r} is of type {type(tokens).__name__}; expected a "
            "list of token ids",
            hint="Make them of a text with engine.text.encode(text); one token is (token,).",
        )


def _explain(row: Row) -> None:
    """Raise InvalidRequest for the part of a row that is of a wrong type."""
    parts: tuple[tuple[str, object, type, str, str], ...] = (
        ("view", row.view, View, "a View", "Write Row(View([block]), feed)."),
        ("choice", row.choice, Choice, "a Choice", "Write Choice(temperature=0.7), for instance."),
    )
    if row.tally is not None:
        parts += (("tally", row.tally, Tally, "a Tally", "Make one with choice.tally()."),)
    if row.writer is not None:
        parts += (("writer", row.writer, str, "a name", "Write writer='solver', for instance."),)
    for name, found, kind, expected, hint in parts:
        if not isinstance(found, kind):
            raise InvalidRequest(
                f"the {name} of a row is of type {type(found).__name__}; expected {expected}",
                hint=hint,
            )
    for name in ("feed", "targets", "draft"):
        tokens = getattr(row, name)
        if not isinstance(tokens, tuple) or not all(isinstance(token, int) for token in tokens):
            raise InvalidRequest(
                f"the {name} of the row that writes to {row.view.own!r} is {in_brief(tokens)}; "
                f"expected token ids",
                hint="Make them of a text with engine.text.encode(text); one token is (token,).",
            )


def _explain_step(rows: object) -> None:
    """Raise InvalidRequest if this is no list, or for the first item of it that is no row."""
    if not isinstance(rows, Iterable):
        found = f"one {type(rows).__name__}; expected a list of rows"
    else:
        wrong = [each for each in rows if not isinstance(each, Row)]
        if not wrong:
            return
        found = f"a {type(wrong[0]).__name__} where a Row was expected"
    raise InvalidRequest(f"a step was made of {found}", hint="Write Step([Row(view, feed), ...]).")


@dataclass(frozen=True, eq=False)
class Step:
    """The rows asked for together. Each writes to a block of its own.

    `meanwhile` is work that the strategy would otherwise do when it has its tokens, with the device waiting. It may be
    done while the step is fed; if it is not, or is interrupted, nothing changes but time.
    """

    rows: tuple[Row, ...]
    meanwhile: Callable[[], None] | None

    def __init__(self, rows: Iterable[Row], meanwhile: Callable[[], None] | None = None) -> None:
        try:
            self.__dict__["rows"] = tuple(rows)
        except TypeError:
            _explain_step([] if isinstance(rows, Iterable) else rows)
            raise
        self.__dict__["meanwhile"] = meanwhile
        if meanwhile is not None:
            check_function(meanwhile, "to a step as `meanwhile`", "Write Step(rows, function).")
        if not self.rows:
            raise InvalidRequest("a step was made of no rows", hint="Ask for at least one row.")
        try:
            owners = [row.view.own for row in self.rows]
        except AttributeError:
            _explain_step(self.rows)
            raise
        if len(set(owners)) < len(owners):
            twice = next(block for block in owners if owners.count(block) > 1)
            raise InvalidRequest(
                f"two rows of one step write to {twice!r}",
                hint="Give every row a block of its own; rows may read each other's blocks.",
            )

    def num_pages_at_least(self, page_size: int) -> int:
        """Pages that hold what the rows write to and read, behind this step: with fewer it cannot be fed, whatever else goes."""
        sizes = {block: block.num_tokens for row in self.rows for block in row.view.blocks}
        own_pages = 0  # no two of these blocks share one
        for row in self.rows:
            own = row.view.own
            sizes[own] = own.num_tokens + len(row.feed)
            own_pages += -(-sizes[own] // page_size)
        return max(own_pages, -(-sum(sizes.values()) // page_size))


class StandIn(Step):
    """A step in the place of another one, `origin`, over other blocks that hold the same tokens.

    The engine feeds this one; who watches is told of `origin`. Its rows write to the blocks that those of `origin` write to,
    or to others of their own: nothing is checked again.
    """

    origin: Step

    def __init__(self, rows: Iterable[Row], origin: Step) -> None:
        parts = self.__dict__
        parts["rows"], parts["meanwhile"], parts["origin"] = tuple(rows), origin.meanwhile, origin
