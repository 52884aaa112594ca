"""The problems of a recipe by number: generated ones, or those of a file, filtered and shuffled by seed.

Problem `i` does not depend on the problems before it, so a build can resume at any shard. A file is read and checked
completely before anything is written.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import random
import re
from pathlib import Path
from typing import Any

from nextturn.data_builders import starter
from nextturn.data_builders.gaps import task_from
from nextturn.data_builders.recipe import DataRecipe, Source
from nextturn.data_builders.tasks import Task
from nextturn.data_builders.text import stands_in
from nextturn.probe.errors import RecipeError
from nextturn.probe.sets import Problem, locate, read_problems
from nextturn.probe.tables import sha256_of

_ON_A_SHEET, _LONGEST_BESIDE = 0.7, 500  # share of the problems; characters
# The training splits on the hub. A builder never uses a test split unless the recipe names its file.
_TRAIN_SETS = {"gsm8k": "gsm8k_train", "math": "math_train"}
# The keys that select problems, by kind of source.
_KEYS = {"written": ("kinds", "subjects"), "starter": ("levels", "largest")}
_FILE_KEYS = ("path", "levels", "subjects")


class Problems:
    """A sequence of tasks; `problems[i]` is a function of source, seed and `i`.

    Args:
        where: The section of the recipe, for messages.
        reserved: Share of a file's problems that is reserved for replay.
        replay: Use the reserved problems instead of all others.

    Raises:
        DataError: A file is missing, has a broken line, or a problem without an answer (file:line).
        RecipeError: The settings do not fit the source, or the filters leave no problem.
    """

    def __init__(
        self, source: Source, seed: int, where: str = "source", reserved: float = 0.0, replay: bool = False
    ) -> None:
        self.seed = seed
        self.path: Path | None = None
        self._problems: list[Problem] = []
        self._n = 0
        selected = [key for key in ("path", "kinds", "levels", "largest", "subjects") if getattr(source, key)]
        keys = _KEYS.get(source.kind, _FILE_KEYS)
        if unused := [key for key in selected if key not in keys]:
            expected = ", ".join(keys)
            raise RecipeError(f"{where}.{unused[0]}: not a key of kind `{source.kind}`, expected n, {expected}")
        if source.kind == "written":
            return
        if source.kind == "starter":
            if source.n is None:
                raise RecipeError(f"{where}.n: missing, expected the number of problems to generate")
            self._n, self._difficulty = source.n, _difficulty(source)
            return
        if source.kind == "jsonl" and source.path is None:
            raise RecipeError(f"{where}.path: missing, expected a file with question and answer")
        self.path = locate(_TRAIN_SETS.get(source.kind, source.kind), source.path)
        name = source.kind if source.kind != "jsonl" else None
        problems = [problem for problem in read_problems(self.path, name) if _is_wanted(problem, source)]
        if reserved:
            problems = _part(problems, reserved, replay)
        if not problems:
            hint = f"; --{where}.levels null accepts every level" if source.levels else ""
            raise RecipeError(f"{where}: no problem of {self.path} is left after levels, subjects and drawings{hint}")
        random.Random(f"order:{seed}").shuffle(problems)
        self._problems, self._n = problems, source.n or len(problems)

    def __len__(self) -> int:
        return self._n

    def __getitem__(self, index: int) -> Task:
        """Return the task with this number. Past the end of a file its problems come again under other ids."""
        if not self._problems:
            return starter.starter_problem(index, self.seed, "train", *self._difficulty)
        repeat, position = divmod(index, len(self._problems))
        task = task_from(self._problems[position])
        return self._on_a_sheet(dataclasses.replace(task, id=f"{task.id}~{repeat}") if repeat else task)

    @functools.cached_property
    def _incomplete(self) -> list[str]:
        """The problems of the file with a needed fact left out."""
        questions = (gap.question for problem in self._problems for gap in task_from(problem).gaps)
        return [question for question in questions if len(question) <= _LONGEST_BESIDE]

    def _on_a_sheet(self, task: Task) -> Task:
        """Return most tasks with another problem beside them that nobody asks about.

        The other problem is complete where the task itself lacks a fact, and lacks a fact otherwise. So complete and
        incomplete first messages consist of the same texts, and only the question tells them apart.
        """
        rng = random.Random(f"sheet:{self.seed}:{task.id}")
        if rng.random() >= _ON_A_SHEET or not self._incomplete or len(task.question) > _LONGEST_BESIDE:
            return task
        values = [gap.value for gap in task.gaps]
        for _ in range(50):
            whole, lacking = rng.choice(self._problems).question, rng.choice(self._incomplete)
            fits = len(whole) <= _LONGEST_BESIDE and not any(stands_in(value, whole) for value in values)
            if fits and task.question not in (whole, lacking):
                return dataclasses.replace(task, whole_beside=whole.strip(), lacking_beside=lacking)
        return dataclasses.replace(task, gaps=())

    def inputs(self) -> dict[str, str]:
        """Return the sha256 of each file, so that a changed file counts as a changed setting."""
        return {str(self.path): sha256_of(self.path)} if self.path else {}


def held_out(recipe: DataRecipe) -> list[dict[str, Any]]:
    """Return `eval.accuracy_n` generated test problems, equally many per template, no two with the same numbers.

    Raises:
        RecipeError: The source is not generated, or a template has too few problems.
    """
    n, source = recipe.eval.accuracy_n, recipe.source
    if not n:
        return []
    if source.kind != "starter":
        raise RecipeError(
            f"eval.accuracy_n: given {n}, but only the starter source can generate such problems; expected 0, and a file "
            "of held-out problems in quality.decontaminate and in the probe's sets"
        )
    levels, largest = _difficulty(source)
    templates = starter.usable_templates("test", levels, largest)
    counts = {template.key: len(starter.combinations(template, "test", largest)) for template in templates}
    rarest = min(counts, key=lambda key: counts[key])
    most = counts[rarest] * len(counts)
    if n > most:
        raise RecipeError(
            f"eval.accuracy_n: given {n}, but the template {rarest!r} has only {counts[rarest]} held-out problems "
            f"with no number above {largest}; expected at most {most}, more source.levels, or a larger source.largest"
        )
    tasks = starter.starter_problems(n, recipe.seed, "test", levels, largest)
    return [{name: getattr(task, name) for name in ("id", "question", "answer", "solution")} for task in tasks]


def _difficulty(source: Source) -> tuple[list[int], int]:
    return source.levels or list(starter.LEVELS), source.largest or starter.MAX_RESULT


def _part(problems: list[Problem], reserved: float, replay: bool) -> list[Problem]:
    """Return the problems for replay (a share `reserved`, at least one), or all others. A hash of the text decides."""
    texts = [" ".join(problem.question.split()).encode() for problem in problems]
    positions = [int(hashlib.sha256(text).hexdigest()[:8], 16) / 16**8 for text in texts]
    last = max(reserved, min(positions, default=0.0))
    return [problem for problem, position in zip(problems, positions, strict=True) if (position <= last) == replay]


def _is_wanted(problem: Problem, source: Source) -> bool:
    if re.search(r"\[asy\]|\\begin\{tabular", problem.question + problem.solution):  # nobody types drawings in a chat
        return False
    subjects = [subject.lower() for subject in source.subjects or [problem.subject or ""]]
    return (not source.levels or problem.level in source.levels) and (problem.subject or "").lower() in subjects
