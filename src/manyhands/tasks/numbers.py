r"""Numbers as people and models write them: `1,200`, `\$18.50`, `75\%`, `\frac{3}{4}`, `18 dollars`.

`read_number` gives the exact value or nothing; it never guesses which of two numbers is meant.
"""

from __future__ import annotations

import re
from fractions import Fraction

_DRESS = re.compile(r"\\(?:text|mathrm|mathbf|textbf|mbox)\b|\\left\b|\\right\b|\\[ ,;!:$%]|[{}$~]")
# White space, but not that between two digits: `4 0` is not 40.
BETWEEN_DIGITS_NOT = re.compile(r"(?<![0-9])\s+|\s+(?![0-9\s])")
_DECIMAL = r"[0-9]{1,40}(?:\.[0-9]{1,40})?|\.[0-9]{1,40}"
_THOUSANDS = r"[0-9]{1,3}(?:,[0-9]{3}){1,12}(?:\.[0-9]{1,40})?"
_NUMBER = re.compile(
    rf"(?P<sign>[+-]?)(?P<digits>{_THOUSANDS}|{_DECIMAL})(?P<unit>\s*[A-Za-z°%].*)?"
)
_FRACTION = re.compile(
    r"(?P<sign>[+-]?)(?:\\[dt]?frac\s*(?:\{(?P<a>[0-9]{1,40})\}\s*\{(?P<b>[0-9]{1,40})\}"
    r"|(?P<p>[0-9])\s*(?P<q>[0-9]))|(?P<c>[0-9]{1,40})\s*/\s*(?P<d>[0-9]{1,40}))"
)
# `km`, `m2`, `miles per hour`, `%`; one letter alone is a unit only if it is not a variable or `e3`.
_UNIT_WORD = r"(?:(?:[A-Za-z]{2,}|[mghsLl])[23]?|°[CF]?|%)"
_UNIT = re.compile(rf"(?:{_UNIT_WORD}(?:[ /.]+{_UNIT_WORD})*)?")


def undressed(text: str, spaces: bool = False) -> str:
    """The text without LaTeX's dress, and without white space unless `spaces` are wanted.

    White space between two digits stays: `4 0` is not 40.
    """
    bare = _DRESS.sub(" " if spaces else "", text)
    return bare if spaces else BETWEEN_DIGITS_NOT.sub("", bare)


def read_number(text: str) -> Fraction | None:
    """The value of a text that is one number, perhaps with a unit; None if it is not."""
    text = text.strip().strip("$").strip()
    if fraction := _FRACTION.fullmatch(text):
        above, below = (int(part) for part in fraction.groups()[1:] if part is not None)
        return _signed(fraction["sign"], Fraction(above, below)) if below else None
    bare = text.replace("{,}", ",").replace("\\!", "").replace("\\$", "").replace("\\%", "%")
    bare = undressed(bare.replace("^\\circ", "°").replace("^{\\circ}", "°"), spaces=True).strip()
    number = _NUMBER.fullmatch(bare.rstrip("."))
    if number is None or not _UNIT.fullmatch((number["unit"] or "").strip()):
        return None
    return _signed(number["sign"], Fraction(number["digits"].replace(",", "")))


def _signed(sign: str, value: Fraction) -> Fraction:
    return -value if sign == "-" else value
