"""Answers for requests that cannot be met: OpenAI's error object, and the status that fits.

    Refusal(404, "no run 'x' is known here", code="not_found")      what the server itself refuses
    failure_of(error)                                              what our rooms raise, as a Refusal

Messages of ours are made for users and go out as they are. What fails because the system gives this process no more files, processes,
threads or memory is nobody's mistake, and may succeed later: 503. Whatever else is raised is a mistake of the server:
the body says so and no more; the log has the rest, under the request's id.
"""

from __future__ import annotations

from typing import Any

from manyhands.errors import (
    Busy,
    ContextTooLong,
    DeadlineExceeded,
    InvalidRequest,
    ManyhandsError,
    OutOfMemory,
    ServiceStopped,
    scarcity_of,
)
from manyhands.schema.openai import error_object

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}
_STATUS: dict[type[ManyhandsError], int] = {
    Busy: 429,
    ContextTooLong: 400,
    DeadlineExceeded: 504,
    InvalidRequest: 400,
    OutOfMemory: 400,
    ServiceStopped: 503,
}
RETRY_AFTER = "2"  # seconds; a run takes about that long


class Refusal(Exception):
    """A request that is not answered: its status, its error object, and headers beside it."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str,
        param: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.headers = status, dict(headers or {})
        default = "invalid_request_error" if status < 500 else "server_error"
        self.error = {
            "message": message,
            "type": _TYPES.get(status, default),
            "param": param,
            "code": code,
        }
        if status in (429, 503):
            self.headers.setdefault("Retry-After", RETRY_AFTER)
        if status == 504:  # it would take as long once more
            self.headers.setdefault("X-Should-Retry", "false")

    @property
    def body(self) -> dict[str, Any]:
        """The JSON object that is sent."""
        return {"error": self.error}


def failure_of(error: BaseException, prompt: str | None = None) -> Refusal:
    """Any error as what a client is told of it. `prompt`: the field of the request that has the prompt, if one does."""
    if isinstance(error, Refusal):
        return error
    if isinstance(error, ServiceStopped):
        if error.__cause__ is None:
            return draining()
        return Refusal(500, "the engine has failed, and the server ends", code="engine_failed")
    if (scarcity := scarcity_of(error)) is not None:
        return Refusal(
            503,
            f"the system gives the server no more of what this request needs ({scarcity}); come back later",
            code="system_limit",
        )
    if isinstance(error, ManyhandsError):
        told = error_object(error, prompt)
        status = next((s for kind, s in _STATUS.items() if isinstance(error, kind)), 500)
        code = "context_length_exceeded" if isinstance(error, ContextTooLong) else told["code"]
        return Refusal(status, told["message"], code=code, param=told["param"])
    return Refusal(500, "the server made a mistake; its log has more", code="internal_error")


def draining() -> Refusal:
    """The refusal of new runs while the server is about to end."""
    return Refusal(503, "the server is about to end and takes no new runs", code="draining")
