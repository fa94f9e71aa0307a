"""The tables of docs/training.md: how fast trainings were, from their own accounts, and the memory of a large one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.performance import table
from benchmarks.results import RESULTS, ROOT

# The accounts of the recipes that are shipped, in the order of their trainings.
ACCOUNTS = {
    "bundled": (
        "",
        "polish_",
        "further_",
        "further_polish_",
        "grown_",
        "grown_polish_",
        "grown_quiet_",
    ),
    "smollm2": ("", "further_", "third_", "fourth_", "fifth_", "sixth_"),
}
LARGE = RESULTS / "training_qwen3-8b.json"


def accounts() -> dict[str, dict[str, Any]]:
    """The account of each training of which one was kept, by its recipe: "bundled/polish"."""
    return {
        f"{folder}/{name.rstrip('_') or 'recipe'}": json.loads(account_of(folder, name).read_text())
        for folder, names in ACCOUNTS.items()
        for name in names
    }


def account_of(folder: str, name: str) -> Path:
    """The file of an account; `name` is empty or ends with an underscore."""
    return ROOT / "recipes" / folder / f"{name}training.json"


def training_speed() -> str:
    """Tokens a second of whole trainings: lessons, checkpoints and the compiling of kernels included."""
    rows = [
        [
            recipe,
            "adapter" if account.get("lora") else "all",
            f"{account['parameters'] / 1e6:.1f}",
            account["training"].get("products", "float32"),
            f"{account['tokens'] / 1e6:.1f}",
            f"{account['seconds']:.0f}",
            f"{account['tokens'] / account['seconds'] / 1e3:.0f}",
            f"{account['date']}, {account['hardware']}",
        ]
        for recipe, account in accounts().items()
    ]
    head = ["recipe", "trained", "parameters, million", "products", "tokens, million"]
    return table([*head, "seconds", "thousand tokens/s", "on"], rows)


def training_memory() -> str:
    """An adapter of a network of eight billion parameters, random weights."""
    found = json.loads(LARGE.read_text())
    shapes = found["qwen3-8b"]
    step, run = shapes["strips"], shapes["run"]
    row = [
        "qwen3-8b",
        f"{shapes['parameters'] / 1e9:.2f}",
        str(found["tokens_per_step"]),
        f"{step['peak_gib']:.1f}",
        f"{step['tokens_per_second'] / 1e3:.1f}",
        f"{run['tokens_per_second'] / 1e3:.1f}",
        f"{found['date']}, {found['hardware']}, torch {found['versions']['torch']}",
    ]
    head = ["shapes", "parameters, billion", "tokens of a step", "peak, GiB"]
    head += ["thousand tokens/s, batches ready", "batches made meanwhile", "on"]
    return table(head, [row])


_LOOKS = 8  # points of a learning curve


def smollm2_learning() -> str:
    """The learning curve of the pretrained model, over its trainings one after another."""
    rows, before = [], 0
    for name in ACCOUNTS["smollm2"]:
        log = account_of("smollm2", name).with_name(f"{name}log.jsonl")
        lines = [json.loads(line) for line in log.read_text().splitlines()]
        wanted = [lines[-1]["tokens"] * (look + 1) / _LOOKS for look in range(_LOOKS)]
        seen = [next(line for line in lines if line["tokens"] >= tokens) for tokens in wanted]
        rows += [
            [
                (name.rstrip("_") or "recipe") if line is lines[0] else "",
                f"{(before + line['tokens']) / 1e6:.1f}",
                f"{line['loss']:.4f}",
                f"{line['accuracy']:.2%}",
                f"{line['decisive']:.1%}" if "decisive" in line else "",
            ]
            for line in [lines[0], *seen]
        ]
        before += lines[-1]["tokens"]
    return table(["training", "tokens so far, million", "loss", "right", "decisive right"], rows)


TABLES: dict[str, Callable[[], str]] = {
    "training_speed": training_speed,
    "training_memory": training_memory,
    "smollm2_learning": smollm2_learning,
}
