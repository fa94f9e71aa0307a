"""Every table and figure of the papers has its commands or a reason, the page lists them, and the command line takes them."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from benchmarks import papers
from benchmarks.papers import JUDGE, JUDGE_MODEL, OUT, PAPERS, commands, main, table
from tests.test_docs import refusal

PAGE = Path(__file__).parents[2] / "docs" / "exam.md"
PLACES = {OUT: "out", JUDGE: "http://127.0.0.1:1/v1", JUDGE_MODEL: "judge"}
# As the papers number them.
IN_THE_PAPERS = {
    *(f"hogwild-figure-{number}" for number in range(1, 20)),
    *("hogwild-table-1", "hogwild-table-2"),
    *("pdos-figure-1", "pdos-table-1", "pdos-table-2"),
    *(f"hydragen-figure-{number}" for number in range(1, 8)),
    *(f"hydragen-table-{size}-{tokens}" for size in ("7b", "13b", "34b") for tokens in (128, 256)),
}
PARTS = ("-left", "-middle", "-right", "-retrieval", "-multi-document", "-planning")


def whole(name: str) -> str:
    """The table or figure to which a part of one belongs."""
    return next((name.removesuffix(part) for part in PARTS if name.endswith(part)), name)


def test_nothing_in_the_papers_is_missing() -> None:
    assert {whole(name) for name in PAPERS} == IN_THE_PAPERS
    for name, shown in PAPERS.items():
        assert bool(shown.lines) != bool(shown.why_not), name


def test_the_page_lists_them() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert table() in page
    assert table().replace("Phi-4", "Phi-3") not in page


def _label(words: papers.Words) -> papers.Words:
    """A command less all that its label does not say; its folder stays."""
    return papers._without(words, "--concurrency", "--budgets", "--model", "--repeats", "--limit")


@pytest.mark.parametrize("tiny", [False, True])
def test_every_command_is_understood(tiny: bool) -> None:
    found = commands(list(PAPERS), tiny=tiny, places=PLACES)
    assert len(found) == len(set(found)) > 50
    for program, *words in found:
        if program == "manyhands":
            assert refusal(words) is None, words
        else:
            assert importlib.util.find_spec(words[1]) is not None
    judges = [index for index, words in enumerate(found) if words[1] == "judge"]
    asked = [index for index, words in enumerate(found) if words[1] == "eval"]
    assert max(asked) < min(judges), "a judge reads what was asked"
    for _, _, *words in (words for words in found if words[1] == "eval"):
        assert ("--model" in words) is not tiny, "the bundled model answers where it is small"
    labels = [_label(words) for words in found if words[1] == "eval"]
    assert len(set(labels)) == len(labels), "one label for two ways of asking is refused"
    assert not any(name in " ".join(words) for words in found for name in PLACES)
    assert refusal(["eval", "--task", "limo", "--methd", "hogwild"]) is not None


def test_a_command_that_fails_is_named_at_the_end(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran: list[papers.Words] = []

    def run(words: papers.Words) -> int:
        ran.append(words)
        return 3 if "hogwild" in words else 0

    monkeypatch.setattr(papers, "run", run)
    with pytest.raises(SystemExit, match=r"1 of 4 commands failed:\nmanyhands eval .*hogwild"):
        main(
            ["hogwild-figure-19-right", "--tiny", "pdos-figure-1", "hogwild-table-1", "--out", "x"]
        )
    told = capsys.readouterr().out
    assert "pdos-figure-1: a drawing" in told
    assert [words[1] for words in ran] == ["eval", "eval", "-m", "report"]
    assert ran[-1] == ("manyhands", "report", "x/bundled")
    main(["hogwild-figure-4-left", "--show"])
    assert len(capsys.readouterr().out.splitlines()) == 9
    with pytest.raises(SystemExit):
        main(["hogwild-figure-20"])
