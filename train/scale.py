"""Writes the model part of the way from a base to a checkpoint as a folder of its own.

    python -m train.scale CHECKPOINT --scale 0.5 --out DIR

`python -m probe frontier` says which scale to take. The folder loads with transformers and vLLM; its README.md and scale.json say
what it was made of. It appears when it is whole, and a folder that holds something else is never touched.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from probe.errors import BadInput, ModelError, run_command
from probe.files import read_json, write_atomic, write_json
from probe.models import DTYPES, ModelFolder, checkpoint_dtype, fingerprint, whole_bytes, write_whole
from probe.scaling import Trained, check_scales, find_checkpoint, trained
from probe.weights import ADAPTER_CONFIG, CONFIG
from train.checkpoints import free_bytes

MADE_OF = "scale.json"


def main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m train.scale", description=__doc__.split("\n")[0])
    parser.add_argument(
        "checkpoint", type=Path, help="a checkpoint or adapter, or a training run for its newest checkpoint"
    )
    parser.add_argument("--scale", type=float, required=True, help="0 (the base) over 1 (the checkpoint) to 2")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="the new folder")
    parser.add_argument(
        "--base", metavar="MODEL", help="what it was trained from (default: as the checkpoint names it)"
    )
    parser.add_argument(
        "--dtype", choices=DTYPES, default="auto", help="of the new weights (default: the checkpoint's)"
    )
    arguments = parser.parse_args(argv)
    [scale] = check_scales([arguments.scale])
    given: Path = arguments.checkpoint
    is_model = any((given / name).is_file() for name in (CONFIG, ADAPTER_CONFIG))
    ends = trained(given if is_model else find_checkpoint(given), arguments.base)
    print(write(ends, scale, arguments.out, arguments.dtype))


def write(ends: Trained, scale: float, out: Path, dtype: str = "auto") -> Path:
    """The folder `out` with the model at `scale`; nothing to do where it is there already.

    Raises:
        BadInput: `out` holds something else.
        ModelError: the disk has no room for it.
    """
    model = ends.at(scale)
    dtype = checkpoint_dtype(ends.checkpoint) if dtype == "auto" else dtype
    made_of = {
        "schema": 1,
        "scale": scale,
        "dtype": dtype,
        "weights_sha256": fingerprint(model),
        "base": _named(ends.base),
        "checkpoint": _named(ends.checkpoint),
    }
    if out.exists():
        if (out / MADE_OF).is_file() and read_json(out / MADE_OF) == made_of:
            return out
        raise BadInput(
            f"{out}: exists and is not this model at scale {scale:g} in {dtype}; name another folder, or delete it"
        )
    out.parent.mkdir(parents=True, exist_ok=True)
    needed, free = whole_bytes(model, dtype), free_bytes(out)
    if free < needed:
        raise ModelError(f"{out}: needs {needed / 1e9:.1f} GB, and the disk has {free / 1e9:.1f} GB free")
    prefix = f".{out.name}.making-"
    for left_by_a_kill in out.parent.glob(f"{prefix}*"):
        shutil.rmtree(left_by_a_kill)
    making = Path(tempfile.mkdtemp(dir=out.parent, prefix=prefix))
    try:
        write_whole(model, making, dtype)
        write_atomic(making / "README.md", _card(out.name, ends, scale))
        write_json(making / MADE_OF, made_of)
        making.chmod(0o755)
        making.rename(out)
    except BaseException:
        shutil.rmtree(making, ignore_errors=True)
        raise
    return out


def _named(folder: ModelFolder) -> dict[str, Any]:
    return {"path": folder.name, "weights_sha256": fingerprint(folder)}


def _card(name: str, ends: Trained, scale: float) -> str:
    confirmed = "" if ends.known else " That the checkpoint was trained from this base is not recorded."
    return f"""# {name}

{ends.base.name} moved {scale:g} of the way to {ends.checkpoint.name}: weights = base + {scale:g} (checkpoint - base).{confirmed}

| | | sha256 of the weights |
|---|---|---|
| base | {ends.base.name} | {fingerprint(ends.base)} |
| checkpoint | {ends.checkpoint.name} | {fingerprint(ends.checkpoint)} |
"""


if __name__ == "__main__":
    sys.exit(run_command(main))
