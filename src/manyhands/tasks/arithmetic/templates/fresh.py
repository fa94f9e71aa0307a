"""Forty-two stories for an exam alone: nothing was ever taught with them.

They were written when the sentences of composed stories were fixed, and before the training that these are for; none was
changed after a model had read it. So they show how far a model gets with stories of an author's own choice, whatever
kinds of stories it was taught. Names and things are those that are unseen (`words.py`).
"""

from __future__ import annotations

from manyhands.tasks.arithmetic.templates.template import Template

FRESH: tuple[Template, ...] = (
    # -- one operation
    Template(
        "museum_bus",
        "The school rents {a:2-9} small buses for the museum. If {b:4-12} pupils ride in each bus, how "
        "many pupils are going?",
        "a * b",
    ),
    Template(
        "thermometer",
        "At noon the water in the lake was at {a:15-30} degrees. By midnight it was {b:2-12} degrees "
        "colder. How many degrees did the water have at midnight?",
        "a - b",
    ),
    Template(
        "choir_joins",
        "The choir had {a:12-60} singers in winter. In spring {b:2-30} new singers joined. How large is the "
        "choir now?",
        "a + b",
    ),
    Template(
        "wall_of_bricks",
        "{who} is building a garden wall. Every layer takes {a:4-12} bricks and the wall will be {b:2-9} "
        "layers high. How many bricks does {who} need?",
        "a * b",
    ),
    Template(
        "parking_lot",
        "A parking lot has room for {a:60-250} cars. Right now {b:10-59} cars are parked there. How many "
        "places are empty?",
        "a - b",
    ),
    Template(
        "taller_sister",
        "{who} is {a:90-150} centimeters tall. {friend} is {b:2-40} centimeters taller. How tall is "
        "{friend}, in centimeters?",
        "a + b",
    ),
    Template(
        "kitten_weight",
        "A kitten weighs {a:40-99} ounces and a puppy weighs {b:100-250} ounces. How many ounces heavier "
        "is the puppy?",
        "b - a",
    ),
    Template(
        "muffin_tins",
        "One muffin tin makes {a:4-12} muffins. {who} fills {b:2-9} tins for the school fair. How many "
        "muffins will there be?",
        "a * b",
    ),
    Template(
        "phone_battery",
        "The phone of {who} showed {a:50-99} percent in the morning. During the day it dropped by "
        "{b:5-45}. What does it show in the evening?",
        "a - b",
    ),
    Template(
        "two_classes_trip",
        "Two classes go to the theater together, one with {a:15-35} students and one with {b:15-35}. How "
        "many seats must be kept for the students?",
        "a + b",
    ),
    Template(
        "puzzle_done",
        "A puzzle has {a:100-280} pieces. {who} still has {b:10-90} pieces in the box. How many pieces are "
        "already in place?",
        "a - b",
    ),
    Template(
        "feeding_fish",
        "The aquarium gives each of its {a:2-9} seals {b:3-12} fish for breakfast. How many fish are eaten "
        "at breakfast?",
        "a * b",
    ),
    Template(
        "borrowed_more",
        "Last month people borrowed {a:40-150} films from the library, and this month they borrowed "
        "{b:5-90} more than last month. How many films was that this month?",
        "a + b",
    ),
    Template(
        "older_neighbor",
        "The neighbor of {who} is {a:50-95} years old and {who} is {b:7-40}. How many years lie between "
        "them?",
        "a - b",
    ),
    # -- two operations
    Template(
        "school_lunch",
        "{a:40-150} children eat in the school kitchen today. {b:10-39} of them want soup and {c:2-20} only "
        "want salad. The others take noodles. How many plates of noodles are needed?",
        "a - b; p - c",
    ),
    Template(
        "cinema_rows",
        "A small cinema has {a:3-9} rows with {b:5-12} chairs in each row. {c:3-14} chairs are being "
        "repaired. How many people can sit down?",
        "a * b; p - c",
    ),
    Template(
        "pizza_evening",
        "{who} orders {a:2-8} pizzas, and each is cut into {b:4-12} slices. The guests leave {c:2-7} slices "
        "over. How many slices did they eat?",
        "a * b; p - c",
    ),
    Template(
        "stamps_two_books",
        "There are {a:20-90} stamps in the first book of {who}. The second book holds {b:5-60} stamps more "
        "than the first one. How many stamps are in both books?",
        "a + b; a + p",
    ),
    Template(
        "taxi_ride",
        "A taxi asks for {a:3-15} coins to get in and {b:2-9} coins for every mile. How many coins does a "
        "ride of {c:2-12} miles cost?",
        "b * c; p + a",
    ),
    Template(
        "hill_walk",
        "From the village to the top of the hill it is {a:60-200} minutes. {who} has walked {b:10-40} "
        "minutes, rested, and walked {c:5-19} more. How many minutes of walking are still ahead?",
        "b + c; a - p",
    ),
    Template(
        "candle_sale",
        "On Saturday {who} sold {a:3-12} candles and on Sunday {b:2-9} candles fewer. Altogether, how many "
        "candles were sold that weekend?",
        "a - b; a + p",
    ),
    Template(
        "guitar_money",
        "{who} gets {a:3-12} coins for each lawn. After {b:2-9} lawns, how many coins are still missing for "
        "a guitar of {c:110-250} coins?",
        "a * b; c - p",
    ),
    Template(
        "bird_house_nails",
        "A bird house takes {a:5-12} nails. {who} and {friend} want to make {b:2-9} of them and have a bag "
        "of {c:110-250} nails. How many nails will be in the bag afterwards?",
        "a * b; c - p",
    ),
    Template(
        "ferry_cars",
        "A ferry leaves with {a:20-80} cars. On the first island {b:5-19} cars drive off, and {c:2-40} other "
        "cars drive on. How many cars are on the ferry then?",
        "a - b; p + c",
    ),
    Template(
        "team_shirts",
        "A club has {a:5-11} swimmers, and {b:2-4} of them do not need a new shirt. Shirts cost {c:3-9} "
        "coins each. How much does the club pay for shirts?",
        "a - b; p * c",
    ),
    Template(
        "sunflowers",
        "{friend} planted {a:2-9} sunflowers. {who} planted {b:2-9} times as many as {friend}. How many "
        "sunflowers did they plant between them?",
        "a * b; a + p",
    ),
    Template(
        "recipe_eggs",
        "One omelet is made of {a:2-6} eggs, and {who} wants to cook {b:2-9} omelets. In the fridge are "
        "{c:60-99} eggs. How many eggs stay in the fridge?",
        "a * b; c - p",
    ),
    Template(
        "marathon_days",
        "In three days {who} ran {a:5-40}, {b:5-40} and {c:5-40} miles. How many miles did {who} run in "
        "these days?",
        "a + b; p + c",
    ),
    # -- three operations
    Template(
        "market_stall",
        "At the market {who} sells {a:2-9} baskets of plums for {b:3-12} coins each and {c:2-9} jars of "
        "honey for {d:3-12} coins each. How many coins does {who} take in?",
        "a * b; c * d; p + q",
    ),
    Template(
        "train_to_coast",
        "{a:60-120} people sit in a train to the coast. At one station {b:5-30} leave it and {c:5-40} "
        "enter, and at the next station {d:5-25} leave it. How many people reach the coast?",
        "a - b; p + c; q - d",
    ),
    Template(
        "two_bakers",
        "{who} bakes {a:5-12} loaves an hour and works for {b:4-9} hours. {friend} bakes {c:2-6} loaves an "
        "hour for {d:2-3} hours. How many loaves more does {who} bake?",
        "a * b; c * d; p - q",
    ),
    Template(
        "birthday_purse",
        "For a birthday {who} received {a:20-60} coins from {friend} and {b:20-60} coins from {third}. Then "
        "{who} bought a game for {c:5-20} coins and a cap for {d:3-19}. How many coins remained?",
        "a + b; p - c; q - d",
    ),
    Template(
        "orchard_crates",
        "In an orchard, {a:3-9} workers each filled {b:4-12} crates. Later {c:3-11} crates were driven to the "
        "shop and {d:2-40} empty ones filled. How many full crates stand in the orchard?",
        "a * b; p - c; q + d",
    ),
    Template(
        "zoo_family",
        "The zoo takes {a:5-12} coins from a grown person and {b:2-6} coins from a child. What do {c:2-5} "
        "grown persons and {d:2-9} children have to pay together?",
        "a * c; b * d; p + q",
    ),
    Template(
        "paint_cans",
        "{who} had {a:4-12} cans of paint and was given {b:2-8} more by {friend}, then used up {c:2-5} of "
        "them. Each can is enough for {d:2-9} chairs. How many chairs can {who} still paint?",
        "a + b; p - c; q * d",
    ),
    Template(
        "snow_days",
        "In January it snowed on {a:8-20} days. In February there were {b:2-7} snowy days fewer, and in March "
        "{c:2-5} fewer than in February. On how many days did it snow in January and March?",
        "a - b; p - c; a + q",
    ),
    Template(
        "class_trip_fund",
        "A class needs {a:150-280} coins for a trip. It earned {b:20-60} coins with a concert, and a cake "
        "sale brought {c:5-30} coins more than the concert. How many coins are missing?",
        "b + c; b + p; a - q",
    ),
    Template(
        "boxes_by_truck",
        "A truck brings {a:2-9} pallets with {b:4-12} boxes each, and a van brings {c:5-40} boxes. Of these "
        "boxes {d:2-12} are damaged. How many boxes are fine?",
        "a * b; p + c; q - d",
    ),
    Template(
        "pencils_for_all",
        "There are {a:3-6} boys and {b:3-6} girls at a table, and everyone needs {c:2-9} pencils. {who} has "
        "brought {d:110-200} pencils. How many pencils will not be needed?",
        "a + b; p * c; d - q",
    ),
    Template(
        "three_jumpers",
        "{who} jumped {a:40-90} inches. {friend} jumped {b:2-20} inches farther than {who}, and {third} "
        "{c:2-20} inches farther than {friend}. How many inches did {who} and {third} jump together?",
        "a + b; p + c; a + q",
    ),
    Template(
        "week_of_reading",
        "{who} read {a:5-12} pages on each of {b:2-9} days and {c:5-40} pages on Sunday. The whole book has "
        "{d:160-280} pages. How many pages are unread?",
        "a * b; p + c; d - q",
    ),
    Template(
        "hotel_guests",
        "A hotel has {a:20-60} guests on the ground floor and {b:20-60} guests upstairs. In the morning "
        "{c:5-19} guests leave, and by night {d:2-40} new guests arrive. How many guests sleep there?",
        "a + b; p - c; q + d",
    ),
)
