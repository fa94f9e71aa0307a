"""Logs of Inspect, read back with its own library where that is installed: `pip install -e '.[inspect]'`."""

from __future__ import annotations

import errno
import json
import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from manyhands.errors import InvalidRequest, OutputFailed
from manyhands.evaluation.inspect_logs import _behind, _moment, write_inspect_logs
from manyhands.evaluation.record import read_results
from manyhands.evaluation.summary import Summary
from tests.cli.conftest import Cli
from tests.evaluation.small import header, record, team_record, write
from tests.evaluation.test_report import votes_on

BUDGETS = (4, 8)


def exam(folder: Path) -> Path:
    """A team on two samples, twice; one repeat failed."""
    head = header(
        "hogwild-2",
        method="hogwild",
        budgets=BUDGETS,
        date="2026-11-23T17:00:00+0100",
        versions={"torch": "2.11"},
        task_options={"seed": 3, "kind": None},
    )
    found = [
        team_record("d1", budgets=BUDGETS, gold=["2", 3]),
        team_record("d1", repeat=1, budgets=BUDGETS, value=0.0, gold=["2", 3], names={"1": "Eve"}),
        record("d2", budgets=BUDGETS, finish_reason="budget", gold=None),
        replace(
            record("d2", 0.0, repeat=1, budgets=BUDGETS, error="no room", gold=None),
            text="",
            tokens=(),
        ),
    ]
    return write(folder, head, found)


def test_without_the_library_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli
) -> None:
    exam(tmp_path)
    monkeypatch.setitem(sys.modules, "inspect_ai.log", None)
    monkeypatch.setitem(sys.modules, "inspect_ai", None)
    result = cli("report", tmp_path, "--inspect", tmp_path / "logs")
    assert result.exit_code == InvalidRequest.exit_code
    assert "which is not installed" in result.stderr
    assert "pip install '.[inspect]'" in result.stderr
    assert not (tmp_path / "logs").exists()
    assert not (tmp_path / "report.html").exists(), "it is said before anything is made"


@pytest.mark.parametrize(
    "date", ["yesterday", "9999-12-31T23:59:59-0100", "0001-01-01T00:00+01:00"]
)
def test_a_date_that_is_none(date: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"has the date '.*; expected one as 2026"):
        _moment(header(date=date), tmp_path)


@pytest.mark.parametrize("seconds", [1e12, 1e17])
def test_an_exam_that_took_longer_than_there_are_dates(seconds: float, tmp_path: Path) -> None:
    began = _moment(header(date="2026-11-23T17:00:00+0100"), tmp_path)
    with pytest.raises(InvalidRequest, match="no date lies so far ahead"):
        _behind(began, seconds, tmp_path)


class TestWithTheLibrary:
    """Skipped where it is missing: it brings forty packages, and takes seconds to import."""

    @pytest.fixture(autouse=True)
    def needs_it(self) -> None:
        pytest.importorskip("inspect_ai", reason="inspect_ai is not installed: the extra `inspect`")

    def test_a_log_holds_what_the_records_say(self, tmp_path: Path) -> None:
        from inspect_ai.log import list_eval_logs, read_eval_log

        path = exam(tmp_path / "exam")
        (written,) = write_inspect_logs(tmp_path / "exam", tmp_path / "logs")
        assert written == tmp_path / "logs" / "doubles" / "hogwild-2.eval"
        assert [Path(info.name).name for info in list_eval_logs(str(tmp_path / "logs"))] == [
            "hogwild-2.eval"
        ]
        log = read_eval_log(str(written))
        assert (log.status, log.eval.task, log.eval.model) == ("success", "doubles", "tiny")
        assert log.eval.created == "2026-11-23T16:00:00+00:00"
        assert log.stats.completed_at == "2026-11-23T16:00:04+00:00", "four seconds in all"
        assert log.eval.task_args == {"seed": 3}
        assert (log.eval.solver, log.eval.solver_args) == ("hogwild-2", {"budget": 8})
        assert log.eval.packages == {"torch": "2.11"}
        assert log.eval.metadata is not None
        assert log.eval.metadata["method"] == "hogwild"

        summary = Summary.of(read_results(path))
        assert log.results is not None
        assert (log.results.total_samples, log.results.completed_samples) == (4, 3)
        told = {
            score.name: {name: metric.value for name, metric in score.metrics.items()}
            for score in log.results.scores
        }
        assert told == {
            f"budget {point.budget}": {
                "mean": point.value.mean,
                "low": point.value.low,
                "high": point.value.high,
            }
            for point in summary.curve
        }
        assert told["budget 8"]["mean"] == 0.5

        assert log.samples is not None
        assert [(one.id, one.epoch) for one in log.samples] == [
            ("d1", 1),
            ("d2", 1),
            ("d1", 2),
            ("d2", 2),
        ]
        first, third, second, failed = log.samples
        assert (first.input, first.target, third.target) == ("Twice d1?", ["2", "3"], "")
        assert [message.text for message in first.messages] == ["Twice d1?", "It is 2."]
        assert (first.output.completion, first.output.stop_reason) == ("It is 2.", "stop")
        assert third.output.stop_reason == "max_tokens"
        assert first.scores is not None
        assert {name: score.value for name, score in first.scores.items()} == {
            "budget 4": 1.0,
            "budget 8": 1.0,
        }
        score = first.scores["budget 8"]
        assert (score.answer, score.explanation) == ("2", "right")
        assert score.metadata == {"passes": 8, "tokens": 16, "seconds": 0.8}
        assert first.metadata["memory"] == {"kv_tokens": 64, "kv_bytes": 6400}
        assert not {"question", "text", "writing"} & first.metadata.keys()
        assert first.model_usage["tiny"].output_tokens == 16
        assert [(event.source, event.data) for event in first.events] == [
            ("Alice, step 1, passes 1 to 3", "I double it."),
            ("Bob, step 1, passes 1 to 4", "I check."),
            ("Alice, step 2, passes 4 to 6, asked whether it is redundant", "It is 2."),
        ]
        assert second.events[1].source == "Eve, step 1, passes 1 to 4"
        assert failed.error is not None
        assert failed.error.message == "no room"
        assert first.error is None

    def test_values_that_wait_for_a_judge_are_left_out_until_it_has_judged(
        self, tmp_path: Path
    ) -> None:
        from inspect_ai.log import read_eval_log

        facts = {"judge": "quality", "reference": "Plan."}
        path = write(tmp_path, header(), [record("d0", 0.0, facts=facts)])
        (written,) = write_inspect_logs(tmp_path, tmp_path / "logs")
        log = read_eval_log(str(written))
        assert log.results is not None
        assert log.results.scores == []
        assert log.samples is not None
        assert not log.samples[0].scores
        with votes_on(path) as file:
            vote = {"kind": "vote", "sample": "d0", "repeat": 0, "vote": 0, "value": 3}
            file.append(vote)
        (written,) = write_inspect_logs(tmp_path, tmp_path / "logs")
        again = read_eval_log(str(written))
        assert again.samples is not None
        assert again.samples[0].scores is not None
        assert again.samples[0].scores["budget 8"].value == 0.5
        assert again.eval.eval_id == log.eval.eval_id, "the same log, written over"

    def test_a_log_on_a_full_disk_is_the_one_that_was_there(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        exam(tmp_path / "exam")
        (written,) = write_inspect_logs(tmp_path / "exam", tmp_path / "logs")
        before = written.read_bytes()

        def full(file: Path) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr("manyhands.schema.whole.bring_to_disk", full)
        with pytest.raises(OutputFailed, match="No space left on device"):
            write_inspect_logs(tmp_path / "exam", tmp_path / "logs")
        assert written.read_bytes() == before
        assert os.listdir(written.parent) == [written.name]

    def test_the_command_says_what_it_wrote(self, tmp_path: Path, cli: Cli) -> None:
        exam(tmp_path)
        result = cli("report", tmp_path, "--inspect", tmp_path / "logs")
        assert result.exit_code == 0
        assert str(tmp_path / "logs" / "doubles" / "hogwild-2.eval") in result.stdout
        in_the_way = tmp_path / "file"
        in_the_way.write_text(json.dumps({}), encoding="utf-8")
        with pytest.raises(OutputFailed, match="Not a directory") as error:
            write_inspect_logs(tmp_path, in_the_way)
        assert "--inspect" in str(error.value.hint)
