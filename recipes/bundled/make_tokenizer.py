"""Make the bundled model's tokenizer: byte-level BPE over the words of its small world.

Digits are tokens of their own, so that numbers are written and read place by place; a paragraph break
is one token. Whatever text a user gives can be encoded, byte by byte if need be.

    python recipes/bundled/make_tokenizer.py OUT

The committed one, `recipes/bundled/tokenizer`, was made once, of the words and stories of 2026-11-21. Those of today make
another one, which fits no model that was trained with the first.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from manyhands.prompts.hogwild import TeamPrompt
from manyhands.school.recipe import read_recipe
from manyhands.tasks.arithmetic.problem_list import ListKind, problem_list

VOCABULARY = 1280
END, USER, TEAM = "<|end|>", "<|user|>", "<|team|>"
CHAT = (
    "{% for message in messages %}" + USER + "{{ message['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}" + TEAM + "{% endif %}"
)
WRITTEN = (
    " #3: 84+29=113; 113-38=75; 6*9=54. #3 is 75.\n\n All solved: \\boxed{75,12,9}. taken. yes. no."
    "The answers, in order: 75, 12, ?."
)


def corpus(prompt: TeamPrompt, seed: int = 0) -> list[str]:
    """What the model will read and write, in about the right proportions."""
    rng = random.Random(seed)
    kinds: tuple[ListKind, ...] = ("bare", "word", "word")
    lists = [problem_list(rng, 8, rng.choice(kinds)).question for _ in range(2000)]
    frame = [getattr(prompt, name) for name in prompt.__dataclass_fields__ if name != "names"]
    steps = [prompt.prefix(name, step) for name in prompt.names for step in range(1, 9)]
    return lists + 500 * [*frame, *steps, WRITTEN]


def make(prompt: TeamPrompt) -> PreTrainedTokenizerFast:
    """Train it."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.Split(Regex(r"\n+"), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[END, USER, TEAM],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus(prompt), trainer)
    made = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END,
        pad_token=END,
        additional_special_tokens=[USER, TEAM],
        clean_up_tokenization_spaces=False,
    )
    made.chat_template = CHAT
    return made


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        raise SystemExit(__doc__)
    try:  # before the work; `save_pretrained` would end in silence where `OUT` is a file
        Path(sys.argv[1]).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SystemExit(f"make_tokenizer.py: {error}") from error
    recipe = read_recipe(Path(__file__).parent / "recipe.toml")
    made = make(recipe.prompts.team)
    made.save_pretrained(sys.argv[1])
    print(f"{len(made)} tokens")
