"""report.html: one harmless file that holds what the comparison says and every conversation behind it."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nextturn.probe.files import read_json, read_jsonl, write_json, write_jsonl
from nextturn.probe.judges.labels import ROUGH
from nextturn.probe.measure.measures import figures, make_row
from nextturn.probe.report.comparison import Comparison, compare_runs, load_runs, terminal_table
from nextturn.probe.report.page import FIELDS, as_script, html, markdown, page_template
from nextturn.probe.report.plot import draw_tradeoff
from nextturn.probe.report.tracking import flatten
from support.page_runs import HOSTILE, QUESTION, data_of, probe_run, rows_of, three_runs


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    return three_runs(tmp_path_factory.mktemp("page"))


@pytest.fixture(scope="module")
def page(comparison: Comparison) -> str:
    return html(comparison)


class Read(HTMLParser):
    """What a parser makes of a page: its elements with their attributes, and what stands in script and style."""

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


def test_the_page_is_one_file_that_asks_for_nothing(page: str) -> None:
    read = Read(page)
    for name, attributes in read.elements:
        assert (
            "src" not in attributes
            and "style" not in attributes
            and not any(one.startswith("on") for one in attributes)
        )
        if "href" in attributes:
            assert (attributes["href"] or "").startswith("#") or attributes["href"] == "data:,", name
    assert {name for name, _ in read.elements}.isdisjoint(
        {"img", "iframe", "object", "embed", "base", "audio", "video"}
    )
    code = [text for name, text in read.inside if name == "style"] + [read.inside[-1][1]]
    assert not re.search(r"https?:|url\(|@import|innerHTML|insertAdjacent|document\.write|eval\(", "".join(code))


def test_the_policy_allows_the_page_own_script_and_style_and_nothing_else(page: str) -> None:
    read = Read(page)
    policy = (
        next(one["content"] for name, one in read.elements if one.get("http-equiv") == "Content-Security-Policy") or ""
    )
    style, _, script = (text for _, text in read.inside)
    for name, text in (("style-src", style), ("script-src", script)):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{name} 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none';") and "unsafe" not in policy and "http" not in policy


def test_what_a_model_wrote_stays_data(page: str) -> None:
    """Two scripts, the data and the page's own, whatever stands in the data; and the data comes back as it was."""
    read = Read(page)
    assert [name for name, _ in read.inside] == ["style", "script", "script"]
    assert not any(mark in read.inside[1][1] for mark in "<>&\u2028\u2029\x1b\x00")
    assert HOSTILE in {row["user_turn"] for row in rows_of(page)}
    assert HOSTILE in {row["messages"][0]["content"] for row in rows_of(page)}
    page.encode()  # a lone surrogate could not be written


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
    read = Read(page_template('<b title="{{ name }}">{{ name }}</b>').render(name=name))
    assert read.elements[0][0] == "b" and len(read.elements) == 1
    assert read.text == read.elements[0][1]["title"]
    assert len(read.text) == len(name) and (read.text or " ").isprintable()


def test_hostile_names_of_runs_and_sets_are_shown_as_text(tmp_path: Path) -> None:
    probe_run(tmp_path / "a", "<img src=x onerror=alert(1)>\u202e", None, 0.5, 4)
    text = (tmp_path / "a/results.json").read_text().replace('"maths"', '"<script>maths"')
    (tmp_path / "a/results.json").write_text(text)
    read = Read(html(compare_runs(load_runs([tmp_path / "a"]))))
    assert not {"img"} & {name for name, _ in read.elements}
    assert "<img src=x onerror=alert(1)>" in read.text and "<script>maths" in read.text
    assert len([name for name, _ in read.elements if name == "script"]) == 2


def test_every_row_is_on_the_page_and_every_message_once(comparison: Comparison, page: str) -> None:
    wanted = []
    for number, run in enumerate(comparison.runs):
        wanted += [{**row, "run": number} for _, row in read_jsonl(run.folder / "samples.jsonl")]
    rows = rows_of(page)
    assert rows == [{key: row[key] for key in rows[0]} for row in wanted]
    assert set(FIELDS) <= set(wanted[0])
    messages = [tuple(message) for message in data_of(page)["messages"]]
    assert len(messages) == len(set(messages))


def test_the_same_runs_give_the_same_bytes(comparison: Comparison, page: str) -> None:
    assert html(compare_runs(load_runs([run.folder for run in comparison.runs]))) == page


@pytest.mark.parametrize("limit", [{"rows": 300}, {"characters": 3000}])
def test_a_large_comparison_keeps_whole_items_and_says_so(
    comparison: Comparison, page: str, limit: dict[str, int]
) -> None:
    small = html(comparison, **limit)
    shown = [{(row["set"], row["item"]) for row in rows_of(small) if row["run"] == run} for run in range(3)]
    assert shown[0] == shown[1] == shown[2]
    everything = [row for row in rows_of(page) if (row["set"], row["item"]) in shown[0]]
    assert rows_of(small) == everything and len(everything) <= limit.get("rows", 10**6)
    numbers = sorted(int(item.split("-")[1]) for name, item in shown[0] if name == "maths")
    gaps = {after - before for before, after in zip(numbers, numbers[1:], strict=False)}
    assert len(numbers) > 3 and max(gaps) - min(gaps) <= 1
    told = Read(small).text
    assert f"{sum(map(len, shown[:1]))} of 150 items ({len(everything):,} of {len(rows_of(page)):,} rows)" in told
    assert "of 150 items" not in Read(page).text
    assert told.split("Conversations")[0] == Read(page).text.split("Conversations")[0]  # figures are over all items


def test_figures_of_the_comparison_stand_on_the_page(comparison: Comparison, page: str) -> None:
    text = Read(page).text
    for metric, estimates in comparison.figures.items():
        for estimate in estimates:
            assert estimate.value is not None and estimate.ci95 is not None
            low, high = estimate.ci95
            shown = f"{100 * estimate.value:.1f} [{100 * low:.1f}, {100 * high:.1f}]"
            assert shown in text, metric
    for metric, changes in comparison.paired.items():
        for change in changes:
            if change is not None and metric.perturbation == "none":
                assert f"{abs(100 * (change.value or 0)):.1f} [" in text
    ids = {attributes.get("id") for _, attributes in Read(page).elements}
    assert {"results", "tradeoff", "patterns", "changes", "labels", "perturbations", "grounding", "actual"} <= ids


def test_arrows_of_change_are_corrected_for_the_number_of_differences(tmp_path: Path, page: str) -> None:
    """Eight checkpoints whose true rates equal the baseline's: two intervals leave out 0 by chance, and no arrow shows."""
    folders = [probe_run(tmp_path / str(step), f"step-{step}", step, 0.5) for step in range(20, 29)]
    same = compare_runs(load_runs(folders))
    alone = [change for found in same.paired.values() for change in found if change and change.p_value is not None]
    assert min(change.p_value or 1.0 for change in alone) < 0.05
    results = [re.findall(r'<section id="results">(.*?)</section>', text, re.DOTALL)[0] for text in (html(same), page)]
    arrows = [text.count('class="up"') + text.count('class="down"') for text in results]
    assert arrows[0] == 0 < arrows[1], "true changes keep theirs"


@pytest.mark.parametrize(("judge", "rough"), [("rules/3", True), ("llm/5:a-model", False)])
def test_rates_by_the_rules_judge_are_called_rough_wherever_they_stand(
    judge: str, rough: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = probe_run(tmp_path / "a", "base", 0, 0.5, judge=judge)
    same, drawn = compare_runs(load_runs([folder])), list[str]()
    monkeypatch.setattr("matplotlib.axes.Axes.set_ylabel", lambda axis, text: drawn.append(text))
    draw_tradeoff(same, tmp_path / "tradeoff.png")
    patterns = markdown(same).split("## Patterns")[1]
    for text in (terminal_table(same), markdown(same), patterns, html(same), drawn[0]):
        assert (ROUGH in text) == rough and "follow-up" in text
    keys = "".join(flatten(read_json(folder / "results.json")))
    assert ("probe/followup_rules_rough/" in keys, "probe/followup/" in keys) == (rough, not rough)


def test_a_small_set_shows_how_wide_its_figures_are(comparison: Comparison, page: str) -> None:
    """Intervals in the patterns' own table, and the labels of perturbed turns, which stand in no other table."""
    [patterns] = re.findall(r'<section id="patterns">(.*?)</section>', page, re.DOTALL)
    for found in comparison.patterns["maths"]:
        bounds = [f"{100 * bound:.1f}" for one in (found.greedy, found.sampled) for bound in one.ci95 or ()]
        assert len(bounds) == 4
        assert re.search(r"\[{}, {}\] → [\d.]+ \[{}, {}\]\)".format(*map(re.escape, bounds)), Read(patterns).text)
    figures_drawn = re.findall(r'<figure id="bars-.*?</figure>', page, re.DOTALL)
    tables = [Read(one).text for one in figures_drawn if "<table>" in one]
    assert len(tables) == 1 < len(figures_drawn) and QUESTION in tables[0] and "role-consistent" in tables[0]


def test_what_was_not_measured_has_no_section(tmp_path: Path) -> None:
    rows = [make_row("accuracy", "maths", str(n), [], strict=True, lenient=True, outcome="answered") for n in range(5)]
    write_jsonl(tmp_path / "samples.jsonl", rows)
    content = {"schema": 1, "model": {"path": "m", "label": "m"}, "settings": {}, **figures(rows)}
    write_json(tmp_path / "results.json", content)
    ids = {attributes.get("id") for _, attributes in Read(html(compare_runs(load_runs([tmp_path])))).elements}
    assert {"results", "outcomes", "measured", "conversations"} <= ids
    assert ids.isdisjoint({"tradeoff", "patterns", "changes", "labels", "perturbations", "grounding", "actual"})


def test_a_run_without_rows_still_has_a_page(comparison: Comparison, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a/results.json").write_bytes((comparison.runs[0].folder / "results.json").read_bytes())
    page = html(compare_runs(load_runs([tmp_path / "a", comparison.runs[1].folder])))
    assert {row["run"] for row in rows_of(page)} == {1}
    assert "no samples.jsonl" in Read(page).text


def test_a_forced_comparison_says_so_at_the_top(comparison: Comparison, tmp_path: Path) -> None:
    other = probe_run(tmp_path / "b", "b", None, 0.5, 6, judge="llm/2")
    text = Read(html(compare_runs(load_runs([comparison.runs[0].folder, other])))).text
    assert text.index("Measured differently, compared by force") < text.index("Percent with 95% intervals")
    assert "llm/2" in text
