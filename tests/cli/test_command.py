"""Every option of every command has one source: the field that declares it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any

import pytest
import typer
from typer.main import get_command
from typer.testing import CliRunner

from manyhands.cache.layouts import LAYOUTS
from manyhands.cli import app
from manyhands.cli.batch_options import BatchOptions
from manyhands.cli.command import Chosen, Shared, options_in, options_of, shared_of, takes, told
from manyhands.cli.exam_options import (
    EXAM_METHODS,
    CompareOptions,
    EvalOptions,
    JudgeOptions,
    ReportOptions,
)
from manyhands.cli.options import (
    BenchOptions,
    ChatOptions,
    PromptsOptions,
    ReplayOptions,
    SolveOptions,
    TrainOptions,
    ViewOptions,
)
from manyhands.cli.serve_options import ServeOptions
from manyhands.errors import InvalidRequest
from manyhands.model.settings import ModelSettings
from manyhands.schema.choosing import choosable
from manyhands.schema.setting import check, like, setting, settings_of
from manyhands.strategies.methods import METHODS
from manyhands.strategies.settings import TeamSettings
from manyhands.tasks.catalogue import TASKS

COMMANDS: Mapping[str, type[Any]] = {
    "solve": SolveOptions,
    "chat": ChatOptions,
    "serve": ServeOptions,
    "replay": ReplayOptions,
    "batch": BatchOptions,
    "train": TrainOptions,
    "bench": BenchOptions,
    "eval": EvalOptions,
    "judge": JudgeOptions,
    "report": ReportOptions,
    "compare": CompareOptions,
    "prompts": PromptsOptions,
    "view": ViewOptions,
}


def parameters(command: Any) -> dict[str, Any]:
    """The options of a command as typer has them, by their parameters' names."""
    return {one.name: one for one in command.params if one.name not in ("help", "typer_context")}


def declared(options: type[Any]) -> Iterator[tuple[str, str, Any]]:
    """Parameter, help and default, read from the fields themselves."""
    for one in fields(options):
        found = settings_of(options).get(one.name)
        if found is not None and found.by == "option":
            yield one.name, found.help, None if one.default is MISSING else one.default
        for shared in (m for m in one.metadata.values() if isinstance(m, Shared)):
            yield from _of_methods(shared)


def _of_methods(shared: Shared) -> Iterator[tuple[str, str, Any]]:
    seen: dict[str, tuple[str, set[Any]]] = {}
    for settings in shared.known().values():
        for path, one in choosable(settings).items():
            if one.setting.by == "option" and path not in shared.without:
                seen.setdefault(path, (one.setting.help, set()))[1].add(one.default)
    for path, (help, defaults) in seen.items():
        is_one = len(defaults) == 1 and path not in shared.unset
        yield path.replace(".", "__"), help, defaults.pop() if is_one else None


def differences(command: Any, options: type[Any]) -> list[str]:
    """The parts of a command that do not stand at the fields of its options."""
    known = parameters(command)
    found = []
    for name, help, default in declared(options):
        one = known.pop(name, None)
        if one is None:
            found.append(f"{name} is no option")
            continue
        if not (one.help or "").startswith(help.removesuffix(".")):
            found.append(f"{name} says {one.help!r}")
        shown = ",".join(map(str, default)) or None if isinstance(default, tuple) else default
        if one.default != shown:
            found.append(f"{name} has the default {one.default!r}")
    return found + [f"{name} stands at no field" for name in known]


def test_every_option_is_its_field() -> None:
    commands = get_command(app).commands  # type: ignore[attr-defined]  # a group
    assert set(commands) == set(COMMANDS)
    for name, options in COMMANDS.items():
        assert differences(commands[name], options) == [], name


def test_control_an_option_that_differs() -> None:
    other = typer.Typer()

    @other.command()
    def report(
        folder: str, out: str = typer.Option("here", help="Where."), more: int = 3
    ) -> None: ...

    found = differences(get_command(other), ReportOptions)
    assert "out says 'Where.'" in found
    assert "out has the default 'here'" in found
    assert "baseline is no option" in found
    assert "more stands at no field" in found


@pytest.mark.parametrize("method", METHODS)
def test_every_setting_of_a_method_is_an_option_unless_it_says_so(method: str) -> None:
    places = {option.place: option for option in options_in(SolveOptions) if option.owners}
    for path, one in choosable(METHODS[method].settings()).items():
        assert (path in places) == (one.setting.by == "option")
        if path in places:
            assert method in places[path].owners


def test_an_option_of_one_method_has_a_panel_of_its_own() -> None:
    panels = {option.place: option.setting.panel for option in options_in(SolveOptions)}
    assert panels["max_blocks"] == "Method: branches"
    assert panels["layout"] == "Method: hogwild"
    assert (panels["title_tokens"], panels["budget"]) == ("Method", "Method")
    assert (panels["choice.temperature"], panels["end.reply"]) == (
        "Choice of tokens",
        "How it ends",
    )


def test_a_new_method_and_a_new_setting_need_no_other_line() -> None:
    @dataclass(frozen=True, kw_only=True)
    class DebateSettings(TeamSettings):
        rounds: int = setting(3, "Rounds of the debate.", at_least=1)
        workers: int = like(TeamSettings, "workers", default=5)

    @dataclass(frozen=True, kw_only=True)
    class Options:
        method: str = setting("debate", "How.", one_of=("debate", "team"))
        chosen: Chosen = options_of({"team": TeamSettings(), "debate": DebateSettings()})
        listed: tuple[str, ...] = setting((), "Others.", names=("--set",))

        def __post_init__(self) -> None:
            check(self)

    made: list[Any] = []
    small = typer.Typer()

    @small.command()
    @takes(Options)
    def solve(options: Options) -> None:
        """Solve."""
        made.append(shared_of(Options).settings_for(options.method, options.chosen, options.listed))

    def run(*words: str) -> Any:
        return CliRunner().invoke(small, words, env={"COLUMNS": "120"})

    shown = " ".join(run("--help").output.replace("│", " ").split())
    assert "Method: debate" in shown
    assert "--rounds <int> [x>=1] Rounds of the debate. [default: 3]" in shown
    assert "[default: (2; debate: 5)]" in shown
    assert run().exit_code == 0
    assert run("--rounds", "4", "-n", "3", "--set", "moves=reencode").exit_code == 0
    assert made == [DebateSettings(), DebateSettings(rounds=4, workers=3, moves="reencode")]
    wrong = run("--method", "team", "--rounds", "4")
    assert wrong.exit_code == 2
    assert "--rounds 4 is not for --method team" in wrong.output
    assert "ask for --method debate" in wrong.output
    assert "rounds is 0; expected 1 or more" in run("--rounds", "0").output


def test_a_choice_as_it_is_written() -> None:
    assert told("choice.top_k", 5) == "--top-k 5"
    assert told("end.reply", False) == "--no-reply"
    assert told("end.reencode", True) == "--reencode"
    assert told("snapshots", (1, 2)) == "--snapshots 1,2"


def test_a_setting_has_one_value() -> None:
    shared = shared_of(SolveOptions)
    with pytest.raises(InvalidRequest, match=r"given twice: --set end\.reply=yes and --no-reply"):
        shared.settings_for("hogwild", {"end.reply": False}, ("end.reply=yes",))


def test_a_model_has_the_same_options_everywhere() -> None:
    """The options of replay and judge say their own words, and allow the same."""
    for options in COMMANDS.values():
        if not issubclass(options, ModelSettings):
            continue
        for name, own in settings_of(ModelSettings).items():
            assert settings_of(options)[name].expected == own.expected
            assert settings_of(options)[name].names == own.names


def test_help_and_wrong_options_come_without_torch() -> None:
    program = (
        "import sys\n"
        "from typer.testing import CliRunner\n"
        "from manyhands.cli import app\n"
        "for words in (['--help'], *([c, '--help'] for c in sys.argv[1:]),\n"
        "              ['solve', 'x', '--layout', 'round'], ['solve', 'x', '--dtype', 'int3'],\n"
        "              ['eval', '--task', 'none', '--out', 'x'], ['bench', '--workers', '0']):\n"
        "    CliRunner().invoke(app, words)\n"
        "print([name for name in ('torch', 'transformers', 'datasets') if name in sys.modules])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *COMMANDS], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("words", "registry"),
    [
        ("solve --method", list(METHODS)),
        ("eval --task", list(TASKS)),
        ("eval --method", list(EXAM_METHODS)),
        ("solve --layout", list(LAYOUTS)),
    ],
)
def test_the_shell_completes_names_from_the_registries(words: str, registry: list[str]) -> None:
    asked = {"COMP_WORDS": f"manyhands {words} ", "COMP_CWORD": "3"}
    env = {"_MANYHANDS_COMPLETE": "complete_bash", **asked}
    found = CliRunner().invoke(app, [], prog_name="manyhands", env=env)
    assert found.stdout.split() == registry
