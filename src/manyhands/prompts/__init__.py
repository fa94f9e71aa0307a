"""The words: every text that a strategy puts before a model, as data that a user may replace.

    load.py             all words of a model in one file, a table for each kind of prompt
    template.py         texts with placeholders, and where rules stand in a conversation
    hogwild.py          a team, and one worker alone
    branches.py         titles first
    skeleton.py         an outline first
    profiled.py         a model that was trained to think in parallel
    async_reasoning.py  a thinker and a writer
    async_think.py      an organiser and its workers
    votes.py            independent attempts, and what is asked about them
    chain_of_draft.py   a sentence before the rules of any of these: notes of a few words
    judging.py          the judges of an exam

The table that a method reads is named in `strategies/methods.py`.
"""

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
