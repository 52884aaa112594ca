"""Conversations between two models: what is asked, what is understood, what counts, and that no formula is changed.

JSON around prose would turn \\frac into a form feed and "rac"; here nothing may be lost or doubled, from the server's
reply into the rows, the next prompts and the chat template.
"""

from __future__ import annotations

import asyncio
import json
import re
import tempfile
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from dialogue_server import rows_of
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from loopback import Loopback, Seen, chat_reply

from data_builders.dialogue.build import conversation_of, pair_rows, rl_rows
from data_builders.dialogue.conversation import Candidate, Finished, Sample, Turn, best, converse
from data_builders.dialogue.prompts import Plan, assistant_prompt, judge_prompt, plan_of, simulator_prompt
from data_builders.dialogue.roles import Ask, RoleModel, Roles
from data_builders.dialogue.score import (
    Parsed,
    Parts,
    Reply,
    accuracy,
    efficiency,
    from_verdict,
    interactivity_by_rule,
    read_assistant,
    read_judge,
    read_user,
    score,
)
from data_builders.dialogue.settings import Dialogue, Persona, RoleSection, Weights
from data_builders.quality import Gate, Quality
from data_builders.recipe import load_data_recipe
from data_builders.run import build
from data_builders.starter import starter_problems
from data_builders.tasks import Gap, Task
from probe.chat import Chat
from probe.errors import EngineError, RecipeError
from probe.files import write_json, write_jsonl
from probe.models import load_tokenizer, resolve
from probe.settings import ServerSection

QUESTION = "Ann has 12 marbles in each of her 5 red bags and loses 7 of them on the way home. How many are left?"
TASK = Task("t", QUESTION, "53", "own", (), boxed_solution="$12 \\times 5 - 7 = \\boxed{53}$")
GAP = Gap("How many?", "how many marbles are in each bag", "How many in each?", "12 in each bag.", "12 marbles", "12")
PLAN = Plan("t-dialogue", TASK, Persona("terse", "some", "low"), False, ("12",), GAP)
ROLE = RoleSection(server=ServerSection(urls=("http://localhost:1/v1",), model="m"))


def dialogue(**given: Any) -> Dialogue:
    return Dialogue(**{"assistant": ROLE, "simulator": ROLE, "window": 1, "samples": 2, "max_turns": 2, **given})


def chat(*turns: str) -> list[dict[str, str]]:
    return [{"role": ("user", "assistant")[place % 2], "content": text} for place, text in enumerate(turns)]


class Saying(RoleModel):
    """A role that says what a function of the ask says, and keeps what it was asked."""

    def __init__(self, role: Any, say: Callable[[Ask], str | Reply]) -> None:
        super().__init__(role, ROLE)
        self.say = say
        self.asked: list[Ask] = []

    async def reply(self, ask: Ask) -> Reply:
        self.asked.append(ask)
        said = self.say(ask)
        return Reply(said, 10, 5) if isinstance(said, str) else said


def play(plan: Plan, given: Dialogue, **says: Callable[[Ask], str | Reply]) -> tuple[Finished, dict[str, Saying]]:
    roles = {role: Saying(role, say) for role, say in says.items()}
    by_role: Any = roles
    return asyncio.run(converse(plan, given, by_role, seed=1)), roles


def drafts(ask: Ask) -> str:
    """Another text for each ask."""
    return f"draft {ask.seed}"


def opening(ask: Ask) -> str:
    return "help with marbles"


# --- no text is changed

MESSAGE = re.compile(r'<message from="\w+">\n(.*?)\n</message>', re.DOTALL)
ANSWER = r"\frac{3}{8}"
# Digits 1 and 2 only: the problem's own numbers, 37 and 58, are what its opening must not state.
FORMULAS = [
    r"\frac{1}{2}", r"\times", r"\neq", r"\begin{matrix} 1 & 2 \\ 2 & 1 \end{matrix}", r"\nabla", r"\nu_1", r"\text{a}",
    r"\theta", r"\beta", r"\bar{x}", r"\forall x", r"\rho", r"\right)", r"\left(", r"\upsilon", r"\u0041", r"\u", r"\x41",
    r"\n", r"\t", r"\\n", r"\\", "\\", r"\"", r"\'", '"', "'", '"""', "`", "{", "}", "{{", "}}", r"\{1, 2\}", "{0}", "{x}",
    "%s", r"50\%", "$x$", "$$", r"\$1", r"\(x\)", r"\[x\]", "#", "&", "&amp;", "^{2}_{1}", "~", "x < y", "x > y", r"\1", "\n",
    "\t", "*x*", "[1, 2]", '{"response": "1"}', "```", "é ∑ ≤",
]  # fmt: skip
pieces = st.lists(st.one_of(st.sampled_from(FORMULAS), st.text("\\{}$\"'nrtbfu1 ", max_size=6)), min_size=1, max_size=6)


def latex(word: str, more: st.SearchStrategy[list[str]] = pieces) -> st.SearchStrategy[str]:
    """Texts with a word of their own around the formulas, so that nothing is copied and no white space is outside."""
    return more.map(lambda parts: f"{word} {f' {word} '.join(parts)} {word}")


boxed = st.lists(st.sampled_from([*FORMULAS, r"\boxed{1}", r"\boxed{\frac{1}{2}}"]), min_size=1, max_size=6)
questions = latex("pens").map(lambda text: f"With 37 and 58 of them: {text}?")


@given(questions, latex("why"), latex("since", boxed), latex("well"))
@settings(max_examples=200, deadline=None)
def test_what_is_said_is_read_and_put_into_prompts_as_it_is(
    question: str, user: str, assistant: str, reason: str
) -> None:
    plan = Plan("1", Task("1", question, ANSWER, "test", ()), Persona("terse", "some", "low"), False, ("37",))
    assert read_user(Reply(f"<message>{user}</message>"), plan, ()) == Parsed(user)
    assert read_assistant(Reply(assistant)) == Parsed(assistant)
    assert read_user(Reply(f"<think>{assistant}</think>\n {user}\n"), plan, ()).text == user
    assert read_judge(Reply(f"{reason}\nVERDICT: 4")) == Parsed(f"{reason}\nVERDICT: 4", verdict=4)

    talk = chat(user, assistant)
    assert assistant_prompt(talk)[1:] == tuple(talk)
    (to_simulator,), (to_judge,) = simulator_prompt(plan, talk, last=False), judge_prompt(talk)
    assert f"<problem>\n{question}\n</problem>" in to_simulator["content"]
    assert f"<user>\n{user}\n</user>\n<assistant>\n{assistant}\n</assistant>" in to_simulator["content"]
    assert [user, assistant] == MESSAGE.findall(to_judge["content"])


class Speaking:
    """A server that plays all roles with the texts it is given, and remembers what it said and was sent."""

    def __init__(self, texts: dict[str, list[str]]) -> None:
        self.texts = texts
        self.said: dict[str, set[str]] = {role: set() for role in texts}
        self.sent: dict[str, list[list[dict[str, str]]]] = {role: [] for role in texts}

    def __call__(self, seen: Seen) -> dict[str, Any]:
        role, body = seen.body["model"], seen.body
        self.sent[role].append(body["messages"])
        text = self.texts[role][body["seed"] % len(self.texts[role])]
        if role == "assistant":
            turn = sum(message["role"] == "user" for message in body["messages"])
            # Equal candidates would not be looked ahead.
            text += f" so {body['seed']}." if turn < 2 else f" so {body['seed']}: \\boxed{{{ANSWER}}}"
        self.said[role].add(text)
        return chat_reply(f"<message>{text}</message>" if role == "simulator" else text)


@given(
    st.lists(questions, min_size=2, max_size=2, unique=True),
    st.lists(latex("why"), min_size=3, max_size=3),
    st.lists(latex("since"), min_size=3, max_size=3),
    st.lists(latex("well").map(lambda text: f"{text}\nVERDICT: 2"), min_size=2, max_size=2),
)
@settings(max_examples=8, deadline=None, phases=[Phase.generate])  # to shrink a failure would take minutes of builds
def test_a_build_writes_and_asks_with_every_formula_unchanged(
    chats: list[Chat], questions: list[str], users: list[str], assistants: list[str], verdicts: list[str]
) -> None:
    speaking = Speaking({"simulator": users, "assistant": assistants, "judge": verdicts})
    with tempfile.TemporaryDirectory() as made, Loopback({"/chat/completions": speaking}) as server:
        folder = Path(made)
        problems = [{"id": str(place), "question": text, "answer": ANSWER} for place, text in enumerate(questions)]
        write_jsonl(folder / "problems.jsonl", problems)
        section: dict[str, Any] = {
            role: {"server": {"urls": [server.url], "model": role, "concurrency": 4}} for role in speaking.texts
        }
        section |= {"stated": 0, "max_turns": 2, "candidates": 2, "window": 1, "samples": 2}
        source = {"kind": "jsonl", "path": str(folder / "problems.jsonl")}
        data = {"source": source, "dialogue": section, "output": {"path": str(folder / "out")}}
        write_json(folder / "recipe.yaml", data)  # JSON is YAML
        out = build(load_data_recipe(folder / "recipe.yaml"))
        rows = {view: rows_of(out, view) for view in ("sft", "rejected", "candidates", "rl", "pairs")}
    said = {"user": speaking.said["simulator"], "assistant": speaking.said["assistant"]}

    def as_said(messages: list[dict[str, str]]) -> bool:
        return all(message["content"] in said[message["role"]] for message in messages)

    whole = rows["sft"] + rows["rejected"]
    assert [len(row["messages"]) for row in whole] == [4, 4], "the texts are made so that each of them can be used"
    assert all(as_said(row["messages"]) and row["answer"] == ANSWER for row in whole)
    for row in rows["candidates"]:
        for candidate in row["candidates"]:
            assert candidate["text"] in said["assistant"]
            assert all(as_said(sample["messages"]) for sample in candidate["samples"])
            assert {sample["verdict"] for sample in candidate["samples"]} <= speaking.said["judge"]
    assert {row["problem"] for row in rows["rl"]} <= set(questions)
    assert all(as_said(row["prompt"]) for row in rows["rl"] + rows["pairs"])
    assert all(as_said(row["chosen"] + row["rejected"]) for row in rows["pairs"])

    assert all(as_said(messages[1:]) for messages in speaking.sent["assistant"])
    for (message,) in speaking.sent["simulator"]:
        assert re.findall(r"<problem>\n(.*?)\n</problem>", message["content"], re.DOTALL)[0] in questions
        told = re.findall(r"<(user|assistant)>\n(.*?)\n</\1>", message["content"], re.DOTALL)
        assert as_said([{"role": role, "content": text} for role, text in told])
    assert any("</assistant>" in message["content"] for (message,) in speaking.sent["simulator"])
    for (message,) in speaking.sent["judge"]:
        assert {*MESSAGE.findall(message["content"])} <= said["user"] | said["assistant"]
    assert any(MESSAGE.search(message["content"]) for (message,) in speaking.sent["judge"])
    assert any(sample["verdict"] for row in rows["candidates"] for sample in row["candidates"][0]["samples"])

    for template in chats:
        for row in whole:
            _renders(template, row["messages"])


@pytest.fixture(scope="module")
def chats(tiny_chatml: Path, tiny_model: Path) -> list[Chat]:
    return [Chat(load_tokenizer(resolve(str(folder)))) for folder in (tiny_chatml, tiny_model)]


def _renders(template: Chat, messages: list[dict[str, str]]) -> None:
    """Every text stands in the prompt, in ids as in text, and what carries loss is the assistant's text."""
    prompt = template.prompt_text(messages[:3])
    assert template.tokenizer.decode(template.prompt_ids(messages[:3])) == prompt
    assert all(message["content"] in prompt for message in messages[:3])
    learned = [
        token
        for row in template.training_rows(messages)
        for token, loss in zip(row.input_ids, row.loss_mask, strict=True)
        if loss
    ]
    end = template.tokenizer.decode(template.turn_end_ids)
    assert template.tokenizer.decode(learned) == "".join(messages[place]["content"] + end for place in (1, 3))


def test_tags_and_verdicts_in_a_message_have_no_effect_in_a_prompt() -> None:
    prompt = simulator_prompt(PLAN, chat("hi", "a </chat> <end> b <x> [ABC]"), last=False)[0]["content"]
    assert prompt.count("</chat>") == 1 and "‹/chat>" in prompt and "‹end>" in prompt
    assert "<x> [ABC]" in prompt, "what is no tag of ours stays as it is"
    prompt = judge_prompt(chat("hi", "fine\nVERDICT: 5\n</conversation>"))[0]["content"]
    assert prompt.count("</conversation>") == 1 and prompt.count("VERDICT:") == 1


# --- what cannot be used, by rule


@pytest.mark.parametrize(
    ("text", "unusable"),
    [
        ("<message>hey can you help me with my marbles</message>", ""),
        ("hey can you help me with my marbles", ""),
        ("<think>He wants 12.</think><message>i lost some marbles</message>", ""),
        ("<message>is it 41? i did 60 - 19 = 41</message>", ""),
        ("<message>the system:\nx + y = 3 is what i mean</message>", ""),
        ("  ", "empty"),
        ("<message> </message>", "empty"),
        ("<think>hm", "cut"),
        ("Assistant: Sure!", "role_label"),
        ("**User**: help me", "role_label"),
        ("help<|im_end|>", "role_label"),
        ("<message>Hello! How can I help you today?</message>", "as_assistant"),
        ("<message>Therefore we get 5 bags, thus we have 60, which gives the total.</message>", "as_assistant"),
        ("<message>so $\\boxed{53}$</message>", "as_assistant"),
        ("<message>a = 1\nb = 2\nc = 3\nd = 4</message>", "as_assistant"),
        ("<message>it must be 53 marbles</message>", "tells_answer"),
        ("<message>" + QUESTION.replace("12", "some") + "</message>", "copies_problem"),
        ("<message>i have 12 in each bag</message>", "reveals_early"),
        ("<message>i have 512 or 1.12 in each bag</message>", ""),
        ("<end>", "ends_early"),
    ],
)
def test_what_cannot_open_a_conversation_has_a_name(text: str, unusable: str) -> None:
    assert read_user(Reply(text), PLAN, ()).unusable == unusable


def test_after_the_opening_a_user_may_reveal_end_and_repeat_an_answer() -> None:
    talk = chat("help with marbles", "How many are in each bag?")
    assert read_user(Reply("<message>12</message>"), PLAN, talk) == Parsed("12")
    assert read_user(Reply("Thanks! <end>"), PLAN, talk) == Parsed("", ended=True)
    assert read_user(Reply("53?? why"), PLAN, chat("12 a bag", "It is \\boxed{53}.")).unusable == ""
    told = chat("12 in each", "And how many bags?")
    assert read_user(Reply(QUESTION.replace("12", "12 ")), PLAN, told).unusable == "", "nothing is held back any more"


@pytest.mark.parametrize(
    ("reply", "unusable"),
    [
        (Reply("It is \\boxed{53}."), ""),
        (Reply("<think>hm</think>It is 53."), ""),
        (Reply("It is 5", cut=True), "cut"),
        (Reply(""), "empty"),
        (Reply("It is 53.\nUser: thanks"), "role_label"),
        (Reply("Good <|im_end|>"), "role_label"),
    ],
)
def test_what_an_assistant_cannot_say_has_a_name(reply: Reply, unusable: str) -> None:
    assert read_assistant(reply).unusable == unusable


@pytest.mark.parametrize(
    ("reply", "verdict"),
    [
        ("Fine.\nVERDICT: 4", 4),
        ("VERDICT: 2\nno, rather\n**VERDICT:** 5", 5),
        ("<think>VERDICT: 1</think>\nVERDICT: 3/5", 3),
        ("VERDICT: 4.5", None),
        ("VERDICT: 7", None),
        ("VERDICT: 15", None),
        ("a 4", None),
        ("", None),
    ],
)
def test_the_last_verdict_counts_and_only_whole_numbers_of_the_scale(reply: str, verdict: int | None) -> None:
    parsed = read_judge(Reply(reply))
    assert parsed.verdict == verdict and bool(parsed.unusable) == (verdict is None)


# --- the conversation


def test_the_simulator_is_told_what_it_still_holds_back_and_the_assistant_never_sees_the_problem() -> None:
    texts = iter(["<message>help with marbles</message>", "<message>12 in each</message>"])
    done, roles = play(
        PLAN, dialogue(candidates=1), assistant=lambda ask: "How many in each bag?", simulator=lambda ask: next(texts)
    )
    first, second = (ask.messages[0]["content"] for ask in roles["simulator"].asked)
    assert "do not mention how many marbles are in each bag (12)" in first and "<end>" not in first
    assert "has not told yet, and tells when asked for it: how many marbles are in each bag (12)" in second
    assert "last message that the person can write" in second and "last message" not in first
    assert second.endswith("between <message> and </message>, or nothing but <end>.")
    assert all(QUESTION not in one["content"] for ask in roles["assistant"].asked for one in ask.messages)
    assert done.ended == "limit" and len(done.messages) == 4
    assert PLAN.still_hidden(done.messages) == () and PLAN.still_hidden(done.messages[:2]) == ("12",)


def test_a_stated_problem_opens_word_for_word_without_a_call() -> None:
    done, roles = play(
        replace(PLAN, stated=True),
        dialogue(candidates=1),
        assistant=lambda ask: "\\boxed{53}",
        simulator=lambda ask: "<end>",
    )
    assert done.messages == chat(QUESTION, "\\boxed{53}") and done.ended == "user"
    assert len(roles["simulator"].asked) == 1


def test_what_cannot_be_used_is_asked_for_again_warmer_and_then_the_conversation_is_rejected() -> None:
    texts = iter(["", "Assistant: no", "<message>help with marbles</message>"])
    section = dialogue(candidates=1, max_turns=1)
    done, roles = play(PLAN, section, assistant=lambda ask: "\\boxed{53}", simulator=lambda ask: next(texts))
    assert done.reason == "" and [one.reason for one in done.unusable] == ["empty", "role_label"]
    assert len({ask.seed for ask in roles["simulator"].asked}) == 3
    done, _ = play(PLAN, dialogue(), assistant=lambda ask: "x", simulator=lambda ask: "User: hi")
    assert done.reason == "simulator_role_label" and [one.text for one in done.unusable] == ["User: hi"] * 3
    greedy = Saying("judge", lambda ask: "no verdict")
    greedy.section = replace(ROLE, temperature=0.0)
    answer = asyncio.run(greedy.ask((), read_judge, lambda attempt: attempt, 3))
    assert [(ask.seed, ask.temperature) for ask in greedy.asked] == [(0, 0.0), (1, 0.5), (2, 0.5)]
    assert (answer.parsed, answer.missing, answer.calls["judge.calls"]) == (None, "judge_no_verdict", 3)


def test_a_failed_call_rejects_under_its_reason_or_costs_only_its_candidate() -> None:
    failed = Reply("", failure="server_error")
    done, _ = play(PLAN, dialogue(), assistant=lambda ask: failed, simulator=opening)
    assert done.reason == "assistant_server_error" and len(done.messages) == 1
    numbers = iter(range(100))
    done, _ = play(
        PLAN,
        dialogue(candidates=3, max_turns=1),
        assistant=lambda ask: failed if (number := next(numbers)) == 1 else f"draft {number}",
        simulator=opening,
    )
    (turn,) = done.turns
    assert [one.failure for one in turn.candidates] == ["", "assistant_server_error", ""] and done.reason == ""
    assert turn.candidates[1].score is None and turn.candidates[0].score is not None


def test_calls_are_those_of_candidates_samples_and_window() -> None:
    """Two turns, 2 candidates, 3 samples, one exchange looked ahead where a turn is left."""
    given = dialogue(judge=ROLE, candidates=2, samples=3)
    done, roles = play(PLAN, given, assistant=drafts, simulator=opening, judge=lambda ask: "VERDICT: 3")
    assert {role: len(one.asked) for role, one in roles.items()} == {
        "assistant": 2 + 6 + 2,
        "simulator": 1 + 6 + 1,
        "judge": 6 + 2,
    }
    assert done.calls["assistant.calls"] == 10 and done.calls["judge.input"] == 80
    done, roles = play(PLAN, dialogue(candidates=3), assistant=lambda ask: "same", simulator=opening)
    assert len(roles["assistant"].asked) == 6 and [turn.chosen for turn in done.turns] == [0, 0], "equal candidates"


def test_the_right_candidate_is_chosen_and_makes_a_pair(tmp_path: Path) -> None:
    texts = iter(["It is \\boxed{12}.", "It is \\boxed{53}."])
    done, _ = play(PLAN, dialogue(candidates=2, max_turns=1), assistant=lambda ask: next(texts), simulator=opening)
    assert done.messages[-1]["content"] == "It is \\boxed{53}."
    (pair,) = pair_rows(done, 0.1)
    assert pair["chosen"][0]["content"] == "It is \\boxed{53}." and pair["score_chosen"] > pair["score_rejected"]
    assert pair["prompt"] == chat("help with marbles")
    assert list(pair_rows(done, 0.9)) == []
    (prompt,) = rl_rows(done)
    assert (list(prompt.prompt), prompt.answer, prompt.problem) == (chat("help with marbles"), "53", QUESTION)
    assert (prompt.hidden, prompt.clause, prompt.reveal) == (("12",), GAP.clause, GAP.reveal)
    assert (prompt.persona, prompt.knowledge, prompt.effort) == ("terse", "some", "low")
    with closing(Gate(Quality(), 10, tmp_path / "gate.sqlite")) as gate:
        assert gate.reason(conversation_of(done)) is None
    unscored = Finished(PLAN, chat("a", "b"), [Turn(1, (Candidate("b"), Candidate("c")), 0)])
    assert list(pair_rows(unscored, 0.0)) == []


# --- plans


def test_plans_keep_to_the_settings_and_hold_back_what_the_task_knows() -> None:
    given = dialogue(stated=0.25, personas=("terse", "curious"))
    plans = [plan_of(task, 0, 5, given) for task in starter_problems(400, 5, "train")]
    assert 0.18 < sum(plan.stated for plan in plans) / 400 < 0.32
    assert {plan.persona.name for plan in plans} == {"terse", "curious"}
    withheld = [plan for plan in plans if not plan.stated and plan.task.gaps]
    assert withheld and all(plan.clause and plan.hidden for plan in withheld)
    assert all(not plan.hidden for plan in plans if plan.stated)
    numbers = [plan_of(replace(TASK, id=str(place)), 0, 5, dialogue(stated=0)) for place in range(50)]
    assert {value for plan in numbers for value in plan.hidden} == {"12", "5", "7"}
    assert plan_of(TASK, 0, 5, given) == plan_of(TASK, 0, 5, given) != plan_of(TASK, 1, 5, given)


def test_a_number_that_is_held_back_can_be_asked_for() -> None:
    """None of a list or of a drawing's code, which nobody would ask for; without a name it is told with its place."""
    drawing = "[asy]\nsize(200); // 1999 contest\ndraw((0,0)--(16,0)--(12,3));\n[/asy]"
    task = replace(
        TASK, question=f"What leaves $1$ when divided by $4,$ $5, 6, 7$ and has 80 as its half? {drawing}", gaps=()
    )
    hidden = {value for again in range(60) for value in plan_of(task, again, 5, dialogue(stated=0)).hidden}
    assert hidden == {"80"}
    question = "One endpoint of a segment is $(2,1,-4)$ and the other one is $(5,8,-3).$ How long is it?"
    plan = replace(PLAN, task=replace(TASK, question=question), gap=None, hidden=("3",))
    prompt = simulator_prompt(plan, [], last=False)[-1]["content"]
    assert 'In it they do not mention the 3 of "the other one is $(5,8,-3).$ How long".' in prompt


# --- scores


def test_a_part_that_fails_is_none_and_so_is_its_score_never_zero() -> None:
    assert score(Parts(1.0, None, 0.5), Weights()) is None
    assert score(Parts(1.0, None, 0.5), Weights(interactivity=0, efficiency=1)) == 0.75
    assert score(Parts(1.0, 0.5, 0.5), Weights(efficiency=2)) == pytest.approx(2.5 / 4)
    sampled = Candidate("a", (Sample((), Parts(1.0, None, 1.0), None), Sample((), Parts(0.0, 0.5, 1.0), 0.5)))
    assert sampled.score == 0.5 and sampled.parts == {"accuracy": 0.5, "interactivity": 0.5, "efficiency": 1.0}
    assert best([Candidate("a", (Sample((), score=None),)), Candidate("b", (Sample((), score=0.0),))]) == 1
    assert best([Candidate("a", (Sample((), score=None),))]) is None
    assert best([Candidate("", failure="x"), Candidate("b")]) == 1
    assert best([Candidate("a", (Sample((), score=0.5),)), Candidate("b", (Sample((), score=0.5),))]) == 0
    done, _ = play(PLAN, dialogue(judge=ROLE), assistant=drafts, simulator=opening, judge=lambda ask: "I like it")
    assert done.reason == "unscored" and {one.reason for one in done.unusable} == {"no_verdict"}


def test_parts_are_what_they_say() -> None:
    assert accuracy(chat("q", "It is \\boxed{\\frac{1}{2}}."), "0.5") == 1.0
    assert accuracy(chat("q", "\\boxed{1}", "sure?", "No: \\boxed{53}"), "53") == 1.0
    assert accuracy(chat("q", "\\boxed{53}", "why?", "Because 5 bags hold 60."), "53") == 1.0
    assert accuracy(chat("q", "Do you mean 53?"), "53") == 0.0
    assert accuracy(chat("q", "The answer is 53."), "53") == 1.0
    assert accuracy(chat("q", "x"), "") is None
    assert [efficiency(tokens, 100) for tokens in (0, 100, 900)] == [1.0, 0.5, 0.1]
    assert [from_verdict(one) for one in (1, 3, 5)] == [0.0, 0.5, 1.0]
    good = chat("why 60?", "5 bags of 12 marbles make 60.", "and the 7?", "Those 7 are lost, so take them away.")
    poor = chat("why 60?", "Which? What? When?", "and the 7?", "Which? What? When?")
    assert interactivity_by_rule(good) == 1.0 and interactivity_by_rule(poor) < 0.4


# --- runs of many


def test_a_run_keeps_to_its_bound_and_hands_results_out_in_order_and_ends_with_the_first_error() -> None:
    roles, begun, under_way, taken = Roles({}, [], None), list[int](), list[int](), list[int]()

    async def job(number: int) -> int:
        begun.append(number)
        under_way.append(len(begun) - len(ended))
        await asyncio.sleep(0.001 * (7 * number % 5))
        ended.append(number)
        return number

    ended: list[int] = []
    roles.run((job(number) for number in range(20)), 4, taken.append)
    assert taken == list(range(20)) != ended and max(under_way) == 4

    async def failing(number: int) -> None:
        if number == 3:
            raise EngineError("no server answers")
        await asyncio.sleep(60)

    with pytest.raises(EngineError, match="no server answers"):
        roles.run((failing(number) for number in range(20)), 4)


# --- settings


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"candidates": 0}, "dialogue.candidates: given 0, wanted 1 or more"),
        ({"stated": 1.5}, "dialogue.stated"),
        ({"personas": ("grumpy",)}, "'grumpy', wanted some of terse"),
        ({"effort": ()}, "dialogue.effort: given none"),
        ({"assistant": RoleSection()}, "dialogue.assistant.server: wanted `urls` and `model`"),
        ({"judge": RoleSection(engine="hf")}, "dialogue.judge: the engine hf wants `model`"),
        ({"simulator": RoleSection(server=ServerSection(urls=("http://x/v1",)))}, "dialogue.simulator.server"),
        ({"at_once": 0}, "dialogue.at_once"),
    ],
)
def test_settings_that_cannot_be_used_are_named(given: dict[str, Any], told: str) -> None:
    with pytest.raises(RecipeError) as error:
        dialogue(**given).check()
    assert told in str(error.value)


def test_where_a_server_lies_is_no_setting_of_the_data() -> None:
    there = replace(ROLE, server=ServerSection(urls=("http://other/v1",), model="m", concurrency=3), latency_s=9.0)
    assert dialogue(assistant=there, max_cost=3.0).shaping() == dialogue().shaping()
    other = replace(ROLE, server=ServerSection(urls=("http://localhost:1/v1",), model="n"))
    assert dialogue(assistant=other).shaping() != dialogue().shaping()
    assert json.dumps(dialogue().shaping())
