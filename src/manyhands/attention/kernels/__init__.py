"""The kernels of the `triton` backend; `attention/triton_backend.py` and `attention/layer_reading.py` launch them.

`append` writes keys and values; `attend` attends, for rows that share nothing `lone` does, and on Hopper,
where very many share very much, `specialised` and `specialised_eight_bits`, and for few rows over keys in eight bits
`small_eight_bits`; `merge` merges.
What they have in common: `pairs`, which rotates heads, and `overlap`, which brings launches in early.
"""
