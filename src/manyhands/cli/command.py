"""From an options dataclass to a command: what its fields declare is what typer is told.

    @dataclass(frozen=True, kw_only=True)
    class SolveOptions(ModelSettings):
        file: Path | None = setting(None, "Read the problem from this file.", panel="Method")
        chosen: Mapping[str, Any] = options_of({name: m.settings() for name, m in METHODS.items()})

    @takes("options.SolveOptions")
    def solve(options: SolveOptions) -> None: ...

Each field with a setting becomes an option of its name, type, default and help. `options_of` stands for
all options that belong to the settings of some methods: an option that one method alone has appears under
a panel of its own, one that several have says whose it is, and a default that differs is told for each.
Typer reads types alone; whether a value is allowed is checked by the settings, with their own error.

A dataclass that is named, not given, is imported when its command is asked for: the methods, the tasks and the
model's choices cost `manyhands --help` nothing (`guard.py::GuardedCommand`).
"""

from __future__ import annotations

import dataclasses
import inspect
import os
import re
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Optional, TypeVar, get_args, get_type_hints

import typer

from manyhands.cli.guard import guarded
from manyhands.errors import InvalidRequest
from manyhands.schema.choosing import Choosable, choosable, choose, flag_of, pairs, read
from manyhands.schema.setting import Setting, settings_of

_NOT_UTF_8 = re.compile("[\udc80-\udcff]")  # bytes of an argument that Python could not read
# These have the bytes that the file system gave them.
_MAY_BE_PATHS = ("model", "source", "cache", "lora")
_SHARED = "shared"  # of a field's metadata
Chosen = Mapping[str, Any]  # the chosen settings of a method: a dotted path -> its value
Settings = TypeVar("Settings")


@dataclasses.dataclass(frozen=True)
class Option:
    """One option of a command, whatever it was declared for.

    `place` is the dotted path of what it chooses; for an option of the command itself, the field's name.
    `owners` are the methods that have it, empty for an option of the command itself.
    """

    place: str
    kind: Any
    default: Any
    setting: Setting
    owners: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The parameter of the function that typer calls."""
        return self.place.replace(".", "__")

    def parameter(self) -> inspect.Parameter:
        """The parameter as typer reads it."""
        told, default = _told_to_typer(self), self.default
        if isinstance(default, tuple):
            default = ",".join(map(str, default)) or None
        kind = _typed(self.kind)
        return inspect.Parameter(
            self.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if default is ... else default,
            annotation=Annotated[Optional[kind] if default is None else kind, told],  # noqa: UP045
        )

    def value(self, given: Any) -> Any:
        """The value of what typer has read."""
        is_text = isinstance(given, str) and self.place not in _MAY_BE_PATHS
        if is_text and _NOT_UTF_8.search(given):
            try:  # where the locale is not UTF-8, Python has not read what is
                given = os.fsencode(given).decode("utf-8")
            except UnicodeDecodeError as error:
                raise InvalidRequest(
                    f"{self._called} is not UTF-8 text (byte {error.start})",
                    hint="give it as UTF-8",
                ) from error
        if self.kind == tuple[str, ...]:
            return tuple(given or ())
        is_listed = self.kind in (tuple[int, ...], tuple[int, ...] | None)
        if is_listed and (given is not None or self.kind == tuple[int, ...]):
            return read(self.place.rpartition(".")[2], self.kind, given or "")
        return given

    @property
    def _called(self) -> str:
        names = self.setting.names or (flag_of(self.place),)
        return f"the {self.place}" if self.place == "problem" else names[0]


@dataclasses.dataclass(frozen=True)
class Shared:
    """The options of the settings of several methods, by the names of the methods.

    `without` leaves some out, `unset` says of some what stands in for them, by their paths. A `panel` takes
    all of them in.
    """

    settings: Mapping[str, Any]
    without: tuple[str, ...] = ()
    unset: Mapping[str, str] = dataclasses.field(default_factory=dict)
    panel: str = ""

    def options(self) -> list[Option]:
        """All options: those of few methods first, then those of all."""
        found: dict[str, dict[str, Choosable]] = {}
        for method, settings in self.settings.items():
            for path, one in choosable(settings).items():
                if one.setting.by == "option" and path not in self.without:
                    found.setdefault(path, {})[method] = one
        options = [self._option(path, owners) for path, owners in found.items()]
        return sorted(options, key=lambda option: len(option.owners) == len(self.settings))

    def _option(self, path: str, owners: dict[str, Choosable]) -> Option:
        first, *others = owners.values()
        declared, default = first.setting, first.default
        help, unset = declared.help, self.unset.get(path, "")
        if not unset and any(one.default != default for one in others):
            unset = _defaults(owners)
        if unset:
            default = None
        if 1 < len(owners) < len(self.settings):
            help += f" Of {', '.join(owners)}."
        is_lone = len(owners) == 1 < len(self.settings)
        own = f"Method: {next(iter(owners))}" if is_lone else declared.panel or "Method"
        zeros = {one.setting.zero for one in owners.values()}
        declared = dataclasses.replace(
            declared,
            help=help,
            unset=unset,
            panel=self.panel or own,
            names=declared.names or (flag_of(path),),
            zero=declared.zero if len(zeros) == 1 else "",
        )
        if any(one.setting.expected != first.setting.expected for one in others):
            declared = dataclasses.replace(declared, at_least=None, at_most=None)
        return Option(path, first.kind, default, declared, tuple(owners))

    def settings_for(self, method: str, chosen: Chosen, listed: tuple[str, ...] = ()) -> Any:
        """The settings of a method with what was chosen by options and by --set.

        Raises InvalidRequest for an option that the method does not have, for a setting with two
        values, and for what the settings themselves refuse.
        """
        settings = self.settings[method]
        known, named = choosable(settings), pairs(listed)
        for path, value in chosen.items():
            if path in named:
                raise InvalidRequest(
                    f"{path} was given twice: --set {path}={named[path]} and {told(path, value)}",
                    hint="leave one of them out",
                )
            if path not in known and (path, value) != ("workers", 1):
                others = [one for one in self.settings if path in choosable(self.settings[one])]
                raise InvalidRequest(
                    f"{told(path, value)} is not for --method {method}",
                    hint=f"leave it out, or ask for --method {' or --method '.join(others)}",
                )
        own = {path: value for path, value in chosen.items() if path in known}
        return choose(settings, own | named)


def told(path: str, value: Any) -> str:
    """A choice as it is written on the command line: `--top-k 5`, `--no-reply`."""
    flag = flag_of(path)
    if isinstance(value, bool):
        return flag if value else flag.replace("--", "--no-", 1)
    return f"{flag} {','.join(map(str, value)) if isinstance(value, tuple) else value}"


def options_of(settings: Mapping[str, Any], **more: Any) -> Any:
    """The field of an options dataclass that stands for the options of these settings; see `Shared`."""
    return dataclasses.field(default_factory=dict, metadata={_SHARED: Shared(settings, **more)})


def shared_of(options: type[Any]) -> Shared:
    """The argument of `options_of` in this dataclass."""
    (found,) = (f.metadata[_SHARED] for f in dataclasses.fields(options) if _SHARED in f.metadata)
    return found  # type: ignore[no-any-return]  # metadata is untyped


def options_in(options: type[Any]) -> Iterator[Option]:
    """Every option of a command, in the order of its help."""
    kinds, declared = get_type_hints(options), settings_of(options)
    for one in dataclasses.fields(options):
        if _SHARED in one.metadata:
            yield from one.metadata[_SHARED].options()
        elif one.name in declared and declared[one.name].by == "option":
            default = ... if one.default is dataclasses.MISSING else one.default
            yield Option(one.name, kinds[one.name], default, declared[one.name])


def takes(options: type[Any] | str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorate a command that takes `options`, a dataclass of settings, which reaches it whole.

    A text names the dataclass by its file in `manyhands.cli`, as in `options.SolveOptions`; the command is
    then made when its first parameter is looked at, by a `GuardedCommand`.
    """

    def wrap(command: Callable[..., None]) -> Callable[..., None]:
        if not isinstance(options, str):
            return _whole(command, options)
        file, _, name = options.partition(".")

        def whole() -> Callable[..., None]:
            return _whole(command, getattr(import_module(f"manyhands.cli.{file}"), name))

        def late() -> None:
            raise AssertionError("a GuardedCommand calls the whole command in place of this one")

        late.__name__, late.__doc__ = command.__name__, inspect.cleandoc(command.__doc__ or "")
        late.whole = whole  # type: ignore[attr-defined]  # read by GuardedCommand
        return late

    return wrap


def _check_here() -> None:
    """Raise InvalidRequest where the working folder was removed: libraries under torch end the process there."""
    try:
        os.getcwd()
    except FileNotFoundError as error:
        raise InvalidRequest(
            "the folder in which this command was started is not there any more",
            hint="change to one that is",
        ) from error


def _whole(command: Callable[..., None], options: type[Any]) -> Callable[..., None]:
    """The function that typer reads: a parameter for each option of `options`."""
    known = list(options_in(options))

    def guarded_command(typer_context: typer.Context, **given: Any) -> None:
        with guarded():
            _check_here()
            command(options(**_gathered(options, known, typer_context, given)))

    parameters = [
        inspect.Parameter(
            "typer_context", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context
        ),
        *(option.parameter() for option in known),
    ]
    guarded_command.__name__ = command.__name__
    guarded_command.__doc__ = inspect.cleandoc(command.__doc__ or "")
    guarded_command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # typeshed lacks it
    guarded_command.__annotations__ = {one.name: one.annotation for one in parameters}
    return guarded_command


def _gathered(
    options: type[Any], known: list[Option], context: typer.Context, given: Mapping[str, Any]
) -> dict[str, Any]:
    """The fields of the dataclass from what typer has read. Of a method's options: those that were given."""
    found: dict[str, Any] = {}
    chosen: dict[str, Any] = {}
    for option in known:
        if not option.owners:
            found[option.place] = option.value(given[option.name])
        elif _was_given(context, option.name):
            chosen[option.place] = option.value(given[option.name])
    naming = [one for one in known if one.setting.names_method and one.place in chosen]
    if naming and not _was_given(context, "method"):
        (found["method"],) = naming[0].owners
    for one in dataclasses.fields(options):
        if _SHARED in one.metadata:
            found[one.name] = chosen
    return found


def _was_given(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _told_to_typer(option: Option) -> Any:
    declared = option.setting
    help = declared.help
    if declared.zero:
        help = f"{help.removesuffix('.')}; 0: {declared.zero}."
    names = declared.names or (flag_of(option.place),)
    if not names[0].startswith("-"):
        metavar = names[0] if names[0] != option.place else None
        return typer.Argument(help=help, metavar=metavar, show_default=False)
    kind = _typed(option.kind)
    if kind is bool and option.default in (True, None) and len(names) == 1:
        names = (f"{names[0]}/{names[0].replace('--', '--no-', 1)}",)
    if declared.one_of:
        metavar = f"<{'|'.join(declared.one_of)}>"
    elif kind in (int, float) and declared.is_bounded:
        metavar = f"<{kind.__name__}> [{_range(declared)}]"
    else:
        metavar = None
    return typer.Option(
        *names,
        help=help,
        metavar=metavar,
        rich_help_panel=declared.panel or None,
        show_default=declared.unset or True,
        autocompletion=(lambda: list(declared.one_of)) if declared.one_of else None,
    )


def _range(declared: Setting) -> str:
    """`x>=1`, `0<x<=1`: as click writes the range of a number."""
    low = "" if declared.at_least is None else f"{declared.at_least:g}<="
    low = low if declared.above is None else f"{declared.above:g}<"
    high = "" if declared.at_most is None else f"<={declared.at_most:g}"
    high = high if declared.below is None else f"<{declared.below:g}"
    if low and not high:
        return f"x>={declared.at_least:g}" if declared.above is None else f"x>{declared.above:g}"
    return f"{low}x{high}"


def _defaults(owners: Mapping[str, Choosable]) -> str:
    """`2; skeleton: 0, one for each point; best_of_n: 4`: the default of most, and whose differ."""
    groups: dict[Any, list[str]] = {}
    for method, one in owners.items():
        zero = one.setting.zero if one.default == 0 else ""
        groups.setdefault(f"{one.default}, {zero}" if zero else f"{one.default}", []).append(method)
    first, *others = groups
    return "; ".join([first, *(f"{', '.join(groups[value])}: {value}" for value in others)])


def _typed(kind: Any) -> Any:
    """The type that typer reads. Numbers in a list are one text, so that commas stand between them."""
    inner = [one for one in get_args(kind) if one is not NoneType]
    if kind == tuple[str, ...]:
        return list[str]
    if kind in (int, float, bool, str, Path):
        return kind
    if NoneType in get_args(kind) and len(inner) == 1:
        return _typed(inner[0])
    return str
