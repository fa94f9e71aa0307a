"""The examples run offline on the bundled model, print what they promise, and stay short."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from huggingface_hub import constants

from manyhands import bundled
from manyhands.evaluation import grading

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.fixture
def printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., str]:
    """All that an example prints, run as a program is, in this process; a warning is an error here."""

    def run(name: str, *arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", [name, *arguments])
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        told, complained = capsys.readouterr()
        assert complained == ""
        return told

    return run


def test_two_workers_by_hand(printed: Callable[..., str]) -> None:
    alice, bob = printed("two_workers_by_hand.py").splitlines()
    assert alice.startswith("**Alice [1]:** #")
    assert bob.startswith("**Bob [1]:** #")
    claims = {line.partition("#")[2][0] for line in (alice, bob)}
    assert claims == {"1", "2"}, "two workers who see each other take different problems"
    assert "#1 is 75." in alice + bob or "#2 is 46." in alice + bob


def test_your_own_strategy(printed: Callable[..., str]) -> None:
    event, *answer = printed("your_own_strategy.py").splitlines()
    assert event.startswith("AnswerFound(forward_pass=")
    assert event.endswith("answer='93,13')")
    counted, told = answer
    assert counted.startswith("UsageCounted(forward_pass=")
    assert told.startswith("Answer(text='#")
    assert "answer='93,13', finish_reason='answer'" in told


def test_a_team_on_your_own_model(printed: Callable[..., str]) -> None:
    """The bundled model, as a folder of somebody's own."""
    found = printed("a_team_on_your_own_model.py", str(bundled.path()))
    *steps, answer = found.splitlines()
    assert answer.startswith("Answer after ")
    assert answer.endswith(" passes: 75,51,59,100")
    assert {line.partition(",")[0] for line in steps} == {"Alice", "Bob", "Carol"}
    solved = {line.partition("#")[2][0] for line in steps if " is " in line}
    assert solved == {"1", "2", "3", "4"}, "each problem was solved by somebody"


def test_mistakes_end_in_a_message(printed: Callable[..., str]) -> None:
    with pytest.raises(SystemExit, match=r"no_such_folder.*; "):
        printed("a_team_on_your_own_model.py", "./no_such_folder")
    with pytest.raises(SystemExit, match=r"no server answers at http://127\.0\.0\.1:9; start one"):
        printed("ask_a_server.py", "http://127.0.0.1:9")


def test_your_own_task(printed: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The process that grades the answers imports the example as its main module, which takes seconds; one is enough for two answers."""
    monkeypatch.setattr(grading, "usual_graders", lambda: 1)
    told = printed("your_own_task.py").splitlines()
    friday, monday = sorted(told)  # the first that is done tells first
    assert monday.startswith("Monday: 48,57 after ")
    assert friday.startswith("Friday: 52,88 after ")
    assert monday.endswith("[0.0, 1.0]"), "after 20 passes nobody knows, at the end it is right"


def test_one_prompt_many_endings(printed: Callable[..., str]) -> None:
    *endings, usage = printed("one_prompt_many_endings.py").splitlines()
    assert sum(int(line.partition(" of 16: ")[0]) for line in endings) == 16
    assert endings[0].endswith(": 75,51"), "most arrive at the right answer"
    assert usage.startswith("The prompt's 53 tokens were read once; ")
    assert 30 < int(usage.partition("%")[0].rpartition(" ")[2]) < 90


def test_branches(printed: Callable[..., str]) -> None:
    *written, distance, end = printed("branches.py").splitlines()
    assert [line.partition(":")[0] for line in written] == ["Branch 1", "Branch 2", "Branch 3"]
    assert float(distance.removeprefix("Behind the join, ").split()[0]) < 1
    assert end.startswith("55,46,59: "), "the right answers"
    num_tokens, num_passes = (int(word) for word in end.split() if word.isdigit())
    assert num_passes < num_tokens


def test_debate(printed: Callable[..., str]) -> None:
    (told,) = printed("debate.py").splitlines()
    assert told.startswith("Answer(text='The answers, in order: 21, 13.', answer='21,13'")
    assert "finish_reason='answer'" in told
    assert "snapshots={20: '21,?'}" in told


def test_every_example_is_run_and_short() -> None:
    run = {"two_workers_by_hand.py", "your_own_strategy.py", "a_team_on_your_own_model.py"}
    run |= {"one_prompt_many_endings.py", "branches.py"}
    long = {"your_own_task.py", "debate.py"}  # with an exam around it; a class
    long |= {"ask_a_server.py"}  # run in tests/cli/test_serve.py
    run |= long
    assert {path.name for path in EXAMPLES.glob("*.py")} == run
    # your_own_method is installed and run in tests/cli/test_installed_methods.py
    files = [path for path in EXAMPLES.rglob("*") if path.is_file() and path.suffix != ".pyc"]
    lengths = {path.name: len(path.read_text("utf-8").splitlines()) for path in files}
    assert max(lengths.values()) < 55, lengths
    assert max(lengths[name] for name in run - long) < 30
