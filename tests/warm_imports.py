"""Libraries that processes of `tests/warm.py` have imported when they begin, and nothing of this project."""

import prometheus_client
import rich.live
import starlette.applications
import starlette.routing
import torch
import typer
import uvicorn
from transformers import AutoModelForCausalLM, Qwen3ForCausalLM

__all__ = [
    "AutoModelForCausalLM",
    "Qwen3ForCausalLM",
    "prometheus_client",
    "rich",
    "starlette",
    "torch",
    "typer",
    "uvicorn",
]
