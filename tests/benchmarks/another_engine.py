"""Hugging Face's own code in the form in which vLLM is called, as the text of a package; and what else vLLM would have there."""

# A package in the place of vLLM: it writes the tokens that the network of its folder finds likeliest.
ANOTHER_ENGINE = """
import os
import queue
from types import SimpleNamespace as Facts

import torch
from transformers import AutoConfig, AutoModelForCausalLM, Mxfp4Config
from vllm.sampling_params import RequestOutputKind

__version__ = "another"


def SamplingParams(**wanted):
    return Facts(**wanted)


class Core:
    def __init__(self, make):
        self.outputs_queue, self.make, self.is_paused = queue.Queue(), make, False

    def call_utility(self, name, *arguments):
        self.is_paused = name == "pause_scheduler"

    def get_output(self):
        assert not self.is_paused
        return self.make()


class Runner:
    cascade_attn_enabled = False

    def execute_model(self):
        pass

    def __init__(self, model):
        self.model, self.cudagraph_dispatcher = model, Facts(keys_initialized=True)
        for block in model.modules():
            if hasattr(block, "gate") and hasattr(block, "experts"):
                self.enter(block)
            elif hasattr(block, "router") and hasattr(block, "experts"):
                self.enter_packed(block.router, block.experts)

    def get_model(self):
        return self.model

    def enter(self, block):
        told, weights = [None], block.experts
        last = lambda chosen: chosen.unflatten(0, (self.rows, -1))[:, -1]  # there is no cache
        note = lambda module, given, out: told[0] and told[0](last(out[2]))
        block.gate.register_forward_hook(note)
        block.router = Facts(set_capture_fn=lambda function: told.__setitem__(0, function))
        block.w13_weight, block.w2_weight = weights.gate_up_proj, weights.down_proj
        block.quant_method = Facts(unquantized_backend=Facts(value="another's"))

    def enter_packed(self, router, experts):
        store = lambda: Facts(storage=Facts(data=torch.zeros(8, dtype=torch.uint8)))
        experts.w13_weight, experts.w2_weight = store(), store()
        experts.quant_method, experts.top_k = Monolithic(store), router.top_k
        experts.router = Facts(set_capture_fn=None)  # not called where kernels choose
        last = lambda logits: logits.unflatten(0, (self.rows, -1))[:, -1]

        def apply(module, given, out):
            experts.quant_method.apply_monolithic(layer=experts, x=given[0], router_logits=last(out[0]))

        router.register_forward_hook(apply)

    def _compute_cascade_attn_prefix_lens(self, *arguments):
        return [16]


class Monolithic:
    is_monolithic, mxfp4_backend = True, Facts(value="another's")

    def __init__(self, store):
        self.w13_precision_config = Facts(weight_scale=store())
        self.w2_precision_config = Facts(weight_scale=store())

    def apply_monolithic(self, layer, x, router_logits):
        pass


class Engine:
    def __init__(self, folder, weights, ranks):
        torch.manual_seed(0)
        config = AutoConfig.from_pretrained(folder)
        unpacked = {}
        if hasattr(config, "quantization_config"):
            del config.quantization_config
            unpacked = {"quantization_config": Mxfp4Config(dequantize=True)}
        load = {"dummy": AutoModelForCausalLM.from_config, "auto": AutoModelForCausalLM.from_pretrained}[weights]
        unpacked = unpacked if weights == "auto" else {}
        self.model = load(config if weights == "dummy" else folder, dtype=torch.float32, **unpacked)
        self.model.eval().to(torch.float32)
        if os.environ.get("WRONG") == "experts" and weights == "auto":
            for name, weight in self.model.named_parameters():
                if ".0.mlp.experts." in name:
                    weight.data = weight.data.flip(0)
        self.runners = [Runner(self.model) for _ in range(ranks)]
        self.read = []  # prompts
        self.engine_core, self.rows, self.runner = Core(self.make), {}, self.runners[0]
        self.vllm_config = Facts(
            cache_config=Facts(num_gpu_blocks=100, block_size=16),
            compilation_config=Facts(cudagraph_mode="FULL", mode=3),
            scheduler_config=Facts(async_scheduling=True, max_num_batched_tokens=4096),
        )

    def collective_rpc(self, function, args=()):
        workers = [Facts(model_runner=runner, rank=rank) for rank, runner in enumerate(self.runners)]
        return [function(worker, *args) for worker in workers]

    def add_request(self, name, prompt, wanted):
        tokens = prompt["prompt_token_ids"]
        if os.environ.get("WRONG") == "prompt":
            tokens = tokens[1:]
        found = len(tokens) - 1 if tokens in self.read else 0
        self.read.append(list(tokens))
        self.rows[name] = Facts(tokens=list(tokens), wanted=wanted, wrote=[], logprobs=[], found=found)

    def abort_request(self, names):
        for name in names:
            self.rows.pop(name, None)

    def has_unfinished_requests(self):
        return bool(self.rows)

    @torch.inference_mode()
    def make(self):
        assert len({runner.cascade_attn_enabled for runner in self.runners}) == 1
        for runner in self.runners:
            if runner.cascade_attn_enabled:
                runner._compute_cascade_attn_prefix_lens()
            runner.execute_model()
        alike = {}  # rows of one length are one batch
        for row in self.rows.values():
            alike.setdefault(len(row.tokens), []).append(row)
        for rows in alike.values():
            self.runner.rows = len(rows)
            logits = self.model(torch.tensor([row.tokens for row in rows])).logits[:, -1]
            for row, scores in zip(rows, logits.log_softmax(-1)):
                token = int(scores.argmax())
                row.tokens.append(token)
                row.wrote.append(token)
                row.logprobs.append({token: Facts(logprob=float(scores[token]))})
        return Facts(outputs=list(self.rows))

    def step(self):
        self.engine_core.get_output()
        told = []
        for name, row in list(self.rows.items()):
            has_ended = len(row.wrote) == row.wanted.max_tokens
            is_delta = row.wanted.output_kind == RequestOutputKind.DELTA
            if has_ended:
                del self.rows[name]
            if has_ended or is_delta:
                tokens = row.wrote[-1:] if is_delta else row.wrote
                facts = Facts(token_ids=tokens, logprobs=row.logprobs)
                told.append(Facts(request_id=name, outputs=[facts], num_cached_tokens=row.found))
        return told


class LLM:
    def __init__(self, folder, load_format, tensor_parallel_size, distributed_executor_backend, **choices):
        assert (tensor_parallel_size > 1) == (distributed_executor_backend == "mp")
        assert os.environ["NCCL_NVLS_ENABLE"] == "0" and os.environ["VLLM_ALLREDUCE_USE_SYMM_MEM"] == "0"
        assert os.environ["TORCH_SYMM_MEM_DISABLE_MULTICAST"] == "1"
        self.llm_engine = Engine(folder, load_format, tensor_parallel_size)
"""


KINDS = """
class RequestOutputKind:
    DELTA, FINAL_ONLY = 1, 2
"""

SUMS = """
from types import SimpleNamespace as Facts


def get_tp_group():
    ways = Facts(ca_comm=Facts(disabled=False), symm_mem_comm=None, pynccl_comm=Facts(disabled=False))
    return Facts(device_communicator=ways)
"""

TUNED = """
def get_config_file_name(num_experts, inner, dtype):
    return f"E={num_experts},N={inner}.json"


def get_moe_configs(num_experts, inner, dtype):
    return {1: {}} if num_experts == 8 else None
"""
