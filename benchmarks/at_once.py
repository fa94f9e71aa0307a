"""A plugin of pytest: what failed or was skipped is printed at once, not behind the last test.

    pytest -p benchmarks.at_once tests/engine/ranks/test_on_gpus.py

Where a run may be cut off, a report at its end may never come.
"""

from __future__ import annotations

import pytest


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Print it."""
    if not report.passed:
        print(f"\n{report.nodeid} ({report.when}): {report.longreprtext[-6000:]}", flush=True)
    elif report.when == "call":
        print(f"\n{report.nodeid}: {report.duration:.1f} s", flush=True)
