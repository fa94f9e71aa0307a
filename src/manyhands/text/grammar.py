"""Text that follows a grammar: a JSON schema, a regular expression, a grammar in Lark's notation.

    grammar = Grammar("json_schema", '{"type": "object", ...}')
    grammar.check()                        InvalidRequest says what is wrong with it
    matcher = grammar.matcher(text)        one for each text that is written
    matcher.mask()                         a bit for every token that may come next (`Choice.mask`)
    matcher.take(token)                    the token that came
    matcher.is_over                        nothing more can come

The work is done by llguidance (extra `structured`). It reads the model's own tokenizer, so that a token may begin in
one word of the grammar and end in another; a rule that it cannot follow exactly is refused. A token
that ends a turn is allowed where the text so far is whole.

A grammar comes from whoever asks. Reading one may take minutes, and rules that name each other in a long chain overflow the
stack, which ends the process. So `check` reads it in a child under limits, with an eighth of the usual stack. It goes as far
there as it will go here: the automaton is built, and two masks are made, each of which has taken what reading did not.

Masks are made between two passes, where all runs wait for them. So one mask may look at `_MOST_ITEMS` places of the rules, and all
masks of one request at as many as take `MASK_SECONDS` a token of this thread's time, behind `FIRST_SECONDS` that are free. A text that
can be read in many ways needs more with every token, and is refused in the midst of it.

Copies of a matcher share an automaton, which grows with every text and has a limit. A text that meets this limit goes on with an
automaton of its own, so that no text fails for what others have written. To compile that one, and to read the text with it, counts
as masks do: all runs wait for it, too, and a text may meet the limit again and again.
"""

from __future__ import annotations

import json
import os
import re
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

from manyhands.errors import InvalidRequest, install_hint, no_thread
from manyhands.sandbox import Failed, Limits, Sandbox
from manyhands.text.tokens import Text

KINDS = ("json_schema", "json_object", "regex", "lark", "choice")
INSTALL_STRUCTURED = install_hint("structured")
# JSON allows any number of blanks between words, and a small model may write them for ever.
_BLANKS = r"[\x20\x0A\x0D\x09]{1,20}"
LIMITS = Limits(seconds=3.0, memory_bytes=1 << 30)  # of reading a grammar
_STACK = 1 << 20  # bytes for reading one in the child; a thread has 8 MiB
# Of one request's masks: CPU time a token, and what is free before that is asked. Ordinary forms take 0.01 to 0.1 ms.
MASK_SECONDS, FIRST_SECONDS = 0.001, 0.25
# Places in the rules that one mask may look at; a list of 2000 choices looks at as many.
_MOST_ITEMS = 2500
_SIMPLER = (
    "Make the grammar simpler. Longest take rules that read one text in many ways, as `s: s s | X` does, and rules that name "
    "themselves at their end, as `s: X | X s`: write `s: X | s X`."
)
_ITEMS = re.compile("too many items|items; max", re.IGNORECASE)  # in what the library says of that
_KEPT = 16  # grammars that are known to be sound; of one model those that stay compiled
_MATCHERS: weakref.WeakKeyDictionary[Text, dict[Grammar, Any]] = weakref.WeakKeyDictionary()
_ACCEPTED: dict[Grammar, None] = {}
_TOKENIZERS: weakref.WeakKeyDictionary[Text, Any] = weakref.WeakKeyDictionary()


@dataclass(frozen=True)
class Grammar:
    """A form that a text must have. `rules` is a text; of "json_schema" and "choice", JSON.

    Raises InvalidRequest for a kind that is not known.
    """

    kind: str
    rules: str = ""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise InvalidRequest(
                f"the kind of grammar is {self.kind!r}; expected one of {', '.join(KINDS)}"
            )

    def check(self) -> None:
        """Raise InvalidRequest if there is no library for it, if the library refuses the rules, or at the limits."""
        _library()
        if self in _ACCEPTED:
            return
        outcome = _sandbox(os.getpid()).run(self.kind, self.rules)
        if isinstance(outcome, Failed):
            raise InvalidRequest(
                f"the {self._name} cannot be followed: reading it {outcome.why}",
                hint="make it shorter",
            ) from no_thread(outcome.why)
        if outcome.value is not None:
            raise InvalidRequest(outcome.value)
        _ACCEPTED[self] = None
        _keep_newest(_ACCEPTED)

    def matcher(self, text: Text) -> Matcher:
        """For one text of this model. Raises InvalidRequest for rules that are refused, or a tokenizer without words.

        It is compiled once, as long as it is among the last that were asked for.
        """
        known = _MATCHERS.setdefault(text, {})
        first = known.pop(self, None)
        if first is None:
            return self.new_matcher(text)
        known[self] = first
        return Matcher(first.deep_copy(), partial(self.new_matcher, text))

    def new_matcher(self, text: Text) -> Matcher:
        """The same with an automaton of its own, which those share that are asked for from now on."""
        known = _MATCHERS.setdefault(text, {})
        first = _new_matcher(_tokenizer(text), self._compiled())
        first.compute_bitmask()  # the first takes longest: its asker waits for it here, and in a pass all runs would
        found = Matcher(first.deep_copy(), partial(self.new_matcher, text))
        known[self] = first
        _keep_newest(known)
        return found

    @property
    def _name(self) -> str:
        return {"json_schema": "JSON schema", "regex": "regular expression"}.get(
            self.kind, "grammar"
        )

    def _compiled(self) -> str:
        matcher = _library().LLMatcher
        json_words = {"whitespace_pattern": _BLANKS}
        make: dict[str, Callable[[], str]] = {
            "json_schema": lambda: matcher.grammar_from_json_schema(self.rules, json_words),
            "json_object": lambda: matcher.grammar_from_json_schema(
                '{"type": "object"}', json_words
            ),
            "regex": lambda: matcher.grammar_from_regex(self.rules),
            "lark": lambda: matcher.grammar_from_lark(self.rules),
            "choice": lambda: matcher.grammar_from_lark(_alternatives(json.loads(self.rules))),
        }
        try:
            return make[self.kind]()
        except ValueError as error:
            raise InvalidRequest(f"the {self._name} cannot be read: {error}") from error


def refusal(kind: str, rules: str) -> str | None:
    """Why the library refuses these rules, None if it does not: run in the child, which a long chain of rules ends."""
    found: list[str | None] = []

    def read() -> None:
        grammar = Grammar(kind, rules)
        try:
            compiled = grammar._compiled()
        except InvalidRequest as error:
            found.append(str(error))
            return
        refused = _library().LLMatcher.validate_grammar(compiled) or _why_not(compiled)
        said = f"the {grammar._name} cannot be followed: {_in_one_line(refused)}"
        found.append(said if refused else None)

    threading.stack_size(_STACK)
    thread = threading.Thread(target=read)
    thread.start()
    thread.join()
    return found[0]


def _why_not(compiled: str) -> str:
    """Why no text can begin so, "" if one can: tried with tokens of a byte, since a child has no model's tokenizer."""
    library = _library()
    matcher = _new_matcher(library.LLTokenizer("byte"), compiled)
    for _ in range(2):
        mask = int.from_bytes(matcher.compute_bitmask(), "little")
        if not mask or matcher.is_stopped():  # an error stops it, too
            break
        matcher.consume_token((mask & -mask).bit_length() - 1)
    error: str = matcher.get_error()
    return error


def _new_matcher(tokenizer: Any, compiled: str) -> Any:
    library = _library()
    limits = library.LLParserLimits(step_max_items=_MOST_ITEMS)
    return library.LLMatcher(tokenizer, compiled, log_level=0, limits=limits)


def _keep_newest(known: dict[Grammar, Any]) -> None:
    while len(known) > _KEPT:
        known.pop(next(iter(known)), None)


@lru_cache(maxsize=1)
def _sandbox(process: int) -> Sandbox:
    """The child of this process; a fork of it gets one of its own."""
    return Sandbox("manyhands.text.grammar:refusal", LIMITS)


class _Effort:
    """CPU time that the texts of one request have taken to follow their grammar."""

    def __init__(self) -> None:
        self._seconds, self._num_tokens = 0.0, 0

    @contextmanager
    def counted(self) -> Iterator[None]:
        """The time of a block of code counts, also where it raises."""
        begun = time.thread_time()
        try:
            yield
        finally:
            self._seconds += time.thread_time() - begun

    def check(self) -> None:
        """InvalidRequest where it is too much."""
        if self._seconds > FIRST_SECONDS + MASK_SECONDS * self._num_tokens:
            each = 1000 * self._seconds / max(1, self._num_tokens)
            raise InvalidRequest(
                f"the text cannot follow its grammar: to find what may come next takes {each:.1f} ms a token, and "
                f"{1000 * MASK_SECONDS:g} ms is allowed",
                hint=_SIMPLER,
            )

    def has_token(self) -> None:
        """One more token was written."""
        self._num_tokens += 1


class Matcher:
    """How far one text has come in its grammar. `renew` makes another one, at the beginning, with an automaton of its own.

    Copies are other texts of the same request, and share its `effort`.
    """

    def __init__(
        self,
        matcher: Any,
        renew: Callable[[], Matcher],
        tokens: Sequence[int] = (),
        effort: _Effort | None = None,
    ) -> None:
        self._matcher, self._renew = matcher, renew
        self._tokens = list(tokens)  # of the text
        self._effort = effort or _Effort()
        self._raise_error()

    @property
    def is_over(self) -> bool:
        """Whether the text is whole and nothing can follow."""
        return bool(self._matcher.is_stopped())

    def copy(self) -> Matcher:
        """Another one that has come as far: a grammar is compiled once for many texts."""
        return Matcher(self._matcher.deep_copy(), self._renew, self._tokens, self._effort)

    def mask(self) -> bytes:
        """A bit for every token that may come next, the first one in the lowest bit of the first byte.

        InvalidRequest where the request's masks take too long.
        """
        with self._effort.counted():
            mask: bytes = self._matcher.compute_bitmask()
            if self._matcher.is_error():
                self._come_anew()
                mask = self._matcher.compute_bitmask()
        self._raise_error()
        self._effort.check()
        return mask

    def take(self, token: int) -> None:
        """Go on behind this token. InvalidRequest for one that the mask does not have."""
        with self._effort.counted():
            self._matcher.consume_token(token)
            if self._matcher.is_error():
                self._come_anew()
                self._matcher.consume_token(token)
                self._raise_error()
        self._tokens.append(token)
        self._effort.has_token()

    def _come_anew(self) -> None:
        """Come as far with an automaton that no other text has grown. InvalidRequest where that is not what is wrong."""
        if _ITEMS.search(self._matcher.get_error()):
            self._raise_error()
        self._matcher = self._renew()._matcher
        self._matcher.consume_tokens(self._tokens)

    def _raise_error(self) -> None:
        if self._matcher.is_error():
            raise InvalidRequest(
                f"the text cannot follow its grammar: {_in_one_line(self._matcher.get_error())}",
                hint=_SIMPLER,
            )


def _library() -> Any:
    try:
        import llguidance
    except ImportError as error:
        raise InvalidRequest(
            "a form of text was asked for, and llguidance is not installed",
            hint=INSTALL_STRUCTURED,
        ) from error
    return llguidance


def _tokenizer(text: Text) -> Any:
    """The model's tokenizer as llguidance has it: made once, since that takes a second."""
    if text not in _TOKENIZERS:
        words = getattr(text.tokenizer, "backend_tokenizer", None)
        if words is None:
            raise InvalidRequest(
                "this model's tokenizer cannot follow a grammar: it has no tokenizer.json",
                hint="Leave the form of the text free.",
            )
        _TOKENIZERS[text] = _library().LLTokenizer(words.to_str(), eos_token=sorted(text.eos))
    return _TOKENIZERS[text]


def _alternatives(texts: list[str]) -> str:
    """A grammar whose texts are these."""
    return "start: " + " | ".join(json.dumps(each) for each in texts)


def _in_one_line(message: str) -> str:
    """A message of the library: its first line in words, and the reason where that stands below a picture of the place."""
    first, *others = message.strip().splitlines() or [""]
    if first.startswith("NoExtension"):
        return "no text follows it"
    reasons = [line.removeprefix("error:") for line in others if line.startswith("error:")]
    return (first + reasons[0] if first.endswith(":") and reasons else first)[:300]
