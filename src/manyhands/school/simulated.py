"""Lessons of the school: a new scripted run at every draw, of teams or of other methods.

lessons = Simulated(Curriculum(), text, prompts, PartsMix(drafted_lists=0.1))
batch = Batches(lessons, seed=1, num_tokens=8192)[0]
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from manyhands.prompts.chain_of_draft import drafted
from manyhands.prompts.load import Prompts
from manyhands.replay.simulate import Lesson
from manyhands.school.curriculum import Curriculum
from manyhands.school.curriculum_parts import PartsMix
from manyhands.text import Text


@dataclass(frozen=True)
class Simulated:
    """Scripted runs, a new one at every draw: of teams, and of what `parts` mixes in."""

    curriculum: Curriculum
    text: Text
    prompts: Prompts
    parts: PartsMix = field(default_factory=PartsMix)

    def draw(self, seed: str) -> Lesson:
        """See `replay.lessons.Lessons`."""
        rng = random.Random(f"{seed}/parts")
        if rng.random() < self.parts.kinds:
            return self.parts.draw(rng, self.text, self.prompts)
        prompts = self.prompts
        if rng.random() < self.parts.drafted_lists:
            prompts = drafted(prompts)
        return self.curriculum.draw(seed, self.text, prompts.team)
