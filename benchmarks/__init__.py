"""Everything that is measured: how fast the engine is, and how good the bundled model is.

Run from the root of the repository. `python -m benchmarks.everything` measures speed on one GPU; each
part runs alone too (`decode`, `attention`, `prefix`), and with `--tiny` on any machine in seconds. Results
are JSON files under `benchmarks/results/`; `python -m benchmarks.tables` writes the pages from them.
"""
