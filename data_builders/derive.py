"""What a problem read as plain text supports: its steps, a given that can be withheld, a wrong way.

Nothing here understands the text. A step is a line of the reference solution; its equation is taken only where
the arithmetic comes out. A given is withheld only where a number that the solution uses stands before a plain
noun ("48 friends" becomes "some friends"), as an amount of money, or as the value of a formula
("$f(2) = 5$" becomes "$f(2) = ?$"); any other problem keeps all its givens.
"""

from __future__ import annotations

import re
from fractions import Fraction

from data_builders.tasks import Gap, Slip, Step, Task
from probe.answers import boxed
from probe.sets import Problem

_NUMBER = r"-?\d[\d,]*(?:\.\d+)?"
_EQUATION = re.compile(
    rf"(?<![\d.)*/+%-])\s*\$?({_NUMBER})\s*([-+*/x×])\s*\$?({_NUMBER})\s*=\s*\$?({_NUMBER})(?!\s*[*/+×-]\s*\d)(?![\d%])"
)
_NOUNS = re.compile(r"(?<![\d$.,/\\-])(\d{1,4})\$? ([a-z]{3,}s)\b")
_MONEY = re.compile(r"(?<![\d.\\$])\$(\d{1,4}(?:\.\d\d)?)(?=[ .,?;])(?![.,]\d)(?! ?(?:million|bill))")
_TEX_MONEY = re.compile(r"\$?\\\$(\d{1,4}(?:\.\d\d)?)\$?(?=[ .,?;])(?![.,]\d)(?! ?(?:million|bill))")
_VALUE = re.compile(r"\$([A-Za-z](?:[A-Za-z]|\(-?\w+\))?) ?= ?(-?\d+)\$")
# What is left when "12 times" loses its 12 is no question about a number of things; after "these" or before
# "old" the sentence does not read.
_NO_NOUNS = {"times", "has", "was", "does", "goes", "less", "plus", "minus", "digits", "sides", "yes", "ones", "others"}
_NOT_AFTER = re.compile(
    r"\b(?:these|those|the|first|last|next|other|all|every|only|about|exactly|another|his|her|their|its|my|set of|than|or)\s+$",
    re.IGNORECASE,
)
_NOT_BEFORE = re.compile(r" (?:of|per|as|more|less|fewer|older|younger|times|old|long|wide|tall|high|deep)\b")
_VAGUE = ("some", "a few", "several")


def task_from(problem: Problem) -> Task:
    r"""The problem as a task. A solution that boxes its answer (MATH) is kept word for word."""
    keeps = boxed(problem.solution) is not None
    steps = tuple(_step(line) for line in _lines(problem.solution, keeps))
    return Task(
        id=problem.id,
        question=problem.question,
        answer=problem.answer,
        source=problem.source,
        steps=steps,
        gaps=_gaps(problem),
        slips=_slips(steps, problem.answer),
        boxed_solution=problem.solution if keeps else "",
    )


def _lines(solution: str, prose: bool) -> list[str]:
    """The lines of a GSM8K solution, or the sentences of prose, cut only outside of formulas and drawings."""
    if not prose:
        return [line.strip() for line in solution.split("\n") if line.strip()]
    sentences, start = [], 0
    for match in re.finditer(r"[.:]\s+(?=[A-Z$\\])", solution):
        piece = solution[start : match.end()]
        if (
            piece.count("$") % 2 == 0
            and piece.count(r"\[") == piece.count(r"\]")
            and piece.count("[asy]") == piece.count("[/asy]")
        ):
            sentences.append(piece.strip())
            start = match.end()
    sentences.append(solution[start:].strip())
    return [sentence for sentence in sentences if sentence]


def _step(line: str) -> Step:
    for left, op, right, result in _EQUATION.findall(line):
        op = {"x": "*", "×": "*"}.get(op, op)
        a, b, c = (Fraction(number.replace(",", "")) for number in (left, right, result))
        if op == "/" and b == 0:
            continue
        if c == {"+": a + b, "-": a - b, "*": a * b, "/": a / b if b else None}[op]:
            return Step(line, left, op, right, result)
    return Step(line)


def _slips(steps: tuple[Step, ...], answer: str) -> tuple[Slip, ...]:
    """Results on the way to the answer, where a user may have stopped; each number must name one step."""
    results = [step.result for step in steps if step.op]
    return tuple(
        Slip(at, "", step.result)
        for at, step in enumerate(steps[:-1])
        if step.op and results.count(step.result) == 1 and step.result.replace(",", "") != answer.replace(",", "")
    )


def _gaps(problem: Problem) -> tuple[Gap, ...]:
    text = problem.question
    found: list[Gap] = []
    for match in _NOUNS.finditer(text):
        value, noun = match.groups()
        if (
            noun in _NO_NOUNS
            or int(value) < 2
            or not _withholdable(problem, value)
            or _inside_formula(text, match.start())
        ):
            continue
        if _NOT_AFTER.search(text[: match.start()]) or _NOT_BEFORE.match(text[match.end() :]):
            continue
        vague = _VAGUE[len(found) % len(_VAGUE)]
        question = text[: match.start()] + f"{vague} {noun}" + text[match.end() :]
        quote = _around(question, match.start(), f"{vague} {noun}")
        found.append(Gap(
            question, f'how many {noun} are meant by "{quote}"', f'It says "{quote}", but how many {noun} exactly?',
            f"It's {value} {noun}.", f"{value} {noun}", value,
        ))  # fmt: skip
    for match in (_TEX_MONEY if boxed(problem.solution) else _MONEY).finditer(text):
        value = match.group(1)
        if not _withholdable(problem, value) or _inside_formula(text, match.start()):
            continue
        question = text[: match.start()] + "some amount" + text[match.end() :]
        quote = _around(question, match.start(), "some amount")
        found.append(Gap(
            question, f'how much money "{quote}" means', f'How much is it exactly where it says "{quote}"?',
            f"It's ${value}.", f"${value}", value,
        ))  # fmt: skip
    for match in _VALUE.finditer(text):
        name, value = match.groups()
        if not _withholdable(problem, value):
            continue
        question = text[: match.start()] + f"${name} = ?$" + text[match.end() :]
        found.append(Gap(
            question, f"what ${name}$ is", f"What is the value of ${name}$?", f"It's ${name} = {value}$.", f"${value}$", value,
        ))  # fmt: skip
    return tuple(found)


def _withholdable(problem: Problem, value: str) -> bool:
    """A number that stands once in the question, is computed with in the solution, and is not the answer itself."""
    whole = rf"(?<![\d.]){re.escape(value)}(?![\d]|\.\d)"
    operator = r"(?:[-+*/x×=^(]|\\times|\\cdot|\\frac\{)"
    computed = rf"{operator}\s*\\?\$?{whole}|{whole}\$?\s*(?:[-+*/x×^%)]|\\times|\\cdot)"
    return (
        len(re.findall(whole, problem.question)) == 1
        and re.search(computed, problem.solution) is not None
        and value != problem.answer
    )


def _inside_formula(text: str, position: int) -> bool:
    before = text[:position].replace(r"\$", "")
    return before.count("$") % 2 == 1 and "\\" in text


def _around(text: str, start: int, words: str) -> str:
    """The words with up to four before them in the same sentence, so that it is clear which place is meant."""
    ends = r"[.,;:?!\n$\"]" if "\\" in text else r"[.,;:?!\n\"]"
    before = re.split(ends, text[:start])[-1].split()[-4:]
    return " ".join([*before, words])
