"""A slow exam in a process of its own, for a test that kills it: python -m ... FILE COUNT"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path

from manyhands.evaluation.candidates import Answered, Asked
from manyhands.evaluation.grading import Grading
from manyhands.evaluation.record import Header, RecordFile
from manyhands.evaluation.run import Exam, examine
from tests.evaluation.doubles import Doubles


class Slow:
    def answered(self, asked: Iterable[Asked]) -> Iterator[Answered]:
        for one in asked:
            time.sleep(0.02)
            answer = str(one.sample.gold)
            # Long enough that a kill may well tear a line.
            yield Answered(one, answer=answer, text="x" * 60_000, answers={8: answer})


def main() -> None:
    path, count = Path(sys.argv[1]), int(sys.argv[2])
    task = Doubles(count)
    header = Header("doubles", "m", "m", 1, (), {}, {}, (8,), "none")
    with Grading(task) as grading, closing(RecordFile(path, header)) as file:
        for _ in examine(Exam(task.samples(), Slow(), (8,)), file, grading):
            pass


if __name__ == "__main__":
    main()
