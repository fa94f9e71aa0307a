"""From the options of an exam to who takes it: the task, the candidate, and the header of its records.

The key of an endpoint is read here and goes nowhere but to that endpoint.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from manyhands.cache.step import Choice
from manyhands.cli.exam_options import EXAM_METHODS, EndpointChoice, EvalOptions, JudgeOptions
from manyhands.cli.guard import tell
from manyhands.cli.loading import load_engine, name_of, place_facts, prompts_for
from manyhands.cli.options import BUNDLED
from manyhands.cli.output import Notes, version_of
from manyhands.errors import ContextTooLong, InvalidRequest
from manyhands.evaluation.candidates import (
    Asked,
    Candidate,
    EndpointCandidate,
    MethodCandidate,
    check_endpoint,
)
from manyhands.evaluation.choices import choose, known, pairs
from manyhands.evaluation.endpoint import NO_KEY, Endpoint, EndpointOptions
from manyhands.evaluation.judge import needs_judge
from manyhands.evaluation.record import Header
from manyhands.evaluation.run import checked_samples
from manyhands.evaluation.shared import SHARED_PREFIX, check_budgets, shared_method
from manyhands.evaluation.voices import EndpointVoice, EngineVoice, Voice
from manyhands.prompts import Prompts, load_prompts
from manyhands.prompts.chain_of_draft import drafted
from manyhands.strategies.methods import Method
from manyhands.strategies.plain import to_plain
from manyhands.strategies.settings import EndSettings, SoloSettings
from manyhands.tasks.catalogue import make_task
from manyhands.tasks.generated import BUNDLED_SENTENCES, Needles
from manyhands.tasks.task import FIXTURE, Sample, Task, TaskOptions, UnusedOption
from manyhands.tasks.world import outside_world
from manyhands.text import Text

# The settings that have an option of their own, each with its option.
_OPTIONS = {
    "workers": "workers",
    "layout": "layout",
    "seed": "seed",
    "end.reply": "reply",
    **{f"choice.{name}": name for name in ("temperature", "top_k", "top_p", "min_p")},
}


def task_of(options: EvalOptions) -> tuple[Task, Sequence[Sample]]:
    """The task and its samples, looked at."""
    try:
        task = make_task(
            options.task,
            TaskOptions(
                limit=options.limit,
                seed=options.task_seed,
                source=options.source,
                count=options.count,
                kind=options.kind,
                sentences=_sentences(options),
            ),
        )
    except UnusedOption as error:  # said in the words of the command line
        uses = ["--task-seed" if name == "seed" else f"--{name}" for name in error.uses]
        raise InvalidRequest(
            f"--{error.name} {error.value} is not for --task {error.task}",
            hint=f"leave it out; {error.task} takes {', '.join(uses)}",
        ) from error
    return task, checked_samples(task)


def facts_of_task(options: EvalOptions) -> dict[str, Any]:
    """What makes the samples what they are; how many of them are asked may change."""
    source = options.source
    if source not in (None, FIXTURE) and Path(source).exists():
        source = str(Path(source).resolve())
    chosen = {name: getattr(options, name) for name in ("count", "kind")}
    chosen["sentences"] = _sentences(options)
    return {**chosen, "seed": options.task_seed, "source": source}


def _sentences(options: EvalOptions) -> int | None:
    """Length of a document. The bundled model reads shorter ones than the task usually has."""
    is_bundled = options.endpoint is None and name_of(options.model) == BUNDLED
    if options.sentences is None and options.task == Needles.name and is_bundled:
        return BUNDLED_SENTENCES
    return options.sentences


def method_candidate(
    options: EvalOptions, method: Method, budgets: tuple[int, ...], samples: Sequence[Sample]
) -> tuple[Candidate, Header]:
    """A method on a model of our own, and how its records begin."""
    settings, changed = _settings(options, method, budgets, samples)
    # Some methods have none to be named by, some leave it open (skeleton's 0).
    named = getattr(settings, "workers", 0)
    workers = named or 1
    if method.name == SHARED_PREFIX:
        check_budgets(budgets)
    model = name_of(options.model)
    if model == BUNDLED and (reason := outside_world(Asked(samples[0]).text, workers, method.name)):
        tell(reason, "warning: ", "yellow")
    prompt = _words(prompts_for(model, options.prompts), options, method)
    engine, text = load_engine(model, options, Notes())
    if method.name == SHARED_PREFIX:
        method = shared_method(engine.prefixes)
    _check_documents(samples, text, engine.facts.max_positions)
    if options.repeats > 1 and settings.choice.temperature == 0:
        tell("at temperature 0 every repeat is the same", "warning: ", "yellow")
    watched = frozenset(sample.id for sample in samples[: options.transcripts])
    context = engine.facts.max_positions
    candidate = MethodCandidate(
        engine, text, method, settings, prompt, options.concurrency, context, watched
    )
    place = place_facts(engine, options)
    if options.quantise != "auto":  # other numbers are another model
        place["weights"] += f", {options.quantise}"
    return candidate, Header(
        task=options.task,
        method=method.name,
        label=options.label or _label(method.name, named, changed, options.draft),
        workers=workers,
        names=method.names(settings, prompt),
        settings=to_plain(settings),
        prompts=to_plain(prompt),
        budgets=budgets,
        model=model,
        fingerprint=engine.executor.fingerprint(),
        concurrency=options.concurrency,
        date=_now(),
        **{name: place[name] for name in ("device", "dtype", "backend", "weights", "versions")},
    )


def _words(prompts: Prompts, options: EvalOptions, method: Method) -> Any:
    """What is said to the model: the table of this method."""
    return getattr(drafted(prompts) if options.draft else prompts, method.prompt)


def _check_documents(samples: Sequence[Sample], text: Text, context: int | None) -> None:
    """A document that no question can be asked about is one mistake, not one for every question."""
    if context is None or samples[0].document is None:
        return
    num_tokens = len(text.encode(samples[0].document))
    if num_tokens > context:
        raise ContextTooLong(
            f"the document has {num_tokens} tokens; the model reaches {context}",
            hint="ask for a shorter one, with fewer --sentences or a smaller --count",
        )


def _settings(
    options: EvalOptions, method: Method, budgets: tuple[int, ...], samples: Sequence[Sample]
) -> tuple[Any, dict[str, Any]]:
    """The settings of the method, and what of them is worth a place in its label."""
    changed: dict[str, Any] = dict(pairs(options.chosen or []))
    for name in ("budget", "snapshots"):
        if name in changed:
            raise InvalidRequest(f"--set {name} is not for an exam", hint="use --budgets")
    _check_given_once(options, changed)
    names = known(method.settings)
    for name in ("workers", "layout"):
        value = getattr(options, name)
        if value is None or (name not in names and (name, value) == ("workers", 1)):
            continue
        if name not in names:
            raise InvalidRequest(
                f"--{name} {value} is not for --method {method.name}",
                hint=f"leave it out, or ask for {_methods_with(name)}",
            )
        changed[name] = value
    for name, option in _OPTIONS.items():
        if name.startswith("choice.") and getattr(options, option) is not None:
            changed[name] = getattr(options, option)
    is_judged = any(needs_judge(sample) for sample in samples)
    reply = is_judged if options.reply is None else options.reply
    # What --set says about the reply counts, too.
    base = {"seed": options.seed or 0, "end.reply": reply, "budget": budgets[-1]}
    settings = choose(method.settings, base | {"snapshots": budgets[:-1]} | changed)
    changed.pop("workers", None)
    return settings, changed


def _check_given_once(options: EvalOptions, changed: dict[str, str]) -> None:
    """One setting with two values is a mistake, even if one of them would win."""
    for name, option in _OPTIONS.items():
        value = getattr(options, option)
        if name in changed and value is not None:
            flag = option.replace("_", "-")
            told = f"--{flag} {value}"
            if isinstance(value, bool):
                told = f"--{flag}" if value else f"--no-{flag}"
            raise InvalidRequest(
                f"{name} was given twice: --set {name}={changed[name]} and {told}",
                hint="leave one of them out",
            )


def _methods_with(name: str) -> str:
    """The methods whose settings have this name, as a user asks for them."""
    methods = [method for method in EXAM_METHODS.values() if name in known(method.settings)]
    return " or ".join(f"--method {method.name}" for method in methods)


def endpoint_candidate(
    options: EvalOptions, method: Method, budgets: tuple[int, ...]
) -> tuple[Candidate, Header]:
    """Somebody else's server, and how its records begin."""
    check_endpoint(method.name, budgets)
    unused = [f"--set {pair}" for pair in options.chosen or []]
    names = ("model", "layout", "top_k", "min_p", "reply", "transcripts")
    unused += [f"--{name.replace('_', '-')}" for name in names if getattr(options, name)]
    if unused:
        raise InvalidRequest(f"an endpoint has no use for {', '.join(unused)}", hint="leave it out")
    is_vote = method.name == "self_consistency"
    workers = (options.workers or 4) if is_vote else 1
    if options.workers not in (None, workers):
        raise InvalidRequest(
            f"--workers {options.workers} is not for one answer of an endpoint",
            hint="ask for --method self_consistency",
        )
    if workers > 1 and options.temperature == 0:
        raise InvalidRequest("at temperature 0 all answers are the same", hint="choose 0.7")
    chosen = _endpoint(options, options.temperature, budgets[-1])
    chosen = replace(chosen, top_p=options.top_p)
    prompts = load_prompts(options.prompts) if options.prompts else Prompts()
    prompt = _words(prompts, options, method)
    candidate = EndpointCandidate(
        Endpoint(chosen), budgets[-1], workers, options.seed or 0, options.concurrency, prompt
    )
    settings = {
        "budget": budgets[-1],
        "mode": "vote" if is_vote else "one",
        "seed": options.seed or 0,
        "temperature": options.temperature,
        "top_p": options.top_p,
    }
    label = f"{chosen.model} {_label(method.name, workers if is_vote else 0, {}, options.draft)}"
    return candidate, Header(
        task=options.task,
        method=method.name,
        label=options.label or label,
        workers=workers,
        names=(),
        settings=settings,
        prompts=to_plain(prompt),
        budgets=budgets,
        model=chosen.model,
        endpoint=chosen.url,
        concurrency=options.concurrency,
        versions={name: version_of(name) for name in ("manyhands", "openai")},
        date=_now(),
    )


def voice_of(options: JudgeOptions, temperature: float) -> tuple[Voice, dict[str, Any]]:
    """The judge, and what the file of votes says about it."""
    facts: dict[str, Any] = {"temperature": temperature, "tokens": options.tokens, "date": _now()}
    if options.endpoint is not None:
        if options.model is not None:
            raise InvalidRequest("two judges were named", hint="give --endpoint or --model")
        chosen = _endpoint(options, temperature, options.tokens)
        facts |= {"judge": chosen.model, "endpoint": chosen.url}
        return EndpointVoice(Endpoint(chosen), options.concurrency), facts
    if options.model is None:
        raise InvalidRequest(
            "nobody was named to judge", hint="give --endpoint and --endpoint-model, or --model"
        )
    model = name_of(options.model)
    engine, text = load_engine(model, options, Notes())
    settings = SoloSettings(
        budget=options.tokens,
        choice=Choice(temperature),
        end=EndSettings(finisher_tokens=8, reply=False),
    )
    context = engine.facts.max_positions
    voice = EngineVoice(engine, text, settings, context, options.concurrency)
    return voice, facts | {"judge": model, "endpoint": None}


def _endpoint(
    options: EndpointChoice, temperature: float | None, max_tokens: int
) -> EndpointOptions:
    if not options.endpoint_model:
        raise InvalidRequest(
            f"the model at {options.endpoint} has no name", hint="give it: --endpoint-model NAME"
        )
    return EndpointOptions(
        url=options.endpoint or "",
        model=options.endpoint_model,
        key=os.environ.get("OPENAI_API_KEY", NO_KEY),
        temperature=temperature,
        max_tokens=max_tokens,
        timeout=options.timeout,
        retries=options.retries,
    )


def budgets_of(listed: str) -> tuple[int, ...]:
    """`64,128` as rising numbers; empty if nothing was listed."""
    try:
        budgets = sorted({int(number) for number in listed.split(",") if number.strip()})
    except ValueError as error:
        raise InvalidRequest(
            f"--budgets is {listed!r}; expected numbers with commas between them",
            hint="for example: --budgets 64,128,256",
        ) from error
    if budgets and budgets[0] < 1:
        raise InvalidRequest(f"--budgets has {budgets[0]}; expected 1 forward pass or more")
    return tuple(budgets)


def _label(method: str, workers: int, changed: dict[str, Any], draft: bool = False) -> str:
    """`hogwild-3 draft layout=contiguous`: the method, and what was chosen for it."""
    words = [f"{method}-{workers}" if workers else method, *(["draft"] if draft else [])]
    return " ".join([*words, *(f"{key.rpartition('.')[2]}={v}" for key, v in changed.items())])


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S%z")
