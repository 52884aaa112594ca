"""What is withheld is found in a turn however it is written, and nothing else is taken for it."""

from __future__ import annotations

import re

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from nextturn.data_builders.quality import RUN, holds, leak, tells_part
from support.conversations import conversation

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
        (
            "You want this: how many of the marbles in the second\nbag are red or have a white stripe around them?",
            GOAL,
            True,
        ),
        ("maximum", "max", False),
        ("anything", "$$", False),
    ],
)
def test_the_whole_text_is_found_whatever_its_white_space(text: str, hidden: str, found: bool) -> None:
    assert holds(text, hidden) is found


def test_a_long_text_counts_in_part_unless_the_user_has_said_it() -> None:
    part = "So we look for marbles in the second bag that are red or have a white stripe?"
    assert tells_part("Of the marbles in the second bag are red ones enough?", GOAL, "")
    assert not tells_part(part, GOAL, "")  # no run of eight words
    assert tells_part("Is it drawn as draw((0,0)--(4,0)--(4,3)--cycle)?", FIGURE, "")
    said = "I see marbles in the second bag are red or have a white stripe, yes"
    quoted = "You say marbles in the second bag are red or have a white stripe?"
    assert tells_part(quoted, GOAL, "") and not tells_part(quoted, GOAL, said)


def test_who_says_it_first_is_named() -> None:
    ask, told = "How many are in the bag?", "It is 12."
    assert leak(conversation("Some marbles?", ask, told, "\\boxed{7}", hidden="12")) is None
    assert leak(conversation("Some marbles?", "Are there 12?", told, "\\boxed{7}", hidden="12")) == "leak"
    assert leak(conversation("The 12 marbles?", ask, told, "\\boxed{7}", hidden="12")) == "not_withheld"
    # A quote of the user is no leak of the assistant's.
    quote = conversation("The 12 marbles?", 'You say "the 12 marbles".', told, "\\boxed{7}", hidden="12")
    assert leak(quote) == "not_withheld"
    late = conversation("Some?", ask, "Which?", "Is it 12?", told, "\\boxed{7}", hidden="12", reveal_at=4)
    assert leak(late) == "leak"
    assert leak(conversation("12?", "12?", "12", "\\boxed{7}")) is None  # nothing is withheld


WORDS = st.text("abcxyz0123456789+-=^\\{}()$", min_size=1, max_size=8)
SPACES = st.sampled_from(["", " ", "\n", "  \t", "\\, "])


@given(st.lists(WORDS, min_size=1, max_size=6), st.data())
def test_a_text_is_found_with_any_white_space_and_around_anything(words: list[str], data: st.DataObject) -> None:
    hidden = " ".join(words)
    letters = re.sub(r"\s", "", hidden.strip("$"))
    assume(letters and "\\" not in letters and not re.fullmatch(r"-?[\d.,]+", letters) and "$" not in letters)
    spaced = "".join(letter + data.draw(SPACES) for letter in letters)
    assert holds(f"Is it {spaced} then?", hidden)


@given(st.integers(0, 10**6), st.integers(0, 10**6))
def test_a_number_is_found_alone_and_never_inside_another(hidden: int, other: int) -> None:
    assume(hidden != other)
    assert holds(f"there are {hidden:,} of them", str(hidden)) and holds(f"${hidden}$", str(hidden))
    assert not holds(f"there are {other:,} of them, or {other}.5", str(hidden)) or hidden == 5


@given(st.lists(st.sampled_from("abcdefghijklmnopqrstuvwxyz"), min_size=RUN, max_size=30, unique=True), st.data())
def test_any_eight_words_in_a_row_are_a_part(words: list[str], data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(words) - RUN))
    hidden, part = " ".join(words), " ".join(words[start : start + RUN])
    assert tells_part(f"So: {part}!", hidden, "") and not tells_part(f"So: {part}!", hidden, hidden)
    assert not tells_part(" ".join(words[start : start + RUN - 1]), hidden, "")
