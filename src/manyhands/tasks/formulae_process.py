r"""The other side of `tasks/formulae.py`: compares formulae with math-verify, one JSON line for each.

    {"gold": "\\frac12", "answer": "0.5", "seconds": 10}   ->   {"right": true, "why": "the same value"}

It imports nothing of ours and is run as a file, so that it starts in the time that math-verify needs.

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
"""

from __future__ import annotations

import json
import logging
import re
import signal
import sys
from collections.abc import Iterator
from importlib import import_module
from typing import Any

MEMORY_BYTES = 4 << 30  # a tower of powers must not take the machine down with it
LATER_SECONDS = 5  # than whoever asks: they can say why
_PAIR = re.compile(r"[(\[][^()\[\]]*,.*[)\]]", re.DOTALL)
_BASE = re.compile(r"_\{?([0-9]+)\}?$")
_PLAIN = (" ", "$", r"\left", r"\right", r"\!", r"\,", "{", "}")


def compare(gold: str, answer: str) -> tuple[bool, str]:
    """Whether the two formulae mean the same, and how that is known."""
    math_verify = import_module("math_verify")
    difference = _difference_of_looks(gold, answer)
    if difference:
        return False, f"{difference}, expected {gold}"
    ours, theirs = _parsed(math_verify, gold), _parsed(math_verify, answer)
    if ours is None or theirs is None:
        unread = "gold" if ours is None else "answer"
        return False, f"the {unread} cannot be read as a formula, expected {gold}"
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


def _parsed(math_verify: Any, text: str) -> Any:
    """The formula as a SymPy object; None if the text is not one, as a whole."""
    found = math_verify.parse(
        f"${text.replace('$', '')}$",
        extraction_config=[math_verify.LatexExtractionConfig()],
        fallback_mode="no_fallback",
        parsing_timeout=None,
    )
    return found[0] if len(found) == 1 else None


def _says_nothing(formula: Any) -> bool:
    sympy = import_module("sympy")
    if isinstance(formula, (bool, sympy.logic.boolalg.BooleanAtom)):
        return True
    return isinstance(formula, sympy.Equality) and formula.lhs == formula.rhs


def _has_sides(formula: Any) -> bool:
    return isinstance(formula, import_module("sympy").Equality)


def _is_equation(formula: Any) -> bool:
    """Whether it relates two expressions. A name for a value, `x = 5` or `f(x) = 5`, does not."""
    sympy = import_module("sympy")
    names = (sympy.Symbol, sympy.Tuple, sympy.core.function.AppliedUndef)
    return _has_sides(formula) and not isinstance(formula.lhs, names)


def _sort(formula: Any) -> str:
    sympy = import_module("sympy")
    if isinstance(formula, sympy.Set):
        return "set"
    relations = (sympy.core.relational.Relational, sympy.And, sympy.Or)
    return "relation" if isinstance(formula, relations) else "other"


def _differ_in_value(ours: Any, theirs: Any) -> bool:
    """Whether both are numbers, and not the same to 30 digits."""
    values = []
    for formula in (ours, theirs):
        formula = getattr(formula, "rhs", formula)  # of x = 5
        if not getattr(formula, "is_number", False):
            return False
        floats = formula.atoms(import_module("sympy").Float)
        exact = {f: import_module("sympy").Rational(str(f)) for f in floats}
        values.append(formula.xreplace(exact))
    difference = (values[0] - values[1]).evalf(30)
    return not bool(abs(difference) < 1e-24 * (1 + abs(values[0].evalf(30))))


def _difference_of_looks(gold: str, answer: str) -> str:
    """What math-verify does not look at. Empty if nothing speaks against the answer."""
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


def _limit_memory() -> None:
    try:
        resource = import_module("resource")
    except ImportError:
        return  # not on this system
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))


def _set_clock(seconds: int) -> None:
    """End in so many seconds; 0: not at all. For the case that who would end us was killed."""
    if hasattr(signal, "alarm"):
        signal.alarm(seconds)


def _answers() -> Iterator[dict[str, Any]]:
    for line in sys.stdin:
        question = json.loads(line)
        _set_clock(int(question["seconds"]) + LATER_SECONDS)
        try:
            right, why = compare(question["gold"], question["answer"])
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            right, why = False, f"cannot be compared ({error}), expected {question['gold']}"
        _set_clock(0)  # waiting for a question may take long
        yield {"right": right, "why": why}


def main() -> None:
    """Answer until the input ends."""
    logging.disable()  # it warns that we keep the clock ourselves
    _limit_memory()
    import_module("math_verify")
    print("{}", flush=True)  # up
    for answer in _answers():
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
