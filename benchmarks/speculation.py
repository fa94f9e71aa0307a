"""How many passes guesses save, and on a GPU how much time: the bundled model's tasks, and text that is copied.

    python -m benchmarks.speculation --device cpu
    python -m benchmarks.speculation --device cuda          writes speculation_gpu.json

Counted are passes and tokens; how long a pass of more tokens takes is a matter of the device, so seconds are taken on
a GPU alone, where one engine that got ready runs a line without guesses, and another one with them, each a second time. Each line is run
without guesses and with them. The gate: what is written must be the same. In bfloat16 a pass of nine tokens rounds
otherwise than one of one token, and the likeliest token may be another one; a line that differs is run again in float32.

    tokens per pass    tokens that were chosen for writers, over passes; with guesses and without
    drafted, accepted  guesses that passes have checked, and those that were what the row then wrote
    fed                tokens fed for each token that was chosen: what guesses cost

*Copied* is the best there can be: a row is made to repeat what its prompt says, token by token, by a choice that
allows no other token. *Completed* leaves that to the model: its prompt is a list of problems and the first part of
the same list, and it goes on as it likes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.results import Clock, Results, parser
from manyhands import METHODS, Engine, bundled, model_prompts
from manyhands.cache.block import Block
from manyhands.cache.step import Choice, Row, Step
from manyhands.cache.view import View
from manyhands.strategies.base import Answer, Strategy
from manyhands.strategies.prompt_sharing import share_prompt
from manyhands.strategies.run_spec import RunSpec
from manyhands.strategies.settings import SharedSettings
from manyhands.strategies.shared_prefix import Prompt, shared_prefix
from manyhands.tasks.catalogue import make_task
from manyhands.tasks.task import TaskOptions

GUESSES = 8
WARM = Choice(temperature=0.7)


@dataclass(frozen=True)
class Work:
    """A line of the table: how its runs are made, one behind another on one engine."""

    name: str
    runs: Callable[[Engine, int], Sequence[Strategy]]


def questions(count: int) -> list[str]:
    """Lists of five problems as the bundled model knows them."""
    task = make_task("arithmetic", TaskOptions(limit=count, count=5))
    return [sample.question for sample in task.samples()]


def method(name: str, **choices: Any) -> Callable[[Engine, int], Sequence[Strategy]]:
    """Runs of a method, each with its reply."""
    about = METHODS[name]
    words = getattr(model_prompts(bundled.path()), about.prompt)
    settings = about.settings(**choices)

    def runs(engine: Engine, count: int) -> Sequence[Strategy]:
        spec = RunSpec(about, settings, words, context=engine.facts.max_positions)
        return [
            share_prompt(spec.asked(question).strategy(engine.text), engine.prefixes)
            for question in questions(count)
        ]

    return runs


def completed(choice: Choice) -> Callable[[Engine, int], Sequence[Strategy]]:
    """The model goes on with a list that stands in its prompt once already."""

    def runs(engine: Engine, count: int) -> Sequence[Strategy]:
        text, made = engine.text, []
        for question in questions(count):
            tokens = text.encode(question)
            prompt = Prompt((*tokens, *tokens[: len(tokens) // 4]))
            settings = SharedSettings(max_tokens=96, choice=choice)
            made.append(shared_prefix([prompt], text, settings, tree=engine.prefixes))
        return made

    return runs


def copied(engine: Engine, count: int) -> Sequence[Strategy]:
    """A row that repeats its prompt without a mistake."""
    text = engine.text
    return [_copying(text.encode(question)) for question in questions(count)]


def _copying(text: Sequence[int]) -> Strategy:
    prompt, own = Block("prompt"), Block("copy")
    yield Step([Row(View([prompt]), tuple(text))])
    view = View([prompt.freeze(), own])
    feed = text[0]
    for token in text[1:]:
        tokens = yield Step([Row(view, (feed,), Choice(allowed=frozenset({token})), "writer")])
        assert isinstance(tokens, tuple), "a step is answered with one token per row"
        (feed,) = tokens
    return Answer(text=str(own.tokens))


WORKS = (
    Work("copied", copied),
    Work("completed, greedy", completed(Choice())),
    Work("completed, temperature 0.7", completed(WARM)),
    Work("sequential, greedy", method("sequential")),
    Work("sequential, temperature 0.7", method("sequential", choice=WARM)),
    Work("branches", method("branches")),
    Work("self_consistency of 4, with its final row", method("self_consistency", choice=WARM)),
    Work("hogwild, 2 workers, with its reply", method("hogwild")),
)


def loaded(speculate: int, device: str, dtype: str = "auto", **choices: Any) -> Engine:
    """An engine of the bundled model; on a GPU it gets ready as a server does."""
    engine = Engine.load(
        bundled.path(),
        device=device,
        dtype=dtype,
        memory_tokens=32768,
        speculate=speculate,
        **choices,
    )
    engine.get_ready()
    return engine


def counted(work: Work, count: int, engine: Engine) -> tuple[list[str], dict[str, Any]]:
    """The texts, and what was counted. Prompts are read anew: nothing that was read before is found."""
    engine.prefixes.clear()
    before, began = engine.usage, time.perf_counter()
    texts = [engine.run(strategy).text for strategy in work.runs(engine, count)]
    seconds = time.perf_counter() - began
    used = engine.usage - before
    facts = {
        "passes": used.forward_passes,
        "tokens": used.tokens_chosen,
        "tokens_per_pass": round(used.tokens_chosen / used.forward_passes, 3),
        "fed_per_token": round(used.tokens_fed / used.tokens_chosen, 3),
        "drafted": used.tokens_drafted,
        "accepted": used.tokens_accepted,
    }
    if engine.facts.is_on_gpu:
        facts["seconds"] = round(seconds, 4)
        facts["tokens_per_second"] = round(used.tokens_chosen / seconds, 1)
    return texts, facts


def both(work: Work, count: int, engines: Sequence[Engine]) -> dict[str, Any] | None:
    """A line: without guesses, by the first engine, and with them, by the second. None if texts differ."""
    if engines[0].facts.is_on_gpu:
        for engine in engines:  # the cost of a first time is paid here
            counted(work, count, engine)
    (plain, without), (guessed, with_guesses) = (counted(work, count, each) for each in engines)
    if plain != guessed:
        return None
    return {
        "name": work.name,
        "saved": round(1 - with_guesses["passes"] / without["passes"], 3),
        "dtype": engines[0].facts.dtype,
        "without": without,
        "guessed": with_guesses,
    }


def main(words: list[str] | None = None) -> None:
    """Count all lines."""
    options = parser(__doc__, minutes=20.0)
    options.add_argument("--count", type=int, default=12, help="runs of each line")
    arguments = options.parse_args(words)
    clock, device = Clock(arguments.minutes), arguments.device
    on_gpu = device.startswith("cuda")
    results = Results("speculation_gpu" if on_gpu else "speculation", arguments, clock)
    results.put(guesses=GUESSES, runs=1 if arguments.tiny else arguments.count)
    engines: dict[str, list[Engine]] = {}
    for work in WORKS[:1] if arguments.tiny else WORKS:
        if not clock.allows(5 if on_gpu else 30):
            results.leave_out(work.name, "no time")
            continue
        count = 1 if arguments.tiny else arguments.count
        line = None
        for dtype in ("auto", "float32") if on_gpu else ("auto",):
            if dtype not in engines:
                engines[dtype] = [loaded(speculate, device, dtype) for speculate in (0, GUESSES)]
                clock.say(f"engines in {engines[dtype][0].facts.dtype} are ready")
            line = both(work, count, engines[dtype])
            if line is not None:
                break
            clock.say(f"{work.name}: another text with guesses in {engines[dtype][0].facts.dtype}")
        if line is None:
            raise SystemExit(f"the gate is red: {work.name} wrote another text with guesses")
        results.add("lines", **line)


if __name__ == "__main__":
    main()
