"""A borrowed network: Hugging Face modelling code, asked to attend through a function of ours.

`loading` finds a checkpoint and judges whether it can work here, `adapter` runs it, `ropes` reads how
it rotates, `families` lists what is known, `self_test` examines what is not, `dummy` fills a real
architecture with random weights. The keys and values of all blocks live in `memory`.
"""
