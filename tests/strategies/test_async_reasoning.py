"""AsyncReasoning with scripted predictors: views, modes, probes, the reply and every way to end."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from manyhands.cache.step import Choice
from manyhands.errors import InvalidRequest
from manyhands.prompts.async_reasoning import AsyncReasoningPrompt
from manyhands.strategies.async_reasoning import THINKER, WRITER, async_reasoning
from manyhands.strategies.events import (
    AnswerFound,
    ReplyWritten,
    StepEnded,
    TokenWritten,
    WorkerPaused,
    WorkerResumed,
    WorkerStopped,
)
from manyhands.strategies.sequential import sequential
from manyhands.strategies.settings import AsyncReasoningSettings, EndSettings, SoloSettings
from manyhands.text import Text
from tests.strategies.driver import Dice, Played, Scripts, SeenRow, play, small_text
from tests.text.small_tokenizers import byte_level, sentence_piece

TEXT = small_text()
PROMPT = AsyncReasoningPrompt(
    rules="Q: {question}",
    reply_header="[R]",
    thoughts_header="[T]",
    writer_header="[W]{think_end}",
    probe="[Enough?",
    finisher="\nFinal \\boxed{",
)
NO_END = EndSettings(answer="none", reply=False)
START = "user\nQ: who\nassistant\n"
THOUGHTS = ["One.\n\n", "Two, three.\n\n", "Four.", None]
REPLY = ["It is.\n\n", "So \\boxed{7}", None]
Item = str | int | None


def is_probe(row: SeenRow) -> bool:
    return row.blocks[-1] == "probe"


def probes(played: Played) -> list[SeenRow]:
    return [row for one in played.passes for row in one.rows if is_probe(row)]


class Asked:
    """Scripts; the n-th probe is answered yes if n is in `yes`."""

    def __init__(self, text: Text, yes: set[int], **said: list[Item]) -> None:
        self.scripts, self.yes, self.num_probes = Scripts(text, **said), yes, 0
        self.words = [text.encode(word)[len(text.encode(" ")) - 1 :] for word in (" yes", " no")]

    def __call__(self, row: SeenRow) -> int:
        if not is_probe(row):
            return self.scripts(row)
        self.num_probes += 1
        assert row.choice.allowed is not None
        yes, no = (next(t for t in word if t in row.choice.allowed) for word in self.words)
        return yes if self.num_probes in self.yes else no


def run(
    settings: AsyncReasoningSettings | None = None,
    *,
    yes: set[int] | None = None,
    text: Text = TEXT,
    context: int | None = None,
    predict: Callable[[SeenRow], int] | None = None,
    **said: list[Item],
) -> Played:
    settings = settings or AsyncReasoningSettings(end=NO_END, budget=200)
    lines = said or {"thinker": list(THOUGHTS), "writer": list(REPLY)}
    strategy = async_reasoning("who", text, settings, PROMPT, context=context)
    return play(strategy, predict or Asked(text, {1} if yes is None else yes, **lines))


def read(row: SeenRow, text: Text = TEXT) -> str:
    return text.decode(row.context).replace(" \n", "\n").removeprefix("<s>")


# -- who reads what --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text", [TEXT, Text(byte_level()), Text(sentence_piece())], ids=["glued", "bytes", "pieces"]
)
def test_each_reads_what_the_other_has_written(text: Text) -> None:
    """The last rows of both: the same two texts, each behind the other.

    The token that ends a paragraph of the reply is read by the thinker when the reply goes on.
    """
    played = run(text=text)
    start = text.decode(text.chat_prompt("Q: who")).removeprefix("<s>")
    last_thought = read(played.rows("thinker")[-1], text)
    assert last_thought.startswith(f"{start}[R]It is")
    assert last_thought.partition("[T]")[2] == "One.\n\nTwo, three.\n\nFour."
    last_word = read(played.rows("writer")[-1], text)
    assert last_word == f"{start}One.\n\nTwo, three.\n\nFour.[W]It is.\n\nSo \\boxed{{7}}"
    assert played.answer.text == "It is.\n\nSo \\boxed{7}"


def test_no_text_is_encoded_twice() -> None:
    """Every token of thoughts, reply, prompt and headers is fed once; only a question of a probe is fed besides."""
    played = run(yes={2})
    fed = [token for one in played.passes for row in one.rows for token in row.feed]
    writer, thinker = played.rows("writer")[-1], played.rows("thinker")[-1]
    asked = sum(len(row.feed) for row in probes(played))
    both = len(writer.context) + len(TEXT.encode("[R]")) + len(TEXT.encode("[T]"))
    assert len(fed) - asked == both
    assert len(thinker.context) < both


def test_they_read_each_other_in_the_very_pass() -> None:
    """While both write, each row has in view the token that the other feeds in this pass."""
    both = [one for one in run().passes if {"writer", "thinker"} <= set(one.writers)]
    assert len(both) >= 4
    for one in both[1:]:
        writer, thinker = one.row("writer"), one.row("thinker")
        assert read(thinker).partition("[T]")[0].endswith(TEXT.decode(writer.feed))
        assert read(writer).partition("[W]")[0].endswith(TEXT.decode(thinker.feed))


# -- modes -----------------------------------------------------------------------------------------


def modes(played: Played) -> list[str]:
    """A letter for each pass: t, w or b for thinker, writer or both; upper case where a probe went along."""
    found = []
    for one in played.passes:
        who = {name for name in one.writers if name in ("writer", "thinker")}
        letter = "b" if len(who) == 2 else "w" if "writer" in who else "t"
        found.append(letter.upper() if any(map(is_probe, one.rows)) else letter)
    return found


def test_the_three_modes() -> None:
    """Thinker alone until a yes, both until a paragraph of the reply ends, writer alone to the end."""
    played = run()
    kinds = "".join(modes(played))
    one = len(TEXT.encode("One.\n\n"))
    assert kinds[: one + 1] == "t" * one + "T", "asked where the paragraph ends, with the next row"
    paragraph = len(TEXT.encode("It is.\n\n"))
    assert kinds[one + 1 :].startswith("b" * paragraph)
    assert kinds[one + 1 + paragraph] in "tT", "the writer pauses behind its paragraph"
    assert kinds.endswith("w" * (len(TEXT.encode("So \\boxed{7}")) + 1))
    states = played.of(WorkerPaused, WorkerResumed, WorkerStopped)
    assert [(type(e).__name__, e.worker) for e in states] == [  # type: ignore[attr-defined]
        ("WorkerPaused", WRITER),
        ("WorkerResumed", WRITER),
        ("WorkerPaused", WRITER),
        ("WorkerStopped", THINKER),
        ("WorkerResumed", WRITER),
        ("WorkerStopped", WRITER),
    ]
    assert played.answer.forward_passes == len(played.passes)
    assert (played.answer.answer, played.answer.finish_reason) == ("7", "answer")


@pytest.mark.parametrize(("every", "first"), [(1, 2), (5, 5), (20, 20)])
def test_a_probe_goes_along_after_so_many_passes(every: int, first: int) -> None:
    settings = AsyncReasoningSettings(end=NO_END, budget=90, probe_every=every)
    played = run(settings, yes=set(), thinker=[], writer=[])
    asked = [n for n, kind in enumerate(modes(played), 1) if kind == "T"]
    assert asked[:3] == [first, first + every, first + 2 * every]
    (fed,) = {row.feed for row in probes(played)}
    assert TEXT.decode(fed).startswith("[Enough?")
    assert all(row.blocks[-1] == "probe" for row in probes(played))


def test_without_passes_only_the_ends_of_paragraphs_are_asked_about() -> None:
    settings = AsyncReasoningSettings(end=NO_END, budget=90, probe_every=0)
    assert "T" not in modes(run(settings, yes=set(), thinker=[], writer=[]))
    assert modes(run(settings, yes=set())).count("T") == 2


def test_a_no_leaves_the_thinker_alone() -> None:
    played = run(yes=set())
    assert "b" not in modes(played)
    assert "".join(modes(played)).lower().strip("t").strip("w") == ""


def test_a_probe_changes_nothing_that_is_read() -> None:
    """Thoughts are the same, token by token and view by view, whether anything is asked or not."""
    dice = Dice(TEXT, boxes=0, ends=0)
    no = Asked(TEXT, set())

    def predict(row: SeenRow) -> int:
        return no(row) if is_probe(row) else dice(row)

    settings = AsyncReasoningSettings(end=NO_END, budget=80, probe_every=3)
    asked = run(settings, predict=predict)
    other = AsyncReasoningSettings(end=NO_END, budget=80, probe_every=0)
    rows = [
        [row.context for row in run(s, predict=predict).rows("thinker")] for s in (settings, other)
    ]
    assert len(probes(asked)) > 5
    assert rows[0] == rows[1]


# -- the reply -------------------------------------------------------------------------------------


def test_the_reply_cannot_end_while_thoughts_come() -> None:
    for one in run().passes:
        if "writer" in one.writers:
            is_free = not TEXT.eos & one.row("writer").choice.forbidden
            assert is_free == ("thinker" not in one.writers)


def first_word(played: Played) -> int:
    """The pass in which the first word of the reply was written."""
    return next(e.forward_pass for e in played.of(ReplyWritten) if e.text.strip())


def test_the_first_word_comes_before_the_last_thought() -> None:
    """Passes until the user reads a word: sequential thinks to its end, the writer here does not."""
    thoughts, reply = "So it goes on.\n\n" * 12, "It is.\n\n"
    text = small_text(thinking=True)
    end = min(text.turn_end - text.eos)
    alone = play(
        sequential("who", text, SoloSettings(end=NO_END, budget=900)),
        Scripts(text, writer=[thoughts, end, reply, None]),
    )
    both = run(
        AsyncReasoningSettings(end=NO_END, budget=900),
        text=text,
        thinker=[thoughts, end],
        writer=[reply, "More.", None],
    )
    thought = len(text.encode(thoughts))
    assert first_word(alone) > thought
    assert first_word(both) <= len(text.encode("So it goes on.\n\n")) + 2
    assert (first_word(alone), first_word(both)) == (146, 14), "as docs/async.md has it"
    never = run(
        AsyncReasoningSettings(end=NO_END, budget=900),
        yes=set(),
        text=text,
        thinker=[thoughts, end],
        writer=[reply, None],
    )
    assert first_word(never) > thought, "control: without a yes it waits like any other"


def test_a_thinking_model_closes_its_thinking_for_the_writer_alone() -> None:
    text = small_text(thinking=True)
    end = min(text.turn_end - text.eos)
    played = run(text=text, thinker=["One.\n\n", end], writer=["So.", None])
    writer = text.decode(played.rows("writer")[-1].context, special=True)
    thinker = text.decode(played.rows("thinker")[-1].context, special=True)
    assert writer.endswith("<think>\nOne.\n\n[W]</think>So.")
    assert "</think>" not in thinker
    assert played.answer.text == "So."


@pytest.mark.parametrize("stop", ["goes", "\n\nthe"])
def test_a_stop_text_ends_the_reply(stop: str) -> None:
    settings = AsyncReasoningSettings(end=EndSettings(answer="none", stop=(stop,)), budget=90)
    said = run(settings, thinker=["So it goes.", None], writer=["And\n\nthere it goes on", None])
    assert said.answer.stopped_at == ("goes" if stop == "goes" else "\n\nthe")
    assert said.answer.text == ("And\n\nthere it" if stop == "goes" else "And")
    told = "".join(e.text for e in said.of(ReplyWritten))
    assert told.strip() == said.answer.text


# -- ends ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("budget", [3, 9, 16])
def test_at_the_end_of_the_budget_the_finisher_asks_and_the_writer_replies(budget: int) -> None:
    """Before its first word, within it, and while it pauses; the finisher reads the newest tokens, too."""
    end = EndSettings(answer="boxed", reply_tokens=6, finisher_tokens=5)
    settings = AsyncReasoningSettings(end=end, budget=budget, snapshots=(2,))
    played = run(
        settings,
        thinker=["One.\n\n", "Two. Three."],
        writer=["It is.\n\n", "So."],
        finisher=["7}7}"],
    )
    answer = played.answer
    assert (answer.answer, answer.finish_reason) == ("7", "budget")
    assert answer.is_cut, "the script of its writer goes on"
    assert answer.forward_passes == budget
    finishers = played.rows("finisher")
    text = read(finishers[-1])
    thoughts = "".join(e.text for e in played.of(TokenWritten) if e.worker == THINKER)
    assert thoughts in text
    own = "".join(e.text for e in played.of(TokenWritten) if e.worker == WRITER)
    assert (f"[W]{own}\nFinal" in text) == bool(own)
    assert answer.text.startswith(own.strip())
    assert len(answer.text) > len(own.strip())
    assert len(played.passes) == answer.forward_passes + answer.extra_passes
    assert answer.tokens[WRITER] == len(played.written("writer"))


def test_a_box_that_the_reply_opens_after_the_budget_is_no_answer() -> None:
    end = EndSettings(answer="boxed", finisher=False, reply_tokens=6)
    settings = AsyncReasoningSettings(end=end, budget=3)
    played = run(settings, thinker=["On and on"], writer=["\\boxed{7}", None])
    assert (played.answer.answer, played.answer.text) == (None, "\\boxed{7}")
    assert not played.of(AnswerFound)


def test_a_box_in_the_thoughts_is_an_answer_that_the_reply_may_mend() -> None:
    played = run(thinker=["So \\boxed{7}", None], writer=["No, \\boxed{8", "}", None])
    assert [(e.worker, e.answer) for e in played.of(AnswerFound)] == [
        (THINKER, "7"),
        (WRITER, "8"),
    ]
    assert played.answer.answer == "8"


@pytest.mark.parametrize("context", [60, 80, 100])
def test_no_view_outgrows_the_context(context: int) -> None:
    end = EndSettings(answer="boxed", reply_tokens=4, finisher_tokens=4)
    settings = AsyncReasoningSettings(end=end, budget=300, probe_every=4)
    dice = Dice(TEXT, boxes=0, ends=0)

    def predict(row: SeenRow) -> int:
        return max(row.choice.allowed) if row.choice.allowed else dice(row)

    played = run(settings, context=context, predict=predict)
    assert played.answer.finish_reason == "context"
    assert context - 36 <= played.longest_view <= context
    blocks = sum(len(row.feed) for one in played.passes for row in one.rows)
    assert blocks - sum(len(r.feed) for r in probes(played)) <= played.reserved[0].num_tokens


def test_steps_are_paragraphs() -> None:
    ended = [(e.worker, e.step, e.text) for e in run().of(StepEnded)]
    assert [one for one in ended if one[0] == THINKER] == [
        (THINKER, 1, "One."),
        (THINKER, 2, "Two, three."),
        (THINKER, 3, "Four."),
    ]
    assert [one for one in ended if one[0] == WRITER] == [
        (WRITER, 1, "It is."),
        (WRITER, 2, "So \\boxed{7}"),
    ]


def test_draws_are_each_ones_own() -> None:
    """The thoughts before the first word do not depend on whether a probe was drawn or asked."""
    choice = Choice(temperature=1.0)
    settings = AsyncReasoningSettings(end=NO_END, budget=20, choice=choice, probe_every=2)
    once = run(settings, yes=set(), thinker=[], writer=[])
    draws = [row.choice.draw for row in once.rows("thinker")]
    none = AsyncReasoningSettings(end=NO_END, budget=20, choice=choice, probe_every=0)
    again = run(none, yes=set(), thinker=[], writer=[])
    assert draws == [row.choice.draw for row in again.rows("thinker")]
    assert len(set(draws)) == len(draws)


# -- mistakes --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "value", "found"),
    [
        ("rules", "no place", "lacks the placeholder {question}"),
        ("thoughts_header", "", "'thoughts_header' is empty"),
        ("writer_header", "", "'writer_header' is empty"),
        ("probe", "", "'probe' is empty"),
        ("yes", " no", "'yes' and 'no' are both ' no'"),
    ],
)
def test_words_that_cannot_be(field: str, value: str, found: str) -> None:
    with pytest.raises(InvalidRequest, match=found):
        AsyncReasoningPrompt(**{field: value})


def test_answers_that_the_tokenizer_does_not_tell_apart() -> None:
    words = AsyncReasoningPrompt(yes=" no", no=" nothing")
    with pytest.raises(
        InvalidRequest, match="does not tell the answers ' no' and ' nothing' apart"
    ):
        async_reasoning("who", Text(byte_level()), None, words)


def test_settings_that_cannot_be() -> None:
    with pytest.raises(InvalidRequest, match="probe_every is -1"):
        AsyncReasoningSettings(probe_every=-1)
