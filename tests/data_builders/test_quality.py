"""The quality filter: each rule by its reason, leaks in any notation, and the same reasons when a build resumes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from nextturn.data_builders.quality import RUN, QualityFilter, all_boxed, holds, leak, states_part
from nextturn.data_builders.recipe import Conversations, Quality
from nextturn.data_builders.scripted import converse, plan
from nextturn.data_builders.starter import starter_problems
from nextturn.data_builders.tasks import Conversation
from nextturn.probe.grading import closes_asking
from support.conversations import conversation


def reasons(rows: Sequence[Conversation], quality: Quality | None = None) -> list[str | None]:
    quality_filter = QualityFilter(quality or Quality(), len(rows))
    return [quality_filter.reason(row) for row in rows]


SUM, WAY, ASK = "What is 3 + 4?", "Then it is \\boxed{7}.", "What is x?"
LACKING = {"kind": "underspecified", "hidden": "4"}


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (conversation(SUM, "It is \\boxed{7}."), None),
        (conversation(SUM, "It is \\boxed{8}."), "answer_wrong"),
        (conversation(SUM, "Not \\boxed{8}, it is \\boxed{7}."), "answer_wrong"),
        (conversation(SUM, "It is 7."), "answer_missing"),
        (conversation(SUM, "\\boxed{7}", answer=""), "answer_missing"),
        (conversation(SUM, "\\boxed{7}", "Sure?", "It is \\boxed{8}."), "answer_wrong"),
        (conversation("What is half?", "\\boxed{0.5}", answer="\\frac{1}{2}"), None),
        (conversation("x?", "\\boxed{\\{2,1\\}}", answer="\\{1,2\\}"), None),
        (conversation(SUM), "roles"),
        (replace(conversation(SUM), messages=({"role": "user", "content": "a"},) * 2), "roles"),
        (conversation(SUM, "\\boxed{7}", " ", "\\boxed{7}"), "empty_turn"),
        (conversation(SUM, "Which base do you mean?", "10", WAY), "over_asking"),
        (conversation(SUM, "Shall we begin? I can.", "Yes", WAY), "over_asking"),
        (conversation(SUM, "Which base do you mean?", "10", WAY, kind="replay"), "over_asking"),
        (conversation(SUM, "Why ask? It is \\boxed{7}."), None),
        (conversation(SUM, "\\boxed{7}. Clear?"), "closes_asking"),
        (conversation(SUM, "\\boxed{7}. Clear? I hope so."), "closes_asking"),
        (conversation(SUM, "\\boxed{7}", "Why?", "3 + 4 = \\boxed{7}. Clear?"), "closes_asking"),
        (conversation(SUM, "\\boxed{7}", "Why?", "3 and 4 more. Clear?"), None),
        (conversation("3 + x?", "It is 3 + x.", "4", WAY, **LACKING), "no_question"),
        (conversation("3 + x?", ASK, "4", WAY, **LACKING), None),
        (conversation("3 + x?", "Is it \\boxed{7}?", "4", WAY, kind="underspecified"), "no_question"),
        (conversation("3 + x?", ASK, "Why?", WAY, "4", WAY, **LACKING, reveal_at=4), "answered_early"),
    ],
)
def test_each_rule_has_its_reason(made: Conversation, reason: str | None) -> None:
    assert reasons([made]) == [reason]


def test_questions_at_the_end_and_boxes_of_a_text() -> None:
    assert closes_asking("Here. Is it clear?") and closes_asking("Do you have it?\n\nI need it.")
    assert not closes_asking("How many are there? There are \\boxed{3}.")
    assert not closes_asking("Why? Since so. And so.") and not closes_asking("Is it? " + "No. " * 300)
    assert list(all_boxed("\\boxed{1} and \\fbox{2}, so \\boxed{\\frac{3}{4}}")) == ["\\frac{3}{4}", "2", "1"]
    assert not list(all_boxed("a box of 3"))


# --- Repeated rows.


def scripted(n: int) -> list[Conversation]:
    """Return conversations of every kind, every fifth one twice."""
    settings = Conversations()
    tasks = starter_problems(n, 3, "train")
    made = [converse(task, kind, 3, settings) for task in tasks for kind in plan(task, 3, settings)]
    return [row for index, row in enumerate(made) for _ in range(1 + (index % 5 == 0))]


def test_scripted_conversations_pass_and_their_repetitions_do_not() -> None:
    rows = scripted(150)
    found = reasons(rows, Quality(max_same_wording=1.0))
    repeated = {index for index in range(1, len(rows)) if rows[index] is rows[index - 1]}
    assert {index for index, reason in enumerate(found) if reason == "duplicate"} == repeated
    assert sum(reason is None for reason in found) > 0.95 * (len(rows) - len(repeated))
    kept = {row.kind for row, reason in zip(rows, found, strict=True) if reason is None}
    assert kept == {"complete", "underspecified", "wrong_start", "right_start"}


def test_too_many_rows_with_the_same_wording_are_rejected() -> None:
    rows = [conversation(f"Ann has {n} and 7?", "\\boxed{7}") for n in range(1, 6)]
    rows += [
        conversation("Ann  has 1\nand 7?", "\\boxed{7}"),
        conversation("Ann has 1 and 7?", "\\boxed{7}", kind="replay"),
    ]
    rows += [conversation("Nobody has 1 and 7?", "It is \\boxed{7}")]
    found = reasons(rows, Quality(max_same_wording=0.01))
    assert found == [None] * 3 + ["same_wording"] * 2 + ["duplicate"] * 2 + [None]


def test_a_resumed_build_gives_the_same_reasons() -> None:
    def nearly(row: Conversation) -> Conversation:
        last = {"role": "assistant", "content": row.messages[-1]["content"] + " Done."}
        return replace(row, messages=(*row.messages[:-1], last))

    rows = [version for row in scripted(60) for version in (row, nearly(row))]
    quality = Quality(max_same_wording=0.01, near_duplicates=0.6)
    whole = reasons(rows, quality)
    assert {"duplicate", "near_duplicate", None} <= set(whole)
    for cut in (1, len(rows) // 3, len(rows) - 1):
        resumed = QualityFilter(quality, len(rows))
        for row, reason in zip(rows[:cut], whole[:cut], strict=True):
            if reason is None:
                resumed.remember(row.messages, row.kind)
        assert [resumed.reason(row) for row in rows[cut:]] == whole[cut:]


# --- Leaks of the withheld fact.

GOAL = "How many of the marbles in the second bag are red or have a white stripe around them?"
FIGURE = '[asy]\ndraw((0,0)--(4,0)--(4,3)--cycle);\nlabel("$A$", (0,0), SW);\n[/asy]'


@pytest.mark.parametrize(
    ("text", "hidden", "found"),
    [
        ("It is 12.", "12", True),
        ("It is 112, 12.5, 0.12 or 1,128.", "12", False),
        ("$12$ of them, $x=12$", "12", True),
        ("It is 1,200.", "1200", True),
        ("It is $1{,}200$", "1,200", True),
        ("It is 1,200.", "200", False),
        ("take -3 here", "-3", True),
        ("so $f(x) = x^2+1$ it is", "$x^2 + 1$", True),
        ("so $f(x) = 2x^2+1$ it is", "$x^2 + 1$", False),
        ("so $f(x) = x^2+10$ it is", "$x^2 + 1$", False),
        ("\\[ \\dfrac{1}{2}\\left( x \\right) \\]", "\\frac12(x)", False),  # other braces are another text
        ("\\[ \\dfrac{1}{2}\\left( x\\, \\right) \\]", "$\\frac{1}{2} (x)$", True),
        (f"You want this: {GOAL.lower()}".replace("second ", "second\n"), GOAL, True),
        ("maximum", "max", False),
        ("anything", "$$", False),
    ],
)
def test_the_withheld_text_is_found_in_any_notation(text: str, hidden: str, found: bool) -> None:
    assert holds(text, hidden) is found


def test_a_part_of_a_long_text_counts_unless_the_user_said_it() -> None:
    assert states_part("Of the marbles in the second bag are red ones enough?", GOAL, "")
    assert states_part("Is it drawn as draw((0,0)--(4,0)--(4,3)--cycle)?", FIGURE, "")
    assert not states_part("So we look for marbles in the second bag that are red or have a white stripe?", GOAL, "")
    part = "marbles in the second bag are red or have a white stripe"
    assert states_part(f"You say {part}?", GOAL, "") and not states_part(f"You say {part}?", GOAL, f"I see {part}, yes")


@pytest.mark.parametrize(
    ("turns", "more", "reason"),
    [
        (("Some marbles?", "How many?", "It is 12.", WAY), {}, None),
        (("Some marbles?", "Are there 12?", "It is 12.", WAY), {}, "leak"),
        (("The 12 marbles?", "How many?", "It is 12.", WAY), {}, "not_withheld"),
        (("The 12 marbles?", 'You say "the 12 marbles".', "It is 12.", WAY), {}, "not_withheld"),
        (("Some?", "How many?", "Which?", "Is it 12?", "It is 12.", WAY), {"reveal_at": 4}, "leak"),
        (("12?", "12?", "12", WAY), {"hidden": ""}, None),
    ],
)
def test_the_first_who_states_it_is_named(turns: tuple[str, ...], more: dict[str, int], reason: str | None) -> None:
    assert leak(conversation(*turns, **{"hidden": "12", **more})) == reason  # type: ignore[arg-type]


@given(st.lists(st.text("abcxyz0123456789+-=^\\{}()$", min_size=1, max_size=8), min_size=1, max_size=6), st.data())
def test_a_text_is_found_with_any_white_space(words: list[str], data: st.DataObject) -> None:
    hidden = " ".join(words)
    letters = re.sub(r"\s", "", hidden.strip("$"))
    assume(letters and "\\" not in letters and not re.fullmatch(r"-?[\d.,]+", letters) and "$" not in letters)
    spaces = st.sampled_from(["", " ", "\n", "  \t", "\\, "])
    assert holds(f"Is it {''.join(letter + data.draw(spaces) for letter in letters)} then?", hidden)


@given(st.integers(0, 10**6), st.integers(0, 10**6))
def test_a_number_is_found_alone_and_never_inside_another(hidden: int, other: int) -> None:
    assume(hidden != other)
    assert holds(f"there are {hidden:,} of them", str(hidden)) and holds(f"${hidden}$", str(hidden))
    assert not holds(f"there are {other:,} of them, or {other}.5", str(hidden)) or hidden == 5


@given(st.lists(st.sampled_from("abcdefghijklmnopqrstuvwxyz"), min_size=RUN, max_size=30, unique=True), st.data())
def test_any_eight_words_in_a_row_are_a_part(words: list[str], data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(words) - RUN))
    hidden, part = " ".join(words), " ".join(words[start : start + RUN])
    assert states_part(f"So: {part}!", hidden, "") and not states_part(f"So: {part}!", hidden, hidden)
    assert not states_part(" ".join(words[start : start + RUN - 1]), hidden, "")
