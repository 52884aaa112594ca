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
_USER = (
    "ok but why STEP?",
    "hmm, is it NUMBER? i tried $n \\times 2$",
    "and what about the STEP part",
    "NUMBER i think",
)
_ASSISTANT = (
    "Which number do you mean with the STEP?",
    f"Look at ${MATRIX}$ first: the STEP gives $NUMBER \\times 2 \\neq 7$.",
    "So the result of the STEP is \\boxed{ANSWER}.",
)


def role_of(body: dict[str, Any]) -> str:
    if body["messages"][0]["role"] == "system":
        return "assistant"
    return "judge" if "VERDICT:" in body["messages"][0]["content"] else "simulator"


def speak(answers: dict[str, str], slips: float = 0.0) -> Handler:
    """The handler of /chat/completions; `answers` maps a word of the problem to its answer.

    The assistant gives the first answer whose word stands in the chat, else a wrong one. `slips` is the share of replies
    that are cut off, empty, or out of role.
    """

    def said(seen: Seen) -> dict[str, Any] | Answer:
        body = seen.body
        rng = random.Random(json.dumps(body, sort_keys=True))
        role, chat = role_of(body), " ".join(message["content"] for message in body["messages"])
        slip = rng.choice(("cut", "empty", "role")) if rng.random() < slips else ""
        if slip == "cut":
            return chat_reply("So first we", "length")
        if slip == "empty":
            return chat_reply("")
        if role == "judge":
            return chat_reply("no verdict at all" if slip else f"It fits.\nVERDICT: {rng.randint(1, 5)}")
        words = {"STEP": rng.choice(("sum", "product", "last")), "NUMBER": str(rng.randint(3, 99))}
        if role == "simulator":
            if slip:
                return chat_reply("Assistant: sure, I can help you with that.")
            ended = "<chat>" in chat and rng.random() < 0.3
            return chat_reply("<end>" if ended else f"<message>{filled(rng.choice(_USER), words)}</message>")
        answer = next((value for word, value in answers.items() if re.search(rf"\b{word}\b", chat)), "12345")
        text = filled(rng.choice(_ASSISTANT), {"ANSWER": answer, **words})
        return chat_reply(f"User: {text}" if slip else text)

    return said


def filled(text: str, words: dict[str, str]) -> str:
    for name, word in words.items():
        text = text.replace(name, word)
    return text


def problems(path: Path, n: int) -> dict[str, str]:
    """Writes `n` problems, each about a person of its own, and returns the answer by that person's name."""
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
    """A recipe with all three roles at `url`; `dialogue` goes over its section."""
    server = {"urls": [url], "model": "tiny", "concurrency": 8, "attempts": attempts, "timeout_s": 20}
    section = {
        "assistant": {"server": server, "max_tokens": 200},
        "simulator": {"server": server, "max_tokens": 80},
        "judge": {"server": server, "max_tokens": 80, "temperature": 0.0},
        "candidates": 2, "window": 1, "samples": 2, "max_turns": 3,
        **dialogue,
    }  # fmt: skip
    data = {
        "source": {"kind": "gsm8k", "path": str(folder / "problems.jsonl")},
        "dialogue": section,
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
