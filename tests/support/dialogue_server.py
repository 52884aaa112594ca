"""A loopback server that plays assistant, user simulator and judge. What it says hangs on the request's text and seed
alone, so the same build gets the same replies, whenever and in whatever order it asks."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from nextturn.probe.files import read_jsonl
from support.loopback import Answer, Seen, chat_reply

Handler = Callable[[Seen], dict[str, Any] | Answer]

MATRIX = r"\begin{pmatrix} 1 & \frac{2}{3} \\ 4 \times 5 & \neq 6 \end{pmatrix}"
# Which prompt it is, by words of it, and what is said then. The first that fits counts.
_PLAYS = (
    ("VERDICT: number", ("It fits.\nVERDICT: 5", "All is well.\nVERDICT: 4")),
    ("Which quantity does", ("<name>how many NOUN there are</name>",)),
    ("forgets to tell one thing", ("<text>REST</text>",)),
    ("that somebody types", ("<message>hi, STEP: TEXT</message>", "<message>TEXT thanks for the STEP</message>")),
    ("asks for something that you know", ("<message>ah, FACT</message>", "<message>it was FACT</message>")),
    ("What you did", ("<message>so i tried it: WORK, is that the STEP?</message>",)),
    ("You worked it out", ("<message>wait, at LINE i get VALUE there</message>",)),
    ("You see your mistake", ("<message>oh i see it now, it is GETS</message>",)),
    ("ready for the next step", ("<message>ok, FIRST, i follow you there</message>",)),
    ("<reply>", ("<message>hm is LAST the STEP really</message>", "<message>what about LAST, why the STEP?</message>")),
    ("One thing is missing", ("Please, MISSING?", "I need to know MISSING. Is that written there?")),
    ("They want a hint only", (f"Look at ${MATRIX}$ first, it begins with the STEP.",)),
    ("Give only this step", ("The STEP is to take the FIRST red pens together with what comes.",)),
    ("Point them to it", ("Look at the STEP once more and count it on your fingers.",)),
    ("The user doubts", ("It is TOTAL, take the STEP away again.",)),
    ("was checked and is right", ("Counted another way with the STEP it stays TOTAL.",)),
    ("A note for you alone", (f"With the STEP and ${MATRIX}$: FIRST + SECOND = TOTAL. So \\boxed{{TOTAL}}.",)),
    ("", ("Because the STEP goes with the pens.", f"That is the STEP of ${MATRIX}$.")),
)
# What stands in those texts for a part of the prompt.
FOUND = {
    "FACT": r'(?:Which quantity does|problem stands:) "(.*?)"', "REST": r"The sentence:\n<text>(.*?)</text>",
    "TEXT": r"<text>\n(.*?)\n</text>", "WORK": r"What you did: (.*?)\. Tell", "LINE": r'where it says "(.*?)"',
    "GETS": r"you get (\d+) in the end", "VALUE": r"you get (\d+)\. Point", "MISSING": r"solved without: (.*?)\. Reply",
    "REPLY": r"<reply>\n(.*?)\n</reply>",
}  # fmt: skip
_NO_BOX = ("ask why", "what that number stands for", "Box nothing", "Say that step")


_OF_THE_ASSISTANT = ("Which quantity does", "forgets to tell one thing")


def role_of(body: dict[str, Any]) -> str:
    prompt = body["messages"][0]
    if prompt["role"] == "system" or any(words in prompt["content"] for words in _OF_THE_ASSISTANT):
        return "assistant"
    return "judge" if "VERDICT:" in prompt["content"] else "simulator"


def speak(answers: dict[str, str], slips: float = 0.0) -> Handler:
    """The handler of /chat/completions: every role of self-play about the problems of `problems`.

    It solves what it can see: without the second number it guesses, each time another. `slips` is the share of replies that are cut off,
    empty, or out of role.
    """

    def said(seen: Seen) -> dict[str, Any] | Answer:
        body = seen.body
        rng = random.Random(json.dumps(body, sort_keys=True))
        role, chat = role_of(body), "\n".join(message["content"] for message in body["messages"])
        slip = rng.choice(("cut", "empty", "role")) if rng.random() < slips else ""
        if slip == "cut":
            return chat_reply("So first we", "length")
        if slip == "empty":
            return chat_reply("")
        if slip:
            return chat_reply(
                "no verdict at all" if role == "judge" else "User: hm\nAssistant: sure, I can help you with that."
            )
        first, second = (next(iter(re.findall(rf"(\d+) {what} pens", chat)), None) for what in ("red", "more"))
        guess = str(10_000 + int(body.get("seed") or 0) % 10_000)
        total = str(int(first) + int(second)) if first and second else guess
        task = body["messages"][-1]["content"]
        texts = next(texts for words, texts in _PLAYS if words in task)
        if "A note for you alone" in task and any(words in task for words in _NO_BOX):
            texts = _PLAYS[-1][1]
        found = {name: re.search(pattern, task, re.DOTALL) for name, pattern in FOUND.items()}
        words = {name: match.group(1) if match else "" for name, match in found.items()}
        fact = re.search(r'not to tell: .*? \("(.*?)"\)', task)
        return chat_reply(filled(rng.choice(texts), {
            **words, "REST": words["REST"].replace(fact.group(1) if fact else "no", "some of them"),
            "NOUN": re.sub(r"\d+ ", "", words["FACT"]),
            "STEP": f"{rng.choice(('sum', 'product', 'last'))} {rng.choice(('part', 'line', 'thing', 'bit'))}",
            "FIRST": first or "0", "SECOND": second or "0", "TOTAL": total,
            "LAST": (re.findall(r"\d+", words["REPLY"]) or ["3"])[-1],
        }))  # fmt: skip

    return said


def filled(text: str, words: dict[str, str]) -> str:
    for name, word in words.items():
        text = text.replace(name, word)
    return text


def problem_names(n: int) -> list[str]:
    return [f"Zoe{chr(97 + place // 26)}{chr(97 + place % 26)}" for place in range(n)]


def problems(path: Path, n: int) -> dict[str, str]:
    """Writes `n` problems, each about a person of its own, and returns the answer by that person's name."""
    names = problem_names(n)
    rows = [
        {
            "question": f"{name} has {40 + place} red pens and buys {7 + place} more pens at the market. How many?",
            "answer": f"{40 + place}+{7 + place} = {47 + 2 * place}\n#### {47 + 2 * place}",
        }
        for place, name in enumerate(names)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {name: str(47 + 2 * place) for place, name in enumerate(names)}


def recipe(folder: Path, url: str, attempts: int = 40, **dialogue: Any) -> Path:
    """A recipe of self-play at `url`; `dialogue` goes over its section."""
    server = {"urls": [url], "model": "tiny", "concurrency": 8, "attempts": attempts, "timeout_s": 20}
    section = {"policy": {"server": server, "max_tokens": 200}, **dialogue}
    data = {
        "source": {"kind": "gsm8k", "path": str(folder / "problems.jsonl")},
        "dialogue": section,
        "quality": {"max_same_wording": 1.0, "near_duplicates": None},
        "replay": {"fraction": 0.1, "source": "gsm8k"},
        "output": {"path": str(folder / "out"), "shard_size": 4},
        "seed": 3,
    }
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump(data))
    return path


def contents(folder: Path) -> dict[str, bytes]:
    """Every file by its path in the folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def rows_of(folder: Path, view: str) -> list[dict[str, Any]]:
    return [row for path in sorted((folder / view).glob("part-*.jsonl")) for _, row in read_jsonl(path)]
