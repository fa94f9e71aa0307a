"""From an options dataclass to a command: what its fields declare is what typer is told.

    @dataclass(frozen=True, kw_only=True)
    class SolveOptions(ModelSettings):
        file: Path | None = setting(None, "Read the problem from this file.", panel="Method")
        chosen: Mapping[str, Any] = options_of(METHODS)

    @takes("options.SolveOptions")
    def solve(options: SolveOptions) -> None: ...

Each field with a setting becomes an option of its name, type, default and help. `options_of` stands for
all options that belong to the settings of some methods: an option that one method alone has appears under
a panel of its own, one that several have says whose it is, and a default that differs is told for each.
Typer reads types alone; whether a value is allowed is checked by the settings, with their own error.

A dataclass that is named, not given, is imported when its command is asked for: the methods, the tasks and the
model's choices cost `manyhands --help` nothing (`guard.py::GuardedCommand`). A method of an installed distribution
is imported when the arguments name it, or have an option that no other method has, as --help is one: its options are made then.
"""

from __future__ import annotations

import dataclasses
import inspect
import os
import re
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from itertools import pairwise, takewhile
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Optional, TypeVar, get_args, get_type_hints

import typer

from manyhands.cli.guard import guarded, tell
from manyhands.errors import InvalidRequest
from manyhands.schema.choosing import Choosable, choosable, choose, flag_of, pairs, read
from manyhands.schema.open_registry import OpenRegistry
from manyhands.schema.setting import Setting, settings_of

_NOT_UTF_8 = re.compile("[\udc80-\udcff]")  # bytes of an argument that Python could not read
# These have the bytes that the file system gave them.
_MAY_BE_PATHS = ("model", "source", "cache", "lora")
_SHARED = "shared"  # of a field's metadata
Chosen = Mapping[str, Any]  # the chosen settings of a method: a dotted path -> its value
Settings = TypeVar("Settings")
Kind = TypeVar("Kind")


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

    @property
    def words(self) -> set[str]:
        """All that no other option of its command may have."""
        return {self.name, *self.flags}

    @property
    def flags(self) -> tuple[str, ...]:
        """The words that a command line has for it; none for an argument without dashes."""
        names = self.setting.names or (flag_of(self.place),)
        if not names[0].startswith("-"):
            return ()
        if _typed(self.kind) is bool and self.default in (True, None) and len(names) == 1:
            return (names[0], names[0].replace("--", "--no-", 1))
        return names

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

    `settings` are these settings, or a registry of the methods themselves: of an open one, those that are imported.
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
        known = self.known()
        for method, settings in known.items():
            for path, one in choosable(settings).items():
                if one.setting.by != "option" or path in self.without:
                    continue
                owners = found.setdefault(path, {})
                if all(other.kind == one.kind for other in owners.values()):
                    owners[method] = one
        options = [self._option(path, owners, len(known)) for path, owners in found.items()]
        return sorted(options, key=lambda option: len(option.owners) == len(known))

    @property
    def registry(self) -> OpenRegistry[Any] | None:
        """The methods, if their settings are not given by themselves."""
        return self.settings if isinstance(self.settings, OpenRegistry) else None

    def known(self) -> dict[str, Any]:
        """The settings of each method, as it comes: of an open registry, of those that are imported."""
        if self.registry is None:
            return dict(self.settings)
        return {name: method.settings() for name, method in self.registry.loaded.items()}

    def _option(self, path: str, owners: dict[str, Choosable], num_methods: int) -> Option:
        first, *others = owners.values()
        declared, default = first.setting, first.default
        help, unset = declared.help, self.unset.get(path, "")
        if not unset and any(one.default != default for one in others):
            unset = _defaults(owners)
        if unset:
            default = None
        if 1 < len(owners) < num_methods:
            help += f" Of {', '.join(owners)}."
        is_lone = len(owners) == 1 < num_methods
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
        one = self.settings[method]
        settings = one if self.registry is None else one.settings()
        known, named = choosable(settings), pairs(listed)
        for path, value in chosen.items():
            if path in named:
                raise InvalidRequest(
                    f"{path} was given twice: --set {path}={named[path]} and {told(path, value)}",
                    hint="leave one of them out",
                )
            if path not in known and (path, value) != ("workers", 1):
                others = [name for name, of in self.known().items() if path in choosable(of)]
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


def options_in(options: type[Any]) -> list[Option]:
    """Every option of a command, in the order of its help.

    A setting of an installed method whose option would have a name that is taken has none: it is chosen by --set.
    """
    kinds, declared = get_type_hints(options), settings_of(options)
    found: list[Option] = []
    for one in dataclasses.fields(options):
        if _SHARED in one.metadata:
            found += one.metadata[_SHARED].options()
        elif one.name in declared and declared[one.name].by == "option":
            default = ... if one.default is dataclasses.MISSING else one.default
            found.append(Option(one.name, kinds[one.name], default, declared[one.name]))
    registry = _methods_of(options)
    if registry is None:
        return found
    own = [
        one for one in found if not one.owners or not registry.rows.keys().isdisjoint(one.owners)
    ]
    taken = {word for option in own for word in option.words}
    for option in [one for one in found if one not in own]:
        if taken.isdisjoint(option.words):
            taken |= option.words
        else:
            found.remove(option)
    return found


def _methods_of(options: type[Any]) -> OpenRegistry[Any] | None:
    """The registry of the methods that a command takes; None for one that takes none."""
    metadata = (one.metadata for one in dataclasses.fields(options))
    shared: Shared | None = next((one[_SHARED] for one in metadata if _SHARED in one), None)
    return None if shared is None else shared.registry


def takes(options: type[Any] | str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorate a command that takes `options`, a dataclass of settings, which reaches it whole.

    A text names the dataclass by its file in `manyhands.cli`, as in `options.SolveOptions`; the command is
    then made when its first parameter is looked at, by a `GuardedCommand`.
    """

    def wrap(command: Callable[..., None]) -> Callable[..., None]:
        if not isinstance(options, str):
            return _whole(command, options)
        file, _, name = options.partition(".")

        def whole(args: Sequence[str] = ()) -> Callable[..., None]:
            options: type[Any] = getattr(import_module(f"manyhands.cli.{file}"), name)
            _import_methods(options, args)
            return _whole(command, options)

        def late() -> None:
            raise AssertionError("a GuardedCommand calls the whole command in place of this one")

        late.__name__, late.__doc__ = command.__name__, inspect.cleandoc(command.__doc__ or "")
        late.whole = whole  # type: ignore[attr-defined]  # read by GuardedCommand
        return late

    return wrap


def _import_methods(options: type[Any], args: Sequence[str]) -> None:
    """Import the installed methods that these arguments need, if the command takes a method.

    That is the one that is named, or else all where a word is no option of the methods that are known, as --help is none.
    Raises InvalidRequest for one that is named and cannot be used; of others that cannot, the user is told.
    """
    methods = _methods_of(options)
    if methods is None:
        return
    words = [*takewhile("--".__ne__, args)]
    named = [after for word, after in pairwise(words) if word == "--method"]
    named += [word.partition("=")[2] for word in words if word.startswith("--method=")]
    if "--help" not in words:
        for name in named:
            _ = methods.get(name)
    known = {flag for option in options_in(options) for flag in option.flags}
    if any(word.startswith("--") and word.partition("=")[0] not in known for word in words):
        methods.working(warn_of)


def chosen_of(methods: OpenRegistry[Kind], name: str) -> Kind:
    """The method that a user has chosen. The user is told of an installed one that has the name of a row."""
    clash = methods.clash(name)
    if clash is not None:
        warn_of(clash)
    return methods[name]


def warn_of(fault: InvalidRequest) -> None:
    """Tell the user of an installed method that cannot be used."""
    tell(f"{fault} (hint: {fault.hint})", "warning: ", "yellow")


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
    known = options_in(options)

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
    if kind is bool:
        names = ("/".join(option.flags),) if len(names) == 1 else names
    words = declared.one_of
    if isinstance(
        words, OpenRegistry
    ):  # listed are those that are imported; `autocompletion` has all
        others = [name for name in words.loaded if name not in words.rows]
        help += "".join(f" {name}: {words.about(name)}." for name in others)
        words = (*words.rows, *others)
    if words:
        metavar = f"<{'|'.join(words)}>"
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
