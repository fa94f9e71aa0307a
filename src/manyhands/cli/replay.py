"""`manyhands replay`: a saved run, read again.

By itself it needs no model: the trace holds the words. `--verify` computes all passes of the run in
one parallel forward (Hogwild! Inference, app. B) and compares every token that was written;
`--continue` rebuilds an interrupted run's blocks and goes on. Both take the model, its weights and its
context as the trace has them, unless the command says otherwise.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from manyhands.cache.step import Choice
from manyhands.cli.loading import check_borne, load_engine, load_network, name_of, strategy_for
from manyhands.cli.options import ReplayOptions
from manyhands.cli.outcome import INTERRUPTED
from manyhands.cli.output import Notes, TraceFile, say, say_json
from manyhands.cli.running import drive, screen_for
from manyhands.cli.solve import check_answered, finish
from manyhands.errors import BrokenTrace, InvalidRequest, ManyhandsError, counted
from manyhands.model.settings import ModelSettings
from manyhands.replay.retold import account_from, answer_from
from manyhands.replay.trace import TRACE_LINES, Trace, read_trace
from manyhands.schema.choosing import flag_of
from manyhands.schema.lines import read_lines
from manyhands.schema.plain import from_plain
from manyhands.schema.setting import settings_of
from manyhands.strategies.account import Account
from manyhands.strategies.base import Answer
from manyhands.strategies.branches import BranchAnswer
from manyhands.strategies.methods import METHODS
from manyhands.strategies.run_spec import RunSpec

if TYPE_CHECKING:
    from manyhands.cli.verify import Verification

# Values that the command may leave open, by their type.
_RECORDED: dict[str, type] = {
    "lora": str,
    "weights": str,
    "quantise": str,
    "kv_cache_dtype": str,
    "fuse": str,
    "thinking": str,
    "context": int,
}
_FACTS = ("model", "lora", "method", "workers", "layout", "seed", "settings", "problem", "versions")


def replay(options: ReplayOptions) -> None:
    """Do what the command says; see `manyhands replay --help`."""
    trace = read_trace(options.trace)
    if options.resume:
        return go_on(trace, options)
    given = {
        "--transcript": options.transcript is not None,
        "--json-events": options.events,
        "--name": options.name is not None,
    }
    for option in (name for name, is_given in given.items() if is_given):
        raise InvalidRequest(
            f"{option} was given without --continue, and nothing new happens in a run that is read",
            hint="leave it out, or add --continue",
        )
    account = account_from(trace)
    answer = answer_from(trace) or account.so_far(INTERRUPTED, len(trace.passes))
    notes = Notes()
    verified = _verify(trace, options, notes) if options.verify else None
    if options.json:
        say_json(_as_object(trace, answer, verified))
        return _check(verified)
    say(_summary(trace, account, answer))
    if not options.quiet:
        for step in answer.steps:
            asked = ", asked whether it is redundant" if step.checked else ""
            passes = f"passes {step.first_pass} to {step.last_pass}"
            say(f"\n{account.label(step)} {passes}{asked}\n{step.text}")
        reply = account.reply.strip()
        if reply and not any(step.text == reply for step in answer.steps):
            say(f"\nReply:\n{reply}")
    if verified is not None:
        say("\n" + _verification(verified))
    return _check(verified)


def go_on(trace: Trace, options: ReplayOptions) -> None:
    """Restore an interrupted run and run it to its end."""
    if options.verify:
        raise InvalidRequest(
            "--verify and --continue were asked for together", hint="ask for one after the other"
        )
    if trace.is_complete:
        raise InvalidRequest(
            f"the run in {str(options.trace)!r} has ended by itself",
            hint="only a run that was interrupted can go on",
        )
    if options.transcript is not None and options.transcript.resolve() == options.trace.resolve():
        raise InvalidRequest(
            "--transcript names the trace itself, which is kept as it is", hint="give another name"
        )
    recorded = as_recorded(options, trace)
    spec = RunSpec.from_plain(trace.header | {"context": recorded.context})
    account = account_from(trace)
    model, notes = _model_of(trace, options), Notes()
    check_borne(model, spec.method, spec.settings)
    screen = screen_for(
        account,
        {"model": model, **spec.facts()},
        notes,
        json=options.json,
        events=options.events,
        quiet=options.quiet,
        budget=spec.settings.budget,
        name=options.name,
    )
    with TraceFile(options.transcript, notes) as file:
        engine, text = load_engine(model, recorded, notes)
        _check_weights(trace, engine.facts.dtype, engine.executor.fingerprint, notes)
        for line in read_lines(options.trace, TRACE_LINES):
            file.write(line)
        spec = replace(spec, context=engine.facts.max_positions)
        strategy = strategy_for(engine, text, spec)
        restored = engine.restore(strategy, trace, write=file.write)
        outcome = drive(engine, restored, account, screen, num_before=len(trace.passes))
    finish(screen, outcome, options.transcript or options.trace)
    if file.failure is not None:
        raise file.failure
    check_answered(outcome, account, spec)


def as_recorded(options: ReplayOptions, trace: Trace) -> ReplayOptions:
    """The options, with what the command leaves open as the trace's header has it.

    With other weights, or another context, the run would not come back token for token.
    """
    recorded: dict[str, Any] = {}
    for name, kind in _RECORDED.items():
        value = trace.header.get(name)
        if getattr(options, name) not in (None, "auto") or value is None:
            continue
        if type(value) is not kind:
            raise BrokenTrace(
                f"the trace's header has {name} {value!r}, expected {kind.__name__}",
                hint=f"The file is damaged. Say it yourself: {_flag(name)}.",
            )
        recorded[name] = value
    return replace(options, **recorded)


def _flag(name: str) -> str:
    """The option of a field of `ModelSettings`, as its declaration has it."""
    (option, *_) = settings_of(ModelSettings)[name].names or (flag_of(name),)
    return option


def _check(verified: Verification | None) -> None:
    """Raises ManyhandsError if the model would have written something else."""
    if verified is not None and not verified.is_right:
        raise ManyhandsError(
            f"this model does not write this run: {verified.num_agreeing} of "
            f"{verified.num_tokens} tokens agree",
            hint="name the model and the weights that the run was made with: --model, --load, --adapter",
        )


def _check_weights(trace: Trace, dtype: str, fingerprint: Callable[[], str], notes: Notes) -> None:
    """Warn where a run was made with other weights. In another dtype they are other numbers, and nothing is said."""
    made_with = trace.header.get("fingerprint")
    if made_with is None or trace.header.get("dtype") != dtype:
        return
    if (found := fingerprint()) != made_with:
        notes.warn(
            f"the weights are not those of the run: their fingerprint is {found}, and the trace has {made_with}. "
            "Name the model, the weights and the adapter that it was made with: --model, --load, --adapter"
        )


def _verify(trace: Trace, options: ReplayOptions, notes: Notes) -> Verification:
    recorded = as_recorded(options, trace)
    choice = _choice_of(trace, recorded.context)
    if choice.temperature > 0:
        raise InvalidRequest(
            f"the run was sampled at temperature {choice.temperature}; only greedy runs, "
            "whose tokens follow from the logits alone, can be verified",
            hint="leave --verify out",
        )
    if choice.weighs:
        raise InvalidRequest(
            "the run was written with penalties or a bias; only runs whose tokens follow from the logits "
            "alone can be verified",
            hint="leave --verify out",
        )
    adapter = load_network(_model_of(trace, options), recorded, notes)
    from manyhands.cli.verify import verify

    dtype = str(adapter.dtype).removeprefix("torch.")
    _check_weights(trace, dtype, adapter.fingerprint, notes)
    return verify(adapter, trace, choice)


def _choice_of(trace: Trace, context: int | None) -> Choice:
    """How the run's tokens were chosen.

    A strategy of somebody's own is no method, and its header need not make a spec: the choice in its settings suffices.
    """
    header = trace.header
    if header.get("method") in METHODS:
        return RunSpec.from_plain(header | {"context": context}).settings.choice
    settings = header.get("settings")
    told = settings.get("choice") if isinstance(settings, dict) else None
    if told is None:
        raise BrokenTrace(
            "the trace's header does not say how tokens were chosen; expected settings with a choice",
            hint="Record it with a RunSpec: record(spec.strategy(text), spec.to_plain(), write). Of this trace "
            "engine.replay(merge_trace(trace)) gives the logits in a program.",
        )
    try:
        choice: Choice = from_plain(Choice, told)
    except (TypeError, ValueError, InvalidRequest) as error:
        raise BrokenTrace(
            f"the choice in the trace's header cannot be read: {error}", hint="The file is damaged."
        ) from error
    return choice


def _model_of(trace: Trace, options: ReplayOptions) -> str:
    named = options.model if options.model is not None else trace.header.get("model")
    if not isinstance(named, str):
        raise InvalidRequest("the trace names no model", hint="name it: --model FOLDER")
    return name_of(named)


def _as_object(trace: Trace, answer: Answer, verified: Verification | None) -> dict[str, Any]:
    header = {key: trace.header.get(key) for key in _FACTS}
    found = {
        "complete": trace.is_complete,
        **header,
        **asdict(answer),
        "passes": len(trace.passes),
        "tokens_fed": trace.num_tokens,
    }
    if verified is not None:
        found["verified"] = {**asdict(verified), "agreement": verified.agreement}
    return found


def _summary(trace: Trace, account: Account, answer: Answer) -> str:
    """One fact a line."""
    header = trace.header
    names = [hand.name for hand in account.hands]
    tokens = ", ".join(f"{n} {name}" for name, n in zip(names, answer.tokens, strict=False))
    facts = {
        "model": header.get("model"),
        "adapter": header.get("lora"),
        "method": header.get("method"),
        "workers": ", ".join(names),
        "layout": header.get("layout"),
        "seed": header.get("seed"),
        "settings": json.dumps(header.get("settings")),
        "written by": _written_by(header),
        "problem": header.get("problem"),
        "passes": f"{answer.forward_passes}, and {answer.extra_passes} of the ending and snapshots",
        "tokens": f"{sum(answer.tokens)} ({tokens})",
        "snapshots": ", ".join(f"{at}: {found}" for at, found in answer.snapshots.items()),
        "branches": _branches(answer),
        "finish": answer.finish_reason,
        "answer": answer.answer,
    }
    known = {name: str(fact) for name, fact in facts.items() if fact not in (None, "", "null")}
    return "\n".join(f"{name:<12}{_indented(fact)}" for name, fact in known.items())


def _branches(answer: Answer) -> str:
    """How each branch ended, and how far the joins were off if that was asked."""
    if not isinstance(answer, BranchAnswer):
        return ""
    told = [
        f"{b.worker} {b.title}: {b.finish_reason}, {counted(b.num_tokens, 'token')}"
        for b in answer.branches
    ]
    told += [
        f"join {join.block}: up to {join.largest:.2g} from the exact text, {join.kl:.2g} nats"
        for join in answer.join_distances
    ]
    return "\n".join(told)


def _written_by(header: dict[str, Any]) -> str:
    versions = header.get("versions")
    if not isinstance(versions, dict):
        return ""
    return ", ".join(f"{package} {version}" for package, version in versions.items())


def _indented(fact: str) -> str:
    return fact.replace("\n", "\n" + " " * 12)


def _verification(verified: Verification) -> str:
    if not verified.num_tokens:
        return "nothing to verify: nobody wrote a token"
    agree = (
        f"{verified.num_agreeing} of {verified.num_tokens} tokens agree ({verified.agreement:.2%})"
    )
    if verified.num_agreeing == verified.num_tokens:
        return f"verified: {agree}"
    return (
        f"verified: {agree}; largest gap in logits of one that does not: {verified.largest_gap:.3g}"
    )
