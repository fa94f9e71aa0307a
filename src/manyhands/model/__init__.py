"""A borrowed network: Hugging Face modelling code, asked to attend through a function of ours.

`loading` finds a checkpoint and judges whether it can work here, `adapter` runs it, `ropes` reads how
it rotates, `families` lists what is known, `self_test` examines what is not, `dummy` fills a real
architecture with random weights. The keys and values of all blocks live in `memory`.

Two things make it faster. `fusion` replaces parts of a loaded network by stand-ins that launch less
(`layers`, `products`, `kernels`). The room `quantised` replaces linear layers by ones that take fewer
bytes, and reads checkpoints that are published so.
"""
