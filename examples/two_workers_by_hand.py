"""Two workers, driven by hand: each pass feeds both, and each has read the other's newest token."""

from manyhands import Block, Engine, Row, Step, View

engine = Engine.load("bundled", memory_tokens=4096)
words = engine.prompts.team
say, names = engine.text.encode, ("Alice", "Bob")
problem = """Solve these problems and box the answers in order, separated by commas:
1. 84 + 29 - 38
2. 17 + 60 - 31"""

prompt, others, own = Block("prompt"), Block("others at work"), Block("own work")
task = engine.text.chat_prompt(words.team_message(problem, names)) + say(words.past_header)
opening = [
    Row(View([prompt]), task),
    Row(View([prompt, others]), say(words.others_header)),
    Row(View([prompt, others, own]), say(words.own_header)),
]
alice, bob = Block("Alice"), Block("Bob")
views = View([prompt, others, bob, own, alice]), View([prompt, others, alice, own, bob])
feeds = [say(words.step_break + words.prefix(name, 1)) for name in names]
while not any(engine.text.decode(feed).endswith("\n\n") for feed in feeds):  # the first step's end
    logits = engine.forward(Step([*opening, *map(Row, views, feeds)]))
    opening, feeds = [], [(int(row.argmax()),) for row in logits[-2:]]
print(*(engine.text.decode(desk.tokens).strip() for desk in (alice, bob)), sep="\n")
