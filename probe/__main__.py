"""python -m probe run | watch | frontier | judge | compare | agreement | label | correct: measures models, compares runs, checks a judge."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from probe import compare, correct, frontier, label, rejudge, watch
from probe.comparison import format_table
from probe.errors import BadInput, run_command
from probe.judges import agreement

DESCRIPTION = "Measures what a chat model solves and whether it knows what a person would say next."


def main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m probe", description=DESCRIPTION)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_run_arguments(
        commands.add_parser(
            "run",
            help="measure one model or checkpoint",
            description="Measures one model. Options in the recipe's own words override it: --probe.seed 1",
        )
    )
    watch.add_arguments(
        commands.add_parser("watch", help="measure a training run's checkpoints", description=watch.__doc__)
    )
    frontier.add_arguments(
        commands.add_parser(
            "frontier", help="measure the models between base and checkpoint", description=frontier.__doc__
        )
    )
    rejudge.add_arguments(
        commands.add_parser("judge", help="judge a finished run anew, without generating", description=rejudge.__doc__)
    )
    compare.add_arguments(commands.add_parser("compare", help="compare runs: base, SFT, RL"))
    agreement.add_arguments(commands.add_parser("agreement", help="check a judge against human labels"))
    label.add_arguments(
        commands.add_parser("label", help="read user turns blind and label them", description=label.__doc__)
    )
    correct.add_arguments(
        commands.add_parser("correct", help="rates corrected by labels, with intervals", description=correct.__doc__)
    )
    arguments, rest = parser.parse_known_args(argv)
    with_recipe = {"run": _run, "watch": watch.run, "frontier": frontier.run, "judge": _judge}
    if arguments.command in with_recipe:
        with_recipe[arguments.command](arguments, rest)
        return
    if rest:
        raise BadInput(f"{rest[0]}: not an option of `probe {arguments.command}`; see --help")
    others = {"compare": compare.run, "agreement": agreement.run, "label": label.run, "correct": correct.run}
    others[arguments.command](arguments)


def _add_run_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model",
        help="hub id, local folder, checkpoint, LoRA folder, GGUF file, smollm2-135m, or a server such as http://HOST/v1",
    )
    parser.add_argument("recipe", type=Path, help="a recipe with a `probe:` section: recipes/probe.yaml, a training's")
    parser.add_argument("--out", type=Path, help="the run folder; required unless --dry-run")
    parser.add_argument("--label", help="how tables call this model (default: the last part of its name)")
    parser.add_argument("--device", help="cpu, cuda, cuda:1 (default: the first GPU, else the CPU)")
    parser.add_argument("--dry-run", action="store_true", help="show what would be measured, and change nothing")


def _run(arguments: argparse.Namespace, overrides: Sequence[str]) -> None:
    from probe.recipe import recipe_dict
    from probe.run import describe, load_sets, measure_folder, open_model, sets_within_reach
    from probe.settings import load_probe_recipe
    from probe.tracking import check_tracking, report_run

    if arguments.out is None and not arguments.dry_run:
        raise BadInput("--out DIR is missing: the folder that this run is written to")
    recipe = load_probe_recipe(arguments.recipe, overrides)
    check_tracking(recipe.tracking)
    if arguments.dry_run:
        unchecked: list[str] = []
        within_reach = [loaded for loaded in sets_within_reach(recipe.probe, unchecked).values() if loaded]
        print(describe(*open_model(arguments.model, recipe.probe), within_reach, unchecked))
        return
    sets = load_sets(recipe.probe)
    folder, probe = open_model(arguments.model, recipe.probe)
    results = measure_folder(folder, probe, sets, arguments.out, arguments.label, arguments.device)
    report_run(recipe.tracking, arguments.out, recipe_dict(recipe))
    print(format_table([results]))
    print(f"{arguments.out / 'results.json'}")


def _judge(arguments: argparse.Namespace, overrides: Sequence[str]) -> None:
    from probe.judges import get_judge
    from probe.settings import load_probe_recipe

    probe = load_probe_recipe(arguments.recipe, overrides).probe
    results = rejudge.rejudge(arguments.run, get_judge(probe.judge, probe.judge_server), arguments.out)
    print(format_table([results]))
    print((arguments.out or arguments.run) / "results.json")


if __name__ == "__main__":
    sys.exit(run_command(main))
