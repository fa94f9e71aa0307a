"""Methods of installed distributions: which are found, when they are imported, and what is said of those that cannot be used."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from manyhands.cache.states import FORKING
from manyhands.errors import InvalidRequest
from manyhands.prompts.load import Prompts
from manyhands.schema.open_registry import Offers, OpenRegistry
from manyhands.schema.openai import CHAT, ChatRequest, InvalidField, read_request
from manyhands.strategies import methods, requests
from manyhands.strategies.methods import METHODS, Method, check_forks
from manyhands.strategies.requests import Defaults, aliases, is_model, read_model, spec_of
from manyhands.strategies.run_spec import RunSpec
from tests.installing import a_method, laid_out
from tests.strategies.driver import small_text

Look = Callable[[], OpenRegistry[Method]]


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder on the path of modules, whose modules are forgotten behind the test."""
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.syspath_prepend(str(site))
    before = set(sys.modules)
    yield site
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", None)).startswith(str(site)):
            del sys.modules[name]


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> Look:
    """Look at what is installed now: the table as a new process has it, which requests read, too."""

    def look() -> OpenRegistry[Method]:
        importlib.invalidate_caches()
        offers = Offers("method", "manyhands.methods", methods._TAKEN, methods._look)
        found = OpenRegistry(METHODS.rows, offers)
        monkeypatch.setattr(requests, "METHODS", found)
        monkeypatch.setattr(methods, "METHODS", found)
        return found

    return look


def fault(found: OpenRegistry[Method], name: str) -> str:
    with pytest.raises(InvalidRequest) as raised:
        _ = found[name]
    assert raised.value.hint
    return f"{raised.value} | {raised.value.hint}"


def test_an_installed_method_is_imported_when_it_is_asked_for(site: Path, table: Look) -> None:
    laid_out(site, "our-relay", {"relay2": "our_relay:OWN"}, "our_relay", a_method("relay2"))
    found = table()
    assert "relay2" in found
    assert [*found] == [*METHODS.rows, "relay2"]
    assert len(found) == len(METHODS.rows) + 1
    assert found["hogwild"] is METHODS["hogwild"]
    assert "our_relay" not in sys.modules, "names are known without an import"
    assert "relay2" not in found.loaded
    method = found["relay2"]
    assert method.name == "relay2"
    assert found["relay2"] is method
    assert found.loaded["relay2"] is method
    assert found.about("relay2") == "one of our own (our-relay 1.0)"
    assert "nope" not in found
    with pytest.raises(KeyError):
        _ = found["nope"]


def test_a_row_is_found_without_looking_at_what_is_installed(
    table: Look, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = table()

    def refuse(**chosen: str) -> object:
        raise AssertionError("entry points were looked for")

    monkeypatch.setattr("importlib.metadata.entry_points", refuse)
    assert found["hogwild"].name == "hogwild"
    assert "hogwild" in found
    assert found
    assert set(found.loaded) == set(METHODS.rows)
    with pytest.raises(AssertionError, match="looked for"):  # control
        _ = "other" in found


FAULTY = {
    "no module": ("import no_such_module_here\n", "ModuleNotFoundError: No module named"),
    "ends the process": ("raise SystemExit(3)\n", "cannot be imported: SystemExit: 3"),
    "no such name": ("OTHER = 1\n", "AttributeError: module 'faulty' has no attribute 'OWN'"),
    "a function": ("def OWN(): ...\n", "it is a function; expected a Method"),
    "another name": (a_method("other"), "its Method is named 'other'; expected 'faulty'"),
    "words": (
        a_method("faulty") + 'OWN = replace(OWN, prompt="mine")\n',
        "it reads the words 'mine'; expected one of team, branches,",
    ),
    "answer": (
        a_method("faulty") + "OWN = replace(OWN, answer=str)\n",
        "its answer is <class 'str'>; expected a kind of Answer",
    ),
    "no dataclass": (
        a_method("faulty", "rounds: int = setting(2, 'Rounds.')").replace(
            "@dataclass(frozen=True, kw_only=True)\n", ""
        ),
        "OwnSettings has fields and is no dataclass of its own",
    ),
    "another type": (
        a_method("faulty", "workers: float = setting(2.0, 'Workers.')"),
        "its setting workers is of type float; expected int, as methods here have it",
    ),
    "no default": (
        a_method("faulty", "rounds: int = setting(..., 'Rounds.')"),
        "TypeError: ",
    ),
    "an older make": (
        a_method("faulty") + "OWN = replace(OWN, make=lambda question, text: None)\n",
        "its make takes (question, text) (too many positional arguments); expected (conversation, text,",
    ),
    "an older names": (
        a_method("faulty") + "OWN = replace(OWN, names=lambda settings: ())\n",
        "TypeError: <lambda>() takes 1 positional argument but 2 were given",
    ),
    "no names": (
        a_method("faulty") + "OWN = replace(OWN, names=lambda settings, prompt: ['A'])\n",
        "its names are ['A']; expected a tuple of texts",
    ),
    "no number to tell": (
        a_method("faulty", "most: float = setting(float('inf'), 'Most.')")
        + "OwnSettings.__post_init__ = lambda self: None\n",
        "what it says of itself cannot be told over HTTP: Out of range float values",
    ),
    "no text to tell": (
        a_method("faulty") + "OWN = replace(OWN, about='one \\ud800')\n",
        "what it says of itself cannot be told over HTTP: 'utf-8' codec can't encode",
    ),
    "a field that was": (
        a_method("faulty") + "OWN = replace(OWN, listening=True)\n",
        "cannot be imported: TypeError: ",
    ),
}


@pytest.mark.parametrize("what", FAULTY)
def test_one_that_cannot_be_used_is_named_with_the_cause(
    site: Path, table: Look, caplog: pytest.LogCaptureFixture, what: str
) -> None:
    source, cause = FAULTY[what]
    laid_out(site, "Our.Faulty", {"faulty": "faulty:OWN"}, "faulty", source, "manyhands_llm<0.1")
    laid_out(site, "our-good", {"good": "good:OWN"}, "good", a_method("good"))
    found = table()
    told = fault(found, "faulty")
    assert told.startswith("the method 'faulty' of Our.Faulty 1.0 (entry point faulty:OWN) cannot ")
    assert cause in told
    assert "pip uninstall Our.Faulty. It was written for manyhands_llm<0.1; here is 0.1.0" in told
    assert fault(found, "faulty") == told, "asked again, it says the same"
    assert [*found.working()] == [*METHODS.rows, "good"], "all others work"
    assert [record.getMessage() for record in caplog.records] == [
        f"{told.partition(' | ')[0]} (hint: {told.partition(' | ')[2]})"
    ]
    found.working()
    assert len(caplog.records) == 1, "it is told once"


def test_the_cause_of_a_fault_is_kept(site: Path, table: Look) -> None:
    laid_out(site, "our-faulty", {"faulty": "faulty:OWN"}, "faulty", "1 / 0\n")
    found = table()
    for _ in range(2):
        with pytest.raises(InvalidRequest) as raised:
            _ = found["faulty"]
        assert isinstance(raised.value.__cause__, ZeroDivisionError)


@pytest.mark.parametrize("name", ["hogwild", "shared_prefix"])
def test_a_name_that_is_taken_stays_what_it_is(
    site: Path, table: Look, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    laid_out(site, "our-hogwild", {name: "our_hogwild:OWN"}, "our_hogwild", a_method(name))
    found = table()
    assert found.get(name) is METHODS.rows.get(name)
    assert [*found] == [*METHODS.rows]
    clash = found.clash(name)
    assert clash is not None
    assert str(clash).startswith(
        f"the method {name!r} of our-hogwild 1.0 (entry point our_hogwild:OWN) is not reached"
    )
    assert found.clash("sequential") is None
    assert [*found.working()] == [*METHODS.rows]
    assert [record.getMessage() for record in caplog.records] == [f"{clash} (hint: {clash.hint})"]
    assert "our_hogwild" not in sys.modules


def test_two_of_one_name_are_both_named(site: Path, table: Look) -> None:
    laid_out(site, "first-relay", {"relay": "first_relay:OWN"}, "first_relay", a_method("relay"))
    laid_out(site, "other-relay", {"relay": "other_relay:OWN"}, "other_relay", a_method("relay"))
    found = table()
    told = fault(found, "relay")
    assert "is offered 2 times, by first-relay 1.0 (entry point first_relay:OWN) and" in told
    assert "other-relay 1.0 (entry point other_relay:OWN); expected one" in told
    assert [*found.working()] == [*METHODS.rows]
    assert not {"first_relay", "other_relay"} & set(sys.modules)


@pytest.mark.parametrize("name", ["our-relay", "Relay", "2relay"])
def test_a_name_has_to_be_one_that_can_be_asked_for(site: Path, table: Look, name: str) -> None:
    laid_out(site, "our-relay", {name: "our_relay:OWN"}, "our_relay", a_method(name))
    assert "has no name that can be asked for; expected small letters" in fault(table(), name)


def test_comparing_tables_imports_nothing(site: Path, table: Look) -> None:
    laid_out(site, "our-faulty", {"faulty": "faulty:OWN"}, "faulty", "1 / 0\n")
    found = table()
    others = found.beside({})
    assert [*others] == [*found]
    assert others != found
    assert {found: 1}[found] == 1
    assert "faulty" not in sys.modules


# -- requests ------------------------------------------------------------------------------------


def asked(options: dict[str, object], model: str = "m") -> RunSpec:
    request = read_request(
        CHAT, {"model": model, "messages": [{"role": "user", "content": "1 + 2"}]}
    )
    assert isinstance(request, ChatRequest)
    spec = spec_of(request, options, small_text(), Prompts(), Defaults("m"))
    assert isinstance(spec, RunSpec)
    return spec


def test_a_request_asks_for_an_installed_method_and_its_settings(site: Path, table: Look) -> None:
    fields = "rounds: int = setting(2, 'Rounds.', at_least=1)"
    source = a_method("relay2", fields)
    laid_out(site, "our-relay", {"relay2": "our_relay:OWN"}, "our_relay", source)
    found = table()
    assert "m:relay2" in aliases("m")
    assert is_model("m:relay2", "m")
    assert read_model("m:relay2", "m") == {"method": "relay2"}
    spec = asked({"method": "relay2", "rounds": 5, "budget": 7})
    assert (spec.method, spec.settings.budget) == (found["relay2"], 7)
    assert getattr(spec.settings, "rounds", None) == 5
    assert asked({"rounds": 3}, "m:relay2").method is found["relay2"]
    with pytest.raises(InvalidField, match="rounds is 0; expected 1 or more") as raised:
        asked({"method": "relay2", "rounds": 0})
    assert raised.value.param == "manyhands.rounds"
    with pytest.raises(InvalidField) as unknown:
        asked({"method": "nope"})
    assert "best_of_n, relay2; shared_prefix is plain" in unknown.value.hint
    with pytest.raises(InvalidField, match="'rounds', a setting of methods, and names no method"):
        asked({"rounds": 3})
    with pytest.raises(InvalidField, match="'nope' that no method has"):
        asked({"nope": 3})


def test_a_request_for_one_that_cannot_be_used_is_told_why(site: Path, table: Look) -> None:
    laid_out(site, "our-faulty", {"faulty": "faulty:OWN"}, "faulty", "1 / 0\n")
    table()
    why = r"the method 'faulty' of our-faulty 1\.0 .* cannot be imported: ZeroDivisionError"
    with pytest.raises(InvalidField, match=why) as raised:
        asked({"method": "faulty"})
    assert raised.value.param == "manyhands.method"
    with pytest.raises(InvalidField, match=why) as raised:
        asked({}, "m:faulty")
    assert raised.value.param == "model"
    assert not is_model("m:faulty", "m")
    assert "m:faulty" not in aliases("m")
    assert asked({"method": "sequential"}).method is METHODS["sequential"]


def test_installed_methods_that_fork_are_named_where_one_does_not(site: Path, table: Look) -> None:
    laid_out(site, "our-relay", {"relay": "our_relay:OWN"}, "our_relay", a_method("relay"))
    table()
    team = METHODS["hogwild"]
    with pytest.raises(InvalidRequest) as raised:
        check_forks(team, team.settings())
    assert raised.value.hint.endswith(f"{', '.join((*FORKING, 'relay'))}")
