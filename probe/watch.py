"""`python -m probe watch`: measures a training run's checkpoints from another process, GPU or machine.

It needs nothing of the training process but its folder, on a shared file system where machines differ. The base model
comes first, then every complete checkpoint in step order, each exactly once, into RUN_DIR/probe/{base,step-N} as a probe
inside training would have written it; then the comparison in RUN_DIR/probe/comparison, then the tracker.

Any number of watchers share one run (probe/watching/claims.py says how). A killed watcher's probe is taken up where it stopped,
by another one or by the same command again. As soon as a checkpoint is complete its model is kept for the probe
(probe/watching/kept.py says what that costs), also while another one is being measured, so that `save_total_limit` takes nothing
away; one that was gone before is reported. A probe that fails is reported at the end and stops no other.
"""

from __future__ import annotations

import argparse
import shlex
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from probe.errors import BadInput
from probe.processes import say
from probe.watching.claims import Claims
from probe.watching.kept import drop, kept_checkpoints
from probe.watching.watcher import CLAIMS, KEPT, Watcher

if TYPE_CHECKING:
    from probe.questions import LoadedSet
    from probe.settings import ProbeSection


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run_dir", type=Path, metavar="RUN_DIR", help="the training run's folder; it may not exist yet")
    parser.add_argument(
        "recipe", type=Path, metavar="RECIPE", help="a recipe with a `probe:` section, or the run's own recipe.json"
    )
    parser.add_argument("--poll", type=float, default=10.0, metavar="SECONDS", help="how often to look (default: 10)")
    parser.add_argument("--once", action="store_true", help="measure what is there now, then end")
    parser.add_argument("--dry-run", action="store_true", help="show what would be measured, and change nothing")
    parser.add_argument("--device", help="cpu, cuda, cuda:1 (default: the first GPU, else the CPU)")


def run(args: argparse.Namespace, overrides: Sequence[str]) -> None:
    from probe.questions import load_sets
    from probe.settings import load_probe_recipe

    if args.poll <= 0:
        raise BadInput(f"--poll {args.poll:g}: wanted seconds above 0")
    begun = args.run_dir / "recipe.json"
    own = args.recipe.resolve() == begun.resolve()
    if not own:  # a bad recipe is told before any waiting
        load_probe_recipe(args.recipe, overrides)
    if not begun.is_file() and (own or not args.dry_run):
        _wait_for(begun, args.once or args.dry_run, args.poll)
    probe = load_probe_recipe(args.recipe, overrides).probe
    if probe.engine == "openai":
        raise BadInput("probe.engine: openai, wanted hf or vllm: a server cannot be given each checkpoint's weights")
    sets = load_sets(probe)
    if args.dry_run:
        print(_describe(args.run_dir, probe, sets))
        return
    Watcher(args.run_dir, probe, sets, args.device, args.poll).follow(args.once)


def _describe(run_dir: Path, probe: ProbeSection, sets: Sequence[LoadedSet]) -> str:
    """What would be measured for each checkpoint, and what there is now."""
    from probe.questions import work_of

    works = [(loaded.name, work_of(loaded, probe)) for loaded in sets]
    lines = [
        f"set       {name}: {work.answers} answers, {work.user_turns} user turns, {work.tokens:,} tokens at most"
        for name, work in works
    ]
    if (run_dir / "recipe.json").is_file():
        watcher = Watcher(run_dir, probe, sets)
        lines += [f"{target.name:<9} {watcher.state(target)}" for target in watcher.targets()]
    else:
        lines.append(f"no training run in {run_dir} yet")
    return "\n".join([*lines, "nothing was written"])


def withdraw(run_dir: Path, above: int) -> None:
    """Takes the checkpoints past step `above` from whoever measures them: training will write them again."""
    claims = Claims(run_dir / "probe" / CLAIMS)
    for name in claims.names():
        step = name.removeprefix("step-")
        if step.isdigit() and int(step) > above:
            claims.withdraw(name)
    for step_kept, kept in kept_checkpoints(run_dir / "probe" / KEPT):
        if step_kept > above:
            drop(kept)


def command(run_dir: Path) -> str:
    """The command that watches a run with the recipe it was trained with, to be started in the same directory."""
    return shlex.join(["python", "-m", "probe", "watch", str(run_dir), str(run_dir / "recipe.json")])


def _wait_for(recipe: Path, once: bool, poll_s: float) -> None:
    """Returns when training has written its recipe, the first thing in its folder."""
    if once:
        raise BadInput(f"{recipe.parent}: no training run there yet, wanted its {recipe.name}")
    say(f"waits for a training run to begin in {recipe.parent}")
    while not recipe.is_file():
        time.sleep(poll_s)
