"""Python processes that begin with torch and transformers imported, which a new one needs seconds for: copies of one that waits."""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from multiprocessing import forkserver, get_context, set_start_method
from typing import Any

import pytest


@cache
def context() -> Any:
    """For `multiprocessing`: of processes that are copies; the one that is copied waits for as long as the tests last."""
    context = get_context("forkserver")
    context.set_forkserver_preload(["tests.warm_imports"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_OFFLINE", "1")  # is read once, by an import
        forkserver.ensure_running()
    return context


def _run(words: Sequence[str], cwd: str, environment: Mapping[str, str], leads: bool) -> None:
    """In the copy: what `python -m WORDS` does."""
    set_start_method(None, force=True)  # of its own processes, the usual one again
    if leads:
        os.setsid()
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment)
    sys.path[:0] = [cwd, *environment.get("PYTHONPATH", "").split(os.pathsep)]
    sys.argv[:] = words
    runpy.run_module(words[0], run_name="__main__", alter_sys=True)


class Warm:
    """As much of `subprocess.Popen` as a test needs of it, for `python -m MODULE`; not for one with processes of its own."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        cwd: str | os.PathLike[str],
        env: Mapping[str, str],
        start_new_session: bool = False,
    ) -> None:
        python, option, *words = command
        assert (python, option) == (sys.executable, "-m"), command
        given = (words, os.path.abspath(cwd), dict(env), start_new_session)
        self._process = context().Process(target=_run, args=given)
        self._process.start()
        self.pid: int = self._process.pid

    @property
    def returncode(self) -> int | None:
        found: int | None = self._process.exitcode
        return found

    def poll(self) -> int | None:
        return self.returncode

    def wait(self) -> int | None:
        self._process.join()
        return self.returncode
