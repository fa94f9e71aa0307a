"""Stories of many domains: a frame says what is computed, a domain gives its nouns and verbs.

    counted     sheep on a meadow: some come, some go; how many were there before
    rated       wheels of wagons, strings of violas: a number in each of so many
    worked      potatoes a minute, miles an hour: a number in each of so many hours
    measured    a tower and a mast: higher, lower, so many times as high
    divided     some of a number are awake, the others are asleep
    priced      what comes back, what is earned by a sale, a price that changes

A frame has its sentences in many forms, with the number told before the thing or behind it, in a clause of its own or
inside the question, with what is unknown at the end or at the beginning. Any form goes with any domain. In one story of
seven a sentence without a number stands between the others.
"""

from __future__ import annotations

from manyhands.tasks.arithmetic.templates.composed.domain_words import (
    ACTIVITIES,
    ASIDES,
    COUNTED,
    MEASURES,
    PARTS,
    RATES,
    WARES,
)
from manyhands.tasks.arithmetic.templates.composed.telling import Telling

_ASIDE = 0.15  # of the stories have a sentence without a number
_AGAIN = 0.4  # after a first event there is a second one


def _aside(story: Telling) -> None:
    if story.is_likely(_ASIDE):
        story.say(ASIDES)


# -- counted ---------------------------------------------------------------------------------------

_STARTS = (
    "There are {a} {xs} {place}.",
    "{a} {xs} are {place}.",
    "{place} there are {a} {xs}.",
    "{place}, {who} counts {a} {xs}.",
    "At noon {a} {xs} were {place}.",
    "{who} sees {a} {xs} {place}.",
    "The number of {xs} {place} is {a}.",
    "At first the {xs} {place} are {a}.",
    "In the beginning {who} finds {a} {xs} {place}.",
)
_EVENTS = (
    "{c} {move}.",
    "Then {c} {move}.",
    "An hour later {c} {move}.",
    "When a bell rings, {c} {move}.",
    "Because of the rain {c} {move}.",
    "After a while {c} {move}.",
    "{who} watches how {c} {move}.",
    "Soon {c} {move}.",
)
_NOW = (
    "How many {xs} are {place} now?",
    "How many {xs} are {place} in the end?",
    "How many {xs} are {place} after that?",
    "What is the number of {xs} {place} now?",
    "How many {xs} can {who} count now?",
    "{place}, how many {xs} are there now?",
)
_IF = (
    "If {c} {move}, how many {xs} are {place}?",
    "How many {xs} are {place} when {c} {move}?",
    "How many {xs} are {place} after {c} {move}?",
    "Now {c} {move}, so how many {xs} are {place}?",
    "Suppose {c} {move}. How many {xs} are {place} then?",
)
_BEFORE = (
    "After {c} {move}, {a} {xs} are {place}.",
    "{c} {move}, and now {a} {xs} are {place}.",
    "Now there are {a} {xs} {place}, since {c} {move}.",
    "{who} counts {a} {xs} {place} just after {c} {move}.",
    "There are {a} {xs} {place}. A moment ago {c} {move}.",
)
_HOW_MANY_BEFORE = (
    "How many {xs} were there before?",
    "How many {xs} were {place} before that?",
    "How many were there at first?",
    "With how many {xs} did it begin?",
)
_TWO_TIMES = (
    "In the morning {a} {xs} were {place}, and in the evening {b}.",
    "Yesterday {who} counted {a} {xs} {place}, today {b}.",
    "{a} {xs} were {place} on Monday. On Tuesday there were {b}.",
    "Of {a} {xs} {place}, {b} are still there.",
)
_HOW_MANY_LESS = (
    "How many fewer are there now?",
    "By how many did the number of {xs} fall?",
    "How many {xs} are gone?",
    "How many {xs} are not there any more?",
)


def counted(story: Telling) -> None:
    """Things in a place, of which some come and some go; or the number before that; or a fall."""
    rng = story.rng
    xs, place, comes, goes = rng.choice(COUNTED)
    gaps = {"xs": xs, "place": place}
    roll = rng.random()
    if roll < 0.2:
        number, is_gain = rng.randint(2, 60), story.is_likely(0.5)
        now = rng.randint(5, 140) + (number if is_gain else 0)
        story.say(_BEFORE, a=now, c=number, move=comes if is_gain else goes, **gaps)
        _aside(story)
        story.compute(now, "-" if is_gain else "+", number)
        story.say(_HOW_MANY_BEFORE, **gaps)
        return
    if roll < 0.3:
        before, now = rng.randint(60, 199), rng.randint(3, 58)
        story.say(_TWO_TIMES, a=before, b=now, **gaps)
        story.compute(before, "-", now)
        story.say(_HOW_MANY_LESS, **gaps)
        return
    story.value = rng.randint(30, 150)
    story.say(_STARTS, a=story.value, **gaps)
    _aside(story)
    num_events = 1 + story.is_likely(_AGAIN) + story.is_likely(0.15)
    for event in range(num_events):
        number, is_gain = rng.randint(2, 60), story.is_likely(0.5)
        words = {"c": number, "move": comes if is_gain else goes, **gaps}
        is_asked = event == num_events - 1 and story.is_likely(0.4)
        story.say(_IF if is_asked else _EVENTS, **words)
        story.change("+" if is_gain else "-", number)
        if is_asked:
            return
    story.say(_NOW, **gaps)


# -- rated -----------------------------------------------------------------------------------------

_RATES = (
    "Every {u} {has} {b} {ms}, and there are {a} {us}.",
    "There are {a} {us}. Every one of them {has} {b} {ms}.",
    "{a} {us} are here, and each {has} {b} {ms}.",
    "One {u} {has} {b} {ms}. {who} looks at {a} {us}.",
    "{who} knows that one {u} {has} {b} {ms}, and counts {a} {us}.",
    "Any {u} {has} {b} {ms}. There are {a} of these {us}.",
    "{who} sees {a} {us}, each of which {has} {b} {ms}.",
    "It is always {b} {ms} to one {u}. {who} thinks of {a} {us}.",
    "With {a} {us} there are {b} {ms} to each {u}.",
    "{b} {ms} belong to every {u}, and {who} finds {a} {us}.",
    "First {who} counts the {us}, which are {a}. Then {who} sees that each {u} {has} {b} {ms}.",
)
_RATED = (
    "How many {ms} is that?",
    "How many {ms} are there?",
    "How many {ms} are there in all?",
    "What is the number of {ms}?",
    "What number of {ms} does {who} get?",
    "How many {ms} do all the {us} make?",
)
_RATE_ASKED = (
    "One {u} {has} {b} {ms}. How many {ms} go with {a} {us}?",
    "If every {u} {has} {b} {ms}, how many {ms} belong to {a} {us}?",
    "Each {u} {has} {b} {ms}. What is the number of {ms} for {a} {us}?",
    "How many {ms} belong to {a} {us} if each {u} {has} {b} {ms}?",
    "How many {ms} are there with {a} {us} of {b} {ms} each?",
    "{who} asks how many {ms} go with {a} {us}. Each {u} {has} {b} {ms}. What is the answer?",
)
_SOME_MISSING = (
    "{c} of the {ms} are missing.",
    "But {c} {ms} are gone.",
    "{who} does not count {c} of the {ms}.",
    "Of these {ms}, {c} are left out.",
)
_SOME_BESIDES = (
    "{who} counts {c} more {ms} elsewhere.",
    "Besides, there are {c} other {ms}.",
    "{c} {ms} come on top of that.",
    "To these {who} adds {c} {ms}.",
)
_NEEDED = (
    "{who} needs {n} {ms}. How many are missing?",
    "It should be {n} {ms}. How many more {ms} does that take?",
    "How many more {ms} are needed to have {n}?",
    "The plan is {n} {ms}. By how many is that more?",
)
_TWO_RATES = (
    "One {u} {has} {b} {ms}. {who} has {a} {us} and {friend} has {c} {us}.",
    "{who} counts {a} {us} and then {c} more {us}. Each of them {has} {b} {ms}.",
    "There are {a} old {us} and {c} new ones, and every {u} {has} {b} {ms}.",
)


def rated(story: Telling) -> None:
    """So many units with a number in each; then some are missing, or come on top, or more are needed."""
    rng = story.rng
    u, us, has, ms = rng.choice(RATES)
    count, per = story.factors()
    gaps = {"u": u, "us": us, "has": has, "ms": ms}
    if story.is_likely(0.15):
        first, second, per = rng.randint(2, 6), rng.randint(2, 6), rng.randint(2, 9)
        story.say(_TWO_RATES, a=first, b=per, c=second, **gaps)
        story.compute(story.compute(first, "+", second), "*", per)
        story.say(_RATED, **gaps)
        return
    if story.is_likely(0.3):
        story.say(_RATE_ASKED, a=count, b=per, **gaps)
        story.compute(count, "*", per)
        return
    story.say(_RATES, a=count, b=per, **gaps)
    _aside(story)
    story.value = story.compute(count, "*", per)
    _changed_or_needed(story, gaps)


def _changed_or_needed(story: Telling, gaps: dict[str, str]) -> None:
    """A product loses something, or gains it, or lacks something of a goal; then the question."""
    if story.is_likely(0.5):
        number, is_gain = story.rng.randint(2, 40), story.is_likely(0.5)
        story.say(_SOME_BESIDES if is_gain else _SOME_MISSING, c=number, **gaps)
        story.change("+" if is_gain else "-", number)
    if story.is_likely(0.3):
        goal = story.value + story.rng.randint(2, 60)
        story.say(_NEEDED, n=goal, **gaps)
        story.value = story.compute(goal, "-", story.value)
    else:
        story.say(_RATED, **gaps)


# -- worked ----------------------------------------------------------------------------------------

_WORKS = (
    "{who} {does} {b} {ms} {per} for {a} {times}.",
    "For {a} {times} {who} {does} {b} {ms} {per}.",
    "{a} {times} pass, and in each of them {who} {does} {b} {ms}.",
    "{who} {does} {b} {ms} {per} and goes on for {a} {times}.",
    "It takes {a} {times}. {per}, {who} {does} {b} {ms}.",
    "{per} {who} {does} {b} {ms}, and that for {a} {times}.",
    "In {a} {times} {who} never stops, and {does} {b} {ms} {per}.",
    "{friend} looks on for {a} {times} while {who} {does} {b} {ms} {per}.",
)
_WORK_ASKED = (
    "{who} {does} {b} {ms} {per}. How many {ms} is that in {a} {times}?",
    "How many {ms} is it after {a} {times}, if {who} {does} {b} {ms} {per}?",
    "If {who} {does} {b} {ms} {per}, how many {ms} is that in {a} {times}?",
    "{who} {does} {b} {ms} {per}. After {a} {times}, how many {ms} is that?",
    "{per}, {who} {does} {b} {ms}. What is the number of {ms} in {a} {times}?",
)
_WORK_OF_TWO = (
    "{who} {does} {b} {ms} {per}, {friend} {does} {d} {ms} {per}, and both work for {a} {times}.",
    "For {a} {times} {who} {does} {b} {ms} {per} and {friend} {d}.",
    "{per} {who} {does} {b} {ms} and {friend} {does} {d}. They go on for {a} {times}.",
)


def worked(story: Telling) -> None:
    """A number of things in each of so many hours; of one person, or of two who work side by side."""
    rng = story.rng
    does, ms, per, times = rng.choice(ACTIVITIES)
    gaps = {"does": does, "ms": ms, "per": per, "times": times, "us": times}
    count, each = story.factors()
    roll = rng.random()
    if roll < 0.2:
        first, second = rng.randint(2, 6), rng.randint(2, 6)
        count = rng.randint(2, 9)
        story.say(_WORK_OF_TWO, a=count, b=first, d=second, **gaps)
        story.compute(story.compute(first, "+", second), "*", count)
        story.say(_RATED[:4], **gaps)
    elif roll < 0.45:
        story.say(_WORK_ASKED, a=count, b=each, **gaps)
        story.compute(count, "*", each)
    else:
        story.say(_WORKS, a=count, b=each, **gaps)
        _aside(story)
        story.value = story.compute(count, "*", each)
        _changed_or_needed(story, gaps)


# -- measured --------------------------------------------------------------------------------------

_SECOND_IS_MORE = (
    "{x} is {a} {unit} {adj}. {y} is {c} {unit} {more}.",
    "{y} is {c} {unit} {more} than {x}, which is {a} {unit} {adj}.",
    "{x} is {a} {unit} {adj} and {c} {unit} {less} than {y}.",
    "{x} has {a} {unit}, and {y} has {c} {unit} more.",
    "{x}, {a} {unit} {adj}, is {c} {unit} {less} than {y}.",
    "{who} measures {a} {unit} at {x}, and {c} {unit} more at {y}.",
    "If {x} were {c} {unit} {more}, it would be as {adj} as {y}. {x} is {a} {unit} {adj}.",
)
_TIMES_AS = (
    "{x} is {a} {unit} {adj}, and {y} is {c} times as {adj}.",
    "{y} is {c} times as {adj} as {x}. {x} is {a} {unit} {adj}.",
    "{who} measures {a} {unit} at {x}. {y} is {c} times as {adj}.",
)
_MEASURE_OF_SECOND = (
    "How many {unit} is {y}?",
    "How {adj} is {y}, in {unit}?",
    "What does {who} measure at {y}, in {unit}?",
    "How many {unit} does {y} have?",
)
_BOTH_MEASURES = (
    "{x} is {a} {unit} {adj} and {y} is {b} {unit} {adj}.",
    "{x} is {a} {unit} {adj}, {y} {b}.",
    "{who} measures {a} {unit} at {x} and {b} {unit} at {y}.",
    "{a} {unit} is what {x} has, and {b} {unit} is what {y} has.",
)
_DIFFERENCE = (
    "By how many {unit} is {x} {more}?",
    "How many {unit} is {y} {less} than {x}?",
    "What is the difference in {unit}?",
    "How many {unit} are between the two?",
)
_MEASURES_TOGETHER = (
    "How many {unit} are the two together?",
    "What do both have together, in {unit}?",
    "How many {unit} is that if both are added?",
)


def measured(story: Telling) -> None:
    """Two measures of which one is told by the other; their difference; both together."""
    rng = story.rng
    x, y, unit, adj, more, less = rng.choice(MEASURES)
    if story.is_likely(0.5):
        x, y = y, x
    gaps = {"x": x, "y": y, "unit": unit, "adj": adj, "more": more, "less": less}
    roll = rng.random()
    if roll < 0.3:
        large, small = sorted((rng.randint(3, 199), rng.randint(3, 199)), reverse=True)
        if large == small:
            large += 1
        story.say(_BOTH_MEASURES, a=large, b=small, **gaps)
        is_sum = story.is_likely(0.3)
        story.compute(large, "+" if is_sum else "-", small)
        story.say(_MEASURES_TOGETHER if is_sum else _DIFFERENCE, **gaps)
        return
    if roll < 0.45:
        number, first = story.factors()
        story.say(_TIMES_AS, a=first, c=number, **gaps)
        second = story.compute(first, "*", number)
    else:
        number, first = rng.randint(2, 40), rng.randint(45, 150)
        is_less = story.is_likely(0.5)
        if is_less:  # the same sentences with the two words exchanged
            gaps |= {"more": less, "less": more}
        wordings = [told for told in _SECOND_IS_MORE if not is_less or "more at" not in told]
        wordings = [told for told in wordings if not is_less or "{unit} more" not in told]
        story.say(wordings, a=first, c=number, **gaps)
        second = story.compute(first, "-" if is_less else "+", number)
    if story.is_likely(0.3):
        story.compute(first, "+", second)
        story.say(_MEASURES_TOGETHER, **gaps)
    else:
        story.say(_MEASURE_OF_SECOND, **gaps)


# -- divided ---------------------------------------------------------------------------------------

_OF_A_WHOLE = (
    "Of {a} {xs} {place}, {b} are {p}, and the others are {q}.",
    "{a} {xs} are {place}. {b} of them are {p} and the rest are {q}.",
    "There are {a} {xs} {place}, all of them {p} or {q}. {who} counts {b} that are {p}.",
    "{b} of the {a} {xs} {place} are {p}. All others are {q}.",
    "{place} are {a} {xs}. Those that are not {p} are {q}, and {b} are {p}.",
)
_OTHER_PART = (
    "How many {xs} are {q}?",
    "How many are {q}?",
    "What is the number of {xs} that are {q}?",
    "How many of the {xs} are {q}?",
)
_TWO_PARTS = (
    "{a} {xs} {place} are {p} and {b} are {q}.",
    "{place}, {a} {xs} are {p} and {b} {xs} are {q}.",
    "{who} counts {a} {xs} that are {p} and {b} that are {q}.",
    "Some {xs} are {p}, {a} to be exact. Another {b} are {q}.",
)
_WHOLE = (
    "How many {xs} is that?",
    "How many {xs} are there in all?",
    "How many {xs} are there, be they {p} or {q}?",
    "What is the number of all {xs}?",
)
_BECOME = (
    "Then {c} of the {q} ones are {p} too.",
    "Now {c} that were {q} become {p}.",
    "A little later {c} more are {p}.",
)


def divided(story: Telling) -> None:
    """A part of a whole is told and the other part asked for, or both are told and the whole is asked for."""
    rng = story.rng
    xs, place, comes, goes = rng.choice(COUNTED)
    p, q = rng.choice(PARTS)
    if story.is_likely(0.5):
        p, q = q, p
    gaps = {"xs": xs, "place": place, "p": p, "q": q}
    if story.is_likely(0.35):
        first, second = rng.randint(2, 120), rng.randint(2, 120)
        story.say(_TWO_PARTS, a=first, b=second, **gaps)
        story.value = story.compute(first, "+", second)
        if story.is_likely(0.4):
            number, is_gain = rng.randint(2, 40), story.is_likely(0.5)
            story.say(_EVENTS, c=number, move=comes if is_gain else goes, **gaps)
            story.change("+" if is_gain else "-", number)
            story.say(_NOW, **gaps)
        else:
            story.say(_WHOLE, **gaps)
        return
    whole, part = rng.randint(60, 180), rng.randint(2, 30)
    story.say(_OF_A_WHOLE, a=whole, b=part, **gaps)
    _aside(story)
    story.value = story.compute(whole, "-", part)
    if story.is_likely(0.35):
        number = rng.randint(2, 28)
        story.say(_BECOME, c=number, **gaps)
        story.change("-", number)
    story.say(_OTHER_PART, **gaps)


# -- priced ----------------------------------------------------------------------------------------

_PAYS_WITH = (
    "{who} pays for {ware} with {a} coins. It costs {b}.",
    "{Ware} costs {b} coins, and {who} gives {a} coins to the seller.",
    "For {ware} of {b} coins {who} lays {a} coins on the counter.",
    "{who} hands over {a} coins for {ware}, which costs only {b} coins.",
)
_COMES_BACK = (
    "How many coins come back?",
    "How many coins does {who} get back?",
    "What is the change, in coins?",
)
_SALE = (
    "{who} bought {ware} for {b} coins and sold it for {a}.",
    "{who} sells {ware} for {a} coins. Before, {who} had paid {b} coins for it.",
    "{Ware} cost {who} {b} coins, and {friend} pays {a} coins for it now.",
)
_EARNED = (
    "How many coins does {who} gain?",
    "How many coins does {who} earn by that?",
    "By how many coins is {who} richer?",
)
_PRICE = (
    "{Ware} costs {a} coins.",
    "The price of {ware} is {a} coins.",
    "{who} looks at {ware} for {a} coins.",
    "Last year {ware} cost {a} coins.",
    "A shop asks {a} coins for {ware}.",
)
_PRICE_RISES = (
    "Then the price goes up by {c} coins.",
    "Now it costs {c} coins more.",
    "The tax on it is another {c} coins.",
    "Sending it home adds {c} coins.",
)
_PRICE_FALLS = (
    "Then the price goes down by {c} coins.",
    "Now it is {c} coins cheaper.",
    "{friend} talks the seller into {c} coins less.",
    "With a voucher it costs {c} coins less.",
)
_PRICE_ASKED = (
    "What does it cost now, in coins?",
    "How many coins does {who} pay?",
    "How many coins is it now?",
    "What is the price now, in coins?",
)


def priced(story: Telling) -> None:
    """Coins that come back, the gain of a sale, a price after it has changed."""
    rng = story.rng
    ware = rng.choice(WARES)
    gaps = {"ware": ware, "Ware": ware[0].upper() + ware[1:]}
    roll = rng.random()
    if roll < 0.5:
        small = rng.randint(3, 120)
        large = small + rng.randint(2, 80)
        is_change = roll < 0.25
        story.say(_PAYS_WITH if is_change else _SALE, a=large, b=small, **gaps)
        _aside(story)
        story.value = story.compute(large, "-", small)
        story.say(_COMES_BACK if is_change else _EARNED, **gaps)
        return
    story.value = rng.randint(40, 160)
    story.say(_PRICE, a=story.value, **gaps)
    _aside(story)
    for _ in range(1 + story.is_likely(_AGAIN)):
        number, is_rise = rng.randint(2, 35), story.is_likely(0.5)
        story.say(_PRICE_RISES if is_rise else _PRICE_FALLS, c=number, **gaps)
        story.change("+" if is_rise else "-", number)
    story.say(_PRICE_ASKED, **gaps)
