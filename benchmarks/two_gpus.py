"""Everything about several GPUs that must be seen on some, in sections: each in processes and a time of its own.

    python -m benchmarks.two_gpus --out results --seconds 140 --sections tests,sums
    python -m benchmarks.two_gpus --list

How sections are run, ended and packed: `sections.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.sections import Command, Section, by_name, main_of

_TESTS = "tests/engine/ranks/test_on_gpus.py::"
_LOST = "tests/engine/ranks/test_lost_on_gpus.py::"
_ENDS = (
    "test_a_killed_rank_ends_all_and_holds_no_memory[nccl]",
    *(f"test_a_rank_that_is_killed_at_any_moment[{moment}]" for moment in (0.0, 0.4, 1.5)),
    "test_a_killed_rank_ends_all_and_holds_no_memory[peers]",
)
_FIRST = (
    "test_sums_through_peers_memory[bfloat16-few]",
    "test_sums_through_peers_memory[bfloat16-many]",
    "test_recorded_passes_and_running_ahead[0]",
    "test_sums_through_peers_memory[float32-few]",
)
_FAMILIES = ("qwen2", "gpt_oss", "deepseek_v3", "qwen3_moe", "gemma3_text", "olmo2")


def _ranks(words: str, gpu: str | None = None) -> Command:
    dry = ("--tiny", "--device", "cpu")
    return Command(("-m", "benchmarks.ranks", "--out", "{out}", *words.split()), gpu, dry=dry)


def _pytest(*names: str) -> Command:
    options = "-v -p no:cacheprovider -p benchmarks.at_once -W default -o faulthandler_timeout=30"
    return Command(("-m", "pytest", *options.split(), "--tb=short", *names))


def _training(ranks: int, steps: int) -> Command:
    start = ["-m"]
    if ranks > 1:
        start = f"-m torch.distributed.run --standalone --nproc-per-node {ranks} -m".split()
    folder = "{out}/" + f"training_{ranks}"
    recipe = "recipes/bundled/recipe.toml"
    words = (
        f"manyhands train {recipe} --steps {steps} --minutes 1 --device {{device}} --out {folder}"
    )
    return Command((*start, *words.split()), "0" if ranks == 1 else None)


SECTIONS = by_name(
    Section(
        "tests",
        120,
        (
            Command(("-c", "from benchmarks.sections import facts; facts()")),
            _pytest(
                *(_TESTS + name for name in _FIRST),
                *(f"{_TESTS}test_every_family[{name}]" for name in _FAMILIES),
            ),
        ),
    ),
    Section("lost", 180, (_pytest("-s", *(_LOST + name for name in _ENDS)),)),
    Section("sums", 30, (Command(("-m", "benchmarks.sums", "--out", "{out}")),)),
    Section("ranks", 165, (_ranks("--on ranks --minutes 2.3"),)),
    Section(
        "one",
        75,
        (
            _ranks("--models qwq-32b --on one --minutes 1.2", "0"),
            _ranks("--models codellama-7b,qwen3-8b --on one --minutes 1.2", "1"),
        ),
    ),
    Section("training_two", 80, (_training(2, 40),)),
    Section("training_one", 45, (_training(1, 40),)),
)


def main(argv: Sequence[str] | None = None) -> None:
    """See the module."""
    main_of(__doc__ or "", "two_gpus", SECTIONS, argv)


if __name__ == "__main__":
    main()
