"""The parts of a reward: what each is high for, what each is low for, and how each might be cheated."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable
from statistics import fmean

import pytest

from nextturn.probe.questions.simulation import PromptRow
from nextturn.probe.text import equality
from nextturn.train.rewards import (
    NOTHING_PLAYED,
    Sample,
    Score,
    accuracy,
    asking,
    efficiency,
    form,
    interactivity,
    loops,
    mean_score,
)
from nextturn.train.scoring import Rewards
from nextturn.train.sections import RewardSection
from support.problems import tasks
from support.sample_parts import ANSWERED, PROBLEM, chat, given, sample, withheld

ASKED = "How many marbles are in each bag?"
AFTER = given(prompt=chat(PROBLEM, ANSWERED, "Why?"), turn=1)
UNMARKED = "She has 5 * 12 = 60 marbles and loses 7, which leaves 53"
CASES: list[tuple[Callable[[Sample], Score], PromptRow, tuple[str, ...], float]] = [
    # The final answer of the conversation.
    (accuracy, given(), (ANSWERED,), 1.0),
    (accuracy, given(), (ANSWERED.replace("53}", "54}"),), 0.0),
    (accuracy, given(), ("It is \\boxed{\\frac{106}{2}}.",), 1.0),
    (accuracy, given(), ("First 5 * 12 = 60.", "And then?", "Then 60 - 7 leaves 53."), 1.0),
    (accuracy, given(), (ANSWERED, "Are you sure?", "Yes, I checked it twice."), 1.0),
    (accuracy, given(), (ANSWERED, "Are you sure?", "You are right, it is \\boxed{67}."), 0.0),
    (accuracy, given(), (ASKED,), 0.0),
    (accuracy, given(), ("",), 0.0),
    (accuracy, given(), ("It is \\boxed{53} or \\boxed{54} or \\boxed{55}.",), 0.0),  # the last one counts, not any
    (accuracy, given(), ("Let us see.", "It is \\boxed{53}, no?", "Tell me why."), 0.0),  # the user's answer
    (accuracy, AFTER, ("Look at the bags again.",), 0.0),  # the prompt's answer
    (accuracy, given(), (UNMARKED,), 1.0),
    # A right answer that was guessed is worth nothing.
    (accuracy, withheld(), (ANSWERED,), 0.0),
    (accuracy, withheld(), ("How old is Ann?", "10.", ANSWERED), 0.0),
    (accuracy, withheld(), (ASKED, "12 marbles.", ANSWERED), 1.0),
    (accuracy, withheld(), ("Is something missing?", "12 marbles.", ANSWERED), 1.0),
    # What is missing is asked for, by name.
    (asking, withheld(), (ASKED,), 1.0),
    (asking, withheld(), ("Sure. Could you tell me how many marbles one of the bags holds?",), 1.0),
    (asking, withheld(), ("Please tell me the number of marbles in each bag.",), 1.0),
    (asking, withheld(), ("Is something missing?",), 0.5),
    (asking, withheld(), ("What do you think?",), 0.0),
    (asking, withheld(), ("How many marbles does she lose?",), 0.0),
    (asking, withheld(), ("Let's say 10 marbles a bag. That makes 50 - 7 = 43, so \\boxed{43}.",), -1.0),
    (asking, withheld(), (ANSWERED,), -1.0),  # right, and still a guess
    (asking, withheld(), ("That cannot be solved.",), -1.0),
    (asking, withheld(), (f"{ASKED} I take 10, so it is \\boxed{{43}}.",), -1.0),
    # Nothing is missing.
    (asking, given(), (ANSWERED,), 1.0),
    (asking, given(), (ASKED,), -1.0),
    (asking, given(), ("Shall I solve it?",), -1.0),
    (asking, given(), (ANSWERED + " Does that help?",), 0.5),
    (asking, given(), ("That's it.",), 0.0),  # neither asks nor answers
    (asking, given(), ("That cannot be solved.",), -1.0),
    (asking, given(), ("5 * 12 - 7 = 53. Do you see why? They are 53. Well done.",), 0.5),
    (asking, given(), ("How many are left? That is 60 - 7, so \\boxed{53}.",), 1.0),  # its own question, answered
    # One mark, one's own voice, no loop.
    (form, given(), (ANSWERED,), 1.0),
    (form, given(), (ASKED,), 1.0),
    (form, given(), ("They are 53.",), 2 / 3),  # no mark
    (form, given(), (ANSWERED + " So \\boxed{53}.",), 2 / 3),  # two
    (form, given(), (ANSWERED + "\n#### Verification\nSince 53 + 7 = 60, that is so.",), 1.0),  # a heading
    (form, given(), ("<think>\\boxed{60}?</think>" + ANSWERED,), 1.0),
    (form, given(), (ANSWERED + "\nUser: thanks!\nAssistant: You are welcome.",), 2 / 3),
    (form, given(), (ANSWERED + "<|im_start|>user\nthanks",), 2 / 3),
    (form, given(), (ANSWERED + "\nQuestion: Ben has 4 bags. How many?",), 2 / 3),
    (form, given(), (ANSWERED + " and so on and on" * 60,), 2 / 3),
    (form, given(), ("   \n",), 0.0),
    (form, withheld(), ("That cannot be solved without the number of marbles.",), 1.0),  # no mark is wanted yet
    # Later turns listen, ask one thing and do not repeat.
    (interactivity, given(), ("First 5 * 12 = 60.", "Why 60?", "Each of 5 bags holds 12, so 60 in all."), 1.0),
    (interactivity, given(), ("First 5 * 12 = 60 marbles.", "Why 60?", "Then we go on. \\boxed{53}"), 5 / 6),
    (interactivity, given(), ("First 5 * 12 = 60 marbles.", "Why 60?", "Why 60? Why not? What then?"), 5 / 6),
    (interactivity, given(), (ANSWERED, "Why 60?", ANSWERED), 5 / 6),
]


@pytest.mark.parametrize(("part", "row", "turns", "value"), CASES)
def test_the_value_of_a_part(
    part: Callable[[Sample], Score], row: PromptRow, turns: tuple[str, ...], value: float
) -> None:
    assert part(sample(*turns, row=row)) == Score(pytest.approx(value))


@pytest.mark.parametrize("answer", ["53", "60"])
def test_the_last_number_of_a_truncated_reply_is_no_answer(answer: str) -> None:
    assert accuracy(sample(UNMARKED, ended=("truncated",), row=given(answer=answer))).value == 0


def test_an_answer_that_takes_for_ever_is_cut_off_and_the_others_are_right(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(equality, "_SECONDS", 1.0)
    row = given(answer="2\\sqrt{2}")
    # Algebra on the first and third takes hours, or the memory of a large machine.
    texts = (r"9^{9^{9^{9}}}", r"\sqrt{8}", r"100000000!", r"\sqrt{7}")
    samples = [sample(f"\\boxed{{{text}}}", row=row) for text in texts]
    cut_off = Score(None, "timeout")
    assert [accuracy(one) for one in samples] == [cut_off, Score(1.0), cut_off, Score(0.0)]


def test_look_aheads_are_averaged_and_a_sample_without_any_says_why() -> None:
    one, other = chat(PROBLEM, ANSWERED), chat(PROBLEM, "It is 5.", "Sure?", "It is \\boxed{60}.")
    both = sample("", conversations=(one, other), ended=("user", "limit"), simulated_tokens=(10, 500))
    assert accuracy(both).value == 0.5
    assert efficiency(both, 500).value == pytest.approx((500 / 510 + 0.5) / 2)
    none = sample("", conversations=(), ended=(), simulated_tokens=(), failures=("simulator_timeout",))
    for score in (accuracy(none), efficiency(none, 500), asking(none), interactivity(none), form(none)):
        assert score == Score(None, f"{NOTHING_PLAYED}: simulator_timeout")
    assert mean_score(none, [Score(None, "broken"), Score(0.5), Score(1.0)]) == Score(0.75), "what failed is left out"
    assert mean_score(none, [Score(None, "broken"), Score(None, "lost")]) == Score(None, "broken")


def test_efficiency_falls_for_ever() -> None:
    values = [efficiency(sample("x", tokens=tokens), 500).value or 0.0 for tokens in (1, 2, 500, 10**4, 10**6, 10**7)]
    assert values[0] < 1 and values == sorted(set(values), reverse=True) and values[-1] > 0


# Questions and requests in every reply, in words that do not look like one.
DISGUISES = (
    "Please tell me {clause}.",
    "You have 12 of them. I need to know {clause}.",
    "Step 1: please tell me {clause}.",
    "{ask} Once I know that, I can multiply. Then we are done in 2 steps.",
    "{ask} 1.",
)


def test_pure_strategies_earn_in_the_order_in_which_one_wants_them() -> None:
    """Rewards are compared within a row, so the order has to hold there."""
    rewards, values = Rewards(RewardSection(), seed=0), defaultdict[str, list[float]](list)
    for task in tasks()[:80]:
        gap, texts = task.gaps[0], {"problem": task.question, "answer": task.answer}
        rows = (
            withheld(prompt=chat(gap.question), hidden=(gap.value,), clause=gap.clause, thing=gap.thing, **texts),
            given(prompt=chat(task.question), **texts),
        )
        solved = f"{task.solution}\nThe answer is \\boxed{{{task.answer}}}."
        asks, answers, only = (gap.ask, gap.reveal, solved), (solved,), (gap.ask, gap.reveal, gap.ask)
        # What a policy that always does the same makes of a row with missing information, and of the whole problem.
        strategies = {
            "where needed": (asks, answers), "vaguely": (("Is something missing?", *asks[1:]), answers), "always": (asks, asks),
            "only": (only, only), "guesses": (("That makes \\boxed{987654}.",), answers), "memorised": (answers, answers),
            **{form: ((form.format(ask=gap.ask, clause=gap.clause), *asks[1:]),) * 2 for form in DISGUISES},
        }  # fmt: skip
        earned = {}
        for name, said in strategies.items():
            scored = rewards.score([sample(*turns, row=row, tokens=10) for turns, row in zip(said, rows, strict=True)])
            earned[name] = [one.value or 0.0 for one in scored]
            values[name] += earned[name]
        best, vaguely, memorised = (earned[name] for name in ("where needed", "vaguely", "memorised"))
        assert all(best[0] >= each[0] and best[1] >= each[1] for each in earned.values())
        assert all(best[1] > earned[name][1] + 0.5 for name in ("always", *DISGUISES))
        assert min(earned["only"][0], vaguely[0]) > memorised[0] + 0.5
        assert earned["guesses"][0] <= memorised[0] + 0.2, "right by heart is worth no more"
        assert best[0] > vaguely[0] > earned["only"][0] - 0.5
    mean = {name: fmean(each) for name, each in values.items()}
    assert all(mean["vaguely"] > mean[name] > mean["memorised"] for name in DISGUISES)
    order = [mean[name] for name in ("where needed", "vaguely", "always", "memorised", "only")]
    assert order == sorted(order, reverse=True)


def test_worked_solutions_do_not_count_as_loops() -> None:
    assert not any(loops(task.solution) for task in tasks())
    assert loops("The answer is the answer is " * 20)
    assert loops(ANSWERED + " I hope this helps you." * 40)


SIGNS = [
    "\\boxed{", "}", "####", "?", ". ", "\n", "User:", "<think>", "</think>", "= 60", "53", "marbles", "each bag",
    "Question:", "how many ", "\\frac{", "$", " ", "<|im_end|>", "\u0301", "\U0001f600",
]  # fmt: skip
MIXED = ["".join(random.Random(seed).choices(SIGNS, k=14)) for seed in range(60)]
LONG = ["{" * 20_000, "\\boxed{" * 5_000, "?" * 20_000, "a" * 50_000, "User" * 9_000, "1 = " * 9_000]


@pytest.mark.parametrize("texts", [*zip(MIXED, MIXED[1:], strict=False), *zip(LONG, LONG, strict=True), ("", "")])
def test_whatever_is_said_a_rule_gives_a_number_from_0_to_1_at_once(texts: tuple[str, str]) -> None:
    """Rules run in the training process, without a time limit."""
    for row in (given(), withheld()):
        one = sample(texts[0], "Go on.", texts[1], row=row)
        for part in (interactivity(one), form(one), efficiency(one, 500)):
            assert part.value is not None and 0 <= part.value <= 1
        assert -1 <= (asking(one).value or 0) <= 1
