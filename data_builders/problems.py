"""The problems of a recipe, by number: generated ones, or a file's, filtered and shuffled by seed.

Problem `i` can be made without the ones before it, which is what lets a build take up at any shard. A file is
read and checked as a whole before anything is written; its memory is that of the file, not of what is built.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import random
import re
from pathlib import Path
from typing import Any

from nextturn.data_builders.gaps import task_from
from nextturn.data_builders.recipe import DataRecipe, Source
from nextturn.data_builders.starter import LEVELS, MAX_RESULT, combinations, starter_problem, starter_problems, stories
from nextturn.data_builders.tasks import Task
from nextturn.data_builders.text import stands_in
from nextturn.probe.errors import RecipeError
from nextturn.probe.files import sha256_file
from nextturn.probe.sets import Problem, locate, read_problems

# The hub's names for the training split; a builder never takes a test split by itself.
_ON_A_SHEET, _LONGEST_BESIDE = 0.7, 500  # share of problems; characters
_TRAIN_SETS = {"gsm8k": "gsm8k_train", "math": "math_train"}


class Problems:
    """`len(problems)` tasks; `problems[i]` is a function of source, seed and `i`.

    Args:
        reserved: a share of a file's problems that is for replay; `replay` takes these, else all others are taken.

    Raises:
        DataError: a file is missing, has a broken line or a problem without an answer (file:line).
        RecipeError: settings that do not fit the source, or filters that leave nothing.
    """

    def __init__(
        self, source: Source, seed: int, where: str = "source", reserved: float = 0.0, replay: bool = False
    ) -> None:
        self.seed = seed
        self.path: Path | None = None
        self._problems: list[Problem] = []
        self._n = 0
        if source.kind == "written":
            if source.path or source.levels or source.largest:
                raise RecipeError(f"{where}: the written conversations lie ready: no path, levels or largest")
            return
        if source.kinds:
            raise RecipeError(f"{where}.kinds: only the written conversations are chosen by kinds")
        if source.kind == "starter":
            if source.path or source.subjects or source.n is None:
                raise RecipeError(f"{where}: the starter source is generated: it wants `n` and no path or subjects")
            self._n, self._difficulty = source.n, _difficulty(source)
            return
        if source.largest is not None:
            raise RecipeError(f"{where}.largest: only starter problems can be held to small numbers")
        if source.kind == "jsonl" and source.path is None:
            raise RecipeError(f"{where}.path: missing, wanted a JSONL file with question and answer")
        self.path = locate(_TRAIN_SETS.get(source.kind, source.kind), Path(source.path) if source.path else None)
        name = source.kind if source.kind != "jsonl" else None
        read = [problem for problem in read_problems(self.path, name) if _wanted(problem, source)]
        self._problems = _part(read, reserved, replay) if reserved else read
        if not self._problems:
            hint = f"; --{where}.levels null takes any level, or none" if source.levels else ""
            raise RecipeError(f"{where}: no problem of {self.path} is left after levels, subjects and drawings{hint}")
        random.Random(f"order:{seed}").shuffle(self._problems)
        self._n = source.n or len(self._problems)

    def __len__(self) -> int:
        return self._n

    def __getitem__(self, index: int) -> Task:
        """The task with this number; past the end of a file it is the same problem under another id."""
        if not self._problems:
            return starter_problem(index, self.seed, "train", *self._difficulty)
        again, place = divmod(index, len(self._problems))
        task = task_from(self._problems[place])
        return self._on_a_sheet(dataclasses.replace(task, id=f"{task.id}~{again}") if again else task)

    @functools.cached_property
    def _lacking(self) -> list[str]:
        """The problems of the file without something that they need."""
        lacking = (gap.question for problem in self._problems for gap in task_from(problem).gaps)
        return [question for question in lacking if len(question) <= _LONGEST_BESIDE]

    def _on_a_sheet(self, task: Task) -> Task:
        """Most problems stand beside another one that nobody asks about: a whole one where they themselves lack something,
        else one that lacks something. So both openings are made of the same texts, and only what is asked for differs."""
        rng = random.Random(f"sheet:{self.seed}:{task.id}")
        if rng.random() >= _ON_A_SHEET or not self._lacking or len(task.question) > _LONGEST_BESIDE:
            return task
        values = [gap.value for gap in task.gaps]
        for _ in range(50):
            whole, lacking = rng.choice(self._problems).question, rng.choice(self._lacking)
            fits = len(whole) <= _LONGEST_BESIDE and not any(stands_in(value, whole) for value in values)
            if fits and task.question not in (whole, lacking):
                return dataclasses.replace(task, whole_beside=whole.strip(), lacking_beside=lacking)
        return dataclasses.replace(task, gaps=())

    def inputs(self) -> dict[str, str]:
        """The files read, with their sha256, so that a changed file counts as a changed setting."""
        return {str(self.path): sha256_file(self.path)} if self.path else {}


def held_out(recipe: DataRecipe) -> list[dict[str, Any]]:
    """Return generated test problems for the probe's accuracy: as many of every story, and no two with the same numbers.

    Raises:
        RecipeError: The source is not generated, or a story runs out.
    """
    n, source = recipe.eval.accuracy_n, recipe.source
    if not n:
        return []
    if source.kind != "starter":
        raise RecipeError(
            f"eval.accuracy_n: given {n}, and only starter problems can be made for it; wanted 0, and a file of held-out "
            "problems in quality.decontaminate and in the probe's sets"
        )
    levels, largest = _difficulty(source)
    room = {story.key: len(combinations(story, "test", largest)) for story in stories("test", levels, largest)}
    story, fewest = min(room.items(), key=lambda one: one[1])
    if n > fewest * len(room):
        raise RecipeError(
            f"eval.accuracy_n: given {n}, and the story {story!r} has only {fewest} held-out problems with no number above "
            f"{largest}; wanted at most {fewest * len(room)}, or more source.levels or a larger source.largest"
        )
    return [
        {"id": one.id, "question": one.question, "answer": one.answer, "solution": one.solution}
        for one in starter_problems(n, recipe.seed, "test", levels, largest)
    ]


def _difficulty(source: Source) -> tuple[list[int], int]:
    return source.levels or list(LEVELS), source.largest or MAX_RESULT


def _part(problems: list[Problem], reserved: float, replay: bool) -> list[Problem]:
    """Those for replay, about a share `reserved` and at least one, or all others, told apart by their texts alone."""
    texts = [" ".join(problem.question.split()).encode() for problem in problems]
    places = [int(hashlib.sha256(text).hexdigest()[:8], 16) / 16**8 for text in texts]
    last = max(reserved, min(places, default=0.0))
    return [problem for problem, place in zip(problems, places, strict=True) if (place <= last) == replay]


def _wanted(problem: Problem, source: Source) -> bool:
    if re.search(r"\[asy\]|\\begin\{tabular", problem.question + problem.solution):  # code is nothing to say in a chat
        return False
    subjects = [subject.lower() for subject in source.subjects or [problem.subject or ""]]
    return (not source.levels or problem.level in source.levels) and (problem.subject or "").lower() in subjects
