"""All choices of a training, declared where no torch is imported: recipes and the command line read them."""

from __future__ import annotations

from dataclasses import dataclass

from manyhands.schema.setting import check, setting


@dataclass(frozen=True)
class TrainSettings:
    """How a training goes. It ends with its steps or with its minutes, whichever come first."""

    steps: int = setting(1000, "Training steps, at most.", at_least=1)
    minutes: float = setting(0.0, "Time, at most.", at_least=0, zero="no limit")
    tokens_per_step: int = setting(16384, "Tokens of a batch, about.", at_least=1)
    learning_rate: float = setting(3e-3, "The highest, behind the warm-up.", above=0)
    warmup_steps: int = setting(200, "Steps in which the rate rises.", at_least=0)
    constant: float = setting(0.3, "Share before the rate falls.", at_least=0, below=1)
    weight_decay: float = setting(0.05, "Of matrices; norms and biases have none.", at_least=0)
    clip: float = setting(1.0, "The longest gradient.", above=0)
    products: str = setting(
        "float32",
        "Dtype of matrix products; weights and their averages stay float32.",
        one_of=("float32", "bfloat16"),
    )
    parts: int = setting(1, "Parts of a batch, one after the other: less memory.", at_least=1)
    recompute: bool = setting(
        False, "Whether layers are computed again on the way back: less memory, a third slower."
    )
    seed: int = setting(
        0,
        "Of the weights of a new model, and of the lessons.",
        at_least=-(1 << 63),  # torch takes no others
        at_most=(1 << 64) - 1,
    )
    processes: int = setting(
        0, "Processes that make batches.", at_least=0, zero="the training's own"
    )
    log_every: int = setting(20, "Steps from line to line of the log.", at_least=1)
    checkpoint_minutes: float = setting(5.0, "Time from checkpoint to checkpoint.", at_least=0)

    def __post_init__(self) -> None:
        check(self)
