"""Grading by kind: which answers are the same, what a reply gives as its answer, and words of all scripts."""

from __future__ import annotations

import pytest

from nextturn.probe.command.timelimit import ends_within
from nextturn.probe.engines.base import Completion
from nextturn.probe.measures.accuracy import grade_answer
from nextturn.probe.questions.sets import Item
from nextturn.probe.text import equality, grading

SAME = {
    "factors in words": [("4 million", "4,000,000"), ("2 dozen", "24"), ("8 pi", r"8\pi"), ("3 squared", "9"), (r"6\text{ thousand}", "6000")],
    "per cent": [(r"35\%", "0.35"), ("35", "35%"), ("35 percent", r"35\%"), (r"\frac{2}{7}\%", r"\frac27\%"), ("2.5%", "0.025")],
    "units": [("14 \\text{ ft}", "14 feet"), ("9 cm^2", r"9\text{ square centimeters}"), ("11 days", "11"), ("6", r"6\text{ m}"), ("70 km/h", "70"), ("4 eggs a day", "4 eggs"),
              ("8 min", r"8\text{ minutes}"), (r"8\text{ kW}", r"8\text{ kilowatts}"), ("30°C", "30 degrees Celsius"), ("6 boxes", r"6\text{ box}"), ("6 litres", r"6\text{ L}"), ("6 km/h", "6 kilometers per hour")],
    "bases": [("212", "212_3"), ("212_{3}", "212_3"), (r"110_{\text{two}}", "110_2")],
    "mixed numbers": [("2 5/8", r"\frac{21}{8}"), ("-1 2/3", r"-\frac{5}{3}"), ("4½", "4.5"), (r"3\frac{1}{4}", "13/4")],
    "thousands": [(r"7\,305", "7305"), ("7 305", "7305"), ("7{,}305", "7305"), ("1 200 300", "1.2003e6"), (r"14,\!500", "14500")],
    "powers of ten": [("3.07e5", "307000"), (r"3.07 \times 10^{5}", "307,000"), ("4·10⁻²", "0.04")],
    "signs of Unicode": [("−8", "-8"), ("2√5", r"\sqrt{20}"), ("¾", "0.75"), ("72°", r"72^\circ"), ("3π", r"3\pi"), ("(−∞, 4]∪[9,∞)", r"(-\infty,4]\cup[9,\infty)"), ("x²−1", "x^2-1"), ("１２", "12")],
    "wrapped": [("**31**", "31"), ("`31`", "31"), (r"\text{31}", "31"), (r"\(31\)", "31"), (r"\mathbf{31}", "31"), ("31。", "31")],
    "intervals": [(r"1 \le x < 6", "[1,6)"), ("x > 4", r"(4,\infty)")],
    "columns": [("(4,0,-1)", r"\begin{pmatrix} 4 \\ 0 \\ -1 \end{pmatrix}"), (r"\begin{bmatrix}4\\1\end{bmatrix}", "(4, 1)")],
    "products and periods": [("4zyx", "4xyz"), (r"0.\overline{7}", r"\frac{7}{9}"), (r"-2.4\overline{09}", "-53/22")],
    "comma for the point": [("2,75", "2.75"), ("0,5", r"\frac12")],
}  # fmt: skip
DIFFERENT = {
    "factors in words": [("4 million", "4"), ("2 dozen", "2"), ("8 pi", "8"), ("3 squared", "3"), (r"\frac12 million", r"\frac12"), ("5 billion", "5 million")],
    "per cent": [(r"0.35\%", "0.35"), (r"\frac{2}{7}\%", r"\frac{2}{7}"), ("35", "0.35"), ("2.5%", "2.5")],
    "units": [("14 hours", "14 minutes"), (r"14\text{ kg}", "14 g"), ("9 square feet", "9 feet"), ("5t", "5"), ("5xy", "5"), ("2 sin", "2"),
              (r"7\text{ mm}", r"7\text{ m}"), (r"7\text{ months}", r"7\text{ m}"), (r"7\text{ minutes}", r"7\text{ miles}"), (r"7\text{ ml}", r"7\text{ mol}"), ("7 pins", "7 penguins"), (r"7\text{ m}^2", r"7\text{ m}"), ("30°C", "30°F"), ("4xyz", "4")],
    "bases": [("212_4", "212_3"), ("110_2", "110"), ("6", "110_2")],
    "numbers": [("1.250", "1250"), ("−8", "8"), ("1/0", "0"), ("(7,305)", "7305"), ("1e999", "7"), ("", "7"), ("7", "")],
    "columns": [("(0,4,-1)", r"\begin{pmatrix} 4 \\ 0 \\ -1 \end{pmatrix}"), (r"\begin{pmatrix} 4 & 0 \end{pmatrix}", r"\begin{pmatrix} 4 \\ 0 \end{pmatrix}")],
    "intervals": [(r"1 < x < 6", "[1,6)"), ("x > 4", "4")],
    "formulas": [("p-q", "p+q"), (r"3\sqrt{2}\text{ cm}", r"3\sqrt{2}\text{ km}")],
}  # fmt: skip


@pytest.mark.parametrize(
    ("given", "reference", "same"),
    [(*pair, same) for kinds, same in ((SAME, True), (DIFFERENT, False)) for pairs in kinds.values() for pair in pairs],
)
def test_what_is_written_otherwise_is_the_same_and_what_is_something_else_is_not(
    given: str, reference: str, same: bool
) -> None:
    assert equality.same_answer(given, reference) is same


# (reply, answer, strict, lenient)
REPLIES = {
    "the whole formula": [
        ("It is $\\sqrt{13}$.", "13", False, False), ("So we get $13\\pi$", "13", False, False), ("We find $x > 13$.", "13", False, False),
        ("That is $\\frac{1}{13}$.", "13", False, False), ("The result is −13.", "13", False, False), ("It is minus 13.", "13", False, False),
        ("The answer is minus 13", "-13", False, True), ("The answer is .13", "13", False, False), ("The answer is (2, 13)", "13", False, False),
        ("The answer is 13 million.", "13", False, False), ("The answer is 13!", "13", False, True), ("The answer is $13!$", "13", False, False),
        ("It costs $13 a day, not $12.50 or $11, so pay `13`.", "13", False, True), ("Each of the 3 gets 13 (26 / 2).", "13", False, True),
        ("It is $\\frac 34$.", "0.75", False, True), ("The answer is $-13$.", "-13", False, True), ("- 12 pears\n- 13 apples", "13", False, True),
        ("So $a = 6$ and thus $ab = 6 \\cdot 3 = 18$.", "18", False, True), ("It lies on x^2 + y^2 = 4.", "x^2+y^2=4", False, True),
        ("\\[\n\\begin{aligned} a &= 3 + 4 \\\\ &= 7 \\end{aligned}\n\\]", "7", False, True), ("The solutions are $3$ and $-5$.", "3, -5", False, True),
    ],
    "no answer": [
        ("It is 13, not 8.", "13", False, True), ("It is 13, not 8.", "8", False, False), ("The total (not 8) is 13 pens.", "13", False, True), ("We pay 13 euros instead of 8.", "8", False, False),
        ("It can't be $8$.", "8", False, False), ("No, $13$, and not equal to $8$.", "13", False, True), ("There are not more than 13.", "13", False, True), ("We take 13 hours (26 halves).", "13", False, True),
        ("The rest is there (13).", "13", False, True), ("13 pears. Are 2 of them bad? \U0001f642", "13", False, True), ("有13个。要看这2步吗？", "13", False, True), ("عددها 13. هل أشرح الخطوات 2؟", "13", False, True),
    ],
    "words before a number": [
        ("La suma es de 13 euros.", "13", False, True), ("O preço é de **13**.", "13", False, True), ("Jumla ni $13$.", "13", False, True), ("That's 13.", "13", False, True), ("It's $13$.", "13", False, True),
        ("Result:\n- 13 pens", "13", False, True), ("The answer is:\n\n- 13 pens", "13", False, True), ("Summe – 13", "13", False, True), ("**Sum** - $13", "13", False, True), ("We get - 13", "-13", False, True), ("The answer is - 13", "-13", False, True),
    ],
    "boxes": [
        ("$\\boxed{4}$ or $\\boxed{-9}$", "4, -9", True, True), ("$x = \\boxed{4}$ and $x = \\boxed{-9}$", "-9", False, False),
        ("It is \\boxed{4}. No, it is \\boxed{5}.", "5", True, True), ("It is \\boxed{4}. No, it is \\boxed{5}.", "4", False, False),
        ("\\boxed{4}, \\boxed{4}", "4", True, True), ("\\boxed{6}, as asked in \\boxed{}.", "6", True, True), ("\\boxed{ ... } is \\boxed{6}", "6", True, True),
        ("\\boxed{6} and again \\boxed{6", "6", True, True), ("$\\boxed{3/4}$, or $\\boxed{0.75}$", "0.75", True, True),
        ("\\boxed{\\frac{\\sqrt{3^{2}}}{1}}", "3", True, True), ("\\boxed{\\boxed{7}}", "7", True, True),
    ],
    "an invented question": [
        ("6 + 7 = 13\n#### 13\n\nQuestion: Ann has 9 pens. How many?\nAnswer:\n#### 9", "13", True, True),
        ("The answer is 13.\nUser: And twice that?\nAssistant: The answer is 26.", "13", False, True),
        ("**Problem:** Ann has 9 pens and buys 4.\n**Answer:** \\boxed{13}", "13", True, True),
        ("I need 3 steps.\n\n**Problem:** Ann has 9 pens and buys 4.\n\n**Solution:** \\boxed{13}", "13", True, True),
        ("#### Part 1: Read\n\nQuestion: How many pens?\n\n#### Part 2: Add\n9 + 4 = 13", "13", False, True),
        ("13.\n\nQuestion: Ann has 7 pens. How many?\nAnswer: 7", "13", False, True),
        ("Step 1: 9 + 4 = 13\n\nQuestion: Ann has 7 pens. How many?\nAnswer: 7", "13", False, True),
        ("Let us look at it.\nProblem: Ann has 9 pens and buys 4.\nSo it is \\boxed{13}.", "13", True, True),
    ],
    "words": [
        ("Answer: an", "an", True, True), ("Answer: A", "A", True, True), ("", "the", False, False), ("An apple", "an", False, False),
        ("a pear", "The pear", True, True), ("\\boxed{m+n}", "m - n", False, False), ("\\boxed{-k}", "k", False, False), ("It is St. Ives.", "St. Ives", False, True),
        ("There were thirty-one.", "thirty", False, False), ("The answer is Ruth Ames.", "Ruth Ames", True, True), ("\\boxed{east}", r"\text{East}", True, True),
    ],
    "other scripts": [
        ("Mu\u0308nchen", "M\u00fcnchen", True, True), ("रात", "रीत", False, False), ("उत्तर रात है।", "रात", False, True), ("মাছ", "মেছ", False, False),
        ("答えは京都です。", "京都", False, True), ("上海。", "上海", True, True), ("부산입니다.", "부산", False, True), ("대부산", "부산", False, False),
        ("คำตอบคือปลา", "ปลา", False, True), ("บิน", "บน", False, False), ("בית ספר!", "בית ספר", True, True), ("الجواب: قلم؟", "قلم", False, True), ("答案是18个。", "18", False, True),
    ],
}  # fmt: skip


@pytest.mark.parametrize(
    ("reply", "answer", "strict", "lenient"), [case for cases in REPLIES.values() for case in cases]
)
def test_what_a_reply_gives_as_its_answer(reply: str, answer: str, strict: bool, lenient: bool) -> None:
    row = grade_answer(Item("1", ({"role": "user", "content": "?"},), answer), Completion(reply, 9, "stop"))
    assert (row["strict"], row["lenient"]) == (strict, lenient)


def test_several_answers_of_an_item_are_graded_each_as_its_kind() -> None:
    item = Item("1", ({"role": "user", "content": "?"},), "12", aliases=("twelve",))
    rows = [
        grade_answer(item, Completion(reply, 9, "stop"))
        for reply in ("\\boxed{12}", "Twelve.", "So twelve of them.", "13")
    ]
    assert [(row["strict"], row["lenient"]) for row in rows] == [
        (True, True),
        (True, True),
        (False, True),
        (False, False),
    ]


@pytest.mark.parametrize(
    ("reply", "letter"),
    [
        ("It is not C.", None),
        ("It isn't C but D.", "D"),
        ("B, not C", "B"),
        ("d", "D"),
        ("(b)", "B"),
        ("c.", "C"),
        ("x", None),
    ],
)
def test_a_letter_that_is_ruled_out_or_stands_alone(reply: str, letter: str | None) -> None:
    assert grading.lenient_letter(reply, ("one", "two", "three", "four")) == letter


HOSTILE = [
    "\\boxed{",
    "\\boxed{}",
    "{",
    "$",
    "\\[",
    "\\(",
    "\\begin{a}",
    "5!",
    " (",
    "answer is ",
    "Question:\n",
    "box\nQuestion:\nx ",
    "not ",
    "#",
    "选A",
    "A ",
    "#### ",
    "\\{",
]


def test_no_hostile_reply_takes_quadratic_time() -> None:
    def grade_all() -> None:
        for text in [piece * (20_000 // len(piece)) for piece in HOSTILE]:
            grading.outcome(text, False)
            grading.words_right(text, "Paris")
            grading.lenient_answer(text, formula=True)
            grading.lenient_letter(text, ("one", "two"))
            equality.same_at_sight(text, "5")
        equality.same_at_sight("5 " + "abc " * 400 + "!", "5 apples")

    assert ends_within(30, 2**30, grade_all)
