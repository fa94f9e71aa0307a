"""Our own description, and requests made of it that are wrong on purpose: nothing is a mistake of the server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import httpx2
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.routing import Route

import manyhands
from manyhands.cache.step import Choice
from manyhands.schema.choosing import choosable
from manyhands.schema.openai import InvalidField
from manyhands.schema.plain import to_plain
from manyhands.server.app import make_app
from manyhands.server.asked import Served, understand_run
from manyhands.server.openapi import description
from manyhands.strategies.methods import METHODS
from tests.server.house import NAME, TEXT, House, make_house, running

DESCRIPTION = description()
SCHEMAS = DESCRIPTION["components"]["schemas"]
POSTS = {
    url: operations["post"]["requestBody"]["content"]["application/json"]["schema"]
    for url, operations in DESCRIPTION["paths"].items()
    if "post" in operations
}
SOUND: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "a"}], "max_tokens": 2},
    "/v1/completions": {"prompt": "a", "max_tokens": 2},
    "/v1/responses": {"input": "a", "max_output_tokens": 2},
    "/v1/runs": {"problem": "a", "budget": 1, "workers": 1, "end": {"reply": False}},
    "/v1/tokenize": {"prompt": "a"},
    "/v1/detokenize": {"tokens": [1, 2]},
    "/v1/runs/{run}/messages": {"item": "Said", "text": "a", "author": "b"},
}
ODD: list[Any] = [
    None, True, False, 0, -1, 1, 2**31, 2**62, -(2**62), 0.5, -0.0, 1e308, "", "a", "\u202e\x1b[2J",
    "</s><|im_end|>", "../../etc/passwd", [], [None], [[]], {}, {"a": {}}, {"type": "text"}, "𝔘" * 50,
]  # fmt: skip


@pytest.fixture(scope="module")
def house() -> Iterator[House]:
    with running(make_house(request_tokens=200, run_seconds=10.0)) as house:
        yield house
    assert not house.front.runs.live


@pytest.fixture(scope="module")
def client(house: House) -> Iterator[httpx2.Client]:
    with httpx2.Client(base_url=house.url, timeout=20) as client:
        yield client


def resolved(schema: dict[str, Any]) -> dict[str, Any]:
    name = schema.get("$ref", "").rpartition("/")[2]
    return SCHEMAS[name] if name else schema


def test_every_route_is_described_and_every_field_has_a_meaning(house: House) -> None:
    routes = {
        (method.lower(), route.path.replace("{model:path}", "{model}"))
        for route in make_app(house.front).routes
        if isinstance(route, Route)
        for method in (route.methods or set()) - {"HEAD"}
        if route.path != "/" and not route.path.startswith("/page/")
    }
    told = {(method, path) for path, each in DESCRIPTION["paths"].items() for method in each}
    assert told == routes
    for name in ("ChatBody", "PlainBody", "ResponsesBody"):
        for field, schema in SCHEMAS[name]["properties"].items():
            assert schema.get("description"), f"{name}.{field}"


def test_the_description_is_served(client: httpx2.Client) -> None:
    assert client.get("/openapi.json").json() == json.loads(json.dumps(DESCRIPTION))


def test_sound_requests_are_answered(client: httpx2.Client) -> None:
    run = client.post("/v1/runs", json=SOUND["/v1/runs"]).json()["id"]
    for url, body in SOUND.items():
        answer = client.post(url.replace("{run}", run), json={**body})
        ends = {"/v1/runs/{run}/messages"} & {url}  # the run may have ended meanwhile
        assert answer.status_code in ((200, 201, 202, 400) if ends else (200, 201)), answer.text


anything = st.recursive(
    st.sampled_from(ODD) | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)  # fmt: skip


@st.composite
def wrong_requests(draw: st.DrawFn) -> tuple[str, Any]:
    """A sound request in which something is otherwise: a known field, an unknown one, or all of it."""
    url = draw(st.sampled_from(sorted(POSTS)))
    fields = sorted(resolved(POSTS[url]).get("properties", {}))
    if draw(st.integers(0, 9)) == 0:
        return url, draw(anything)
    body = dict(SOUND[url])
    for _ in range(draw(st.integers(1, 3))):
        name = draw(st.sampled_from([*fields, "wibble", "__proto__", "manyhands"]))
        if name == "manyhands" and draw(st.booleans()):
            keys = st.sampled_from(["method", "workers", "budget", "end", "choice", "layout", "x"])
            body[name] = {"method": "hogwild", draw(keys): draw(anything)}
        elif draw(st.integers(0, 9)) == 0:
            body.pop(name, None)
        else:
            body[name] = draw(anything)
    return url, body


@settings(
    max_examples=120, deadline=None, derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)  # fmt: skip
@given(wrong_requests())
def test_whatever_comes_is_answered_with_a_shape_that_is_described(
    client: httpx2.Client, request: tuple[str, Any]
) -> None:
    url, body = request
    content = json.dumps(body).encode()
    path = url.replace("{run}", "run_x")
    answer = client.post(path, content=content, headers={"Content-Type": "application/json"})
    assert answer.status_code in (200, 201, 400, 404), answer.text
    if answer.status_code >= 400:
        error = answer.json()["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert error["message"]
        assert isinstance(error["param"], str | None)
        assert "Traceback" not in answer.text
        assert "/site-packages" not in answer.text
        assert str(Path(manyhands.__file__).parent) not in answer.text
    elif "data: " in answer.text[:10]:
        assert answer.text.endswith("\n\n")


def test_models_by_odd_names(client: httpx2.Client) -> None:
    for name in (NAME, f"{NAME}:hogwild-2"):
        assert client.get(f"/v1/models/{name}").status_code == 200
    # As requests may call it, with other numbers of workers than those of the list.
    asked = {"hogwild": 200, "hogwild-3": 200, "branches-1": 200, "hogwild-257": 404}
    for alias, status in {**asked, "branches-3": 404, "hogwild-3-3": 404}.items():
        assert client.get(f"/v1/models/{NAME}:{alias}").status_code == status, alias
    for name in ("%2e%2e/%2e%2e/etc/passwd", "a/b", "%00", "%ff", "x" * 3000, f"{NAME}:"):
        answer = client.get(f"/v1/models/{name}")
        assert answer.status_code in (400, 404)
        assert answer.json()["error"]["message"]


# -- methods ---------------------------------------------------------------------------------------


def beyond(schema: dict[str, Any]) -> Iterator[Any]:
    """Values that a schema refuses: one beyond each bound, a word that is none of those listed, and another type."""
    yield {"a": {}}
    whole = schema.get("items", schema)
    found = [whole[word] - 1 for word in ("minimum",) if word in whole]
    found += [whole[word] + 1 for word in ("maximum",) if word in whole]
    found += [whole[word] for word in ("exclusiveMinimum", "exclusiveMaximum") if word in whole]
    for value in found:
        yield [value] if "items" in schema else value
    if "enum" in schema:
        yield "no such word"


def test_methods_are_told_with_settings_that_a_run_takes(client: httpx2.Client) -> None:
    served = Served(NAME, TEXT)
    told = client.get("/v1/methods").json()
    assert [one["id"] for one in told["data"]] == [*METHODS.working()]
    num_beyond = 0
    for one, common in zip(told["data"], chain([told["settings"]], repeat({})), strict=False):
        assert one["about"] == METHODS[one["id"]].about
        for path, schema in {**common, **one["settings"]}.items():
            body = {"problem": "a", "method": one["id"], path: schema["default"]}
            spec = understand_run(body, served).spec
            assert spec is not None
            known = choosable(spec.settings)[path]
            assert known.setting.by == schema["by"]
            assert schema["description"].startswith(known.setting.help)
            for value in beyond(schema):
                with pytest.raises(InvalidField) as refused:
                    understand_run({**body, path: value}, served)
                assert path.rpartition(".")[2] in refused.value.param
                num_beyond += 1
    assert num_beyond > 100


@pytest.mark.parametrize("seed", [None, 3])
def test_defaults_are_told_as_a_run_has_them(seed: int | None) -> None:
    """A model that samples by itself does so in methods, too, and where the server has no seed each run has its own."""
    own = Choice(temperature=0.6, top_k=20)
    served = Served(NAME, TEXT, own=own, seed=seed)
    told = served.methods
    common = told["settings"]
    assert common["seed"]["default"] == seed
    assert common["seed"]["type"] == ("integer" if seed is not None else ["integer", "null"])
    assert common["choice.temperature"]["default"] == 0.6
    for one in told["data"]:
        spec = understand_run({"problem": "a", "method": one["id"]}, served).spec
        assert spec is not None
        chosen = choosable(spec.settings)
        for path, schema in {**common, **one["settings"]}.items():
            assert (path, schema["default"]) in (
                (path, to_plain(chosen[path].default)),
                ("seed", seed),
            )
        assert "seed" not in one["settings"], "all have the same"


def test_methods_that_the_network_does_not_bear_are_not_told() -> None:
    served = Served(NAME, TEXT, only_forks=True)
    told = [one["id"] for one in served.methods["data"]]
    assert "hogwild" not in told
    assert {alias.partition(":")[2].partition("-")[0] for alias in served.models[1:]} == {*told}
