"""Learning from runs: traces, their attention rebuilt in one parallel forward, and training on it."""
