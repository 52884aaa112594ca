"""The command `nextturn probe`: run | watch | judge | compare | sheet | log | agreement | label | correct."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from nextturn.probe import compare, log, rejudge, watch
from nextturn.probe.command.errors import BadInput, run_command
from nextturn.probe.labels import agreement, correct, label
from nextturn.probe.report import sheet
from nextturn.probe.report.comparison import format_table

DESCRIPTION = "Measure what a chat model solves and whether it knows what a person would say next."
RUN = "Measure one model. Recipe keys are options, too: --probe.seed 1"
COMMANDS: dict[str, tuple[Any, str]] = {
    "watch": (watch, "measure a training run's checkpoints"),
    "judge": (rejudge, "judge a finished run again, without generating"),
    "compare": (compare, "compare runs: base, SFT, RL"),
    "sheet": (sheet, "any models side by side, and the paper"),
    "log": (log, "how often users repeat themselves in a log, without a model"),
    "agreement": (agreement, "check a judge against human labels"),
    "label": (label, "label user turns blind"),
    "correct": (correct, "rates corrected by labels, with intervals"),
}
"""The commands beside `run`: a module with `add_arguments` and `run`, and a summary."""


def main(argv: Sequence[str]) -> None:
    """Run the subcommand that the first word names.

    Raises:
        BadInput: An option is unknown.
    """
    parser = argparse.ArgumentParser(prog="nextturn probe", description=DESCRIPTION)
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_run_arguments(subparsers.add_parser("run", help="measure one model or checkpoint", description=RUN))
    for name, (module, summary) in COMMANDS.items():
        module.add_arguments(subparsers.add_parser(name, help=summary, description=module.__doc__))
    arguments, rest = parser.parse_known_args(argv)
    run: Callable[..., None] = _run if arguments.command == "run" else COMMANDS[arguments.command][0].run
    if arguments.command in ("run", "watch", "judge", "agreement"):  # the rest are keys of the recipe
        run(arguments, rest)
    elif rest:
        raise BadInput(f"{rest[0]}: not an option of `probe {arguments.command}`; see --help")
    else:
        run(arguments)


def _add_run_arguments(parser: argparse.ArgumentParser) -> None:
    models = "hub id, local folder, checkpoint, LoRA folder, smollm2-135m, or a server such as http://HOST/v1"
    parser.add_argument("model", help=models)
    recipe = "a recipe with a `probe:` section: recipes/probe.yaml, a training's; not needed with --set"
    parser.add_argument("recipe", type=Path, nargs="?", help=recipe)
    of_set = "in place of a recipe: a file of questions, or a known set, with default settings; can be repeated"
    parser.add_argument("--set", action="append", default=[], metavar="FILE", help=of_set)
    of_file = "a file of finished conversations, whose last user message the model writes again; can be repeated"
    parser.add_argument("--transcripts", action="append", default=[], metavar="FILE", help=of_file)
    parser.add_argument("--out", type=Path, help="the run folder; required unless --dry-run")
    parser.add_argument("--label", help="the name of this model in tables (default: the last part of its name)")
    parser.add_argument("--device", help="cpu, cuda, cuda:1 (default: the first GPU, else the CPU)")
    parser.add_argument("--dry-run", action="store_true", help="show what would be measured, and change nothing")


def _run(arguments: argparse.Namespace, overrides: Sequence[str]) -> None:
    from nextturn.probe.command.recipe import recipe_dict
    from nextturn.probe.command.sections import load_probe_recipe, recipe_of_sets, take_recipe
    from nextturn.probe.plan import describe, load_sets, sets_within_reach
    from nextturn.probe.report.tracking import check_tracker, report_run
    from nextturn.probe.run import measure_folder, open_model

    overrides = take_recipe(arguments, overrides, arguments.set or arguments.transcripts)
    if arguments.out is None and not arguments.dry_run:
        raise BadInput("--out DIR is missing: give the folder for this run")
    if arguments.recipe:
        recipe = load_probe_recipe(arguments.recipe, overrides)
    else:
        recipe = recipe_of_sets(arguments.set, overrides, arguments.transcripts)
    if arguments.dry_run:
        unchecked: list[str] = []
        within_reach = [loaded for loaded in sets_within_reach(recipe.probe, unchecked).values() if loaded]
        print(describe(*open_model(arguments.model, recipe.probe), within_reach, unchecked))
        return
    check_tracker(recipe.tracking)
    sets = load_sets(recipe.probe)
    folder, probe = open_model(arguments.model, recipe.probe)
    results = measure_folder(folder, probe, sets, arguments.out, arguments.label, arguments.device)
    report_run(recipe.tracking, arguments.out, recipe_dict(recipe))
    print(format_table([results]))
    print(f"{arguments.out / 'results.json'}")


if __name__ == "__main__":
    sys.exit(run_command(main))
