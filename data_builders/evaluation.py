"""The held-out sets that are written beside the data: problems for accuracy, and pairs for clarify."""

from __future__ import annotations

import itertools
import random
from typing import Any

from data_builders.problems import Problems, Source, difficulty_of
from data_builders.recipe import DataRecipe
from data_builders.starter import starter_problems
from data_builders.tasks import Task
from probe.errors import RecipeError


def evaluation(recipe: DataRecipe) -> dict[str, list[dict[str, Any]]]:
    """Held-out problems for accuracy, and others in complete and underspecified form for clarify.

    Raises:
        RecipeError: a source that is a file, and no file of held-out problems.
    """
    wanted, seed = recipe.eval, recipe.seed
    if not wanted.accuracy_n and not wanted.clarify_n:
        return {}
    if recipe.source.kind == "starter":
        hard = difficulty_of(recipe.source)
        accuracy = list(starter_problems(wanted.accuracy_n, seed, "test", difficulty=hard))
        clarify = list(starter_problems(wanted.clarify_n, seed, "test", start=wanted.accuracy_n, difficulty=hard))
    else:
        if wanted.path is None:
            raise RecipeError(
                "eval.path: missing, wanted a JSONL file of held-out problems (or accuracy_n and clarify_n 0)"
            )
        kind = recipe.source.kind
        held_out = Problems(Source(kind=kind, path=wanted.path), seed, where="eval")
        tasks = (held_out[index] for index in range(len(held_out)))  # made one by one: the rest is not needed
        accuracy = list(itertools.islice(tasks, wanted.accuracy_n))
        clarify = list(itertools.islice((task for task in tasks if task.gaps), wanted.clarify_n))
    return {"accuracy": [_accuracy_row(task) for task in accuracy], "clarify": [_pair(task, seed) for task in clarify]}


def _accuracy_row(task: Task) -> dict[str, Any]:
    return {
        "id": task.id,
        "question": task.question,
        "answer": task.answer,
        "solution": task.boxed_solution or task.solution,
    }


def _pair(task: Task, seed: int) -> dict[str, Any]:
    gap = random.Random(f"pair:{seed}:{task.id}").choice(task.gaps)
    return {
        "id": task.id, "complete": task.question, "underspecified": gap.question, "missing": gap.clause, "answer": task.answer,
    }  # fmt: skip
