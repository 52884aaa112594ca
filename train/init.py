"""`nextturn init FOLDER`: write a working example of every stage, to be replaced by one's own piece by piece."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
from pathlib import Path

from nextturn.probe.command.errors import BadInput
from nextturn.probe.command.files import write_atomic

EXAMPLE = Path(__file__).with_name("example")


def main(argv: Sequence[str]) -> None:
    """Copy the example into a folder.

    Raises:
        BadInput: A file of the example is there already.
    """
    parser = argparse.ArgumentParser(
        prog="nextturn init",
        description="Write an example of every stage: data, recipes, and a source, reward, simulated user, judge and measure of one's own.",
    )
    parser.add_argument("folder", type=Path, help="the folder to write; nothing in it is overwritten")
    folder: Path = parser.parse_args(argv).folder
    files = sorted(path for path in EXAMPLE.iterdir() if path.is_file())
    if there := [path.name for path in files if (folder / path.name).exists()]:
        raise BadInput(f"{folder}: holds {', '.join(there)} already; choose another folder")
    if folder.exists() and not folder.is_dir():
        raise BadInput(f"{folder}: a file, expected a folder to write")
    folder.mkdir(parents=True, exist_ok=True)
    for path in files:
        write_atomic(folder / path.name, path.read_text(encoding="utf-8"))
    print(f"{folder}: {', '.join(path.name for path in files)}")
    print(f"next: cd {shlex.quote(str(folder))} && nextturn sft sft.yaml --dry-run")
