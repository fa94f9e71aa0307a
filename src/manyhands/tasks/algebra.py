r"""Do two formulae mean the same? math-verify says so, and is not believed blindly.

    compare(r"\frac12", "0.5")   ->   (True, "the same value")

This file alone imports math-verify, and it is imported in the sandbox alone: algebra may take all time
and all memory (`tasks/formulae.py` asks, `manyhands.sandbox` keeps the limits).

math-verify is asked in ways that keep its known mistakes out:

- Both texts are wrapped in `$...$`. Of an unwrapped text it may read only the last number: then
  `1-\frac1e` and `1+\frac1e` are both 1, and `x+y=5` is 5.
- Only a whole formula counts. The fallback of comparing what was left of a text is switched off.
- It is asked both ways round; its answer may depend on the order (`5 = 5` counts as 5, but not the other
  way). A set and an inequality may differ in this: math-verify reads each as the other one way only.
- An equation that says nothing (`0=0`, `x=x`) is equal to none, and 5 is not `x+y=5` (but `m+n=5` is 5).
- Numbers are compared again by us, to 30 digits, with decimals as exact fractions: 0.333333 is not 1/3.
- Two texts that differ in an odd number of minus signs and in nothing else are never the same.
- `(3,4)` and `3,4` differ, as a pair and a set do; so do numbers in different bases.
- It reads every letter as a small one: `R-r` and `r-R` would be the same, and `A` would be `a`. Where both cases of
  a letter stand in the two texts, the capital is read as a letter that neither of them has.
"""

from __future__ import annotations

import re
from typing import Any

import math_verify
import sympy

_PAIR = re.compile(r"[(\[][^()\[\]]*,.*[)\]]", re.DOTALL)
_BASE = re.compile(r"_\{?([0-9]+)\}?$")
_SMALL = "abcfghjklmnpqrstuvwxyz"  # letters that LaTeX readers take for a symbol and nothing else
_GREEK = (
    "Gamma",
    "Delta",
    "Theta",
    "Lambda",
    "Xi",
    "Pi",
    "Sigma",
    "Upsilon",
    "Phi",
    "Psi",
    "Omega",
)
# A word, a command, or one letter: of these only the last, and capital Greek commands, are symbols with a case.
_SYMBOL = re.compile(
    r"\\(?:text|mbox|operatorname|textbf|textit)\s*\{[^{}]*\}|\\[A-Za-z]+|[A-Za-z]", re.DOTALL
)
_WORD = re.compile(r"[A-Za-z][a-z]{2,}")
_PLAIN = (" ", "$", r"\left", r"\right", r"\!", r"\,", "{", "}")


def compare(gold: str, answer: str, tolerance: float = 0.0) -> tuple[bool, str]:
    """Whether the two formulae mean the same, and how that is known.

    `tolerance`: how far the value of one number may be from the other's; 0 wants them equal.
    """
    difference = _difference_of_looks(gold, answer)
    if difference:
        return False, f"{difference}, expected {gold}"
    ours, theirs = (_parsed(text) for text in cases_apart(gold, answer))
    if ours is None or theirs is None:
        unread = "gold" if ours is None else "answer"
        return False, f"the {unread} cannot be read as a formula, expected {gold}"
    if tolerance > 0 and (values := _numbers(ours, theirs)) is not None:
        near = bool(abs((values[0] - values[1]).evalf(30)) <= tolerance)
        return near, "within the tolerance" if near else f"expected {gold}"
    if _says_nothing(ours) or _says_nothing(theirs):
        return False, f"an equation that says nothing, expected {gold}"
    if _is_equation(ours) and not _has_sides(theirs):
        return False, f"a value is not an equation, expected {gold}"
    there = math_verify.verify(ours, theirs, timeout_seconds=None)
    back = math_verify.verify(theirs, ours, timeout_seconds=None)
    if not (there or back):
        return False, f"expected {gold}"
    if not (there and back) and {_sort(ours), _sort(theirs)} != {"set", "relation"}:
        return False, f"the same only one way round, expected {gold}"
    if "%" not in gold + answer and _differ_in_value(ours, theirs):
        return False, f"near, but not the same value, expected {gold}"
    return True, "the same value"


def _parsed(text: str) -> Any:
    """The formula as a SymPy object; None if the text is not one, as a whole."""
    found = math_verify.parse(
        f"${text.replace('$', '')}$",
        extraction_config=[math_verify.LatexExtractionConfig()],
        fallback_mode="no_fallback",
        parsing_timeout=None,
    )
    return found[0] if len(found) == 1 else None


def _says_nothing(formula: Any) -> bool:
    if isinstance(formula, (bool, sympy.logic.boolalg.BooleanAtom)):
        return True
    return isinstance(formula, sympy.Equality) and formula.lhs == formula.rhs


def _has_sides(formula: Any) -> bool:
    return isinstance(formula, sympy.Equality)


def _is_equation(formula: Any) -> bool:
    """Whether it relates two expressions. A name for a value, `x = 5` or `f(x) = 5`, does not."""
    names = (sympy.Symbol, sympy.Tuple, sympy.core.function.AppliedUndef)
    return _has_sides(formula) and not isinstance(formula.lhs, names)


def _sort(formula: Any) -> str:
    if isinstance(formula, sympy.Set):
        return "set"
    relations = (sympy.core.relational.Relational, sympy.And, sympy.Or)
    return "relation" if isinstance(formula, relations) else "other"


def _differ_in_value(ours: Any, theirs: Any) -> bool:
    """Whether both are numbers, and not the same to 24 places."""
    values = _numbers(ours, theirs)
    if values is None:
        return False
    difference = (values[0] - values[1]).evalf(30)
    return not bool(abs(difference) < 1e-24 * (1 + abs(values[0].evalf(30))))


def _numbers(ours: Any, theirs: Any) -> tuple[Any, Any] | None:
    """Both as numbers, decimals as exact fractions; None if one of them is none."""
    values = []
    for formula in (ours, theirs):
        if _has_sides(formula) and not _is_equation(formula):
            formula = formula.rhs  # of x = 5
        if not getattr(formula, "is_number", False):
            return None
        exact = {number: sympy.Rational(str(number)) for number in formula.atoms(sympy.Float)}
        values.append(formula.xreplace(exact))
    return values[0], values[1]


def cases_apart(gold: str, answer: str) -> tuple[str, str]:
    """Both texts, with another letter for each capital that would be read as a small letter of theirs."""
    if all(_WORD.fullmatch(_bare(text)) for text in (gold, answer)):
        return gold, answer  # a word may begin with a capital
    symbols = {symbol for text in (gold, answer) for symbol in _SYMBOL.findall(text)}
    capitals = {s for s in symbols if (len(s) == 1 and s.isupper()) or s[1:] in _GREEK}
    doubled = sorted(capital for capital in capitals if capital.lower() in symbols)
    free = [letter for letter in _SMALL if not {letter, letter.upper()} & symbols]
    names = {
        capital: letter if len(capital) == 1 else f"{letter} "
        for capital, letter in zip(doubled, free, strict=False)
    }

    def renamed(text: str) -> str:
        return _SYMBOL.sub(lambda match: names.get(match[0], match[0]), text)

    return renamed(gold), renamed(answer)


def _bare(text: str) -> str:
    return re.sub(r"\\text|[{}$\s]", "", text)


def _difference_of_looks(gold: str, answer: str) -> str:
    """The objection that math-verify does not look for. Empty if nothing speaks against the answer."""
    plain_gold, plain_answer = (_plain(text) for text in (gold, answer))
    if plain_gold.replace("-", "+").lstrip("+") == plain_answer.replace("-", "+").lstrip("+"):
        odd = (plain_gold.count("-") - plain_answer.count("-")) % 2
        if odd:
            return "another sign"
    if bool(_PAIR.fullmatch(_tail(gold))) != bool(_PAIR.fullmatch(_tail(answer))) and not (
        _is_relation(gold) or _is_relation(answer)
    ):
        return "a pair or interval is not a set"
    bases = [base[1] if (base := _BASE.search(text.strip())) else "" for text in (gold, answer)]
    return "another base" if all(bases) and bases[0] != bases[1] else ""


def _tail(text: str) -> str:
    r"""`(3,4)` of `(x,y)=(3,4)` or of `x \in (3,4)`, without dress."""
    text = text.replace(r"\left", "").replace(r"\right", "").replace("$", "")
    return re.split(r"=|\\in(?![a-z])", text)[-1].strip()


def _is_relation(text: str) -> bool:
    return bool(re.search(r"[<>]|\\(?:l|g)(?:eq?|t)(?![a-z])|\\cup", text))


def _plain(text: str) -> str:
    for dress in _PLAIN:
        text = text.replace(dress, "")
    return text
