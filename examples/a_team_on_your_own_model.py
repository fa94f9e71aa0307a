"""A team on a model of yours: python a_team_on_your_own_model.py [folder or Hugging Face name]"""

import sys

from manyhands import Engine, ManyhandsError, TeamSettings, hogwild
from manyhands.strategies.events import AnswerFound, StepEnded

model = sys.argv[1] if len(sys.argv) > 1 else "bundled"
try:
    engine = Engine.load(model, memory_tokens=32_768)
except ManyhandsError as error:  # each says how to mend it
    raise SystemExit(f"{error}; {error.hint}") from error
problem = """Solve these problems and box the answers in order, separated by commas:
1. 84 + 29 - 38
2. 17 + 60 + 5 - 31
3. 93 - 46 + 12
4. 25 + 25 + 25 + 25"""

settings = TeamSettings(workers=3, budget=2048)
names = engine.prompts.team.team(
    settings.workers
)  # of the words that it was trained with, if it was
for event in engine.stream(hogwild(problem, engine.text, settings)):
    if isinstance(event, StepEnded):
        print(f"{names[event.worker]}, pass {event.forward_pass}: {event.text}")
    elif isinstance(event, AnswerFound):
        print(f"Answer after {event.forward_pass} passes: {event.answer}")
