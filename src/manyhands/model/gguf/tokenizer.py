"""The facts of a GGUF file as a tokenizer.

Two kinds are read. "gpt2" is byte-level BPE: tokens, merges, and the name of a rule by which a text is cut
into words before any merge (`RULES`, from llama.cpp's `llama-vocab.cpp`); with another rule the same merges
give other tokens, so a name that is not in the table is refused. "llama" is SentencePiece's BPE: tokens with
scores, from which the merges follow, since the best-scored pair of neighbours is merged first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

from manyhands.errors import ModelNotFound, UnsupportedModel
from manyhands.hub import damaged, in_short
from manyhands.model.gguf.header import Header

_NORMAL, _UNKNOWN, _CONTROL, _USER, _UNUSED, _BYTE = range(1, 7)  # kinds of tokens
_SPACE = "\u2581"
# Characters of a token that merges are sought for; none is longer but rows of blanks.
_MOST_MERGED = 64


@dataclass(frozen=True)
class Rule:
    """How a text is cut into words, and what is done to it before."""

    cuts: tuple[str, ...]
    composed: bool = False  # letters and their accents become one character (NFC)
    whole: bool = False  # a word that is a token is one, whatever the merges give


_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
_QWEN2 = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
_TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
RULES: MappingProxyType[str, Rule] = MappingProxyType(
    {
        "gpt-2": Rule((_GPT2,)),
        "smollm": Rule((r"\p{N}", _GPT2)),
        "llama-bpe": Rule((_LLAMA3,), whole=True),
        "qwen2": Rule((_QWEN2,), composed=True),
        "deepseek-r1-qwen": Rule((_QWEN2,), composed=True),
        "tekken": Rule((_TEKKEN,), whole=True),
    }
)


def read_tokenizer(header: Header) -> PreTrainedTokenizerFast:
    """Raises UnsupportedModel for kinds and rules that are not known, ModelNotFound for what makes no sense."""
    facts = {
        name.removeprefix("tokenizer.ggml."): value
        for name, value in header.facts.items()
        if name.startswith("tokenizer.ggml.")
    }
    builders = {"gpt2": _byte_level, "llama": _sentence_piece}
    kind = facts.get("model")
    if kind not in builders:
        raise UnsupportedModel(
            f"the GGUF file {str(header.path)!r} has {kind!r} as tokenizer.ggml.model; expected "
            + ", ".join(builders),
            hint="give the model's original folder or name, with its tokenizer",
        )
    tokens, kinds = _vocabulary(header, facts)
    try:
        made = builders[kind](header, facts, tokens, kinds)
    except (ValueError, TypeError, ModelNotFound, UnsupportedModel):
        raise
    except Exception as error:  # the errors of `tokenizers` have no class of their own
        raise damaged(
            str(header.path), f"a tokenizer that cannot be made ({in_short(error)})"
        ) from error
    made.add_tokens([_added(tokens[i], special=False) for i in _of_kind(kinds, _USER)])
    made.add_special_tokens([_added(tokens[i], special=True) for i in _of_kind(kinds, _CONTROL)])
    named = {
        ours: tokens[facts[f"{theirs}_token_id"]]
        for ours, theirs in (
            *(("bos_token", "bos"), ("eos_token", "eos")),
            *(("unk_token", "unknown"), ("pad_token", "padding")),
        )
        if facts.get(f"{theirs}_token_id") is not None
    }
    if facts.get("add_bos_token", kind == "llama") and "bos_token" in named:
        first = named["bos_token"]
        made.post_processor = TemplateProcessing(
            single=[first, "$A"], special_tokens=[(first, facts["bos_token_id"])]
        )
    template = header.facts.get("tokenizer.chat_template")
    make: Any = PreTrainedTokenizerFast  # has no types of its own
    found: PreTrainedTokenizerFast = make(
        tokenizer_object=made,
        chat_template=template,
        clean_up_tokenization_spaces=False,
        model_max_length=header.fact("context_length"),
        **named,
    )
    return found


def _vocabulary(header: Header, facts: Mapping[str, Any]) -> tuple[list[str], list[int]]:
    tokens = facts.get("tokens")
    if not isinstance(tokens, list) or not tokens or not isinstance(tokens[0], str):
        raise damaged(str(header.path), "no list of tokens (tokenizer.ggml.tokens)")
    kinds = facts.get("token_type", [_NORMAL] * len(tokens))
    if len(kinds) != len(tokens) or len(set(tokens)) != len(tokens):
        raise damaged(
            str(header.path),
            f"{len(tokens)} tokens, {len(set(tokens))} of them different, and the kinds of {len(kinds)}",
        )
    for name, token in facts.items():
        if name.endswith("_token_id") and not (isinstance(token, int) and 0 <= token < len(tokens)):
            raise damaged(str(header.path), f"{token!r} as {name}, of {len(tokens)} tokens")
    return tokens, kinds


def _byte_level(
    header: Header, facts: Mapping[str, Any], tokens: list[str], kinds: list[int]
) -> Tokenizer:
    name = facts.get("pre", "default")
    rule = RULES.get(name)
    if rule is None:
        raise UnsupportedModel(
            f"the GGUF file {str(header.path)!r} cuts its words by the rule {name!r}; known are "
            + ", ".join(RULES),
            hint="give the model's original folder or name, with its tokenizer",
        )
    merges = [tuple(merge.split(" ")) for merge in facts.get("merges", ())]
    if not merges or any(len(merge) != 2 for merge in merges):
        raise damaged(str(header.path), "no list of merges, or one with an entry of another form")
    vocabulary = {token: index for index, token in enumerate(tokens)}
    made = Tokenizer(BPE(vocabulary, merges, ignore_merges=rule.whole))
    if rule.composed:
        made.normalizer = normalizers.NFC()
    cuts = [pre_tokenizers.Split(Regex(cut), behavior="isolated") for cut in rule.cuts]
    bytes_ = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.pre_tokenizer = pre_tokenizers.Sequence([*cuts, bytes_])
    made.decoder = decoders.ByteLevel()
    return made


def _sentence_piece(
    header: Header, facts: Mapping[str, Any], tokens: list[str], kinds: list[int]
) -> Tokenizer:
    scores = facts.get("scores")
    if not isinstance(scores, list) or len(scores) != len(tokens):
        raise damaged(str(header.path), "no score for every token (tokenizer.ggml.scores)")
    vocabulary = {token: index for index, token in enumerate(tokens)}
    unknown = facts.get("unknown_token_id")
    made = Tokenizer(
        BPE(
            vocabulary,
            _merges(tokens, kinds, scores),
            unk_token=None if unknown is None else tokens[unknown],
            fuse_unk=True,
            byte_fallback=_BYTE in kinds,
        )
    )
    has_lead = facts.get("add_space_prefix", True)
    lead: list[Any] = [normalizers.Prepend(_SPACE)] if has_lead else []
    made.normalizer = normalizers.Sequence([*lead, normalizers.Replace(" ", _SPACE)])
    strip: list[Any] = [decoders.Strip(" ", 1, 0)] if has_lead else []
    made.decoder = decoders.Sequence(
        [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    )
    return made


def _merges(tokens: list[str], kinds: list[int], scores: list[float]) -> list[tuple[str, str]]:
    """Every pair of tokens that makes a third one, the best-scored first."""
    scored = {tokens[i]: scores[i] for i in (*_of_kind(kinds, _NORMAL), *_of_kind(kinds, _USER))}
    found = [
        (-score, index, piece[:cut], piece[cut:])
        for index, (piece, score) in enumerate(scored.items())
        if len(piece) <= _MOST_MERGED
        for cut in range(1, len(piece))
        if piece[:cut] in scored and piece[cut:] in scored
    ]
    return [(left, right) for _, _, left, right in sorted(found)]


def _of_kind(kinds: list[int], kind: int) -> list[int]:
    return [index for index, each in enumerate(kinds) if each == kind]


def _added(token: str, *, special: bool) -> AddedToken:
    return AddedToken(token, normalized=False, special=special)
