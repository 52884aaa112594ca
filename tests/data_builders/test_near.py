"""What counts as kept before: the same text, nearly the same text of one kind, and neither more nor less."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nextturn.data_builders.duplicates import Kept, Print, hashed, runs, words_only
from nextturn.data_builders.quality import Gate, Quality
from nextturn.data_builders.scripted import Conversation
from support.conversations import conversation

VOCABULARY = [f"{a}{b}" for a in "bcdfgklmnprst" for b in ("ab", "el", "im", "on", "ur")]


def text(seed: str, words: int = 120) -> str:
    rng = random.Random(f"near:{seed}")
    return " ".join(rng.choice(VOCABULARY) for _ in range(words))


def row(question: str, reply: str = "", kind: str = "complete") -> Conversation:
    return conversation(question, f"{reply} It is \\boxed{{7}}.", kind=kind)


def reasons(rows: Sequence[Conversation], quality: Quality | None = None) -> list[str | None]:
    with TemporaryDirectory() as folder:
        gate = Gate(quality or Quality(), len(rows), Path(folder) / "index")
        found = [gate.reason(one) for one in rows]
        gate.close()
        return found


def changed(words: str, every: int) -> str:
    """Each `every`-th word is another one."""
    return " ".join(f"{word}x" if place % every == 0 else word for place, word in enumerate(words.split()))


def test_a_few_other_words_are_nearly_the_same_and_many_are_not() -> None:
    told = text("told")
    assert reasons([row(told), row(f"Hi! {told}"), row(f"{told} thanks a lot")]) == [
        None,
        "near_duplicate",
        "near_duplicate",
    ]
    assert reasons([row(told), row(changed(told, 10))]) == [None, None]
    assert reasons([row(told), row(changed(told, 10))], Quality(near_duplicates=0.5)) == [None, "near_duplicate"]
    assert reasons([row(told), row(f"Hi! {told}")], Quality(near_duplicates=None)) == [None, None]


def test_the_same_problem_in_another_kind_or_with_other_numbers_is_kept() -> None:
    """What contrast pairs, a second conversation about a problem, and problems of one template are made of."""
    told = text("told", 40)
    pair = [row(told), conversation(told, "Which one?", "7", "\\boxed{7}", kind="underspecified", hidden="7")]
    assert reasons(pair) == [None, None]
    numbers = [
        row(f"Ann has {n} bags of {n + 3} and gives {n - 1} away. How many?", f"{n} * {n + 3} = 7.") for n in (5, 8, 12)
    ]
    assert reasons(numbers) == [None, None, None]
    assert reasons([row(told, kind=kind) for kind in ("complete", "wrong_start")]) == [None, "duplicate"]


def test_drawings_do_not_make_two_problems_one() -> None:
    figure = "[asy]\n" + text("figure", 400) + "\n[/asy]"
    shift = [
        row(f"The graph of f(x) is shown. {figure} Which is the graph of f(x {sign} {n})?") for sign, n in ("+2", "-5")
    ]
    assert reasons(shift) == [None, None]


def test_operators_count_as_words() -> None:
    first, second = (f"$x {sign} y {sign} z {sign} w$ is to be found, and $y {sign} z$" for sign in "+-")
    assert reasons([row(first), row(second)]) == [None, None]


WHITE = st.sampled_from([" ", "  ", "\n", "\t ", " \n\n "])


@settings(max_examples=20)
@given(st.integers(0, 10**6), st.data())
def test_other_white_space_is_the_same_text(seed: int, data: st.DataObject) -> None:
    words = text(str(seed), 12).split()
    spaced = words[0] + "".join(data.draw(WHITE) + word for word in words[1:])
    assert reasons([row(" ".join(words)), row(spaced)]) == [None, "duplicate"]


@settings(max_examples=20)
@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 1)), min_size=2, max_size=12),
    st.randoms(use_true_random=False),
)
def test_of_those_alike_the_first_is_kept_whatever_stands_between(
    places: list[tuple[int, int]], rng: random.Random
) -> None:
    """Six unrelated texts, each in two versions nearly the same."""
    rows = [row(text(str(which)) + " thanks" * version) for which, version in places]
    found = reasons(rows)
    first = {which: place for place, (which, _) in reversed(list(enumerate(places)))}
    assert [reason is None for reason in found] == [first[which] == place for place, (which, _) in enumerate(places)]
    # The others between them in another order: what is kept of each text stays.
    order = sorted(range(len(rows)), key=lambda place: (rng.random(), place))
    moved = sorted(order, key=lambda place: places[place][0])  # one text after the other, each in that order
    alone = dict(zip(moved, reasons([rows[place] for place in moved]), strict=True))
    mixed = dict(zip(order, reasons([rows[place] for place in order]), strict=True))
    assert alone == mixed


@settings(max_examples=20)
@given(st.integers(2, 40))
def test_the_estimate_is_near_the_share_of_common_runs(every: int) -> None:
    told = text("told", 300)
    texts = [told, changed(told, every)]
    kept = Kept(Path("never/made"), 0.9, 1024)
    made = [kept.print_of([one], [hashed(one)], "complete").signature for one in texts]
    sets = [set(runs(hashed(one), 3).tolist()) for one in texts]
    exact = len(sets[0] & sets[1]) / len(sets[0] | sets[1])
    assert made[0] is not None and abs(float(np.mean(made[0] == made[1])) - exact) < 0.06


@pytest.mark.parametrize("alike", [0.9, 0.95, 1.0])
def test_what_is_alike_enough_is_looked_up(alike: float, tmp_path: Path) -> None:
    """Bands miss hardly any pair whose signatures agree to the threshold."""
    rng, kept = np.random.default_rng(0), Kept(tmp_path / "index", 0.9, 128)
    first = kept.print_of(["a b c"], [hashed("a b c")], "complete").signature
    assert first is not None
    missed = 0
    for number in range(60):
        signature = rng.integers(0, 2**32, 128, dtype=np.uint32)
        kept.add(Print(number, number, signature, kept.bands_of(signature, "complete")))
        other = signature.copy()
        other[rng.permutation(128)[: 128 - round(alike * 128 + 0.499)]] += 1
        missed += kept.again(Print(-1, -1, other, kept.bands_of(other, "complete")), 2) is None
    kept.close()
    assert missed <= {0.9: 12, 0.95: 1, 1.0: 0}[alike]


def test_runs_of_words_are_told_apart_by_order_and_length() -> None:
    found = hashed("a b c a b c $x+1$")
    assert len(runs(words_only(found), 3)) == 6 and len(set(runs(words_only(found), 3).tolist())) == 5
    assert len(words_only(found)) == 8 and len(found) == 11
    assert not len(runs(hashed("a b"), 3)) and not len(runs(hashed(""), 1))
    permuted = [runs(hashed(one), 3).tolist() for one in ("a b c", "b a c", "a c b", "A  b\nC")]
    assert permuted[0] == permuted[3] and all(one != other for one, other in pairwise(permuted[:3]))
