"""Parts of an engine that a benchmark has loaded."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks.engine_parts import executor_of, text_of
from benchmarks.shapes import TINY
from manyhands.engine.engine import Engine
from manyhands.errors import ModelNotFound


def test_an_engine_with_words() -> None:
    engine = Engine.load("bundled", device="cpu", memory_tokens=256)
    assert text_of(engine) is engine.text
    assert executor_of(engine) is engine.executor


def test_a_model_without_a_tokenizer_is_named(tmp_path: Path) -> None:
    folder = TINY.write(tmp_path / "wordless")
    engine = Engine.load(folder, device="cpu", weights="dummy", memory_tokens=256)
    assert executor_of(engine).adapter.device == torch.device("cpu")
    with pytest.raises(ModelNotFound, match=r"wordless.* has no tokenizer"):
        text_of(engine)
