"""The question sets: a JSONL file first, the hub second. Used by the probe and by the data builders.

A row may be GSM8K-like (`question`, `answer` with `####`), MATH-like (`problem`, `solution` with `\\boxed`),
a prompt (`prompt`), a conversation (`messages`, ending with the user), MT-Bench-like (`turns`), or a pair for
clarify (`complete`, `underspecified`). The set's name does not decide how a row is read; its fields do.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from probe.answers import reference_answer
from probe.errors import DataError, SetOutOfReach
from probe.files import read_jsonl, sha256_text

Message = dict[str, str]


@dataclass(frozen=True)
class HubSet:
    """Where a named set lives on the hub: dataset id, configuration, split, and whether it is gated."""

    hub_id: str
    config: str | None
    split: str
    gated: bool = False


# The paper's sets (arXiv 2604.02315, table of sets) and the sources of problems.
HUB: dict[str, HubSet] = {
    "gsm8k": HubSet("openai/gsm8k", "main", "test"),
    "gsm8k_train": HubSet("openai/gsm8k", "main", "train"),
    "gpqa_diamond": HubSet("Idavidrein/gpqa", "gpqa_diamond", "train", gated=True),
    "ifbench": HubSet("allenai/IFBench_test", None, "train"),
    "healthbench": HubSet("openai/healthbench", None, "test"),
    "coval": HubSet("openai/coval", None, "train"),
    "mt_bench": HubSet("HuggingFaceH4/mt_bench_prompts", None, "train"),
    "math": HubSet("nlile/hendrycks-MATH-benchmark", None, "test"),
    "math_train": HubSet("nlile/hendrycks-MATH-benchmark", None, "train"),
}


@dataclass(frozen=True)
class Problem:
    """One problem with a known final answer and a worked solution."""

    id: str
    question: str
    answer: str
    solution: str
    source: str
    level: int | None = None
    subject: str | None = None


@dataclass(frozen=True)
class Item:
    """One probe item: a context that ends with a user message, and its final answer where there is one."""

    id: str
    messages: tuple[Message, ...]
    answer: str | None = None


@dataclass(frozen=True)
class Pair:
    """One problem twice: complete, and with one needed given withheld."""

    id: str
    complete: str
    underspecified: str
    missing: str


def locate(name: str, path: Path | str | None = None) -> Path:
    """The JSONL file of a set: `path` where given, else the hub's copy, stored once in the cache folder.

    Raises:
        DataError: no file there, or no path and an unknown name.
        SetOutOfReach: no path, and the hub cannot be reached or refuses.
    """
    if path is not None:
        if not Path(path).is_file():
            raise DataError(
                f"{path}: no such file (set {name!r}); give the path of a JSONL file, or leave the path out"
            )
        return Path(path)
    if name not in HUB:
        raise DataError(f"set {name!r}: unknown name, and no path given; known: {', '.join(HUB)}")
    from probe.models import cache_root

    stored = cache_root() / "sets" / f"{name}.jsonl"
    return stored if stored.is_file() else _download(name, stored)


def _download(name: str, stored: Path) -> Path:
    from probe.files import write_jsonl
    from probe.hub import hub_rows

    hub = HUB[name]
    try:
        write_jsonl(stored, hub_rows(hub.hub_id, hub.config, hub.split))
    except DataError as error:
        gated = f" {hub.hub_id} is gated: accept its terms on its page and set HF_TOKEN." if hub.gated else ""
        raise SetOutOfReach(
            f"set {name!r}: no local path given, and {error}.{gated} Give a JSONL file with its `path`"
        ) from None
    return stored


def read_problems(path: Path, source: str | None = None) -> Iterator[Problem]:
    """Problems of a GSM8K-format, MATH-format or {question, answer[, solution]} file, in file order.

    An empty `\\boxed{}` gives an empty answer.

    Raises:
        DataError: with file:line, for a broken line, a row without a question, or one without an answer.
    """
    for number, row in read_jsonl(path):
        where = f"{path}:{number}"
        question = _text(row, ("question", "problem", "prompt"), where)
        solution = _given(row, "solution") or _given(row, "answer")
        answer = _final_answer(row)
        if answer is None and "\\boxed{}" in solution:
            answer = ""  # two rows of MATH's own training file; the data builders reject them with a reason
        if answer is None:
            raise DataError(f"{where}: no answer, wanted `answer` (alone or after ####) or `solution` with \\boxed{{}}")
        level = re.search(r"\d", str(row.get("level", "")))
        yield Problem(
            id=str(row.get("id", row.get("unique_id", f"{source or path.stem}-{number}"))),
            question=question,
            answer=answer,
            solution=re.sub(r"\n?####.*", "", re.sub(r"<<.*?>>", "", solution)).strip(),
            source=source or path.stem,
            level=int(level.group()) if level else None,
            subject=row.get("type") or row.get("subject"),
        )


def read_items(path: Path, instruction: str = "") -> list[Item]:
    """All items of a file; `instruction` is added to the last user message after an empty line."""
    items = [_item(row, f"{path}:{number}", number) for number, row in read_jsonl(path)]
    _check_ids(path, [item.id for item in items])
    if not instruction:
        return items
    return [
        Item(item.id, (*item.messages[:-1], _user(f"{item.messages[-1]['content']}\n\n{instruction}")), item.answer)
        for item in items
    ]


def read_pairs(path: Path) -> list[Pair]:
    pairs = []
    for number, row in read_jsonl(path):
        where = f"{path}:{number}"
        complete, less = _text(row, ("complete",), where), _text(row, ("underspecified",), where)
        pairs.append(Pair(str(row.get("id", number)), complete, less, str(row.get("missing", ""))))
    _check_ids(path, [pair.id for pair in pairs])
    return pairs


def choose(items: Sequence[Any], n: int | None, seed: int) -> list[Any]:
    """`n` items picked by `seed`, in file order; all of them where `n` is None or not smaller."""
    if n is None or n >= len(items):
        return list(items)
    return [items[index] for index in sorted(random.Random(seed).sample(range(len(items)), n))]


def sets_hash(items: Sequence[Item | Pair]) -> str:
    """sha256 over what is asked, so that two runs can show that they asked the same."""
    return sha256_text(json.dumps([vars(item) for item in items], sort_keys=True, default=list))


def check_messages(messages: Any, where: str) -> tuple[Message, ...]:
    """A conversation checked: an optional system message, then user and assistant in turn, none empty."""
    if not isinstance(messages, list) or not messages:
        raise DataError(f"{where}: an empty conversation, wanted a list of messages")
    turns = messages[1:] if isinstance(messages[0], dict) and messages[0].get("role") == "system" else messages
    if not turns:
        raise DataError(f"{where}: a conversation with a system message alone")
    for number, message in enumerate(messages, start=1):
        if not isinstance(message, dict) or not isinstance(message.get("content"), str):
            raise DataError(f"{where}: message {number} is no {{role, content}} with text")
    for position, message in enumerate(turns):
        number, wanted = position + 1 + len(messages) - len(turns), ("user", "assistant")[position % 2]
        if message.get("role") != wanted:
            raise DataError(
                f"{where}: roles do not alternate, message {number} is {message.get('role')!r}, wanted {wanted!r}"
            )
        if not message["content"].strip():
            raise DataError(f"{where}: message {number} ({wanted}) is empty")
    return tuple({"role": message["role"], "content": message["content"]} for message in messages)


def _item(row: dict[str, Any], where: str, number: int) -> Item:
    identity = str(next((row[key] for key in ("id", "question_id", "prompt_id", "key") if key in row), number))
    conversation = row.get("messages", row["prompt"] if isinstance(row.get("prompt"), list) else None)
    if conversation is not None:
        if isinstance(conversation, list) and conversation and all(isinstance(turn, str) for turn in conversation):
            conversation = [_user(conversation[0])]
        messages = check_messages(conversation, where)
        if messages[-1]["role"] != "user":
            raise DataError(f"{where}: the conversation ends with the assistant, wanted a user message last")
        return Item(identity, messages, reference_answer(_given(row, "answer")))
    if isinstance(row.get("turns"), list) and row["turns"]:
        return Item(identity, check_messages([_user(str(row["turns"][0]))], where))
    question = _text(row, ("question", "problem", "prompt", "Question"), where)
    answer = _final_answer(row)
    if answer is None and (_given(row, "answer") or _given(row, "solution") or "question" in row or "problem" in row):
        raise DataError(
            f"{where}: no final answer in it, wanted `answer` (alone or after ####) or a \\boxed{{}} solution"
        )
    return Item(identity, (_user(question),), answer)


def _user(content: str) -> Message:
    return {"role": "user", "content": content}


def _given(row: dict[str, Any], key: str) -> str:
    """A field as text; a number too, 0 among them."""
    return "" if row.get(key) is None else str(row[key])


def _final_answer(row: dict[str, Any]) -> str | None:
    return reference_answer(_given(row, "answer")) or reference_answer(_given(row, "solution"))


def _text(row: dict[str, Any], keys: Sequence[str], where: str) -> str:
    for key in keys:
        if isinstance(row.get(key), str) and row[key].strip():
            return row[key]
    raise DataError(
        f"{where}: no {' or '.join(f'`{key}`' for key in keys)} with text in it (has {', '.join(row) or 'nothing'})"
    )


def _check_ids(path: Path, ids: list[str]) -> None:
    if not ids:
        raise DataError(f"{path}: no rows in it")
    seen: set[str] = set()
    for identity in ids:
        if identity in seen:
            raise DataError(f"{path}: the id {identity!r} stands twice")
        seen.add(identity)
