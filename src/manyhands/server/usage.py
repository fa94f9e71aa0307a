"""The cost of a request as OpenAI's API counts it; the field `manyhands` has the rest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from manyhands.engine.service import Handle
from manyhands.server.asked import Asked
from manyhands.strategies.base import Answer
from manyhands.strategies.shared_prefix import Completions


def usage_of(asked: Asked, answer: Answer | None, handle: Handle) -> dict[str, Any]:
    """The usage of a run, whole or up to now.

    `completion_tokens` are all that were written, by workers too; `reasoning_tokens` those of a model that thinks and answers
    alone, or of workers beside a main strand that is the reply, branches and points that were joined to it included; `cached_tokens` of the prompt were in memory before.
    """
    used = handle.usage
    written, thought = used.tokens_chosen, 0
    prompt = prompt_tokens_of(asked, answer)
    cached = 0 if answer is None else sum(answer.found)
    if isinstance(answer, Completions):
        written = sum(answer.tokens)
        thought = sum(each.thinking_tokens for each in answer.completions)
    elif answer is not None:
        thought = _thought(asked, answer, written)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": written,
        "total_tokens": prompt + written,
        "prompt_tokens_details": {"cached_tokens": cached},
        "completion_tokens_details": {"reasoning_tokens": thought},
        "manyhands": {
            "passes": used.forward_passes,
            "tokens_fed": used.tokens_fed,
            "kv_bytes_loaded": used.kv_bytes_loaded,
            "kv_bytes_saved": used.kv_bytes_saved,
            "preemptions": handle.num_preemptions,
        },
    }


def prompt_tokens_of(asked: Asked, answer: Answer | None) -> int:
    """The tokens of a run's prompts; a method's prompt has its rules in it, once there is an answer."""
    told = 0 if answer is None else sum(answer.prompt_tokens)
    return told or asked.num_prompt_tokens


def usage_of_all(usages: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The usage of a request that was answered by several runs of one prompt, which counts once.

    Of its tokens those are cached that no run has fed.
    """
    first, *others = usages
    found = dict(first)
    for other in others:
        for name in ("completion_tokens", "completion_tokens_details", "manyhands"):
            found[name] = _sum(found[name], other[name])
    details = (usage["prompt_tokens_details"]["cached_tokens"] for usage in usages)
    found["prompt_tokens_details"] = {"cached_tokens": min(details)}
    found["total_tokens"] = found["prompt_tokens"] + found["completion_tokens"]
    return found


def _sum(one: Any, other: Any) -> Any:
    """Two numbers, or two objects of numbers with the same names, added up."""
    if isinstance(one, Mapping):
        return {name: _sum(value, other[name]) for name, value in one.items()}
    return one + other


def _thought(asked: Asked, answer: Answer, written: int) -> int:
    """Tokens of the workers. Where the main strand is the reply itself, those of the strands beside it."""
    assert asked.spec is not None, "plain decoding ends with Completions"
    own = answer.tokens[1:] if asked.spec.method.solo else answer.tokens
    return min(sum(own), written)
