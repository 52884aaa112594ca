"""`nextturn probe log`: how often users repeat themselves in a log of conversations. No model is used.

Rules (`nextturn.probe.text.repeats`) find user turns that repeat or rephrase an earlier one, and turns that say so ("as I said").
Writes log.json and log.md: both shares by depth, week and any column, and the turns behind each share.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from nextturn.probe.command.files import write_atomic, write_json
from nextturn.probe.command.terminal import aligned, printable
from nextturn.probe.data.messages import said_by
from nextturn.probe.engines.stored import Row
from nextturn.probe.measures.base import Figure, count, read
from nextturn.probe.questions.sets import read_items
from nextturn.probe.report.comparison import percent
from nextturn.probe.report.page import escaped, markdown_table
from nextturn.probe.results import count_by
from nextturn.probe.text.repeats import is_english, repeats, says_so

NOTE = """{conversations} conversations. A user turn counts if an answer came before it. Depth is the number of the user turn.
{not_english} turns are not in English and in no share. Rules on words find no repeat in other words, so a share is no estimate of
all repeats. docs/logs.md says how often the rules are right."""
FIGURES = (Figure("repeats", title="repeats or rephrases"), Figure("as_i_said", title="says so"))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, help="finished conversations, in any form of docs/your-data.md")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="where log.json and log.md are written")
    of_by = "also count by the values of this column, such as segment; can be repeated"
    parser.add_argument("--by", action="append", default=[], metavar="COLUMN", help=of_by)
    parser.add_argument("--date", metavar="COLUMN", help="the column with the date, for weeks (default: date)")


def run(arguments: argparse.Namespace) -> None:
    report = count_log(list(read_log(arguments.file, arguments.by, arguments.date)))
    write_json(arguments.out / "log.json", report)
    write_atomic(arguments.out / "log.md", markdown(report, arguments.file.name))
    print("\n".join([*aligned(_shares(report)), *(str(arguments.out / name) for name in ("log.md", "log.json"))]))


def read_log(path: Path, by: Sequence[str] = (), date_column: str | None = None) -> Iterator[Row]:
    """Yield a row for each user turn after an answer. A turn that is not in English has no values.

    Raises:
        DataError: The file or a column cannot be read.
    """
    columns = {"date": date_column} if date_column else {}
    for item in read_items(path, transcript=True, columns=columns, every=True, by=("depth", "week", *by)):
        turn, earlier = item.actual or "", said_by(item.messages, "user")
        place, words = repeats(turn, earlier, item.reply or ""), says_so(turn)
        values = {"repeats": place is not None, "as_i_said": words is not None} if is_english(turn) else {}
        yield {
            "item": item.id, "cluster": item.cluster, "by": item.by, "values": values,
            "turn": turn, "repeats": earlier[place - 1] if place else None, "as_i_said": words,
        }  # fmt: skip


def count_log(rows: Sequence[Row]) -> dict[str, Any]:
    """Return the content of log.json: the figures of all turns and of each part with the ids behind each, and the turns found."""
    return {
        "conversations": len({row["cluster"] for row in rows}),
        "not_english": sum(not row["values"] for row in rows),
        "all": _count(rows),
        "by": count_by(rows, _count),
        "found": [row for row in rows if any(row["values"].values())],
    }


def _count(rows: Sequence[Row]) -> dict[str, Any]:
    items = {figure.name: [row["item"] for row in rows if row["values"].get(figure.name)] for figure in FIGURES}
    return {**count(FIGURES, rows), "items": items}


def _shares(report: dict[str, Any]) -> list[list[str]]:
    """Return a table with a row for all turns and for each part, in percent."""
    parts = {f"{column} {value}": of for column, values in report["by"].items() for value, of in values.items()}
    head = ["user turns in percent", "n", *(figure.title for figure in FIGURES)]
    counted = {"all": report["all"], **parts}.items()
    rows = [[printable(name, 40), str(of["n"]), *map(percent, read(FIGURES, of).values())] for name, of in counted]
    return [head, *rows]


def markdown(report: dict[str, Any], name: str) -> str:
    """Return log.md: the shares, and the turns behind them."""
    columns, keys = ["conversation#turn", *report["by"], "says so", "turn", "repeats"], ("as_i_said", "turn", "repeats")
    found = [
        [row["item"], *(row["by"].get(column, "") for column in report["by"]), *(row[key] or "" for key in keys)]
        for row in report["found"]
    ]
    note = NOTE.format(**report)
    tables = [markdown_table(_shares(report)), "## Turns", markdown_table([columns, *found])]
    return "\n\n".join([f"# User turns of {escaped(name)}", note, *tables]) + "\n"
