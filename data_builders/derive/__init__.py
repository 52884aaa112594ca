"""What a problem read as plain text supports: steps, things that can be withheld, wrong ways, formulas to point at.

Nothing here understands the text. Everything is cut from the problem and its reference solution, or is a number
changed in place; whatever cannot be told apart with certainty is left out. `latex` finds formulas and sentences,
`evidence` says what may be withheld, `numbers`, `conditions`, `objects` and `goals` make the gaps, `steps`,
`slips` and `solutions` read the solution.
"""

from __future__ import annotations

import dataclasses
import random

from data_builders.derive.conditions import condition_gaps
from data_builders.derive.evidence import Evidence
from data_builders.derive.goals import figure_gaps, goal_gap
from data_builders.derive.latex import Text, read
from data_builders.derive.numbers import number_gaps
from data_builders.derive.objects import object_gaps
from data_builders.derive.slips import text_slips
from data_builders.derive.solutions import equations, pieces, start_and_rest
from data_builders.derive.steps import step_slips, steps_of
from data_builders.tasks import Gap, Slip, Task
from probe.answers import boxed
from probe.sets import Problem


def task_from(problem: Problem) -> Task:
    r"""The problem as a task. A solution that boxes its answer (MATH) is kept word for word.

    The same problem always gives the same task: choices of wording are seeded from its id.
    """
    latex = boxed(problem.solution) is not None
    question, solution = read(problem.question, latex), read(problem.solution, latex)
    steps = steps_of(solution, latex)
    task = Task(
        id=problem.id,
        question=problem.question,
        answer=problem.answer,
        source=problem.source,
        steps=steps,
        gaps=_gaps(Evidence(problem, question, solution, latex), problem.id) if question.whole else (),
        slips=step_slips(steps, problem.answer) if not latex else (),
        topic=_topic(problem),
    )
    return task if not latex else _with_solution(task, problem, question, solution)


def _with_solution(task: Task, problem: Problem, question: Text, solution: Text) -> Task:
    """What only a solution in prose gives: its text, where it can be cut, and the formulas in it."""
    found = equations(solution) if solution.whole else {}
    start, rest = start_and_rest(solution, problem.answer)
    slips: tuple[Slip, ...] = text_slips(problem, question, solution, found)
    return dataclasses.replace(
        task, boxed_solution=problem.solution, slips=slips, start=start, rest=rest, pieces=pieces(solution, found)
    )


def _gaps(evidence: Evidence, seed: str) -> tuple[Gap, ...]:
    rng = random.Random(f"gaps:{seed}")
    stated = (
        [*number_gaps(evidence, rng), *condition_gaps(evidence, rng)]
        if evidence.latex
        else [*number_gaps(evidence, rng)]
    )
    formulas = object_gaps(evidence, rng, stated) if evidence.latex else ()
    return (*stated, *formulas, *goal_gap(evidence, rng), *figure_gaps(evidence))


def _topic(problem: Problem) -> str:
    """The subject in words that fit into a sentence: "Counting & Probability" -> "counting and probability"."""
    return (problem.subject or "a word problem").lower().replace(" & ", " and ")
