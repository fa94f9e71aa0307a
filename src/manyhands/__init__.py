"""manyhands: one language model, many hands."""
