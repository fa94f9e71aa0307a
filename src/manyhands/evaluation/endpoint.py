"""A model behind an endpoint: any server that speaks the OpenAI protocol.

It may be a judge, and it may take the exam itself, by the two methods that need nothing but answers:
`sequential` (one answer) and `self_consistency` (several, and the majority of their boxes; Wang et al.,
2022). How many forward passes it makes cannot be seen, so completion tokens are what it is charged.

The client library retries what is worth retrying (a busy server, a dropped connection). Errors
that remain are of two kinds. A door that is closed (no connection, a wrong key, no such model) concerns
every question: it is raised, and nothing is put on record. Anything else belongs to one question.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from manyhands.cache.step import Choice
from manyhands.errors import InvalidRequest, ManyhandsError
from manyhands.hub import PROXY_HINT, in_short
from manyhands.schema.setting import as_found, check, like, setting
from manyhands.schema.waits import LONGEST_WAIT
from manyhands.strategies.voting import majority
from manyhands.tasks.loading import INSTALL_EXAM
from manyhands.text.code import answer_in

if TYPE_CHECKING:
    from openai import OpenAI

# Until a server takes a connection; how long its answer may take is asked for.
CONNECT_SECONDS = 10.0
NO_KEY = "none"  # servers of one's own want none, the library wants something
Asked = TypeVar("Asked")
Told = TypeVar("Told")


class EndpointFailed(ManyhandsError):
    """A server gave no usable answer to one question."""


class EndpointClosed(ManyhandsError):
    """A server cannot be used at all: no connection, a wrong key, no such model."""


@dataclass(frozen=True)
class EndpointOptions:
    """Which server and model, and how it is asked."""

    url: str
    model: str
    key: str = NO_KEY
    temperature: float | None = like(Choice, "temperature", default=None, unset="the server's own")
    top_p: float | None = like(Choice, "top_p", default=None, unset="the server's own")
    max_tokens: int | None = setting(
        None, "Tokens of an answer, at most.", at_least=1, unset="the server's own"
    )
    timeout: float = setting(
        600.0, "Seconds to wait for one answer.", at_least=0.1, at_most=LONGEST_WAIT
    )
    retries: int = setting(4, "Tries after the first, for what may pass.", at_least=0)

    def __post_init__(self) -> None:
        check(self)
        if not _is_address(self.url):
            raise InvalidRequest(
                f"the endpoint is {as_found(self.url)}; expected an address",
                hint="for example http://localhost:8000/v1",
            )
        if not self.model:
            raise InvalidRequest("the endpoint's model has no name", hint="give its name")


def _is_address(url: object) -> bool:
    """Whether requests can go there: a scheme, a host, and a port between 1 and 65535 if there is one."""
    if not isinstance(url, str) or not url.startswith(("http://", "https://")):
        return False
    try:
        parts = urlsplit(url)
        return bool(parts.hostname) and parts.port != 0 and not re.search(r"\s", url)
    except ValueError:  # a port beyond, or brackets without an address
        return False


@dataclass(frozen=True)
class Completion:
    """One answer of a server. `tokens` is None if it does not tell how many it wrote."""

    text: str
    tokens: int | None
    finish_reason: str


class Endpoint:
    """A server, ready to be asked, from several threads at once."""

    def __init__(self, options: EndpointOptions) -> None:
        self.options = options
        self._client: OpenAI = _client(options)

    def ask(self, question: str, seed: int) -> Completion:
        """One answer to one message. EndpointFailed or EndpointClosed if there is none."""
        import openai

        o = self.options
        chosen = {"temperature": o.temperature, "top_p": o.top_p, "max_tokens": o.max_tokens}
        given: dict[str, Any] = {name: v for name, v in chosen.items() if v is not None}
        try:
            found = self._client.chat.completions.create(
                model=o.model,
                messages=[{"role": "user", "content": question}],
                seed=seed,
                **given,
            )
        except (openai.APITimeoutError, openai.InternalServerError, openai.RateLimitError) as error:
            if _is_unconnected(error):
                raise EndpointClosed(
                    f"{o.url} takes no connection",
                    hint="look at the address and the network; what is graded is kept",
                ) from error
            raise EndpointFailed(f"{o.url}: {_first_line(error)}") from error
        except (
            openai.APIConnectionError,
            openai.AuthenticationError,
            openai.PermissionDeniedError,
            openai.NotFoundError,
        ) as error:
            raise EndpointClosed(
                f"{o.url} cannot be asked for {o.model!r}: {_first_line(error)}",
                hint="look at the address, the key and the model's name; what is graded is kept",
            ) from error
        except openai.OpenAIError as error:
            raise EndpointFailed(f"{o.url}: {_first_line(error)}") from error
        except ValueError as error:
            raise EndpointFailed(f"{o.url} sent something that is not JSON") from error
        return _completion(found, o.url)

    def close(self) -> None:
        """Let its connections go."""
        self._client.close()


@dataclass(frozen=True)
class Polled:
    """The reply of an endpoint to one question: the answer, the text, and what it cost."""

    answer: str | None
    text: str
    finish_reason: str
    tokens: tuple[int, ...]  # empty if the server does not tell
    seconds: float


def poll(endpoint: Endpoint, question: str, workers: int, seed: int, kind: str = "boxed") -> Polled:
    """One answer, or `workers` answers at the same time and the majority of their boxes."""
    start = time.perf_counter()
    if workers == 1:
        said = [endpoint.ask(question, seed)]
    else:
        with ThreadPoolExecutor(workers) as pool:
            said = list(pool.map(lambda i: endpoint.ask(question, seed + i), range(workers)))
    answers = [answer_in(one.text, kind) for one in said]
    best = majority(answers) or 0  # if none was given, the first text stands for all
    counts = tuple(one.tokens for one in said if one.tokens is not None)
    return Polled(
        answer=answers[best],
        text=said[best].text,
        finish_reason=said[best].finish_reason,
        tokens=counts if len(counts) == len(said) else (),
        seconds=time.perf_counter() - start,
    )


def at_once(
    do: Callable[[Asked], Told], asked: Iterable[Asked], concurrency: int
) -> Iterator[tuple[Asked, Told | ManyhandsError]]:
    """Do it for each, several at the same time; each comes back when it is done.

    An error of one comes back with it. After EndpointClosed nothing new is begun; it is raised when those
    under way have come back.
    """
    waiting = iter(asked)
    live: dict[Future[Told], Asked] = {}
    closed: EndpointClosed | None = None
    with ThreadPoolExecutor(concurrency) as pool:
        try:
            while True:
                while (
                    closed is None
                    and len(live) < concurrency
                    and (one := next(waiting, None)) is not None
                ):
                    live[pool.submit(do, one)] = one
                if not live:
                    break
                done, _ = wait(live, return_when=FIRST_COMPLETED)
                for future in done:
                    one = live.pop(future)
                    try:
                        told = _told(future)
                    except EndpointClosed as error:
                        closed = error
                    else:
                        yield one, told
        finally:
            for future in live:
                future.cancel()
    if closed is not None:
        raise closed


def _told(future: Future[Told]) -> Told | ManyhandsError:
    try:
        return future.result()
    except EndpointClosed:
        raise
    except ManyhandsError as error:
        return error


def _client(options: EndpointOptions) -> OpenAI:
    try:
        from openai import OpenAI, Timeout
    except ImportError as error:
        raise InvalidRequest(
            "asking an endpoint needs the package openai", hint=INSTALL_EXAM
        ) from error
    try:
        return OpenAI(
            base_url=options.url,
            api_key=options.key or NO_KEY,
            timeout=Timeout(options.timeout, connect=min(CONNECT_SECONDS, options.timeout)),
            max_retries=options.retries,
        )
    except (ImportError, ValueError) as error:
        raise InvalidRequest(
            f"{options.url} cannot be asked: {in_short(error)}", hint=PROXY_HINT
        ) from error


def _completion(found: Any, url: str) -> Completion:
    """The answer in what came back; servers differ, so nothing is taken for granted."""
    choices = getattr(found, "choices", None) or [None]
    message = getattr(choices[0], "message", None)
    text = getattr(message, "content", None)
    if not isinstance(text, str):
        raise EndpointFailed(f"{url} sent an answer without a text")
    usage = getattr(found, "usage", None)
    tokens = getattr(usage, "completion_tokens", None)
    reason = getattr(choices[0], "finish_reason", None)
    return Completion(text, tokens if isinstance(tokens, int) else None, str(reason or "stop"))


def _is_unconnected(error: Exception) -> bool:
    """Whether it is the connection that timed out, and not an answer.

    Known by the name: which HTTP library it comes from depends on the version of the client's.
    """
    return type(error.__cause__).__name__ == "ConnectTimeout"


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0][:300]
