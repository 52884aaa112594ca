"""Compute the tables of README.md and docs/results.md from the samples and labels that the repository keeps.

    python recipes/results/tables.py            # print the tables
    python recipes/results/tables.py --write    # after a run was added: write SHA256SUMS and the tables of the pages

A page holds a table between `<!-- table: NAME -->`, or `<!-- short table: NAME -->`, and `<!-- end of table -->`. The name
`shown` is the list of what was shown, `moves` the table of what follows the strict labels. SHA256SUMS holds the hashes of the files that the tables were made from. tests/commands/test_kept_tables.py refuses a page or a file that has changed since.
"""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nextturn.probe.command.files import read_json, read_jsonl, write_atomic
from nextturn.probe.judges.verdicts import GENUINE
from nextturn.probe.kept import samples_file
from nextturn.probe.labels.correct import correct, label_files
from nextturn.probe.measures.followup import likeness
from nextturn.probe.report.comparison import (
    Comparison,
    CorrectedDifference,
    CorrectedRate,
    RunFigure,
    compare_runs,
    percent,
    points,
)
from nextturn.probe.results import FinishedRun, count_figures, load_runs
from nextturn.probe.stats import Estimate, paired_difference

ROOT = Path(__file__).resolve().parents[2]
SUMS = ROOT / "recipes/results/SHA256SUMS"
PAGES = ("README.md", "docs/results.md", "docs/reactions.md")
SHORT = (0, 1, 2, 5, 6, 7)
HEAD = ("run", "accuracy (n)", "change", "in pieces", "answers complete", "follow-up, strict (labels)", "sure only", "change", "commonest opening (n)", "changed by a cut answer (n)")  # fmt: skip

# The runs of each table: names of a page, and folders; several trainings of a recipe are "A+B". Then the labels, if not beside them.
QWEN = {
    name: f"recipes/results/{name}/probe"
    for name in ("base", "control-0", "control-1", "P-0", "P-1", "P_one-0", "P_varied-0", "P_varied-1")
}
QWEN |= {f"{arm}, both": f"{QWEN[f'{arm}-0']}+{QWEN[f'{arm}-1']}" for arm in ("control", "P", "P_varied")}
DEMO = {name: f"recipes/gallery/demo/probe/{name}" for name in ("base", "step-39")}
SMOLLM2 = {name: f"recipes/gallery/smollm2/{name}" for name in ("base", "sft", "grpo")}
TABLES = {
    "qwen": (QWEN, ""),
    "arms": ({name: QWEN[name] for name in ("base", "control, both", "P, both", "P_one-0", "P_varied, both")}, ""),
    "sft": (
        {
            "base": QWEN["base"],
            "SFT (two trainings)": QWEN["control, both"],
            "SFT with pieces (two)": QWEN["P_varied, both"],
        },
        "",
    ),
    "demo": (DEMO, "recipes/gallery/demo/labels.jsonl"),
    "smollm2": (SMOLLM2, "recipes/gallery/smollm2/labels.jsonl"),
}
# Pairs of runs whose strict labels were read in the same files: table, run, run. Then what may follow these labels.
PAIRS = (
    *(("qwen", "base", run) for run in QWEN if run != "base"),
    ("qwen", "control-0", "P-0"),
    ("qwen", "P-0", "P_varied-0"),
    ("demo", "base", "step-39"),
    ("smollm2", "base", "sft"),
    ("smollm2", "base", "grpo"),
    ("smollm2", "sft", "grpo"),
)
# What the page lists first: what was done, model and data, trainings with labels, and the pair of runs that shows it.
SHOWN = (
    ("SFT on worked solutions", "SmolLM2-135M, generated one-step problems", 1, ("demo", "base", "step-39")),
    ("GRPO that rewards right answers, from SFT", "the same", 1, ("smollm2", "sft", "grpo")),
    (
        "SFT on own solutions and written conversations",
        "Qwen2.5-Coder-0.5B-Instruct, GSM8K",
        2,
        ("qwen", "base", "control, both"),
    ),
    ("the same with problems told in pieces", "the same", 2, ("qwen", "base", "P, both")),
    ("pieces with replies in many forms", "the same", 2, ("qwen", "base", "P_varied, both")),
)
MOVES = ("follow-up, strict", "`rules`", "grounding", "changed by a cut answer", "names a thing of the answer", "commonest opening")  # fmt: skip


def folders_of(runs: dict[str, str]) -> list[Path]:
    """Return all folders of a table, also the probes of the cut answer."""
    found = [ROOT / part for folder in runs.values() for part in folder.split("+")]
    return found + [cut for folder in found if (cut := folder.with_name("cut")).is_dir()]


def read_strict(
    name: str, shown: list[str]
) -> tuple[list[FinishedRun], dict[str, CorrectedRate], dict[str, CorrectedDifference]]:
    """Return runs of a table, their rates by labels over all sets and temperatures, and the changes of these from the first run."""
    folders, labels = TABLES[name]
    runs = load_runs(["+".join(str(ROOT / part) for part in folders[run].split("+")) for run in shown])
    correction = correct(runs, [ROOT / labels] if labels else label_files([], runs))
    rates, changes = (
        {each.run: each for each in of if each.set is None and each.temperature is None}
        for of in (correction.rates, correction.differences)
    )
    return runs, rates, changes


def table(name: str, short: bool = False) -> str:
    """Return a table: percent, and points for changes from the first run, with 95% intervals.

    Args:
        short: Only the columns of SHORT.

    Raises:
        ValueError: The samples of a run do not give the figures of its results.json.
    """
    folders = TABLES[name][0]
    first, *_ = folders
    rows = [HEAD, ("---",) * len(HEAD)]
    for shown in folders:
        # A training stands in the row of its own and in the row of its recipe, and a comparison takes each once.
        runs, rates, changes = read_strict(name, list(dict.fromkeys((first, shown))))
        run = runs[-1]
        for part in run.parts:
            check_counts(part.folder)
        figures = greedy_figures(compare_runs(runs), run)
        rate, change = rates[run.name], changes.get(run.name)
        accuracy, opening = figures["accuracy", "lenient"], commonest_opening(run)
        pieces = figures.get(("sharded", "sharded"))
        rows.append((
            shown,
            f"{percent(accuracy.estimate)} ({accuracy.estimate.n})",
            points(accuracy.changes["baseline"]) if accuracy.changes else "",
            percent(pieces.estimate) if pieces else "-",
            percent(figures["clarify", "answer_when_complete"].estimate),
            f"{percent(rate.corrected)} ({rate.labels})",
            percent(rate.sure),
            points(change.corrected) if change else "",
            opening,
            changed_when_cut(run),
        ))  # fmt: skip
    shown_columns = SHORT if short else range(len(HEAD))
    return "\n".join("| " + " | ".join(row[place] for place in shown_columns) + " |" for row in rows)


def table_of(name: str, short: bool = False) -> str:
    """Return the table that a page names."""
    return {"shown": shown, "moves": moves}[name]() if name in ("shown", "moves") else table(name, short)


def check_counts(folder: Path) -> None:
    """Raise ValueError if the samples of a run do not give the figures of its results.json."""
    rows = [row for _, row in read_jsonl(samples_file(folder))]
    stored, counted = read_json(folder / "results.json"), count_figures(rows)
    for measure in ("accuracy", "clarify", "sharded"):
        for of_set, values in counted.get(measure, {}).items():
            kept = stored[measure][of_set]
            differing = [name for name in values.keys() & kept.keys() if values[name] != kept[name]]
            if differing:
                raise ValueError(
                    f"{folder}: {measure} of {of_set}: {differing[0]} of samples.jsonl is not that of results.json"
                )


def greedy_figures(comparison: Comparison, run: FinishedRun) -> dict[tuple[str, str], RunFigure]:
    """Return the figures of a run without decoding or with greedy decoding, those of its first set."""
    found: dict[tuple[str, str], RunFigure] = {}
    for figure in comparison.figures:
        if figure.run == run.name and figure.metric.temperature in ("", "T=0.0"):
            found.setdefault((figure.metric.measure, figure.metric.name), figure)
    return found


def commonest_opening(run: FinishedRun) -> str:
    """Return the commonest first two words of a run's greedy user turns, all sets together, with their share."""
    turns = [turn for turn in turns_of(run) if turn["temperature"] == 0]
    alike = likeness(turns)
    return f'{100 * alike["opening_share"]:.0f} "{alike["opening"]}" ({len(turns)})'


def changed_when_cut(run: FinishedRun) -> str:
    """Return the share of greedy user turns that change when half of the answer is cut."""
    cut = [folder for part in run.parts if (folder := part.folder.with_name("cut")).is_dir()]
    if not cut:
        return "-"
    runs = load_runs(["+".join(map(str, cut))])
    figure = greedy_figures(compare_runs(runs), runs[0])["perturbed", "changed_text"]
    return f"{percent(figure.estimate)} ({figure.estimate.n})"


def moves() -> str:
    """Return for each pair of runs how each figure of the user turns moves beside the strict labels.

    "up" and "down" are changes whose 95% interval excludes 0. The last two figures are of different turns in the two runs
    and have no interval.
    """
    rows = [("from, to", *MOVES), ("---",) * (1 + len(MOVES))]
    for name, first, second in PAIRS:
        runs, _, changes = read_strict(name, [first, second])
        turns = [turns_of(run) for run in runs]
        rules = [values_of(of_run, lambda turn: turn["label"] == GENUINE) for of_run in turns]
        grounding = [values_of(of_run, lambda turn: turn["grounding"]) for of_run in turns]
        changed = [values_of(turns_of(run, cut=True), lambda turn: turn["changed"]) for run in runs]
        named = [[turn["specific"] for turn in of_run if turn["label"] == GENUINE] for of_run in turns]
        openings = [likeness([turn for turn in of_run if turn["temperature"] == 0]) for of_run in turns]
        rows.append((
            f"{name}: {first}, {second}",
            moved(changes[runs[1].name].corrected),
            moved(paired_difference(*rules)),
            moved(paired_difference(*grounding), "nats"),
            moved(paired_difference(*changed)),
            ", ".join(f"{100 * sum(of_run) / len(of_run):.0f}" for of_run in named),
            ", ".join(f'{100 * of_run["opening_share"]:.0f} "{of_run["opening"]}"' for of_run in openings),
        ))  # fmt: skip
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def shown() -> str:
    """Return the list of what was shown: for each change its paired difference, and a verdict that follows from the interval.

    A change is "shown" if its 95% interval excludes 0, "once" if it is of one training.
    """
    head = ("what", "model, data", "trainings", "accuracy (n)", "in pieces", "follow-up, strict (labels of both)", "of these sure", "folder", "verdict")  # fmt: skip
    rows: list[tuple[str, ...]] = [head, ("---",) * len(head)]
    for what, data, trainings, (name, first, second) in SHOWN:
        runs, rates, of_strict = read_strict(name, [first, second])
        figures, strict = greedy_figures(compare_runs(runs), runs[1]), of_strict[runs[1].name].corrected
        accuracy = figures["accuracy", "lenient"].changes["baseline"]
        pieces = figures["sharded", "sharded"].changes["baseline"] if ("sharded", "sharded") in figures else None
        changes = {"accuracy": accuracy, "in pieces": pieces, "follow-up": strict}
        rows.append((
            what,
            data,
            str(trainings),
            f"{points(accuracy)} ({accuracy.n})",
            points(pieces) if pieces else "-",
            f"{points(strict)} ({sum(rate.labels for rate in rates.values())})",
            " to ".join("-" if rate.sure.value is None else f"{100 * rate.sure.value:.0f}" for rate in rates.values()),
            f"`{'/'.join(TABLES[name][0][second].split('/')[:3])}`",
            ", ".join(f"{of} {verdict(change, trainings)}" for of, change in changes.items() if change),
        ))  # fmt: skip
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def verdict(change: Estimate, trainings: int) -> str:
    """Return what an interval of a change says."""
    way = {"up": "gain", "down": "loss"}.get(direction(change))
    return f"{way} shown{'' if trainings > 1 else ' once'}" if way else "not told"


def direction(change: Estimate) -> str:
    """Return "up" or "down" if the 95% interval of a change excludes 0, else "not told"."""
    low, high = change.ci95 or (0, 0)
    return "up" if low > 0 else "down" if high < 0 else "not told"


def turns_of(run: FinishedRun, cut: bool = False) -> list[dict[str, Any]]:
    """Return the user turns of all trainings of a run, after whole or after cut answers; none where no cut answer was measured."""
    folders = [part.folder.with_name("cut") if cut else part.folder for part in run.parts]
    rows = [row for folder in folders if folder.is_dir() for _, row in read_jsonl(samples_file(folder))]
    return [row for row in rows if row["kind"] == "followup" and (row["perturbation"] != "none") == cut]


def values_of(turns: list[dict[str, Any]], value: Callable[[dict[str, Any]], float | None]) -> dict[str, list[float]]:
    """Return the values of turns by item."""
    found: dict[str, list[float]] = {}
    for turn in turns:
        if (of_turn := value(turn)) is not None:
            found.setdefault(f"{turn['set']} {turn['item']}", []).append(float(of_turn))
    return found


def moved(change: Estimate, unit: str = "percent") -> str:
    """Return where a change goes, with its interval; "-" if it was not measured."""
    if change.value is None or change.ci95 is None:
        return "-"
    return f"{direction(change)}: {points(change, unit)}"


def sums() -> str:
    """Return the hashes of all files behind the tables, as sha256sum writes them."""
    folders = {folder for runs, _ in TABLES.values() for folder in folders_of(runs)}
    files = {file for folder in folders for file in folder.iterdir()} | {
        ROOT / labels for _, labels in TABLES.values() if labels
    }
    hashes = {str(file.relative_to(ROOT)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}
    return "".join(f"{hashes[name]}  {name}\n" for name in sorted(hashes))


def with_tables(page: str) -> str:
    """Return the text of a page with its tables computed again."""
    return re.sub(
        r"(<!-- (short )?table: (\w+) -->\n).*?(<!-- end of table -->)",
        lambda found: f"{found[1]}{table_of(found[3], short=bool(found[2]))}\n{found[4]}",
        page,
        flags=re.DOTALL,
    )  # fmt: skip


def main() -> None:
    if sys.argv[1:] == ["--write"]:
        write_atomic(SUMS, sums())
        for name in PAGES:
            page = ROOT / name
            write_atomic(page, with_tables(page.read_text(encoding="utf-8")))
    else:
        print("\n\n".join([*map(table_of, ("shown", *TABLES, "moves"))]))


if __name__ == "__main__":
    main()
