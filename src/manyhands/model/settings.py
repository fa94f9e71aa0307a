"""All choices of a model: which one, where it is computed, and with what.

    Engine.load("Qwen/Qwen3-8B", dtype="bfloat16", memory_tokens=65536)
    manyhands solve --model Qwen/Qwen3-8B --dtype bfloat16 --memory-tokens 65536

Defaults, help and ranges stand here alone; every command that loads a model has these options. Nothing
heavy is imported: an option that cannot be is refused before torch is loaded.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from manyhands.errors import InvalidRequest
from manyhands.schema.setting import check, setting

Weights = Literal["auto", "dummy"]
Quantise = Literal["auto", "none", "fp16", "fp8", "int4"]
Fuse = Literal["auto", "on", "off"]
Thinking = Literal["auto", "on", "off", "low", "medium", "high"]
EFFORTS = ("low", "medium", "high")  # of thinking
KeyDtype = Literal["auto", "int8"]
BACKENDS = ("triton", "torch", "reference")
DTYPES = ("float32", "bfloat16", "float16", "float64")

_MODEL = "Model"
_CACHE_SIZE = 32.0  # GiB
# Where every token goes through all weights; and, beside rows that write, where it goes through a few experts.
PROMPT_TOKENS, PROMPT_TOKENS_ALONE = 512, 2048
PROMPT_TOKENS_WITH_EXPERTS = 1024
# Rows that write, beyond which parts are those without experts: recordings of longer passes have no room for more.
MOST_ROWS_BESIDE = 256


@dataclass(frozen=True)
class ModelSettings:
    """Which model computes, where and how.

    `model`: a folder, a GGUF file, a name on the Hugging Face hub, or a causal language model already built; None is
    the bundled one, where there is a command line. `overcommit`: runs are admitted until their
    reservations come to so many times the memory; those that then do not fit are preempted and come back.
    `speculate` changes no token that is written, only how many passes are made for them, so it is a choice of
    the engine and not of a run: traces, records and requests know nothing of it.
    `max_tokens_per_pass` bounds the activations of one pass, `prompt_tokens` how long rows that write wait for
    the prompts of others, `prompt_tokens_alone` how long prompts that come at once wait for each other.
    """

    model: Any = setting(
        None,
        "A folder, a GGUF file, or a name on the Hugging Face hub such as Qwen/Qwen3-8B.",
        unset="bundled, a small model that comes with manyhands",
        panel=_MODEL,
    )
    device: str = setting("auto", "auto, cpu, cuda or cuda:N.", panel=_MODEL)
    dtype: str = setting(
        "auto",
        "Of weights and activations: the checkpoint's on a GPU, float32 on a CPU (auto), or this one.",
        one_of=("auto", *DTYPES),
        panel=_MODEL,
    )
    lora: str | None = setting(
        None,
        "A folder with a LoRA adapter for the model, as `manyhands train` and peft write them; it is added to the "
        "weights. Words that lie beside it are the model's.",
        unset="none",
        names=("--adapter",),
        panel=_MODEL,
    )
    backend: str = setting(
        "auto",
        "What computes attention: the kernels where they can run (auto), or this one.",
        one_of=("auto", *BACKENDS),
        panel=_MODEL,
    )
    weights: Weights = setting(
        "auto",
        "Weights: the model's own, or random ones (dummy).",
        one_of=get_args(Weights),
        names=("--load",),
        panel=_MODEL,
    )
    quantise: Quantise = setting(
        "auto",
        "Weights in fewer bits: as the checkpoint has them (auto; AWQ and GPTQ in four, FP8 in "
        "eight on GPUs that multiply them, GGUF's Q4_0 and Q4_1 and experts in mxfp4 in four on GPUs, GGUF in sixteen on "
        "CPUs), none, or rounded to fp8, int4, or on a CPU fp16.",
        one_of=get_args(Quantise),
        panel=_MODEL,
    )
    fuse: Fuse = setting(
        "auto",
        "Join small operations of each layer, and on CPUs lay weights out for their products: auto is on.",
        one_of=get_args(Fuse),
        panel=_MODEL,
    )
    memory_tokens: int | None = setting(
        None,
        "Tokens whose keys and values are held.",
        at_least=1,
        unset="what fits half of the free memory",
        panel=_MODEL,
    )
    states: int | None = setting(
        None,
        "Texts whose states are held, for networks with layers that keep one (Qwen3-Next, Qwen3.5). A lone writer "
        "needs 5.",
        at_least=2,
        unset="what half of the memory for tokens holds, at most 256",
        panel=_MODEL,
    )
    context: int | None = setting(
        None, "Longest view of a worker.", at_least=1, unset="the model's own", panel=_MODEL
    )
    thinking: Thinking = setting(
        "auto",
        "Whether a reasoning model thinks before it replies: on (which is auto), off, or how much, where its chat "
        "template is told so, as gpt-oss's is.",
        one_of=get_args(Thinking),
        panel=_MODEL,
    )
    ranks: int | None = setting(
        None,
        "Processes that share one model, each with a part of every layer: on GPUs, one on each.",
        at_least=1,
        at_most=64,
        unset="1, or as many as torchrun has started",
        names=("--ranks", "--gpus"),
        panel=_MODEL,
    )
    check_ranks: bool = setting(False, "Compare after each pass what all ranks made.", by="code")
    peers: bool = setting(
        True,
        "Sum few tokens of several ranks through their GPUs' memory, if a try succeeds.",
        by="code",
    )
    speculate: int = setting(
        0,
        "Guess so many tokens ahead for rows that write alone, at most, from what they read; one pass checks "
        "them, and the text stays the same.",
        at_least=0,
        at_most=63,
        zero="none",
        panel=_MODEL,
    )
    kv_cache_dtype: KeyDtype = setting(
        "auto",
        "Keys and values in memory: in the dtype of the network (auto), or rounded to eight bits (int8), "
        "which hold about twice the tokens.",
        one_of=get_args(KeyDtype),
        panel=_MODEL,
    )
    cache: str | None = setting(
        None,
        "A folder for keys and values of prompts: what was read once is loaded from there and not read "
        "again, by any process with the same weights.",
        unset="none",
        panel=_MODEL,
    )
    cache_size: float | None = setting(
        None,
        "Gibibytes that the cache may take; the prompts that were used least recently go.",
        above=0,
        at_most=1 << 20,
        unset=f"{_CACHE_SIZE:g}",
        panel=_MODEL,
    )
    sheet_tokens: int = setting(
        256, "Tokens whose keys and values are one file of the cache.", at_least=1, by="code"
    )
    overcommit: float = setting(1.5, "Reservations, over memory.", at_least=1, by="code")
    max_tokens_per_pass: int = setting(8192, "Tokens fed in one pass.", at_least=1, by="code")
    prompt_tokens: int | None = setting(
        None,
        "Tokens of prompts that are fed in one pass beside rows that write.",
        at_least=1,
        unset=f"{PROMPT_TOKENS}; with experts {PROMPT_TOKENS_WITH_EXPERTS:,}",
        by="code",
    )
    prompt_tokens_alone: int | None = setting(
        None,
        "Tokens of several prompts that are fed in one pass while no row writes.",
        at_least=1,
        unset=f"{PROMPT_TOKENS_ALONE:,}; with experts as many as a pass may have",
        by="code",
    )

    def __post_init__(self) -> None:
        check(self)
        check_named(self.model)
        for name in ("cache", "lora"):
            object.__setattr__(self, name, _folder(name, getattr(self, name)))
        if self.cache is not None and not self.cache.strip():
            raise InvalidRequest(
                "cache is empty; expected a folder", hint="give one, or leave it out"
            )
        if self.cache is None and self.cache_size is not None:
            raise InvalidRequest(
                f"cache_size is {self.cache_size:g}, and there is no cache",
                hint="give its folder too (--cache DIR), or leave the size out",
            )

    @property
    def cache_bytes(self) -> int:
        """Bytes that the cache may take."""
        return int((self.cache_size or _CACHE_SIZE) * 2**30)


def _folder(name: str, given: object) -> str | None:
    """The name of a folder; a path is one, too. Raises InvalidRequest for what is none."""
    if given is None:
        return None
    if not isinstance(given, str | Path):
        raise InvalidRequest(
            f"{name} is of type {type(given).__name__}; expected a folder",
            hint="give its path, or leave it out",
        )
    return str(given)


def check_named(model: object) -> None:
    """Raise InvalidRequest for a name of blanks, such as a shell's variable that is not set."""
    if isinstance(model, str) and not model.strip():
        raise InvalidRequest(
            "model is empty; expected a folder or a name on the Hugging Face hub",
            hint="give one, or leave it out",
        )
