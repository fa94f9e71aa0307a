"""A model's own generation_config.json: what of it becomes a default, and what of it is an error."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from manyhands import bundled
from manyhands.cache.step import GREEDY, Choice
from manyhands.errors import ModelNotFound
from manyhands.model.generation import about, end_ids, own_choice
from tests.hub_cache import keep


def folder(path: Path, text: str) -> str:
    (path / "generation_config.json").write_text(text, encoding="utf-8")
    return str(path)


@pytest.mark.parametrize(
    ("said", "choice"),
    [
        (
            {"do_sample": True, "temperature": 0.6, "top_p": 0.95, "top_k": 20, "eos_token_id": 2},
            Choice(temperature=0.6, top_p=0.95, top_k=20),
        ),
        ({"do_sample": True}, Choice(temperature=1.0)),
        ({"do_sample": True, "temperature": None, "top_k": None}, Choice(temperature=1.0)),
        ({"do_sample": True, "top_k": -1}, Choice(temperature=1.0)),
        ({"do_sample": True, "temperature": 0}, None),
        ({"do_sample": False, "temperature": 0.6}, None),
        ({"temperature": 0.6, "top_p": 0.9}, None),
        ({}, None),
    ],
)
def test_what_a_file_says(tmp_path: Path, said: dict[str, object], choice: Choice | None) -> None:
    assert own_choice(folder(tmp_path, json.dumps(said))) == choice


def test_a_model_without_the_file_and_the_bundled_one_are_greedy(tmp_path: Path) -> None:
    assert own_choice(str(tmp_path)) is None
    assert own_choice(str(bundled.path())) is None


def test_a_model_on_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    said = json.dumps({"do_sample": True, "temperature": 0.7})
    keep(tmp_path, "some/reasoner", {"config.json": "{}", "generation_config.json": said})
    keep(tmp_path, "some/plain", {"config.json": "{}"})
    assert own_choice("some/reasoner") == Choice(temperature=0.7)
    assert own_choice("some/plain") is None


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "Expecting property name"),
        ("[1]", "it holds a list; expected an object"),
        ('{"do_sample": true, "temperature": "hot"}', "temperature is 'hot'; expected a number"),
        ('{"do_sample": true, "top_p": true}', "top_p is True; expected a number"),
        ('{"do_sample": true, "top_p": 1.5}', "top_p is 1.5; expected above 0, at most 1"),
        ('{"do_sample": true, "temperature": NaN}', "temperature is nan"),
        ("[" * 100_000, "recursion"),
    ],
)
def test_a_file_that_cannot_be_used(tmp_path: Path, text: str, reason: str) -> None:
    with pytest.raises(ModelNotFound) as raised:
        own_choice(folder(tmp_path, text))
    assert reason in str(raised.value)
    assert "--greedy" in raised.value.hint


@pytest.mark.parametrize(
    ("said", "ends"), [(None, ()), (7, (7,)), ([7, 9], (7, 9)), ((7,), (7,)), ([], ())]
)
def test_tokens_that_end_a_turn(said: object, ends: tuple[int, ...]) -> None:
    assert end_ids("folder", said) == ends


@pytest.mark.parametrize("said", ["x", [1, "x"], {"a": 1}, 1.5, [[1]], True])
def test_ends_of_turns_that_are_no_tokens(said: object) -> None:
    """Taken as they were, some ended in a traceback and others never ended a turn."""
    with pytest.raises(ModelNotFound, match="expected the number of a token") as raised:
        end_ids("folder", said)
    assert raised.value.hint == "mend the file or remove it"


def test_how_it_is_told() -> None:
    choice = Choice(temperature=0.6, top_p=0.95, top_k=20)
    assert about(choice) == "temperature 0.6, top_k 20, top_p 0.95"
    assert about(choice, without={"temperature", "top_k"}) == "top_p 0.95"
    assert about(GREEDY) == ""
