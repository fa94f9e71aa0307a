"""Language models that transformers has classes for, and leaves out of its table of causal language models.

Mistral 4 is one: transformers lists it as a part of a composite with pictures alone (5.23).
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from transformers import AutoModelForCausalLM

_CLASSES = {"mistral4": ("transformers.models.mistral4.modeling_mistral4", "Mistral4ForCausalLM")}


def enter(config: Any) -> None:
    """Enter the class for this configuration in transformers' table, if it is one of these; again changes nothing."""
    if config.model_type in _CLASSES:
        module, name = _CLASSES[config.model_type]
        kind: Any = getattr(import_module(module), name)
        table: Any = AutoModelForCausalLM
        table.register(type(config), kind, exist_ok=True)
