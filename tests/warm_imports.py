"""Libraries that processes of `tests/warm.py` have imported when they begin, and nothing of this project."""

import torch
from transformers import AutoModelForCausalLM, Qwen3ForCausalLM

__all__ = ["AutoModelForCausalLM", "Qwen3ForCausalLM", "torch"]
