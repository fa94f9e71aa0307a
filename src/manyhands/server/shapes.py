"""The bodies that routes take: each as a table of fields, which is what `/openapi.json` is made of.

Chat completions and completions are those of `schema/openai.py`, which a batch reads too, with what only a
server can do: a stream, and a method of ours in the place of plain decoding (`manyhands`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import field_validator

from manyhands.schema.openai import (
    CHAT,
    EFFORTS,
    MAX_MESSAGES,
    MAX_PARTS,
    PLAIN,
    ChatRequest,
    Effort,
    Items,
    Listed,
    Parts,
    PlainRequest,
    Shape,
    asked,
    check_parts,
    ignored,
    refused,
)
from manyhands.schema.openai import PROMPTS as CHAT_PROMPTS

RESPONSES, RUNS = "/v1/responses", "/v1/runs"
TOKENIZE, DETOKENIZE = "/v1/tokenize", "/v1/detokenize"
MESSAGES = "/v1/runs/{run}/messages"
PROMPTS = {**CHAT_PROMPTS, RESPONSES: "input", RUNS: "problem"}  # the field of the prompt
_METHOD = "an object: method, workers, budget, and other settings of the method"


class StreamOptions(Shape):
    """The parts of a stream besides the text."""

    include_usage: bool | None = asked("true or false")
    include_obfuscation: Any = ignored("nothing is padded")


class ChatBody(ChatRequest):
    """The body of `POST /v1/chat/completions`."""

    stream: bool | None = asked("true or false")
    stream_options: StreamOptions | None = asked("an object with include_usage")
    manyhands: dict[str, Any] | None = asked(_METHOD)
    verbosity: Any = ignored("how long a reply is follows from its tokens")
    parallel_tool_calls: Any = ignored("there are no tools")
    modalities: Any = refused("there is text alone", ["text"])


class PlainBody(PlainRequest):
    """The body of `POST /v1/completions`."""

    stream: bool | None = asked("true or false")
    stream_options: StreamOptions | None = asked("an object with include_usage")
    manyhands: Any = refused("a method takes messages; ask at /v1/chat/completions", {})


class InputPart(Shape):
    """A piece of an input message."""

    type: Literal["input_text", "output_text", "reasoning_text", "text"] = asked("a part of text")
    text: str = asked("a text", required=True)
    annotations: Any = ignored("an answer's own")
    logprobs: Any = ignored("an answer's own")


class InputItem(Shape):
    """One item of an input: a message, or something that an earlier response said."""

    type: Literal["message", "reasoning"] | None = asked("message")
    role: Literal["system", "developer", "user", "assistant"] | None = asked(
        "one of system, developer, user, assistant"
    )
    content: str | Parts[InputPart] | None = asked(
        f"a text or a list of text parts, {MAX_PARTS} at most"
    )
    phase: Any = ignored("a commentary is left out, as earlier thinking is")
    id: Any = ignored("an earlier answer's own")
    status: Any = ignored("an earlier answer's own")
    agent: Any = ignored("an earlier answer's own")
    summary: Any = ignored("an earlier answer's own")
    encrypted_content: Any = ignored("an earlier answer's own")

    @field_validator("content", mode="before")
    @classmethod
    def _check_parts(cls, value: Any) -> Any:
        return check_parts(value, "input_text", "output_text", "reasoning_text", "text")

    @property
    def is_said(self) -> bool:
        """Whether it is a message, and no thinking: neither reasoning nor a step of a worker."""
        return self.type != "reasoning" and self.phase != "commentary" and self.role is not None

    @property
    def text(self) -> str:
        """The content in one piece."""
        if self.content is None or isinstance(self.content, str):
            return self.content or ""
        return "".join(part.text for part in self.content)


class Reasoning(Shape):
    """The thinking that a response asks for."""

    effort: Effort | None = asked(EFFORTS)
    context: Any = ignored("chat templates leave earlier thinking out")
    generate_summary: Any = ignored("the thinking itself is told")
    mode: Any = ignored("there is one")
    summary: Any = ignored("the thinking itself is told")


class TextFormat(Shape):
    """The form of a response's text."""

    type: Literal["text", "json_object", "json_schema"] = asked(
        "one of text, json_object, json_schema", required=True
    )
    rules: dict[str, Any] | None = asked("a JSON schema, an object", alias="schema")

    name: Any = ignored("a schema is known by what it says")
    description: Any = ignored("the model is told by the prompt alone")
    strict: Any = ignored("a schema is always followed to the letter")


class ResponseText(Shape):
    """The wishes about a response's text."""

    format: TextFormat | None = asked("an object with a field 'type'")
    verbosity: Any = ignored("how long a reply is follows from its tokens")

    @property
    def as_chat(self) -> dict[str, Any] | None:
        """The form as a chat's `response_format`; None if it is free."""
        if self.format is None or self.format.type == "text":
            return None
        found: dict[str, Any] = {"type": self.format.type}
        if self.format.rules is not None:
            found["json_schema"] = {"schema": self.format.rules}
        return found


class ResponsesBody(Shape):
    """The body of `POST /v1/responses`."""

    model: str | None = asked("a text")
    input: str | Items[InputItem] = asked(
        f"a text, or a list of messages of text, {MAX_MESSAGES} at most",
        required=True,
        min_length=1,
    )
    instructions: str | None = asked("a text")
    max_output_tokens: int | None = asked("a whole number")
    temperature: float | None = asked("a number")
    top_p: float | None = asked("a number")
    stream: bool | None = asked("true or false")
    user: str | None = asked("a text")
    reasoning: Reasoning | None = asked("an object with effort")
    text: ResponseText | None = asked("an object with format")
    metadata: dict[str, str] | None = asked("an object of texts")
    manyhands: dict[str, Any] | None = asked(_METHOD)

    access_programs: Any = refused("there are none")
    background: Any = refused("a response is waited for", False)
    context_management: Any = refused("an input that is too long is an error", [])
    conversation: Any = refused("nothing is stored; send the items of earlier turns")
    moderation: Any = refused("nothing is moderated")
    previous_response_id: Any = refused("nothing is stored; send the items of earlier turns")
    prompt: Any = refused("there are no stored prompts")
    tool_choice: Any = refused("there are no tools", "none", "auto")
    tools: Any = refused("there are no tools", [])
    top_logprobs: Any = refused("they are given by chat completions", 0)
    truncation: Any = refused("an input that is too long is an error", "disabled")

    background_options: Any = ignored("a response is waited for")
    image: Any = ignored("there is text alone")
    include: Any = ignored("all there is is included")
    max_tool_calls: Any = ignored("there are no tools")
    multi_agent: Any = ignored("workers are asked for by `manyhands`")
    parallel_tool_calls: Any = ignored("there are no tools")
    prompt_cache_key: Any = ignored("what prompts have in common is found by itself")
    prompt_cache_options: Any = ignored("what prompts have in common is found by itself")
    prompt_cache_retention: Any = ignored("what prompts have in common is found by itself")
    safety_identifier: Any = ignored("it is the sender's")
    service_tier: Any = ignored("there is one")
    store: Any = ignored("nothing is stored")
    stream_options: Any = ignored("nothing is padded")


class RunBody(Shape):
    """The body of `POST /v1/runs`: a problem, and beside it the settings of a method."""

    problem: str = asked("a text", required=True)
    method: str | None = asked("the name of a method")
    model: str | None = asked("a text")


class TokenizeBody(Shape):
    """The body of `POST /v1/tokenize`: a text as it stands, or messages in the chat template."""

    model: str | None = asked("a text")
    prompt: str | None = asked("a text")
    messages: Listed[dict[str, Any]] | None = asked("a list of messages", min_length=1)


class DetokenizeBody(Shape):
    """The body of `POST /v1/detokenize`."""

    model: str | None = asked("a text")
    tokens: Listed[int] = asked("token ids", required=True)


BODIES: Mapping[str, type[Shape]] = {
    CHAT: ChatBody,
    PLAIN: PlainBody,
    RESPONSES: ResponsesBody,
    RUNS: RunBody,
    TOKENIZE: TokenizeBody,
    DETOKENIZE: DetokenizeBody,
}
