"""The tables of docs/models.md are made of the tables in the code, and of the networks the tests try.

`python -m tests.model.test_models_page` writes them anew.
"""

from __future__ import annotations

import re
from pathlib import Path
from unittest.mock import patch

import torch
import transformers as hf

from manyhands.attention import fitting
from manyhands.attention.fitting import refusal as kernels_refuse
from manyhands.cache.states import FORKING
from manyhands.model import families
from manyhands.model.adapter import _layers
from manyhands.model.families import FAMILIES, HYBRIDS
from manyhands.model.gguf.config import ARCHITECTURES
from manyhands.model.gguf.tokenizer import RULES
from manyhands.strategies.methods import METHODS
from tests.model.families_zoo import repeating_models, tiny_models
from tests.model.test_recurrent import CONFIGS as HYBRID_CONFIGS

H200 = 232448  # bytes of shared memory that one program may have
PAGE = Path(__file__).parents[2] / "docs" / "models.md"
_TABLE = re.compile(
    r"(<!-- (\w+): made by tests/model/test_models_page.py -->\n).*?(<!-- end -->)", re.DOTALL
)


def tables() -> dict[str, str]:
    """Each table of the page by its name."""
    return {
        "families": _families(),
        "hybrids": _hybrids(),
        "refused": _refused(),
        "gguf": _gguf(),
    }


def _families() -> str:
    in_full = {build.args[0].model_type for build in tiny_models().values()}
    in_short = {build.args[0].model_type for build in repeating_models().values()}
    assert set(FAMILIES) == in_full | in_short, (
        "a family that no test tries, or the other way round"
    )
    methods = ", ".join(METHODS) + " and batches"
    lines = [
        f"Methods: all ({methods}). Backends: `reference` and `torch` serve every family; `triton` as below.",
        "",
        "| family | model type | what is special | tried | triton |",
        "|---|---|---|---|---|",
    ]
    for family in FAMILIES.values():
        config = hf.CONFIG_MAPPING[family.model_type]()
        with patch.object(fitting, "shared_memory", lambda device: H200):
            reason = kernels_refuse(_layers(config), torch.float16, torch.device("cuda"))
        tried = "in full" if family.model_type in in_full else "in short"
        cells = (family.title, f"`{family.model_type}`", family.special, tried, reason or "yes")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _hybrids() -> str:
    tried = {config.model_type for config in HYBRID_CONFIGS.values()}
    assert set(HYBRIDS) == tried, "a hybrid that no test tries, or the other way round"
    lines = [
        f"Methods: {', '.join(FORKING)}. Backends: `reference` and `torch`; `triton` as below, for the full layers.",
        "",
        "| family | model type | what is special | triton |",
        "|---|---|---|---|",
    ]
    for family in HYBRIDS.values():
        config = hf.CONFIG_MAPPING[family.model_type]()
        with patch.object(fitting, "shared_memory", lambda device: H200):
            reason = kernels_refuse(_layers(config), torch.float16, torch.device("cuda"))
        cells = (family.title, f"`{family.model_type}`", family.special, reason or "yes")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _refused() -> str:
    by_reason: dict[str, list[str]] = {}
    for model_type, reason in families._REFUSED.items():
        by_reason.setdefault(reason, []).append(f"`{model_type}`")
    lines = ["| model types | reason |", "|---|---|"]
    return "\n".join([*lines, *(f"| {', '.join(sorted(t))} | {r} |" for r, t in by_reason.items())])


def _gguf() -> str:
    architectures = ", ".join(f"`{name}`" for name in ARCHITECTURES)
    rules = ", ".join(f"`{name}`" for name in RULES)
    return (
        f"Architectures: {architectures}. Rules of byte-level tokenizers (`tokenizer.ggml.pre`): {rules}; "
        "SentencePiece's tokens with scores (`llama`) need none."
    )


def written(page: str) -> str:
    """The page with its tables as they are today."""
    made = tables()
    return _TABLE.sub(lambda found: f"{found[1]}{made[found[2]]}\n{found[3]}", page)


def test_the_tables_are_those_of_the_code() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert sorted(name for _, name, _ in _TABLE.findall(page)) == sorted(tables())
    assert page == written(page), "python -m tests.model.test_models_page writes them anew"


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
