"""Comparing finished probe runs: what is refused, what is computed, and what the pages say."""

from __future__ import annotations

import argparse
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from nextturn.probe.__main__ import main
from nextturn.probe.errors import BadInput, DataError, IncomparableRuns, run_command
from nextturn.probe.files import read_json, read_jsonl, write_json, write_jsonl
from nextturn.probe.judges.labels import ROUGH
from nextturn.probe.measure.measures import Row, figures, make_row
from nextturn.probe.report import compare as command
from nextturn.probe.report.compare import compare
from nextturn.probe.report.comparison import (
    Cell,
    Metric,
    as_json,
    compare_runs,
    expand,
    format_table,
    load_runs,
    pattern_of,
)
from nextturn.probe.report.page import markdown
from nextturn.probe.report.plot import Point, arrows, marker_name, panels_of, path_name
from nextturn.probe.report.tracking import flatten
from nextturn.probe.stats import Estimate, mcnemar

TEMPERATURES = (0.0, 0.7, 1.0)
PNG = b"\x89PNG\r\n\x1a\n"


def probe_run(
    folder: Path,
    label: str = "base",
    step: int | None = None,
    correct: float | None = 0.5,
    asks: float | None = 0.2,
    genuine: dict[str, tuple[float, float, float]] | None = None,
    n: int = 60,
    samples: int = 1,
    unscored: int = 0,
    perturbations: Sequence[str] = ("none",),
    grounding: float | None = None,
    actual: float | None = None,
    **settings: Any,
) -> Path:
    """A finished run made of fake rows and the real summaries of each measure.

    A perturbation doubles the rate. `grounding` is how much better genuine turns are grounded; `actual` is the
    rate of real users' turns.
    """
    rng = random.Random(5)
    rows: list[Row] = []
    sets: dict[str, Any] = {}
    if correct is not None:
        sets["maths"] = {"sha256": "1" * 64, "n": n, "measures": ["accuracy"]}
        for item in range(n):
            right = rng.random() < correct
            graded = {"lenient": right, "strict": right and item % 7 > 0, "outcome": "answered"}
            rows.append(make_row("accuracy", "maths", str(item), [], **graded))
    if asks is not None:
        sets["pairs"] = {"sha256": "2" * 64, "n": n, "measures": ["clarify"]}
        for condition, rate in (("underspecified", asks), ("complete", asks / 4)):
            for item in range(n):
                asked = rng.random() < rate
                outcome = "asked" if asked else ("truncated", "answered")[item % 2]
                where = {"condition": condition, "asked": asked, "outcome": outcome}
                rows.append(make_row("clarify", "pairs", str(item), [], **where))

    def turns(kind: str, name: str, rate: float, changed: float | None, each: int, **where: Any) -> None:
        """User turns of all items, `each` samples of one; the first `unscored` items got no verdict."""
        for item in (item for item in range(n) for _ in range(each)):
            reacts = rng.random() < rate
            label = None if item < unscored else "genuine_followup" if reacts else "new_task"
            said = {"label": label, "unscored": None if label else "no verdict", "specific": True}
            said["grounding"] = None if grounding is None else rng.gauss(0.1 + grounding * reacts, 0.2)
            said["changed"] = None if changed is None else rng.random() < changed
            rows.append(make_row(kind, name, str(item), [], **said, **where))

    for name, rates in (genuine or {}).items():
        sets[name] = {"sha256": "3" * 64, "n": n, "measures": ["followup"]}
        for perturbation in perturbations:
            for temperature, rate in zip(TEMPERATURES, rates, strict=True):
                plain, each = perturbation == "none", samples if temperature else 1
                where = {"perturbation": perturbation, "temperature": temperature}
                turns("followup", name, rate if plain else 2 * rate, None if plain else 0.9, each, **where)
        if actual is not None:
            turns("actual", name, actual, None, 1)
    model = {"path": f"models/{label}", "label": label, "step": step}
    model |= {"weights_sha256": "a" * 64, "template_sha256": settings.pop("template", "b" * 64)}
    known = {"prefix_form": "history", "judge": "rules-1", "engine": "hf", "seed": 0, "max_answer_tokens": 256}
    known |= {"perturbations": [name for name in perturbations if name != "none"], "grounding": grounding is not None}
    known |= {"temperatures": list(TEMPERATURES), "samples": samples, "sets": sets, **settings}
    results = figures(rows)
    write_jsonl(folder / "samples.jsonl", rows)
    write_json(
        folder / "results.json",
        {"schema": 1, "model": model, "settings": known, **results, "timing": {"wall_s": 1}},
    )
    return folder


@pytest.fixture
def run_folders(tmp_path: Path) -> list[Path]:
    probes = tmp_path / "sft" / "probe"
    return [
        probe_run(probes / "base", genuine={"maths": (0.02, 0.05, 0.4), "chat": (0.4, 0.4, 0.5)}),
        probe_run(probes / "step-40", "step-40", 40, 0.6, 0.5, {"maths": (0.3, 0.5, 0.6), "chat": (0.5, 0.5, 0.5)}),
        probe_run(probes / "step-80", "step-80", 80, 0.7, 0.7, {"maths": (0.5, 0.5, 0.7), "chat": (0.6, 0.6, 0.6)}),
    ]


def test_a_comparison_leaves_four_files_that_agree_with_the_runs(run_folders: list[Path], tmp_path: Path) -> None:
    comparison = compare(run_folders, tmp_path / "out")
    page, data = (tmp_path / "out/comparison.md").read_text(), read_json(tmp_path / "out/comparison.json")
    assert (tmp_path / "out/tradeoff.png").read_bytes().startswith(PNG)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "comparison.json", "comparison.md", "report.html", "tradeoff.png",
    ]  # fmt: skip
    assert comparison.names == ("base", "step-40", "step-80")
    measured = {(one["measure"], one["set"], one["name"]): one for one in data["metrics"]}
    for folder, name in zip(run_folders, comparison.names, strict=True):
        results = read_json(folder / "results.json")
        lenient = results["accuracy"]["maths"]["lenient"]
        assert measured["accuracy", "maths", "lenient"]["runs"][name] == {**lenient, "n": 60}
        cell = results["followup"]["chat"]["none"]["T=1.0"]
        assert measured["followup", "chat", "T=1.0"]["runs"][name]["value"] == cell["rate"]
        assert f"{100 * cell['rate']:.1f} [{100 * cell['ci95'][0]:.1f}, {100 * cell['ci95'][1]:.1f}]" in page
    rows = [[row for _, row in read_jsonl(folder / "samples.jsonl")] for folder in run_folders[:2]]
    before, after = (
        {row["item"]: row["lenient"] for row in some if row["kind"] == "accuracy"} for some in rows
    )  # fmt: skip
    metric = next(one for one in data["metrics"] if one["name"] == "lenient")
    change = metric["against_baseline"]["step-40"]
    assert change["gained_items"] == sorted(item for item in after if after[item] and not before[item])
    assert change["lost_items"] == sorted(item for item in after if before[item] and not after[item])
    assert change["gained"] == len(change["gained_items"]) > 0


def test_every_paired_difference_is_the_difference_of_the_reported_figures(run_folders: list[Path]) -> None:
    """Rows and summaries must count alike: a reply that was cut off is an answer to both."""
    comparison = compare_runs(load_runs(run_folders))
    assert len(comparison.paired) == 10
    for metric, changes in comparison.paired.items():
        base, *others = comparison.figures[metric]
        assert changes[0] is None
        for change, estimate in zip(changes[1:], others, strict=True):
            assert change is not None and estimate.value is not None and base.value is not None
            assert change.value == pytest.approx(estimate.value - base.value, abs=1e-5)
            assert change.p_value == mcnemar(change.gained, change.lost)


def test_patterns_are_read_from_intervals(tmp_path: Path) -> None:
    rates = {
        "absent": (0.0, 0.0, 0.0), "latent": (0.0, 0.1, 0.5), "present": (0.6, 0.1, 0.1), "unclear": (0.1, 0.1, 0.1),
    }  # fmt: skip
    comparison = compare_runs(load_runs([probe_run(tmp_path, genuine=rates, n=150)]))
    assert {name: found[0].name for name, found in comparison.patterns.items()} == {name: name for name in rates}
    assert comparison.patterns["latent"][0].sampled_at == "T=1.0"
    assert comparison.overall == ("context-bound",)
    few = compare_runs(load_runs([probe_run(tmp_path, genuine={"absent": (0.0, 0.0, 0.0)}, n=20)]))
    assert few.patterns["absent"][0].name == "unclear", "20 items cannot show a rate below 10%"


@pytest.mark.parametrize("temperature", ["T=0.0", "T=1.0"])
def test_a_rate_that_stands_in_the_table_is_not_called_unmeasured(temperature: str) -> None:
    one = {Metric("followup", "maths", temperature): Estimate(0.2, (0.04, 0.62), 5)}
    assert pattern_of("maths", one).name == "unclear"
    assert pattern_of("chat", one).name == "not measured"


def test_runs_that_were_measured_differently_are_refused_unless_forced(tmp_path: Path) -> None:
    base = probe_run(tmp_path / "a")
    for settings, said in (
        ({"judge": "llm-2"}, "judge: rules-1 (base), llm-2 (other)"),
        ({"template": "c" * 64}, "chat template: bbbbbbbbbbbb (base), cccccccccccc (other)"),
        ({"prefix_form": "generation"}, "prefix_form: history (base), generation (other)"),
        ({"max_answer_tokens": 512}, "max_answer_tokens: 256 (base), 512 (other)"),
        ({"seed": 1}, "seed: 0 (base), 1 (other)"),
        ({"enable_thinking": True}, "enable_thinking: nothing (base), true (other)"),
        ({"system_prompt": "Be brief."}, "system_prompt: nothing (base), Be brief. (other)"),
        ({"a_setting_of_tomorrow": 1}, "a_setting_of_tomorrow: nothing (base), 1 (other)"),
        ({"n": 61}, "set maths: 60 items 111111111111 (base), 61 items 111111111111 (other)"),
        ({"correct": None}, "set maths: 60 items 111111111111 (base), nothing (other)"),
    ):
        other = probe_run(tmp_path / "b", "other", **settings)  # type: ignore[arg-type]
        with pytest.raises(IncomparableRuns) as refused:
            compare([base, other], tmp_path / "out")
        assert said in str(refused.value) and "\n" not in str(refused.value)
    assert not (tmp_path / "out").exists()
    folders = [base, probe_run(tmp_path / "c", "other", judge="llm", seed=3, engine="vllm")]
    with pytest.raises(IncomparableRuns, match=r"judge: .*; seed: 0 \(base\), 3 \(other\)"):
        compare(folders, tmp_path / "out")
    compare(folders, tmp_path / "out", force=True)
    page = (tmp_path / "out/comparison.md").read_text()
    assert "compared by force:** judge: rules-1 (base), llm (other)" in page
    assert "engine: hf (base), vllm (other)" in page, "only noted"
    assert read_json(tmp_path / "out/comparison.json")["differences"] == [
        "judge: rules-1 (base), llm (other)", "seed: 0 (base), 3 (other)",
    ]  # fmt: skip


def test_folders_that_hold_no_finished_run_get_one_line_each(tmp_path: Path) -> None:
    for name in ("step-100", "step-20", "base"):
        good = probe_run(tmp_path / "run" / "probe" / name)
    (tmp_path / "run" / "probe" / "step-200").mkdir()
    (tmp_path / "run" / "probe" / "comparison").mkdir()
    assert [folder.name for folder in expand([tmp_path / "run"])] == ["base", "step-20", "step-100"]
    (tmp_path / "begun").mkdir()
    (tmp_path / "begun" / "manifest.json").write_text("{}")
    (tmp_path / "untested" / "probe" / "base").mkdir(parents=True)
    old = probe_run(tmp_path / "old")
    write_json(old / "results.json", {**read_json(old / "results.json"), "schema": 2})
    broken = probe_run(tmp_path / "broken")
    write_json(broken / "results.json", {**read_json(broken / "results.json"), "accuracy": {"maths": {"n": 3}}})
    torn = probe_run(tmp_path / "torn")
    (torn / "results.json").write_text('{"schema": 1,')
    rows = probe_run(tmp_path / "rows")
    (rows / "samples.jsonl").write_text('{"kind": "accuracy", "set": "maths"}\n')
    for folders, said in (
        ([], "no run folder given"),
        ([tmp_path / "nowhere"], "no such folder"),
        ([good / "results.json"], "a file, wanted a folder"),
        ([tmp_path / "begun"], "the run is unfinished; `nextturn probe run` with --out"),
        ([tmp_path / "untested"], "a training run without a finished probe"),
        ([old], "schema 2, this version reads 1"),
        ([broken], "accuracy.maths.strict: Field required"),
        ([torn], "not JSON"),
        ([good, good], "given 2 times"),
        ([good, rows], "samples.jsonl:1: not a row of a probe run"),
    ):
        with pytest.raises((BadInput, DataError)) as error:
            compare(folders, tmp_path / "out")
        assert said in str(error.value) and "\n" not in str(error.value)
    assert not (tmp_path / "out").exists()
    with pytest.raises(BadInput, match="wanted a folder to write"):
        compare([good], good / "results.json")


def test_the_printed_table_holds_every_figure_in_140_columns(
    run_folders: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_folders.append(probe_run(tmp_path / "d", "step-120", 120, 1.0, 0.9, {"maths": (1, 1, 1), "chat": (1, 1, 1)}))
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    command.run(parser.parse_args([*map(str, run_folders), "--out", str(tmp_path / "out")]))
    printed = capsys.readouterr().out
    first = printed.split("\n\n")[0].splitlines()
    head = "accuracy ask_when_needed answer_when_complete T=0.0 T=0.7 T=1.0"
    assert " ".join(first[1].split()) == head and first[0].endswith(f", n = 60: {ROUGH}")
    assert [line.split()[0] for line in first[3:]] == ["base", "step-40", "step-80", "step-120"]
    assert all(line.count("[") == line.count("]") == 6 for line in first[3:])
    assert max(map(len, first)) <= 140
    assert "chat, n = 60" in printed.split("\n\n")[1], "a second follow-up set has a block of its own"
    table = format_table([read_json(run_folders[0] / "results.json")])
    assert table.splitlines()[3].startswith("base") and "note:" not in table, "of one result, without its folder"
    assert all(str(tmp_path / "out" / name) in printed for name in ("report.html", "comparison.md", "tradeoff.png"))


def test_truncated_answers_are_told_below_the_table(tmp_path: Path) -> None:
    results = read_json(probe_run(tmp_path / "run", n=20) / "results.json")
    assert "truncated" not in format_table([results])
    results["accuracy"]["maths"]["outcomes"] |= {"answered": 8, "truncated": 12}
    assert "truncated: 12 of 20 answers (60%) to maths" in format_table([results])


def test_user_turns_without_a_label_are_shown_and_in_no_rate(tmp_path: Path) -> None:
    folder = probe_run(tmp_path, genuine={"chat": (1.0, 1.0, 1.0)}, unscored=15)
    page = markdown(compare_runs(load_runs([folder])))
    assert "Unscored, in no rate: base 25.0% of 180 user turns (no verdict 45)" in page
    assert "| base | T=0.0 | 100.0 (45) | 25.0 (15) |" in page
    assert "100.0 [92.1, 100.0]" in page
    assert "tradeoff.png" in page
    write_json(folder / "results.json", {**read_json(folder / "results.json"), "accuracy": {}})
    assert "tradeoff.png" not in markdown(compare_runs(load_runs([folder]))), "a trade-off has two figures"


def test_a_perturbation_is_paired_with_the_plain_run_of_the_same_model(tmp_path: Path) -> None:
    genuine = {"chat": (0.2, 0.3, 0.4)}
    folders = [
        probe_run(tmp_path / name, name, genuine=genuine, perturbations=("none", "truncate(0.5)"), unscored=unscored)
        for name, unscored in (("base", 0), ("rl", 7))
    ]
    comparison = compare_runs(load_runs(folders))
    assert [(one.run, one.temperature) for one in comparison.perturbed] == [
        (name, f"T={temperature}") for name in ("base", "rl") for temperature in TEMPERATURES
    ]
    for one in comparison.perturbed:
        run = comparison.runs[comparison.names.index(one.run)]
        cells = run.results.followup["chat"]
        plain, changed = cells["none"][one.temperature], cells["truncate(0.5)"][one.temperature]
        found = one.difference
        assert found is not None and plain.rate is not None and changed.rate is not None
        assert found.value == pytest.approx(changed.rate - plain.rate, abs=1e-5)
        assert found.p_value == mcnemar(found.gained, found.lost)
        assert (found.n, found.unmatched) == (plain.n_judged, 0)
        assert isinstance(changed.changed_text, Cell) and one.changed_text.value == changed.changed_text.value
    data = as_json(comparison)["perturbations"]
    assert {**data[0], "difference": None} == {
        "run": "base", "set": "chat", "perturbation": "truncate(0.5)", "temperature": "T=0.0", "difference": None,
        "changed_text": read_json(folders[0] / "results.json")["followup"]["chat"]["truncate(0.5)"]["T=0.0"]["changed_text"],
    }  # fmt: skip
    assert list(data[0]["difference"]) == ["value", "ci95", "p_value", "gained", "lost", "n", "unmatched"]


def test_perturbed_turns_count_items_once_and_stand_in_a_table_of_their_own(tmp_path: Path) -> None:
    genuine = {"chat": (0.0, 0.1, 0.2)}
    folder = probe_run(tmp_path, genuine=genuine, samples=3, perturbations=("none", "truncate(0.5)"))
    comparison = compare_runs(load_runs([folder]))
    greedy, *sampled = comparison.perturbed
    assert greedy.difference and greedy.difference.p_value is not None
    assert all(one.difference and one.difference.n == 60 and one.difference.p_value is None for one in sampled)
    page = markdown(comparison)
    assert "| truncate(0.5) | base | 0.0 → 0.0 | +0.0 [-4.5, +4.5], p = 1.000 (0 up, 0 down) | 9" in page
    assert "truncate" not in page.split("## Patterns")[0].split("## Results")[1]
    assert "truncate" not in format_table([read_json(folder / "results.json")])


def test_a_perturbation_may_hold_any_text_and_breaks_no_page(tmp_path: Path) -> None:
    bad = "question(a | b\n## <script>alert(1)</script> [x](http://x) `c` $y$ \u202e~~z~~)"
    folder = probe_run(tmp_path / "a", genuine={"chat": (0.1, 0.1, 0.2)}, perturbations=("none", bad))
    other = probe_run(tmp_path / "b", "other", genuine={"chat": (0.1, 0.1, 0.2)})
    compare([folder, other], tmp_path / "out")
    page = (tmp_path / "out/comparison.md").read_text()
    for mark in ("<script", "\n## <", " [x]", " `c`", " $y$", "\u202e", " | b?"):
        assert mark not in page
    rows = [line for line in page.splitlines() if line.startswith("| question(a \\| b?")]
    assert rows and all(line.replace("\\|", "").count("|") == 9 for line in rows)
    assert read_json(tmp_path / "out/comparison.json")["perturbations"][0]["perturbation"] == bad


def test_grounding_is_told_by_what_it_separates(tmp_path: Path) -> None:
    genuine = {"chat": (0.3, 0.4, 0.5)}
    folder = probe_run(tmp_path, genuine=genuine, grounding=0.3, unscored=5, perturbations=("none", "truncate(0.5)"))
    comparison = compare_runs(load_runs([folder]))
    rows = [row for _, row in read_jsonl(folder / "samples.jsonl")]
    rows = [row for row in rows if row.get("label") and row["perturbation"] == "none"]
    [chat] = comparison.grounding
    assert chat.auc.n == len(rows) == 3 * 55, "neither perturbed turns nor those without a label"
    assert chat.auc.ci95 and 0.5 < chat.auc.ci95[0] < (chat.auc.value or 0) < chat.auc.ci95[1]
    assert set(chat.labels) == {"genuine_followup", "new_task"}
    for label, mean in chat.labels.items():
        values = [row["grounding"] for row in rows if row["label"] == label]
        assert mean.n == len(values) and mean.value == pytest.approx(sum(values) / len(values))
    assert as_json(comparison)["grounding"][0]["labels"]["new_task"]["n"] == chat.labels["new_task"].n
    page = markdown(compare_runs(load_runs([folder])))
    assert f"| chat | base | {chat.auc.value:.2f} [{chat.auc.ci95[0]:.2f}, {chat.auc.ci95[1]:.2f}] | 165 |" in page


def test_real_users_turns_are_the_ceiling_of_transcripts(tmp_path: Path) -> None:
    genuine = {"chat": (0.2, 0.3, 0.4)}
    folders = [probe_run(tmp_path / name, name, genuine=genuine, actual=0.7) for name in ("base", "rl")]
    comparison = compare(folders, tmp_path / "out")
    data = read_json(tmp_path / "out/comparison.json")
    cell = read_json(folders[0] / "results.json")["actual"]["chat"]
    assert {key: data["actual"]["rl"]["chat"][key] for key in cell} == cell
    assert [(one.run, one.temperature) for one in comparison.against_actual][:2] == [
        ("base", "T=0.0"),
        ("base", "T=0.7"),
    ]
    for one in comparison.against_actual:
        generated = comparison.figures[Metric("followup", "chat", one.temperature)][0].value
        assert one.difference and generated is not None
        assert one.difference.value == pytest.approx(generated - cell["rate"], abs=1e-5)
        assert one.difference.p_value == mcnemar(one.difference.gained, one.difference.lost)
    [panel] = panels_of(comparison)
    assert panel.real and panel.real.value == cell["rate"]
    page = (tmp_path / "out/comparison.md").read_text()
    assert "## Real users' turns" in page and "| real users | - |" in page
    assert f"real users on chat: {100 * cell['rate']:.1f} [" in format_table([read_json(folders[0] / "results.json")])
    assert "actual" not in {metric.measure for metric in comparison.figures}, "no figure of a model"


def test_names_are_told_apart_and_cannot_break_the_page_or_the_terminal(tmp_path: Path) -> None:
    bad = "a|b\x1b[31m\n<img src=x>$\\frac$\u202e"
    folders = [probe_run(tmp_path / name, bad, genuine={"chat": (0.1, 0.1, 0.1)}) for name in ("one", "two")]
    folders += [probe_run(tmp_path / name / "probe" / "step-4", "step-4", 4) for name in ("x", "y")]
    folders.append(probe_run(tmp_path / "z", "sft", 4))
    comparison = compare(folders, tmp_path / "out", force=True)
    assert comparison.names[2:] == ("x/step-4", "y/step-4", "sft step-4")
    folders = [
        probe_run(tmp_path / run / "probe" / f"step-{n}", f"step-{n}", n) for run, n in (("x", 4), ("y", 4), ("y", 8))
    ]
    assert [run.name for run in load_runs(folders)] == ["x/step-4", "y/step-4", "y/step-8"], "of one run, named alike"
    assert [name[:8] for name in comparison.names[:2]] == ["one/a|b?", "two/a|b?"]
    page = (tmp_path / "out/comparison.md").read_text()
    table = format_table([read_json(folder / "results.json") for folder in folders])
    for text in (page, table):
        assert "\x1b" not in text and "\u202e" not in text and "\na|b" not in text
    assert "<img" not in page and "a\\|b?" in page
    rows = [line for line in page.splitlines() if line.startswith("| one/") and "a\\|b" in line]
    assert rows and all(len(line.replace("\\|", "").split("|")) > 3 for line in rows)


def test_a_run_without_samples_is_compared_without_paired_tests(run_folders: list[Path], tmp_path: Path) -> None:
    (run_folders[1] / "samples.jsonl").unlink()
    comparison = compare(run_folders[:2], tmp_path / "out")
    assert all(change is None for changes in comparison.paired.values() for change in changes)
    assert "no paired test" in (tmp_path / "out/comparison.md").read_text()


def test_rows_that_were_judged_anew_are_read_anew(tmp_path: Path) -> None:
    base = probe_run(tmp_path / "a", genuine={"chat": (0.1, 0.1, 0.1)})
    metric = Metric("followup", "chat", "T=0.0")
    changes = []
    for rate in (0.2, 0.9):
        other = probe_run(tmp_path / "b", "other", genuine={"chat": (rate, rate, rate)})
        comparison = compare_runs(load_runs([base, other]))
        first, second = (estimate.value for estimate in comparison.figures[metric])
        change = comparison.paired[metric][1]
        assert change and first is not None and second is not None
        assert change.value == pytest.approx(second - first, abs=1e-5)
        changes.append(change.value)
    assert changes[0] != changes[1]


def test_the_plot_leads_from_the_baseline_along_each_training_run(run_folders: list[Path], tmp_path: Path) -> None:
    folders = [run_folders[0], run_folders[2], run_folders[1]]
    folders += [probe_run(tmp_path / "grpo" / "probe" / f"step-{step}", f"step-{step}", step) for step in (10, 5)]
    folders.append(probe_run(tmp_path / "other", "rl"))
    comparison = compare_runs(load_runs(folders))
    assert comparison.paths == [[2, 1], [4, 3], [5]]
    assert [marker_name(comparison, run) for run in (0, 4, 3, 5)] == ["base", "5", "step 10", "rl"]
    panel = panels_of(comparison)[1]
    assert panel.set == "chat" and panel.accuracy == Metric("accuracy", "maths", "lenient")
    assert list(panel.points) == ["T=0.0", "T=1.0"] and [point.run for point in panel.points["T=0.0"]] == [0, 1, 2]


def test_a_training_run_that_went_on_from_another_starts_where_that_one_ended(tmp_path: Path) -> None:
    for run in ("sft", "second"):
        for label, step in (("base", 0), ("step-5", 5), ("step-10", 10)):
            probe_run(tmp_path / run / "probe" / label, label, step)
    comparison = compare_runs(load_runs([tmp_path / "sft", tmp_path / "second"]))
    assert list(comparison.names[:4]) == ["sft/base", "sft/step-5", "sft/step-10", "second/base"]
    assert comparison.paths == [[1, 2], [3, 4, 5]]
    points = [Point(run, Estimate(0.5, None, 60), Estimate(0.5, None, 60)) for run in range(6)]
    assert arrows(comparison, points) == [(0, 1), (1, 2), (3, 4), (4, 5)]
    assert arrows(comparison, points[:1] + points[2:]) == [(0, 2), (3, 4), (4, 5)], "past a run without the numbers"
    assert [marker_name(comparison, run) for run in (3, 4, 5)] == ["second/base", "5", "step 10"]
    few = compare_runs(
        load_runs([tmp_path / "sft/probe/base", tmp_path / "second/probe/base", tmp_path / "second/probe/step-5"])
    )
    assert [path_name(few, path) for path in few.paths] == ["second"], (
        "named without its start, whose name has nothing of it"
    )
    other = compare_runs(load_runs([tmp_path / "sft/probe/base", tmp_path / "second/probe/base"]))
    assert arrows(other, points[:2]) == [(0, 1)], "a start alone is no path"


def test_a_comparison_of_many_runs_shows_where_each_training_run_ended(tmp_path: Path) -> None:
    genuine = {name: (0.1, 0.2, 0.3) for name in ("chat", "help", "talk")}
    folders = [probe_run(tmp_path / "base", n=20, genuine=genuine)]
    folders += [
        probe_run(tmp_path / run / "probe" / f"step-{step}", f"step-{step}", step, n=20, genuine=genuine)
        for run in ("sft", "rl")
        for step in range(1, 8)
    ]
    comparison = compare_runs(load_runs(folders))
    page = markdown(comparison)
    assert comparison.ends == [0, 7, 14]
    assert "last checkpoint of each training run: base, sft/step-7, rl/step-7." in page
    before, after = page.split("## How the answers ended")
    assert "| sft/step-3 |" in before and "| sft/step-3 | T=" not in after and "| sft/step-7 | T=0.0 |" in after
    assert len(page.splitlines()) < 250
    few = compare_runs(load_runs(folders[:8]))
    assert few.ends == list(range(8)) and "more than" not in markdown(few)


@pytest.mark.parametrize("missing", ["accuracy", "followup", "clarify"])
def test_a_plot_is_drawn_where_both_of_its_figures_were_measured(tmp_path: Path, missing: str, capsys: Any) -> None:
    """A plot of an earlier comparison in the same folder goes."""
    parts: dict[str, Any] = {"accuracy": {"correct": None}, "clarify": {"asks": None}, "followup": {"genuine": None}}
    chosen: dict[str, Any] = {"genuine": {"chat": (0.1, 0.2, 0.3)}, **parts[missing]}
    folders = [probe_run(tmp_path / "a", **chosen), probe_run(tmp_path / "b", "$x_1$", **chosen)]
    plot = tmp_path / "out" / "tradeoff.png"
    plot.parent.mkdir()
    plot.write_bytes(b"of an earlier comparison")
    assert run_command(main, ["compare", *map(str, folders), "--out", str(plot.parent)]) == 0
    assert plot.is_file() == (str(plot) in capsys.readouterr().out) == (missing == "clarify")
    assert not plot.is_file() or plot.read_bytes().startswith(PNG)


def test_a_results_file_with_the_kl_of_older_versions_is_still_read(run_folders: list[Path], tmp_path: Path) -> None:
    before = as_json(compare(run_folders, tmp_path / "before"))
    old = {"kl_to_base": {"value": 0.4488, "ci95": [0.4065, 0.4932], "answers": 40, "tokens": 5334}}
    write_json(run_folders[1] / "results.json", {**read_json(run_folders[1] / "results.json"), **old})
    assert as_json(compare(run_folders, tmp_path / "after")) == before
    assert "probe/kl_to_base" not in flatten(read_json(run_folders[1] / "results.json"))
