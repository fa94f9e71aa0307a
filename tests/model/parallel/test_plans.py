"""Plans differ from release to release of transformers; the cuts of a family must not.

What the releases of the range in pyproject.toml say otherwise than the newest of them stands here as data, so that one
installed release is enough to try all. It was read out of the wheels of 5.17.0, 5.18.0, 5.19.0, 5.20.0, 5.20.2, 5.21.0,
5.21.1, 5.22.0, 5.22.2, 5.23.0 and, beyond the range, 5.24.0.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest

from manyhands.errors import UnsupportedModel
from manyhands.model.parallel.cuts import WHOLE, Cut, Cutting, read_plan
from tests.model.families_zoo import repeating_models, tiny_models
from tests.model.parallel.threads import Meeting, ThreadCollectives

ZOO = tiny_models() | repeating_models()
CONFIGS: dict[str, Any] = {name: make.args[0] for name, make in ZOO.items()}
CUT = [name for name in CONFIGS if CONFIGS[name].model_type not in WHOLE]
EXPERTS = ".experts"
TABLE = {"embed_tokens": "embedding_rowwise"}
# Releases, the families, the part of a name whose entries they lack, and the entries that they have besides.
OTHERWISE: list[tuple[str, set[str], str, dict[str, str]]] = [
    ("5.17 to 5.20", {"afmoe", "exaone_moe", "granitemoe", "phimoe", "qwen2_moe"}, EXPERTS, {}),
    # There it is the configuration that adds it, where the output layer is the table.
    ("5.17 to 5.20", {CONFIGS[name].model_type for name in CUT}, "", TABLE),
    ("5.24", {"gpt_oss"}, "", TABLE),
]


def plan_of(config: Any) -> dict[str, str]:
    """As the installed release has it."""
    return dict(config.base_model_tp_plan or {})


def cases() -> Iterator[Any]:
    for releases, families, lacks, has in OTHERWISE:
        for name in CUT:
            if CONFIGS[name].model_type in families:
                yield pytest.param(name, lacks, has, id=f"{releases} {lacks or 'table'} {name}")


def cuts(config: Any) -> dict[str, Cut]:
    collectives: Any = ThreadCollectives(1, Meeting(2))
    return Cutting(config, collectives).cuts


def changed(name: str, lacks: str, has: dict[str, str]) -> Any:
    """The configuration of a family whose plan is another release's."""
    config = copy.deepcopy(CONFIGS[name])
    kept = {
        key: verb for key, verb in plan_of(config).items() if not lacks or lacks not in f".{key}"
    }
    config.base_model_tp_plan = {**kept, **has} or None
    return config


@pytest.mark.parametrize(("name", "lacks", "has"), [*cases()])
def test_every_release_gives_the_same_cuts(name: str, lacks: str, has: dict[str, str]) -> None:
    expected = cuts(CONFIGS[name])
    assert any("embed_tokens" not in key for key in expected)
    assert not any("embed_tokens" in key for key in expected), "a table is whole on every rank"
    assert cuts(changed(name, lacks, has)) == expected


def test_control_entries_that_nothing_stands_in_for_are_missed() -> None:
    with pytest.raises(UnsupportedModel, match=r"no plan says how layers.0.mlp.experts"):
        cuts(changed("qwen3_moe", EXPERTS, {}))
    with pytest.raises(UnsupportedModel, match="its plan has embedding_rowwise"):
        read_plan(changed("qwen3", "", {"layers.*.embedding": "embedding_rowwise"}))
