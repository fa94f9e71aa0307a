"""Parallel branches with scripted predictors: every rule of the three stages."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

import pytest
from tokenizers import AddedToken

from manyhands.cache.step import Choice, Step
from manyhands.cache.view import Lanes, blocks_of
from manyhands.errors import InvalidRequest
from manyhands.prompts.branches import BranchPrompt
from manyhands.strategies.branch_joins import JOINS
from manyhands.strategies.branches import BranchAnswer, branches, placeholder_tokens
from manyhands.strategies.events import (
    AnswerFound,
    ReplyWritten,
    StepBegun,
    StepEnded,
    TokenWritten,
    WorkerJoined,
    WorkerStopped,
)
from manyhands.strategies.settings import BranchSettings, EndSettings
from manyhands.text import Text
from manyhands.text.markers import MarkerProfile
from tests.covers import is_every_case
from tests.strategies.driver import Played, Scripts, SeenRow, boxed, feed, play
from tests.text.small_tokenizers import OPENED, byte_level, sentence_piece

PROMPT = BranchPrompt("Q: {question}", finisher="\nFinal \\boxed{")
NO_END = EndSettings(finisher=False)
GLUED = ("####", "\n####", "##", "%%%%", "####%%%%", ": ", ".\n", ":")


def glued_text(*whole: str, template: str | None = None) -> Text:
    """A tokenizer in which these strings are tokens of their own."""
    tokenizer = byte_level(template) if template else byte_level()
    tokenizer.add_tokens([AddedToken(piece, special=False, normalized=False) for piece in whole])
    return Text(tokenizer)


TEXTS = {
    "byte_level": Text(byte_level()),
    "sentence_piece": Text(sentence_piece()),
    "glued": glued_text(*GLUED),
    "pairs": glued_text("##", "#%", "%%", ".\n"),
    "wide": glued_text(" \n####", "####A:", ": x", "%%%%\n"),
}
TEXT = TEXTS["byte_level"]
START = "user\nQ: who\nassistant\n"
A_B = ["Look.\n####A:", "B:", "%%%%"]  # the model writes this itself; the rest is forced
FILLED: dict[str, Any] = {"branch_1": ["one####"], "branch_2": ["three four\n####"]}


def run(
    settings: BranchSettings | None = None,
    text: Text = TEXT,
    context: int | None = None,
    **said: Sequence[str | int | None],
) -> Played:
    settings = settings or BranchSettings(end=NO_END)
    strategy = branches("who", text, boxed(settings), PROMPT, context=context)
    lines = {name.replace("_", " "): words for name, words in said.items()}
    return play(strategy, Scripts(text, **lines))


def answer_of(played: Played) -> BranchAnswer:
    assert isinstance(played.answer, BranchAnswer)
    return played.answer


# -- the three stages ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("join", JOINS)
def test_the_three_stages_with_any_tokenizer(name: str, join: str) -> None:
    text = TEXTS[name]
    settings = BranchSettings(end=NO_END, join=join)
    played = run(settings, text, writer=[*A_B, "So B.", None], **FILLED)
    answer = answer_of(played)
    assert answer.text == "Look.\nA: one\nB: three four\nSo B."
    assert [(b.worker, b.block, b.title, b.text) for b in answer.branches] == [
        (1, 1, "A", "one"),
        (2, 1, "B", "three four"),
    ]
    assert answer.finish_reason == "stopped"
    last = text.decode(played.rows("writer")[-1].context)
    assert last.endswith("Look.\n####A:one\n####B:three four\n####%%%%\nSo B.")
    skeleton = [text.decode(row.context) for row in played.rows("writer")]
    forced = "Look.\n####A:......\n####B:......\n####"
    assert any(seen.endswith(forced) for seen in skeleton)
    opened = text.decode(played.rows("branch 2")[0].context)
    assert opened.endswith("Look.\n####B:")
    assert "######" not in opened.replace("####B", "")
    assert "A" not in opened.partition("Look")[2]


def test_no_pass_is_lost() -> None:
    played = run(writer=[*A_B, "So.", None], **FILLED)
    written = [len(played.written(who)) for who in ("writer", "branch 1", "branch 2")]
    # the critical path: the line, and the longest branch
    assert len(played.passes) == written[0] + max(written[1:])
    assert answer_of(played).forward_passes == len(played.passes)
    free = "".join(TEXT.decode([t]) for t in played.written("writer"))
    assert free == "Look.\n####A:B:%%%%So."
    wide = [row for row in played.rows("writer") if len(row.feed) > 1]
    forced = [TEXT.decode(row.feed) for row in wide]
    assert forced == [":......\n####", ":......\n####", "####%%%%\n"]


def test_branches_begin_in_one_step_and_leave_when_done() -> None:
    played = run(writer=[*A_B, "So.", None], **FILLED)
    team = [one.writers for one in played.passes if one.writers[0].startswith("branch")]
    assert team[0] == ("branch 1", "branch 2")
    assert team[-1] == ("branch 2",)
    assert len(team) == len(TEXT.encode("three four\n####"))
    first = next(one for one in played.passes if "branch 1" in one.writers)
    assert [TEXT.decode(row.feed) for row in first.rows if row.writer] == ["####A:", "####B:"]


def test_branches_do_not_see_each_other_or_the_skeleton() -> None:
    played = run(writer=[*A_B, "So.", None], **FILLED)
    for row in played.rows("branch 2"):
        seen = TEXT.decode(row.context)
        assert seen.startswith(START + "Look.\n####B:")
        assert "one" not in seen
        assert "......" not in seen


def test_the_joins_read_the_same_text_and_two_feed_none_of_it_again() -> None:
    rows = {}
    for join in JOINS:
        settings = BranchSettings(end=NO_END, join=join)
        played = run(settings, writer=[*A_B, "So.", None], **FILLED)
        (at,) = (
            i for i, p in enumerate(played.passes) if p.rows[-1].feed == TEXT.encode("####%%%%\n")
        )
        rows[join] = played.passes[at].rows
    assert len({rows[join][-1].context for join in JOINS}) == 1
    assert [TEXT.decode(row.feed) for row in rows["reencode"][:-1]] == [
        "####A:one\n####B:three four\n"
    ]
    for join in ("stitch", "keep"):
        assert [TEXT.decode(row.feed) for row in rows[join][:-1]] == ["\n"]
        assert rows[join][-1].blocks.count("branch 1") == 1


def test_kept_branches_stand_side_by_side_behind_the_trunk() -> None:
    settings = BranchSettings(end=NO_END, join="keep")
    strategy = branches("who", TEXT, settings, PROMPT)
    script = Scripts(TEXT, **{"writer": [*A_B, "So."], "branch 1": ["one####"]})
    script.lines["branch 2"] = Scripts(TEXT, two=["three four\n####"]).lines["two"]
    tokens = None
    while True:
        asked = strategy.send(tokens)
        tokens = None
        if isinstance(asked, Step):
            tokens = tuple(script(row) for row in feed(asked))
            if asked.rows[-1].feed == TEXT.encode("####%%%%\n"):
                break
    view = asked.rows[-1].view
    (lanes,) = (item for item in view.items if isinstance(item, Lanes))
    texts = [TEXT.decode([t for b in blocks_of(lane) for t in b.tokens]) for lane in lanes.lanes]
    assert texts == ["####A:one\n", "####B:three four\n"]
    starts = dict(zip(view.blocks, view.starts(), strict=True))
    trunk = len(TEXT.chat_prompt("Q: who")) + len(TEXT.encode("Look.\n"))
    assert {starts[first] for first, *_ in map(blocks_of, lanes.lanes)} == {trunk}
    assert starts[view.own] == trunk + len(TEXT.encode("####B:three four\n"))


def test_what_is_reported() -> None:
    played = run(writer=[*A_B, "So.", None], **FILLED)
    assert [(e.worker, e.step, e.text) for e in played.of(StepBegun)] == [
        (1, 1, "A:"),
        (2, 1, "B:"),
        (0, 2, ""),
    ]
    assert [(e.worker, e.name) for e in played.of(WorkerJoined)] == [(1, "A"), (2, "B")]
    assert [(e.worker, e.step, e.text) for e in played.of(StepEnded)] == [
        (0, 1, "Look."),
        (1, 1, "one"),
        (2, 1, "three four"),
    ]
    stopped = [(e.worker, e.reason) for e in played.of(WorkerStopped)]
    assert stopped == [(1, "marker"), (2, "marker"), (0, "stopped")]
    said = "".join(e.text for e in played.of(ReplyWritten))
    assert said.strip() == answer_of(played).text
    by_branch = "".join(e.text for e in played.of(TokenWritten) if e.worker == 1)
    assert by_branch == "one"
    assert [(s.worker, s.text) for s in answer_of(played).steps] == [
        (0, "Look."),
        (1, "one"),
        (2, "three four"),
        (0, "So."),
    ]
    assert answer_of(played).tokens == tuple(
        len(played.written(who)) - (who == "writer") for who in ("writer", "branch 1", "branch 2")
    )


def test_a_box_is_the_answer() -> None:
    played = run(writer=[*A_B, "\\boxed{4}", None], **FILLED)
    assert (played.answer.answer, played.answer.finish_reason) == ("4", "answer")
    assert [e.answer for e in played.of(AnswerFound)] == ["4"]


# -- ends of branches ------------------------------------------------------------------------------


def test_branches_end_for_different_reasons() -> None:
    settings = BranchSettings(end=NO_END, branch_tokens=6)
    text = TEXTS["glued"]
    played = run(
        settings,
        text,
        writer=["####A:", "B:", "C:", "D:", "%%%%", "So.", None],
        branch_1=["a####"],
        branch_2=["b", "####%%%%"],
        branch_3=["c", None],
        branch_4=["d"] * 20,
    )
    found = [(b.finish_reason, b.text) for b in answer_of(played).branches]
    assert found == [("marker", "a"), ("terminator", "b"), ("stopped", "c"), ("budget", "dddddd")]
    assert answer_of(played).text == "A: a\nB: b\nC: c\nD: dddddd\nSo."
    seen = text.decode(played.rows("writer")[-1].context)
    assert "####A:a\n####B:b\n####C:c\n####D:dddddd\n####%%%%\nSo." in seen


def test_hash_signs_that_make_no_marker_stay() -> None:
    played = run(writer=["# One\n## Two\n### Three\n", None])
    assert answer_of(played).text == "# One\n## Two\n### Three"
    fed = played.rows("writer")[-1].context
    assert TEXT.decode(fed).endswith("### Three\n")
    played = run(writer=["####A:", "%%%%", None], branch_1=["a # b ### c####"])
    assert answer_of(played).branches[0].text == "a # b ### c"


@pytest.mark.parametrize("name", TEXTS)
def test_the_placeholder_cannot_begin_a_branch(name: str) -> None:
    text = TEXTS[name]
    banned = placeholder_tokens(text, "......")
    for size in range(1, 13):
        token = next(t for t in text.encode("." * size) if text.decode([t]).strip())
        assert token in banned
    assert all(set(text.decode([token]).strip()) == {"."} for token in banned)
    played = run(text=text, writer=["####A:", "%%%%", None], branch_1=[" ", "x", ".", "####"])
    bans = [banned <= row.choice.forbidden for row in played.rows("branch 1")]
    num_blanks = len(text.encode(" "))
    assert bans == [True] * (num_blanks + 1) + [False] * (len(bans) - num_blanks - 1)
    assert not any(row.choice.forbidden for row in played.rows("writer"))


@pytest.mark.parametrize("token", ["......\n\n", "...\n", " ......\n", "...... "])
def test_a_placeholder_and_a_line_break_in_one_token_cannot_begin_a_branch_either(
    token: str,
) -> None:
    text = glued_text(token)
    assert text.encode(token)[0] in placeholder_tokens(text, "......")
    assert text.encode("\n")[0] not in placeholder_tokens(text, "......")


def test_the_ban_is_looked_up_once_for_each_tokenizer(monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = Text(byte_level()), Text(sentence_piece())
    banned = placeholder_tokens(one, "......")
    assert placeholder_tokens(other, "......") != banned
    monkeypatch.setattr(Text, "encode", None)
    assert placeholder_tokens(one, "......") == banned


# -- forcing, and blocks that are none -------------------------------------------------------------


def test_a_colon_outside_a_block_forces_nothing() -> None:
    played = run(writer=["Note: it is: so:\n", "\n", None])
    assert all(len(row.feed) == 1 for row in played.rows("writer"))
    assert answer_of(played).text == "Note: it is: so:"
    played = run(writer=[*A_B, "So: B: done.", None], **FILLED)
    assert answer_of(played).text.endswith("So: B: done.")
    assert len([row for row in played.rows("writer") if len(row.feed) > 1]) == 3


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize(
    ("said", "read"),
    [
        ("One.\n#### Heading\nTwo.", "One.\n Heading\nTwo."),
        ("One.\n####%%%%\nTwo: a.", "One.\n\nTwo: a."),
        ("One.\n####:\nTwo.", "One.\n:\nTwo."),
        ("One.\n########\nTwo.", "One.\n\nTwo."),
        ("One.\n####", "One."),
        ("One.\n####Tit", "One.\nTit"),
        ("One.\n####%%", "One.\n%%"),
        ("One.\n##", "One.\n##"),
        ("####%%%", "%%%"),
    ],
)
def test_a_block_without_titles_is_ordinary_text(name: str, said: str, read: str) -> None:
    """Token for token what was written, every token fed once, only the marks not shown."""
    text = TEXTS[name]
    played = run(text=text, writer=[said, None])
    assert answer_of(played).text == read.strip()
    assert answer_of(played).branches == ()
    rows = played.rows("writer")
    assert all(len(row.feed) == 1 for row in rows)
    assert rows[-1].context[-len(text.encode(said)) :] == text.encode(said)
    assert len(played.passes) == len(text.encode(said)) + 1


def test_a_title_that_never_ends_is_text() -> None:
    settings = BranchSettings(end=NO_END, title_tokens=5)
    played = run(settings, writer=["####abcdefghij: k", None])
    assert answer_of(played).text == "abcdefghij: k"
    assert answer_of(played).branches == ()


def test_a_real_block_after_a_broken_one() -> None:
    for name, text in TEXTS.items():
        played = run(text=text, writer=["####x####A:", "%%%%", "end", None], branch_1=["b####"])
        assert answer_of(played).text == "x\nA: b\nend", name


def test_a_marker_that_began_in_a_title_that_was_none() -> None:
    """Its first sign was read as the title's; the text before it is the trunk all the same."""
    settings = BranchSettings(end=NO_END, title_tokens=4)
    assert len(TEXT.encode("bab#")) == 4
    played = run(settings, writer=["####bab####A:", "%%%%", "end", None], branch_1=["b####"])
    assert answer_of(played).text == "bab\nA: b\nend"
    opened = played.rows("branch 1")[0]
    assert TEXT.decode(opened.context) == START + "####bab####A:"


def test_a_token_that_says_more_than_the_titles_end_is_cut() -> None:
    text = TEXTS["wide"]
    played = run(text=text, writer=["####B", ": x", "%%%%\n", "end", None], branch_1=["b####"])
    (wide, *_) = [row for row in played.rows("writer") if len(row.feed) > 1]
    assert text.decode(wide.context).endswith("####B:......\n####")
    assert answer_of(played).text == "B: b\nend"


@pytest.mark.parametrize("ending", [["\n"], [None], ["Half a title", None], ["%%%\n"], ["####"]])
def test_complete_titles_are_filled_however_the_block_ends(
    ending: list[None] | list[str | None] | list[str],
) -> None:
    played = run(writer=["####A:", "B:", *ending, "End.", None], **FILLED)
    assert answer_of(played).text == "A: one\nB: three four\nEnd."


def test_a_block_has_so_many_titles_at_most() -> None:
    settings = BranchSettings(end=NO_END, max_branches=2)
    played = run(settings, writer=["####A:", "B:", "End.", None], **FILLED)
    assert answer_of(played).text == "A: one\nB: three four\nEnd."
    bounded = BranchSettings(end=NO_END, most_workers=2)  # so many write at the same time
    same = run(bounded, writer=["####A:", "B:", "End.", None], **FILLED)
    assert (same.passes, same.reserved) == (played.passes, played.reserved)


def test_the_next_marker_opens_the_next_block_up_to_the_limit() -> None:
    said = ["####A:", "%%%%", "x\n####B:", "%%%%", "y\n####C: z", None]
    settings = BranchSettings(end=NO_END, max_blocks=2)
    played = run(settings, writer=said, branch_1=["one####"], branch_2=["two####"])
    assert answer_of(played).text == "A: one\nx\nB: two\ny\nC: z"
    assert [(b.worker, b.block) for b in answer_of(played).branches] == [(1, 1), (2, 2)]
    last = TEXT.decode(played.rows("writer")[-1].context)
    expected = "####A:one\n####%%%%\nx\n####B:two\n####%%%%\ny\n####C: z"
    assert last == START + expected


def test_without_blocks_it_is_sequential() -> None:
    settings = BranchSettings(end=NO_END, max_blocks=0)
    played = run(settings, writer=["a\n####A:......\n####%%%%b", None])
    assert answer_of(played).text == "a\nA:......\nb"
    assert all(len(row.feed) == 1 for row in played.rows("writer"))


@pytest.mark.parametrize("blocks", [0, 1])
@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 8, 99])
def test_marks_are_left_out_behind_the_last_block_however_they_are_cut(
    blocks: int, size: int
) -> None:
    settings = BranchSettings(end=NO_END, max_blocks=blocks)
    late = "x\n####C: z\n####%%%%\n## 5% y####"
    cut = [late[start : start + size] for start in range(0, len(late), size)]
    said = [*(["####A:", "%%%%"] * blocks), *cut, None]
    played = run(settings, writer=said, branch_1=["one####"])
    assert answer_of(played).text == "A: one\n" * blocks + "x\nC: z\n\n## 5% y"
    assert "".join(e.text for e in played.of(ReplyWritten)).strip() == answer_of(played).text


def test_other_marks_and_a_thinking_model() -> None:
    text = glued_text(template=OPENED)
    marks = MarkerProfile("@@", "=>", "...", "@end")
    settings = BranchSettings(end=NO_END, markers=marks)
    close = text.think_end
    said = ["hm.\n@@A=>", "@end", "so", close, "It is @@ no.", None]
    played = run(settings, text, writer=said, branch_1=["one", close])
    answer = answer_of(played)
    assert answer.text == "It is  no."
    assert answer.branches[0].finish_reason == "stopped"
    assert [(s.worker, s.text) for s in answer.steps] == [
        (0, "hm."),
        (1, "one"),
        (0, "so"),
        (0, "It is  no."),
    ]


@pytest.mark.parametrize("blocks", [0, 9])
def test_no_mark_begins_in_the_thinking_and_ends_in_the_reply(blocks: int) -> None:
    text = glued_text(template=OPENED)
    settings = BranchSettings(end=NO_END, max_blocks=blocks)
    said = ["hm ##", text.think_end, "##A: 7", None]
    played = run(settings, text, writer=said)
    answer = answer_of(played)
    assert answer.text == "".join(e.text for e in played.of(ReplyWritten)) == "##A: 7"
    assert [step.text for step in answer.steps] == ["hm ##", "##A: 7"]


def test_a_title_that_is_cut_by_the_end_of_the_thinking_is_none() -> None:
    text = glued_text(template=OPENED)
    said = ["hm\n####A", text.think_end, " is: 7", None]
    played = run(None, text, writer=said)
    answer = answer_of(played)
    assert "".join(e.text for e in played.of(ReplyWritten)) == " is: 7"
    assert [step.text for step in answer.steps] == ["hm\nA", "is: 7"]


def test_what_closes_the_thinking_behind_a_title_goes_with_the_titles() -> None:
    """The strand goes on in front of it: still in its thinking."""
    text = glued_text(template=OPENED)
    said = ["hm\n####A:", "B", text.think_end, "so", text.think_end, "7", None]
    played = run(None, text, writer=said, branch_1=["one", None])
    answer = answer_of(played)
    assert answer.text == "7"
    assert [(s.worker, s.text) for s in answer.steps] == [
        (0, "hm"),
        (1, "one"),
        (0, "so"),
        (0, "7"),
    ]
    last = played.rows("writer")[-1].context
    assert last.count(text.think_end) == 1


# -- limits ----------------------------------------------------------------------------------------


def test_a_budget_may_end_anywhere() -> None:
    said: dict[str, Any] = {"writer": [*A_B, "So B.", None], "finisher": ["4", "}"], **FILLED}
    whole = answer_of(run(**said)).forward_passes
    for join in ("reencode", "stitch"):
        for budget in range(1, whole + 1):
            played = run(BranchSettings(budget=budget, join=join), **said)
            answer = answer_of(played)
            assert answer.forward_passes == budget
            assert answer.finish_reason == ("stopped" if budget == whole else "budget")
            assert (answer.answer, answer.extra_passes) == ("4", 2)
            assert "####" not in answer.text
            assert "%%%%" not in answer.text
            finisher = TEXT.decode(played.rows("finisher")[0].context)
            assert finisher.startswith(START)
            assert finisher.endswith("Final \\boxed{")
            assert "......" not in finisher
            for branch in answer.branches:
                assert f"####{branch.title}:{branch.text}\n" in finisher


def test_at_the_budget_the_finisher_may_encode_all_anew() -> None:
    end = EndSettings(reencode=True)
    said: dict[str, Any] = {"writer": [*A_B, "So B.", None], "finisher": ["4", "}"], **FILLED}
    for budget in range(1, 40):
        rows = [
            run(BranchSettings(budget=budget, end=e), **said).rows("finisher")[0]
            for e in (end, EndSettings())
        ]
        assert rows[0].context == rows[1].context
        assert rows[0].feed == rows[0].context


def test_branches_that_the_budget_ends_say_so() -> None:
    budget = len(TEXT.encode("Look.\n####A:B:%%%%")) + 2
    played = run(BranchSettings(budget=budget, end=NO_END), writer=A_B, **FILLED)
    assert {b.finish_reason for b in answer_of(played).branches} == {"budget"}


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("join", ["reencode", "stitch"])
def test_no_view_is_longer_than_the_context_allows(name: str, join: str) -> None:
    text = TEXTS[name]
    start = len(text.chat_prompt("Q: who"))
    said = {"writer": [*A_B, *["more. "] * 20], "branch_1": ["x" * 99], "branch_2": ["y"] * 99}
    reasons = set()
    for context in range(start + 100, start + 190, 7):
        end = EndSettings(finisher_tokens=4)
        settings = BranchSettings(join=join, end=end, branch_tokens=40)
        played = run(settings, text, context=context, **said)
        assert played.longest_view <= context
        assert played.answer.finish_reason == "context"
        reasons |= {b.finish_reason for b in answer_of(played).branches}
        assert answer_of(played).extra_passes == 4
    assert "context" in reasons


def test_titles_whose_branches_would_not_fit_are_left() -> None:
    """A skeleton may be shorter than the branches that come of it."""
    text = glued_text("......\n####", "####", ":")
    said = ["####", *(f"{name}:" for name in "ABCDEFGHIJ"), "%%%%", *["more "] * 99]
    start, seen = len(text.chat_prompt("Q: who")), set()
    for context in range(start + 4, start + 220, 2):
        settings = BranchSettings(end=NO_END, branch_tokens=9)
        played = run(settings, text, context=context, writer=said)
        assert played.longest_view <= context
        assert played.answer.finish_reason == "context"
        seen |= {branch.finish_reason for branch in answer_of(played).branches} or {"none"}
    assert seen == {"none", "context", "budget"}


def test_it_reserves_what_it_may_need() -> None:
    settings = BranchSettings(max_branches=2, branch_tokens=30, budget=60, max_blocks=1)
    played = run(settings, writer=["####A:", "B:", *["b"] * 99], branch_1=["x" * 99])
    (reserved,) = played.reserved
    assert reserved.num_tokens >= played.longest_view + 2 * 30
    played = run(BranchSettings(end=NO_END), context=500, writer=[None])
    assert played.reserved[0].num_tokens == 2 * 500


def test_draws_are_each_branchs_own() -> None:
    choice = Choice(temperature=1.0)
    settings = BranchSettings(end=NO_END, choice=choice, seed=3)
    more = run(settings, writer=[*A_B, None], **FILLED)
    fewer = run(settings, writer=[*A_B[:1], "%%%%", None], **FILLED)
    first = [[r.choice.draw for r in played.rows("branch 1")] for played in (more, fewer)]
    assert first[0] == first[1]
    assert first[0][0] != more.rows("branch 2")[0].choice.draw


@pytest.mark.parametrize(
    "wrong",
    [
        {"join": "glue"},
        {"budget": 9, "snapshots": (9,)},
        {"budget": 0},
        {"max_blocks": -1},
        {"branch_tokens": 0},
        {"title_tokens": 0},
    ],
)
def test_settings_are_checked(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match=next(iter(wrong))):
        BranchSettings(**wrong)


# -- whatever a model may write --------------------------------------------------------------------

HOSTILE = ["#", "##", "####", "\n####", ":", "%", "%%", "%%%%", "\n", "a", "b", " ", "......", "é"]


class Noise:
    """Any token of hostile pieces; the same for the same context."""

    def __init__(self, text: Text, seed: int) -> None:
        self.seed = seed
        self.tokens = [token for piece in HOSTILE for token in text.encode(piece)]
        self.tokens += [min(text.eos), *text.encode("####A:") * 3]

    def __call__(self, row: SeenRow) -> int:
        seen = repr((self.seed, row.context)).encode()
        tokens = [t for t in self.tokens if t not in row.choice.forbidden]
        return tokens[zlib.crc32(seen) % len(tokens)]


@pytest.mark.parametrize("name", TEXTS)
def test_noise_breaks_nothing(name: str, pytestconfig: pytest.Config) -> None:
    """Both joins read the same text, so a model that is a function of its context ends the same."""
    text, num_branches, reasons = TEXTS[name], 0, set()
    context = len(text.chat_prompt("Q: who")) + 150
    num_seeds = 150 if is_every_case(pytestconfig) else 60
    for seed in range(num_seeds):
        results = []
        for join in ("reencode", "stitch"):
            settings = BranchSettings(
                budget=90,
                join=join,
                branch_tokens=12,
                max_branches=4,
                title_tokens=9,
                end=EndSettings(finisher_tokens=3),
            )
            strategy = branches("who", text, boxed(settings), PROMPT, context=context)
            played = play(strategy, Noise(text, seed))
            answer = answer_of(played)
            assert played.longest_view <= context
            assert len(played.passes) == answer.forward_passes + answer.extra_passes
            assert "####" not in answer.text
            said = "".join(e.text for e in played.of(ReplyWritten))
            assert answer.text in (said.strip(), answer.answer)
            results.append(answer)
        assert results[0] == results[1]
        num_branches += len(results[0].branches)
        reasons |= {branch.finish_reason for branch in results[0].branches}
    assert num_branches >= num_seeds // 8
    assert {"marker", "budget", "stopped"} <= reasons
