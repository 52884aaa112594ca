"""Agreement between a judge and human labels: figures, unscored turns, bad files, and judges that ask a server."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from nextturn.probe.__main__ import main
from nextturn.probe.command.errors import BadInput, DataError
from nextturn.probe.judges.llm import PROMPT_VERSION
from nextturn.probe.judges.verdicts import GENUINE, Case, Verdict
from nextturn.probe.labels.agreement import LabelledTurn, agreement, format_agreement, read_labelled
from support.judged_turns import labelled_rows
from support.label_parts import write_rows
from support.loopback import Loopback, chat_reply, models_reply

ROOT = Path(__file__).resolve().parents[2]
RECIPE = ROOT / "recipes" / "probe.yaml"


class Fixed:
    """A judge with fixed verdicts. It yields the last case first, so readers must go by the index."""

    name, version, calls = "fixed", "fixed/1", 0

    def __init__(self, *labels: str | None) -> None:
        self.labels = labels

    def stream(self, cases: Sequence[Case], known: Sequence[Verdict] = ()) -> Iterator[tuple[int, Verdict]]:
        for index, label in reversed(list(enumerate(self.labels))):
            yield index, Verdict(label, None if label else "timeout", "")


def turns(labels: Sequence[str], size: int = 1, **fields: str | float) -> list[LabelledTurn]:
    """Return turns with these labels, `size` turns to a conversation."""
    messages = ({"role": "user", "content": "Why?"}, {"role": "assistant", "content": "Because."})
    case = Case(messages, "why?")
    return [LabelledTurn(case, label, f"{fields} {index // size}", fields) for index, label in enumerate(labels)]


def test_kappa_and_accuracy_of_a_table_worked_by_hand() -> None:
    # 20 both yes, 5 human only, 10 judge only, 15 neither: observed .70, by chance .50, kappa .40.
    human = [GENUINE] * 25 + ["new_task"] * 25
    judged = [GENUINE] * 20 + ["new_task"] * 5 + [GENUINE] * 10 + ["new_task"] * 15
    report = agreement(turns(human), Fixed(*judged))
    binary, whole = report["binary"], report["groups"][0]
    assert (binary["kappa"], binary["accuracy"]) == (pytest.approx(0.4), pytest.approx(0.7))
    assert binary["ci95"][0] < 0.4 < binary["ci95"][1]
    assert (whole["read"], whole["judged"]) == (0.5, 0.6)
    assert agreement(turns(["new_task"] * 2), Fixed("role_drift", "new_task"))["full"]["accuracy"] == 0.5


def test_unscored_turns_are_left_out_and_counted_by_reason() -> None:
    report = agreement(turns([GENUINE, GENUINE, "new_task"]), Fixed(GENUINE, None, "new_task"))
    assert (report["n"], report["n_scored"], report["unscored"]) == (3, 2, {"timeout": 1})
    assert report["binary"]["accuracy"] == 1
    nothing = agreement(turns(["new_task"]), Fixed(None))
    assert nothing["binary"]["kappa"] is None and nothing["binary"]["accuracy"] is None, "no figure instead of a zero"
    assert "kappa -" in format_agreement(nothing)


def test_a_judge_that_errs_one_way_is_told_from_one_that_errs_both_ways() -> None:
    """Two models of 40 turns each, 20 of them genuine: kappa is the same, the bias is not."""
    human = [GENUINE, "new_task"] * 20
    one_way = [GENUINE] * 20 + [GENUINE, "new_task"] * 10  # 10 more
    both_ways = ["new_task", GENUINE] * 5 + [GENUINE, "new_task"] * 15  # 5 more, 5 fewer
    rows = [turn for model in "ab" for turn in turns(human, model=model, temperature=0.7)]
    report = agreement(rows, Fixed(*one_way, *both_ways), by=("temperature", "model"))
    whole, a, b = report["groups"]
    assert (whole["by"], whole["n"], b["by"]) == ({}, 80, {"temperature": 0.7, "model": "b"})
    assert (b["kappa"], b["bias"]) == (0.5, 0.0)
    # Bonett and Price's bounds of 10 up and 0 down, and of 5 up and 5 down, of 40.
    assert b["bias_ci95"] == pytest.approx([-0.1617, 0.1617], abs=1e-4)
    assert {**a, "ci95": None} == {
        "by": {"temperature": 0.7, "model": "a"}, "n": 40, "n_scored": 40, "kappa": 0.5, "ci95": None, "read": 0.5,
        "read_ci95": pytest.approx([0.352, 0.648], abs=1e-4), "judged": 0.75, "judged_ci95": pytest.approx([0.5981, 0.8581], abs=1e-4),
        "bias": 0.25, "bias_ci95": pytest.approx([0.0934, 0.3828], abs=1e-4),
    }  # fmt: skip
    printed = format_agreement(report)
    assert "50.0 [39.3, 60.7]% read, 62.5 [" in printed and "bias +12.5 [+1.3, +23.1] points" in printed
    assert printed.splitlines()[-1].split()[:4] == ["0.7", "b", "40", "0.50"]


def test_turns_of_one_conversation_widen_the_interval_of_the_bias() -> None:
    def width(size: int) -> float:
        report = agreement(turns(["new_task"] * 40, size), Fixed(*[GENUINE] * 10, *["new_task"] * 30))
        low, high = report["groups"][0]["bias_ci95"]
        return high - low

    assert width(1) < width(2) < width(10)


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"messages": None}, "messages"),
        ({"messages": ["a"]}, "messages"),
        ({"messages": [{"role": "user", "content": "q"}]}, "messages"),
        ({"messages": [{"role": "assistant", "content": None}]}, "messages"),
        ({"user_turn": 3}, "user_turn"),
        ({"label": "good"}, "label"),
        ({"label": ["new_task"]}, "label"),
    ],
)
def test_a_bad_row_is_named_by_file_line_and_key(tmp_path: Path, change: dict[str, object], key: str) -> None:
    first, second, *_ = labelled_rows()
    path = write_rows(tmp_path / "labels.jsonl", [first, {**second, **change}])
    with pytest.raises(DataError, match=f"labels.jsonl:2: {key}"):
        read_labelled(path)


def test_the_command_prints_figures_and_groups(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{**row, "temperature": 0.7 * (number % 2), "set": "\x1b[31m"} for number, row in enumerate(labelled_rows())]
    del rows[0]["temperature"]
    path = str(write_rows(tmp_path / "labels.jsonl", rows))
    main(["agreement", path, "--by", "temperature,set"])
    printed = capsys.readouterr().out
    by_temperature = printed.split("\n\n")[-1].splitlines()
    assert [line.split()[0] for line in by_temperature] == ["temperature", "0.0", "0.7", "-"]
    assert int(by_temperature[3].split()[2]) == 1
    assert "genuine or not" in printed and "\x1b" not in printed
    main(["agreement", path, "--by", "temperature,set", "--json"])
    report = json.loads(capsys.readouterr().out)
    assert [report["n"], *(list(group["by"]) for group in report["groups"])] == [
        len(rows),
        [],
        *[["temperature", "set"]] * 3,
    ]
    for options, problem in (
        (["--by", "set,sauce"], "--by sauce"),
        (["--judge", "nobody"], "'nobody'"),
        (["--judge", "llm"], "judge_server"),
        (["--probe.judge", "llm"], "--probe.judge"),
        ([str(RECIPE), "--probe.judge", "llm"], "judge_server"),
        ([str(RECIPE), "--probe.judge_server", "{urls: [localhost]}"], "localhost"),
    ):
        with pytest.raises(BadInput, match=problem):
            main(["agreement", path, *options])


def test_a_judge_behind_a_server_is_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(write_rows(tmp_path / "labels.jsonl", labelled_rows()))
    replies = {
        "/chat/completions": lambda request: chat_reply("VERDICT: new_task"),
        "/models": lambda request: models_reply("tiny"),
    }
    with Loopback(replies) as server:
        main(["agreement", path, str(RECIPE), "--probe.judge_server", f"{{urls: [{server.url}]}}"])
        assert sum(request.method == "POST" for request in server.requests) == len(labelled_rows())
    printed = capsys.readouterr().out
    assert f"judge llm/{PROMPT_VERSION} tiny: {len(labelled_rows())} turns" in printed
