"""Without a GPU the kernels run under Triton's interpreter, which must be asked for before the import."""

import gc
import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from tests.covers import SPARED, left_out, note
from tests.orders import shuffled

# A script that begins the tests in the background has them ignore Ctrl-C, and all that they start inherits that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# `nohup` does the same with the end of the terminal.
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


# A busy machine stands still now and then, which is no fault of an example.
if find_spec("hypothesis") is not None:
    from hypothesis import HealthCheck, settings

    settings.register_profile(
        "however busy", deadline=None, suppress_health_check=[HealthCheck.too_slow]
    )
    settings.load_profile("however busy")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--every-launch",
        action="store_true",
        help="compile all launches of kernels, not a cover of them (tests/test_compiled.py)",
    )
    parser.addoption(
        "--every-case",
        action="store_true",
        help="run all cases of tests that run some of them: a cover, fewer examples (tests/covers.py), several interrupts in one run (tests/strikes.py)",
    )
    parser.addoption(
        "--shuffled",
        type=int,
        metavar="SEED",
        help="run the tests of each file in a random order, which is the same for the same number (tests/orders.py)",
    )


def pytest_configure(config: pytest.Config) -> None:
    note(config)
    config.addinivalue_line("markers", "pairs: cases that have every pair of values are enough")
    config.addinivalue_line("markers", "values: cases that have every value are enough")
    config.addinivalue_line("markers", "spared: other tests or cases stand for it")


def pytest_sessionstart(session: pytest.Session) -> None:
    """Say the seed: a quiet run has no header. Processes of xdist have nothing to say it with."""
    seed = session.config.getoption("--shuffled")
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if seed is not None and reporter is not None:
        reporter.write_line(f"tests of each file in a random order: --shuffled {seed}")


def pytest_collection(session: pytest.Session) -> None:
    """Of several processes each begins with files of its own, so that in a fresh clone none compiles what another does."""
    mine = getattr(session.config, "workerinput", None)
    if mine is None or session.config.args != session.config.getini("testpaths"):
        return
    folder, number = Path(__file__).parent, int(mine["workerid"].removeprefix("gw"))
    files = sorted(folder.rglob("test_*.py"))[number :: mine["workercount"]]
    for file in files:
        with suppress(Exception, pytest.skip.Exception):  # told when the file is collected
            import_module(".".join(file.relative_to(folder.parent).with_suffix("").parts))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    are_all_run = config.getoption("--every-case") or torch.cuda.is_available()
    config.stash[SPARED] = spared = [] if are_all_run else left_out(items)
    config.hook.pytest_deselected(items=spared)
    known = set(spared)
    items[:] = [item for item in items if item not in known]
    if (seed := config.getoption("--shuffled")) is not None:
        items[:] = shuffled(items, seed, lambda item: item.path)


@pytest.fixture(autouse=True, scope="session")
def _the_hub_is_there() -> Iterator[None]:
    """No test asks whether the hub can be reached; tests/test_hub.py has a hub that cannot."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("manyhands.hub._why_unreachable", lambda: None)
        yield


@pytest.fixture(autouse=True, scope="session")
def _the_power_stays_on() -> Iterator[None]:
    """No test cuts the power, so the tests' own process does not wait for the disk; commands that tests start do."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.fsync", os.fstat)  # a number that is no open file is an error still
        yield


# Modules make little garbage, and while they are imported all of them would be looked at again and again.
gc.disable()
_files: list[object] = []  # the one whose tests are run


def pytest_collection_finish() -> None:
    gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Objects that stand when a file begins stay: a collection of garbage, which tests ask for, looks at others alone."""
    if _files != [item.path]:
        _files[:] = [item.path]
        gc.collect()
        gc.freeze()


def pytest_sessionfinish() -> None:
    """At the end of the process all is looked at, as usual."""
    gc.unfreeze()


if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
    if find_spec("triton") is not None:  # it comes for Linux only
        from tests.interpreter import quick_interpreter

        quick_interpreter()
