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
from loopback import Answer, Seen, chat_reply

from probe.files import read_jsonl

Handler = Callable[[Seen], dict[str, Any] | Answer]

MATRIX = r"\begin{pmatrix} 1 & \frac{2}{3} \\ 4 \times 5 & \neq 6 \end{pmatrix}"
# Which prompt it is, by words of it, and what is said then. The first that fits counts.
_PLAYS = (
    ("VERDICT: number", ("It fits.\nVERDICT: 5", "All is well.\nVERDICT: 4")),
    (
        "is to be left out, such that",
        ("<fact>buys SECOND more pens</fact>\n<name>how many more pens NAME buys</name>",),
    ),
    ("who forgot to say", ("<text>REST</text>",)),
    ("that somebody types", ("<message>hi, STEP: TEXT</message>", "<message>TEXT thanks for the STEP</message>")),
    (
        "They were just asked for it",
        ("<message>ah, NAME buys SECOND more pens</message>", "<message>it was SECOND</message>"),
    ),
    ("their own", ("<message>i did SAID, is that right?</message>",)),
    ("tell what they did", ("<message>so i tried it: WORK, is that the STEP?</message>",)),
    ("they point at the line", ("<message>wait, at WORK i get RIGHT there</message>",)),
    ("They see their mistake", ("<message>oh i see it now, it is TOTAL</message>",)),
    ("ready for the next step", ("<message>ok, FIRST, i follow you there</message>",)),
    (
        "<chat>",
        ("<message>hm is LAST the STEP really</message>", "<message>what about LAST, why the STEP here?</message>"),
    ),
    ("Ask for exactly that", ("How many more pens does NAME buy?",)),
    ("They want a hint only", (f"Look at ${MATRIX}$ first, it begins with the STEP.",)),
    ("Give only this step", ("The STEP is to take the FIRST red pens together with what comes.",)),
    ("Point them to it", ("Look at the STEP once more and count it on your fingers.",)),
    ("The user doubts", ("It is TOTAL, take the STEP away again.",)),
    ("was checked and is right", ("Counted another way with the STEP it stays TOTAL.",)),
    (
        "A note for you alone",
        SOLVES := (f"With the STEP and ${MATRIX}$: FIRST + SECOND = TOTAL. So \\boxed{{TOTAL}}.",),
    ),
    ("", ("Because the STEP goes with the pens.", f"That is the STEP of ${MATRIX}$.")),
)
_NO_BOX = ("ask why", "what that number stands for", "Box nothing", "Say that step")


def role_of(body: dict[str, Any]) -> str:
    prompt = body["messages"][0]
    if prompt["role"] == "system" or any(f"<{tag}>" in prompt["content"] for tag in ("fact", "/text> ")):
        return "assistant"
    if "who forgot to say" in prompt["content"]:
        return "assistant"
    return "judge" if "VERDICT:" in prompt["content"] else "simulator"


def speak(answers: dict[str, str], slips: float = 0.0) -> Handler:
    """The handler of /chat/completions: every role of self-play about the problems of `problems`.

    It solves what it can see: without the second number it guesses. `slips` is the share of replies that are cut off,
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
        name = next((name for name in answers if re.search(rf"\b{name}\b", chat)), "Nobody")
        first = next(iter(re.findall(r"has (\d+)", chat)), "1")
        second = next(iter(re.findall(r"(?:buys|was) (\d+)", chat)), None)
        total = str(int(first) + int(second)) if second else "12345"
        task = body["messages"][-1]["content"]
        texts = next(texts for words, texts in _PLAYS if words in task)
        if "A note for you alone" in task and any(words in task for words in _NO_BOX):
            texts = _PLAYS[-1][1]
        whole = re.search(r"<(?:text|problem)>\n(.*?)\n</", task, re.DOTALL)
        source = whole.group(1) if whole else ""
        turns = re.findall(r"<assistant>\n(.*?)\n</assistant>", task, re.DOTALL)
        quote = re.search(r'what they did, "(.*?)", and|line "(.*?)" of the last', task)
        right = re.search(r"and get (\d+) there", task)
        last = re.findall(r"\d+", turns[-1] if turns else "") or ["3"]
        return chat_reply(filled(rng.choice(texts), {
            "REST": source.replace(f"buys {second} more pens", "buys some of them"), "TEXT": source,
            "WORK": next(filter(None, quote.groups())) if quote else "", "RIGHT": right.group(1) if right else "",
            "STEP": f"{rng.choice(('sum', 'product', 'last'))} {rng.choice(('part', 'line', 'thing', 'bit'))}",
            "NAME": name, "FIRST": first, "SECOND": second or "0", "TOTAL": total, "LAST": last[-1],
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
