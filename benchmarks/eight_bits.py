"""Keys and values in eight bits: do the same questions get the same answers?

    python -m benchmarks.eight_bits --samples 256                     the bundled model, teams of 1, 2 and 4
    python -m benchmarks.eight_bits --name smollm2 --model SmolLM2-135M-Instruct.Q4_1.gguf \
        --adapter recipes/smollm2/adapter --kinds fresh,unseen

Lists of problems are solved greedily, with keys and values in the dtype of the network and in int8
(`ModelSettings.kv_cache_dtype`). For each team and kind of list: how many answers are the same, how many of each are
right, whether every token is the same, and the bytes that one token takes. The control has no eight bits: the same
lists once more, with half as many beside each other. Products of another size may round otherwise in their last
bits, and of what this changes eight bits are not the cause. A yardstick, where plain torch reads the keys: keys and values rounded
to bfloat16, as a network in that dtype stores them, and nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.bundled_exam import weights_of
from benchmarks.engine_parts import executor_of
from benchmarks.results import Clock, Results, parser
from manyhands import METHODS, Engine, bundled, model_prompts
from manyhands.attention.store import LayerStore, Moved, Targets
from manyhands.evaluation.candidates import Answered, Asked, MethodCandidate
from manyhands.strategies.run_spec import RunSpec
from manyhands.strategies.settings import SoloSettings, TeamSettings
from manyhands.tasks.catalogue import make_task
from manyhands.tasks.task import Sample, Task, TaskOptions

MEMORY = 1 << 17  # tokens
BUDGET = 500  # passes
BESIDE = 32  # lists that are solved at a time
Answers = list[Answered]


class Bfloat16Store(LayerStore):
    """Keys and values in the dtype of the network that are numbers of bfloat16."""

    def write(self, targets: Targets, k: Tensor, v: Tensor) -> None:
        """See `LayerStore.write`."""
        super().write(targets, k, _in_bfloat16(v))
        self.keys[targets.slots] = _in_bfloat16(self.keys[targets.slots])

    def move(self, moved: Moved) -> None:
        """See `LayerStore.move`."""
        super().move(moved)
        self.keys[moved.targets] = _in_bfloat16(self.keys[moved.targets])


def _in_bfloat16(x: Tensor) -> Tensor:
    return x.to(torch.bfloat16).to(x.dtype)


def store_in_bfloat16(engine: Engine) -> None:
    """From here on keys and values are rounded where they are stored."""
    memory = executor_of(engine).memory
    changed = {x: Bfloat16Store(x.keys, x.values, x.rope) for x in memory.stores}
    memory.stores = tuple(changed[store] for store in memory.stores)
    memory.stacks = tuple(
        replace(stack, stores=tuple(changed[store] for store in stack.stores))
        for stack in memory.stacks
    )


def answers(
    engine: Engine, words: Path, workers: int, samples: list[Sample], beside: int
) -> Answers:
    """The answers to all samples, in their order, so many `beside` each other."""
    method = METHODS["sequential" if workers == 1 else "hogwild"]
    common: dict[str, Any] = {"budget": BUDGET, "snapshots": ()}
    settings = SoloSettings(**common) if workers == 1 else TeamSettings(workers=workers, **common)
    prompt = getattr(model_prompts(words), method.prompt)
    spec = RunSpec(method, settings, prompt, context=engine.facts.max_positions)
    taker = MethodCandidate(engine, engine.text, spec, concurrency=beside)
    found = {each.asked.key: each for each in taker.answered(map(Asked, samples))}
    return [found[sample.id, 0] for sample in samples]


def compared(task: Task, samples: list[Sample], plain: Answers, other: Answers) -> dict[str, Any]:
    """How many answers and texts are the same, the questions whose answers differ, and how many are right."""
    pairs = list(zip(plain, other, strict=True))
    differ = [s.id for s, (a, b) in zip(samples, pairs, strict=True) if a.answer != b.answer]
    return {
        "same_answers": round(1 - len(differ) / len(pairs), 4),
        "same_texts": round(sum(a.text == b.text for a, b in pairs) / len(pairs), 4),
        "right": round(_right(task, samples, other), 4),
        "differ": differ,
    }


def _right(task: Task, samples: list[Sample], found: Answers) -> float:
    values = [
        task.grade(sample, each.answer, each.text).value
        for sample, each in zip(samples, found, strict=True)
    ]
    return sum(values) / len(values)


def line(
    engines: Sequence[Engine],
    words: Path,
    workers: int,
    task: Task,
    samples: list[Sample],
    controls: int,
    beside: int,
) -> dict[str, Any]:
    """One team on one kind of list; of the engines the second has eight bits, the third bfloat16. So many lists are asked again."""
    plain = answers(engines[0], words, workers, samples, beside)
    rounded = answers(engines[1], words, workers, samples, beside)
    again = answers(engines[0], words, workers, samples[:controls], beside // 2)
    halved = [answers(engine, words, workers, samples, beside) for engine in engines[2:]]
    ours = compared(task, samples, plain, rounded)
    control = compared(task, samples[:controls], plain[:controls], again)
    return {
        "workers": workers,
        "samples": len(samples),
        "same_answers": ours["same_answers"],
        "same_texts": ours["same_texts"],
        "right": round(_right(task, samples, plain), 4),
        "right_in_eight_bits": ours["right"],
        "differ": ours["differ"],
        **({"in_bfloat16": compared(task, samples, plain, halved[0])} if halved else {}),
        "control": {
            "samples": len(again),
            **{name: control[name] for name in ("same_answers", "same_texts")},
        },
        "token_bytes": engines[0].facts.token_bytes,
        "token_bytes_in_eight_bits": engines[1].facts.token_bytes,
    }


def main(argv: list[str] | None = None) -> None:
    """Measure all kinds with all teams."""
    options = parser(__doc__, minutes=20)
    options.add_argument("--samples", type=int, default=256, help="lists of a line")
    options.add_argument("--controls", type=int, default=256, help="of these, for the control")
    options.add_argument("--beside", type=int, default=BESIDE, help="solved at a time")
    options.add_argument("--count", type=int, default=5, help="problems of a list")
    options.add_argument("--kinds", default="bare", help="kinds of problems, comma-separated")
    options.add_argument("--teams", default="1,2,4", help="workers, comma-separated")
    options.add_argument("--model", type=Path, default=bundled.path())
    options.add_argument("--adapter", default=None)
    options.add_argument("--name", default="", help="of the model, in the name of the results")
    arguments = options.parse_args(argv)
    tiny = arguments.tiny
    clock = Clock(arguments.minutes)
    results = Results("_".join(filter(None, ("eight_bits", arguments.name))), arguments, clock)
    load = partial(
        Engine.load,
        arguments.model,
        device=arguments.device,
        backend=arguments.backend,
        memory_tokens=MEMORY,
        lora=arguments.adapter,
    )
    engines = [load(kv_cache_dtype=kind) for kind in ("auto", "int8")]
    facts = engines[0].facts
    if facts.backend == "torch":
        engines.append(load())
        store_in_bfloat16(engines[2])
    results.put(
        model=arguments.name or "bundled",
        weights=weights_of(arguments.model, arguments.adapter),
        dtype=facts.dtype,
        backend=facts.backend,
        count=2 if tiny else arguments.count,
        budget=BUDGET,
    )
    words = Path(arguments.adapter or arguments.model)
    spent = 0.0
    for kind in arguments.kinds.split(","):
        for workers in map(int, arguments.teams.split(",")[: 1 if tiny else None]):
            if not clock.allows(spent):
                results.leave_out(f"{kind}, {workers} workers", "no time")
                continue
            began = clock.spent
            wanted = TaskOptions(
                limit=2 if tiny else arguments.samples,
                count=2 if tiny else arguments.count,
                kind=kind,
            )
            task = make_task("arithmetic", wanted)
            samples, controls = list(task.samples()), arguments.controls
            beside = arguments.beside
            with results.surviving(f"{kind}, {workers} workers"):
                results.add(
                    "teams",
                    problems=kind,
                    **line(engines, words, workers, task, samples, controls, beside),
                )
            spent = clock.spent - began


if __name__ == "__main__":
    main()
