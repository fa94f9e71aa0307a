"""A model's chat template, rendered under limits of time and memory.

A chat template is a program that comes with a checkpoint. jinja2's sandbox keeps it from files and from the
insides of Python, but a nest of loops may run for a year, and `'a' * 10**10` fills the memory. So
templates are rendered in a child process (`manyhands.sandbox`); `text/jinja.py` is what the child does.

There is one child for all models and threads of this process. It takes a tenth of a second to start, so
`start` is called where loading begins, and the child is ready before the tokenizer is. What was rendered is
remembered: the result depends on the roles of a conversation, not on what was said in it.

    render(tokenizer.get_chat_template(), [{"role": "user", "content": "Hi"}], {"eos_token": "</s>"})
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import date
from functools import lru_cache

from manyhands.errors import InvalidRequest
from manyhands.sandbox import Failed, FailureKind, Limits, Sandbox

LIMITS = Limits(
    seconds=5.0, memory_bytes=1 << 30
)  # a template takes milliseconds, and 100 MB with Python


class TemplateFailed(Exception):  # as `Failed`, whose news it carries
    """A template that could not be rendered; the text says why.

    `kind` is "error" where the template raised one, as many do for roles that they do not take; otherwise it
    names the limit.
    """

    def __init__(self, why: str, kind: FailureKind) -> None:
        super().__init__(why)
        self.kind = kind


def start() -> None:
    """Begin to start the child, without waiting for it."""
    with suppress(InvalidRequest):  # said again, when something is to be rendered
        _sandbox(os.getpid()).start()


def render(
    source: str, messages: Sequence[Mapping[str, str]], words: Mapping[str, str | bool]
) -> str:
    """The text that the template makes of these messages, up to the first word of the answer.

    `words` are what the template may name besides: special tokens and switches. Raises TemplateFailed;
    InvalidRequest where no child can be started.
    """
    request = json.dumps([source, list(messages), dict(words)])
    return _rendered(os.getpid(), date.today().isoformat(), request)


@lru_cache(maxsize=1)
def _sandbox(process: int) -> Sandbox:
    """The child of this process; a fork of it gets one of its own."""
    return Sandbox("manyhands.text.jinja:rendered", LIMITS)


@lru_cache(maxsize=256)
def _rendered(process: int, day: str, request: str) -> str:
    """`day`, because templates may name it. Errors are not remembered."""
    outcome = _sandbox(process).run(*json.loads(request))
    if isinstance(outcome, Failed):
        raise TemplateFailed(f"it {outcome.why}", outcome.kind)
    text, refusal = outcome.value
    if refusal is not None:
        raise TemplateFailed(refusal, "error")
    return str(text)
