"""Chain-of-draft: think in notes of a few words (Xu et al., 2025; compared in PDOS, section 4.2).

It is no method but a sentence before the rules of any of them, so it combines with every method:

    prompts = drafted(model_prompts(folder))
    strategy = branches(question, text, settings, prompts.branches)

The wording is ours.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from manyhands.prompts.load import Prompts

INSTRUCTION = (
    "Think in drafts: for each step of your thinking, note only what must not be forgotten, in five "
    "words or fewer, for instance a formula. No full sentences, and no step twice.\n\n"
)


def drafted(prompts: Prompts, instruction: str = INSTRUCTION) -> Prompts:
    """The same prompts; every text that tells a worker the rules begins with the instruction."""
    tables = {table.name: getattr(prompts, table.name) for table in fields(prompts)}
    return Prompts(**{name: _drafted(prompt, instruction) for name, prompt in tables.items()})


def _drafted(prompt: Any, instruction: str) -> Any:
    rules = [f.name for f in fields(prompt) if f.name == "rules" or f.name.endswith("_rules")]
    return replace(prompt, **{name: instruction + getattr(prompt, name) for name in rules})
