"""Agreement between a judge and human labels: figures, unscored turns, bad files, and judges that ask a server."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from nextturn.probe.errors import BadInput, DataError
from nextturn.probe.judges.labels import LABELS, Case, Verdict
from nextturn.probe.judges.llm import prompt
from nextturn.probe.labels import agreement as module
from nextturn.probe.labels.agreement import LabelledTurn, agreement, format_agreement, read_labelled
from support.commands import start
from support.judged_turns import TURNS, labelled_rows
from support.loopback import Faults, Loopback, Seen, chat_reply, models_reply

ROOT = Path(__file__).resolve().parents[2]


class Fixed:
    """Gives the verdicts it was told; stands for any judge, right, wrong or silent."""

    name, version, calls = "fixed", "fixed/1", 0

    def __init__(self, *labels: str | None) -> None:
        self.labels = labels

    def stream(self, cases: Sequence[Case], known: Sequence[Verdict] = ()) -> Iterator[tuple[int, Verdict]]:
        """Last case first: whoever reads must go by the index."""
        for index, label in reversed(list(enumerate(self.labels))):
            yield index, Verdict(label, None if label else "timeout", "")


def row(label: str, conversation: str = "a", turn: str = "why?") -> LabelledTurn:
    messages = ({"role": "user", "content": conversation}, {"role": "assistant", "content": "Because."})
    return LabelledTurn(Case(messages, turn), label, conversation)


def command(*arguments: str) -> None:
    parser = argparse.ArgumentParser()
    module.add_arguments(parser)
    module.run(parser.parse_args(arguments))


def write_turns(path: Path, rows: Sequence[dict[str, object]]) -> Path:
    path.write_text("".join(json.dumps(each) + "\n" for each in rows))
    return path


def test_kappa_and_accuracy_of_a_table_worked_by_hand() -> None:
    # 20 both yes, 5 human only, 10 judge only, 15 neither: observed .70, by chance .50, kappa .40.
    human = ["genuine_followup"] * 25 + ["new_task"] * 25
    judged = ["genuine_followup"] * 20 + ["new_task"] * 5 + ["genuine_followup"] * 10 + ["new_task"] * 15
    found = agreement([row(label, str(index)) for index, label in enumerate(human)], Fixed(*judged))
    assert found["binary"]["kappa"] == pytest.approx(0.4)
    assert found["binary"]["accuracy"] == pytest.approx(0.7)
    low, high = found["binary"]["ci95"]
    assert low < 0.4 < high
    assert {label: of["judged_as"] for label, of in found["labels"].items()} == {
        "genuine_followup": {"genuine_followup": 20, "new_task": 5},
        "new_task": {"genuine_followup": 10, "new_task": 15},
    }


def test_unscored_turns_are_left_out_and_counted_by_reason() -> None:
    rows = [row("genuine_followup", "a"), row("genuine_followup", "b"), row("new_task", "c")]
    found = agreement(rows, Fixed("genuine_followup", None, "new_task"))
    assert (found["n"], found["unscored"]) == (3, {"timeout": 1})
    assert found["binary"]["accuracy"] == 1
    assert found["n_scored"] == 2
    nothing = agreement([row("new_task")], Fixed(None))
    assert nothing["binary"]["kappa"] is None and nothing["binary"]["accuracy"] is None, "no figure instead of a zero"
    assert "not defined" in format_agreement(nothing)


def test_precision_and_recall_of_a_label_worked_by_hand() -> None:
    human = ["genuine_followup"] * 8 + ["new_task"] * 2
    judged = ["genuine_followup"] * 6 + ["new_task"] * 4
    found = agreement([row(label, str(i)) for i, label in enumerate(human)], Fixed(*judged))["labels"]
    assert set(found) == {"genuine_followup", "new_task"}
    genuine, new_task = found["genuine_followup"], found["new_task"]
    assert (genuine["human"], genuine["judge"], genuine["precision"], genuine["recall"]) == (8, 6, 1.0, 0.75)
    assert (new_task["human"], new_task["judge"], new_task["precision"], new_task["recall"]) == (2, 4, 0.5, 1.0)
    # Wilson's bounds for 6 of 8 and for 2 of 4.
    assert genuine["recall_ci95"] == pytest.approx([0.4093, 0.9285], abs=1e-4)
    assert new_task["precision_ci95"] == pytest.approx([0.15, 0.85], abs=1e-3)
    one_sided = agreement([row("new_task", "a"), row("new_task", "b")], Fixed("role_drift", "new_task"))["labels"]
    assert [one_sided["role_drift"][name] for name in ("precision", "recall", "recall_ci95")] == [0.0, None, None]
    assert new_task["judged_as"] == {"new_task": 2} and genuine["judged_as"] == {"genuine_followup": 6, "new_task": 2}


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        ({"user_turn": "x", "label": "new_task"}, "messages"),
        ({"messages": [{"role": "user", "content": "q"}], "user_turn": "x", "label": "new_task"}, "assistant"),
        ({"messages": [{"role": "assistant", "content": "a"}], "user_turn": 3, "label": "new_task"}, "user_turn"),
        ({"messages": [{"role": "assistant", "content": "a"}], "user_turn": "x", "label": "good"}, "'good'"),
        ({"messages": [{"role": "assistant", "content": "a"}], "user_turn": "x", "label": ["new_task"]}, "label"),
        ({"messages": ["a"], "user_turn": "x", "label": "new_task"}, "messages"),
    ],
)
def test_a_bad_row_is_named_by_file_and_line(tmp_path: Path, broken: dict[str, object], said: str) -> None:
    path = write_turns(tmp_path / "labels.jsonl", [labelled_rows()[0], broken])
    with pytest.raises(DataError, match=f"labels.jsonl:2: .*{said}"):
        read_labelled(path)


def test_an_empty_or_missing_file_is_bad_input(tmp_path: Path) -> None:
    for path in (write_turns(tmp_path / "empty.jsonl", []), tmp_path / "missing.jsonl"):
        with pytest.raises(DataError, match=path.name):
            read_labelled(path)


def test_the_command_prints_tables_and_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_turns(tmp_path / "labels.jsonl", labelled_rows())
    command(str(path))
    assert "genuine or not" in capsys.readouterr().out
    command(str(path), "--judge", "rules", "--json")
    printed = json.loads(capsys.readouterr().out)
    assert set(printed) == {"judge", "judge_calls", "n", "n_scored", "unscored", "binary", "full", "labels"}
    assert set(printed["binary"]) == {"kappa", "ci95", "accuracy", "accuracy_ci95"}
    assert set(printed["labels"]) == set(LABELS)
    assert printed["labels"]["new_task"]["human"] == len(TURNS["new_task"])
    with pytest.raises(BadInput, match="rules"):
        command(str(path), "--judge", "nobody")


def test_a_judge_that_errs_one_way_is_told_from_one_that_errs_both_ways() -> None:
    """Two models of 40 turns each, read genuine 20 times: kappa is alike, the bias is not."""
    human = ["genuine_followup", "new_task"] * 20
    one_way = ["genuine_followup"] * 20 + ["genuine_followup", "new_task"] * 10  # 10 more
    both_ways = ["new_task", "genuine_followup"] * 5 + ["genuine_followup", "new_task"] * 15  # 5 more, 5 fewer
    rows = [
        LabelledTurn(row(label).case, label, f"{model} {index}", {"model": model, "temperature": 0.7})
        for model in "ab"
        for index, label in enumerate(human)
    ]
    found = agreement(rows, Fixed(*one_way, *both_ways), by=[("model",), ("temperature", "model")])
    whole, a, b, *crossed = found["groups"]
    assert (whole["by"], whole["n"], b["by"]) == ({}, 80, {"model": "b"})
    assert [group["by"] for group in crossed] == [{"temperature": 0.7, "model": model} for model in "ab"]
    assert (b["kappa"], b["bias"]) == (0.5, 0.0)
    # Bonett and Price's bounds of 10 up and 0 down, and of 5 up and 5 down, of 40.
    assert b["bias_ci95"] == pytest.approx([-0.1617, 0.1617], abs=1e-4)
    assert {**a, "ci95": None} == {
        "by": {"model": "a"}, "n": 40, "n_scored": 40, "kappa": 0.5, "ci95": None, "read": 0.5,
        "read_ci95": pytest.approx([0.352, 0.648], abs=1e-4), "judged": 0.75, "judged_ci95": pytest.approx([0.5981, 0.8581], abs=1e-4),
        "bias": 0.25, "bias_ci95": pytest.approx([0.0934, 0.3828], abs=1e-4),
    }  # fmt: skip
    printed = format_agreement(found)
    assert "50.0 [39.3, 60.7] read, 62.5 [" in printed and "judged, bias +12.5 [+1.3, +23.1] points" in printed
    assert " ".join(printed.splitlines()[-1].split()) == "0.7 b 40 0.50 [0.21, 0.72] 50.0 50.0 +0.0 [-16.2, +16.2]"


def test_turns_of_one_conversation_widen_the_interval_of_the_bias() -> None:
    human = ["new_task"] * 40
    judged = ["genuine_followup"] * 10 + ["new_task"] * 30

    def width(turns: int) -> float:
        rows = [row(label, str(index // turns)) for index, label in enumerate(human)]
        low, high = agreement(rows, Fixed(*judged))["groups"][0]["bias_ci95"]
        return high - low

    assert width(1) < width(2) < width(10)


def test_rows_without_a_field_are_a_group_and_an_unknown_field_is_bad_input(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{**one, "temperature": 0.7 * (place % 2), "set": "\x1b[31m"} for place, one in enumerate(labelled_rows())]
    del rows[0]["temperature"]
    path = write_turns(tmp_path / "labels.jsonl", rows)
    command(str(path), "--by", "temperature", "--by", "set")
    printed = capsys.readouterr().out
    of_temperatures = printed.split("\n\n")[-2].splitlines()
    assert [line.split()[0] for line in of_temperatures] == ["temperature", "0.0", "0.7", "-"]
    assert [int(line.split()[1]) for line in of_temperatures[1:]].count(1) == 1
    assert "\x1b" not in printed
    with pytest.raises(BadInput, match="--by sauce: no row of .*; fields to group by: label, set, temperature"):
        command(str(path), "--by", "set,sauce")


# ----- judges that ask a server


def knowing(rows: Sequence[dict[str, object]]) -> Loopback:
    """A server whose judge knows every label but that of the drifting ones, which it calls genuine."""
    labels = {prompt(turn.case): turn.label for turn in map(labelled, rows)}

    def judge(request: Seen) -> dict[str, Any]:
        label = labels[request.body["messages"][0]["content"]]
        return chat_reply(f"VERDICT: {'genuine_followup' if label == 'role_drift' else label}")

    return Loopback({"/chat/completions": judge, "/models": lambda request: models_reply("tiny")})


def labelled(written: dict[str, Any]) -> LabelledTurn:
    return LabelledTurn(Case(tuple(written["messages"]), written["user_turn"]), written["label"], "")


def test_a_judge_behind_a_server_is_measured_and_a_rerun_asks_for_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, kept = write_turns(tmp_path / "labels.jsonl", labelled_rows()), tmp_path / "run" / "verdicts.jsonl"
    with knowing(labelled_rows()) as server:
        options = ["--judge", "llm", "--url", server.url, "--verdicts", str(kept), "--concurrency", "4", "--json"]
        command(str(path), *options)
        first = capsys.readouterr()
        command(str(path), *options)
        second = capsys.readouterr()
        assert sum(request.method == "POST" for request in server.requests) == len(labelled_rows())
    printed, again = json.loads(first.out), json.loads(second.out)
    assert printed["judge"].startswith("llm/") and printed["judge"].endswith(" tiny")
    assert (printed["judge_calls"], again["judge_calls"]) == (len(labelled_rows()), 0)
    assert printed["labels"]["role_drift"]["recall"] == 0 and printed["labels"]["new_task"]["recall"] == 1
    assert 0 < printed["binary"]["kappa"] < 1
    assert {**printed, "judge_calls": 0} == again
    assert "judge llm" in first.err and "turn/s" in first.err, "progress is shown apart from what machines read"


def test_a_killed_run_goes_on_where_it_stopped(tmp_path: Path) -> None:
    rows = labelled_rows()
    path, kept = write_turns(tmp_path / "labels.jsonl", rows), tmp_path / "verdicts.jsonl"
    with knowing(rows) as server:
        server.faults = Faults(latency_s=0.4)  # on a busy machine, too, it is killed before it is done
        arguments = ["agreement", str(path), "--judge", "llm", "--url", server.url, "--verdicts", str(kept)]
        line = ["-m", "nextturn.probe", *arguments, "--model", "tiny", "--concurrency", "2", "--json"]
        killed = start(line)
        while not (kept.exists() and kept.read_bytes().count(b"\n") >= 5):
            assert killed.poll() is None, "the command ended before it could be killed"
            time.sleep(0.01)
        killed.kill()
        written = kept.read_bytes().count(b"\n")
        assert written < len(rows)
        server.faults = Faults()
        shown = subprocess.run([sys.executable, *line], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    printed = json.loads(shown)
    assert printed["n_scored"] == len(rows)
    assert printed["judge_calls"] == len(rows) - written
    assert kept.read_bytes().count(b"\n") == len(rows)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--judge", "llm"], "judge_server"),
        (["--url", "http://localhost:1/v1"], "rules asks no server"),
        (["--judge", "llm", "--url", "localhost"], "localhost"),
        (["--judge", "llm", "--url", "http://localhost:1/v1", "--concurrency", "0"], "concurrency"),
    ],
)
def test_server_options_that_cannot_be_used_are_bad_input(tmp_path: Path, options: list[str], said: str) -> None:
    path = write_turns(tmp_path / "labels.jsonl", labelled_rows())
    with pytest.raises(BadInput, match=said):
        command(str(path), *options)
