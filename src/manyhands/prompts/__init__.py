"""The words: every text that a strategy puts before a model, as data that a user may replace."""

from manyhands.prompts.branches import BranchPrompt
from manyhands.prompts.hogwild import TeamPrompt, worker_name
from manyhands.prompts.load import (
    PROMPT_FILE,
    Prompts,
    dump_prompt,
    dump_prompts,
    load_prompt,
    load_prompts,
    model_prompt,
    model_prompts,
)

__all__ = [
    "PROMPT_FILE",
    "BranchPrompt",
    "Prompts",
    "TeamPrompt",
    "dump_prompt",
    "dump_prompts",
    "load_prompt",
    "load_prompts",
    "model_prompt",
    "model_prompts",
    "worker_name",
]
