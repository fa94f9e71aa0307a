r"""Problems whose answer is a program: LiveCodeBench (Hogwild!, section 4.2) and APPS (Hydragen, section 4.4).

LiveCodeBench: the problems of release 5 from August 2024 to January 2025, 279 of them, each answered eight
times; right is a program that passes all tests of its problem, public and private.

APPS: introductory problems of the test split without starter code, 120 of them, behind two worked
examples of the training split. The examples are one document for all, a problem is shared by all of its
samples: two levels of sharing.

    manyhands eval --task livecodebench --allow-code --method hogwild -n 2 --budgets 4096,8192 --out exam
    manyhands eval --task apps --allow-code --method shared_prefix --repeats 128 --budgets 512 --out exam

Both datasets come as JSON lines behind a loading script, which nothing here runs: the files are read as
what they are. Private tests of LiveCodeBench are a pickled text; it is read by an unpickler that knows
texts alone.
"""

from __future__ import annotations

import base64
import io
import json
import pickle
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from manyhands.errors import InvalidRequest
from manyhands.tasks.graders import Score
from manyhands.tasks.loading import Dataset, Example, first, load_examples
from manyhands.tasks.programs import CallTest, PrintTest, check_allowed, grade_program
from manyhands.tasks.task import FIXTURE, Sample, TaskOptions, TaskProtocol, check_options

LIVECODEBENCH = Dataset(
    hub="livecodebench/code_generation_lite",
    columns={
        "question_content": (str,),
        "public_test_cases": (str,),
        "contest_date": (str,),
        "metadata": (str,),
    },
    optional=dict.fromkeys(
        ("private_test_cases", "starter_code", "difficulty", "platform"), (str,)
    ),
    fixture="livecodebench.jsonl",
    id_column="question_id",
    files=tuple(f"test{number}.jsonl" for number in ("", 2, 3, 4, 5)),
)
FIRST_DAY, LAST_DAY = "2024-08-01", "2025-02-01"  # contests of the paper, the last day left out
_APPS_COLUMNS = {"question": (str,), "difficulty": (str,)}
_APPS_OPTIONAL = {"starter_code": (str,), "input_output": (str,)}
APPS = Dataset(
    hub="codeparrot/apps",
    columns=_APPS_COLUMNS,
    optional=_APPS_OPTIONAL,
    fixture="apps.jsonl",
    files=("test.jsonl",),
)
APPS_TRAIN = Dataset(
    hub="codeparrot/apps",
    columns={**_APPS_COLUMNS, "solutions": (str,)},
    optional=_APPS_OPTIONAL,
    fixture="apps_train.jsonl",
    files=("train.jsonl",),
    split="train",
)
APPS_PROBLEMS, SHOTS = 120, 2  # as in Hydragen
APPS_TOLERANCE = 1e-5
CODE_TOKENS = 1024  # of the last block, as in Hogwild!

_WRITE = "Write a Python program that solves it. Give the finished program in one block, ```python … ```."
_READS = "The program reads standard input and writes standard output."
_STARTS = "The program begins with this code, which must be kept:"


@dataclass(frozen=True)
class LiveCodeBench:
    """Contest problems; 1 for a program that passes all tests."""

    options: TaskOptions
    name = "livecodebench"
    about = "279 contest problems of 2024 and 2025, programs"
    protocol = TaskProtocol("code", finisher_tokens=CODE_TOKENS, repeats=8, grader_seconds=600.0)
    _encoded: dict[str, tuple[str, Mapping[str, Any]]] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        check_options(self.name, self.options, "source", "allow_code")
        check_allowed(self.name, self.options)

    def samples(self) -> Sequence[Sample]:
        """Problems whose contest was in the paper's months, in the order of the dataset."""
        examples = [
            example
            for example in load_examples(LIVECODEBENCH, self.options)
            if FIRST_DAY <= example.values["contest_date"][:10] < LAST_DAY
        ]
        if not examples:
            raise InvalidRequest(
                f"the source has no problem with a contest_date from {FIRST_DAY} to before {LAST_DAY}",
                hint="give the files of release 5, or another source with such dates",
            )
        chosen = first(examples, self.options.limit)
        for example in chosen:
            self._encoded[example.id] = (example.where, example.values)
        return [self._sample(example) for example in chosen]

    def grade(self, sample: Sample, answer: str | None, text: str) -> Score:
        """1 or 0."""
        if sample.id not in self._encoded:
            self.samples()
        return grade_program(answer, _contest_tests(*self._encoded[sample.id]))

    def _sample(self, example: Example) -> Sample:
        values = example.values
        starter = (values.get("starter_code") or "").rstrip()
        tests = _contest_tests(example.where, values)
        facts = {"date": values["contest_date"][:10]}
        facts |= {name: values[name] for name in ("difficulty", "platform") if values.get(name)}
        return Sample(
            example.id,
            _question(values["question_content"], starter),
            f"{len(tests)} tests",
            facts,
        )


@dataclass(frozen=True)
class Apps:
    """Introductory problems behind two worked examples; 1 for a program that passes all tests."""

    options: TaskOptions
    name = "apps"
    about = "introductory programming problems behind two examples, programs"
    protocol = TaskProtocol("code", finisher_tokens=CODE_TOKENS, grader_seconds=600.0)
    _tests: dict[str, list[PrintTest | CallTest]] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        check_options(self.name, self.options, "source", "allow_code")
        check_allowed(self.name, self.options)

    def samples(self) -> Sequence[Sample]:
        """The first problems that are introductory, have tests and no starter code."""
        chosen = _apps_problems(self.options)
        document = _apps_shots(self.options)
        for example in chosen:
            self._tests[example.id] = _apps_tests(example)
        return [
            Sample(
                example.id,
                _question(example.values["question"], ""),
                f"{len(self._tests[example.id])} tests",
                {"difficulty": example.values["difficulty"]},
                document,
            )
            for example in chosen
        ]

    def grade(self, sample: Sample, answer: str | None, text: str) -> Score:
        """1 or 0."""
        if sample.id not in self._tests:
            self.samples()
        return grade_program(answer, self._tests[sample.id], tolerance=APPS_TOLERANCE)


def apps_questions(source: str | None, limit: int) -> tuple[str, list[str]]:
    """The examples, and the first problems behind them, for a timing in which no program is run."""
    options = TaskOptions(source=source, limit=limit)
    problems = _apps_problems(options)
    return _apps_shots(options), [_question(one.values["question"], "") for one in problems]


def _apps_problems(options: TaskOptions) -> Sequence[Example]:
    usable = [example for example in load_examples(APPS, options) if _is_usable(example)]
    if not usable:
        raise InvalidRequest(
            "the source has no introductory problem with tests and without starter code",
            hint="give the columns difficulty, input_output and starter_code of codeparrot/apps",
        )
    return first(usable, options.limit or APPS_PROBLEMS)


def _apps_shots(options: TaskOptions) -> str:
    """Two problems of the training split with a solution each; with another source, two of ours."""
    if options.source is not None:
        options = replace(options, source=FIXTURE)
    shots: list[str] = []
    for example in load_examples(APPS_TRAIN, options):
        solutions = _json(example, "solutions")
        if _is_usable(example) and isinstance(solutions, list) and solutions:
            question = _question(example.values["question"], "")
            shots.append(f"{question}\n\n```python\n{str(solutions[0]).strip()}\n```")
        if len(shots) == SHOTS:
            break
    return "\n\n".join(shots)


def _question(problem: str, starter: str) -> str:
    how = f"{_STARTS}\n\n```python\n{starter}\n```" if starter else _READS
    return f"{problem.strip()}\n\n{_WRITE} {how}"


# -- tests as the datasets have them ---------------------------------------------------------------


def _contest_tests(where: str, values: Mapping[str, Any]) -> list[PrintTest | CallTest]:
    """Public and private tests of one problem of LiveCodeBench."""
    public = _text_json(where, "public_test_cases", values["public_test_cases"], list)
    private = _private(where, values.get("private_test_cases") or "[]")
    function = _text_json(where, "metadata", values["metadata"], dict).get("func_name")
    tests: list[PrintTest | CallTest] = []
    cases = [("public_test_cases", case) for case in public]
    cases += [("private_test_cases", case) for case in private]
    for column, case in cases:
        try:
            if case["testtype"] == "stdin":
                tests.append(PrintTest(case["input"], case["output"]))
                continue
            arguments = [json.loads(line) for line in case["input"].split("\n") if line.strip()]
            tests.append(CallTest(str(function), arguments, json.loads(case["output"])))
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            raise InvalidRequest(
                f"{where}: a test in '{column}' is {str(case)[:80]}",
                hint="a test has input, output and testtype (stdin or functional)",
            ) from error
    if not tests:
        raise InvalidRequest(f"{where} has no tests", hint="give public_test_cases")
    return tests


def _private(where: str, text: str) -> list[Any]:
    """Private tests: JSON, or JSON that was pickled, compressed and written in letters."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if isinstance(found, list):
        return found
    try:
        packed = zlib.decompress(base64.b64decode(text, validate=True))
        return list(json.loads(_TextUnpickler(io.BytesIO(packed)).load()))
    except (
        ValueError,
        TypeError,
        EOFError,
        RecursionError,
        zlib.error,
        pickle.UnpicklingError,
    ) as error:
        raise InvalidRequest(
            f"{where}: 'private_test_cases' cannot be read ({error})",
            hint="it is JSON, or base64 of zlib of a pickled text of JSON",
        ) from error


class _TextUnpickler(pickle.Unpickler):
    """Reads texts and numbers; a pickle that names a class or a function is refused."""

    def find_class(self, module: str, name: str) -> Any:
        """Nothing is found."""
        raise pickle.UnpicklingError(f"it names {module}.{name}")


def _is_usable(example: Example) -> bool:
    values = example.values
    return (
        values["difficulty"] == "introductory"
        and not (values.get("starter_code") or "").strip()
        and bool((values.get("input_output") or "").strip())
        and "fn_name" not in (cases := _json(example, "input_output"))
        and cases != {"inputs": [], "outputs": []}
    )


def _apps_tests(example: Example) -> list[PrintTest | CallTest]:
    cases = _json(example, "input_output")
    try:
        pairs = list(zip(cases["inputs"], cases["outputs"], strict=True))
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidRequest(
            f"{example.where}: 'input_output' has no inputs with as many outputs",
            hint='it is JSON such as {"inputs": ["1\\n"], "outputs": ["2\\n"]}',
        ) from error
    return [PrintTest(_joined(given), _joined(expected)) for given, expected in pairs]


def _joined(value: Any) -> str:
    """A text, or a list of lines."""
    return "\n".join(map(str, value)) if isinstance(value, list) else str(value)


def _json(example: Example, column: str) -> Any:
    text = example.values.get(column)
    return _text_json(example.where, column, text, (dict, list)) if text else []


def _text_json(where: str, column: str, text: str, kinds: type[Any] | tuple[type[Any], ...]) -> Any:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(
            f"{where}: '{column}' is not JSON: {error}",
            hint=f"'{column}' is a text that holds JSON",
        ) from error
    if not isinstance(found, kinds):
        kind = (
            "an object" if kinds is dict else "a list" if kinds is list else "an object or a list"
        )
        raise InvalidRequest(f"{where}: '{column}' holds {text[:40]}; expected {kind} in JSON")
    return found
