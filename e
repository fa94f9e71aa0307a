error: the model '...' is no folder and no name on the hub: part of it has 300 bytes, at most 255 are possible
hint: give an existing folder, or a name on the Hugging Face hub like Qwen/Qwen3-0.6B
