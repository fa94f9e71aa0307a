"""AsyncReasoning and AsyncThink through the real engine, against definitions that are dense.

AsyncReasoning: each token is read by two rows at two different positions, so no single dense pass has its
logits. The oracle is Hugging Face's network over explicit lists of tokens (`tests/model/dense_team.py`), with the
views written out by hand, in float64. AsyncThink: the organiser's text, results included, is one causal text, and so
is each worker's; here the oracle is one dense pass for each.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Mapping

import torch
from torch import Tensor

from manyhands.cache.step import Step
from manyhands.engine.engine import Engine
from manyhands.engine.sampling import choose
from manyhands.model.adapter import ModelAdapter
from manyhands.prompts.async_reasoning import AsyncReasoningPrompt
from manyhands.prompts.async_think import AsyncThinkPrompt
from manyhands.strategies.async_reasoning import async_reasoning
from manyhands.strategies.async_think import async_think
from manyhands.strategies.base import Strategy
from manyhands.strategies.settings import AsyncReasoningSettings, AsyncThinkSettings, EndSettings
from tests.model.dense_team import DenseRow, DenseTeam
from tests.model.double import DoublePrecision
from tests.model.families_zoo import tiny_model, tiny_models
from tests.strategies.driver import small_text

TEXT = small_text()
NO_END = EndSettings(answer="none", reply=False)
VISIBLE = 1e-5
THINKS, WRITES = "A b.\n\nC d e f g h.\n\nI j k l m", "X y z.\n\nU v w x y z u v w x y z"
REASONING = AsyncReasoningPrompt(
    rules="Q: {question}",
    reply_header="[R]",
    thoughts_header="[T]",
    writer_header="[W]{think_end}",
    probe="[E?",
)
THINK = AsyncThinkPrompt(rules="Q: {question}", worker_rules="W: {query}")
LINE = "<FORK-1>ab</FORK-1>Hm<JOIN-1>"
RESULT = "\n<RETURN-1>\none\n</RETURN-1>\n"


def network() -> torch.nn.Module:
    config = copy.deepcopy(tiny_models()["qwen3"].args[0])
    config.vocab_size = 600
    config._attn_implementation = "eager"
    with DoublePrecision():
        return tiny_model(config).double()


def by_engine(strategy: Strategy, said: Mapping[str, str], first: str) -> dict[str, list[Tensor]]:
    """Logits of each writer, row by row, until `first` has said its words. Every probe is a yes."""
    mouths = {name: deque(TEXT.encode(words)) for name, words in said.items()}
    found: dict[str, list[Tensor]] = {}
    with DoublePrecision(), torch.no_grad():
        engine = Engine(ModelAdapter(network()), memory_tokens=4096)  # type: ignore[arg-type]
        sent: tuple[int, ...] | None = None
        while mouths[first]:
            asked = strategy.send(sent)
            sent = None
            if not isinstance(asked, Step):
                continue
            logits = engine.forward(asked)
            chosen = list(choose(logits, [row.choice for row in asked.rows]).tokens())
            for index, row in enumerate(asked.rows):
                name = row.writer or row.view.own.name
                found.setdefault(name, []).append(logits[index])
                if name == "probe":
                    assert row.choice.allowed is not None
                    assert chosen[index] in row.choice.allowed
                    yes = TEXT.encode(" yes")
                    chosen[index] = next(t for t in yes if t in row.choice.allowed)
                elif mouth := mouths.get(row.writer or ""):
                    chosen[index] = mouth.popleft()
            sent = tuple(chosen)
        strategy.close()
    return found


# -- AsyncReasoning ----------------------------------------------------------------------------------


def reasoning_by_hand(
    passes: int, *, blind: bool = False, swapped: bool = False
) -> dict[str, list[Tensor]]:
    """The same, with views written out. `blind` (the thinker reads no reply) and `swapped` are mistakes."""
    said = "said" if not blind else "nothing"
    thinker = ("prompt", "[R]", said, "[T]", "thought")
    writer = ("prompt", "thought", "[W]", "said")
    if swapped:
        thinker = ("prompt", "[R]", "[T]", said, "thought")
    thoughts, words = list(TEXT.encode(THINKS)), list(TEXT.encode(WRITES))
    ends = [n for n, t in enumerate(thoughts) if TEXT.decode([t]).endswith(".\n\n")]
    pause = next(n for n, t in enumerate(words) if TEXT.decode([t]).endswith(".\n\n"))
    found: dict[str, list[Tensor]] = {"thinker": [], "writer": [], "probe": []}
    question = [*TEXT.encode("[E?"), *common_of_answers()]
    with DoublePrecision():
        team = DenseTeam(network(), 256)  # type: ignore[arg-type]
        num_said = num_probes = 0
        writes = asks = False
        for number in range(passes):
            rows = [DenseRow(["prompt"], TEXT.chat_prompt("Q: ?"))] if not number else []
            rows += [DenseRow(["prompt", "[R]"], TEXT.encode("[R]"))] if not number else []
            names = []
            own = thinker if number else thinker[:-1]
            rows.append(DenseRow(own, [thoughts[number - 1]] if number else TEXT.encode("[T]")))
            names.append("thinker")
            if writes:
                view = writer if num_said else writer[:-1]
                rows.append(
                    DenseRow(view, [words[num_said - 1]] if num_said else TEXT.encode("[W]"))
                )
                names.append("writer")
            if asks:
                num_probes += 1
                rows.append(DenseRow([*thinker, f"probe {num_probes}"], question))
                names.append("probe")
            logits = team.step(rows)
            for name, row in zip(names[::-1], logits.flip(0), strict=False):
                found[name].append(row)
            num_said += writes
            is_paused = writes and num_said == pause + 1
            writes = (writes or asks) and not is_paused
            asks = number in ends and not writes
    return found


def common_of_answers() -> tuple[int, ...]:
    yes, no = TEXT.encode(" yes"), TEXT.encode(" no")
    size = next(n for n, (one, other) in enumerate(zip(yes, no, strict=False)) if one != other)
    return yes[:size]


def test_a_thinker_and_a_writer_read_each_other_as_the_views_say() -> None:
    """Positions, masks and the passes in which each is read; two mistakes are seen."""
    settings = AsyncReasoningSettings(budget=300, probe_every=0, end=NO_END)
    passes = len(TEXT.encode(THINKS))
    strategy = async_reasoning("?", TEXT, settings, REASONING)
    found = by_engine(strategy, {"thinker": THINKS, "writer": WRITES}, "thinker")
    right = reasoning_by_hand(passes)
    assert [len(found[name]) for name in right] == [len(rows) for rows in right.values()]
    assert len(right["writer"]) >= 5
    assert len(right["probe"]) == 2
    for name, rows in right.items():
        assert (torch.stack(found[name]) - torch.stack(rows)).abs().max() < 1e-9, name
    for mistake in ("blind", "swapped"):
        wrong = reasoning_by_hand(passes, **{mistake: True})
        assert (torch.stack(wrong["thinker"]) - torch.stack(right["thinker"])).abs().max() > VISIBLE


# -- AsyncThink --------------------------------------------------------------------------------------


def dense(text: str, tokens: tuple[int, ...], last: int, gap: int = 0) -> Tensor:
    """Logits of the last rows of one causal text behind a chat prompt. `gap`: a mistake in positions."""
    whole = (*TEXT.chat_prompt(text), *tokens)
    first = len(whole) - last - 1
    positions = [n + gap * (n > first) for n in range(len(whole))]
    with DoublePrecision(), torch.no_grad():
        logits: Tensor = network()(
            input_ids=torch.tensor([whole]), position_ids=torch.tensor([positions]), use_cache=False
        ).logits[0]
    return logits[-last:]


def test_an_organiser_and_its_workers_read_texts_of_their_own() -> None:
    """The organiser: one causal text with the result in it. The worker: its sub-query alone."""
    settings = AsyncThinkSettings(budget=300, end=NO_END)
    said = {"writer": LINE + "xyz", "worker 1": "one</RETURN>"}
    strategy = async_think("?", TEXT, settings, THINK)
    behind = TEXT.encode("xyz")
    found = by_engine(strategy, said, "writer")
    line = (*TEXT.encode(LINE), *TEXT.encode(RESULT), *behind[:-1])
    right = dense("Q: ?", line, len(behind))
    mine = torch.stack(found["writer"][-len(behind) :])
    assert (mine - right).abs().max() < 1e-9
    assert (dense("Q: ?", line, len(behind), gap=1) - right).abs().max() > VISIBLE
    without = (*TEXT.encode(LINE), *behind[:-1])
    assert (dense("Q: ?", without, len(behind)) - right).abs().max() > VISIBLE
    words = TEXT.encode("one</RETURN>")
    worker = dense("W: ab", words[:-1], len(words))
    assert (torch.stack(found["worker 1"]) - worker).abs().max() < 1e-9
    leaked = dense("W: cd", words[:-1], len(words))
    assert (leaked - worker).abs().max() > VISIBLE


def test_the_words_above_are_cut_where_the_oracles_cut_them() -> None:
    assert (*TEXT.encode(LINE), *TEXT.encode(RESULT)) == TEXT.encode(LINE + RESULT)
    assert [TEXT.decode([t]) for t in TEXT.encode(THINKS)].count(".\n\n") == 2
