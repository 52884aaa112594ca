"""`python -m probe frontier`: one training as a line instead of a point.

Measures the models between a checkpoint's base (scale 0) and the checkpoint (1), or beyond it, and compares them: which of them has
the most follow-up without a significant loss of accuracy? Each lands in RUN/probe/step-N-scale-S as any probe run does, the ends in
RUN/probe/base and RUN/probe/step-N, where training left them or not; the comparison in RUN/probe/frontier. A killed command goes on
where it stopped, and several processes share the scales.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from probe.checkpoints import probes_of
from probe.claims import Claims
from probe.compare import FILES, compare
from probe.comparison import terminal_table
from probe.curves import curves_of, verdict
from probe.errors import BadInput
from probe.files import read_json
from probe.scaling import Trained, check_scales, find_checkpoint, step_of, trained
from probe.terminal import say
from probe.watch import CLAIMS, refuse_non_finite

if TYPE_CHECKING:
    from probe.models import ModelFolder
    from probe.run import LoadedSet
    from probe.settings import ProbeSection

SCALES = (0.25, 0.5, 0.75, 1.0)
POLL_S = 2.0
"""How often to look whether another process has measured the base."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", type=Path, metavar="RUN", help="a training run's folder, or a checkpoint in it")
    parser.add_argument(
        "--scales",
        nargs="+",
        type=float,
        default=SCALES,
        metavar="S",
        help="0 to 2 (default: 0.25 0.5 0.75 1); 0 is added",
    )
    parser.add_argument("--checkpoint", metavar="STEP", help="its step or folder (default: the newest complete one)")
    parser.add_argument("--recipe", type=Path, help="a recipe with a `probe:` section (default: the run's own)")
    parser.add_argument(
        "--base", metavar="MODEL", help="what the checkpoint was trained from (default: as it names it)"
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="results in DIR/probe (default: RUN)")
    parser.add_argument("--device", help="cpu, cuda, cuda:1 (default: the first GPU, else the CPU)")
    parser.add_argument("--dry-run", action="store_true", help="show what would be measured, and change nothing")


def run(args: argparse.Namespace, overrides: Sequence[str]) -> None:
    from probe.run import load_sets, refuse_other_settings, work_of
    from probe.settings import load_probe_recipe

    scales = check_scales([*args.scales, *([] if 0 in args.scales else [0.0])])
    checkpoint = find_checkpoint(args.run, args.checkpoint)
    run_dir = checkpoint.parent
    recipe = args.recipe or run_dir / "recipe.json"
    if not recipe.is_file():
        raise BadInput(f"{recipe}: no such file, wanted a recipe with a `probe:` section; name one with --recipe")
    probe = load_probe_recipe(recipe, overrides).probe
    if probe.engine == "openai":
        raise BadInput("probe.engine: openai, wanted hf or vllm: a server cannot be given each scale's weights")
    ends = trained(checkpoint, args.base)
    step, folder = step_of(checkpoint), (args.out or run_dir) / "probe"
    sets = load_sets(probe)
    told = "this probe (another folder: --out DIR) was made"
    refuse_other_settings([folder / "base", *(path for _, _, path in probes_of(folder))], told, probe, sets)
    if args.dry_run:
        works = [work_of(loaded, probe) for loaded in sets]
        for scale in scales:
            done = (folder / name_of(step, scale) / "results.json").is_file()
            print(f"scale {scale:<5g} {name_of(step, scale)}: {'measured' if done else 'to measure'}")
        print(f"each      {sum(work.tokens for work in works):,} tokens at most; {_disk(ends, probe, scales)}")
        print("nothing was written")
        return
    if not ends.known:
        say(f"{ends.base.name}: nothing recorded says that {ends.checkpoint.name} was trained from it; its shape fits")
    refuse_non_finite(ends.checkpoint)
    say(_disk(ends, probe, scales))
    _measure(ends, probe, sets, folder, step, scales, args.device)
    found = [folder / "base", *(path for number, _, path in probes_of(folder) if number == step)]
    comparison = compare([path for path in found if (path / "results.json").is_file()], folder / "frontier")
    print(terminal_table(comparison))
    for curve in curves_of(comparison):
        print(f"\n{verdict(curve, comparison)}")
    for name in FILES:
        print(folder / "frontier" / name)


def name_of(step: int, scale: float) -> str:
    """The folder in RUN/probe: as training and `probe watch` call the ends."""
    return "base" if scale == 0 else f"step-{step}" if scale == 1 else f"step-{step}-scale-{scale:g}"


def _measure(
    ends: Trained,
    probe: ProbeSection,
    sets: Sequence[LoadedSet],
    folder: Path,
    step: int,
    scales: Sequence[float],
    device: str | None,
) -> None:
    from probe.models import forget_merged
    from probe.run import measure_folder

    claims = Claims(folder / CLAIMS)
    for scale in scales:
        name, model = name_of(step, scale), ends.at(scale)
        if _is_measured(folder / name, model):
            say(f"{name} is measured already")
            forget_merged(model, probe.dtype)  # which a kill may have left
            continue
        claim = claims.take(name)
        if claim is None and scale == 0 and len(scales) > 1:
            say(
                f"waits for {name}, against which the others are measured: {claims.holder(name) or 'another process'} has it"
            )
            while claim is None and not _is_measured(folder / name, model):
                time.sleep(POLL_S)
                claim = claims.take(name)
        if claim is None:
            if _is_measured(folder / name, model):
                continue
            say(f"{name} is left to {claims.holder(name) or 'another process'}; the same command again shows it")
            continue
        say(f"measures {name}")
        with claim:
            number = 0 if scale == 0 else step
            measure_folder(model, probe, sets, folder / name, name, device, step=number, check=claim.check)
        forget_merged(model, probe.dtype)


def _is_measured(folder: Path, model: ModelFolder) -> bool:
    from probe.models import fingerprint

    if not (folder / "results.json").is_file():
        return False
    measured = read_json(folder / "results.json")["model"]["weights_sha256"]
    if measured != fingerprint(model):
        raise BadInput(
            f"{folder}: measured other weights ({str(measured)[:12]}) than those of {model.name} now "
            f"({fingerprint(model)[:12]}); delete it, or name another folder with --out"
        )
    return True


def _disk(ends: Trained, probe: ProbeSection, scales: Sequence[float]) -> str:
    from probe.conversions import cache_root
    from probe.models import whole_bytes

    if probe.engine == "hf":
        return "scaled weights are made in memory and take no disk"
    gigabytes = whole_bytes(ends.checkpoint, probe.dtype) / 1e9
    return f"scaled weights lie in {cache_root()} while they are measured, one at a time: {gigabytes:.1f} GB"
