"""report.html in a real browser: filters, links, keyboard, narrow screens, and nothing that runs or is asked for.

Needs the `playwright` package and a Chromium (Debian: apt install chromium); skipped where one of them is missing.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from nextturn.probe.engines.stored import Row
from nextturn.probe.labels import label
from nextturn.probe.labels.label import draw
from nextturn.probe.labels.turns import DrawnTurn, Stratum, user_turns
from nextturn.probe.report.comparison import Comparison
from nextturn.probe.report.page import html
from nextturn.probe.report.plot import draw_tradeoff
from support.page_runs import HOSTILE, QUESTION, rows_of, three_runs

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
Open = Callable[..., "Page"]


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    return three_runs(tmp_path_factory.mktemp("page"))


@pytest.fixture(scope="module")
def file(comparison: Comparison, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(html(comparison, draw_tradeoff(comparison)), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def rows(file: Path) -> list[Row]:
    return rows_of(file.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    playwright = pytest.importorskip("playwright.sync_api", reason="the playwright package is not installed")
    if CHROMIUM is None:
        pytest.skip("no Chromium on this machine (Debian: apt install chromium)")
    with playwright.sync_playwright() as driver:
        launched = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield launched
        launched.close()


@pytest.fixture
def open_page(browser: Browser, file: Path) -> Iterator[Open]:
    """Opens the page; at the end, there was no error and no request but for the file itself."""
    contexts, trouble, asked = [], [], set()

    def opened(fragment: str = "", width: int = 1280, **options: Any) -> Page:
        context = browser.new_context(viewport={"width": width, "height": 800}, **options)
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: trouble.append(str(error)))
        page.on("console", lambda message: trouble.append(message.text) if message.type != "log" else None)
        page.on("dialog", lambda dialog: trouble.append(dialog.message))
        page.on("request", lambda request: asked.add(request.url.partition("#")[0]))
        page.goto(file.as_uri() + fragment)
        return page

    yield opened
    for context in contexts:
        context.close()
    assert trouble == []
    assert {url for url in asked if not url.startswith("data:")} <= {file.as_uri()}


def count(page: Page) -> tuple[int, int]:
    """Conversations and items, as the page tells them."""
    found = re.match(r"([\d,]+) conversations? of ([\d,]+) items?", page.inner_text("#count"))
    assert found
    return int(found[1].replace(",", "")), int(found[2].replace(",", ""))


def wait_for(page: Page, told: str) -> None:
    """Until the count begins with `told`; a page that forbids eval cannot be asked by a function of our own."""
    from playwright.sync_api import expect

    expect(page.locator("#count")).to_have_text(re.compile(told), timeout=60_000)


def choose(page: Page, **filters: str) -> None:
    for name, value in filters.items():
        page.select_option(f"#filters [name={name}]", value)


def by_place(rows: list[Row], run: int) -> dict[tuple[Any, ...], Row]:
    """The rows of a run by what they answer."""
    keys = ("kind", "condition", "set", "perturbation", "temperature", "item", "sample")
    return {tuple(row[key] for key in keys): row for row in rows if row["run"] == run}


FILTERS = [
    ("set", "pairs", {"set": "pairs"}), ("kind", "followup", {"kind": "followup"}), ("temperature", "T=0.7", {"temperature": 0.7}),
    ("kind", "clarify underspecified", {"kind": "clarify", "condition": "underspecified"}),
    ("perturbation", QUESTION, {"perturbation": QUESTION}),
    ("label", "genuine_followup", {"label": "genuine_followup"}), ("label", "unscored", {"unscored": "no_verdict"}),
    ("correct", "lenient right", {"lenient": True}), ("correct", "strict wrong", {"strict": False}),
    ("outcome", "truncated", {"outcome": "truncated"}),
]  # fmt: skip


def test_filters_alone_and_together_and_search(open_page: Open, rows: list[Row]) -> None:
    page = open_page("#a=step-20")
    of_run = [row for row in rows if row["run"] == 1]
    assert count(page)[0] == len(of_run)
    for name, value, wanted in FILTERS:
        choose(page, **{name: value})
        fitting = [row for row in of_run if wanted.items() <= row.items()]
        assert 0 < len(fitting) < len(of_run)
        assert count(page) == (len(fitting), len({(row["set"], row["item"]) for row in fitting})), value
        choose(page, **{name: ""})
    choose(page, a="step-40", kind="followup", label="genuine_followup", set="maths", temperature="T=0.7")
    of_run = [row for row in rows if row["run"] == 2 and row["kind"] == "followup" and row["set"] == "maths"]
    fitting = [row for row in of_run if row["label"] == "genuine_followup" and row["temperature"] == 0.7]
    assert count(page)[0] == len(fitting)
    page.fill("[name=text]", "QUESTION 5: ")
    wait_for(page, f"^{sum(row['item'] == 'item-5' for row in fitting)} ")
    page.fill("[name=text]", "why 3?")
    wait_for(page, f"^{sum(row['user_turn'] == 'Why 3?' for row in fitting)} ")
    page.click("#clear")
    assert count(page)[0] == sum(row["run"] == 2 for row in rows)


def test_two_runs_side_by_side_and_what_differs_between_them(open_page: Open, rows: list[Row]) -> None:
    page = open_page("#a=base&b=step-40&kind=followup")
    last = by_place(rows, 2)
    both = {
        kind: [(row, last[place]) for place, row in by_place(rows, 0).items() if row["kind"] == kind]
        for kind in ("followup", "accuracy")
    }
    pairs, answers = both["followup"], both["accuracy"]
    choose(page, change="changed")
    assert count(page)[0] == sum(a["label"] != b["label"] for a, b in pairs)
    choose(page, change="", label="new_task", label_b="genuine_followup")
    assert count(page)[0] == sum(a["label"] == "new_task" and b["label"] == "genuine_followup" for a, b in pairs) > 0
    choose(page, label="", label_b="", kind="accuracy", change="changed")
    keys = ("lenient", "strict", "outcome")
    assert count(page)[0] == sum(any(a[key] != b[key] for key in keys) for a, b in answers)
    choose(page, b="")
    assert page.is_disabled("[name=change]") and page.is_disabled("[name=label_b]")
    assert count(page)[0] == len(answers)


def test_links_of_tables_lead_to_as_many_conversations(open_page: Open, comparison: Comparison) -> None:
    from playwright.sync_api import expect

    page = open_page()
    title = page.locator("#conversations-title")
    links = page.locator("#changes tbody a")
    changes = [figure.changes["baseline"] for figure in comparison.main if "baseline" in figure.changes]
    expected = [count for change in changes for count in (change.gained, change.lost) if count]
    shown = [int(text.split()[0]) for text in links.all_inner_texts()]
    assert sorted(shown) == sorted(expected) and len(shown) > 20
    for index in (0, 1, len(shown) - 1):
        links.nth(index).click()  # which takes the focus, until the page has followed
        expect(title).to_be_focused()
        wait_for(page, f" of {shown[index]} item")
    links.last.click()  # again, though the address stays
    expect(title).to_be_focused()
    expect(title).to_be_in_viewport()
    labels = page.locator("#labels table tbody a").filter(has_text=re.compile(r"\("))
    texts = labels.all_inner_texts()
    assert len(texts) > 80
    for index in (0, len(texts) - 1):
        labels.nth(index).press("Enter")
        wait_for(page, f"^{texts[index].split('(')[1].rstrip(')')} ")
    page.locator("#results tbody a").first.press("Enter")
    wait_for(page, "^60 ")
    assert (page.input_value("[name=a]"), page.input_value("[name=kind]")) == ("base", "accuracy")


def test_the_address_keeps_a_view(open_page: Open) -> None:
    page = open_page()
    choose(page, a="step-20", b="step-40", set="maths", temperature="", perturbation=QUESTION, change="gained")
    before = page.inner_text("#count")
    page.fill("[name=text]", "&= +says")
    wait_for(page, "^0 ")
    assert page.evaluate("location.hash").endswith("&text=%26%3D%20%2Bsays")
    page.fill("[name=text]", "says")
    wait_for(page, before)
    view, told = page.evaluate("location.hash"), page.inner_text("#count")
    other = open_page(view)
    assert other.inner_text("#count") == told
    assert other.input_value("[name=perturbation]") == QUESTION
    assert other.input_value("[name=text]") == "says"
    broken = open_page("#a=nobody&kind=%3Cb%3E&page=99&text=nowhere")
    assert broken.input_value("[name=a]") == "base" and count(broken) == (0, 0)


def test_pages_and_keys(open_page: Open, rows: list[Row]) -> None:
    """The first view shows the baseline beside the last run, 50 items a page. Tab reaches all controls, which have names."""
    page = open_page()
    first = {"run": 0, "kind": "followup", "temperature": 0.0, "perturbation": "none"}
    assert count(page)[0] == sum(first.items() <= row.items() for row in rows) == 90
    assert page.locator("#list > li").count() == 50
    assert page.locator("#list > li").first.locator("h4").all_inner_texts() == ["base", "step-40"]
    number = page.locator("#list h3").first
    page.locator("#next").press("Enter")
    assert number.inner_text().startswith("51 ") and "page 2 of 2" in page.inner_text("#count")
    assert page.is_disabled("#next") and not page.is_disabled("#previous")
    page.click("#previous")
    assert number.inner_text().startswith("1 ") and "page=" not in page.evaluate("location.hash")
    page.locator("nav a").first.press("Enter")
    page.keyboard.press("Tab")
    reached = []
    for _ in range(12):
        reached.append(page.evaluate("document.activeElement.name || document.activeElement.id"))
        page.keyboard.press("Tab")
    controls = page.evaluate(
        "[...document.querySelectorAll('#filters label:not([hidden]) > :enabled')].map(e => e.name)"
    )
    assert reached[: len(controls)] == controls
    unnamed = """[...document.querySelectorAll('a, button, select, input, [role=region], [role=group], [role=img]')]
        .filter(e => !(e.getAttribute('aria-label') || e.textContent.trim() || e.labels?.length)).length"""
    assert page.evaluate(unnamed) == 0
    page.locator("#clear").focus()
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Tab")
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"


def test_a_phone_shows_hostile_text_and_runs_nothing_of_it_and_needs_no_sideways_scrolling(open_page: Open) -> None:
    width = 360
    page = open_page("#a=base&b=step-40&kind=followup&text=window.owned", width=width)
    assert count(page)[0] > 0
    shown = page.locator("#list .text").first.inner_text()
    parts = ["</script><script>window.owned = 1</script><img src=x onerror='window.owned = 2'>-->", "<b>bold</b>"]
    parts += ["U+001B[31mredU+001B[0m", "U+202Eabc", "U+2028next", "U+0000U+0007", "U+D800", "U+E0041", "{{data}} ${1}"]
    assert [part for part in [*parts, "e\u0301 \u05d0\nend"] if part not in shown] == []
    assert not set(shown) & {"\u202e", "\u2028", "\x1b", "\x00"}
    assert page.evaluate("window.owned") is None
    assert page.locator("#list :is(img, script, b)").count() == 0
    assert HOSTILE.count("\u202e") == 1  # what the page replaced
    assert page.evaluate("document.documentElement.scrollWidth") == width
    boxes = page.evaluate(
        "[...document.querySelectorAll('.scroll')].filter(e => e.offsetParent).map(e => e.scrollWidth > e.clientWidth)"
    )
    assert any(boxes)  # wide tables scroll in their own boxes
    wide = "[...document.querySelectorAll('main *')].filter(e => !e.closest('.scroll, svg, .hidden, select') && e.getBoundingClientRect().right > innerWidth + 1).length"
    assert page.evaluate(wide) == 0


def test_figures_need_no_script_and_follow_light_and_dark(open_page: Open) -> None:
    page = open_page(java_script_enabled=False)
    for scheme, ground in (("light", "rgb(255, 255, 255)"), ("dark", "rgb(21, 24, 28)")):
        page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == ground
        plain = page.evaluate("getComputedStyle(document.querySelector('.plot')).filter") == "none"
        assert plain == (scheme == "light")
    assert page.locator("#results table").first.is_visible() and page.locator("noscript p").is_visible()
    assert page.locator(".plot").evaluate("image => image.naturalWidth") > 500
    assert not page.locator("#filters").is_visible()


# --- the page of turns to label


@pytest.fixture
def label_page(file: Path, comparison: Comparison) -> list[DrawnTurn]:
    """The turns of that page, which stands in place of the report: `open_page` then checks it."""
    drawn = draw([turn for run in comparison.runs for turn in user_turns(run)], 20, 0)[:40]
    hostile = next(turn for run in comparison.runs for turn in user_turns(run) if turn.user_turn == HOSTILE)
    stratum = Stratum(judged_genuine=True, drawn=1, of=3)
    return [DrawnTurn(**dict(hostile), stratum=stratum, p=1 / 3, seed=0), *drawn]


def test_turns_are_labelled_by_keys(open_page: Open, file: Path, label_page: list[DrawnTurn], tmp_path: Path) -> None:
    """Turns are labelled by keys kept over a reload and saved as rows of labels."""
    report = file.read_text(encoding="utf-8")
    try:
        file.write_text(label.page([[turn] for turn in label_page]), encoding="utf-8")
        page = open_page()
        shown = page.locator("#turn .text").last.inner_text()
        assert "<b>bold</b>" in shown and "U+202Eabc" in shown and "{{data}} ${1}" in shown
        assert page.evaluate("window.owned") is None and page.locator("#turn :is(img, script, b)").count() == 0
        assert page.locator("#guide dd").first.is_visible()
        # A turn's own text may hold anything, such as the "base says 4." of these runs, so it is taken out first.
        page.evaluate("document.querySelectorAll('#turn .text').forEach(text => text.remove())")
        around = page.inner_text("body")
        assert "Turn 1 of 41" in around, "the page is shown and only the conversation's text is gone"
        assert not any(name in around for name in ("base", "step-", "rules", "T=", "item-")), "neither run nor judge"
        for key in ("1", "u", "8", "5", "b", "b", "2"):  # the second is unsure; the second is changed to 2 at the end
            page.keyboard.press(key)
        told = page.inner_text("#count")
        assert told == "Turn 4 of 41; 3 labelled"
        page.reload()
        assert page.inner_text("#count") == told and not page.locator("#guide dd").first.is_visible()
        page.click("#back")
        assert page.locator("#answer [aria-pressed=true]").get_attribute("data-label") == "new_task"
        page.click("[data-label=role_drift]")
        with page.expect_download() as saved:
            page.click("#save")
        assert saved.value.suggested_filename == "labels.jsonl"
        saved.value.save_as(tmp_path / "labels.jsonl")
        rows = label.read_labels(tmp_path / "labels.jsonl")
        assert [(row.label, row.sure) for row in rows] == [
            ("genuine_followup", True), ("user_restatement", False), ("role_drift", True),
        ]  # fmt: skip
        assert [row.key for row in rows] == [turn.key for turn in label_page[:3]], "of the very text, as it was"
        assert rows[0].user_turn == HOSTILE and rows[0].p == pytest.approx(1 / 3, abs=1e-6)
    finally:
        file.write_text(report, encoding="utf-8")
