"""Formulas come through a conversation between models as they were written: into the rows, the next prompts and the
chat template. JSON around prose would turn \\frac into a form feed and "rac"; here nothing may be lost or doubled."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from loopback import Loopback, Seen, chat_reply

from data_builders.dialogue.prompts import Plan, assistant_prompt, judge_prompt, simulator_prompt
from data_builders.dialogue.roles import Said
from data_builders.dialogue.score import read_assistant, read_judge, read_user
from data_builders.dialogue.settings import Persona
from data_builders.recipe import load_data_recipe
from data_builders.run import build
from data_builders.tasks import Task
from probe.chat import Chat
from probe.files import read_jsonl, write_json, write_jsonl
from probe.models import load_tokenizer, resolve

MESSAGE = re.compile(r'<message from="\w+">\n(.*?)\n</message>', re.DOTALL)
ANSWER = r"\frac{3}{8}"
# Digits 1 and 2 only: the problem's own numbers, 37 and 58, are what its opening must not state.
FORMULAS = [
    r"\frac{1}{2}", r"\times", r"\neq", r"\begin{matrix} 1 & 2 \\ 2 & 1 \end{matrix}", r"\nabla", r"\nu_1", r"\text{a}",
    r"\theta", r"\beta", r"\bar{x}", r"\forall x", r"\rho", r"\right)", r"\left(", r"\upsilon", r"\u0041", r"\u", r"\x41",
    r"\n", r"\t", r"\\n", r"\\", "\\", r"\"", r"\'", '"', "'", '"""', "`", "{", "}", "{{", "}}", r"\{1, 2\}", "{0}", "{x}",
    "%s", r"50\%", "$x$", "$$", r"\$1", r"\(x\)", r"\[x\]", "#", "&", "&amp;", "^{2}_{1}", "~", "x < y", "x > y", r"\1", "\n",
    "\t", "*x*", "[1, 2]", '{"response": "1"}', "```",
]  # fmt: skip
pieces = st.lists(st.one_of(st.sampled_from(FORMULAS), st.text("\\{}$\"'nrtbfu1 ", max_size=6)), min_size=1, max_size=6)


def latex(word: str, more: st.SearchStrategy[list[str]] = pieces) -> st.SearchStrategy[str]:
    """Texts with a word of their own around the formulas, so that nothing is copied and no white space is outside."""
    return more.map(lambda parts: f"{word} {f' {word} '.join(parts)} {word}")


boxed = st.lists(st.sampled_from([*FORMULAS, r"\boxed{1}", r"\boxed{\frac{1}{2}}"]), min_size=1, max_size=6)
questions = latex("pens").map(lambda text: f"With 37 and 58 of them: {text}?")


@given(questions, latex("why"), latex("since", boxed), latex("well"))
@settings(max_examples=200, deadline=None)
def test_what_is_said_is_read_and_shown_as_it_is(question: str, user: str, assistant: str, reason: str) -> None:
    plan = Plan("1", Task("1", question, ANSWER, "test", ()), Persona("terse", "some", "low"), False, ("37",))
    opening, reply = read_user(Said(f"<message>{user}</message>"), plan, ()), read_assistant(Said(assistant))
    assert (opening.text, opening.slip, reply.text, reply.slip) == (user, "", assistant, "")
    assert read_user(Said(f"<think>{assistant}</think>\n {user}\n"), plan, ()).text == user
    verdict = f"{reason}\nVERDICT: 4"
    assert (read_judge(Said(verdict)).text, read_judge(Said(verdict)).score) == (verdict, 4)

    chat = [{"role": "user", "content": user}, {"role": "assistant", "content": assistant}]
    assert assistant_prompt(chat)[1:] == tuple(chat)
    (to_simulator,), (to_judge,) = simulator_prompt(plan, chat, last=False), judge_prompt(chat)
    assert f"<problem>\n{question}\n</problem>" in to_simulator["content"]
    assert f"<user>\n{user}\n</user>\n<assistant>\n{assistant}\n</assistant>" in to_simulator["content"]
    assert [user, assistant] == MESSAGE.findall(to_judge["content"])


class Speaking:
    """Plays all roles with the texts it is given, and remembers what it said and was shown."""

    def __init__(self, texts: dict[str, list[str]]) -> None:
        self.texts = texts
        self.said: dict[str, set[str]] = {role: set() for role in texts}
        self.shown: dict[str, list[list[dict[str, str]]]] = {role: [] for role in texts}

    def __call__(self, seen: Seen) -> dict[str, Any]:
        role, body = seen.body["model"], seen.body
        self.shown[role].append(body["messages"])
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
@settings(max_examples=15, deadline=None, phases=[Phase.generate])  # to shrink a failure would take minutes of builds
def test_a_build_writes_and_asks_with_every_formula_unchanged(
    chats: list[Chat], questions: list[str], users: list[str], assistants: list[str], verdicts: list[str]
) -> None:
    speaking = Speaking({"simulator": users, "assistant": assistants, "judge": verdicts})
    with tempfile.TemporaryDirectory() as made, Loopback({"/chat/completions": speaking}) as server:
        out = _built(Path(made), server.url, questions)
        rows = {view: list(_rows(out / view)) for view in ("sft", "rejected", "candidates", "rl", "pairs")}
    said = {"user": speaking.said["simulator"], "assistant": speaking.said["assistant"]}

    def as_said(messages: list[dict[str, str]]) -> bool:
        return all(message["content"] in said[message["role"]] for message in messages)

    told = rows["sft"] + rows["rejected"]
    assert [len(row["messages"]) for row in told] == [4, 4], "the texts are made so that none of them is a slip"
    assert all(as_said(row["messages"]) and row["answer"] == ANSWER for row in told)
    for row in rows["candidates"]:
        for candidate in row["candidates"]:
            assert candidate["text"] in said["assistant"]
            assert all(as_said(sample["messages"]) for sample in candidate["samples"])
            assert {sample["verdict"] for sample in candidate["samples"]} <= speaking.said["judge"]
    assert {row["problem"] for row in rows["rl"]} <= set(questions)
    assert all(as_said(row["prompt"]) for row in rows["rl"] + rows["pairs"])
    assert all(as_said(row["chosen"] + row["rejected"]) for row in rows["pairs"])

    assert all(as_said(messages[1:]) for messages in speaking.shown["assistant"])
    for (message,) in speaking.shown["simulator"]:
        assert re.findall(r"<problem>\n(.*?)\n</problem>", message["content"], re.DOTALL)[0] in questions
        shown = re.findall(r"<(user|assistant)>\n(.*?)\n</\1>", message["content"], re.DOTALL)
        assert as_said([{"role": role, "content": text} for role, text in shown])
    assert any("</assistant>" in message["content"] for (message,) in speaking.shown["simulator"])
    for (message,) in speaking.shown["judge"]:
        assert {*MESSAGE.findall(message["content"])} <= said["user"] | said["assistant"]
    assert any(MESSAGE.search(message["content"]) for (message,) in speaking.shown["judge"])
    assert any(sample["verdict"] for row in rows["candidates"] for sample in row["candidates"][0]["samples"])

    for chat in chats:
        for row in told:
            _renders(chat, row["messages"])


@pytest.fixture(scope="module")
def chats(tiny_chatml: Path, tiny_model: Path) -> list[Chat]:
    return [Chat(load_tokenizer(resolve(str(tiny_chatml)))), Chat(load_tokenizer(resolve(str(tiny_model))))]


def _renders(chat: Chat, messages: list[dict[str, str]]) -> None:
    """Every text stands in the prompt, in ids as in text, and what carries loss is the assistant's text."""
    prompt = chat.prompt_text(messages[:3])
    assert chat.tokenizer.decode(chat.prompt_ids(messages[:3])) == prompt
    assert all(message["content"] in prompt for message in messages[:3])
    learned = [
        token
        for row in chat.training_rows(messages)
        for token, loss in zip(row.input_ids, row.loss_mask, strict=True)
        if loss
    ]
    end = chat.tokenizer.decode(chat.turn_end_ids)
    assert chat.tokenizer.decode(learned) == "".join(messages[place]["content"] + end for place in (1, 3))


def _built(folder: Path, url: str, questions: list[str]) -> Path:
    rows = [{"id": str(place), "question": text, "answer": ANSWER} for place, text in enumerate(questions)]
    write_jsonl(folder / "problems.jsonl", rows)
    recipe: dict[str, Any] = {
        role: {"server": {"urls": [url], "model": role, "concurrency": 4}}
        for role in ("assistant", "simulator", "judge")
    }
    recipe |= {"stated": 0, "max_turns": 2, "candidates": 2, "window": 1, "samples": 2}
    write_json(
        folder / "recipe.yaml",  # JSON is YAML
        {
            "source": {"kind": "jsonl", "path": str(folder / "problems.jsonl")},
            "dialogue": recipe,
            "output": {"path": str(folder / "out")},
        },
    )
    return build(load_data_recipe(folder / "recipe.yaml"))


def _rows(folder: Path) -> Iterator[dict[str, Any]]:
    for path in sorted(folder.glob("part-*.jsonl")):
        yield from (row for _, row in read_jsonl(path))
