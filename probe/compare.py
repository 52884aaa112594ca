"""`nextturn probe compare`: compare several probe runs with the first one, the baseline.

Writes comparison.md, tradeoff.png, report.html and comparison.json and prints the main table. Runs that were measured
differently are refused. `--accept template` accepts another chat template alone, and --force every difference; the report
says what differs. If user turns were labelled by an annotator, the report also shows the follow-up rates corrected by those
labels. With --keep or --gain the command is a gate: it ends with exit code 4 if the run lost what it must keep or gain, and
3 if that cannot be told.
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator, Sequence
from datetime import date
from pathlib import Path

from nextturn.probe.command.errors import BadInput, IncomparableRuns
from nextturn.probe.command.files import read_json, write_atomic, write_json
from nextturn.probe.kept import add_questions_argument
from nextturn.probe.labels.correct import correction_table, with_labels
from nextturn.probe.models.checkpoints import list_checkpoints, why_incomplete
from nextturn.probe.report.comparison import ACCEPTABLE, Comparison, as_json, compare_runs, plain, terminal_table
from nextturn.probe.report.gate import ENDS, gate_of, gate_table
from nextturn.probe.report.plot import draw_tradeoff
from nextturn.probe.results import load_runs


def add_arguments(parser: argparse.ArgumentParser) -> None:
    folders = "finished probe runs, the baseline first, or a training run; A+B takes two trainings of a recipe together"
    parser.add_argument("folders", nargs="+", type=Path, metavar="DIR", help=folders)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="where the comparison is written")
    labels = "output of `probe label` (default: labels.jsonl in a DIR, if any)"
    parser.add_argument("--labels", type=Path, metavar="FILE", help=labels)
    y = "what the y axis of the plot shows (default: followup)"
    parser.add_argument("--y", default="followup", metavar="MEASURE", help=y)
    parser.add_argument("--wandb", metavar="PROJECT", help="also show the comparison in this project of wandb")
    parser.add_argument("--force", action="store_true", help="compare runs that were measured differently")
    accept = (
        "accept one difference and no other; template: models of two families have other chat templates and end tokens"
    )
    parser.add_argument("--accept", action="append", default=[], choices=ACCEPTABLE, help=accept)
    keep = "a gate: most points that a figure of each set, or SET.FIGURE, may lose; can be repeated"
    parser.add_argument("--keep", action="append", default=[], metavar="accuracy=-3", help=keep)
    gain = "fewest points that it must gain; exit code 4: lost, 3: cannot tell"
    parser.add_argument("--gain", action="append", default=[], metavar="followup=5", help=gain)
    add_questions_argument(parser)


def run(arguments: argparse.Namespace) -> None:
    out, y, keep, gain = arguments.out, arguments.y, arguments.keep, arguments.gain
    options = arguments.force, arguments.labels, y, arguments.questions, keep, gain, arguments.accept
    comparison = compare(arguments.folders, out, *options)
    print(f"{comparison.trainings}\n\n{terminal_table(comparison)}")
    if arguments.wandb:
        from nextturn.probe.report.tracking import report_comparison

        report_comparison(arguments.wandb, [(run.name, run.results) for run in comparison.runs], arguments.out)
    if comparison.correction:
        print(f"\n{correction_table(comparison.correction)}")
    for name in ("report.html", "comparison.md", "comparison.json", "tradeoff.png"):
        if (arguments.out / name).is_file():
            print(arguments.out / name)
        else:
            print(f"no {name}: no set has {arguments.y} in percent, or the accuracy for the x axis is missing")
    print("\n".join(["", *comparison.summary, *(line for run in arguments.folders for line in unmeasured(run))]))
    if keep or gain:
        gate = gate_of(comparison, keep, gain)
        print(f"\n{gate_table(gate)}")
        if gate.verdict in ENDS:
            raise ENDS[gate.verdict](f"gate: {gate.verdict} ({gate.run} against {gate.baseline})")


def unmeasured(run_dir: Path) -> Iterator[str]:
    """Yield a line for each complete checkpoint of a training run without a finished probe, with the command that measures it."""
    for step, checkpoint in reversed(list_checkpoints(run_dir)):
        if not (run_dir / "probe" / f"step-{step}" / "results.json").is_file() and why_incomplete(checkpoint) is None:
            recipe = "" if any(read_json(path).get("probe") for path in run_dir.glob("recipe.json")) else " RECIPE"
            yield f"{checkpoint.name} is not measured: nextturn probe watch {shlex.quote(str(run_dir))}{recipe} --once"


def compare(
    dirs: Sequence[Path],
    out: Path,
    force: bool = False,
    labels: Path | None = None,
    y: str = "followup",
    questions: Sequence[str] = (),
    keep: Sequence[str] = (),
    gain: Sequence[str] = (),
    accept: Sequence[str] = (),
) -> Comparison:
    """Compare finished probe runs and write the report to `out`, comparison.json last.

    Args:
        dirs: See `load_runs`; the first run is the baseline.
        force: Compare runs that were measured differently.
        labels: Output of `probe label`; if None, the labels.jsonl in the folders, if there are any.
        y: What the y axis of the plot shows: "followup", "sharded", "doubted" or a measure of your own.
        questions: Question sets whose text is shown in place of the ids of kept runs.
        keep, gain: Bounds of a gate (`report.gate`), whose verdict stands in comparison.json.
        accept: Differences that are no reason to refuse (`report.comparison.ACCEPTABLE`).

    Raises:
        BadInput: A folder is missing, unfinished or of another schema, `out` is a file, or `labels` or a bound cannot be used.
        IncomparableRuns: The runs were measured differently and `force` is False.
    """
    from nextturn.probe.report.page import html, markdown

    if out.exists() and not out.is_dir():
        raise BadInput(f"--out {out}: this is a file; give a folder for the comparison")
    comparison = compare_runs(load_runs(dirs, questions), accept)
    if y not in (known := ["followup", *comparison.declared]):
        raise BadInput(f"--y: given {y}, expected one of {', '.join(known)}")
    if comparison.differences and not force:
        reasons = "; ".join(comparison.differences)
        again = "; nextturn probe judge DIR grades the replies of an older run again" if "grading: " in reasons else ""
        template = "; --accept template accepts the two chat templates alone" if "chat template: " in reasons else ""
        raise IncomparableRuns(
            f"these runs were measured differently: {reasons}. Measure them with the same settings (for dtype: --probe.dtype "
            f"float32), or add --force{again}{template}"
        )
    comparison = with_labels(comparison, dirs, labels, force)
    verdict = {"gate": plain(gate_of(comparison, keep, gain))} if keep or gain else {}
    plot = draw_tradeoff(comparison, y)
    if plot:
        write_atomic(out / "tradeoff.png", plot)
    else:  # of an earlier comparison
        (out / "tradeoff.png").unlink(missing_ok=True)
    write_atomic(out / "comparison.md", markdown(comparison, plot is not None))
    made = f"{date.today()}: nextturn probe compare {shlex.join(map(str, [*dirs, '--out', out]))}"
    write_atomic(out / "report.html", html(comparison, plot, made=made))
    write_json(out / "comparison.json", {**as_json(comparison), **verdict})
    return comparison
