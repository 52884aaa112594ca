"""The command `nextturn`: each subcommand hands its words to the `main` of one stage."""

from __future__ import annotations

import platform
import sys
from collections.abc import Sequence
from importlib import import_module

from nextturn.probe.command.errors import BadInput, run_command

# Subcommand: (module with `main(argv)`, what the subcommand does).
STAGES = {
    "init": ("nextturn.train.init", "write a small working example of every stage"),
    "data": ("nextturn.data_builders.__main__", "turn problems into conversations"),
    "sft": ("nextturn.train.sft", "fine-tune on conversations, in one process"),
    "dpo": ("nextturn.train.dpo", "train on preference pairs, in one process"),
    "grpo": ("nextturn.train.grpo", "train with rewards (GRPO), in one process"),
    "probe": ("nextturn.probe.__main__", "measure a model, compare runs, label user turns"),
    "users": ("nextturn.train.users", "compare simulated users by the same measures"),
    "export": ("nextturn.train.export", "write a checkpoint as one model folder, a LoRA adapter merged into its base"),
    "doctor": ("nextturn.train.doctor", "check versions, GPUs and what is missing"),
    "keys": ("nextturn.train.keys", "show type, default and meaning of the keys of recipes"),
}
_REPORTED = ("torch", "transformers", "accelerate", "trl", "peft", "deepspeed", "vllm", "wandb")
_WIDTH = max(map(len, STAGES))
USAGE = "\n".join(
    [
        "usage: nextturn COMMAND ...",
        "",
        *(f"  {name:{_WIDTH}}  {summary}" for name, (_, summary) in STAGES.items()),
        "",
        "`nextturn COMMAND --help` lists the options. Several processes: accelerate launch train/sft.py RECIPE",
        "`nextturn --version` prints the versions that a fault report needs.",
    ]
)


def main(argv: Sequence[str]) -> None:
    """Run the stage that the first word names.

    Raises:
        BadInput: There is no such subcommand.
    """
    if not argv or argv[0] in ("-h", "--help"):
        print(USAGE)
        return
    name, *rest = argv
    if name == "--version":
        print(versions())
        return
    if name not in STAGES:
        raise BadInput(f"nextturn {name}: no such command, expected one of {', '.join(STAGES)}")
    import_module(STAGES[name][0]).main(rest)


def versions() -> str:
    """Return what a fault report needs: the versions of nextturn, Python and what nextturn uses. Nothing of it is imported."""
    from nextturn.train.doctor import installed

    lines = [f"nextturn {installed('nextturn')}", f"python {platform.python_version()}, {platform.platform()}"]
    return "\n".join([*lines, *(f"{name} {installed(name) or 'not installed'}" for name in _REPORTED)])


def console() -> None:
    """Entry point of the installed command."""
    sys.exit(run_command(main))


if __name__ == "__main__":
    console()
