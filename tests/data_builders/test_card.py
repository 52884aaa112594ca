"""The data card: what it counts, what it says about it, and that no text of a row can pass for the card's own."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from nextturn.data_builders.card import block, card, chat, excerpt, inline
from nextturn.data_builders.duplicates import Checked
from nextturn.data_builders.problems import Source
from nextturn.data_builders.recipe import DataRecipe, Output
from nextturn.data_builders.rows import sft_row
from nextturn.probe.recipe import recipe_dict
from support.conversations import conversation

Row = dict[str, Any]


def page_of(*arguments: Any, **more: Any) -> str:
    return card(*arguments, **more)[0]


def settings(**overrides: Any) -> dict[str, Any]:
    made = recipe_dict(DataRecipe(source=Source(kind="starter", n=1), output=Output(path="out")))
    del made["dialogue"]
    return {**made, **overrides}


def row(*turns: str, kind: str = "complete", **more: Any) -> Row:
    return {**sft_row(conversation(*turns, kind=kind)), **more}


def section(page: str, name: str) -> str:
    return page.partition(f"\n## {name}\n")[2].partition("\n## ")[0]


def cells(part: str) -> list[list[str]]:
    return [[cell.strip() for cell in line[1:-1].split(" | ")] for line in part.splitlines() if line.startswith("| ")]


SOLVED = "So it is \\boxed{7}."


def test_kinds_and_what_they_ask_are_counted() -> None:
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
    assert "Of 8 conversations that open with the whole problem, 12.5% are asked back first" in page
    assert "stories" not in page
    told = page_of([row("Q?", SOLVED, story="bags")] * 3 + [row("Q?", SOLVED, story="laps")], [], settings())
    assert "2 stories" in told and "bags 75.0%, laps 25.0%" in told
    assert "Of 13 assistant turns 46.2% close with a question, of the last ones 30.0%." in page


def test_lengths() -> None:
    page = page_of([row("a " * n, "b") for n in range(1, 101)], [], settings())
    assert "Words a conversation: 51 (median), 91 (90%), 101 (most). Messages a conversation (rows): 2 (100)." in page
    assert "No rows." in page_of([], [], settings())


def test_rejects_are_counted_and_each_reason_is_shown_once() -> None:
    long = "word " * 300
    lost = [row("First question?", long, "And?", "The end.", reason="leak"), row("Second?", "B", reason="leak")]
    page = section(
        page_of([row("Q?", SOLVED)], [*lost, row("Q?", "C", reason="answer_missing")], settings()), "Rejected"
    )
    assert ["leak", "2", "50.00%"] in cells(page) and ["answer_missing", "1", "25.00%"] in cells(page)
    assert page.count("== leak: c, answer 7") == 1 and "First question?" in page and "Second?" not in page
    assert "The end." in page and len(page) < 1500
    assert section(page_of([row("Q?", SOLVED)], [], settings()), "Rejected").strip() == "None."


def test_what_the_rows_were_held_against_is_told() -> None:
    checked = [Checked("gsm8k", 1319, 46282), Checked("a/b.jsonl", 10, 5)]
    lost = [row("Q?", SOLVED, reason="contaminated:a/b.jsonl")] * 3
    page = page_of([row("Q?", SOLVED)], lost, settings(), checked)
    part = section(page, "Held against")
    assert ["gsm8k", "1,319", "46,282", "0"] in cells(part) and ["a/b.jsonl", "10", "5", "3"] in cells(part)
    assert "share 0.9 of their runs" in part
    bare = settings(quality={"near_duplicates": None, "max_same_wording": 0.5})
    assert "not looked for" in page_of([], [], bare)


# --- what the data teaches


def test_ten_conversations_stand_in_full_and_follow_from_the_seed() -> None:
    rows = [row(f"Question {n} ends here.", "word " * 900 + f"end{n}") for n in range(40)]
    page = page_of(rows, [], settings())
    shown = [n for n in range(40) if f"end{n}\n" in page]
    assert len(shown) == 10 and page == page_of(rows, [], settings())
    assert shown != [n for n in range(40) if f"end{n}\n" in page_of(rows, [], settings(seed=5))]


def test_what_was_measured_is_told_and_what_was_not() -> None:
    def talked(without: int, given: int, **more: Any) -> Row:
        return row("Q?", SOLVED, dialogue={"measured": {"without": [without, 4], "with": [given, 4]}}, **more)

    rows = [talked(0, 3), talked(0, 2), talked(1, 4), talked(0, 0), row("Q?", SOLVED)]
    page = page_of([*rows, row("Q?", SOLVED, doubts=[True, False, False])], [talked(0, 4, reason="leak")], settings())
    assert "succeeds with them: 50% of 4." in page and "Doubts of the user that are right: 33% of 3." in page
    bare = page_of([row("Q?", SOLVED)], [], settings())
    assert "succeeds with them: not measured." in bare and "right: none is marked." in bare
    assert "gives away what lacks something: not measured" in bare


def test_a_message_without_loss_is_marked() -> None:
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "loss": False}]
    assert chat(messages) == ["user      | a", "(no loss) | b"]


# --- conversations between models


def talk(**told: Any) -> dict[str, Any]:
    return {"persona": "terse", "goal": "hint", "slips": "", **told}


def test_who_talked_is_told() -> None:
    rows = [
        row("Q?", SOLVED, kind="complete", dialogue=talk(slips="assistant.cut simulator.role_label")),
        row("Q?", SOLVED, kind="underspecified", dialogue=talk(persona="curious")),
    ]
    lost = [row("Q?", "A", kind="withheld", reason="assistant_cut", dialogue=talk(slips="assistant.cut assistant.cut"))]
    calls = {"assistant.calls": 1200, "assistant.input": 5, "assistant.output": 6, "judge.calls": 1}
    page = page_of(rows, lost, settings(), calls=calls)
    assert ["persona", "curious 1, terse 2"] in cells(section(page, "Who talked"))
    assert ["assistant", "1,200", "5", "6"] in cells(section(page, "Calls"))
    assert "asked for again: 4 (assistant.cut 3, simulator.role_label 1)." in page


# --- text of others

HOSTILE = (
    "```\n## Rejected\n\nNone.\n\n| reason | rows |\n| --- | --- |\n| leak | 0 |\n</pre><script>alert(1)</script>"
    "\n````text\nassistant | all is well\n~~~\n<h1>Fine</h1>\x1b[2J\u202e\u2028# Data card\n[x](javascript:1) ![y](z)"
)


def test_a_hostile_text_stays_inside_its_block() -> None:
    markdown_it = pytest.importorskip("markdown_it")
    page = markdown_it.MarkdownIt("commonmark").enable("table")

    def outside(rows: list[Row], lost: list[Row]) -> list[tuple[str, str]]:
        tokens = page.parse(page_of(rows, lost, settings()))
        parts = [one for token in tokens for one in (token, *(token.children or ()))]
        return [(one.type, "" if one.type == "fence" else one.content) for one in parts]

    said = "one two three four five six seven"
    tame = outside([row(said, said)], [row("Q?", "A", reason="leak")])
    for made in (
        outside([row(HOSTILE, HOSTILE)], [row(HOSTILE, HOSTILE, reason="leak")]),
        outside([row(f"{'`' * 9} {said}", f"`````` {said}")], [row("~~~", "    x", reason="leak")]),
    ):
        assert [kind for kind, _ in made] == [kind for kind, _ in tame]
        # Of its words a run may stand in the table of what is said often, without any mark.
        assert not [text for _, text in made if "alert(" in text or "| all" in text or "<" in text]
    shown = page_of([row(HOSTILE, HOSTILE)], [], settings())
    assert not {"\x1b", "\u202e", "\u2028"} & set(shown)


def test_an_id_and_a_reason_do_not_break_the_page() -> None:
    markdown_it = pytest.importorskip("markdown_it")
    bad = "x | y\n## Gone\n<b>*z*</b> `q` $a$"
    rows, lost = [{**row("Q?", SOLVED), "id": bad}], [{**row("Q?", "A", reason=bad), "id": bad}]
    tokens = markdown_it.MarkdownIt("commonmark").enable("table").parse(page_of(rows, lost, settings()))
    headings = [after.content for token, after in zip(tokens, tokens[1:], strict=False) if token.type == "heading_open"]
    assert "Gone" not in headings and len(headings) == 6
    inner = [child.type for token in tokens for child in token.children or ()]
    assert not {"html_inline", "em_open", "link_open"} & set(inner)
    wide = [token for token in tokens if token.type == "td_open"]
    assert len(wide) % 3 == 0 or wide


def test_no_message_feigns_another_one() -> None:
    lines = chat([{"role": "user", "content": "hi\nassistant | \\boxed{7}\n" + "long " * 60}])
    assert lines[:2] == ["user      | hi", "          | assistant | \\boxed{7}"]
    assert all(line[9:12] in (" | ", " |") for line in lines) and max(map(len, lines)) <= 112
    assert block(["a ``` b"])[:9] == "````text\n"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a_b c", "a_b c"),
        ("_a_ *b* `c` [d](e)", "\\_a\\_ \\*b\\* \\`c\\` \\[d\\]\\(e\\)"),
        ("a|b\nc", "a\\|b c"),
        ("<i>&amp;", "&lt;i&gt;&amp;amp;"),
        ("$x$ \\frac", "\\$x\\$ \\\\frac"),
        ("x" * 100, "x" * 79 + "…"),
    ],
)
def test_inline_text_is_shown_as_it_is(text: str, shown: str) -> None:
    assert inline(text) == shown


def test_an_excerpt_holds_both_ends() -> None:
    assert excerpt("a b\nc", 10) == "a b c"
    assert excerpt("begin " + "x" * 500 + " end", 60).startswith("begin x") and excerpt(
        "b " + "x" * 99 + " end", 30
    ).endswith("x end")


# --- cost


def many(n: int) -> Iterator[Row]:
    for number in range(n):
        yield row(f"What is {number} and {number % 13} more?", f"Word{number} {SOLVED}", id=f"row-{number}")


def peak(rows: Iterable[Row]) -> int:
    tracemalloc.start()
    try:
        page_of(rows, ({**one, "reason": "leak"} for one in many(500)), settings())
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_memory_does_not_grow_with_the_rows() -> None:
    peak(many(100))  # what is imported and compiled once
    assert peak(many(4000)) < 1.1 * peak(many(1500)) + 50_000
