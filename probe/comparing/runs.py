"""Finished probe runs as they are compared: found on disk, read, and each given a name of its own."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from probe.comparing.results import Model, Results, Run, printable, read_results
from probe.comparing.samples import Samples, read_samples
from probe.errors import BadInput


def expand(folders: Sequence[Path]) -> list[Path]:
    """The folders with a training run's folder replaced by its finished probes: base first, then by step."""
    found: list[Path] = []
    for folder in folders:
        if (folder / "results.json").is_file() or not (folder / "probe").is_dir():
            found.append(folder)
            continue
        steps = [step for step in (folder / "probe").glob("step-*") if step.name.removeprefix("step-").isdigit()]
        probes = [folder / "probe" / "base", *sorted(steps, key=lambda step: int(step.name.removeprefix("step-")))]
        finished = [probe for probe in probes if (probe / "results.json").is_file()]
        if not finished:
            raise BadInput(f"{folder}: a training run without a finished probe; wanted one in {folder / 'probe'}")
        found += finished
    return found


def load_runs(folders: Sequence[Path]) -> tuple[Run, ...]:
    """The runs in the order given, each with a name of its own.

    Raises:
        BadInput: no folder, one given twice, or one that holds no finished run of schema 1.
    """
    if not folders:
        raise BadInput("no run folder given, wanted one or more that `python -m probe run` made")
    folders = expand(folders)
    for folder, count in Counter(Path(folder).resolve() for folder in folders).items():
        if count > 1:
            raise BadInput(f"{folder}: given {count} times, wanted each run once")
    results = [read_results(folder) for folder in folders]
    names = _names(folders, [result.model for result in results])
    paths = [folder / "samples.jsonl" for folder in folders]
    return tuple(
        Run(folder, name, result, read_samples(path) if path.exists() else None)
        for folder, name, result, path in zip(folders, names, results, paths, strict=True)
    )


def runs_of(results: Sequence[dict[str, Any]]) -> tuple[Run, ...]:
    """Runs from contents of results.json that are at hand; their rows stay out, so nothing is paired."""
    checked = [Results.model_validate(result) for result in results]
    folders = [Path(result.model.path) for result in checked]
    names = _names(folders, [result.model for result in checked])
    empty = Samples({}, {})
    return tuple(Run(folder, name, result, empty) for folder, name, result in zip(folders, names, checked, strict=True))


def _names(folders: Sequence[Path], models: Sequence[Model]) -> list[str]:
    """Label and step; with the names of the folders above where that is not enough to tell runs apart.

    The checkpoints of one training run are named alike: all of them with its folder, or none.
    """
    plain = []
    for model in models:
        stepped = model.step and not re.search(rf"(?<!\d){model.step}(?!\d)", model.label)
        plain.append(printable(f"{model.label} step-{model.step}" if stepped else model.label) or "unnamed")
    families = [
        str(folder.absolute().parent) if model.step else "" for folder, model in zip(folders, models, strict=True)
    ]
    names = plain
    for depth in range(1, 6):
        count = Counter(names)
        unclear = {index for index, name in enumerate(names) if count[name] > 1}
        mixed = {families[index] for index in unclear} - {""}
        unclear |= {index for index, family in enumerate(families) if family in mixed}
        # A training run keeps its probes in RUN/probe/step-N: that middle name says nothing.
        above = [tuple(part for part in folder.absolute().parts[1:] if part != "probe") for folder in folders]
        above = [parts[:-1] if parts and parts[-1] == name else parts for parts, name in zip(above, plain, strict=True)]
        names = [
            printable("/".join((*above[index][-depth:], plain[index]))) if index in unclear else name
            for index, name in enumerate(names)
        ]
    seen = Counter[str]()
    for index, name in enumerate(names):
        seen[name] += 1
        names[index] = name if seen[name] == 1 else f"{name} ({seen[name]})"
    return names
