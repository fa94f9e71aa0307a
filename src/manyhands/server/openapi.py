"""`/openapi.json`: what the routes take, made of the tables by which they check it (`shapes.py`)."""

from __future__ import annotations

from functools import cache
from importlib.metadata import version
from typing import Any

from pydantic.json_schema import models_json_schema

from manyhands.schema.openai import CHAT, PLAIN
from manyhands.server.shapes import BODIES, DETOKENIZE, MESSAGES, RESPONSES, RUNS, TOKENIZE
from manyhands.strategies.listening import ITEMS

_ERRORS = {
    "400": "A value cannot be used; the error names it.",
    "401": "No valid key.",
    "413": "The body is too large.",
    "415": "The body is not declared as JSON.",
    "429": "Too many requests wait, or too many words for this run.",
    "503": "The server is about to end, or the system gives it no more of what a request needs.",
}
_GETS = {
    "/health": "Whether the process answers.",
    "/ready": "Whether a token can be made.",
    "/metrics": "Numbers for Prometheus.",
    "/openapi.json": "This description.",
    "/v1/models": "The model, and an alias for each method.",
    "/v1/models/{model}": "One of them.",
    "/v1/methods": "The methods, those of installed distributions too, with their settings as JSON Schema.",
    "/v1/runs": "The runs of this key.",
    "/v1/runs/{run}": "One of them.",
    "/v1/runs/{run}/events": "Its records, as server-sent events.",
    "/v1/runs/{run}/trace": "Its trace, line by line.",
}
_POSTS = {
    CHAT: "A chat completion.",
    PLAIN: "A completion.",
    RESPONSES: "A response, whose items are the steps of workers and the reply.",
    TOKENIZE: "A text in tokens.",
    DETOKENIZE: "Tokens as a text.",
    RUNS: "Begin a run that goes on by itself.",
}


@cache
def description() -> dict[str, Any]:
    """The description, in OpenAPI 3.1."""
    shapes = {url: shape for url, shape in BODIES.items() if url in _POSTS}
    refs, found = models_json_schema(
        [(shape, "validation") for shape in shapes.values()],
        ref_template="#/components/schemas/{model}",
    )
    schemas = {**found.get("$defs", {}), "Error": _ERROR, "Item": _item()}
    for schema in schemas.values():
        _refusals_told(schema)
    schemas["RunBody"]["additionalProperties"] = True  # settings of the method stand beside
    paths: dict[str, dict[str, Any]] = {}
    for url, said in _GETS.items():
        paths.setdefault(url, {})["get"] = _operation(url, said, None)
    for url, said in _POSTS.items():
        body = refs[(shapes[url], "validation")]
        paths.setdefault(url, {})["post"] = _operation(url, said, body)
    item = {"$ref": "#/components/schemas/Item"}
    said = "Something is said to a run."
    paths.setdefault(MESSAGES, {})["post"] = _operation(MESSAGES, said, item)
    one = RUNS + "/{run}"
    paths[one]["delete"] = _operation(one, "End a run.", None)
    return {
        "openapi": "3.1.0",
        "info": {"title": "manyhands", "version": version("manyhands-llm")},
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"key": []}, {}],
    }


def _operation(url: str, said: str, body: dict[str, Any] | None) -> dict[str, Any]:
    names = [part[1:-1] for part in url.split("/") if part.startswith("{")]
    error = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    found: dict[str, Any] = {
        "summary": said,
        "responses": {
            "2XX": {"description": "As asked."},
            **{status: {"description": said, "content": error} for status, said in _ERRORS.items()},
        },
    }
    if names:
        found["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
            for name in names
        ]
    if body is not None:
        found["requestBody"] = {"required": True, "content": {"application/json": {"schema": body}}}
    return found


def _refusals_told(schema: dict[str, Any]) -> None:
    """A field that is refused allows its neutral values and no other."""
    for name, told in schema.get("properties", {}).items():
        if "refused" in told:
            schema["properties"][name] = {
                "enum": told["refused"],
                "description": f"Not supported: {told.get('description', '')}",
            }
        told.pop("ignored", None)


def _item() -> dict[str, Any]:
    return {
        "type": "object",
        "required": ["item"],
        "properties": {
            "item": {"enum": sorted(ITEMS.kinds)},
            "text": {"type": "string"},
            "author": {"type": "string"},
            "name": {"type": "string"},
            "worker": {"type": "integer"},
        },
    }


_ERROR: dict[str, Any] = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}
