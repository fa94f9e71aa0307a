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
"""

from __future__ import annotations

import json
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from manyhands.errors import InvalidRequest, install_hint
from manyhands.text.tokens import Text

KINDS = ("json_schema", "json_object", "regex", "lark", "choice")
INSTALL_STRUCTURED = install_hint("structured")
# JSON allows any number of blanks between words, and a small model may write them for ever.
_BLANKS = r"[\x20\x0A\x0D\x09]{1,20}"
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
        """Raise InvalidRequest if there is no library for it, or if the library refuses the rules."""
        refused = _library().LLMatcher.validate_grammar(self._compiled())
        if refused:
            raise InvalidRequest(f"the {self._name} cannot be followed: {_first_line(refused)}")

    def matcher(self, text: Text) -> Matcher:
        """For one text of this model. Raises InvalidRequest as `check` does, or for a tokenizer without words."""
        return Matcher(_library().LLMatcher(_tokenizer(text), self._compiled(), log_level=0))

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


class Matcher:
    """How far one text has come in its grammar."""

    def __init__(self, matcher: Any) -> None:
        self._matcher = matcher
        self._raise_error()

    @property
    def is_over(self) -> bool:
        """Whether the text is whole and nothing can follow."""
        return bool(self._matcher.is_stopped())

    def copy(self) -> Matcher:
        """Another one that has come as far: a grammar is compiled once for many texts."""
        return Matcher(self._matcher.deep_copy())

    def mask(self) -> bytes:
        """A bit for every token that may come next, the first one in the lowest bit of the first byte."""
        mask: bytes = self._matcher.compute_bitmask()
        self._raise_error()
        return mask

    def take(self, token: int) -> None:
        """Go on behind this token. InvalidRequest for one that the mask does not have."""
        self._matcher.consume_token(token)
        self._raise_error()

    def _raise_error(self) -> None:
        if self._matcher.is_error():
            raise InvalidRequest(
                f"the text cannot follow its grammar: {_first_line(self._matcher.get_error())}",
                hint="Make the grammar simpler.",
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


def _first_line(message: str) -> str:
    return message.strip().partition("\n")[0][:300]
