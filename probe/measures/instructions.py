"""Whether a reply follows the instructions of its prompt, such as "use no comma": IFBench and IFEval.

The package if-verifiable says it, by rules and without a judge. It has the checks of both benchmarks' authors. The rows of a set
name their instructions in the columns `instruction_id_list` and `kwargs`.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from typing import Any

from nextturn.probe.command.errors import BadInput, DataError, require
from nextturn.probe.command.files import sha256_text
from nextturn.probe.command.terminal import say_once
from nextturn.probe.data.messages import assistant, row_id
from nextturn.probe.data.tables import place, read_rows
from nextturn.probe.engines.stored import Row
from nextturn.probe.measures.base import Asking, Figure, Measure, QuestionSet, Reply, shown
from nextturn.probe.questions.sets import Item

DATA = ("tokenizers/punkt", "tokenizers/punkt_tab", "taggers/averaged_perceptron_tagger_eng", "corpora/stopwords")
"""What if-verifiable would download when it is imported, if nltk does not find it."""

Instructed = tuple[Item, list[tuple[str, dict[str, Any]]]]
"""An item with its instructions, each an id and its arguments."""


def _share(row: Row) -> float | None:
    return None if row["extracted"] is None else len(row["extracted"]) / len(row["reference"])


class Instructions(Measure):
    """Whether the reply to a prompt follows its instructions.

    A row's `reference` has the ids of the instructions, and `extracted` those that are followed. Both readings are the
    benchmarks' own: `lenient` also accepts a reply that follows them without its first line, its last line or its asterisks.
    """

    replies = 0
    figures = (
        Figure("followed", lambda row: row["strict"], "all instructions followed"),
        Figure("followed_loosely", lambda row: row["lenient"], "all instructions followed, loosely"),
        Figure("instructions", _share, "instructions followed"),
    )

    @classmethod
    def choose(cls, of_set: QuestionSet) -> Sequence[Instructed]:
        """Return the items with their instructions.

        Raises:
            BadInput: if-verifiable or data of nltk is missing.
            DataError: A row has no instructions, or they cannot be read, or no row can be verified.
        """
        require("if_verifiable", "ifbench", "measure instructions")
        import nltk

        try:
            list(map(nltk.data.find, DATA))
        except LookupError:
            do = f"python -m nltk.downloader {' '.join(path.partition('/')[2] for path in DATA)}"
            raise BadInput(f"measure instructions: data of nltk is missing; with a network: {do}") from None
        given = dict(_read(of_set))
        found = [(item, given[item.id]) for item in of_set.items]
        unclear = list(filter(None, map(_unclear, found)))
        if len(unclear) == len(found):
            raise DataError(f"{of_set.path}: no row can be checked; the first: {unclear[0]}")
        if unclear:
            say_once(f"set {of_set.name!r}: {len(unclear)} of {len(found)} rows have no value, the first: {unclear[0]}")
        return found

    @classmethod
    def settings(cls, of_set: QuestionSet, chosen: Sequence[Instructed]) -> dict[str, Any]:
        """Return the instructions' hash and the version that verifies them."""
        text = json.dumps([instructions for _, instructions in chosen], sort_keys=True)
        return {"instructions": f"if-verifiable {version('if-verifiable')}, {sha256_text(text)[:12]}"}

    def ask(self, item: Instructed) -> Asking:
        """Ask the prompt."""
        asked, instructions = item
        messages = self.prompt(asked.messages)
        reply = yield Reply(messages)
        verdict = {} if _unclear(item) else verify(item, reply.text)
        ids = [name for name, _ in instructions]
        return [self.row(asked.id, [*messages, assistant(reply.text.strip())], reference=ids, **verdict)]


def verify(item: Instructed, text: str) -> Row:
    """Return "strict", "lenient" and "extracted" of a row, or nothing if a check fails on the reply itself.

    Args:
        text: The reply. Its thinking does not count, and one without an answer follows nothing.
    """
    import langdetect
    from if_verifiable.common import evaluate_instructions

    langdetect.DetectorFactory.seed = 0  # it guesses a language by drawing
    ids, arguments = map(list, zip(*item[1], strict=True))
    try:
        each, scores = evaluate_instructions(shown(text), ids, arguments, item[0].messages[-1]["content"], _checks())
    except (ArithmeticError, AttributeError, IndexError, KeyError, TypeError, ValueError, csv.Error):
        return {}  # such as a reply of signs alone, of which format:quote_unquote takes the last word
    followed = [one.instruction_id for one in each if one.strict_pass]
    return {"strict": scores.binary_strict == 1, "lenient": scores.binary_loose == 1, "extracted": followed}


def _checks() -> dict[str, Any]:
    from if_verifiable.ifbench import INSTRUCTION_DICT as ifbench
    from if_verifiable.ifeval import INSTRUCTION_DICT as ifeval

    return {**ifeval, **ifbench}


def _unclear(item: Instructed) -> str:
    """Return why an item cannot be verified, or "". A check draws what is missing at random, and takes 0 for missing."""
    checks = _checks()
    for name, arguments in item[1]:
        if name not in checks:
            return f"item {item[0].id}: the instruction {name!r} is unknown"
        if {*(needed := checks[name](name).get_instruction_args_keys())} != arguments.keys():
            return f"item {item[0].id}: {name} needs {', '.join(needed)} other than 0, given {', '.join(arguments)}"
    return ""


def _read(of_set: QuestionSet) -> Iterator[Any]:
    for number, row in read_rows(of_set.path, of_set.section.columns):
        ids, given = row.get("instruction_id_list"), row.get("kwargs")
        lists = isinstance(ids, list) and isinstance(given, list) and 0 < len(ids) == len(given)
        if not lists or not all(isinstance(one, dict) for one in given or ()):
            expected = "expected `instruction_id_list` and `kwargs`, two lists of one length: ids and {argument: value}"
            raise DataError(f"{place(of_set.path, number)}: no instructions in it, {expected}")
        arguments = ({key: value for key, value in one.items() if value and value == value} for one in given or ())
        yield row_id(row, number), list(zip(map(str, ids or ()), arguments, strict=True))
