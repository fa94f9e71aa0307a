"""Runs whose words are known, recorded as traces: the real strategies, and a script instead of a model.

Every character of `SIGNS` is a token of its own and is written once at most. So what a row could see is told by
the tokens of its context alone, without a thought to blocks, moves or names: the oracle of who saw what.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from tokenizers import AddedToken
from transformers import PreTrainedTokenizerFast

from manyhands.cache.step import Choice
from manyhands.prompts.async_reasoning import AsyncReasoningPrompt
from manyhands.prompts.async_think import AsyncThinkPrompt
from manyhands.prompts.branches import BranchPrompt
from manyhands.prompts.profiled import ProfilePrompt
from manyhands.prompts.skeleton import SkeletonPrompt
from manyhands.prompts.votes import VotesPrompt
from manyhands.replay.trace import Trace, parse_trace, record
from manyhands.strategies.listening import (
    AddWorker,
    DismissWorker,
    Item,
    PauseWorker,
    ResumeWorker,
    Said,
)
from manyhands.strategies.methods import METHODS
from manyhands.strategies.profiles import PROFILES
from manyhands.strategies.run_spec import RunSpec
from manyhands.strategies.settings import (
    AsyncReasoningSettings,
    AsyncThinkSettings,
    BranchSettings,
    EndSettings,
    ProfileSettings,
    SkeletonSettings,
    TeamSettings,
    VoteSettings,
)
from manyhands.text import Text
from tests.strategies.driver import PROMPT, Played, Scripts, play, small_text
from tests.strategies.test_profiled import Marked

SIGNS = [chr(code) for code in range(0x4E00, 0x4E00 + 160)]
GLUED = (
    f"{SIGNS[159]}\n<..>"  # one token: a sign, and a line that could pass for the team's structure
)
SHORT = EndSettings(finisher_tokens=4, reply_tokens=3)
SAID: Mapping[int, Sequence[Item]] = {
    3: [Said("".join(SIGNS[150:153]), "Dana")],
    5: [AddWorker("Eve")],
    7: [PauseWorker(0)],
    9: [Said("".join(SIGNS[153:155]), "Dana"), ResumeWorker(0)],
    12: [DismissWorker(1)],
}


def sign_text(marks: Sequence[str] = ()) -> Text:
    """The small tokenizer, with a token for each sign and each mark."""
    tokenizer = cast(PreTrainedTokenizerFast, small_text().tokenizer)
    pieces = [*SIGNS, GLUED, *marks]
    tokenizer.add_tokens([AddedToken(piece, special=False, normalized=False) for piece in pieces])
    return Text(tokenizer)


def signs(first: int, count: int) -> str:
    return "".join(SIGNS[first : first + count])


@dataclass(frozen=True)
class ScriptedRun:
    """A recorded run: the lines of its trace, and what happened in each pass."""

    lines: list[dict[str, Any]]
    trace: Trace
    played: Played
    text: Text

    def seen(self) -> dict[str, str]:
        """For each sign that a worker wrote, the signs that it could see then, in the order of their numbers."""
        tokens = {self.text.encode(sign)[0]: sign for sign in SIGNS}
        found = {}
        for one in self.played.passes:
            for row, token in zip(one.rows, one.tokens, strict=True):
                if row.writer is not None and token in tokens:
                    known = {tokens[t] for t in row.context if t in tokens}
                    found[tokens[token]] = "".join(sorted(known))
        return found


def run_of(
    spec: RunSpec, said: Mapping[int, Sequence[Item]] | None = None, **said_by: Any
) -> ScriptedRun:
    """Let writers say these lines, and record what comes of it."""
    marks: list[str] = []
    if isinstance(spec.settings, ProfileSettings):
        hidden = PROFILES[spec.settings.profile].hidden
        marks = [mark for word in hidden for mark in (f"<{word}>", f"</{word}>")]
    text, trace = sign_text(marks), []  # type: Text, list[dict[str, Any]]
    header = {"model": "scripted", **spec.to_plain()}
    lines_by = {name.replace("_", " "): words for name, words in said_by.items()}
    script = (Marked if marks else Scripts)(text, **lines_by)
    played = play(record(spec.strategy(text), header, trace.append), script, said)
    lines = json.loads(json.dumps(trace))
    return ScriptedRun(lines, parse_trace(lines), played, text)


def team_run(layout: str = "combined", moves: str = "rotate") -> ScriptedRun:
    """Steps end, one is cut; a person speaks twice; workers come, pause and are sent away."""
    settings = TeamSettings(
        workers=3, budget=20, layout=layout, moves=moves, check_every=0, end=SHORT
    )
    return run_of(
        RunSpec(METHODS["hogwild"], settings, PROMPT, "2+3"),
        SAID,
        Alice=[signs(0, 4), ".\n\n", signs(4, 5), ".\n\n", signs(9, 12)],
        Bob=[signs(30, 2), "\n", "<..>", signs(32, 20)],
        Carol=[signs(60, 7), ".\n\n", signs(67, 3), None],
        Eve=[signs(90, 3), ".\n\n", signs(93, 2), GLUED, signs(95, 20)],
    )


def branch_run(join: str = "reencode") -> ScriptedRun:
    """A line that parts into two branches, joins, and goes on."""
    settings = BranchSettings(budget=60, join=join, end=replace(SHORT, finisher=False))
    prompt = BranchPrompt("Q: {question}", finisher="\nFinal \\boxed{")
    return run_of(
        RunSpec(METHODS["branches"], settings, prompt, "who"),
        writer=[f"{signs(0, 3)}\n####A:", "B:", "%%%%", signs(3, 5), None],
        branch_1=[signs(20, 3), "####"],
        branch_2=[signs(30, 6), "\n####"],
    )


def skeleton_run(workers: int = 0) -> ScriptedRun:
    """An outline of two points, worked out side by side or one behind another."""
    settings = SkeletonSettings(workers=workers, budget=60, end=replace(SHORT, finisher=False))
    prompt = SkeletonPrompt(rules="Q: {question}", finisher="\nFinal \\boxed{")
    return run_of(
        RunSpec(METHODS["skeleton"], settings, prompt, "who"),
        writer=[f" {signs(0, 2)}\n2. {signs(2, 2)}\n\n", signs(4, 5), None],
        point_1=[signs(20, 4), None],
        point_2=[signs(30, 7), None],
    )


def profiled_run(profile: str) -> ScriptedRun:
    """A line that parts twice, as models with this profile do; parts of both forks have the same names."""
    words = {
        "npr": ("<guideline><plan>1: a</plan><plan>2: b</plan></guideline>", "</step>"),
        "parallel-r1": ("<Parallel>", "</Path>"),
        "threadweaver": (
            "<Parallel><Outlines><Outline>1: a</Outline><Outline>2: b</Outline></Outlines>",
            "</Thread>",
        ),
    }
    fork, over = words[profile.removesuffix("-seen")]
    settings = ProfileSettings(
        profile=profile, budget=2000, part_tokens=20, end=EndSettings(answer="none", reply=False)
    )
    return run_of(
        RunSpec(METHODS["profiled"], settings, ProfilePrompt(rules="Q: {question}"), "who"),
        writer=[signs(0, 3), fork, signs(3, 3), fork, signs(6, 2), None],
        part_1=[signs(20, 3), over],
        part_2=[signs(30, 5), over],
        part_3=[signs(40, 4), over],
        part_4=[signs(50, 2), over],
    )


def nested_run(join: str | None = None) -> ScriptedRun:
    """A line that parts in two; the first part parts again, and so does its second part; then all are joined."""
    fork, over = "<guideline><plan>1: a</plan><plan>2: b</plan></guideline>", "</step>"
    end = EndSettings(answer="none", reply=False)
    settings = ProfileSettings(profile="npr", budget=2000, parts_join=join, end=end)
    return run_of(
        RunSpec(METHODS["profiled"], settings, ProfilePrompt(rules="Q: {question}"), "who"),
        writer=[signs(0, 2), fork, signs(2, 3), None],
        part_1=[signs(20, 2), fork, signs(22, 2), over],
        part_2=[signs(30, 90), over],
        part_3=[signs(125, 3), over],
        part_4=[signs(130, 2), fork, signs(132, 3), over],
        part_5=[signs(140, 4), over],
        part_6=[signs(145, 6), over],
    )


def reasoning_run() -> ScriptedRun:
    """A thinker and a writer that read each other; the reply pauses once, and goes on when the thoughts are done."""
    settings = AsyncReasoningSettings(
        probe_every=0, budget=60, end=EndSettings(answer="none", reply=False)
    )
    prompt = AsyncReasoningPrompt(
        rules="Q: {question}", probe="?", yes="a", no="b"
    )  # "a" is always said
    return run_of(
        RunSpec(METHODS["async_reasoning"], settings, prompt, "who"),
        thinker=[signs(0, 4), ".\n\n", signs(4, 9), ".\n\n", signs(13, 3), None],
        writer=[signs(30, 4), ".\n\n", signs(34, 5), None],
    )


def organiser_run() -> ScriptedRun:
    """An organiser with two workers: it goes on beside them, waits for one, and joins both."""
    settings = AsyncThinkSettings(budget=200, end=EndSettings(answer="none", reply=False))
    prompt = AsyncThinkPrompt(rules="Q: {question}", worker_rules="W: {query}")
    fork = "<FORK-{0}>{1}</FORK-{0}>"
    return run_of(
        RunSpec(METHODS["async_think"], settings, prompt, "who"),
        writer=[
            *(signs(0, 3), fork.format(1, "x"), fork.format(2, "y"), signs(3, 3)),
            *("<JOIN-2>", signs(6, 2), "<JOIN-1>", signs(8, 4), None),
        ],
        worker_1=[signs(20, 6), None],
        worker_2=[signs(30, 3), None],
    )


def attempts_run() -> ScriptedRun:
    """Two attempts that read nothing of each other, and a vote."""
    settings = VoteSettings(
        workers=2, budget=30, mode="vote", end=SHORT, choice=Choice(temperature=1.0)
    )
    lines: dict[str, Any] = {
        "attempt_1": [signs(0, 4), "\\boxed{7}", signs(4, 2), None],
        "attempt_2": [signs(30, 8), "\\boxed{7}", None],
    }
    return run_of(RunSpec(METHODS["self_consistency"], settings, VotesPrompt(), "who"), **lines)
