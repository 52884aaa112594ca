"""The folder of a build: settings.json first, manifest.json last, and nothing that a kill leaves half-written."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from data_builders.card import WARN, card
from data_builders.duplicates import Checked
from probe.errors import BadInput, DataError
from probe.files import read_json, read_jsonl, remove_unfinished, sha256_file, write_atomic, write_json
from probe.store import refuse_changes
from probe.terminal import say

# Beside sft: prompts for reinforcement learning, what there was to choose from in self-play, and pairs of replies.
VIEWS = ("rl", "candidates", "pairs", "preference")
WORK = ".work"
"""The folder inside a build's for what is needed only until it ends."""


def finished(out: Path, settings: dict[str, Any]) -> bool:
    """Whether `out` holds a finished build with these settings. Raises SettingsChanged for other settings."""
    if not (out / "manifest.json").is_file():
        return False
    refuse_changes(out, "built", read_json(out / "settings.json"), settings)
    shutil.rmtree(out / WORK, ignore_errors=True)  # of a build that was killed at its very end
    return True


def claim(out: Path, settings: dict[str, Any]) -> None:
    """Writes settings.json first, or checks the one that is there."""
    if out.exists() and not out.is_dir():
        raise BadInput(f"{out}: is a file, wanted a folder for the data")
    if out.is_dir():
        remove_unfinished(out)
    if (out / "settings.json").is_file():
        refuse_changes(out, "built", read_json(out / "settings.json"), settings)
    elif out.is_dir() and any(out.iterdir()):
        raise BadInput(f"{out}: holds other files and is no data build; give an empty or new folder with --out")
    else:
        write_json(out / "settings.json", settings)


def shards(out: Path, view: str) -> list[Path]:
    """The files of one view ("sft", "rl", ...) of a finished build, in order.

    Raises:
        DataError: no build there, an unfinished one, or one without this view.
    """
    if not (out / "manifest.json").is_file():
        state = "is not finished" if (out / "settings.json").is_file() else "is no data build"
        raise DataError(f"{out}: {state} (no manifest.json); build it with: python -m data_builders RECIPE --out {out}")
    found = sorted((out / view).glob("part-*.jsonl"))
    if not found:
        raise DataError(f"{out}: holds no {view} rows; delete the folder and build it anew")
    return found


def finish(
    out: Path, settings: dict[str, Any], totals: dict[str, Any], checked: Sequence[Checked], max_giveaway: float
) -> dict[str, Any]:
    """Writes the card and, last, the manifest, both counted from the files themselves; `totals` joins the manifest.

    `checked` are the probe sets that the rows were held against.

    Raises:
        DataError: the openings give away what lacks something; the card is there, and no manifest.
    """
    rejected: Counter[str] = Counter(row["reason"] for _, row in read_jsonl(out / "rejected.jsonl"))
    parts = sorted((out / "sft").glob("part-*.jsonl"))
    kept_rows, lost = (row for part in parts for _, row in read_jsonl(part)), read_jsonl(out / "rejected.jsonl")
    page = card(kept_rows, (row for _, row in lost), settings, checked, totals.get("calls"))
    write_atomic(out / "card.md", page.text)
    auc = page.giveaway.value
    if auc is not None and auc > WARN:
        found = f"AUC {auc:.2f} of {page.giveaway.n} openings"
        told = f"{out}: the first message alone tells what lacks something ({found})"
        if auc > max_giveaway:
            raise DataError(
                f"{told}, more than quality.max_giveaway {max_giveaway:g}: a model would learn that wording; see "
                f"{out / 'card.md'}, reword the openings, or raise the limit"
            )
        say(f"warning: {told}: a model may learn that wording in place of the judgement")
    files = [
        *parts,
        *sorted((out / "rejected").glob("*.jsonl")),
        out / "rejected.jsonl",
        *(path for view in VIEWS for path in sorted((out / view).glob("part-*.jsonl"))),
        *sorted((out / "eval").glob("*.jsonl")),
    ]
    rows = {path: sum(1 for _ in read_jsonl(path)) for path in files}
    kept = sum(rows[part] for part in parts)
    manifest = {
        "schema": 1,
        "asked": kept + sum(rejected.values()),
        "kept": kept,
        "rejected": dict(sorted(rejected.items())),
        "seed": settings["seed"],
        "settings": settings,
        "giveaway": vars(page.giveaway),
        **totals,
        "files": {str(path.relative_to(out)): {"rows": rows[path], "sha256": sha256_file(path)} for path in files},
    }
    write_json(out / "manifest.json", manifest)
    shutil.rmtree(out / WORK, ignore_errors=True)
    return manifest
