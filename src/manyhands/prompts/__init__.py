"""The words: every text that a strategy puts before a model, as data that a user may replace."""

from manyhands.prompts.hogwild import TeamPrompt, worker_name
from manyhands.prompts.load import PROMPT_FILE, dump_prompt, load_prompt, model_prompt

__all__ = [
    "PROMPT_FILE",
    "TeamPrompt",
    "dump_prompt",
    "load_prompt",
    "model_prompt",
    "worker_name",
]
