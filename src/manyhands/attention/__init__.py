"""The op: `attend` reads the ordered blocks of all rows at once.

    attend.py            its contract, which every backend keeps
    reference.py         the slow, obvious way: the judge of the others
    torch_backend.py     plain torch, on any device; merge.py: partial softmaxes, put together
    triton_backend.py    our kernels (kernels/), on NVIDIA GPUs; layer_reading.py: which of them read for a layer in a pass
    fitting.py           which layers these fit on a device; launches.py: how each is compiled and launched
    operands.py          what they are told of a store and of a call
    entries.py           the pairs of a token and a read; work.py: these as tiles and splits, the work list of the kernels
    prepared.py          a work list on its device, in one buffer that a CUDA graph can go by
    store.py             keys and values of one layer; eight_bits.py and latents.py: other ways to store them
    rotary.py            rotations by an offset
    strips.py            attention with gradients, for a training on a GPU
    compile_at_once.py   kernels compiled by processes ahead of their launches; compile_count.py: how many were compiled

Integers say which row reads which keys (`cache/plan.py`); no strategy is known here.
"""
