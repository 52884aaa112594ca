"""A loopback server that plays the policy and a prompted user. What it says depends on the request's text and seed alone, so the
same build gets the same replies, whenever and in whatever order it asks."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nextturn.probe.command.files import read_jsonl
from support.loopback import Answer, Seen, chat_reply

Handler = Callable[[Seen], dict[str, Any] | Answer]

MATRIX = r"\begin{pmatrix} 1 & \frac{2}{3} \\ 4 \times 5 & \neq 6 \end{pmatrix}"
_USER = "one message of a person"
# Which prompt it is, by words of it, and what is said then. The first that fits counts.
_SAYS = (
    ("Which quantity does", ("<name>how many NOUN there are</name>",)),
    ("forgets to tell one thing", ("<text>REST</text>",)),
    ("asked for it: ", ("<message>ah, WHAT</message>", "<message>sorry, it was WHAT</message>")),
    (_USER, ("<message>why do you add the SECOND there?</message>", "<message>are you sure about TOTAL?</message>",
             "<message>what if the market has no pens?</message>", "<message>thanks <end></message>")),
    ("One thing is missing", ("Could you tell me MISSING?", "I need to know MISSING. Is that written there?")),
    ("was checked and is right", ("Counted another way it stays TOTAL, for FIRST of them were there before.",)),
    ("Answer this last message", (f"Because both kinds of pens are counted together, as in ${MATRIX}$.",)),
    ("", (f"With ${MATRIX}$: FIRST + SECOND = TOTAL. So \\boxed{{TOTAL}}.",)),
)  # fmt: skip
# What stands in those texts for a part of the prompt.
_PARTS = {
    "NOUN": r'Which quantity does "[\d ]*(.*?)"', "REST": r"The sentence:\n<text>(.*?)</text>",
    "WHAT": r"asked for it: (.*?)\.\n", "MISSING": r"solved without: (.*?)\. Reply",
}  # fmt: skip


def role_of(body: dict[str, Any]) -> str:
    return "simulator" if _USER in body["messages"][-1]["content"] else "assistant"


def speak(answers: dict[str, str], slips: float = 0.0) -> Handler:
    """Return the handler of /chat/completions for the problems of `problems`.

    It solves what it can see: without the second number it guesses, each time another one.

    Args:
        slips: Share of replies that are cut off, empty, or out of role.
    """

    def said(seen: Seen) -> dict[str, Any] | Answer:
        body = seen.body
        rng = random.Random(json.dumps(body, sort_keys=True))
        if rng.random() < slips:
            return rng.choice((chat_reply("So first we", "length"), chat_reply(""), chat_reply("User: hm, sure.")))
        chat, task = "\n".join(message["content"] for message in body["messages"]), body["messages"][-1]["content"]
        first, second = (next(iter(re.findall(rf"(\d+) {what} pens", chat)), None) for what in ("red", "more"))
        guess = str(10_000 + int(body.get("seed") or 0) % 10_000)
        words = {name: match[1] for name, part in _PARTS.items() if (match := re.search(part, task, re.DOTALL))}
        if fact := re.search(r'not to tell: .*? \("(.*?)"\)', task):
            words["REST"] = words["REST"].replace(fact[1], re.sub(r"\d+ ?", "", fact[1]))
        words |= {"FIRST": first or "0", "SECOND": second or "0"}
        words["TOTAL"] = str(int(first) + int(second)) if first and second else guess
        text = rng.choice(next(texts for start, texts in _SAYS if start in task))
        for name, word in words.items():
            text = text.replace(name, word)
        return chat_reply(text)

    return said


def problems(path: Path, n: int) -> dict[str, str]:
    """Write `n` problems, each about a person of its own, and return the answer by that person's name."""
    names = [f"Zoe{chr(97 + place // 26)}{chr(97 + place % 26)}" for place in range(n)]
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
    """Write a recipe of conversations whose policy and user are at `url`; `dialogue` goes over its section."""
    server = {"urls": [url], "model": "tiny", "concurrency": 8, "attempts": attempts, "timeout_s": 20}
    role = {"engine": "openai", "server": server, "max_tokens": 200}
    data = {
        "source": {"kind": "gsm8k", "path": str(folder / "problems.jsonl")},
        "dialogue": {"policy": role, "simulator": role, "withheld": 0.6, **dialogue},
        "quality": {"max_same_wording": 1.0, "near_duplicates": None, "max_giveaway": 1.0},
        "replay": {"fraction": 0.1, "source": "gsm8k"},
        "output": {"path": str(folder / "out"), "shard_size": 4},
        "seed": 3,
    }
    path = folder / "recipe.yaml"
    path.write_text(json.dumps(data))  # YAML would name the section that comes twice
    return path


def contents(folder: Path) -> dict[str, bytes]:
    """Return every file by its path in the folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def rows_of(folder: Path, view: str) -> list[dict[str, Any]]:
    return [row for path in sorted((folder / view).glob("part-*.jsonl")) for _, row in read_jsonl(path)]
