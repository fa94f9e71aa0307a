"""Stories that two operations solve, the second with the result of the first, p."""

from __future__ import annotations

from manyhands.tasks.arithmetic.templates.template import Template

TWO_STEPS: tuple[Template, ...] = (
    Template(
        "two_days_then_gift",
        "{who} bought {a:10-90} {things} on Monday and {b:10-90} on Tuesday, then gave {c:2-60} "
        "to {friend}. How many {things} does {who} have left?",
        "a + b; p - c",
    ),
    Template(
        "bags_and_drawer",
        "{who} has {a:2-9} bags with {b:2-12} {things} in each bag and {c:2-60} more in a "
        "drawer. How many {things} does {who} have?",
        "a * b; p + c",
    ),
    Template(
        "lost_from_boxes",
        "{who} packed {a:2-9} boxes with {b:2-12} {things} each. Later {c:2-40} of the {things} "
        "were lost. How many {things} remain?",
        "a * b; p - c",
    ),
    Template(
        "bus_off_and_on",
        "A bus was carrying {a:20-90} people. At the market, {b:2-40} people got off and "
        "{c:2-40} got on. How many people were then on the bus?",
        "a - b; p + c",
    ),
    Template(
        "ticket_change",
        "{who} has {a:50-150} coins and buys {b:2-9} tickets for {c:2-12} coins each. How many "
        "coins are left?",
        "b * c; a - p",
    ),
    Template(
        "pages_a_day",
        "{who} reads {a:2-12} pages every day for {b:2-9} days. The book has {c:60-250} pages. "
        "How many pages are left?",
        "a * b; c - p",
    ),
    Template(
        "cows_and_sheep",
        "A farmer had {a:10-90} cows and {b:10-90} sheep, then sold {c:2-60} of these animals. "
        "How many animals does the farmer have now?",
        "a + b; p - c",
    ),
    Template(
        "birds_in_tree",
        "There were {a:30-99} birds in a tree. First {b:2-40} flew away, and then {c:2-40} more "
        "flew away. How many birds stayed?",
        "a - b; p - c",
    ),
    Template(
        "eggs_for_cakes",
        "Each of the {a:2-9} hens laid {b:2-12} eggs. {who} used {c:2-40} eggs for cakes. How "
        "many eggs remain?",
        "a * b; p - c",
    ),
    Template(
        "friend_more_total",
        "{who} has {a:5-99} {things}. {friend} has {b:2-60} more than {who}. How many {things} "
        "do they have together?",
        "a + b; a + p",
    ),
    Template(
        "fish_fewer",
        "{who} caught {a:10-99} fish and {friend} caught {b:2-60} fewer than {who}. How many "
        "fish did they catch together?",
        "a - b; a + p",
    ),
    Template(
        "times_total",
        "{friend} has {a:2-12} {things}, and {who} has {b:2-9} times as many. How many {things} "
        "do the two of them have?",
        "a * b; a + p",
    ),
    Template(
        "bike_savings",
        "{who} wants a bike that costs {a:90-250} coins. {who} saved {b:10-90} coins and got "
        "{c:5-60} more as a gift. How many coins are still needed?",
        "b + c; a - p",
    ),
    Template(
        "train_seats",
        "A train has {a:2-9} cars with {b:2-12} seats each. Today {c:2-60} seats are taken. How "
        "many seats are free?",
        "a * b; p - c",
    ),
    Template(
        "piano_practice",
        "{who} played the piano for {a:5-90} minutes in the morning, {b:5-90} minutes at noon "
        "and {c:5-90} minutes at night. How many minutes was that in all?",
        "a + b; p + c",
    ),
    Template(
        "library_books",
        "The library had {a:60-250} books. It gave away {b:2-90} old books and bought {c:2-90} "
        "new ones. How many books are in the library now?",
        "a - b; p + c",
    ),
    Template(
        "rolls_sold",
        "A baker made {a:90-250} rolls and sold {b:10-90} before noon and {c:10-90} after noon. "
        "How many rolls were not sold?",
        "b + c; a - p",
    ),
    Template(
        "score_down_up",
        "{who} had {a:20-99} points in a game, then lost {b:2-60} points and won {c:2-60}. How "
        "many points does {who} have now?",
        "a - b; p + c",
    ),
    Template(
        "beans_and_onions",
        "{who} planted {a:2-9} rows of {b:2-12} beans and also {c:5-90} onions. How many plants "
        "is that in all?",
        "a * b; p + c",
    ),
    Template(
        "chain_of_beads",
        "The first jar holds {a:10-90} beads and the second holds {b:10-90}. {who} needs "
        "{c:10-90} beads for a chain. How many beads are left over?",
        "a + b; p - c",
    ),
    Template(
        "road_to_sea",
        "The road to the sea is {a:90-250} miles long. {who} drove {b:10-90} miles before lunch "
        "and {c:10-90} miles after lunch. How many miles are left?",
        "a - b; p - c",
    ),
    Template(
        "long_letters",
        "{who} wrote {a:2-9} letters of {b:2-12} pages each and one story of {c:5-90} pages. "
        "How many pages did {who} write?",
        "a * b; p + c",
    ),
    Template(
        "shirt_shop",
        "A shop sold {a:5-99} shirts on Friday. On Saturday it sold {b:2-60} more than on "
        "Friday. How many shirts did it sell on both days?",
        "a + b; a + p",
    ),
    Template(
        "cups_on_tables",
        "There are {a:2-9} tables with {b:2-12} cups on each. {who} takes {c:2-60} cups to the "
        "kitchen. How many cups stay on the tables?",
        "a * b; p - c",
    ),
    Template(
        "coat_and_cap",
        "A cap costs {a:5-90} coins. A coat costs {b:5-90} coins more than the cap. How many "
        "coins do the cap and the coat cost together?",
        "a + b; a + p",
    ),
    Template(
        "lamp_and_chair",
        "{who} bought a lamp for {a:5-90} coins and a chair for {b:5-90} coins, and paid with "
        "{c:50-200} coins. How many coins came back?",
        "a + b; c - p",
    ),
    Template(
        "work_week",
        "{who} works {a:2-9} hours a day for {b:2-9} days and then {c:2-30} more hours on "
        "Sunday. How many hours does {who} work?",
        "a * b; p + c",
    ),
    Template(
        "lost_and_found",
        "{who} lost {a:20-50} of {b:51-150} {things} and later found {c:2-19} of the lost ones. "
        "How many {things} does {who} have now?",
        "b - a; p + c",
    ),
    Template(
        "cut_rope",
        "From a rope of {a:60-200} feet, {who} cut a piece of {b:2-80} feet and then a piece of "
        "{c:2-80} feet. How many feet of rope remain?",
        "a - b; p - c",
    ),
    Template(
        "party_balloons",
        "For the party, {who} brought {a:5-90} red balloons and {b:5-90} blue balloons. During "
        "the games, {c:2-60} of them broke. How many balloons were still whole?",
        "a + b; p - c",
    ),
    Template(
        "red_and_blue_boxes",
        "{who} has {a:2-6} red boxes and {b:2-6} blue boxes. Each box holds {c:2-9} {things}. "
        "How many {things} are in the boxes?",
        "a + b; p * c",
    ),
    Template(
        "fewer_guests",
        "At first {a:5-20} children wanted to come to the party, but {b:2-12} were sick. Each "
        "of the others ate {c:2-9} cookies. How many cookies were eaten?",
        "a - b; p * c",
    ),
    Template(
        "drawer_coins",
        "{who} had {a:20-99} coins, paid {b:2-60} for a book and then found {c:2-60} in a "
        "drawer. How many coins does {who} have now?",
        "a - b; p + c",
        held_out=True,
    ),
    Template(
        "books_taken_home",
        "There are {a:2-9} boxes with {b:2-12} books in each of them. {friend} takes {c:2-60} "
        "books home. How many books stay in the boxes?",
        "a * b; p - c",
        held_out=True,
    ),
    Template(
        "fewer_on_tuesday",
        "On Monday {who} found {a:10-99} {things}. On Tuesday {who} found {b:2-60} fewer than "
        "on Monday. How many is that on both days?",
        "a - b; a + p",
        held_out=True,
    ),
)
