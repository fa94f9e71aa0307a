"""Without a GPU the kernels run under Triton's interpreter, which must be asked for before the import."""

import gc
import os
import signal
from importlib.util import find_spec

import torch

# A script that begins the tests in the background has them ignore Ctrl-C, and all that they start inherits that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# `nohup` does the same with the end of the terminal.
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_collection_finish() -> None:
    """Modules stay: a collection of garbage, which tests ask for, need not look at them again."""
    gc.collect()
    gc.freeze()


def pytest_sessionfinish() -> None:
    """At the end of the process they are looked at, as usual."""
    gc.unfreeze()


if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
    if find_spec("triton") is not None:  # it comes for Linux only
        from tests.interpreter import quick_interpreter

        quick_interpreter()
