"""A number of things, and what happens to it.

    scene       "Ana fills 4 jars with 9 beads each."        p = 4 * 9
    event       "Later 7 of them roll away."                 q = p - 7
    question    "How many beads does Ana have in the end?"   q

A story may end with a goal in place of that question: "Ana needs 80 beads. How many are missing?"
"""

from __future__ import annotations

from dataclasses import dataclass

from manyhands.tasks.arithmetic.templates.composed.telling import Telling

_MOST_STEPS = 3


@dataclass(frozen=True)
class World:
    """Something to count: how it begins, and what may happen to it."""

    begins: tuple[str, ...]  # {a}
    sums: tuple[str, ...]  # {a}, {b}
    products: tuple[str, ...]  # {a} times {b}
    gains: tuple[str, ...]  # {c}
    losses: tuple[str, ...]  # {c}
    questions: tuple[str, ...]


TOGETHER = "{who} and {friend} put their {things} together: {a} from {who} and {b} from {friend}."
_THEN = ("Then ", "After that ", "Later ", "The next day ", "In the evening ", "Afterwards ", "")
COLLECTION = World(
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
        TOGETHER,
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
_MONEY = World(
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
_PRICES = World(
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
_PEOPLE = World(
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
_WAY = World(
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
_WORLDS = (COLLECTION, COLLECTION, COLLECTION, _MONEY, _PRICES, _PEOPLE, _WAY)

# A goal ends a story: {goal} is more than what is there. Of things, of coins, of any other number.
_GOALS = (
    "{who} needs {goal} in all. How many are missing?",
    "{who} wants to have {goal}. How many more does {who} need?",
    "The goal is {goal}. How many are still to come?",
    "How many more would make it {goal}?",
    "{goal} are needed. How many are still missing?",
    "How many does {who} need to get to {goal}?",
    "{who} hopes for {goal}. How far is {who} from that?",
)
_GOALS_OF_COINS = (
    "A bicycle costs {goal} coins. How many coins are missing?",
    "{who} wants to buy a drum for {goal} coins. How many more coins does {who} need?",
    "How many coins does {who} still need for a coat that costs {goal} coins?",
    "{who} needs {goal} coins for a trip. How many coins are missing?",
    "The price of a tent is {goal} coins. How many coins must {who} still save?",
)
_CHANGE_BACK = (
    "{who} pays with {goal} coins. How many coins come back?",
    "How much change does {who} get for {goal} coins?",
    "{who} gives the seller {goal} coins. How many coins does {who} get back?",
    "{who} had {goal} coins before. How many coins does {who} keep?",
)
_DIFFERENCES = (
    "{who} has {a} {things} and {friend} has {b}. How many more does {who} have?",
    "{who} found {a} {things}, {friend} only {b}. By how many is {who} ahead?",
    "{friend} made {b} {things} and {who} made {a}. How many fewer did {friend} make?",
    "How many {things} does {friend} need to get from {b} to the {a} that {who} has?",
    "{who} wants {a} {things} and has {b}. How many are missing?",
    "Of {a} {things}, {b} are {friend}'s and the rest are {who}'s. How many are {who}'s?",
    "{who} bought {a} {things}. {b} were green and the others were white. How many were white?",
    "A box has room for {a} {things}, and {b} are in it. How many more fit in?",
    "{who} had {a} {things} last year and has {b} this year. How many did {who} lose?",
    "After a gift from {friend}, {who} has {a} {things}. Before it {who} had {b}. How many {things} did {friend} give?",
    "This morning there were {a} {things} in the shop, and tonight there are {b}. How many were sold today?",
    "{b} of the {a} pupils of a school are girls. How many are boys?",
    "{who} is on page {b} of a book of {a} pages. How many pages are to come?",
    "A bridge is {a} feet long and a boat {b} feet. How many feet longer is the bridge?",
    "{who} has read {b} pages less than {friend}, who has read {a}. How many pages has {who} read?",
    "A trip of {a} miles began this morning. {who} still has {b} miles to go. How many miles are behind {who}?",
    "{who} needs {a} coins and still lacks {b}. How many coins does {who} have?",
)
_THREE = (
    "{who} has {a} {things}, {friend} has {b} and {third} has {c}.",
    "There are {a} {things} in the first room, {b} in the second and {c} in the third.",
    "{who} found {a} {things} in May, {b} in June and {c} in July.",
    "On Monday {who} made {a} {things}, on Tuesday {b} and on Wednesday {c}.",
    "{who} owns {a} red, {b} green and {c} blue {things}.",
    "{who} bought {a} large {things}, {b} small ones and {c} old ones.",
    "Three boxes hold {a}, {b} and {c} {things}.",
    "{friend} gave {who} {a} {things}, {third} gave {b}, and {who} already had {c}.",
)
_OF_THREE = (
    "How many {things} is that in all?",
    "How many {things} are there altogether?",
    "What is the number of all {things}?",
    "How many {things} is that together?",
)


def changes(story: Telling) -> None:
    """A scene, and what happens; asked for what has become of it, or for what a goal lacks."""
    world = story.rng.choice(_WORLDS)
    scene(story, world)
    has_goal = world is not _PEOPLE and len(story.work) < _MOST_STEPS and story.is_likely(0.2)
    most = _MOST_STEPS - len(story.work) - has_goal
    for _ in range(story.rng.randint(min(not story.work, most), most)):
        event(story, world)
    if has_goal:
        asked = {id(_MONEY): _GOALS_OF_COINS, id(_PRICES): _CHANGE_BACK}.get(id(world), _GOALS)
        goal(story, asked)
    else:
        story.say(world.questions)


def differs(story: Telling) -> None:
    """Two numbers and what is between them."""
    a, b = story.rng.randint(20, 250), story.rng.randint(3, 99)
    story.compute(a, "-", b)
    story.say(_DIFFERENCES, a=a, b=b)


def three_numbers(story: Telling) -> None:
    """Three numbers together; then something happens, or a goal lacks some."""
    a, b, c = (story.rng.randint(3, 80) for _ in range(3))
    story.say(_THREE, a=a, b=b, c=c)
    story.value = story.compute(a, "+", b)
    story.change("+", c)
    if story.is_likely(0.4):
        story.say(_OF_THREE)
    elif story.is_likely(0.5):
        event(story, COLLECTION)
        story.say(_OF_THREE)
    else:
        goal(story, _GOALS)


def scene(story: Telling, world: World) -> None:
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
        a, b = story.factors()
        story.value = story.compute(a, "*", b)
    story.say(world.sums if kind == "sums" else world.products, a=a, b=b)


def event(story: Telling, world: World) -> None:
    """Something becomes more or less."""
    number = story.rng.randint(2, 60)
    is_gain = story.is_likely(0.5)
    then = story.rng.choice(_THEN)
    story.say((then + story.worded(world.gains if is_gain else world.losses, c=number),))
    story.change("+" if is_gain else "-", number)


def goal(story: Telling, wordings: tuple[str, ...]) -> None:
    """More is wanted, or was paid, than there is; the difference is asked for."""
    wanted = story.value + story.rng.randint(2, 120)
    story.compute(wanted, "-", story.value)
    story.say(wordings, goal=wanted)
