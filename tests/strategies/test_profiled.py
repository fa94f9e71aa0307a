"""Models that were trained to think in parallel: forks, names, ends and joins, profile by profile."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import pytest
from tokenizers import AddedToken

from manyhands.cache.step import Choice
from manyhands.prompts.profiled import ProfilePrompt
from manyhands.strategies.events import ForkRefused
from manyhands.strategies.profiled import profiled
from manyhands.strategies.profiles import PROFILES
from manyhands.strategies.settings import EndSettings, ProfileSettings
from manyhands.text import Text
from tests.strategies.driver import Played, Scripts, play
from tests.text.small_tokenizers import byte_level

PROMPT = ProfilePrompt(rules="Q: {question}", finisher="\nFinal \\boxed{")
NO_END = EndSettings(answer="none", reply=False)


def text_of(name: str, special: bool = False) -> Text:
    """A small tokenizer in which every mark of the profile is one token; `special` ones have no text."""
    tokenizer = byte_level()
    marks = [mark for word in PROFILES[name].hidden for mark in (f"<{word}>", f"</{word}>")]
    tokenizer.add_tokens([AddedToken(mark, special=special, normalized=False) for mark in marks])
    return Text(tokenizer)


class Marked(Scripts):
    """Scripts in which marks are tokens."""

    def __init__(self, text: Text, **pieces: Sequence[str | int | None]) -> None:
        super().__init__(text)
        for writer, said in pieces.items():
            line = self.lines[writer] = deque()
            for piece in said:
                line.extend([min(text.eos)] if piece is None else text.markup(str(piece)))


def run(name: str, budget: int = 2000, **said: Sequence[str | int | None]) -> tuple[Text, Played]:
    text = text_of(name)
    parts = {writer.replace("_", " "): lines for writer, lines in said.items()}
    settings = ProfileSettings(profile=name, budget=budget, end=NO_END, part_tokens=20)
    return text, play(profiled("?", text, settings, PROMPT), Marked(text, **parts))


NPR = "Hm.<guideline><plan>1: a</plan><plan>2: b</plan></guideline>"


def last_read(text: Text, played: Played, writer: str = "writer") -> str:
    """All that the last row of a writer read, behind the prompt."""
    return text.decode(played.rows(writer)[-1].context).partition("assistant\n")[2]


def test_npr_parts_at_the_guideline_and_joins_behind_both_steps() -> None:
    text, played = run(
        "npr", writer=[NPR, "So 3.", None], part_1=["one</step>"], part_2=["two more</step>"]
    )
    first, second = played.rows("part 1"), played.rows("part 2")
    assert text.decode(first[0].feed) == "\n<step>\n1:"
    assert text.decode(second[-1].context).endswith(f"{NPR}\n<step>\n2:two more")
    assert "step 1" not in text.decode(second[-1].context)
    joined = "\n<step>\n1:one</step>\n<step>\n2:two more</step><takeaway>\n"
    assert last_read(text, played) == f"{NPR}{joined}So 3."
    assert played.answer.text == "Hm.1: a2: b\n1:one\n2:two more\nSo 3."
    assert played.answer.tokens[1:] == (len(text.encode("one")), len(text.encode("two more")))
    assert first[0].choice.repetition_penalty == 1.0, "weighed in the tally"


def test_a_step_of_the_first_pass_reads_the_fork_mark() -> None:
    text, played = run("npr", writer=[NPR, None], part_1=["</step>"], part_2=["</step>"])
    first = played.rows("part 1")[0]
    assert text.decode(first.context).endswith("</guideline>\n<step>\n1:")


@pytest.mark.parametrize(
    "said",
    [
        "<guideline>no plan</guideline>",
        "<plan>1: a</plan></guideline>",
        "<guideline>" + "".join(f"<plan>{n}: a</plan>" for n in range(6)) + "</guideline>",
    ],
)
def test_npr_goes_on_where_nothing_can_be_parted(said: str) -> None:
    _, played = run("npr", writer=[said, "on", None])
    assert {writer for one in played.passes for writer in one.writers} == {"writer"}


def test_npr_does_not_fork_where_too_little_is_left() -> None:
    _, played = run("npr", budget=1000, writer=[NPR, "on", None])
    assert not played.rows("part 1")


@pytest.mark.parametrize(("most", "forks"), [(1, False), (2, True), (None, True)])
def test_no_fork_has_more_parts_than_may_write_at_once(most: int | None, *, forks: bool) -> None:
    text = text_of("npr")
    settings = ProfileSettings(profile="npr", end=NO_END, part_tokens=20, most_workers=most)
    said: dict[str, Any] = {
        "writer": [NPR, "on", None],
        "part 1": ["</step>"],
        "part 2": ["</step>"],
    }
    played = play(profiled("?", text, settings, PROMPT), Marked(text, **said))
    assert bool(played.rows("part 1")) == forks
    refused = [event.reason for event in played.of(ForkRefused)]
    reason = "2 workers would write at the same time, and the run may have 1 at most"
    assert refused == ([] if forks else [reason])


def test_plans_are_read_behind_the_last_guideline_and_may_be_nested_numbers() -> None:
    parts: dict[str, Any] = {f"part_{n}": [f"p{n}</step>"] for n in range(1, 5)}
    text, played = run(
        "npr",
        writer=[
            NPR,
            "Then<guideline><plan>2.1: c</plan><plan> 2.2 : d</plan><plan>2.1: c</plan></guideline>",
            None,
        ],
        **parts,
    )
    headers = [text.decode(played.rows(f"part {n}")[0].feed) for n in (3, 4)]
    assert headers == ["\n<step>\n2.1:", "\n<step>\n2.2:"]
    assert not played.rows("part 5"), "a plan that is named twice is one part"


def test_multiverse() -> None:
    said = "<Parallel>\n<Goal>\n<Outline>\n1: a\n</Outline>\n<Outline>\n2: b\n</Outline>\n</Goal>"
    text, played = run(
        "multiverse", writer=[said, "c", None], part_1=["x</Path>"], part_2=["y</Path>"]
    )
    assert last_read(text, played) == (
        f"{said}\n<Path>\n1:x</Path>\n<Path>\n2:y</Path><Conclusion>\nc"
    )


@pytest.mark.parametrize("name", ["parallel-r1", "parallel-r1-seen"])
def test_parallel_r1_has_two_paths_with_luck_of_their_own(name: str) -> None:
    text, played = run(
        name, writer=["So <Parallel>", "s</Summary>", None], part_1=["x</Path>"], part_2=["y", None]
    )
    draws = [played.rows(f"part {n}")[0].choice for n in (1, 2)]
    assert [choice.temperature for choice in draws] == [1.0, 1.0]
    assert draws[0].draw != draws[1].draw
    assert last_read(text, played) == (
        "So <Parallel><Path>x</Path><Path>y</Path></Parallel>\n<Summary>s</Summary>"
    )
    blocks = played.rows("writer")[-1].blocks
    assert ("branches" in blocks) == (name == "parallel-r1-seen")


def test_parallel_r1_forks_four_times_at_most() -> None:
    paths: dict[str, Any] = {f"part_{n}": ["x</Path>"] for n in range(1, 13)}
    _, played = run("parallel-r1", writer=["<Parallel>" * 6, None], **paths)
    assert played.rows("part 8")
    assert not played.rows("part 9")


THREADS = "<Parallel><Outlines><Outline>1: a</Outline><Outline>2: b</Outline></Outlines>"


def test_threadweaver_joins_with_one_line_break() -> None:
    text, played = run(
        "threadweaver", writer=[THREADS, "c", None], part_1=["x</Thread>"], part_2=["y</Thread>"]
    )
    assert text.decode(played.rows("part 2")[0].feed) == "\n<Thread>\n2:"
    assert last_read(text, played) == f"{THREADS}\n<Thread>\n1:x</Thread><Thread>\n2:y</Thread>\nc"


def test_threadweaver_ends_where_a_thread_was_cut() -> None:
    _, played = run(
        "threadweaver", writer=[THREADS, "c", None], part_1=["x", None], part_2=["y</Thread>"]
    )
    assert played.answer.finish_reason == "stopped"
    assert "x" in played.answer.text
    assert "c" not in played.answer.text.rpartition("y")[2]


def test_the_budget_may_end_in_the_middle_of_parts() -> None:
    text = text_of("multiverse")
    said = "<Goal><Outline>1: a</Outline></Goal>"
    spent = len(text.markup(said)) + 3
    settings = ProfileSettings(
        profile="multiverse", budget=spent, end=EndSettings(answer="boxed", finisher_tokens=3)
    )
    played = play(
        profiled("?", text, settings, PROMPT), Marked(text, writer=[said], finisher=["7}"])
    )
    assert (played.answer.answer, played.answer.finish_reason) == ("7", "budget")
    assert played.answer.forward_passes == spent
    read = text.decode(played.rows("finisher")[0].context)
    assert "<Path>\n1:aaa</Path><Conclusion>\n" in read


def test_the_runs_own_choice_may_be_kept() -> None:
    text = text_of("parallel-r1")
    settings = ProfileSettings(
        profile="parallel-r1",
        budget=40,
        end=NO_END,
        same_choice=True,
        choice=Choice(temperature=0.5),
    )
    played = play(profiled("?", text, settings, PROMPT), Marked(text, writer=["<Parallel>", None]))
    assert played.rows("part 1")[0].choice.temperature == 0.5


def test_marks_that_have_no_text_are_known_by_their_tokens() -> None:
    """In some tokenizers they are special: a decoder leaves them out."""
    text = text_of("npr", special=True)
    settings = ProfileSettings(profile="npr", budget=2000, end=NO_END)
    played = play(
        profiled("?", text, settings, PROMPT),
        Marked(
            text,
            writer=[NPR, "So 3.", None],
            **{"part 1": ["one</step>"], "part 2": ["two more</step>"]},
        ),
    )
    parts = [
        text.markup(f"\n<step>\n{n}:{said}</step>") for n, said in ((1, "one"), (2, "two more"))
    ]
    joined = (*parts[0], *parts[1], *text.markup("<takeaway>\nSo 3."))
    assert played.rows("writer")[-1].context[-len(joined) :] == joined
    assert "step" not in played.answer.text


def test_a_user_cannot_spell_a_mark() -> None:
    text = text_of("npr")
    strategy = profiled("</guideline>", text, ProfileSettings(budget=4, end=NO_END), PROMPT)
    played = play(strategy, Marked(text, writer=["a", None]))
    (fork,) = text.markup("</guideline>")
    assert fork not in played.rows("writer")[-1].context
