"""Derive from a problem's plain text what a conversation needs: facts that can be left out, steps, and wrong results.

Nothing here understands the text. A sentence or clause is left out only if it has one of a few forms whose fact can be asked
for by name. Everything uncertain is left alone, so most problems give nothing.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator
from fractions import Fraction

from nextturn.data_builders.numbers import (
    MATH,
    Text,
    arithmetic,
    balanced,
    by_itself,
    equations,
    number,
    plain_inner,
    read,
    same_value,
    squeezed,
    stands_in,
)  # fmt: skip
from nextturn.data_builders.tasks import Mistake, Step, Task
from nextturn.probe.questions.sets import Problem
from nextturn.probe.questions.simulation import Fact
from nextturn.probe.text.grading import boxed
from nextturn.probe.text.words import stem, words


def task_from(problem: Problem) -> Task:
    """Return the problem as a task. A solution that boxes its answer (MATH) is kept word for word."""
    latex = boxed(problem.solution) is not None
    question, solution = read(problem.question, latex), read(problem.solution, latex)
    steps = steps_of(solution, prose=latex)
    sentences = [question.raw[start:end] for start, end in question.sentences]
    asked = next((text for text in reversed(sentences) if _ASKS.search(text) and not _FORM.search(text)), "")
    withheld = gaps(problem, question, solution) if question.whole and solution.whole else ()
    mistakes: Iterable[Mistake] = ()
    if 0 < len(asked) <= _LONGEST_ASKED and solution.whole and "(A)" not in problem.question:
        mistakes = text_mistakes(problem, question, solution) if latex else step_mistakes(steps, problem.answer)
    return Task(
        problem.id, problem.question, problem.answer, problem.source, steps, gaps=tuple(withheld),
        mistakes=tuple(mistake for mistake in mistakes if plausible(mistake.answer, problem)),
        boxed_solution=problem.solution if latex else "", asked=asked,
    )  # fmt: skip


_ASKS = re.compile(
    r"\?|\b(?:[Ff]ind|[Cc]ompute|[Cc]alculate|[Dd]etermine|[Ee]valuate|[Ss]olve|[Ss]implify|[Ee]xpress)\b"
)
_FORM = re.compile(r"your (?:final )?answer|[Ee]xpress (?:it|the|all|each)\b|[Ee]nter|[Rr]ound|decimal place")
_LONGEST_ASKED = 160


# --- What can be withheld: only what the solution needs, never the answer, never what is stated twice.

_SMALL = 13  # a smaller number may occur in a solution for another reason, so it needs an operator next to it
_BESIDE = re.compile(r"[-+*/x×({=^]|\\(?:times|cdot|div|sqrt|d?frac)")
# Words that refer to what was left out.
_POINTS_BACK = re.compile(
    r"\b(?:[Tt]his|[Tt]hese|[Tt]hose|above|given|following|former|latter|respectively|[Bb]oth|conditions?|equations?)\b"
)
# "there was a positive integer.": without its formula the thing has no name.
_NAMELESS = re.compile(
    r"\b[Tt]here (?:is|was|are|were|exists?) (?:an? )?(?:[a-z]+ )?(?:integer|number|constant|point|function)s?[.?]"
)
# Problems that have another answer without one of their equations: "find the set of all values", "the least value of $x+y$".
_EXPRESSION = r"(?:\\\[|\$)[^$\]]*?(?:[-+/^\\|]|[A-Za-z][A-Za-z(])"
_ALL = re.compile(
    rf"\brange\b|\b(?:set of )?all (?:possible |real )?values (?:of|that)\s+{_EXPRESSION}|\bset of all (?:possible )?values\b"
    rf"|\b(?:maximum|minimum|largest|smallest|greatest|least)(?: possible)?(?: value)?(?: of| that|,)?(?: the [a-z]+)?\s+{_EXPRESSION}"
)
# The solution numbers the equations; a revealed equation would come last.
_IN_ORDER = re.compile(
    r"\b(?:first|second|third|last|former|latter|other)\b(?: \w+)? (?:equation|condition)|[Ee]quation \(?\d"
)
_MOST_NUMBERS = 3000  # characters; a longer problem is a page of its own


def gaps(problem: Problem, question: Text, solution: Text) -> Iterator[Fact]:
    """Yield each fact that can be left out, with a question that reads as if nothing were missing."""
    if len(question.raw) > _MOST_NUMBERS or "(A)" in question.raw:
        return
    formulas = () if _IN_ORDER.search(solution.raw) else formula_gaps(question)
    for gap in (*formulas, *number_gaps(question)):
        left = gap.question
        fits = (
            not re.search(r",\$?\s*[.?]", left)
            and balanced(left)
            and _ASKS.search(left)
            and not _POINTS_BACK.search(left)
            and not _NAMELESS.search(left)
            and not (_ALL.search(left) and number(gap.value) is None)
            and left[:1] not in ",.;"
        )
        if not fits or stands_in(gap.value, left) or same_value(gap.value, problem.answer):
            continue
        in_words = gap.value in map(stem, words(left))  # "all six bracelets"
        stated = in_words or any(stands_in(gap.value, text) for text in (gap.ask, gap.clause, gap.thing))
        if not stated and _needed(gap, solution.raw):
            yield gap


def _needed(gap: Fact, solution: str) -> bool:
    """Return True if the solution uses the fact: it writes the formula, or calculates with the number."""
    value = number(gap.value)
    if value is None:
        sides = [side for side in re.split("=", squeezed(gap.value)) if len(side) > 1]
        return any(side in squeezed(solution) for side in sides)
    if value in (0, 1):
        return False
    for form in {gap.value, gap.value.replace(",", "")}:
        for match in re.finditer(by_itself(form), solution):
            beside = solution[max(0, match.start() - 7) : match.start()] + " " + solution[match.end() : match.end() + 7]
            if value >= _SMALL or value.denominator > 1 or _BESIDE.search(beside):
                return True
    return False


# --- Formulas that can be withheld: a sentence or clause with one formula, or one of two, and nothing else.

_F = f"({MATH}+)"
_TWO = rf"{_F}(?: and {_F})?"
_ASKING = r"(?=(?:what|find|compute|calculate|determine|evaluate|how many|express|solve)\b)"
_OPENING = rf"(?:If|When|Given(?: that)?|For|Let|Suppose(?: that)?|Assume(?: that)?|Define)\s+{_TWO}"
_CUTS = (
    re.compile(rf"()(?<![^\s]){_OPENING}(?:,? then|,)?\s+{_ASKING}"),
    re.compile(rf"()(?<![^\s{MATH}.]){_OPENING}\.?\s*(?=[A-Z])"),
    re.compile(rf"(,? (?:if|when|where|given(?: that)?|such that|so that|satisfying|for which|for)\s+){_TWO}(?=[.?])"),
)
_NAME = r"(?:[A-Za-z]|\\[a-z]+)(?:_\{?\w+\}?)?"
_FUNCTION = re.compile(rf"({_NAME})\([a-z](?:, ?[a-z])*\)|([a-z]) ?(?:\\(?!cdot|times|div)[a-z]+|[#@*&]) ?[a-z]")
_NO_EQUATION = re.compile(
    r"[<>&~;,]|\\[lc]?dots|\\(?:[lg]eq?|neq?|approx|equiv|to|in|mid|pm|begin|text|mathbf|mathcal|qquad|quad|pmod)(?![a-z])"
)
_COMMAND = re.compile(r"\\[A-Za-z]+")
_LONGEST_FORMULA = 90


def formula_gaps(text: Text) -> Iterator[Fact]:
    """Yield each equation that can be left out."""
    by_start = {formula.start: formula for formula in text.formulas}
    for form in _CUTS:
        for match in form.finditer(text.mask):
            matched = [by_start.get(match.start(group)) for group in (2, 3) if match[group]]
            pair = [formula for formula in matched if formula and not formula.drawing]
            if len(pair) < len(matched):
                continue
            start, end = match.start(), max(match.end(), pair[-1].end)
            cuts = [(start, end)]
            if len(pair) == 2:  # one of two is cut with its "and"
                cuts = [(pair[0].start, pair[1].start), (pair[0].end, pair[1].end)]
            for formula, cut in zip(pair, cuts, strict=True):
                defines = not match.group(1).strip().startswith(("such", "so", "sat", "for which"))
                if gap := _formula_gap(text, cut, plain_inner(formula.inner), defines):
                    yield gap


def _without(text: Text, start: int, end: int) -> str:
    """Return the question without a part. The new start of a sentence gets a capital, and its new end a stop."""
    before, after = text.raw[:start], text.raw[end:]
    if re.search(r",\$$", text.raw[start:end]) and re.match(r"\s+[a-z]", after) and before.endswith("$"):
        before += ","  # the comma was inside the formula
    opens = any(start == first for first, _ in text.sentences)
    if opens:
        after = after[:1].upper() + after[1:]
    elif not after.strip() or re.match(r"\s*[A-Z]", after):
        stop = text.mask[end - 1] if text.mask[end - 1] == "?" else "."
        before, after = f"{before.rstrip().rstrip(',')}{stop} ", after.lstrip()
    elif re.match(r"\s*[.?]", after):
        before, after = before.rstrip().rstrip(","), after.lstrip()
    return f"{before}{after}".strip()


def _formula_gap(text: Text, cut: tuple[int, int], inner: str, defines: bool) -> Fact | None:
    """Return the question without an equation, or None if the equation cannot be asked for.

    It is asked for by what is left: the value of a name, or an equation for the letters of other formulas.

    Args:
        cut: Start and end of the part to leave out.
        inner: The equation.
        defines: Whether the equation may define a function.
    """
    left, _, right = (side.strip() for side in inner.partition("="))
    if not left or not right or "=" in right or _NO_EQUATION.search(inner) or len(inner) > _LONGEST_FORMULA:
        return None
    question = _without(text, *cut)
    rest = read(question, latex=True)
    formulas = " ; ".join(formula.inner for formula in rest.formulas)
    function, name = _FUNCTION.fullmatch(left), re.fullmatch(_NAME, left)
    letters = sorted(set(re.findall("[A-Za-z]", _COMMAND.sub(" ", inner))))
    if function or name:
        letters = [function[1] or left] if function else [left]
    known = all(
        re.search(
            rf"(?<![\\A-Za-z]){re.escape(letter)}|{re.escape(letter)}(?![A-Za-z])",
            _COMMAND.sub(" ", formulas) if len(letter) == 1 else formulas,
        )
        for letter in letters
    )
    again = re.search(rf"(?<![\w}})]){re.escape(squeezed(left))}=", squeezed(formulas))
    if not 1 <= len(letters) <= 3 or not known or again or (function and not defines):
        return None
    if name and re.search(
        rf"(?:[Ff]ind|[Ww]hat is|[Vv]alue of|[Ss]olve for|[Dd]etermine|[Cc]ompute) \${re.escape(left)}\$", question
    ):
        return None  # the assistant would ask for what it is asked for
    if function or name:
        clause, value, thing = f"what ${left}$ is", right, f"the {'definition' if function else 'value'} of ${left}$"
        ask = f"What is ${left}$?"
    elif re.search(r"[A-Za-z](?:\^\{?-1\}?)?\(|[A-Z]{2}|_", inner) or "i" in letters or letters == ["e"]:
        return None
    else:
        if len(letters) == 1 and "=" in formulas:
            return None  # other equations of the letter may determine it
        other = "other " if "=" in formulas else ""
        names = f"${letters[0]}$" if len(letters) == 1 else f"${'$, $'.join(letters[:-1])}$ and ${letters[-1]}$"
        clause, value, thing = f"which {other}equation holds for {names}", inner, f"the equation for {names}"
        ask = f"W{clause[1:]}?"
    return Fact(question, clause, ask, f"It's ${inner}$.", f"${inner}$", value, thing)


# --- Numbers that can be withheld: a count whose noun reads without it, "her 5 friends", "the box of 40 light bulbs".

_COUNT = re.compile(r"(?<![\w.,/\\$:^)}-])(?:(\d[\d,]*)|\$(\d[\d,]*)\$)(?= )(?! ?\\?%)")
_OWNED = re.compile(r"\b(?:[Tt]he|her|his|their|its|my|our|all) $")
_HOLDER = re.compile(
    r"\b([Aa]n?|[Tt]he|[Ee]ach) (bag|box|class|group|pack|jar|team|basket|row|bunch|crowd|collection|list) of $"
)
_NOUN = re.compile(
    r" (people|children|men|women|(?:[a-z]+ )?[a-z]{3,}s)\b(?! of\b)(?!(?: [a-z]+){1,2} (?:an?|per|each)\b)"
)
_MOST_ADDED = 8  # numbers of a question whose sums are tried
_NO_NOUN = re.compile(
    r"\b(?:of|in|on|at|to|for|with|from|and|or|that|which|who|is|was|has|does|as|his|its|this|more|less|fewer|times|percent|consecutive"
    r"|costs|goes|plus|takes|weighs|parents|grandparents|legs|eyes|hands|wheels|tires"  # verbs, and counts that go without saying
    r"|cents|dollars|degrees|sides|digits|vertices|points|numbers|ways|minutes|hours|days|weeks|months|years|units|inches|miles|meters)\b"
)


def number_gaps(text: Text) -> Iterator[Fact]:
    """Yield each count that can be left out."""
    for match in _COUNT.finditer(text.raw):
        noun, before = _NOUN.match(text.raw, match.end()), text.raw[: match.start()]
        holder = _HOLDER.search(before)
        if not noun or _NO_NOUN.search(noun[1]) or not (holder or _OWNED.search(before)):
            continue
        counted = noun[1]
        if len(re.findall(rf"(?:\d\$?|\bmore|\banother|\bother) {counted}\b", text.raw)) > 1:
            continue
        where = f"are in {'each' if holder[1].lower() == 'each' else 'the'} {holder[2]}" if holder else "there are"
        ask = f"How many {counted} {where if holder else 'are there'}?"
        short = f"{match.group()} {counted}"
        question = _without(text, match.start(), match.end() + 1)
        if _follows(int((match[1] or match[2]).replace(",", "")), question):
            continue
        yield Fact(question, f"how many {counted} {where}", ask, f"It's {short}.", short, match[1] or match[2])


def _follows(value: int, rest: str) -> bool:
    """Return True if a number is a sum or difference of the numbers that are left: 9 with "3 tan, 2 pink and 4 violet"."""
    others = [int(word) for word in map(stem, words(rest)) if word.isdecimal()][:_MOST_ADDED]
    sums = {sum(some) for many in range(2, len(others) + 1) for some in itertools.combinations(others, many)}
    return value in sums or any(more - less == value for more, less in itertools.permutations(others, 2))


# --- The steps of a reference solution: the sentences of prose, or lines, with their equations where these are true.


def steps_of(solution: Text, prose: bool) -> tuple[Step, ...]:
    """Return the steps of a solution."""
    if prose:
        return tuple(Step(solution.raw[start:end]) for start, end in solution.sentences)
    return tuple(_step(line.strip()) for line in solution.raw.split("\n") if line.strip())


def _step(line: str) -> Step:
    for equation in equations(line):
        # Exact, since users may ask to see a step undone: 3.33 * 3 is not 10.
        if equation.is_exact and (parts := re.fullmatch(r"([\d.]+)([-+*/])([\d.]+)", equation.left)):
            return Step(line, parts[1], parts[2], parts[3], equation.result)
    return Step(line)


def step_mistakes(steps: tuple[Step, ...], answer: str) -> Iterator[Mistake]:
    """Yield the results of earlier lines, after which a user may have stopped. No two lines may have the same result."""
    last = [[equation for equation in equations(step.text) if equation.is_true][-1:] for step in steps]
    for at, line in enumerate(last[:-1]):
        for equation in line:
            alike = sum(same_value(equation.result, other.result) for others in last for other in others)
            if alike == 1 and not same_value(equation.result, answer):
                yield Mistake(at, "", equation.result, equation.left_shown)


# --- Wrong results from a solution in prose: intermediate values, after which a user may have stopped.

# Arithmetic with its result, such as "$4 \cdot 3 = 12$": the left side says what the number is.
_VALUE = r"-?\d[\d,]*(?:\.\d+)?|-?\\d?frac\{\d+\}\{\d+\}"
_SUM = r"(?:[\d.,+*/() -]|\\(?:cdot|times|div)(?![a-z])|\\d?frac\{[\d+*() -]+\}\{[\d+*() -]+\})+"
_RESULT = re.compile(rf"(?:[A-Za-z] ?= ?)?({_SUM}) ?=(?:{_SUM}=)* ?({_VALUE})")
# A value that is tried or assumed is no result: "If $x = 3$", "setting $x = 1$"; nor is one of several values.
_ASSUMED = re.compile(
    r"\b(?:[Ww]hen|[Ii]f|[Ff]or|[Ww]here|[Ll]et|[Ss]et(?:ting)?|[Ss]uppose|[Aa]ssum\w+|[Pp]lug\w*|[Cc]ase|[Ss]ubstitut\w+|[Tt]ak(?:e|ing)"
    r"|[Tt]ry|[Gg]iven|at|with|[Cc]hoos\w+|not|using|[Ee]quation|check\w*|[Rr]ecall|know|either|or|minimum|maximum|divisible|divisors?|digits?|largest|smallest|greatest|least|close|consider)\b"
)
_MOST_OPERATIONS = 12
_ONE_OF_SEVERAL = re.compile(r"\b(?:or|not|cannot|composite|fails?|too|impossible|possible|solutions?)\b")


def text_mistakes(problem: Problem, question: Text, solution: Text) -> Iterator[Mistake]:
    """Yield each result of arithmetic before the last sentence of the solution that the question does not state."""
    if solution.raw.count(r"\boxed") != 1:  # the answer has several parts
        return
    seen = set[str]()
    for at, (start, end) in enumerate(solution.sentences[:-1]):
        for formula in solution.formulas:
            if not start <= formula.start < end or _ASSUMED.search(solution.mask, start, formula.start):
                continue
            match = _RESULT.fullmatch(plain_inner(formula.inner).replace(r"\left", "").replace(r"\right", ""))
            if not match or _ONE_OF_SEVERAL.search(solution.mask, formula.end, end) or match[2] in seen:
                continue
            seen.add(match[2])
            name, value = match[1].strip(), match[2]
            true = computed(name) == number(value) and value != name
            if true and not stands_in(value, question.raw) and not same_value(value, problem.answer):
                yield Mistake(at, "", value, f"${name}$")


def computed(formula: str) -> Fraction | float | None:
    """Return the value of arithmetic in LaTeX; None for anything else, and for longer expressions than a sentence has."""
    bare = re.sub(r"\\d?frac\{([^{}]*)\}\{([^{}]*)\}", r"((\1)/(\2))", formula)
    bare = re.sub(r"[$,\s]", "", re.sub(r"\\(?:cdot|times)(?![a-z])", "*", bare).replace(r"\div", "/"))
    return None if "**" in bare or len(re.findall(r"[+*/-]", bare)) > _MOST_OPERATIONS else arithmetic(bare)


def plausible(value: str, problem: Problem) -> bool:
    """Return True if a user might believe the value: a plain number of the same sign, kind and size as the answer."""
    mine, right = number(value), number(problem.answer)
    if mine is None or right is None or mine == right or mine * right <= 0:
        return False
    if "probability" in problem.question and mine >= 1:
        return False
    whole = right.denominator > 1 or mine.denominator == 1
    return whole and Fraction(1, 2) <= mine / right <= 2
