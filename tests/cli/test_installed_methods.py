"""A method of an installed distribution at every door: built and installed as its user does, then asked for by its name."""

from __future__ import annotations

import ast
import json
import signal
import subprocess
import sys
from importlib.resources import files
from pathlib import Path
from typing import Any

import httpx2
import pytest

import manyhands
from manyhands.cli.output import version_of
from manyhands.cli.solve import EXAMPLE
from tests.installing import EXAMPLE_METHOD, a_method, environment, example_installed, laid_out, ran
from tests.warm import COMMAND, Warm


def as_json(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return example_installed(tmp_path_factory.mktemp("installed"))


@pytest.fixture(scope="module")
def solved(site: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    """A run of it from the command line, and its trace."""
    trace = tmp_path_factory.mktemp("solved") / "t.jsonl"
    options = ("--method", "debate", "--rounds", 4, "-n", 3, "--budget", 90)
    done = ran(site, "solve", EXAMPLE, *options, "--json-events", "--transcript", trace)
    assert done.returncode == 0, done.stderr
    *events, last = done.stdout.splitlines()
    assert "RoundHeard" in {json.loads(event)["event"] for event in events}
    return json.loads(last), trace


def test_the_command_line_has_it(site: Path, solved: tuple[dict[str, Any], Path]) -> None:
    found, trace = solved
    assert (found["method"], len(found["tokens"])) == ("debate", 3)
    assert found["answer"] == "75,46"
    settings = json.loads(trace.read_text("utf-8").partition("\n")[0])["settings"]
    assert (settings["rounds"], settings["workers"], settings["budget"]) == (4, 3, 90)


def test_its_trace_is_read_again_and_goes_on(
    site: Path, solved: tuple[dict[str, Any], Path], tmp_path: Path
) -> None:
    found, trace = solved
    assert as_json(ran(site, "replay", trace, "--json"))["text"] == found["text"]
    lines = trace.read_text("utf-8").splitlines(keepends=True)
    half = tmp_path / "half.jsonl"
    half.write_text("".join(lines[: len(lines) // 2]), encoding="utf-8")
    resumed = as_json(ran(site, "replay", half, "--continue", "--json"))
    for name in ("answer", "text", "tokens", "forward_passes"):
        assert resumed[name] == found[name]
    refused = ran(tmp_path, "replay", trace)  # where it is not installed
    assert refused.returncode == 7
    assert "RoundHeard" in refused.stderr
    assert "a method whose distribution is not installed here" in refused.stderr


def test_several_ranks_write_the_same(
    site: Path, solved: tuple[dict[str, Any], Path], tmp_path: Path
) -> None:
    """Rank 0 alone has the method; the other one, which has no such thing, makes its passes along."""
    found, trace = solved
    ours = tmp_path / "t.jsonl"
    options = ("--method", "debate", "--rounds", 4, "-n", 3, "--budget", 90)
    two = ("--device", "cpu", "--ranks", 2, "--memory-tokens", 8192)
    done = as_json(ran(site, "solve", EXAMPLE, *options, *two, "--json", "--transcript", ours))
    assert done["text"] == found["text"]
    events, expected = (one.read_text("utf-8").splitlines()[1:] for one in (ours, trace))
    assert events == expected
    assert json.loads(ours.read_text("utf-8").partition("\n")[0])["versions"] == {
        **{name: version_of(name) for name in ("manyhands", "torch", "transformers")},
        "manyhands-debate": "1.0",
    }


def test_the_exam_has_it(site: Path, tmp_path: Path) -> None:
    task = ("--task", "arithmetic", "--limit", 1, "--count", 2, "--out", tmp_path / "records")
    done = ran(site, "eval", *task, "--method", "debate", "--rounds", 3, "--budgets", "40,80")
    assert done.returncode == 0, done.stderr
    (records,) = (tmp_path / "records").rglob("*.jsonl")
    header, record = map(json.loads, records.read_text("utf-8").splitlines()[:2])
    assert header["method"] == "debate"
    assert header["settings"]["rounds"] == 3
    assert record["error"] is None


def test_the_server_has_it(site: Path) -> None:
    command = [*COMMAND, "serve", "--port", "0", "--memory-tokens", "8192"]
    server = Warm(command, env=environment(site), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        assert server.stderr is not None
        told = []
        for line in server.stderr:
            told.append(line)
            if "http://" in line:
                break
        url = next(word for word in told[-1].split() if word.startswith("http://")).rstrip("/.,;")
        with httpx2.Client(base_url=url, timeout=60) as client:
            models = [one["id"] for one in client.get("/v1/models").json()["data"]]
            assert "bundled:debate-2" in models
            (one,) = (
                one for one in client.get("/v1/methods").json()["data"] if one["id"] == "debate"
            )
            assert one["distribution"] == "manyhands-debate 1.0"
            assert set(one["settings"]) == {"workers", "rounds"}
            assert one["settings"]["rounds"] == {
                "type": "integer",
                "minimum": 1,
                "maximum": 256,
                "default": 8,
                "description": "Rounds, at most.",
                "by": "option",
            }
            body: dict[str, Any] = {"messages": [{"role": "user", "content": EXAMPLE}]}
            options = {"method": "debate", "workers": 3, "rounds": 4, "budget": 90}
            asked = {"model": "bundled", **body, "manyhands": options}
            reply = client.post("/v1/chat/completions", json=asked).json()
            assert reply["choices"][0]["message"]["content"].strip()
            asked = {"model": "bundled:debate-2", **body, "manyhands": {"rounds": 0}}
            refused = client.post("/v1/chat/completions", json=asked)
            assert refused.status_code == 400
            assert refused.json()["error"]["param"] == "manyhands.rounds"
            run = {"problem": EXAMPLE, "method": "debate", "rounds": 4, "budget": 60}
            begun = client.post("/v1/runs", json=run)
            assert begun.is_success, begun.text
    finally:
        server.send_signal(signal.SIGINT)
        _, rest = server.communicate(timeout=60)
    assert server.returncode == 130 or server.returncode == 0, rest


def test_its_author_has_types(site: Path) -> None:
    """Both packages say that they are typed; `make types` checks the example, strictly, against ours."""
    assert (site / "manyhands_debate" / "py.typed").is_file()
    assert files("manyhands").joinpath("py.typed").is_file()
    tree = ast.parse((EXAMPLE_METHOD / "manyhands_debate" / "__init__.py").read_text("utf-8"))
    (face,) = (
        {alias.name for alias in node.names}
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and node.module == "manyhands"
    )
    assert {"Method", "Settings", "Strategy", "setting"} <= face <= set(manyhands.__all__)


def test_a_rank_needs_no_method(faulty: Path) -> None:
    """Another process of one model knows no methods, installed or not."""
    program = "import sys, manyhands.engine.ranks.other_rank as rank; print(*{'manyhands.strategies.methods', 'our_relay', 'faulty'} & set(sys.modules), rank.__name__)"
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment(faulty), capture_output=True, text=True
    )
    assert done.stdout.split() == ["manyhands.engine.ranks.other_rank"], done.stderr


def test_help_and_errors_name_it(site: Path) -> None:
    shown = " ".join(ran(site, "solve", "--help").stdout.replace("│", " ").split())
    assert "best_of_n|debate>" in shown
    assert "ended a paragraph (manyhands-debate 1.0)." in shown
    assert "Method: debate" in shown
    assert "--rounds <int> [1<=x<=256] Rounds, at most. [default: 8]" in shown
    shown = " ".join(ran(site, "eval", "--help").stdout.replace("│", " ").split())
    assert "|shared_prefix|debate>" in shown
    assert "--rounds" in shown
    refused = ran(site, "solve", "1 + 2", "--method", "nope")
    assert "best_of_n, debate" in refused.stderr
    refused = ran(site, "solve", "1 + 2", "--rounds", 3)
    assert refused.returncode == 2
    assert "--rounds 3 is not for --method hogwild" in refused.stderr
    assert "ask for --method debate" in refused.stderr
    refused = ran(site, "solve", "1 + 2", "--method=debate", "--rounds", 0)
    assert "rounds is 0; expected 1 to 256" in refused.stderr
    refused = ran(site, "solve", "1 + 2", "--method", "debate", "--set", "rounds=0")
    assert "rounds is 0; expected 1 to 256" in refused.stderr


NOTES = "import sys\nprint('imported', __name__, file=sys.stderr)\n"


@pytest.fixture
def faulty(tmp_path: Path) -> Path:
    """One that cannot be imported, one whose name is taken, and one that says so when it is imported."""
    laid_out(tmp_path, "our-faulty", {"faulty": "faulty:OWN"}, "faulty", f"{NOTES}1 / 0\n")
    laid_out(tmp_path, "our-team", {"hogwild": "our_team:OWN"}, "our_team", NOTES)
    fields = "model: str = setting('own', 'Another.')\n    rounds: int = setting(2, 'Rounds.')"
    laid_out(
        tmp_path,
        "our-relay",
        {"relay": "our_relay:OWN"},
        "our_relay",
        NOTES + a_method("relay", fields),
    )
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "imported"),
    [
        ("--help", set()),
        ("bench --help", set()),
        ("solve 1+2 --workers 0", set()),
        ("solve 1+2 --method hogwild --workers=0", set()),
        ("solve 1+2 --method nope", set()),
        ("solve 1+2 --method relay --budget 0", {"our_relay"}),
        ("solve 1+2 --rounds 3", {"our_relay", "faulty"}),
        ("chat --help", {"our_relay", "faulty"}),
        ("eval --help", {"our_relay", "faulty"}),
    ],
)
def test_what_is_not_needed_is_not_imported(
    faulty: Path, arguments: str, imported: set[str]
) -> None:
    told = ran(faulty, *arguments.split()).stderr.splitlines()
    assert {line.split()[1] for line in told if line.startswith("imported ")} == imported


def test_one_that_cannot_be_used_is_told_and_the_others_work(faulty: Path) -> None:
    why = "the method 'faulty' of our-faulty 1.0 (entry point faulty:OWN) cannot be imported: ZeroDivisionError: division by zero"
    taken = "the method 'hogwild' of our-team 1.0 (entry point our_team:OWN) is not reached"
    shown = ran(faulty, "solve", "--help")
    assert shown.returncode == 0
    assert f"warning: {why}" in shown.stderr
    assert f"warning: {taken}" in shown.stderr
    assert "relay: one of our own (our-relay 1.0)." in " ".join(
        shown.stdout.replace("│", " ").split()
    )
    refused = ran(faulty, "solve", "1 + 2", "--method", "faulty")
    assert refused.returncode == 2
    assert f"error: {why}" in refused.stderr
    assert "hint: Install another release of it, or remove it: pip uninstall" in refused.stderr
    assert "Traceback" not in refused.stderr
    for command in (("solve", "1 + 2"), ("chat",)):
        told = ran(faulty, *command, "--method", "hogwild", "--prompts", "/no.toml").stderr
        assert f"warning: {taken}" in told
        assert "'/no.toml' cannot be read" in told
    told = ran(faulty, "solve", "1 + 2", "--method", "sequential", "--prompts", "/no.toml").stderr
    assert "warning" not in told


def test_an_option_whose_name_is_taken_is_chosen_by_set(faulty: Path) -> None:
    """`--model` stays the model's, and the setting of the method is reached by --set."""
    shown = " ".join(ran(faulty, "solve", "--help").stdout.split())
    assert shown.count("--model ") == 1
    assert "--rounds" in shown
    arguments = ("--method", "relay", "--set", "model=x", "--model", "/no/such/folder")
    assert "no folder '/no/such/folder'" in ran(faulty, "solve", "1 + 2", *arguments).stderr
    refused = ran(faulty, "solve", "1 + 2", "--method", "relay", "--set", "modle=x").stderr
    assert "model, rounds" in refused
