"""The time until the user reads the first word of the reply: thoughts first, or thoughts and reply at once.

    python -m benchmarks.first_word                          Qwen3-8B, eight questions, one run at a time
    python -m benchmarks.first_word --model Qwen/Qwen3-1.7B --budget 4096

Each question is asked of `sequential`, whose reply begins behind its thoughts, and of `async_reasoning`, whose reply begins
while they go on. Counted are forward passes and seconds until the first word of the reply that is no blank, and to the end
of the run. Everything is greedy. The model has to think (a chat template that opens a thinking); else the reply of
`sequential` begins with its first token, and the comparison says nothing: then the program ends with an error.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from statistics import median
from typing import Any

from benchmarks.results import Clock, Results, parser
from manyhands import METHODS, Answer, Engine, model_prompts
from manyhands.errors import InvalidRequest
from manyhands.strategies.events import Event, ReplyWritten
from manyhands.strategies.run_spec import RunSpec
from manyhands.strategies.settings import EndSettings

NAMES = ("sequential", "async_reasoning")
QUESTIONS = (
    "Explain why there are infinitely many primes, and name three primes above 100.",
    "A train leaves at 9:40 and arrives at 13:05, with a stop of 25 minutes. For how long does it move?",
    "Which is larger, 3^40 or 4^31? Show how to tell without computing them.",
    "Plan a three-day visit to Lisbon for two people who like music and dislike museums.",
    "How many whole numbers from 1 to 200 are divisible by 6 or by 10?",
    "Explain to a child of ten why the sky is blue.",
    "In how many ways can 5 people sit around a round table, if two of them want to sit together?",
    "Compare bubble sort and merge sort: how each works, and when either is the better choice.",
)


@dataclass(frozen=True)
class Timed:
    """One run: passes and seconds to its first word (None: there was none), and to its end."""

    first_pass: int | None
    first_seconds: float | None
    passes: int
    seconds: float
    finish_reason: str


def timed(story: Iterable[Event | Answer], clock: Callable[[], float] = time.perf_counter) -> Timed:
    """Listen to a run as it goes on; its answer comes last. A word after the budget counts as none."""
    begun = clock()
    first: tuple[int, float] | None = None
    passes, reason = 0, ""
    for each in story:
        if isinstance(each, Answer):
            passes, reason = each.forward_passes, each.finish_reason
        elif isinstance(each, ReplyWritten) and each.text.strip() and first is None:
            first = (each.forward_pass, clock() - begun)
    seconds = clock() - begun
    if first is not None and reason in ("budget", "context") and first[0] >= passes:
        first = None
    at, after = first or (None, None)
    return Timed(at, after, passes, seconds, reason)


def summed(runs: Iterable[Timed]) -> dict[str, Any]:
    """Medians of the runs that came to a first word, and how many did not."""
    found = list(runs)
    spoke = [(r.first_pass, r.first_seconds) for r in found if r.first_pass and r.first_seconds]
    return {
        "runs": len(found),
        "without_a_word": len(found) - len(spoke),
        "first_pass": median(at for at, _ in spoke) if spoke else None,
        "first_seconds": round(median(after for _, after in spoke), 3) if spoke else None,
        "passes": median(run.passes for run in found),
        "seconds": round(median(run.seconds for run in found), 3),
    }


def main() -> None:
    """All questions by both methods, one run at a time; then the medians."""
    options = parser(__doc__, minutes=20)
    options.add_argument("--model", default="Qwen/Qwen3-8B")
    options.add_argument("--budget", type=int, default=2048)
    arguments = options.parse_args()
    clock = Clock(arguments.minutes)
    results = Results("first_word", arguments, clock)
    engine = Engine.load(
        arguments.model, device=arguments.device, backend=arguments.backend, memory_tokens=32768
    )
    text = engine.text
    if not text.thinking and not arguments.tiny:
        raise InvalidRequest(
            f"the chat template of {arguments.model} opens no thinking; expected a model that thinks",
            hint="Qwen/Qwen3-1.7B is a small one: --model Qwen/Qwen3-1.7B",
        )
    results.put(model=arguments.model, budget=arguments.budget)
    words, budget = model_prompts(arguments.model), 40 if arguments.tiny else arguments.budget
    runs: dict[str, list[Timed]] = {name: [] for name in NAMES}
    for question in QUESTIONS[: 1 if arguments.tiny else None]:
        for name in NAMES:
            method = METHODS[name]
            settings = method.settings(budget=budget, end=EndSettings(reply=False, finisher=False))
            if not clock.allows(runs[name][-1].seconds if runs[name] else 0):
                results.leave_out(f"{name}: {question}", "no time is left")
                continue
            spec = RunSpec(method, settings, getattr(words, method.prompt), question)
            run = timed(engine.stream(spec.strategy(text)))
            runs[name].append(run)
            results.add("run", method=name, question=question, **vars(run))
    for name, found in runs.items():
        if found:
            results.add("first_word", method=name, **summed(found))


if __name__ == "__main__":
    main()
