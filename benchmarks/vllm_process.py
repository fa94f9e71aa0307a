"""vLLM as a whole engine, in a process of its own: it decodes what it is asked to, and tells how long its steps took.

    PYTHONPATH=FOLDER/vllm_engine:. python -m benchmarks.vllm_process ASKED.json TOLD.jsonl

`benchmarks/whole_engines.py` begins this process and reads what it tells, so that neither engine holds memory of the
device while the other is timed; `benchmarks/whole_prompts.py` does the same for first tokens. The folder is what `benchmarks/outsiders.py` unpacks. This module also has what is asked
of both engines (`Crowd`); it imports nothing but the standard library until vLLM is started.

vLLM runs as its users get it: an engine process of its own beside the one that asks, torch.compile, CUDA graphs, prefix
caching, and steps scheduled ahead. Graphs are recorded for just the numbers of rows that are asked for, also beyond 512,
where its defaults end, so no step is padded. Rows that share a prompt are requests with one prompt and a last token of their
own: they share the pages of the prompt. All requests are queued before the first step, which the engine's own switch for
pauses makes possible; then steps are timed as they come out of the engine, those in which every row gets a token.

First tokens are timed otherwise: requests come to an idle engine, which begins with the first of them, as it does for every
caller, and the time ends where `step` has returned a token of each. The scheduler's room for tokens of a pass is vLLM's own.

*Cascade attention*, which reads a shared prefix once for all rows, is off by default in vLLM 0.20. Its switch is turned
every few steps, so each crowd is timed both ways, over completions of the same lengths; what comes first behind a turn is
not counted. With it on, vLLM itself decides from the numbers of rows, heads and tokens whether to use it; a crowd for which
it never did has no line of its own with it.

Random weights are made anew as this engine makes its own (`fill`): vLLM's lie within a thousandth of zero, norms too, and all
layers' routers are alike. Embeddings are larger where there are experts: else what rows read of the prompt that they share
would choose for all of them, and 256 completions would read the experts of one. How many *experts* a step reads depends on these numbers, so it is counted in both engines, when
everything has been timed, in steps without graphs. Networks with experts go by Triton's kernels (`about_experts` tells
which numbers they were tuned with): FlashInfer, whose kernels 0.20 prefers where it is installed, is slower on Hopper by
vLLM's own measurements, and later releases no longer prefer it there (https://github.com/vllm-project/vllm/pull/44220).
Experts in mxfp4 keep their bits there too, by the kernels that vLLM prefers on Hopper without FlashInfer: Triton's own
(`triton_kernels`, a part of vLLM's wheel), which choose the experts themselves.

Over several GPUs (`ranks`) vLLM cuts each layer, too (`tensor_parallel_size`), and has a process for each GPU, all of which do what is
sent here; times are taken in the asking process all the same. Its sums go by its own all-reduce through peers' memory, up to 8 MB,
and by NCCL (`sums`, as found when it has started). Multicast stays off, and with it the sums of torch's symmetric memory, which vLLM 0.20 does not use
without. On Hopper its users have one kernel more by default, FlashInfer's of a sum and the norm behind it; FlashInfer is not here
(`benchmarks/outsiders.py`), so the launches around vLLM's sums may take longer than theirs.
"""

from __future__ import annotations

import gc
import json
import math
import os
import queue
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, TextIO

PLAIN, CASCADE = "vLLM", "vLLM, cascade"
WARM_UP = 16  # tokens of every completion that are written before the first that counts
_SETTLE = 3  # steps behind a turn of the switch that do not count
_PARTS = 4  # stretches of each kind in one completion
_FEWEST = 2  # steps that count of a stretch whose time is over
_STRETCH_SECONDS, _CROWD_SECONDS = 1.0, 6.0
_LEAST_FOR_CASCADE = 8  # rows; vLLM does not cascade fewer
_PROFILED_STEPS = 12
COUNTED_STEPS = 8  # of which experts are counted
# Seconds before a crowd comes, so that the engine is idle.
_REST = 0.05
EMBEDDED = 1.0  # standard deviation of random embeddings, where there are experts
_NO_EXPONENT = 127  # a scale of mxfp4 that stands for one
_SPREAD_OF_BITS = 2.93  # standard deviation of numbers of mxfp4 whose bits are random
_PRODUCTS = ("w13", "w2")  # of a layer's experts, as vLLM calls them
_ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_HOST_IP": "127.0.0.1",
    "GLOO_SOCKET_IFNAME": "lo",
    "VLLM_ALLOW_INSECURE_SERIALIZATION": "1",  # a function is sent to the engine's process: the switch
    "VLLM_LOGGING_COLOR": "0",
    # Over several GPUs no multicast, which hangs where it only seems to be there (`manyhands/engine/ranks/group.py`).
    "NCCL_NVLS_ENABLE": "0",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
    "VLLM_ALLREDUCE_USE_SYMM_MEM": "0",
}
Tokens = list[int]


@dataclass(frozen=True)
class Crowd:
    """Rows that decode at the same time: behind one prompt, or each behind its own, of a length drawn evenly."""

    name: str
    rows: int
    prompt: tuple[int, int]
    tokens: int  # that each row writes
    is_shared: bool = True

    def prompts(self, vocab_size: int, turn: int = 0) -> tuple[Tokens, list[Tokens]]:
        """The shared prompt, and what each row reads behind it (its first token at least); the same every time in one turn.

        No other crowd has any of them: vLLM keeps what it has read, and would not read that again.
        """
        rng = random.Random(f"{asdict(self)} {turn}")

        def some(num_tokens: int) -> Tokens:
            return [rng.randrange(2, vocab_size) for _ in range(num_tokens)]

        if self.is_shared:
            return some(rng.randint(*self.prompt)), [some(1) for _ in range(self.rows)]
        return [], [some(rng.randint(*self.prompt)) for _ in range(self.rows)]

    @property
    def most_tokens(self) -> int:
        """Keys and values that it can come to, without pages that are partly empty."""
        prompts = 1 if self.is_shared else self.rows
        return self.prompt[1] * prompts + self.rows * self.tokens


@dataclass(frozen=True)
class Asked:
    """A model folder and what to decode with it. `weights`: "dummy" or "auto", as vLLM calls them.

    `tells_tokens`: tell the tokens with their logprobs and time nothing (for the gate). `profiled`: names of crowds
    whose kernels are told, when everything has been timed. `spread`: of dummy weights, the standard deviation.
    `has_experts`: tell how many of them are read, too. `turns`: time first tokens and nothing else, of crowds that come
    so often (0: time steps). `ranks`: GPUs over which the model lies.
    """

    model: str
    weights: str
    vocab_size: int
    crowds: tuple[Crowd, ...]
    tells_tokens: bool = False
    profiled: tuple[str, ...] = ()
    spread: float = 0.0
    has_experts: bool = False
    turns: int = 0
    ranks: int = 1

    @classmethod
    def read(cls, path: Path) -> Asked:
        """A file that `write` wrote."""
        found = json.loads(path.read_text(encoding="utf-8"))
        crowds = tuple(
            Crowd(**{**each, "prompt": tuple(each["prompt"])}) for each in found.pop("crowds")
        )
        return cls(**{**found, "profiled": tuple(found["profiled"])}, crowds=crowds)

    def write(self, path: Path) -> Path:
        """As JSON."""
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")
        return path


def switch_cascade(worker: Any, is_on: bool) -> int:
    """Turn cascade attention on or off, in the engine's process; how many steps have used it so far."""
    runner = worker.model_runner
    runner.cascade_attn_enabled = is_on
    if not hasattr(runner, "steps_in_cascade"):
        runner.steps_in_cascade = 0
        find = runner._compute_cascade_attn_prefix_lens

        def found(*arguments: Any) -> Any:
            lengths = find(*arguments)
            runner.steps_in_cascade += lengths is not None
            return lengths

        runner._compute_cascade_attn_prefix_lens = found
    return int(runner.steps_in_cascade)


def watch_kernels(worker: Any, is_on: bool) -> dict[str, Any]:
    """Begin to note kernels, in the engine's process, or end it: steps, and milliseconds per step of each kernel."""
    import torch
    from torch._C._autograd import DeviceType
    from torch.profiler import ProfilerActivity, profile

    runner, is_gpu = worker.model_runner, torch.cuda.is_available()
    if is_gpu:
        torch.cuda.synchronize()
    if is_on:
        execute, runner.steps_profiled = runner.execute_model, 0

        def counted(*arguments: Any, **named: Any) -> Any:
            runner.steps_profiled += 1
            return execute(*arguments, **named)

        runner.execute_model = counted
        kind = ProfilerActivity.CUDA if is_gpu else ProfilerActivity.CPU
        runner.profiler = profile(activities=[kind], acc_events=True)
        runner.profiler.start()
        return {}
    runner.profiler.stop()
    del runner.execute_model  # the class's own shows again
    spent: dict[str, float] = {}
    for event in runner.profiler.events():
        if not is_gpu or event.device_type == DeviceType.CUDA:
            spent[event.name] = spent.get(event.name, 0.0) + event.time_range.elapsed_us()
    steps = max(1, runner.steps_profiled)
    kernels = sorted(((1e-3 * us / steps, name) for name, us in spent.items()), reverse=True)
    return {"steps": steps, "kernels": [[name, ms] for ms, name in kernels]}


def exponent(spread: float) -> int:
    """The scale of numbers of mxfp4 whose bits are random, so that this is about their standard deviation."""
    return _NO_EXPONENT + round(math.log2(spread / _SPREAD_OF_BITS))


def fill(worker: Any, spread: float, embedded: float) -> None:
    """Make the weights anew, in the engine's process: matrices at random, with these deviations; norms 1, biases 0.

    Experts in mxfp4 get random bits and one scale, where the kernels read them; vLLM leaves both at zero. Each GPU's numbers are
    its own.
    """
    import torch

    torch.manual_seed(worker.rank)
    with torch.inference_mode():
        model = worker.model_runner.get_model()
        for name, weight in model.named_parameters():
            if not weight.is_floating_point():  # as they came, and read no more
                continue
            if name.endswith("bias"):
                weight.zero_()
            elif "norm" in name:
                weight.fill_(1.0)
            else:
                weight.normal_(std=embedded if "embed" in name else spread)
        for module in model.modules():
            for bits, scales in in_mxfp4(module):
                bits.random_(0, 256)
                scales.fill_(exponent(spread))


def in_mxfp4(module: Any) -> list[tuple[Any, Any]]:
    """Bits and scales of both products of a layer's experts, bytes in the order in which Triton's kernels read them."""
    found = []
    for name in _PRODUCTS if hasattr(module, "quant_method") else ():
        precision = getattr(module.quant_method, f"{name}_precision_config", None)
        if precision is not None:
            weight = getattr(module, f"{name}_weight")
            found.append((weight.storage.data, precision.weight_scale.storage.data))
    return found


def about_experts(worker: Any) -> dict[str, Any]:
    """The kernels of the first layer's experts, and the file of numbers that they were tuned with, if there is one."""
    from vllm.model_executor.layers.fused_moe.fused_moe import get_config_file_name, get_moe_configs

    for module in worker.model_runner.get_model().modules():
        if hasattr(module, "w13_weight"):
            method = module.quant_method
            if hasattr(method, "mxfp4_backend"):
                kernels = f"{method.mxfp4_backend.value}, mxfp4"
                return {"experts": kernels, "experts_tuned": None}
            num_experts, _, inner = module.w2_weight.shape
            tuned = get_moe_configs(num_experts, inner, None)
            name = get_config_file_name(num_experts, inner, None)
            kernels = method.unquantized_backend.value
            return {"experts": kernels, "experts_tuned": name if tuned else None}
    return {}


def about_sums(worker: Any) -> list[str]:
    """The ways in which this GPU's sums meet those of the others, in the order in which vLLM asks them."""
    from vllm.distributed.parallel_state import get_tp_group

    ways, found = get_tp_group().device_communicator, []
    for name, part in {
        "its own all-reduce": "ca_comm",
        "symmetric memory": "symm_mem_comm",
        "NCCL": "pynccl_comm",
    }.items():
        way = getattr(ways, part)
        if way is not None and not way.disabled:
            found.append(name)
    return found


def count_experts(worker: Any, is_on: bool, rows: int) -> float:
    """Begin to count the experts that a layer reads of so many rows, in the engine's process, without graphs, or end it.

    Told at the end: how many, on average over layers and steps.
    """
    runner = worker.model_runner
    runner.cudagraph_dispatcher.keys_initialized = not is_on  # so no graph is found

    def note(chosen: Any) -> None:
        if len(chosen) == rows:
            runner.experts_read.append(chosen.unique().numel())

    for module in runner.get_model().modules():
        method: Any = getattr(module, "quant_method", None)
        router: Any = getattr(module, "router", None)
        if getattr(method, "is_monolithic", False):  # its kernels choose, from the router's logits
            if is_on:
                method.apply_monolithic = partial(_chosen_first, method.apply_monolithic, note)
            else:
                del method.apply_monolithic  # the class's own shows again
        elif hasattr(router, "set_capture_fn"):
            router.set_capture_fn(note if is_on else None)
    if is_on:
        runner.experts_read = []
    return statistics.fmean(runner.experts_read or [0.0])


def _chosen_first(
    apply: Callable[..., Any],
    note: Callable[[Any], None],
    layer: Any,
    x: Any,
    router_logits: Any,
    **more: Any,
) -> Any:
    """Note the experts that these logits choose, then call kernels that choose by themselves."""
    note(router_logits.topk(layer.top_k, dim=-1).indices)
    return apply(layer=layer, x=x, router_logits=router_logits, **more)


class Watched:
    """An engine of vLLM's whose steps are timed."""

    def __init__(self, engine: Any, make_parameters: Callable[..., Any], vocab_size: int) -> None:
        self.engine, self.core = engine, engine.engine_core
        self.make_parameters, self.vocab_size = make_parameters, vocab_size
        self.marks: list[tuple[float, int]] = []  # when a step's tokens came, and of how many rows
        self.found_in_cache = 0  # tokens of prompts whose first tokens were timed, in all
        get_output = self.core.get_output

        def watched() -> Any:
            outputs = get_output()
            if outputs.outputs:
                self.marks.append((time.perf_counter(), len(outputs.outputs)))
            return outputs

        self.core.get_output = watched

    def switch(self, is_on: bool) -> int:
        """Turn cascade attention on or off, on all GPUs; how many steps have used it so far on each of them."""
        return min(map(int, self.engine.collective_rpc(switch_cascade, args=(is_on,))))

    def kernels(self, rows: int, num_steps: int) -> dict[str, Any]:
        """The kernels of some steps, as `watch_kernels` tells them of the first GPU."""
        self.engine.collective_rpc(watch_kernels, args=(True,))
        self.stretch(rows, num_steps, _STRETCH_SECONDS)
        told, *_ = self.engine.collective_rpc(watch_kernels, args=(False,))
        return dict(told)

    def experts(self, rows: int) -> float:
        """The experts that a layer reads in one of the next steps, on average."""
        self.engine.collective_rpc(count_experts, args=(True, rows))
        self.stretch(rows, COUNTED_STEPS, _CROWD_SECONDS)
        (told,) = self.engine.collective_rpc(count_experts, args=(False, rows))
        return float(told)

    def begin(self, crowd: Crowd, **wanted: Any) -> list[str]:
        """Queue the requests of a crowd, its shared prompt read already, and let them go all at once."""
        shared, tails = crowd.prompts(self.vocab_size)
        if shared:
            self._add("first", [*shared, *tails[0]], max_tokens=1)
            self.finish()
        self.core.call_utility("pause_scheduler", "keep", False)
        while True:  # outputs of requests that were given up
            try:
                self.core.outputs_queue.get_nowait()
            except queue.Empty:
                break
        names = [f"row {row}" for row in range(crowd.rows)]
        for name, tail in zip(names, tails, strict=True):
            self._add(name, [*shared, *tail], max_tokens=crowd.tokens, **wanted)
        self.core.call_utility("resume_scheduler")
        return names

    def _add(self, name: str, prompt: Tokens, **wanted: Any) -> None:
        parameters = self.make_parameters(temperature=0.0, ignore_eos=True, **wanted)
        self.engine.add_request(name, {"prompt_token_ids": prompt}, parameters)

    def first_tokens(self, prompts: Sequence[Tokens], num_tokens: int) -> list[float]:
        """Seconds from the first submission of requests that come at once to the first token of each, in the order in which these came.

        Each writes so many tokens. `found_in_cache` counts what was not read, since an earlier prompt had it.
        """
        came: dict[str, float] = {}
        began = time.perf_counter()
        for row, prompt in enumerate(prompts):
            self._add(f"row {row}", prompt, max_tokens=num_tokens, is_streamed=True)
        while self.engine.has_unfinished_requests():
            told = self.engine.step()
            now = time.perf_counter()
            for each in told:
                if each.outputs[0].token_ids and each.request_id not in came:
                    came[each.request_id] = now - began
                    self.found_in_cache += each.num_cached_tokens
        return list(came.values())

    def finish(self) -> list[Any]:
        """Steps until no request is left; what they wrote."""
        told: list[Any] = []
        while self.engine.has_unfinished_requests():
            told += self.engine.step()
        return told

    def stretch(self, rows: int, num_steps: int, seconds: float) -> list[float]:
        """Seconds of each step in which all rows get a token, up to so many; the first few do not count."""
        gaps: list[float] = []
        settled, last = 0, 0.0
        began = time.perf_counter()
        while settled + len(gaps) < num_steps and self.engine.has_unfinished_requests():
            seen = len(self.marks)
            self.engine.step()
            for when, count in self.marks[seen:]:
                if count != rows:  # requests still begin, or end
                    settled = 0
                elif settled < _SETTLE:
                    settled += 1
                else:
                    gaps.append(when - last)
                last = when
            if len(gaps) >= _FEWEST and time.perf_counter() - began > seconds:
                break
        return gaps

    def give_up(self, names: Sequence[str]) -> None:
        """End what is left of a crowd."""
        self.engine.abort_request(list(names))
        self.finish()


def ways(crowd: Crowd) -> tuple[str, ...]:
    """With cascade attention too, where vLLM could use it."""
    could = crowd.is_shared and crowd.rows >= _LEAST_FOR_CASCADE
    return (PLAIN, CASCADE) if could else (PLAIN,)


def measure(watched: Watched, crowd: Crowd) -> list[dict[str, Any]]:
    """The steps of a crowd, without cascade attention and, where it could be used, with it."""
    kinds = ways(crowd)
    both = len(kinds) > 1
    before = watched.switch(False)
    names = watched.begin(crowd)
    began = time.perf_counter()
    for kind in kinds:  # to get warm
        watched.switch(kind == CASCADE)
        watched.stretch(crowd.rows, WARM_UP // len(kinds), _STRETCH_SECONDS)
    stretches: dict[str, list[float]] = {kind: [] for kind in kinds}
    parts = _PARTS if both else 1
    size = (crowd.tokens - WARM_UP) // (len(kinds) * parts)
    seconds = _STRETCH_SECONDS if both else _CROWD_SECONDS
    for _ in range(parts):
        for kind in kinds:
            if both:
                watched.switch(kind == CASCADE)
            stretches[kind] += watched.stretch(crowd.rows, size, seconds)
        if time.perf_counter() - began > _CROWD_SECONDS:
            break
    watched.give_up(names)
    used = watched.switch(False) - before
    return [
        {
            "engine": kind,
            "name": crowd.name,
            "rows": crowd.rows,
            **account(gaps, crowd.rows),
            **({"steps_in_cascade": used} if kind == CASCADE else {}),
        }
        for kind, gaps in stretches.items()
        if gaps and (kind == PLAIN or used)
    ]


def profile(watched: Watched, crowd: Crowd) -> list[dict[str, Any]]:
    """The kernels of a crowd's steps, both ways."""
    names = watched.begin(crowd)
    lines = []
    for kind in ways(crowd):
        watched.switch(kind == CASCADE)
        watched.stretch(crowd.rows, WARM_UP // 2, _STRETCH_SECONDS)
        told = watched.kernels(crowd.rows, _PROFILED_STEPS)
        lines.append({"profiled": kind, "name": crowd.name, **told})
    watched.give_up(names)
    watched.switch(False)
    return lines


def experts_read(watched: Watched, crowd: Crowd) -> list[dict[str, Any]]:
    """The experts that a layer reads of a crowd's steps, from the first on that is timed; nothing if none came."""
    watched.switch(False)
    names = watched.begin(crowd)
    watched.stretch(crowd.rows, WARM_UP, _STRETCH_SECONDS)
    read = round(watched.experts(crowd.rows), 2)
    watched.give_up(names)
    return [{"counted": PLAIN, "name": crowd.name, "experts_read": read}] if read else []


def come(
    crowd: Crowd,
    turns: int,
    vocab_size: int,
    first_tokens: Callable[[list[Tokens], int], list[float]],
) -> dict[str, Any]:
    """Milliseconds until the first row of a crowd has a token, until the last has one, and the mean over all rows, each time that it
    comes to an idle engine.

    `first_tokens` is as `Watched` has it, of either engine. The prompts are others each time. Loaded objects are kept from
    the collector of garbage meanwhile, as the servers of both engines do for good.
    """
    times: dict[str, list[float]] = {"all_ms_first": [], "all_ms_last": [], "all_ms_mean": []}
    gc.collect()
    gc.freeze()
    try:
        for turn in range(turns):
            _, prompts = crowd.prompts(vocab_size, turn)
            time.sleep(_REST)
            seconds = first_tokens(prompts, crowd.tokens)
            assert len(seconds) == crowd.rows, "every row has a first token"
            told = seconds[0], seconds[-1], statistics.fmean(seconds)
            for kind, each in zip(times.values(), told, strict=True):
                kind.append(round(1e3 * each, 3))
    finally:
        gc.unfreeze()
    return {"name": crowd.name, "rows": crowd.rows, "tokens": crowd.prompt[1], **times}


def account(seconds: Sequence[float], rows: int) -> dict[str, Any]:
    """Milliseconds per step, and tokens per second of all rows together. RuntimeError for no steps at all."""
    if not seconds:
        raise RuntimeError(
            f"there was no step in which all {rows} rows wrote and no prompt was read"
        )
    ordered = sorted(1e3 * each for each in seconds)
    mean = statistics.fmean(ordered)
    return {
        "steps": len(ordered),
        "ms": round(statistics.median(ordered), 4),
        "ms_mean": round(mean, 4),
        "ms_p90": round(ordered[(len(ordered) * 9) // 10], 4),
        "tokens_per_second": round(1e3 * rows / mean, 1),
    }


def write_tokens(watched: Watched, crowd: Crowd) -> list[dict[str, Any]]:
    """The tokens that a crowd writes greedily, both ways, row by row, with their logprobs."""
    lines = []
    for kind in (PLAIN, CASCADE):
        before = watched.switch(kind == CASCADE)
        watched.begin(crowd, logprobs=1)
        told = {each.request_id: each.outputs[0] for each in watched.finish()}
        used = watched.switch(False) - before
        rows = [told[f"row {row}"] for row in range(crowd.rows)]
        logprobs = [
            [there[token].logprob for token, there in zip(row.token_ids, row.logprobs, strict=True)]
            for row in rows
        ]
        tokens = [list(row.token_ids) for row in rows]
        lines.append({"engine": kind, "tokens": tokens, "logprobs": logprobs, "used": used})
    return lines


def start(asked: Asked) -> tuple[Watched, dict[str, Any]]:
    """VLLM with this model, and what is to be known of how it started."""
    os.environ.update(_ENVIRONMENT)
    began = time.monotonic()
    import vllm
    from vllm.sampling_params import RequestOutputKind

    imported = time.monotonic()
    sizes = sorted({crowd.rows for crowd in asked.crowds} | {1, 2, 4, 8, 16})
    longest = max(crowd.prompt[1] + crowd.tokens for crowd in asked.crowds) + 16
    llm = vllm.LLM(
        asked.model,
        load_format=asked.weights,
        dtype="bfloat16",
        skip_tokenizer_init=True,
        generation_config="vllm",
        enable_prefix_caching=True,
        max_model_len=longest,
        max_num_seqs=max(sizes),
        compilation_config={"cudagraph_capture_sizes": sizes},
        tensor_parallel_size=asked.ranks,
        distributed_executor_backend="mp" if asked.ranks > 1 else None,
    )

    def parameters(*, is_streamed: bool = False, **wanted: Any) -> Any:
        kind = RequestOutputKind.DELTA if is_streamed else RequestOutputKind.FINAL_ONLY
        return vllm.SamplingParams(detokenize=False, output_kind=kind, **wanted)

    if asked.weights == "dummy":
        embedded = EMBEDDED if asked.has_experts else asked.spread
        llm.llm_engine.collective_rpc(fill, args=(asked.spread, embedded))
    config = llm.llm_engine.vllm_config
    pages = config.cache_config
    facts = {
        "vllm": vllm.__version__,
        "import_seconds": round(imported - began, 1),
        "start_seconds": round(time.monotonic() - imported, 1),
        "memory_tokens": (pages.num_gpu_blocks or 0) * pages.block_size,
        "graphs": str(config.compilation_config.cudagraph_mode),
        "compilation": str(config.compilation_config.mode),
        "async_scheduling": bool(config.scheduler_config.async_scheduling),
        "tokens_of_a_pass": config.scheduler_config.max_num_batched_tokens,
    }
    if asked.has_experts:
        (about,) = llm.llm_engine.collective_rpc(about_experts)
        facts |= about
    if asked.ranks > 1:
        sums = llm.llm_engine.collective_rpc(about_sums)
        facts |= {"ranks": len(sums), "sums": sums[0]}
    return Watched(llm.llm_engine, parameters, asked.vocab_size), facts


def run(asked: Asked, told: TextIO, begin: Callable[[Asked], Any] = start) -> None:
    """Decode every crowd, or time its first tokens; one line of JSON each, the first of how the engine started."""

    def tell(line: dict[str, Any]) -> None:
        told.write(json.dumps(line) + "\n")
        told.flush()

    watched, facts = begin(asked)
    tell({"started": facts})
    if asked.turns:
        for crowd in asked.crowds:
            before = watched.found_in_cache
            told_of = come(crowd, asked.turns, asked.vocab_size, watched.first_tokens)
            found = watched.found_in_cache - before
            tell({"engine": PLAIN, **told_of, "found_in_cache": found})
        return
    for crowd in asked.crowds:
        for line in (write_tokens if asked.tells_tokens else measure)(watched, crowd):
            tell(line)
            if not asked.tells_tokens:
                print(line, flush=True)
    for crowd in asked.crowds if asked.has_experts and not asked.tells_tokens else ():
        for line in experts_read(watched, crowd):
            tell(line)
    for crowd in asked.crowds:
        if crowd.name in asked.profiled:
            for line in profile(watched, crowd):
                tell(line)


def main(words: Sequence[str] | None = None) -> None:
    """Read what is asked, and tell."""
    asked, told = map(Path, words or sys.argv[1:])
    with told.open("w", encoding="utf-8") as file:
        run(Asked.read(asked), file)


if __name__ == "__main__":
    # The switch is sent by name: the engine's process must find it where it is, not in a program.
    from benchmarks import vllm_process

    vllm_process.main()
    sys.stdout.flush()
    os._exit(0)  # all is told; the engine's process is ended by who began this one
