"""Many programs for many problems behind the same examples: one level of sharing, and two.

    python -m benchmarks.apps --model Qwen/Qwen2.5-Coder-7B --problems 120 --samples 128 --at-once 4,16
    python -m benchmarks.apps --model bundled --source fixture --problems 4 --samples 4 --tokens 8

The setting of Hydragen, section 4.4: two worked examples (shared by all), a problem (shared by its samples),
128 samples of 512 tokens. With one level the problem stands in memory once for each sample, so fewer
problems fit at a time. Both are measured with the same number of problems at once, and two levels also with
more, as in the paper, so that the two gains are told apart. Prompts are the texts alone, without a chat
template; no program is run here.
"""

from __future__ import annotations

import argparse
import json
import time

from manyhands.cache.step import Choice
from manyhands.engine.engine import Engine
from manyhands.strategies.settings import SharedSettings
from manyhands.strategies.shared_prefix import Completions, shared_prefix
from manyhands.tasks.code import apps_questions


def measure(
    engine: Engine, document: str, questions: list[str], arguments: argparse.Namespace, mode: str
) -> dict[str, object]:
    """One pass over all problems. `mode` is levels and problems at once: `2x16`."""
    levels, at_once = (int(part) for part in mode.split("x"))
    text = engine.text
    shots = text.encode(f"{document}\n\n")
    prompts = [(*shots, *text.encode(question)) for question in questions]
    settings = SharedSettings(
        samples=arguments.samples,
        max_tokens=arguments.tokens,
        choice=Choice(temperature=arguments.temperature, forbidden=text.eos),
        rows=at_once * arguments.samples,
        shareable=len(shots) if levels == 1 else None,
    )
    began, num_tokens = time.perf_counter(), 0
    for first in range(0, len(prompts), at_once):
        answer = engine.run(shared_prefix(prompts[first : first + at_once], text, settings))
        assert isinstance(answer, Completions)
        num_tokens += sum(answer.tokens)
    seconds = time.perf_counter() - began
    return {
        "levels": levels,
        "problems_at_once": at_once,
        "problems": len(prompts),
        "samples": arguments.samples,
        "example_tokens": len(shots),
        "seconds": round(seconds, 3),
        "tokens": num_tokens,
        "tokens_per_second": round(num_tokens / seconds, 1),
    }


def main(words: list[str] | None = None) -> list[dict[str, object]]:
    """The lines of all modes, printed as they come."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", default="bundled")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--source", default=None)
    parser.add_argument("--problems", type=int, default=120)
    parser.add_argument("--samples", type=int, default=128)
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--temperature", type=float, default=0.8)
    parser.add_argument("--at-once", default="1,4", help="problems: for both, and for two levels")
    arguments = parser.parse_args(words)
    few, many = (int(part) for part in arguments.at_once.split(","))
    document, questions = apps_questions(arguments.source, arguments.problems)
    lines = []
    for mode in (f"1x{few}", f"2x{few}", f"2x{many}"):
        engine = load(arguments)
        line = measure(engine, document, questions, arguments, mode)
        print(json.dumps(line), flush=True)
        lines.append(line)
    return lines


def load(arguments: argparse.Namespace) -> Engine:
    """A fresh engine for each mode, so that none finds what another left."""
    from manyhands import bundled

    path = bundled.path() if arguments.model == "bundled" else arguments.model
    return Engine.load(path, device=arguments.device)


if __name__ == "__main__":
    main()
