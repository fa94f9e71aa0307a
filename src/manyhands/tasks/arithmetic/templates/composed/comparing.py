"""Two numbers of which one is told by the other: more, fewer, so many times.

told        "Ana picked 14 pears, and Ben picked 5 more than Ana."      p = 14 + 5
question    "How many pears did Ben pick?"                              p
together    "How many pears did they pick together?"                    14 + p
then        "They ate 6 of these. How many are left?"                   and so on
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from manyhands.tasks.arithmetic.templates.composed.changing import COLLECTION, TOGETHER, scene
from manyhands.tasks.arithmetic.templates.composed.telling import Telling

_MOST_STEPS = 3
# Before a comparison the other person may not have a number already.
_OF_ONE = replace(COLLECTION, sums=tuple(told for told in COLLECTION.sums if told != TOGETHER))

_MORE = (
    "{friend} has {c} {things} more than that.",
    "{friend} has {c} more than {who}.",
    "That is {c} fewer {things} than {friend} has.",
    "{friend} beats {who} by {c} {things}.",
    "{who} has {c} less than {friend}.",
)
_FEWER = (
    "{friend} has {c} {things} fewer than that.",
    "{friend} has {c} less than {who}.",
    "That is {c} more {things} than {friend} has.",
    "{who} beats {friend} by {c} {things}.",
    "{who} has {c} more than {friend}.",
)
_TIMES = (
    "{friend} has {c} times as many.",
    "{friend} has {c} times the number of {who}.",
    "For each one of {who}, {friend} has {c}.",
)
_TWICE = (
    "{friend} has twice as many.",
    "{friend} has double that number.",
    "{friend} has two for each one of {who}.",
)
_OF_FRIEND = (
    "How many {things} does {friend} have?",
    "How many {things} are with {friend}?",
    "How many does {friend} have?",
)
_OF_BOTH = (
    "How many {things} do they have together?",
    "How many {things} do {who} and {friend} have in all?",
    "What do both have together?",
    "How many {things} do the two have?",
    "How many {things} is that for both of them?",
)


def compares_things(story: Telling) -> None:
    """The things of another one, told by the first one's; asked for alone or for both together."""
    scene(story, _OF_ONE)
    first = story.value
    kind = story.rng.choice(("more", "fewer", "times", "twice"))
    number = {"times": story.rng.randint(3, 5), "twice": 2}.get(kind, story.rng.randint(2, 40))
    wordings = {"more": _MORE, "fewer": _FEWER, "times": _TIMES, "twice": _TWICE}[kind]
    story.say(wordings, c=number)
    sign = {"more": "+", "fewer": "-"}.get(kind, "*")
    second = story.compute(first, sign, number)
    if len(story.work) < _MOST_STEPS and story.is_likely(0.5):
        story.value = story.compute(first, "+", second)
        if len(story.work) < _MOST_STEPS and story.is_likely(0.4):
            _goes_on(story, story.things)
        else:
            story.say(_OF_BOTH)
    else:
        story.say(_OF_FRIEND)


@dataclass(frozen=True)
class _Deed:
    """Something that is done a number of times: "picked", "pick", "pears"."""

    did: str
    do: str
    what: str


_DEEDS = (
    _Deed("picked", "pick", "flowers"),
    _Deed("picked", "pick", "berries"),
    _Deed("read", "read", "stories"),
    _Deed("wrote", "write", "lines"),
    _Deed("baked", "bake", "pies"),
    _Deed("sold", "sell", "tickets"),
    _Deed("sold", "sell", "newspapers"),
    _Deed("walked", "walk", "miles"),
    _Deed("rode", "ride", "miles"),
    _Deed("swam", "swim", "lanes"),
    _Deed("earned", "earn", "coins"),
    _Deed("saved", "save", "coins"),
    _Deed("spent", "spend", "coins"),
    _Deed("found", "find", "{things}"),
    _Deed("made", "make", "{things}"),
    _Deed("bought", "buy", "{things}"),
    _Deed("painted", "paint", "{things}"),
    _Deed("collected", "collect", "{things}"),
    _Deed("counted", "count", "birds"),
    _Deed("planted", "plant", "trees"),
    _Deed("washed", "wash", "dishes"),
    _Deed("scored", "score", "points"),
    _Deed("won", "win", "points"),
    _Deed("learned", "learn", "words"),
    _Deed("carried", "carry", "boxes"),
    _Deed("caught", "catch", "crabs"),
    _Deed("folded", "fold", "letters"),
    _Deed("took", "take", "photos"),
)
_DEEDS_OF_TWO = {
    "+": (
        "{who} {did} {a} {what}, and {friend} {did} {b} more than {who}.",
        "{who} {did} {a} {what}. {friend} {did} {b} more than {who} did.",
        "{who} {did} {a} {what}, {friend} {b} more than that.",
        "{who} {did} {a} {what}, which is {b} fewer than {friend} {did}.",
        "{who} {did} {a} {what}. That is {b} less than {friend}.",
        "{friend} {did} {b} more {what} than {who}, and {who} {did} {a}.",
        "{who} {did} only {a} {what}; {friend} was {b} ahead.",
    ),
    "-": (
        "{who} {did} {a} {what}, but {friend} {did} {b} fewer than {who}.",
        "{who} {did} {a} {what}. {friend} {did} {b} fewer.",
        "{who} {did} {a} {what}, {friend} {b} less than that.",
        "{who} {did} {a} {what}, which is {b} more than {friend} {did}.",
        "{who} {did} {a} {what}. That is {b} more than {friend}.",
        "{friend} {did} {b} fewer {what} than {who}, and {who} {did} {a}.",
        "{who} {did} {a} {what}; {friend} was {b} behind.",
    ),
    "*": (
        "{who} {did} {a} {what}, and {friend} {did} {b} times as many.",
        "{who} {did} {a} {what}. {friend} {did} {b} times that number.",
        "{friend} {did} {b} times as many {what} as {who}, and {who} {did} {a}.",
        "{who} {did} {a} {what}, {friend} {b} times as many as {who}.",
    ),
}
_ASKS_FRIEND = (
    "How many {what} did {friend} {do}?",
    "How many {what} are {friend}'s?",
    "What is the number of {what} that {friend} {did}?",
)
_ASKS_BOTH = (
    "How many {what} did they {do} together?",
    "How many {what} did the two {do} in all?",
    "How many {what} did {who} and {friend} {do}?",
    "How many {what} did both {do} in total?",
    "What is the number of {what} that they {did} together?",
)


def compares_deeds(story: Telling) -> None:
    """Deeds of two persons, the second told by the first; asked for one, for both, or for what becomes of it."""
    deed = story.rng.choice(_DEEDS)
    what = story.worded((deed.what,))
    sign, a, b = _sign_and_numbers(story)
    gaps = {"did": deed.did, "do": deed.do, "what": what}
    story.say(_DEEDS_OF_TWO[sign], a=a, b=b, **gaps)
    second = story.compute(a, sign, b)
    if story.is_likely(0.3):
        story.say(_ASKS_FRIEND, **gaps)
        return
    story.value = story.compute(a, "+", second)
    if story.is_likely(0.45):
        _goes_on(story, what)
    else:
        story.say(_ASKS_BOTH, **gaps)


_TIMES_OF_DAY = (
    ("on Monday", "on Wednesday"),
    ("on Saturday", "on Sunday"),
    ("on Thursday", "on Friday"),
    ("in March", "in April"),
    ("in the spring", "in the summer"),
    ("in the morning", "in the evening"),
    ("before lunch", "after lunch"),
    ("yesterday", "today"),
    ("last week", "this week"),
    ("on the first day", "on the second day"),
    ("in the first hour", "in the second hour"),
    ("last year", "this year"),
)
_DEEDS_OF_TWO_TIMES = {
    "+": (
        "{who} {did} {a} {what} {first} and {b} more {second} than {first}.",
        "{First}, {who} {did} {a} {what}. {Second}, {who} {did} {b} more than {first}.",
        "{who} {did} {a} {what} {first}; {second} it was {b} more.",
        "{First} {who} {did} {a} {what}, and {second} {b} more than that.",
        "{First} {who} {did} {a} {what}, {b} fewer than {second}.",
    ),
    "-": (
        "{who} {did} {a} {what} {first} and {b} fewer {second} than {first}.",
        "{First}, {who} {did} {a} {what}. {Second}, {who} {did} {b} fewer than {first}.",
        "{who} {did} {a} {what} {first}; {second} it was {b} less.",
        "{First} {who} {did} {a} {what}, but {second} {b} less than that.",
        "{First} {who} {did} {a} {what}, {b} more than {second}.",
    ),
    "*": (
        "{who} {did} {a} {what} {first} and {b} times as many {second}.",
        "{First}, {who} {did} {a} {what}. {Second}, it was {b} times as many.",
        "{First} {who} {did} {a} {what}, and {second} {b} times that number.",
    ),
}
_ASKS_SECOND_TIME = (
    "How many {what} did {who} {do} {second}?",
    "{Second}, how many {what} did {who} {do}?",
    "How many {what} was that {second}?",
)
_ASKS_BOTH_TIMES = (
    "How many {what} did {who} {do} in all?",
    "How many {what} did {who} {do} altogether?",
    "How many {what} is that in total?",
    "What is the number of {what} that {who} {did} both times?",
    "How many {what} did {who} {do} {first} and {second} together?",
)


def compares_times(story: Telling) -> None:
    """Deeds of one person at two times, the second told by the first."""
    deed = story.rng.choice(_DEEDS)
    first, second = story.rng.choice(_TIMES_OF_DAY)
    what = story.worded((deed.what,))
    sign, a, b = _sign_and_numbers(story)
    gaps = {"did": deed.did, "do": deed.do, "what": what, "first": first, "second": second}
    gaps |= {"First": first[0].upper() + first[1:], "Second": second[0].upper() + second[1:]}
    story.say(_DEEDS_OF_TWO_TIMES[sign], a=a, b=b, **gaps)
    later = story.compute(a, sign, b)
    if story.is_likely(0.3):
        story.say(_ASKS_SECOND_TIME, **gaps)
        return
    story.value = story.compute(a, "+", later)
    if story.is_likely(0.45):
        _goes_on(story, what)
    else:
        story.say(_ASKS_BOTH_TIMES, **gaps)


_GOODS = [
    "ball",
    "bell",
    "bowl",
    "broom",
    "clock",
    "drum",
    "flute",
    "jacket",
    "kite",
    "mirror",
    "pillow",
    "radio",
    "rug",
    "saw",
    "sofa",
    "stool",
    "table",
    "tent",
    "toy",
    "vase",
    "watch",
    "wheel",
]
_PRICES_OF_TWO = {
    "+": (
        "A {x} costs {a} coins, and a {y} costs {b} coins more than the {x}.",
        "The {x} is {a} coins. The {y} is {b} coins more expensive.",
        "For a {x} {who} pays {a} coins. A {y} costs {b} coins more.",
        "A {x} costs {a} coins, {b} coins less than a {y}.",
    ),
    "-": (
        "A {x} costs {a} coins, and a {y} costs {b} coins less than the {x}.",
        "The {x} is {a} coins. The {y} is {b} coins cheaper.",
        "For a {x} {who} pays {a} coins. A {y} costs {b} coins less.",
        "A {x} costs {a} coins, {b} coins more than a {y}.",
    ),
    "*": (
        "A {x} costs {a} coins, and a {y} costs {b} times as much.",
        "The {x} is {a} coins. The {y} costs {b} times as many.",
    ),
}
_ASKS_PRICE = (
    "How many coins does the {y} cost?",
    "What is the price of the {y}, in coins?",
    "How many coins must {who} pay for the {y}?",
)
_ASKS_PRICES = (
    "How many coins do both cost?",
    "How many coins do the {x} and the {y} cost in all?",
    "{who} buys both. How many coins is that?",
    "What do the two cost together, in coins?",
)
_PAYS_BOTH = (
    "{who} buys both and pays with {goal} coins. How many coins come back?",
    "{who} has {goal} coins and buys the two. How many coins are left?",
    "How many of {goal} coins does {who} keep after buying both?",
)


def compares_prices(story: Telling) -> None:
    """Two prices, the second told by the first."""
    x, y = story.rng.sample(_GOODS, 2)
    sign, a, b = _sign_and_numbers(story)
    story.say(_PRICES_OF_TWO[sign], a=a, b=b, x=x, y=y)
    second = story.compute(a, sign, b)
    if story.is_likely(0.35):
        story.say(_ASKS_PRICE, x=x, y=y)
        return
    both = story.compute(a, "+", second)
    if story.is_likely(0.4):
        paid = both + story.rng.randint(2, 90)
        story.compute(paid, "-", both)
        story.say(_PAYS_BOTH, goal=paid)
    else:
        story.say(_ASKS_PRICES, x=x, y=y)


_CHAINS = {
    "+": ("{x} has {n} more than {y}.", "{x} has {n} {things} more than {y} has."),
    "-": ("{x} has {n} fewer than {y}.", "{x} has {n} {things} less than {y} has."),
}


def compares_three(story: Telling) -> None:
    """A chain of three persons, each told by the one before."""
    rng = story.rng
    people = [story.who, story.friend, story.third]
    rng.shuffle(people)
    first, second, third = people
    a = rng.randint(10, 90)
    story.say(("{x} has {a} {things}.", "There are {a} {things} in {x}'s bag."), x=first, a=a)
    values = [a]
    for x, y in ((second, first), (third, second)):
        sign, number = rng.choice("+-"), rng.randint(2, 40)
        story.say(_CHAINS[sign], x=x, y=y, n=number)
        values.append(story.compute(values[-1], sign, number))
    if story.is_likely(0.4):
        story.say(("How many {things} does {x} have?", "How many does {x} have?"), x=third)
        return
    other = rng.choice((0, 1))
    story.compute(values[other], "+", values[2])
    story.say(
        (
            "How many {things} do {x} and {y} have together?",
            "How many do {y} and {x} have in all?",
        ),
        x=people[other],
        y=third,
    )


_LOSES = (
    "{c} of these were given away. How many {what} are left?",
    "Later {c} of them were lost. How many {what} remain?",
    "They keep all but {c}. How many {what} is that?",
    "Of these {what}, {c} do not count. How many are left?",
    "Then {c} are taken away. How many {what} stay?",
    "{c} of all these {what} are for {third}. How many are for the others?",
)
_GAINS = (
    "{third} adds {c} more. How many {what} is that in all?",
    "With {c} more from {third}, how many {what} are there?",
    "Then {c} others come on top. How many {what} is that?",
)
_WANTS = (
    "They want {goal} {what} in all. How many are missing?",
    "The goal is {goal} {what}. How many are still to come?",
    "{goal} {what} are needed. How many more must it be?",
    "How many {what} are missing to make {goal}?",
    "There are {goal} {what} to do. How many are left to do?",
)


def _goes_on(story: Telling, what: str) -> None:
    """Both together become less or more, or lack some of a goal."""
    number = story.rng.randint(2, 60)
    kind = story.rng.choice(("less", "less", "more", "goal"))
    if kind == "goal":
        wanted = story.value + story.rng.randint(2, 120)
        story.compute(wanted, "-", story.value)
        story.say(_WANTS, goal=wanted, what=what)
    else:
        story.change("-" if kind == "less" else "+", number)
        story.say(_LOSES if kind == "less" else _GAINS, c=number, what=what)


def _sign_and_numbers(story: Telling) -> tuple[str, int, int]:
    """More, fewer or times; the number it begins with, and by how many it differs."""
    rng = story.rng
    sign = rng.choice(("+", "+", "-", "-", "*"))
    if sign == "*":
        b, a = story.factors()
        return sign, a, b
    return sign, rng.randint(5, 99), rng.randint(2, 60)
