"""Judges: what they read, how they are read, and that no vote is dropped."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from manyhands.errors import InvalidRequest
from manyhands.evaluation.endpoint import Endpoint, EndpointOptions
from manyhands.evaluation.judge import (
    RUBRICS,
    Judging,
    NothingToJudge,
    judge,
    judged_records,
    read_level,
    transcript,
    votes_file,
    with_judgements,
)
from manyhands.evaluation.record import EXAM_LINES, Key, Record, read_results
from manyhands.evaluation.seeds import seed_of
from manyhands.evaluation.voices import EndpointVoice, EngineVoice, judge_spec
from manyhands.prompts.judging import JudgingPrompt
from manyhands.schema.lines import read_lines
from tests.evaluation.small import (
    TEXT,
    completion,
    engine,
    header,
    record,
    server,
    team_record,
    write,
)


def judging(url: str, rubric: str = "collaborativeness", **more: Any) -> Judging:
    door = Endpoint(EndpointOptions(url, "m", retries=0, timeout=30))
    return Judging(RUBRICS[rubric], JudgingPrompt(), EndpointVoice(door), {"judge": "m"}, **more)


@pytest.mark.parametrize(
    ("said", "level"),
    [
        ("Since … \\boxed{3}", 3),
        ("Not \\boxed{2}, rather \\boxed{ 5 }", 5),
        ("\\boxed{level 4}", 4),
        ("\\boxed{4/6}", 4),
        ("\\boxed{4.0}", 4),
        ("\\boxed{7}", None),
        ("\\boxed{0}", None),
        ("\\boxed{3.5}", None),
        ("\\boxed{good}", None),
        (f"\\boxed{{{'9' * 400}}}", None),
        (f"\\boxed{{{'9' * 5000}.5}}", None),
        ("I would say 4.", None),
        ("", None),
    ],
)
def test_a_level_is_read_from_the_last_box(said: str, level: int | None) -> None:
    assert read_level(said, 6) == level


def test_a_judge_reads_one_worker_after_the_other() -> None:
    spoken = transcript(team_record(), ("Alice", "Bob"))
    assert spoken == "## Alice\n\nI double it.\n\nIt is 2.\n\n## Bob\n\nI check."


def test_a_judge_reads_what_a_worker_was_asked(tmp_path: Path) -> None:
    """The question stands before the answer to it, in the words of the exam's own prompt."""
    head = header("team", method="hogwild", prompts={"redundancy_check": " Is this redundant?"})
    path = write(tmp_path, head, [team_record("d1")])
    with server(lambda asked: completion("\\boxed{4}")) as (url, seen):
        list(judge(judging(url), read_results(path)))
    told = seen[0]["messages"][0]["content"]
    assert "I double it.\n\nIs this redundant? It is 2.\n\n## Bob\n\nI check." in told


def test_three_votes_are_averaged_and_none_is_dropped(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        header("team", method="hogwild"),
        [team_record("d1"), team_record("d2"), record("solo")],
    )
    said = "\\boxed{4}", "\\boxed{3}", "bla bla"
    votes = {seed_of(n, name, 0): vote for name in ("d1", "d2") for n, vote in enumerate(said)}
    assert len(votes) == 6, "no two votes are drawn alike"
    with server(lambda asked: completion(votes[asked["seed"]])) as (url, seen):
        last = list(judge(judging(url), read_results(path)))[-1]
    assert (last.done, last.total, last.unread) == (6, 6, 2)
    assert "## Bob\n\nI check." in seen[0]["messages"][0]["content"]
    assert "Twice d" in seen[0]["messages"][0]["content"]
    found = with_judgements(read_results(path)).records
    judgement = {"value": 3.5, "votes": [4, 3, None], "unread": 1, "highest": 6}
    assert [r.judgements.get("collaborativeness") for r in found] == [judgement, judgement, None]
    _, *lines = read_lines(votes_file(path, "collaborativeness"), EXAM_LINES)
    assert sum(line["text"] == "bla bla" for line in lines) == 2


def test_judging_goes_on_and_tries_again_only_if_asked(tmp_path: Path) -> None:
    path = write(tmp_path, header("team", method="hogwild"), [team_record("d1"), team_record("d2")])
    replies = ["\\boxed{4}", "nonsense"] + ["\\boxed{2}"] * 9
    with server(lambda asked: completion(replies.pop(0))) as (url, seen):
        moments = judge(judging(url), read_results(path))
        for moment in moments:
            if moment.done == 2:
                break
        moments.close()  # type: ignore[attr-defined]
        asked = len(read_lines(votes_file(path, "collaborativeness"), EXAM_LINES)) - 1
        list(judge(judging(url), read_results(path)))
        assert len(read_lines(votes_file(path, "collaborativeness"), EXAM_LINES)) == 1 + 6
        assert asked == 2
        before = len(seen)
        assert list(judge(judging(url), read_results(path)))[-1].unread <= 1
        assert len(seen) == before
        last = list(judge(judging(url, retry=True), read_results(path)))[-1]
        assert last.unread == 0


def test_a_judge_that_fails_is_on_record(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        header("x", method="hogwild"),
        [record("d1", facts={"reference": "Two, of course."})],
    )
    with server(lambda asked: (400, {"error": {"message": "no"}})) as (url, seen):
        last = list(judge(judging(url, "quality"), read_results(path)))[-1]
    assert last.unread == 1
    assert "Two, of course." in seen[0]["messages"][0]["content"]
    _, line = read_lines(votes_file(path, "quality"), EXAM_LINES)
    assert line["value"] is None
    assert "400" in line["error"]
    (found,) = with_judgements(read_results(path)).records
    assert found.judgements["quality"]["value"] is None


def test_another_judge_does_not_share_a_file(tmp_path: Path) -> None:
    path = write(tmp_path, header("x", method="hogwild"), [record("d1")])
    with server(lambda asked: completion("\\boxed{5}")) as (url, _):
        list(judge(judging(url, "quality"), read_results(path)))
        other = judging(url, "quality")
        with pytest.raises(InvalidRequest, match='made with judge "m"; this run has "n"'):
            list(
                judge(
                    Judging(other.rubric, other.prompt, other.voice, {"judge": "n"}),
                    read_results(path),
                )
            )


def test_what_a_record_with_votes_costs_does_not_grow_with_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each looked through the votes on all: of 2 000 records that took a report 1.26 s, and takes 0.04 now (two cores, not committed)."""
    path = write(tmp_path, header("x", method="hogwild"), [record(f"d{n}") for n in range(40)])
    with server(lambda asked: completion("\\boxed{4}")) as (url, _):
        list(judge(judging(url, "quality"), read_results(path)))
    results, looks = read_results(path), 0

    def counted(record: Record) -> Key:
        nonlocal looks
        looks += 1
        return record.sample, record.repeat

    monkeypatch.setattr(Record, "key", property(counted))
    assert all(each.judgements for each in with_judgements(results).records)
    assert looks <= 2 * len(results.records)


def test_our_own_engine_as_a_judge(tmp_path: Path) -> None:
    path = write(tmp_path, header("x", method="hogwild"), [record("d1"), record("d2")])
    for said, level in (("Fine. \\boxed{4}", 4), ("Fine, I think", 5)):  # the finisher says 5
        voice = EngineVoice(engine(said), TEXT, judge_spec(40, 0.0))
        voted = Judging(RUBRICS["quality"], JudgingPrompt(), voice, {"judge": said})
        assert list(judge(voted, read_results(path)))[-1].unread == 0
        file = votes_file(path, "quality")
        assert [line["value"] for line in read_lines(file, EXAM_LINES)[1:]] == [level, level]
        file.unlink()


def test_what_cannot_be_judged(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        header("x", method="hogwild"),
        [record("d1"), team_record("d2", error="no", value=0.0)],
    )
    with pytest.raises(InvalidRequest, match="nothing to be judged for collaborativeness"):
        judged_records(RUBRICS["collaborativeness"], read_results(path))
    assert len(judged_records(RUBRICS["quality"], read_results(path))) == 1


@pytest.mark.parametrize(
    ("vote", "said"),
    [
        ('{"kind": "vote", "value": "much"}', "it is no vote"),
        ('{"kind": "vote", "value": 1, "sample": "d1", "repeat": 1e999, "vote": 0}', "infinity"),
    ],
)
def test_a_malformed_vote_is_named(tmp_path: Path, vote: str, said: str) -> None:
    path = write(tmp_path, header("x", method="hogwild"), [record("d1")])
    file = votes_file(path, "quality")
    file.parent.mkdir(parents=True)
    file.write_text(f'{{"schema": 1, "kind": "header"}}\n{vote}\n')
    with pytest.raises(InvalidRequest, match=rf"line 2 of .*: .*{said}"):
        with_judgements(read_results(path))


@pytest.mark.parametrize(
    ("method", "settings", "told", "untold"),
    [
        ("hogwild", {"layout": "combined"}, "every word of the others", "none could"),
        ("hogwild", {"layout": "interleaved"}, "that others had finished", "every word"),
        ("self_consistency", {}, "none could read what another wrote", "every word"),
        ("async_reasoning", {}, "every word of the others", "none could"),
        ("of my own", {}, "every word of the others", "none could"),
    ],
)
def test_a_judge_is_told_what_the_workers_could_read(
    tmp_path: Path, method: str, settings: dict[str, object], told: str, untold: str
) -> None:
    path = write(tmp_path, header("x", method=method, settings=settings), [team_record("d1")])
    with server(lambda asked: completion("\\boxed{4}")) as (url, seen):
        list(judge(judging(url), read_results(path)))
    message = seen[0]["messages"][0]["content"]
    assert told in message
    assert untold not in message


@pytest.mark.parametrize(
    "method", ["branches", "skeleton", "sequential", "profiled", "async_think"]
)
def test_parts_of_one_text_are_no_team_to_be_judged(tmp_path: Path, method: str) -> None:
    path = write(tmp_path, header("x", method=method), [team_record("d1")])
    with pytest.raises(NothingToJudge, match=f"of the method {method}, which has parts"):
        judged_records(RUBRICS["collaborativeness"], read_results(path))
    assert judged_records(RUBRICS["quality"], read_results(path))


def test_a_vote_counts_for_the_answer_on_which_it_was_cast(tmp_path: Path) -> None:
    """An exam that was begun anew under the same label leaves the votes on the earlier one beside it."""
    head = header("x", method="hogwild")
    votes = ["\\boxed{5}", "\\boxed{4}", "\\boxed{2}"]
    with server(lambda asked: completion(votes.pop(0))) as (url, seen):
        path = write(tmp_path, head, [record("d1", text="It is 2."), record("d2", text="4")])
        list(judge(judging(url, "quality"), read_results(path)))
        assert votes == ["\\boxed{2}"]
        path.unlink()
        path = write(tmp_path, head, [record("d1", text="I do not know."), record("d2", text="4")])
        first, second = with_judgements(read_results(path)).records
        assert "quality" not in first.judgements
        assert second.judgements["quality"]["value"] is not None
        last = list(judge(judging(url, "quality"), read_results(path)))[-1]
    assert (last.done, last.total, len(seen)) == (2, 2, 3)
    first, second = with_judgements(read_results(path)).records
    assert first.judgements["quality"]["votes"] == [2]


def test_votes_from_before_they_said_what_they_are_on_still_count(tmp_path: Path) -> None:
    path = write(tmp_path, header("x", method="hogwild"), [record("d1")])
    with server(lambda asked: completion("\\boxed{4}")) as (url, seen):
        list(judge(judging(url, "quality"), read_results(path)))
        file = votes_file(path, "quality")
        head, vote = map(json.loads, file.read_text().splitlines())
        del vote["of"]
        file.write_text("".join(json.dumps(line) + "\n" for line in (head, vote)))
        list(judge(judging(url, "quality"), read_results(path)))
        assert len(seen) == 1
    (found,) = with_judgements(read_results(path)).records
    assert found.judgements["quality"]["value"] == 4


@pytest.mark.parametrize(
    ("highest", "value", "said"),
    [
        ("5", 0, "line 2 of .* no vote for a level from 1 to 5"),
        ("5", 6, "line 2 of .* no vote for a level from 1 to 5"),
        ("1", 1, "line 1 of .* its highest level is 1; expected a whole number, 2 or more"),
        ("null", 1, "line 1 of .* its highest level is None"),
        ("true", 1, "line 1 of .* its highest level is True"),
    ],
)
def test_a_level_beyond_the_rubric_is_no_level(
    tmp_path: Path, highest: str, value: int, said: str
) -> None:
    """It would make a value below 0 or above 1."""
    path = write(
        tmp_path, header("x", method="hogwild"), [record("d1", facts={"judge": "quality"})]
    )
    file = votes_file(path, "quality")
    file.parent.mkdir(parents=True)
    first = f'{{"schema": 1, "kind": "header", "highest": {highest}}}'
    vote = {"kind": "vote", "value": value, "sample": "d1", "repeat": 0, "vote": 0}
    file.write_text(f"{first}\n{json.dumps(vote)}\n")
    with pytest.raises(InvalidRequest, match=said):
        with_judgements(read_results(path))
