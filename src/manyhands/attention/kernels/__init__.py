"""The kernels of the `triton` backend; `attention/triton_backend.py` and `attention/layer_reading.py` launch them.

`append` writes keys and values; `queries` makes queries stand for keys in eight bits, where no `append` has done it; `attend` attends,
for rows that share nothing `lone` does, and on Hopper, where very many share very much, `specialised` and `specialised_eight_bits`, for few
rows over keys in eight bits `small_eight_bits`, and for latents `specialised_latents`; `merge` merges; `move` moves blocks between passes.
What they have in common: `pairs`, which rotates heads, and `overlap`, which brings launches in early.
"""
