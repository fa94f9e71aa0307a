"""Stories that one operation solves."""

from __future__ import annotations

from manyhands.tasks.arithmetic.templates.template import Template

ONE_STEP: tuple[Template, ...] = (
    Template(
        "gift",
        "{who} had {a:5-95} {things} and got {b:3-60} more from {friend}. How many {things} "
        "does {who} have now?",
        "a + b",
    ),
    Template(
        "gave_away",
        "{who} has {a:20-99} {things}. After giving {b:2-60} of them to {friend}, how many "
        "{things} does {who} have left?",
        "a - b",
    ),
    Template(
        "full_boxes",
        "There are {a:2-9} boxes on the table, and every box holds {b:2-12} {things}. How many "
        "{things} are there?",
        "a * b",
    ),
    Template(
        "two_collections",
        "{who} collected {a:5-99} {things} and {friend} collected {b:5-99}. How many {things} "
        "did they collect together?",
        "a + b",
    ),
    Template(
        "more_than_friend",
        "{who} has {a:30-99} {things} and {friend} has {b:2-70}. How many more {things} does "
        "{who} have than {friend}?",
        "a - b",
    ),
    Template(
        "bus_stop",
        "A bus left the station with {a:20-90} people. At the next stop, {b:2-30} more people "
        "got on. How many people are on the bus?",
        "a + b",
    ),
    Template(
        "long_book",
        "The book that {who} is reading has {a:80-250} pages, and so far {who} has read "
        "{b:10-99} of them. How many pages are left?",
        "a - b",
    ),
    Template(
        "rows_of_chairs",
        "In the school hall, {who} puts {a:3-9} rows of {b:4-12} chairs. How many chairs is "
        "that in all?",
        "a * b",
    ),
    Template(
        "show_tickets",
        "One ticket for the show costs {a:2-12} coins. {who} buys {b:2-9} tickets. How many "
        "coins does {who} pay?",
        "a * b",
    ),
    Template(
        "two_months",
        "{who} saved {a:10-99} coins in May and {b:10-99} coins in June. How many coins did "
        "{who} save in both months?",
        "a + b",
    ),
    Template(
        "not_enough",
        "A warm coat costs {a:20-99} coins, but {who} has only {b:2-80}. How many more coins "
        "does {who} need?",
        "a - b",
    ),
    Template(
        "broken_eggs",
        "The hens of {who} laid {a:10-90} eggs this week, and {b:2-40} of them broke. How many "
        "eggs are still whole?",
        "a - b",
    ),
    Template(
        "way_to_school",
        "It takes {who} {a:5-60} minutes to walk to school and {b:5-60} minutes to walk back. "
        "How many minutes is that in all?",
        "a + b",
    ),
    Template(
        "daily_run",
        "Every morning {who} runs {a:2-12} miles. How many miles does {who} run in {b:2-9} days?",
        "a * b",
    ),
    Template(
        "more_trees",
        "There were {a:5-99} trees in the park before {who} planted {b:2-60} more. How many "
        "trees are in the park now?",
        "a + b",
    ),
    Template(
        "shorter_rope",
        "A red rope is {a:40-99} feet long. A blue rope is {b:2-60} feet shorter. How many feet "
        "long is the blue rope?",
        "a - b",
    ),
    Template(
        "friend_plus",
        "{friend} owns {a:5-99} {things}. {who} owns {b:2-60} more than {friend}. How many "
        "{things} does {who} own?",
        "a + b",
    ),
    Template(
        "which_is_more",
        "{who} picked {a:30-99} flowers, which is {b:2-60} more than {friend} picked. How many "
        "flowers did {friend} pick?",
        "a - b",
    ),
    Template(
        "times_as_many",
        "{friend} found {a:2-12} {things} at the lake. {who} found {b:2-9} times as many. How "
        "many {things} did {who} find?",
        "a * b",
    ),
    Template(
        "photo_album",
        "{who} fills {a:2-9} pages of an album with {b:2-12} pictures on each page. How many "
        "pictures are in the album?",
        "a * b",
    ),
    Template(
        "sick_today",
        "A school has {a:60-250} students, but {b:2-50} of them are sick today. How many "
        "students came to school?",
        "a - b",
    ),
    Template(
        "two_rounds",
        "In a card game, {who} won {a:10-99} points in the first round and {b:10-99} in the "
        "second. What was the total score?",
        "a + b",
    ),
    Template(
        "bakery_day",
        "In the morning the bakery had {a:60-250} rolls. In the evening, {b:2-90} were left. "
        "How many rolls were sold?",
        "a - b",
    ),
    Template(
        "lost_some",
        "On the way home, {who} lost {a:2-60} of {b:20-99} {things}. How many {things} were not "
        "lost?",
        "b - a",
    ),
    Template(
        "reading_goal",
        "{who} wants to read {a:80-250} pages this week and still has {b:10-99} left. How many "
        "pages has {who} read so far?",
        "a - b",
        held_out=True,
    ),
    Template(
        "coin_box",
        "Every day {who} puts {a:2-12} coins in a box. How many coins are in the box after "
        "{b:2-9} days?",
        "a * b",
        held_out=True,
    ),
    Template(
        "on_the_table",
        "On the table there are {a:5-99} {things} from {who} and {b:5-99} from {friend}. How "
        "many {things} is that together?",
        "a + b",
        held_out=True,
    ),
)
