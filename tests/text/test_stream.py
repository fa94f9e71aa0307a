"""StreamDecoder: the pieces join to the whole, and no half character is ever shown."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from manyhands.text import StreamDecoder, Text
from tests.text.small_tokenizers import byte_level, sentence_piece

BYTES = Text(byte_level())
PIECES = Text(sentence_piece())
UNICODE = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)


def streamed(text: Text, tokens: Iterable[int]) -> list[str]:
    decoder = StreamDecoder(text)
    return [*map(decoder.push, tokens), decoder.flush()]


@given(UNICODE)
@example("👩‍👩‍👧 数学 é\ufffd\ufffd x")
@example("\ufffd" * 90 + "数" * 90)
def test_byte_level_pieces_join_to_the_text(text: str) -> None:
    assert "".join(streamed(BYTES, BYTES.encode(text))) == text


class Loud(PreTrainedTokenizerFast):
    """A tokenizer with a decoding of its own."""

    def _decode(self, *args: Any, **choices: Any) -> str:
        return str(super()._decode(*args, **choices)).upper()


class Quiet(PreTrainedTokenizerFast):
    """A tokenizer with an encoding of its own."""

    def _encode_plus(self, text: Any, *args: Any, **choices: Any) -> Any:
        return super()._encode_plus(text.lower(), *args, **choices)


@pytest.mark.parametrize("make", [byte_level, sentence_piece])
def test_the_shorter_way_decodes_as_the_tokenizer_does(make: Callable[[], Any]) -> None:
    tokenizer = make()
    text, ids = Text(tokenizer), range(len(tokenizer))
    assert text._decode.func == tokenizer.backend_tokenizer.decode  # type: ignore[attr-defined]
    lists = [[token] for token in ids] + [[*ids][start : start + 7] for start in ids]
    expected = [
        tokenizer.decode(each, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        for each in lists
    ]
    assert [text.decode(each, special=True) for each in lists] == expected
    assert pickle.loads(pickle.dumps(text)).decode(lists[-1], special=True) == expected[-1]


TEXTS = (
    "",
    " ",
    "**Alice [3]:** ",
    "So the answer is\n\n",
    "<|im_end|> and <think>",
    "数学 élèves 🙂\ud7ff",
)


@pytest.mark.parametrize("make", [byte_level, sentence_piece])
def test_the_shorter_way_encodes_as_the_tokenizer_does(make: Callable[[], Any]) -> None:
    tokenizer = make()
    text = Text(tokenizer)
    assert text._encode.args == (tokenizer.backend_tokenizer,)  # type: ignore[attr-defined]
    for words in TEXTS:
        assert text._raw(words) == tuple(tokenizer.encode(words, add_special_tokens=False))
    again = pickle.loads(pickle.dumps(text))
    assert [again.encode(words) for words in TEXTS] == [text.encode(words) for words in TEXTS]


def test_an_encoding_of_its_own_is_kept() -> None:
    """Of the class, or of the file: a tokenizer that cuts what it is given."""
    words = "loud words"
    quiet = Quiet(tokenizer_object=byte_level().backend_tokenizer)  # type: ignore[no-untyped-call]
    assert Text(quiet)._raw("LOUD Words") == BYTES.encode(words)
    split = byte_level()
    split.split_special_tokens = True
    assert Text(split)._raw("<|im_end|>") == tuple(
        split.encode("<|im_end|>", add_special_tokens=False)
    )
    cut = byte_level()
    cut.backend_tokenizer.enable_truncation(2)
    assert Text(cut)._raw(words) == BYTES.encode(words)


def test_a_decoding_of_its_own_is_kept() -> None:
    tokens = BYTES.encode("loud words")
    loud = Loud(tokenizer_object=byte_level().backend_tokenizer)  # type: ignore[no-untyped-call]
    assert Text(loud).decode(tokens) == "LOUD WORDS"


@given(st.lists(st.integers(0, len(byte_level()) - 1), max_size=60))
def test_any_tokens_join_to_their_decoding(tokens: list[int]) -> None:
    assert "".join(streamed(BYTES, tokens)) == BYTES.decode(tokens)


IDS: dict[str, int] = BYTES.tokenizer.get_vocab()
BROKEN = [IDS[name] for name in ("ä", "ð", "±", "Ł", "ÿ")]


@given(st.lists(st.sampled_from([*BROKEN * 4, *BYTES.encode("a数👩")]), min_size=70, max_size=200))
def test_broken_bytes_that_are_waited_for_in_vain_join_to_their_decoding(tokens: list[int]) -> None:
    assert "".join(streamed(BYTES, tokens)) == BYTES.decode(tokens)


@pytest.mark.parametrize("size", range(52, 68))
@pytest.mark.parametrize("text", ["数", "👩", "é数👩a"])
def test_a_wait_that_is_given_up_cuts_no_character(size: int, text: str) -> None:
    tokens = [BROKEN[0]] * size + list(BYTES.encode(text * 3))
    assert "".join(streamed(BYTES, tokens)) == BYTES.decode(tokens)


@given(st.text("abdeht  .\n数é👩", max_size=40))
def test_sentence_pieces_join_to_the_text(text: str) -> None:
    tokens = PIECES.encode(text, opening=True)
    assert "".join(streamed(PIECES, tokens)) == PIECES.decode(tokens)


def test_leading_blanks_of_words_are_kept() -> None:
    tokens = PIECES.encode("the answer is four", opening=True)
    assert "".join(streamed(PIECES, tokens)) == "the answer is four"
    with_end = (*tokens, PIECES.tokenizer.eos_token_id, *PIECES.encode(" the end"))
    assert "".join(streamed(PIECES, with_end)) == "the answer is four the end"


@pytest.mark.parametrize("text", [BYTES, PIECES])
def test_a_character_comes_out_whole(text: Text) -> None:
    tokens = text.encode("👩数", opening=True)
    pieces = streamed(text, tokens)
    assert len(tokens) >= 5
    assert [piece for piece in pieces if piece] == ["👩", "数"]


def test_flush_shows_what_stayed_incomplete() -> None:
    pieces = streamed(BYTES, BYTES.encode("a数")[:-1])
    assert pieces[-1] == "\ufffd"
    assert "\ufffd" not in "".join(pieces[:-1])


def test_text_comes_with_the_token_that_completes_it() -> None:
    decoder = StreamDecoder(BYTES)
    for token in BYTES.encode("So the answer is four."):
        assert decoder.push(token) == BYTES.decode([token])


def test_the_window_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    longest = 0
    decode = Text.decode

    def measured(self: Text, tokens: Sequence[int], *, special: bool = False) -> str:
        nonlocal longest
        longest = max(longest, len(tokens))
        return decode(self, tokens, special=special)

    monkeypatch.setattr(Text, "decode", measured)
    broken = IDS["ä"]  # the byte 0xE4, which begins a character
    streamed(BYTES, BYTES.encode("Over and over. 数学" * 40))
    assert longest <= 16
    pieces = streamed(BYTES, [broken] * 500)
    assert longest <= 128
    assert "".join(pieces) == "\ufffd" * 500


def test_special_tokens_can_be_shown() -> None:
    end = IDS["</think>"]
    assert StreamDecoder(BYTES).push(end) == ""
    assert StreamDecoder(BYTES, special=True).push(end) == "</think>"


@given(st.lists(st.integers(0, len(BYTES.tokenizer) - 1), max_size=40), st.booleans())  # type: ignore[arg-type]
def test_tokens_that_were_read_before_read_the_same(tokens: list[int], special: bool) -> None:
    fresh = Text(byte_level())
    pieces = fresh.pieces(special=special)
    assert pieces == {}
    first, second = StreamDecoder(fresh, special=special), StreamDecoder(fresh, special=special)
    slow = []
    for token in tokens:
        pieces.clear()  # none is known
        slow.append(first.push(token))
    for token in tokens:
        StreamDecoder(fresh, special=special).push(token)  # now all are
    assert [second.push(token) for token in tokens] == slow
    assert second.flush() == first.flush()
    assert not any("\ufffd" in piece for piece in pieces.values())
    assert all(fresh.decode((token,), special=special) == piece for token, piece in pieces.items())


def test_only_bytes_that_are_joined_read_the_same_everywhere() -> None:
    assert Text(sentence_piece()).pieces() is None
    loud = Loud(tokenizer_object=byte_level().backend_tokenizer)  # type: ignore[no-untyped-call]
    assert Text(loud).pieces() is None
