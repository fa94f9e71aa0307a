"""A borrowed network: Hugging Face modelling code, asked to attend through a function of ours.

    settings.py      the choices of a model; devices.py: where it lives, in which precision
    loading.py       a name into a network that is ready; checkpoint.py: its files; configuration.py: its config.json, judged
    families.py      the networks that are known to work; unlisted.py: those that transformers knows as parts of composites alone
    hybrids.py       which models keep states, by their configuration alone, and what these do not bear
    self_test.py     the examination of any other; dummy.py: random weights in a real architecture; seeded.py: where they come from
    adapter.py       Hugging Face's code with our attention; ropes.py: how it rotates; latent.py: latent attention in two forms
    memory.py        keys and values of all blocks; recurrent.py: states of linear layers; waves.py: the rows of
                     a pass through these; delta.py: such a layer by kernels
    shelf.py         keys and values of prompts on disk; sheet_files.py: their files; host_buffers.py and landings.py: their way to a GPU
    fusion.py        fewer launches: layers.py and products.py are the stand-ins, kernels/ what they launch
    skinny.py        products of few tokens
    experts.py       stacks of experts; routing.py: how a router chooses
    host_linear.py   weights laid out for a CPU; host_memory.py: how much of its memory is free
    lora.py          low-rank adapters; growth.py: new layers among old ones
    generation.py    how a model wants its tokens chosen
    few_layers.py    a pass of a few layers, which launches every kernel
    fingerprint.py   digits that stand for the weights; whereabouts.py: whether these are still where they were
    saving.py        networks that cannot be saved; quiet.py: Hugging Face without its own words on the terminal
    quantised/       linear layers in fewer bits, and checkpoints that are published so
    gguf/            a model in one file
    parallel/        a part of a network for each rank

No strategy and no word of a prompt is known here.
"""
