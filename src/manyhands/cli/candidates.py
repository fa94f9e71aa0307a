"""From the options of an exam to who takes it: the task, the candidate, and the header of its records.

The key of an endpoint is read here and goes nowhere but to that endpoint. On a cluster (`--ray`) candidates and
voices of our own are made in its replicas, and what is made here asks those.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from manyhands.cli.advice import too_small_a_team
from manyhands.cli.command import shared_of, told
from manyhands.cli.exam_options import EXAM_METHODS, EndpointChoice, EvalOptions, JudgeOptions
from manyhands.cli.guard import tell
from manyhands.cli.loading import (
    changes_of,
    check_borne,
    load_engine,
    name_of,
    place_facts,
    prompts_for,
    sampled,
    traced_facts,
)
from manyhands.cli.output import Notes, version_of
from manyhands.cli.spreading import facts_of, spread
from manyhands.errors import ContextTooLong, InvalidRequest, ManyhandsError
from manyhands.evaluation.candidates import (
    Answered,
    Asked,
    Candidate,
    EndpointCandidate,
    MethodCandidate,
    check_endpoint,
)
from manyhands.evaluation.endpoint import NO_KEY, Endpoint, EndpointOptions
from manyhands.evaluation.judge import needs_judge
from manyhands.evaluation.record import Header
from manyhands.evaluation.run import checked_samples
from manyhands.evaluation.shared import SHARED_PREFIX, check_budgets, shared_method
from manyhands.evaluation.voices import Ballot, EndpointVoice, EngineVoice, Voice, judge_spec
from manyhands.hub import BUNDLED
from manyhands.prompts import Prompts, load_prompts
from manyhands.prompts.chain_of_draft import drafted
from manyhands.schema.choosing import pairs
from manyhands.schema.plain import to_plain
from manyhands.strategies.methods import Method, check_forks
from manyhands.strategies.run_spec import RunSpec
from manyhands.strategies.settings import SAMPLED, Settings, VoteSettings
from manyhands.tasks.arithmetic.world import outside_world
from manyhands.tasks.catalogue import make_task
from manyhands.tasks.generated import BUNDLED_SENTENCES, Needles
from manyhands.tasks.task import FIXTURE, Sample, Task, TaskOptions, TaskProtocol, UnusedOption
from manyhands.text import Text

if TYPE_CHECKING:
    from manyhands.cluster.replica import Answers
    from manyhands.cluster.spreading import Spread
    from manyhands.engine.engine import Engine


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
                shots=options.shots,
                allow_code=options.allow_code,
            ),
        )
    except UnusedOption as error:  # said in the words of the command line
        uses = [f"--{name.replace('_', '-')}" for name in error.uses]
        uses = ["--task-seed" if name == "--seed" else name for name in uses]
        given = "" if error.value is True else f" {error.value}"
        raise InvalidRequest(
            f"--{error.name.replace('_', '-')}{given} is not for --task {error.task}",
            hint=f"leave it out; {error.task} takes {', '.join(uses)}",
        ) from error
    return task, checked_samples(task)


def facts_of_task(options: EvalOptions) -> dict[str, Any]:
    """The choices that decide the samples; how many of them are asked may change."""
    source = options.source
    if source not in (None, FIXTURE) and Path(source).exists():
        source = str(Path(source).resolve())
    chosen = {name: getattr(options, name) for name in ("count", "kind")}
    chosen["sentences"] = _sentences(options)
    if options.shots is not None:
        chosen["shots"] = options.shots
    return {**chosen, "seed": options.task_seed, "source": source}


def _sentences(options: EvalOptions) -> int | None:
    """Length of a document. The bundled model reads shorter ones than the task usually has."""
    is_bundled = options.endpoint is None and name_of(options.model) == BUNDLED
    if options.sentences is None and options.task == Needles.name and is_bundled:
        return BUNDLED_SENTENCES
    return options.sentences


@contextmanager
def candidate_of(
    options: EvalOptions,
    budgets: tuple[int, ...],
    samples: Sequence[Sample],
    protocol: TaskProtocol,
) -> Iterator[tuple[Candidate, Header]]:
    """The candidate of an exam, and how the records begin: an endpoint, a method here, or one on a cluster."""
    method = EXAM_METHODS[options.method]
    if options.endpoint is not None:
        yield endpoint_candidate(options, method, budgets, protocol)
    elif options.ray is None:
        yield method_candidate(options, method, budgets, samples, protocol)
    else:
        make = partial(exam_answers, options, budgets, samples, protocol)
        with spread(options, make, options.concurrency, _warn) as replicas:
            header: Header = replicas.facts["header"]
            yield SpreadCandidate(replicas), replace(header, date=_now())


@dataclass(frozen=True)
class SpreadCandidate:
    """A candidate whose copies sit in the replicas of a cluster."""

    replicas: Spread[Asked, Answered]

    def answered(self, asked: Iterable[Asked]) -> Iterator[Answered]:
        """Each question where there is a place for it."""
        for one, came in self.replicas.answered(asked):
            yield Answered(one, came) if isinstance(came, ManyhandsError) else came


def exam_answers(
    options: EvalOptions,
    budgets: tuple[int, ...],
    samples: Sequence[Sample],
    protocol: TaskProtocol,
) -> Answers[Asked, Answered]:
    """A method's candidate in a replica. Its facts are the header of the records, but for the date."""
    from manyhands.cluster.replica import Answers

    try:
        method = EXAM_METHODS[options.method]
    except KeyError as error:
        raise InvalidRequest(
            f"a machine of the cluster has no method {options.method!r}",
            hint="install its distribution on all of them, in the environment in which `ray start` was called",
        ) from error
    candidate, header = method_candidate(options, method, budgets, samples, protocol)
    return Answers(
        lambda asked: ((one.asked, one) for one in candidate.answered(asked)),
        {"header": replace(header, date="")},
    )


def method_candidate(
    options: EvalOptions,
    method: Method,
    budgets: tuple[int, ...],
    samples: Sequence[Sample],
    protocol: TaskProtocol,
) -> tuple[MethodCandidate, Header]:
    """A method on a model of our own, and how its records begin. The protocol is the task's."""
    settings, changed = _settings(options, method, budgets, samples, protocol)
    model = name_of(options.model)
    settings = sampled(settings, model, options)
    # Some methods have none to be named by, some leave it open (skeleton's 0).
    named = getattr(settings, "workers", 0)
    workers = named or 1
    if method.name == SHARED_PREFIX:
        check_budgets(budgets)
    if model == BUNDLED and (reason := outside_world(Asked(samples[0]).text, workers, method.name)):
        tell(reason, "warning: ", "yellow")
    prompts = prompts_for(model, options.prompts, options.lora)
    prompt = _words(prompts, options, method)
    check_borne(model, method, settings)
    engine, text = load_engine(model, options, Notes())
    reason = too_small_a_team(engine.facts, prompts, workers, method.name)
    if model != BUNDLED and reason:
        tell(reason, "warning: ", "yellow")
    if method.name == SHARED_PREFIX:
        method = shared_method(engine.prefixes)
    _check_documents(samples, text, engine.facts.max_positions)
    if (options.repeats or protocol.repeats) > 1 and settings.choice.temperature == 0:
        tell("at temperature 0 every repeat is the same", "warning: ", "yellow")
    watched = frozenset(sample.id for sample in samples[: options.transcripts])
    if engine.facts.num_states:
        check_forks(method, settings)
    spec = RunSpec(method, settings, prompt, context=engine.facts.max_positions)
    tree = None if options.cache is None else engine.prefixes
    place, traced = place_facts(engine, options, method.name), traced_facts(engine, text, options)
    traced["model"] = model
    candidate = MethodCandidate(
        engine, text, spec, options.concurrency, watched, tree, traced if options.traces else None
    )
    if options.quantise != "auto":  # other numbers are another model
        place["weights"] += f", {options.quantise}"
    if options.kv_cache_dtype != "auto":
        place["weights"] += f", keys in {options.kv_cache_dtype}"
    return candidate, Header.of(
        spec,
        task=options.task,
        label=options.label or _label(method.name, named, changed, options.draft),
        budgets=budgets,
        model=model,
        fingerprint=traced["fingerprint"],
        thinking=None if options.thinking in ("auto", "on") else options.thinking,
        concurrency=options.concurrency,
        date=_now(),
        **{name: place[name] for name in ("device", "dtype", "backend", "weights", "versions")},
    )


def _words(prompts: Prompts, options: EvalOptions, method: Method) -> Any:
    """The words for the model: the table of this method."""
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
    options: EvalOptions,
    method: Method,
    budgets: tuple[int, ...],
    samples: Sequence[Sample],
    protocol: TaskProtocol,
) -> tuple[Settings, dict[str, Any]]:
    """The settings of the method, and what of them is worth a place in its label."""
    listed = pairs(options.listed)
    for name in ("budget", "snapshots"):
        if name in listed:
            raise InvalidRequest(f"--set {name} is not for an exam", hint="use --budgets")
    settings = shared_of(EvalOptions).settings_for(method.name, options.chosen, options.listed)
    chosen = {**listed, **options.chosen}
    end = settings.end
    if "end.reply" not in chosen:
        end = replace(end, reply=any(needs_judge(sample) for sample in samples))
    if "end.answer" not in chosen:  # samples are graded by it, whatever their questions hold
        end = replace(end, answer=protocol.answer)
    if "end.finisher_tokens" not in chosen and protocol.finisher_tokens is not None:
        end = replace(end, finisher_tokens=protocol.finisher_tokens)
    settings = replace(settings, budget=budgets[-1], snapshots=budgets[:-1], end=end)
    # The workers stand in the label anyway; a seed or a reply makes no other method of it.
    unnamed = ("workers", *(path for path in ("seed", "end.reply") if path in options.chosen))
    return settings, {path: value for path, value in chosen.items() if path not in unnamed}


def endpoint_candidate(
    options: EvalOptions, method: Method, budgets: tuple[int, ...], protocol: TaskProtocol
) -> tuple[Candidate, Header]:
    """Somebody else's server, and how its records begin."""
    check_endpoint(method.name, budgets)
    used = ("workers", "seed", "choice.temperature", "choice.top_p")
    unused = [f"--set {pair}" for pair in options.listed]
    others = ("model", "transcripts", "traces", "greedy", "ray")
    unused += [f"--{name}" for name in others if getattr(options, name)]
    unused += [told(path, value) for path, value in options.chosen.items() if path not in used]
    if unused:
        raise InvalidRequest(f"an endpoint has no use for {', '.join(unused)}", hint="leave it out")
    asked, seed, temperature, top_p = (options.chosen.get(path) for path in used)
    is_vote = method.name == "self_consistency"
    workers = (asked or VoteSettings().workers) if is_vote else 1
    if asked not in (None, workers):
        raise InvalidRequest(
            f"--workers {asked} is not for one answer of an endpoint",
            hint="ask for --method self_consistency",
        )
    if workers > 1 and temperature == 0:
        raise InvalidRequest(
            "at temperature 0 all answers are the same", hint=f"choose {SAMPLED.temperature}"
        )
    chosen = replace(_endpoint(options, temperature, budgets[-1]), top_p=top_p)
    prompts = load_prompts(options.prompts) if options.prompts else Prompts()
    prompt = _words(prompts, options, method)
    candidate = EndpointCandidate(
        Endpoint(chosen),
        budgets[-1],
        workers,
        seed or 0,
        options.concurrency,
        prompt,
        protocol.answer,
    )
    settings = {
        "budget": budgets[-1],
        "mode": "vote" if is_vote else "one",
        "seed": seed or 0,
        "temperature": temperature,
        "top_p": top_p,
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


@contextmanager
def voice_of(options: JudgeOptions, temperature: float) -> Iterator[tuple[Voice, dict[str, Any]]]:
    """The judge, and what the file of votes says about it."""
    facts: dict[str, Any] = {"temperature": temperature, "tokens": options.tokens, "date": _now()}
    if options.endpoint is not None:
        for name in ("model", "ray"):
            if getattr(options, name) is not None:
                raise InvalidRequest("two judges were named", hint=f"give --endpoint or --{name}")
        chosen = _endpoint(options, temperature, options.tokens)
        facts |= {"judge": chosen.model, "endpoint": chosen.url}
        yield EndpointVoice(Endpoint(chosen), options.concurrency), facts
        return
    if options.model is None:
        raise InvalidRequest(
            "nobody was named to judge", hint="give --endpoint and --endpoint-model, or --model"
        )
    facts |= {"judge": name_of(options.model), "endpoint": None}
    if options.ray is None:
        voice, engine = engine_voice(options, temperature)
        yield voice, {**facts, **_facts_of_judge(options, engine.executor.fingerprint())}
        return
    make = partial(judge_answers, options, temperature)
    with spread(options, make, options.concurrency, _warn) as replicas:
        yield (
            SpreadVoice(replicas),
            {**facts, **_facts_of_judge(options, replicas.facts["weights"])},
        )


def _facts_of_judge(options: JudgeOptions, fingerprint: str) -> dict[str, Any]:
    """The facts besides its name by which a model of our own is another judge: its weights, and how it is run."""
    return {"fingerprint": fingerprint, "changes": list(changes_of(options))}


def engine_voice(options: JudgeOptions, temperature: float) -> tuple[EngineVoice, Engine]:
    """A judge on a model of our own."""
    engine, text = load_engine(name_of(options.model), options, Notes())
    spec = judge_spec(options.tokens, temperature, engine.facts.max_positions)
    return EngineVoice(engine, text, spec, options.concurrency), engine


Asking = tuple[Ballot, str]  # which vote, and the message
Reply = str | ManyhandsError


@dataclass(frozen=True)
class SpreadVoice:
    """A judge whose copies sit in the replicas of a cluster."""

    replicas: Spread[Asking, Reply]

    def replies(self, asked: Iterable[Asking]) -> Iterator[tuple[Ballot, Reply]]:
        """Each message where there is a place for it."""
        for (ballot, _), reply in self.replicas.answered(asked):
            yield ballot, reply


def judge_answers(options: JudgeOptions, temperature: float) -> Answers[Asking, Reply]:
    """A judge in a replica."""
    from manyhands.cluster.replica import Answers

    voice, engine = engine_voice(options, temperature)
    asking: dict[Ballot, Asking] = {}

    def noted(asked: Iterable[Asking | None]) -> Iterator[Asking | None]:
        for one in asked:
            if one is not None:
                asking[one[0]] = one
            yield one

    def answered(asked: Iterable[Asking | None]) -> Iterator[tuple[Asking, Reply]]:
        for ballot, reply in voice.replies(noted(asked)):
            yield asking.pop(ballot), reply

    return Answers(answered, facts_of(engine, options))


def _warn(text: str) -> None:
    tell(text, "warning: ", "yellow")


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


def _label(method: str, workers: int, changed: dict[str, Any], draft: bool = False) -> str:
    """`hogwild-3 draft layout=contiguous`: the method, and what was chosen for it."""
    words = [f"{method}-{workers}" if workers else method, *(["draft"] if draft else [])]
    return " ".join([*words, *(f"{key.rpartition('.')[2]}={v}" for key, v in changed.items())])


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S%z")
