"""Logprobs of a completion, whole and in pieces: of the same tokens, at the same places of the text that is told."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest

from manyhands.cache.logprobs import Logprobs
from manyhands.cache.step import Choice
from manyhands.schema.openai import CHAT, PLAIN, logprobs
from manyhands.server.chat import _Chunks, _PlainChunks
from manyhands.strategies.events import Event, TokenWritten, WorkerStopped
from manyhands.strategies.requests import Spelling, _told
from manyhands.strategies.settings import SharedSettings
from manyhands.strategies.shared_prefix import Completion, Prompt, _Sample
from manyhands.text import Text
from tests.text.small_tokenizers import REASONING, byte_level, sentence_piece

TEXTS = {"bytes": Text(byte_level(REASONING)), "pieces": Text(sentence_piece())}


class Written:
    """One completion of some tokens, as the whole answer and the pieces of a stream tell it."""

    def __init__(
        self, text: Text, url: str, prompt: Prompt, tokens: list[int], settings: SharedSettings
    ) -> None:
        asked = SimpleNamespace(
            url=url, settings=settings, prompts=[prompt], model="m", include_usage=False
        )
        front = SimpleNamespace(served=SimpleNamespace(text=text))
        chunks: Any = _PlainChunks(front, SimpleNamespace(asked=asked), _Chunks(asked, 1))  # type: ignore[arg-type]
        sample = _Sample(text, settings, prompt, (0, 0), None)
        sample.begin((), prompt.tokens)
        sent = b""
        while not sample.finish_reason:
            token, told = tokens.pop(0), Logprobs(-1.0, ())
            certain = sample.read(token, None, told)
            events: list[Event] = [TokenWritten(1, 0, token, certain, told)]
            if sample.finish_reason:
                events.append(WorkerStopped(1, 0, sample.finish_reason))  # type: ignore[unreachable]
            sent += b"".join(chunks.of([SimpleNamespace(events=events)]))
        echoed = tuple((token, None) for token in prompt.tokens) if settings.echo else ()
        self.whole: Completion = sample.completion(echoed)
        told_whole = _told(url, self.whole, text)
        self.told: Any = None if told_whole is None else logprobs(url, told_whole)
        lines = sent.decode().split("\n\n")[:-1]
        self.pieces = [json.loads(line[6:])["choices"][0] for line in lines]


@cache
def _known(text: Text) -> list[Sequence[int]]:
    """The tokens of a few words, and all."""
    few = [token for word in ("a", " ", "\n", "b", "数", "é") for token in text.encode(word)]
    return [few, range(len(text.tokenizer.get_vocab()))]


def random_tokens(rng: random.Random, text: Text, count: int) -> list[int]:
    known = rng.choice(_known(text))
    return [rng.choice(known) for _ in range(count)]


def random_completion(rng: random.Random, text: Text, url: str) -> Written:
    """Broken characters, blanks, stop texts, thinking, ends."""
    is_chat = url == CHAT
    tokens = random_tokens(rng, text, rng.randint(1, 14))
    thinks = is_chat and text.think_end is not None and rng.random() < 0.5
    if thinks and rng.random() < 0.8:
        tokens.insert(rng.randrange(len(tokens)), text.think_end or 0)
    if rng.random() < 0.5:
        tokens.append(min(text.eos))
    stop = {
        "".join(rng.choices("ab \n数é.", k=rng.randint(1, 3))) for _ in range(rng.randint(0, 2))
    }
    settings = SharedSettings(
        samples=1, max_tokens=len(tokens), choice=Choice(logprobs=0), stop=tuple(stop)
    )
    prompt = Prompt(tuple(random_tokens(rng, text, rng.randint(1, 12))), thinks, chat=is_chat)
    return Written(text, url, prompt, tokens, settings)


@pytest.mark.parametrize("url", [CHAT, PLAIN])
@pytest.mark.parametrize("kind", TEXTS)
def test_pieces_tell_what_the_whole_tells(kind: str, url: str, pytestconfig: pytest.Config) -> None:
    for seed in range(2000 if pytestconfig.getoption("--every-case") else 1000):
        found = random_completion(random.Random(seed), TEXTS[kind], url)
        told = [piece["logprobs"] for piece in found.pieces if piece["logprobs"] is not None]
        if url == CHAT:
            text = "".join(piece["delta"].get("content") or "" for piece in found.pieces)
            assert [each for piece in told for each in piece["content"]] == found.told["content"], (
                seed
            )
        else:
            text = "".join(piece["text"] for piece in found.pieces)
            for name in ("tokens", "text_offset"):
                assert [each for piece in told for each in piece[name]] == found.told[name], seed
        assert text == found.whole.text, seed


@pytest.mark.parametrize("echo", [False, True])
@pytest.mark.parametrize("kind", TEXTS)
def test_a_plain_completion_goes_on_from_its_prompt(kind: str, echo: bool) -> None:
    """A blank between them is not lost where a tokenizer puts it into the word behind it."""
    text = TEXTS[kind]
    words = text.encode("So the answer is four")
    for size in range(1, len(words) - 1):
        prompt, tokens = Prompt(words[:size]), [*words[size:]]
        settings = SharedSettings(
            samples=1, max_tokens=len(tokens), choice=Choice(logprobs=0), echo=echo
        )
        found = Written(text, PLAIN, prompt, [*tokens], settings)
        before = text.decode(prompt.tokens)
        assert ("" if echo else before) + found.whole.text == text.decode(words)
        offsets = found.told["text_offset"][-len(tokens) :]
        for token, offset in zip(tokens, offsets, strict=True):
            assert found.whole.text[offset:].encode().startswith(text.bytes_of(token))
        if not echo:
            told = [piece["logprobs"] for piece in found.pieces if piece["logprobs"] is not None]
            assert [each for piece in told for each in piece["text_offset"]] == offsets


def test_a_message_begins_with_a_word() -> None:
    """No blank stands before it, and behind tokens that show nothing, or that end within a character, no text goes on."""
    text = TEXTS["pieces"]
    words = [*text.encode("answer is")]
    settings = SharedSettings(samples=1, max_tokens=len(words), choice=Choice(logprobs=0))
    broken = text.encode("数")[:1] if len(text.encode("数")) > 1 else text.encode("é")[:1]
    for url, prompt in (
        (CHAT, Prompt(text.encode("So the"), chat=True)),
        (PLAIN, Prompt((min(text.eos),))),
        (PLAIN, Prompt((*text.encode("So"), *broken))),
    ):
        found = Written(text, url, prompt, [*words], settings)
        assert found.whole.text == "answer is", prompt


@pytest.mark.parametrize("kind", TEXTS)
def test_tokens_of_a_message_put_together_are_its_text(kind: str) -> None:
    """Clients of OpenAI's join them. Of a message whose first token begins with a blank, too; a plain text keeps its own."""
    text = TEXTS[kind]
    seen = set[bool]()
    for seed in range(300):
        rng = random.Random(seed)
        words = [
            rng.choice((" ", "\n\n", " a", "b", "数", " é", "is", " answer")) for _ in range(5)
        ]
        tokens = [token for word in words for token in text.encode(word)]
        if thinks := text.think_end is not None and rng.random() < 0.3:
            tokens = [*text.encode("hm"), text.think_end or 0, *tokens]
        settings = SharedSettings(samples=1, max_tokens=len(tokens), choice=Choice(logprobs=0))
        prompt = Prompt(text.encode("So"), thinks, chat=True)
        found = Written(text, CHAT, prompt, [*tokens], settings)
        told = found.told["content"]
        raw = b"".join(bytes(each["bytes"]) for each in told)
        assert raw.decode() == found.whole.text, (seed, words)
        seen.add(len(told) < len(tokens) - found.whole.thinking_tokens)
    assert seen == {False, True}, "of no message, or of each, a token was nothing but blanks"


def test_the_likeliest_in_place_of_the_first_word_lose_their_blanks_with_it() -> None:
    """So a token is among the likeliest by its text; one of blanks alone stays as it is, for it would be left out."""
    text = TEXTS["bytes"]
    blank, word, other = (text.encode(each)[0] for each in (" ", "a", "b"))
    spelling = Spelling(text, is_message=True)
    assert spelling.take(blank, Logprobs(-1.0, ((blank, -1.0),))) is None
    first = spelling.take(word, Logprobs(-2.0, ((blank, -0.5), (word, -2.0))))
    assert first is not None
    assert [each.text for each in first.top] == [" ", "a"]
    then = spelling.take(blank, Logprobs(-1.0, ((blank, -1.0), (other, -2.0))))
    assert then is not None
    assert (then.text, then.offset, [each.text for each in then.top]) == (" ", 1, [" ", "b"])
    pieces = TEXTS["pieces"]
    joined = next(token for token in pieces.encode("answer is") if pieces.bytes_of(token) == b" is")
    spelled = Spelling(pieces, is_message=True).take(joined, Logprobs(-1.0, ((joined, -1.0),)))
    assert spelled is not None
    assert (spelled.text, spelled.top[0].text, spelled.raw) == ("is", "is", b"is")
