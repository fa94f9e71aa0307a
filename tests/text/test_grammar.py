"""Grammars: what a matcher allows is what can be followed, to the end, with every tokenizer."""

from __future__ import annotations

import gc
import json
import math
import random
import re
import sys
import time
import weakref
from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import pytest
from transformers import AutoTokenizer

from manyhands import bundled
from manyhands.errors import InvalidRequest, scarcity_of
from manyhands.sandbox import Failed, Limits, Sandbox
from manyhands.text import Text
from manyhands.text.grammar import FIRST_SECONDS, KINDS, MASK_SECONDS, Grammar, Matcher
from tests.text.small_tokenizers import byte_level, sentence_piece

pytest.importorskip("llguidance", reason="the extra `structured` is not installed")

TEXTS = {
    "byte-level": Text(byte_level()),
    "sentencepiece": Text(sentence_piece()),
    "bundled": Text(AutoTokenizer.from_pretrained(bundled.path())),
}
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "size": {"type": "integer", "minimum": -9, "maximum": 99},
        "tags": {"type": "array", "items": {"enum": ["a", "é", None]}, "maxItems": 3},
    },
    "required": ["name", "size", "tags"],
    "additionalProperties": False,
}


def follows_schema(said: str) -> bool:
    found = json.loads(said)
    return (
        list(found) == ["name", "size", "tags"]
        and isinstance(found["name"], str)
        and len(found["name"]) <= 6
        and type(found["size"]) is int
        and -9 <= found["size"] <= 99
        and len(found["tags"]) <= 3
        and all(tag in ("a", "é", None) for tag in found["tags"])
    )


EXAMPLES: dict[str, tuple[Grammar, Callable[[str], Any]]] = {
    "json_schema": (Grammar("json_schema", json.dumps(SCHEMA)), follows_schema),
    "json_object": (
        Grammar("json_object"),
        lambda said: isinstance(json.loads(said), dict),
    ),
    "regex": (Grammar("regex", r"(ab|cd){2,5}é?"), re.compile(r"(ab|cd){2,5}é?").fullmatch),
    "lark": (
        Grammar("lark", 'start: "<" word ("," word)* ">"\nword: /[a-c]{1,4}/'),
        re.compile(r"<[a-c]{1,4}(,[a-c]{1,4})*>").fullmatch,
    ),
    "choice": (
        Grammar("choice", json.dumps(['say "no"', "yes\n", "数"])),
        lambda said: said in ('say "no"', "yes\n", "数"),
    ),
}


def tokens_in(mask: bytes) -> list[int]:
    return [token for token in range(8 * len(mask)) if mask[token // 8] >> token % 8 & 1]


def written(grammar: Grammar, text: Text, rng: random.Random, most: int = 300) -> str | None:
    """A text of tokens that are allowed, drawn at random; None if it did not come to an end."""
    matcher, tokens = grammar.matcher(text), list[int]()
    while not matcher.is_over:
        allowed = tokens_in(matcher.mask())
        assert allowed, "something may always come"
        ends = [token for token in allowed if token in text.eos]
        token = ends[0] if ends and (len(allowed) == 1 or rng.random() < 0.5) else None
        token = rng.choice(allowed) if token is None else token
        matcher.take(token)
        if token not in text.eos:
            tokens.append(token)
        if len(tokens) > most:
            return None
    return text.decode(tokens)


def test_every_kind_is_tried() -> None:
    assert set(EXAMPLES) == set(KINDS)


@pytest.mark.parametrize("tokenizer", TEXTS)
@pytest.mark.parametrize("kind", EXAMPLES)
def test_what_is_allowed_follows_the_grammar(kind: str, tokenizer: str) -> None:
    grammar, follows = EXAMPLES[kind]
    grammar.check()
    texts = [written(grammar, TEXTS[tokenizer], random.Random(seed)) for seed in range(12)]
    ended = [said for said in texts if said is not None]
    assert len(set(ended)) > 1, "some come to an end, and not all to the same"
    for said in ended:
        assert follows(said), said


def test_a_copy_goes_its_own_way() -> None:
    text = TEXTS["byte-level"]
    (a,), (b,) = text.encode("a"), text.encode("b")
    first = Grammar("regex", "a(a|b)c").matcher(text)
    first.take(a)
    second = first.copy()
    first.take(b)
    assert tokens_in(first.mask()) == [*text.encode("c")]
    assert set(tokens_in(second.mask())) == {a, b}


def test_blanks_come_to_an_end() -> None:
    """JSON allows any number of them between words, and a small model would write nothing else."""
    text = TEXTS["byte-level"]
    (blank,) = text.encode(" ")
    matcher = Grammar("json_object").matcher(text)
    matcher.take(text.encode("{")[0])
    for _ in range(100):
        if blank not in tokens_in(matcher.mask()):
            break
        matcher.take(blank)
    else:
        raise AssertionError("blanks without end")


def test_an_end_is_allowed_where_the_text_is_whole() -> None:
    text = TEXTS["byte-level"]
    matcher = Grammar("regex", "a+").matcher(text)
    (letter,), (end,) = text.encode("a"), text.eos
    assert end not in tokens_in(matcher.mask())
    matcher.take(letter)
    assert end in tokens_in(matcher.mask())
    assert not matcher.is_over
    with pytest.raises(InvalidRequest, match="the text cannot follow its grammar"):
        matcher.take(text.encode("b")[0])


@pytest.mark.parametrize(
    ("kind", "rules", "said"),
    [
        ("json_schema", '{"type": "objec"}', "the JSON schema cannot be followed: "),
        ("json_schema", '{"not": {}}', 'cannot be followed: Unimplemented keys: ["not"]'),
        ("json_schema", "[]", "the JSON schema cannot be read: "),
        ("json_schema", "{", "the JSON schema cannot be read: "),
        ("regex", "(((", "the regular expression cannot be followed: "),
        ("regex", "[0-9", "regex parse error: unclosed character class"),
        ("json_schema", '{"type": "string", "pattern": "[a"}', "error: unclosed character class"),
        ("lark", "start: missing", "the grammar cannot be followed: "),
        # Mistakes that the first mask meets, or the second.
        ("json_schema", '{"$ref": "#"}', "the JSON schema cannot be followed: no text follows it"),
        ("regex", "(a|a)*" * 2000, "cannot be followed: lexer error: too many expressions"),
        ("lark", 'start: "a" start', "cannot be followed: parser error: Too many items"),
        ("xml", "", "the kind of grammar is 'xml'; expected one of json_schema"),
    ],
)
def test_what_cannot_be_followed(kind: str, rules: str, said: str) -> None:
    with pytest.raises(InvalidRequest) as found:
        Grammar(kind, rules).check()
    assert said in str(found.value)


def test_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(InvalidRequest, match="llguidance is not installed") as found:
        Grammar("json_object").check()
    assert "pip install '.[structured]'" in found.value.hint


def chain(length: int) -> str:
    """Rules that name each other, one behind the other."""
    rules = [f'x{n}: "a" x{n + 1} | "b"' for n in range(length)]
    return "\n".join(["start: x0", *rules, f'x{length}: "c"'])


def test_a_grammar_that_overflows_the_stack_is_refused() -> None:
    """It ended the process, and with it a server."""
    with pytest.raises(InvalidRequest, match="cannot be followed: reading it crashed"):
        Grammar("lark", chain(5000)).check()
    Grammar("lark", chain(100)).check()


def test_a_grammar_that_takes_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    hasty = Sandbox("manyhands.text.grammar:refusal", Limits(seconds=0.05))
    monkeypatch.setattr("manyhands.text.grammar._sandbox", lambda process: hasty)
    with hasty, pytest.raises(InvalidRequest, match=r"reading it took over 0\.05 s") as refused:
        Grammar("choice", json.dumps([f"v{n}" for n in range(20_000)])).check()
    assert refused.value.hint == "make it shorter"


def test_the_limits_are_those_of_all_that_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such a number is read in no time. Its automaton took half a second here, and with another digit nine, beyond all limits."""
    hasty = Sandbox("manyhands.text.grammar:refusal", Limits(seconds=0.15))
    monkeypatch.setattr("manyhands.text.grammar._sandbox", lambda process: hasty)
    multiple = Grammar("json_schema", '{"type": "integer", "multipleOf": 99991}')
    with hasty:
        Grammar("json_schema", '{"type": "integer", "multipleOf": 7}').check()
        with pytest.raises(InvalidRequest, match=r"reading it took over 0\.15 s"):
            multiple.check()


def test_what_was_accepted_is_not_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    child = Mock(run=Mock(return_value=Mock(value=None)))
    monkeypatch.setattr("manyhands.text.grammar._sandbox", lambda process: child)
    monkeypatch.setattr("manyhands.text.grammar._ACCEPTED", {})
    for _ in range(3):
        Grammar("regex", "accepted").check()
    assert child.run.call_count == 1
    child.run.return_value = Mock(value="the regular expression cannot be followed: no")
    for _ in range(2):
        with pytest.raises(InvalidRequest):
            Grammar("regex", "refused").check()
    assert child.run.call_count == 3


def test_a_child_without_threads_is_a_limit_of_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    """And no mistake in the rules."""
    monkeypatch.setattr("manyhands.text.grammar._ACCEPTED", {})
    failed = Failed("error", "raised RuntimeError: can't start new thread")
    child = Mock(run=lambda *given: failed)
    monkeypatch.setattr("manyhands.text.grammar._sandbox", lambda process: child)
    with pytest.raises(InvalidRequest) as refused:
        Grammar("json_object").check()
    assert scarcity_of(refused.value) == "can't start new thread"
    failed = Failed("error", "raised RuntimeError: something else")
    with pytest.raises(InvalidRequest) as refused:
        Grammar("json_object").check()
    assert scarcity_of(refused.value) is None


def test_a_grammar_is_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[str] = []
    compile = Grammar._compiled

    def counted(self: Grammar) -> str:
        compiled.append(self.rules)
        return compile(self)

    monkeypatch.setattr(Grammar, "_compiled", counted)
    text = Text(byte_level())
    first, second = (Grammar("regex", "a+").matcher(text) for _ in range(2))
    first.take(text.encode("a")[0])
    assert first.mask() != second.mask()
    assert compiled == ["a+"]
    for number in range(20):
        Grammar("regex", f"b{number}").matcher(text)
    Grammar("regex", "a+").matcher(text)
    assert compiled.count("a+") == 2, "old ones are let go of"


def test_no_text_fails_for_what_others_have_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts share an automaton of at most 250 000 states: after some 60 of these texts there were so many."""
    made: list[str] = []
    new_matcher = Grammar.new_matcher

    def counted(self: Grammar, text: Text) -> Matcher:
        made.append(self.rules)
        return new_matcher(self, text)

    monkeypatch.setattr(Grammar, "new_matcher", counted)
    text, grammar = TEXTS["bundled"], Grammar("regex", r"(.|\n)*[a-o0-4](.|\n){40}")
    most = 8 * len(grammar.matcher(text).mask())
    words = [token for token in range(most) if token not in text.eos]
    for seed in range(70):
        rng, matcher = random.Random(seed), grammar.matcher(text)
        for _ in range(400):
            mask, token = matcher.mask(), rng.choice(words)
            while not mask[token // 8] >> token % 8 & 1:
                token = rng.choice(words)
            matcher.take(token)
    assert len(made) == 2, "they met the limit once"


def test_a_model_that_is_let_go_of_takes_its_matchers_along() -> None:
    text = Text(byte_level())
    matcher, gone = Grammar("regex", "gone+").matcher(text), weakref.ref(text)
    del text
    assert gone() is not None, "control: a text that is written knows its model"
    del matcher
    gc.collect()
    assert gone() is None


def walked(matcher: Matcher, text: Text, most: int, seed: int = 1) -> int:
    """Tokens at random that the masks allow, `most` at most."""
    rng = random.Random(seed)
    for number in range(most):
        mask = int.from_bytes(matcher.mask(), "little")
        allowed = [n for n in range(mask.bit_length()) if mask >> n & 1 and n not in text.eos]
        if not allowed:
            return number
        matcher.take(rng.choice(allowed))
        if matcher.is_over:
            return number + 1
    return most


def test_a_grammar_that_reads_a_text_in_many_ways_is_refused_before_others_wait_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Between two passes: it took 0.7 s a mask of the thirtieth token, and 3 s of the hundredth.

    It is refused by what a mask looks at, however long the machine takes.
    """
    text = TEXTS["bundled"]
    monkeypatch.setattr("manyhands.text.grammar.FIRST_SECONDS", math.inf)
    matcher = Grammar("lark", "start: s\ns: /[0-9a-z ]/ | s s | s s s\n").matcher(text)
    with pytest.raises(InvalidRequest, match=r"cannot follow its grammar: .*oo many") as caught:
        walked(matcher, text, 30)
    assert "`s: X | s X`" in caught.value.hint


def test_all_texts_of_a_request_share_the_time_of_its_masks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text, grammar = TEXTS["bundled"], Grammar("json_object")
    monkeypatch.setattr("manyhands.text.grammar.FIRST_SECONDS", 0.0)
    monkeypatch.setattr("manyhands.text.grammar.MASK_SECONDS", 0.0)
    first = grammar.matcher(text)
    with pytest.raises(InvalidRequest, match=r"takes [0-9.]+ ms a token, and 0 ms is allowed"):
        first.mask()
    with pytest.raises(InvalidRequest, match="cannot follow its grammar"):
        first.copy().mask()
    monkeypatch.setattr("manyhands.text.grammar.FIRST_SECONDS", 0.25)
    assert grammar.matcher(text).mask(), "another request has its own time"


@pytest.mark.parametrize("how", ["mask", "take"])
def test_a_grammar_that_is_compiled_anew_counts_as_masks_do(how: str) -> None:
    """All runs wait for it. Behind a take, the next mask says so."""
    text, grammar = TEXTS["bundled"], Grammar("regex", "[a-z]+")
    word = text.encode("a")[0]
    for seconds in (0.0, FIRST_SECONDS + 20 * MASK_SECONDS):
        first = grammar.matcher(text)

        def renew(first: Matcher = first, seconds: float = seconds) -> Matcher:
            begun = time.thread_time()
            while time.thread_time() - begun < seconds:
                pass
            return first.copy()

        full = Mock(
            is_error=lambda: True, get_error=lambda: "lexer state limit", is_stopped=lambda: True
        )
        matcher = Matcher(Mock(is_error=lambda: False), renew)
        matcher._matcher = full
        if how == "take":
            matcher.take(word)
            assert matcher._matcher is not full
        if not seconds:
            assert matcher.mask()
            continue
        with pytest.raises(InvalidRequest, match="to find what may come next takes"):
            matcher.mask()


def test_ordinary_forms_stay_far_below_the_time_of_masks() -> None:
    text = TEXTS["bundled"]
    properties = {f"p{n}": {"type": ["string", "number", "null"]} for n in range(200)}
    names = {"type": "object", "properties": {"a": {"enum": [f"name {n}" for n in range(1000)]}}}
    for kind, rules, least in (
        ("json_object", "", 300),
        ("json_schema", json.dumps({"type": "object", "properties": properties}), 300),
        ("json_schema", json.dumps({**names, "required": ["a"]}), 3),
        ("choice", json.dumps([f"{n} {n * 7}" for n in range(1900)]), 2),
        ("lark", 'start: e\ne: t (("+" | "-") t)*\nt: /[0-9]+/ | "(" e ")"\n', 300),
        ("lark", "start: s\ns: /[0-9a-z ]/ | s /[0-9a-z ]/\n", 300),
    ):
        grammar = Grammar(kind, rules)
        grammar.check()
        matcher = grammar.matcher(text)
        assert walked(matcher, text, 300) >= least, rules[:60]
        assert matcher._effort._seconds < FIRST_SECONDS, "none has even begun to need its share"
