"""The kernels of the `triton` backend; `attention/triton_backend.py` launches them.

`append` writes keys and values, `attend` and, for rows that share nothing, `lone` attend, `merge` merges.
What they have in common: `pairs`, which turns heads, and `overlap`, which brings launches in early.
"""
