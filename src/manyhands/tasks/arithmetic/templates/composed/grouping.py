"""Two groups of products, and groups of a sum.

two groups    "4 boxes with 9 red beads and 3 bags with 6 white ones"     4 * 9 + 3 * 6
two rates     "A stool needs 4 nails and a chair 6. Ana makes 3 stools …" 4 * 3 + 6 * 2
a sum         "4 red and 3 blue boxes, 6 beads in each"                   (4 + 3) * 6
"""

from __future__ import annotations

from manyhands.tasks.arithmetic.templates.composed.changing import COLLECTION, event
from manyhands.tasks.arithmetic.templates.composed.telling import Telling

_HOLDERS = (
    ("boxes", "box"),
    ("jars", "jar"),
    ("crates", "crate"),
    ("packs", "pack"),
    ("sacks", "sack"),
    ("cases", "case"),
    ("trays", "tray"),
    ("tins", "tin"),
)
_CONTENTS = (
    ("red", "blue"),
    ("small", "large"),
    ("old", "new"),
    ("green", "yellow"),
    ("wooden", "glass"),
    ("cheap", "fine"),
)
_TWO_HOLDERS = (
    "{who} has {a} {xs} with {b} {things} each and {c} {ys} with {d} {things} each.",
    "{who} bought {a} {xs} of {b} {things} and {c} {ys} of {d}.",
    "There are {a} {xs} and {c} {ys}. Each {x} holds {b} {things} and each {y} holds {d}.",
    "A {x} holds {b} {things} and a {y} holds {d}. {who} has {a} {xs} and {c} {ys}.",
    "{who} filled {a} {xs} with {b} {things} each; {friend} filled {c} {ys} with {d} each.",
    "In a shop stand {a} {xs} with {b} {things} in each and {c} {ys} with {d} in each.",
)
_TWO_CONTENTS = (
    "{who} has {a} {xs} of {b} {p} {things} and {c} {xs} of {d} {q} {things}.",
    "There are {a} {xs} with {b} {p} {things} in each, and {c} {xs} with {d} {q} ones.",
    "{who} sorts {things}: {a} {xs} of {b} {p} ones and {c} {xs} of {d} {q} ones.",
    "{who} laid {a} rows of {b} {p} {things} and {c} rows of {d} {q} {things}.",
    "On a wall are {a} rows of {b} {p} {things}, and below them {c} rows of {d} {q} ones.",
)
_TWO_OF_PEOPLE = (
    "{who} made {b} {things} a day for {a} days, and {friend} made {d} a day for {c} days.",
    "{who} bought {a} boxes with {b} {things} each. {friend} bought {c} boxes with {d} {things} each.",
    "{who} works {a} days and makes {b} {things} a day. {friend} works {c} days and makes {d} a day.",
    "{a} times {who} won {b} {things}, and {c} times {friend} won {d}.",
    "On each of {a} days {who} read {b} pages, and on each of {c} days {friend} read {d} pages.",
    "{who} fills {a} jars of {b} {things}, {friend} fills {c} jars of {d}.",
)
_TWO_OF_TIMES = (
    "In May {who} sold {a} boxes of {b} {things}, and in June {c} boxes of {d}.",
    "Last week {who} worked {a} days for {b} coins a day, and this week {c} days for {d} coins a day.",
    "{who} ran {a} rounds of {b} minutes in the morning and {c} rounds of {d} minutes at night.",
    "First {who} read {b} pages a day for {a} days, then {d} pages a day for {c} days.",
    "On Saturday {a} buses came with {b} people each, and on Sunday {c} buses with {d} people each.",
    "For {a} weeks {who} saved {b} coins a week, and then {d} coins a week for {c} weeks.",
)
_ALL = (
    "How many is that in all?",
    "How many are there in all?",
    "How many is that altogether?",
    "What is the number of all?",
    "How many is that in total?",
    "What do these make together?",
)
_FIRST_MORE = (
    "How many more were the first than the second?",
    "By how many is the first number larger than the second?",
    "How many more was it the first time than the second time?",
)
_WHO_MORE = (
    "How many more did {who} have than {friend}?",
    "By how many was {who} ahead of {friend}?",
    "How many fewer did {friend} have than {who}?",
)


def two_groups(story: Telling) -> None:
    """Two products, together or one less the other."""
    rng = story.rng
    (a, b), (c, d) = story.factors(), story.factors()
    numbers = {"a": a, "b": b, "c": c, "d": d}
    (xs, x), (ys, y) = rng.sample(_HOLDERS, 2)
    p, q = rng.choice(_CONTENTS)
    kind = rng.choice((_TWO_HOLDERS, _TWO_CONTENTS, _TWO_OF_PEOPLE, _TWO_OF_TIMES))
    story.say(kind, xs=xs, x=x, ys=ys, y=y, p=p, q=q, **numbers)
    first, second = story.compute(a, "*", b), story.compute(c, "*", d)
    if first > second and story.is_likely(0.3):
        story.compute(first, "-", second)
        story.say(_WHO_MORE if kind is _TWO_OF_PEOPLE else _FIRST_MORE)
    else:
        story.compute(first, "+", second)
        story.say(_ALL)


_MAKERS = (
    # the thing made, the one made beside it, and the material of both
    ("a stool", "stools", "a chair", "chairs", "nails", "needs"),
    ("a wreath", "wreaths", "a bouquet", "bouquets", "roses", "takes"),
    ("a loaf", "loaves", "a roll", "rolls", "spoons of flour", "needs"),
    ("a kite", "kites", "a lantern", "lanterns", "sheets of paper", "takes"),
    ("a small wagon", "small wagons", "a large wagon", "large wagons", "wheels", "has"),
    ("a hut", "huts", "a barn", "barns", "windows", "has"),
    ("a bracelet", "bracelets", "a necklace", "necklaces", "beads", "needs"),
    ("a salad", "salads", "a soup", "soups", "carrots", "takes"),
    ("a van", "vans", "a minibus", "minibuses", "people", "holds"),
    ("a short song", "short songs", "a long song", "long songs", "minutes", "lasts"),
    ("a goat", "goats", "a horse", "horses", "apples", "gets"),
    ("a rabbit", "rabbits", "a hen", "hens", "leaves", "eats"),
)
_MADE = (
    "{X} {needs} {b} {of} and {y} {needs} {d} {of}. {who} has {a} {xs} and {c} {ys}.",
    "{X} {needs} {b} {of}, {y} {d}. There are {a} {xs} and {c} {ys}.",
    "There are {a} {xs} and {c} {ys}. {X} {needs} {b} {of}, and {y} {needs} {d}.",
    "Each of {a} {xs} {needs} {b} {of}, and each of {c} {ys} {needs} {d}.",
)
_MADE_ALL = (
    "How many {of} is that in all?",
    "How many {of} are that together?",
    "What is the number of {of} for all of them?",
    "How many {of} do they make together?",
)
_PAYERS = (
    ("pupil", "pupils", "teacher", "teachers"),
    ("boy", "boys", "man", "men"),
    ("member", "members", "guest", "guests"),
    ("girl", "girls", "woman", "women"),
    ("student", "students", "worker", "workers"),
)
_PAID = (
    "{X} pays {b} coins and {y} pays {d} coins for {place}. {a} {xs} and {c} {ys} go in.",
    "For {place}, {x} pays {b} coins and {y} {d} coins. There are {a} {xs} and {c} {ys}.",
    "{a} {xs} and {c} {ys} go to {place}. {X} pays {b} coins, {y} {d}.",
    "A ticket for {place} is {b} coins for {x} and {d} coins for {y}. {who} buys tickets for {a} {xs} and {c} {ys}.",
)
_PLACES = ("the zoo", "the pool", "a concert", "the fair", "the boat", "a play")
_PAID_ALL = (
    "How many coins is that in all?",
    "How many coins do they pay?",
    "What do all of them pay, in coins?",
    "How many coins does it cost for all?",
)
_BOUGHT = (
    "{who} buys {a} {xs} for {b} coins each and {c} {ys} for {d} coins each.",
    "One of the {xs} costs {b} coins and one of the {ys} costs {d} coins. {who} takes {a} {xs} and {c} {ys}.",
    "{xs} are {b} coins each and {ys} {d} coins each. {who} needs {a} {xs} and {c} {ys}.",
    "{who} sells {a} {xs} at {b} coins each and {c} {ys} at {d} coins each.",
)
_BOUGHT_ALL = (
    "How many coins is that in all?",
    "What is the amount, in coins?",
    "How many coins do all of these cost?",
    "How many coins change hands?",
)
_WARES = [
    "cups",
    "plates",
    "spoons",
    "bowls",
    "candles",
    "bottles",
    "tickets",
    "notebooks",
    "pencils",
    "cakes",
    "sandwiches",
    "buns",
    "juices",
    "chairs",
    "towels",
]


def two_rates(story: Telling) -> None:
    """So many of one kind and so many of another, each kind with a number of its own."""
    rng = story.rng
    (a, b), (c, d) = story.factors(), story.factors()
    numbers = {"a": a, "b": b, "c": c, "d": d}
    kind = rng.choice(("made", "paid", "bought"))
    if kind == "made":
        x, xs, y, ys, of, needs = rng.choice(_MAKERS)
        gaps = {"X": x[0].upper() + x[1:], "xs": xs, "y": y, "ys": ys, "of": of, "needs": needs}
        story.say(_MADE, **numbers, **gaps)
        asked: tuple[str, ...] = _MADE_ALL
    elif kind == "paid":
        x, xs, y, ys = rng.choice(_PAYERS)
        gaps = {"X": f"A {x}", "x": f"a {x}", "xs": xs, "y": f"a {y}", "ys": ys}
        gaps["place"] = rng.choice(_PLACES)
        story.say(_PAID, **numbers, **gaps)
        asked = _PAID_ALL
    else:
        xs, ys = rng.sample(_WARES, 2)
        gaps = {"xs": xs, "ys": ys}
        story.say(_BOUGHT, **numbers, **gaps)
        asked = _BOUGHT_ALL
    story.compute(story.compute(a, "*", b), "+", story.compute(c, "*", d))
    story.say(asked, **gaps)


_GROUPS_OF_A_SUM = (
    "{who} has {a} {p} {xs} and {b} {q} {xs}, with {c} {things} in each.",
    "There are {a} {p} and {b} {q} {xs}, and each of them holds {c} {things}.",
    "{who} brings {a} {xs} and {friend} brings {b}. In each {x} are {c} {things}.",
    "{a} boys and {b} girls get {c} {things} each.",
    "{who} works {a} hours on Monday and {b} hours on Tuesday and makes {c} {things} an hour.",
    "{a} {things} of {who} and {b} {things} of {friend} are sold for {c} coins each.",
    "{who} buys {a} {things} in one shop and {b} in another, all for {c} coins each.",
)
_GROUPS_OF_A_REST = (
    "{who} had {a} {xs} and lost {b}. In each of the others are {c} {things}.",
    "Of {a} {xs}, {b} are empty. The others hold {c} {things} each.",
    "{a} children were asked, but {b} did not come. {who} gives {c} {things} to each of the others.",
    "{who} has {a} {xs} and gives {b} of them to {friend}. Each {x} that is left holds {c} {things}.",
    "{a} {things} are for sale and {b} of them are broken. {who} sells the others for {c} coins each.",
)


def groups_of_a_sum(story: Telling) -> None:
    """So many groups and so many more, or fewer, and a number in each; then something may happen."""
    rng = story.rng
    xs, x = rng.choice(_HOLDERS)
    p, q = rng.choice(_CONTENTS)
    is_sum = story.is_likely(0.6)
    per_group = rng.randint(2, 9)
    if is_sum:
        a, b = rng.randint(2, 8), rng.randint(2, 8)
        if a + b > 12:
            a, b = a // 2 + 1, b // 2 + 1
    else:
        b = rng.randint(2, 12)
        a = b + rng.randint(2, 12)
    wordings = _GROUPS_OF_A_SUM if is_sum else _GROUPS_OF_A_REST
    story.say(wordings, a=a, b=b, c=per_group, xs=xs, x=x, p=p, q=q)
    groups = story.compute(a, "+" if is_sum else "-", b)
    story.value = story.compute(groups, "*", per_group)
    if story.is_likely(0.4) and "coins" not in story.sentences[-1]:
        event(story, COLLECTION)
    story.say(_ALL)
