"""`manyhands serve`: what is refused before a model is loaded, and one server of the bundled model."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import fields, replace
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx2
import pytest
from openai import OpenAI
from typer.testing import CliRunner

from manyhands.cache.prefixes import PrefixTree
from manyhands.cache.step import GREEDY, Choice
from manyhands.cli import app
from manyhands.cli.serve import KEY_VARIABLE, keys_of
from manyhands.cli.serve_options import ServeOptions
from manyhands.cli.solve import EXAMPLE
from manyhands.errors import InvalidRequest
from manyhands.schema.openai import CHAT
from manyhands.server.asked import understand
from manyhands.server.limits import Limits
from manyhands.server.process import Place, listening
from tests.cli.conftest import module_of
from tests.strategies.driver import small_text
from tests.warm import COMMAND, Warm

KEY = "a-key-of-some-length"
ROOT = Path(__file__).parents[2]


def refused(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["serve", *arguments])
    assert result.exit_code == 2, result.output
    return " ".join(result.stderr.split())


def test_what_is_refused_before_a_model_is_loaded(tmp_path: Path) -> None:
    assert "there is no API key" in refused("--host", "0.0.0.0")
    assert "an API key has 5 characters" in refused("--api-key", "short")
    missing = refused("--api-key-file", str(tmp_path / "none"))
    assert "cannot be read: No such file or directory" in missing
    empty = tmp_path / "empty"
    empty.write_text("# no key yet\n\n")
    assert "holds no key" in refused("--api-key-file", str(empty))
    assert "port is 70000" in refused("--port", "70000")
    assert "live_runs is 0" in refused("--live-runs", "0")
    assert "run_seconds is nan" in refused("--run-seconds", "nan")
    with listening(Place(port=0)) as taken:
        port = str(taken.getsockname()[1])
        assert f"port {port} at 127.0.0.1 cannot be taken" in refused("--port", port)


def test_keys_come_from_three_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "keys"
    # With a byte order mark, as editors on Windows write one.
    file.write_text(f"# ours\n{KEY}-1\n\n  {KEY}-2  \n", encoding="utf-8-sig")
    monkeypatch.setenv(KEY_VARIABLE, f"{KEY}-3")
    keys = keys_of(ServeOptions(api_key=f"{KEY}-4", api_key_file=file))
    owners = {keys.owner_of(f"Bearer {KEY}-{n}".encode()) for n in (1, 2, 3, 4)}
    assert None not in owners
    assert len(owners) == 4
    assert keys.owner_of(f"Bearer {KEY}-5".encode()) is None
    monkeypatch.delenv(KEY_VARIABLE)
    assert not keys_of(ServeOptions())
    file.write_bytes(b"\xff")
    with pytest.raises(InvalidRequest, match="is not UTF-8 text"):
        keys_of(ServeOptions(api_key_file=file))


@pytest.mark.parametrize("name", ["", "  "])
def test_a_model_without_a_name_is_none(name: str) -> None:
    """As of a shell's variable that is not set: the server began under a name of its own choosing."""
    with pytest.raises(InvalidRequest, match="name is empty"):
        ServeOptions(name=name)


def made_front(monkeypatch: pytest.MonkeyPatch, *options: str) -> tuple[Any, Any]:
    """The front that the command makes of these options, and what it says. No model is loaded."""
    engine = SimpleNamespace(
        about=[],
        facts=SimpleNamespace(
            max_positions=512,
            is_on_gpu=False,
            vocab_size=1000,
            num_states=0,
            device="cpu",
            dtype="float32",
        ),
        executor=SimpleNamespace(fingerprint=lambda: "of the weights"),
        prefixes=PrefixTree(),
    )
    fronts: list[Any] = []

    def answer(front: Any, *_: Any, **__: Any) -> int:
        fronts.append(front)
        return 0

    monkeypatch.setattr(module_of("serve"), "load_engine", lambda *_: (engine, small_text()))
    monkeypatch.setattr(
        "manyhands.engine.service.Service", lambda *_, **given: SimpleNamespace(**given)
    )
    monkeypatch.setattr("manyhands.server.process.serve", answer)
    result = CliRunner().invoke(app, ["serve", "--port", "0", *options])
    assert result.exit_code == 0, result.output
    return fronts[0], result


def test_traces_tell_with_what_their_runs_were_made(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As those of `solve --transcript` do, but for the folder of an adapter."""
    folder = tmp_path / "polite"
    folder.mkdir()
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        (folder / name).write_text("{}")
    front, _ = made_front(monkeypatch, "--adapter", str(folder), "--load", "dummy")
    told = dict(front.served.place)
    assert set(told.pop("versions")) == {"manyhands", "torch", "transformers"}
    assert told == {
        "vocabulary": small_text().vocabulary,
        "lora": "polite",
        "weights": "dummy",
        "quantise": "auto",
        "kv_cache_dtype": "auto",
        "fuse": "auto",
        "thinking": "auto",
        "device": "cpu",
        "dtype": "float32",
        "backend": "auto",
        "fingerprint": "of the weights",
    }


def test_every_limit_is_that_of_its_option(monkeypatch: pytest.MonkeyPatch) -> None:
    values = {each.name: 2000 + number for number, each in enumerate(fields(Limits))}
    options = [(f"--{name.replace('_', '-')}", str(value)) for name, value in values.items()]
    front, _ = made_front(monkeypatch, *chain.from_iterable(options))
    assert front.limits == front.served.limits == Limits(**values)
    service = front.runs.service
    assert (service.max_live, service.max_waiting) == (values["live_runs"], values["waiting_runs"])
    assert service.max_events == values["run_events"]


@pytest.mark.parametrize(
    ("options", "choice"),
    [
        ([], Choice(temperature=0.4, top_k=9)),
        (["--top-k", "3"], Choice(temperature=0.4, top_k=3)),
        (["--greedy"], GREEDY),
    ],
)
def test_a_models_own_sampling_is_what_a_request_means_that_says_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], choice: Choice
) -> None:
    """Of a plain request and of a method's; what a request says has the last word."""
    own = {"do_sample": True, "temperature": 0.4, "top_k": 9}
    (tmp_path / "generation_config.json").write_text(json.dumps(own))
    front, result = made_front(monkeypatch, "--model", str(tmp_path), *options)
    assert ("sampling as the model's own" in result.stderr) == (options != ["--greedy"])
    served = front.served
    said: dict[str, Any] = {"messages": [{"role": "user", "content": "a"}]}
    assert understand(CHAT, said, served).choice == choice
    asked = understand(CHAT, {**said, "temperature": 0.9}, served)
    assert asked.choice == replace(choice, temperature=0.9)
    team = understand(CHAT, {**said, "manyhands": {"method": "hogwild"}}, served)
    expected = GREEDY if options == ["--greedy"] else Choice(temperature=0.4, top_k=9)
    assert team.choice == expected


@pytest.mark.parametrize("options", [["--seed", "5"], ["--set", "seed=5"], ["--seed", "0"], []])
def test_a_seed_is_chosen_for_all_requests_or_for_none(
    monkeypatch: pytest.MonkeyPatch, options: list[str]
) -> None:
    served = made_front(monkeypatch, *options)[0].served
    said: dict[str, Any] = {"messages": [{"role": "user", "content": "a"}]}
    team = {**said, "manyhands": {"method": "hogwild"}}
    seeds = set()
    for body in (said, said, team, team):
        asked = understand(CHAT, body, served)
        told = asked.settings if asked.spec is None else asked.spec.settings
        assert told is not None
        seeds.add(told.seed)
    assert seeds == {int(options[-1].removeprefix("seed="))} if options else len(seeds) == 4


@pytest.mark.skipif(sys.platform == "win32", reason="the signal is one of Unix")
def test_the_bundled_model_is_served() -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", KEY_VARIABLE: KEY}
    command = [*COMMAND, "serve", "--port", "0", "--memory-tokens", "16384"]
    with Warm(command, stderr=subprocess.PIPE, env=environment) as child:
        try:
            assert child.stderr is not None
            url = next(line for line in child.stderr if "serving at" in line).split()[-1]
            with OpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0) as client:
                answer = client.chat.completions.create(
                    model="bundled:hogwild-2",
                    messages=[{"role": "user", "content": EXAMPLE}],
                    extra_body={"manyhands": {"budget": 60}},
                )
            assert "75, 46" in (answer.choices[0].message.content or "")
            asked = {"problem": "Who are you?", "budget": 1, "end": {"reply": False}}
            with httpx2.Client(headers={"Authorization": f"Bearer {KEY}"}) as other:
                run = other.post(f"{url}/v1/runs", json=asked).json()["id"]
                records = other.get(f"{url}/v1/runs/{run}/events", timeout=60).text
            assert '"warning":"This is not a numbered list of problems;' in records
            example = subprocess.run(
                [sys.executable, ROOT / "examples" / "ask_a_server.py", url],
                env={**environment, "OPENAI_API_KEY": KEY},
                capture_output=True,
                text=True,
            )
            assert example.stderr == ""
            assert "**Alice [1]:**" in example.stdout
            assert "**Bob [1]:**" in example.stdout
            assert example.stdout.endswith("75, 46.\n")
            child.send_signal(signal.SIGTERM)
            told = child.stderr.read()
            assert child.wait(30) == 0, told
            assert '"status": 200' in told
            assert "84 + 29" not in told
        finally:
            child.kill()
