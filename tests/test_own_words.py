"""A method that is given no words speaks those of the model, as the command line does, and the model is known by its name."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants

from manyhands import (
    METHODS,
    EndSettings,
    Engine,
    Prompts,
    SharedSettings,
    TeamPrompt,
    TeamSettings,
    bundled,
    hogwild,
)
from manyhands.engine.engine import _words_of as words_of
from manyhands.errors import InvalidRequest
from manyhands.model.generation import own_choice
from manyhands.model.loading import find_format
from manyhands.model.settings import ModelSettings
from manyhands.prompts.load import PROMPT_FILE, dump_prompts, load_prompts, model_prompts
from manyhands.strategies.events import StepBegun
from manyhands.strategies.own_words import own_words
from manyhands.text import Text
from tests.engine.small import small_engine

QUESTION = """Solve these problems and box the answers in order, separated by commas:
1. 84 + 29 - 38
2. 17 + 60 - 31
3. 93 - 46 + 12"""


@pytest.fixture(scope="module")
def engine() -> Engine:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(constants, "HF_HUB_OFFLINE", True)
        return Engine.load("bundled", device="cpu", memory_tokens=65_536)


def test_the_engine_has_the_words_of_its_folder(engine: Engine) -> None:
    written = load_prompts(bundled.path() / PROMPT_FILE)
    assert engine.prompts == written != Prompts()
    assert own_words(engine.text) == own_words(engine.text.at_effort("none")) == written


def test_a_team_without_words_given_solves_the_list(engine: Engine) -> None:
    settings = TeamSettings(workers=2)
    words = ((), (engine.prompts.team,))
    answer, given = engine.run_all(
        hogwild(QUESTION, engine.text, settings, *each) for each in words
    )
    assert answer.answer == "75,46,59"
    assert answer == given


@pytest.mark.parametrize("name", METHODS)
def test_every_method_speaks_the_words_of_the_model(engine: Engine, name: str) -> None:
    method, text = METHODS[name], engine.text
    settings = method.settings(budget=12, end=EndSettings(finisher_tokens=6, reply_tokens=5))
    words = (getattr(engine.prompts, method.prompt),)
    given, *others = engine.run_all(
        method.make(QUESTION, text, settings, *each) for each in (words, (), (None,))
    )
    assert others == [given, given]


def test_words_that_are_given_go_before(engine: Engine) -> None:
    settings, other = TeamSettings(budget=4), TeamPrompt(names=("Ada", "Ben"))
    events = engine.stream(hogwild(QUESTION, engine.text, settings, other))
    assert "Ada" in str([event for event in events if isinstance(event, StepBegun)])


def test_a_network_that_is_built_already_has_our_own_words_or_its_adapters(tmp_path: Path) -> None:
    assert small_engine().prompts == Prompts()
    written = Prompts(team=TeamPrompt(names=("Ada", "Ben")))
    (tmp_path / PROMPT_FILE).write_text(dump_prompts(written), encoding="utf-8")
    built = small_engine(prompts=written)
    assert built.prompts == written
    assert own_words(built.text) == written
    assert model_prompts("bundled", tmp_path) == written
    (tmp_path / PROMPT_FILE).unlink()
    assert model_prompts("bundled", tmp_path) == model_prompts(bundled.path())


def test_the_name_of_the_bundled_model_is_known_at_every_door(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert find_format("bundled").name == str(bundled.path())
    assert model_prompts("bundled") == model_prompts(bundled.path())
    assert own_choice("bundled") is None


def test_a_folder_of_that_name_is_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "bundled"
    shutil.copytree(bundled.path(), folder, ignore=shutil.ignore_patterns(PROMPT_FILE))
    for model in (Path("bundled"), "./bundled", str(folder)):
        assert model_prompts(model) == Prompts() != model_prompts("bundled")
        assert Path(find_format(model).name).resolve() == folder


def test_words_beside_an_adapter_go_before_those_of_the_model(tmp_path: Path) -> None:
    written = Prompts(team=TeamPrompt(names=("Ada", "Ben")))
    (tmp_path / PROMPT_FILE).write_text(dump_prompts(written), encoding="utf-8")
    assert words_of(ModelSettings("bundled", lora=str(tmp_path))) == written
    assert words_of(ModelSettings(object(), lora=str(tmp_path))) == written
    assert words_of(ModelSettings(object())) == Prompts()


def test_words_of_its_kind_do_where_the_model_has_some_of_its_own_making(engine: Engine) -> None:
    """A table of the model's may be more than the kind that a method reads; another table need not be."""

    class Shouted(TeamPrompt):
        pass

    text = Text(engine.text.tokenizer, prompts=Prompts(team=Shouted()))
    for words in (None, TeamPrompt(), Shouted()):
        hogwild(QUESTION, text, TeamSettings(), words).close()
    with pytest.raises(InvalidRequest, match="of type VotesPrompt; expected TeamPrompt"):
        hogwild(QUESTION, text, TeamSettings(), Prompts().votes)  # type: ignore[arg-type]


SLIPS: dict[str, tuple[dict[str, Any], str, str]] = {
    "no problem": ({"problem": None}, "problem is of type NoneType", "Conversation.of"),
    "messages": ({"problem": [QUESTION]}, "problem is of type list", "Conversation.of"),
    "an engine for its text": (
        {"text": "engine"},
        "text of a method is of type Engine",
        "engine.text",
    ),
    "settings of another": (
        {"settings": SharedSettings()},
        "of type SharedSettings; expected",
        "(...)",
    ),
    "settings as a dict": ({"settings": {"budget": 20}}, "settings .* are of type dict", "(...)"),
    "all words": (
        {"words": Prompts()},
        "words of the method are of type Prompts",
        "engine.prompts.",
    ),
}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", SLIPS)
def test_slips_in_what_a_method_is_given_are_named(engine: Engine, name: str, method: str) -> None:
    slip, said, mend = SLIPS[name]
    given = {"problem": QUESTION, "text": engine.text, "settings": None, "words": None} | slip
    if given["text"] == "engine":
        given["text"] = engine
    with pytest.raises(InvalidRequest, match=said) as caught:
        METHODS[method].make(*given.values())
    assert mend in caught.value.hint
