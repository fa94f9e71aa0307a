"""Parts of an engine whose types say less than a benchmark knows: it has loaded the engine itself."""

from __future__ import annotations

from manyhands.engine.engine import Engine
from manyhands.engine.executor import LocalExecutor
from manyhands.errors import ModelNotFound
from manyhands.text import Text


def executor_of(engine: Engine) -> LocalExecutor:
    """The executor with the network and the memory of this process: all of them, or those of rank 0."""
    assert isinstance(engine.executor, LocalExecutor), "a benchmark loads its engine itself"
    return engine.executor


def text_of(engine: Engine) -> Text:
    """The text of a model that has a tokenizer.

    Raises:
        ModelNotFound: It has none.

    """
    if engine.text is None:
        raise ModelNotFound(
            f"the model {engine.facts.name!r} has no tokenizer",
            hint="put tokenizer.json and tokenizer_config.json into its folder",
        )
    return engine.text
