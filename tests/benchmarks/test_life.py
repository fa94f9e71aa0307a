"""Life, tiny, on the CPU; and two ways to do it, in one engine and in turns."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from benchmarks import life
from manyhands.errors import ManyhandsError

VARIANTS = '''
"""Two variants, and what is none."""
from collections.abc import Callable
from functools import partial

from benchmarks import life

PLAYED = []


def _changed(name: str) -> Callable[[], None]:
    PLAYED.append(name)
    life.PLAYED = PLAYED
    return partial(PLAYED.append, f"no more {name}")


def coarse() -> Callable[[], None]:
    return _changed("coarse")


def fine() -> Callable[[], None]:
    return _changed("fine")


def of_something(size: int) -> None:
    """No variant: it takes an argument."""
'''


def asked_for(folder: Path, models: str, variants: Path) -> list[str]:
    """The words of a command that plays the variants of a file, tiny, with its results in this folder."""
    words = ["--tiny", "--device", "cpu", "--out", str(folder), "--commit", "abc"]
    return [*words, "--models", models, "--only", "team", "--variants", str(variants)]


def test_variants_play_in_turns_in_one_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each situation three times: there, back and there again. A change is undone before the next is made."""
    file = tmp_path / "variants.py"
    file.write_text(VARIANTS)
    monkeypatch.setattr(life, "PLAYED", [], raising=False)
    life.main(asked_for(tmp_path, "qwen3-8b", file))
    found = json.loads((tmp_path / "life_variants_qwen3-8b.json").read_text())
    told = [(each["when"], each["variant"]) for each in found["situations"]]
    assert told == [
        ("fresh", "coarse"),
        ("fresh", "fine"),
        ("warm", "fine"),
        ("warm", "coarse"),
        ("drawn anew", "coarse"),
        ("drawn anew", "fine"),
    ]
    each = [[name, f"no more {name}"] for _, name in told]
    assert each == [life.PLAYED[at : at + 2] for at in range(0, 12, 2)]  # type: ignore[attr-defined]
    assert found["gate"]["rows_that_differ"] == 0
    assert all(line["passes"] == 8 and line["floor_ms"] > 0 for line in found["situations"])


def test_each_variant_of_many_has_a_problem_of_its_own() -> None:
    """A prompt that was met before would be found in memory."""
    problems = {life.made_up_problem(random.Random(1), words) for words in range(21)}
    assert len(problems) == 21


def test_without_variants_nothing_is_changed(tmp_path: Path) -> None:
    ((name, change),) = life.variants_of(None).items()
    change()()
    assert not name
    file = tmp_path / "none.py"
    file.write_text("from pathlib import Path\n\n\ndef of_something(size):\n    return Path\n")
    with pytest.raises(ManyhandsError, match="has no variants: functions without arguments"):
        life.variants_of(file)
    with pytest.raises(ManyhandsError, match="there is no file"):
        life.variants_of(tmp_path / "forgotten.py")


def test_a_change_that_cannot_be_undone_ends_all(tmp_path: Path) -> None:
    """Whatever is played behind it would be played with the change."""
    file = tmp_path / "variants.py"
    file.write_text("def coarse():\n    pass\n")
    with pytest.raises(SystemExit, match="coarse gave back None where a function that undoes"):
        life.main(asked_for(tmp_path, "qwen3-8b,qwq-32b", file))
    assert [path.name for path in tmp_path.glob("life_*.json")] == ["life_variants_qwen3-8b.json"]


def test_a_change_is_undone_where_a_situation_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "variants.py"
    file.write_text(VARIANTS)
    monkeypatch.setattr(life, "PLAYED", [], raising=False)

    def failing(*given: object, **options: object) -> None:
        raise error("it failed")

    monkeypatch.setattr(life, "live", failing)
    given = asked_for(tmp_path, "qwen3-8b", file)
    error: type[BaseException] = RuntimeError
    life.main(given)
    found = json.loads((tmp_path / "life_variants_qwen3-8b.json").read_text())
    assert len(found["left_out"]) == 6
    played = life.PLAYED  # type: ignore[attr-defined]
    assert played[1::2] == [f"no more {name}" for name in played[::2]]
    error = KeyboardInterrupt
    with pytest.raises(KeyboardInterrupt):
        life.main(given)
    assert life.PLAYED == ["coarse", "no more coarse"]  # type: ignore[attr-defined]
