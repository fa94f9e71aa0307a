"""Measurements and tests of one GPU that `everything.py` leaves out, in sections.

    python -m benchmarks.one_gpu --out results --seconds 230 --sections start,long,disk
    python -m benchmarks.one_gpu --list

How sections are run, ended and packed: `sections.py`. What does not fit the GPU's memory is left out by name.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from benchmarks.sections import Command, Section, by_name, main_of

_DRY = ("--tiny", "--device", "cpu")
# Small tests of the newest kernels.
_TRITON, _KERNELS = "tests/attention/test_triton.py::", "tests/model/test_kernels.py::"
_SANITISED = (
    f"{_TRITON}test_lone_rows_of_sixteen_bits[torch.bfloat16-4]",
    f"{_TRITON}test_specialised_tiles[10-2-128-132-torch.bfloat16-True-plain]",
    f"{_TRITON}test_specialised_tiles[8-1-64-132-torch.float16-False-window]",
    f"{_TRITON}test_specialised_tiles_whose_second_half_is_few[False-10-2-16-torch.bfloat16-False-plain]",
    f"{_TRITON}test_specialised_tiles_whose_second_half_is_few[True-10-2-16-torch.bfloat16-False-plain]",
    f"{_TRITON}test_transposed_tiles_with_and_without_tensor_maps[dtype1-True-32]",
    f"{_KERNELS}test_head_norms[80-21-0-torch.bfloat16]",
    f"{_KERNELS}test_gated_products_of_many_tokens[33-200-90-silu-torch.float16]",
    f"{_KERNELS}test_products_of_the_ring[33-64-torch.bfloat16]",
    f"{_KERNELS}test_gated_products_of_the_ring[3-silu-33-64]",
    f"{_KERNELS}test_products_of_four_bits[torch.float16-1-512-two eights-True]",
    f"{_KERNELS}test_float8_products_of_few_tokens[1-512-1]",
    "tests/model/test_mxfp4.py::test_wide_tiles_give_the_same[9-Tiles(columns=64, warps=4, stages=4)]",
)
# Of specialised warps racecheck reports hazards wherever a tile is handed over by a barrier in memory, and comes to no end; of wide
# tiles it was never asked.
_RACED = tuple(
    test for test in _SANITISED if not re.search("specialised|the_ring|wide_tiles", test)
)


def _measure(module: str, words: str = "") -> Command:
    every = ["--out", "{out}", "--minutes", "{minutes}", "--device", "{device}"]
    return Command(("-m", f"benchmarks.{module}", *every, *words.split()), dry=_DRY)


def _tests(*words: str) -> Command:
    every = ["--out", "{out}", "--minutes", "{minutes}", "--device", "{device}"]
    return Command(("-m", "benchmarks.gpu_tests", *every, *words))


SECTIONS = by_name(
    Section("facts", 20, (Command(("-c", "from benchmarks.sections import facts; facts()")),)),
    Section("start", 95, (_measure("start_up"),)),
    Section("long", 100, (_measure("long_history"),)),
    Section("disk", 60, (_measure("disk_cache", "--models qwen3-8b --tokens 16384 --repeats 2"),)),
    Section("tests", 200, (_tests("--processes", "8"),)),
    Section("lockstep", 100, (_measure("lockstep"),)),
    Section("prefill", 60, (_measure("prefill"),)),
    Section("speculation", 60, (_measure("speculation", "--count 6"),)),
    Section("eight_bits", 75, (_measure("eight_bits", "--name gpu --samples 256 --beside 128"),)),
    Section("memcheck", 60, (_tests("--sanitizer", "memcheck", *_SANITISED),)),
    Section("racecheck", 60, (_tests("--sanitizer", "racecheck", *_RACED),)),
)


def main(argv: Sequence[str] | None = None) -> None:
    """See the module."""
    main_of(__doc__ or "", "one_gpu", SECTIONS, argv)


if __name__ == "__main__":
    main()
