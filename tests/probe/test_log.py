"""Logs of conversations: repeated turns by rules, every user turn as an item, and figures by depth and column."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from nextturn.probe.__main__ import main
from nextturn.probe.command.errors import DataError
from nextturn.probe.command.files import read_json, read_jsonl, write_jsonl
from nextturn.probe.command.sections import SetSection
from nextturn.probe.data.messages import UNREAD_TOOLS, said_by, take_apart, tools_as_text, user
from nextturn.probe.log import read_log
from nextturn.probe.questions.sets import read_items
from nextturn.probe.report.comparison import compare_runs
from nextturn.probe.report.plot import panels_of
from nextturn.probe.results import load_runs
from nextturn.probe.text.repeats import is_english, repeats, says_so
from support.commands import ROOT
from support.conversations import messages

CALL = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "find", "arguments": {"code": "K7"}}}]}
RESULT = {"role": "tool", "content": '{"state": "packed"}'}
LAMP = messages(
    "My desk lamp Orla flickers since Sunday, what can I do?", "Is it plugged in?",
    "The desk lamp Orla flickers since Sunday, what can I do?", "Please tighten the bulb.",
    "Thanks, the lamp is quiet now.",
)  # fmt: skip


@pytest.mark.parametrize(
    ("turn", "earlier", "reply", "repeated", "says"),
    [
        ("My tent still lacks two poles and a bag!", ["The tent I got lacks two poles and the bag."], "Great, enjoy it!", 1, False),
        ("As I wrote, the tent lacks two poles.", ["Hi.", "Two poles of my tent are missing."], "How can I help?", 2, True),
        ("I told you three times now: no poles.", ["Two poles of my tent are missing."], "How can I help?", None, True),
        ("yes, send the two poles of the tent", ["Two poles of my tent are missing."], "Shall I send two tent poles?", None, False),
        ("Two tent poles on Monday?", ["Two poles of my tent are missing."], "You get two tent poles on Monday.", None, False),
        ("Where is the carpet that I paid for?", ["Two poles of my tent are missing."], "They are on their way.", None, False),
        ("hello?", ["hello?"], "One moment.", None, False),
        ("refund please", ["Refund, please"], "One moment.", 1, False),
        ("You said Monday before, I told my wife so.", ["When does it come?"], "On Tuesday.", None, False),
        ('It shows "as I said before" as the title.', ["The title is wrong."], "What does it show?", None, False),
    ],
)  # fmt: skip
def test_rules_on_repeated_turns(turn: str, earlier: list[str], reply: str, repeated: int | None, says: bool) -> None:
    assert (repeats(turn, earlier, reply), says_so(turn) is not None) == (repeated, says)


def test_only_english_is_read() -> None:
    assert is_english("the order, please") and is_english("K7")
    assert not is_english("wo ist die Lampe, die ich nicht habe") and not is_english("Где моя лампа")


@pytest.mark.parametrize(("talk", "turns", "found"), [(LAMP, 2, ["lamp#2"]), ([LAMP[0], LAMP[1], LAMP[4]], 1, [])])
def test_a_log_with_one_repeated_turn_shows_it(tmp_path: Path, talk: Any, turns: int, found: list[str]) -> None:
    write_jsonl(tmp_path / "log.jsonl", [{"id": "lamp", "when": "2026-11-28T09:00", "messages": talk}])
    main(["log", str(tmp_path / "log.jsonl"), "--out", str(tmp_path / "out"), "--date", "when"])
    report = read_json(tmp_path / "out" / "log.json")
    assert (report["all"]["n"], report["all"]["repeats"]["value"]) == (turns, len(found) / turns)
    assert [row["item"] for row in report["found"]] == found
    assert report["by"]["week"]["2026-W48"]["items"] == {"repeats": found, "as_i_said": []}
    assert report["by"]["depth"]["2"]["repeats"]["value"] == len(found)


def test_the_commands_of_the_page_give_its_figures(tmp_path: Path) -> None:
    """The page's command runs without torch and prints the figures that the page shows."""
    page = (ROOT / "docs" / "logs.md").read_text()
    (command,) = re.findall(r"^nextturn probe (log .*?)(?: +#.*)?$", page, re.MULTILINE)
    code = "import sys; from nextturn.probe.__main__ import main; main(sys.argv[1:]); sys.exit('torch' in sys.modules)"
    arguments = [str(tmp_path) if part == "runs/log" else part for part in command.split()]
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], cwd=ROOT, capture_output=True, text=True, check=True
    )
    shown = re.search(r"```text\n(.*?)```", page, re.DOTALL)
    assert shown and set(shown[1].splitlines()) - {"..."} <= set(done.stdout.splitlines())


def scores(split: str) -> dict[str, tuple[float, float]]:
    """Return precision and recall of the rules on the invented conversations, by figure."""
    path = ROOT / "recipes" / "support_log.jsonl"
    given = {str(row["id"]): row for _, row in read_jsonl(path) if row["split"] == split}
    truth: dict[str, dict[str, bool]] = {}
    for key, row in given.items():
        # The labels count messages of the user; neighbours are one turn.
        depth, labels, before = 0, iter(row["truth"]), ""
        for role in (message["role"] for message in row["messages"]):
            depth += role == "user" != before
            if role == "user":
                label = next(labels)
                turn = truth.setdefault(f"{key}#{depth}", {"repeats": False, "as_i_said": False})
                truth[f"{key}#{depth}"] = {name: turn[name] or label[name] for name in turn}
            before = role
        del truth[f"{key}#1"]
    found = {row["item"]: row["values"] for row in read_log(path) if row["cluster"] in given}
    assert found.keys() == truth.keys()
    figures = {}
    for name in ("repeats", "as_i_said"):
        both = sum(bool(found[key].get(name)) and truth[key][name] for key in truth)
        said, true = sum(bool(each.get(name)) for each in found.values()), sum(turn[name] for turn in truth.values())
        figures[name] = (both / said, both / true)
    return figures


def test_the_rules_are_as_right_as_the_page_says() -> None:
    """On conversations that somebody else wrote and labelled; the test half was scored once, after the rules were finished."""
    page = (ROOT / "docs" / "logs.md").read_text()
    for split in ("dev", "test"):
        cells = [f"{value:.2f}" for pair in scores(split).values() for value in pair]
        assert re.search(
            rf"^\| {split} \| \d+ \| \d+ \| {' | '.join(cells)} \|$".replace(" | ", r" \| "), page, re.MULTILINE
        )


def test_every_user_turn_is_an_item_and_tools_are_context(tmp_path: Path) -> None:
    talk = [user("Where is K7?"), CALL, RESULT, *messages("x", "It is packed.", "When?", "Monday.", "Fine.")[1:]]
    rows = [{"id": "a", "segment": "pro", "messages": talk}, {"id": "b", "messages": LAMP}]
    write_jsonl(tmp_path / "log.jsonl", rows)
    items = read_items(tmp_path / "log.jsonl", transcript=True, every=True, by=("depth", "segment"))
    assert [(item.id, item.cluster) for item in items] == [("a#2", "a"), ("a#3", "a"), ("b#2", "b"), ("b#3", "b")]
    assert items[0].by == {"depth": "2", "segment": "pro"} and items[3].by == {"depth": "3"}
    assert items[0].messages == tuple(talk[:3]) and (items[0].reply, items[0].actual) == ("It is packed.", "When?")
    told = tools_as_text([*items[0].messages, talk[3]])
    assert [message["role"] for message in told] == ["user", "assistant"]
    assert all(part in told[1]["content"] for part in ("find", "K7", "packed", "It is packed."))
    with pytest.raises(DataError):
        read_items(tmp_path / "log.jsonl", transcript=True, every=True, by=("plan",))
    write_jsonl(tmp_path / "log.jsonl", [{"date": "28.11.2026", "messages": LAMP}])
    with pytest.raises(DataError):
        read_items(tmp_path / "log.jsonl", transcript=True, by=("week",))
    with pytest.raises(ValidationError):
        SetSection(turns="all")


def test_a_call_without_its_result_is_left_out_with_its_reason() -> None:
    assert take_apart([user("a"), CALL, *messages("b", "c", "d")], "f:1", every=True) == UNREAD_TOOLS
    assert take_apart([user("a"), {"role": "function", "content": "1"}, user("b")], "f:1", every=True) == UNREAD_TOOLS


def test_figures_by_depth_and_column(tiny_chatml: Path, tmp_path: Path) -> None:
    """A probe of a log has the figures of each part in results.json and in the report, and clusters by conversation."""
    tools = [
        user("Where is K7?"),
        CALL,
        RESULT,
        *messages("x", "It is packed.", "When?", "Monday.", "As I said: when?")[1:],
    ]
    talks = [
        {"id": f"talk {n}", "segment": "pro" if n % 2 else "free", "messages": tools if n % 2 else LAMP}
        for n in range(4)
    ]
    write_jsonl(tmp_path / "log.jsonl", talks)
    section = {"path": str(tmp_path / "log.jsonl"), "transcript": True, "turns": "all", "by": ["segment"]}
    probe = {"sets": {"log": section}, "temperatures": [0.0], "dtype": "float32", "max_user_tokens": 4}
    (tmp_path / "probe.yaml").write_text(yaml.safe_dump({"probe": probe}))
    out, compared = tmp_path / "run", tmp_path / "compared"
    main(["run", str(tiny_chatml), str(tmp_path / "probe.yaml"), "--out", str(out), "--device", "cpu"])
    results = read_json(out / "results.json")
    sizes = {
        column: {value: of["actual"]["log"]["n_total"] for value, of in values.items()}
        for column, values in results["by"].items()
    }
    assert sizes == {"depth": {"2": 4, "3": 4}, "segment": {"free": 4, "pro": 4}}
    assert results["by"]["depth"]["3"]["followup"]["log"]["none"]["T=0.0"]["n_total"] == 4
    rows = [row for _, row in read_jsonl(out / "samples.jsonl")]
    assert {row["cluster"] for row in rows} == {talk["id"] for talk in talks}
    assert len({row["item"] for row in rows}) == 8
    main(["compare", str(out), "--out", str(compared)])
    figures = read_json(compared / "comparison.json")["figures"]
    rates = {(row["measure"], row["part"]): row["n"] for row in figures if row["name"] == "rate"}
    parts = ("", "depth 2", "depth 3", "segment free", "segment pro")
    assert rates.keys() == {(measure, part) for measure in ("followup", "actual") for part in parts}
    [panel] = panels_of(compare_runs(load_runs([out])))
    assert panel.accuracy is None and (compared / "tradeoff.png").is_file()
    assert [(point.x, point.y.n) for point in panel.points[""]] == [(2.0, 4), (3.0, 4)]
    page = (compared / "comparison.md").read_text()
    real = sorted((row for row in rows if row["kind"] == "actual"), key=lambda row: row["grounding"])
    least = re.findall(r"^\| (talk \d#\d) \| (-?[\d.]+) \| -?[\d.]+ \| (.*) \|$", page, re.MULTILINE)
    assert [(item, float(value)) for item, value, _ in least] == [
        (row["item"], pytest.approx(row["grounding"], abs=0.006)) for row in real
    ]
    assert (
        said_by(real[0]["messages"], "user") and json.dumps(results["settings"]["sets"]["log"]["by"]) == '["segment"]'
    )
