"""`python -m data_builders RECIPE`: builds the data of a recipe, previews it, or only counts."""

from __future__ import annotations

import argparse
import itertools
import sys
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from probe.errors import run_command

if TYPE_CHECKING:
    from data_builders.build import Build

_USAGE = """Examples:
  python -m data_builders recipes/demo_data.yaml
  python -m data_builders recipes/math_collab.yaml --source.path math/train.jsonl --out data/math --dry-run
  python -m data_builders recipes/demo_data.yaml --preview 3
Any recipe key can be overridden in its own words: --section.key value."""


def main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m data_builders", description="Problems in, multi-turn collaborative training data out.",
        epilog=_USAGE, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False,
    )  # fmt: skip
    parser.add_argument("recipe", type=Path, help="YAML recipe, such as recipes/math_collab.yaml")
    parser.add_argument("--out", type=Path, help="output folder (default: the recipe's output.path)")
    parser.add_argument("--dry-run", action="store_true", help="count examples and tokens, show one, write nothing")
    parser.add_argument("--preview", type=int, metavar="N", help="print N conversations, write nothing")
    options, overrides = parser.parse_known_args(argv)

    from data_builders.build import Build
    from data_builders.folder import finished
    from data_builders.problems import out_of_reach
    from data_builders.recipe import load_data_recipe

    recipe = load_data_recipe(options.recipe, overrides)
    if options.dry_run:
        replay = recipe.replay.source if recipe.replay.fraction else "starter"
        sources = {(recipe.source.kind, recipe.source.path), (replay, recipe.replay.path)}
        missing = [reason for kind, path in sources if (reason := out_of_reach(kind, path))]
        if missing:
            recipe.conversations.check()
            print(f"{options.recipe}: the recipe is valid; its problems could not be counted. {missing[0]}")
            return
    build = Build(recipe)
    out = options.out or Path(recipe.output.path)
    if options.dry_run:
        _dry_run(build, out)
    elif options.preview is not None:
        _preview(build, options.preview)
    elif finished(out, build.settings):
        print(f"{out}: already built with these settings, nothing to do")
    else:
        manifest = build.run(out)
        rejected = "".join(f", {n} {reason}" for reason, n in manifest["rejected"].items())
        print(f"{out}: {manifest['kept']} of {manifest['asked']} conversations kept{rejected}; see {out / 'card.md'}")


def _dry_run(build: Build, out: Path) -> None:
    from data_builders.build import estimated_tokens

    sampled = range(0, len(build.problems), max(1, len(build.problems) // 500))
    conversations = [conversation for index in sampled for conversation in build.conversations(index)]
    mean = sum(estimated_tokens(conversation.messages) for conversation in conversations) / len(conversations)
    rows = round(len(conversations) / len(sampled) * len(build.problems))
    print(
        f"would write {out}: {len(build.problems)} problems in {len(build.shards())} shards, about {rows} conversations"
    )
    print(f"about {mean:.0f} tokens each, {rows * mean:,.0f} in all (an estimate; no tokenizer was loaded)")
    for name, eval_rows in build.eval_rows.items():
        print(f"{name}: {len(eval_rows)} held-out rows")
    _preview(build, 1)
    print("dry run: nothing was written")


def _preview(build: Build, n: int) -> None:
    every = (c for index in range(len(build.problems)) for c in build.conversations(index))
    for conversation in itertools.islice(every, n):
        print(f"\n--- {conversation.id} ({conversation.kind}); turns marked > carry loss")
        for message in conversation.messages:
            mark = ">" if message["role"] == "assistant" else " "
            for line in visible(message["content"]).split("\n"):
                print(f"{mark} {message['role']:9} | {line}")


def visible(text: str) -> str:
    """The text with control characters (other than line ends) written out, so that none reaches the terminal."""
    return "".join(
        char if char == "\n" or unicodedata.category(char) not in ("Cc", "Cf") else f"\\u{ord(char):04x}"
        for char in text
    )


if __name__ == "__main__":
    sys.exit(run_command(main))
