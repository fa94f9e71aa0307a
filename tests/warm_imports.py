"""Libraries that processes of `tests/warm.py` have imported when they begin, and nothing of this project."""

import prometheus_client
import rich.live
import starlette.applications
import starlette.routing
import torch
import typer
import uvicorn
from transformers import AutoModelForCausalLM, Qwen3ForCausalLM
from transformers.conversion_mapping import get_checkpoint_conversion_mapping

get_checkpoint_conversion_mapping("qwen3")  # of all families, made at the first load
__all__ = [
    "AutoModelForCausalLM",
    "Qwen3ForCausalLM",
    "get_checkpoint_conversion_mapping",
    "prometheus_client",
    "rich",
    "starlette",
    "torch",
    "typer",
    "uvicorn",
]
