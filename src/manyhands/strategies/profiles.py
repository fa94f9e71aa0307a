r"""Profiles: models that were trained to think in parallel, each as a row of data.

Such a model writes a mark where it wants to part, names its parts before that, and was trained with a header
for each part, a mark at its end, and words behind the join. `strategies/profiled.py` does what a row says.

    npr            forks at </guideline> on the plans named behind <guideline>      keep
    multiverse     forks at </Goal> on the outlines behind <Goal>                   keep
    parallel-r1    <Parallel> forks two paths that differ by luck alone             keep ("unseen")
    parallel-r1-seen   the same, re-encoded                                         reencode
    threadweaver   forks at </Outlines> on the outlines behind <Outlines>           reencode

Joins are those of `strategies/branch_joins.py`. With `keep`, all parts begin one position behind the fork and
what follows stands behind the longest.

Tokens and rules were read from the projects' own repositories or papers. What stands between the lines of
multiverse (header and words behind the join) follows from NPR's engine, which grew out of its own, and has not
been seen in a file of its own; so does that its parts may part again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

_NUMBER = r"\s*([0-9]+(?:\.[0-9]+)*)\s*:"


@dataclass(frozen=True)
class Profile:
    """How one family of models parts and joins."""

    name: str
    about: str  # its authors, in one line
    fork: str  # the mark behind which parts begin
    header: str  # fed before a part; {name} is the part's
    end: str  # the mark that ends a part; it is fed again where a part ends without it
    after: str  # fed behind the join
    join: str
    named: str | None = None  # a pattern: the names of parts in the text behind `opens`
    opens: str = ""  # without it in the text before the fork, nothing forks
    unnamed: int = 0  # parts where nothing names them
    max_children: int = 32
    max_forks: int = 32  # of a run, those inside parts included
    max_levels: int = 1  # of forks: 1 where parts do not part again, 2 where their parts do not
    child_tokens: int = 4096
    least_budget: int = 0  # forward passes that must be left for a fork
    temperature: float | None = None  # inside parts; None: the run's
    repetition_penalty: float | None = None  # inside parts; None: the run's
    missing_end: str = ""  # fed before `end` where a part ends without it
    lead: str = ""  # left out of the joined text at the beginning of every part but the first
    stops_on_cut: bool = False  # whether a part that ends without its mark ends the run
    hidden: tuple[str, ...] = ()  # marks that the reader of a reply does not see


_PROFILES = (
    Profile(
        "npr",
        "NPR-4B (bigai-nlco/Native-Parallel-Reasoner, MIT)",
        fork="</guideline>",
        opens="<guideline>",
        named=r"<plan>" + _NUMBER,
        max_children=5,
        max_levels=5,
        least_budget=1024,
        header="\n<step>\n{name}:",
        end="</step>",
        after="<takeaway>\n",
        join="keep",
        repetition_penalty=1.02,
        hidden=("guideline", "plan", "step", "takeaway"),
    ),
    Profile(
        "multiverse",
        "Multiverse",
        fork="</Goal>",
        opens="<Goal>",
        named=r"<Outline>" + _NUMBER,
        max_levels=5,
        header="\n<Path>\n{name}:",
        end="</Path>",
        after="<Conclusion>\n",
        join="keep",
        hidden=("Parallel", "Goal", "Outline", "Path", "Conclusion"),
    ),
    *(
        Profile(
            name,
            f"Parallel-R1, {kind} (zhengkid/Parallel-R1, MIT)",
            fork="<Parallel>",
            unnamed=2,
            max_forks=4,
            header="<Path>",
            end="</Path>",
            after="</Parallel>\n<Summary>",
            join=join,
            temperature=1.0,
            hidden=("Parallel", "Path", "Summary"),
        )
        for name, kind, join in (
            ("parallel-r1", "unseen", "keep"),
            ("parallel-r1-seen", "seen", "reencode"),
        )
    ),
    Profile(
        "threadweaver",
        "ThreadWeaver (facebookresearch/threadweaver)",
        fork="</Outlines>",
        opens="<Outlines>",
        named=r"<Outline>" + _NUMBER,
        header="\n<Thread>\n{name}:",
        end="</Thread>",
        missing_end="\n",
        lead="\n",
        after="\n",
        join="reencode",
        stops_on_cut=True,
        hidden=("Parallel", "Outlines", "Outline", "Thread", "Conclusion"),
    ),
)
PROFILES: Mapping[str, Profile] = MappingProxyType({one.name: one for one in _PROFILES})
