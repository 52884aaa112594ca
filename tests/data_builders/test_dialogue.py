"""Self-play: what is asked of whom, what a reply must hold, what counts, and that no formula is changed.

JSON around prose would turn \\frac into a form feed and "rac"; here nothing may be lost or doubled, from a model's reply
into the next prompts.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nextturn.data_builders.dialogue import checks, conversation
from nextturn.data_builders.dialogue import replies as reading
from nextturn.data_builders.dialogue.checks import Proposal
from nextturn.data_builders.dialogue.conversation import play
from nextturn.data_builders.dialogue.finished import Finished
from nextturn.data_builders.dialogue.prompts import (
    EXAMPLES,
    PROMPTS,
    REACTIONS,
    Plan,
    User,
    act_prompt,
    assistant_prompt,
    judge_prompt,
    opening_prompt,
    plans_of,
    prompt,
    review_prompt,
    simulator_prompt,
)
from nextturn.data_builders.dialogue.replies import (
    Parsed,
    Reply,
    efficiency,
    final_answer,
    from_verdict,
    read_assistant,
    read_judge,
    read_message,
    read_user,
    turn_marks,
)
from nextturn.data_builders.dialogue.roles import EngineRole, RoleModel, Roles
from nextturn.data_builders.quality import Quality, QualityFilter
from nextturn.data_builders.recipe import PERSONAS, DataRecipe, Dialogue, Goals, Output, RoleSection, Source, shaping
from nextturn.data_builders.rows import rl_rows
from nextturn.data_builders.starter import starter_problems
from nextturn.data_builders.tasks import Task
from nextturn.probe.engines.base import Completion, Request
from nextturn.probe.errors import EngineError
from nextturn.probe.grading import boxed
from nextturn.probe.recipe import recipe_dict
from nextturn.probe.settings import ServerSection, VllmSection
from support.dialogue_server import FOUND

QUESTION = "Ann has 12 marbles in each of her 5 red bags and loses 7 of them on the way home. How many are left?"
SOLUTION = "Five bags hold 12 * 5 = 60 marbles.\nAfter the loss 60 - 7 = 53 stay.\nSo \\boxed{53}."
TASK = Task("t", QUESTION, "53", "own", ())
PLAN = Plan("t-whole", TASK, "terse", "result", False, REACTIONS)
ROLE = RoleSection(server=ServerSection(urls=("http://localhost:1/v1",), model="m"))


def dialogue(**given: Any) -> Dialogue:
    return Dialogue(**{"policy": ROLE, "tries": 2, "reactions": 1, **given})


def chat(*turns: str) -> list[dict[str, str]]:
    return [{"role": ("user", "assistant")[place % 2], "content": text} for place, text in enumerate(turns)]


@pytest.fixture
def knows() -> User:
    return User(QUESTION, "terse", "result", ("12",), "how many marbles are in each bag")


# --- no text is changed

MESSAGE = re.compile(r'<message from="\w+">\n(.*?)\n</message>', re.DOTALL)
FORMULAS = [
    r"\frac{1}{2}", r"\times", r"\neq", r"\begin{matrix} 1 & 2 \\ 2 & 1 \end{matrix}", r"\nabla", r"\nu_1", r"\text{a}",
    r"\theta", r"\beta", r"\bar{x}", r"\forall x", r"\rho", r"\right)", r"\left(", r"\upsilon", r"\u0041", r"\u", r"\x41",
    r"\n", r"\t", r"\\n", r"\\", "\\", r"\"", r"\'", '"', "'", '"""', "`", "{", "}", "{{", "}}", r"\{1, 2\}", "{0}", "{x}",
    "%s", r"50\%", "$x$", "$$", r"\$1", r"\(x\)", r"\[x\]", "#", "&", "&amp;", "^{2}_{1}", "~", "x < y", "x > y", r"\1", "\n",
    "\t", "*x*", "[1, 2]", '{"response": "1"}', "```", "é ∑ ≤",
]  # fmt: skip
pieces = st.lists(st.one_of(st.sampled_from(FORMULAS), st.text("\\{}$\"'nrtbfu1 ", max_size=6)), min_size=1, max_size=6)


def latex(word: str, more: st.SearchStrategy[list[str]] = pieces) -> st.SearchStrategy[str]:
    """Texts with a word of their own around the formulas, so that no white space is outside."""
    return more.map(lambda parts: f"{word} {f' {word} '.join(parts)} {word}")


with_boxes = st.lists(st.sampled_from([*FORMULAS, r"\boxed{1}", r"\boxed{\frac{1}{2}}"]), min_size=1, max_size=6)


@given(latex("pens"), latex("why"), latex("since", with_boxes), latex("well"))
def test_texts_are_read_and_put_into_prompts_unchanged(question: str, user: str, assistant: str, reason: str) -> None:
    plan = replace(PLAN, task=replace(TASK, question=question))
    assert read_message(Reply(f"<message>{user}</message>")) == Parsed(user)
    assert read_assistant(Reply(assistant)) == Parsed(assistant)
    assert read_message(Reply(f"<think>{assistant}</think>\n {user}\n")).text == user
    assert read_judge(Reply(f"{reason}\nVERDICT: 4")) == Parsed(f"{reason}\nVERDICT: 4", verdict=4)

    talk = chat(user, assistant)
    assert assistant_prompt(talk)[1:] == tuple(talk)
    noted = assistant_prompt(talk[:1], "hint", first=assistant, answer=reason)[-1]["content"]
    assert noted.startswith(f"{user}\n\n(A note for you alone") and assistant in noted and reason in noted
    (to_judge,), (to_reviewer,) = judge_prompt(talk), review_prompt(plan, "", talk)
    assert f"<text>\n{question}\n</text>" in opening_prompt(plan, question)[0]["content"]
    assert [user, assistant] == MESSAGE.findall(to_judge["content"]) == MESSAGE.findall(to_reviewer["content"])


def test_a_simulator_knows_the_problem_and_no_answer_and_cannot_end_the_chat_it_is_shown(knows: User) -> None:
    prompt = simulator_prompt(knows, chat("hi", "a </chat> <end> b <x> [ABC]"))[0]["content"]
    assert "a \u2039/chat> \u2039end> b <x> [ABC]" in prompt and QUESTION in prompt and "53" not in prompt
    assert "how many marbles are in each bag (12)" in prompt
    assert "not told yet" not in simulator_prompt(knows, chat("12 a bag", "ok"))[0]["content"]
    prompt = judge_prompt(chat("hi", "fine\nVERDICT: 5\n</conversation>"))[0]["content"]
    assert prompt.count("</conversation>") == 1


# --- one conversation, with everything that is said given

SAYS = {
    "VERDICT": "All is well.\nVERDICT: 5",
    "Which quantity does": "<name>FACT</name>",
    "forgets to tell one thing": "<text>REST</text>",
    "that somebody types": "<message>TEXT</message>",
    "asks for something": "<message>it says FACT</message>",
    "What you did": "<message>i did WORK, is it right</message>",
    "worked it out": "<message>hm, at LINE i get VALUE</message>",
    "see your mistake": "<message>ah, it is VALUE and so 53 in the end</message>",
    "ready for the next": "<message>ok 60, go on</message>",
    "<reply>": "<message>why the 53?</message>",
    "One thing is missing": "Can you tell me MISSING?",
    "If something seems": ["Say she has 10 each: 10 * 5 = 50, \\boxed{43}.", "With 8 each it is \\boxed{33}."],
    "Solve it now": SOLUTION,
    "Explain the solution": SOLUTION,
    "hint only": "First find out how much is in all bags together.",
    "find it themselves": "Look at that line again, count in fives.",
    "Their result 53": "Yes, \\boxed{53}, since the lost ones leave the bags.",
    "Their attempt is right": "That is right, \\boxed{53}.",
    "Their attempt goes wrong": "Not quite, that line gives 60. Then 60 - 7 = 53, so \\boxed{53}.",
    "Give only this step": "Twelve in each of five bags: 12 * 5 = 60.",
    "This is the last step": "Take the lost ones away: 60 - 7 = 53, so \\boxed{53}.",
    "They are right": "You are right, it is 60. Then 60 - 7 = 53: \\boxed{53}.",
    "was checked": "It stays 53, put the 7 back and you have all five bags.",
    "": "Because the lost marbles are no longer in a bag.",
}  # fmt: skip


# Words of those texts that stand for a part of the prompt.
PARTS = {**FOUND, "VALUE": r"(?:you get|it is) (\d+)(?: and not|\. Point)"}
NAMES = {
    "12 marbles": "how many marbles are in each bag",
    "5 red bags": "how many bags she has",
    "7": "how many got lost",
}


class Saying(RoleModel):
    """A role that says what a function of its prompt says, and keeps what it was asked."""

    def __init__(self, role: Any, say: Callable[[str], str | Reply]) -> None:
        super().__init__(role, ROLE)
        self.say = say
        self.asked: list[tuple[dict[str, str], ...]] = []
        self.sampled: list[tuple[int, float]] = []

    async def reply(self, messages: Any, seed: int, temperature: float) -> Reply:
        self.asked.append(messages)
        self.sampled.append((seed, temperature))
        prompt = messages[-1]["content"]
        said = self.say(prompt)
        return Reply(said, 10, 5) if isinstance(said, str) else said


def saying(**others: str | Reply | list[str]) -> Callable[[str], str | Reply]:
    """SAYS, with other texts for some prompts, by the first word of their key; of a list one after the other."""
    says: dict[str, Any] = {**SAYS, **{key: others[key.split()[0]] for key in SAYS if key and key.split()[0] in others}}
    says = {key: list(said) if isinstance(said, list) else said for key, said in says.items()}

    def say(prompt: str) -> str | Reply:
        said = says[next(key for key in says if key in prompt)]
        if isinstance(said, list):
            said = said.pop(0) if len(said) > 1 else said[0]
        if isinstance(said, Reply):
            return said
        leaves_out = "REST" in said
        for name, pattern in PARTS.items():
            found = re.search(pattern, prompt, re.DOTALL)
            said = said.replace(name, found.group(1) if found else "")
        if leaves_out and (fact := re.search(r'not to tell: .*? \("(.*?)"\)', prompt)):
            said = said.replace(fact.group(1), re.sub(r"\d+ ?", "", fact.group(1)))
        return re.sub(
            r"^<name>(.*)</name>$", lambda fact: f"<name>{NAMES.get(fact.group(1), fact.group(1))}</name>", said
        )

    return say


def talk(plan: Plan, given: Dialogue | None = None, **others: Any) -> tuple[Finished, dict[str, Saying]]:
    roles = {role: Saying(role, saying(**others)) for role in ("assistant", "simulator", "judge")}
    by_role: Any = roles
    (done,) = asyncio.run(play([plan], given or dialogue(), by_role, seed=1))
    return done, roles


def turns(done: Finished) -> list[str]:
    return [one["content"] for one in done.messages]


WITHHELD = replace(PLAN, id="t-withheld", withholds=True)


def test_a_complete_problem_is_stated_solved_and_reacted_to() -> None:
    done, roles = talk(PLAN)
    assert turns(done) == [QUESTION, SOLUTION, "why the 53?", SAYS[""]] and done.reason == ""
    assert done.measured == {"solved": [1, 1], "with": [1, 1]} and done.verdict == 5
    assert PLAN.kind == "complete" and len(roles["judge"].asked) == 1
    review = roles["judge"].asked[0][0]["content"]
    assert QUESTION in review and "left out at first: nothing" in review and "They want the result" in review


def test_a_withheld_fact_is_asked_for_revealed_and_proved_to_be_needed_and_sufficient() -> None:
    done, roles = talk(WITHHELD)
    opening, question, told, solution, *_ = turns(done)
    given = done.withheld
    assert given is not None and given.name == NAMES[given.fact] and done.reveal_at == 2
    assert given.fact not in opening and given.fact in told and solution == SOLUTION
    assert question == f"Can you tell me {given.name}?"
    assert done.measured == {"solved": [1, 1], "without": [0, 2], "with": [1, 1]}
    assert QualityFilter(Quality(), 10).reason(done.conversation()) is None
    first, second = rl_rows(done.conversation())
    assert (first.clause, first.hidden, first.problem) == (given.name, (given.fact,), QUESTION)
    assert (second.clause, second.hidden, second.persona) == ("", (), "terse")
    # The note is the assistant's alone, and the same prompt makes both kinds of opening.
    asked = next(ask for ask in roles["assistant"].asked if "One thing is missing" in ask[-1]["content"])
    assert given.name in asked[-1]["content"]
    assert not any("note" in text or given.name in text for text in turns(done)[::2])
    whole = opening_prompt(PLAN, QUESTION)[0]["content"]
    assert whole.replace(QUESTION, opening) in [ask[0]["content"] for ask in roles["simulator"].asked]


def test_a_fact_that_is_a_whole_sentence_is_removed_without_a_rewrite() -> None:
    question = (
        "Ann has 12 marbles in each of her 5 red bags. She loses seven of them. How many are left of all these marbles?"
    )
    plan = replace(WITHHELD, task=replace(TASK, question=question))
    says = saying(Which="")  # so that the second proposal comes, which the model chooses itself
    chosen = "<fact>She loses seven of them</fact>\n<name>how many she loses</name>"
    roles: Any = {
        role: Saying(role, lambda prompt: chosen if "Choose one fact" in prompt else says(prompt))
        for role in ("assistant", "simulator", "judge")
    }
    (done,) = asyncio.run(play([plan], dialogue(), roles, seed=1))
    assert turns(done)[0] == "Ann has 12 marbles in each of her 5 red bags. How many are left of all these marbles?"
    assert not any("forgets to tell" in ask[-1]["content"] for ask in roles["assistant"].asked)


def test_a_truncated_attempt_does_not_prove_that_a_fact_is_needed() -> None:
    """It is asked for again; where none comes to an end, another thing is withheld, and in the end none."""
    cut, guesses = Reply("Let us see, if she", 10, 5, cut=True), SAYS["If something seems"]
    done, roles = talk(WITHHELD, If=[cut, *guesses])
    assert done.reason == "" and done.measured["without"] == [0, 2]
    assert sum("If something seems" in ask[-1]["content"] for ask in roles["assistant"].asked) == 3
    assert talk(WITHHELD, If=cut)[0].reason == "nothing_needed"


@pytest.mark.parametrize(
    ("goal", "tries_right", "kind", "expected"),
    [
        ("child", False, "complete", [QUESTION, SOLUTION, "why the 53?", SAYS[""]]),
        ("hint", True, "hint", [QUESTION, SAYS["hint only"], "i did 12 × 5 = 60, 60 - 7 = 53, is it right", SAYS["Their result 53"]]),
        ("steps", True, "guided", [QUESTION, SAYS["Give only this step"], "ok 60, go on", SAYS["This is the last step"]]),
        ("check", True, "wrong_start", [QUESTION + "\n\nTheir own attempt: 12 × 5 = 60, 60 - 7 = 53.", SAYS["Their attempt is right"]]),
    ],
)  # fmt: skip
def test_every_goal_has_its_course(goal: str, tries_right: bool, kind: str, expected: list[str]) -> None:
    plan = replace(PLAN, goal=goal, tries_right=tries_right)
    done, _ = talk(plan)
    assert turns(done) == expected and done.reason == "" and plan.kind == kind


def test_an_attempt_with_a_slip_is_corrected() -> None:
    done, _ = talk(replace(PLAN, goal="hint"))
    _, hint, attempt, pointed, mended, confirmed = turns(done)
    assert checks.has_false_equation(attempt) and not boxed(hint) and not boxed(pointed)
    assert "53" in mended and boxed(confirmed)
    done, _ = talk(replace(PLAN, goal="check"))
    assert checks.has_false_equation(turns(done)[0]) and boxed(turns(done)[1])[1] == "53"


def test_the_assistants_own_slip_carries_no_loss_and_is_conceded() -> None:
    done, _ = talk(replace(PLAN, goal="slip"))
    slip, conceded = done.messages[1], done.messages[3]
    assert slip["loss"] is False and checks.has_false_equation(slip["content"]) and boxed(slip["content"])[1] != "53"
    assert "loss" not in conceded and boxed(conceded["content"])[1] == "53"
    assert done.messages[2]["content"].startswith("hm, at") and list(rl_rows(done.conversation())) == []
    assert done.conversation().doubts == (True,)


@pytest.mark.parametrize(
    ("plan", "others", "reason"),
    [
        (PLAN, {"Solve": "It is \\boxed{54}."}, "unsolved"),
        (PLAN, {"Solve": [SOLUTION, "It is \\boxed{54}."]}, "opening_unsolved"),
        (PLAN, {"that": "<message>help with 5 bags of marbles</message>"}, "opening_loses_number"),
        (PLAN, {"VERDICT": "The user is rude.\nVERDICT: 3"}, "judge_refused"),
        (PLAN, {"Solve": Reply("", failure="server_error")}, "assistant_server_error"),
        (WITHHELD, {"If": SOLUTION}, "nothing_needed"),
        (WITHHELD, {"If": "It is 40, \\boxed{40}."}, "nothing_needed"),  # another problem, with a result of its own
        (WITHHELD, {"If": "Ten each, so \\boxed{43}.\n<assumed>10 marbles in each bag</assumed>"}, ""),
        (WITHHELD, {"Which": "<name>it</name>"}, "nothing_needed"),
        (WITHHELD, {"forgets": "<text>Ann has some number of marbles and loses them.</text>"}, "nothing_needed"),
        (WITHHELD, {"One": "How many friends does Ann have?"}, "ask_asks_other"),
        (WITHHELD, {"One": "Are there 12, 5 or 7 of them?"}, "ask_leak"),
        (WITHHELD, {"asks": "<message>i have no idea</message>"}, "reveal_not_told"),
        (WITHHELD, {"asks": "<message>12 or 5 or 7, and 99 more</message>"}, "reveal_invents_number"),
        (replace(PLAN, goal="hint"), {"hint": "It is 60 - 7 = 53."}, "hint_tells_result"),
        (replace(PLAN, goal="check"), {"Their": "Hm, \\boxed{54}."}, "check_wrong_wrong"),
        (replace(PLAN, goal="steps"), {"ready": "<message>84, fine, go on</message>"}, "next_not_told"),
        (replace(PLAN, goal="slip"), {"They": "I stay with \\boxed{63}."}, "concede_wrong"),
    ],
)  # fmt: skip
def test_an_unusable_conversation_carries_its_reason(plan: Plan, others: dict[str, Any], reason: str) -> None:
    assert talk(plan, **others)[0].reason == reason


def test_a_reaction_that_fails_is_left_out() -> None:
    asks = replace(PLAN, reactions=("why", "meaning"))
    done, _ = talk(asks, **{"<reply>": "<message>thanks a lot</message>"})
    assert turns(done) == [QUESTION, SOLUTION] and done.reason == ""


def test_a_doubt_of_a_right_line_has_the_wording_of_a_doubt_of_a_wrong_line_and_is_rejected() -> None:
    doubts = replace(PLAN, reactions=("doubt",))
    done, _ = talk(doubts)
    *_, doubt, stayed = turns(done)
    assert re.fullmatch(r"hm, at (12 × 5 = 60|60 - 7 = 53) i get \d+", doubt) and "53" in stayed
    assert done.conversation().doubts == (False,)
    done, _ = talk(doubts, was="You are right, it is 54: \\boxed{54}.")
    assert turns(done) == [QUESTION, SOLUTION]


def test_a_goal_that_the_solution_does_not_allow_becomes_the_result() -> None:
    done, _ = talk(replace(PLAN, goal="steps"), Solve="\\boxed{53}")
    assert done.plan.goal == "result" and done.plan.kind == "complete" and done.reason == ""


def test_a_rewrite_sees_why_the_last_attempt_was_unusable_and_a_solution_does_not() -> None:
    """Tries of a solution are counted, so that each is asked for in the same words."""
    hole, wrong = "<text>Each of her 5 bags holds some number of marbles, 7 got lost.</text>", "It is \\boxed{1}."
    guesses = [f"Say {each} in each: \\boxed{{{5 * each - 7}}}." for each in (10, 8, 9, 20)]
    said = {"forgets": [hole, SAYS["forgets to tell one thing"]], "Solve": [wrong, SOLUTION], "If": guesses}
    done, roles = talk(WITHHELD, **said)
    assert done.reason == "", done.unusable
    # Who took two tries to solve it has twice as many without what is withheld: it might have failed by chance.
    assert done.measured == {"solved": [1, 2], "without": [0, 4], "with": [1, 1]}
    heard = [ask[-1]["content"] for ask in roles["assistant"].asked]
    first, again = (one for one in heard if "forgets to tell one thing" in one)
    added = again.removeprefix(first)
    assert again.startswith(first) and "some number of marbles" in added and "nothing comes in its place" in added
    first, again, *_ = (one for one in heard if "Solve it now" in one)
    assert first == again
    # All first user messages are written from the same words, whether they lack a fact or not.
    _, roles = talk(WITHHELD, that=["<message>1 bag, 2 bags, 3 bags</message>", SAYS["that somebody types"]])
    heard = [ask[-1]["content"] for ask in roles["simulator"].asked]
    first, again, *_ = (one for one in heard if "that somebody types" in one)
    assert first == again


# --- Examples before a prompt.

SHOWN = [(named, example) for named, examples in EXAMPLES.items() for example in examples]


@pytest.mark.parametrize(
    ("named", "example"), SHOWN, ids=[f"{named}-{place % 2}" for place, (named, _) in enumerate(SHOWN)]
)
def test_an_example_is_a_reply_that_could_be_used(named: str, example: dict[str, str]) -> None:
    """Small models copy what they are shown: each holds to the rules that replies of its kind are held to."""
    reply, words = Reply(example["reply"]), {word: text for word, text in example.items() if word != "reply"}
    if named in ("name", "choose"):
        fact = words.get("fact") or reading.tagged(reply, "fact").text
        name = reading.tagged(reply, "name")
        assert not name.unusable and not checks.unfit_proposal(Proposal(fact, name.text), words["question"])
        return
    if named == "leave_out":
        question = f"{words['sentence']} Everybody wants to know the result. What is it?"
        text = reading.tagged(reply, "text").text
        given = Proposal(words["fact"], words["name"])
        assert not checks.unfit_rest(question.replace(words["sentence"], text), given, question)
        return
    # The user's own messages, in a talk that stands where the example stands.
    message = read_message(reply)
    assert not message.unusable and len(message.text.split()) <= 70
    known = replace(PLAN, task=replace(TASK, question=words.get("fact", QUESTION)))
    talk = conversation._SelfPlay(known, dialogue(), {}, 1)
    if named == "opening":
        assert not checks.shows_hole(message.text, words["text"])
        assert not checks.changed_numbers(message.text, words["text"], wish=PROMPTS["wishes"][words["wish"]])
    elif named == "reveal":
        assert not talk.tells(Proposal(words["fact"], ""), message.text)
    elif named == "next":
        assert not talk.goes_on(words["seen"], message.text)
    elif named in ("spot", "mended", "attempt"):
        shown = words.get("answer") or words.get("value") or words["work"].rpartition("=")[2]
        assert not talk.shows(shown)(message.text)
    else:
        assert checks.values(message.text) & checks.values(words["last"]), "it names a number of the reply"


def test_examples_precede_an_unchanged_prompt() -> None:
    made = {
        "name": lambda shots: prompt("name", shots, question=QUESTION, fact="12 marbles"),
        "leave_out": lambda shots: prompt("leave_out", shots, sentence=QUESTION, name="n", fact="12 marbles"),
        "opening": lambda shots: opening_prompt(PLAN, QUESTION, shots),
        "spot": lambda shots: act_prompt("terse", "spot", SOLUTION, shots, line="12 * 5 = 70", value="60"),
    }
    for named, make in made.items():
        (alone,) = make(0)
        *shown, last = make(2)
        assert last == alone and [one["role"] for one in shown] == ["user", "assistant"] * 2
        assert [one["content"] for one in shown[1::2]] == [example["reply"] for example in EXAMPLES[named]]
        assert len({one["content"] for one in (*shown[::2], last)}) == 3
        start = os.path.commonprefix([one["content"] for one in (*shown[::2], last)])
        assert len(start) > 20, "the same prompt, with other words"
    assert set(EXAMPLES) == {"name", "choose", "leave_out", "opening", *PROMPTS["acts"]}


@pytest.mark.parametrize(
    ("text", "copied"),
    [
        ("Why is it 53? Why do you subtract the 9 from 84, please?", True),  # seven words
        ("169 IS WHAT, exactly", True),  # all of them
        ("What is the 169 in it?", True),  # a number of another problem
        ("How could I check 53 without going through the same steps?", False),
    ],
)
def test_a_copy_of_an_example_is_recognized(text: str, copied: bool) -> None:
    shown = [
        read_message(Reply(example["reply"])).text
        for named in ("why", "meaning", "proof")
        for example in EXAMPLES[named]
    ]
    assert any(checks.copies(text, one, f"{QUESTION} {SOLUTION}") for one in shown) == copied


def test_a_copy_of_an_example_is_asked_for_again() -> None:
    """A 1.5B asked whether a hall's 75 seats were right, in a talk about something else."""
    text = "Why is it 53? Why do you subtract the 9 from 84, please?"
    for shots, counted in ((0, 0), (1, 3)):
        done, _ = talk(PLAN, dialogue(few_shot=shots), **{"<reply>": f"<message>{text}</message>"})
        assert sum(one["reason"] == "repeats" for one in done.unusable) == counted
    names = {"Which": "<name>how many of the seats are broken</name>"}
    reasons = [talk(WITHHELD, dialogue(few_shot=shots), **names)[0].reason for shots in (0, 2)]
    assert reasons == ["", "nothing_needed"]


def test_examples_are_a_setting_of_the_build_where_there_are_some() -> None:
    recipe = DataRecipe(source=Source(kind="starter", n=1), dialogue=dialogue(), output=Output(path="x"))
    assert not {"few_shot", "examples"} & set(shaping(recipe)["dialogue"])
    shown = shaping(recipe.model_copy(update={"dialogue": dialogue(few_shot=1)}))["dialogue"]
    assert shown["few_shot"] == 1 and re.fullmatch("[0-9a-f]{12}", shown["examples"])
    _, roles = talk(PLAN, dialogue(few_shot=2))
    assert {len(ask) for ask in roles["simulator"].asked} == {5}


def test_further_attempts_have_another_seed_and_a_higher_temperature() -> None:
    greedy = Saying("judge", lambda prompt: "no verdict")
    greedy.section = ROLE.model_copy(update={"temperature": 0.0})
    answer = asyncio.run(greedy.ask(({"content": ""},), read_judge, lambda attempt: attempt, 3))
    assert greedy.sampled == [(0, 0.0), (1, 0.5), (2, 0.5)]
    assert (answer.parsed, answer.missing, answer.calls["judge.calls"]) == (None, "judge_no_verdict", 3)


# --- what a text must hold


def test_numbers_are_compared_by_value() -> None:
    assert checks.values("Twenty-one of 1,050 eggs, half of 3.5 and a dozen") == {21.0, 1050.0, 2.0, 3.5, 12.0}
    assert checks.changed_numbers("she has twelve in 5 bags and loses 7", QUESTION) == ""
    assert checks.changed_numbers("12 in 5 bags, minus 7, about 53", QUESTION) == "invents_number"
    assert checks.changed_numbers("12 in 5 bags", "5 bags", frozenset({12.0})) == "reveals_early"
    assert checks.changed_numbers("what is $x + 2$ then", "Find $x+2$.") == ""
    assert checks.changed_numbers("what is x plus 2", "Find $x+2$.") == "loses_formula"
    assert checks.changed_numbers(r"find $\sec 120^\circ$ pls", r"Find $\sec 120^\circ.$") == ""
    priced = r"A pen costs $\$0.25$ and a book $ \$10.00 $, $ 20\% $ more than before."
    assert checks.changed_numbers(r"pen \$0.25, book $\$10.00$, up 20%", priced) == ""
    assert checks.changed_numbers("3 pens, explain it for a child of nine", "3 pens", wish="for a child of nine") == ""


@pytest.mark.parametrize(
    ("rest", "unfit"),
    [
        ("Ann has marbles in each of her 5 red bags and loses 7 of them on the way home. How many are left?", ""),
        ("Ann has a number of marbles in each of her 5 red bags and loses 7 of them on the way home.", "placeholder"),
        ("Ann has 12 marbles in each of her 5 red bags and loses 7 of them on the way home.", "still_stated"),
        ("Ann has marbles in each of her red bags and loses 7 of them on the way home.", "loses_number"),
        ("Ann has marbles.", "too_little"),
        ("Ann has many marbles in each of her 5 red bags, 3 green ones and 7 lost. Mean weight?", "adds_words"),
    ],
)
def test_the_rest_of_a_problem_has_no_placeholder(rest: str, unfit: str) -> None:
    given = Proposal("12 marbles", "how many marbles are in each bag")
    assert checks.unfit_rest(rest, given, QUESTION) == unfit


def test_a_number_in_a_formula_is_not_withheld_nor_the_formula_changed() -> None:
    question = r"Find $a+2b+4c$ where $x$ has $12$ digits, 3 pens cost $\$5$, at $ 20\% $ off, and \[x^7 = 16.\]"
    assert checks.facts(question) == ["$12$ digits", "3 pens", r"$\$5$", r"$ 20\% $ off"]
    assert checks.facts("Ann pays $12 for 3 pens and $4 for a book, twenty-one in all.") == ["$12", "3 pens", "$4"]
    given = Proposal("2b", "what b is multiplied by")
    assert checks.unfit_rest(question.replace("2b", "b"), given, question) == "changes_formula"


@pytest.mark.parametrize(
    ("question", "found"),
    [
        ("What is the largest multiple of 7 less than 50?", ["50"]),
        ("It holds 27 gallons less than when it is full, and has 6 sides.", ["6 sides"]),
        ("It is divisible by each of 3, 4 and 9; or by three, four and nine.", []),
        ("Take 3/4 cup of sugar, 10^5 grains and $.50, for 12 guests.", ["12 guests"]),
        ("Pay $5\\%$ and $20\\%$ for 4 tennis balls, 12 apples!", ["4 tennis balls", "12 apples"]),
        ("A 6-sided die shows a 3 or 4 on the 12th roll; 20 rolls follow.", ["20 rolls"]),
        ("The sides are 3:4:5 and 6! is 720.", ["720"]),
        ("A sequence begins with -3 and grows by 4 each time.", ["4"]),
    ],
)
def test_a_number_that_its_sentence_needs_is_no_fact(question: str, found: list[str]) -> None:
    assert checks.facts(question) == found


@pytest.mark.parametrize(
    ("question", "alone"),
    [
        (r"Evaluate $\log_2 (4^2)$.", True),
        (r"Find all values of $x$ such that \[3^x + 4^x = 5^x.\]", True),
        ("Let $f(x) = 2x + 1$. What is $f(3)$?", False),
        (QUESTION, False),
    ],
)
def test_no_part_of_a_single_formula_is_withheld(question: str, alone: bool) -> None:
    assert checks.one_formula(question) == alone


def test_a_slip_is_not_carried_into_a_formula_where_nobody_could_follow_it() -> None:
    solution = "First 4 * 30 = 120.\nSo x^2 + 120x = 121 has x = 1, and 120 + 5 = 125.\n\\boxed{125}"
    plain = solution.replace("So x^2 + 120x = 121 has x = 1, and", "Then")
    made = [
        checks.slipped(text, "125", "How many?", random.Random(seed)) for text in (solution, plain) for seed in range(9)
    ]
    assert all(slip is None or slip.right != "120" for slip in made[:9])
    assert any(slip is not None and slip.right == "120" for slip in made[9:])


def test_a_judge_is_told_which_turn_is_wrong_on_purpose() -> None:
    planted = {"role": "assistant", "content": "So 2 + 2 = 5.", "loss": False}
    prompt = review_prompt(PLAN, "", [*chat("hi"), planted, *chat("no, 4", "You are right.")])[0]["content"]
    assert prompt.count(" planted>") == 1 and '<message from="assistant" planted>\nSo 2 + 2 = 5.' in prompt


def test_a_question_names_what_is_missing_by_a_new_word_or_by_most_of_its_name() -> None:
    given = Proposal("$x^2 + 1$", "the expression whose least value is asked for")
    said = "what's the least value of it? it's an expression"
    assert checks.names_it("Which expression is it whose least value you look for?", given, said)
    assert not checks.names_it("How many friends does Ann have?", given, said)


@given(st.integers(2, 30), st.integers(1, 60))
def test_a_slip_is_a_likely_mistake(left: int, right: int) -> None:
    solution = f"Then {left} + {right} = {left + right}, so \\boxed{{{left + right}}}."
    slip = checks.slipped(solution, str(left + right), "How many?", random.Random(right))
    assert slip is None or abs(int(slip.answer) - left - right) in ((1, 2) if left + right <= 30 else (1, 10))


@pytest.mark.parametrize(
    ("fact", "name", "unfit"),
    [
        ("12 marbles in each", "how many marbles are in each bag", ""),
        ("loses 7", "how many marbles she loses", ""),
        ("40 marbles", "how many marbles there are", "no_fact"),
        ("12 marbles", "the 12 marbles", "no_name"),
        ("her", "whose bags", "no_fact"),
    ],
)
def test_which_facts_can_be_withheld(fact: str, name: str, unfit: str) -> None:
    assert checks.unfit_proposal(Proposal(fact, name), QUESTION) == unfit
    twice = Proposal("12 pens", "how many pens Ann has")
    bare = checks.Proposal("12 pens", "how many pens Ann has")
    assert checks.unfit_proposal(bare, "Ann gives half of her 12 pens away. How many are left?") == "little_left"
    assert checks.unfit_proposal(bare, "Ann gives 3 of her 12 pens away. How many are left?") == ""
    assert checks.unfit_proposal(twice, "Ann has 12 pens, and Ben has 12, too.") == "stated_twice"


def test_only_complete_equations_of_numbers_are_found() -> None:
    text = "x + 2 * 3 = 9, 3 * 4 + 5 = 12 + 5 = 17, $\\$8 \\times 2 = \\$16$, 20% * 50 = 10, 10 / 3 = 3.33, 7 apples + 2 pears = 9"
    text += r", $\frac34\cdot 24 = 18$, $\sqrt4 + 3 = 5$"
    found = {one.shown: one.is_true for one in checks.equations(text)}
    assert found == {
        "12 + 5 = 17": True, "8 × 2 = 16": True, "20 ÷ 100 × 50 = 10": True, "10 ÷ 3 = 3.33": True, "7 + 2 = 9": True,
    }  # fmt: skip
    assert checks.has_false_equation("so 12 * 5 = 70") and not checks.has_false_equation("12 * 5 = 70", "12 × 5 = 70")


def test_a_slip_is_one_false_line_and_all_that_follows_from_it() -> None:
    for seed in range(20):
        slip = checks.slipped(SOLUTION, "53", QUESTION, random.Random(seed))
        assert slip is not None
        false = [one.shown for one in checks.equations(slip.text) if not one.is_true]
        assert false == [slip.wrong] and slip.wrong.endswith(slip.instead) and slip.right in ("60", "53")
        assert boxed(slip.text) is not None and slip.answer != "53"
    assert checks.slipped("It is \\boxed{53}.", "53", QUESTION, random.Random(0)) is None


@pytest.mark.parametrize(
    ("text", "unusable"),
    [
        ("<message>help with my marbles</message>", ""),
        ("help with my marbles", ""),
        ("<think>He wants 12.</think><message>i lost some marbles</message>", ""),
        ("  ", "empty"),
        ("<think>hm", "cut"),
        ("Assistant: Sure!", "role_label"),
        ("help<|im_end|>", "role_label"),
        ("<message>\u4f60\u597d 5</message>", "foreign"),
        ("<message>Hello! How can I help you today?</message>", "as_assistant"),
        ("<message>so $\\boxed{53}$</message>", "as_assistant"),
        ("<message>a = 1\nb = 2\nc = 3\nd = 4</message>", "as_assistant"),
    ],
)
def test_texts_that_no_user_writes_have_a_reason(text: str, unusable: str) -> None:
    assert read_message(Reply(text)).unusable == unusable


def test_a_user_may_end_the_chat_and_copies_no_problem_that_is_still_withheld(knows: User) -> None:
    before = chat("help with marbles", "How many are in each bag?")
    assert read_user(Reply("<message>12</message>"), knows, before) == Parsed("12")
    assert read_user(Reply("Thanks! <end>"), knows, before) == Parsed("", ended=True)
    assert read_user(Reply(QUESTION.replace("12", "some")), knows, before).unusable == "copies_problem"
    told = chat("12 in each", "And how many bags?")
    assert read_user(Reply(QUESTION), knows, told).unusable == "", "nothing is held back any more"


@pytest.mark.parametrize(
    ("reply", "unusable"),
    [
        (Reply("It is \\boxed{53}."), ""),
        (Reply("<think>hm</think>It is 53."), ""),
        (Reply("It is 5", cut=True), "cut"),
        (Reply(""), "empty"),
        (Reply("Good <|im_end|>"), "role_label"),
    ],
)
def test_texts_that_no_assistant_writes_have_a_reason(reply: Reply, unusable: str) -> None:
    assert read_assistant(reply).unusable == unusable


@pytest.mark.parametrize(
    ("reply", "verdict"),
    [
        ("Fine.\nVERDICT: 4", 4),
        ("VERDICT: 2\nno, rather\n**VERDICT:** 5", 5),
        ("<think>VERDICT: 1</think>\nVERDICT: 3/5", 3),
        ("VERDICT: 4.5", None),
        ("VERDICT: 7", None),
        ("", None),
    ],
)
def test_the_last_verdict_counts_and_only_whole_numbers_of_the_scale(reply: str, verdict: int | None) -> None:
    parsed = read_judge(Reply(reply))
    assert parsed.verdict == verdict and bool(parsed.unusable) == (verdict is None)


# --- plans and ratings


def test_plans_keep_to_the_settings() -> None:
    given = dialogue(withheld=0.5, goals=Goals(hint=4.0, slip=0.0))
    plans = [plans_of(task, 5, given) for task in starter_problems(400, 5, "train")]
    assert 0.43 < sum(len(pair) == 2 for pair in plans) / 400 < 0.57
    assert {plan.persona for pair in plans for plan in pair} == set(PERSONAS)
    assert all(pair[0].persona == pair[-1].persona and not pair[0].withholds for pair in plans)
    goals = [plan.goal for pair in plans for plan in pair]
    assert "slip" not in goals and 0.25 < goals.count("hint") / len(goals) < 0.45
    assert not any(plan.withholds and plan.goal == "check" for pair in plans for plan in pair)
    assert plans_of(TASK, 5, given) == plans_of(TASK, 5, given)


def test_ratings_of_turns() -> None:
    assert final_answer(chat("q", "\\boxed{1}", "sure?", "No: \\boxed{53}")) == "53"
    assert final_answer(chat("q", "\\boxed{53}", "why?", "Because 5 bags hold 60.")) == "53"
    assert final_answer(chat("q", "Do you mean 53?")) is None
    assert final_answer(chat("q", "The answer is 53.")) == "53"
    assert [efficiency(tokens, 100) for tokens in (0, 100, 900)] == [1.0, 0.5, 0.1]
    assert [from_verdict(one) for one in (1, 3, 5)] == [0.0, 0.5, 1.0]
    good = chat("why 60?", "5 bags of 12 marbles make 60.", "and the 7?", "Those 7 are lost, so take them away.")
    poor = chat("why 60?", "Which? What? When?", "and the 7?", "Which? What? When?")
    assert [turn_marks(good, place) for place in (1, 3)] == [(True, True, True)] * 2
    assert turn_marks(poor, 3) == (False, False, False)


# --- runs of many


def test_a_run_keeps_to_its_bound_and_returns_results_in_order_and_ends_with_the_first_error() -> None:
    roles, running, most, taken, ended = Roles({}, 0, "dialogue"), [0], [0], list[int](), list[int]()

    async def job(number: int) -> int:
        running[0] += 1
        most[0] = max(most[0], running[0])
        await asyncio.sleep(0.001 * (7 * number % 5))
        running[0] -= 1
        ended.append(number)
        return number

    roles.run((job(number) for number in range(20)), 4, taken.append)
    assert taken == list(range(20)) != ended and most == [4]

    async def failing(number: int) -> None:
        if number == 3:
            raise EngineError("no server answers")
        await asyncio.sleep(60)

    with pytest.raises(EngineError, match="no server answers"):
        roles.run((failing(number) for number in range(20)), 4)


class Counting:
    """An engine that counts the requests of each batch, which it may make in an event loop of its own."""

    def __init__(self) -> None:
        self.batches: list[int] = []

    def stream(self, requests: list[Request]) -> Iterator[tuple[int, Completion]]:
        self.batches.append(len(requests))
        asyncio.run(asyncio.sleep(0))
        yield from ((index, Completion("ok", 1, "stop")) for index in range(len(requests)))


def test_a_local_model_is_asked_once_for_everything_that_waits_for_it() -> None:
    engine = Counting()
    parts: Any = SimpleNamespace(engine=engine, chat=SimpleNamespace(prompt_ids=lambda messages: (1,), stop_ids=()))
    roles = Roles({}, 0, "dialogue")
    roles["assistant"] = role = EngineRole("assistant", ROLE, parts)

    async def deep(ask: Any, depth: int) -> Any:
        """A reply wakes one task after the other before the next request comes."""
        return await (asyncio.create_task(deep(ask, depth - 1)) if depth else ask)

    async def job(number: int) -> None:
        for turn in range(3):
            asks = (role.ask((), read_assistant, lambda attempt, turn=turn: turn, 1) for _ in range(2))
            await asyncio.gather(*(deep(ask, number) for ask in asks))

    roles.run((job(number) for number in range(40)), 40)
    assert engine.batches == [80, 80, 80]


# --- settings


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("goals", {"result": 0.0}, "goals.result: given 0"),
        ("policy", {}, "server: missing `urls` or `model`"),
        ("judge", {"engine": "hf"}, "model: the engine hf needs `model`"),
        ("simulator", {"server": {"urls": ["http://x/v1"]}}, "server: missing `urls` or `model`"),
    ],
)
def test_settings_that_cannot_be_used_are_named(key: str, value: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        Dialogue.model_validate_json(json.dumps({"policy": recipe_dict(ROLE), key: value}))


def test_the_address_of_a_server_is_no_setting_of_the_data() -> None:
    def shaped(**given: Any) -> dict[str, Any]:
        return shaping(DataRecipe(source=Source(kind="math"), output=Output(path="d"), dialogue=dialogue(**given)))

    there = ROLE.model_copy(update={"server": ServerSection(urls=("http://other/v1",), model="m", concurrency=3)})
    assert shaped(policy=there, at_once=7) == shaped()
    local = [
        RoleSection(engine="vllm", model="m", batch_tokens=n, vllm=VllmSection(max_model_len=n)) for n in (None, 512)
    ]
    assert shaped(policy=local[0], at_once=7) == shaped(policy=local[1]) != shaped()
    other = ROLE.model_copy(update={"server": ServerSection(urls=("http://localhost:1/v1",), model="n")})
    assert shaped(policy=other) != shaped()


def test_the_policy_plays_all_roles_that_no_other_model_is_named_for() -> None:
    roles = dialogue().roles()
    assert roles["assistant"] is roles["simulator"] and roles["judge"].temperature == 0.0
    assert dialogue().most_at_once == 3 * 16, "the slots of one section count once"
    other = ROLE.model_copy(update={"temperature": 0.1})
    assert dialogue(judge=other).roles()["judge"] is other
