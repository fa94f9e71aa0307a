"""How like the stories of the lessons are to the templates of an exam, and what is read right of the least alike.

    python recipes/smollm2/likeness.py benchmarks/results/smollm2_exam.json OUT.json

The likeness of two stories is the share of their runs of three words that both have, gaps alike (Jaccard's index); a written
story is told four times, each time with wordings that are drawn, and the most alike counts. Right answers are those of all
lines of the exam that ask fresh stories.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from random import Random
from typing import Any

from manyhands.tasks.arithmetic.templates.fresh import FRESH
from manyhands.tasks.arithmetic.templates.template import PLACEHOLDER
from manyhands.tasks.arithmetic.templates.written import written_stories

_RUN, _TOLD = 3, 4  # words; times


def runs(text: str) -> frozenset[tuple[str, ...]]:
    """All runs of so many words."""
    words = re.findall(r"[a-z']+|_", PLACEHOLDER.sub("_", text).lower())
    return frozenset(zip(*(words[at:] for at in range(_RUN)), strict=False))


def answers(exam: Path) -> list[dict[str, list[int]]]:
    """Of every line that asks fresh stories: right answers and questions, by template. Raises ValueError for another file."""
    try:
        lines = json.loads(exam.read_text(encoding="utf-8"))["lines"]
        asked = [line["templates"] for line in lines if line["name"].startswith("fresh")]
        missing = [t.name for t in FRESH for counts in asked if len(counts[t.name]) != 2]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{exam} is no exam with fresh stories ({type(error).__name__}: {error}); give a file that "
            "`python -m benchmarks.bundled_exam` has written, such as benchmarks/results/smollm2_exam.json"
        ) from error
    if missing or not asked:
        raise ValueError(
            f"{exam} has no line that asks fresh stories, with counts of each template"
        )
    return asked


def main(exam: Path, out: Path) -> None:
    """Write a line for each template, the most alike first, and the sums of both halves."""
    asked = answers(exam)
    told = [
        (story.name, runs(story.template(Random(f"{story.name}{turn}")).text))
        for story in written_stories()
        for turn in range(_TOLD)
    ]
    found: list[dict[str, Any]] = []
    for template in FRESH:
        own = runs(template.text)
        alike, name = max((len(own & other) / len(own | other), name) for name, other in told)
        counts = [each[template.name] for each in asked]
        right, num = (sum(count[at] for count in counts) for at in (0, 1))
        line = {"template": template.name, "alike": round(alike, 3), "most_alike": name}
        found.append({**line, "right": right, "asked": num})
    found.sort(key=lambda line: -line["alike"])
    half = len(found) // 2
    halves = {
        name: round(sum(line["right"] for line in part) / sum(line["asked"] for line in part), 4)
        for name, part in (("most_alike", found[:half]), ("least_alike", found[half:]))
    }
    text = json.dumps({"stories": len(told) // _TOLD, "halves": halves, "lines": found}, indent=1)
    out.write_text(text + "\n", encoding="utf-8")
    print(halves)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    try:
        main(Path(sys.argv[1]), Path(sys.argv[2]))
    except (ValueError, OSError) as error:
        raise SystemExit(f"likeness.py: {error}") from error
