"""The words: every text that a strategy puts before a model, as data that a user may replace."""

from manyhands.prompts.hogwild import TeamPrompt, worker_name
from manyhands.prompts.load import dump_prompt, load_prompt

__all__ = ["TeamPrompt", "dump_prompt", "load_prompt", "worker_name"]
