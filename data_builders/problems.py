"""The problems of a recipe by number: those of a file, filtered and shuffled by seed.

Problem `i` does not depend on the problems before it, so a build can resume at any part. A file is read and checked
completely before anything is written.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import random
import re
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from nextturn.data_builders.gaps import task_from
from nextturn.data_builders.numbers import stands_in
from nextturn.data_builders.sections import Source
from nextturn.data_builders.tasks import Task
from nextturn.probe.command.errors import DataError, RecipeError
from nextturn.probe.command.files import cache_root, json_line, sha256_text, write_atomic
from nextturn.probe.command.own import file_of
from nextturn.probe.command.recipe import load_named
from nextturn.probe.command.timelimit import described
from nextturn.probe.data.tables import sha256_of
from nextturn.probe.questions.sets import Problem, locate, read_problems

_ON_A_SHEET, _LONGEST_BESIDE = 0.7, 500  # share of the problems; characters
# The training splits on the hub. A builder never uses a test split unless the recipe names its file.
_TRAIN_SETS = {"gsm8k": "gsm8k_train", "math": "math_train"}
_TASK = TypeAdapter(Task)


class Problems:
    """A sequence of tasks; `problems[i]` is a function of source, seed and `i`.

    Args:
        where: The section of the recipe, for messages.
        reserved: Share of a file's problems that is reserved for replay.
        replay: Use the reserved problems instead of all others.

    Raises:
        DataError: A file is missing, has a broken line, a problem without an answer, or a part of a problem of a wrong type.
        RecipeError: The settings do not fit the source, or the filters leave no problem.
    """

    def __init__(
        self, source: Source, seed: int, where: str = "source", reserved: float = 0.0, replay: bool = False
    ) -> None:
        self.seed = seed
        self.path: Path | None = None
        self._problems: list[Problem] = []
        self._n = 0
        self._files: dict[str, str] = {}  # of a source of one's own
        selected = [key for key in ("path", "kinds", "levels", "subjects") if getattr(source, key)]
        of_file = ("levels", "subjects") if ":" in source.kind else ("path", "levels", "subjects")
        keys = ("kinds", "subjects") if source.kind == "written" else of_file
        if unused := [key for key in selected if key not in keys]:
            expected = ", ".join(keys)
            raise RecipeError(f"{where}.{unused[0]}: not a key of kind `{source.kind}`, expected n, {expected}")
        if source.kind == "written":
            return
        if source.kind == "jsonl" and source.path is None:
            raise RecipeError(f"{where}.path: missing, expected a file with question and answer")
        if ":" in source.kind:
            self.path, self._files = _stored_rows(source.kind, where), file_of(source.kind)
        else:
            self.path = locate(_TRAIN_SETS.get(source.kind, source.kind), source.path)
        name = source.kind.partition(":")[0] if source.kind != "jsonl" else None
        problems = [problem for problem in read_problems(self.path, name) if _is_wanted(problem, source)]
        if reserved:
            problems = _part(problems, reserved, replay)
        if not problems:
            hint = f"; --{where}.levels null accepts every level" if source.levels else ""
            raise RecipeError(f"{where}: no problem of {self.path} is left after levels, subjects and drawings{hint}")
        for problem in problems:
            if problem.parts is not None:
                _as_task(problem, self.path)
        random.Random(f"order:{seed}").shuffle(problems)
        self._problems, self._n = problems, source.n or len(problems)

    def __len__(self) -> int:
        return self._n

    def __getitem__(self, index: int) -> Task:
        """Return the task with this number. Past the end of a file its problems come again under other ids."""
        repeat, position = divmod(index, len(self._problems))
        problem = self._problems[position]
        task = _as_task(problem, self.path)
        task = dataclasses.replace(task, id=f"{task.id}~{repeat}") if repeat else task
        return task if problem.parts else self._on_a_sheet(task)

    @functools.cached_property
    def _incomplete(self) -> list[str]:
        """The problems of the file with a needed fact left out."""
        questions = (gap.question for problem in self._problems for gap in _as_task(problem, self.path).gaps)
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
        return {str(self.path): sha256_of(self.path), **self._files} if self.path else {}


def _stored_rows(name: str, where: str) -> Path:
    """Store the rows of a source of one's own as a file, which is read as any other.

    Raises:
        RecipeError: The source cannot be loaded, fails, or gives something that JSON does not have.
    """
    try:
        text = "".join(map(json_line, load_named(name)()))
    except Exception as error:
        raise RecipeError(
            f"{where}.kind: {name} cannot be used ({described(error).removeprefix('error: ')}); expected MODULE:NAME of a class "
            "or function that gives rows with question and answer (docs/data.md, Sources)"
        ) from error
    path = cache_root() / "sources" / f"{sha256_text(text)[:16]}.jsonl"
    write_atomic(path, text)
    return path


def _as_task(problem: Problem, path: Path | None) -> Task:
    """Return the problem with the parts that its row brings, or else with those that its text shows.

    Raises:
        DataError: A part of the row has another form than in `Task`.
    """
    if problem.parts is None:
        return task_from(problem)
    known = {"id": problem.id, "question": problem.question, "answer": problem.answer}
    try:
        task = _TASK.validate_python({"source": problem.source, **problem.parts, **known})
    except ValidationError as error:
        first = error.errors()[0]
        part = ".".join(map(str, first["loc"]))
        raise DataError(f"{path}: the problem {problem.id!r}: {part}: {first['msg']}") from None
    # Without a wrong equation the user stopped early, so a step follows.
    ends = ((mistake.at, len(task.steps) - (not mistake.did)) for mistake in task.mistakes)
    if not all(0 <= at < end for at, end in ends):
        raise DataError(f"{path}: the problem {problem.id!r}: mistakes: `at` is not the index of a step")
    if not all(text for fact in task.gaps for name, text in vars(fact).items() if name != "thing"):
        raise DataError(f"{path}: the problem {problem.id!r}: gaps: every text but `thing` is needed")
    return task


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
