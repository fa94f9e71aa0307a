"""Thirty-nine stories for an exam alone, written after the last training, without a look at anything that is taught.

The stories of `fresh.py` had been asked of five adapters when the sixth was taught, and what those failed at was known. These were
asked when everything about it was settled. Six of forty-five were left out, since a written story shared a fifth of
their phrases. Names and things are those that are unseen (`words.py`).
"""

from __future__ import annotations

from manyhands.tasks.arithmetic.templates.template import Template

LATE: tuple[Template, ...] = (
    # -- one operation
    Template(
        "burnt_rolls",
        "Of the {a:40-90} rolls that a baker took out of the oven this morning, {b:12-38} were "
        "burnt and had to be thrown away. How many rolls could still be sold?",
        "a - b",
    ),
    Template(
        "mailbag",
        "{who} took {a:5-25} letters out of the mailbag and delivered them. There are {b:6-30} "
        "letters still inside. How many letters did the mailbag hold at first?",
        "a + b",
    ),
    Template(
        "swim_badge",
        "To earn a swimming badge, {who} must swim {a:30-60} lengths of the pool. So far {b:8-28}"
        " lengths are done. How many lengths are still missing?",
        "a - b",
    ),
    Template(
        "oak_birch",
        "The oak behind the school is {a:20-45} feet tall, and the birch in front of it measures "
        "{b:6-18} feet. By how many feet does the oak tower over the birch?",
        "a - b",
    ),
    Template(
        "spider_legs",
        "In a glass case at the science fair sit {a:2-9} spiders. A spider has eight legs. What "
        "is the number of spider legs in the case?",
        "a * 8",
    ),
    Template(
        "garden_pump",
        "A garden pump lifts {a:3-12} liters of water each minute. If it runs for {b:2-9} "
        "minutes, how much water, in liters, does it lift?",
        "a * b",
    ),
    Template(
        "bus_tickets",
        "How many dollars must {who} pay for {a:2-9} bus tickets when a single ticket costs "
        "{b:2-12} dollars?",
        "a * b",
    ),
    Template(
        "kitten_dog",
        "A kitten weighs {a:2-9} pounds, and the dog next door is {b:3-8} times as heavy. How "
        "heavy is the dog, in pounds?",
        "a * b",
    ),
    Template(
        "ferry_decks",
        "On a ferry, {a:15-70} cars are parked on the lower deck and {b:8-50} on the upper deck. "
        "Counting both decks, how many cars are aboard?",
        "a + b",
    ),
    Template(
        "museum_maps",
        "When the museum opened, {a:60-99} free maps lay on the counter. At closing time only "
        "{b:10-50} were there, and no new ones had been put out. How many maps did the visitors "
        "take during the day?",
        "a - b",
    ),
    Template(
        "stamp_album",
        "{who}, who is {a:7-12} years old, collects stamps. There were {b:30-90} of them in the "
        "album until an aunt sent {c:5-25} new ones. How many stamps does {who} have now?",
        "b + c",
    ),
    Template(
        "violin_week",
        "Every single day, {who} practices the violin for {a:5-12} minutes. How many minutes of "
        "practice does that make in a week?",
        "a * 7",
    ),
    Template(
        "plums_between",
        "Between them, {who} and {friend} picked {a:40-90} plums. If {b:10-35} of these were "
        "picked by {who}, how many plums came from {friend}?",
        "a - b",
    ),
    # -- two operations
    Template(
        "photo_album_filling",
        "{who} is filling an album that has {a:4-9} pages with room for {b:4-12} photos on each "
        "page. If {c:3-14} places are still empty, how many photos are in the album already?",
        "a * b; p - c",
    ),
    Template(
        "red_blue",
        "The red team scored {a:12-40} points, and the blue team beat them by {b:3-20} points. "
        "What do the scores of the two teams add up to?",
        "a + b; p + a",
    ),
    Template(
        "paper_cranes",
        "{friend} folded {a:3-12} paper cranes and {who} folded {b:3-8} times as many. They hang "
        "all their cranes on one string. How many cranes are hanging there?",
        "a * b; p + a",
    ),
    Template(
        "circus_prices",
        "At the circus a child pays {a:4-12} dollars to get in, but a grown-up has to pay {b:3-6}"
        " times that price. How many dollars more does a grown-up pay than a child?",
        "a * b; p - a",
    ),
    Template(
        "notebook_money",
        "{who} enters the shop with {a:60-99} dollars and buys {b:2-6} notebooks at {c:2-9} "
        "dollars apiece. How many dollars does {who} carry home?",
        "b * c; a - p",
    ),
    Template(
        "lunch_bags",
        "Into each lunch bag the cook puts {a:2-5} carrots and {b:2-6} radishes. How many "
        "vegetables does the cook need in order to fill {c:2-9} bags?",
        "a + b; p * c",
    ),
    Template(
        "rope_jumps",
        "{who} jumped rope {a:40-90} times without a miss. {friend} managed {b:5-20} jumps fewer "
        "than {who}, and {third} did {c:3-25} more than {friend}. How many jumps did {third} do?",
        "a - b; p + c",
    ),
    Template(
        "hotel_rooms",
        "A hotel by the lake has {a:3-9} floors with {b:5-12} rooms on every floor. It has just "
        "built {c:3-15} extra rooms in the garden. What is the total number of rooms now?",
        "a * b; p + c",
    ),
    Template(
        "choir_sheets",
        "A choir has {a:9-14} singers, but {b:2-5} of them are ill today. Each singer who has "
        "come is handed {c:2-8} song sheets. How many sheets are handed out?",
        "a - b; p * c",
    ),
    Template(
        "thick_book",
        "On each of {b:3-8} evenings {who} has read {a:5-12} pages of a thick book, and there are"
        " {c:20-90} pages still to go. How many pages long is the whole book?",
        "a * b; p + c",
    ),
    Template(
        "honey_jars",
        "A beekeeper with {a:3-9} hives filled {b:40-90} jars of honey last year. This year there"
        " were {c:5-20} jars more than last year, and {d:10-35} jars of this year's honey have "
        "been sold. How many jars of this year's honey are unsold?",
        "b + c; p - d",
    ),
    Template(
        "cow_milk",
        "A cow gives {a:5-12} liters of milk a day. The farmer's family drinks {b:2-3} liters of "
        "it every day and sells the rest. How many liters do they sell in a week?",
        "a - b; p * 7",
    ),
    # -- three operations
    Template(
        "picnic_packing",
        "For the picnic {who} packs {a:2-6} baskets holding {b:4-12} sandwiches each and {c:2-6} "
        "boxes holding {d:3-10} muffins each. Sandwiches and muffins taken together, how many are"
        " packed?",
        "a * b; c * d; p + q",
    ),
    Template(
        "theater_blocks",
        "In a theater the left block has {a:6-9} rows of {b:9-12} seats, whereas the right block "
        "has {c:3-5} rows of {d:5-10} seats. How many more seats are there on the left than on "
        "the right?",
        "a * b; c * d; p - q",
    ),
    Template(
        "sunflowers_in_line",
        "The sunflower of {who} is {a:30-60} inches tall. The one that {friend} planted is "
        "{b:5-25} inches taller than that, but the one of {third} is {c:3-20} inches shorter than"
        " the one of {friend}. If the sunflowers of {friend} and {third} were laid end to end, "
        "how many inches long would the line be?",
        "a + b; p - c; p + q",
    ),
    Template(
        "library_shelf",
        "There were {a:50-90} books on a library shelf this morning. Readers borrowed {b:8-20} "
        "before lunch, then the librarian added {c:5-30}, and in the afternoon another {d:6-25} "
        "were borrowed. How many books does the shelf hold this evening?",
        "a - b; p + c; q - d",
    ),
    Template(
        "treat_guests",
        "For each of {c:3-8} guests, {who} buys a lemonade for {a:2-4} dollars and a slice of pie"
        " for {b:3-6} dollars. The money comes from a purse with {d:85-150} dollars in it. How "
        "many dollars stay in the purse?",
        "a + b; p * c; d - q",
    ),
    Template(
        "three_ponds",
        "One pond is home to {a:2-4} frogs. In a second pond live {b:2-3} times as many, and in a"
        " third one live {c:2-8} times as many as in the second. How many more frogs are in the "
        "third pond than in the first?",
        "a * b; p * c; q - a",
    ),
    Template(
        "tulips_deer",
        "{who} plants {a:4-9} rows of {b:5-12} tulips on the lawn and {c:6-20} tulips along the "
        "fence. In the night deer eat {d:5-18} of all these flowers. How many tulips are left "
        "standing?",
        "a * b; p + c; q - d",
    ),
    Template(
        "new_drum",
        "A school band needs {a:150-250} dollars for a drum. It sells {b:5-9} cakes for {c:4-10} "
        "dollars each, and a neighbor donates {d:10-40} dollars. How many dollars is the band "
        "still short?",
        "b * c; p + d; a - q",
    ),
    Template(
        "waffle_iron",
        "{who} baked waffles all morning. The family ate {a:4-12} of them, {b:3-7} plates with "
        "{c:3-8} waffles each went to the neighbors, and the last {d:2-9} were put in the "
        "freezer. How many waffles did {who} bake?",
        "b * c; p + a; q + d",
    ),
    Template(
        "zoo_gate",
        "On Saturday {a:60-99} adults and {b:50-90} children came to the zoo. On Sunday it "
        "rained, and just {c:20-50} adults and {d:20-50} children came. How many fewer visitors "
        "did the zoo have on Sunday than on Saturday?",
        "a + b; c + d; p - q",
    ),
    Template(
        "raffle_tickets",
        "With {a:25-60} raffle tickets, {who} sold {b:4-15} more than {friend}. {third} sold "
        "{c:3-20} more than {friend}. How many tickets did {friend} and {third} sell together?",
        "a - b; p + c; p + q",
    ),
    Template(
        "farm_sheep",
        "A farm that lies {d:2-9} miles from town had {a:5-12} cows and {b:3-8} times as many "
        "sheep. Then {c:3-12} of the sheep were sold. Cows and sheep together, how many animals "
        "remained on the farm?",
        "a * b; p - c; q + a",
    ),
    Template(
        "scout_tents",
        "A scout camp owns {a:9-14} tents, of which {b:2-5} are being repaired and stand empty. "
        "In each of the others sleep {c:2-6} scouts, while {d:3-15} leaders sleep in the lodge. "
        "How many people spend the night at the camp?",
        "a - b; p * c; q + d",
    ),
    Template(
        "rain_barrel",
        "A barrel was filled with {a:100-140} liters of rain. {who} drew {b:3-8} cans of {c:4-9} "
        "liters from it, and {d:5-25} liters leaked out through a crack. How many liters of rain "
        "does the barrel still contain?",
        "b * c; a - p; q - d",
    ),
)
