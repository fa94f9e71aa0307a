"""A hundred questions for planning, composed of ten matters with ten sides each.

PDOS (section 4.2) asks a hundred questions with 2 to 10 branches, 4.4 on average; those were written by a
model and are not published. These have the same number of branches: each matter is asked ten times, each
time about other sides of it. A reference answer is the sentence of every side, and the advice at the end.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

BRANCHES = (2, 2, 3, 3, 4, 4, 5, 5, 6, 10)  # of the ten questions about one matter; 4.4 on average


@dataclass(frozen=True)
class Matter:
    """Something to plan: how it is told, its sides with a sentence each, and the advice."""

    told: str
    asked: str  # the number wanted at the end
    advice: str
    sides: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Plan:
    """One question about a matter."""

    question: str
    reference: str
    branches: int


def plans() -> list[Plan]:
    """All hundred, in an order in which neighbours are about different matters."""
    made = []
    for number, branches in enumerate(BRANCHES):
        for place, matter in enumerate(MATTERS):
            rng = Random(f"plan/{place}/{number}")
            chosen = sorted(rng.sample(range(len(matter.sides)), branches))
            made.append(_plan(matter, [matter.sides[n] for n in chosen]))
    return made


def _plan(matter: Matter, sides: list[tuple[str, str]]) -> Plan:
    names = [name for name, _ in sides]
    listed = f"{', '.join(names[:-1])} and {names[-1]}"
    question = f"{matter.told} Analyse {len(sides)} sides of this: {listed}. Then {matter.asked}."
    told = " ".join(f"{name.capitalize()}: {sentence}" for name, sentence in sides)
    return Plan(question, f"{told} Advice: {matter.advice}", len(sides))


MATTERS = (
    Matter(
        "A small town wants a public library to stay open on Sundays.",
        "recommend how to begin",
        "Begin with half days for one year, staffed in part by students, and count visits.",
        (
            (
                "staff",
                "Sunday work needs consent and extra pay, so shifts must be few and planned early.",
            ),
            ("cost", "Wages and heating are the largest items, and a half day costs about half."),
            (
                "visitors",
                "Families and people who work all week come on Sundays and on no other day.",
            ),
            ("law", "Rules on Sunday work may need an exemption, which takes months."),
            (
                "safety",
                "A building with few staff needs cameras, an alarm and two people at least.",
            ),
            (
                "transport",
                "Buses are rare on Sundays, so opening hours should follow the timetable.",
            ),
            ("programme", "Readings and games draw people who would not come for books alone."),
            ("self-service", "Machines for lending let a small team run the house."),
            ("neighbours", "Cafés gain from visitors, while residents fear noise and parked cars."),
            (
                "evaluation",
                "Visits, loans and a short survey tell after a year whether it is worth while.",
            ),
        ),
    ),
    Matter(
        "A bakery with three shops thinks of selling through an app.",
        "say whether it should, and with which first step",
        "Start with orders for collection in one shop, on a ready-made service, for three months.",
        (
            (
                "customers",
                "Regulars value that bread is set aside, and newcomers find the shop by search.",
            ),
            (
                "cost",
                "A service takes a share of each sale, an app of one's own costs more at once.",
            ),
            ("work in the shop", "Packing orders at the busiest hour needs a person and a shelf."),
            ("planning of baking", "Orders of the evening before cut waste in the morning."),
            ("competition", "Chains have apps already, so the point is service and not novelty."),
            ("data", "Names and habits of customers have to be protected and may not be sold."),
            ("payment", "Paying ahead avoids orders that nobody collects."),
            ("delivery", "Delivery costs more than bread earns, except for offices."),
            (
                "staff training",
                "An hour of training and one responsible person per shop are enough.",
            ),
            ("failure", "When the service is down, a telephone and a list must do."),
        ),
    ),
    Matter(
        "A region plans to bring back a railway line that was closed forty years ago.",
        "conclude under which conditions it should be built",
        "Build it if land is kept free, a train runs every half hour, and buses meet it.",
        (
            (
                "demand",
                "Towns of twenty thousand people within reach of a city fill a half-hourly train.",
            ),
            ("track", "Bridges have to be renewed, while the embankment can mostly be used again."),
            ("cost", "Building costs are high and certain, gains are spread over decades."),
            (
                "nature",
                "Plants and lizards have settled on the line, which asks for new places for them.",
            ),
            (
                "residents",
                "People beside the line fear noise, and values of houses near stations rise.",
            ),
            ("operation", "Electric trains with batteries need wires in stations alone."),
            ("buses", "Buses must become feeders, or they compete with the train."),
            (
                "funding",
                "State and region share costs if the ratio of benefit to cost is above one.",
            ),
            ("time", "From study to first train ten years pass, so interim buses are needed."),
            (
                "freight",
                "One siding for a sawmill adds little income and takes lorries off a road.",
            ),
        ),
    ),
    Matter(
        "A secondary school wants to begin its lessons one hour later.",
        "give a proposal for a trial",
        "Try it for a term in the upper years, with supervision before lessons and a survey.",
        (
            (
                "sleep",
                "Adolescents fall asleep late, and an hour more improves attention in the morning.",
            ),
            ("timetable", "Lessons end later, so some afternoons have to be made shorter."),
            ("buses", "School buses serve several schools and cannot all move."),
            ("parents", "Parents who leave early need supervision at school before lessons."),
            ("clubs", "Sports clubs begin in the afternoon and lose daylight in winter."),
            ("teachers", "Teachers with small children gain, those with long ways home lose."),
            ("meals", "A later lunch needs the kitchen for longer."),
            ("results", "Effects on marks are small and seen only over years."),
            ("fairness", "Pupils with jobs in the afternoon must not be shut out."),
            ("communication", "A plan is accepted if pupils and parents were asked before."),
        ),
    ),
    Matter(
        "A hospital thinks of letting software sort X-ray images by urgency.",
        "conclude how it may be introduced safely",
        "Let it run silently beside doctors first, compare for half a year, then let it sort.",
        (
            ("accuracy", "Studies show good average results, and worse ones on rare findings."),
            ("liability", "A doctor stays responsible, so each image must still be seen."),
            ("waiting time", "Urgent images are read earlier, others somewhat later."),
            ("data protection", "Images should stay in the house, or be sent without names."),
            ("training of doctors", "Young doctors need practice without suggestions."),
            ("bias", "Devices and patients of the house may differ from those it was trained on."),
            ("cost", "Licences are paid per image, while time is saved only if work is changed."),
            ("integration", "It has to work within the image archive, or it will not be used."),
            ("failure", "When it is down, the old order by arrival must work at once."),
            ("patients", "Patients should be told, and most accept it as a second look."),
        ),
    ),
    Matter(
        "A village of vine growers faces hotter and drier summers.",
        "recommend a plan for ten years",
        "Save water first, plant a tenth anew each year, and sell the change as a story.",
        (
            (
                "varieties",
                "Later and thicker-skinned grapes bear heat, and take years to bear fruit.",
            ),
            ("water", "Drip irrigation saves half of the water, and needs a shared reservoir."),
            ("soil", "Cover plants hold moisture in winter and compete for it in summer."),
            ("slopes", "North slopes that were too cold become useful."),
            ("harvest", "Harvest moves three weeks forward and into the night."),
            ("market", "Customers know the old wines and have to be led to new ones."),
            ("insurance", "Hail and frost can be insured, drought hardly."),
            ("cooperation", "One grower cannot pay for a reservoir, twenty can."),
            ("law", "Names of origin allow few varieties and need an amendment."),
            ("work", "Workers need shade, water and earlier hours."),
        ),
    ),
    Matter(
        "A company of two hundred people wants to offer a week of four days.",
        "propose a trial that tells whether it works",
        "Try it for six months in two departments at full pay, with measures agreed before.",
        (
            (
                "output",
                "Output per week holds where meetings are cut, and falls where machines set the pace.",
            ),
            ("customers", "Somebody has to answer on the fifth day, so teams take turns."),
            ("pay", "Full pay keeps trust, and makes each hour dearer."),
            ("hiring", "Applications rise, above all of parents and of older people."),
            ("health", "Sick days and stress go down in most trials."),
            ("management", "Goals replace presence, which not every manager can do."),
            ("part time", "People who work part time already must gain as well."),
            ("law", "Ten hours a day are a limit that a compressed week touches."),
            ("culture", "Chats at work become fewer and have to be given room."),
            ("measurement", "Output, illness and satisfaction are measured before and after."),
        ),
    ),
    Matter(
        "An island wants to produce all its electricity itself.",
        "describe the order of steps",
        "Save and measure first, then sun and wind, then storage, and keep the old engines for need.",
        (
            ("sun", "Panels on roofs are cheap and give little in winter."),
            ("wind", "Wind blows more in winter and fits to sun, and is seen from the beach."),
            ("storage", "Batteries cover a night, while a calm week needs fuel."),
            ("grid", "Without large engines frequency must be held by electronics."),
            ("demand", "Heat pumps raise demand, and smart charging moves it to sunny hours."),
            ("money", "Fuel that is not shipped pays for much, and loans need guarantees."),
            ("ownership", "A cooperative keeps gains and acceptance on the island."),
            ("skills", "Two technicians on the island are worth more than a contract far away."),
            ("nature", "Birds' ways and protected dunes leave few places for wind."),
            ("guests", "Visitors double demand in summer, when there is most sun."),
        ),
    ),
    Matter(
        "A museum with few visitors considers free entrance.",
        "recommend a decision",
        "Make entrance free on two evenings and for the young, and ask for gifts at the door.",
        (
            ("income", "Tickets are a small part of the budget, while the shop lives on visitors."),
            ("visitors", "Numbers rise at first, mostly of people who come anyway."),
            ("new audiences", "Price is one hurdle; language, hours and distance are others."),
            ("donors", "Donors like open houses, and want to see numbers."),
            ("staff", "More visitors need more guards at the same pay."),
            ("exhibitions", "Special exhibitions may still cost, which pays for them."),
            ("schools", "Classes come if the bus is paid, not if the ticket is free."),
            ("image", "What is free may seem worth less, unless it is told well."),
            ("comparison", "Museums that did so kept their gains where programmes changed, too."),
            ("evaluation", "Counting and short talks at the door tell who comes."),
        ),
    ),
    Matter(
        "A city wants fewer cars in its centre within three years.",
        "recommend an order of measures",
        "Improve buses and bicycle ways first, then raise parking fees, then close streets.",
        (
            ("buses", "Buses need lanes of their own to be faster than cars."),
            ("bicycles", "Safe ways that join up bring new riders, painted lines do not."),
            ("parking", "Fees work at once and hit people with little money most."),
            ("shops", "Shopkeepers overrate how many customers come by car."),
            ("deliveries", "Deliveries move to the morning and to small depots."),
            ("residents", "Residents need places at the edge and exceptions for need."),
            ("people with disabilities", "Access by car has to stay for them."),
            ("air and noise", "Air improves near main roads, noise everywhere."),
            ("money", "Income of fees should visibly pay for buses."),
            (
                "acceptance",
                "A trial of one summer with a vote behind it convinces more than plans.",
            ),
        ),
    ),
)
