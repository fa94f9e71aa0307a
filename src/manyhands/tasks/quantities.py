r"""Quantities: numbers with units, within a tolerance (OlympiadBench, physics).

    grade_quantity(r"3.2 \times 10^{-5} \mathrm{~km}", "0.032", tolerance=0.001, unit="m")   # 1.0

The unit of a gold answer is known; an answer may leave it out, name it, or name another of the same kind,
which is then converted: `72 km/h` is `20` where metres a second are asked for. An answer in a unit of
another kind is wrong, and so is one in a unit that is not in the table, unless it is written as the gold one is.
What stands behind one slash stands below the line: `J/kg K` is `J/(kg K)`. Degrees Celsius are temperatures,
no differences of them: `27 °C` is `300 K`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from manyhands.tasks.graders import EQUALS, Score
from manyhands.tasks.numbers import read_number

# How much more than the tolerance is let pass: a gold answer is itself rounded.
_SLACK = 1.01
_MOST_POWERS = 300
_POWER = re.compile(r"\s*(?:\\times|\\cdot|\*|×|x)\s*10\s*\^\s*\{?\s*([+-]?[0-9]{1,4})\s*\}?")
_E_POWER = re.compile(r"(?<=[0-9.])\s*[eE]\s*([+-]?[0-9]{1,4})(?![0-9A-Za-z])")
_BARE_POWER = re.compile(r"\s*10\s*\^\s*\{?\s*([+-]?[0-9]{1,4})\s*\}?")
_HEAD = re.compile(
    r"\s*[+-]?\s*(?:[0-9][0-9,]*\.?[0-9]*|\.[0-9]+"
    r"|\\[dt]?frac\s*\{\s*[0-9]+\s*\}\s*\{\s*[0-9]+\s*\}|[0-9]+\s*/\s*[0-9]+)"
)
_DRESS = re.compile(
    r"\\(?:mathrm|text|textrm|mathbf|rm|operatorname|left|right|displaystyle)\b|[{}$]"
)
_SPACES = re.compile(r"\\[ ,;:!]|~|\\quad|\s+")
_EQUALS = re.compile(rf"^.*(?:{EQUALS.pattern}|\\approx|\\simeq|≈|\\sim)")

# Factor to the SI unit, and exponents of metre, kilogram, second, ampere, kelvin, mole, radian.
_Kind = tuple[int, ...]
_UNITS: Mapping[str, tuple[float, _Kind]] = {
    "m": (1, (1, 0, 0, 0, 0, 0, 0)),
    "g": (1e-3, (0, 1, 0, 0, 0, 0, 0)),
    "s": (1, (0, 0, 1, 0, 0, 0, 0)),
    "A": (1, (0, 0, 0, 1, 0, 0, 0)),
    "K": (1, (0, 0, 0, 0, 1, 0, 0)),
    "mol": (1, (0, 0, 0, 0, 0, 1, 0)),
    "rad": (1, (0, 0, 0, 0, 0, 0, 1)),
    "°": (math.pi / 180, (0, 0, 0, 0, 0, 0, 1)),
    "deg": (math.pi / 180, (0, 0, 0, 0, 0, 0, 1)),
    "degrees": (math.pi / 180, (0, 0, 0, 0, 0, 0, 1)),
    "min": (60, (0, 0, 1, 0, 0, 0, 0)),
    "h": (3600, (0, 0, 1, 0, 0, 0, 0)),
    "hr": (3600, (0, 0, 1, 0, 0, 0, 0)),
    "hours": (3600, (0, 0, 1, 0, 0, 0, 0)),
    "days": (86400, (0, 0, 1, 0, 0, 0, 0)),
    "day": (86400, (0, 0, 1, 0, 0, 0, 0)),
    "Hz": (1, (0, 0, -1, 0, 0, 0, 0)),
    "N": (1, (1, 1, -2, 0, 0, 0, 0)),
    "J": (1, (2, 1, -2, 0, 0, 0, 0)),
    "eV": (1.602176634e-19, (2, 1, -2, 0, 0, 0, 0)),
    "W": (1, (2, 1, -3, 0, 0, 0, 0)),
    "Pa": (1, (-1, 1, -2, 0, 0, 0, 0)),
    "bar": (1e5, (-1, 1, -2, 0, 0, 0, 0)),
    "atm": (101325, (-1, 1, -2, 0, 0, 0, 0)),
    "C": (1, (0, 0, 1, 1, 0, 0, 0)),
    "V": (1, (2, 1, -3, -1, 0, 0, 0)),
    "Ω": (1, (2, 1, -3, -2, 0, 0, 0)),
    "F": (1, (-2, -1, 4, 2, 0, 0, 0)),
    "T": (1, (0, 1, -2, -1, 0, 0, 0)),
    "H": (1, (2, 1, -2, -2, 0, 0, 0)),
    "Wb": (1, (2, 1, -2, -1, 0, 0, 0)),
    "L": (1e-3, (3, 0, 0, 0, 0, 0, 0)),
    "t": (1e3, (0, 1, 0, 0, 0, 0, 0)),
    "yr": (31_557_600, (0, 0, 1, 0, 0, 0, 0)),
    "cal": (4.184, (2, 1, -2, 0, 0, 0, 0)),
    "Å": (1e-10, (1, 0, 0, 0, 0, 0, 0)),
    "AU": (149_597_870_700, (1, 0, 0, 0, 0, 0, 0)),
}
# Units as words, in the singular.
_WORDS = {
    **{"meter": "m", "metre": "m", "gram": "g", "second": "s", "sec": "s", "minute": "min"},
    **{"hour": "h", "year": "yr", "tonne": "t", "ampere": "A", "amp": "A", "kelvin": "K"},
    **{"mole": "mol", "radian": "rad", "degree": "°", "newton": "N", "joule": "J", "watt": "W"},
    **{"pascal": "Pa", "volt": "V", "ohm": "Ω", "farad": "F", "tesla": "T", "coulomb": "C"},
    **{"hertz": "Hz", "weber": "Wb", "liter": "L", "litre": "L", "calorie": "cal"},
    **{"kilometer": "km", "kilometre": "km", "centimeter": "cm", "centimetre": "cm"},
    **{"millimeter": "mm", "millimetre": "mm", "kilogram": "kg", "kilojoule": "kJ"},
    **{"electronvolt": "eV", "microsecond": "μs", "millisecond": "ms", "nanometer": "nm"},
}
_CELSIUS, _ZERO_CELSIUS = "°C", 273.15
_PREFIXES = {
    **{"T": 1e12, "G": 1e9, "M": 1e6, "k": 1e3, "c": 1e-2, "m": 1e-3},
    **{"μ": 1e-6, "u": 1e-6, "n": 1e-9, "p": 1e-12, "f": 1e-15},
}
_NO_PREFIX = frozenset(
    {"min", "h", "hr", "hours", "day", "days", "°", "deg", "degrees", "atm", "t", "yr", "Å", "AU"}
)
_SYMBOLS = (
    (r"\\[dt]?frac\s*\{((?:[^{}]|\{[^{}]*\})*)\}\s*\{((?:[^{}]|\{[^{}]*\})*)\}", r" \1/(\2)"),
    (r"\^\s*\{?\s*\\circ\s*\}?", "°"),
    (r"\\(?:circ|degree)", "°"),
    (r"\\(?:Omega|ohm)", "Ω"),
    (r"\\mu|µ", "μ"),
    (r"\\(?:cdot|times)|·|\*|⋅", " "),
    (r"\bper\b", "/"),
    (r"°\s*(?:\\(?:mathrm|text|rm)\s*)?\{?\s*C\b\}?", _CELSIUS),
)
_FACTOR = re.compile(r"([A-Za-zμΩ°Å]+)\s*(?:\^?\s*\(?([+-]?[0-9]+)\)?)?")
_FORMULA = re.compile(r"\\[A-Za-z]|^\s*[!^_(|]|π|√")  # behind a number: it goes on, and is no unit


@dataclass(frozen=True)
class Quantity:
    """A number, and the text of its unit."""

    value: float
    unit: str = ""


def read_quantity(text: str) -> Quantity | None:
    """The quantity that the text is; None if it does not begin with one number."""
    text = _EQUALS.sub("", text.strip().strip("$").rstrip("."))
    text = text.replace("{,}", "").replace(r"\%", "%").replace("−", "-")
    text = re.sub(r"(?<=[0-9])\\,(?=[0-9]{3})", "", text)
    bare = _SPACES.sub(" ", text).strip()
    head = _HEAD.match(bare)
    if head is None:
        return None
    if (alone := _BARE_POWER.match(bare)) is not None:  # 10^{5}, and no number before it
        return _with_unit(_scaled(1.0, alone[1]), bare[alone.end() :])
    number = read_number(head[0].replace(" ", ""))
    if number is None:
        return None
    value, rest = float(number), bare[head.end() :]
    for power in (_POWER, _E_POWER):
        if (found := power.match(rest)) is None and power is _E_POWER:
            found = power.match(bare, head.end())
        if found is not None:
            value, rest = _scaled(value, found[1]), found.string[found.end() :]
            break
    return _with_unit(value, rest)


def grade_quantity(answer: str, gold: str, tolerance: float, unit: str = "") -> Score | None:
    """1 if the answer is within the tolerance of the gold number; None if one of them is no quantity."""
    found, expected = read_quantity(answer), read_quantity(gold)
    if found is None or expected is None:
        return None
    wanted = _tidy_unit(unit) or expected.unit
    value = found.value
    if (found.unit and not wanted) or _FORMULA.search(found.unit):
        return None
    if found.unit and found.unit != wanted:
        converted = _converted(found, wanted)
        if converted is None:
            return Score(0.0, answer, f"a quantity in {found.unit}, expected one in {wanted}")
        value = converted
    allowed = _SLACK * tolerance + 1e-9 * abs(expected.value)
    right = abs(value - expected.value) <= allowed
    shown = f"{gold} {wanted}".strip()
    return Score(float(right), answer, "within the tolerance" if right else f"expected {shown}")


def _converted(found: Quantity, wanted: str) -> float | None:
    """The value in another unit; None if that is of another kind, or one of both is unknown."""
    value, unit = found.value, found.unit
    if unit == _CELSIUS:
        value, unit = value + _ZERO_CELSIUS, "K"
    ours, theirs = unit_of(unit), unit_of("K" if wanted == _CELSIUS else wanted)
    if ours is None or theirs is None or ours[1][:-1] != theirs[1][:-1]:
        return None
    if ours[1] != theirs[1] and "Hz" in unit + wanted:
        return None  # a turn is no radian; else radians have no dimension, and rad/s are 1/s
    value *= ours[0] / theirs[0]
    return value - _ZERO_CELSIUS if wanted == _CELSIUS else value


def unit_of(text: str) -> tuple[float, tuple[int, ...]] | None:
    """Factor to SI units and exponents of these; None if a part of it is unknown.

    Brackets add nothing: all that stands behind a slash is below the line, and a slash behind it changes nothing.
    """
    factor, kind, place, sign = 1.0, [0] * 7, 0, 1
    text = text.strip(" ()")
    while place < len(text):
        if text[place] in " ()/":
            sign = -1 if text[place] == "/" else sign
            place += 1
            continue
        match = _FACTOR.match(text, place)
        known = _known(match[1]) if match is not None else None
        if match is None or known is None:
            return None
        place = match.end()
        power = sign * int(match[2] or 1)
        factor *= known[0] ** power
        kind = [one + power * other for one, other in zip(kind, known[1], strict=True)]
    return factor, tuple(kind)


def _known(name: str) -> tuple[float, tuple[int, ...]] | None:
    word = name.casefold()
    name = _WORDS.get(word) or _WORDS.get(word.removesuffix("s")) or name
    if name in _UNITS:
        return _UNITS[name]
    prefix, base = name[:1], name[1:]
    if prefix in _PREFIXES and base in _UNITS and base not in _NO_PREFIX:
        factor, kind = _UNITS[base]
        return factor * _PREFIXES[prefix], kind
    return None


def _scaled(value: float, exponent: str) -> float:
    """Times so many powers of ten; NaN, which equals nothing, where a float has no room for it."""
    return value * 10.0 ** int(exponent) if abs(int(exponent)) < _MOST_POWERS else math.nan


def _with_unit(value: float, rest: str) -> Quantity | None:
    if math.isnan(value):
        return None
    unit = _tidy_unit(rest)
    if unit == "%":
        return Quantity(value, "%")
    if re.search(r"[0-9]\s*[0-9.]|[+=<>\\,;]", unit):  # a formula goes on there
        return None
    return Quantity(value, unit)


def _tidy_unit(text: str) -> str:
    r"""A unit without LaTeX's dress: `\mathrm{~m} / \mathrm{s}^{2}` is `m/s^2`."""
    for pattern, symbol in _SYMBOLS:
        text = re.sub(pattern, symbol, text)
    text = _DRESS.sub("", _SPACES.sub(" ", text))
    return re.sub(r"\s*([/^])\s*", r"\1", re.sub(r"\s+", " ", text)).strip().strip(".")
