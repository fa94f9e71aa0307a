"""Two small real tokenizers: byte-level BPE as Qwen has it, SentencePiece-like as Llama 2 has it."""

from __future__ import annotations

from functools import cache

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers.trainers import BpeTrainer
from transformers import PreTrainedTokenizerFast

CORPUS = [
    "So the answer is four.\n\nThe next step of the problem: divide, then add the two halves.",
    "Alice and Bob solve the problem together. The user asks, the assistant thinks and answers.",
    "Les élèves étudient à l'école. Über allen Gipfeln ist Ruh. 数学の問題を解く。",
] * 4
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
REASONING = CHATML + "{# <think> #}"
OPENED = CHATML.replace("assistant\n{%", "assistant\n<think>\n{%")
SILENCED = REASONING.replace(
    "assistant\n{%",
    "assistant\n{% if not enable_thinking %}<think>\n\n</think>\n\n{% endif %}{%",
)
# A template of our own in the form of gpt-oss's: messages in channels, of earlier replies only the final one.
HARMONY = (
    "<|start|>system<|message|>Reasoning: {{ reasoning_effort or 'medium' }}<|end|>"
    "{% for message in messages %}"
    "{% if message.role == 'system' %}<|start|>developer<|message|># Instructions\n\n{{ message.content }}<|end|>"
    "{% elif message.role == 'user' %}<|start|>user<|message|>{{ message.content }}<|end|>"
    "{% else %}{% if message.thinking %}<|start|>assistant<|channel|>analysis<|message|>"
    "{{ message.thinking }}<|end|>{% endif %}"
    "<|start|>assistant<|channel|>final<|message|>{{ message.content }}<|end|>{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}<|start|>assistant{% endif %}"
)
HARMONY_MARKS = [
    *("<|return|>", "<|constrain|>", "<|channel|>", "<|start|>"),
    *("<|end|>", "<|message|>", "<|call|>"),
]


@cache
def _byte_level_json() -> str:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        CORPUS, BpeTrainer(vocab_size=420, initial_alphabet=alphabet, show_progress=False)
    )
    return tokenizer.to_str()


def byte_level(template: str | None = CHATML, think: bool = True) -> PreTrainedTokenizerFast:
    backend = Tokenizer.from_str(_byte_level_json())
    backend.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    if think:  # added, yet not special: as in Qwen3
        marks = ["<think>", "</think>", "<tool_call>"]
        backend.add_tokens([AddedToken(mark, special=False) for mark in marks])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|im_end|>")
    tokenizer.chat_template = template
    return tokenizer


def harmony() -> PreTrainedTokenizerFast:
    """A tokenizer as gpt-oss has it, in small."""
    backend = Tokenizer.from_str(_byte_level_json())
    backend.add_special_tokens(["<|startoftext|>", "<|endoftext|>", *HARMONY_MARKS])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|return|>")
    tokenizer.chat_template = HARMONY
    return tokenizer


@cache
def _sentence_piece_json() -> str:
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(content=" ", left=1),
        ]
    )
    specials = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    words = [word for text in CORPUS for word in text.split(" ")]
    trainer = BpeTrainer(
        vocab_size=500, special_tokens=specials, limit_alphabet=60, show_progress=False
    )
    tokenizer.train_from_iterator(words, trainer)
    return tokenizer.to_str()


def sentence_piece(template: str | None = None) -> PreTrainedTokenizerFast:
    import json

    data = json.loads(_sentence_piece_json())
    data["added_tokens"] = [word for word in data["added_tokens"] if word["id"] < 3]
    backend = Tokenizer.from_str(json.dumps(data))
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, unk_token="<unk>", bos_token="<s>", eos_token="</s>"
    )
    tokenizer.chat_template = template
    return tokenizer
