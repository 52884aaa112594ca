"""`nextturn probe compare`: several probe runs held against the first one, the baseline.

Writes comparison.md, tradeoff.png, report.html and comparison.json and prints the main table. Runs that were measured
differently are refused; with --force they are shown with what differs. Where user turns were labelled by a reader, the
follow-up rates that the labels make stand beside the judge's.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from nextturn.probe.errors import BadInput, IncomparableRuns
from nextturn.probe.files import write_atomic, write_json
from nextturn.probe.labels.correct import correction_table, with_labels
from nextturn.probe.report.comparison import Comparison, as_json, compare_runs, load_runs, terminal_table

FILES = ("report.html", "comparison.md", "comparison.json", "tradeoff.png")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "folders",
        nargs="+",
        type=Path,
        metavar="DIR",
        help="finished probe runs, the baseline first, or a training run",
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="where the comparison is written")
    parser.add_argument(
        "--labels", type=Path, metavar="FILE", help="what `probe label` wrote (default: labels.jsonl in a DIR, if any)"
    )
    parser.add_argument("--force", action="store_true", help="compare runs that were measured differently")


def run(args: argparse.Namespace) -> None:
    comparison = compare(args.folders, args.out, args.force, args.labels)
    print(terminal_table(comparison))
    if comparison.correction:
        print(f"\n{correction_table(comparison.correction)}")
    for path in (args.out / name for name in FILES):
        if path.is_file():  # no trade-off is drawn where one of its two figures is missing
            print(path)


def compare(dirs: Sequence[Path], out: Path, force: bool = False, labels: Path | None = None) -> Comparison:
    """Compares finished probe runs and writes FILES to `out`, comparison.json last.

    Args:
        labels: what `probe label` wrote; where None, the labels.jsonl in the folders, if there are any.

    Raises:
        BadInput: a folder is missing, unfinished or of another schema, `out` is a file, or `labels` cannot be used.
        IncomparableRuns: the runs were measured differently and `force` is off.
    """
    from nextturn.probe.report.page import html, markdown
    from nextturn.probe.report.plot import draw_tradeoff

    if out.exists() and not out.is_dir():
        raise BadInput(f"--out {out}: a file, wanted a folder to write the comparison to")
    comparison = compare_runs(load_runs([Path(folder) for folder in dirs]))
    if comparison.differences and not force:
        raise IncomparableRuns(
            f"these runs were measured differently: {'; '.join(comparison.differences)}. "
            "Probe them with the same settings, or add --force to compare them all the same"
        )
    comparison = with_labels(comparison, dirs, labels)
    write_atomic(out / "comparison.md", markdown(comparison))
    draw_tradeoff(comparison, out / "tradeoff.png")
    write_atomic(out / "report.html", html(comparison))
    write_json(out / "comparison.json", as_json(comparison))
    return comparison
