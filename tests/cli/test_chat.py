"""`manyhands chat`: a conversation through a pipe; what was said stays, method and workers change on the way."""

from __future__ import annotations

import errno
import io
import json
import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from manyhands.cli.chat import _messages, talk_of
from manyhands.cli.options import ChatOptions
from manyhands.cli.talk import Quit, Talk
from manyhands.engine.engine import Engine
from manyhands.errors import InvalidRequest, OutputFailed
from manyhands.prompts import Prompts
from manyhands.schema.conversation import Message
from manyhands.strategies.methods import METHODS
from manyhands.strategies.settings import TeamSettings
from manyhands.text import Text, printable
from tests.cli.conftest import CONTEXT, Cli

SHORT = ["--budget", 8, "--finisher-tokens", 2, "--reply-tokens", 8]


def talk(**more: Any) -> Talk:
    return Talk(METHODS["hogwild"], {"budget": 9, **more}, Prompts())


# -- what was said, and the commands -----------------------------------------------------------------


def test_a_turn_has_all_turns_before_it() -> None:
    one = talk()
    assert one.obey("/system  Be brief. ") == "system message: Be brief."
    first = one.spec(" 2+3? ")
    assert (first.problem, first.earlier) == ("2+3?", (Message("system", "Be brief."),))
    one.replied(first, "5.")
    assert one.obey("/system -") == "system message: none"
    second = one.spec("Twice?", 512)
    assert second.earlier == (Message("user", "2+3?"), Message("assistant", "5."))
    assert second.context == 512
    one.replied(second, "10.")
    assert one.obey("/undo") == "1 turn is left"
    assert one.turns == list(second.earlier)
    one.obey("/reset")
    assert one.turns == []
    with pytest.raises(InvalidRequest, match="nothing to take back"):
        one.obey("/undo")


@pytest.mark.parametrize(
    ("more", "choice"),
    [
        ({}, (0.6, 0.95)),
        ({"chosen": {"choice.top_p": 0.5}}, (0.6, 0.5)),
        ({"greedy": True}, (0.0, 1.0)),
    ],
)
def test_a_models_own_sampling_is_the_default_of_every_method(
    tmp_path: Path, more: dict[str, Any], choice: tuple[float, float]
) -> None:
    said = {"do_sample": True, "temperature": 0.6, "top_p": 0.95}
    (tmp_path / "generation_config.json").write_text(json.dumps(said))
    one = talk_of(ChatOptions(model=str(tmp_path), **more))
    for method in ("hogwild", "sequential", "branches"):
        one.obey(f"/method {method}")
        found = one.spec("2+3?").settings.choice
        assert (found.temperature, found.top_p) == choice
        one.obey("/reset")


def test_method_and_settings_change_on_the_way() -> None:
    one = talk(workers=3)
    assert one.obey("/workers") == "budget = 9, workers = 3"
    assert one.obey("/set layout=contiguous") == "budget = 9, workers = 3, layout = contiguous"
    assert one.settings == TeamSettings(budget=9, workers=3, layout="contiguous")
    told = one.obey("/method sequential")
    assert told.startswith("sequential: one worker alone")
    assert "(without --workers, --layout)" in told
    assert one.spec("a").settings == METHODS["sequential"].settings(budget=9)
    one.obey("/method hogwild")
    one.obey("/workers 4")
    assert one.settings == TeamSettings(budget=9, workers=4, layout="contiguous")
    assert one.obey("/method").startswith("hogwild: ")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("/workers 0", "workers is 0"),
        ("/workers many", "workers is 'many'"),
        ("/set workers", "expected name=value"),
        ("/set swarm=1", "have no 'swarm'"),
        ("/method swarm", "no method 'swarm'"),
        ("/method best_of_n", "at temperature 0"),
        ("/dance", "no command /dance"),
        ("/save", "needs the name of a file"),
    ],
)
def test_a_command_that_cannot_be_followed_changes_nothing(line: str, said: str) -> None:
    one = talk(**{"choice.temperature": 0.0})
    with pytest.raises(InvalidRequest, match=said):
        one.obey(line)
    assert one.spec("a") == talk(**{"choice.temperature": 0.0}).spec("a")


def test_help_names_every_command() -> None:
    told = talk().obey("/help")
    for name in ("method", "workers", "set", "system", "undo", "reset", "save", "help", "quit"):
        assert f"/{name}" in told
    with pytest.raises(Quit):
        talk().obey("/quit")


def test_what_was_said_can_be_saved(tmp_path: Path) -> None:
    one, file = talk(), tmp_path / "talk.json"
    one.obey("/system Be brief.")
    one.replied(one.spec("2+3?"), "5.")
    assert one.obey(f"/save {file}").endswith(" holds 3 messages")
    messages = json.loads(file.read_text())["messages"]
    assert [message["role"] for message in messages] == ["system", "user", "assistant"]
    with pytest.raises(InvalidRequest, match="exists"):
        one.obey(f"/save {file}")
    with pytest.raises(OutputFailed, match="cannot be written"):
        one.obey(f"/save {tmp_path / 'nowhere' / 'a'}")


def test_half_of_what_was_said_is_not_left_on_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be in the way of the next try: no file is replaced."""

    def full(number: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    one, file = talk(), tmp_path / "talk.json"
    one.replied(one.spec("2+3?"), "5.")
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OutputFailed, match="No space left on device") as found:
            one.obey(f"/save {file}")
    assert found.value.hint == "make room"
    assert one.obey(f"/save {file}").endswith(" holds 2 messages")


def test_messages_of_several_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    typed = iter(
        ["", "one", '"""two', "  three", '"""', '"""four"""', " /help ", "//5", '"""', "/quit", '"""', '"""//"""']
    )  # fmt: skip

    def asked(prompt: str) -> str:
        assert prompt == "> "
        try:
            return next(typed)
        except StopIteration:
            raise EOFError from None

    monkeypatch.setattr("builtins.input", asked)
    said = [(each.text, each.is_command) for each in _messages(is_typed=True)]
    assert said == [
        ("one", False), ("two\n  three", False), ("four", False), ("/help", True), ("/5", False),
        ("/quit", False), ("//", False),
    ]  # fmt: skip
    typed = iter(['"""two'])
    with pytest.raises(InvalidRequest, match="ends within a message"):
        list(_messages(is_typed=True))


@pytest.mark.parametrize("encoding", ["utf-8", "latin-1"])
def test_what_comes_in_is_utf_8_whatever_the_locale_says(
    monkeypatch: pytest.MonkeyPatch, encoding: str
) -> None:
    came = io.BytesIO("né\r\n".encode() + b"a\xff\n")
    pipe = io.TextIOWrapper(came, encoding=encoding, errors="surrogateescape")
    monkeypatch.setattr("sys.stdin", pipe)
    lines = _messages(is_typed=False)
    assert next(lines).text == "né"
    with pytest.raises(InvalidRequest, match=r"line 2 .* is not UTF-8 text \(byte 1\)"):
        next(lines)


def test_wrong_options_are_told_before_a_model_is_loaded() -> None:
    with pytest.raises(InvalidRequest, match="is not for --method sequential"):
        talk_of(ChatOptions(method="sequential", chosen={"layout": "combined"}))


# -- with a model --------------------------------------------------------------------------------------


def test_several_turns_through_a_pipe(cli: Cli, model: Path, tmp_path: Path) -> None:
    """Earlier turns are found in memory; the replies alone are on stdout."""
    lines = [
        "2+3?",
        "/method sequential",
        "//5",
        "And again?",
        "/save " + str(tmp_path / "a"),
    ]
    told = cli(
        "chat", "--model", model, *SHORT, "--temperature", 1, "--system", "Be brief.", "--quiet", "--verbose",
        input="\n".join(lines),
    )  # fmt: skip
    assert told.exit_code == 0, told.output
    found = re.findall(r"\((\d+) of (\d+) prompt tokens were in the cache\)", told.stderr)
    assert len(found) == 3
    numbers = [(int(one), int(all)) for one, all in found]
    assert numbers[0][0] == 0
    assert 0 < numbers[1][0] < numbers[2][0] < numbers[2][1]
    messages = json.loads((tmp_path / "a").read_text())["messages"]
    assert [m["content"] for m in messages if m["role"] == "user"] == ["2+3?", "/5", "And again?"]
    replies = [m["content"] for m in messages if m["role"] == "assistant"]
    for reply in replies:
        assert printable(reply) in told.stdout


def test_a_conversation_that_is_too_long_says_how_to_go_on(cli: Cli, model: Path) -> None:
    lines = ["2+3?", "a b " * CONTEXT]
    told = cli("chat", "--model", model, *SHORT, input="\n".join(lines))
    assert told.exit_code == 5
    assert "/undo takes the last turn back" in told.stderr.replace("\n", " ")


def test_ctrl_c_ends_the_reply_and_not_the_chat(
    cli: Cli, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step, count = Engine.step, 0

    def interrupted(engine: Engine) -> bool:
        nonlocal count
        count += 1
        if count == 4:
            signal.raise_signal(signal.SIGINT)
        return step(engine)

    monkeypatch.setattr(Engine, "step", interrupted)
    told = cli(
        "chat", "--model", model, *SHORT, "--method", "sequential", "--verbose", input="a\nb\n"
    )
    assert told.exit_code == 0, told.output
    assert count > 6, "the second turn was answered"
    assert told.stderr.count("prompt tokens were in the cache") == 1


def test_a_model_for_one_problem_says_so_first(
    cli: Cli, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Text, "tells_roles", False)
    told = cli("chat", "--model", model, *SHORT, "--quiet", input="/help\n")
    assert "no turn knows of those before it, and a system message is refused" in told.stderr


def test_the_bundled_model_takes_sums(cli: Cli, bundled: Path) -> None:
    told = cli("chat", *SHORT, "--quiet", input="84 + 29 - 38; 17 + 60 - 31\nWho are you?\n")
    assert told.exit_code == 0, told.output
    assert "lists of sums" in told.stderr
    assert told.stderr.count("warning") == 1, "of what is no list"
