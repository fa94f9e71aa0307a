"""The options of `manyhands serve`, as a frozen dataclass."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from manyhands.cli.command import Chosen, options_of
from manyhands.cli.options import SolveOptions
from manyhands.cluster.settings import ServingSettings
from manyhands.errors import InvalidRequest
from manyhands.evaluation.shared import SHARED_PREFIX
from manyhands.model.settings import ModelSettings
from manyhands.schema.setting import check, like, setting
from manyhands.server.limits import Limits
from manyhands.strategies.settings import UNSAID

_DOOR, _LINES = "The door", "Where a request says nothing"


@dataclass(frozen=True, kw_only=True)
class ServeOptions(Limits, ModelSettings, ServingSettings):
    """`manyhands serve`. Environment: MANYHANDS_API_KEY is a key, as --api-key is."""

    host: str = setting(
        "127.0.0.1",
        "Address to listen at. Any but this machine's own needs a key.",
        panel=_DOOR,
    )
    port: int = setting(8000, "Port; 0 takes a free one.", at_least=0, at_most=65535, panel=_DOOR)
    name: str | None = setting(
        None,
        "The model's name, as clients call it.",
        unset="that of its folder, or on the hub",
        panel=_DOOR,
    )
    api_key: str | None = setting(
        None,
        "A key that clients have to send. Others can see it in the list of processes.",
        panel=_DOOR,
    )
    api_key_file: Path | None = setting(
        None, "A file of keys, one a line. Each shares prompts with itself alone.", panel=_DOOR
    )
    allow_host: tuple[str, ...] = setting(
        (),
        "A name by which the server may be called, besides those of this machine; as often as needed.",
        panel=_DOOR,
    )
    allow_origin: tuple[str, ...] = setting(
        (),
        "A site whose pages may call it, as https://example.org; as often as needed.",
        panel=_DOOR,
    )
    drain: float = setting(
        30.0, "Seconds that runs have to end when the server is told to.", at_least=0, panel=_DOOR
    )
    log: bool = setting(True, "Log each request on stderr, as a line of JSON.", panel=_DOOR)
    prompts: Path | None = like(SolveOptions, "prompts")
    chosen: Chosen = options_of(
        {SHARED_PREFIX: UNSAID}, panel=_LINES, unset={"seed": "another one for each request"}
    )
    greedy: bool = like(SolveOptions, "greedy", panel=_LINES)
    listed: tuple[str, ...] = like(
        SolveOptions,
        "listed",
        help="Any setting of a plain request, as name=value, as often as needed.",
        panel=_LINES,
    )

    def __post_init__(self) -> None:
        ModelSettings.__post_init__(self)
        check(self)
        if self.name is not None and not self.name.strip():
            raise InvalidRequest(
                "name is empty; expected the model's name, as clients call it",
                hint="give one, or leave it out",
            )
