"""The question sets of the probe and the data builders: a file in any form of `probe.data.tables` first, the hub second.

A row may be GSM8K-like (`question`, `answer` with `####`), MATH-like (`problem`, `solution` with `\\boxed`), a
question with lettered options (GPQA's columns, or `choices`), a prompt (`prompt`), a conversation (`messages` and
other forms, ending with the user; probe/data/messages.py), MT-Bench-like (`turns`), or a pair for clarify (`complete`,
`underspecified`). The fields of a row decide how it is read, not the name of the set. A finished conversation is read as a
transcript if the recipe says so.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from pathlib import Path
from string import ascii_uppercase as LETTERS
from typing import Any

import yaml
from pydantic import TypeAdapter

from nextturn.probe.command.errors import DataError, SetOutOfReach
from nextturn.probe.command.files import cache_root, sha256_text, write_jsonl
from nextturn.probe.data.messages import (
    IDS,
    KEYS,
    Message,
    check_messages,
    check_text,
    conversation_in,
    read_transcripts,
    row_id,
    said_by,
    user,
)
from nextturn.probe.data.tables import each_row, is_saved, located, parsed, place, read_rows
from nextturn.probe.text.grading import hashed, reference_answer


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
    parts: Mapping[str, Any] | None = None
    """The whole row, if it brings its steps, each with a `text`: the data builders read them and what else it brings."""


@dataclass(frozen=True)
class Item:
    """One probe item: a context that ends with a user message, and its final answer where there is one."""

    id: str
    messages: tuple[Message, ...]
    answer: str | None = None
    reply: str | None = None
    """Transcripts only: the assistant's next message in the file, which is probed instead of the model's own answer."""
    actual: str | None = None
    """Transcripts only: what the user really said next."""
    options: tuple[str, ...] = ()
    """The texts of (A), (B), ... as asked; `answer` is then a letter, and is graded as one."""
    aliases: tuple[str, ...] = ()
    """Other answers that are right, too."""
    cluster: str = ""
    """The conversation that the item belongs to, if it has several; they are not independent."""
    by: Mapping[str, str] = field(default_factory=dict)
    """The value of each column by which figures are counted apart, too, such as {"depth": "2", "segment": "pro"}."""


@dataclass(frozen=True)
class Pair:
    """One problem in two forms: complete, and with one needed fact withheld."""

    id: str
    complete: str
    underspecified: str
    missing: str


def read_items(
    path: Path,
    instruction: str = "",
    transcript: bool = False,
    columns: Mapping[str, str] | None = None,
    left_out: list[str] | None = None,
    every: bool = False,
    by: Sequence[str] = (),
) -> list[Item]:
    """Read all items of a file.

    Args:
        every: Of transcripts: each user turn after an answer is an item, with the id CONVERSATION#TURN.
        by: Columns of the rows by which figures are counted apart, too; `depth`, the number of the user turn from 1; or `week`, the
            ISO week of the column `date`.
        columns: See `read_rows`.
        instruction: Added to the last user message after an empty line.
        transcript: The rows are finished conversations, which are split as probe/data/messages.py describes.
        left_out: Gets the reason for every row that cannot be read; without it such a row is an error.

    Raises:
        DataError: A row cannot be read (with file:line), an id occurs twice, or the file is empty.
    """
    if transcript:
        if instruction:
            raise DataError(f"{path}: an instruction cannot be added to a transcript, its question is answered already")
        items = [
            Item(
                f"{key}#{split.depth}" if every else key, split.context, None, split.reply, split.actual,
                cluster=key if every else "", by=_values(row, by, split.depth),
            )
            for key, row, splits in read_transcripts(path, columns, every, left_out)
            for split in splits
        ]  # fmt: skip
    else:

        def read(row: dict[str, Any], where: str, number: int) -> Item:
            item = _item(row, where, number)
            return replace(item, by=_values(row, by, len(said_by(item.messages, "user")) + 1))

        items = list(each_row(path, columns, left_out, read))
    _check_ids(path, [item.id for item in items])
    for name in by:
        if not 0 < (n := len({item.by[name] for item in items if name in item.by})) <= MOST_PARTS and name != "week":
            raise DataError(f"{path}: by: {name!r} has {n} different values, expected 1 to {MOST_PARTS}")
    if not instruction:
        return items
    asked = (user(f"{item.messages[-1]['content']}\n\n{instruction}") for item in items)
    return [replace(item, messages=(*item.messages[:-1], last)) for item, last in zip(items, asked, strict=True)]


def _item(row: dict[str, Any], where: str, number: int) -> Item:
    identity = row_id(row, number)
    conversation = conversation_in(row)
    if conversation is not None:
        messages = check_messages(conversation, where)
        if messages[-1]["role"] != "user":
            expected = "a user message last (`transcript: true` reads finished conversations)"
            raise DataError(f"{where}: the conversation ends with the assistant, expected {expected}")
        answer, aliases = _answers(row, where)
        return Item(identity, messages, answer, aliases=aliases)
    question = _with_context(row, _text(row, _QUESTIONS, where), where)
    asked = lettered(row, question, identity, where)
    if asked is None:
        answer, aliases = _answers(row, where)
        given = _given(row, "answer", where) or _given(row, "solution", where)
        if answer is None and (given or "question" in row or "problem" in row):
            raise DataError(f"{where}: no final answer in it, expected {_ANSWER}")
        asked = shown_in(question, answer) if answer is not None else None
        if asked is None:
            return Item(identity, (user(question),), answer, aliases=aliases)
    check_text(asked.text, where)
    return Item(identity, (user(asked.text),), asked.letter, options=asked.options)


_ANSWER = "`answer` (alone or after ####) or `solution` with \\boxed{}"
MOST_PARTS = 50


def _values(row: Mapping[str, Any], by: Sequence[str], depth: int) -> dict[str, str]:
    """Return a row's values of columns as text. A row without a value is in no part."""
    values = {"depth": depth, "week": _week(str(row["date"])) if "week" in by and row.get("date") else None, **row}
    values = {name: values.get(name) for name in by}
    return {name: str(value) for name, value in values.items() if value not in (None, "") and value == value}


def _week(written: str) -> str:
    """Return the ISO week of a date or of a time that begins with one, such as "2026-W48"."""
    try:
        return "{}-W{:02}".format(*date.fromisoformat(written[:10]).isocalendar())
    except ValueError:
        raise DataError(f"by week: `date` is {written!r:.40}, expected a date such as 2026-11-28") from None


_QUESTIONS = ("question", "problem", "prompt", "Question")
_CONTEXTS = ("article", "passage", "context", "support")
"""Columns that a question is about. They are asked before it."""


def _with_context(row: dict[str, Any], question: str, where: str) -> str:
    parts = []
    for name in _CONTEXTS:
        value = row.get(name)
        text = "\n\n".join(value) if isinstance(value, list) and all(isinstance(part, str) for part in value) else value
        if text is None or text != text:  # pandas writes NaN for missing values
            continue
        if not isinstance(text, str):
            raise DataError(f"{where}: the column `{name}` belongs to the question and is {value!r:.60}, expected text")
        check_text(text, f"{where}: `{name}`")
        parts += [text.strip()] * bool(text.strip() and text.strip() not in question)
    return "\n\n".join([*parts, question])


def remarks(rows: Sequence[Mapping[str, Any]], columns: Mapping[str, str] | None = None) -> list[str]:
    """Return lines for the plan of a set: the columns that are not read, and how numbers as answers are counted."""
    read = {*_QUESTIONS, *_OF_OPTIONS, *IDS, "answer", "solution", "shards", "missing", "underspecified", "complete"}
    read |= {"instruction_id_list", "kwargs"}
    read |= {*_CONTEXTS, *KEYS, "history", _GPQA_RIGHT, *(columns or {}).values()}
    names = dict.fromkeys(name for row in rows for name in row)
    unread = [name for name in names if not (name in read or _GPQA_WRONG.fullmatch(name) or _OPTION.fullmatch(name))]
    found = [f"columns that are not read: {', '.join(unread)}"] * bool(unread)
    of_options = [name for name in names if name in _OF_OPTIONS or _OPTION.fullmatch(name)]
    numbers = any(type(row.get("answer")) is int and any(map(row.get, of_options)) for row in rows)
    return found + ["answers counted from 0"] * numbers


def read_pairs(path: Path, columns: Mapping[str, str] | None = None, left_out: list[str] | None = None) -> list[Pair]:
    """Read all pairs of a file. Raises DataError as `read_items` does."""

    def read(row: dict[str, Any], where: str, number: int) -> Pair:
        complete, less = _text(row, ("complete",), where), _text(row, ("underspecified",), where)
        return Pair(row_id(row, number, ("id",)), complete, less, _given(row, "missing", where))

    pairs = list(each_row(path, columns, left_out, read))
    _check_ids(path, [pair.id for pair in pairs])
    return pairs


def read_problems(path: Path, source: str | None = None) -> Iterator[Problem]:
    """Yield the problems of a GSM8K-format, MATH-format or {question, answer[, solution]} file, in file order.

    An empty `\\boxed{}` gives an empty answer, and an answer without a solution gives an empty solution.

    Raises:
        DataError: With file:line, for a broken line, a row without question or answer, or an id that occurs twice.
    """
    seen = set[str]()
    for number, row in read_rows(path):
        where = place(path, number)
        if isinstance(row.get("answer"), list | dict):
            row = {**row, "answer": _answers(row, where)[0]}
        question = _text(row, ("question", "problem", "prompt"), where)
        solution = _given(row, "solution", where) or _given(row, "answer", where)
        answer = _final_answer(row, where)
        if answer is None and "\\boxed{}" in solution:
            answer = ""  # two rows of MATH's own training file; the data builders reject them with a reason
        if answer is None:
            raise DataError(f"{where}: no final answer in it, expected {_ANSWER}")
        identity = row_id(row, f"{source or path.stem}-{number}", ("id", "unique_id"))
        check_text(identity, f"{where}: `id`")
        if identity in seen:  # rows, prompts and pairs are looked up by it
            raise DataError(f"{where}: the id {identity!r} occurs twice, expected one for each problem, or no ids")
        seen.add(identity)
        level, subject = re.search(r"\d+", str(row.get("level", ""))), row.get("type") or row.get("subject")
        if not isinstance(subject, str | None):
            raise DataError(f"{where}: the subject (`type`) is {subject!r}, expected text")
        solution = _worked_solution(solution)
        steps = row.get("steps")
        is_worked = isinstance(steps, list) and steps and isinstance(steps[0], dict) and "text" in steps[0]
        worked, number_of_level = "" if solution == answer else solution, int(level.group()) if level else None
        whole = row if is_worked else None
        yield Problem(identity, question, answer, worked, source or path.stem, number_of_level, subject, whole)


def _worked_solution(solution: str) -> str:
    """Return a reference solution without GSM8K's calculator marks and without the answer after `####`."""
    text = re.sub(r"<<.*?>>", "", solution)
    for start, end, _ in reversed(hashed(text, reference=True)):
        text = text[:start].removesuffix("\n") + text[end:]
    return text.strip()


def choose(items: Sequence[Any], n: int | None, seed: int) -> list[Any]:
    """Return `n` items chosen by `seed`, in file order; all items if `n` is None or not smaller."""
    if n is None or n >= len(items):
        return list(items)
    return [items[index] for index in sorted(random.Random(seed).sample(range(len(items)), n))]


def sets_hash(items: Sequence[Item | Pair]) -> str:
    """Return the sha256 over what is asked and how it is graded, which shows that two runs asked the same."""
    asked = [{name: value for name, value in vars(item).items() if name != "aliases" or value} for item in items]
    for each in asked:  # these change no text and no grade
        each.pop("cluster", None), each.pop("by", None)
    return sha256_text(json.dumps(asked, sort_keys=True, default=list))


def _given(row: dict[str, Any], key: str, where: str) -> str:
    """Return a field, text or a number, as text. pandas writes NaN for missing values."""
    value = row.get(key)
    text = "" if value is None or value != value else str(value)
    check_text(text, f"{where}: `{key}`")
    return text


def _final_answer(row: dict[str, Any], where: str) -> str | None:
    return reference_answer(_given(row, "answer", where)) or reference_answer(_given(row, "solution", where))


def _answers(row: dict[str, Any], where: str) -> tuple[str | None, tuple[str, ...]]:
    """Return the final answer, and others that are right, too: `answer` may be a list, or {value, aliases}."""
    given = row.get("answer")
    if isinstance(given, dict):
        given = [given.get("value"), *(given.get("aliases") or ())]
    if not isinstance(given, list):
        return _final_answer(row, where), ()
    texts = list(dict.fromkeys(filter(None, (_final_answer({"answer": each}, where) for each in given))))
    return (texts[0], tuple(texts[1:])) if texts else (None, ())


def _text(row: dict[str, Any], keys: Sequence[str], where: str) -> str:
    for key in keys:
        if isinstance(row.get(key), str) and row[key].strip():
            check_text(row[key], f"{where}: `{key}`")
            return row[key]
    wanted, advice = " or ".join(f"`{key}`" for key in keys), "`columns: {question: NAME}` of a set gives other names"
    raise DataError(f"{where}: no {wanted} with text in it (has {', '.join(row) or 'nothing'}); {advice}")


def _check_ids(path: Path, ids: list[str]) -> None:
    if not ids:
        raise DataError(f"{path}: no rows in it")
    seen: set[str] = set()
    for identity in ids:
        check_text(identity, f"{path}: the id {identity[:40]!a}")
        if identity in seen:
            raise DataError(f"{path}: the id {identity!r} occurs twice")
        seen.add(identity)


# --- Named sets. One copy of each set of the hub is kept in the cache, with only the columns that are read. A set that was moved
# or has other columns is an error that names them. Any set can be given as a JSONL file by its `path` instead.


@dataclass(frozen=True)
class HubSet:
    """A set on the hub: dataset id, split, and the columns that are read.

    Attributes:
        fields: Required columns.
        more: Optional columns.
        file: One file of a dataset whose files have different columns.
        task: The benchmark's task id in the hub's `.eval_results`.
    """

    hub_id: str
    split: str
    fields: tuple[str, ...]
    config: str | None = None
    file: str | None = None
    more: tuple[str, ...] = ()
    gated: bool = False
    task: str | None = None


_HUB_SETS = Path(__file__).with_name("hub_sets.yaml").read_text(encoding="utf-8")
HUB = TypeAdapter(dict[str, HubSet]).validate_python(yaml.safe_load(_HUB_SETS))


# Sets that are part of this package: problems written for it, complete and with one needed fact withheld (Apache-2.0).
PACKAGED = {"written_pairs": Path(__file__).with_name("written_pairs.jsonl")}


def locate(name: str, path: Path | str | None = None) -> Path:
    """Return the file of a set: `path` if given, else the packaged file, else the cached copy from the hub.

    Raises:
        DataError: There is no file at `path`, or there is no path and the name is unknown.
        SetOutOfReach: There is no path, and the hub cannot be reached, refuses access, or has other columns.
    """
    if path is not None:
        path = located(str(path), f"set {name!r}")
        if path.is_dir() and not is_saved(path):
            raise DataError(f"{path}: no such file (set {name!r}); give the path of a file, or leave the path out")
        return path
    if name in PACKAGED:
        return PACKAGED[name]
    if name not in HUB:
        raise DataError(f"set {name!r}: unknown name, and no path given; known: {', '.join([*HUB, *PACKAGED])}")

    stored = cache_root() / "sets" / f"{name}.jsonl"
    return stored if stored.is_file() else _download(name, stored)


def _download(name: str, stored: Path) -> Path:
    from nextturn.probe.data.hub import hub_rows

    hub = HUB[name]
    try:
        write_jsonl(stored, _read_columns(hub, hub_rows(hub.hub_id, hub.config, hub.split, hub.file)))
    except DataError as error:
        terms = f"accept its terms on https://huggingface.co/datasets/{hub.hub_id}, then run `hf auth login` or set HF_TOKEN"
        gated = f" {hub.hub_id} is gated: {terms}." if hub.gated else ""
        rows = f"Give a JSONL file with its `path`; its rows need {', '.join(hub.fields)}"
        raise SetOutOfReach(f"set {name!r}: no local path given, and {error}.{gated} {rows}") from None
    return stored


def _read_columns(hub: HubSet, rows: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for row in rows:
        if missing := [field for field in hub.fields if field not in row]:
            raise DataError(f"{hub.hub_id} has no column {', '.join(missing)}, only {', '.join(row)}")
        yield {field: row[field] for field in (*hub.fields, *hub.more) if field in row}


# --- Questions with lettered options: GPQA's columns, or `choices` (or `options`, or a column for each option) with an `answer`.
# Options are shuffled, because GPQA puts the right answer first and other sets have habits, too, unless their letters mean
# something. The order depends on the row's id only.

INSTRUCTION = "Exactly one of these options is right. End your reply with its letter alone in \\boxed{}."
_GPQA_RIGHT = "Correct Answer"
_GPQA_WRONG = re.compile(r"Incorrect Answer \d+")
# An option that the question itself shows, on a line of its own: "(A) Line", "B. 8", "$\bullet$ C) 12".
_SHOWN = re.compile(r"^(?:.*\\\])?(?:\$\\bullet\$)?[ \t]*\(?([A-J])(?:\)\.?|[.:])[ \t]*(\S.*?)[ \t]*$", re.MULTILINE)
_OF_OPTIONS = ("choices", "options")
# Columns of one option each: "A", "option_b", "opc".
_OPTION = re.compile(r"((?:option|choice)[ _]?|op|)([a-j])", re.IGNORECASE)
# An option that carries its letter: "A)125", "(B) Bern", "c. none".
_OWN_LETTER = re.compile(r"\(?([A-Ja-j])[).:]\s*(\S.*)")
# An option that points at others by their place, so that the order of the row is kept.
_POINTS = re.compile(
    r"\b(?:above|below|preceding|previous)\b|\b(?:none|all|both|neither|either|any) of (?:these|them|those|the (?:other )?(?:options|answers|choices))\b"
    r"|(?:^|\bboth |\bneither |\beither )\(?[A-J]\)?,?(?: (?:and|or|nor) | ?[&,+] ?)\(?[A-J]\)?(?![a-z])",
    re.IGNORECASE,
)
_LONE = re.compile(r"(?:\\(?:text|textbf|mathrm|mathbf)\{)?\(?([A-J])\)?\.?\}?")


@dataclass(frozen=True)
class Lettered:
    """A question as it is asked, the texts of (A), (B), ... and the letter of the right option if it is known."""

    text: str
    options: tuple[str, ...]
    letter: str | None


def lettered(row: dict[str, Any], question: str, identity: str, where: str) -> Lettered | None:
    """Return the row as a question with lettered options, or None if it has no options.

    Raises:
        DataError: The options are not texts, or the answer names none of them.
    """
    if _GPQA_RIGHT in row:
        options = [row[_GPQA_RIGHT], *(row[key] for key in row if _GPQA_WRONG.fullmatch(key))]
        right: int | None = 0
        texts, kept = _texts(options, where), False
    else:
        given = next((row[key] for key in _OF_OPTIONS if row.get(key)), None) or _option_columns(row, where)
        if given is None:
            return None
        labels, options = _options(parsed(given), where)  # a table holds a list of numbers as text
        whole, answer = _texts(options, where), row.get("answer")
        texts = _without_letters(whole)
        if texts != whole:
            options = texts
        right = _place(answer[0] if isinstance(answer, list) and len(answer) == 1 else answer, labels, options, where)
        # Letters that the row itself shows keep their meaning: of options that point at others, that carry their letter, and
        # of a right option that is its own letter (vitamin C under C).
        own_letter = right is not None and texts[right] == LETTERS[right]
        kept = texts != whole or own_letter or any(map(_POINTS.search, texts))
    order = list(range(len(texts)))
    if not kept:
        random.Random(f"options of {identity}").shuffle(order)
    shown = tuple(texts[place] for place in order)
    lines = "\n".join(f"({letter}) {text}" for letter, text in zip(LETTERS, shown, strict=False))
    letter = None if right is None else LETTERS[order.index(right)]
    return Lettered(f"{question.strip()}\n\n{lines}\n\n{INSTRUCTION}", shown, letter)


def shown_in(question: str, answer: str) -> Lettered | None:
    """Return a question that shows its options itself and whose answer is one of their letters, else None."""
    lone = _LONE.fullmatch(answer.strip())
    if lone is None:
        return None
    found = _SHOWN.findall(question)
    letters = "".join(letter for letter, _ in found)
    if len(found) < 2 or not LETTERS.startswith(letters) or lone.group(1) not in letters:
        return None
    return Lettered(question, tuple(text for _, text in found), lone.group(1))


def _option_columns(row: Mapping[str, Any], where: str) -> dict[str, Any] | None:
    """Return {"A": text, ...} of columns with one option each, or None if there are none."""
    found: dict[str, dict[str, Any]] = {}
    for name, value in row.items():
        if (option := _OPTION.fullmatch(name)) and value not in (None, "") and value == value:
            found.setdefault(option[1].lower(), {})[option[2].upper()] = value
    options = next((dict(sorted(columns.items())) for columns in found.values() if len(columns) > 1), None)
    if options and not LETTERS.startswith("".join(options)):
        raise DataError(f"{where}: columns for the options {', '.join(options)}, expected A, B, ... without a gap")
    return options


def _without_letters(texts: list[str]) -> list[str]:
    """Return the options without the letters that all of them carry, else as they are."""
    own = [_OWN_LETTER.fullmatch(text) for text in texts]
    carried = all(match and match[1].upper() == letter for match, letter in zip(own, LETTERS, strict=False))
    return [match[2] for match in own if match] if carried else texts


def _options(given: Any, where: str) -> tuple[list[str], list[Any]]:
    """Return labels and texts of options given as a list, as {"A": text}, or as {"label": [...], "text": [...]}."""
    labels, options = (list(given), list(given.values())) if isinstance(given, dict) else ([], given)
    if isinstance(given, dict) and isinstance(given.get("text"), list):
        labels, options = given.get("label", []), given["text"]
    if not isinstance(options, list) or not 2 <= len(options) <= len(LETTERS):
        raise DataError(f"{where}: expected 2 to {len(LETTERS)} options in a list, given {given!r:.80}")
    whole = isinstance(labels, list) and len(labels) == len(options)
    return [str(label) for label in labels] if whole else list(LETTERS[: len(options)]), options


def _texts(options: Sequence[Any], where: str) -> list[str]:
    for option in options:
        if isinstance(option, bool) or not isinstance(option, str | int | float) or not str(option).strip():
            raise DataError(f"{where}: an option is {option!r:.40}, expected text or a number")
    return [" ".join(str(option).split()) for option in options]


def _place(answer: Any, labels: Sequence[str], options: Sequence[Any], where: str) -> int | None:
    """Return the index of the right option, which `answer` gives as its text, its label, or its number from 0."""
    if answer is None or answer == "":
        return None
    written = str(answer).strip()
    places = {place for place, option in enumerate(options) if str(option).strip() == written}
    if isinstance(answer, int) and not isinstance(answer, bool):
        places |= {answer} if answer not in options and 0 <= answer < len(options) else set()
    else:  # one that is the label of an option and the text of another names both
        own = _OWN_LETTER.fullmatch(written)
        label = (own[1] if own else written.strip("().")).upper()
        places |= {place for place, known in enumerate(labels) if known.strip("().").upper() == label}
    if len(places) != 1:
        named = f"{'several' if places else 'none'} of the {len(options)} options"
        expected = "a letter, a number counted from 0, or the text of an option"
        raise DataError(f"{where}: the answer {answer!r:.60} names {named}, expected {expected}")
    return places.pop()
