"""The contract of an executor: network and memory, behind verbs of integers.

Above an executor there is no tensor but the logits that a caller asks for. The engine plans (who reads what, from where), admits and
preempts runs, and hands the executor plain data: plans, choices, moves, slots. The executor computes, and answers with tokens:

    run(plan, choices, ...)        one forward pass, and the token that each row's choice takes
    go_on(rows, choices, ...)      the tokens of some rows of a pass that was begun ahead
    choose(kept, choices)          tokens from logits of guesses that the last pass kept; no pass
    logits(plan)                   one forward pass, for a caller who wants the logits themselves
    move(moves)                    copy keys and values to other slots, keys rotated by the shifts
    write_keys(merged, ...)        one forward over a whole past; its keys and values go to memory
    replay(merged)                 the same, for its logits
    make_up(places, seed)          random keys and values: a history to be timed over
    sheets                         keys and values on disk, by name: `Sheets`; None without a cache
    facts                          the facts that never change: `ModelFacts`

Two classes keep it: `LocalExecutor` in this process (`engine/local_executor.py`), and `RankedExecutor` together with other processes
that have a part of the network each (`engine/ranks/executor.py`). Every argument can be packed and sent: equal integers everywhere.

*Lookahead* is the next pass, begun before its tokens were read by the host (`engine/graphs.py`). The engine
only says whether such a pass would have room. Where several runs take part, the engine plans what it expects
next, the executor begins it, and `go_on` takes up what of it was right (`engine/lookahead.py`).

    T  tokens of a pass or of a whole past      R  rows      V  vocabulary      N  slots
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from torch import Tensor

from manyhands.cache.logprobs import Targets
from manyhands.cache.places import Ints, Move
from manyhands.cache.plan import Plan
from manyhands.cache.sheets import ShelfCounts
from manyhands.cache.step import Choice
from manyhands.cache.tally import Weighing
from manyhands.engine.lookahead import Ahead
from manyhands.engine.pass_counts import PassCounts
from manyhands.replay.merged import Merged


@dataclass(frozen=True)
class ModelFacts:
    """Facts of a loaded model and its memory, which hold for as long as they live."""

    name: str
    vocab_size: int
    max_positions: int  # tokens of the longest view
    num_layers: int
    eos_ids: tuple[int, ...]  # they end a turn by the model's generation configuration
    device: str  # "cpu", "cuda:0", ...
    dtype: str  # "float32", "bfloat16", ...
    weight_bytes: int  # that one pass reads at least
    token_bytes: int  # of one token's keys and values in all layers
    num_pages: int
    page_size: int  # tokens
    backend: str  # which attention
    backend_reason: str
    fused: str  # which modules were fused, which were not and why
    about_memory: str  # where memory goes, in a sentence
    about_ranks: str = ""  # how many ranks share the model, and what each holds; "" if there is one
    num_weights: int = 0  # of this process's part of the network
    has_experts: bool = False  # of which a token goes through a few
    # Slots for states of texts; 0: no layer of the network keeps any (`model/recurrent.py`).
    num_states: int = 0
    state_bytes: int = 0  # of one state in all layers

    @property
    def is_on_gpu(self) -> bool:
        """Whether the model is on a CUDA device."""
        return self.device.startswith("cuda")


class Places(NamedTuple):
    """Where keys and values lie: slots, and the offsets on their strips by which keys are rotated."""

    slots: Ints  # [N]
    offsets: Ints  # [N]


class Kept(NamedTuple):
    """States that a forward over a whole past takes from memory and leaves there: pairs of slots."""

    taken: tuple[tuple[int, int], ...]  # in memory, in the forward
    left: tuple[tuple[int, int], ...]  # in the forward, in memory


class Sheets(Protocol):
    """Keys and values on disk, in sheets of `sheet_tokens` tokens that have names (`cache/sheets.py`)."""

    sheet_tokens: int

    @property
    def counts(self) -> ShelfCounts:
        """Counts of the reads and writes made so far."""

    def num_saved(self, names: Sequence[str]) -> int:
        """How many of the first of these are there; they count as used."""

    def unsaved(self, names: Sequence[str]) -> list[int]:
        """The numbers of those that are neither there nor on their way."""

    def has_room(self) -> bool:
        """Whether the copy of one more sheet may wait to be written."""

    def save(self, name: str, places: Places, order: int, used: int) -> None:
        """Copy keys and values of a whole sheet, and have the copy written.

        `order` is its number in the chain, and `used` when the chain was, in nanoseconds of `time.time_ns`: the same for all
        of its sheets. What cannot be written is left out.
        """

    def read_ahead(self, names: Sequence[str]) -> None:
        """Have these read, beside all else."""

    def is_read(self, name: str, patience: float) -> bool | None:
        """Whether what was read ahead can be loaded. None: not yet, after `patience` seconds; False: never."""

    def load(self, name: str, first: int, places: Places) -> None:
        """Write keys and values of a sheet that is read, from its token `first` on, to these places."""

    def forget(self, names: Sequence[str]) -> None:
        """Drop what was read ahead of these."""

    def missed(self, num_sheets: int) -> None:
        """Count sheets that were gone from memory before they had room to wait."""

    def found(self, num_tokens: int) -> None:
        """Count tokens that were loaded for a prompt."""


class Executor(Protocol):
    """The verbs that an engine asks of the network and the memory. A verb that raises may be asked for again."""

    @property
    def facts(self) -> ModelFacts:
        """The facts that never change."""

    @property
    def about(self) -> str | None:
        """A sentence for the user about how passes have run, if there is anything to say."""

    @property
    def sheets(self) -> Sheets | None:
        """Keys and values on disk; None where no cache was asked for."""

    def run(
        self,
        plan: Plan,
        choices: Sequence[Choice] = (),
        *,
        lookahead: bool = False,
        weighing: Weighing | None = None,
        targets: Targets | None = None,
        ahead: Ahead | None = None,
    ) -> tuple[int, ...]:
        """One forward pass, and one token per row by the R `choices`; without choices, no tokens.

        `lookahead`: the pass in which each row is fed the token it gets here would have room, and may be
        begun. `weighing` says which rows' logits are weighed before a token is chosen, `targets` at which
        fed tokens logprobs are wanted besides those of the choices; where there are any, the answer is a
        `Tokens`. The logits of drafted tokens (`Plan.num_drafted`) are kept until the next pass that has some.
        `ahead` is called while the tokens are being chosen; the pass that it gives is begun (`engine/lookahead.py`).
        Raises ManyhandsError if the logits are no numbers.
        """

    @property
    def plans_ahead(self) -> bool:
        """Whether a pass that is begun ahead gains anything here."""

    def tokens_at_once(self, num_tokens: int) -> int:
        """Of a prompt alone with so many tokens, how many the next pass is best fed."""

    @property
    def has_begun(self) -> bool:
        """Whether a pass was begun with the tokens that were chosen last, so that `go_on` can take it up."""

    def go_on(
        self,
        rows: Sequence[int],
        choices: Sequence[Choice],
        *,
        lookahead: bool = False,
        weighing: Weighing | None = None,
        ahead: Ahead | None = None,
    ) -> tuple[int, ...]:
        """One token for each of these rows of the pass that was begun, by the `choices`; otherwise as `run`."""

    def choose(
        self, kept: Sequence[int], choices: Sequence[Choice], *, weighing: Weighing | None = None
    ) -> tuple[int, ...]:
        """One token by each of the `choices`, without a pass: from logits that are kept, by their numbers.

        Drafted tokens are numbered in the order in which they were fed. `weighing` as in `run`.
        """

    def record_ahead(self, told: Callable[[int, int], None]) -> None:
        """Get ready for passes of all sizes, so that none has to wait for it later.

        `told` is called with how much of how much is done.
        """

    def logits(self, plan: Plan) -> Tensor:
        """One forward pass: logits [R, V] of the rows' last tokens, the caller's own."""

    def move(self, moves: Sequence[Move]) -> None:
        """Copy keys and values to other slots, all at once. Made twice in a row it does the same as once."""

    def write_keys(
        self,
        merged: Merged,
        tokens: Ints,
        places: Places,
        found: Places | None = None,
        states: Kept | None = None,
    ) -> None:
        """One forward over a whole past; keys and values of the packed `tokens` [N] go to `places` [N].

        What the past has found (`merge_passes`) is read from memory at `found`. `states`: of a network that keeps some,
        which of them the past begins with, and which it leaves. Raises OutOfMemory where
        the device has no room for the forward.
        """

    def replay(self, merged: Merged, rows: Sequence[int] | None = None) -> Tensor:
        """Logits [len(rows), V] of the given rows of a whole run (default: all), in one forward."""

    def make_up(self, places: Places, seed: int) -> None:
        """Write random keys and values; the same seed and number of places, the same numbers."""

    @property
    def counts(self) -> PassCounts:
        """How passes have run so far: a copy."""

    def fingerprint(self) -> str:
        """A few digits that stand for the weights (`model/fingerprint.py`). Reads all of them, the first time."""

    def peak_bytes(self) -> int | None:
        """The most that a GPU has given out since `forget_peak`; None on other devices."""

    def forget_peak(self) -> None:
        """Begin to measure `peak_bytes` anew."""
