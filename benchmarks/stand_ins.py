"""Packages that are not there, and of which only names are wanted: any name of one is an empty class.

    stand_in(("fastapi", "xgrammar"))
    from fastapi.responses import JSONResponse      # an empty class

vLLM imports servers, grammars and tokenizers when it is imported, also where a benchmark calls none of them. This file
travels with it (`benchmarks/outsiders.py`) as its `sitecustomize.py`, and imports only the standard library for that.
What is called all the same fails, for an empty class has no methods.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


class Nothing:
    """An empty class in the place of one of a package that is not there."""

    @classmethod
    def __get_pydantic_core_schema__(cls, _source: Any, _handler: Any) -> Any:
        """Where a checked class has a field of this kind, anything is right."""
        from pydantic_core import core_schema

        return core_schema.any_schema()


class StandIn(ModuleType):
    """A package, and every module of it."""

    __path__: list[str] = []  # noqa: RUF012  # how a package is known

    def __getattr__(self, name: str) -> type[Nothing]:
        """A class of that name, the same one each time."""
        if name.startswith("__"):
            raise AttributeError(name)
        made = type(name, (Nothing,), {"__module__": self.__name__})
        setattr(self, name, made)
        return made


class _Finder(MetaPathFinder, Loader):
    """Finds the packages by name, behind all others: one that is there is imported as it is."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = frozenset(names)

    def find_spec(
        self, fullname: str, _path: Sequence[str] | None, _target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Of a package that stands in, or of a module of one."""
        is_ours = fullname.partition(".")[0] in self.names
        return ModuleSpec(fullname, self, is_package=True) if is_ours else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Empty, and with every name."""
        return StandIn(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """There is nothing to run."""


def stand_in(names: Sequence[str]) -> None:
    """From now on these packages can be imported, unless they are there."""
    sys.meta_path.append(_Finder(names))
