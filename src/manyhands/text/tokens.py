r"""One model's tokens: what a user says becomes ids, what the model says becomes text.

**Control tokens stay ours.** A chat template speaks in control tokens (`<|im_start|>`, `</think>`). Text of
a user or of a prompt file must never turn into one, even if it spells one out. Tokenizers offer
`split_special_tokens`, but it changes a state shared by threads and leaves added tokens that are
not declared special alone (Qwen3's `</think>`). So we look at the ids: if a control token came out
of ordinary text, the text is encoded again in pieces that are cut *inside* the spelled-out token,
and, should a normaliser still find one, character by character. Both decode to the same text.

**A prompt is the template's own encoding** of the whole rendered string whenever the user's text
adds no control token to it, so it equals what the model was trained on; otherwise template and
user text are encoded apart.

**The unknown token is a control token when it is spelled out.** `<unk>` stands for characters that the
vocabulary lacks, and some models end documents with the same token (SmolLM2's unknown token is
`<|endoftext|>`). Its id is right where a character without a token stood, and nowhere else.

**Text continues text.** Some tokenizers (Llama 2) put a blank before whatever they encode.
`encode` leaves it out, because headers and prefixes stand in the middle of a text.
"""

from __future__ import annotations

import hashlib
import json
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, cached_property, partial
from itertools import groupby
from typing import Any, Protocol

from manyhands.errors import ContextTooLong, InvalidRequest, UnsupportedModel
from manyhands.schema.conversation import ASSISTANT, SYSTEM, USER, Conversation, conversation_of
from manyhands.schema.setting import in_brief
from manyhands.text.clean import well_formed
from manyhands.text.fewest import fewest_tokens, shares
from manyhands.text.templates import TemplateFailed, render
from manyhands.text.thinking import THINKING, ThinkingMarks, ThinkingWatch

_MESSAGE = "TheUserMessageStandsHere"  # stands in the rendered template for the user's message
_REPAIR = "repair `chat_template` in the model's folder or use another model"
_BYTE = re.compile("<0x([0-9A-F]{2})>")  # a byte in the vocabularies of SentencePiece
_MARKUP = re.compile(r"\s*[<\[{\uff5c].*[>\]}\uff5c]\s*", re.DOTALL)  # <tag>, [TAG], {tag}


class Tokenizer(Protocol):
    """The protocol of a tokenizer: a part of transformers' `PreTrainedTokenizerBase`."""

    @property
    def chat_template(self) -> Any:
        """The Jinja source, None for a model that does not chat."""

    @property
    def bos_token_id(self) -> Any:
        """Opens a text, or None."""

    @property
    def eos_token_id(self) -> Any:
        """Ends a text, or None."""

    @property
    def unk_token_id(self) -> Any:
        """Stands for what the vocabulary lacks, or None."""

    @property
    def all_special_ids(self) -> Any:
        """The ids of all special tokens."""

    @property
    def added_tokens_decoder(self) -> Any:
        """Every added token by id, each with `content` and `special`."""

    @property
    def encode(self) -> Callable[..., Any]:
        """Text to a list of ids."""

    @property
    def decode(self) -> Callable[..., Any]:
        """A list of ids to text."""

    @property
    def convert_ids_to_tokens(self) -> Callable[..., Any]:
        """An id to its name in the vocabulary."""

    @property
    def get_vocab(self) -> Callable[[], Any]:
        """Every token's name and its id."""

    @property
    def get_chat_template(self) -> Callable[..., Any]:
        """The one Jinja source for conversations; ValueError where there are several."""

    @property
    def special_tokens_map(self) -> Any:
        """The tokens that templates may call by name, as `eos_token`."""


_MOST_WORDS = 1024  # texts of methods that are remembered
_EFFORT, _NO_EFFORT = "reasoning_effort", "none"  # as OpenAI's API and templates have them
# Of transformers' tokenizers in Rust: the methods that decode and encode, and the modules that define them.
_DECODING = {
    "decode": "transformers.tokenization_utils_base",
    "_decode": "transformers.tokenization_utils_tokenizers",
}
_ENCODING = {
    "encode": "transformers.tokenization_utils_base",
    "_encode_plus": "transformers.tokenization_utils_tokenizers",
}


class Text:
    """A tokenizer and its model's habits: chat template, turn ends, thinking.

    `eos` holds the ids that end a turn in generation (the tokenizer's and those of `eos_ids`, from
    the generation config), `think_end` the id that closes the thinking if the vocabulary has one,
    and `turn_end` all of these. `reply_end` ends a reply: that is `eos`, and where a model writes `channels`, also what
    begins or ends a message. `thinking` says whether `chat_prompt` leaves a thinking open; `effort` is
    the value of a template's `reasoning_effort`. `prompts` are the words that the model was trained with
    (`prompts.load.Prompts`), which methods speak where they are given none; None: not known.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        eos_ids: Iterable[int] = (),
        *,
        thinking: bool = True,
        effort: str | None = None,
        prompts: Any = None,
    ) -> None:
        """Raises InvalidRequest for what is no tokenizer, and for a `thinking` or an `effort` of another kind."""
        _check_tokenizer(tokenizer)
        if not isinstance(thinking, bool):
            raise InvalidRequest(
                f"thinking is {in_brief(thinking)}; expected True or False",
                hint="Leave it out: a model that thinks does so.",
            )
        _check_effort(effort)
        self.tokenizer = tokenizer
        self.prompts = prompts
        self._decode = _decoder(tokenizer)
        self._encode = _encoder(tokenizer)
        words = tokenizer.added_tokens_decoder
        added: dict[int, str] = {token: word.content for token, word in words.items()}
        ids = {word: token for token, word in added.items()}
        special = {token for token, word in words.items() if word.special}
        special |= set(tokenizer.all_special_ids)
        ends = {tokenizer.bos_token_id, tokenizer.eos_token_id}
        markup = {token for token, word in added.items() if _MARKUP.fullmatch(word)}
        controls = special | markup
        self._control_words = [added[token] for token in controls if token in added]
        self._unknown = None if tokenizer.unk_token_id in ends else tokenizer.unk_token_id
        self._has_token: dict[str, bool] = {}  # of characters, looked up once
        self._lengths: tuple[dict[int, int], dict[int, int]] = ({}, {})  # of tokens, likewise
        self._pieces: tuple[dict[int, str], dict[int, str]] | None = None  # likewise
        if _joins_bytes(tokenizer):
            self._pieces = {}, {}
        self._controls: frozenset[int] = frozenset(controls - {self._unknown})
        self._thinking = habit = self._habit(ids)
        self.think_end: int | None = ids[habit.closes] if habit else None
        self.channels = tuple(ids[mark] for mark in habit.channels) if habit else ()
        thoughts = {ids[mark] for h in THINKING for mark in (h.mark, h.closes) if mark in ids}
        self._hidden = special | thoughts | set(self.channels)
        ends = {ids[mark] for mark in habit.ends if mark in ids} if habit else set()
        self.eos: frozenset[int] = frozenset({tokenizer.eos_token_id, *eos_ids, *ends} - {None})
        self.reply_end = self.eos.union(self.channels[:-1])
        self.turn_end = self.reply_end | (set() if self.think_end is None else {self.think_end})
        self._lead = self._leading_blank()
        self._frame: tuple[str, ...] = ()  # the template around the user's message
        self.thinking = False
        self._opens = ""  # added to a rendered prompt, so that the thinking is open, or the reply
        self._switches: dict[str, Any] = {"enable_thinking": thinking, "thinking": thinking}
        if effort is not None:
            self._switches[_EFFORT] = effort
        self._efforts: dict[str, Text] = {}
        # Samples of a method ask for the same text.
        self._last_long: tuple[str, tuple[int, ...]] = "", ()
        self._words: dict[str, tuple[int, ...]] = {}  # of methods, by their texts
        if tokenizer.chat_template:
            self._frame, self.thinking = self._render(habit, thinking)
        self._closing = self._raw(habit.closing) if habit and self.thinking else ()

    @cached_property
    def vocabulary(self) -> str:
        """16 hex digits that stand for all tokens and their ids: traces of one model are read by another only if equal."""
        listed = sorted((token, str(word)) for word, token in self.tokenizer.get_vocab().items())
        return hashlib.sha256(json.dumps(listed).encode()).hexdigest()[:16]

    def at_effort(self, effort: str | None) -> Text:
        """The same words where so much thinking is asked for; None: nothing is said of it.

        With "none" no thinking is opened. Any other effort is told to a template that reads
        `reasoning_effort`; a model whose template does not has one way to think. Raises InvalidRequest for
        "none" where the template opens a thinking all the same.
        """
        if effort is None:
            return self
        _check_effort(effort)
        if effort not in self._efforts:
            self._efforts[effort] = self._with_effort(effort)
        return self._efforts[effort]

    @property
    def reads_effort(self) -> bool:
        """Whether the chat template is told how much to think."""
        return _EFFORT in str(self.tokenizer.chat_template or "")

    def _with_effort(self, effort: str) -> Text:
        if effort == self._switches.get(_EFFORT):
            return self
        if effort != _NO_EFFORT:
            if not self.reads_effort:
                return self
            thinks = self._switches["thinking"]
            return Text(
                self.tokenizer, self.eos, thinking=thinks, effort=effort, prompts=self.prompts
            )
        if not self.thinking:
            return self
        found = Text(self.tokenizer, self.eos, thinking=False, prompts=self.prompts)
        if found.thinking:
            raise InvalidRequest(
                f"{_EFFORT} is {effort!r}, and the chat template of this model opens a thinking "
                "before every reply",
                hint="leave it out",
            )
        return found

    # -- text to tokens ------------------------------------------------------------------------

    def encode(self, text: str, *, opening: bool = False) -> tuple[int, ...]:
        """Ordinary text, without control tokens; `opening`: nothing stands before it."""
        text = _well_formed(text)
        for cut in (lambda t: [t], self._cut, list):
            pieces = cut(text)
            tokens = self._join(pieces, opening)
            if self._controls.isdisjoint(tokens) and not self._spells_unknown(pieces, tokens):
                return tokens
        return tuple(token for token in tokens if token not in self._controls)

    def words(self, text: str) -> tuple[int, ...]:
        """`encode` of a method's own words. All its runs speak the same ones, so short ones are encoded once."""
        text = _well_formed(text)
        if len(text) > _SHORT:
            return self.encode(text)
        if (known := self._words.get(text)) is None:
            if len(self._words) >= _MOST_WORDS:
                self._words.clear()
            known = self._words[text] = self.encode(text)
        return known

    def chat_prompt(self, message: str) -> tuple[int, ...]:
        """A user's message in the model's chat template, up to the first word of the answer.

        If the model is a reasoning one, its thinking is open at the end. A model without a
        template gets the plain text and an empty line.
        """
        message = _well_formed(message)
        if not self._frame:
            return self._beginning() + self.encode(message + "\n\n", opening=True)
        whole = self._raw(message.join(self._frame))
        if self._adds_no_control(whole, self._raw(_MESSAGE.join(self._frame)), [message]):
            return whole
        first, *rest = self._frame
        tokens = self._raw(first)
        for part in rest:
            tokens += self.encode(message, opening=not tokens) + self._following(part)
        return tokens

    def conversation(self, asked: Conversation) -> tuple[int, ...]:
        """A conversation, up to the first word of the reply, or behind its prefill.

        A problem alone is `chat_prompt`. Earlier replies stand there without their thinking, as chat
        templates have it; a prefill closes the thinking, if the model would begin with it. Where the
        template tells no roles apart (`tells_roles`), earlier turns are left out. Raises InvalidRequest
        where the template does not take this order of roles, or no system message, and for what is no conversation.
        """
        asked = conversation_of(asked)
        if asked.prefill and self.thinking and self.channels:
            return self._replying.conversation(asked)  # no message of thinking is begun
        if not asked.earlier:
            tokens = self.chat_prompt(asked.problem)
        elif self._frame and not self.tells_roles:
            if any(one.role == SYSTEM for one in asked.earlier):
                raise InvalidRequest(
                    "a system message was given, and the chat template of this model has no place for "
                    "it: the model was made for one problem at a time",
                    hint="leave it out, or put what it says into the user's message",
                )
            tokens = self.chat_prompt(asked.problem)
        else:
            said = [
                self.without_thinking(one.text) if one.role == ASSISTANT else one.text
                for one in asked.earlier
            ]
            roles = [one.role for one in asked.messages]
            tokens = self._conversation(roles, [*said, asked.problem])
        return tokens + self.prefill(asked.prefill)

    def check_room(self, asked: Conversation | str, context: int | None) -> None:
        """Raise ContextTooLong for words that their characters alone show to be too many; None: there is no bound.

        Words that pass may still be too many; they are encoded to tell.
        """
        if context is None:
            return
        said = [asked] if isinstance(asked, str) else [asked.problem]
        if not isinstance(asked, str) and asked.earlier and (not self._frame or self.tells_roles):
            said += [
                self.without_thinking(one.text) if one.role == ASSISTANT else one.text
                for one in asked.earlier
            ]
        if sum(map(len, said)) <= context:
            return
        found = sum(fewest_tokens(text, self._shares) for text in said)
        if found > context:
            raise ContextTooLong(
                f"a prompt has {found} tokens and more; the model reaches {context}",
                hint="Use a shorter prompt.",
            )

    @cached_property
    def _shares(self) -> dict[str, float]:
        """Of `fewest_tokens`."""
        if not _is_usual(self.tokenizer, _ENCODING):
            return {}
        backend: Any = self.tokenizer
        return shares(backend.backend_tokenizer, self.tokenizer.get_vocab(), _byte_names())

    @cached_property
    def _replying(self) -> Text:
        """The same words where the model is not to think."""
        effort = self._switches.get(_EFFORT)
        return Text(self.tokenizer, self.eos, thinking=False, effort=effort, prompts=self.prompts)

    def prefill(self, words: str) -> tuple[int, ...]:
        """The tokens that begin a reply behind a prompt, as they are fed: an open thinking is closed before it."""
        if not words:
            return ()
        closed = self.reply("\n{think_end}\n\n") if self.thinking else ()
        return closed + self.encode(words)

    def thinks(self, asked: Conversation) -> bool:
        """Whether `conversation` leaves a thinking open."""
        return self.thinking and not asked.prefill

    def without_thinking(self, reply: str) -> str:
        """A reply less the thinking before it, if that is spelled out in this model's marks."""
        return reply if self._thinking is None else self._thinking.cut_out(reply)

    @cached_property
    def tells_roles(self) -> bool:
        """Whether the chat template writes messages of user and assistant differently.

        If it does not, the model was made for one message, and nothing earlier can be told to it.
        """
        try:
            _, second, third, _ = self._conversation_frame([USER, ASSISTANT, USER])
        except InvalidRequest:
            return True  # said again, when a conversation is asked for
        return second != third

    def _conversation(self, roles: Sequence[str], contents: Sequence[str]) -> tuple[int, ...]:
        contents = [well_formed(content) for content in contents]
        frame = self._conversation_frame(roles)
        whole = self._raw(_woven(frame, contents))
        bare = self._raw(_woven(frame, [_MESSAGE] * len(contents)))
        if self._adds_no_control(whole, bare, contents):
            return whole
        tokens = self._raw(frame[0])
        for content, part in zip(contents, frame[1:], strict=True):
            tokens += self.encode(content, opening=not tokens) + self._following(part)
        return tokens

    def plain_prompt(self, text: str) -> tuple[int, ...]:
        """A text as it stands, to be continued, behind what opens every text of this model."""
        return self._beginning() + self.encode(text, opening=True)

    def reply(self, template: str) -> tuple[int, ...]:
        """The words that end the thinking and begin the reply: `{think_end}` is where thinking closes."""
        before, _, after = _well_formed(template).partition("{think_end}")
        if not self._closing:
            return self.encode(before + after)
        if self.channels:  # a message has no blanks around its text
            before, after = before.rstrip(), after.lstrip()
        return self.encode(before) + self._closing + self.encode(after)

    # -- tokens to text ------------------------------------------------------------------------

    def decode(self, tokens: Sequence[int], *, special: bool = False) -> str:
        """The text of `tokens`; `special`: spell special tokens and think tags out. Raises InvalidRequest for what are no ids."""
        if type(tokens) not in (list, tuple) or not _ARE_OWN.issuperset(map(type, tokens)):
            tokens = _ids(tokens)
        if not special:
            tokens = [token for token in tokens if token not in self._hidden]
        try:
            return self._decode(list(tokens))
        except OverflowError as error:
            raise InvalidRequest(
                f"the tokens to decode are {in_brief(tokens)}; expected token ids", hint=_OF_A_TEXT
            ) from error

    def lengths(self, *, special: bool = False) -> dict[int, int]:
        """Characters of `decode((token,), special=special)` by token, as far as they were looked up: to be filled by whoever asks."""
        return self._lengths[special]

    def pieces(self, *, special: bool = False) -> dict[int, str] | None:
        """Texts of tokens that are whole characters, which they add to whatever stands before them; likewise.

        None where a token's text depends on what stands before it.
        """
        return None if self._pieces is None else self._pieces[special]

    def bytes_of(self, token: int) -> bytes:
        """The bytes that a token adds to a text, in its middle. A hidden token has those of its name."""
        special = token in self._hidden
        before = self.decode((self._letter, token), special=special)
        piece = before.removeprefix(self.decode((self._letter,)))
        if "\ufffd" not in piece:
            return piece.encode("utf-8")
        # A part of a character: only its name in the vocabulary tells which.
        name = str(self.tokenizer.convert_ids_to_tokens(token))
        if found := _BYTE.fullmatch(name):
            return bytes([int(found[1], 16)])
        known = _byte_letters()
        if all(letter in known for letter in name):
            return bytes(known[letter] for letter in name)
        return name.encode("utf-8")

    @cached_property
    def _letter(self) -> int:
        return self.encode("a")[-1]

    def watch_thinking(self, thinking: bool, *, is_message: bool = True) -> ThinkingWatch:
        """A watch that tells thinking and reply apart in a text that begins with a thinking, or without one."""
        return ThinkingWatch(self, thinking, is_message=is_message)

    def hides(self, token: int) -> bool:
        """Whether `decode` leaves this token out."""
        return token in self._hidden

    # -- inside ----------------------------------------------------------------------------------

    def _habit(self, ids: dict[str, int]) -> ThinkingMarks | None:
        """The thinking marks of this model: those of its template, or else of its vocabulary."""
        known = [habit for habit in THINKING if ids.keys() >= {habit.closes, *habit.channels}]
        template = str(self.tokenizer.chat_template or "")
        used = [habit for habit in known if habit.mark in template]
        return next(iter(used or [habit for habit in known if habit.mark in ids]), None)

    def _render(self, habit: ThinkingMarks | None, thinking: bool) -> tuple[tuple[str, ...], bool]:
        """The template around a message, and whether it leaves the thinking open."""
        chat = [{"role": "user", "content": _MESSAGE}]
        try:
            text = self._template(chat)
        except (TemplateFailed, ValueError) as error:
            raise UnsupportedModel(
                f"the model's chat template cannot be rendered: {error}",
                hint=_REPAIR,
            ) from error
        frame = tuple(text.split(_MESSAGE))
        if len(frame) < 2:
            raise UnsupportedModel(
                "the model's chat template leaves the user's message out",
                hint=_REPAIR,
            )
        if habit is None:
            return frame, False
        answer = frame[-1]
        decided = habit.mark in answer or answer.rstrip().endswith(habit.closes)
        decided |= bool(habit.replies) and answer.endswith(habit.replies)
        if not decided and habit.mark in str(self.tokenizer.chat_template):
            self._opens = habit.opens if thinking else habit.replies
            return (*frame[:-1], answer + self._opens), thinking
        return frame, habit.is_open_in(answer)

    def _template(self, chat: list[dict[str, str]]) -> str:
        words = {**self.tokenizer.special_tokens_map, **self._switches}
        return render(self.tokenizer.get_chat_template(), chat, words)

    def _conversation_frame(self, roles: Sequence[str]) -> list[str]:
        """The template around messages of these roles."""
        if not self._frame:
            raise InvalidRequest(
                "the model has no chat template, and a conversation was asked for",
                hint="send one message of the user, or a plain prompt",
            )
        marks = [f"{_MESSAGE}{index}." for index in range(len(roles))]
        chat = [{"role": role, "content": mark} for role, mark in zip(roles, marks, strict=True)]
        try:
            rest = self._template(chat) + self._opens
        except TemplateFailed as error:
            if error.kind != "error":
                raise UnsupportedModel(
                    f"the model's chat template cannot be rendered: {error}", hint=_REPAIR
                ) from error
            raise InvalidRequest(
                f"the model's chat template does not take the roles {', '.join(roles)}: {error}",
                hint="most templates take a system message first, then user and assistant in turn",
            ) from error
        frame = []
        for mark, role in zip(marks, roles, strict=True):
            before, found, rest = rest.partition(mark)
            if not found:
                raise InvalidRequest(
                    f"the model's chat template leaves a message of the role {role!r} out",
                    hint="put its content into the user's message",
                )
            frame.append(before)
        return [*frame, rest]

    def markup(self, text: str) -> tuple[int, ...]:
        """Words of ours behind other text, in which marks mean themselves.

        `encode` never gives a control token, since a user may spell one; here `<step>` is that token.
        """
        return self._following(_well_formed(text))

    def _raw(self, text: str) -> tuple[int, ...]:
        """The tokenizer's own encoding: control tokens that are spelled out become such."""
        if len(text) <= _SHORT:
            return tuple(self._encode(text))
        before, tokens = self._last_long
        if before != text:
            tokens = tuple(self._encode(text))
            self._last_long = text, tokens
        return tokens

    def _following(self, text: str) -> tuple[int, ...]:
        """`_raw` of a text that does not stand first: without the blank some tokenizers add."""
        if not self._lead:
            return self._raw(text)
        tokens = self._raw("\n" + text)
        size = len(self._lead)
        return tokens[size:] if tokens[:size] == self._lead else self._raw(text)

    def _leading_blank(self) -> tuple[int, ...]:
        """The ids of a line feed alone, if text after it is encoded unlike text at the start."""
        feed = self._raw("\n")
        after = self._raw("\na")
        differs = after[: len(feed)] == feed and after[len(feed) :] != self._raw("a")
        return feed if differs else ()

    def _join(self, pieces: Sequence[str], opening: bool) -> tuple[int, ...]:
        tokens: list[int] = []
        for index, piece in enumerate(pieces):
            first = opening and index == 0
            tokens += self._raw(piece) if first else self._following(piece)
        return tuple(tokens)

    @cached_property
    def _spelled_out(self) -> re.Pattern[str]:
        """Finds control tokens in text. (A single character cannot be cut.)"""
        words = sorted((w for w in self._control_words if len(w) > 1), key=len, reverse=True)
        return re.compile("|".join(map(re.escape, words)) or r"(?!)")

    def _cut(self, text: str) -> list[str]:
        """`text` in pieces, cut behind the first character of every control token in it."""
        cuts = [0]
        while found := self._spelled_out.search(text, cuts[-1]):
            cuts.append(found.start() + 1)
        return [text[a:b] for a, b in zip(cuts, [*cuts[1:], len(text)], strict=True)]

    def _controls_in(self, tokens: Sequence[int]) -> list[int]:
        return [token for token in tokens if token in self._controls]

    def _adds_no_control(
        self, whole: Sequence[int], bare: Sequence[int], messages: Sequence[str]
    ) -> bool:
        """Whether `whole`, a template with these messages, has the control tokens of `bare`, the
        template around harmless ones, and no other.
        """
        if self._controls_in(whole) != self._controls_in(bare):
            return False
        if self._unknown is None or whole.count(self._unknown) == bare.count(self._unknown):
            return True
        alone = [token for message in messages for token in self._raw(message)]
        return self._unknown in alone and not self._spells_unknown(messages, alone)

    def _spells_unknown(self, pieces: Iterable[str], tokens: Sequence[int]) -> bool:
        """Whether the unknown token in `tokens` comes of characters that have tokens of their own."""
        if self._unknown is None or self._unknown not in tokens:
            return False
        known = (part for piece in pieces for part in self._parts_with_tokens(piece))
        return any(self._unknown in (*self._raw(part), *self._following(part)) for part in known)

    def _parts_with_tokens(self, text: str) -> list[str]:
        """`text` without the characters that the vocabulary lacks, cut where they stood."""
        for char in set(text) - set(self._has_token):
            self._has_token[char] = self._unknown not in self._following(char)
        parts = groupby(text, self._has_token.__getitem__)
        return ["".join(chars) for has_token, chars in parts if has_token]

    def _beginning(self) -> tuple[int, ...]:
        """The begin-of-sequence token, if this tokenizer opens its texts with one."""
        opened = self.tokenizer.encode("", add_special_tokens=True)
        bos = self.tokenizer.bos_token_id
        return (bos,) if bos is not None and list(opened[:1]) == [bos] else ()


def _decoder(tokenizer: Tokenizer) -> Callable[[list[int]], str]:
    """The decoding of ids without a clean-up: by the library below transformers, where that adds nothing.

    Each token of each writer is decoded twice, and of 18 µs that transformers takes for three tokens the library
    takes 0.4. A class with a decoding of its own keeps it.
    """
    if _is_usual(tokenizer, _DECODING):
        backend: Any = tokenizer
        return partial(backend.backend_tokenizer.decode, skip_special_tokens=False)
    plain = {"skip_special_tokens": False, "clean_up_tokenization_spaces": False}
    return partial(tokenizer.decode, **plain)


def _joins_bytes(tokenizer: Tokenizer) -> bool:
    """Whether decoding joins the bytes of tokens, and does nothing else."""
    backend: Any = tokenizer
    return (
        _is_usual(tokenizer, _DECODING)
        and type(backend.backend_tokenizer.decoder).__name__ == "ByteLevel"
    )


def _encoder(tokenizer: Tokenizer) -> Callable[[str], Sequence[int]]:
    """The encoding of text without special tokens around it: as in `_decoder`.

    The words that begin a step are encoded while the device waits.
    """
    plain = partial(tokenizer.encode, add_special_tokens=False, verbose=False)
    plain("")  # transformers takes cuts and padding of a file away
    if not _is_usual(tokenizer, _ENCODING) or getattr(tokenizer, "split_special_tokens", True):
        return plain
    backend: Any = tokenizer
    library = backend.backend_tokenizer
    if library.truncation is not None or library.padding is not None:
        return plain
    return partial(_encoded, library)


# Characters that are encoded with Python's lock held. These take at most 5 ms, the interval after which threads hand the lock
# over anyway, and the words that begin a step need not wait to get it back.
_SHORT = 2000


def _encoded(library: Any, text: str) -> list[int]:
    if len(text) <= _SHORT:
        found: list[int] = library.encode(text, add_special_tokens=False).ids
    else:  # without the lock: of megabytes it takes seconds, in which other threads go on
        found = library.encode_batch_fast([text], add_special_tokens=False)[0].ids
    return found


def _is_usual(tokenizer: Tokenizer, methods: Mapping[str, str]) -> bool:
    """Whether these methods of the tokenizer's class are defined in these modules."""
    kind: Any = type(tokenizer)
    return all(
        getattr(getattr(kind, name, None), "__module__", "") == place
        for name, place in methods.items()
    )


_ARE_OWN = frozenset({int})
_OF_A_TEXT = "Make them of a text with engine.text.encode(text)."


def _ids(tokens: Iterable[Any]) -> list[int]:
    """Token ids of any library as Python's own. Raises InvalidRequest for what are none."""
    given: object = tokens
    try:
        if isinstance(given, str | bytes | Mapping):
            raise TypeError
        return [operator.index(token) for token in tokens]
    except TypeError as error:
        raise InvalidRequest(
            f"the tokens to decode are {in_brief(given)}; expected token ids", hint=_OF_A_TEXT
        ) from error


def _check_tokenizer(given: object) -> None:
    """Raise InvalidRequest for what lacks a part of the protocol."""
    lacks = [name for name in vars(Tokenizer) if name[0] != "_" and not hasattr(given, name)]
    if lacks:
        raise InvalidRequest(
            f"a {type(given).__name__} was given as a tokenizer, which has no `{lacks[0]}`; expected one of transformers",
            hint="Write AutoTokenizer.from_pretrained(model).",
        )


def _check_effort(effort: object) -> None:
    if effort is not None and not isinstance(effort, str):
        raise InvalidRequest(
            f"{_EFFORT} is {in_brief(effort)}; expected a text", hint='Write "low", for instance.'
        )


def _well_formed(text: str) -> str:
    """The text as valid Unicode. Raises InvalidRequest for what is no text."""
    given: object = text
    if not isinstance(given, str):
        hint = 'Write engine.text.encode("some text").'
        if isinstance(given, Conversation):
            hint = "The prompt of a conversation is engine.text.conversation(conversation)."
        raise InvalidRequest(
            f"a {type(given).__name__} was given to be encoded; expected a text", hint=hint
        )
    return well_formed(text)


@cache
def _byte_names() -> dict[int, str]:
    """The letters by which byte-level vocabularies (GPT-2's and later ones) name the 256 bytes.

    Bytes that are printable characters in Latin-1 stand for themselves; the others, in their order, are the
    characters from 256 on.
    """
    plain = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = (byte for byte in range(256) if byte not in plain)
    return {
        **{byte: chr(byte) for byte in plain},
        **{byte: chr(256 + index) for index, byte in enumerate(others)},
    }


@cache
def _byte_letters() -> dict[str, int]:
    """The same, by letter."""
    return {letter: byte for byte, letter in _byte_names().items()}


def _woven(frame: Sequence[str], contents: Sequence[str]) -> str:
    """Contents between the parts of a frame."""
    pairs = zip(frame, [*contents, ""], strict=True)
    return "".join(part + content for part, content in pairs)
