"""The answer in a reply: what counts as marked, as stated, as asked back, and when two answers are the same."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nextturn.probe.engines.base import Completion
from nextturn.probe.measures.accuracy import grade_answer
from nextturn.probe.questions.sets import Item
from nextturn.probe.text import equality, grading

CLARIFYING = "How many marbles did Ruth start with? Once I know that, I can work out the rest."
# A base model answers, then goes on to write the problem again and a question of its own before the final number.
RESTATED = (
    "Each crate holds 6 jars, so 4 crates hold 24 jars.\n"
    "Question: If each crate holds 6 jars, how many jars do 4 crates hold?\n"
    "Answer: 4 * 6 = 24 jars"
)

MARKED = [
    (r"So the area is $\boxed{42}$ square metres.", "42"),
    (r"First \boxed{3}, corrected: \boxed{5}.", "5"),
    (r"$\boxed 9$", "9"),
    (r"We get \fbox{12}", "12"),
    ("#### $1,250.50\nDone.", "$1,250.50"),
    (r"\boxed{3} is wrong." + "\n#### 4", "4"),
    ("#### 4\n" + r"That is, $\boxed{8}$", "8"),
    (r"\boxed{11} or, if cut, \boxed{12", "11"),
    ("#### 18 eggs a day\nDone.", "18 eggs a day"),
    ("#### Final Answer: 18", "18"),
    ("#### **The answer is:** 18", "18"),
    ("#### x = 18", "x = 18"),
    ("#### Evelyn", "Evelyn"),
    (r"She makes $\boxed{18}$." + "\n\n#### Verification\n9 x 2 = 18, correct.", "18"),
    (r"<think>\boxed{7}? No.</think>" + "\n#### 18", "18"),
]  # fmt: skip
UNMARKED = [
    ("The answer is 5. No: the answer is 6, since 2 * 3 = 6.", "6"),
    ("6 + 7 = 13, so they have 13 apples left", "13"),
    ("That makes 13.\nShall I show the 2 steps again?", "13"),
    ("It costs $1,000,000", "1,000,000"),
    (RESTATED, "24"),
    (r"Answer: $4 \times 6 = 24$", "24"),
    ("Answer: 2**3 = 8", "8"),
    ("The answer is **18**. (She sells 9 eggs at $2 each.)", "18"),
    (r"The answer is \$18 since she sells 9 at 2.", "18"),
    (r"Answer: \(18\), as 9 times 2 is that", "18"),
    ("#### Step 1: Find the eggs\n16 - 7 = 9\n#### Step 2: Multiply\n9 * 2 = 18", "18"),
    ("##### 3\nIt is 18.", "18"),
    ("<think>so 16 - 7 = 9, \\boxed{18}", None),
    ("The answer is 9 - 2 = 7.", "7"),
    ("How many of the 5 apples are red?", None),
]


@pytest.mark.parametrize(("text", "answer", "marked"), [(*m, True) for m in MARKED] + [(*u, False) for u in UNMARKED])
def test_both_readings_of_an_answer(text: str, answer: str | None, marked: bool) -> None:
    """A marked answer is read by both readings and another leniently."""
    assert grading.strict_answer(text) == (answer if marked else None)
    assert grading.lenient_answer(text) == answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("18", "18"),
        ("a long explanation without any mark, " * 4, None),
        ("two\nlines", None),
        ("  ", None),
        ("It lies in the west.\n#### New York City", "New York City"),
        ("#### Step 1\n2 + 3 = 5\n#### Answer: 5", "5"),
    ],
)
def test_a_reference_is_marked_or_one_short_line(text: str, answer: str | None) -> None:
    assert grading.reference_answer(text) == answer


@pytest.mark.parametrize(
    ("text", "kind", "cut"),
    [
        (r"It is \boxed{4}. Does that help?", "answered", "answered"),
        ("They have 13 apples. Shall I go on?", "asked", "truncated"),
        (CLARIFYING, "asked", "truncated"),
        ("Could you tell me the price? (In dollars, please.)", "asked", "truncated"),
        ("What is the price? Then I can start. It will be quick. I promise.", "no_answer", "truncated"),
        ("How many are left? 24 are left.", "answered", "truncated"),
        ("How many were sold? Each one brings 7 and costs 4 to print.", "asked", "truncated"),
        ("鉛筆は何本ありますか？", "asked", "truncated"),
        ("كم قلما معك؟", "asked", "truncated"),
        ("I am sorry, I do not know.", "no_answer", "truncated"),
        ("We add.\n#### Step 3", "answered", "truncated"),
        ("We add.\n#### Multiply the numbers", "no_answer", "truncated"),
        ("<think>Is it \\boxed{4}? I go on", "no_answer", "truncated"),
        ("<think>It is \\boxed{4}.</think> How many were sold?", "asked", "truncated"),
    ],
)
def test_the_class_of_a_reply_whole_and_cut(text: str, kind: str, cut: str) -> None:
    """Asking is a question at the end, or before a last sentence that does not begin with a number; no marked answer."""
    assert (grading.outcome(text, False), grading.outcome(text, True)) == (kind, cut)
    assert grading.asks(text) is (kind == "asked")


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("First 3 + 4 = 7, and then", None),
        ("The answer is 7. To check it, 3 +", "7"),
    ],
)
def test_the_last_number_of_a_truncated_text_is_no_answer(text: str, answer: str | None) -> None:
    assert grading.lenient_answer(text, truncated=True) == answer
    row = grade_answer(Item("1", ({"role": "user", "content": "3 + 4?"},), "7"), Completion(text, 9, "length"))
    assert (row["extracted"], row["lenient"]) == (answer, answer is not None)


def test_no_answer_is_never_right_and_other_threads_compare_too() -> None:
    assert not equality.same_answer(None, "5") and not grading.same_answer(None, "")
    found: list[bool] = []
    thread = threading.Thread(target=lambda: found.append(equality.same_answer(r"\sqrt{18}", r"3\sqrt{2}")))
    thread.start()
    thread.join()
    assert found == [True]


def test_an_answer_that_keeps_algebra_busy_is_given_up_and_the_next_one_is_compared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(equality, "_SECONDS", 0.3)
    assert equality.compare_answers("9999999!", "7") is None, "it would take a minute"
    assert equality.same_answer(r"\sqrt{98}", r"7\sqrt{2}")


def test_a_reply_is_counted_to_mark_its_answers_and_no_headings_or_thoughts() -> None:
    assert grading.count_marks(r"\boxed{4}" + "\n#### Verification\n2 + 2 = 4") == 1
    assert grading.count_marks(r"<think>\boxed{3}? \boxed{4}!</think> \boxed{4}") == 1
    assert grading.count_marks(r"\boxed{3}, no, \boxed{4}" + "\n#### 4") == 3


PLAIN = st.text(alphabet="abcxyz0123456789+-*/=.,()[]^_ \n", max_size=12)
REPLIES = st.lists(
    st.sampled_from(["\\boxed{", "}", "{", "#### ", "The answer is ", "7", "1,200", "?", ". ", "\n", "apples ", "$", "-", "/"])
    | st.text(max_size=5),
    max_size=12,
).map("".join)  # fmt: skip


@given(REPLIES, st.booleans())
def test_the_readings_never_contradict_each_other(reply: str, truncated: bool) -> None:
    strict, lenient = grading.strict_answer(reply), grading.lenient_answer(reply)
    kind = grading.outcome(reply, truncated)
    if strict is not None:
        assert strict
        assert lenient == strict
        assert kind == "answered"
        assert not grading.asks(reply)
    if kind == "asked":
        assert "?" in reply
    if kind in ("answered", "no_answer"):
        assert (kind == "answered") == (lenient is not None)


@pytest.mark.parametrize(
    ("text", "answer", "said"),
    [
        ("It is half of it, 1/2.", "0.5", True),
        ("There are 600 of them, or 6.60.", "60", False),
        ("So it is Monday.", "Monday", True),
        ("Mondays are longer.", "Monday", False),
        (r"Then $x = 2\sqrt{3}$.", r"2\sqrt{3}", True),
        ("A hint: look at the bags.", "A", False),
    ],
)
def test_an_answer_is_found_in_a_text_without_a_mark(text: str, answer: str, said: bool) -> None:
    assert grading.says(text, answer) is said


@pytest.mark.parametrize(
    ("reply", "answer", "right"),
    [
        ("Paris", "Paris", (True, True)),
        ("  the PARIS.", "Paris", (True, True)),
        (r"So it is \boxed{Paris}.", "Paris", (True, True)),
        (r"Paris is nice, but it is \boxed{Lyon}.", "Paris", (False, False)),
        ("The capital of France is Paris, not Lyon.", "Paris", (False, True)),
        ("It is not Paris. It is Lyon.", "Paris", (False, False)),
        ("It isn't the Treaty of Paris but the Treaty of Westphalia.", "Treaty of Westphalia", (False, True)),
        ("Parisian food", "Paris", (False, False)),
        ("Yes, because 7 is prime.", "yes", (False, True)),
        ("No, that is not true.", "False", (False, True)),
        ("At first one says no, but the answer is yes.", "Yes", (False, True)),
        ("It has no common factor with 4.", "No", (False, False)),
        (r"So we get \boxed{\text{Yes}}.", "Yes", (True, True)),
        ("It is not potassium but Sodium.", "sodium", (False, True)),
        ("Jane Austen lived then. **Answer:** Charlotte Brontë", "Jane Austen", (False, False)),
        ("It could be Osaka or Yokohama. I'm not sure.", "Yokohama", (False, False)),
        ("I know.", "no", (False, False)),
        ("<think>Paris?</think>Lyon", "Paris", (False, False)),
        ("", "Paris", (False, False)),
        ("apollo 11", "Apollo 11", (True, True)),
        ("It was Apollo 11.", "Apollo 11", (False, True)),
        ("It was Apollo 110.", "Apollo 11", (False, False)),
    ],
)
def test_an_answer_in_words_is_the_reply_or_in_the_reply(reply: str, answer: str, right: tuple[bool, bool]) -> None:
    assert grading.words_right(reply, answer) == right


def test_which_answers_are_words() -> None:
    words = ("Paris", "Apollo 11", "New York, 1999", "COVID-19", "e")
    others = ("x1", "log 5", "log_2 5", "max(3, 5)", "H2O", "2x", "5 apples", "pi/4", "x = 5 or x = 6")
    assert [answer for answer in (*words, *others) if grading.is_words(answer)] == [*words]


@pytest.mark.parametrize(
    ("reply", "right"),
    [
        ("seven", (True, True)),
        (r"They are \boxed{7}.", (True, True)),
        ("I count seven of them.", (False, True)),
        ("eight", (False, False)),
        ("", (False, False)),
    ],
)
def test_any_of_several_answers_is_right(reply: str, right: tuple[bool, bool]) -> None:
    item = Item("1", ({"role": "user", "content": "How many?"},), "7", aliases=("seven", "VII"))
    graded = grade_answer(item, Completion(reply, 9, "stop"))
    assert (graded["strict"], graded["lenient"]) == right


@pytest.mark.parametrize(
    ("reply", "right"),
    [
        ("Paris", (True, True)),
        ("It may be Lyon, Paris or", (False, False)),
        ("The answer is Paris, since", (False, True)),
    ],
)
def test_a_truncated_reply_contains_only_what_it_calls_its_answer(reply: str, right: tuple[bool, bool]) -> None:
    item = Item("1", ({"role": "user", "content": "The capital of France?"},), "Paris")
    graded = grade_answer(item, Completion(reply, 9, "length"))
    assert (graded["strict"], graded["lenient"]) == right


@pytest.mark.parametrize(
    ("reply", "answer", "right"),
    [
        ("2x+y", "2x + y", True),
        ("The answer is 2x + y.", "2x + y", True),
        ("The answer is $2x+y$, since x + x = 2x.", "2x + y", True),
        ("So $x = 3$, and hence $f(x) = x^2 - x - 2$.", "x^2-x-2", True),
        ("I think \\(\\frac{3}{4}\\)", "\\frac{3}{4}", True),
        ("Answer: **(2, 3)**", "(2, 3)", True),
        ("(3,\\infty)", "(3,\\infty)", True),
        ("$x = 2$, so it is \\boxed{3y}.", "3y", True),
        ("The derivative is $3x^2 + 5x$.", "3x^2+5", False),
        ("Use the rule. The derivative is 3x^2.", "3x^2", True),
        ("So x = 7.", "x = 7", True),
        ("The solution set is (3,\\infty). Does that help?", "(3,\\infty)", True),
        ("The derivative is not a number.", "3x^2", False),
    ],
)
def test_a_formula_is_read_without_a_mark(reply: str, answer: str, right: bool) -> None:
    assert equality.same_answer(grading.lenient_answer(reply, formula=True), answer) is right
    assert grading.lenient_answer("It is $2x$, and", truncated=True, formula=True) is None
