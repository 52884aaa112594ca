"""Comparing finished probe runs: what is refused, what is computed, and what the reports show."""

from __future__ import annotations

import gzip
import json
import random
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from nextturn.probe.__main__ import main
from nextturn.probe.command.errors import BadInput, DataError, IncomparableRuns, run_command
from nextturn.probe.command.files import read_json, read_jsonl, write_json
from nextturn.probe.compare import compare, unmeasured
from nextturn.probe.engines.stored import Row
from nextturn.probe.measures.base import make_row
from nextturn.probe.measures.followup import likeness
from nextturn.probe.models.checkpoints import mark_complete
from nextturn.probe.report.comparison import Comparison, as_json, compare_runs, format_table, pattern_of, plain
from nextturn.probe.report.page import markdown
from nextturn.probe.report.plot import Point, arrows, panels_of, path_name
from nextturn.probe.report.tracking import flatten
from nextturn.probe.results import Metric, expand, load_runs, read_results
from nextturn.probe.stats import Estimate, mcnemar
from support.page_runs import write_run

TEMPERATURES = (0.0, 0.7, 1.0)
Rates = dict[str, tuple[float, float, float]]
ONES = (1.0, 1.0, 1.0)
PNG = b"\x89PNG\r\n\x1a\n"


def probe_run(folder: Path, label: str = "base", step: int | None = None, *, n: int = 60, samples: int = 1,
              correct: float | None = 0.5, asks: float | None = 0.2, genuine: Rates | None = None, unscored: int = 0,
              perturbations: Sequence[str] = ("none",), grounding: float | None = None, actual: float | None = None,
              **settings: Any) -> Path:  # fmt: skip
    """Write a finished run of random rows, with the figures that the measures count from them.

    Args:
        correct: Accuracy on the set "maths"; `asks`: how often a question is asked back on the set "pairs".
        genuine: Follow-up rate by set, at each of TEMPERATURES. A perturbation doubles the rate.
        unscored: So many items of each set have no label.
        grounding: By how much genuine turns have a higher grounding; `actual`: the rate of real users.
        settings: Further settings of the run, and "template", the template's hash.
    """
    rng, rows, sets = random.Random(5), list[Row](), dict[str, Any]()
    if correct is not None:
        sets["maths"] = ("accuracy", n)
        for item in range(n):
            right = rng.random() < correct
            graded = {"lenient": right, "strict": right and item % 7 > 0, "outcome": "answered"}
            rows.append(make_row("accuracy", "maths", str(item), [], **graded))
    if asks is not None:
        sets["pairs"] = ("clarify", n)
        for condition, rate in (("underspecified", asks), ("complete", asks / 4)):
            for item in range(n):
                asked = rng.random() < rate
                outcome = "asked" if asked else ("truncated", "answered")[item % 2]
                where = {"condition": condition, "asked": asked, "outcome": outcome}
                rows.append(make_row("clarify", "pairs", str(item), [], **where))

    def turns(kind: str, name: str, rate: float, changed: float | None, each: int, **where: Any) -> None:
        for item in (item for item in range(n) for _ in range(each)):
            reacts = rng.random() < rate
            label = None if item < unscored else "genuine_followup" if reacts else "new_task"
            fields = {"label": label, "unscored": None if label else "no verdict", "specific": True}
            fields["grounding"] = None if grounding is None else rng.gauss(0.1 + grounding * reacts, 0.2)
            fields["changed"] = None if changed is None else rng.random() < changed
            rows.append(make_row(kind, name, str(item), [], **fields, **where))

    for name, rates in (genuine or {}).items():
        sets[name] = ("followup", n)
        for perturbation in perturbations:
            for temperature, rate in zip(TEMPERATURES, rates, strict=True):
                unperturbed, each = perturbation == "none", samples if temperature else 1
                where = {"perturbation": perturbation, "temperature": temperature}
                turns("followup", name, rate if unperturbed else 2 * rate, None if unperturbed else 0.9, each, **where)
        if actual is not None:
            turns("actual", name, actual, None, 1)
    known = {"prefix_form": "history", "judge": "rules-1", "engine": "hf", "dtype": "auto", "max_answer_tokens": 256}
    known |= {"perturbations": [name for name in perturbations if name != "none"], "grounding": grounding is not None}
    known |= {"temperatures": list(TEMPERATURES), "samples": samples, **settings}
    return write_run(folder, label, step, rows, sets, **known)


def comparison_of(*folders: Path) -> Comparison:
    return compare_runs(load_runs(folders))


def edit_results(folder: Path, **changed: Any) -> Path:
    write_json(folder / "results.json", {**read_json(folder / "results.json"), **changed})
    return folder


@pytest.fixture
def run_folders(tmp_path: Path) -> list[Path]:
    probes = tmp_path / "sft" / "probe"
    maths = [(0.02, 0.05, 0.4), (0.3, 0.5, 0.6), (0.5, 0.5, 0.7)]
    chat = [(0.4, 0.4, 0.5), (0.5, 0.5, 0.5), (0.6, 0.6, 0.6)]
    named = [("base", None, 0.5, 0.2), ("step-40", 40, 0.6, 0.5), ("step-80", 80, 0.7, 0.7)]
    return [
        probe_run(probes / name, name, step, correct=correct, asks=asks, genuine={"maths": of_maths, "chat": of_chat})
        for (name, step, correct, asks), of_maths, of_chat in zip(named, maths, chat, strict=True)
    ]


# --- what a comparison computes


def test_the_command_writes_files(run_folders: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The command writes four files that agree with the runs."""
    out = tmp_path / "out"
    assert run_command(main, ["compare", *map(str, run_folders), "--out", str(out)]) == 0
    printed, page = capsys.readouterr().out, (out / "comparison.md").read_text()
    data = read_json(out / "comparison.json")
    assert (out / "tradeoff.png").read_bytes().startswith(PNG)
    written = sorted(path.name for path in out.iterdir())
    assert written == ["comparison.json", "comparison.md", "report.html", "tradeoff.png"]
    assert all(str(out / name) in printed for name in written)
    rows = {tuple(row[key] for key in ("run", *Metric._fields)): row for row in data["figures"]}
    assert len(rows) == len(data["figures"]), "one row per run and metric"
    for folder, name in zip(run_folders, ("base", "step-40", "step-80"), strict=True):
        results = read_json(folder / "results.json")
        lenient = rows[name, "accuracy", "maths", "lenient", "", "none", ""]
        wanted = {**results["accuracy"]["maths"]["lenient"], "n": 60}
        assert {key: lenient[key] for key in ("value", "ci95", "n")} == wanted
        cell = results["followup"]["chat"]["none"]["T=1.0"]
        rate = rows[name, "followup", "chat", "rate", "T=1.0", "none", ""]
        assert (rate["value"], rate["ci95"]) == (cell["rate"], cell["ci95"])
        shown = f"{100 * cell['rate']:.1f} [{100 * cell['ci95'][0]:.1f}, {100 * cell['ci95'][1]:.1f}]"
        assert shown in page and shown in printed
    samples = [[row for _, row in read_jsonl(folder / "samples.jsonl")] for folder in run_folders[:2]]
    before, after = ({row["item"]: row["lenient"] for row in some if row["kind"] == "accuracy"} for some in samples)
    change = rows["step-40", "accuracy", "maths", "lenient", "", "none", ""]["changes"]["baseline"]
    assert change["gained_items"] == sorted(item for item in after if after[item] and not before[item])
    assert change["lost_items"] == sorted(item for item in after if before[item] and not after[item])
    assert change["gained"] == len(change["gained_items"]) > 0


def test_every_paired_difference_is_the_difference_of_the_reported_figures(tmp_path: Path) -> None:
    """Rows and summaries count alike, also with perturbations, unlabelled turns and the real turns of transcripts."""
    options: Any = {"perturbations": ("none", "truncate(0.5)"), "actual": 0.7, "genuine": {"chat": (0.2, 0.3, 0.4)}}
    folders = [probe_run(tmp_path / name, name, unscored=u, **options) for name, u in (("base", 0), ("rl", 7))]
    comparison = comparison_of(*folders)
    checked = []
    for figure in comparison.figures:
        metric = figure.metric
        for against, change in figure.changes.items():
            run, other = {
                "baseline": ("base", metric),
                "plain": (figure.run, metric._replace(measure="followup", perturbation="none")),
                "actual": (figure.run, Metric("actual", metric.set, "rate")),
            }[against]
            if against == "baseline" and metric.name == "changed_text":
                assert change.value == 0 and change.unmatched == 0, "the same turns change in both"
                continue
            if against == "baseline" and metric.measure in ("followup", "perturbed", "actual"):
                assert change.unmatched == 7, "the items that one run has no label for are left out"
                continue
            value = (figure.estimate.value or 0) - (comparison.estimate(run, other).value or 0)
            assert change.value == pytest.approx(value, abs=1e-5) and change.unmatched == 0
            assert change.p_value == mcnemar(change.gained, change.lost)
            checked.append((figure.run, against))
    others = dict.fromkeys([("base", "plain"), ("rl", "plain"), ("base", "actual"), ("rl", "actual")], 3)
    assert Counter(checked) == {("rl", "baseline"): 4, **others}
    changed = comparison.select("perturbed", name="changed_text")
    assert len(changed) == 6 and all(0.7 < (figure.estimate.value or 0) <= 1 for figure in changed)


def test_patterns_are_read_from_intervals(tmp_path: Path) -> None:
    rates = {
        "absent": (0.0, 0.0, 0.0), "latent": (0.0, 0.1, 0.5), "present": (0.6, 0.1, 0.1), "unclear": (0.1, 0.1, 0.1),
    }  # fmt: skip
    comparison = comparison_of(probe_run(tmp_path, genuine=rates, n=150, judge="llm/9 large"))
    assert {name: patterns["base"].name for name, patterns in comparison.patterns.items()} == {
        name: name for name in rates
    }
    highest = Metric("followup", "latent", "rate", "T=1.0")
    assert comparison.patterns["latent"]["base"].sampled == comparison.estimate("base", highest)
    assert comparison.overall == {"base": "context-bound"}
    few = comparison_of(probe_run(tmp_path, genuine={"absent": (0.0, 0.0, 0.0)}, n=20, judge="llm/9 large"))
    assert few.patterns["absent"]["base"].name == "unclear", "20 items cannot show a rate below 10%"


@pytest.mark.parametrize(
    ("judge", "n", "real", "generated", "usable"),
    [
        ("rules/3", 60, 0.9, 0.2, True),
        ("rules/3", 18, 0.8, 0.8, False),
        ("llm/9 large", 60, 0.9, 0.2, True),
        ("llm/9 large", 60, 0.3, 0.7, False),
        ("llm/9 small", 18, 0.6, 0.5, False),
        ("llm/9 large", 60, None, 0.7, True),
    ],
)
def test_a_judge_shows_a_pattern_only_where_it_tells_real_user_turns_from_the_models(
    judge: str, n: int, real: float | None, generated: float, usable: bool, tmp_path: Path
) -> None:
    """Read by a person, real user turns are almost all genuine. `rules` alone shows no pattern on any set."""
    run = probe_run(tmp_path / "a", genuine={"talks": (generated,) * 3}, actual=real, n=n, judge=judge)
    comparison = comparison_of(run)
    assert list(comparison.unusable) == ([] if usable else ["talks"])
    name = "present" if usable and judge.startswith("llm") else "needs labels"
    assert comparison.patterns["talks"]["base"].name == comparison.overall["base"] == name
    assert as_json(comparison)["unusable"] == list(comparison.unusable)
    shown = format_table([read_json(run / "results.json")])
    assert ("unusable on talks" in shown, "pattern of talks" in shown) == (not usable, name == "present")


@pytest.mark.parametrize("decoding", ["T=0.0", "T=1.0"])
def test_a_measured_rate_is_not_called_unmeasured(decoding: str) -> None:
    assert pattern_of({decoding: Estimate(0.2, (0.04, 0.62), 5)}).name == "unclear"
    assert pattern_of({}).name == "not measured"


def test_grounding_and_changed_text_count_the_turns_that_have_them(tmp_path: Path) -> None:
    turns = [
        {"label": "new_task" if item else None, "grounding": 0.5 if item % 3 else None, "changed": bool(item % 2)}
        for item in range(12)
    ]
    rows = [
        make_row("followup", "maths", str(item), [], perturbation=of, user_turn="Why?", **turn)
        for of in ("none", "truncate(0.5)") for item, turn in enumerate(turns)
    ]  # fmt: skip
    for row in rows[:12]:
        row["changed"] = None
    run = write_run(tmp_path / "a", "a", None, rows, {"maths": ("followup", 12)})
    found = {(metric.measure, metric.name): of.n for metric, of in read_results(run).figures().items()}
    assert [found["followup", "rate"], found["followup", "grounding"]] == [11, 8]
    assert found["perturbed", "changed_text"] == 12 and ("followup", "changed_text") not in found


def test_grounding_is_summarized_by_what_it_separates(tmp_path: Path) -> None:
    genuine = {"chat": (0.3, 0.4, 0.5)}
    folder = probe_run(tmp_path, genuine=genuine, grounding=0.3, unscored=5, perturbations=("none", "truncate(0.5)"))
    rows = [row for _, row in read_jsonl(folder / "samples.jsonl")]
    rows = [row for row in rows if row["label"] and row["perturbation"] == "none"]
    figures = {one.metric.name: one.estimate for one in comparison_of(folder).select("grounding", set="chat")}
    area = figures.pop("AUC")
    assert area.n == len(rows) == 3 * 55, "neither perturbed turns nor those without a label"
    assert area.ci95 and 0.5 < area.ci95[0] < (area.value or 0) < area.ci95[1]
    assert list(figures) == ["label:genuine_followup", "label:new_task"]
    for name, mean in figures.items():
        values = [row["grounding"] for row in rows if name == f"label:{row['label']}"]
        assert mean.n == len(values) and mean.value == pytest.approx(sum(values) / len(values))


# --- what is refused


def test_runs_that_were_measured_differently_are_refused_unless_forced(tmp_path: Path) -> None:
    base, out = probe_run(tmp_path / "a"), tmp_path / "out"
    for settings, reason in (
        ({"judge": "llm-2"}, "judge: rules-1 (base), llm-2 (other)"),
        ({"template": "c" * 64}, "chat template: base has another one than the rest"),
        ({"dtype": "bfloat16"}, "dtype: auto (base), bfloat16 (other)"),
        ({"system_prompt": "Be brief."}, "system_prompt: null (base), Be brief. (other)"),
        ({"a_setting_of_tomorrow": 1}, "a_setting_of_tomorrow: null (base), 1 (other)"),
        ({"n": 61}, "set maths: 60 items 111111111111 (base), 61 items 111111111111 (other)"),
        ({"correct": None}, "set maths: 60 items 111111111111 (base), null (other)"),
    ):
        other = probe_run(tmp_path / "b", "other", **settings)  # type: ignore[arg-type]
        with pytest.raises(IncomparableRuns, match=f"^.*{re.escape(reason)}.*$"):
            compare([base, other], out)
    assert not out.exists()
    family = {"template": "c" * 64, "stops": ["<|eot|>"]}
    with pytest.raises(IncomparableRuns, match="seed: 0"):
        compare([base, probe_run(tmp_path / "b", "other", seed=3, **family)], out, accept=["template"])  # type: ignore[arg-type]
    assert not out.exists()
    accepted = compare([base, probe_run(tmp_path / "b", "other", **family)], out, accept=["template"])  # type: ignore[arg-type]
    assert not accepted.differences and accepted.remarks[0].startswith("chat template, accepted: ")
    compare([base, probe_run(tmp_path / "c", "other", judge="llm", seed=3, engine="vllm")], out, force=True)
    data = read_json(out / "comparison.json")
    assert sorted(data["differences"]) == ["judge: rules-1 (base), llm (other)", "seed: 0 (base), 3 (other)"]
    assert data["remarks"] == ["engine: hf (base), vllm (other)"]
    assert data["differences"][0] in (out / "comparison.md").read_text()


@pytest.mark.parametrize(
    ("measures", "changed", "key", "refused"),
    [
        ("accuracy", {"grader": "answers/1 big"}, "grader of set maths", True),
        ("accuracy", {"words": 2}, "words of set maths", True),
        ("accuracy", {"a_setting_of_tomorrow": 1}, "a_setting_of_tomorrow of set maths", True),
        ("sharded", {"shards": "f" * 64}, "shards of set maths", True),
        ("instructions", {"instructions": "if-verifiable 2"}, "instructions of set maths", True),
        ("doubted", {"pressures": ["authority"]}, "pressures of set maths", False),
        ("doubted", {"doubted": 3}, "doubted of set maths", False),
        ("accuracy", {"by": ["depth"]}, "by of set maths", False),
        ("accuracy", {"measures": ["accuracy", "sharded"], "shards": "f" * 64}, "measures on set maths", False),
        ("followup", {"measures": ["accuracy", "followup"], "words": 2}, "measures on set maths", False),
    ],
)
def test_a_set_that_was_measured_differently_is_refused_where_that_changes_figures(
    tmp_path: Path, measures: str, changed: dict[str, Any], key: str, refused: bool
) -> None:
    rows = [
        make_row("accuracy", "maths", str(item), [], lenient=True, strict=True, outcome="answered") for item in "ab"
    ]
    folders = [write_run(tmp_path / name, name, None, rows, {"maths": (measures, 2)}) for name in ("base", "other")]
    known = read_json(folders[1] / "results.json")["settings"]
    known["sets"]["maths"] |= changed
    edit_results(folders[1], settings=known)
    comparison = comparison_of(*folders)
    lines = [line.partition(":")[0] for line in (comparison.differences if refused else comparison.remarks)]
    assert lines == [key] and len([*comparison.differences, *comparison.remarks]) == 1
    assert len(comparison.graders) == ("grader" in changed)


@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize(
    ("before", "said", "refused", "remarked"),
    [
        (None, "Why?", False, False),  # of an earlier version: no text of it would have ended sooner
        (None, "Why?<|endoftext|>Human: Hi.", True, False),
        (["<|im_end|>"], "Why?", True, False),
        ("unknown", "Why?", False, True),  # a server's
    ],
)
def test_runs_that_stopped_at_other_tokens_are_refused(
    before: Any, said: str, refused: bool, remarked: bool, kept: bool, tmp_path: Path
) -> None:
    older = probe_run(tmp_path / "a", "older", **({} if before is None else {"stops": before}))
    with (older / "samples.jsonl").open("a") as file:
        file.write(json.dumps(make_row("followup", "talk", "0", [], user_turn=said)) + "\n")
    if kept:
        with gzip.open(older / "samples.jsonl.gz", "wb") as packed:
            packed.write((older / "samples.jsonl").read_bytes())
        (older / "samples.jsonl").unlink()
    newer = probe_run(tmp_path / "b", "newer", stops=["<|endoftext|>", "<|im_end|>"])
    compared = comparison_of(older, newer)
    found = [any(line.startswith("stops: ") for line in lines) for lines in (compared.differences, compared.remarks)]
    assert found == [refused, remarked]


def test_folders_that_hold_no_finished_run_get_one_line_each(tmp_path: Path) -> None:
    run = tmp_path / "run"
    for name in ("step-100", "step-20", "base"):
        good = probe_run(run / "probe" / name)
    for name in ("run/probe/step-200", "run/probe/comparison", "begun", "untested/probe/base"):
        (tmp_path / name).mkdir(parents=True)
    assert [folder.name for folder in expand(run)] == ["base", "step-20", "step-100"]
    for step in (100, 200, 300):
        (run / f"checkpoint-{step}").mkdir()
    for step in (100, 200):
        mark_complete(run / f"checkpoint-{step}", step)
    assert [line.split()[0] for line in unmeasured(run)] == ["checkpoint-200"]
    (tmp_path / "begun" / "manifest.json").write_text("{}")
    old = edit_results(probe_run(tmp_path / "old"), schema=2)
    broken = edit_results(probe_run(tmp_path / "broken"), accuracy={"maths": {"n": 3}})
    torn, rows = probe_run(tmp_path / "torn"), probe_run(tmp_path / "rows")
    (torn / "results.json").write_text('{"schema": 1,')
    (rows / "samples.jsonl").write_text('{"kind": "accuracy", "set": "maths"}\n')
    for folders, error_class, reason in (
        ([], BadInput, "no run folder"),
        ([tmp_path / "nowhere"], BadInput, "nowhere: no such folder"),
        ([run / "probe"], BadInput, "did you mean"),
        ([tmp_path / "begun"], BadInput, "unfinished"),
        ([tmp_path / "untested"], BadInput, "no results.json"),
        ([old], BadInput, "schema 2"),
        ([broken], BadInput, "accuracy: Value error, set maths"),
        ([torn], DataError, "results.json"),
        ([good, good], BadInput, "more than once"),
        ([good, rows], DataError, "samples.jsonl:1"),
    ):
        with pytest.raises(error_class, match=rf"^.*{reason}[^\n]*$"):
            compare(folders, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    with pytest.raises(BadInput, match="--out"):
        compare([good], good / "results.json")


# --- what the table and comparison.md show


def test_the_printed_table_has_a_row_per_figure_and_fits_140_columns(run_folders: list[Path], tmp_path: Path) -> None:
    run_folders.append(probe_run(tmp_path / "d", "step-120", 120, correct=1, genuine={"maths": ONES, "chat": ONES}))
    results = [read_json(folder / "results.json") for folder in run_folders]
    lines = format_table(results).split("\n\n")[0].splitlines()
    assert lines[0].split()[-4:] == ["base", "step-40", "step-80", "step-120"]
    assert len(lines) == 2 + 10 and all(line.count("[") == line.count("]") == 4 for line in lines[2:])
    assert max(map(len, lines)) <= 140
    assert "token limit" not in format_table(results)
    results[0]["accuracy"]["maths"]["outcomes"] |= {"answered": 24, "truncated": 36}
    assert "token limit without a marked answer: base 60% of maths" in format_table(results)
    six = format_table([*results, *results[:2]]).split("\n\n")
    assert all(part.splitlines()[2].startswith("maths  lenient accuracy") for part in six[:2])


def test_user_turns_without_a_label_are_shown_and_in_no_rate(tmp_path: Path) -> None:
    comparison = comparison_of(probe_run(tmp_path, genuine={"chat": ONES}, unscored=15))
    for name, value, n in (("rate", 1.0, 45), ("unscored", 0.25, 60)):
        estimate = comparison.estimate("base", Metric("followup", "chat", name, "T=0.0"))
        assert (estimate.value, estimate.n) == (value, n)
    page = markdown(comparison, has_plot=False)
    assert page.count("base 25.0% of 180 (no verdict 45)") == 1, "what is to know about the judge stands in one line"
    assert all(shown in page for shown in ("100.0 (45)", "25.0 (15)", "100.0 [92.1, 100.0]"))


def test_turns_that_fit_any_item_are_counted_and_named(tmp_path: Path) -> None:
    asks = "I can't finish it with that alone. What else do you know?"
    said = [asks, asks.upper(), f"{asks[:-1]}!", "Why 7?", "Why 7?", "Twice", "Twice", ""]
    items = ["1", "2", "3", "4", "5", "6", "6", "7"]

    def turn(item: str, text: str) -> Row:
        return make_row("followup", "chat", item, [], temperature=0.0, user_turn=text, label="genuine_followup")

    rows = [turn(item, text) for item, text in zip(items, said, strict=True)]
    found = likeness(rows)  # case and punctuation do not count; samples of one item are not compared
    assert found == {"equal": round(8 / 40, 6), "opening": "i can't", "opening_share": round(3 / 7, 6)}
    assert likeness(rows[5:7])["equal"] is None and likeness([])["opening"] == ""
    folder = probe_run(tmp_path / "run", genuine={"chat": ONES})
    results = read_json(folder / "results.json")
    cell = results["followup"]["chat"]["none"]["T=0.0"]
    for share, noted in ((0.01, False), (0.36, True)):
        cell |= {"equal": share, "opening_share": 0.4, "opening": "<b>What else?\x1b[31m</b>"}
        table = format_table([results])
        assert ("base on chat at T=0.0 (36% of pairs" in " ".join(table.split())) == noted and "\x1b" not in table


def test_samples_of_one_item_count_as_one_in_a_control(tmp_path: Path) -> None:
    genuine = {"chat": (0.0, 0.1, 0.2)}
    folder = probe_run(tmp_path, genuine=genuine, samples=3, perturbations=("none", "truncate(0.5)"))
    comparison = comparison_of(folder)
    greedy, *sampled = (figure.changes["plain"] for figure in comparison.select("perturbed", name="rate"))
    assert greedy.p_value is not None and all(change.n == 60 and change.p_value is None for change in sampled)
    page = markdown(comparison, has_plot=False)
    assert "| base | truncate(0.5) | T=0.0 | 0.0 [0.0, 6.0]; +0.0 [-4.5, +4.5], p = 1.000 (0 up, 0 down) |" in page
    shown_first = page.split("## Patterns")[0] + format_table([read_json(folder / "results.json")])
    assert "truncate" not in shown_first


def test_hostile_names_break_neither_the_page_nor_the_terminal(tmp_path: Path) -> None:
    bad = "question(a | b\n## <script>alert(1)</script> [x](http://x) `c` $y$ \u202e~~z~~\x1b[31m)"
    folder = probe_run(tmp_path / "a", bad, genuine={"chat": (0.1, 0.1, 0.2)}, perturbations=("none", bad))
    comparison = compare([folder, probe_run(tmp_path / "b", bad)], tmp_path / "out", force=True)
    page = (tmp_path / "out/comparison.md").read_text()
    for mark in ("<script", "\n## <", " [x]", " `c`", " $y$", "\u202e", " | b?", "\x1b"):
        assert mark not in page
    tables = [part.replace("\\|", "").splitlines() for part in page.split("\n\n") if part.startswith("| ")]
    assert len(tables) > 5 and all(len({line.count("|") for line in table}) == 1 for table in tables)
    table = format_table([read_json(folder / "results.json")])
    assert not any(mark in table for mark in ("\x1b", "\u202e", "\n##"))
    assert {figure.metric.perturbation for figure in comparison.figures} == {"none", bad}


def test_runs_of_one_label_are_told_apart_by_their_folders(tmp_path: Path) -> None:
    folders = [probe_run(tmp_path / name, "same") for name in ("one", "two")]
    folders += [probe_run(tmp_path / name / "probe" / "step-4", "step-4", 4) for name in ("x", "y")]
    folders += [probe_run(tmp_path / "y" / "probe" / "step-8", "step-8", 8), probe_run(tmp_path / "z", "sft", 4)]
    names = [run.name for run in load_runs(folders)]
    assert names == ["one/same", "two/same", "x/step-4", "y/step-4", "y/step-8", "sft step-4"]


def test_a_run_without_samples_is_compared_without_paired_tests(run_folders: list[Path]) -> None:
    (run_folders[1] / "samples.jsonl").unlink()
    comparison = comparison_of(*run_folders[:2])
    assert comparison.select("accuracy", name="lenient")[1].estimate.n and not any(
        one.changes for one in comparison.figures
    )
    assert any("step-40" in remark and "samples.jsonl" in remark for remark in comparison.remarks)


def test_rows_that_were_judged_again_are_read_again(tmp_path: Path) -> None:
    base = probe_run(tmp_path / "a", genuine={"chat": (0.1, 0.1, 0.1)})
    changes = []
    for rate in (0.2, 0.9):
        other = probe_run(tmp_path / "b", "other", genuine={"chat": (rate, rate, rate)})
        first, second = comparison_of(base, other).select("followup", name="rate", temperature="T=0.0")
        changes.append(second.changes["baseline"].value)
        assert changes[-1] == pytest.approx((second.estimate.value or 0) - (first.estimate.value or 0), abs=1e-5)
    assert changes[0] != changes[1]


def test_a_comparison_of_many_runs_details_where_each_training_run_ended(tmp_path: Path) -> None:
    genuine = {"chat": (0.1, 0.2, 0.3)}
    folders = [probe_run(tmp_path / "base", n=20, genuine=genuine)]
    folders += [
        probe_run(tmp_path / run / "probe" / f"step-{step}", f"step-{step}", step, n=20, genuine=genuine)
        for run in ("sft", "rl")
        for step in range(1, 8)
    ]
    comparison = comparison_of(*folders)
    assert comparison.shown == ["base", "sft/step-7", "rl/step-7"]
    before, after = markdown(comparison, has_plot=False).split("## How the answers ended")
    details = after.split("## How it was measured")[0]
    assert "| sft/step-3 |" in before and "| sft/step-3 |" not in details and "| sft/step-7 |" in details
    assert comparison_of(*folders[:8]).shown == ["base", *(f"step-{step}" for step in range(1, 8))]


def test_a_results_file_with_the_kl_of_older_versions_is_still_read(run_folders: list[Path]) -> None:
    before = plain(comparison_of(*run_folders).figures)
    old = {"kl_to_base": {"value": 0.4488, "ci95": [0.4065, 0.4932], "answers": 40, "tokens": 5334}}
    edit_results(run_folders[1], **old)
    assert plain(comparison_of(*run_folders).figures) == before
    assert "probe/kl_to_base" not in flatten(read_results(run_folders[1]))


# --- the plot


def test_the_plot_leads_from_the_baseline_along_each_training_run(run_folders: list[Path], tmp_path: Path) -> None:
    folders = [run_folders[0], run_folders[2], run_folders[1]]
    folders += [probe_run(tmp_path / "grpo" / "probe" / f"step-{step}", f"step-{step}", step) for step in (10, 5)]
    folders.append(probe_run(tmp_path / "other", "rl"))
    comparison = comparison_of(*folders)
    assert comparison.paths == [[2, 1], [4, 3], [5]]
    assert [path_name(comparison, path) for path in comparison.paths] == ["sft", "grpo", "rl"]
    own, other = panels_of(comparison)
    assert own.accuracy == Metric("accuracy", "maths", "lenient")
    assert list(own.points) == ["T=0.0", "T=1.0"] and [point.run for point in own.points["T=0.0"]] == [0, 1, 2]
    # A set without accuracy is never drawn over the accuracy of another set.
    assert other.set == "chat" and other.accuracy is None
    assert {point.x for point in other.points[""]} == {0.0, 0.7, 1.0}


def test_a_training_run_that_continues_another_starts_where_that_one_ended(tmp_path: Path) -> None:
    for run in ("sft", "second"):
        for label, step in (("base", 0), ("step-5", 5), ("step-10", 10)):
            probe_run(tmp_path / run / "probe" / label, label, step)
    merged = tmp_path / "second" / "probe" / "base"  # an adapter that was merged has other weights
    edit_results(merged, model={**read_json(merged / "results.json")["model"], "weights_sha256": "merged"})
    comparison = comparison_of(tmp_path / "sft", tmp_path / "second")
    assert list(comparison.names[:4]) == ["sft/base", "sft/step-5", "sft/step-10", "second/base"]
    assert comparison.paths == [[1, 2], [3, 4, 5]]
    points = [Point(run, Estimate(0.5, None, 60), Estimate(0.5, None, 60)) for run in range(6)]
    assert arrows(comparison, points) == [(0, 1), (1, 2), (3, 4), (4, 5)]
    assert arrows(comparison, points[:1] + points[2:]) == [(0, 2), (3, 4), (4, 5)], "past a run without the numbers"
    other = comparison_of(tmp_path / "sft/probe/base", tmp_path / "second/probe/base")
    assert arrows(other, points[:2]) == [(0, 1)], "a start alone is no path"


@pytest.mark.parametrize(
    ("runs", "paths"),
    [  # folder, label and step of a probe, and the folder of its checkpoint
        ([("sft-a", "step-100", 100, "runs/sft-a"), ("sft-b", "step-120", 120, "runs/sft-b")], [[1], [2]]),
        ([("sft-a", "step-100", 100, "x/train"), ("sft-b", "step-120", 120, "y/train")], [[1], [2]]),
        ([("seed-1", "step-100", 100, "runs/seed-1"), ("seed-2", "step-120", 120, "runs/seed-2")], [[1], [2]]),
        ([("sft-2", "step-120", 120, "runs/sft"), ("sft-1", "step-100", 100, "/data/runs/sft")], [[2, 1]]),
        ([("step-120", "step-120", 120, "runs/sft"), ("step-100", "step-100", 100, "moved/")], [[2, 1]]),
    ],
)
def test_probes_beside_each_other_are_one_training_only_if_they_are_named_so(
    runs: list[tuple[str, str, int, str]], paths: list[list[int]], tmp_path: Path
) -> None:
    folders = [probe_run(tmp_path / "base")]
    for name, label, step, trained in runs:
        folder = probe_run(tmp_path / name, label, step, correct=0.5 if step > 100 else 0.1)
        known = read_json(folder / "results.json")["model"]
        edit_results(folder, model={**known, "path": f"{trained}/checkpoint-{step}"})
        folders.append(folder)
    assert comparison_of(*folders).paths == paths
    gate = ["compare", *map(str, folders), "--out", str(tmp_path / "out"), "--keep", "accuracy=-10"]
    assert (run_command(main, gate) == 2) is (len(paths) > 1), "no gate leaves a run out"


def test_a_base_that_is_another_runs_checkpoint_is_shown_once(tmp_path: Path) -> None:
    weights = {"sft/base": "w0", "sft/step-5": "w5", "grpo/base": "w5", "grpo/step-3": "w8"}
    for name, sha in weights.items():
        run, label = name.split("/")
        folder = probe_run(tmp_path / run / "probe" / label, label, int(label.partition("-")[2] or 0))
        content = read_json(folder / "results.json")
        write_json(folder / "results.json", {**content, "model": {**content["model"], "weights_sha256": sha}})
    comparison = comparison_of(tmp_path / "sft", tmp_path / "grpo")
    assert list(comparison.names) == ["base", "sft/step-5", "grpo/step-3"] and comparison.paths == [[1], [2]]
    points = [Point(run, Estimate(0.5, None, 60), Estimate(0.5, None, 60)) for run in range(3)]
    assert arrows(comparison, points) == [(0, 1), (1, 2)]
    asked = comparison_of(tmp_path / "sft/probe/step-5", tmp_path / "grpo/probe/base")
    assert len(asked.names) == 2, "a folder that is asked for is shown"


@pytest.mark.parametrize("missing", ["accuracy", "followup", "clarify"])
def test_a_plot_is_drawn_if_follow_up_was_measured(tmp_path: Path, missing: str) -> None:
    """The plot of an earlier comparison in the same folder is deleted."""
    parts: dict[str, Any] = {"accuracy": {"correct": None}, "clarify": {"asks": None}, "followup": {"genuine": None}}
    chosen: dict[str, Any] = {"genuine": {"chat": (0.1, 0.2, 0.3)}, **parts[missing]}
    folders = [probe_run(tmp_path / "a", **chosen), probe_run(tmp_path / "b", "$x_1$", **chosen)]
    plot = tmp_path / "out" / "tradeoff.png"
    plot.parent.mkdir()
    plot.write_bytes(b"of an earlier comparison")
    compare(folders, plot.parent)
    drawn = missing != "followup"
    assert plot.is_file() == ("tradeoff.png" in (plot.parent / "comparison.md").read_text()) == drawn
    assert not drawn or plot.read_bytes().startswith(PNG)


def test_real_users_are_the_ceiling_of_transcripts(tmp_path: Path) -> None:
    folder = probe_run(tmp_path / "base", genuine={"chat": (0.2, 0.3, 0.4)}, actual=0.7)
    comparison = comparison_of(folder)
    real = read_json(folder / "results.json")["actual"]["chat"]
    [panel] = panels_of(comparison)
    assert panel.real and panel.real.value == real["rate"]
    assert f"real users on chat: {100 * real['rate']:.1f} [" in format_table([read_json(folder / "results.json")])
    assert "actual" not in {figure.metric.measure for figure in comparison.main}, "no figure of a model"
    assert as_json(comparison)["figures"][-1]["measure"] == "actual"
