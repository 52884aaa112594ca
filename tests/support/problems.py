"""The problems with steps that the tests use."""

from __future__ import annotations

import functools

from nextturn.data_builders.problems import Problems
from nextturn.data_builders.sections import Source
from nextturn.data_builders.tasks import Task
from support.commands import ROOT

PROBLEMS = ROOT / "recipes" / "problems"
MIXED = str(PROBLEMS / "mixed.jsonl.gz")


@functools.cache
def tasks(name: str = "mixed") -> list[Task]:
    """Return the problems of a file: 400 of one to three steps (mixed), or 1,500 of one step (rl)."""
    problems = Problems(Source(kind="jsonl", path=str(PROBLEMS / f"{name}.jsonl.gz")), 0)
    return [problems[index] for index in range(len(problems))]
