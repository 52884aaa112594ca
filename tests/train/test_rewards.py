"""The parts of a reward: what each is high for, what each is low for, and how each might be cheated."""

from __future__ import annotations

from statistics import fmean

import pytest
from hypothesis import given as drawn
from hypothesis import strategies as st

from nextturn.probe.questions.simulation import Fact, PromptRow
from nextturn.probe.text import equality
from nextturn.train.rewards import (
    NOTHING_PLAYED,
    Rewards,
    Score,
    accuracy,
    asking,
    efficiency,
    form,
    interactivity,
    loops,
    mean_score,
)
from nextturn.train.sections import RewardSection
from support.problems import tasks
from support.sample_parts import ANSWERED, PROBLEM, chat, given, sample, withheld

# Algebra on these takes hours, or the memory of a large machine.
ENDLESS = [r"9^{9^{9^{9}}}", r"\binom{100000000}{50000000}", r"100000000!"]


@pytest.mark.parametrize(
    ("turns", "right"),
    [
        ((ANSWERED,), 1.0),
        ((ANSWERED.replace("53}", "54}"),), 0.0),
        (("It is \\boxed{\\frac{106}{2}}.",), 1.0),
        (("First 5 * 12 = 60.", "And then?", "Then 60 - 7 leaves 53."), 1.0),
        ((ANSWERED, "Are you sure?", "Yes, I checked it twice."), 1.0),
        ((ANSWERED, "Are you sure?", "You are right, it is \\boxed{67}."), 0.0),
        (("How many marbles are in each bag?",), 0.0),
        (("",), 0.0),
        (("It is \\boxed{53} or \\boxed{54} or \\boxed{55}.",), 0.0),  # the last one counts, not any
        (("Let us see.", "It is \\boxed{53}, no?", "Tell me why."), 0.0),  # the user's answer
    ],
)
def test_accuracy_is_about_the_final_answer_of_the_conversation(turns: tuple[str, ...], right: float) -> None:
    assert accuracy(sample(*turns)) == Score(right)


def test_neither_the_last_number_of_a_truncated_reply_nor_the_prompt_is_an_answer() -> None:
    reply = "She has 5 * 12 = 60 marbles and loses 7, which leaves 53"
    assert accuracy(sample(reply)).value == 1
    for row in (given(), given(answer="60")):
        assert accuracy(sample(reply, ended=("truncated",), row=row)).value == 0
    after = given(prompt=chat(PROBLEM, ANSWERED, "Why?"), turn=1)
    assert accuracy(sample("Look at the bags again.", row=after)).value == 0


def test_an_answer_that_takes_for_ever_is_cut_off_and_the_others_are_right(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(equality, "_SECONDS", 1.0)
    row = given(answer="2\\sqrt{2}")
    samples = [sample(f"\\boxed{{{text}}}", row=row) for text in (ENDLESS[0], "\\sqrt{8}", ENDLESS[1], "\\sqrt{7}")]
    cut_off = Score(None, "timeout")
    assert [accuracy(one) for one in samples] == [cut_off, Score(1.0), cut_off, Score(0.0)]


def test_look_aheads_are_averaged_and_a_sample_without_any_says_why() -> None:
    one, other = chat(PROBLEM, ANSWERED), chat(PROBLEM, "It is 5.", "Sure?", "It is \\boxed{60}.")
    both = sample("", conversations=(one, other), ended=("user", "limit"), simulated_tokens=(10, 500))
    assert accuracy(both).value == 0.5
    assert efficiency(both, 500).value == pytest.approx((500 / 510 + 0.5) / 2)
    none = sample("", conversations=(), ended=(), simulated_tokens=(), failures=("simulator_timeout",))
    parts = [accuracy(none), efficiency(none, 500), asking(none), interactivity(none), form(none)]
    for part in parts:
        assert part == Score(None, f"{NOTHING_PLAYED}: simulator_timeout")
    assert mean_score([Score(None, "broken"), Score(0.5), Score(1.0)]) == Score(0.75), "what failed is left out"
    assert mean_score([Score(None, "broken"), Score(None, "lost")]) == Score(None, "broken")


@drawn(st.integers(1, 10**6), st.integers(1, 10**4), st.integers(1, 10**5))
def test_efficiency_falls_for_ever(tokens: int, more: int, efficient: int) -> None:
    shorter, longer = (efficiency(sample("x", tokens=n), efficient).value for n in (tokens, tokens + more))
    assert shorter is not None and longer is not None
    assert 0 < longer < shorter < 1


ASKING = [
    # what is missing is asked for, by name
    (withheld(), "How many marbles are in each bag?", 1.0),
    (withheld(), "Sure. Could you tell me how many marbles one of the bags holds?", 1.0),
    (withheld(), "Please tell me the number of marbles in each bag.", 1.0),
    (withheld(), "Is something missing?", 0.5),
    (withheld(), "What do you think?", 0.0),
    (withheld(), "How many marbles does she lose?", 0.0),
    (withheld(), "Let's say 10 marbles a bag. That makes 50 - 7 = 43, so \\boxed{43}.", -1.0),
    (withheld(), ANSWERED, -1.0),  # right, and still a guess
    (withheld(), "That cannot be solved.", -1.0),
    (withheld(), "How many marbles are in each bag? I take 10, so it is \\boxed{43}.", -1.0),
    # nothing is missing
    (given(), ANSWERED, 1.0),
    (given(), "How many marbles are in each bag?", -1.0),
    (given(), "Shall I solve it?", -1.0),
    (given(), ANSWERED + " Does that help?", 0.5),
    (given(), "That's it.", 0.0),  # neither asks nor answers
    (given(), "That cannot be solved.", -1.0),
    (given(), "5 * 12 - 7 = 53. Do you see why? They are 53. Well done.", 0.5),
    (given(), "How many are left? That is 60 - 7, so \\boxed{53}.", 1.0),  # its own question, answered
    # a hint is wanted, and nothing more; then the user tries
    (given(kind="hint"), "What is 5 * 12?", 1.0),
    (given(kind="hint"), ANSWERED, -1.0),
    (given(kind="hint"), "5 * 12 = 60, and 60 - 7 leaves 53 marbles.", -1.0),  # told without a mark
    (given(kind="hint", prompt=chat(f"{PROBLEM} I got 53, is there a hint?")), "How did you come to 53?", 1.0),
    (given(kind="hint", turn=1, prompt=chat(PROBLEM, "Look at the bags.", "53?")), "Yes, \\boxed{53}.", None),
    # nobody knows what is given
]


@pytest.mark.parametrize(("row", "reply", "value"), ASKING)
def test_asking_is_right_where_something_is_missing_and_only_there(
    row: PromptRow, reply: str, value: float | None
) -> None:
    assert asking(sample(reply, row=row)) == Score(value, "" if value is not None else "undecided")


def test_a_right_answer_that_was_guessed_is_worth_nothing() -> None:
    asks = "How many marbles are in each bag?"
    assert accuracy(sample(ANSWERED, row=withheld())).value == 0
    assert accuracy(sample("How old is Ann?", "10.", ANSWERED, row=withheld())).value == 0
    assert accuracy(sample(asks, "12 marbles.", ANSWERED, row=withheld())).value == 1
    assert accuracy(sample("Is something missing?", "12 marbles.", ANSWERED, row=withheld())).value == 1
    assert accuracy(sample(ANSWERED, row=given(kind="hint"))).value == 0
    assert accuracy(sample("5 * 12 - 7 leaves 53 marbles.", row=given(kind="hint"))).value == 0
    assert accuracy(sample("Begin with the bags.", "53?", "Yes, \\boxed{53}.", row=given(kind="hint"))).value == 1


# Questions and requests in every reply, in words that do not look like one.
DISGUISES = {
    "requests": "Please tell me {clause}.",
    "requests after a number": "You have 12 of them. I need to know {clause}.",
    "requests as a step": "Step 1: please tell me {clause}.",
    "asks and goes on": "{ask} Once I know that, I can multiply. Then we are done in 2 steps.",
    "asks and says a number": "{ask} 1.",
}


def strategies(gap: Fact, solved: str) -> dict[str, tuple[tuple[str, ...], tuple[str, ...]]]:
    """Return what policies that always do the same make of a row with missing information, and of the whole problem."""
    asks, answers = (gap.ask, gap.reveal, solved), (solved,)
    only_asks = (gap.ask, gap.reveal, gap.ask)
    hidden = {name: (text.format(ask=gap.ask, clause=gap.clause), *asks[1:]) for name, text in DISGUISES.items()}
    return {
        "asks where needed": (asks, answers),
        "asks vaguely": (("Is something missing?", gap.reveal, solved), answers),
        "always asks": (asks, asks),
        "only asks": (only_asks, only_asks),
        "always guesses": (("That makes \\boxed{987654}.",), answers),
        "memorised": (answers, answers),
        **{name: (turns, turns) for name, turns in hidden.items()},
    }


def test_pure_strategies_earn_in_the_order_in_which_one_wants_them() -> None:
    """Rewards are compared within a row, so the order has to hold there."""
    rewards = Rewards(RewardSection(), seed=0)
    values: dict[str, list[float]] = {}
    for task in tasks()[:80]:
        gap, texts = task.gaps[0], {"problem": task.question, "answer": task.answer}
        solved = f"{task.solution}\nThe answer is \\boxed{{{task.answer}}}."
        less = withheld(prompt=chat(gap.question), hidden=(gap.value,), clause=gap.clause, thing=gap.thing, **texts)
        whole = given(prompt=chat(task.question), **texts)
        earned = {}
        for name, (to_less, to_whole) in strategies(gap, solved).items():
            samples = [sample(*to_less, row=less, tokens=10), sample(*to_whole, row=whole, tokens=10)]
            earned[name] = [one.value or 0.0 for one in rewards.score(samples)]
            values.setdefault(name, []).extend(earned[name])
        best, vaguely, memorised = (earned[name] for name in ("asks where needed", "asks vaguely", "memorised"))
        assert all(best[0] >= each[0] and best[1] >= each[1] for each in earned.values())
        assert all(best[1] > earned[name][1] + 0.5 for name in ("always asks", *DISGUISES))
        assert min(earned["only asks"][0], vaguely[0]) > memorised[0] + 0.5
        assert earned["always guesses"][0] <= memorised[0] + 0.2, "right by heart is worth no more"
        assert best[0] > vaguely[0] > earned["only asks"][0] - 0.5
    mean = {name: fmean(each) for name, each in values.items()}
    assert all(mean["asks vaguely"] > mean[name] > mean["memorised"] for name in DISGUISES)
    order = ["asks where needed", "asks vaguely", "always asks", "memorised", "only asks"]
    assert order == sorted(order, key=lambda name: -mean[name])


def test_later_turns_are_to_listen_ask_one_thing_and_not_repeat() -> None:
    good = sample("First 5 * 12 = 60 marbles.", "Why 60?", "Each of the 5 bags holds 12, so 60 in all. \\boxed{53}")
    deaf = sample("First 5 * 12 = 60 marbles.", "Why 60?", "Then we go on. \\boxed{53}")
    many = sample("First 5 * 12 = 60 marbles.", "Why 60?", "Why 60? Why not? What do you think? \\boxed{53}")
    again = sample(ANSWERED, "Why 60?", ANSWERED)
    values = [interactivity(one).value for one in (good, deaf, many, again)]
    assert values[0] == 1
    assert all(value is not None and value < 1 for value in values[1:])


FORMS = [
    ((ANSWERED,), 1.0),
    (("How many marbles are in each bag?",), 1.0),
    (("They are 53.",), 2 / 3),  # no mark
    ((ANSWERED + " So \\boxed{53}.",), 2 / 3),  # two
    ((ANSWERED + "\n#### Verification\nSince 53 + 7 = 60, that is so.",), 1.0),  # a heading
    (("<think>\\boxed{60}?</think>" + ANSWERED,), 1.0),
    ((ANSWERED + "\nUser: thanks!\nAssistant: You are welcome.",), 2 / 3),
    ((ANSWERED + "<|im_start|>user\nthanks",), 2 / 3),
    ((ANSWERED + "\nQuestion: Ben has 4 bags. How many?",), 2 / 3),
    ((ANSWERED + " and so on and on" * 60,), 2 / 3),
    (("   \n",), 0.0),
]


@pytest.mark.parametrize(("turns", "value"), FORMS)
def test_format_wants_one_mark_ones_own_voice_and_no_loop(turns: tuple[str, ...], value: float) -> None:
    assert form(sample(*turns)).value == pytest.approx(value)


def test_format_wants_no_mark_where_no_answer_is_wanted_yet() -> None:
    assert form(sample("That cannot be solved without the number of marbles.", row=withheld())).value == 1
    assert form(sample("Begin with 5 * 12.", row=given(kind="hint"))).value == 1


def test_worked_solutions_do_not_count_as_loops() -> None:
    assert not any(loops(task.solution) for task in tasks())
    assert loops("The answer is the answer is " * 20)
    assert loops(ANSWERED + " I hope this helps you." * 40)


TEXTS = st.lists(
    st.sampled_from([
        "\\boxed{", "}", "####", "?", ". ", "\n", "User:", "<think>", "</think>", "= 60", "53", "marbles", "each bag",
        "Question:", "how many ", "\\frac{", "$", " ", "<|im_end|>",
    ]) | st.text(max_size=6),
    max_size=14,
).map("".join)  # fmt: skip


@drawn(st.lists(TEXTS, min_size=1, max_size=3), st.booleans())
def test_whatever_is_said_a_rule_gives_a_number_from_0_to_1(replies: list[str], hides: bool) -> None:
    turns = [text for reply in replies for text in (reply, "Go on.")][:-1]
    one = sample(*turns, row=withheld() if hides else given())
    for part in (interactivity(one), form(one), efficiency(one, 500)):
        assert part.value is not None
        assert 0 <= part.value <= 1
    assert -1 <= (asking(one).value or 0) <= 1


@pytest.mark.parametrize(
    "text", ["{" * 20_000, "\\boxed{" * 5_000, "?" * 20_000, "a" * 50_000, "User" * 9_000, "1 = " * 9_000]
)
def test_no_text_makes_the_rules_slow(text: str) -> None:
    """They run in the training process, without a time limit."""
    for row in (given(), withheld()):
        assert interactivity(sample(text, "Go on.", text, row=row)).value is not None
        assert asking(sample(text, row=row)).value is not None
        assert form(sample(text, row=row)).value is not None
