"""How a pass is filled: which runs take part in it, and with how many of their tokens.

Runs that write stand in every pass, and take turns where they are too many for one. Prompts share what is left:

    beside rows that write    in parts that make the pass as long as `prompt_tokens`, so that these rows wait for no more than that
    where none writes         whole ones, up to `prompt_tokens_alone` in a pass, or a part of a long one

Prompts go one after the other, the oldest run's first, so that each has its first token as early as it can. A very long one goes on
by a part of each pass and others pass it by: a question does not wait for a book.

Nothing here is kept from one pass to the next: the queue of the runs says whose turn it is (`engine/scheduler.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from manyhands.cache.chunks import first_part
from manyhands.cache.step import Step
from manyhands.engine.run import Queue, Run
from manyhands.model.settings import MOST_ROWS_BESIDE

# So many least parts make `prompt_tokens`: a prompt goes on by one of them at least, whatever stands beside it.
_LEAST_PARTS = 4
_MOST_PROMPTS = 64  # the oldest of those that wait, of which some are fed
# Times `prompt_tokens`, beyond which a prompt is passed by those that come behind it.
_VERY_LONG = 16
Ready = tuple[Run, Step]  # a run, and what of its step is fed


class Filling:
    """Chooses what one pass is fed, by the sizes that passes may have."""

    def __init__(
        self,
        max_tokens_per_pass: int,
        *,
        prompt_tokens: int | None = None,
        prompt_tokens_of_crowds: int | None = None,
        prompt_tokens_alone: int | None = None,
        tokens_at_once: Callable[[int], int] = lambda num_tokens: num_tokens,
    ) -> None:
        """`prompt_tokens` and `prompt_tokens_alone`: see `ModelSettings`; None: steps are fed whole, and as many as fit.

        `prompt_tokens_of_crowds`: the former beside more than `MOST_ROWS_BESIDE` rows; None: the same.
        `tokens_at_once`: how many of the tokens of a prompt, while no row writes, one pass is fed; a pass has room for them in any case.
        """
        self.max_tokens_per_pass = max_tokens_per_pass
        self.prompt_tokens = min(prompt_tokens or max_tokens_per_pass, max_tokens_per_pass)
        self.prompt_tokens_of_crowds = min(
            prompt_tokens_of_crowds or self.prompt_tokens, self.prompt_tokens
        )
        self.prompt_tokens_alone = min(
            prompt_tokens_alone or max_tokens_per_pass, max_tokens_per_pass
        )
        self.tokens_at_once = tokens_at_once
        self._least_part = -(-self.prompt_tokens // _LEAST_PARTS)

    def fitting(
        self, steps: Iterable[Ready], running: Queue, num_passes: int
    ) -> tuple[list[Ready], bool]:
        """The part of these steps, taken in order, that fits into one pass; and whether it is full.

        They are of runs in `running`; `num_passes` were made before. However many prompts wait, rows that write stand in every pass, and leave room for a part of one.
        """
        ready: list[Ready] = []
        prompts: list[Ready] = []  # that may have to be fed in parts
        new: list[Ready] = []  # of both, in order, those that have written nothing yet
        num_tokens = queued = 0
        is_full = are_enough = False
        unbegun = running.unbegun  # thousands of them may wait
        num_others = len(running) - len(unbegun)
        for run, step in steps:
            if run not in unbegun:
                num_others -= 1
            elif are_enough and num_others:
                continue
            elif are_enough:
                break
            size = num_tokens_of(step)
            beside = size - len(step.rows)
            in_front = num_tokens + (0 if run.num_passes else queued)
            is_long = beside > 0 and in_front + beside > self._most_of_pass(num_tokens)
            if is_long and len(prompts) == _MOST_PROMPTS:
                continue
            if is_long:
                prompts.append((run, step))
                # Short prompts that come behind it wait for their turns, but not for that of a very long one.
                queued += 0 if self._is_very_long(step) else min(beside, self.prompt_tokens)
                are_enough = len(prompts) == _MOST_PROMPTS and queued >= self.prompt_tokens
            else:
                room = self.max_tokens_per_pass - (self._least_part if prompts else 0)
                if ready and num_tokens + size > room:
                    is_full = True
                    break
                ready.append((run, step))
                num_tokens += size
            if is_long or (beside > 0 and not run.num_passes):
                new.append((run, step))
        if not prompts:
            return ready, is_full
        is_none_long = max(num_tokens_of(step) for _, step in new) <= self.prompt_tokens_alone
        if len(new) == len(ready) + len(prompts) and is_none_long:
            return self._prompts(new, num_writing=0), is_full
        # Runs in front of the first prompt were taken before it was seen. One that leaves no room alone takes turns with prompts.
        while ready and num_tokens + self._least_part > self.max_tokens_per_pass:
            if len(ready) == 1 and num_passes % 2:
                break
            num_tokens -= num_tokens_of(ready.pop()[1])
            is_full = True
        return ready + self._prompts(prompts, num_writing=num_tokens), is_full

    def _prompts(self, prompts: list[Ready], *, num_writing: int) -> list[Ready]:
        """The parts of these prompts, the oldest run's first, that are fed in this pass.

        Beside rows that write they make the pass as long as `prompt_tokens`, together with what the others feed: a pass of a
        little more would take as long as one of half as much again. Else whole ones have as many tokens as `prompt_tokens_alone`, but
        for the first: a larger pass is hardly faster a token, and all that are in it wait for the last one. A long one is fed in
        parts then, too: a run that comes or is cancelled meanwhile waits for a part.
        Where a very long one stands in front, it has a least part, and the others take their turns as if it were not there.
        """
        others = [prompt for prompt in prompts if not self._is_very_long(prompt[1])]
        oldest = prompts[0] if others and others[0] is not prompts[0] else None
        of_oldest = 0
        if oldest is not None:
            prompts, of_oldest = others, self._least_part
        if num_writing:
            room = max(self._most_of_pass(num_writing) - num_writing - of_oldest, self._least_part)
        else:
            first = num_tokens_of(prompts[0][1])
            room = self.tokens_at_once(first)
            if room == first:
                room = max(room, self.prompt_tokens_alone)
        room = min(room, self.max_tokens_per_pass - num_writing - of_oldest)
        fed: list[Ready] = []
        for run, step in prompts:
            is_enough = room < self._least_part or (not num_writing and num_tokens_of(step) > room)
            if room <= 0 or (fed and is_enough):
                break
            part = first_part(step, room) or step
            fed.append((run, part))
            room -= num_tokens_of(part)
        if oldest is not None:
            run, step = oldest
            size = of_oldest if num_writing else of_oldest + max(0, room)
            fed.append((run, first_part(step, size) or step))
        return fed

    def _most_of_pass(self, num_writing: int) -> int:
        """Tokens of a pass with prompts beside so many that rows write."""
        is_crowd = num_writing > MOST_ROWS_BESIDE
        return self.prompt_tokens_of_crowds if is_crowd else self.prompt_tokens

    def _is_very_long(self, step: Step) -> bool:
        """Whether a step feeds so much that others would wait for long."""
        return num_tokens_of(step) > _VERY_LONG * self.prompt_tokens


def num_tokens_of(step: Step) -> int:
    """The tokens that a step feeds."""
    return sum([len(row.feed) for row in step.rows])
