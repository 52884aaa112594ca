"""The models between a base and a checkpoint: w = base + s (checkpoint - base), of LoRA by the adapter's own alpha.

0 is the base, 1 the checkpoint, above 1 lies beyond it. Which base a checkpoint was trained from is known by fingerprint:
training writes `base.json` when it begins, and its probe of the base names one too.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from probe.checkpoints import MARKER, is_complete, list_checkpoints, newest_complete, none_complete
from probe.errors import BadInput, ModelError
from probe.files import read_json, write_json
from probe.models import Dial, ModelFolder, fingerprint, merged_folder, parameter_count, resolve
from probe.weights import refuse_quantised

FURTHEST = 2.0
"""The largest scale: past the checkpoint by as much as training moved."""
BASE = "base.json"


@dataclass(frozen=True)
class Trained:
    """A checkpoint and what it was trained from; `known` says whether a fingerprint confirms that."""

    base: ModelFolder
    checkpoint: ModelFolder
    known: bool

    def at(self, scale: float) -> ModelFolder:
        """The model `scale` of the way: the base itself at 0, the checkpoint itself at 1."""
        if scale in (0, 1):
            return self.checkpoint if scale else self.base
        return replace(self.checkpoint, dial=Dial(self.base, float(scale)))


def check_scales(scales: Sequence[float]) -> list[float]:
    """The scales upwards. Raises BadInput for one outside 0 to 2 or given twice."""
    for scale, count in Counter(scales).items():
        if not (math.isfinite(scale) and 0 <= scale <= FURTHEST):
            raise BadInput(
                f"scale {scale:g}: wanted a number from 0 (the base) over 1 (the checkpoint) to {FURTHEST:g}"
            )
        if scale != round(scale, 4):
            raise BadInput(f"scale {scale!r}: wanted at most four decimals, which name its folder")
        if count > 1:
            raise BadInput(f"scale {scale:g}: given {count} times, wanted each once")
    return sorted(float(scale) for scale in scales)


def write_base(run_dir: Path, folder: ModelFolder) -> None:
    """Keeps which weights a training run starts from."""
    write_json(run_dir / BASE, {"schema": 1, "path": folder.name, "weights_sha256": fingerprint(folder)})


def find_checkpoint(run: Path, wanted: str | None = None) -> Path:
    """The checkpoint `run` itself, or of the training run in it the one `wanted` (its step, name or path), or the newest.

    Raises:
        BadInput: there is none, or it is not complete.
    """
    if wanted is None and (run / MARKER).is_file():
        found = run
    elif wanted is not None:
        named = run / (f"checkpoint-{wanted}" if wanted.isdigit() else wanted)
        found = named if named.is_dir() else Path(wanted)
    else:
        newest, skipped = newest_complete(run)
        if newest is None:
            raise BadInput(f"{run}: {none_complete(skipped)}, wanted a training run's folder or a checkpoint")
        found = newest
    reason = is_complete(found)
    if reason is not None:
        there = ", ".join(folder.name for _, folder in list_checkpoints(run)) or "none"
        raise BadInput(f"{found}: not a complete checkpoint ({reason}); {run} has {there}")
    return found


def step_of(checkpoint: Path) -> int:
    return int(read_json(checkpoint / MARKER)["step"])


def trained(checkpoint: Path, base: str | None = None) -> Trained:
    """A checkpoint, of a training run or any other folder, with its base.

    Args:
        base: its name, where it is not the one that the adapter or the training run's recipe names.

    Raises:
        ModelError: the base is missing or quantised, or it is not the one that the checkpoint was trained from.
    """
    run_dir = checkpoint.absolute().parent
    recipe = read_json(run_dir / "recipe.json") if (run_dir / "recipe.json").is_file() else {}
    after = resolve(str(checkpoint))
    if recipe:  # as training and `probe watch` call it, however this folder was reached
        output_dir = recipe.get("train", {}).get("output_dir") or run_dir
        after = replace(after, name=str(Path(output_dir) / checkpoint.name))
    before = _base(after, recipe.get("model") or {}, base)
    refuse_quantised(before.base or before.path, before.name)
    refuse_quantised(after.base or after.path, after.name)
    recorded = _recorded(run_dir)
    if recorded is None and base is not None and after.base is not None:
        recorded = fingerprint(ModelFolder("", after.base))
    found = fingerprint(before)
    if recorded and found != recorded:
        raise ModelError(
            f"{before.name}: not the base of {after.name}, which was trained from weights {recorded[:12]} and not from "
            f"{found[:12]}; name that base with --base"
        )
    shapes = [parameter_count(folder) for folder in (before, after)]
    unlike = [
        key for key in shapes[0] if key not in ("by_dtype", "bytes", "adapter") and shapes[0][key] != shapes[1][key]
    ]
    if unlike:
        was, now = (f"{unlike[0]} {shape[unlike[0]]}" for shape in shapes)
        raise ModelError(f"{before.name}: not the base of {after.name}: it has {was}, and the checkpoint {now}")
    return Trained(before, after, bool(recorded) or (after.base is not None and base is None))


def _base(after: ModelFolder, model: dict[str, Any], given: str | None) -> ModelFolder:
    """What training called the base, in the folder that it used."""
    continued = (model.get("lora") or {}).get("adapter") == "continue"
    name = given or model.get("name")
    if after.base is not None and not continued and given is None:
        return ModelFolder(name or str(after.base), after.base)  # the adapter was put on this very folder
    if name is None:
        raise ModelError(
            f"{after.name}: neither an adapter nor a recipe.json beside it names its base; give --base MODEL"
        )
    try:
        found = resolve(name)
    except ModelError as error:
        raise ModelError(f"{after.name}: its base is missing ({error}); name it with --base") from None
    found = found if continued else merged_folder(found)
    if after.base is not None and fingerprint(found) == fingerprint(ModelFolder(name, after.base)):
        return ModelFolder(name, after.base)
    return found


def _recorded(run_dir: Path) -> str | None:
    """The fingerprint of what a run was trained from, by its own record or that of its probe; None for older ones."""
    if (run_dir / BASE).is_file():
        return str(read_json(run_dir / BASE)["weights_sha256"])
    probed = run_dir / "probe" / "base" / "manifest.json"
    return read_json(probed)["model"].get("weights_sha256") if probed.is_file() else None
