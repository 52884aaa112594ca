"""Runs as a repository keeps them: with ids in place of the text of questions, and compressed.

The questions of others must often not be published, while a model's answers to them may be. `recipes/results/keep.py` writes
such a run directory: manifest.json, samples.jsonl.gz, labels.jsonl.gz and results.json. What question files hold of a message
or a reference answer becomes a reference, with what the recipe put before or after it:

    {"role": "user", "question": "12", "piece": "fact 2", "before": "", "after": "", "sha256": "b5bb9d8014a0f9b1"}

No figure needs the text. Readers show the id, or the text again with `--questions FILE`.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from nextturn.probe.command.errors import DataError
from nextturn.probe.command.files import sha256_text
from nextturn.probe.data.tables import read_rows
from nextturn.probe.engines.stored import Row
from nextturn.probe.questions.pieces import read_shards, split
from nextturn.probe.questions.sets import HUB, PACKAGED, locate, read_items, read_pairs

ANSWER = "answer"


class Piece(NamedTuple):
    """A text of a question set that rows of a run can hold.

    Attributes:
        name: "" for the whole question, "wish", "fact 2" and "concat" of sharded, "complete" and "underspecified" of a pair,
            "message 1" earlier in a conversation, or ANSWER.
        sha256: What stands for the text in a kept row: a hash that the answer shares with its question, or it could be guessed.
    """

    id: str
    name: str
    text: str
    sha256: str


def pieces_in(name: str) -> Iterator[Piece]:
    """Yield every text that a run can hold of a question set, a file or the name of a known set."""
    path = locate(name, None if name in HUB or name in PACKAGED else name)
    items: dict[str, dict[str, str]] = {}
    if "underspecified" in next((row for _, row in read_rows(path)), {}):
        for pair in read_pairs(path):
            items[pair.id] = {"complete": pair.complete, "underspecified": pair.underspecified}
    else:
        own = read_shards(path)
        for item in read_items(path):
            *earlier, question = (message["content"] for message in item.messages)
            texts = {"": question, **{f"message {place}": text for place, text in enumerate(earlier, start=1)}}
            if pieces := own.get(item.id) or split(question):
                facts = {f"fact {place}": fact for place, fact in enumerate(pieces.facts, start=1)}
                texts |= {"concat": pieces.concat(), "wish": pieces.wish, **facts}
            items[item.id] = {**texts, ANSWER: item.answer} if item.answer else texts
    for identity, texts in items.items():
        for piece, text in texts.items():
            hashed = f"{texts['']}\n{text}" if piece == ANSWER else text
            yield Piece(identity, piece, text, sha256_text(hashed)[:16])


Texts = Mapping[str, str]
"""The texts of question sets, by the hashes that stand for them in kept rows."""


def texts_in(questions: Sequence[str]) -> Texts:
    """Return the texts of question sets, files or names of known sets."""
    return {piece.sha256: piece.text for name in questions for piece in pieces_in(name)}


def add_questions_argument(parser: argparse.ArgumentParser) -> None:
    """Add `--questions` to a command that reads kept runs."""
    joined = "a question set whose text is shown in place of the ids in kept runs; can be repeated"
    parser.add_argument("--questions", action="append", default=[], metavar="FILE", help=joined)


def restored(row: Row, texts: Texts | None, where: str) -> Row:
    """Return a kept row with its text, or with ids in brackets if `texts` is None. Other rows are returned unchanged.

    Raises:
        DataError: A question is not in `texts`, or is not there as it was asked.
    """
    messages = row.get("messages")
    if not isinstance(messages, list) or not any(isinstance(each, dict) and "question" in each for each in messages):
        return row

    def text_of(part: Mapping[str, str]) -> str:
        name = f"{row.get('set')} {part['question']} {part['piece']}".strip()
        if texts is not None and part["sha256"] not in texts:
            raise DataError(f"{where}: {name} is in no file as it was asked; give the question set with --questions")
        return part["before"] + (f"[{name}]" if texts is None else texts[part["sha256"]]) + part["after"]

    shown = [{"role": each["role"], "content": text_of(each)} if "question" in each else each for each in messages]
    reference = row.get("reference")
    return {**row, "messages": shown, **({"reference": text_of(reference)} if isinstance(reference, dict) else {})}


def samples_file(folder: Path) -> Path:
    """Return the path of samples.jsonl, or of samples.jsonl.gz in a kept run."""
    full, kept = folder / "samples.jsonl", folder / "samples.jsonl.gz"
    return kept if kept.is_file() and not full.is_file() else full


def turn_hash(messages: Iterable[Mapping[str, str]], user_turn: str) -> str:
    """Return the hash of all that an annotator is shown of a user turn. A kept row has it as `turn_sha256`."""
    shown = [{"role": message["role"], "content": message["content"]} for message in messages]
    return sha256_text(json.dumps([shown, user_turn]))  # ASCII, so that broken surrogates have a hash, too
