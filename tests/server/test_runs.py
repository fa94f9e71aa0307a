"""Runs over HTTP: begun, watched, taken up again, spoken to, ended, and nobody else's."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from urllib.parse import urljoin

import httpx2
import pytest

from manyhands.replay.trace import parse_trace
from manyhands.server.records import account_of
from manyhands.strategies.events import from_line
from manyhands.strategies.run_spec import RunSpec
from tests.server.house import MADE_WITH, TEXT, House, Model, make_house, running
from tests.waiting import soon

KEYS = ("first-key-of-two", "second-key-of-two")


@pytest.fixture(scope="module")
def house() -> Iterator[House]:
    with running(make_house(Model(seconds=0.004), keys=KEYS, kept_runs=20)) as house:
        yield house
    assert house.num_pages_used() == 0


def client(house: House, key: str = KEYS[0]) -> httpx2.Client:
    return httpx2.Client(base_url=house.url, headers={"Authorization": f"Bearer {key}"}, timeout=20)


@pytest.fixture
def anna(house: House) -> Iterator[httpx2.Client]:
    with client(house) as found:
        yield found


def begun(client: httpx2.Client, **body: Any) -> str:
    given = {"problem": "3+4", "workers": 2, "budget": 50, "end": {"reply": False}, **body}
    answer = client.post("/v1/runs", json=given)
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


def records(
    client: httpx2.Client, run: str, most: int | None = None, **asked: Any
) -> dict[int, dict[str, Any]]:
    """Records by their numbers, `most` of them."""
    found: dict[int, dict[str, Any]] = {}
    with client.stream("GET", f"/v1/runs/{run}/events", **asked) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        number = -1
        for line in answer.iter_lines():
            if line.startswith("id: "):
                number = int(line[4:])
            elif line.startswith("data: "):
                assert number not in found
                found[number] = json.loads(line[6:])
                if most is not None and len(found) >= most:
                    break
    return found


def test_a_run_is_watched_from_beginning_to_end(anna: httpx2.Client) -> None:
    run = begun(anna, seed=3)
    found = records(anna, run)
    assert list(found) == list(range(len(found)))
    first, last = found[0], found[len(found) - 1]
    assert (first["kind"], first["run"], first["names"]) == ("begin", run, ["Alice", "Bob"])
    assert first["listens"] is True
    assert (last["kind"], last["error"]) == ("end", None)
    assert last["usage"]["manyhands"]["passes"] >= 50
    account = account_of(first)
    kinds, passes, times = [], [], []
    for record in list(found.values())[1:-1]:
        passes.append(record["pass"])
        times.append(record["time"])
        counted = [
            e["usage"]["forward_passes"] for e in record["events"] if e["event"] == "UsageCounted"
        ]
        assert counted in ([], [record["pass"]])
        for line in record["events"]:
            kinds.append(line["event"])
            account.take(from_line(line))
    assert passes == sorted(set(passes)), "one record for a pass"
    assert all(isinstance(number, int) for number in passes)
    assert times == sorted(times)
    assert 0 <= times[0] < times[-1] <= last["time"] < 20
    assert {"ViewsChanged", "TokenWritten", "StepEnded", "UsageCounted"} <= set(kinds)
    assert [kind for kind in kinds if kind in ("Queued", "Admitted")] == ["Queued", "Admitted"]
    assert [step.text for step in account.steps()] == [s["text"] for s in last["answer"]["steps"]]
    assert records(anna, run) == found  # once more, when it is over
    told = anna.get(f"/v1/runs/{run}").json()
    assert (told["status"], told["end"]) == ("done", last)


def test_a_run_is_found_where_its_location_says_behind_a_prefix_too(anna: httpx2.Client) -> None:
    answer = anna.post("/v1/runs", json={"problem": "3+4", "budget": 1})
    place, run = answer.headers["location"], answer.json()["id"]
    assert urljoin("http://here/v1/runs", place) == f"http://here/v1/runs/{run}"
    assert urljoin("http://here/ai/v1/runs", place) == f"http://here/ai/v1/runs/{run}"


@pytest.mark.parametrize("size", [3, 200, 201, 1000])
def test_a_list_of_runs_has_the_beginning_of_each_problem(size: int) -> None:
    problem = ("12+" * size)[:size]
    with running(make_house()) as house, client(house) as anybody:
        run = begun(anybody, problem=problem, budget=1)
        told = [each["problem"] for each in anybody.get("/v1/runs").json()["data"]]
        whole = records(anybody, run)[0]["problem"]
    assert whole == problem
    assert told == [problem if size <= 200 else problem[:200] + "…"]


def test_a_run_says_that_its_model_was_not_made_for_the_question() -> None:
    house = make_house()
    told: list[tuple[str, int, str]] = []

    def outside(*asked: Any) -> str | None:
        told.append(asked)
        return "Poems are none of it." if "poem" in asked[0] else None

    house.front.served = replace(house.front.served, outside=outside)
    with running(house), httpx2.Client(base_url=house.url) as anybody:
        warnings = [
            records(anybody, begun(anybody, problem=problem, budget=2))[0]["warning"]
            for problem in ("a poem", "3+4")
        ]
    assert warnings == ["Poems are none of it.", None]
    assert told == [("a poem", 2, "hogwild"), ("3+4", 2, "hogwild")]


@pytest.mark.parametrize("way", ["header", "query"])
def test_a_reader_goes_on_where_it_was(anna: httpx2.Client, way: str) -> None:
    run = begun(anna, seed=4)
    seen: dict[int, dict[str, Any]] = {}
    while not seen or seen[max(seen)]["kind"] != "end":
        after = str(max(seen, default=-1))
        asked: dict[str, Any] = {"headers": {"Last-Event-ID": after}}
        if way == "query":
            asked = {"params": {"after": after}}
        piece = records(anna, run, most=7, **asked)
        assert not set(piece) & set(seen)
        seen |= piece
    assert seen == records(anna, run)


def test_a_person_may_speak_at_once(anna: httpx2.Client) -> None:
    """Before the run has begun, too: it hears that before its first pass. Of a method that does not listen nothing is taken."""
    word = {"item": "Said", "text": "Try it mod 7.", "author": "Dana"}
    for _ in range(8):
        run = begun(anna, budget=4000)
        said = anna.post(f"/v1/runs/{run}/messages", json=word)
        assert said.status_code == 202, said.text
        assert anna.post(f"/v1/runs/{run}/messages", json={"item": "AnswerNow"}).status_code == 202
        found = json.dumps(list(records(anna, run).values()))
        assert "Try it mod 7." in found
    asked = {"problem": "3+4", "method": "sequential", "budget": 400}
    deaf = anna.post("/v1/runs", json=asked).json()["id"]
    answer = anna.post(f"/v1/runs/{deaf}/messages", json=word)
    assert (answer.status_code, "does not listen" in answer.text) == (400, True)
    anna.delete(f"/v1/runs/{deaf}")


def test_words_to_a_run_that_waits_are_bounded() -> None:
    """A client could have the server keep as many as it liked. Words that were taken are heard when the run begins."""
    word = {"item": "Said", "text": "1 " * 44_999 + "11", "author": "Dana"}
    slow = make_house(Model(seconds=0.01), live_runs=1, waiting_runs=1)
    with running(slow) as house, client(house) as anna:
        first, run = begun(anna, budget=4000), begun(anna, budget=20)
        url = f"/v1/runs/{run}/messages"
        statuses = [anna.post(url, json=word).status_code for _ in range(4)]
        assert statuses == [202] * 4
        refused = anna.post(url, json=word)
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "2")
        error = refused.json()["error"]
        assert error["type"] == "rate_limit_error"
        assert (
            "450520 characters would wait to be heard by the run; expected at most 400000"
            in error["message"]
        )
        assert "once the run has heard what waits" in error["message"]
        anna.delete(f"/v1/runs/{first}")
        assert soon(lambda: anna.post(url, json={"item": "AnswerNow"}).status_code == 202)
        found = json.dumps(list(records(anna, run).values()))
        assert found.count("RequestRefused") + found.count("PersonSpoke") >= 4


def test_a_person_speaks_and_workers_come_and_go(anna: httpx2.Client) -> None:
    run = begun(anna, budget=4000)
    records(anna, run, most=3)

    def say(status: int = 202, **item: Any) -> dict[str, Any]:
        answer = anna.post(f"/v1/runs/{run}/messages", json=item)
        assert answer.status_code == status, answer.text
        return answer.json()  # type: ignore[no-any-return]

    say(item="Said", text="Try it mod 7.", author="Dana")
    say(item="AddWorker", name="Zoe")
    say(item="PauseWorker", worker=0)
    for wrong in (
        {"item": "Sing"}, {}, {"item": "Said", "text": "", "author": "Dana"}, {"item": "Said"},
        {"item": "Said", "text": "a", "author": "x\ny"}, {"item": "PauseWorker", "worker": True},
        {"item": "PauseWorker", "worker": 0, "more": 1}, {"item": ["Said"]},
    ):  # fmt: skip
        assert say(400, **wrong)["error"]["type"] == "invalid_request_error"
    for wrong, named in (
        ({"item": "Said"}, "Said lacks text, author"),
        ({"item": "PauseWorker", "name": "Bob"}, "no field 'name'; its fields are worker"),
    ):
        assert named in say(400, **wrong)["error"]["message"]
    say(item="AnswerNow")
    found = records(anna, run)
    lines = [line for r in found.values() if r["kind"] == "pass" for line in r["events"]]
    said = [
        line for line in lines if line["event"] == "StepEnded" and line["text"] == "Try it mod 7."
    ]
    assert len(said) == 1
    joined = [
        (line["name"], line["is_person"]) for line in lines if line["event"] == "WorkerJoined"
    ]
    assert joined == [("Dana", True), ("Zoe", False)]
    assert "WorkerPaused" in {line["event"] for line in lines}
    end = found[max(found)]
    assert end["answer"]["finish_reason"] == "asked"
    say(400, item="AnswerNow")  # it is over


def test_nobody_joins_beyond_the_workers_of_one_request() -> None:
    """By the settings that the trace has, too: whatever runs it again refuses the same."""
    house = make_house(Model(seconds=0.004), request_workers=3)
    with running(house), httpx2.Client(base_url=house.url, timeout=20) as anna:
        run = begun(anna, budget=4000)
        records(anna, run, most=3)
        for item in ({"item": "AddWorker", "name": "Yan"}, {"item": "AddWorker", "name": "Zoe"}):
            assert anna.post(f"/v1/runs/{run}/messages", json=item).status_code == 202
        anna.post(f"/v1/runs/{run}/messages", json={"item": "AnswerNow"})
        found = records(anna, run).values()
        lines = [line for each in found if each["kind"] == "pass" for line in each["events"]]
        assert [line["name"] for line in lines if line["event"] == "WorkerJoined"] == ["Yan"]
        (refused,) = [line["reason"] for line in lines if line["event"] == "RequestRefused"]
        assert refused == "3 workers of the team write; expected at most 3 at the same time"
        lines = [json.loads(line) for line in anna.get(f"/v1/runs/{run}/trace").text.splitlines()]
        assert RunSpec.from_plain(parse_trace(lines).header).settings.most_workers == 3


def test_the_trace_is_a_trace(anna: httpx2.Client) -> None:
    run = begun(anna)
    records(anna, run)
    lines = [json.loads(line) for line in anna.get(f"/v1/runs/{run}/trace").text.splitlines()]
    trace = parse_trace(lines)
    assert trace.is_complete
    assert trace.header["method"] == "hogwild"
    assert trace.header["vocabulary"] == TEXT.vocabulary
    assert {name: trace.header[name] for name in MADE_WITH} == MADE_WITH


def test_the_trace_of_a_run_whose_prompt_was_found_is_whole(anna: httpx2.Client) -> None:
    traces = []
    for _ in range(2):
        run = begun(anna, problem="5+6 and 7+8")
        found = records(anna, run)
        lines = [json.loads(line) for line in anna.get(f"/v1/runs/{run}/trace").text.splitlines()]
        traces.append(parse_trace(lines))
        usage = found[max(found)]["usage"]
        prompt = usage["prompt_tokens"]
        assert traces[-1].num_tokens > prompt, "it is replayed without the tree"
        assert len(traces[-1].passes[0][0].feed) == prompt
    assert usage["prompt_tokens_details"]["cached_tokens"] == prompt, "control"
    assert traces[0].blocks == traces[1].blocks


@pytest.mark.parametrize(
    ("body", "param", "said"),
    [
        ({"problem": " "}, "problem", "the problem is empty, expected some text"),
        ({"workers": "3"}, "workers", "workers is '3'; expected a whole number"),
        ({"foo": 1}, "foo", "body has a field 'foo' that TeamSettings do not have"),
        ({"insertions": []}, "insertions", "insertions can be chosen in Python alone"),
        ({"method": "none"}, "method", "method is 'none'"),
        ({"budget": 10**8}, "budget", "the request may write 200000000 tokens"),
    ],
)
def test_mistakes_are_named_as_a_run_names_its_fields(
    anna: httpx2.Client, body: dict[str, Any], param: str, said: str
) -> None:
    answer = anna.post("/v1/runs", json={"problem": "3+4", **body})
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, param)
    assert error["message"].startswith(said)


def test_a_run_is_ended(house: House, anna: httpx2.Client) -> None:
    run = begun(anna, budget=4000)
    records(anna, run, most=4)
    assert anna.delete(f"/v1/runs/{run}").status_code == 202
    found = records(anna, run)
    end = found[max(found)]
    assert (end["kind"], end["answer"]) == ("end", None)
    assert end["error"]["code"] == "run_cancelled"
    assert soon(lambda: not house.front.runs.live)
    assert anna.get(f"/v1/runs/{run}").json()["status"] == "failed"


def test_a_run_belongs_to_its_key(house: House, anna: httpx2.Client) -> None:
    run = begun(anna, budget=400)
    assert run in {each["id"] for each in anna.get("/v1/runs").json()["data"]}
    with client(house, KEYS[1]) as ben:
        assert run not in {each["id"] for each in ben.get("/v1/runs").json()["data"]}
        for method, path in (
            ("GET", ""), ("GET", "/events"), ("GET", "/trace"), ("DELETE", ""), ("POST", "/messages"),
        ):  # fmt: skip
            answer = ben.request(method, f"/v1/runs/{run}{path}", json={"item": "AnswerNow"})
            assert f"there is no run '{run}'" in answer.json()["error"]["message"]
            assert (answer.status_code, answer.json()["error"]["code"]) == (404, "run_not_found")
    assert anna.get(f"/v1/runs/{run}").json()["status"] == "running"
    anna.delete(f"/v1/runs/{run}")


def test_old_runs_are_forgotten(house: House, anna: httpx2.Client) -> None:
    runs = [begun(anna, budget=1, workers=1) for _ in range(24)]
    assert soon(lambda: not house.front.runs.live)
    known = {each["id"] for each in anna.get("/v1/runs").json()["data"]}
    assert len(known) == 20
    assert runs[-1] in known
    assert runs[0] not in known


def test_a_reader_that_is_too_slow_is_told_what_it_missed() -> None:
    with running(make_house(max_events=20)) as house, httpx2.Client(base_url=house.url) as anybody:
        run = begun(anybody, budget=200)
        assert soon(lambda: not house.front.runs.live)
        found = records(anybody, run)
    assert [record["kind"] for record in found.values()][:2] == ["begin", "missed"]
    numbers = list(found)
    assert found[numbers[1]]["count"] == numbers[1] == numbers[2] - 1
    assert numbers[2:] == list(range(numbers[2], numbers[-1] + 1))


def test_a_bad_place_to_go_on_from_is_refused(anna: httpx2.Client) -> None:
    run = begun(anna, budget=1)
    for wrong in ("x", "1.5", "--1", "٣"):
        assert anna.get(f"/v1/runs/{run}/events", params={"after": wrong}).status_code == 400
    time.sleep(0)
