"""`nextturn probe log`: how often users repeat themselves in a log of conversations. No model is used.

Rules (`nextturn.probe.text.repeats`) find user turns that repeat or rephrase an earlier one, and turns that say so ("as I said").
Writes log.json and log.md: both shares by depth, week and any column, and the turns behind each share.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterator, Sequence
from datetime import date
from pathlib import Path
from typing import Any

from nextturn.probe.command.errors import BadInput, DataError
from nextturn.probe.command.files import write_atomic, write_json
from nextturn.probe.command.terminal import aligned, printable
from nextturn.probe.data.messages import read_transcripts, said_by
from nextturn.probe.engines.stored import Row
from nextturn.probe.measures.base import Figure, count, read
from nextturn.probe.questions.sets import values_of_columns
from nextturn.probe.report.comparison import percent
from nextturn.probe.report.page import escaped
from nextturn.probe.results import natural
from nextturn.probe.text.repeats import is_english, repeats, says_so

FIGURES = (
    Figure("repeats", title="repeats or rephrases", better="down"),
    Figure("as_i_said", title="says so", better="down"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, help="finished conversations, in any form of docs/your-data.md")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="where log.json and log.md are written")
    of_by = "a column of the rows by whose values the figures are counted apart, too, such as segment; can be repeated"
    parser.add_argument("--by", action="append", default=[], metavar="COLUMN", help=of_by)
    parser.add_argument("--date", default="date", metavar="COLUMN", help="the column with the date (default: date)")


def run(arguments: argparse.Namespace) -> None:
    if arguments.out.is_file():
        raise BadInput(f"--out {arguments.out}: this is a file; give a folder")
    rows = list(read_log(arguments.file, arguments.by, arguments.date))
    if unknown := [name for name in arguments.by if not any(name in row["by"] for row in rows)]:
        raise BadInput(f"--by {unknown[0]}: no row of {arguments.file} has a value in this column")
    report = {"file": str(arguments.file), **count_log(rows)}
    write_json(arguments.out / "log.json", report)
    write_atomic(arguments.out / "log.md", markdown(report))
    print("\n".join(aligned([_HEAD, *_lines(report)])))
    for name in ("log.md", "log.json"):
        print(arguments.out / name)


def read_log(path: Path, by: Sequence[str] = (), date_column: str = "date") -> Iterator[Row]:
    """Yield a row for each user turn that follows an answer; turns in other languages than English have no values.

    Raises:
        DataError: A row holds no conversation, or a date that is not written as 2026-11-28.
    """
    for key, row, transcripts in read_transcripts(path, every=True):
        for each in transcripts:
            parts = values_of_columns(row, ("depth", *by), each.depth)
            if row.get(date_column):
                parts["week"] = _week(str(row[date_column]), f"{path}: conversation {key}: `{date_column}`")
            earlier, turn = said_by(each.context, "user"), each.actual
            known = is_english(turn)
            found, said = (repeats(turn, earlier, each.reply), says_so(turn)) if known else (None, None)
            yield {
                "item": f"{key}#{each.depth}", "cluster": key, "by": parts, "turn": turn,
                "earlier": earlier[found - 1] if found else None, "as_i_said": said,
                "values": {"repeats": found is not None, "as_i_said": said is not None} if known else {},
            }  # fmt: skip


def _week(written: str, where: str) -> str:
    """Return the ISO week of a date or of a time that begins with one, such as "2026-W48"."""
    try:
        return "{}-W{:02}".format(*date.fromisoformat(written[:10]).isocalendar())
    except ValueError:
        raise DataError(f"{where} is {written!r:.40}, expected a date such as 2026-11-28") from None


def count_log(rows: Sequence[Row]) -> dict[str, Any]:
    """Return the content of log.json: the figures of all turns and of each part, each with the ids behind it."""
    parts: dict[str, dict[str, list[Row]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        for column, value in row["by"].items():
            parts[column][value].append(row)
    by = {
        column: {value: _counted(values[value]) for value in sorted(values, key=natural)}
        for column, values in parts.items()
    }
    found = [row for row in rows if any(row["values"].values())]
    return {
        "conversations": len({row["cluster"] for row in rows}),
        "not_english": sum(not row["values"] for row in rows),
        "all": _counted(rows),
        "by": by,
        "found": [{key: value for key, value in row.items() if key not in ("values", "cluster")} for row in found],
    }


def _counted(rows: Sequence[Row]) -> dict[str, Any]:
    items = {figure.name: [row["item"] for row in rows if row["values"].get(figure.name)] for figure in FIGURES}
    return {**count(FIGURES, rows), "items": items}


_HEAD = ["user turns", "n", *(f"{figure.title} %" for figure in FIGURES)]


def _lines(report: dict[str, Any]) -> list[list[str]]:
    """Return a line for all turns and for each part, with the shares in percent."""
    parts = [("all", report["all"])]
    parts += [(f"{column} {value}", of) for column, values in report["by"].items() for value, of in values.items()]
    return [
        [printable(name, 40), str(of["n"]), *(percent(estimate) for estimate in read(FIGURES, of).values())]
        for name, of in parts
    ]


def markdown(report: dict[str, Any]) -> str:
    """Return log.md: the shares, and the turns behind them."""
    notes = (
        f"{report['conversations']} conversations. A user turn counts if an answer came before it. {report['not_english']} turns are "
        "not in English and in no share. Depth is the number of the user turn. The rules are right about as often as docs/logs.md "
        "says; they do not find a repeat in other words, so the shares are no estimate of all repeats."
    )
    found = [
        [each["item"], ", ".join(each["by"].values()), each["as_i_said"] or "", each["turn"], each["earlier"] or ""]
        for each in report["found"]
    ]
    columns = ["conversation#turn", ", ".join(report["by"]), "says so", "turn", "repeats"]
    return "\n\n".join([
        f"# User turns of {escaped(report['file'])}", notes,
        _table([_HEAD, *_lines(report)]), "## Turns", _table([columns, *found]),
    ]) + "\n"  # fmt: skip


def _table(rows: list[list[str]]) -> str:
    shown = [[escaped(cell, 200) for cell in row] for row in rows]
    shown.insert(1, ["---"] * len(rows[0]))
    return "\n".join(f"| {' | '.join(row)} |" for row in shown)
