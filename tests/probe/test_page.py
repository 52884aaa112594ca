"""report.html: one harmless file with the figures of the comparison and every conversation behind them."""

from __future__ import annotations

import base64
import hashlib
import json
import random
import re
from collections import defaultdict
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from statistics import fmean
from typing import Any
from unittest.mock import patch
from urllib.parse import parse_qsl

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nextturn.probe.command.files import read_jsonl
from nextturn.probe.judges.verdicts import GENUINE, ROUGH
from nextturn.probe.kept import turn_hash
from nextturn.probe.measures.base import Figure, make_row
from nextturn.probe.report.comparison import LIKENESS, Comparison, compare_runs, percent, points, terminal_table
from nextturn.probe.report.page import LIMIT, Table, as_script, conversations, html, markdown, rendered, sections
from nextturn.probe.report.plot import draw_tradeoff
from nextturn.probe.report.tracking import flatten
from nextturn.probe.results import OwnMeasure, load_runs, read_results
from support.page_runs import HOSTILE, data_of, probe_run, rows_of, three_runs, write_run


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    return three_runs(tmp_path_factory.mktemp("page"), 30)


@pytest.fixture(scope="module")
def page(comparison: Comparison) -> str:
    return html(comparison, draw_tradeoff(comparison))


class Parsed(HTMLParser):
    """A page as a parser reads it: elements with attributes, content of script and style, and text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.inside: list[tuple[str, str]] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, name: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements.append((name, dict(attributes)))

    def handle_data(self, data: str) -> None:
        if self.elements[-1:] and self.elements[-1][0] in ("script", "style") and self.cdata_elem:
            self.inside.append((self.elements[-1][0], data))
        else:
            self.text += data

    def ids(self) -> set[str | None]:
        return {attributes.get("id") for _, attributes in self.elements}


def test_the_page_is_one_file_that_requests_nothing(page: str) -> None:
    parsed = Parsed(page)
    for name, attributes in parsed.elements:
        assert not any(key == "style" or key.startswith("on") for key in attributes)
        assert "src" not in attributes or (attributes["src"] or "").startswith("data:image/png;base64,"), name
        assert "href" not in attributes or attributes["href"] == "data:," or (attributes["href"] or "")[0] == "#", name
    assert {name for name, _ in parsed.elements}.isdisjoint({"iframe", "object", "embed", "base", "audio", "video"})
    code = [text for name, text in parsed.inside if name == "style"] + [parsed.inside[-1][1]]
    assert not re.search(r"https?:|url\(|@import|innerHTML|insertAdjacent|document\.write|eval\(", "".join(code))


def test_the_policy_allows_only_the_script_and_style_of_the_page(page: str) -> None:
    parsed = Parsed(page)
    metas = [
        attributes for _, attributes in parsed.elements if attributes.get("http-equiv") == "Content-Security-Policy"
    ]
    policy = metas[0]["content"] or ""
    style, _, script = (text for _, text in parsed.inside)
    for name, text in (("style-src", style), ("script-src", script)):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{name} 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none';") and "unsafe" not in policy and "http" not in policy


def test_text_of_models_stays_data(page: str) -> None:
    """There are two scripts, the data and the page's own, whatever the data holds, and the data is unchanged."""
    parsed = Parsed(page)
    assert [name for name, _ in parsed.inside] == ["style", "script", "script"]
    assert not any(mark in parsed.inside[1][1] for mark in "<>&\u2028\u2029\x1b\x00")
    assert HOSTILE in {row["user_turn"] for row in rows_of(page)}
    assert HOSTILE in {row["messages"][0]["content"] for row in rows_of(page)}
    page.encode()  # a lone surrogate could not be written


@settings(max_examples=settings().max_examples // 4)
@given(
    st.recursive(
        st.text() | st.none() | st.integers(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
    )
)
def test_any_data_comes_back_and_holds_no_markup(value: Any) -> None:
    script = as_script({"value": value})
    assert json.loads(script) == {"value": value}
    assert not any(mark in script for mark in "<>&\u2028\u2029")
    script.encode()


@given(st.text())
def test_any_name_is_one_text_without_hidden_characters(name: str) -> None:
    with patch("nextturn.probe.report.page.packaged", lambda template: '<b title="{{ name }}">{{ name }}</b>'):
        parsed = Parsed(rendered("", "", "", {}, name=name))
    assert parsed.elements[0][0] == "b" and len(parsed.elements) == 1
    assert parsed.text == parsed.elements[0][1]["title"]
    assert len(parsed.text) == len(name) and (parsed.text or " ").isprintable()


def test_hostile_names_of_runs_and_sets_are_shown_as_text(tmp_path: Path) -> None:
    probe_run(tmp_path / "a", "<img src=x onerror=alert(1)>\u202e", None, 0.5, 4)
    text = (tmp_path / "a/results.json").read_text().replace('"maths"', '"<script>maths"')
    (tmp_path / "a/results.json").write_text(text)
    parsed = Parsed(html(compare_runs(load_runs([tmp_path / "a"]))))
    names = [name for name, _ in parsed.elements]
    assert "img" not in names and names.count("script") == 2
    assert "<img src=x onerror=alert(1)>" in parsed.text and "<script>maths" in parsed.text


def test_the_page_holds_every_row_and_every_conversation_once(comparison: Comparison, page: str) -> None:
    expected = []
    for number, run in enumerate(comparison.runs):
        expected += [{**row, "run": number} for _, row in read_jsonl(run.folder / "samples.jsonl")]
    rows = rows_of(page)
    made = {"score", "strict_score", "values", "annotated"}  # what the page counts a row as
    assert [{key: row[key] for key in row.keys() - made} for row in rows] == [
        {key: row[key] for key in rows[0].keys() - made} for row in expected
    ]
    assert all((row["score"] is None) == (row["label"] is None and row["kind"] == "followup") for row in rows)
    contexts = [json.dumps(context) for context in data_of(page)["contexts"]]
    assert len(contexts) == len(set(contexts))


def test_a_conversation_shows_the_label_of_the_annotator(comparison: Comparison) -> None:
    run = comparison.runs[0]
    turns = [row for _, row in run.rows() if row["kind"] == "followup" and row["perturbation"] == "none"]
    read = turn_hash(turns[0]["messages"], turns[0]["user_turn"])
    rows = rows_of(html(replace(comparison, labels={(run.name, read): "new_task"})))
    found = [row for row in rows if row["annotated"]]
    assert {row["annotated"] for row in found} == {"new_task"} and {row["run"] for row in found} == {0}
    assert turns[0]["item"] in {row["item"] for row in found}


def test_the_same_runs_give_the_same_bytes(comparison: Comparison, page: str) -> None:
    same = compare_runs(load_runs([run.folder for run in comparison.runs]))
    assert html(same, draw_tradeoff(same)) == page


def test_a_large_comparison_keeps_whole_items_and_says_so(comparison: Comparison, page: str) -> None:
    size = sum((run.folder / "samples.jsonl").stat().st_size for run in comparison.runs)
    small = html(comparison, limit=size // 3)
    shown = [{(row["set"], row["item"]) for row in rows_of(small) if row["run"] == run} for run in range(3)]
    everything = [row for row in rows_of(page) if (row["set"], row["item"]) in shown[0]]
    assert shown[0] == shown[1] == shown[2] and rows_of(small) == everything
    assert 0.2 < len(everything) / len(rows_of(page)) < 0.5
    assert f"{len(everything):,} of {len(rows_of(page)):,} rows" in Parsed(small).text
    assert "samples.jsonl in the folder" not in Parsed(page).text
    figures_of = [re.findall("<table>.*?</table>", text, re.DOTALL) for text in (small, page)]
    assert figures_of[0] == figures_of[1], "figures are over all items"


def test_the_figures_of_the_comparison_stand_on_the_page(comparison: Comparison, page: str) -> None:
    parsed = Parsed(page)
    order = [page.index(mark) for mark in ("<h1>", 'class="note"', 'id="list"', "<table>")]
    assert order == sorted(order), "sentences, conversations, tables"
    assert all(sentence in parsed.text for sentence in comparison.summary)
    last = [figure for figure in comparison.main if figure.run == comparison.names[-1] and "baseline" in figure.changes]
    clear = [
        line for line in comparison.summary if line.startswith(f"Compared with {comparison.names[0]}, {last[0].run} ")
    ]
    for figure in last:  # what an interval tells from 0 is in the sentence of its run, with the change
        low, high = comparison.change(figure).ci95 or (0, 0)
        shown = points(comparison.change(figure), figure.declared.unit)
        told = f"{comparison.title(figure.metric)} on {figure.metric.set} {shown}" in clear[0]
        assert figure.metric.name in ("strict", *LIKENESS) or told == (low > 0 or high < 0)
    for figure in comparison.main:
        assert percent(figure.estimate) in parsed.text, figure
        assert bool(figure.estimate.ci95) == (figure.metric.name not in LIKENESS), figure
        if "baseline" in figure.changes:
            assert points(figure.changes["baseline"]) in parsed.text, figure
    assert {"results", "patterns", "changes", "labels", "perturbations", "grounding", "actual"} <= parsed.ids()
    [patterns] = re.findall(r'<section id="patterns">(.*?)</section>', page, re.DOTALL)
    for found in comparison.patterns["maths"].values():
        assert f"{percent(found.greedy)} → {percent(found.sampled)}" in Parsed(patterns).text


def test_counts_of_changed_items_lead_to_as_many_items(tmp_path: Path) -> None:
    """Figures by which the page cannot count items, such as the second one of a measure, have no link."""
    own = {"wavers": OwnMeasure(title="wavers", figures=(Figure("first"), Figure("second")))}
    folders = []
    for label, rate in (("base", 0.2), ("after", 0.6)):
        rng, rows = random.Random(label), []
        for item in map(str, range(60)):
            first, second, right = (float(rng.random() < rate) for _ in range(3))
            rows.append(
                make_row("wavers", "maths", item, [], values={"first": first if item > "2" else None, "second": second})
            )
            graded = {"lenient": right > 0, "strict": right > second, "outcome": "answered"}
            rows.append(make_row("accuracy", "maths", item, [], **graded))
            decided = {"condition": rng.choice(["right", "wrong"]), "decision": "told" if second else "own", **graded}
            rows.append(make_row("doubted", "maths", item, [], **decided))
            for sample in range(2):
                turn = {"user_turn": "Why?", "label": GENUINE if rng.random() < rate else "new_task", "specific": True}
                rows.append(make_row("followup", "maths", item, [], temperature=0.7, sample=sample, **turn))
        folders.append(write_run(tmp_path / label, label, None, rows, {"maths": ("followup", 60)}, own=own))
    comparison = compare_runs(load_runs(folders))
    data, _ = conversations(comparison, LIMIT)
    rows = [dict(zip(data["fields"], row, strict=True)) for row in data["rows"]]
    (table,) = [
        block
        for each in sections(comparison)
        if each.id == "changes"
        for block in each.blocks
        if isinstance(block, Table)
    ]
    linked = set()
    for head, cell in zip(table.head, table.rows[0], strict=True):
        for part in (part for part in cell if "change=" in part.link):
            linked.add(head[0].text.split(" (n ")[0])
            wanted = dict(parse_qsl(part.link[1:]))
            way, strict = (wanted.pop("change") + " ").split(" ")[:2]
            runs = [comparison.names.index(wanted.pop(run)) for run in "ab"]
            values: dict[tuple[str, int], list[float]] = defaultdict(list)
            for row in rows:
                score = row["strict_score" if strict else "score"]
                if score is not None and all(row[key] == value for key, value in wanted.items()):
                    values[row["item"], row["run"]].append(score)
            pairs = [[values[item, run] for run in runs] for item in map(str, range(60))]
            changes = [fmean(after) - fmean(before) for before, after in pairs if before and after]
            assert sum(change > 0 if way == "gained" else change < 0 for change in changes) == int(part.text.split()[0])
    assert linked == {"lenient accuracy", "strict accuracy", "first", f"{comparison.followup} T=0.7"}


def test_marks_of_change_are_corrected_for_the_number_of_differences(tmp_path: Path, page: str) -> None:
    """Four checkpoints whose true rates equal the baseline's: an interval leaves out 0 by chance, and nothing is marked."""
    folders = [probe_run(tmp_path / str(step), f"step-{step}", step, 0.5, 40) for step in range(20, 25)]
    same = compare_runs(load_runs(folders))
    p_values = [
        change.p_value for figure in same.main for change in figure.changes.values() if change.p_value is not None
    ]
    assert min(p_values) < 0.05
    results = [re.findall(r'<section id="results">(.*?)</section>', text, re.DOTALL)[0] for text in (html(same), page)]
    marks = [text.count('class="up"') + text.count('class="down"') for text in results]
    assert marks[0] == 0 < marks[1], "true changes are marked"


@pytest.mark.parametrize(("judge", "rough"), [("rules/3", True), ("llm/5:a-model", False)])
def test_rates_by_the_rules_judge_are_called_rough_everywhere(
    judge: str, rough: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = probe_run(tmp_path / "a", "base", 0, 0.5, 10, judge=judge)
    same, drawn = compare_runs(load_runs([folder])), list[str]()
    monkeypatch.setattr("matplotlib.axes.Axes.set_ylabel", lambda axis, text: drawn.append(text))
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", lambda *args, **options: None)
    draw_tradeoff(same)
    patterns = markdown(same, has_plot=True).split("## Patterns")[1]
    for text in (terminal_table(same), patterns, html(same), "".join(drawn)):
        assert (ROUGH in text) == rough and "follow-up" in text
    keys = "".join(flatten(read_results(folder)))
    assert ("probe/followup_rules_rough/" in keys, "probe/followup/" in keys) == (rough, not rough)


def test_a_measure_that_was_not_taken_has_no_section(tmp_path: Path) -> None:
    rows = [make_row("accuracy", "maths", str(n), [], strict=True, lenient=True, outcome="answered") for n in range(5)]
    write_run(tmp_path, "m", None, rows, {})
    ids = Parsed(html(compare_runs(load_runs([tmp_path])))).ids()
    assert {"results", "outcomes", "measured", "conversations"} <= ids
    assert ids.isdisjoint({"patterns", "changes", "labels", "perturbations", "grounding", "actual"})


def test_a_run_without_rows_still_has_a_page(comparison: Comparison, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a/results.json").write_bytes((comparison.runs[0].folder / "results.json").read_bytes())
    page = html(compare_runs(load_runs([tmp_path / "a", comparison.runs[1].folder])))
    assert {row["run"] for row in rows_of(page)} == {1}
    assert "no samples.jsonl" in Parsed(page).text


def test_a_forced_comparison_says_so_at_the_top(comparison: Comparison, tmp_path: Path) -> None:
    other = probe_run(tmp_path / "b", "b", None, 0.5, 6, judge="llm/2")
    text = Parsed(html(compare_runs(load_runs([comparison.runs[0].folder, other])))).text
    assert text.index("Measured differently, compared by force") < text.index("llm/2") < text.index("Results")


def test_a_model_that_graded_answers_is_named_wherever_figures_are(tmp_path: Path) -> None:
    folder = probe_run(tmp_path, "base", None, 0.5, 6)
    results = json.loads((folder / "results.json").read_text())
    name = next(iter(results["settings"]["sets"]))
    results["settings"]["sets"][name]["grader"] = "answers/1 large-model"
    (folder / "results.json").write_text(json.dumps(results))
    comparison = compare_runs(load_runs([folder]))
    for shown in (terminal_table(comparison), markdown(comparison, False), html(comparison, None)):
        assert "answers/1 large" in shown.replace("\\", "")
