"""A team of workers by definition: the network looks at explicit lists of tokens, in float64.

Nothing here comes from the product: no planner, no memory, no rotation. Blocks are names, and a view is
the list of the (block, index) pairs that stood before a query when it was fed. Hugging Face's own
network runs with its rotation taken out, so that the bare queries and keys arrive at our attention
function; there each query meets each key by Hugging Face's own rotary function, at the positions of
the two in the query's view.

Every layer brings the table it rotates with: the network is told positions 0, 1, 2, ... whatever
tokens it is fed, so the cosines and sines that reach a layer's rotation are those of all positions.
A layer whose rotation is not called has no positions.
"""

from __future__ import annotations

import inspect
import math
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface
from transformers.modeling_utils import PreTrainedModel

from tests.model.double import DoublePrecision

NAME = "dense_team_of_tests"
_SCALE = "get_llama_4_attn_scale"  # of queries, by their position


@dataclass(frozen=True)
class DenseRow:
    """Blocks by name, in the order they are read; the tokens join the last of them.

    A list of lists of blocks are lanes: each begins where the list does, and what follows begins
    behind the longest.
    """

    view: Sequence[str | Sequence[Sequence[str]]]
    feed: Sequence[int]


@dataclass
class DenseTeam:
    """Hugging Face's network and the raw keys and values of every block, [G, D] a token and layer."""

    model: PreTrainedModel
    num_positions: int  # of the tables of cosines: beyond every view
    keys: dict[tuple[int, str], list[Tensor]] = field(default_factory=lambda: defaultdict(list))
    values: dict[tuple[int, str], list[Tensor]] = field(default_factory=lambda: defaultdict(list))
    lengths: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    _rows: Sequence[DenseRow] = ()
    # per query, what it meets: block, index and position; itself the last
    _seen: list[list[tuple[str, int, int]]] = field(default_factory=list)
    _table: tuple[Tensor, ...] | None = None  # of the layer that is about to attend

    def __post_init__(self) -> None:
        AttentionInterface.register(NAME, _attention)
        self.model = self.model.double()
        self.model.set_attn_implementation(NAME)
        if self.model._can_set_experts_implementation():
            self.model.set_experts_implementation("eager")  # the only one that knows float64
        self._modelling: Any = sys.modules[type(self.model).__module__]
        config = self.model.config
        self._name = rotation_name(config)
        self._rotate: Any = getattr(self._modelling, self._name)
        # With latent attention only the last dims of a head are given to the rotation.
        self._rotary: int = getattr(config, "qk_rope_head_dim", 0)
        self._heads_last = config.model_type == "llama4_text"  # it rotates x [N, H, D]
        # Gemma 4 rotates queries and keys in two calls
        names = inspect.signature(self._rotate).parameters
        self._one_by_one = not self._rotary and not {"k", "xk"} & set(names)
        self._scale: Any = getattr(self._modelling, _SCALE, None)
        # Llama 4 scales the queries of some layers by their place among the fed tokens.
        self._tuned: set[int] = set()
        for module in self.model.modules():
            if getattr(module, "attn_temperature_tuning", False) and not module.use_rope:
                self._tuned.add(int(module.layer_idx))  # type: ignore[arg-type]
                module.attn_temperature_tuning = False  # type: ignore[assignment]

    def step(self, rows: Sequence[DenseRow]) -> Tensor:
        """Feed all rows; logits [rows, vocab] of their last tokens."""
        for row in rows:
            self.lengths[_own(row)] += len(row.feed)
        self._rows, self._seen = rows, []
        for row in rows:
            context = self._context(row)
            first = len(context) - len(row.feed)
            self._seen += [context[: first + i + 1] for i in range(len(row.feed))]
        ids = torch.tensor([[token for row in rows for token in row.feed]])
        last = torch.tensor([len(row.feed) for row in rows]).cumsum(0) - 1
        with DoublePrecision(), torch.no_grad(), self._no_rotation():
            out = self.model(
                input_ids=ids,
                position_ids=torch.arange(self.num_positions)[None],
                use_cache=False,
                dense_team=self,
            )
        logits: Tensor = out.logits[0, last]
        return logits

    def _context(self, row: DenseRow) -> list[tuple[str, int, int]]:
        context: list[tuple[str, int, int]] = []
        end = 0
        for item in row.view:
            start = end
            for lane in [[item]] if isinstance(item, str) else item:
                tokens = [(block, i) for block in lane for i in range(self.lengths[block])]
                context += [(*token, start + n) for n, token in enumerate(tokens)]
                end = max(end, start + len(tokens))
        return context

    @contextmanager
    def _no_rotation(self) -> Iterator[None]:
        """Let the network leave its queries and keys as they are, and note the table it brings."""

        def keep(q: Tensor, k: Tensor, *table: Tensor, **named: Tensor) -> tuple[Tensor, Tensor]:
            self._table = table or (named["cos"], named["sin"])
            return q, k

        def keep_one(x: Tensor, cos: Tensor, sin: Tensor, **_: Any) -> Tensor:
            self._table = (cos, sin)
            return x

        setattr(self._modelling, self._name, keep_one if self._one_by_one else keep)
        if self._scale is not None:
            setattr(self._modelling, _SCALE, lambda *_: torch.ones(()))
        try:
            yield
        finally:
            setattr(self._modelling, self._name, self._rotate)
            if self._scale is not None:
                setattr(self._modelling, _SCALE, self._scale)

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, call: dict[str, Any]) -> Tensor:
        """Write the new keys and values, then let every query look: q [T, H, D] -> [T, H, Dv]."""
        table, self._table = self._table, None
        token = 0
        for row in self._rows:
            for _ in row.feed:
                self.keys[layer, _own(row)].append(k[token])
                self.values[layer, _own(row)].append(v[token])
                token += 1
        return torch.stack(
            [
                self._look(layer, x, context, table, call)
                for x, context in zip(q, self._seen, strict=True)
            ]
        )

    def _look(
        self,
        layer: int,
        q: Tensor,
        context: list[tuple[str, int, int]],
        table: tuple[Tensor, ...] | None,
        call: dict[str, Any],
    ) -> Tensor:
        """One query [H, D] at the end of its context."""
        (*_, here), window = context[-1], call.get("sliding_window")
        near = [token for token in context if window is None or here - token[2] < window]
        config = self.model.config
        if (getattr(config, "layer_types", None) or {layer: ""})[layer] == "chunked_attention":
            chunk = here // config.attention_chunk_size
            near = [token for token in near if token[2] // config.attention_chunk_size == chunk]
        keys = torch.stack([self.keys[layer, block][i] for block, i, _ in near], dim=1)
        values = torch.stack([self.values[layer, block][i] for block, i, _ in near], dim=1)
        group = q.shape[0] // keys.shape[0]
        query = self._rotated(q[:, None], [here], table)  # [H, 1, D]
        if self._scale is not None:
            rope = self.model.config.rope_parameters
            span = rope["original_max_position_embeddings"]
            factor = self._scale(
                torch.tensor([[float(here)]], dtype=torch.float64),
                rope["llama_4_scaling_beta"],
                span,
            )
            query = query * factor.reshape(())
        if layer in self._tuned:
            query = query * (1 + config.attn_scale * math.log1p((here + 1) // config.floor_scale))
        keys = self._rotated(keys, [p for *_, p in near], table).repeat_interleave(
            group, 0
        )  # [H, N, D]
        values = values.repeat_interleave(group, 0)
        scores = (query * keys).sum(-1) * call["scaling"]
        if call.get("softcap") is not None:
            scores = call["softcap"] * torch.tanh(scores / call["softcap"])
        if call.get("s_aux") is not None:  # a key of its own for every head, with the value zero
            scores = torch.cat((scores, call["s_aux"][:, None]), dim=1)
        weights = scores.softmax(-1)[:, : len(near)]
        seen: Tensor = (weights[..., None] * values).sum(1)
        return seen

    def _rotated(
        self, x: Tensor, positions: Sequence[int], table: tuple[Tensor, ...] | None
    ) -> Tensor:
        """x [H, N, D] at N positions, by the network's own function."""
        if table is None:
            return x
        here = [part[:, list(positions)] for part in table]
        still, turned = x[..., : -self._rotary or 0], x[..., -self._rotary :]
        if self._heads_last:
            turned = turned.transpose(0, 1)
        both = (turned[None],) if self._one_by_one else (turned[None], turned[None])
        rotated = self._rotate(*both, *here)
        of_x: Tensor = rotated if self._one_by_one else rotated[0]
        if self._heads_last:
            of_x = of_x.transpose(1, 2)
        return torch.cat((still, of_x[0]), dim=-1)


def rotation_name(config: Any) -> str:
    """The name of the function by which the network rotates."""
    if config.model_type in ("deepseek_v2", "llama4_text"):
        return "apply_rotary_emb"
    own = "_interleave" if getattr(config, "rope_interleave", False) else ""
    return f"apply_rotary_pos_emb{own}"


def _own(row: DenseRow) -> str:
    own = row.view[-1]
    assert isinstance(own, str)
    return own


def _attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    dense_team: DenseTeam,
    **call: Any,
) -> tuple[Tensor, None]:
    assert attention_mask is None
    q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))
    return dense_team.attend(module.layer_idx, q, k, v, call)[None], None
