"""Stories put together of sentences: thousands of wordings where a list of templates has dozens.

A model that could read before learns the words of a template by heart when it meets few of them. So what it is
taught is composed: a scene gives a number (or two that make one), events change it, and a question asks for what
has become of it. Each part has many wordings, and any goes with any.

    scene       "Ana fills 4 jars with 9 beads each."        p = 4 * 9
    event       "Later 7 of them roll away."                 q = p - 7
    question    "How many beads does Ana have in the end?"   q

Nothing here is taken from the templates that are unseen (`words.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from random import Random

from manyhands.tasks.arithmetic.problem import LARGEST_RESULT, Problem

MOST_STEPS = 3
_OPERATIONS: dict[str, Callable[[int, int], int]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
}


@dataclass
class _Telling:
    """A story as far as it is told."""

    rng: Random
    who: str
    friend: str
    third: str
    things: str
    sentences: list[str] = field(default_factory=list)
    work: list[str] = field(default_factory=list)
    value: int = 0

    def say(self, wordings: Sequence[str], **numbers: object) -> None:
        """One of these sentences."""
        self.sentences.append(self.worded(wordings, **numbers))

    def worded(self, wordings: Sequence[str], **numbers: object) -> str:
        """One of these, with its gaps filled."""
        people = {"who": self.who, "friend": self.friend, "third": self.third}
        return self.rng.choice(wordings).format(**people, things=self.things, **numbers)

    def compute(self, left: int, sign: str, right: int) -> int:
        """A step of the work; its result."""
        result = _OPERATIONS[sign](left, right)
        self.work.append(f"{left}{sign}{right}={result}")
        return result

    def change(self, sign: str, number: int) -> None:
        """The number that is counted becomes more or less."""
        self.value = self.compute(self.value, sign, number)


@dataclass(frozen=True)
class _World:
    """Something to count: how it begins, and what may happen to it."""

    begins: tuple[str, ...]  # {a}
    sums: tuple[str, ...]  # {a}, {b}
    products: tuple[str, ...]  # {a} times {b}
    gains: tuple[str, ...]  # {c}
    losses: tuple[str, ...]  # {c}
    questions: tuple[str, ...]


_TOGETHER = "{who} and {friend} put their {things} together: {a} from {who} and {b} from {friend}."
_THEN = ("Then ", "After that ", "Later ", "The next day ", "In the evening ", "Afterwards ", "")
_COLLECTION = _World(
    begins=(
        "{who} has {a} {things}.",
        "{who} owns {a} {things}.",
        "At first {who} had {a} {things}.",
        "There are {a} {things} on the table of {who}.",
        "{who} starts the day with {a} {things}.",
        "{who} counts {a} {things} in a drawer.",
        "In the room of {who} there are {a} {things}.",
        "{who} brought {a} {things} to school.",
        "{who} keeps {a} {things} at home.",
        "A shop of {who} has {a} {things}.",
    ),
    sums=(
        "{who} has {a} red {things} and {b} blue ones.",
        "On Sunday {who} found {a} {things}, and on Monday {b} more.",
        "{who} got {a} {things} from {friend} and {b} from {third}.",
        "{who} has {a} {things} in one pocket and {b} in the other.",
        "There are {a} small {things} and {b} large {things} in the house of {who}.",
        _TOGETHER,
        "In the morning {who} made {a} {things}, and in the afternoon another {b}.",
    ),
    products=(
        "{who} fills {a} jars with {b} {things} each.",
        "{who} has {a} boxes, and there are {b} {things} in each of them.",
        "Each of the {a} baskets of {who} holds {b} {things}.",
        "{who} buys {a} packs of {b} {things}.",
        "{who} makes {b} {things} a day for {a} days.",
        "{a} friends of {who} bring {b} {things} each.",
        "{who} lays out {a} rows with {b} {things} in every row.",
        "Every week {who} gets {b} {things}, and {a} weeks have passed.",
        "{who} packs {b} {things} into each of {a} crates.",
        "There are {a} tables, and {who} puts {b} {things} on each one.",
    ),
    gains=(
        "{who} buys {c} more.",
        "{friend} gives {who} {c} {things}.",
        "{who} finds {c} more {things}.",
        "{who} wins {c} in a game.",
        "{c} more {things} come in the mail.",
        "{who} gets {c} {things} as a present.",
        "{who} picks up another {c}.",
        "{friend} adds {c} {things} of another colour.",
        "{who} borrows {c} from {friend}.",
        "an uncle of {who} brings {c} more.",
        "{who} makes {c} new {things}.",
        "{who} trades a pen for {c} {things}.",
        "{c} {things} are added.",
    ),
    losses=(
        "{who} gives {c} to {friend}.",
        "{who} loses {c} of them.",
        "{c} of the {things} break.",
        "{who} sells {c} at a fair.",
        "{friend} takes {c} of them home.",
        "{who} throws {c} away.",
        "{who} uses up {c}.",
        "{c} {things} get wet in the rain and are ruined.",
        "{who} hands out {c} {things} to the neighbours.",
        "{who} puts {c} of them aside for {friend}.",
        "{c} {things} disappear.",
        "{who} returns {c} {things} to {friend}.",
        "{who} mails {c} {things} to {friend}.",
        "a dog runs off with {c} of them.",
    ),
    questions=(
        "How many {things} does {who} have now?",
        "How many {things} does {who} have in the end?",
        "How many {things} are there now?",
        "How many {things} remain?",
        "With how many {things} does {who} end up?",
        "What is the number of {things} now?",
        "How many {things} is that?",
        "How many are there at last?",
    ),
)
_MONEY = _World(
    begins=(
        "{who} has {a} coins.",
        "{who} saved {a} coins.",
        "In the purse of {who} there are {a} coins.",
        "{who} gets {a} coins for a birthday.",
        "{who} takes {a} coins to the market.",
    ),
    sums=(
        "{who} earned {a} coins on Friday and {b} coins on Saturday.",
        "{who} has {a} coins in a purse and {b} coins in a tin.",
        "{who} gets {a} coins from {friend} and {b} from {third}.",
    ),
    products=(
        "{who} earns {b} coins an hour and works for {a} hours.",
        "{who} sells {a} cakes for {b} coins each.",
        "{who} saves {b} coins a week for {a} weeks.",
        "{a} guests pay {b} coins each to {who}.",
    ),
    gains=(
        "{friend} adds {c} coins.",
        "{who} finds {c} coins on the street.",
        "{who} gets {c} coins back.",
        "{who} also receives a tip of {c} coins.",
        "{who} sells an old lamp for {c} coins.",
        "{who} earns another {c} coins.",
    ),
    losses=(
        "{who} pays {c} coins for lunch.",
        "{who} spends {c} coins on a book.",
        "{who} lends {c} coins to {friend}.",
        "{who} drops {c} coins into a river.",
        "{c} coins go to a fund for the school.",
        "{who} buys a hat for {c} coins.",
        "the train takes {c} coins of that.",
    ),
    questions=(
        "How many coins is that in the end?",
        "How many coins are left?",
        "How many coins does that make?",
        "How much is it now, in coins?",
        "What is the amount now?",
    ),
)
_PRICES = _World(
    begins=(
        "A lamp costs {a} coins.",
        "The price of a coat is {a} coins.",
        "{who} has to pay {a} coins for a bicycle.",
    ),
    sums=(
        "A meal costs {a} coins, and the drinks cost {b} coins.",
        "{who} takes a chair for {a} coins and a desk for {b} coins.",
    ),
    products=(
        "One ride costs {b} coins, and {who} takes {a} rides.",
        "{who} orders {a} plates of soup at {b} coins a plate.",
        "A ticket is {b} coins, and {who} needs {a} of them.",
    ),
    gains=(
        "there is a fee of {c} coins on top.",
        "{who} adds a sandwich for {c} coins.",
        "the price rises by {c} coins.",
        "{c} coins have to be paid for the delivery.",
    ),
    losses=(
        "{who} gets {c} coins off.",
        "the shop takes {c} coins off the price.",
        "a voucher pays {c} coins of it.",
        "{friend} pays {c} coins of that.",
    ),
    questions=(
        "How many coins does {who} pay?",
        "How many coins is that in the end?",
        "What does it cost in all, in coins?",
    ),
)
_PEOPLE = _World(
    begins=(
        "{a} people sit in a hall.",
        "There are {a} people at the party of {who}.",
        "A boat carries {a} people.",
        "{a} children play in the park.",
        "{a} people wait in line for the museum.",
    ),
    sums=(
        "{a} boys and {b} girls play in a yard.",
        "{a} people came on foot and {b} by bike.",
        "One class has {a} pupils and the other has {b}.",
    ),
    products=(
        "{a} cars arrive with {b} people each.",
        "{a} benches seat {b} people each, and all are full.",
        "There are {a} teams of {b} players.",
        "In a camp {b} children sleep in each of {a} tents.",
    ),
    gains=(
        "{c} more come in.",
        "{c} others join them.",
        "{who} brings {c} friends along.",
        "another group of {c} arrives.",
        "{c} people get on.",
    ),
    losses=(
        "{c} of them go home.",
        "{c} people leave.",
        "{c} step out for a walk.",
        "{c} have to go.",
        "{c} of them get off.",
    ),
    questions=(
        "How many people are there now?",
        "How many are still there?",
        "How many is that at the end?",
        "How many stay?",
    ),
)
_WAY = _World(
    begins=(
        "A trail is {a} miles long.",
        "{who} has to drive {a} miles.",
        "The book of {who} has {a} pages.",
        "A film lasts {a} minutes.",
        "The rope of {who} measures {a} feet.",
        "{who} has {a} minutes for homework.",
    ),
    sums=(
        "{who} walks {a} miles and then rides {b} miles.",
        "{who} reads {a} pages before lunch and {b} pages after it.",
        "The bus takes {a} minutes and the train {b} minutes.",
        "{who} ties a rope of {a} feet to one of {b} feet.",
    ),
    products=(
        "{who} runs {b} miles a day for {a} days.",
        "{who} reads {b} pages every evening, {a} evenings in a row.",
        "A lesson takes {b} minutes, and {who} has {a} of them.",
        "{who} swims {a} lanes of {b} feet.",
    ),
    gains=(
        "{who} adds {c} more.",
        "another {c} come on top.",
        "it becomes {c} longer.",
        "{c} more are added at the end.",
    ),
    losses=(
        "{c} of these are done.",
        "{who} leaves out {c}.",
        "it is cut by {c}.",
        "{c} of them are already behind {who}.",
    ),
    questions=(
        "How many is it then?",
        "How many is that in all?",
        "What is the number now?",
        "How many are to count at the end?",
    ),
)
_WORLDS = (_COLLECTION, _COLLECTION, _COLLECTION, _MONEY, _PRICES, _PEOPLE, _WAY)
# Before a comparison the other one may not have a number already.
_OF_ONE = replace(_COLLECTION, sums=tuple(told for told in _COLLECTION.sums if told != _TOGETHER))

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
)
_DIFFERENCES = (
    "{who} has {a} {things} and {friend} has {b}. How many more does {who} have?",
    "{who} found {a} {things}, {friend} only {b}. By how many is {who} ahead?",
    "{friend} made {b} {things} and {who} made {a}. How many fewer did {friend} make?",
    "How many {things} does {friend} need to get from {b} to the {a} that {who} has?",
    "{who} wants {a} {things} and has {b}. How many are missing?",
    "Of {a} {things}, {b} are {friend}'s and the rest are {who}'s. How many are {who}'s?",
    "{who} bought {a} {things}. {b} were green and the others were white. How many were white?",
)


def composed(rng: Random, names: Sequence[str], things: Sequence[str]) -> Problem:
    """A fresh story of one to three steps, told of these people and things."""
    while True:
        who, friend, third = rng.sample(names, 3)
        story = _Telling(rng, who, friend, third, rng.choice(things))
        rng.choice((_changes, _changes, _changes, _compares, _differs, _both))(story)
        results = [int(line.partition("=")[2]) for line in story.work]
        if 1 <= len(results) <= MOST_STEPS and all(1 <= n <= LARGEST_RESULT for n in results):
            text = " ".join(story.sentences)
            return Problem(text, tuple(story.work), results[-1], kind="word", template="composed")


def _scene(story: _Telling, world: _World) -> None:
    """A beginning of one, two or no numbers to compute with."""
    rng = story.rng
    kind = rng.choice(("begins", "begins", "sums", "products", "products"))
    if kind == "begins":
        story.value = rng.randint(10, 150)
        story.say(world.begins, a=story.value)
        return
    if kind == "sums":
        a, b = rng.randint(3, 99), rng.randint(3, 99)
        story.value = story.compute(a, "+", b)
    else:
        a, b = rng.randint(2, 9), rng.randint(2, 12)
        story.value = story.compute(a, "*", b)
    story.say(world.sums if kind == "sums" else world.products, a=a, b=b)


def _event(story: _Telling, world: _World) -> None:
    """Something becomes more or less."""
    rng = story.rng
    number = rng.randint(2, 60)
    is_gain = rng.random() < 0.5
    then = rng.choice(_THEN)
    told = story.worded(world.gains if is_gain else world.losses, c=number)
    story.sentences.append(then + told if then else told[0].upper() + told[1:])
    story.change("+" if is_gain else "-", number)


def _changes(story: _Telling) -> None:
    """A scene, and what happens."""
    world = story.rng.choice(_WORLDS)
    _scene(story, world)
    for _ in range(story.rng.randint(not story.work, MOST_STEPS - len(story.work))):
        _event(story, world)
    story.say(world.questions)


def _compares(story: _Telling) -> None:
    """The things of another one, told by the first one's; asked for alone or for both together."""
    rng = story.rng
    _scene(story, _OF_ONE)
    first = story.value
    kind = rng.choice(("more", "fewer", "times", "twice"))
    number = {"times": rng.randint(3, 5), "twice": 2}.get(kind, rng.randint(2, 40))
    wordings = {"more": _MORE, "fewer": _FEWER, "times": _TIMES, "twice": _TWICE}[kind]
    story.say(wordings, c=number)
    sign = {"more": "+", "fewer": "-"}.get(kind, "*")
    second = story.compute(first, sign, number)
    if len(story.work) < MOST_STEPS and rng.random() < 0.5:
        story.compute(first, "+", second)
        story.say(_OF_BOTH)
    else:
        story.say(_OF_FRIEND)


def _differs(story: _Telling) -> None:
    """Two numbers and what is between them."""
    a, b = story.rng.randint(20, 150), story.rng.randint(3, 99)
    story.compute(a, "-", b)
    story.say(_DIFFERENCES, a=a, b=b)


def _both(story: _Telling) -> None:
    """Two products, together or one less the other."""
    rng = story.rng
    totals = []
    for name, others in ((story.who, "who"), (story.friend, "friend")):
        a, b = rng.randint(2, 9), rng.randint(2, 12)
        totals.append(story.compute(a, "*", b))
        told = story.worded(_COLLECTION.products[:7], a=a, b=b)
        story.sentences.append(told if others == "who" else told.replace(story.who, name))
    if rng.random() < 0.7 or totals[0] <= totals[1]:
        story.compute(totals[0], "+", totals[1])
        story.say(_OF_BOTH)
    else:
        story.compute(totals[0], "-", totals[1])
        story.say(("How many more {things} does {who} have than {friend}?",))
