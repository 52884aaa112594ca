"""`nextturn data RECIPE`: build the data of a recipe, or only count it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from nextturn.probe.command.errors import run_command

_USAGE = """Examples:
  nextturn data recipes/written.yaml
  nextturn data recipes/math_collab.yaml --dry-run
  nextturn data recipes/math_rules.yaml --source.path math/train.jsonl --out data/math --dry-run
Any recipe key is also an option: --section.key value."""


def main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="nextturn data", description="Turn problems into multi-turn collaborative training data.",
        epilog=_USAGE, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False,
    )  # fmt: skip
    parser.add_argument("recipe", type=Path, help="YAML recipe, such as recipes/demo_data.yaml")
    parser.add_argument("--out", type=Path, help="output directory (default: the recipe's output.path)")
    dry_run_help = "count problems, conversations and tokens, show one example, write nothing"
    parser.add_argument("--dry-run", action="store_true", help=dry_run_help)
    options, overrides = parser.parse_known_args(argv)

    from nextturn.data_builders.sections import load_data_recipe

    recipe = load_data_recipe(options.recipe, overrides)  # a wrong recipe is reported before any large import

    from nextturn.data_builders.build import Build, is_built
    from nextturn.data_builders.card import CARD
    from nextturn.data_builders.dry_run import dry_run
    from nextturn.probe.command.errors import DataError, SetOutOfReach
    from nextturn.probe.command.files import read_json
    from nextturn.probe.command.terminal import visible

    out = options.out or Path(recipe.output.path)
    if options.dry_run:
        try:
            build = Build(recipe)
        except SetOutOfReach as error:
            print(
                f"{options.recipe}: the recipe is valid. Its counts are unknown, since a set is out of reach: {error}"
            )
            return
        for line in dry_run(build, out):
            print(visible(line))
        return
    done = is_built(out, recipe)
    manifest = read_json(out / "manifest.json") if done else Build(recipe).run(out)
    rejected = "".join(f", {n} {reason}" for reason, n in manifest["rejected"].items())
    page, asked, kept = out / CARD, manifest["asked"], manifest["kept"]
    if not kept:
        raise DataError(f"{out}: none of {asked} conversations was kept{rejected}; {page} shows one of each")
    if done:
        print(f"{out}: already built with these settings, nothing to do")
    else:
        print(f"{out}: {kept} of {asked} conversations kept{rejected}; see {page}")


if __name__ == "__main__":
    sys.exit(run_command(main))
