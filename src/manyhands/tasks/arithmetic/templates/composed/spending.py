"""Stories of what is taken from a store, a product at a time: coins for goods, things for groups.

"Ana has 120 coins and buys 4 cups for 9 coins each."      p = 4 * 9; q = 120 - p
"Then she pays 20 coins for a bowl."                       q - 20
"""

from __future__ import annotations

from manyhands.tasks.arithmetic.templates.composed.telling import Telling

_WARES = [
    "cups",
    "plates",
    "spoons",
    "bowls",
    "candles",
    "bottles",
    "notebooks",
    "cakes",
    "sandwiches",
    "juices",
    "chairs",
    "towels",
    "maps",
    "rides",
    "meals",
    "pens",
    "stamps",
    "flowers",
]
_ONE_MORE = [
    "a bowl",
    "a book",
    "a lamp",
    "a scarf",
    "lunch",
    "a drink",
    "a toy",
    "the bus",
    "a belt",
    "a game",
    "a map",
    "a gift",
]
_BUYS = (
    "{who} has {a} coins and buys {b} {xs} for {c} coins each.",
    "{who} has {a} coins. {who} buys {b} {xs} at {c} coins each.",
    "With {a} coins in the pocket, {who} pays for {b} {xs}, {c} coins each.",
    "{xs} cost {c} coins each. {who} has {a} coins and takes {b} of them.",
    "{who} goes to the market with {a} coins and gets {b} {xs} that cost {c} coins each.",
    "{who} took {a} coins along and spent {c} coins on each of {b} {xs}.",
    "For each of {b} {xs} {who} pays {c} coins, out of a purse of {a} coins.",
    "{friend} gave {who} {a} coins for {b} {xs}, and each of them costs {c} coins.",
    "{b} {xs} at {c} coins each are paid with {a} coins.",
    "{who} pays for {b} {xs} of {c} coins each and had {a} coins before.",
)
_AND_ONE_MORE = (
    "Then {who} pays {d} coins for {more}.",
    "{who} also pays {d} coins for {more}.",
    "After that, {d} coins go for {more}.",
    "{more} costs another {d} coins.",
    "{who} spends {d} more coins on {more}.",
)
_AND_GETS = (
    "Then {friend} gives {who} {d} coins.",
    "{who} finds {d} coins on the way home.",
    "After that {who} earns {d} coins.",
)
_LEFT_OF_COINS = (
    "How many coins are left?",
    "How many coins does {who} have left?",
    "How many coins remain?",
    "How many coins does {who} keep?",
    "How many coins come back?",
    "What is left, in coins?",
    "How many coins does {who} still have?",
)


def spends(story: Telling) -> None:
    """A number of coins, and goods at one price; then one more thing may be paid or come."""
    rng = story.rng
    b, c = story.factors()
    has = b * c + rng.randint(5, 150)
    story.say(_BUYS, a=has, b=b, c=c, xs=rng.choice(_WARES))
    story.value = story.compute(has, "-", story.compute(b, "*", c))
    if story.is_likely(0.45):
        number, is_cost = rng.randint(2, 60), story.is_likely(0.75)
        if is_cost:
            story.say(_AND_ONE_MORE, d=number, more=rng.choice(_ONE_MORE))
        else:
            story.say(_AND_GETS, d=number)
        story.change("-" if is_cost else "+", number)
    story.say(_LEFT_OF_COINS)


_TAKES = (
    "{who} has {a} {things} and gives {c} to each of {b} friends.",
    "From {a} {things}, {who} makes {b} chains of {c}.",
    "{who} had {a} {things} and put {c} into each of {b} bags.",
    "A shop has {a} {things}. {b} people buy {c} each.",
    "Of {a} {things}, {c} are lost on each of {b} days.",
    "{who} has {a} {things} and uses {c} a day for {b} days.",
    "There are {a} {things}. {who} packs {b} boxes with {c} in each.",
    "{b} birds steal {c} {things} each. Before, {who} had {a}.",
    "{who} starts with {a} {things} and sells {c} of them every day for {b} days.",
    "A road of {a} miles lies before {who}, who walks {c} miles a day for {b} days.",
    "A song book has {a} songs, and {who} learned {c} songs in each of {b} weeks.",
    "{who} wants {a} coins and saves {c} coins a week for {b} weeks.",
    "The class needs {a} chairs and brings {b} rows of {c}.",
)
_AND_TAKES = (
    "Then {d} more go.",
    "After that {d} others are taken away.",
    "Another {d} are taken off.",
    "Later it is {d} less again.",
)
_LEFT = (
    "How many are left?",
    "How many remain?",
    "How many is it still?",
    "How many are left over?",
    "What is the number that is left?",
    "How many are still to go?",
)


def takes(story: Telling) -> None:
    """A number of things, of which groups of one size are taken; then some more."""
    rng = story.rng
    b, c = story.factors()
    has = b * c + rng.randint(5, 150)
    story.say(_TAKES, a=has, b=b, c=c)
    story.value = story.compute(has, "-", story.compute(b, "*", c))
    if story.is_likely(0.35):
        number = rng.randint(2, 60)
        story.say(_AND_TAKES, d=number)
        story.change("-", number)
    story.say(_LEFT)
