"""`python -m probe agreement`: how far a judge agrees with human labels, as tables or as JSON."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from probe import stats
from probe.errors import BadInput
from probe.judges import KNOWN_JUDGES, get_judge
from probe.judges.confusion import Agreement, agreement
from probe.judges.labelled import LabelledTurn, read_labelled
from probe.judges.labels import LABELS
from probe.judges.stored import StoredJudge
from probe.settings import ServerSection

__all__ = ["LabelledTurn", "add_arguments", "agreement", "format_agreement", "read_labelled", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `python -m probe agreement`."""
    parser.add_argument("labels", type=Path, help='JSONL of {"messages", "user_turn", "label"}')
    parser.add_argument("--judge", default="rules", help=f"which judge: {', '.join(KNOWN_JUDGES)} (default rules)")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    server = parser.add_argument_group("where the judges llm and cascade ask (any OpenAI-compatible server)")
    server.add_argument("--url", dest="urls", action="append", metavar="URL", help="such as http://localhost:8000/v1")
    server.add_argument("--model", metavar="NAME", help="as the server calls it (default: the one model it lists)")
    server.add_argument("--api-key-env", metavar="VARIABLE", help="which variable holds the key: OPENAI_API_KEY")
    server.add_argument("--concurrency", type=int, metavar="N", help="requests under way at once (default 16)")
    server.add_argument("--max-tokens", type=int, metavar="N", help="a reply's length, thinking too (default 1024)")
    parser.add_argument("--verdicts", type=Path, metavar="FILE", help="keeps verdicts, so that a killed run goes on")


def run(arguments: argparse.Namespace) -> None:
    """Prints how far `arguments.judge` agrees with the labels in `arguments.labels`."""
    rows = read_labelled(arguments.labels)
    judge = get_judge(arguments.judge, _server(arguments))
    asks = judge.name != "rules"
    if arguments.verdicts is None:
        found = agreement(rows, judge, progress=asks)
    else:
        stored = StoredJudge(judge, arguments.verdicts)
        try:
            found = agreement(rows, stored, progress=asks)
        finally:
            stored.close()
    print(json.dumps(found.as_json(), indent=2) if arguments.json else format_agreement(found))


def format_agreement(found: Agreement) -> str:
    """The figures, precision and recall of each label, and the confusion table as plain text."""
    lines = [f"judge {found.judge}: {found.n} turns, {found.n_scored} scored, {found.calls} calls"]
    lines += [f"  unscored, {reason}: {count}" for reason, count in found.unscored.items()]
    for name, measure in (("genuine or not", found.binary), ("all labels", found.full)):
        lines.append(f"{name:15} kappa {_shown(measure.kappa)}   accuracy {_shown(measure.accuracy)}")
    width = max(map(len, LABELS))
    lines += ["", f"{'':{width}}  {'human':>5}  {'judge':>5}  {'precision':22}  {'recall':22}"]
    for label, of in found.labels.items():
        counts = f"{of.recall.n:>5}  {of.precision.n:>5}"
        lines.append(f"{label:{width}}  {counts}  {_shown(of.precision):22}  {_shown(of.recall):22}".rstrip())
    columns = [label for label, figures in found.labels.items() if figures.precision.n]
    lines += ["", "human label, by row, against the judge's:"]
    lines.append(" " * width + "".join(f"  {label[:12]:>12}" for label in columns))
    for label, row in found.confusion.items():
        lines.append(f"{label:{width}}" + "".join(f"  {row.get(column, 0):>12}" for column in columns))
    return "\n".join(lines)


def _server(arguments: argparse.Namespace) -> ServerSection | None:
    given = {
        name: getattr(arguments, name)
        for name in ("urls", "model", "api_key_env", "concurrency", "max_tokens")
        if getattr(arguments, name) is not None
    }
    if given and arguments.judge == "rules":
        raise BadInput("the judge rules asks no server: leave the server's options out, or add --judge llm or cascade")
    if "urls" not in given:
        return None
    return ServerSection(**{**given, "urls": tuple(given["urls"])})


def _shown(estimate: stats.Estimate) -> str:
    if estimate.value is None:
        return "not defined"
    bounds = f" [{estimate.ci95[0]:.3f}, {estimate.ci95[1]:.3f}]" if estimate.ci95 else ""
    return f"{estimate.value:.3f}{bounds}"
