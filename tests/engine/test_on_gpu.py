"""The same numbers on a GPU: skipped where there is none, run on one before a release.

Float32 on both sides, with TF32 off: what is left is the order of sums, some 1e-6 on logits of size 1.
"""

from __future__ import annotations

import gc
import json
import random
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import manyhands.bundled
from manyhands.cache.block import Block
from manyhands.cache.layouts import LAYOUTS
from manyhands.cache.step import Choice, Row, Step
from manyhands.cache.view import View
from manyhands.engine import local_executor, sampling
from manyhands.engine.engine import Engine
from manyhands.model.adapter import ModelAdapter
from manyhands.model.delta import DeltaLayer
from manyhands.model.loading import load_adapter
from manyhands.model.settings import ModelSettings
from manyhands.prompts import load_prompt
from manyhands.strategies.base import Answer, Strategy
from manyhands.strategies.hogwild import hogwild
from manyhands.strategies.settings import SharedSettings, TeamSettings
from manyhands.strategies.shared_prefix import Completions, shared_prefix
from manyhands.tasks.arithmetic.problem_list import problem_list
from manyhands.tasks.graders import grade_list
from tests.engine.small import executor_of
from tests.model.families_zoo import some_tokens, tiny_models

if torch.cuda.is_available():
    from manyhands.engine.local_executor import LocalExecutor
from manyhands.attention.compile_at_once import compiling_at_once
from manyhands.attention.triton_backend import TritonBackend
from manyhands.engine.capacities import Wide, wide_capacity
from manyhands.engine.graph import Graph
from manyhands.engine.graphs import GraphedPasses
from manyhands.engine.recorder import CudaRecorder


@pytest.fixture(autouse=True)
def _room() -> Iterator[None]:
    """An engine is freed by the collector; the next test needs its memory."""
    yield
    gc.collect()
    torch.cuda.empty_cache()


pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")


def conversation(engine: Engine) -> torch.Tensor:
    """Two workers, wide rows, a desk that joins the history: all logits, on the CPU."""
    feed = tuple(int(token) for token in some_tokens(64))
    prompt, alice, bob = Block(), Block(), Block()
    logits = [
        engine.forward(
            Step(
                [
                    Row(View([prompt]), feed[:20]),
                    Row(View([prompt, bob, alice]), feed[20:25]),
                    Row(View([prompt, alice, bob]), feed[25:28]),
                ]
            )
        )
    ]
    prompt.freeze(), alice.freeze()
    fresh = Block()
    views = View([prompt, alice, bob, fresh]), View([prompt, alice, fresh, bob])
    for at in range(30, 40, 2):
        rows = (Row(view, feed[at + i : at + i + 1]) for i, view in enumerate(views))
        logits.append(engine.forward(Step(rows)))
    return torch.cat([x.float().cpu() for x in logits])


def engine_of(name: str, device: str, dtype: torch.dtype) -> Engine:
    model = tiny_models()[name]()
    model.to(device=device, dtype=dtype)  # type: ignore[call-arg]
    return Engine(ModelAdapter(model), memory_tokens=2048)


@pytest.mark.parametrize("name", sorted(tiny_models()))
def test_the_same_logits_as_on_the_cpu(name: str) -> None:
    here = conversation(engine_of(name, "cpu", torch.float32))
    there = conversation(engine_of(name, "cuda", torch.float32))
    assert (here - there).abs().max() < 1e-4


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
@pytest.mark.parametrize("name", sorted(tiny_models()))
def test_no_layer_waits_for_the_device(name: str) -> None:
    engine = engine_of(name, "cuda", torch.bfloat16)
    conversation(engine)  # whatever is set up once
    adapter: Any = executor_of(engine).adapter
    usual, forward = torch.cuda.get_sync_debug_mode(), adapter.forward

    def strict(*arguments: object) -> Any:
        try:
            torch.cuda.set_sync_debug_mode("error")
            return forward(*arguments)
        finally:
            torch.cuda.set_sync_debug_mode(usual)

    adapter.forward = strict
    assert conversation(engine).isfinite().all()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_the_bundled_team(dtype: str) -> None:
    folder = manyhands.bundled.path()
    engine = Engine.load(folder, device="cuda", dtype=dtype, memory_tokens=32768)
    prompt = load_prompt(folder / "manyhands.toml")
    lists = [problem_list(random.Random(f"gpu/{i}"), 5, "mixed") for i in range(16)]
    settings = TeamSettings(workers=3, budget=400)
    text = engine.text
    answers = engine.run_all(hogwild(x.question, text, settings, prompt) for x in lists)
    scores = [grade_list(a.answer, x.gold).value for a, x in zip(answers, lists, strict=True)]
    assert sum(scores) / len(scores) > 0.95


def qwen3_8b(folder: Path, *, num_layers: int = 36) -> Engine:
    """Its shape, with dummy weights."""
    config = {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "hidden_size": 4096,
        "intermediate_size": 12288,
        "num_hidden_layers": num_layers,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 151936,
        "max_position_embeddings": 40960,
        "rope_theta": 1000000.0,
        "dtype": "bfloat16",
    }
    (folder / "config.json").write_text(json.dumps(config))
    # Tests share the device: the share of it that is taken by default is not left for each.
    settings: dict[str, Any] = {"memory_tokens": 65536}
    return Engine.load(folder, device="cuda", weights="dummy", **settings)


def test_dummy_weights_of_a_real_size(tmp_path: Path) -> None:
    engine = qwen3_8b(tmp_path)
    assert executor_of(engine).adapter.dtype == torch.bfloat16
    assert engine.pool.num_slots == 65536  # as `qwen3_8b` asks for
    assert conversation(engine).isfinite().all()


@pytest.mark.parametrize("graphs", [False, True], ids=["launch by launch", "recorded"])
def test_overlapping_launches_change_no_bit(
    graphs: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernels are the same and only begin earlier: who reads too early gives other numbers."""
    overlap = pytest.importorskip("manyhands.attention.kernels.overlap")
    adapter = executor_of(qwen3_8b(tmp_path, num_layers=6)).adapter
    seen = []
    for on in (False, True):
        monkeypatch.setattr(overlap, "_can_overlap", lambda device, on=on: on)
        settings = ModelSettings(memory_tokens=32768)
        engine = Engine(LocalExecutor(adapter, settings, graphs=graphs))
        rng = random.Random(5)
        prompt, desks = Block("prompt"), [Block() for _ in range(8)]
        views = [View([prompt, *(d for d in desks if d is not own), own]) for own in desks]
        rows = [[Row(View([prompt]), tuple(rng.choices(range(900), k=3000)))]]
        rows += [[Row(v, (rng.randrange(900),)) for v in views[:n]] for n in (4, 8, 1) * 40]
        rows += [[Row(v, (rng.randrange(900),)) for v in views[:4]] for _ in range(100)]
        seen.append(torch.cat([engine.forward(Step(step)) for step in rows]))
    assert torch.equal(*seen)


# -- recorded passes -------------------------------------------------------------------------------


def forget_loaded_kernels() -> None:
    """As in a fresh process: of each kernel nothing is loaded."""
    from triton.runtime.jit import JITFunction

    gc.unfreeze()  # kernels imported before the first test are not among the objects otherwise
    for each in gc.get_objects():
        if issubclass(type(each), JITFunction):  # `isinstance` asks some of torch's, which warn
            each.device_caches.clear()


@pytest.mark.parametrize("tokens", [1, 4, 12, 16, 48, 64, 96, 128, 256, 768])
def test_a_pass_of_few_layers_loads_every_kernel_of_a_whole_one(
    tokens: int, tmp_path: Path
) -> None:
    """Otherwise a recording meets one that is not loaded, fails, and is made a second time."""
    engine = qwen3_8b(tmp_path, num_layers=6)
    passes = executor_of(engine).passes
    assert isinstance(passes, GraphedPasses)
    kind = Wide.LARGE if tokens > 256 else Wide.SMALL
    capacity = wide_capacity(tokens, passes.backend.tiling, kind)
    graph = Graph(passes.recordings, capacity, engine.facts.page_size)

    def noted() -> int:
        with (
            torch.inference_mode(),
            compiling_at_once(lambda done, whole: None) as kernels,
        ):
            graph._pass(passes.recordings, lambda: None)
        return kernels.num_noted

    forget_loaded_kernels()
    graph.try_out(passes.recordings)
    assert noted() == 0
    forget_loaded_kernels()
    assert noted() > 4  # control: those are seen that are not loaded


def bundled(*, graphs: bool, dtype: str = "float32") -> Engine:
    adapter, tokenizer = load_adapter(manyhands.bundled.path(), device="cuda", dtype=dtype)
    settings = ModelSettings(memory_tokens=65536)
    return Engine(LocalExecutor(adapter, settings, graphs=graphs), tokenizer)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_recorded_passes_choose_the_same_tokens(layout: str) -> None:
    prompt = load_prompt(manyhands.bundled.path() / "manyhands.toml")
    question = problem_list(random.Random("graphs"), 5, "bare").question
    settings = TeamSettings(workers=3, budget=200, layout=layout, snapshots=(40,))
    answers = []
    for graphs in (False, True):
        engine = bundled(graphs=graphs)
        answers.append(engine.run(hogwild(question, engine.text, settings, prompt)))
    assert answers[0] == answers[1]
    passes = executor_of(engine).passes
    assert isinstance(passes, GraphedPasses)
    assert passes.recordings.trouble is None
    assert 0 < passes.recordings.num_graphs < 12


def test_a_team_by_ample_recordings_alone_chooses_the_same_tokens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They serve any plan that others have no room for, so here there are no others."""
    prompt = load_prompt(manyhands.bundled.path() / "manyhands.toml")
    question = problem_list(random.Random("ample"), 5, "bare").question
    settings = TeamSettings(workers=3, budget=120, snapshots=(40,))
    plain, engine = (bundled(graphs=graphs) for graphs in (False, True))
    engine.get_ready()
    passes = executor_of(engine).passes
    assert isinstance(passes, GraphedPasses)
    passes.recordings.ahead = {
        key: graph for key, graph in passes.recordings.ahead.items() if key[1] is Wide.AMPLE
    }
    sizes = {tokens for tokens, _ in passes.recordings.ahead}
    assert min(sizes) == 128
    served, pack = [], Graph._pack
    with monkeypatch.context() as patch:
        patch.setattr(passes.recordings, "make", lambda *_: None)  # none of a plan's own either
        patch.setattr(Graph, "_pack", lambda graph, *of: served.append(graph) or pack(graph, *of))
        answers = [
            each.run(hogwild(question, each.text, settings, prompt)) for each in (plain, engine)
        ]
    assert answers[0] == answers[1]
    assert len(served) > 10
    assert set(served) <= set(passes.recordings.ahead.values())
    assert passes.recordings.trouble is None


def test_recorded_passes_give_the_same_logits_step_by_step() -> None:
    """Plain decoding, other rows in between, a wider row, sixteen workers, over ends of pages."""
    engines = [bundled(graphs=graphs) for graphs in (False, True)]
    rng = random.Random(3)
    teams = []
    for _ in engines:
        prompt, desks = Block("prompt"), [Block() for _ in range(16)]
        views = [View([prompt, *(d for d in desks if d is not own), own]) for own in desks]
        teams.append((prompt, views))
    script: list[tuple[list[int], int]] = [([], 300)]
    for _ in range(5):
        script += [(list(range(16)), 1)] * 40 + [(rng.sample(range(16), 5), 1)] * 6
        script += [(list(range(16)), 3)]
    for who, size in script:
        feeds = [tuple(rng.choices(range(900), k=size)) for _ in who or [0]]
        logits = []
        for engine, (prompt, views) in zip(engines, teams, strict=True):
            chosen = [views[i] for i in who] if who else [View([prompt])]
            rows = [Row(view, feed) for view, feed in zip(chosen, feeds, strict=True)]
            logits.append(engine.forward(Step(rows)))
        assert (logits[0] - logits[1]).abs().max() < 1e-4
    passes = executor_of(engines[1]).passes
    assert isinstance(passes, GraphedPasses)
    assert passes.recordings.num_graphs > 1


def of_latents(folder: Path, *, backend: str, graphs: bool = False) -> LocalExecutor:
    """Two layers that attend as DeepSeek-V2-Lite's do, and dense networks behind them: no expert is chosen otherwise."""
    config = {
        "architectures": ["DeepseekV2ForCausalLM"],
        "model_type": "deepseek_v2",
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_hidden_layers": 2,
        "first_k_dense_replace": 2,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "kv_lora_rank": 512,
        "q_lora_rank": None,
        "qk_rope_head_dim": 64,
        "qk_nope_head_dim": 32,
        "v_head_dim": 32,
        "vocab_size": 1024,
        "max_position_embeddings": 8192,
        "dtype": "bfloat16",
    }
    (folder / "config.json").write_text(json.dumps(config))
    adapter, _ = load_adapter(folder, device="cuda", weights="dummy")
    settings = ModelSettings(backend=backend, memory_tokens=32768)
    return LocalExecutor(adapter, settings, graphs=graphs)


def test_latents_by_specialised_tiles_launch_by_launch_and_recorded(tmp_path: Path) -> None:
    """A prompt, sixteen workers, some of them, wider rows, over ends of pages, beside plain torch; recordings made ahead serve."""
    executors = [
        of_latents(tmp_path, backend="torch"),
        of_latents(tmp_path, backend="triton"),
        of_latents(tmp_path, backend="triton", graphs=True),
    ]
    engines = [Engine(each) for each in executors]
    engines[2].get_ready()
    backend = executors[1].backend
    assert isinstance(backend, TritonBackend)
    assert backend.tiling.latent_rows == 64
    rng = random.Random(4)
    teams = []
    for _ in engines:
        prompt, desks = Block("prompt"), [Block() for _ in range(16)]
        views = [View([prompt, *(d for d in desks if d is not own), own]) for own in desks]
        teams.append((prompt, views))
    script: list[tuple[list[int], int]] = [([], 3000)]
    for count in (16, 4, 1):
        script += [(list(range(count)), 1)] * 40 + [(rng.sample(range(16), 5), 1)] * 3
        script += [(list(range(count)), 3)]
    for who, size in script:
        feeds = [tuple(rng.choices(range(900), k=size)) for _ in who or [0]]
        logits = []
        for engine, (prompt, views) in zip(engines, teams, strict=True):
            chosen = [views[i] for i in who] if who else [View([prompt])]
            rows = [Row(view, feed) for view, feed in zip(chosen, feeds, strict=True)]
            logits.append(engine.forward(Step(rows)).float())
        right, plain, recorded = logits
        assert (plain - right).norm() < 0.02 * right.norm()  # bfloat16, two layers
        assert (recorded - right).norm() < 0.02 * right.norm()
    passes = executors[2].passes
    assert isinstance(passes, GraphedPasses)
    assert passes.recordings.trouble is None
    assert passes.counts.replayed + passes.counts.followed > 100
    assert passes.counts.eager < 3  # the prompt


def of_states(folder: Path, *, backend: str, graphs: bool = False) -> LocalExecutor:
    """Four layers as Qwen3.5's: every other one keeps a state, of heads as large as there."""
    config = {
        "architectures": ["Qwen3_5ForCausalLM"],
        "model_type": "qwen3_5_text",
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_hidden_layers": 4,
        "layer_types": ["linear_attention", "full_attention"] * 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_conv_kernel_dim": 4,
        "vocab_size": 1024,
        "max_position_embeddings": 8192,
        "dtype": "float32",
    }
    (folder / "config.json").write_text(json.dumps(config))
    adapter, _ = load_adapter(folder, device="cuda", dtype="float32", weights="dummy")
    settings = ModelSettings(backend=backend, memory_tokens=32768, states=64)
    return LocalExecutor(adapter, settings, graphs=graphs)


def test_states_in_slots_launch_by_launch_and_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A prompt, its forks, all of them and some, wider rows, over ends of pages, beside Hugging Face's own forward of these layers."""
    executors = [
        of_states(tmp_path, backend="torch"),
        of_states(tmp_path, backend="triton"),
        of_states(tmp_path, backend="triton", graphs=True),
    ]
    engines = [Engine(each) for each in executors]
    engines[2].get_ready()
    serves = DeltaLayer.serves
    by_kernels: list[bool] = []
    monkeypatch.setattr(DeltaLayer, "serves", lambda step, x: by_kernels[-1] and serves(step, x))
    rng = random.Random(4)
    forks = []
    for _ in engines:
        prompt, own = Block("prompt"), [Block() for _ in range(16)]
        forks.append((prompt, [View([prompt, each]) for each in own]))
    script: list[tuple[list[int], int]] = [([], 700)]
    for count in (16, 4, 1):
        script += [(list(range(count)), 1)] * 40 + [(rng.sample(range(16), 5), 1)] * 3
        script += [(list(range(count)), 3)]
    worst = 0.0
    for who, size in script:
        feeds = [tuple(rng.choices(range(900), k=size)) for _ in who or [0]]
        logits = []
        for engine, (prompt, views) in zip(engines, forks, strict=True):
            by_kernels.append(engine is not engines[0])
            chosen = [views[i] for i in who] if who else [View([prompt])]
            rows = [Row(view, feed) for view, feed in zip(chosen, feeds, strict=True)]
            logits.append(engine.forward(Step(rows)))
        right = logits[0]
        worst = max(
            worst, *(float((each - right).abs().max() / right.abs().max()) for each in logits[1:])
        )
    assert worst < 1e-4
    passes = executors[2].passes
    assert isinstance(passes, GraphedPasses)
    assert passes.recordings.trouble is None
    assert passes.counts.replayed + passes.counts.followed > 100
    assert passes.counts.eager == 4  # the prompt, and three times wider rows


def test_a_network_that_cannot_be_recorded_still_runs() -> None:
    engine = bundled(graphs=True)
    adapter: Any = executor_of(engine).adapter
    forward = adapter.forward

    def waiting(*arguments: object) -> Any:
        logits = forward(*arguments)
        torch.cuda.synchronize()  # which a recording does not allow
        return logits

    adapter.forward = waiting
    prompt = load_prompt(manyhands.bundled.path() / "manyhands.toml")
    question = problem_list(random.Random("graphs"), 2, "bare").question
    answer = engine.run(hogwild(question, engine.text, TeamSettings(budget=150), prompt))
    assert answer.answer is not None
    assert isinstance(executor_of(engine).passes, GraphedPasses)
    assert "not recorded" in (executor_of(engine).passes.about or "")


@pytest.mark.parametrize("always_runs", [False, True])
def test_work_is_run_before_it_is_recorded_where_something_is_met_for_the_first_time(
    always_runs: bool,
) -> None:
    """The first one, one that waits for the device when it is met, and all behind that. Others are repeated once behind their recording."""
    recorder = CudaRecorder(torch.device("cuda"), always_runs=always_runs)
    x = torch.zeros(3, device="cuda")
    calls: list[int] = []

    def work(cut: Callable[[], None], first: int) -> tuple[torch.Tensor, torch.Tensor]:
        calls.append(first)
        x.add_(1)
        if calls.count(first) <= first:
            x.sum().item()
        cut()
        x.mul_(2)
        return x + first, x - first

    runs, found = [], []
    for first in (1, 0, 1, 0, 2):
        calls.clear()
        x.zero_()
        if first == 2:  # a wait in each of two
            with pytest.raises(RuntimeError):
                recorder.record(partial(work, first=2 + 2))
            continue
        recording = recorder.record(partial(work, first=first))
        runs.append((len(calls), x.tolist()[0]))
        x.fill_(3)
        for repeat in recording.parts:
            repeat()
        found.append((recording.lent.tolist(), recording.kept.tolist()))
    assert runs == [(2, 2), (2 if always_runs else 1, 2), (3 - always_runs, 2), (2, 2)]
    assert found == [([8.0 + first] * 3, [8.0 - first] * 3) for first in (1, 0, 1, 0)]


def test_what_recordings_lend_takes_one_place_and_keeps_it() -> None:
    """Twenty recordings lend 16 MiB each, and what they keep beside it is as it was; the last graph that is left keeps the pool."""
    device = torch.device("cuda")
    recorder = CudaRecorder(device)
    x = torch.ones(1 << 23, dtype=torch.bfloat16, device=device)

    def work(cut: Callable[[], None], number: int) -> tuple[torch.Tensor, torch.Tensor]:
        large = (x * number).view(2, -1)
        cut()
        return large, x[:4] + number

    recordings = [recorder.record(partial(work, number=0))]
    torch.cuda.synchronize()
    before = torch.cuda.memory_reserved()
    recordings += [recorder.record(partial(work, number=number)) for number in range(1, 20)]
    torch.cuda.synchronize()
    assert torch.cuda.memory_reserved() - before < 3 * x.nbytes
    for number, recording in enumerate(recordings):
        for repeat in recording.parts:
            repeat()
        assert recording.lent.dtype == torch.bfloat16
        assert recording.lent.shape == (2, 1 << 22)
        assert (recording.lent == number).all()
    assert [each.kept.tolist() for each in recordings] == [[1.0 + n] * 4 for n in range(20)]
    lent = recordings[-1].lent
    del recordings, recording, repeat, recorder
    gc.collect()
    torch.cuda.empty_cache()
    # Nothing of the pool is handed out again.
    others = torch.zeros(20, *x.shape, dtype=x.dtype, device=device)
    assert (lent == 19).all()
    assert not others.any()


def weighed(engine: Engine, how: Choice) -> list[tuple[int, ...]]:
    """Two rows that choose so, over the ends of pages; each token twice, with what was told of it."""
    settings = SharedSettings(samples=2, max_tokens=90, choice=how, seed=5)
    prompt = engine.text.encode("1. 84 + 29 - 38")
    answer = engine.run(shared_prefix([prompt], engine.text, settings))
    assert isinstance(answer, Completions)
    for each in answer.completions:
        for (token, told), chosen in zip(each.logprobs or (), each.tokens, strict=False):
            assert token == chosen
            assert told is None or told.logprob <= 0
    return [each.tokens for each in answer.completions]


@pytest.mark.parametrize(
    "how",
    [
        Choice(repetition_penalty=1.3, frequency_penalty=0.5, presence_penalty=0.3, min_tokens=60),
        Choice(
            temperature=0.9,
            top_p=0.95,
            repetition_penalty=1.1,
            logit_bias={70: 3.0, 71: -9.0},
            min_tokens=60,
        ),
        Choice(logprobs=5, min_tokens=60),
        Choice(temperature=1.2, top_k=40, logprobs=2, frequency_penalty=0.7, min_tokens=60),
    ],
    ids=["penalties", "sampled", "logprobs", "all"],
)
def test_recorded_passes_weigh_and_tell_as_plain_ones_do(how: Choice) -> None:
    """On the device, with lookahead, against launch by launch; and against the processor."""
    engines = [bundled(graphs=False), bundled(graphs=True)]
    there = [weighed(engine, how) for engine in engines]
    assert there[0] == there[1]
    assert engines[1].executor.counts.lookaheads > 8
    here = Engine.load(manyhands.bundled.path(), device="cpu", dtype="float32", memory_tokens=4096)
    if not how.temperature:  # a draw may fall between two numbers that differ in the last bit
        assert weighed(here, how) == there[0]


def test_draws_from_logits_of_16_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernels, compiled before the first pass, give what their twin gives of the same numbers in 32 bits."""
    how = Choice(temperature=0.9, top_k=200, top_p=0.95, logprobs=2, min_tokens=60)
    engine = bundled(graphs=True, dtype="bfloat16")
    engine.get_ready()
    before = engine.executor.counts
    found = weighed(engine, how)
    since = engine.executor.counts - before
    assert since.lookaheads > 8
    assert since.compiled == 0

    def in_32_bits(logits: torch.Tensor, *more: Any) -> sampling.Chosen:
        return sampling.choose(logits.float(), *more)

    monkeypatch.setattr(local_executor, "choose", in_32_bits)
    other = bundled(graphs=True, dtype="bfloat16")
    other.get_ready()
    assert weighed(other, how) == found


def test_masks_of_bits_on_the_device() -> None:
    """A grammar's masks allow here what they allow on the processor."""
    pytest.importorskip("llguidance")
    allowed = [3, 40, 77, 300]
    bits = bytearray(-(-1024 // 8))
    for token in allowed:
        bits[token // 8] |= 1 << token % 8
    engine = bundled(graphs=True)
    choice = Choice(mask=bytes(bits[: -(-engine.facts.vocab_size // 32) * 4]))
    view, feed, seen = View([Block()]), (5, 6, 7), []

    def strategy() -> Strategy:
        nonlocal feed
        for _ in range(40):
            tokens = yield Step([Row(view, feed, choice)])
            assert tokens is not None
            feed = tokens
            seen.extend(tokens)
        return Answer(text="")

    engine.run(strategy())
    assert set(seen) <= set(allowed)
