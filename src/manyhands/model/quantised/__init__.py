"""Linear layers of eight and four bits: made from a loaded network, or read from a checkpoint.

linear.py              what such layers share, and the one of eight bits (`Float8Linear`)
w4a16.py               the one of four bits (`Int4Linear`); its kernel is `model/kernels/w4a16.py`
quantise.py            replaces the linear layers of a loaded network
packing.py             how published checkpoints pack four bits, and to our layout
block_scales.py        how they scale eight bits, and to our layout
packed_checkpoint.py   loads a checkpoint of either kind
"""
