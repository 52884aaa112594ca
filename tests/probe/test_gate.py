"""The gate: exit codes and verdicts on kept runs, as docs/gate.md shows them, and which follow-up gains are hollow."""

from __future__ import annotations

import random
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest

from nextturn.probe.__main__ import main
from nextturn.probe.command.errors import run_command
from nextturn.probe.command.files import read_json
from nextturn.probe.engines.stored import Row
from nextturn.probe.judges.verdicts import GENUINE
from nextturn.probe.measures.base import make_row
from nextturn.probe.measures.followup import Followup
from nextturn.probe.questions.sets import Item
from nextturn.probe.report.comparison import compare_runs
from nextturn.probe.results import Metric, load_runs
from nextturn.probe.stats import Estimate, best_by_chance, detectable, items_to_tell
from support.commands import ROOT
from support.measured import Said, question_set, rows_of
from support.page_runs import write_run

SHOWN = re.findall(r"^(nextturn probe compare recipes.*?) +# exit (\d)$", (ROOT / "docs/gate.md").read_text(), re.M)
VERDICTS = {"0": "passed", "3": "cannot tell", "4": "lost"}


@pytest.mark.parametrize(
    ("line", "code"), SHOWN, ids=[f"exit {code} {number}" for number, (_, code) in enumerate(SHOWN)]
)
def test_the_commands_of_the_page_end_as_it_says(
    line: str, code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    words = shlex.split(line)[2:]
    words[words.index("--out") + 1] = str(tmp_path)
    assert run_command(main, words) == int(code)
    gate = read_json(tmp_path / "comparison.json")["gate"]
    (check,) = gate["checks"]
    assert gate["verdict"] == check["verdict"] == VERDICTS[code]
    low, high = check["change"]["ci95"]
    told = [f"{100 * value:+.1f}" for value in (check["change"]["value"], low, high, check["bound"])]
    items = f"about {check['items']} (now 60)" if check["items"] else "-"
    row = f"| {told[0]} [{told[1]}, {told[2]}] | {told[3]} | {VERDICTS[code]} | {items} |"
    assert row in (ROOT / "docs/gate.md").read_text()


def test_the_page_shows_every_verdict() -> None:
    assert {code for _, code in SHOWN} == set(VERDICTS)


def run_of(folder: Path, rate: float, grounding: float, changed: float, judge: str = "llm-1", n: int = 60) -> Path:
    """Write a run whose greedy turns are genuine at `rate`, and change with the answer at `changed`."""
    rng, rows = random.Random(folder.name), list[Row]()
    for number in range(n):
        right = make_row("accuracy", "maths", str(number), [], lenient=number % 2 > 0, strict=False, outcome="answered")
        label = GENUINE if number < rate * n else "new_task"
        turn: Row = {"label": label, "user_turn": f"Why {number}?", "specific": True}
        rows += [right, make_row("followup", "maths", str(number), [], **turn, grounding=rng.gauss(grounding, 0.05))]
        if number < 30:
            cut = {"perturbation": "truncate(0.5)", "changed": number < changed * 30}
            rows.append(make_row("followup", "maths", str(number), [], **turn, **cut))
    return write_run(folder, folder.name, None, rows, {"maths": ("followup", n)}, judge=judge)


@pytest.mark.parametrize(
    ("after", "falls", "code"),
    [
        ((0.7, 0.05, 0.4), {"grounding", "changed_text"}, 4),
        ((0.7, 0.2, 0.4), {"changed_text"}, 4),
        ((0.7, 0.05, 0.9), {"grounding"}, 4),
        ((0.7, 0.3, 0.9), set(), 0),  # a gain that the other figures share
        ((0.2, 0.05, 0.4), set(), 4),  # no gain, so nothing is hollow
    ],
)
def test_a_gain_is_hollow_if_turns_depend_less_on_the_answer(
    after: tuple[float, float, float], falls: set[str], code: int, tmp_path: Path
) -> None:
    folders = [run_of(tmp_path / "base", 0.2, 0.2, 0.9), run_of(tmp_path / "after", *after)]
    words = ["compare", *map(str, folders), "--out", str(tmp_path / "out"), "--gain", "followup=5"]
    assert run_command(main, words) == code
    comparison = read_json(tmp_path / "out" / "comparison.json")
    assert {each["name"] for each in comparison["hollow"]} == falls
    assert set(comparison["gate"]["checks"][0]["hollow"]) == falls


def test_a_copy_is_not_hollow_and_passes_no_gain(tmp_path: Path) -> None:
    first = run_of(tmp_path / "base", 0.4, 0.2, 0.9)
    shutil.copytree(first, tmp_path / "copy")
    assert compare_runs(load_runs([first, tmp_path / "copy"])).hollow == {}
    words = ["compare", str(first), str(tmp_path / "copy"), "--out", str(tmp_path / "out")]
    assert run_command(main, [*words, "--gain", "maths.followup=5"]) == 4
    assert run_command(main, [*words, "--keep", "accuracy=-8", "--keep", "maths.strict=-8"]) == 0


@pytest.mark.parametrize(
    ("bounds", "judge", "third"),
    [
        (["--gain", "followup=5"], "rules/3", False),
        (["--keep", "followup=-5"], "rules/3", False),
        (["--keep", "accuracy=3"], "llm-1", False),
        (["--gain", "followup=-3"], "llm-1", False),
        (["--keep", "accuracy"], "llm-1", False),
        (["--keep", "accuracy=nan"], "llm-1", False),
        (["--keep", "chess.accuracy=-3"], "llm-1", False),
        (["--keep", "accuracy=-3"], "llm-1", True),
    ],
)
def test_a_wrong_call_of_the_gate_writes_nothing(bounds: list[str], judge: str, third: bool, tmp_path: Path) -> None:
    names = ["base", "after", "another"] if third else ["base", "after"]
    folders = [run_of(tmp_path / name, 0.4, 0.2, 0.9, judge) for name in names]
    assert run_command(main, ["compare", *map(str, folders), "--out", str(tmp_path / "out"), *bounds]) == 2
    assert not (tmp_path / "out").exists()


def test_reachable_is_the_share_of_items_with_any_genuine_sample(tmp_path: Path) -> None:
    """Two trainings of a recipe are two chances to have it, and not twice as many samples."""

    def run(name: str, genuine: int) -> Path:
        rows = [
            make_row("followup", "maths", str(item), [], temperature=temperature, sample=sample, user_turn="Why?",
                     label=GENUINE if temperature and item < genuine and sample == item % 2 else "new_task")
            for item in range(20) for temperature, samples in ((0.0, 1), (0.7, 2)) for sample in range(samples)
        ]  # fmt: skip
        return write_run(tmp_path / name, name, None, rows, {"maths": ("followup", 20)}, samples=2)

    first, second, third = run("a", 10), run("b", 10), run("c", 4)
    comparison = compare_runs(load_runs([first, Path(f"{second}+{third}")]))
    metric = Metric("followup", "maths", "reachable", "T=0.7")
    alone, both = (comparison.estimate(name, metric) for name in comparison.names)
    assert (alone.value, alone.n, comparison.estimate(comparison.names[0], metric._replace(name="rate")).value) == (
        0.5,
        20,
        0.25,
    )
    assert (both.value, both.n) == (pytest.approx(0.35), 40)
    assert comparison.estimate(comparison.names[0], metric._replace(temperature="T=0.0")).value is None
    (change,) = [each.changes["baseline"] for each in comparison.select("followup", name="reachable") if each.changes]
    assert change.value == pytest.approx(-0.15)


def test_each_item_of_a_conversation_is_reachable_by_itself(tmp_path: Path) -> None:
    rows = [
        make_row("followup", "maths", f"{chat}#{depth}", [], temperature=0.7, sample=sample, cluster=str(chat),
                 user_turn="Why?", label=GENUINE if depth == chat % 3 and sample else "new_task")
        for chat in range(20) for depth in range(3) for sample in range(2)
    ]  # fmt: skip
    run = write_run(tmp_path / "a", "a", None, rows, {"maths": ("followup", 60)}, samples=2)
    metric = Metric("followup", "maths", "reachable", "T=0.7")
    (loaded,) = load_runs([run])
    assert loaded.samples
    found, counted = loaded.results.figures()[metric], loaded.samples.values[metric]
    assert (found.value, found.n) == (pytest.approx(1 / 3), 60) and found.ci95
    assert counted == {str(chat): [float(depth == chat % 3) for depth in range(3)] for chat in range(20)}


def test_the_first_items_alone_are_perturbed_at_the_lowest_temperature() -> None:
    class Chat:
        @staticmethod
        def tokenizer(text: str, **_: Any) -> dict[str, list[tuple[int, int]]]:
            return {"offset_mapping": [(place, place + 1) for place in range(len(text))]}

    items = [Item(str(number), ({"role": "user", "content": f"Question {number}?"},)) for number in range(5)]
    keys: dict[str, Any] = {"perturbations": ("truncate(0.5)",), "temperatures": (0.0, 0.7), "n_perturbed": 2}
    said = Said(by=lambda messages: messages[-1]["content"][:4] or "-")
    rows = rows_of(Followup, question_set("own", items), said, chat=Chat(), **keys)
    found = [(row["item"], row["temperature"]) for row in rows if row["perturbation"] != "none"]
    assert found == [("0", 0.0), ("1", 0.0)] and len(rows) == 12


def test_sizes_and_chances_agree_with_simulations() -> None:
    rng = random.Random(1)
    n, found, best, predicted = 200, 0, 0.0, 0.0
    effect = detectable(n, 0.16)
    for _ in range(400):  # 16% of the items change, more of them for the worse by `effect`
        drawn = rng.choices((1, -1, 0), ((0.16 - effect) / 2, (0.16 + effect) / 2, 0.84), k=n)
        mean = sum(drawn) / n
        error = (sum((each - mean) ** 2 for each in drawn) / n / n) ** 0.5
        found += mean + 1.96 * error < 0
    assert 0.74 < found / 400 < 0.86
    for _ in range(400):  # five runs that are equal to the baseline
        rates = [sum(rng.random() < 0.4 for _ in range(60)) / 60 for _ in range(6)]
        changes = [
            Estimate(rate - rates[0], (rate - rates[0] - 0.175, rate - rates[0] + 0.175), 60) for rate in rates[1:]
        ]
        best += max(each.value or 0.0 for each in changes)
        predicted += best_by_chance(changes)
    assert best / 400 == pytest.approx(predicted / 400, abs=0.01)
    change = Estimate(-0.01, (-0.07, 0.05), 100)
    assert items_to_tell(change, -0.03) == 820 and items_to_tell(change, 0.0) is None
    assert items_to_tell(Estimate(0.0, (-0.02, 0.02), 100), -0.03, 0.01) == 820
