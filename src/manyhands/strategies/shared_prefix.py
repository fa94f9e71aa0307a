"""Many completions of many prompts, and whatever the prompts have in common is read once.

The setting of Hydragen: few-shot examples before every problem, a long document before every question,
many samples of one prompt. What is shared is found (`cache/prefixes.py`), at any depth, and prefilled
once, a piece per pass if it is long. Every sample is a row that reads `[shared blocks, own block]`. Rows
come when their prompt can be read and a place is free, and leave when they are done:

    pass 1   document, first piece
    pass 2   document, last piece · question 1 · question 2 ·   the first tokens of both
    pass 3   sample 1 · sample 2 · ...

The last token of a prompt is not shared: it is each row's first feed, whose logits choose the first
token. A sample's random numbers depend on the seed and on its number alone, so it is what it would be
if its prompt had come alone; and attention is exact, so sharing changes nothing but time and memory.
With `shareable`, only the beginning of the prompts is shared: few-shot examples and not the problem behind
them, which is the single level that Hydragen's section 4.4 compares with.

A grammar (`SharedSettings.grammar`) is followed token by token: a matcher says which may come next, and the row
keeps to them. A request that echoes its prompts with logprobs shares nothing
(`strategies/echo.py`).

With a `tree` of the engine's, prefixes are also found that others have left or are writing just now.
What one run is writing another waits for. It has its place by then, and asks for it once more, which is
answered before the next pass. With `keep`, a completion is left there too, behind its prompt: so the next turn
of a chat finds all that was said. A completion that begins with a thinking is not, since no chat template
repeats that.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass, replace
from operator import index

from manyhands.cache.block import Block
from manyhands.cache.logprobs import Logprobs
from manyhands.cache.prefixes import Lease, PrefixTree
from manyhands.cache.step import Row
from manyhands.cache.view import View
from manyhands.errors import ContextTooLong, InvalidRequest
from manyhands.schema.setting import in_brief, is_number
from manyhands.strategies.base import Answer, Reserve, Work
from manyhands.strategies.counted import CountedRun
from manyhands.strategies.echo import Echo
from manyhands.strategies.events import Event, TokenWritten, WorkerStopped
from manyhands.strategies.leasing import take_lease
from manyhands.strategies.own_words import own_words
from manyhands.strategies.settings import SharedSettings, check_tree, checked_context, or_usual
from manyhands.strategies.writer import Writer
from manyhands.text import Text, ThinkingWatch
from manyhands.text.grammar import Matcher
from manyhands.text.markers import MarkerWatch
from manyhands.text.stream import in_front


@dataclass(frozen=True)
class Prompt:
    """A text to complete. `thinking`: it leaves a thinking open, and the reply comes behind that.

    `chat`: what is written is a message, which begins with its first word. Other completions are exact.
    """

    tokens: tuple[int, ...]
    thinking: bool = False
    chat: bool = False

    @property
    def is_message(self) -> bool:
        """Whether what is written is a message of the model, and no text as it stands."""
        return self.chat or self.thinking

    def watch(self, text: Text) -> ThinkingWatch:
        """A watch that tells thinking and reply apart in a completion."""
        return text.watch_thinking(self.thinking, is_message=self.is_message)


Told = tuple[tuple[int, Logprobs | None], ...]
"""Tokens and what was told of them."""


@dataclass(frozen=True)
class Completion:
    """One sample of one prompt. `finish_reason` is "stop" (by itself, or at a stop text) or "length".

    Of `tokens`, the first `thinking_tokens` are its thinking, up to the one that closes it. Where logprobs are
    asked for, `logprobs` tells of each token, and of one that ended the text, which is not among `tokens`; and
    `echoed` of the prompt's tokens, if these are echoed: of all but the first, which follows nothing. A `text` that goes on
    from its prompt, which no message does, is decoded behind the tokens `in_front`.
    """

    prompt: int
    sample: int
    text: str
    thinking: str
    tokens: tuple[int, ...]
    finish_reason: str
    thinking_tokens: int = 0
    logprobs: Told | None = None
    echoed: Told = ()
    in_front: tuple[int, ...] = ()


@dataclass(frozen=True)
class Completions(Answer):
    """All completions, prompt by prompt; `text` is the first one's.

    Of a prompt's tokens those are `found` that were fed for another run already, or for a prompt before it.
    """

    completions: tuple[Completion, ...] = ()


def shared_prefix(
    prompts: Sequence[str | Sequence[int] | Prompt],
    text: Text,
    settings: SharedSettings | None = None,
    *,
    tree: PrefixTree | None = None,
    context: int | None = None,
) -> Work[Completions]:
    """The strategy. A prompt is a user's message (in the model's chat template), or tokens as they are.

    Its answer is a `Completions`. Raises ContextTooLong for a prompt that leaves no room to write,
    InvalidRequest for a grammar that cannot be followed, and OutOfMemory for more prompts than the memory of the tree has
    pages for, whatever they are.
    """
    settings, context = or_usual(settings, SharedSettings), checked_context(context)
    own_words(text)
    if tree is not None:
        check_tree(tree)
    if isinstance(prompts, str | Prompt):
        raise InvalidRequest(
            "one prompt was given where a list of prompts was expected", hint="Give [prompt]."
        )
    listed: object = prompts
    if not isinstance(listed, Iterable):
        raise InvalidRequest(
            f"a {type(listed).__name__} was given where a list of prompts was expected",
            hint="Give [prompt].",
        )
    given = [_prompt(prompt, text) for prompt in prompts]
    if not given:
        raise InvalidRequest("no prompt was given", hint="Give at least one.")
    if tree is not None and not settings.tells_prompts:
        # Here, and not in the engine's thread, where all would wait until so many samples are made away with.
        tree.check_room(len(given))
    longest = max(len(prompt.tokens) for prompt in given)
    if context is not None and longest > context:
        raise ContextTooLong(
            f"a prompt has {longest} tokens; the model reaches {context}",
            hint="Use a shorter prompt.",
        )
    matcher = None if settings.grammar is None else settings.grammar.matcher(text)
    return _Run(given, text, settings, context, matcher, tree or PrefixTree()).play()


def _prompt(prompt: str | Sequence[int] | Prompt, text: Text) -> Prompt:
    if isinstance(prompt, str):
        prompt = Prompt(text.chat_prompt(prompt), text.thinking, chat=True)
    elif is_number(prompt):
        raise InvalidRequest(
            "the tokens of one prompt were given where a list of prompts was expected",
            hint="Give [tokens].",
        )
    else:
        given = prompt.tokens if isinstance(prompt, Prompt) else prompt
        try:
            if isinstance(given, bytes):
                raise TypeError
            tokens = tuple(map(index, given))
        except TypeError as error:
            raise InvalidRequest(
                f"a prompt is {in_brief(given)}; expected a text, or token ids",
                hint="Make them of a text with engine.text.encode(text).",
            ) from error
        prompt = replace(prompt, tokens=tokens) if isinstance(prompt, Prompt) else Prompt(tokens)
    if not prompt.tokens:
        raise InvalidRequest("a prompt is empty", hint="Give at least one token.")
    return prompt


class _Sample:
    """One completion of one prompt while it is written."""

    def __init__(
        self,
        text: Text,
        settings: SharedSettings,
        prompt: Prompt,
        index: tuple[int, int],
        matcher: Matcher | None,
    ) -> None:
        self.prompt, self.number = index
        self._is_message = prompt.is_message
        self.watched = prompt.watch(text)
        self.writer = Writer(
            text,
            settings.choice,
            settings.seed,
            f"sample {self.number}",
            prompt=prompt.tokens,
            thinking=self.watched,
        )
        self.writer.name = f"prompt {self.prompt}, sample {self.number}"
        self.thinking = prompt.thinking
        self._in_front = () if self._is_message else in_front(text, prompt.tokens)
        self.tokens: list[int] = []
        self.thinking_tokens = 0
        self.told: list[tuple[int, Logprobs | None]] = []
        self.texts = {True: "", False: ""}  # of the thinking, of the reply
        self.finish_reason = ""
        self._echo = text.decode(prompt.tokens) if settings.echo else ""
        self._matcher = matcher
        self._min_tokens = settings.choice.min_tokens
        self._tells = settings.choice.logprobs is not None
        self._stop = settings.stop
        self._watch = MarkerWatch(self._stop)
        self._max_tokens = settings.max_tokens

    def begin(self, path: tuple[Block, ...], unshared: tuple[int, ...]) -> None:
        """Start behind a prompt in memory, feeding what of it is not there: mostly its last token."""
        self.writer.begin_step(View((*path, Block(self.writer.name))), unshared)
        self.writer.follow(self._in_front)

    def row(self) -> Row:
        """The next row; it keeps to the grammar, if there is one, as soon as the thinking is over."""
        row = self.writer.row()
        if self._matcher is None or self.thinking:
            return row
        mask = self._matcher.mask()
        if len(self.tokens) < self._min_tokens:
            # Where the grammar allows nothing but an end, it comes before its time.
            mask = _without(mask, self.watched.ends) or mask
        return replace(row, choice=replace(row.choice, mask=mask, forbidden=frozenset()))

    def read(self, token: int, context: int | None, told: Logprobs | None = None) -> str:
        """Take a token, and what was told of it; return the text that is certain by now."""
        piece = self.writer.read(token, self.watched.ends)
        may_stop = self.writer.stopped or len(self.tokens) >= self._min_tokens
        certain = self._watch.push(piece) if may_stop else piece
        if not self.writer.stopped:
            self.tokens.append(token)
        if self._tells:
            self.told.append((token, told))
        if self.writer.stopped or self._watch.found is not None or self._is_whole(token):
            self.finish_reason = "stop"
        elif len(self.tokens) >= self._max_tokens or (
            context is not None and self.writer.view.num_tokens + 1 > context
        ):
            self.finish_reason = "length"
        has_thought = self.thinking and not self.watched.thinking
        if (self.finish_reason or has_thought) and self._watch.found is None:
            certain += self._watch.pending
            # None begins in the thinking and ends in the reply.
            self._watch = MarkerWatch(self._stop)
        if self._is_message and not self.thinking and not self.texts[False]:
            certain = certain.lstrip()
        self.texts[self.thinking] += certain
        if has_thought:
            self.thinking_tokens, self.thinking = len(self.tokens), False
        return certain

    def _is_whole(self, token: int) -> bool:
        """Whether the text is whole with this token: its grammar lets nothing follow."""
        if self._matcher is None or self.thinking:
            return False
        self._matcher.take(token)
        return self._matcher.is_over

    def leave(self) -> None:
        """Let go of its block and of the prompt's, if that has not happened yet."""
        vars(self).pop("writer", None)

    def completion(self, echoed: Told) -> Completion:
        """The completion that was written. Blanks around the thinking belong to neither part."""
        return Completion(
            self.prompt,
            self.number,
            self._echo + self.texts[False],
            self.texts[True].strip(),
            tuple(self.tokens),
            self.finish_reason,
            len(self.tokens) if self.thinking else self.thinking_tokens,
            tuple(self.told) if self._tells else None,
            echoed,
            self._in_front,
        )


def _without(mask: bytes, tokens: frozenset[int]) -> bytes:
    """The mask without these tokens; empty if none is left."""
    left = bytearray(mask)
    for token in tokens:
        if token < 8 * len(left):
            left[token // 8] &= ~(1 << token % 8)
    return bytes(left) if any(left) else b""


class _Run(CountedRun):
    """The state of one run."""

    lease: Lease | Echo  # from `begin` on

    def __init__(
        self,
        prompts: list[Prompt],
        text: Text,
        settings: SharedSettings,
        context: int | None,
        matcher: Matcher | None,
        tree: PrefixTree,
    ) -> None:
        super().__init__()
        self.prompts, self.settings, self.context = prompts, settings, context
        self.tree = tree
        most = None if settings.tells_prompts else settings.shareable
        self.prefixes = [prompt.tokens[:-1][:most] for prompt in prompts]
        self.samples = [
            _Sample(text, settings, prompt, (index, sample), matcher and matcher.copy())
            for index, prompt in enumerate(prompts)
            for sample in range(settings.samples)
        ]
        self.waiting = deque(self.samples)
        self.live: list[_Sample] = []
        self.own = self._own()

    def _own(self) -> Reserve:
        """The tokens of the rows that write at the same time."""
        num_rows = min(self.settings.rows, len(self.samples))
        num_tokens = self.settings.max_tokens
        if self.context is not None:
            shortest = min(len(prompt.tokens) for prompt in self.prompts)
            num_tokens = min(num_tokens, self.context - shortest + 1)
        pairs = zip(self.prompts, self.prefixes, strict=True)
        num_unshared = max(len(prompt.tokens) - 1 - len(shared) for prompt, shared in pairs)
        return Reserve(num_rows * (num_unshared + num_tokens), num_rows)

    def begin(self) -> Work[None]:
        """Room for the prompts: a lease of their paths; none is shared of those whose logprobs are told."""
        if self.settings.tells_prompts:
            num_tokens = sum(map(len, self.prefixes)) + self.own.num_tokens
            yield Reserve(num_tokens, len(self.prefixes) + self.own.num_blocks)
            self.lease = Echo([prompt.tokens for prompt in self.prompts], self.settings.choice)
        else:
            leasing = take_lease(self.tree, self.prefixes, self.settings.tenant, self.own)
            self.lease = yield from leasing

    def work(self) -> Work[None]:
        """Feed prompts, write, until every sample is done."""
        try:
            yield from self._write()
        finally:
            self._leave()

    def _write(self) -> Work[None]:
        while self.waiting or self.live:
            num_places = self.settings.rows - len(self.live)
            next_ones = [self.waiting[i] for i in range(min(num_places, len(self.waiting)))]
            wanted = dict.fromkeys(sample.prompt for sample in next_ones)
            self.opening = self.lease.rows(wanted, self.settings.prefill)
            self._let_begin(next_ones)
            rows = [sample.row() for sample in self.live if not sample.finish_reason]
            if rows or self.opening:
                tokens = yield from self.forward(rows)
                self._settle()
                yield from self._read(tokens)
            elif self.live:  # nothing is to be written behind these prompts
                yield from self._read(())
            else:
                yield self.own  # another run is writing a prompt that is wanted

    def _settle(self) -> None:
        """Prompts that are complete can be read; what was told of echoed ones is kept."""
        if isinstance(self.lease, Echo):
            self.lease.settle(self.opened)
        else:
            self.lease.settle()

    def _let_begin(self, next_ones: list[_Sample]) -> None:
        """Begin the samples whose prompts can be read in this pass; the others stay in the queue."""
        wanted = {sample.prompt for sample in next_ones}
        ready = {index for index in wanted if self.lease.is_ready(index)}
        later = []
        for sample in next_ones:
            self.waiting.popleft()
            if sample.prompt in ready:
                num_shared = len(self.prefixes[sample.prompt])
                unshared = self.prompts[sample.prompt].tokens[num_shared:]
                sample.begin(self.lease.path(sample.prompt), unshared)
                if not self.settings.max_tokens:
                    sample.finish_reason = "length"
                self.live.append(sample)
            else:
                later.append(sample)
        self.waiting.extendleft(reversed(later))

    def _read(self, tokens: tuple[int, ...]) -> Generator[Event, None, None]:
        answered = zip(tokens, self.logprobs, strict=True) if tokens else iter(())
        for sample in self.live:
            worker = sample.prompt * self.settings.samples + sample.number
            if not sample.finish_reason:
                token, told = next(answered)
                certain = sample.read(token, self.context, told)
                yield TokenWritten(self.passes, worker, token, certain, told)
            if sample.finish_reason:
                is_kept = self.settings.keep and not self.prompts[sample.prompt].thinking
                if is_kept and isinstance(self.lease, Lease):
                    self.lease.enter(sample.prompt, [sample.writer.view.own])
                sample.leave()  # its block goes as soon as it is done
                yield WorkerStopped(self.passes, worker, sample.finish_reason)
        self.live = [sample for sample in self.live if not sample.finish_reason]

    def _leave(self) -> None:
        """Let go of all blocks, also of samples that are not done, and then of the prompts that they read."""
        for sample in self.live:
            sample.leave()
        self.live.clear()
        self.lease.close()

    def result(self) -> Completions:
        """The completions of the run."""
        echoed: list[Told] = [()] * len(self.prompts)
        if isinstance(self.lease, Echo):
            told = zip(self.prompts, self.lease.told, strict=True)
            echoed = [tuple(zip(p.tokens, (None, *each), strict=True)) for p, each in told]
        completions = tuple(sample.completion(echoed[sample.prompt]) for sample in self.samples)
        all_stopped = all(each.finish_reason == "stop" for each in completions)
        return Completions(
            text=completions[0].text,
            finish_reason="stopped" if all_stopped else "budget",
            forward_passes=self.passes,
            tokens=tuple(len(each.tokens) for each in completions),
            completions=completions,
            prompt_tokens=tuple(len(prompt.tokens) for prompt in self.prompts),
            found=self.lease.found,
        )
