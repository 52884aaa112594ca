"""Write a checkpoint as one whole model.

    nextturn export CHECKPOINT --out DIR [--scale 0.5]

A LoRA adapter is merged into its base in float32: weights = base + scale * alpha / r * B A, rounded once to the type of the
base. `vllm serve DIR` and the next training stage (`model.name: DIR`) load the folder: text-only weights, tokenizer, chat
template and generation config. `export.json` records what was merged.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from nextturn.probe.command.errors import BadInput, run_command
from nextturn.probe.command.files import only_process, read_json, write_json
from nextturn.probe.models.conversions import new_folder
from nextturn.probe.models.folders import checkpoint_dtype, fingerprint, resolve, whole_bytes, write_whole
from nextturn.probe.models.user_model import mark_user_model, user_model_info
from nextturn.probe.models.weights import is_plain_lora

LARGEST = 2.0
"""The largest scale: twice the update of training."""


def main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="nextturn export", description=__doc__.split("\n")[0])
    parser.add_argument(
        "checkpoint", help="a checkpoint, an adapter, or a training run for its newest complete checkpoint"
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="the new folder")
    parser.add_argument("--scale", type=float, default=1.0, help="factor of the adapter's update, 0 to 2 (default: 1)")
    arguments = parser.parse_args(argv)
    print(export(arguments.checkpoint, arguments.out, arguments.scale))


def export(checkpoint: str, out: Path, scale: float = 1.0) -> Path:
    """Write the model of a checkpoint to a new folder, which appears when it is complete.

    Args:
        checkpoint: A folder or hub id with an adapter or a whole model. A run directory stands for its newest complete
            checkpoint.
        out: The new folder. It is left as it is if it holds the same export.
        scale: The factor of the adapter's update; 0 gives the base. Only 1 is allowed for a whole model.

    Returns:
        `out`.

    Raises:
        BadInput: `out` holds something else, or the scale cannot be used.
        ModelError: The model is missing or quantised, or the disk has no room for it.
    """
    folder = resolve(checkpoint)
    if not 0 <= scale <= LARGEST:
        raise BadInput(f"--scale: given {scale:g}, expected a number from 0 (the base) to {LARGEST:g}")
    if scale != 1 and (folder.base is None or not is_plain_lora(folder.path)):
        raise BadInput(
            f"--scale: given {scale:g}, but only a plain LoRA adapter can be scaled, and {folder.path} holds none"
        )
    facts = {"schema": 1, "checkpoint": str(folder.path), "sha256": fingerprint(folder), "scale": scale}
    if out.exists():
        if (out / "export.json").is_file() and read_json(out / "export.json") == facts:
            return out
        raise BadInput(f"{out}: exists and is not {folder.path} at scale {scale:g}; name another folder, or delete it")
    out.parent.mkdir(parents=True, exist_ok=True)
    dtype = checkpoint_dtype(folder)
    with (
        only_process(out.parent / f".{out.name}.lock", f"writes {out}"),
        new_folder(out, whole_bytes(folder, dtype), "name a folder on another disk with --out") as unfinished,
    ):
        write_whole(folder, unfinished, dtype, scale)
        if info := user_model_info(folder.path):
            mark_user_model(unfinished, info)
        write_json(unfinished / "export.json", facts)
    return out


if __name__ == "__main__":
    sys.exit(run_command(main))
