"""From logits to tokens, for all rows at once and with one wait for the device.

The random number of a row comes with its Choice, drawn from the worker's own seeded generator. Nothing
here is random, so another row, another request or another device cannot change anybody's luck.

On a GPU, logits of 16 bits have a kernel that sorts nothing (`model/kernels/drawing.py`). What stands here is its
twin, for all other logits: on a CPU, and those of 32 bits, as penalties and biases leave them. Sorting a large
vocabulary takes a GPU a quarter of the time of a small network's whole pass, and nearly always the token is among the
likeliest thousand. So only those are put in order. Whether they decided it is known on the device; where they did not,
everything is sorted when the host asks.

Logprobs (`cache/logprobs.py`) are taken from the logits as they are, and stand in tensors of their own before the
next pass may write where the logits stood. A pass in which no row asks for any does no work for them.

    R  rows      V  vocabulary      N  rows that draw      C  candidates of a row
    P  places whose logprobs are wanted      K  of the likeliest tokens there      M  masks
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from manyhands.cache.logprobs import LEAST_LOGPROB, Logprobs, Tokens
from manyhands.cache.step import GREEDY, Choice
from manyhands.errors import InvalidRequest, ManyhandsError
from manyhands.model import kernels

_BROKEN, _SOUND, _UNDECIDED = 0, 1, 2
_CANDIDATES = 1024
_SORTED = 8 * _CANDIDATES  # vocabularies up to this size are sorted as a whole
_LAST_TOKEN = (1 << 32) - 1

Bits = NDArray[np.uint8]  # of a mask: [ceil(V / 8)]


class Chosen:
    """One token per row: on the device at once, on the host when it has arrived there.

    `state_and_tokens` [1 + R]: how the tokens are, and the tokens. They are _BROKEN (logits that are no numbers), _SOUND,
    or _UNDECIDED: then `decide` gives them, and what stands on the device was a guess. So whether all is
    well travels with the tokens: one transfer, one wait. `rows`: of these tokens they alone are meant, in their order; None: all.
    `told`: of what is meant, the logprobs.
    """

    def __init__(
        self,
        state_and_tokens: Tensor,
        decide: Callable[[], list[int]] | None = None,
        told: ToldRows | None = None,
        rows: Sequence[int] | None = None,
    ) -> None:
        self.on_device = state_and_tokens[1:]  # [R]
        self.rows = rows
        self._host = to_host(state_and_tokens)
        self._decide = decide
        self._told = told
        self._arrived: torch.cuda.Event | None = None
        if state_and_tokens.is_cuda:
            # Work asked of the device from here on need not be waited for.
            self._arrived = torch.cuda.Event()
            self._arrived.record()
        self._tokens: tuple[int, ...] | None = None

    def tokens(self) -> tuple[int, ...]:
        """Wait for them."""
        if self._tokens is None:
            state, tokens = self._landed()
            if state == _BROKEN:
                raise ManyhandsError(
                    "the model's logits are not numbers (NaN or infinite)",
                    hint="Its weights may be damaged, or its dtype too narrow: try --dtype float32.",
                )
            if state == _UNDECIDED:
                assert self._decide is not None, "who may be undecided can decide"
                tokens = self._decide()
            if self._told is None:
                self._tokens = tuple(tokens)
            else:
                self._tokens = Tokens(tokens, self._told.logprobs(tokens, state == _UNDECIDED))
                self._told = None
        return self._tokens

    def have_landed(self) -> bool:
        """Whether there is nothing to wait for."""
        return self._arrived is None or self._arrived.query()

    def are_on_device(self) -> bool:
        """Whether those on the device are the ones chosen."""
        return self._landed()[1] == list(self.tokens())

    def _landed(self) -> tuple[int, list[int]]:
        """The state, and the tokens that are meant."""
        if self._arrived is not None:
            self._arrived.synchronize()
        state, *tokens = self._host.tolist()
        return state, tokens if self.rows is None else [tokens[row] for row in self.rows]


class ToldLogprobs:
    """Logprobs of one token and of the likeliest, at P places, on their way to the host."""

    def __init__(self, logits: Tensor, tokens: Tensor, top: Sequence[int]) -> None:
        """Of logits [P, V], at tokens [P]; `top` [P] of the likeliest."""
        self._table: Tensor | None = logits.float().log_softmax(dim=-1)
        self._top = top
        self._own = to_host(self._of(tokens))
        self._values = self._tokens = None
        if count := min(max(top), logits.shape[1]):
            values, likeliest = _likeliest(self._table, count)
            self._values, self._tokens = to_host(values), to_host(likeliest)

    def _of(self, tokens: Tensor) -> Tensor:
        assert self._table is not None, "what is settled is not looked up again"
        return self._table.gather(1, tokens.unsqueeze(1)).squeeze(1)

    def settle(self) -> ToldLogprobs:
        """The tokens are sure: let go of the table [P, V]."""
        self._table = None
        return self

    def choose_again(self, tokens: Sequence[int]) -> None:
        """These are the tokens."""
        assert self._table is not None, "what is settled is not chosen again"
        self._own = self._of(sent(tokens, torch.int64, self._table.device)).cpu()

    def arrived(self) -> list[Logprobs]:
        """The logprobs of all places; wait for the device first."""
        own: list[float] = self._own.clamp(min=LEAST_LOGPROB).tolist()
        if self._values is None or self._tokens is None:
            return [Logprobs(value) for value in own]
        values, tokens = self._values.clamp(min=LEAST_LOGPROB).tolist(), self._tokens.tolist()
        places = zip(own, tokens, values, self._top, strict=True)
        return [
            Logprobs(value, tuple(zip(names[:size], likeliest[:size], strict=True)))
            for value, names, likeliest, size in places
        ]


class ToldRows:
    """Logprobs of the tokens chosen for some rows."""

    def __init__(
        self, logits: Tensor, rows: Sequence[int], top: Sequence[int], tokens: Tensor
    ) -> None:
        """Of logits [R, V] and the tokens [R] that were chosen, those of `rows`."""
        self._rows = rows
        at = sent(rows, torch.int64, logits.device)
        self._told = ToldLogprobs(logits.index_select(0, at), tokens.index_select(0, at), top)

    def logprobs(self, tokens: Sequence[int], were_guessed: bool) -> dict[int, Logprobs]:
        """By the number of the row. If those on the device `were_guessed`, `tokens` [R] are the ones."""
        if were_guessed:
            self._told.choose_again([tokens[row] for row in self._rows])
        return dict(zip(self._rows, self._told.arrived(), strict=True))


def likeliest(logits: Tensor) -> Tensor:
    """_SOUND if all rows of logits [R, V] are sound, else _BROKEN; behind it the likeliest token of each, the first of equals.

    int64 [1 + R]. -inf is a token that cannot be; NaN and +inf mean that the network is broken, and either is the largest of
    its row. So both answers come from one reading.
    """
    if kernels.usable(logits):
        from manyhands.model.kernels import likeliest as kernel

        return kernel.likeliest(logits)
    found = logits.max(dim=-1)
    is_sound = (found.values < float("inf")).all()
    return torch.cat((torch.where(is_sound, _SOUND, _BROKEN).view(1), found.indices))


def choose(
    logits: Tensor,
    choices: Sequence[Choice],
    greedy: Tensor | None = None,
    weigh: Callable[[Tensor], Tensor] | None = None,
    among: Sequence[int] | None = None,
) -> Chosen:
    """One token per row of logits [R, V].

    `greedy` [1 + R]: the state of these logits, or of these and others of their pass, and the likeliest tokens, if they are
    known. `among`: of both these rows alone are meant. `weigh` makes new logits of theirs, by what the rows' writers have written.
    """
    is_plain = weigh is None and all(choice is GREEDY or choice == GREEDY for choice in choices)
    if not is_plain and weigh is None and logits.itemsize == 2 and kernels.usable(logits):
        return _draw(logits, choices, range(len(logits)) if among is None else among)
    if is_plain and greedy is not None:
        return Chosen(greedy, rows=among)
    if among is not None:
        logits = logits.index_select(0, sent(among, torch.int64, logits.device))
    if greedy is None:
        greedy = likeliest(logits)
    if is_plain:
        return Chosen(greedy)
    state = greedy[:1]
    scores = _permitted(logits if weigh is None else weigh(logits), choices)
    tokens = scores.argmax(dim=-1)
    rows = [row for row, choice in enumerate(choices) if choice.temperature > 0]
    if not rows:
        return Chosen(torch.cat((state, tokens)), told=_told(logits, choices, tokens))
    # A copy: by the time the host decides, the next pass may stand where the logits stood.
    at = sent(rows, torch.int64, scores.device)
    drawing, own = scores.index_select(0, at), [choices[row] for row in rows]
    is_whole = drawing.shape[1] <= _SORTED or drawing.dtype == torch.float64
    drawn, is_decided = _sample(drawing, own, is_whole=is_whole)
    tokens.index_copy_(0, at, drawn)

    def decide() -> list[int]:
        drawn, _ = _sample(drawing, own, is_whole=True)
        decided: list[int] = tokens.index_copy(0, at, drawn).tolist()
        return decided

    state = torch.where(is_decided.all() | (state != _SOUND), state, _UNDECIDED)
    told = _told(logits, choices, tokens)
    return Chosen(torch.cat((state, tokens)), decide, told)


def get_ready(logits: Tensor) -> None:
    """Compile what choosing from such logits [1, V] takes."""
    choose(logits, [Choice(temperature=1.0)])


def _draw(logits: Tensor, choices: Sequence[Choice], rows: Sequence[int]) -> Chosen:
    """By the kernels, which take the likeliest token as the first of one: a token for each of `rows` [N] of logits [R, V]."""
    from manyhands.model.kernels import drawing

    size = logits.shape[1]
    kinds, masks = _masks(choices, size)
    cuts = zip(*(_cuts(choice, size) for choice in choices), strict=True)
    values: list[Sequence[float]] = [rows, kinds, *cuts]
    parameters = sent(values, torch.float64, logits.device)
    chosen = drawing.draw(logits, parameters, _sent_masks(masks, logits.device) if masks else None)
    told = None
    if any(choice.logprobs is not None for choice in choices):
        own = logits.index_select(0, sent(rows, torch.int64, logits.device))
        told = _told(own, choices, chosen[1:])
    return Chosen(chosen, told=told)


def _cuts(choice: Choice, size: int) -> tuple[float, ...]:
    """The temperature, top_k, top_p, min_p and draw of a choice among `size` tokens, for the kernels."""
    if choice.temperature == 0:
        return 1.0, 1, 1.0, 0.0, 0.0
    top_k = min(choice.top_k or size, size)
    return choice.temperature, top_k, choice.top_p, choice.min_p, choice.draw


def _told(logits: Tensor, choices: Sequence[Choice], tokens: Tensor) -> ToldRows | None:
    """The logprobs that rows have asked for; None if no row has."""
    asked = {row: c.logprobs for row, c in enumerate(choices) if c.logprobs is not None}
    return ToldRows(logits, list(asked), list(asked.values()), tokens) if asked else None


def _permitted(scores: Tensor, choices: Sequence[Choice]) -> Tensor:
    """Scores with every token that a row may not choose at minus infinity."""
    kinds, masks = _masks(choices, scores.shape[1])
    if not masks:
        return scores
    bits = torch.arange(8, dtype=torch.uint8, device=scores.device)
    packed = _sent_masks(masks, scores.device)
    is_permitted = (packed.unsqueeze(-1) >> bits & 1).view(len(masks), -1)[:, : scores.shape[1]]
    rows = [row for row, kind in enumerate(kinds) if kind >= 0]
    at, kind = sent([rows, [kinds[row] for row in rows]], torch.int64, scores.device)
    is_barred = is_permitted.bool().logical_not_().index_select(0, kind)
    kept = scores.index_select(0, at).masked_fill_(is_barred, float("-inf"))
    return scores.index_copy(0, at, kept)  # the logits are still the caller's


def _masks(choices: Sequence[Choice], size: int) -> tuple[list[int], list[Bits]]:
    """(The number of each row's mask, -1 if it may choose any token; the masks, each one once)."""
    masks: dict[tuple[Any, ...], Bits] = {}
    kinds: dict[tuple[Any, ...], int] = {(None, frozenset(), None): -1}
    rows = []
    for choice in choices:
        kind = choice.allowed, choice.forbidden, choice.mask
        if kind not in kinds:
            kinds[kind] = len(masks)
            masks[kind] = _mask(choice, size)
        rows.append(kinds[kind])
    return rows, list(masks.values())


def _mask(choice: Choice, size: int) -> Bits:
    """The tokens that a choice permits, as its own mask has them; none is beyond the end of that."""
    bits = _listed(choice.allowed, choice.forbidden, size)
    if choice.mask is None:
        return bits
    given = np.frombuffer(choice.mask[: len(bits)], dtype=np.uint8)
    masked = np.zeros_like(bits)
    masked[: len(given)] = bits[: len(given)] & given
    if not masked.any():
        raise InvalidRequest(
            "no token is left to choose from: the mask has none that may be chosen",
            hint="Give a mask with a bit for every token id, the first one in the lowest bit of the first byte.",
        )
    return masked


@functools.lru_cache(maxsize=64)
def _listed(allowed: frozenset[int] | None, forbidden: frozenset[int], size: int) -> Bits:
    """A mask of `allowed`, or of all `size` tokens, without the forbidden ones. Lists stay the same for many passes."""
    permitted = np.full(size, allowed is None)
    permitted[list(allowed or ())] = True
    permitted[list(forbidden)] = False
    return np.packbits(permitted, bitorder="little")


def _sent_masks(masks: Sequence[Bits], device: torch.device) -> Tensor:
    """Masks [M, ceil(V / 8)] on the device."""
    held = torch.from_numpy(np.stack(masks))
    return (held.pin_memory() if device.type == "cuda" else held).to(device, non_blocking=True)


def to_host(values: Tensor) -> Tensor:
    """Where these values will stand on the host once the device has come so far, whatever is written to `values` then."""
    if not values.is_cuda:
        return values.clone()
    held = torch.empty_like(values, device="cpu", pin_memory=True)
    return held.copy_(values, non_blocking=True)


def sent(values: Sequence[Any], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Values on the device, sent so that the host need not wait for what the device still has to do."""
    pinned = torch.tensor(values, dtype=dtype, pin_memory=device.type == "cuda")
    return pinned.to(device, non_blocking=True)


def _sample(scores: Tensor, choices: Sequence[Choice], *, is_whole: bool) -> tuple[Tensor, Tensor]:
    """Inverse-transform sampling: the token at `draw` of the cut distribution, likeliest first.

    Of scores [N, V]: tokens [N], and whether each is decided [N]. If not `is_whole`, only the likeliest
    are put in order; a row is undecided if its cut distribution or its draw reaches beyond them.
    """
    names = ("temperature", "top_k", "top_p", "min_p", "draw")
    values = [[getattr(choice, name) for choice in choices] for name in names]
    columns = sent(values, torch.float64, scores.device).unsqueeze(-1)
    temperature, top_k, top_p, min_p, draw = columns  # [N, 1] each

    # Sorted as they are: the fewer bits a score has, the faster. Equally likely tokens stand in the order
    # of their ids, whoever else is in the pass.
    if is_whole:
        ordered, tokens = scores.sort(dim=-1, descending=True, stable=True)
    else:
        ordered, tokens = _likeliest(scores, _CANDIDATES)
    first = ordered[:, :1].double()

    def weigh(some: Tensor) -> Tensor:
        # Measured from the likeliest, so that no temperature, however small, overflows.
        weight: Tensor = ((some.double() - first) / temperature).exp()
        return weight

    weights = weigh(ordered) / weigh(scores).sum(dim=-1, keepdim=True)
    count = weights.shape[1]
    rank = torch.arange(count, device=scores.device)
    in_top_k = (top_k == 0) | (rank < top_k)
    has_both = any(choice.top_k and choice.top_p < 1 for choice in choices)
    most = top_p
    if (
        has_both
    ):  # `top_p` is a share of what `top_k` leaves, as in Hugging Face's sampling and vLLM's
        left = (weights * in_top_k).sum(dim=-1, keepdim=True)
        most = torch.where(top_k == 0, top_p, top_p * left)
    kept = (
        in_top_k & (weights.cumsum(dim=-1) - weights < most) & (weights >= min_p * weights[:, :1])
    )
    sums = (weights * kept).cumsum(dim=-1)
    total = sums[:, -1:]
    is_decided = torch.ones_like(total, dtype=torch.bool)
    if not is_whole:
        may_go_on = kept[:, -1:] & (weights[:, -1:] > 0) & ((top_k == 0) | (top_k > count))
        is_uncut = (top_k == 0) & (top_p == 1) & (min_p == 0)
        total = torch.where(may_go_on & is_uncut, 1.0, total)
        is_decided = ~may_go_on | (is_uncut & (draw * total < sums[:, -1:]))
        if has_both:
            is_decided &= (top_k <= count) | (top_p == 1)  # or what is left is not known
    picked = (sums <= draw * total).sum(dim=-1)
    # Kept tokens stand first; rounding must not step past them (of broken logits, none is kept).
    last = (kept.sum(dim=-1) - 1).clamp(min=0)
    chosen = tokens.gather(1, torch.minimum(picked, last).unsqueeze(1)).squeeze(1)
    return chosen, is_decided.squeeze(1)


def _likeliest(scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` likeliest candidates [N, C] of scores [N, V] and their tokens, as a stable sort has them.

    A score's bits, read as a whole number, and behind them the token's, the lower the higher: such
    numbers differ all, so that a selection, which keeps no order of equals, has one answer.
    """
    bits = (scores.float() + 0.0).view(torch.int32)  # of the two zeros one is left
    rising = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits).to(torch.int64)
    tokens = torch.arange(scores.shape[1], device=scores.device)
    keys = (rising << 32) + (_LAST_TOKEN - tokens)
    best = keys.topk(count, dim=-1).values
    tokens = _LAST_TOKEN - (best & _LAST_TOKEN)
    return scores.gather(1, tokens), tokens
