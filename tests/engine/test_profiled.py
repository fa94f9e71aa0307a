"""Profiles through the real engine: logits against one dense pass with positions and a mask written out by hand.

With `keep`, all parts begin one position behind the fork mark, no part sees another, and what follows
stands behind the longest and sees all; a part that parts again is as long as its longest way through. With
`reencode`, all is one causal text. The dense pass is Hugging Face's own network on one row, in float64.
"""

from __future__ import annotations

import copy
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor

from manyhands.cache.step import Choice, Step
from manyhands.engine.engine import Engine
from manyhands.engine.sampling import choose
from manyhands.model.adapter import ModelAdapter
from manyhands.strategies.events import WorkerJoined
from manyhands.strategies.profiled import profiled
from manyhands.strategies.profiles import PROFILES, Profile
from manyhands.strategies.settings import ProfileSettings
from manyhands.text import Text
from tests.model.double import DoublePrecision
from tests.model.families_zoo import tiny_model, tiny_models
from tests.strategies.test_profiled import NO_END, NPR, PROMPT, THREADS, text_of

# A strand: its texts, and between them the parts of a fork.
Said = Sequence[Any]
BEHIND = "xyz"
VISIBLE = 1e-5
PATHS = [["a</Path>"], ["bcd</Path>"]]
SAID: dict[str, Said] = {
    "npr": (NPR, [["ab</step>"], ["cdefg</step>"]], BEHIND),
    "multiverse": (
        "<Goal><Outline>1: a</Outline><Outline>2: b</Outline></Goal>",
        PATHS,
        BEHIND,
    ),
    "parallel-r1": ("So <Parallel>", PATHS, BEHIND),
    "parallel-r1-seen": ("So <Parallel>", PATHS, BEHIND),
    "threadweaver": (THREADS, [["a</Thread>"], ["bcd</Thread>"]], BEHIND),
}
TWO = "<guideline><plan>1: a</plan><plan>2: b</plan></guideline>"
# Part 1 parts into 3 and 4, and 4 into 5 and 6; meanwhile 2 writes on, and ends first.
NESTED: Said = (
    TWO,
    [
        [
            f"u{TWO}",
            [["c</step>"], [f"d{TWO}", [["e</step>"], ["fghi</step>"]], "j</step>"]],
            "kl</step>",
        ],
        ["mnopqr</step>"],
    ],
    BEHIND,
)


def network() -> torch.nn.Module:
    config = copy.deepcopy(tiny_models()["qwen3"].args[0])
    config.vocab_size = 600
    config._attn_implementation = "eager"
    with DoublePrecision():
        return tiny_model(config).double()


def strands(said: Said) -> Iterator[tuple[str, str]]:
    """All writers in the order in which they come, level by level, and all that each writes."""
    level, number = [("writer", said)], 0
    while level:
        inner = []
        for writer, pieces in level:
            yield writer, "".join(piece for piece in pieces if isinstance(piece, str))
            for fork in pieces:
                for part in fork if isinstance(fork, list) else ():
                    number += 1
                    inner.append((f"part {number}", part))
        level = inner


def by_engine(name: str, said: Said, join: str | None = None) -> dict[str, Tensor]:
    """The logits by which each writer's tokens were chosen."""
    text = text_of(name)
    mouths = {writer: deque(text.markup(words)) for writer, words in strands(said)}
    settings = ProfileSettings(
        profile=name,
        budget=2000,
        end=NO_END,
        choice=Choice(),
        same_choice=True,
        parts_join=join,
    )
    found: dict[str, list[Tensor]] = defaultdict(list)
    joined = 0
    with DoublePrecision(), torch.no_grad():
        engine = Engine(ModelAdapter(network()), memory_tokens=4096)  # type: ignore[arg-type]
        strategy = profiled("?", text, settings, PROMPT)
        sent: tuple[int, ...] | None = None
        while mouths["writer"]:
            asked = strategy.send(sent)
            sent = None
            joined += isinstance(asked, WorkerJoined)
            if not isinstance(asked, Step):
                continue
            logits = engine.forward(asked)
            chosen = list(choose(logits, [row.choice for row in asked.rows]).tokens())
            for index, row in enumerate(asked.rows):
                if row.writer is not None:
                    chosen[index] = mouths[row.writer].popleft()
                    found[row.writer].append(logits[index])
            sent = tuple(chosen)
        strategy.close()
    assert joined == len(mouths) - 1, "every part has come"
    return {writer: torch.stack(rows) for writer, rows in found.items()}


@dataclass
class ByHand:
    """One sequence for a dense pass, laid out strand by strand. `gap` and `flat` are mistakes, for the controls.

    `paths[i]` are the lanes in which token i stands; one token sees an earlier one unless they stand in two lanes
    of one fork. `gap`: at this level one position is left out before the words behind a join. `flat`: at this
    level parts stand one behind another.
    """

    profile: Profile
    text: Text
    join: str
    gap: int = 0
    flat: int = 0
    tokens: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    paths: list[dict[int, int]] = field(default_factory=list)
    chosen: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    num_parts: int = 0
    num_forks: int = 0

    def put(self, tokens: Sequence[int], start: int, path: dict[int, int]) -> int:
        self.tokens += tokens
        self.positions += range(start, start + len(tokens))
        self.paths += [path] * len(tokens)
        return start + len(tokens)

    def strand(self, writers: dict[int, str], said: Said, start: int, path: dict[int, int]) -> int:
        """A strand whose opening stands there already; where it ends."""
        writer, level = writers[id(said)], len(path) + 1
        for piece in said:
            if isinstance(piece, str):
                first = len(self.tokens) - 1
                start = self.put(self.text.markup(piece), start, path)
                self.chosen[writer] += range(first, len(self.tokens) - 1)
                continue
            self.num_forks += 1
            fork, ends, here = self.num_forks, [start], start
            for lane, part in enumerate(piece):
                number = str(lane + 1)
                header = self.profile.header.replace("{name}", number)
                header = header if lane == 0 else header.removeprefix(self.profile.lead)
                inner = {**path, fork: lane}
                begun = self.put(self.text.markup(header), here, inner)
                ends.append(self.strand(writers, part, begun, inner))
                here = start if self.join == "keep" and self.flat != level else ends[-1]
            after = self.text.markup(self.profile.after)
            start = self.put(after, max(ends) + (self.gap == level), path)
        return start


def by_hand(
    name: str, said: Said, join: str | None = None, *, leak: bool = False, **mistakes: Any
) -> dict[str, Tensor]:
    """The same from one dense pass."""
    profile, text = PROFILES[name], text_of(name)
    laid = ByHand(profile, text, join or profile.join, **mistakes)
    names = iter(writer for writer, _ in strands(said))
    writers: dict[int, str] = {}
    level = [said]
    while level:
        writers |= {id(strand): next(names) for strand in level}
        level = [
            part for strand in level for fork in strand if isinstance(fork, list) for part in fork
        ]
    laid.strand(writers, said, laid.put(text.chat_prompt("Q: ?"), 0, {}), {})
    size = len(laid.tokens)
    seen = torch.ones(size, size, dtype=torch.bool).tril()
    if laid.join != "reencode" and not leak:
        for query, path in enumerate(laid.paths):
            for key, other in enumerate(laid.paths[:query]):
                seen[query, key] = all(other.get(fork, lane) == lane for fork, lane in path.items())
    mask = torch.zeros(1, 1, size, size, dtype=torch.float64).masked_fill(~seen, -1e30)
    with DoublePrecision(), torch.no_grad():
        logits = network()(
            input_ids=torch.tensor([laid.tokens]),
            position_ids=torch.tensor([laid.positions]),
            attention_mask=mask,
            use_cache=False,
        ).logits[0]
    return {writer: logits[places] for writer, places in laid.chosen.items()}


def apart(one: dict[str, Tensor], other: dict[str, Tensor], *writers: str) -> float:
    """The largest difference between logits of these writers; by default, of all."""
    assert one.keys() == other.keys()
    return max(float((one[w] - other[w]).abs().max()) for w in writers or one)


@pytest.mark.parametrize("name", PROFILES)
def test_positions_and_masks_are_those_of_the_training(name: str) -> None:
    said, is_kept = SAID[name], PROFILES[name].join == "keep"
    right = by_hand(name, said)
    compared = (
        () if is_kept else ("writer",)
    )  # while parts write, they do not see those before them
    assert apart(by_engine(name, said), right, *compared) < 1e-9
    if is_kept:
        assert apart(by_hand(name, said, leak=True), right, "writer") > VISIBLE
    assert apart(by_hand(name, said, gap=1), right, "writer") > VISIBLE


def test_parts_in_parts_stand_in_lanes_within_lanes() -> None:
    right = by_hand("npr", NESTED)
    assert len(right) == 7
    assert apart(by_engine("npr", NESTED), right) < 1e-9
    assert apart(by_hand("npr", NESTED, leak=True), right, "part 6") > VISIBLE
    for level in (1, 2, 3):  # a mistake at any level is seen at the end
        assert apart(by_hand("npr", NESTED, gap=level), right, "writer") > VISIBLE
        assert apart(by_hand("npr", NESTED, flat=level), right, "writer") > VISIBLE


def test_nested_parts_may_be_encoded_anew() -> None:
    right = by_hand("npr", NESTED, "reencode")
    assert apart(by_engine("npr", NESTED, "reencode"), right, "writer") < 1e-9
    assert apart(by_hand("npr", NESTED), right, "writer") > VISIBLE
