"""An OpenRegistry: rows of this package by their names, and behind them what installed distributions offer.

    METHODS = OpenRegistry(rows, Offers("method", "manyhands.methods", taken, look))
    METHODS["hogwild"]        a row: no distribution is looked at
    METHODS["relay"]          of a distribution: imported now, and looked at
    "relay" in METHODS        names are known without an import, and so is `list(METHODS)`

A distribution offers something by an entry point of the group, under its name, for instance in its pyproject.toml:

    [project.entry-points."manyhands.methods"]
    relay = "my_relay:RELAY"

What cannot be used is a fault: an InvalidRequest that names distribution, entry point and cause. It is raised where that one
thing is asked for, and told once where things are listed (`OpenRegistry.working`). All others go on to work, and a row keeps
its name whatever is installed. Source: https://packaging.python.org/specifications/entry-points.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from manyhands.errors import InvalidRequest

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

LOG = logging.getLogger("manyhands.installed")
OWN_DISTRIBUTION = "manyhands-llm"
# A name that can be asked for. It has no hyphen, behind which an alias of a model says how many workers.
NAME = "[a-z][a-z0-9_]*"

Kind = TypeVar("Kind")
Tell = Callable[[InvalidRequest], None]


def log_fault(fault: InvalidRequest) -> None:
    """Tell of a fault in the log, where a program in Python hears of it."""
    LOG.warning("%s (hint: %s)", fault, fault.hint)


class Offers(Generic[Kind]):
    """The offers of installed distributions for one registry, each imported once, when it is first asked for.

    `noun` is what is offered, for errors, and `group` the group of entry points. `taken` are names that no distribution can
    have. `look` takes the name of an entry point and what it stands for, and returns that if it can be used; whatever it
    raises is the cause of a fault.
    """

    def __init__(
        self, noun: str, group: str, taken: Collection[str], look: Callable[[str, object], Kind]
    ) -> None:
        self.noun, self._group, self._taken, self._look = noun, group, frozenset(taken), look
        self._loaded: dict[str, Kind] = {}
        self._faults: dict[str, InvalidRequest] = {}
        self._told: set[str] = set()

    @cached_property
    def _entries(self) -> Mapping[str, list[EntryPoint]]:
        """All entry points of the group by their names. Only names are read, of what is installed now."""
        from importlib.metadata import entry_points  # 20 ms, for what most commands never ask

        found: dict[str, list[EntryPoint]] = {}
        for entry in sorted(entry_points(group=self._group), key=lambda one: (one.name, one.value)):
            found.setdefault(entry.name, []).append(entry)
        return found

    @property
    def names(self) -> list[str]:
        """The names that are offered and not taken, whether they can be used or not."""
        return [name for name in self._entries if name not in self._taken]

    @property
    def loaded(self) -> Mapping[str, Kind]:
        """All that has been imported so far and can be used."""
        return self._loaded

    def load(self, name: str) -> Kind:
        """The thing that is offered under this name. KeyError for a name that is not offered, InvalidRequest for a fault."""
        if name in self._loaded:
            return self._loaded[name]
        if name in self._taken:
            raise KeyError(name)
        if name not in self._faults:
            try:
                self._loaded[name] = self._import(name, self._entries[name])
            except InvalidRequest as fault:
                self._faults[name] = fault
            else:
                return self._loaded[name]
        known = self._faults[name]
        raise InvalidRequest(str(known), hint=known.hint) from known.__cause__

    def clash(self, name: str) -> InvalidRequest | None:
        """The fault of an offer under a name that is taken; None if there is none."""
        if name not in self._taken or name not in self._entries:
            return None
        offered = " and ".join(map(_place, self._entries[name]))
        return InvalidRequest(
            f"the {self.noun} {name!r} of {offered} is not reached: the name belongs to manyhands itself, whose own is meant by it",
            hint="Its author has to give it another name.",
        )

    def tell_faults(self, tell: Tell) -> None:
        """Import all, and tell of those that cannot be used and were not told of before."""
        for name in self._entries:
            fault = self.clash(name)
            if fault is None:
                try:
                    self.load(name)
                    continue
                except InvalidRequest as error:
                    fault = error
            if name not in self._told:
                self._told.add(name)
                tell(fault)

    def place(self, name: str) -> str:
        """The distribution of a name that is offered, with its version: `my-relay 1.0`."""
        return _distribution(self._entries[name][0])

    def version(self, name: str) -> dict[str, str]:
        """The version of the distribution of a name that is offered: `{"my-relay": "1.0"}`; none where it is unknown."""
        found = self._entries[name][0].dist
        return {} if found is None else {found.name: found.version}

    def _import(self, name: str, entries: list[EntryPoint]) -> Kind:
        first = entries[0]
        called = f"the {self.noun} {name!r} of {_place(first)}"
        if len(entries) > 1:
            raise InvalidRequest(
                f"the {self.noun} {name!r} is offered {len(entries)} times, by {' and by '.join(map(_place, entries))}; expected one",
                hint="Uninstall the others.",
            )
        if not re.fullmatch(NAME, name):
            raise InvalidRequest(
                f"{called} has no name that can be asked for; expected small letters, digits and _, a letter first",
                hint="Its author has to give it another name.",
            )
        try:
            found: object = first.load()
        except (Exception, SystemExit) as error:
            raise InvalidRequest(
                f"{called} cannot be imported: {_said(error)}", hint=_mend(first)
            ) from error
        try:
            return self._look(name, found)
        # Whatever code of others raises is the cause of a fault: all other methods go on to work.
        except Exception as error:
            reason = str(error) if isinstance(error, InvalidRequest) else _said(error)
            raise InvalidRequest(f"{called} cannot be used: {reason}", hint=_mend(first)) from error


class OpenRegistry(Mapping[str, Kind]):
    """Rows of this package, then what is offered. Names alone are listed; `registry[name]` imports that one.

    `registry[name]` raises KeyError for a name that there is not, InvalidRequest for a fault. Two registries are equal if
    they are the same one, so that comparing imports nothing.
    """

    def __init__(self, rows: Mapping[str, Kind], offers: Offers[Kind]) -> None:
        self._rows, self._offers = dict(rows), offers

    def __getitem__(self, name: str) -> Kind:
        return self._rows[name] if name in self._rows else self._offers.load(name)

    def __contains__(self, name: object) -> bool:
        return name in self._rows or name in self._offers.names

    def __iter__(self) -> Iterator[str]:
        yield from self._rows
        yield from (name for name in self._offers.names if name not in self._rows)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __bool__(self) -> bool:
        return bool(self._rows) or len(self) > 0

    def __eq__(self, other: object) -> bool:
        return self is other

    __hash__ = object.__hash__

    @property
    def rows(self) -> Mapping[str, Kind]:
        """The rows of this package."""
        return self._rows

    @property
    def loaded(self) -> dict[str, Kind]:
        """Rows, and what has been imported so far and can be used. Nothing is looked for."""
        return {**self._rows, **self._offers.loaded}

    def working(self, tell: Tell = log_fault) -> dict[str, Kind]:
        """All that can be used, rows first; what is installed is imported. Each fault is told once in a process."""
        self._offers.tell_faults(tell)
        return self.loaded

    def clash(self, name: str) -> InvalidRequest | None:
        """The fault of a distribution that offers something under the name of a row; None if there is none."""
        return self._offers.clash(name)

    def about(self, name: str) -> str:
        """The one line of a row, and of what is installed the distribution, too. Raises as `registry[name]` does."""
        about: Any = getattr(self[name], "about", "")
        return about if name in self._rows else f"{about} ({self._offers.place(name)})"

    def place(self, name: str) -> str:
        """The distribution that offers a name, with its version: `my-relay 1.0`; "" of a row."""
        return "" if name in self._rows else self._offers.place(name)

    def version(self, name: str) -> dict[str, str]:
        """The version of the distribution that offers a name, by its own name; none of a row."""
        return {} if name in self._rows else self._offers.version(name)

    def beside(self, rows: Mapping[str, Kind]) -> OpenRegistry[Kind]:
        """The same, with more rows behind those of this package."""
        return OpenRegistry({**self._rows, **rows}, self._offers)


def _distribution(entry: EntryPoint) -> str:
    found = entry.dist
    return "an unknown distribution" if found is None else f"{found.name} {found.version}"


def _place(entry: EntryPoint) -> str:
    """`my-relay 1.0 (entry point my_relay:RELAY)`."""
    return f"{_distribution(entry)} (entry point {entry.value})"


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _mend(entry: EntryPoint) -> str:
    """The mend: another release; and which releases of ours it was written for, if it says so."""
    found = entry.dist
    if found is None:
        return "Remove it, or install another release."
    mend = f"Install another release of it, or remove it: pip uninstall {found.name}."
    wanted = [one for one in found.requires or () if _is_ours(one)]
    if not wanted:
        return mend
    return f"{mend} It was written for {', '.join(wanted)}; here is {_own_version()}."


def _is_ours(requirement: str) -> bool:
    """Whether a requirement of a distribution is this one: `manyhands_llm[serve] >=0.1`."""
    name = re.match(r"[\w.-]+", requirement)
    return name is not None and re.sub("[-_.]+", "-", name[0]).lower() == OWN_DISTRIBUTION


def _own_version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(OWN_DISTRIBUTION)
    except PackageNotFoundError:  # from a folder of sources
        return "a version that is not installed"
