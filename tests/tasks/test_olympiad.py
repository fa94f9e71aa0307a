r"""OlympiadBench: numbers with units, tolerances, intervals, tuples, several answers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from manyhands.errors import InvalidRequest
from manyhands.tasks.catalogue import make_task
from manyhands.tasks.loading import FIXTURES
from manyhands.tasks.olympiad import Olympiad
from manyhands.tasks.quantities import Quantity, grade_quantity, read_quantity
from manyhands.tasks.task import Sample, TaskOptions


@pytest.mark.parametrize(
    ("text", "value", "unit"),
    [
        ("44.1", 44.1, ""),
        ("v = 44.1 m/s", 44.1, "m/s"),
        (r"$3.2 \times 10^{-5} \mathrm{~km}$", 3.2e-5, "km"),
        (r"3.2\cdot10^{4}", 3.2e4, ""),
        (r"10^{5} \mathrm{~Pa}", 1e5, "Pa"),
        ("2.5e-3 m", 2.5e-3, "m"),
        (r"\approx 1{,}200", 1200, ""),
        (r"\frac{3}{4}", 0.75, ""),
        (r"19.5^{\circ}", 19.5, "°"),
        (r"5 \mathrm{~m} / \mathrm{s}^{2}", 5, "m/s^2"),
        ("-7", -7, ""),
        (r"40\%", 40, "%"),
    ],
)
def test_quantities_are_read(text: str, value: float, unit: str) -> None:
    found = read_quantity(text)
    assert found is not None
    assert found.value == pytest.approx(value)
    assert found.unit == unit


@pytest.mark.parametrize(
    "text", ["", "x", "2 + 3", "2,3", r"\sqrt{2}", "1e9999", "3 < x", "10^{400}"]
)
def test_what_is_no_quantity(text: str) -> None:
    found = read_quantity(text)
    assert found is None or found != Quantity(found.value)


@pytest.mark.parametrize(
    ("answer", "gold", "tolerance", "unit", "right"),
    [
        ("44", "44.1", 0.5, "m", True),
        ("44.7", "44.1", 0.5, "m", False),
        ("44 m", "44.1", 0.5, "m", True),
        ("4400 cm", "44.1", 0.5, "m", True),
        ("44.1 s", "44.1", 0.5, "m", False),
        ("72 km/h", "20", 0.1, r"$\mathrm{~m} / \mathrm{s}$", True),
        (r"6 \mathrm{~mW}", r"$6.0 \times 10^{-3}$", 1e-4, "W", True),
        ("6", r"$6.0 \times 10^{-3}$", 1e-4, "W", False),
        (r"0.34 \mathrm{~rad}", "19.5", 0.1, r"$^{\circ}$", True),
        (r"1 \mathrm{~kJ}", "1000", 1, r"\mathrm{N} \cdot \mathrm{m}", True),
        ("40", "40", 1e-8, "", True),
        ("40.0000001", "40", 1e-8, "", False),
        # a unit that is not known, is another one, or is written in another way
        ("44.1 lb", "44.1", 0.5, "m", False),
        ("44.1 miles", "44.1", 0.5, "m", False),
        ("44.1 minutes", "44.1", 0.5, "s", False),
        ("44.1 years", "44.1", 0.5, "s", False),
        (r"44.1 \text{ meters}", "44.1", 0.5, "m", True),
        ("5 t", "5", 0.1, "T", False),
        ("5 meV", "5", 0.1, "MeV", False),
        ("5 Hz", "5", 0.1, "rad/s", False),
        ("5 s^{-1}", "5", 0.1, "rad/s", True),
        ("300 °C", "300", 0.5, "K", False),
        (r"27^{\circ} \mathrm{C}", "300", 0.5, "K", True),
        ("293 K", "20", 0.5, r"$^{\circ} \mathrm{C}$", True),
        ("5 J/kg/K", "5", 0.1, "J/(kg K)", True),
        ("5 J/kg K", "5", 0.1, r"\mathrm{J} /(\mathrm{kg} \cdot \mathrm{K})", True),
        (r"5 \frac{\mathrm{m}}{\mathrm{s}}", "5", 0.1, "m/s", True),
        (r"5 \frac{\mathrm{s}}{\mathrm{m}}", "5", 0.1, "m/s", False),
    ],
)
def test_units_and_tolerances(
    answer: str, gold: str, tolerance: float, unit: str, right: bool
) -> None:
    score = grade_quantity(answer, gold, tolerance, unit)
    assert score is not None
    assert score.value == float(right), score


@pytest.fixture(scope="module")
def maths() -> Iterator[Olympiad]:
    task = make_task("olympiad-maths", TaskOptions(source="fixture"))
    assert isinstance(task, Olympiad)
    yield task
    task.grader.close()


@pytest.mark.parametrize(
    ("number", "right", "wrong"),
    [
        (1, ["40", "n = 40", "40.0"], ["41", "40, 2", None]),
        (2, ["3, 2", r"2 \text{ and } 3", "x=2, x=3"], ["2", "2,3,5", "2,2", "2 3"]),
        (3, [r"\pi a^2 / 2", r"\frac{1}{2} a^2 \pi"], [r"\pi a^2", "2"]),
        (
            4,
            ["[0,2)", r"\left[0, 2\right)", r"x \in [0, \frac{4}{2})"],
            ["(0,2)", "[0,2]", "[0,3)", "2"],
        ),
        (5, ["y = 2x + 1", "y-1=2x"], ["y = 2x", "2x+1 = 0"]),
        (
            6,
            ["(3,1), (1,3)", r"\left(1,3\right),\left(3,1\right)"],
            ["(1,3)", "(1,3),(1,3)", "1,3"],
        ),
        (
            7,
            [r"(1, \infty) \cup (-\infty, -1)", r"(-\infty,-1)\cup(1,+\infty)"],
            [r"(1,\infty)", "[1,2]"],
        ),
    ],
)
def test_every_type_of_answer(
    maths: Olympiad, number: int, right: list[str], wrong: list[str | None]
) -> None:
    sample = maths.samples()[number - 1]
    for answer in right:
        assert maths.grade(sample, answer, "").value == 1.0, (
            answer,
            maths.grade(sample, answer, ""),
        )
    for other in wrong:
        assert maths.grade(sample, other, "").value == 0.0, other


@pytest.mark.parametrize(
    ("kind", "gold", "answer", "tolerance", "right"),
    [
        ("Numerical", "40", "x >= 40", 1.0, False),
        ("Numerical", "40", r"x \not= 40", 1.0, False),
        ("Numerical", "40", "4 0", 1.0, False),
        ("Numerical", "12.57", r"4\pi", 0.01, True),
        ("Numerical", "12.57", r"4\pi", 1e-4, False),
        ("Numerical", "40", "40i", 1.0, False),
        ("Interval", "[0,2)", r"x\in[0,2)", 1.0, True),
        ("Interval", "[0,2)", "[2,0)", 1.0, False),
        ("Tuple", "(3,4)", "(x,y)=(3,4)", 1.0, True),
        ("Tuple", "(3,4)", "(y,x)=(4,3)", 1.0, False),
        ("Expression", r"2\pi\sqrt{m/k}", r"T=2\pi\sqrt{m/k}", 1.0, True),
        ("Expression", r"2\pi\sqrt{m/k}", r"2\pi\sqrt{M/k}", 1.0, False),
    ],
)
def test_hard_answers(
    maths: Olympiad, kind: str, gold: str, answer: str, tolerance: float, right: bool
) -> None:
    facts = {"type": kind, "unit": "", "several": False, "tolerances": [tolerance]}
    score = maths.grade(Sample("1", "?", gold, facts), answer, "")
    assert score.value == float(right), score


def test_each_gold_number_finds_an_answer_of_its_own(maths: Olympiad) -> None:
    """Within wide tolerances the first answer that fits may be the only one of another gold number."""
    facts = {"type": "Numerical", "unit": "", "several": True, "tolerances": [1.5, 1.5]}
    sample = Sample("1", "?", "3, 1", facts)
    assert maths.grade(sample, "2, 4", "").value == 1.0
    assert maths.grade(sample, "4, 2", "").value == 1.0
    assert maths.grade(sample, "4, 4", "").value == 0.0


def test_physics_from_its_fixture() -> None:
    task = make_task("olympiad-physics", TaskOptions(source="fixture"))
    assert isinstance(task, Olympiad)
    fall, train, _, spring, _, resistors, cord = task.samples()
    assert "in m." in fall.question
    assert fall.facts["tolerances"] == [0.5]
    assert task.grade(train, "72 km/h", "").value == 1.0
    assert task.grade(spring, r"2\pi\sqrt{m/k}", "").value == 1.0
    assert task.grade(spring, r"2\pi\sqrt{k/m}", "").value == 0.0
    assert task.grade(resistors, r"1.2 \Omega, 5 \Omega", "").value == 1.0
    assert task.grade(resistors, "1.2, 6", "").value == 0.0
    assert cord.question.startswith("A mass of 4.0 kg"), "the context stands first"
    task.grader.close()


@pytest.mark.parametrize(
    ("columns", "complaint"),
    [
        ({"final_answer": ["1", "2"]}, "expected a list of one text"),
        ({"final_answer": None}, "has no 'final_answer'"),
        ({"answer_type": "Proof"}, "'answer_type' is 'Proof'"),
        ({"error": "small"}, "'error' is 'small'"),
        ({"error": "-1"}, "'error' is '-1'"),
        ({"modality": "Multimodal"}, "has pictures"),
    ],
)
def test_bad_records(tmp_path: Path, columns: dict[str, object], complaint: str) -> None:
    record = json.loads((FIXTURES / "olympiad_maths.jsonl").read_text("utf-8").splitlines()[0])
    path = tmp_path / "bad.jsonl"
    path.write_text(json.dumps({k: v for k, v in (record | columns).items() if v is not None}))
    with pytest.raises(InvalidRequest, match=rf"bad\.jsonl, line 1.*{complaint}"):
        make_task("olympiad-maths", TaskOptions(source=path)).samples()
