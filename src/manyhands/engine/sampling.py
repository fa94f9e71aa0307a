"""From logits to tokens, for all rows at once and with one wait for the device.

The random number of a row comes with its Choice, drawn from the worker's own seeded generator. Nothing
here is random, so another row, another request or another device cannot change anybody's luck.

    R  rows      V  vocabulary
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from manyhands.cache.step import GREEDY, Choice
from manyhands.errors import ManyhandsError


class Chosen:
    """One token per row: on the device at once, on the host when it has arrived there.

    `tokens_and_sound` [R + 1]: the tokens, and 1 if all logits are sound. So whether all is well travels
    with the tokens: one transfer, one wait.
    """

    def __init__(self, tokens_and_sound: Tensor) -> None:
        self.on_device = tokens_and_sound[:-1]  # [R]
        self._host = tokens_and_sound
        self._arrived: torch.cuda.Event | None = None
        if tokens_and_sound.is_cuda:
            # What is asked of the device from here on need not be waited for.
            self._host = torch.empty_like(tokens_and_sound, device="cpu", pin_memory=True)
            self._host.copy_(tokens_and_sound, non_blocking=True)
            self._arrived = torch.cuda.Event()
            self._arrived.record()
        self._tokens: tuple[int, ...] | None = None

    def tokens(self) -> tuple[int, ...]:
        """Wait for them."""
        if self._tokens is None:
            if self._arrived is not None:
                self._arrived.synchronize()
            self._tokens = _checked(self._host.tolist())
        return self._tokens


def choose(logits: Tensor, choices: Sequence[Choice], greedy: Tensor | None = None) -> Chosen:
    """One token per row of logits [R, V].

    `greedy` [R + 1]: the likeliest tokens and whether the logits are sound (1), if they are known.
    """
    if greedy is not None and all(choice is GREEDY or choice == GREEDY for choice in choices):
        return Chosen(greedy)
    # -inf is a token that cannot be; NaN and +inf mean that the network is broken.
    sound = (logits < float("inf")).all()
    scores = _permitted(logits, choices)
    tokens = scores.argmax(dim=-1)
    rows = [row for row, choice in enumerate(choices) if choice.temperature > 0]
    if rows:
        tokens[rows] = _sample(scores[rows], [choices[row] for row in rows])
    return Chosen(torch.cat((tokens, sound.view(1).to(tokens.dtype))))


def _checked(tokens_and_sound: list[int]) -> tuple[int, ...]:
    *chosen, is_sound = tokens_and_sound
    if not is_sound:
        raise ManyhandsError(
            "the model's logits are not numbers (NaN or infinite)",
            hint="Its weights may be damaged, or its dtype too narrow: try --dtype float32.",
        )
    return tuple(chosen)


def _permitted(scores: Tensor, choices: Sequence[Choice]) -> Tensor:
    """Scores with every token that a row may not choose at minus infinity."""
    if any(choice.allowed is not None or choice.forbidden for choice in choices):
        scores = scores.clone()  # the logits are still the caller's
    for row, choice in enumerate(choices):
        if choice.allowed is not None:
            allowed = torch.tensor(sorted(choice.allowed), device=scores.device)
            kept = torch.full_like(scores[row], float("-inf"))
            kept[allowed] = scores[row, allowed]
            scores[row] = kept
        if choice.forbidden:
            scores[row, sorted(choice.forbidden)] = float("-inf")
    return scores


def _sample(scores: Tensor, choices: Sequence[Choice]) -> Tensor:
    """Inverse-transform sampling: the token at `draw` of the cut distribution, likeliest first."""

    def column(name: str) -> Tensor:
        values = [getattr(choice, name) for choice in choices]
        return torch.tensor(values, dtype=torch.float64, device=scores.device).unsqueeze(1)

    # Sorted as they are: the fewer bits a score has, the faster. Equally likely tokens stand in the order
    # of their ids, whoever else is in the pass.
    ordered, tokens = scores.sort(dim=-1, descending=True, stable=True)
    # Measured from the likeliest, so that no temperature, however small, overflows.
    ordered = ordered.double()
    weights = ((ordered - ordered[:, :1]) / column("temperature")).softmax(dim=-1)
    rank = torch.arange(weights.shape[1], device=scores.device)
    top_k = column("top_k")
    kept = (
        ((top_k == 0) | (rank < top_k))
        & (weights.cumsum(dim=-1) - weights < column("top_p"))
        & (weights >= column("min_p") * weights[:, :1])
    )
    sums = (weights * kept).cumsum(dim=-1)
    picked = (sums <= column("draw") * sums[:, -1:]).sum(dim=-1)
    # Kept tokens stand first; rounding must not step past them (of broken logits, none is kept).
    last = (kept.sum(dim=-1) - 1).clamp(min=0)
    return tokens.gather(1, torch.minimum(picked, last).unsqueeze(1)).squeeze(1)
