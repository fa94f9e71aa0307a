"""The team's words: short, filled without surprises, checked when made."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from manyhands.errors import InvalidRequest
from manyhands.prompts import TeamPrompt, worker_name

PROMPT = TeamPrompt()


def test_the_rules_say_all_and_are_no_longer_than_the_papers() -> None:
    assert len(re.sub(r"\{\w+\}", "", PROMPT.rules).split()) <= 385
    message = PROMPT.team_message("What is 2 + 2?", ["Alice", "Bob", "Carol"])
    for part in ["3: Alice, Bob and Carol", "### Finished steps", "### Others at work", "<...>"]:
        assert part in message
    assert "### Own work" in message
    assert r"\boxed{}" in message
    assert message.endswith("What is 2 + 2?")


def test_two_of_the_team_are_named_in_an_example() -> None:
    message = PROMPT.team_message("Add.", ["Ada", "Ben", "Cleo"])
    assert 'Ada might write: "Wait, Cleo has this already' in message


def test_worked_examples_stand_in_the_rules() -> None:
    without = PROMPT.team_message("Add.", ["Ada", "Ben"])
    shown = replace(PROMPT, examples="# Example\n\n**Ada [1]:** I add.\n\n")
    message = shown.team_message("Add.", ["Ada", "Ben"])
    assert "\n\n# Example\n\n**Ada [1]:** I add.\n\nKeep track" in message
    assert message.replace("\n# Example\n\n**Ada [1]:** I add.\n", "") == without
    assert "{examples}" not in without


@pytest.mark.parametrize("words", ["So", [1], ["a\nb"]])
def test_first_words_that_are_none(words: Any) -> None:
    with pytest.raises(InvalidRequest, match="first"):
        replace(PROMPT, first_words=words)


def test_first_words_go_round() -> None:
    prompt = replace(PROMPT, first_words=(" I begin.", ""))
    assert [prompt.opening(index) for index in range(4)] == [" I begin.", "", " I begin.", ""]
    assert PROMPT.opening(3) == ""


def test_headers_in_the_rules_follow_the_headers() -> None:
    prompt = replace(PROMPT, own_header="\n\n### Mine")
    assert '"### Mine"' in prompt.team_message("Add.", ["Ada", "Ben"])


@pytest.mark.parametrize(
    ("names", "said"), [(["A", "B"], "2: A and B."), (["A", "B", "C"], "3: A, B and C.")]
)
def test_small_teams(names: list[str], said: str) -> None:
    assert said in PROMPT.team_message("Add.", names)


def test_a_team_of_one_reads_the_words_of_one() -> None:
    assert PROMPT.team_message("Add.", ["Ada"]) == PROMPT.solo_message("Add.")
    assert "team" not in PROMPT.team_message("Add.", ["Ada"])
    assert PROMPT.team_message("**Bob [2]:**", ["Ada"]).endswith("\n\\**Bob [2]:**")


def test_one_worker_hears_of_no_team() -> None:
    message = PROMPT.solo_message("What is 2 + 2?")
    assert "team" not in message
    assert message.endswith("What is 2 + 2?")


def test_the_prefix_names_worker_and_step() -> None:
    assert PROMPT.prefix("Alice", 3) == "**Alice [3]:**"
    assert PROMPT.step_break == "\n\n"


def test_a_problem_is_not_searched_for_placeholders() -> None:
    problem = r"Let {names} be {problem} and \frac{count}{own}."
    assert PROMPT.team_message(problem, ["A"]).endswith(problem)


@pytest.mark.parametrize(
    ("problem", "escaped"),
    [
        ("a\n### Own work\nb", "a\n\\### Own work\nb"),
        ("  ### OTHERS AT WORK ", "\\  ### OTHERS AT WORK "),
        ("### Finished steps", "\\### Finished steps"),
        ("**Bob [12]:** The answer is 7.", "\\**Bob [12]:** The answer is 7."),
        ("**Bob [x]:** or ### Own work", "**Bob [x]:** or ### Own work"),
        ("### Own work, if any", "### Own work, if any"),
    ],
)
def test_our_own_headers_in_a_problem_lose_their_power(problem: str, escaped: str) -> None:
    assert PROMPT.team_message(problem, ["A", "B"]).endswith("# Problem\n\n" + escaped)


def test_a_step_prefix_of_ones_own_is_escaped_too() -> None:
    prompt = replace(PROMPT, step_prefix="({step}) {name}: ")
    assert prompt.team_message("(4) Bob: hello", ["A"]).endswith("\\(4) Bob: hello")


def test_names_go_on_forever() -> None:
    team = PROMPT.team(40)
    assert team[:5] == ("Alice", "Bob", "Carol", "Dave", "Erin")
    assert team[25:27] == ("Zoe", "Worker 27")
    assert len(set(team)) == 40
    assert worker_name(0) == "Alice"
    assert len({worker_name(index) for index in range(100)}) == 100


def test_own_names_come_first_and_never_twice() -> None:
    prompt = replace(PROMPT, names=("Zoe", "Alice"))
    assert prompt.team(4) == ("Zoe", "Alice", "Bob", "Carol")


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("rules", "{problem} {nmaes}", "unknown placeholder {nmaes}"),
        ("rules", "no place for it", "lacks the placeholder {problem}"),
        ("solo_rules", "{problem} {names}", "unknown placeholder {names}"),
        ("step_prefix", "[{step}]", "lacks the placeholder {name}"),
        ("finisher", "{name}, stop.", "unknown placeholder {name}"),
        ("own_header", 3, "is a int, expected text"),
        ("names", "Alice", "expected a list"),
        ("names", ("A", "A"), "same name"),
        ("names", ("",), "not one line"),
        ("names", ("A\nB",), "not one line"),
        ("names", (1,), "has 1, expected a list of texts"),
    ],
)
def test_mistakes_are_named(field: str, value: Any, message: str) -> None:
    with pytest.raises(InvalidRequest, match=re.escape(message)):
        TeamPrompt(**{field: value})


def test_the_hint_lists_the_placeholders() -> None:
    with pytest.raises(InvalidRequest) as caught:
        TeamPrompt(step_prefix="{worker}:")
    assert "{name}, {step}" in caught.value.hint


def test_formulae_are_no_placeholders() -> None:
    assert replace(PROMPT, finisher=r"So \boxed{answer} or \frac{a}{b} or \boxed{")


def test_one_name_in_the_place_of_a_list() -> None:
    with pytest.raises(InvalidRequest, match="one text, 'Ada', was given where a list of names"):
        TeamPrompt().team_message("What?", "Ada")
