"""Help in terminals of any width: no word of it is cut."""

from __future__ import annotations

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from manyhands.cli import app, guard
from manyhands.cli.narrow import AMPLE

_GROUP = get_command(app)
COMMANDS = ((), *((name,) for name in vars(_GROUP)["commands"]))


def shown(command: tuple[str, ...], width: int) -> str:
    result = CliRunner().invoke(app, [*command, "--help"], env={"COLUMNS": str(width)})
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.parametrize("width", [20, 27, 40, AMPLE - 1, AMPLE, 80])
def test_no_word_is_cut(width: int) -> None:
    """Names of options are found whole, and so are all of their texts: a terminal of any width has the same words."""
    for command in COMMANDS:
        narrow = shown(command, width)
        assert "…" not in narrow
        assert max(map(len, narrow.splitlines())) <= width
        if width < AMPLE:
            words = "".join(narrow.split())
            for line in shown(command, AMPLE - 1).splitlines():
                assert "".join(line.split()) in words


def test_every_option_has_a_line_of_its_own() -> None:
    for name, command in vars(_GROUP)["commands"].items():
        lines = [line for line in shown((name,), 40).splitlines() if line.startswith("-")]
        words = {word.strip(",") for line in lines for word in line.split()}
        for parameter in command.params:
            assert words.issuperset(opt for opt in parameter.opts if opt.startswith("-"))


def test_panels_say_whose_an_option_is() -> None:
    assert "Method: skeleton:" in shown(("solve",), 30).splitlines()


def test_typer_itself_would_cut_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: without the narrow form words are lost up to a width near the one from which on typer's is taken."""
    monkeypatch.setattr(guard, "narrow_width", lambda: 0)
    assert "…" in shown(("solve",), 40)
    assert "…" in shown(("serve",), AMPLE - 4)
