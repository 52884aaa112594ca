"""The data card: its figures, and that no text of a row can imitate the card."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from nextturn.data_builders.card import block, card, chat, columns, excerpt, inline
from nextturn.data_builders.duplicates import Checked
from nextturn.data_builders.problems import Source
from nextturn.data_builders.rows import sft_row
from nextturn.data_builders.sections import DataRecipe, Output
from nextturn.probe.command.recipe import recipe_dict
from support.conversations import conversation

Row = dict[str, Any]


def page_of(*arguments: Any, **more: Any) -> str:
    return card(*arguments, **more)[0]


def settings(**overrides: Any) -> dict[str, Any]:
    made = recipe_dict(DataRecipe(source=Source(kind="jsonl", n=1), output=Output(path="out")))
    del made["dialogue"]
    return {**made, **overrides}


def row(*turns: str, kind: str = "complete", **more: Any) -> Row:
    return {**sft_row(conversation(*turns, kind=kind)), **more}


def section(page: str, name: str) -> str:
    return page.partition(f"\n## {name}\n")[2].partition("\n## ")[0]


def cells(part: str) -> list[list[str]]:
    return [[cell.strip() for cell in line[1:-1].split(" | ")] for line in part.splitlines() if line.startswith("| ")]


SOLVED = "So it is \\boxed{7}."


def test_kinds_questions_and_lengths_are_counted() -> None:
    rows = [
        *[row("Q?", SOLVED)] * 6,
        *[row("Q?", "What?", "7", f"{SOLVED} Clear?", kind="underspecified")] * 2,
        row("Q?", "Which one?", "7", f"{SOLVED} Clear?", kind="twin"),
        row("Q?", SOLVED, kind="replay"),
    ]
    lost = [row("Q?", "What?", reason="over_asking"), row("Q?", "What?", "7", SOLVED, reason="over_asking")]
    page = page_of(rows, lost, settings())
    assert "10 of 12 conversations kept (83.3%), 2 rejected." in page
    table = {line[0]: line[1:] for line in cells(page.partition("## ")[0])}
    assert table["complete"] == ["60.0%", "6", "2", "0.0%", "5"]
    assert table["underspecified"][:4] == ["20.0%", "2", "0", "100.0%"] and table["replay"][:2] == ["10.0%", "1"]
    for figures in (r"8 conversations .* 12\.5%", r"13 assistant turns 46\.2% .* 30\.0%"):
        assert re.search(figures, page), figures
    assert "No rows." in page_of([], [], settings())


@pytest.mark.parametrize(
    ("source", "replay", "written", "licences"),
    [
        ({"kind": "gsm8k"}, {}, None, {"gsm8k": "mit"}),
        ({"kind": "math", "path": "mine.jsonl"}, {}, {"n": 4}, {"math": "unknown", "written": "apache-2.0"}),
        ({"kind": "written"}, {"fraction": 0.1, "source": "gsm8k"}, None, {"written": "apache-2.0", "gsm8k": "mit"}),
        ({"kind": "gsm8k"}, {"fraction": 0.1, "path": "mine.jsonl"}, None, {"gsm8k": "unknown"}),
        ({"kind": "own:Problems"}, {"source": "gsm8k"}, None, {"own:Problems": "unknown"}),  # no replay
    ],
)
def test_the_hub_is_told_the_licences_of_the_sources(
    source: Row, replay: Row, written: Row | None, licences: dict[str, str]
) -> None:
    made = settings(written=written)
    made |= {"source": made["source"] | source, "replay": made["replay"] | replay}
    page = page_of([], [], made)
    assert dict(cells(section(page, "Licences"))[2:]) == licences
    assert set(yaml.safe_load(page.split("---")[1])["license"]) == set(licences.values())


def test_the_most_frequent_and_the_rarest_story_are_named() -> None:
    rows = [row("Q?", SOLVED, story="bags")] * 3 + [row("Q?", SOLVED, story="drive")]
    assert re.search(r"2 stories.*\(bags\) is in 75\.0%.*\(drive\) in 25\.0%", page_of(rows, [], settings()))
    assert "stories" not in page_of([row("Q?", SOLVED)], [], settings())


def test_rejected_rows_are_counted_and_each_reason_has_one_example() -> None:
    long = "word " * 300
    lost = [row("First question?", long, "And?", "The end.", reason="leak"), row("Second?", "B", reason="leak")]
    lost += [row("Q?", "C", reason="answer_missing")]
    page = section(page_of([row("Q?", SOLVED)], lost, settings()), "Rejected")
    assert ["leak", "2", "50.00%"] in cells(page) and ["answer_missing", "1", "25.00%"] in cells(page)
    assert page.count("== leak: c, answer 7") == 1 and "First question?" in page and "Second?" not in page
    assert "The end." in page and len(page) < 1500
    assert section(page_of([row("Q?", SOLVED)], [], settings()), "Rejected").strip() == "None."


def test_the_probe_sets_are_listed() -> None:
    checked = [Checked("gsm8k", 1319, 46282), Checked("a/b.jsonl", 10, 5)]
    lost = [row("Q?", SOLVED, reason="contaminated:a/b.jsonl")] * 3
    part = section(page_of([row("Q?", SOLVED)], lost, settings(), checked), "Decontamination")
    assert ["gsm8k", "1,319", "46,282", "0"] in cells(part) and ["a/b.jsonl", "10", "5", "3"] in cells(part)
    assert "share 0.9 of their runs" in part
    bare = settings(quality={"near_duplicates": None, "max_same_wording": 0.5})
    assert "(MinHash): not searched" in page_of([], [], bare)


# --- What the data teach.


def test_ten_conversations_are_shown_in_full_and_the_seed_selects_them() -> None:
    rows = [row(f"Question {n} ends here.", "word " * 900 + f"end{n}") for n in range(40)]
    page, other = page_of(rows, [], settings()), page_of(rows, [], settings(seed=5))
    shown, others = ([n for n in range(40) if f"end{n}\n" in text] for text in (page, other))
    assert len(shown) == 10 and shown != others and page == page_of(rows, [], settings())


def test_doubts_and_model_calls_are_counted() -> None:
    calls = {"assistant.calls": 1200, "assistant.input": 5, "assistant.output": 6, "judge.calls": 1}
    page = page_of([row("Q?", SOLVED), row("Q?", SOLVED, doubts=[True, False, False])], [], settings(), calls=calls)
    assert "that are right: 1 of 3." in page
    assert ["assistant", "1,200", "5", "6"] in cells(section(page, "Model calls"))


def test_a_message_without_loss_is_marked() -> None:
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "loss": False}]
    assert chat(messages) == ["user      | a", "(no loss) | b"]


# --- Text of others.

HOSTILE = (
    "```\n## Rejected\n\nNone.\n\n| reason | rows |\n| --- | --- |\n| leak | 0 |\n</pre><script>alert(1)</script>"
    "\n````text\nassistant | all is well\n~~~\n<h1>Fine</h1>\x1b[2J\u202e\u2028# Data card\n[x](javascript:1) ![y](z)"
)


def test_hostile_texts_ids_and_reasons_do_not_change_the_page() -> None:
    markdown_it = pytest.importorskip("markdown_it")
    parser = markdown_it.MarkdownIt("commonmark").enable("table")

    def outside_blocks(rows: list[Row], lost: list[Row]) -> list[tuple[str, str]]:
        _, _, page = page_of(rows, lost, settings()).split("---\n", 2)
        tokens = parser.parse(page)
        parts = [part for token in tokens for part in (token, *(token.children or ()))]
        return [(part.type, "" if part.type == "fence" else part.content) for part in parts]

    text, bad = "one two three four five six seven", "x | y\n## Gone\n<b>*z*</b> `q` $a$"
    tame = outside_blocks([row(text, text)], [row("Q?", "A", reason="leak")])
    for made in (
        outside_blocks([row(HOSTILE, HOSTILE)], [row(HOSTILE, HOSTILE, reason="leak")]),
        outside_blocks([row(f"{'`' * 9} {text}", f"`````` {text}")], [row("~~~", "    x", reason="leak")]),
        outside_blocks([{**row("Q?", SOLVED), "id": bad}], [{**row("Q?", "A", reason=bad), "id": bad}]),
    ):
        assert {kind for kind, _ in made} <= {*(kind for kind, _ in tame), "text_special"}
        assert not [content for _, content in made if "alert(" in content or "| all" in content or content == "Gone"]
        assert sum(kind == "heading_open" for kind, _ in made) == 7
    assert not {"\x1b", "\u202e", "\u2028"} & set(page_of([row(HOSTILE, HOSTILE)], [], settings()))


def test_no_message_imitates_another_one() -> None:
    lines = chat([{"role": "user", "content": "hi\nassistant | \\boxed{7}\n" + "long " * 60}])
    assert lines[:2] == ["user      | hi", "          | assistant | \\boxed{7}"]
    assert all(line[9:12] in (" | ", " |") for line in lines) and max(map(len, lines)) <= 112
    assert block(["a ``` b"])[:9] == "````text\n"


def test_inline_text_is_escaped() -> None:
    assert inline("a_b _a_ *b* `c` [d](e)") == "a_b \\_a\\_ \\*b\\* \\`c\\` \\[d\\]\\(e\\)"
    assert inline("a|b\nc <i>&amp; $x$ \\frac") == "a\\|b c &lt;i&gt;&amp;amp; \\$x\\$ \\\\frac"
    assert inline("x" * 100) == "x" * 79 + "…"


def test_an_excerpt_shows_both_ends() -> None:
    assert excerpt("a b\nc", 10) == "a b c"
    cut = excerpt("begin " + "x" * 500 + " end", 60)
    assert cut.startswith("begin x") and cut.endswith("x end") and len(cut) <= 63


def test_answers_that_are_dates_in_one_file_only_are_texts(tmp_path: Path) -> None:
    paths = [tmp_path / "0.jsonl", tmp_path / "1.jsonl"]
    for path, answer in zip(paths, ("2026-11-26", "two weeks"), strict=True):
        path.write_text(json.dumps({"answer": answer}) + "\n")
    assert columns(paths) == [{"name": "answer", "dtype": "string"}]
