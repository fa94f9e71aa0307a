"""Every task by its name: samples from the fixture or the generator, the right answers and wrong ones."""

from __future__ import annotations

import json
import pickle
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from manyhands.errors import InvalidRequest
from manyhands.tasks.arithmetic.problem_list import parse_question
from manyhands.tasks.catalogue import TASKS, make_task
from manyhands.tasks.code import APPS, LIVECODEBENCH
from manyhands.tasks.competition import AIME25, LIMO, MATH500, Formulae
from manyhands.tasks.documents import TWO_WIKI
from manyhands.tasks.gsm8k import GSM8K
from manyhands.tasks.loading import FIXTURES, Dataset
from manyhands.tasks.needles import COLOURS
from manyhands.tasks.olympiad import MATHS, PHYSICS, Olympiad
from manyhands.tasks.planning import PLANNING
from manyhands.tasks.retrieval import HELD_OUT_NAMES
from manyhands.tasks.task import Sample, Task, TaskOptions, UnusedOption
from tests.programs import isolation

CODE = {"livecodebench", "apps"}  # their answers are programs (tests/tasks/test_programs.py)
OLYMPIAD = {"olympiad-maths", "olympiad-physics"}
DOWNLOADED = {"gsm8k", "gsm8k-list", "limo", "aime25", "math500", "2wiki", *CODE, *OLYMPIAD}
DATASETS = {
    "gsm8k": GSM8K,
    "limo": LIMO,
    "aime25": AIME25,
    "math500": MATH500,
    "planning": PLANNING,
    "olympiad-maths": MATHS,
    "olympiad-physics": PHYSICS,
    "livecodebench": LIVECODEBENCH,
    "apps": APPS,
    "2wiki": TWO_WIKI,
}


def small(name: str, **options: Any) -> Task:
    """A task without a download."""
    if name in CODE:
        isolation()
        options["allow_code"] = True
    if name in DOWNLOADED:
        return make_task(name, TaskOptions(source="fixture", **options))
    return make_task(name, TaskOptions(**({"limit": 6} | options)))


@pytest.fixture(params=sorted(TASKS))
def task(request: pytest.FixtureRequest) -> Iterator[Task]:
    task = small(request.param)
    yield task
    if isinstance(task, Formulae | Olympiad):
        task.grader.close()


def boxed(sample: Sample) -> str:
    """The gold answer as a box would hold it."""
    gold = sample.gold
    if "type" in sample.facts or isinstance(gold, str):
        return str(gold)
    if sample.document is not None:  # any of these is right
        return str(gold[0])
    return ", ".join(map(str, gold)) or "none" if isinstance(gold, list) else str(gold)


# -- what holds for all ----------------------------------------------------------------------------


def test_all_names_are_there() -> None:
    assert set(TASKS) >= DOWNLOADED  # all others make their questions, or bring them
    assert [small(name).name for name in TASKS] == list(TASKS)


def test_samples_are_whole_and_repeat(task: Task) -> None:
    samples = task.samples()
    assert samples
    assert samples == task.samples()
    assert len({sample.id for sample in samples}) == len(samples)
    assert task.about
    for sample in samples:
        assert sample.question.strip() == sample.question
        assert json.loads(json.dumps(sample.gold)) == sample.gold
        assert json.loads(json.dumps(dict(sample.facts))) == sample.facts


def test_gold_is_right_and_other_answers_are_not(task: Task) -> None:
    for sample in task.samples():
        if "judge" in sample.facts or task.name in CODE:
            continue
        assert task.grade(sample, boxed(sample), "").value == 1.0
        assert task.grade(sample, "xyzzy", "").value == 0.0
        assert task.grade(sample, None, "").value == 0.0


def test_the_limit_keeps_the_first(task: Task, request: pytest.FixtureRequest) -> None:
    name = request.node.callspec.params["task"]
    two, all_of_them = small(name, limit=2).samples(), task.samples()
    assert len(all_of_them) >= 2
    assert two == list(all_of_them[:2])


def test_a_task_travels_to_another_process(task: Task) -> None:
    sample = task.samples()[0]
    copy = pickle.loads(pickle.dumps(task))
    assert copy.samples() == task.samples()
    assert copy.grade(sample, boxed(sample), "") == task.grade(sample, boxed(sample), "")


def test_unknown_names_and_useless_options_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="no task 'gsm9k'") as raised:
        make_task("gsm9k")
    assert "gsm8k-list" in raised.value.hint
    useless: list[tuple[str, dict[str, Any]]] = [
        ("gsm8k", {"count": 5}),
        ("gsm8k-list", {"kind": "word"}),
        ("limo", {"sentences": 5}),
        ("aime25", {"count": 5}),
        ("arithmetic", {"source": "fixture"}),
        ("retrieval-10", {"source": Path("x.jsonl")}),
        ("needles", {"source": "fixture"}),
        ("planning", {"count": 3}),
    ]
    for name, options in useless:
        (option,) = options
        with pytest.raises(
            UnusedOption, match=f"the task {name} has no use for {option}"
        ) as refused:
            make_task(name, TaskOptions(**options))
        assert refused.value.uses[:2] == ("limit", "seed")
        assert option not in refused.value.uses
    for name in ("arithmetic", "retrieval-10", "needles"):
        with pytest.raises(InvalidRequest, match="has no kind 'hard'"):
            make_task(name, TaskOptions(kind="hard"))
    for option in ("limit", "count", "sentences"):
        with pytest.raises(InvalidRequest, match=f"{option} is 0; expected 1 or more"):
            TaskOptions(**{option: 0})  # type: ignore[arg-type]


@pytest.mark.parametrize("dataset", DATASETS.values(), ids=DATASETS)
def test_fixtures_are_in_the_columns_of_their_dataset(dataset: Dataset) -> None:
    lines = (FIXTURES / dataset.fixture).read_text("utf-8").splitlines()
    for line in lines:
        record = json.loads(line)
        assert set(dataset.columns) <= set(record)
    assert len(lines) >= 6


# -- one by one ------------------------------------------------------------------------------------


def test_gsm8k_reads_the_number_behind_the_marks(tmp_path: Path) -> None:
    gold = [sample.gold for sample in small("gsm8k").samples()]
    assert gold == ["126", "130", "5600", "24", "18", "16", "216", "-5", "2.5", "414"]
    path = tmp_path / "bad.jsonl"
    lines = [{"question": "1 + 1?", "answer": "2\n#### 2"}, {"question": "2?", "answer": "It is 2"}]
    path.write_text("\n".join(map(json.dumps, lines)))
    with pytest.raises(
        InvalidRequest, match=r"bad\.jsonl, line 2: 'answer' does not end"
    ) as raised:
        make_task("gsm8k", TaskOptions(source=path)).samples()
    assert "####" in raised.value.hint


def test_the_work_in_gsm8k_fixtures_adds_up() -> None:
    """Every `<<14*2=28>>` is true, and the last one leads to the answer."""
    for line in (FIXTURES / "gsm8k.jsonl").read_text("utf-8").splitlines():
        answer = json.loads(line)["answer"]
        for sum_, result in re.findall(r"<<([0-9.+*/-]+)=([0-9.-]+)>>", answer):
            assert eval(sum_) == pytest.approx(float(result))  # digits and signs only
        last = re.findall(r"=([0-9.-]+)>>", answer)[-1]
        assert last == answer.rpartition("#### ")[2].replace(",", "")


def test_lists_of_gsm8k_share_no_problem() -> None:
    samples = small("gsm8k-list", count=3).samples()
    assert len(samples) == 3, "ten problems make three lists of three"
    ids = [problem for sample in samples for problem in sample.facts["ids"]]
    assert len(set(ids)) == 9
    lines = parse_question(samples[0].question)
    assert lines is not None
    assert len(lines) == 3
    other = small("gsm8k-list", count=3, seed=1).samples()
    assert [sample.id for sample in other] != [sample.id for sample in samples]
    with pytest.raises(InvalidRequest, match="10 problems, too few for a list of 11"):
        small("gsm8k-list", count=11).samples()


def test_lists_are_graded_place_by_place() -> None:
    task = small("gsm8k-list")
    sample = task.samples()[0]
    gold = sample.gold
    assert task.grade(sample, ", ".join(["0", *gold[1:]]), "").value == pytest.approx(0.8)
    assert task.grade(sample, ", ".join(gold[1:] + gold[:1]), "").value == 0.0


def test_aime_answers_are_integers(tmp_path: Path) -> None:
    task = small("aime25")
    assert [sample.gold for sample in task.samples()] == [35, 97, 313, 233, 105, 12]
    assert task.grade(task.samples()[0], "035", "").value == 1.0
    path = tmp_path / "a.jsonl"
    for answer in ("1000", "-1", "12.5", "x", 1000, "٤٢"):
        path.write_text(json.dumps({"problem": "?", "answer": answer}))
        with pytest.raises(InvalidRequest, match=r"a\.jsonl, line 1: 'answer' is"):
            make_task("aime25", TaskOptions(source=path)).samples()
    path.write_text(json.dumps({"problem": "?", "answer": r"336^\circ"}))
    assert make_task("aime25", TaskOptions(source=path)).samples()[0].gold == 336


def test_math500_has_ids_and_subjects() -> None:
    sample = small("math500").samples()[0]
    assert sample.id == "fixture/algebra/1.json"
    assert sample.facts == {"subject": "Algebra", "level": 2}
    assert "subject" not in small("limo").samples()[0].facts


def test_limo_takes_numbers_as_answers(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"question": "?", "solution": "…", "answer": 17}))
    task = make_task("limo", TaskOptions(source=path))
    assert task.grade(task.samples()[0], "17.0", "").value == 1.0


def test_arithmetic_kinds() -> None:
    for kind in ("bare", "word", "mixed", "held-out"):
        samples = small("arithmetic", kind=kind, count=3).samples()
        assert all(len(sample.gold) == 3 for sample in samples)
        assert samples[0].facts == {"kind": kind, "count": 3}
    first, other = (small("arithmetic", seed=seed).samples()[0] for seed in (0, 1))
    assert first.question != other.question
    assert first.id != other.id


def test_retrieval_asks_about_so_many_students() -> None:
    for name, count in (("retrieval-10", 10), ("retrieval-30", 30)):
        task = small(name)
        assert all(len(sample.facts["students"]) == count for sample in task.samples())
    few = small("retrieval-10", count=4, kind="held-out")
    assert few.name == "retrieval-4"
    for sample in few.samples():
        assert set(sample.facts["students"]) <= set(HELD_OUT_NAMES)
        assert set(sample.gold) <= set(sample.facts["students"])
        assert all(name in sample.question for name in sample.facts["students"])
    sample = next(sample for sample in few.samples() if sample.gold)
    last_line = "I looked at all of them.\nName: " + " and ".join(sample.gold)
    assert few.grade(sample, None, last_line).value == 1.0
    assert len(make_task("retrieval-10").samples()) == 100


def test_needles_share_one_document() -> None:
    task = make_task("needles")
    samples = task.samples()
    assert len(samples) == 256
    assert len({sample.question for sample in samples}) == 256
    (document,) = {sample.document for sample in samples}
    assert document is not None
    assert 70_000 < len(document) < 130_000, "about twenty thousand tokens"
    for sample in samples:
        name = re.search(r"named (\w+)", sample.question)
        assert name
        assert name[1] in document
        assert sample.gold in COLOURS
    assert make_task("needles", TaskOptions(limit=3)).samples() == samples[:3]
    shown = make_task("needles", TaskOptions(limit=3, shots=5)).samples()
    assert shown[0].document is not None
    assert shown[0].document.count("Box the colour.\n\\boxed{") == 5
    assert not any(sample.question in shown[0].document for sample in shown)
    short = make_task("needles", TaskOptions(count=8, sentences=10)).samples()
    assert len(short) == 8
    assert len(short[0].document or "") < 1500
    assert task.grade(samples[0], None, f"It is {samples[0].gold}.").value == 1.0


def test_planning_waits_for_its_judge() -> None:
    task = small("planning")
    for sample in task.samples():
        assert sample.facts["judge"] == "quality"
        assert sample.facts["reference"] == sample.gold
        assert sample.facts["branches"] >= 2
        score = task.grade(sample, None, "A fine plan.")
        assert (score.value, score.explanation) == (0.0, "needs the judge of quality, 1 to 5")


def test_planning_has_as_many_questions_as_its_paper() -> None:
    samples = make_task("planning").samples()
    branches = [sample.facts["branches"] for sample in samples]
    assert len({sample.question for sample in samples}) == 100
    assert (min(branches), max(branches), sum(branches) / 100) == (2, 10, 4.4)
    for sample in samples:
        assert sample.gold.count(": ") == sample.facts["branches"] + 1
    assert len(make_task("planning", TaskOptions(source="fixture")).samples()) == 6


def test_planning_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "plans.jsonl"
    path.write_text(json.dumps({"question": "Plan.", "reference": "So.", "branches": "two"}))
    with pytest.raises(InvalidRequest, match=r"plans\.jsonl, line 1: 'branches' is str 'two'"):
        make_task("planning", TaskOptions(source=path)).samples()
