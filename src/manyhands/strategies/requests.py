"""OpenAI's requests as runs, and completions as OpenAI's answers.

    request = read_request(CHAT, body)                       schema/openai.py: fields and types
    prompts = prompts_of(request, text)                      the model's chat template, token ids
    settings = settings_of(request, Defaults("our-model"))   SharedSettings; they check their ranges
    body = answer_body(CHAT, completions, "our-model", "a1b2", text)

`manyhands batch` reads such requests from a file (`cli/batch_lines.py`); a server gets them over HTTP. Both
come through here, so that a request means the same at every door.

A chat may also ask for a method, by its model's alias or by options of ours beside OpenAI's fields:

    spec = spec_of(request, {"method": "hogwild", "workers": 4, "end": {"reply_tokens": 200}},
                   text, prompts, Defaults("our-model"))
    spec.strategy(text)                   without a method: the plain completion of the conversation

    our-model                             as the options say; without any: plain completion
    our-model:branches                    {"method": "branches"}
    our-model:hogwild-4                   {"method": "hogwild", "workers": 4}

An option is a field of the method's settings, or one within them that is named alone (`"reply_tokens": 200`). It
has the last word where OpenAI's field says something else. `max_tokens` is the budget of a method whose main
strand is the reply alone; of the others it bounds all passes (`end.total`), so no strand gets longer, and nothing may be
left for a reply. `stop` cuts the reply (`end.stop`), and `n` asks for so many runs that differ in their seed
(`RunSpec.samples`). What can be chosen in Python alone is refused.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, get_type_hints

from manyhands.cache.logprobs import Logprobs
from manyhands.cache.prefixes import PrefixTree
from manyhands.cache.step import Choice
from manyhands.errors import InvalidRequest
from manyhands.prompts.load import Prompts
from manyhands.schema.choosing import choosable
from manyhands.schema.conversation import ASSISTANT, SYSTEM, Conversation, Message
from manyhands.schema.open_registry import NAME
from manyhands.schema.openai import (
    PLAIN,
    ChatRequest,
    InvalidField,
    PlainRequest,
    Request,
    SpelledToken,
    choice,
    completion,
    shown,
    spelled,
)
from manyhands.schema.plain import from_plain, to_plain
from manyhands.schema.setting import settings_of as declared_of
from manyhands.strategies.base import Strategy
from manyhands.strategies.methods import METHODS, Method, method_named_by
from manyhands.strategies.run_spec import RunSpec
from manyhands.strategies.settings import UNSAID, Settings, SharedSettings
from manyhands.strategies.shared_prefix import Completion, Completions, Prompt, shared_prefix
from manyhands.text import StreamDecoder, Text, clean_problem
from manyhands.text.clean import cleaned
from manyhands.text.grammar import Grammar

_TOKEN = re.compile("[0-9]{1,18}")
_ALIAS = re.compile(rf":(?P<method>{NAME})(?:-(?P<workers>[0-9]{{1,4}}))?\Z")


@dataclass(frozen=True)
class Defaults:
    """The values that answer a request where it says nothing.

    `method`: None is plain completion. `context` is the longest view that the model bears, in tokens. `own` is
    how the model samples by itself, in methods too; None: as each method does. `changes` are choices that make another
    model of the one that `model` names, such as an adapter: answers to equal requests differ by them.
    """

    model: str
    settings: SharedSettings = UNSAID
    method: str | None = None
    context: int | None = None
    own: Choice | None = None
    changes: tuple[str, ...] = ()


@dataclass(frozen=True)
class CompletionSpec:
    """A plain completion before it begins: what `RunSpec` is for a method."""

    prompts: tuple[Prompt, ...]
    settings: SharedSettings
    context: int | None = None

    def strategy(self, text: Text, tree: PrefixTree | None = None) -> Strategy:
        """The strategy at its beginning; with a `tree`, prompts are found in it."""
        return shared_prefix(self.prompts, text, self.settings, tree=tree, context=self.context)


def choice_of(request: Request, defaults: Defaults) -> Choice:
    """How tokens are chosen. InvalidRequest names a setting that is out of its range."""
    given = {
        "temperature": request.temperature,
        "top_k": request.top_k,
        "top_p": request.top_p,
        "min_p": request.min_p,
        "frequency_penalty": request.frequency_penalty,
        "presence_penalty": request.presence_penalty,
        "repetition_penalty": request.repetition_penalty,
        "logit_bias": _bias(request.logit_bias),
        "min_tokens": request.min_tokens,
        "logprobs": request.told,
    }
    asked: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if request.top_k == -1:  # vLLM's word for all tokens, beside 0
        asked["top_k"] = 0
    if request.top_p == 0:  # OpenAI's range begins there: of any set the likeliest is a member
        asked |= {"top_p": 1.0, "top_k": 1}
    try:
        return replace(defaults.settings.choice, **asked)
    except InvalidRequest as error:
        _say_of_field(error, "logprobs", request.told_by)
        raise


def _say_of_field(error: InvalidRequest, setting: str, field: str) -> None:
    """Raise an error of this setting as one of the field that says it, by the name that the client gave it."""
    name, _, rest = str(error).partition(" ")
    if name == setting and not isinstance(error, InvalidField):
        raise InvalidField(f"{field} {rest}", param=field, hint=error.hint) from error


def settings_of(request: Request, defaults: Defaults, *, isolate: bool = False) -> SharedSettings:
    """All settings of a request. `isolate`: requests of different `user`s share nothing."""
    unsaid, most, seed = defaults.settings, request.most_tokens, request.seed
    try:
        return replace(
            unsaid,
            samples=1 if request.n is None else request.n,
            max_tokens=unsaid.max_tokens if most is None else most,
            choice=choice_of(request, defaults),
            seed=unsaid.seed if seed is None else seed,
            stop=request.stops,
            echo=request.echoes,
            grammar=grammar_of(request),
            tenant=request.user if isolate else None,
        )
    except InvalidRequest as error:
        _say_of_field(error, "max_tokens", request.most_by)
        raise


def grammar_of(request: Request) -> Grammar | None:
    """The form that is asked for. InvalidField if it cannot be followed, or if no library is there for it."""
    form = request.form
    if form is None:
        return None
    is_text = isinstance(form.rules, str)
    rules = "" if form.kind == "json_object" else form.rules if is_text else json.dumps(form.rules)
    grammar = Grammar(form.kind, rules)
    try:
        grammar.check()
    except InvalidRequest as error:
        raise InvalidField(f"{form.param}: {error}", param=form.param, hint=error.hint) from error
    return grammar


def _bias(given: Mapping[str, float] | None) -> dict[int, float] | None:
    """Token ids are words in JSON."""
    if given is None:
        return None
    wrong = next((key for key in given if not _TOKEN.fullmatch(key)), None)
    if wrong is not None:
        raise InvalidField(
            f"logit_bias has {shown(wrong)}; expected token ids in decimal digits",
            param="logit_bias",
        )
    return {int(key): bias for key, bias in given.items()}


def prompts_of(
    request: ChatRequest | PlainRequest, text: Text, context: int | None = None
) -> tuple[Prompt, ...]:
    """The prompts to complete, in tokens. InvalidRequest if a prompt has none.

    ContextTooLong for one that has more than `context` tokens by its characters alone; it is not encoded.
    """
    if isinstance(request, ChatRequest):
        with about("reasoning_effort"):
            text = text.at_effort(request.reasoning_effort)
        with about("messages"):
            said = Conversation.of(_messages(request))
            text.check_room(said, context)
            return (Prompt(text.conversation(said), text.thinks(said), chat=True),)
    for prompt in request.prompts:
        if isinstance(prompt, str):
            text.check_room(prompt, context)
    return tuple(Prompt(_tokens(prompt, text)) for prompt in request.prompts)


def spec_of(
    request: ChatRequest | PlainRequest,
    options: Mapping[str, Any] | None,
    text: Text,
    prompts: Prompts,
    defaults: Defaults,
) -> RunSpec | CompletionSpec:
    """The run that a request asks for. `options` are ours: a method, and fields of its settings.

    Raises InvalidField for a model that is not this one, a method or a field that does not exist, and a
    value that cannot be.
    """
    if not isinstance(options, Mapping | None):
        raise InvalidField(f"manyhands is {shown(options)}; expected an object", param="manyhands")
    given = {name: value for name, value in (options or {}).items() if value is not None}
    alias = read_model(request.model, defaults.model)
    if alias and given.get("method", alias["method"]) != alias["method"]:
        raise InvalidField(
            f"manyhands.method is {shown(given['method'])}, and the model's alias asks for "
            f"{alias['method']!r}",
            param="manyhands.method",
        )
    wanted = {"method": method_named_by(given) or defaults.method, **alias, **given}
    name = wanted.pop("method")
    if name is None or name == shared_prefix.__name__:
        if wanted:
            raise _without_method(min(wanted))
        return _completion_spec(request, text, defaults)
    if not isinstance(name, str) or name not in METHODS:
        raise InvalidField(
            f"manyhands.method is {shown(name)}", param="manyhands.method", hint=_methods()
        )
    with about("manyhands.method"):  # of an installed distribution, it may not be usable
        method = METHODS[name]
    if isinstance(request, ChatRequest):
        _check_effort(method, request, text)
    try:
        return _method_spec(method, request, wanted, prompts, defaults)
    except InvalidField as error:
        if error.param != "manyhands.workers" or "workers" in given:
            raise
        said = f"model is {shown(request.model)}: {error}"
        raise InvalidField(said, param="model", hint=error.hint) from error


def _methods() -> str:
    return f"Methods: {', '.join(METHODS)}; {shared_prefix.__name__} is plain completion."


def _without_method(name: str) -> InvalidField:
    """The complaint about an option where no method is named."""
    listed = {
        path for method in METHODS.working().values() for path in choosable(method.settings())
    }
    if any(name in (path, path.partition(".")[0], path.rpartition(".")[2]) for path in listed):
        return InvalidField(
            f"manyhands has {name!r}, a setting of methods, and names no method",
            param="manyhands.method",
            hint=_methods(),
        )
    return InvalidField(
        f"manyhands has a field {shown(name)} that no method has",
        param=f"manyhands.{name}"[:200],
        hint=_methods(),
    )


def _completion_spec(
    request: ChatRequest | PlainRequest, text: Text, defaults: Defaults
) -> CompletionSpec:
    settings = settings_of(request, defaults)
    settings = replace(settings, keep=isinstance(request, ChatRequest))  # for the next turn
    return CompletionSpec(prompts_of(request, text, defaults.context), settings, defaults.context)


def _method_spec(
    method: Method,
    request: ChatRequest | PlainRequest,
    wanted: Mapping[str, Any],
    prompts: Prompts,
    defaults: Defaults,
) -> RunSpec:
    if not isinstance(request, ChatRequest):
        raise InvalidField(
            f"the method {method.name} is asked for, and it takes a chat",
            param="manyhands.method",
            hint="Send messages to /v1/chat/completions.",
        )
    _check_reply(method, request)
    settings = _method_settings(method, wanted, request, defaults)
    with about("messages"):
        asked = Conversation.of([_clean(message) for message in _messages(request)])
        asked = replace(asked, problem=clean_problem(asked.problem))
    words = getattr(prompts, method.prompt)
    return RunSpec(method, settings, words, asked.problem, defaults.context).asked(asked)


def _check_reply(method: Method, request: ChatRequest) -> None:
    """Refused where a field asks for something that the reply of a method does not have."""
    if request.form is not None:
        raise InvalidField(
            f"{request.form.param} asks for a form; the reply of the method {method.name} is free text",
            param=request.form.param,
            hint="A plain completion, without a method, follows a form.",
        )
    if request.told is not None:
        raise InvalidField(
            f"logprobs is {shown(request.logprobs)}; the reply of the method {method.name} comes without",
            param="logprobs",
            hint="`manyhands.logprobs` tells those of every worker in the events of the run.",
        )


def _check_effort(method: Method, request: ChatRequest, text: Text) -> None:
    """Refused where it would change the prompt: all workers of a method think as the model was loaded to."""
    effort = request.reasoning_effort
    with about("reasoning_effort"):
        changes = text.at_effort(effort) is not text
    if changes:
        raise InvalidField(
            f"reasoning_effort is {effort!r}; the workers of the method {method.name} think as the model "
            "was loaded to",
            param="reasoning_effort",
            hint="Leave it out; a budget bounds how much is written.",
        )


def offered(*, only_forks: bool = False) -> dict[str, Method]:
    """The methods that can be asked for, installed ones too; `only_forks`: that, as they come, read a block behind one text alone."""
    return {
        name: method
        for name, method in METHODS.working().items()
        if not only_forks or method.forks(method.settings())
    }


def methods_told(
    methods: Mapping[str, Method], *, own: Choice | None = None, seed: int | None = None
) -> dict[str, Any]:
    """The methods as plain data: what each is, and its settings as JSON Schema, by the names that a request has for them.

    `settings` beside the list are those that every method has; among its own are those that it declares otherwise.
    Defaults are those of a request that says nothing: `own` and `seed` are as `Defaults` have them, and without a `seed`
    each run has one of its own.
    """

    def schemas(kind: type[Settings]) -> dict[str, dict[str, Any]]:
        return _schemas(kind() if own is None else kind(choice=own), seed)

    common = schemas(Settings)
    told = [
        {
            "id": name,
            "object": "method",
            "about": method.about,
            "distribution": METHODS.place(name) if name in METHODS else "",
            "listens": method.listens,
            "settings": {
                path: schema
                for path, schema in schemas(method.settings).items()
                if common.get(path) != schema
            },
        }
        for name, method in methods.items()
    ]
    return {"object": "list", "data": told, "settings": common}


def _schemas(settings: Settings, seed: int | None) -> dict[str, dict[str, Any]]:
    """The settings that a request can name, by their paths."""
    found = {
        path: {**one.schema, "by": one.setting.by} for path, one in choosable(settings).items()
    }
    if "seed" in found:  # a method's own default counts for nothing: `_method_settings`
        told = found["seed"]
        told["default"] = seed
        if seed is None:
            told["type"] = ["integer", "null"]
            told["description"] += " Unset: each run has one of its own."
    return found


def aliases(model: str, *, only_forks: bool = False) -> list[str]:
    """The names under which `model` can be asked for with a method, the most useful of each method.

    `only_forks`: methods that, as they come, read a block behind one text alone.
    """
    found = []
    for method in offered(only_forks=only_forks).values():
        usual = getattr(method.settings(), "workers", 0)
        sizes = [size for size in sorted({usual, 4}) if _takes(method, size)] if usual else []
        found += [f"{model}:{method.name}-{size}" for size in sizes] or [f"{model}:{method.name}"]
    return found


def is_model(asked: str, model: str, *, only_forks: bool = False) -> bool:
    """Whether a request may call `model` so: by its own name, or by an alias with any number of workers that its method takes."""
    try:
        options = read_model(asked, model)
    except InvalidField:
        return False
    if not options:
        return True
    method = METHODS[options["method"]]
    if only_forks and not method.forks(method.settings()):
        return False
    return options.get("workers", 1) == 1 or _takes(method, options["workers"])


def _takes(method: Method, workers: int) -> bool:
    """Whether a method may have so many workers."""
    usual: Any = method.settings()
    if not hasattr(usual, "workers"):
        return False
    try:
        replace(usual, workers=workers)
    except InvalidRequest:
        return False
    return True


def read_model(asked: str | None, model: str, *, only_forks: bool = False) -> dict[str, Any]:
    """The options that the name of a model stands for; `model` is the one that is there.

    Raises InvalidField for any other name.
    """
    if asked is None or asked == model:
        return {}
    found = _alias_of(asked, model)
    if found is None or found["method"] not in METHODS:
        listed = ", ".join(aliases(model, only_forks=only_forks))
        raise InvalidField(
            f"model is {shown(asked)}; expected {model!r}",
            param="model",
            hint=f"A method behind a colon is understood, too: {listed}.",
        )
    with about("model"):
        method = METHODS[found["method"]]
    workers = found["workers"]
    if workers is None:
        return {"method": method.name}
    if int(workers) != 1 and not hasattr(method.settings(), "workers"):
        raise InvalidField(
            f"model is {shown(asked)}, and the method {method.name} has no number of workers; "
            f"expected '{model}:{method.name}'",
            param="model",
        )
    return {"method": method.name, "workers": int(workers)}


def _alias_of(asked: str, model: str) -> re.Match[str] | None:
    """The parts of an alias of this model, whatever methods there are."""
    return _ALIAS.fullmatch(asked.removeprefix(model)) if asked.startswith(model) else None


def method_named(asked: str, model: str) -> str | None:
    """The method that a name of this model asks for, one that is not installed here, too; None: the model by itself."""
    found = _alias_of(asked, model)
    return None if found is None else found["method"]


def method_of_alias(asked: str) -> str | None:
    """The method that the name of a model asks for, whichever model it is."""
    found = _ALIAS.search(asked)
    return found["method"] if found is not None and found["method"] in METHODS else None


def check_plain(asked: str | None) -> None:
    """Refused with InvalidField where the name of a model asks for a method."""
    method = None if asked is None else method_of_alias(asked)
    if method is not None:
        raise InvalidField(
            f"model is {shown(asked)}, which asks for the method {method}; expected a model alone, "
            "for plain completion",
            param="model",
            hint="A server answers by methods: manyhands serve.",
        )


def placed(error: InvalidRequest, names: Collection[str]) -> InvalidRequest:
    """An error of settings, with the field of the request that it speaks of as its place."""
    name = str(error).partition(" ")[0]
    if isinstance(error, InvalidField) or type(error) is not InvalidRequest or name not in names:
        return error
    return InvalidField(str(error), param=name, hint=error.hint)


def answer_body(
    url: str, answer: Completions, model: str, name: str, text: Text | None = None
) -> dict[str, Any]:
    """The answer to a request, as OpenAI's API says it; `name` is the answer's own.

    `text` spells the tokens whose logprobs are told; it is needed for an answer that has some.
    """
    return completion(
        url,
        name,
        model,
        int(time.time()),
        [
            choice(url, index, each.text, each.thinking, each.finish_reason, _told(url, each, text))
            for index, each in enumerate(answer.completions)
        ],
        prompt_tokens=sum(answer.prompt_tokens),
        completion_tokens=sum(answer.tokens),
        cached_tokens=sum(answer.found),
    )


def _told(url: str, told: Completion, text: Text | None) -> list[SpelledToken] | None:
    """The tokens of a completion whose logprobs are told; None if none were asked for.

    A message has those of its reply. A plain completion has all, those of an echoed prompt first, and at its
    end the token that ended it, which is no text.
    """
    if told.logprobs is None:
        return None
    assert text is not None, "an answer with logprobs is spelled by a Text"
    if url == PLAIN:
        in_front = () if told.echoed else told.in_front
        return spelled_tokens(text, (*told.echoed, *told.logprobs), in_front)
    spelling = Spelling(text, is_message=True)
    of_reply = told.logprobs[told.thinking_tokens : len(told.tokens)]
    found = [spelling.take(token, logprobs) for token, logprobs in of_reply]
    end = len(told.text)  # a stop text is no part of the message
    return [token for token in found if token is not None and token.offset < end]


def spelled_tokens(
    text: Text, told: Iterable[tuple[int, Logprobs | None]], in_front: Sequence[int] = ()
) -> list[SpelledToken]:
    """Tokens and what was told of them, as an answer tells it; see `Spelling`."""
    spelling = Spelling(text, in_front)
    found = [spelling.take(token, logprobs) for token, logprobs in told]
    return [token for token in found if token is not None]


class Spelling:
    """Spells the tokens of one text one after another: each begins at the character at which the ones before it end.

    It goes on from the tokens `in_front`, if there are any. A message begins with its first word (`Prompt.chat`): tokens of
    nothing but blanks before that are no part of it, and the first word's token and the likeliest in its place are told
    without theirs. So the tokens of a message, put together, are its text.
    """

    def __init__(
        self, text: Text, in_front: Sequence[int] = (), *, is_message: bool = False
    ) -> None:
        self._text, self._decoder = text, StreamDecoder(text)
        for token in in_front:
            self._decoder.push(token)
        self._offset = 0
        self._has_begun = not is_message

    def take(self, token: int, logprobs: Logprobs | None) -> SpelledToken | None:
        """The next token, and what was told of it; None for one that is no part of a message."""
        text = self._text
        top = [_spelled(text, each, value) for each, value in logprobs.top] if logprobs else []
        own = _spelled(text, token, None if logprobs is None else logprobs.logprob)
        piece = self._decoder.push(token)
        if not self._has_begun:
            if own.raw and not _words(own.raw):
                return None
            own, top = _from_its_word(own), [_from_its_word(each) for each in top]
            piece = piece.lstrip()
            self._has_begun = bool(piece)
        found = replace(own, top=tuple(top), offset=self._offset)
        self._offset += len(piece)
        return found


def _from_its_word(token: SpelledToken) -> SpelledToken:
    """The token without the blanks in front of its word; one of blanks alone stays as it is."""
    if not (words := _words(token.raw)):
        return token
    raw = words.encode("utf-8", "surrogateescape")
    return replace(token, text=spelled(raw), raw=raw)


def _words(raw: bytes) -> str:
    """The text of a token from its first word on; bytes of half a character are no blanks."""
    return raw.decode("utf-8", "surrogateescape").lstrip()


def _spelled(text: Text, token: int, logprob: float | None) -> SpelledToken:
    raw = text.bytes_of(token)
    return SpelledToken(spelled(raw), raw, logprob)


def _tokens(prompt: str | list[int], text: Text) -> tuple[int, ...]:
    tokens = text.plain_prompt(prompt) if isinstance(prompt, str) else tuple(prompt)
    if not tokens:
        raise InvalidField(f"a prompt is {shown(prompt)}; expected some text", param="prompt")
    return tokens


def _messages(request: ChatRequest) -> list[Message]:
    roles = {"developer": SYSTEM}
    return [Message(roles.get(one.role, one.role), one.text) for one in request.messages]


def _clean(message: Message) -> Message:
    """As it was when it was asked; a reply, and the beginning of one, stay as they were given."""
    return message if message.role == ASSISTANT else Message(message.role, cleaned(message.text))


def _method_settings(
    method: Method, wanted: Mapping[str, Any], request: Request, defaults: Defaults
) -> Settings:
    """The settings of a method: what OpenAI's fields say, and over it what the options say."""
    usual = method.settings() if defaults.own is None else method.settings(choice=defaults.own)
    values = {field.name: getattr(usual, field.name) for field in fields(usual)}
    own = replace(defaults, settings=replace(defaults.settings, choice=values["choice"]))
    values["choice"] = choice_of(request, own)
    values["seed"] = defaults.settings.seed if request.seed is None else request.seed
    if request.most_tokens is not None and request.most_tokens < 1:
        raise InvalidField(
            f"{request.most_by} is {request.most_tokens}; expected 1 or more", param=request.most_by
        )
    # A reply that has a thinker beside it goes on behind the budget, so the budget alone does not bound it.
    if request.most_tokens is not None and method.solo and method.reading(usual) is None:
        values["budget"] = request.most_tokens
    elif request.most_tokens is not None:
        with about(request.most_by):
            values["end"] = replace(values["end"], total=request.most_tokens)
    with about("stop"):
        values["end"] = replace(values["end"], stop=request.stops)
    chosen, kinds = _by_field(usual, wanted), get_type_hints(method.settings)
    _check_open(method.settings, chosen, "manyhands")
    for name, value in chosen.items():
        try:
            with about(f"manyhands.{name}"):
                plain = _over(to_plain(values[name]), value)
                values[name] = from_plain(kinds[name], plain, f"manyhands.{name}")
        except InvalidField as error:
            place = _place_of(error, name, wanted, usual)
            raise InvalidField(str(error), param=place, hint=error.hint) from error
        except TypeError as error:
            place, said = f"manyhands.{name}", str(error)
            said = said if said.startswith(place) else f"{place}: {said}"
            place = _place_of(error, name, wanted, usual)
            raise InvalidField(said, param=place) from error
    try:
        return method.settings(**values)
    except InvalidRequest as error:
        first = str(error).split(maxsplit=1)[0]
        place = {"budget": request.most_by}.get(first, "temperature")
        place = f"manyhands.{first}" if first in chosen else place
        raise InvalidField(str(error), param=place, hint=error.hint) from error


def _place_of(error: Exception, name: str, wanted: Mapping[str, Any], settings: Settings) -> str:
    """The place at which the request has what is wrong in the setting `name`, or in one within it."""
    inner = str(error).partition(" ")[0]
    if f"{name}.{inner}" not in choosable(settings):
        return f"manyhands.{name}"
    return f"manyhands.{inner}" if inner in wanted else f"manyhands.{name}.{inner}"


def _by_field(settings: Settings, wanted: Mapping[str, Any]) -> dict[str, Any]:
    """The wanted settings, field by field. A setting within others may be named alone, as for `--set`."""
    names = {field.name for field in fields(settings)}
    paths = [path for path in choosable(settings) if "." in path]
    found: dict[str, Any] = {}
    for name, value in wanted.items():
        inner = [path for path in paths if name in (path, path.rpartition(".")[2])]
        if name in names:
            found[name] = _over(found.get(name), value)
        elif len(inner) == 1:
            *outer, last = inner[0].split(".")
            nested = {last: value}
            for part in reversed(outer[1:]):
                nested = {part: nested}
            found[outer[0]] = _over(found.get(outer[0]), nested)
        elif (name, value) != ("workers", 1):  # as every method works that has none
            raise InvalidField(
                f"manyhands has a field {shown(name)} that {type(settings).__name__} do not have",
                param=f"manyhands.{name}",
                hint=f"known: {', '.join(choosable(settings))}",
            )
    return found


def _check_open(kind: Any, chosen: Mapping[str, Any], place: str) -> None:
    """Refused for a setting that is there for programs in Python alone."""
    declared, kinds = declared_of(kind), get_type_hints(kind)
    for name, value in chosen.items():
        if name not in declared:  # for `from_plain` to say
            continue
        if declared[name].by == "code":
            raise InvalidField(
                f"{place}.{name} can be chosen in Python alone",
                param=f"{place}.{name}",
                hint="Leave it out.",
            )
        if isinstance(value, Mapping) and is_dataclass(kinds[name]):
            _check_open(kinds[name], value, f"{place}.{name}")


def _over(known: Any, value: Any) -> Any:
    """Plain data with other plain data over it; objects are put together field by field."""
    if not isinstance(known, Mapping) or not isinstance(value, Mapping):
        return value
    return {**known, **{name: _over(known.get(name), each) for name, each in value.items()}}


@contextmanager
def about(param: str) -> Iterator[None]:
    """A mistake inside is a mistake of this field of the request."""
    try:
        yield
    except InvalidField:
        raise
    except InvalidRequest as error:
        raise InvalidField(str(error), param=param, hint=error.hint) from error
