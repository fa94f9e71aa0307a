"""The mean of adapters that were trained from one another: their factors, number by number.

    python recipes/smollm2/mean.py OUT ADAPTER ADAPTER ...

LoRA's factors of trainings that begin with the same adapter stay near each other, so the mean of the factors is an adapter
as well, and reads stories that one of them or another has learnt to read. What lies beside the weights is copied from
the first. The adapter that is shipped is the mean of the third, the fourth and the fifth.
"""

from __future__ import annotations

import shutil
import sys
from functools import reduce
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

WEIGHTS = "adapter_model.safetensors"


def mean(out: Path, adapters: list[Path]) -> None:
    """Write the mean to a new folder `out`, in the dtype of the first. Raises ValueError if their tensors differ in name or shape."""
    tensors = [load_file(folder / WEIGHTS) for folder in adapters]
    first = tensors[0]
    forms = [{name: tensor.shape for name, tensor in each.items()} for each in tensors]
    for folder, form in zip(adapters, forms, strict=True):
        if form != forms[0]:
            raise ValueError(f"{folder} has other tensors than {adapters[0]}")
    shutil.copytree(adapters[0], out)
    save_file(
        {
            name: (reduce(torch.add, (each[name].float() for each in tensors)) / len(tensors)).to(
                tensor.dtype
            )
            for name, tensor in first.items()
        },
        out / WEIGHTS,
    )


if __name__ == "__main__":
    if len(sys.argv) < 4:
        raise SystemExit(__doc__)
    try:
        mean(Path(sys.argv[1]), [Path(word) for word in sys.argv[2:]])
    except (
        ValueError,
        OSError,
        SafetensorError,
    ) as error:  # such as an `OUT` that is there already
        raise SystemExit(f"mean.py: {error}") from error
