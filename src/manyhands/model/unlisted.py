"""Language models that transformers knows as parts of composites, and not, or not wholly, alone (5.23).

Mistral 4 has a class that stands in no table of causal language models. Llama 4 has one whose `base_model`, by which the
layers are found, is named for the checkpoints of the composite and leads to the network itself.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from transformers import AutoModelForCausalLM

_CLASSES = {"mistral4": ("transformers.models.mistral4.modeling_mistral4", "Mistral4ForCausalLM")}
_BASES = {"llama4_text": "model"}


def enter(config: Any) -> None:
    """Enter the class for this configuration in transformers' table, if it is one of these; again changes nothing."""
    if config.model_type in _CLASSES:
        module, name = _CLASSES[config.model_type]
        kind: Any = getattr(import_module(module), name)
        table: Any = AutoModelForCausalLM
        table.register(type(config), kind, exist_ok=True)
        if type(config) not in table._model_mapping:  # before 5.19 it passes over transformers' own
            table._model_mapping._extra_content[type(config)] = kind


def name_base(model: Any) -> None:
    """Have `base_model` lead to the layers, if the class names another part; again changes nothing."""
    name = _BASES.get(model.config.model_type)
    if name is not None:
        model.base_model_prefix = name
