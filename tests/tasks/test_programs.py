"""Programs are graded by their tests, and no program can grade itself."""

from __future__ import annotations

import base64
import json
import os
import pickle
import zlib
from pathlib import Path

import pytest

from manyhands.errors import InvalidRequest
from manyhands.tasks.catalogue import make_task
from manyhands.tasks.code import Apps, LiveCodeBench
from manyhands.tasks.loading import FIXTURES
from manyhands.tasks.programs import CallTest, PrintTest, grade_program, same_output
from manyhands.tasks.task import Task, TaskOptions
from tests.programs import isolation


@pytest.fixture(autouse=True)
def can_run() -> None:
    """Programs can be closed in here."""
    isolation()


ADD = [PrintTest("2 3\n", "5\n"), PrintTest("1 1\n", "2\n")]
CALL = [CallTest("fold", ["ab"], "ab"), CallTest("fold", ["abc"], "acb")]
FOLD = """class Solution:
    def fold(self, word: str) -> str:
        letters, out = deque(word), []
        while letters:
            out.append(letters.popleft())
            letters.reverse()
        return "".join(out)
"""


def task(name: str, source: str | Path = "fixture") -> Task:
    return make_task(name, TaskOptions(source=source, allow_code=True))


def test_a_right_program_passes() -> None:
    score = grade_program("a, b = map(int, input().split())\nprint(a + b)", ADD)
    assert (score.value, score.explanation) == (1.0, "passes 2 of 2 tests")
    assert grade_program(FOLD, CALL).value == 1.0
    future = "from __future__ import annotations\nprint(pow(7, 1, 5) + int(input()[0]) + 1)"
    assert grade_program(future, [PrintTest("2 3\n", "5\n")]).value == 1.0


@pytest.mark.parametrize(
    ("program", "why"),
    [
        (None, "no program"),
        ("print(5)", "test 2: printed 5, expected 2"),
        ("print('passed')", "test 1: printed passed, expected 5"),
        ("import os; os._exit(0)", "test 1: printed nothing, expected 5"),
        ("print(5); raise SystemExit(1)", "test 1: the program ended its process (status 1)"),
        ("print(5, 5)", "test 1: printed 5 5, expected 5"),
        ("1 / 0", "test 1: the program ended with: ZeroDivisionError"),
        ("while True: print('5' * 10**6)", "test 1: the program gave more than"),
    ],
)
def test_a_wrong_program_does_not(program: str | None, why: str) -> None:
    score = grade_program(program, ADD)
    assert score.value == 0.0
    assert why in score.explanation


@pytest.mark.parametrize(
    "body",
    [
        "return 'x'",
        "import os; os._exit(0)",
        "return type('Liar', (str,), {'__eq__': lambda a, b: True, '__hash__': None})('x')",
        "print('acb'); return None",
    ],
)
def test_a_function_cannot_grade_itself(body: str) -> None:
    assert grade_program(f"def fold(word):\n    {body}", CALL).value == 0.0


def test_numbers_that_are_printed_count_by_their_values() -> None:
    assert same_output("2.50  \nyes\n\n", "2.5\nyes")
    assert not same_output("2.51", "2.5")
    assert same_output("3.14159", "3.1415927", tolerance=1e-5)
    assert not same_output("3.1416", "3.1415927", tolerance=1e-7)
    assert not same_output("1 2", "1\n2")
    assert not same_output("nan", "NaN", tolerance=1.0)
    assert not same_output("", "5")
    assert same_output("1\r\n2\r\n", "1\n2")
    assert not same_output("1\x0c2", "1\n2"), "a form feed ends no line"
    for no_number in ("1e999999999999", "1_0", "٥", "0x5", "inf", "sNaN"):
        assert not same_output(no_number, "5", tolerance=1.0), no_number
        assert not same_output(no_number, "10", tolerance=1.0), no_number


def test_a_program_without_tests_is_not_right() -> None:
    with pytest.raises(InvalidRequest, match="has no tests"):
        grade_program("print(5)", [])


RIGHT = {
    "fixture-1": "print(sum(map(int, input().split())))",
    "fixture-2": "n = m = 0\nfor c in input():\n    n += 1 if c == '+' else -1\n    m = max(m, n)\nprint(m)",
    "fixture-3": "input()\nx = list(map(int, input().split()))\nprint(f'{sum(x) / len(x):.2f}')",
    "fixture-4": (
        "class Solution:\n    def countPairs(self, nums: List[int], target: int) -> int:\n"
        "        return sum(a + b == target for a, b in combinations(nums, 2))\n"
    ),
    "fixture-5": FOLD,
    "fixture-6": (
        "a, b = 1, 1\nfor _ in range(int(input())):\n    a, b = b, (a + b) % 1000000007\nprint(a)"
    ),
}


def test_livecodebench_from_fixture_to_verdict() -> None:
    asked = task("livecodebench")
    samples = asked.samples()
    assert [sample.id for sample in samples] == list(RIGHT), "one contest was too early"
    assert samples[0].gold == "4 tests"
    assert samples[0].facts == {"date": "2024-08-03", "difficulty": "easy", "platform": "atcoder"}
    assert "def fold(self" in samples[4].question
    assert "standard input" in samples[0].question
    travelled = pickle.loads(pickle.dumps(asked))
    for sample in samples:
        assert travelled.grade(sample, RIGHT[sample.id], "").explanation.startswith("passes")
        assert travelled.grade(sample, "print(0)", "").value == 0.0
    assert asked.grade(samples[0], None, "").value == 0.0


def test_apps_from_fixture_to_verdict() -> None:
    asked = task("apps")
    samples = asked.samples()
    assert [sample.id for sample in samples] == ["1", "2", "3", "4", "5", "6"]
    (document,) = {sample.document for sample in samples}
    assert document is not None
    assert document.count("```python\n") == 2
    assert "interview" not in document
    near = "import math\nprint(math.pi * float(input()) ** 2)"
    assert asked.grade(samples[2], near, "").value == 1.0
    assert asked.grade(samples[2], "print(3.14 * float(input()) ** 2)", "").value == 0.0
    assert asked.grade(samples[3], "print(*sorted(map(int, input().split())))", "").value == 1.0


@pytest.mark.parametrize("made", [LiveCodeBench, Apps])
def test_programs_run_only_if_that_is_allowed(made: type[LiveCodeBench] | type[Apps]) -> None:
    with pytest.raises(InvalidRequest, match="runs programs that the model writes") as raised:
        made(TaskOptions(source="fixture"))
    assert "--allow-code" in raised.value.hint
    with pytest.raises(InvalidRequest, match="has no use for allow_code"):
        make_task("gsm8k", TaskOptions(allow_code=True))


def _changed(tmp_path: Path, fixture: str, **columns: object) -> Path:
    """The fixture's first record, with other columns. None takes a column away."""
    record = json.loads((FIXTURES / fixture).read_text("utf-8").splitlines()[0]) | columns
    path = tmp_path / "changed.jsonl"
    path.write_text(json.dumps({k: v for k, v in record.items() if v is not None}))
    return path


class Evil:
    """A pickle that would run a command."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("touch /tmp/manyhands-evil",)


@pytest.mark.parametrize(
    ("columns", "complaint"),
    [
        ({"public_test_cases": None}, "has no 'public_test_cases'"),
        ({"public_test_cases": "[", "surplus": 1}, "'public_test_cases' is not JSON"),
        (
            {"public_test_cases": "[" * 100_000},
            "'public_test_cases' is not JSON: maximum recursion",
        ),
        ({"public_test_cases": '[{"input": "1"}]'}, "a test in 'public_test_cases' is"),
        ({"public_test_cases": "[]", "private_test_cases": "[]"}, "has no tests"),
        ({"private_test_cases": "gold"}, "'private_test_cases' cannot be read"),
        ({"contest_date": "2023-05-07"}, "no problem with a contest_date from 2024-08-01"),
        (
            {"private_test_cases": base64.b64encode(zlib.compress(pickle.dumps(Evil()))).decode()},
            "it names posix.system",
        ),
    ],
)
def test_bad_records_of_livecodebench(
    tmp_path: Path, columns: dict[str, object], complaint: str
) -> None:
    path = _changed(tmp_path, "livecodebench.jsonl", **columns)
    with pytest.raises(InvalidRequest, match=complaint):
        task("livecodebench", path).samples()


def test_an_argument_may_hold_what_ends_a_line_elsewhere(tmp_path: Path) -> None:
    """A grade: the function is called with two arguments."""
    given = {"input": '"a\u2028b\u0085c"\n7', "output": "12", "testtype": "functional"}
    tests, named = json.dumps([given], ensure_ascii=False), '{"func_name": "f"}'
    columns = {"public_test_cases": tests, "private_test_cases": None, "metadata": named}
    contest = task("livecodebench", _changed(tmp_path, "livecodebench.jsonl", **columns))
    (sample,) = contest.samples()
    program = "class Solution:\n    def f(self, a, b):\n        return len(a) + b"
    assert contest.grade(sample, program, "").value == 1.0


def test_bad_records_of_apps(tmp_path: Path) -> None:
    path = _changed(tmp_path, "apps.jsonl", input_output='{"inputs": ["1"], "outputs": []}')
    with pytest.raises(InvalidRequest, match="no inputs with as many outputs"):
        task("apps", path).samples()
    path = _changed(tmp_path, "apps.jsonl", input_output='{"inputs": [], "outputs": []}')
    with pytest.raises(InvalidRequest, match="no introductory problem with tests"):
        task("apps", path).samples()
    path = _changed(tmp_path, "apps.jsonl", difficulty="competition")
    with pytest.raises(InvalidRequest, match="no introductory problem"):
        task("apps", path).samples()
    path = _changed(tmp_path, "apps.jsonl", surplus="is left alone")
    assert len(task("apps", path).samples()) == 1
