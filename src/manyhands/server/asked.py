"""A request, understood: prompts and settings of plain decoding, or a method and its problem.

    asked = understand(CHAT, body, served)        InvalidField names what cannot be
    strategy, trace = asked.begin(served, owner)
    handle = service.submit(strategy)

A method is asked for by the model's alias (`NAME:hogwild-4`), or by the field `manyhands` of the body, which
names the method and any of its settings; without either, the model just writes. Everything is checked here,
limits included, before anything is made of it. It takes time (templates, tokens), so it is done in a
thread beside the event loop.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from manyhands.cache.prefixes import PrefixTree
from manyhands.cache.step import Choice
from manyhands.errors import InvalidRequest, ManyhandsError, counted
from manyhands.prompts.load import Prompts
from manyhands.replay.trace import header_of, record
from manyhands.schema.lines import Line
from manyhands.schema.openai import (
    CHAT,
    PLAIN,
    ChatRequest,
    InvalidField,
    PlainRequest,
    read_shape,
    shown,
)
from manyhands.server.failures import Refusal
from manyhands.server.limits import Limits
from manyhands.server.shapes import (
    BODIES,
    RESPONSES,
    RUNS,
    ChatBody,
    PlainBody,
    ResponsesBody,
    RunBody,
)
from manyhands.strategies.base import Strategy
from manyhands.strategies.methods import check_forks, method_named_by
from manyhands.strategies.prompt_sharing import share_prompt
from manyhands.strategies.requests import (
    CompletionSpec,
    Defaults,
    about,
    aliases,
    is_model,
    methods_told,
    offered,
    placed,
    prompts_of,
    read_model,
    spec_of,
)
from manyhands.strategies.run_spec import RunSpec
from manyhands.strategies.settings import UNSAID, SharedSettings
from manyhands.strategies.shared_prefix import Prompt, shared_prefix
from manyhands.text import Text

Begun = tuple[Strategy, list[Line]]
"""A strategy at its beginning, and the lines of its trace, which come while it runs; of plain decoding none."""

# How a response calls what a chat calls otherwise.
_FIELDS_OF_RESPONSE = {
    "messages": "input",
    "reasoning_effort": "reasoning.effort",
    "response_format": "text.format",
    "response_format.json_schema": "text.format.schema",
    "response_format.json_schema.schema": "text.format.schema",
}
_SEED_BITS = 48  # a page's numbers have 53, and `n` runs of a method count on from a seed
_MOST_OF_RESPONSE = "max_output_tokens"  # the field that bounds the tokens of a response


@dataclass(frozen=True)
class Served:
    """The model that is served: a model by the name that clients call it, its words, how much one may ask.

    `only_forks`: it bears only methods that fork (`strategies/methods.py::check_forks`).
    """

    name: str
    text: Text
    prompts: Prompts = field(default_factory=Prompts)
    context: int | None = None
    only_forks: bool = False
    tree: PrefixTree = field(default_factory=PrefixTree)
    limits: Limits = field(default_factory=Limits)
    unsaid: SharedSettings = UNSAID
    seed: int | None = None  # of requests that name none; None: each has one of its own
    own: Choice | None = None  # how the model samples by itself
    vocabulary: int | None = None  # how many tokens the network knows; None: not said
    place: Mapping[str, Any] = field(default_factory=dict)  # of traces, see `header_of`
    # Why the model was not made for this question, this number of workers and this method; None if it was.
    outside: Callable[[str, int, str], str | None] | None = None

    @property
    def settings(self) -> SharedSettings:
        """The settings of a request that says nothing. Where no seed was chosen, those asked for twice differ in theirs."""
        seed = secrets.randbits(_SEED_BITS) if self.seed is None else self.seed
        return replace(self.unsaid, seed=seed)

    @property
    def models(self) -> tuple[str, ...]:
        """Names that can be asked for: the model's own, and one for each method that it bears as it comes."""
        return (self.name, *aliases(self.name, only_forks=self.only_forks))

    @cached_property
    def methods(self) -> dict[str, Any]:
        """The methods that it bears as they come, with their settings, as `GET /v1/methods` tells them."""
        methods = offered(only_forks=self.only_forks)
        return methods_told(methods, own=self.own, seed=self.seed)

    def has(self, name: str) -> bool:
        """Whether a request may call the model so: also by an alias with another number of workers than those of `models`."""
        return is_model(name, self.name, only_forks=self.only_forks)


@dataclass(frozen=True)
class Asked:
    """A request that can be answered. It has `settings` and `prompts`, or else a `spec`.

    `samples` runs of the spec are asked for, which differ in their seed; each is a choice of the answer.
    """

    url: str
    model: str  # as the client calls it
    stream: bool = False
    include_usage: bool = False
    prompts: tuple[Prompt, ...] = ()
    settings: SharedSettings | None = None
    spec: RunSpec | None = None
    samples: int = 1
    num_prompt_tokens: int = 0
    warning: str | None = None  # to the one who asked
    echoed: Mapping[str, Any] = field(default_factory=dict, compare=False)  # by a response
    made: tuple[Begun, ...] = field(default=(), compare=False, repr=False)  # one for each run

    def runs(self) -> tuple[Asked, ...]:
        """The request run by run: one, or of a method one for each choice. They share their prompt."""
        if self.spec is None or self.samples == 1:
            return (self,)
        specs = enumerate(self.spec.samples(self.samples))
        return tuple(replace(self, spec=s, samples=1, made=self.made[i : i + 1]) for i, s in specs)

    def with_strategies(self, served: Served, owner: str) -> Asked:
        """The request with all strategies made. That encodes the prompts of methods, so the event loop leaves it to a thread."""
        return replace(self, made=tuple(each.begin(served, owner) for each in self.runs()))

    def begin(self, served: Served, owner: str) -> Begun:
        """The strategy at its beginning. Its prompts are shared with the same owner alone.

        A trace has as many lines at most as events are kept. It is that of a run that shares nothing: what lies in the
        tree's blocks stands in no trace.
        """
        if self.made:
            return self.made[0]
        trace: list[Line] = []
        if self.spec is not None:
            most, text = served.limits.run_events, served.text
            named = {"model": served.name, "vocabulary": text.vocabulary}
            header = header_of(self.spec, {**named, **served.place})

            def write(line: Line) -> None:
                if len(trace) < most:
                    trace.append(line)

            recorded = record(self.spec.strategy(text), header, write)
            return share_prompt(recorded, served.tree, owner), trace
        assert self.settings is not None, "a request asks for a method, or for plain decoding"
        settings = replace(self.settings, tenant=owner)
        return (
            shared_prefix(
                self.prompts, served.text, settings, tree=served.tree, context=served.context
            ),
            trace,
        )

    @property
    def choice(self) -> Choice:
        """How tokens are chosen."""
        asked = self.settings if self.spec is None else self.spec.settings
        assert asked is not None, "a request asks for a method, or for plain decoding"
        return asked.choice


def understand(url: str, body: object, served: Served) -> Asked:
    """The request that this body is, at one of the routes that make text."""
    request = read_shape(BODIES[url], body)
    try:
        if isinstance(request, ChatBody):
            return _chat(request, served)
        if isinstance(request, PlainBody):
            return _plain(request, served)
        assert isinstance(request, ResponsesBody), f"{url} makes text"
        return _response(request, served)
    except InvalidRequest as error:
        if (told := placed(error, BODIES[url].model_fields)) is error:
            raise  # no error is its own cause
        raise told from error


def understand_run(body: object, served: Served) -> Asked:
    """The run that the body of `POST /v1/runs` asks for."""
    own = set(RunBody.model_fields)
    given = body if isinstance(body, dict) else {}
    request = read_shape(
        RunBody, {k: v for k, v in body.items() if k in own} if isinstance(body, dict) else body
    )
    options = {name: value for name, value in given.items() if name not in own}
    _check_model(request.model, served)
    if request.method is not None or not read_model(
        request.model, served.name, only_forks=served.only_forks
    ):
        options["method"] = request.method or method_named_by(options) or "hogwild"
    said = [{"role": "user", "content": request.problem}]
    chat = ChatBody(model=request.model, messages=said)  # type: ignore[arg-type]  # pydantic makes them
    try:
        spec = _spec(chat, options, served)
        assert isinstance(spec, RunSpec), "a method is named"
        return _with_spec(RUNS, request.model or served.name, spec, served)
    except InvalidField as error:
        raise _of_run(error) from error


def _of_run(error: InvalidField) -> InvalidField:
    """The mistake by the name that its field has in a run: one object holds problem and settings."""
    others = {"messages": "problem", "max_tokens": "budget"}
    param = others.get(error.param, error.param.removeprefix("manyhands."))
    said = str(error).replace("manyhands has a field", "body has a field", 1)
    return InvalidField(said.removeprefix("manyhands."), param=param, hint=error.hint)


def _chat(request: ChatBody, served: Served) -> Asked:
    spec = _spec(request, request.manyhands, served)
    options = request.stream_options
    include_usage = bool(options is not None and options.include_usage)
    stream, model = bool(request.stream), request.model or served.name
    if isinstance(spec, RunSpec):
        asked = replace(_with_spec(CHAT, model, spec, served), samples=request.n or 1)
    else:
        asked = _decoded(CHAT, request, spec, served)
    return replace(asked, model=model, stream=stream, include_usage=include_usage)


def _plain(request: PlainBody, served: Served) -> Asked:
    if len(request.prompts) > served.limits.request_prompts:
        raise InvalidField(
            f"prompt holds {len(request.prompts)} prompts; expected at most "
            f"{served.limits.request_prompts}",
            param="prompt",
        )
    spec = _spec(request, None, served)
    assert isinstance(spec, CompletionSpec), "a method takes a chat"
    options = request.stream_options
    include_usage = bool(options is not None and options.include_usage)
    asked = _decoded(PLAIN, request, spec, served)
    model = request.model or served.name
    return replace(asked, model=model, stream=bool(request.stream), include_usage=include_usage)


def _response(request: ResponsesBody, served: Served) -> Asked:
    """A response is asked for in other words than a chat completion, and is one."""
    items = [{"role": "user", "content": request.input}]
    if not isinstance(request.input, str):
        said = [item for item in request.input if item.is_said]
        items = [{"role": str(item.role), "content": item.text} for item in said]
        if not items:
            raise InvalidField("input has no message; expected one of the user", param="input")
    if request.instructions:
        items = [{"role": "system", "content": request.instructions}, *items]
    chat = ChatBody(
        model=request.model,
        messages=items,  # type: ignore[arg-type]  # pydantic makes messages of them
        max_completion_tokens=request.max_output_tokens,
        temperature=request.temperature,
        top_p=request.top_p,
        user=request.user,
        reasoning_effort=request.reasoning.effort if request.reasoning is not None else None,
        response_format=request.text.as_chat if request.text is not None else None,  # type: ignore[arg-type]  # likewise
        stream=request.stream,
        manyhands=request.manyhands,
    )
    try:
        return replace(_chat(chat, served), url=RESPONSES, echoed=_echoed(request))
    except InvalidField as error:
        others = {chat.most_by: _MOST_OF_RESPONSE, **_FIELDS_OF_RESPONSE}
        if error.param not in others:
            raise
        own = others[error.param]
        if error.param == "messages" and request.instructions and _is_fine(chat, served):
            own = "instructions"
        message = str(error).replace(error.param, own)
        raise InvalidField(message, param=own, hint=error.hint) from error


def _is_fine(chat: ChatBody, served: Served) -> bool:
    """Whether this request would be met without its first message, which is made of the instructions of a response."""
    assert chat.messages, "the instructions are one"
    try:
        _chat(chat.model_copy(update={"messages": chat.messages[1:]}), served)
    except ManyhandsError:
        return False
    return True


def _echoed(request: ResponsesBody) -> dict[str, Any]:
    """The fields that a response repeats, where they were given."""
    whole = request.model_dump(by_alias=True, exclude_none=True)
    names = ("instructions", "max_output_tokens", "metadata", "text", "user")
    found = {name: whole[name] for name in names if name in whole}
    if "text" in found:
        found["text"] = {"format": {"type": "text"}, **found["text"]}
    return found


def _decoded(
    url: str, request: ChatRequest | PlainRequest, spec: CompletionSpec, served: Served
) -> Asked:
    """Plain decoding, if it is not more than one client may ask."""
    prompts, settings = spec.prompts, spec.settings
    if settings.echo and getattr(request, "stream", None):
        raise InvalidField("echo is True; a stream holds what is written alone", param="echo")
    settings = replace(settings, rows=min(settings.rows, served.limits.request_workers))
    most = settings.max_tokens
    if served.context is not None:
        most = min(most, served.context)
    _check_size(len(prompts) * settings.samples * most, served.limits, request.most_by)
    if settings.grammar is not None:
        assert request.form is not None, "a grammar is asked for by a form"
        with about(request.form.param):
            settings.grammar.matcher(served.text)  # compiled here, and not in the event loop
    size = sum(len(prompt.tokens) for prompt in prompts)
    return Asked(url, served.name, prompts=prompts, settings=settings, num_prompt_tokens=size)


def _check_ids(request: ChatRequest | PlainRequest, served: Served) -> None:
    """Refused by the field's name, before the engine sees it: a token that the network does not know."""
    given = {"logit_bias": [int(token) for token in request.logit_bias or ()]}
    if isinstance(request, PlainRequest):
        texts = [prompt for prompt in request.prompts if not isinstance(prompt, str)]
        given["prompt"] = [token for tokens in texts for token in tokens]
    most = served.vocabulary
    for name, tokens in given.items():
        wrong = [token for token in tokens if token < 0 or (most is not None and token >= most)]
        if wrong:
            known = "0 or more" if most is None else f"0 to {most - 1}"
            raise InvalidField(
                f"{name} has the token id {shown(wrong[0])}; expected {known}", param=name
            )


def _check_size(num_tokens: int, limits: Limits, field: str) -> None:
    if num_tokens > limits.request_tokens:
        raise InvalidField(
            f"the request may write {num_tokens} tokens; expected at most {limits.request_tokens}",
            param=field,
            hint="ask for fewer completions, fewer workers, or fewer tokens",
        )


# -- methods -----------------------------------------------------------------------------------------


def _spec(
    request: ChatRequest | PlainRequest, options: Mapping[str, Any] | None, served: Served
) -> RunSpec | CompletionSpec:
    """The run of a method that is asked for, or a plain completion."""
    _check_model(request.model, served)
    defaults = Defaults(served.name, served.settings, context=served.context, own=served.own)
    spec = spec_of(request, options, served.text, served.prompts, defaults)
    _check_ids(request, served)
    if not isinstance(spec, RunSpec):
        return spec
    if served.only_forks:
        with about("model" if read_model(request.model, served.name) else "manyhands.method"):
            check_forks(spec.method, spec.settings)
    settings, samples = spec.settings, request.n or 1
    workers = max(1, getattr(settings, "workers", 1))
    names = {"budget", "workers"}.intersection(options or ())
    field = f"manyhands.{min(names)}" if names else request.most_by
    passes = min(settings.budget, settings.end.total or settings.budget)
    _check_size(samples * passes * workers, served.limits, field)
    most = served.limits.request_workers
    if samples * workers > most:
        raise _too_many_workers(samples, workers, most, _field_of_workers(request, options, spec))
    return replace(spec, settings=replace(settings, most_workers=most // samples))


def _field_of_workers(
    request: ChatRequest | PlainRequest, options: Mapping[str, Any] | None, spec: RunSpec
) -> str:
    """The field of a request that says how many workers write, or else the one that asks for several."""
    given = {name for name, value in (options or {}).items() if value is not None}
    if "workers" in given:
        return "manyhands.workers"
    usual = getattr(spec.method.settings(), "workers", 1)
    if (request.n or 1) > 1 and getattr(spec.settings, "workers", 1) in (1, usual):
        return "n"
    return "manyhands.method" if "method" in given else "model"


def _too_many_workers(samples: int, workers: int, most: int, field: str) -> InvalidField:
    found = counted(workers, "worker")
    if samples > 1:
        found = f"{samples} completions of {found} each"
    return InvalidField(
        f"the request asks for {found} that write at the same time; expected at most {counted(most, 'worker')}",
        param=field,
        hint="ask for fewer completions or for fewer workers",
    )


def _check_model(model: str | None, served: Served) -> None:
    """Refused with 404, as OpenAI's API has it, for a model that is not this one."""
    try:
        read_model(model, served.name, only_forks=served.only_forks)
    except InvalidField as error:
        message = f"{error} ({error.hint})" if error.hint else str(error)
        raise Refusal(404, message, code="model_not_found", param="model") from error


def _with_spec(url: str, model: str, spec: RunSpec, served: Served) -> Asked:
    served.text.check_room(spec.conversation, served.context)
    with about("messages"):
        size = len(served.text.conversation(spec.conversation))
    workers, method = spec.facts()["workers"], spec.method.name
    warning = served.outside and served.outside(spec.problem, workers, method)
    return Asked(url, model, spec=spec, num_prompt_tokens=size, warning=warning)


def tokens_of(messages: Sequence[Mapping[str, Any]], served: Served) -> tuple[int, ...]:
    """Messages in the model's chat template, in tokens."""
    request = read_shape(ChatBody, {"messages": list(messages)})
    return prompts_of(request, served.text)[0].tokens
