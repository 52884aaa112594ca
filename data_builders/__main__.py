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
    from probe.sets import Message

_USAGE = """Examples:
  python -m data_builders recipes/demo_data.yaml
  python -m data_builders recipes/math_collab.yaml --source.path math/train.jsonl --out data/math --dry-run
  python -m data_builders recipes/demo_data.yaml --preview 3
  python -m data_builders recipes/math_dialogue.yaml --dry-run
Any recipe key can be overridden in its own words: --section.key value."""


def main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m data_builders", description="Problems in, multi-turn collaborative training data out.",
        epilog=_USAGE, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False,
    )  # fmt: skip
    parser.add_argument("recipe", type=Path, help="YAML recipe, such as recipes/math_collab.yaml")
    parser.add_argument("--out", type=Path, help="output folder (default: the recipe's output.path)")
    parser.add_argument(
        "--dry-run", action="store_true", help="count examples, tokens and calls, show one, write nothing"
    )
    parser.add_argument("--preview", type=int, metavar="N", help="print N conversations, write nothing")
    options, overrides = parser.parse_known_args(argv)

    from data_builders.build import open_build
    from data_builders.folder import finished
    from data_builders.problems import out_of_reach
    from data_builders.recipe import load_data_recipe

    recipe = load_data_recipe(options.recipe, overrides)
    if options.dry_run:
        replay = recipe.replay.source if recipe.replay.fraction else "starter"
        # As in the build: replay of the same kind takes the same file.
        replay_path = recipe.replay.path or (recipe.source.path if replay == recipe.source.kind else None)
        sources = {(recipe.source.kind, recipe.source.path), (replay, replay_path)}
        missing = [reason for kind, path in sources if (reason := out_of_reach(kind, path))]
        if missing:
            recipe.check()
            print(f"{options.recipe}: the recipe is valid; its problems could not be counted. {missing[0]}")
            if recipe.dialogue is not None and recipe.source.n:
                from data_builders.dialogue.shown import dry_run_without_problems

                print("\n".join(dry_run_without_problems(recipe)))
            return
    build = open_build(recipe)
    out = options.out or Path(recipe.output.path)
    if recipe.dialogue is not None and (options.dry_run or options.preview is not None):
        _show_dialogue(build, out, None if options.dry_run else options.preview)
    elif options.dry_run:
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
    from data_builders.tokens import estimated_tokens

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
        _show(f"{conversation.id} ({conversation.kind})", conversation.messages)


def _show_dialogue(build: Build, out: Path, n: int | None) -> None:
    """The plan of a build between two models, or `n` of its conversations, which asks those models."""
    from data_builders.dialogue.build import DialogueBuild
    from data_builders.dialogue.shown import dry_run, preview

    assert isinstance(build, DialogueBuild)
    if n is None:
        print(visible("\n".join(dry_run(build, out))))
        return
    for heading, messages in preview(build, n):
        _show(heading, messages)


def _show(heading: str, messages: Sequence[Message]) -> None:
    print(f"\n--- {heading}; turns marked > carry loss")
    for message in messages:
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
