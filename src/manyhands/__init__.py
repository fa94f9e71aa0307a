"""manyhands: one language model, many hands.

Workers of one model think at the same time and read each other while they write, because they share
one cache of keys and values (Hogwild! Inference). A `Block` is a run of tokens in that cache, a `View`
is the order in which somebody reads blocks, and everything else follows from these two.

    from manyhands import Engine, TeamSettings, hogwild

    engine = Engine.load("Qwen/Qwen3-8B")
    team = hogwild("How many primes are there below 100?", engine.text, TeamSettings(workers=2))
    print(engine.run(team).text)

Every other way to think is asked for in the same manner, see `METHODS`. The rows of a pass can be asked for by hand, too; every row has read the others' words
before its logits are made:

    from manyhands import Block, Row, Step, View

    notes, alice, bob = Block("notes"), Block("alice"), Block("bob")
    say = engine.text.encode
    logits = engine.forward(Step([
        Row(View([notes]), say("What shall we eat?")),
        Row(View([notes, bob, alice]), say("Let us have")),
        Row(View([notes, alice, bob]), say("I would like")),
    ]))

This is the face of the house: names only. Each is fetched from its room when it is first asked for, so
that importing the package costs nothing and touches no GPU, no network and no environment.
"""

from __future__ import annotations

from importlib import import_module

# As in `typing`, of which the import takes milliseconds, and here no command hears Ctrl-C yet.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from manyhands.cache.block import Block
    from manyhands.cache.step import Choice, Row, Step
    from manyhands.cache.view import View
    from manyhands.engine.engine import Engine
    from manyhands.errors import ManyhandsError
    from manyhands.prompts.hogwild import TeamPrompt
    from manyhands.prompts.load import Prompts, load_prompts, model_prompt, model_prompts
    from manyhands.schema.conversation import Conversation, Message
    from manyhands.schema.setting import setting
    from manyhands.strategies.async_reasoning import async_reasoning
    from manyhands.strategies.async_think import async_think
    from manyhands.strategies.base import Answer, Reserve, Strategy
    from manyhands.strategies.best_of_n import best_of_n
    from manyhands.strategies.branches import branches
    from manyhands.strategies.hogwild import hogwild
    from manyhands.strategies.methods import METHODS, Method
    from manyhands.strategies.profiled import profiled
    from manyhands.strategies.prompt_sharing import share_prompt
    from manyhands.strategies.self_consistency import self_consistency
    from manyhands.strategies.sequential import sequential
    from manyhands.strategies.settings import (
        AsyncReasoningSettings,
        AsyncThinkSettings,
        BestSettings,
        BranchSettings,
        EndSettings,
        ProfileSettings,
        Settings,
        SharedSettings,
        SkeletonSettings,
        SoloSettings,
        TeamSettings,
        VoteSettings,
    )
    from manyhands.strategies.shared_prefix import shared_prefix
    from manyhands.strategies.skeleton import skeleton
    from manyhands.text import Text

    __version__: str

__all__ = [
    "METHODS",
    "Answer",
    "AsyncReasoningSettings",
    "AsyncThinkSettings",
    "BestSettings",
    "Block",
    "BranchSettings",
    "Choice",
    "Conversation",
    "EndSettings",
    "Engine",
    "ManyhandsError",
    "Message",
    "Method",
    "ProfileSettings",
    "Prompts",
    "Reserve",
    "Row",
    "Settings",
    "SharedSettings",
    "SkeletonSettings",
    "SoloSettings",
    "Step",
    "Strategy",
    "TeamPrompt",
    "TeamSettings",
    "Text",
    "View",
    "VoteSettings",
    "async_reasoning",
    "async_think",
    "best_of_n",
    "branches",
    "hogwild",
    "load_prompts",
    "model_prompt",
    "model_prompts",
    "profiled",
    "self_consistency",
    "sequential",
    "setting",
    "share_prompt",
    "shared_prefix",
    "skeleton",
]

_ROOMS = {
    "Answer": "strategies.base",
    "AsyncReasoningSettings": "strategies.settings",
    "AsyncThinkSettings": "strategies.settings",
    "BestSettings": "strategies.settings",
    "Block": "cache.block",
    "BranchSettings": "strategies.settings",
    "Choice": "cache.step",
    "Conversation": "schema.conversation",
    "EndSettings": "strategies.settings",
    "Engine": "engine.engine",
    "METHODS": "strategies.methods",
    "ManyhandsError": "errors",
    "Message": "schema.conversation",
    "Method": "strategies.methods",
    "ProfileSettings": "strategies.settings",
    "Prompts": "prompts.load",
    "Reserve": "strategies.base",
    "Row": "cache.step",
    "Settings": "strategies.settings",
    "SharedSettings": "strategies.settings",
    "SkeletonSettings": "strategies.settings",
    "SoloSettings": "strategies.settings",
    "Step": "cache.step",
    "Strategy": "strategies.base",
    "TeamPrompt": "prompts.hogwild",
    "TeamSettings": "strategies.settings",
    "Text": "text",
    "View": "cache.view",
    "VoteSettings": "strategies.settings",
    "async_reasoning": "strategies.async_reasoning",
    "async_think": "strategies.async_think",
    "best_of_n": "strategies.best_of_n",
    "branches": "strategies.branches",
    "hogwild": "strategies.hogwild",
    "load_prompts": "prompts.load",
    "model_prompt": "prompts.load",
    "model_prompts": "prompts.load",
    "profiled": "strategies.profiled",
    "self_consistency": "strategies.self_consistency",
    "sequential": "strategies.sequential",
    "setting": "schema.setting",
    "share_prompt": "strategies.prompt_sharing",
    "shared_prefix": "strategies.shared_prefix",
    "skeleton": "strategies.skeleton",
}


def __getattr__(name: str) -> object:
    """Fetch a name from its room the first time it is asked for (PEP 562)."""
    found: object
    if name == "__version__":
        found = import_module("importlib.metadata").version("manyhands-llm")
    elif name in _ROOMS:
        found = getattr(import_module(f"manyhands.{_ROOMS[name]}"), name)
    else:
        raise AttributeError(f"module 'manyhands' has no attribute {name!r}")
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "__version__"})
