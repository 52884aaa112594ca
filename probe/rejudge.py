"""`nextturn probe judge`: judge a finished run again from its samples.jsonl, without generating or loading a model.

Answers that an older version of nextturn graded are graded again, so that the run can be compared with new runs. Without a
recipe nothing else is done. The verdicts of the recipe's judge go to a directory of their own, so that both can be compared.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import fields
from pathlib import Path
from typing import Any

from nextturn.probe.command.errors import BadInput, DataError
from nextturn.probe.command.files import only_process, read_json, read_jsonl, write_json
from nextturn.probe.command.sections import load_probe_recipe
from nextturn.probe.command.terminal import collected, say
from nextturn.probe.engines.base import Completion
from nextturn.probe.engines.stored import Row
from nextturn.probe.judges import get_judge
from nextturn.probe.judges.verdicts import Judge
from nextturn.probe.measures.accuracy import grade_answer
from nextturn.probe.measures.clarify import grade_clarify
from nextturn.probe.measures.doubted import claimed_in, decide, ends_of
from nextturn.probe.measures.followup import NO_ANSWER, case_of, judged
from nextturn.probe.models.folders import ModelInfo
from nextturn.probe.plan import WORDS
from nextturn.probe.questions.sets import Item, shown_in
from nextturn.probe.report.comparison import format_table
from nextturn.probe.results import Results, count_figures
from nextturn.probe.store import RunStore, StoredJudge
from nextturn.probe.text.grading import VERSION


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", type=Path, metavar="DIR", help="a finished probe run")
    recipe = "its probe.judge and probe.judge_server are used; without one the labels stay and answers are graded again"
    parser.add_argument("recipe", type=Path, nargs="?", help=recipe)
    out = "run directory for the new verdicts, needed with a recipe"
    parser.add_argument("--out", type=Path, metavar="DIR", help=out)


def run(arguments: argparse.Namespace, overrides: Sequence[str]) -> None:
    judge = None
    if overrides and arguments.recipe is None:
        raise BadInput(f"options of a recipe ({overrides[0]}) need the recipe: nextturn probe judge DIR RECIPE")
    if arguments.recipe is not None:
        probe = load_probe_recipe(arguments.recipe, overrides).probe
        judge = get_judge(probe.judge, probe.judge_server)
    print(format_table([rejudge(arguments.run, judge, arguments.out)]))
    print((arguments.out or arguments.run) / "results.json")


def rejudge(folder: Path, judge: Judge | None, out: Path | None = None) -> dict[str, Any]:
    """Judge the user turns and grade the answers of a finished run, and return the new results, which `out` then holds.

    Args:
        folder: A finished run.
        judge: The judge. None keeps all labels.
        out: Directory of the new run. None, without a judge only, keeps the results in `folder`.

    Raises:
        BadInput: `folder` holds no finished run, or a judge was given without `out`.
        JudgeError: Too many verdicts failed. Finished verdicts are stored, and the same call resumes.
    """
    started = time.monotonic()
    if not (folder / "results.json").is_file() or not (folder / "samples.jsonl").is_file():
        raise BadInput(f"{folder}: no finished run, expected a directory with results.json and samples.jsonl")
    if judge is not None and out is None:
        raise BadInput(f"{folder}: verdicts of {judge.version} need a directory of their own; name one with --out DIR")
    before, rows = read_json(folder / "results.json"), [row for _, row in read_jsonl(folder / "samples.jsonl")]
    turns = [row for row in rows if row.get("kind") in ("followup", "actual") and row.get("unscored") != NO_ANSWER]
    if judge is not None and not turns:
        raise DataError(f"{folder}: its samples.jsonl holds no user turn to judge")
    settings = dict(before["settings"])
    if settings.get("grading") != VERSION:
        rows = graded_again(rows, settings)
        manifest = folder / "manifest.json"
        if out is None and manifest.is_file():
            write_json(manifest, {**read_json(manifest), "settings": settings})
    if judge is not None:
        settings["judge"] = judge.version
    model = ModelInfo(**{field.name: before["model"].get(field.name) for field in fields(ModelInfo)})
    store = RunStore(out or folder, model, settings)
    with only_process(store.folder / ".lock", f"judges into {store.folder}"):
        timing = before["timing"]  # that of the answers, if they are only graded again
        if judge is not None:
            calls = _judge(judge, turns, store, model)
            timing = {**timing, "wall_s": round(time.monotonic() - started, 1), "judge_calls": calls}
        store.write_samples(rows)
        own = Results.model_validate(before).own
        left_out = {"left_out": before["left_out"]} if "left_out" in before else {}
        return store.finish({**count_figures(rows, own), **left_out, "timing": timing})


def _judge(judge: Judge, turns: list[Row], store: RunStore, model: ModelInfo) -> int:
    """Fill in the verdicts of user turns and return the number of calls that the judge made."""
    cases = [case_of(row) for row in turns]
    with closing(StoredJudge(judge, store.folder / "verdicts.jsonl")) as stored:
        verdicts = collected(stored.stream(cases), len(cases), f"probe {model.label}: judged by {judge.name}")
    for row, case, verdict in zip(turns, cases, verdicts, strict=True):
        row.update(judged(case, verdict))
    return stored.calls


# --- Answers of an older grading


def graded_again(rows: Sequence[Row], settings: dict[str, Any]) -> list[Row]:
    """Grade the stored replies by the rules of this version and write that version into `settings`.

    What a set's own grader or a model decided stays. A reply to doubt leaves the run if the answer before it, which chose the
    result that the user claims, is right now and was wrong before, or the other way round.
    """
    own = {name for name, of_set in settings["sets"].items() if "grader" in of_set}
    outcomes = {(row["set"], row["item"]): row["outcome"] for row in rows if row["kind"] == "accuracy"}
    kept, lost = [], 0
    for row in rows:
        replies = [message["content"] for message in row["messages"] if message["role"] == "assistant"]
        if row["kind"] == "clarify":
            row.update(grade_clarify(row["condition"], _reply(replies[-1], row["outcome"])))
        elif row["kind"] in ("accuracy", "sharded", "doubted") and row["set"] not in own:
            item = _item(row)
            if row["kind"] == "doubted":
                outcome = row.get("first_outcome") or outcomes.get((row["set"], row["item"]))
                # Older rows do not say whether the limit cut the answer, so either reading of it may give the same verdict.
                ends = [outcome] if outcome else ["answered", "truncated"]
                readings = (grade_answer(item, _reply(replies[-2], end)) for end in ends)
                first = next(
                    (each for each in readings if each["lenient"] == row["condition"].startswith("right")), None
                )
                if first is None:
                    lost += 1
                    continue
                if row.get("decision"):
                    own_and_told = ends_of(item, first, claimed_in(row["messages"][-2]["content"]))
                    row["decision"] = decide(_reply(replies[-1], row["outcome"]), *own_and_told, item.options)
            if row.get("attempts"):
                made = zip(replies[-len(row["attempts"]) :], row["attempts"], strict=True)
                again = [grade_answer(item, _reply(text, attempt["outcome"])) for text, attempt in made]
                row["attempts"] = [{"outcome": each["outcome"], "lenient": each["lenient"]} for each in again]
            row.update(grade_answer(item, _reply(replies[-1], row["outcome"])))
        kept.append(row)
    worded = {row["set"] for row in kept if row.get("graded_as") == "words"}
    sets = {name: {**of_set} for name, of_set in settings["sets"].items()}
    for name, of_set in sets.items():
        of_set.pop("words", None)
        of_set |= {"words": WORDS} if name in worded else {}
    settings["sets"] = sets
    before, settings["grading"] = settings.get("grading"), VERSION
    say(f"answers graded again: version {before} before, {VERSION} now")
    if lost:
        say(f"doubted: {lost} replies are left out, because the answer before them now has another verdict")
    return kept


def _reply(text: str, outcome: str) -> Completion:
    return Completion(text, 0, "length" if outcome == "truncated" else "stop")


def _item(row: Row) -> Item:
    """Return the item of a row. Its lettered options stand in its question."""
    reference, *aliases = [row["reference"]] if isinstance(row["reference"], str) else row["reference"]
    users = [message["content"] for message in row["messages"] if message["role"] == "user"]
    shown = [found for text in users if (found := shown_in(text, reference))]
    if row.get("graded_as") == "choice" and not shown:
        raise DataError(f"{row['set']}, item {row['item']}: no options can be read in its question; measure it again")
    options = shown[0].options if shown and row.get("graded_as", "choice") == "choice" else ()
    return Item(row["item"], tuple(row["messages"]), reference, options=options, aliases=tuple(aliases))
