"""The steps of a reference solution: its lines or sentences, with the equation where the arithmetic comes out."""

from __future__ import annotations

import ast
import re
from fractions import Fraction

from data_builders.derive.latex import Text
from data_builders.derive.values import same_value
from data_builders.tasks import Slip, Step

_NUMBER = r"-?\d[\d,]*(?:\.\d+)?"
_EQUATION = re.compile(
    rf"(?<![\d.)*/+%-])\s*\$?({_NUMBER})\s*([-+*/x×])\s*\$?({_NUMBER})\s*=\s*\$?({_NUMBER})(?!\s*[*/+×-]\s*\d)(?![\d%])"
)
# A longer sum or product, as GSM8K writes it: "3 x 4 + $2.50 = $14.50".
_LONG = re.compile(
    r"(?<![\w.%)])([($]*\d[\d,.$()+*/x×% -]{0,80}[\d)%])\s*=\s*\$?(\d[\d,]*(?:\.\d+)?)(?![\d%/*+-]|\s*[*/+×x-]\s*[\d$(])"
)
_UNITS = re.compile(r"(?<=[\d)])(?: ?(?:[a-z]{2,}|km|cm|£|€)(?:/[a-z]+)*| ?/ ?[a-z]+){1,4}(?=\s*[-+*/=)–])")
_MOST_OPERATIONS = 12


def steps_of(solution: Text, prose: bool) -> tuple[Step, ...]:
    """The sentences of prose, or the lines of a solution that is written one step a line."""
    if prose:
        return tuple(_step(solution.raw[start:end]) for start, end in solution.sentences)
    return tuple(_step(line.strip()) for line in solution.raw.split("\n") if line.strip())


def _step(line: str) -> Step:
    for left, op, right, result in _EQUATION.findall(_UNITS.sub("", line)):
        op = {"x": "*", "×": "*"}.get(op, op)
        a, b, c = (Fraction(number.replace(",", "")) for number in (left, right, result))
        if op == "/" and b == 0:
            continue
        if c == {"+": a + b, "-": a - b, "*": a * b, "/": a / b if b else None}[op]:
            return Step(line, left, op, right, result)
    return Step(line)


def step_slips(steps: tuple[Step, ...], answer: str) -> tuple[Slip, ...]:
    """Results of lines on the way, where a user may have stopped; each number must name one line."""
    results = [(step.result, step.equation) if step.op else _long_result(step.text) for step in steps]
    values = [result for result, _ in results]
    return tuple(
        Slip(at, "", result, "" if steps[at].op else equation)
        for at, (result, equation) in enumerate(results[:-1])
        if result and sum(same_value(result, value) for value in values) == 1 and not same_value(result, answer)
    )


def _long_result(line: str) -> tuple[str, str]:
    """The result and the whole of the last equation of a line whose arithmetic comes out; two empty texts without.

    Units between the numbers ("15 gallons * 0.2 = 3 gallons") are left out of the equation.
    """
    for match in reversed(list(_LONG.finditer(_UNITS.sub("", line.replace("–", "-"))))):
        value = computed(match.group(1))
        if value is not None and value == Fraction(match.group(2).replace(",", "")):
            return match.group(2), match.group().strip()
    return "", ""


def computed(expression: str) -> Fraction | None:
    """What a sum, product or fraction of plain numbers comes to; None for anything else."""
    bare = re.sub(r"[$,\s]", "", expression).replace("x", "*").replace("×", "*")
    bare = re.sub(r"(\d+(?:\.\d+)?|\.\d+)%", r"(\1/100)", bare)
    if not re.fullmatch(r"[\d.()+*/-]+", bare) or len(re.findall(r"[+*/-]", bare)) > _MOST_OPERATIONS or "**" in bare:
        return None
    try:
        return _value(ast.parse(bare, mode="eval").body)
    except (SyntaxError, ValueError, ZeroDivisionError):
        return None


def _value(node: ast.expr) -> Fraction:
    if isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
        return Fraction(str(node.value))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_value(node.operand)
    if isinstance(node, ast.BinOp):
        left, right = _value(node.left), _value(node.right)
        if isinstance(node.op, ast.Add):
            return left + right
        if isinstance(node.op, ast.Sub):
            return left - right
        if isinstance(node.op, ast.Mult):
            return left * right
        if isinstance(node.op, ast.Div):
            return left / right
    raise ValueError("no plain arithmetic")
