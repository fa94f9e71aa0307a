"""manyhands: one language model, many hands.

Workers of one model think at the same time and read each other while they write, because they share
one cache of keys and values (Hogwild! Inference). A `Block` is a run of tokens in that cache, a `View`
is the order in which somebody reads blocks, and everything else follows from these two.

    from manyhands import Engine, TeamSettings, hogwild

    engine = Engine.load("Qwen/Qwen3-8B")
    team = hogwild("How many primes are there below 100?", engine.text, TeamSettings(workers=2))
    print(engine.run(team).text)

One floor below, the same by hand: every row has read the other's words before its logits are made.

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
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from manyhands.cache.block import Block
    from manyhands.cache.step import Choice, Row, Step
    from manyhands.cache.view import View
    from manyhands.engine.engine import Engine
    from manyhands.errors import ManyhandsError
    from manyhands.prompts.hogwild import TeamPrompt
    from manyhands.prompts.load import model_prompt
    from manyhands.strategies.base import Answer
    from manyhands.strategies.hogwild import hogwild
    from manyhands.strategies.sequential import sequential
    from manyhands.strategies.settings import EndSettings, SoloSettings, TeamSettings

    __version__: str

__all__ = [
    "Answer",
    "Block",
    "Choice",
    "EndSettings",
    "Engine",
    "ManyhandsError",
    "Row",
    "SoloSettings",
    "Step",
    "TeamPrompt",
    "TeamSettings",
    "View",
    "hogwild",
    "model_prompt",
    "sequential",
]

_ROOMS = {
    "Answer": "strategies.base",
    "Block": "cache.block",
    "Choice": "cache.step",
    "EndSettings": "strategies.settings",
    "Engine": "engine.engine",
    "ManyhandsError": "errors",
    "Row": "cache.step",
    "SoloSettings": "strategies.settings",
    "Step": "cache.step",
    "TeamPrompt": "prompts.hogwild",
    "TeamSettings": "strategies.settings",
    "View": "cache.view",
    "hogwild": "strategies.hogwild",
    "model_prompt": "prompts.load",
    "sequential": "strategies.sequential",
}


def __getattr__(name: str) -> object:
    """Fetch a name from its room the first time it is asked for (PEP 562)."""
    found: object
    if name == "__version__":
        found = import_module("importlib.metadata").version("manyhands")
    elif name in _ROOMS:
        found = getattr(import_module(f"manyhands.{_ROOMS[name]}"), name)
    else:
        raise AttributeError(f"module 'manyhands' has no attribute {name!r}")
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "__version__"})
