"""Persons and things of the stories: first names of many languages, and things one can count.

All names are short and plain ASCII. All things are plural, small enough to collect, lose, buy and
give away, and none of them is a container that a story also uses (boxes, bags, shelves).
"""

from __future__ import annotations

_NAMES = """
    Ada Aiko Alma Amir Ana Anya Arun Asha Bela Ben Bo Carl Chen Dana Dara Diego Ela Emil Eva Farid
    Fatima Felix Gita Goran Hana Hugo Ida Ines Ivan Jae Jan Joao Jun Kai Kofi Lan Lars Leila Lena
    Liam Lin Luca Maja Mara Marek Mei Mia Milo Mina Musa Nadia Nia Nils Noor Olga Omar Oto Pablo
    Petra Priya Rafa Ravi Rosa Ruth Sami Sara Sofia Sven Tara Tariq Theo Tomas Uma Vera Wei Yara
    Yuki Zara Zeno Zoe
"""
NAMES: tuple[str, ...] = tuple(_NAMES.split())

_THINGS = """
    acorns apples badges balls beads bells belts blocks books brushes buttons candles cards
    carrots cookies corks crayons cups dolls drums erasers feathers figs flags forks gloves hats
    keys kites lamps lemons magnets maps marbles masks melons muffins nuts onions oranges pears
    pencils pens photos pillows pins plates plums postcards puzzles ribbons rings rulers scarves
    shells socks spoons stamps stickers stones toys whistles
"""
THINGS: tuple[str, ...] = tuple(_THINGS.split())
