"""The pages about speed: together they have every table, and the first one claims nothing that is not in a file."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from benchmarks import (
    crowd_tables,
    engine_tables,
    gpu_tables,
    layer_tables,
    performance,
    targets,
)

DOCS = Path(__file__).parents[2] / "docs"
PAGES = [(DOCS / name).read_text(encoding="utf-8") for name in performance.PAGES]
TABLE = re.compile(r"<!-- table: (\w+) -->\n(.*?)<!-- end -->", re.DOTALL)
FIGURE = re.compile(
    r"(?<![A-Za-z])\d\.\d|\d (?:ms|µs|s|%|×|GB/s)(?!\w)|\b(?=\w*\d)(?=\w*[a-f])[0-9a-f]{7}\b"
)


def claimed(page: str) -> list[str]:
    """Measured figures and commits outside of tables and blocks of code."""
    return FIGURE.findall(re.sub(r"```.*?```", "", TABLE.sub("", page), flags=re.DOTALL))


def test_every_table_stands_on_one_of_the_pages() -> None:
    parts = (performance, gpu_tables, layer_tables, crowd_tables, engine_tables, targets)
    made = [name for part in parts for name in part.TABLES]
    shown = Counter(name for page in PAGES for name, _ in TABLE.findall(page))
    assert shown == Counter([*made, "guesses"])  # of the bundled model on a CPU


def test_figures_of_the_first_page_stand_in_tables() -> None:
    assert claimed(PAGES[0]) == []
    assert "not committed" not in PAGES[0]
    assert (
        len(claimed("4.41 ms, 3 %, 10 MB, 128 tokens, since 4098b82, `a/b.py`, defaced, Qwen3.5"))
        == 4
    )
    assert min(len(claimed(page)) for page in PAGES[1:]) > 10, "control"


def test_the_first_page_begins_with_words_and_a_small_table() -> None:
    name, rows = TABLE.findall(PAGES[0])[0]
    assert name == "beside_one"
    assert len(rows.splitlines()) <= 8
    assert PAGES[0].index("| --- |") > 500


HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
NO_SUBJECT = {"accounts", "of", "and", "the", "this", "engine", "a"}


def about(heading: str) -> set[str]:
    """The words of a heading by which it differs from others."""
    return set(re.findall(r"\w+", heading.lower())) - NO_SUBJECT


def badly_headed(page: str) -> list[str]:
    """Headings of a page that say its title or another heading again, or have nothing of their own beneath."""
    page = re.sub(r"```.*?```", "", page, flags=re.DOTALL)
    headings, texts = HEADING.findall(page), HEADING.split(page)[2::2]
    subjects = [about(heading) for heading in headings]
    again = [h for n, h in enumerate(headings) if subjects[n] in subjects[:n]]
    return again + [h for h, text in zip(headings, texts, strict=True) if not text.strip()]


@pytest.mark.parametrize("name", performance.PAGES)
def test_no_heading_says_another_one_again(name: str) -> None:
    page = (DOCS / name).read_text(encoding="utf-8")
    assert badly_headed(page) == []
    first, second = HEADING.findall(page)[:2]
    assert badly_headed(f"{page}\n## Of {first.removeprefix('Accounts of ')}\n\nText.") != []
    assert badly_headed(f"{page}\n## Empty\n\n### {second}\n\nText.") == [second, "Empty"]


def lines(**by_when: float) -> list[dict[str, Any]]:
    name = "one team of 4, 1 k, steps of 40"
    return [
        {"name": name, "when": when.replace("_", " "), "mean_ms": ms, "p50_ms": ms, "worst_ms": ms}
        for when, ms in by_when.items()
    ]


def written(folder: Path, file: str, commit: str, situations: list[dict[str, Any]]) -> None:
    found = {"model": "Qwen3-8B", "commit": commit, "situations": situations}
    (folder / f"{file}.json").write_text(json.dumps(found))


@pytest.mark.parametrize(
    ("times", "verdict"), [((4.5, 4.6, 4.7), "yes"), ((4.5, 4.8, 4.6), "2 of 3"), ((5, 5, 5), "no")]
)
def test_a_target_of_life_is_met_each_time_or_in_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: tuple[float, ...], verdict: str
) -> None:
    monkeypatch.setattr(performance, "RESULTS", tmp_path)
    newest, older = performance._LIVES[0], performance._LIVES[1]
    fresh, warm, anew = times
    written(tmp_path, newest, "new", lines(fresh=fresh, warm=warm, drawn_anew=anew))
    written(tmp_path, older, "old", lines(fresh=9, warm=9))
    assert [each.commit for each in performance.lives()] == ["new"]
    row = targets.life_targets().splitlines()[2].strip("| ").split(" | ")
    assert row[1:] == ["≤ 4.7", ", ".join(f"{ms:.2f}" for ms in times), verdict]
    assert ("ms per pass" in targets.missed()) is (verdict != "yes")


def test_a_file_without_the_second_time_counts_for_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(performance, "RESULTS", tmp_path)
    assert performance.life() == performance.NOTHING_YET
    assert targets.missed() == "None."
    newest, older = performance._LIVES[0], performance._LIVES[1]
    written(tmp_path, newest, "new", lines(fresh=4))
    written(tmp_path, older, "old", lines(fresh=9, warm=9))
    assert [each.commit for each in performance.lives()] == ["old"]


def test_the_newest_start_of_each_kind_is_shown() -> None:
    found = {when: gpu_tables.newest_start(when) for when in ("cold", "cached", "never")}
    assert found["never"] is None
    for when in ("cold", "cached"):
        last = [each for each in gpu_tables.starts() if each[2]["when"] == when][-1]
        assert found[when] == last
    assert gpu_tables.first_token().count("\n") == 3
