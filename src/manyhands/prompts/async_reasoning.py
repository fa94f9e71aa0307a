r"""The words of AsyncReasoning: a thinker and a writer that read each other (our own wording).

Two texts are read by both roles, each as its view has it; see `strategies/async_reasoning.py`:

    the thinker reads    rules | reply_header | the reply so far | thoughts_header | its thoughts
    the writer reads     rules | the thoughts so far | writer_header | the reply

    rules            the user's message; both roles have the same one, so that it lies in memory once
    reply_header     opens what the thinker reads of the reply; may be empty
    thoughts_header  closes it: the reply goes on here, and own thoughts follow
    writer_header    closes the thoughts for the writer; {think_end} is where thinking closes
    probe            behind the thoughts: do they suffice to write on? `yes` and `no` are compared there
    finisher         the budget is spent: the model only fills in the box
    rules_in         where the rules stand in a conversation (`prompts/template.py`)
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType

from manyhands.errors import InvalidRequest
from manyhands.prompts.template import Placeholders, check_texts, filled

ASYNC_REASONING_RULES = """\
Answer the question below. You think and you write at the same time.

- Thoughts are private notes. The reply is what the user reads, and it is written while you think.
- As you think, look at the reply so far. If something in it is wrong, note how it must be put right.
- As you write, use the thoughts that are there. Further thoughts will come, so say nothing that is \
not settled yet, and do not repeat what the reply says already.
- Think and write in short paragraphs.

Once the solution is known, the reply gives the final answer in \\boxed{}.

# Question

{question}"""

PLACEHOLDERS: Placeholders = MappingProxyType(
    {"rules": frozenset({"question"}), "writer_header": frozenset({"think_end"})}
)
REQUIRED: Placeholders = MappingProxyType({"rules": frozenset({"question"})})
_NEEDED = ("thoughts_header", "writer_header", "probe", "yes", "no")


@dataclass(frozen=True)
class AsyncReasoningPrompt:
    """Every text, checked when made. `rules` must hold {question}; other braces mean themselves."""

    rules: str = ASYNC_REASONING_RULES
    reply_header: str = "[The reply to the user so far:]\n\n"
    thoughts_header: str = "\n\n[The reply goes on here as it is written. My thoughts:]\n\n"
    writer_header: str = "\n\n[Further thoughts will appear here.]{think_end}\n\n"
    probe: str = (
        "\n\n[Quick check: do the thoughts above suffice to write the next paragraph of the reply? "
        "(yes or no):"
    )
    yes: str = " yes"
    no: str = " no"
    finisher: str = "\n\nTime is up, so I settle on my best result. The final answer is \\boxed{"
    rules_in: str = "user"

    def __post_init__(self) -> None:
        check_texts(self, PLACEHOLDERS, REQUIRED)
        for name in _NEEDED:
            if not getattr(self, name):
                raise InvalidRequest(
                    f"prompt field '{name}' is empty, expected text",
                    hint="a row must read something before it writes its first token",
                )
        if self.yes == self.no:
            raise InvalidRequest(
                f"prompt fields 'yes' and 'no' are both {self.yes!r}, expected two answers"
            )

    def message(self, question: str) -> str:
        """The user's message. A question is never searched for placeholders."""
        return filled(self.rules, question=question)
