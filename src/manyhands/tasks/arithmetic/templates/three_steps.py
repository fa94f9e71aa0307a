"""Stories that three operations solve; the results of the first two are p and q."""

from __future__ import annotations

from manyhands.tasks.arithmetic.templates.template import Template

THREE_STEPS: tuple[Template, ...] = (
    Template(
        "bags_and_boxes",
        "{who} bought {a:2-9} bags of {b:2-12} {things} and {c:2-9} boxes of {d:2-12} {things}. "
        "How many {things} did {who} buy in all?",
        "a * b; c * d; p + q",
    ),
    Template(
        "many_changes",
        "{who} had {a:10-90} {things}, found {b:2-60} more, lost {c:2-60} and then gave "
        "{d:2-60} to {friend}. How many {things} does {who} have now?",
        "a + b; p - c; q - d",
    ),
    Template(
        "child_tickets",
        "A child pays {a:2-12} coins for the train and a parent pays {b:2-12} coins. How many "
        "coins do {c:2-9} children and {d:2-9} parents pay together?",
        "a * c; b * d; p + q",
    ),
    Template(
        "train_stops",
        "A train left with {a:30-99} people. At the first stop {b:2-60} people got off. At the "
        "second stop {c:2-60} got on and {d:2-60} got off. How many people stayed on the train?",
        "a - b; p + c; q - d",
    ),
    Template(
        "shirts_and_hat",
        "{who} has {a:90-250} coins, buys {b:2-9} shirts for {c:2-12} coins each and then a hat "
        "for {d:2-60} coins. How many coins are left?",
        "b * c; a - p; q - d",
    ),
    Template(
        "three_friends",
        "{friend} has {a:5-80} {things}. {who} has {b:2-40} more than {friend}. {third} has "
        "{c:2-40} fewer than {who}. How many do {who} and {third} have together?",
        "a + b; p - c; p + q",
    ),
    Template(
        "farm_eggs",
        "On a farm, {a:2-9} hens laid {b:2-12} eggs each. {who} sold {c:2-40} eggs and used "
        "{d:2-40} for a cake. How many eggs are left?",
        "a * b; p - c; q - d",
    ),
    Template(
        "three_shelves",
        "There are {a:5-90} books on the first shelf, {b:5-90} on the second and {c:5-90} on "
        "the third. {who} takes {d:2-90} books home. How many books remain on the shelves?",
        "a + b; p + c; q - d",
    ),
    Template(
        "two_runners",
        "{who} ran {a:2-12} miles a day for {b:2-9} days, and {friend} ran {c:2-12} miles a day "
        "for {d:2-9} days. How many more miles did {who} run than {friend}?",
        "a * b; c * d; p - q",
    ),
    Template(
        "trays_of_rolls",
        "A baker filled {a:2-9} trays with {b:2-12} rolls each. In the morning {c:2-40} rolls "
        "were sold, and after noon {d:2-40} more. How many rolls were not sold?",
        "a * b; p - c; q - d",
    ),
    Template(
        "painting_class",
        "A painting class has {a:2-9} tables with {b:2-12} students at each. Then {c:2-60} "
        "students go home and {d:2-60} new ones come. How many students are in the class now?",
        "a * b; p - c; q + d",
    ),
    Template(
        "drum_savings",
        "{who} saved {a:10-80} coins in May, {b:10-80} in June and {c:10-80} in July. A drum "
        "costs {d:90-280} coins. How many coins does {who} still need?",
        "a + b; p + c; d - q",
    ),
    Template(
        "more_on_tuesday",
        "{who} read {a:10-80} pages on Monday, and on Tuesday {b:2-40} more than on Monday. The "
        "book has {c:90-280} pages. How many pages are left?",
        "a + b; a + p; c - q",
    ),
    Template(
        "two_gardens",
        "In the garden there are {a:2-9} rows of {b:2-12} red flowers and {c:2-9} rows of "
        "{d:2-12} white flowers. How many flowers are in the garden?",
        "a * b; c * d; p + q",
    ),
    Template(
        "free_chairs",
        "A hall had {a:2-9} rows of {b:2-12} chairs. {who} put in {c:2-60} more chairs, and "
        "then {d:2-90} people came and each took a chair. How many chairs are free?",
        "a * b; p + c; q - d",
    ),
    Template(
        "slow_trip",
        "{who} spent {a:5-80} minutes on the bus, {b:5-80} minutes on the train and {c:5-80} "
        "minutes on foot. The trip of {friend} was {d:2-90} minutes shorter. How many minutes "
        "did {friend} need?",
        "a + b; p + c; q - d",
    ),
    Template(
        "fish_back",
        "{who} caught {a:5-80} fish, and {friend} caught {b:2-40} more than {who}. They put "
        "{c:2-80} fish back in the lake. How many fish did they keep?",
        "a + b; a + p; q - c",
    ),
    Template(
        "chains_and_rings",
        "{who} makes {a:2-9} chains of {b:2-12} beads each and needs {c:2-60} more beads for a "
        "ring. Before, there were {d:60-280} beads. How many beads remain?",
        "a * b; p + c; d - q",
    ),
    Template(
        "letters_to_carry",
        "This morning {who} had {a:90-250} letters to carry. {who} took {b:2-12} letters to "
        "each of {c:2-9} shops and {d:2-90} letters to the school. How many letters are left?",
        "b * c; a - p; q - d",
    ),
    Template(
        "cakes_and_pies",
        "One cake needs {a:2-6} eggs and one pie needs {b:2-6} eggs. {who} makes {c:2-9} cakes "
        "and {d:2-9} pies. How many eggs does {who} need?",
        "a * c; b * d; p + q",
    ),
    Template(
        "fruit_market",
        "{who} picked {a:10-99} pears and {friend} picked {b:10-99}. Together they ate {c:2-30} "
        "pears and sold {d:2-90} at the market. How many pears are left?",
        "a + b; p - c; q - d",
    ),
    Template(
        "bags_left",
        "{who} bought {a:5-20} bags and gave {b:2-12} of them to {friend}. Each bag left holds "
        "{c:2-9} {things}. {who} takes out {d:2-40} of these. How many {things} stay in the "
        "bags?",
        "a - b; p * c; q - d",
    ),
    Template(
        "boys_and_girls",
        "To a party came {a:2-6} boys and {b:2-6} girls, and each child ate {c:2-9} cookies. "
        "Before the party there were {d:40-200} cookies. How many cookies remain?",
        "a + b; p * c; d - q",
    ),
    Template(
        "paid_by_hour",
        "{who} earns {a:2-9} coins an hour and worked {b:2-6} hours on Friday and {c:2-6} hours "
        "on Saturday. Then {who} paid {d:2-60} coins for a gift. How many coins are left?",
        "b + c; a * p; q - d",
    ),
    Template(
        "two_shops",
        "A shop sold {a:2-9} boxes of {b:2-12} {things} on Friday and {c:2-9} boxes of {d:2-12} "
        "{things} on Saturday. How many more {things} were sold on Friday?",
        "a * b; c * d; p - q",
        held_out=True,
    ),
    Template(
        "gift_for_friend",
        "{who} earns {a:2-12} coins a day. After {b:2-9} days of work, {who} got {c:2-60} coins "
        "from {friend} and paid {d:2-90} for a lamp. How many coins does {who} have left?",
        "a * b; p + c; q - d",
        held_out=True,
    ),
    Template(
        "bus_to_the_sea",
        "A bus to the sea had {a:5-80} children and {b:5-80} parents on it. On the way {c:2-60} "
        "people got on and {d:2-60} got off. How many people came to the sea?",
        "a + b; p + c; q - d",
        held_out=True,
    ),
)
