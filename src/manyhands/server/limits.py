"""How much one client may ask of a server, so that the others are served too.

Every limit has a default and a meaning at its field; `manyhands serve` makes its options of them, and the
table in `docs/serving.md` is checked against them. A value beyond a limit is refused before anything is
made of it.
"""

from __future__ import annotations

from dataclasses import dataclass

from manyhands.schema.setting import check, setting

_REQUESTS, _RUNS = "Limits of requests", "Limits of runs"


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The limits of a server. Sizes in bytes, times in seconds."""

    body_bytes: int = setting(
        4 << 20, "Bytes of a request's body.", at_least=1024, panel=_REQUESTS, unit="bytes"
    )
    header_bytes: int = setting(
        64 << 10, "Bytes of a request's headers.", at_least=1024, panel=_REQUESTS, unit="bytes"
    )
    request_seconds: float = setting(
        30.0, "Until a request has arrived as a whole.", above=0, panel=_REQUESTS, unit="seconds"
    )
    stall_seconds: float = setting(
        60.0,
        "That a reader may take nothing of its answer, before it is cut off.",
        above=0,
        panel=_REQUESTS,
        unit="seconds",
    )
    idle_seconds: float = setting(
        75.0,  # proxies keep connections for 60 s, and a request to one that is just being closed is lost
        "That a connection stays open behind an answer; longer than a proxy in front keeps it.",
        above=0,
        panel=_REQUESTS,
        unit="seconds",
    )
    connections: int = setting(1024, "Connections at the same time.", at_least=1, panel=_REQUESTS)
    request_prompts: int = setting(256, "Prompts of one request.", at_least=1, panel=_REQUESTS)
    request_workers: int = setting(
        1024,
        "Workers of one request that write at the same time: of a team times its completions. Parts that a model "
        "chooses, and completions without a method, take turns.",
        at_least=1,
        panel=_REQUESTS,
    )
    request_tokens: int = setting(
        262_144,
        "Tokens that one request may write: of each completion times completions, or passes times workers.",
        at_least=1,
        panel=_REQUESTS,
        unit="tokens",
    )
    live_runs: int = setting(
        256,
        "Runs in the engine; those that do not fit its memory wait there.",
        at_least=1,
        panel=_RUNS,
    )
    waiting_runs: int = setting(
        1024, "Runs that wait before it. One more is told to come back.", at_least=0, panel=_RUNS
    )
    streams: int = setting(
        256, "Streams of one key, or of one address without keys.", at_least=1, panel=_RUNS
    )
    run_seconds: float = setting(
        600.0, "Of a run, waiting included.", above=0, panel=_RUNS, unit="seconds"
    )
    run_events: int = setting(
        100_000, "Events of one run that are kept for readers.", at_least=1, panel=_RUNS
    )
    kept_runs: int = setting(64, "Ended runs that can still be read.", at_least=0, panel=_RUNS)
    kept_events: int = setting(
        500_000, "Events of ended runs that are kept, all together.", at_least=0, panel=_RUNS
    )

    def __post_init__(self) -> None:
        check(self)
