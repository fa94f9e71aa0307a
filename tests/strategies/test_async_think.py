"""AsyncThink with scripted predictors: forks, joins, marks that make no sense, and every way to end."""

from __future__ import annotations

from typing import Any

import pytest

from manyhands.cache.step import Choice
from manyhands.errors import InvalidRequest
from manyhands.prompts.async_think import AsyncThinkPrompt, Fork, Join
from manyhands.strategies.account import Account
from manyhands.strategies.async_think import async_think
from manyhands.strategies.events import StepBegun, WorkerJoined, WorkerStopped
from manyhands.strategies.settings import AsyncThinkSettings, EndSettings
from manyhands.text import Text
from tests.strategies.driver import Dice, Played, Scripts, SeenRow, boxed, play, small_text
from tests.text.small_tokenizers import byte_level, sentence_piece

TEXT = small_text()
PROMPT = AsyncThinkPrompt(
    rules="Q: {question}", worker_rules="W: {query}", finisher="\nFinal \\boxed{"
)
NO_END = EndSettings(answer="none", reply=False)
TWO = "<FORK-1>ab</FORK-1><FORK-2>cd</FORK-2>Hm."
Item = str | int | None


def run(
    *,
    text: Text = TEXT,
    prompt: AsyncThinkPrompt = PROMPT,
    context: int | None = None,
    end: EndSettings = NO_END,
    workers: int = 2,
    budget: int = 300,
    max_forks: int = 4,
    worker_tokens: int = 40,
    choice: Choice | None = None,
    **said: list[Item],
) -> Played:
    settings = AsyncThinkSettings(
        budget=budget,
        workers=workers,
        max_forks=max_forks,
        worker_tokens=worker_tokens,
        end=end,
        choice=choice or Choice(),
    )
    lines = {name.replace("_", " "): words for name, words in said.items()}
    return play(async_think("who", text, settings, prompt, context=context), Scripts(text, **lines))


def read(played: Played, writer: str, index: int = -1, text: Text = TEXT) -> str:
    """The text that a row of a writer has read, behind the chat template."""
    whole = text.decode(played.rows(writer)[index].context).replace(" \n", "\n")
    return whole[len(text.decode(text.chat_prompt("Q: who")).replace(" \n", "\n")) :]


# -- forks and joins -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text", [TEXT, Text(byte_level()), Text(sentence_piece())], ids=["glued", "bytes", "pieces"]
)
def test_a_result_stands_behind_the_join_that_asked_for_it(text: Text) -> None:
    played = run(
        text=text,
        writer=[TWO, "<JOIN-2>", "So <JOIN-1>", "Both.", None],
        worker_1=["Long thoughts. <RETURN>one</RETURN>"],
        worker_2=["two", None],
    )
    line = (
        TWO + "<JOIN-2>\n<RETURN-2>\ntwo\n</RETURN-2>\n"
        "So <JOIN-1>\n<RETURN-1>\none\n</RETURN-1>\nBoth."
    )
    assert read(played, "writer", text=text) == line
    assert played.answer.text == "Hm.So Both."
    own = [step.text for step in played.answer.steps if step.worker == 0]
    assert own == [
        "<FORK-1>ab</FORK-1>",
        "<FORK-2>cd</FORK-2>",
        "Hm.<JOIN-2>",
        "So <JOIN-1>",
        "Both.",
    ]
    assert played.answer.finish_reason == "stopped"


def test_a_worker_reads_its_sub_query_and_nothing_else() -> None:
    played = run(writer=[TWO, "<JOIN-1>"], worker_1=["one", None], worker_2=["two", None])
    for name, query in (("worker 1", "ab"), ("worker 2", "cd")):
        rows = played.rows(name)
        assert TEXT.decode(rows[0].context) == f"user\nW: {query}\nassistant\n"
        assert all(row.blocks == (name,) for row in rows)
    assert all("worker" not in block for row in played.rows("writer") for block in row.blocks)


def test_the_organiser_goes_on_and_waits_where_it_joins() -> None:
    """Passes are shared: the organiser's, the two workers', and the wait at the join in the middle."""
    played = run(
        writer=[TWO, "<JOIN-1>", "x", None], worker_1=["a" * 60, None], worker_2=["two", None]
    )
    who = [set(one.writers) - {None} for one in played.passes]
    fork = len(TEXT.encode("<FORK-1>ab</FORK-1>"))
    assert who[:fork] == [{"writer"}] * fork
    assert who[fork] == {"writer", "worker 1"}, (
        "it goes on in the very pass in which the worker begins"
    )
    waits = [n for n, names in enumerate(who) if "writer" not in names]
    assert waits
    assert waits == list(range(waits[0], waits[-1] + 1))
    assert all(who[n] == {"worker 1"} for n in waits)
    assert played.answer.forward_passes == len(played.passes)
    assert played.answer.tokens == (
        len(played.written("writer")) - 1,
        len(played.written("worker 1")),
        len(played.written("worker 2")) - 1,
    )


def test_nothing_is_fed_twice_but_results() -> None:
    played = run(
        writer=[TWO, "<JOIN-1>", "x", None], worker_1=["one", None], worker_2=["two", None]
    )
    fed = sum(len(row.feed) for one in played.passes for row in one.rows)
    lines = sum(len(played.rows(name)[-1].context) for name in ("writer", "worker 1", "worker 2"))
    assert fed == lines


def test_a_worker_is_free_again_behind_its_join() -> None:
    played = run(
        writer=["<FORK-1>ab</FORK-1><JOIN-1>", "<FORK-1>cd</FORK-1><JOIN-1>", "x", None],
        worker_1=["one", None],
        worker_2=["two", None],
    )
    assert "one" in read(played, "writer").partition("cd")[0]
    assert "two" in read(played, "writer").partition("cd")[2]
    joined = [(e.worker, e.name) for e in played.of(WorkerJoined)]
    assert joined == [(1, "worker 1"), (2, "worker 2")]


@pytest.mark.parametrize(
    "words",
    [
        "<FORK-3>ab</FORK-3>",  # beyond the workers
        "<FORK-0>ab</FORK-0>",
        "<FORK-1>ab</FORK-2>",  # not closed
        "<FORK-1>  </FORK-1>",  # empty
        "<JOIN-1>",  # never forked
        "<FORK-x>ab</FORK-x>",
    ],
)
def test_marks_that_make_no_sense_are_text(words: str) -> None:
    played = run(writer=[words, "x", None])
    assert read(played, "writer") == words + "x"
    assert {name for one in played.passes for name in one.writers} == {"writer"}


def test_a_busy_worker_is_not_forked_and_a_result_is_joined_once() -> None:
    played = run(
        writer=["<FORK-1>ab</FORK-1><FORK-1>cd</FORK-1>", "<JOIN-1><JOIN-1>", "x", None],
        worker_1=["one", None],
    )
    assert read(played, "writer").count("<RETURN-1>") == 1
    assert len(played.of(WorkerJoined)) == 1
    waiting = run(
        writer=["<FORK-1>ab</FORK-1>", "a" * 40, "<FORK-1>cd</FORK-1>", "x", None],
        worker_1=["one", None],
    )
    assert len(waiting.of(WorkerJoined)) == 1, "its result is not joined yet"


def test_marks_in_a_question_or_a_result_do_nothing() -> None:
    prompt = AsyncThinkPrompt("<FORK-1>{question}</FORK-1>", "W: {query}")
    played = run(prompt=prompt, writer=["x", None])
    assert not played.of(WorkerJoined)
    spelled = run(
        writer=["<FORK-1>ab</FORK-1><JOIN-1>", "x", None],
        worker_1=["<FORK-2>cd</FORK-2>", None],
    )
    assert len(spelled.of(WorkerJoined)) == 1


def test_no_more_forks_than_allowed() -> None:
    again = "<FORK-1>ab</FORK-1><JOIN-1>"
    lines: dict[str, Any] = {f"worker_{n}": ["a", None] for n in range(1, 5)}
    played = run(max_forks=2, writer=[again, again, again, "x", None], **lines)
    assert len(played.of(WorkerJoined)) == 2


def test_a_thinking_worker_returns_what_follows_its_thoughts() -> None:
    """In its thoughts no mark is looked for: it may speak of the rules."""
    text = small_text(thinking=True)
    end = min(text.turn_end - text.eos)
    played = run(
        text=text,
        worker_tokens=90,
        writer=["<FORK-1>ab</FORK-1><JOIN-1>", "x", None],
        worker_1=["I end with <RETURN>...</RETURN> then", end, "so <RETURN>7</RETURN>"],
    )
    assert "<RETURN-1>\n7\n</RETURN-1>" in text.decode(played.rows("writer")[-1].context)


# -- ends ------------------------------------------------------------------------------------------


def test_the_organisers_end_is_the_end() -> None:
    played = run(writer=[TWO, "x", None], worker_1=["a" * 90], worker_2=["b" * 90])
    stopped = {e.worker: e.reason for e in played.of(WorkerStopped)}
    assert stopped == {0: "stopped", 1: "stopped", 2: "stopped"}
    account = Account(["Writer"], solo=True)
    for event in played.events:
        account.take(event)
    assert all(hand.stopped for hand in account.hands)
    assert [step.text[:1] for step in played.answer.steps if step.worker] == ["a", "b"]


def test_a_worker_that_writes_too_much_is_cut() -> None:
    played = run(
        worker_tokens=5,
        writer=["<FORK-1>ab</FORK-1><JOIN-1>", "x", None],
        worker_1=["abcdefghijkl"],
    )
    assert len(played.written("worker 1")) == 5
    stopped = {e.worker: e.reason for e in played.of(WorkerStopped)}
    assert stopped[1] == "budget"


def test_a_box_of_a_worker_is_no_answer() -> None:
    end = EndSettings(answer="boxed", finisher=False)
    played = run(
        end=end, writer=["<FORK-1>ab</FORK-1><JOIN-1>", "x", None], worker_1=["\\boxed{7}", None]
    )
    assert played.answer.answer is None
    assert "\\boxed{7}" in read(played, "writer")


@pytest.mark.parametrize("budget", [12, 30, 45])
def test_at_the_end_of_the_budget_the_finisher_reads_the_organisers_text(budget: int) -> None:
    end = EndSettings(answer="boxed", finisher_tokens=4)
    played = run(
        end=end,
        budget=budget,
        writer=[TWO, "<JOIN-1>"],
        worker_1=["a" * 200],
        worker_2=["two", None],
        finisher=["7}"],
    )
    answer = played.answer
    assert (answer.answer, answer.finish_reason, answer.forward_passes) == ("7", "budget", budget)
    line = TEXT.decode(TEXT.chat_prompt("Q: who")) + TEXT.decode(played.written("writer"))
    finished = TEXT.decode(played.rows("finisher")[0].context)
    assert finished == line + "\nFinal \\boxed{"


def test_a_result_that_does_not_fit_the_context_ends_the_run() -> None:
    end = EndSettings(answer="boxed", finisher_tokens=4)
    long = run(
        end=end,
        context=110,
        worker_tokens=80,
        writer=["<FORK-1>ab</FORK-1><JOIN-1>"],
        worker_1=["ab" * 36, None],
    )
    assert long.answer.finish_reason == "context"
    assert long.longest_view <= 110
    assert "<RETURN-1>" not in read(long, "finisher")


@pytest.mark.parametrize("seed", range(4))
def test_no_view_outgrows_the_context_and_memory_suffices(seed: int) -> None:
    dice = Dice(TEXT, boxes=0, ends=3)
    tags = ["<FORK-1>ab</FORK-1>", "<FORK-2>cd</FORK-2>", "<JOIN-1>", "<JOIN-2>"]
    script = Scripts(TEXT, writer=[tags[(seed + n) % 4] + "abc" for n in range(9)])

    def predict(row: SeenRow) -> int:
        return script(row) if row.writer == "writer" and script.lines["writer"] else dice(row)

    settings = AsyncThinkSettings(
        budget=400, worker_tokens=30, end=EndSettings(finisher_tokens=4), seed=seed
    )
    played = play(async_think("who", TEXT, boxed(settings), PROMPT, context=150), predict)
    assert played.longest_view <= 150
    fed = sum(len(row.feed) for one in played.passes for row in one.rows)
    assert fed <= played.reserved[0].num_tokens


def test_a_worker_more_changes_nobodys_words() -> None:
    """The draws of a worker depend on the seed and on its number alone."""
    draws = []
    for line in (TWO, TWO.partition("<FORK-2>")[0]):
        played = run(
            choice=Choice(temperature=1.0),
            writer=[line, "x" * 30, None],
            worker_1=["abc" * 4, None],
        )
        draws.append([row.choice.draw for row in played.rows("worker 1")])
    assert draws[0] == draws[1]
    assert len(set(draws[0])) == len(draws[0])


def test_a_step_is_opened_by_the_result() -> None:
    played = run(writer=["<FORK-1>ab</FORK-1><JOIN-1>", "x", None], worker_1=["one", None])
    begun = [(e.worker, e.step, e.text) for e in played.of(StepBegun)]
    assert begun == [(1, 1, "ab"), (0, 2, ""), (0, 3, "<RETURN-1>\none\n</RETURN-1>")]


# -- the words -------------------------------------------------------------------------------------


def test_marks_are_found_in_order() -> None:
    text = "<FORK-1>a\nb</FORK-1> <JOIN-2><FORK-12>c</FORK-12>"
    assert list(AsyncThinkPrompt().marks(text, 0)) == [
        Fork(1, "a\nb", 20),
        Join(2, 29),
        Fork(12, "c", 49),
    ]
    endless = "9" * 5000  # more digits than Python reads
    assert not list(
        AsyncThinkPrompt().marks(f"<FORK-{endless}>c</FORK-{endless}><JOIN-{endless}>", 0)
    )
    own = AsyncThinkPrompt(fork="({number}:", fork_end=")", join="?{number}.")
    assert list(own.marks("(3:why)?3.", 0)) == [Fork(3, "why", 7), Join(3, 10)]
    assert all(own.may_end_a_mark(end) for end in (")", "x.", "3)"))
    assert not own.may_end_a_mark("why")


@pytest.mark.parametrize(
    ("text", "bare"),
    [
        ("a<FORK-1>x</FORK-1>b<JOIN-1>\n<RETURN-1>\n2\n</RETURN-1>\nc", "abc"),
        ("<FORK-1>x</FORK-1>", "<FORK-1>x</FORK-1>"),
        ("a<FORK-1>x", "a<FORK-1>x"),
    ],
)
def test_the_reply_is_the_organisers_own_words(text: str, bare: str) -> None:
    assert AsyncThinkPrompt().bare(text) == bare


@pytest.mark.parametrize(
    ("field", "value", "found"),
    [
        ("rules", "x", "lacks the placeholder {question}"),
        ("fork", "<FORK>", "lacks the placeholder {number}"),
        ("join", "x\n{number}", "expected one line"),
        ("fork_end", " ", "expected one line"),
        ("fork", "{number}{number}", "in it once"),
        ("join", "<FORK-{number}>", "are the same"),
        # "JOIN 1" stands in "JOIN 12", and "FORK 1" before "3 * 4" would be "FORK 13".
        ("join", "JOIN {number}", "a digit beside {number} would be read into the number"),
        ("fork", "FORK {number}", "a digit beside {number} would be read into the number"),
        ("fork_end", "END {number}", "a digit beside {number} would be read into the number"),
        ("fork", "{number}>", "a digit beside {number} would be read into the number"),
        ("join", "JOIN 0{number}.", "a digit beside {number} would be read into the number"),
        ("join", "JOIN {number}0.", "a digit beside {number} would be read into the number"),
        ("returned", "<{number}{result}>", "a digit beside {number} would be read into the"),
        ("returned", "Result: {result}", "nothing says where the result ends"),
        ("returned", "gone", "lacks the placeholder {result}"),
    ],
)
def test_words_that_cannot_be(field: str, value: str, found: str) -> None:
    with pytest.raises(InvalidRequest, match=found):
        AsyncThinkPrompt(**{field: value})


def test_a_delimited_number_is_read_as_it_stands() -> None:
    """A line's end is a delimiter, too."""
    own = AsyncThinkPrompt(fork="W {number}:", fork_end="/{number};", join="J {number}\n")
    found = list(own.marks("W 1:3 * 4/1;J 1\n2 J 12", 0))
    assert found == [Fork(1, "3 * 4", 12), Join(1, 16)]
