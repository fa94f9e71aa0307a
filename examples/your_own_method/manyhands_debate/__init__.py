"""The method `debate`, which pyproject.toml offers to manyhands by an entry point."""

from dataclasses import dataclass

from manyhands import Conversation, Method, Settings, Strategy, TeamPrompt, Text, setting
from manyhands.schema.conversation import conversation_of
from manyhands_debate.course import Debate


@dataclass(frozen=True, kw_only=True)
class DebateSettings(Settings):
    """Each field is an option of the command line, a name for --set, and a field of requests."""

    workers: int = setting(2, "How many debate.", at_least=2, at_most=16, names=("--workers", "-n"))
    rounds: int = setting(8, "Rounds, at most.", at_least=1, at_most=256)


def debate(
    question: str | Conversation,
    text: Text,
    settings: DebateSettings,
    prompt: TeamPrompt,
    *,
    context: int | None = None,
) -> Strategy:
    asked, size, rounds = conversation_of(question), settings.workers, settings.rounds
    debaters = Debate(asked, prompt, size, rounds, text=text, settings=settings, context=context)
    return debaters.play()


def names_of(settings: DebateSettings, prompt: TeamPrompt) -> tuple[str, ...]:
    return prompt.team(settings.workers)


DEBATE = Method(
    "debate",  # as the entry point is named
    "all write at once, and hear each other when all have ended a paragraph",
    DebateSettings,
    "team",  # the table of words that it reads: engine.prompts.team
    debate,
    names=names_of,
    reading=lambda settings: "steps",
)
