"""The recipes that are shipped: their pages name each of them, and what they say is in the accounts.

Recipes are read and models made of them in `tests/school/test_recipe.py`.
"""

from __future__ import annotations

import hashlib
import json
import re
import runpy
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from benchmarks.training_tables import ACCOUNTS, account_of
from manyhands.model.checkpoint import check_lora
from manyhands.school.recipe import read_recipe

ROOT = Path(__file__).parents[1]
RECIPES = ROOT / "recipes"
FOLDERS = ("bundled", "smollm2")
FEWEST_TOKENS_A_SECOND = 40_000  # of SmolLM2, whole trainings


def page_of(folder: str) -> str:
    return (RECIPES / folder / "README.md").read_text(encoding="utf-8")


def rows_of(folder: str) -> dict[str, list[str]]:
    """The rows of the page's tables of trainings, by recipe: seed, steps, tokens, time, account, log."""
    rows = re.findall(r"^\| \[(\w+)\.toml\][^|]*\|(.*)\|$", page_of(folder), re.MULTILINE)
    return {name: [cell.strip() for cell in row.split("|")] for name, row in rows}


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_page_has_a_row_for_every_recipe(folder: str) -> None:
    recipes = {file.stem for file in (RECIPES / folder).glob("*.toml")}
    assert set(rows_of(folder)) == recipes
    for name, (seed, *_) in rows_of(folder).items():
        assert read_recipe(RECIPES / folder / f"{name}.toml").training.seed == int(seed)


@pytest.mark.parametrize("folder", FOLDERS)
def test_links_of_a_page_lead_somewhere(folder: str) -> None:
    for link in re.findall(r"\]\(([^)#]+)[^)]*\)", page_of(folder)):
        assert (RECIPES / folder / link).exists(), link


@pytest.mark.parametrize("folder", FOLDERS)
def test_rows_say_what_accounts_say(folder: str) -> None:
    names = {name.rstrip("_") or "recipe": name for name in ACCOUNTS[folder]}
    for recipe, (_, steps, tokens, seconds, *files) in rows_of(folder).items():
        if recipe not in names:
            assert files == ["not kept", "not kept"]
            assert not account_of(folder, f"{recipe}_").exists()
            continue
        account: dict[str, Any] = json.loads(account_of(folder, names[recipe]).read_text())
        assert int(steps) == account["steps"]
        assert tokens == f"{account['tokens'] / 1e6:.1f} million"
        assert seconds == f"{account['seconds']:.0f} s"
        log = (RECIPES / folder / f"{names[recipe]}log.jsonl").read_text().splitlines()
        assert json.loads(log[-1])["step"] == account["steps"]


def test_trainings_of_the_pretrained_model_were_as_fast_as_was_wanted() -> None:
    for name in ACCOUNTS["smollm2"]:
        account = json.loads(account_of("smollm2", name).read_text())
        assert account["tokens"] / account["seconds"] >= FEWEST_TOKENS_A_SECOND


# -- the adapter ----------------------------------------------------------------------------------

MOST_BYTES = 25_000_000
HIGHEST_RATIOS = {2: 0.60, 3: 0.48, 4: 0.40}  # first budgets over one worker's, at most
MOST_SOLVED_TWICE = 0.02
FEWEST_RIGHT = {"fresh": 0.80, "unseen": 0.80, "taught": 0.99, "bare": 0.99}


def exam_of(name: str) -> dict[str, dict[str, Any]]:
    file = ROOT / "benchmarks" / "results" / f"{name}.json"
    return {line["name"]: line for line in json.loads(file.read_text())["lines"]}


def test_the_adapter_is_the_one_that_was_examined() -> None:
    folder = RECIPES / "smollm2" / "adapter"
    weights = (folder / "adapter_model.safetensors").read_bytes()
    lines = exam_of("smollm2_exam").values()
    assert {line["adapter"] for line in lines} == {hashlib.sha256(weights).hexdigest()[:16]}
    assert {line["n"] for line in lines} == {256}
    assert sum(file.stat().st_size for file in folder.iterdir()) <= MOST_BYTES
    check_lora(folder)


def test_a_taught_team_shares_its_work() -> None:
    lines = exam_of("smollm2_exam")
    for kind, fewest in FEWEST_RIGHT.items():
        assert min(lines[f"{kind} 5, {n}"]["accuracy"] for n in range(1, 5)) >= fewest, kind
    assert max(line["solved_twice"] for line in lines.values()) <= MOST_SOLVED_TWICE
    alone = lines["fresh 5, 1"]
    first = {
        n: min(
            int(budget)
            for budget, right in lines[f"fresh 5, {n}"]["curve"].items()
            if right >= 0.97 * alone["accuracy"]
        )
        for n in range(1, 5)
    }
    for workers, most in HIGHEST_RATIOS.items():
        assert first[workers] <= most * first[1]


def test_a_mean_of_adapters_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one with itself it is itself, to the bit; the control: of one with its double it is not."""
    program = ROOT / "recipes" / "smollm2" / "mean.py"
    shipped, out, other = RECIPES / "smollm2" / "adapter", tmp_path / "mean", tmp_path / "double"
    own = load_file(shipped / "adapter_model.safetensors")
    other.mkdir()
    save_file({name: 2 * x for name, x in own.items()}, other / "adapter_model.safetensors")
    for second, factor in ((shipped, 1.0), (other, 1.5)):
        monkeypatch.setattr(sys, "argv", [*map(str, (program, out, shipped, second))])
        runpy.run_path(str(program), run_name="__main__")
        found = load_file(out / "adapter_model.safetensors")
        for name, x in own.items():
            assert torch.equal(found[name], (factor * x.float()).to(x.dtype)), name
        check_lora(out)
        shutil.rmtree(out)


@pytest.mark.parametrize("words", [(), ("--help",), ("one", "two")])
def test_a_tokenizer_is_written_where_it_is_asked_for_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    """Without a folder, or for help, the program says how it is called, and makes nothing."""
    program = RECIPES / "bundled" / "make_tokenizer.py"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(program), *words])
    with pytest.raises(SystemExit, match=r"make_tokenizer\.py OUT"):
        runpy.run_path(str(program), run_name="__main__")
    assert not list(tmp_path.iterdir())


MISTAKES = {
    "no file": ("smollm2/likeness.py", ("nothing.json", "out"), r"No such file .*nothing\.json"),
    "no JSON": ("smollm2/likeness.py", ("text", "out"), "text is no exam with fresh stories"),
    "no lines": ("smollm2/likeness.py", ("{}.json", "out"), "is no exam with fresh stories"),
    "no stories": ("smollm2/likeness.py", ("lines.json", "out"), "has no line that asks fresh"),
    "no folder": ("smollm2/mean.py", ("out", "nothing", "nothing"), "No such file"),
    "no weights": ("smollm2/mean.py", ("out", "damaged", "damaged"), "header"),
    "a file": ("bundled/make_tokenizer.py", ("text",), "File exists"),
    "below a file": ("bundled/make_tokenizer.py", ("text/out",), "Not a directory"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_end_in_a_message(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, words, told = MISTAKES[name]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text").write_text("words")
    (tmp_path / "{}.json").write_text("{}")
    (tmp_path / "lines.json").write_text('{"lines": []}')
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "adapter_model.safetensors").write_text("x")
    monkeypatch.setattr(sys, "argv", [program, *words])
    with pytest.raises(SystemExit, match=f"^{Path(program).name}: .*{told}"):
        runpy.run_path(str(RECIPES / program), run_name="__main__")
    assert not (tmp_path / "out").exists()
