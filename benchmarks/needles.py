"""Many questions about one long text: shared, apart, and without any attention.

    python -m benchmarks.needles --model 01-ai/Yi-6B-200K --questions 64,256,1024
    python -m benchmarks.needles --sentences 20 --shots 1 --questions 4 --tokens 4

The setting of Hydragen, section 4.3: a document of about twenty thousand tokens with five worked examples
behind it, and so many questions that are asked at the same time. Time to process the document is left out.
`no attention` is wrong on purpose: the same passes with an attention that reads nothing, the most that any
attention could reach. `apart`: the document lies in memory once, and every row reads it for itself. Questions beyond 256 are asked again, as in the paper.
"""

from __future__ import annotations

import argparse
import json
import time
from contextlib import ExitStack
from itertools import cycle, islice

from benchmarks.apps import load
from benchmarks.engine_parts import executor_of
from benchmarks.prefix import Apart, no_attention, replaced
from manyhands.cache.prefixes import PrefixTree
from manyhands.cache.step import Choice
from manyhands.engine.backends import make_passes
from manyhands.engine.engine import Engine
from manyhands.strategies.settings import SharedSettings
from manyhands.strategies.shared_prefix import shared_prefix
from manyhands.tasks.catalogue import make_task
from manyhands.tasks.task import Sample, TaskOptions

MODES = ("shared", "no attention", "apart")


def measure(engine: Engine, samples: list[Sample], mode: str, num_tokens: int) -> dict[str, object]:
    """Seconds in which all questions are answered, each with so many tokens."""
    text, executor = engine.text, executor_of(engine)
    document = text.encode(f"{samples[0].document}\n\n")
    prompts = [(*document, *text.encode(sample.question)) for sample in samples]
    settings = SharedSettings(
        max_tokens=num_tokens,
        choice=Choice(forbidden=text.eos),
        rows=len(prompts),
    )
    tree = PrefixTree(engine.pool)
    engine.run(shared_prefix(prompts[:1], text, settings, tree=tree))  # the document is in memory
    with ExitStack() as stack:
        if mode == "no attention":
            silent = no_attention(executor.backend)
            passes = make_passes(executor.adapter, executor.memory, silent, graphs=True)
            stack.enter_context(replaced(executor, "passes", passes))
        if mode == "apart":
            stack.enter_context(replaced(engine, "planner", Apart(engine.planner)))
        began = time.perf_counter()
        engine.run(shared_prefix(prompts, text, settings, tree=tree))
        seconds = time.perf_counter() - began
    return {
        "mode": mode,
        "questions": len(prompts),
        "document_tokens": len(document),
        "seconds": round(seconds, 3),
    }


def main(words: list[str] | None = None) -> list[dict[str, object]]:
    """The lines of all modes and numbers of questions, printed as they come."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", default="bundled")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--questions", default="16,64,256")
    parser.add_argument("--sentences", type=int, default=None)
    parser.add_argument("--shots", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=16)
    arguments = parser.parse_args(words)
    options = TaskOptions(
        sentences=arguments.sentences,
        shots=arguments.shots,
        count=None if arguments.sentences is None else 4,
    )
    known = make_task("needles", options).samples()
    lines = []
    for count in (int(part) for part in arguments.questions.split(",")):
        for mode in MODES:
            samples = list(islice(cycle(known), count))
            line = measure(load(arguments), samples, mode, arguments.tokens)
            print(json.dumps(line), flush=True)
            lines.append(line)
    return lines


if __name__ == "__main__":
    main()
