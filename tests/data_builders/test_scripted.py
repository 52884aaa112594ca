"""Scripted conversations: right mathematics, questions only when needed, clean wordings, and unchanged problem text."""

from __future__ import annotations

import random
import re
from collections import Counter
from dataclasses import replace
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import get_args

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

import nextturn.data_builders
from nextturn.data_builders.numbers import states
from nextturn.data_builders.scripted import Act, Script, acts, converse, joined, plan, possible_kinds, worded
from nextturn.data_builders.sections import Conversations, ScriptedKind, wordings
from nextturn.data_builders.tasks import Conversation, Mistake, Step, Task
from nextturn.probe.command.recipe import _Loader
from nextturn.probe.data.messages import check_messages
from nextturn.probe.questions.simulation import Fact
from nextturn.probe.text.grading import asks, boxed
from nextturn.probe.text.words import rough_sentences
from support.problems import tasks

DEFAULT, TALKATIVE = Conversations(), Conversations(reactions=1.0)
KINDS = get_args(ScriptedKind)
EQUATION = re.compile(r"(?<![\d.*/+-])(?<![*/+-] )(\d+) ?([-+*/]|% of) ?(\d+) = (\d+)")


@st.composite
def conversations(draw: st.DrawFn, *kinds: ScriptedKind, settings: Conversations = TALKATIVE) -> Conversation:
    task = draw(st.sampled_from(tasks()))
    possible = [kind for kind in possible_kinds(task) if kind in (kinds or KINDS)]
    if not possible:
        return draw(conversations(*kinds, settings=settings))
    return converse(task, draw(st.sampled_from(possible)), draw(st.integers(0, 1000)), settings)


def texts(conversation: Conversation, role: str = "") -> list[str]:
    return [message["content"] for message in conversation.messages if role in ("", message["role"])]


def answers(conversation: Conversation) -> list[str]:
    return [box[1] for text in texts(conversation, "assistant") if (box := boxed(text))]


@given(conversations())
def test_a_conversation_is_clean_and_right_and_asks_only_when_a_fact_is_missing(conversation: Conversation) -> None:
    messages = check_messages(list(conversation.messages), "here")
    assert messages[-1]["role"] == "assistant" and conversation.task is not None
    mistakes = {mistake.did for mistake in conversation.task.mistakes}
    for text in texts(conversation):
        assert not re.search(r"(?<!\\boxed)\{|\{[a-z_]+\}| [.,?!]|\.\.|___|\[unreadable\]|\[formula|  ", text), text
        assert text == text.strip()
        for left, op, right, result in EQUATION.findall(text):
            a, b = Fraction(left), Fraction(right)
            value = {"+": a + b, "-": a - b, "*": a * b, "/": a / b, "% of": a * b / 100}[op]
            assert value == Fraction(result) or f"{left} {op} {right} = {result}" in mistakes, (left, op, right, result)
    replies = texts(conversation, "assistant")
    assert answers(conversation) == [conversation.answer]
    missing = conversation.kind == "underspecified"
    assert asks(replies[0]) == replies[0].endswith("?") == missing
    # A reply may quote a question of the problem, but the assistant itself asks at most once.
    assert sum(text.endswith("?") for text in replies) == missing


@given(conversations("underspecified", settings=DEFAULT))
def test_the_withheld_fact_is_asked_for_by_name_and_never_leaks(conversation: Conversation) -> None:
    gap = conversation.fact
    assert gap.short and conversation.reveal_at == 2
    opening, question, reveal, *_ = texts(conversation)
    assert not states(opening, gap.value) and not re.search(r"\d", question) and states(reveal, gap.value)
    assert question.endswith("?") and len(rough_sentences(question)) <= 3 and len(question.split()) <= 35
    assert gap.ask in question or gap.clause in question
    assert conversation.task is not None
    # Both conversations of a contrast pair open with the same words around the problem.
    seed = random.Random(gap.question).randrange(100)
    whole, less = (converse(conversation.task, kind, seed, DEFAULT) for kind in ("complete", "underspecified"))
    assert texts(less)[0] == texts(whole)[0].replace(conversation.task.question, less.fact.question)


@given(conversations("wrong_start", "right_start", settings=DEFAULT))
def test_only_a_right_result_is_confirmed(conversation: Conversation) -> None:
    opening, reply, *_ = texts(conversation)
    assert conversation.task is not None
    wrong = [mistake.answer for mistake in conversation.task.mistakes]
    results = [conversation.answer] if conversation.kind == "right_start" else wrong
    assert any(states(opening.split("\n\n")[-1], value) for value in results), opening
    head = reply.partition("\n")[0]
    denied = re.search(r"Not quite|Almost|Close, but|It isn't|something else|not it yet", head)
    assert bool(denied) == (conversation.kind == "wrong_start"), head
    assert conversation.task.solution in reply


def test_the_same_arguments_give_the_same_text_and_other_seeds_other_texts() -> None:
    task = next(task for task in tasks() if len(possible_kinds(task)) == len(KINDS))
    for kind in KINDS:
        assert converse(task, kind, 1, TALKATIVE) == converse(task, kind, 1, TALKATIVE)
        assert len({tuple(texts(converse(task, kind, seed, TALKATIVE))) for seed in range(20)}) > 15, kind


# --- Which conversations a problem gives.


def test_shares_are_met() -> None:
    settings = Conversations(contrast_pairs=0.8)
    task = next(task for task in tasks() if len(possible_kinds(task)) == len(KINDS))
    plans = [plan(replace(task, id=str(number)), 0, settings) for number in range(2500)]
    kinds = Counter(kind for planned in plans for kind in planned)
    total = kinds.total()
    assert abs(total / len(plans) - settings.per_problem) < 0.04
    assert all(abs(kinds[kind] / total - share) < 0.03 for kind, share in settings.shares.items()), kinds
    pairs = sum(set(planned) == {"complete", "underspecified"} for planned in plans)
    assert abs(pairs / kinds["underspecified"] - 0.8) < 0.05


def test_a_problem_without_material_gives_only_complete_conversations() -> None:
    """Without a known mistake it brings no right result either, or the problem would tell whether a result is right."""
    task = Task("p", "What is 1 + 1 + 1?", "3", "jsonl", tasks()[0].steps[:1])
    assert possible_kinds(task) == ["complete"]
    none = Conversations(complete=0.0, underspecified=1.0, wrong_start=0.0, right_start=0.0, contrast_pairs=0.0)
    assert all(plan(task, seed, settings) == ["complete"] for seed in range(20) for settings in (DEFAULT, none))


# --- Reactions to an answer.


def reaction(task: Task, seed: int | str) -> tuple[str, str, str]:
    """Return the act of the user's reaction, its text, and the reply; empty if there is no reaction."""
    script = Script(task, random.Random(seed), random.Random(seed), False)
    script.react()
    assert [message["role"] for message in script.messages] in ([], ["user", "assistant"])
    user, reply = (message["content"] for message in script.messages) if script.messages else ("", "")
    return script.acts[0] if script.acts else "", user, reply


def test_the_reply_to_a_reaction_gives_a_reason_with_the_numbers_of_the_problem() -> None:
    seen = Counter[str]()
    for task in tasks():
        act, _, reply = reaction(task, task.id)
        seen[act] += 1
        wrong = [task.steps[mistake.at].expression for mistake in task.mistakes]
        reasons = {
            "why": [step.why[1:] for step in task.steps],
            "check": [step.undone for step in task.steps if step.undone and step.left in reply],
            "what_if": [change.steps[-1].text for change in task.what_ifs],
            "doubt": wrong,
        }
        assert any(reason in reply for reason in reasons[act]) and not reply.endswith("?"), (act, reply)
    assert min(seen[act] for act in ("why", "check", "what_if", "doubt")) > 40


# --- Text of problems goes through unchanged.

START = r"Let $M = \begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}$ with $x \neq 0$. "
REST = r"Then $3 \times 5 = 15$. So $\frac{15}{9} = \frac{5}{3}$, and the answer is $\boxed{\frac{5}{3}}$."
QUESTION = r"Let $f(2) = 5$ where $x \neq 0$. It's known that I is $\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}$. Find $\frac{f(2)}{3}$."
LATEX = Task(
    "p", QUESTION, r"\frac{5}{3}", "math",
    (Step(START.strip()), Step(r"Then $3 \times 5 = 15$."), Step(r"So $\frac{15}{9} = \frac{5}{3}$, and so on.")),
    gaps=(
        Fact(QUESTION.replace("$f(2) = 5$ where ", ""), "what $f(2)$ is", "What is $f(2)$?", "It's $f(2) = 5$.", "$f(2) = 5$",
            "$f(2) = 5$", "the value of $f(2)$"),
    ),
    mistakes=(Mistake(1, "", "15", r"$3 \times 5$"),),
    boxed_solution=START + REST, asked=r"Find $\frac{f(2)}{3}$.",
)  # fmt: skip


def test_reactions_to_text_solutions() -> None:
    for seed in range(100):
        act, user, reply = reaction(LATEX, seed)
        assert act == "doubt" and "15" in user and r"$3 \times 5$" in reply and f'"{LATEX.asked}"' in reply
    assert reaction(replace(LATEX, mistakes=()), 0)[0] == ""


@given(st.sampled_from(KINDS), st.integers(0, 10**6))
def test_every_formula_is_one_of_the_problem(kind: ScriptedKind, seed: int) -> None:
    conversation = converse(LATEX, kind, seed, TALKATIVE)
    everything = "\n".join(texts(conversation))
    formulas = re.findall(r"\$[^$]+\$", everything)
    known = QUESTION + START + REST + r"$f(2)$ $\frac{5}{3}$ $15$ $3 \times 5$"
    assert all(formula in known for formula in formulas)
    assert all(everything.count(brace) == "".join(formulas).count(brace) for brace in "{}")
    assert START + REST in everything and answers(conversation) == [LATEX.answer]
    assert kind == "underspecified" or QUESTION in texts(conversation)[0]


# --- The wordings of acts.yaml.

SIMULATED = wordings("acts.yaml")["simulated_user"]


def parts(act: Act) -> list[str]:
    return [*act.openers, *act.cores, *act.closers, act.plain]


@cache
def slots(name: str) -> dict[str, str]:
    return {slot: f"<{slot}>" for part in parts(acts()[name]) for slot in re.findall(r"\{(\w+)\}", part)}


@pytest.mark.parametrize("name", acts())
def test_an_act_has_many_clean_wordings(name: str) -> None:
    act = acts()[name]
    size = len(act.pairs) * len(act.closers)
    assert size >= 6 and all(len(set(same)) == len(same) for same in (act.openers, act.cores, act.closers))
    used = Counter(worded(name, random.Random(seed), slots(name)) for seed in range(2000))
    used.pop(act.plain.format_map(slots(name)).strip(), None)
    assert used.most_common(1)[0][1] < 10 + 2 * used.total() / size
    for text in (joined(*pair, closer).format_map(slots(name)).strip() for pair in act.pairs for closer in act.closers):
        assert not re.search(r"  |\n |[{}]| [.,?!]|[.?!:] ?[.?!,]|,[.?!]", text), text
        assert not re.search(r"[.?!] [a-z]", text), f"a sentence starts in lower case: {text}"
        if act.speaker == "assistant":
            assert name.startswith("ask") or "?" not in text
            assert not re.search(r"\d", text), "a wording adds no number"
    if name == "ask":
        asked = {**slots(name), "ask": "Which?"}
        assert all(worded(name, random.Random(seed), asked).endswith("?") for seed in range(200))


@given(
    st.text(alphabet=r"\{}$%_^&x1I'. Don't it's", min_size=1, max_size=60),
    st.sampled_from(sorted(acts())),
    st.integers(0, 10**6),
)
def test_the_text_in_a_slot_is_never_changed(text: str, name: str, seed: int) -> None:
    filled = worded(name, random.Random(seed), {slot: f"[{text}]" for slot in slots(name)}, casual=True)
    rest = filled.replace(f"[{text}]", "")
    assert "[" not in rest and "]" not in rest


def test_casual_users_type_without_capitals_and_at_times_without_apostrophes() -> None:
    typed = {worded("why", random.Random(seed), slots("why"), casual=True) for seed in range(300)}
    assert not any(re.search(r"(?:^|[.?!] )[A-HJ-Z]", text) for text in typed)
    assert any("i dont" in text for text in typed) and any("I don't" in text for text in typed)


class UniqueKeys(_Loader):
    """The loader of recipes, which refuses a key that is given twice, with the aliases that packaged files use."""

    compose_node = yaml.SafeLoader.compose_node


def test_packaged_files_have_unique_keys_and_known_slots() -> None:
    for name in ("acts.yaml", "pieces.yaml", "words.yaml"):
        path = Path(nextturn.data_builders.__file__).with_name(name)
        assert yaml.load(path.read_text(), Loader=UniqueKeys) == wordings(name)
    for messages in SIMULATED.values():
        assert len(set(messages)) == len(messages) >= 6
        assert len({frozenset(re.findall(r"\{(\w+)\}", text)) for text in messages}) == 1
    used = [*sum(SIMULATED.values(), []), *(text for act in acts().values() for text in parts(act))]
    assert {slot for text in used for slot in re.findall(r"\{(\w+)\}", text)} <= set(wordings("acts.yaml")["slots"])
