"""What a problem read as plain text supports: givens that can be left out so that the rest still reads, steps, wrong results.

Nothing here understands the text. A sentence or clause is left out only where it has one of a few forms whose given can
be asked for by name; whatever cannot be told apart with certainty is left alone, and most problems give nothing.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator
from fractions import Fraction

from nextturn.data_builders.tasks import Gap, Slip, Step, Task
from nextturn.data_builders.text import (
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
from nextturn.probe.grading import boxed
from nextturn.probe.sets import Problem
from nextturn.probe.text import stem, words


def task_from(problem: Problem) -> Task:
    """The problem as a task. A solution that boxes its answer (MATH) is kept word for word."""
    latex = boxed(problem.solution) is not None
    question, solution = read(problem.question, latex), read(problem.solution, latex)
    steps = steps_of(solution, prose=latex)
    said = [question.raw[start:end] for start, end in question.sentences]
    asked = next((text for text in reversed(said) if _ASKS.search(text) and not _FORM.search(text)), "")
    found = gaps(problem, question, solution) if question.whole and solution.whole else ()
    slips: Iterable[Slip] = ()
    if 0 < len(asked) <= _LONGEST_ASKED and solution.whole and "(A)" not in problem.question:
        slips = text_slips(problem, question, solution) if latex else step_slips(steps, problem.answer)
    boxes, fits = problem.solution if latex else "", [slip for slip in slips if plausible(slip.answer, problem)]
    given = (problem.id, problem.question, problem.answer, problem.source, steps)
    return Task(*given, gaps=tuple(found), slips=tuple(fits), boxed_solution=boxes, asked=asked)


_ASKS = re.compile(
    r"\?|\b(?:[Ff]ind|[Cc]ompute|[Cc]alculate|[Dd]etermine|[Ee]valuate|[Ss]olve|[Ss]implify|[Ee]xpress)\b"
)
_FORM = re.compile(r"your (?:final )?answer|[Ee]xpress (?:it|the|all|each)\b|[Ee]nter|[Rr]ound|decimal place")
_LONGEST_ASKED = 160


# --- What may be withheld: only what the solution needs, never the answer, never what is said twice.

_SMALL = 13  # below, a number may stand in a solution for another reason, so it wants an operator beside it
_BESIDE = re.compile(r"[-+*/x×({=^]|\\(?:times|cdot|div|sqrt|d?frac)")
# What is left points at what was left out, or counts on it.
_POINTS_BACK = re.compile(
    r"\b(?:[Tt]his|[Tt]hese|[Tt]hose|above|given|following|former|latter|respectively|[Bb]oth|conditions?|equations?)\b"
)
# "there was a positive integer." has lost the name that a formula gave it.
_NAMELESS = re.compile(
    r"\b[Tt]here (?:is|was|are|were|exists?) (?:an? )?(?:[a-z]+ )?(?:integer|number|constant|point|function)s?[.?]"
)
# Without one of its equations it is another problem with an answer: "find the set of all values", "the least value of $x+y$".
_EXPRESSION = r"(?:\\\[|\$)[^$\]]*?(?:[-+/^\\|]|[A-Za-z][A-Za-z(])"
_ALL = re.compile(
    rf"\brange\b|\b(?:set of )?all (?:possible |real )?values (?:of|that)\s+{_EXPRESSION}|\bset of all (?:possible )?values\b"
    rf"|\b(?:maximum|minimum|largest|smallest|greatest|least)(?: possible)?(?: value)?(?: of| that|,)?(?: the [a-z]+)?\s+{_EXPRESSION}"
)
# The solution counts the equations in an order that what is told later turns round.
_IN_ORDER = re.compile(
    r"\b(?:first|second|third|last|former|latter|other)\b(?: \w+)? (?:equation|condition)|[Ee]quation \(?\d"
)
_MOST_NUMBERS = 3000  # characters; a longer problem is a page of its own


def gaps(problem: Problem, question: Text, solution: Text) -> Iterator[Gap]:
    """One gap for each given that can be left out, each question of which reads as if it were whole."""
    if len(question.raw) > _MOST_NUMBERS or "(A)" in question.raw:
        return
    found = () if _IN_ORDER.search(solution.raw) else formula_gaps(question)
    for gap in (*found, *number_gaps(question)):
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
        told = in_words or any(stands_in(gap.value, text) for text in (gap.ask, gap.clause, gap.thing))
        if not told and _needed(gap, solution.raw):
            yield gap


def _needed(gap: Gap, solution: str) -> bool:
    """Whether the solution works with the given: writes the formula, or calculates with the number."""
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


# --- Gaps that are formulas: a sentence or clause whose only content is one formula, or one of two.

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


def formula_gaps(text: Text) -> Iterator[Gap]:
    at_place = {formula.start: formula for formula in text.formulas}
    for form in _CUTS:
        for match in form.finditer(text.mask):
            found = [at_place.get(match.start(group)) for group in (2, 3) if match[group]]
            pair = [formula for formula in found if formula and not formula.drawing]
            if len(pair) < len(found):
                continue
            start, end = match.start(), max(match.end(), pair[-1].end)
            cuts = [(start, end)]
            if len(pair) == 2:  # one of two goes with its "and"
                cuts = [(pair[0].start, pair[1].start), (pair[0].end, pair[1].end)]
            for formula, cut in zip(pair, cuts, strict=True):
                defines = not match.group(1).strip().startswith(("such", "so", "sat", "for which"))
                if gap := _formula_gap(text, cut, plain_inner(text.inner(formula)), defines):
                    yield gap


def _without(text: Text, start: int, end: int) -> str:
    """The question without this part; what then opens a sentence has a capital, and what then ends one its stop."""
    before, after = text.raw[:start], text.raw[end:]
    if re.search(r",\$$", text.raw[start:end]) and re.match(r"\s+[a-z]", after) and before.endswith("$"):
        before += ","  # it stood in the formula that goes
    opens = any(start == first for first, _ in text.sentences)
    if opens:
        after = after[:1].upper() + after[1:]
    elif not after.strip() or re.match(r"\s*[A-Z]", after):
        stop = text.mask[end - 1] if text.mask[end - 1] == "?" else "."
        before, after = f"{before.rstrip().rstrip(',')}{stop} ", after.lstrip()
    elif re.match(r"\s*[.?]", after):
        before, after = before.rstrip().rstrip(","), after.lstrip()
    return f"{before}{after}".strip()


def _formula_gap(text: Text, cut: tuple[int, int], inner: str, defines: bool) -> Gap | None:
    """The question without this equation, asked for in words that what is left suggests: the value of a name that stands
    there, or an equation for what stands there. `defines`: it may say what a function is."""
    left, _, right = (side.strip() for side in inner.partition("="))
    if not left or not right or "=" in right or _NO_EQUATION.search(inner) or len(inner) > _LONGEST_FORMULA:
        return None
    question = _without(text, *cut)
    rest = read(question, latex=True)
    formulas = " ; ".join(rest.inner(formula) for formula in rest.formulas)
    function, name = _FUNCTION.fullmatch(left), re.fullmatch(_NAME, left)
    letters = sorted(set(re.findall("[A-Za-z]", _COMMAND.sub(" ", inner))))
    if function or name:
        letters = [function[1] or left] if function else [left]
    known = all(
        re.search(
            rf"(?<![\\A-Za-z]){re.escape(one)}|{re.escape(one)}(?![A-Za-z])",
            _COMMAND.sub(" ", formulas) if len(one) == 1 else formulas,
        )
        for one in letters
    )
    again = re.search(rf"(?<![\w}})]){re.escape(squeezed(left))}=", squeezed(formulas))
    if not 1 <= len(letters) <= 3 or not known or again or (function and not defines):
        return None
    if name and re.search(
        rf"(?:[Ff]ind|[Ww]hat is|[Vv]alue of|[Ss]olve for|[Dd]etermine|[Cc]ompute) \${re.escape(left)}\$", question
    ):
        return None  # what is asked for would be asked back
    if function or name:
        clause, value, thing = f"what ${left}$ is", right, f"the {'definition' if function else 'value'} of ${left}$"
        ask = f"What is ${left}$?"
    elif re.search(r"[A-Za-z](?:\^\{?-1\}?)?\(|[A-Z]{2}|_", inner) or "i" in letters or letters == ["e"]:
        return None
    else:
        if len(letters) == 1 and "=" in formulas:
            return None  # what else is said of the letter may tell it
        other = "other " if "=" in formulas else ""
        names = f"${letters[0]}$" if len(letters) == 1 else f"${'$, $'.join(letters[:-1])}$ and ${letters[-1]}$"
        clause, value, thing = f"which {other}equation holds for {names}", inner, f"the equation for {names}"
        ask = f"W{clause[1:]}?"
    return Gap(question, clause, ask, f"It's ${inner}$.", f"${inner}$", value, thing)


# --- Gaps that are numbers: a count that its noun can do without, "her 5 friends", "the box of 40 light bulbs".

_COUNT = re.compile(r"(?<![\w.,/\\$:^)}-])(?:(\d[\d,]*)|\$(\d[\d,]*)\$)(?= )(?! ?\\?%)")
_OWNED = re.compile(r"\b(?:[Tt]he|her|his|their|its|my|our|all) $")
_HOLDER = re.compile(
    r"\b([Aa]n?|[Tt]he|[Ee]ach) (bag|box|class|group|pack|jar|team|basket|row|bunch|crowd|collection|list) of $"
)
_NOUN = re.compile(
    r" ((?:[a-z]+ )?[a-z]{3,}s|people|children|men|women)\b(?! of\b)(?!(?: [a-z]+){1,2} (?:an?|per|each)\b)"
)
_MOST_ADDED = 8  # numbers of a question whose sums are tried
_NO_NOUN = re.compile(
    r"\b(?:of|in|on|at|to|for|with|from|and|or|that|which|who|is|was|has|does|as|his|its|this|more|less|fewer|times|percent|consecutive"
    r"|cents|dollars|degrees|sides|digits|vertices|points|numbers|ways|minutes|hours|days|weeks|months|years|units|inches|miles|meters)\b"
)


def number_gaps(text: Text) -> Iterator[Gap]:
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
        yield Gap(question, f"how many {counted} {where}", ask, f"It's {short}.", short, match[1] or match[2])


def _follows(value: int, rest: str) -> bool:
    """Whether a number is the sum or a difference of numbers that still stand there: "3 tan, 2 pink and 4 violet" of 9."""
    others = [int(one) for one in map(stem, words(rest)) if one.isdecimal()][:_MOST_ADDED]
    sums = {sum(some) for many in range(2, len(others) + 1) for some in itertools.combinations(others, many)}
    return value in sums or any(more - less == value for more, less in itertools.permutations(others, 2))


# --- The steps of a reference solution: the sentences of prose, or its lines with the equation where the arithmetic comes out.


def steps_of(solution: Text, prose: bool) -> tuple[Step, ...]:
    if prose:
        return tuple(Step(solution.raw[start:end]) for start, end in solution.sentences)
    return tuple(_step(line.strip()) for line in solution.raw.split("\n") if line.strip())


def _step(line: str) -> Step:
    for one in equations(line):
        # What a step says can be undone: 3.33 * 3 is not 10.
        if one.is_exact and (two := re.fullmatch(r"([\d.]+)([-+*/])([\d.]+)", one.left)):
            return Step(line, two[1], two[2], two[3], one.result)
    return Step(line)


def step_slips(steps: tuple[Step, ...], answer: str) -> Iterator[Slip]:
    """Results of lines on the way, where a user may have stopped; each number must name one line."""
    last = [[one for one in equations(step.text) if one.is_true][-1:] for step in steps]
    for at, found in enumerate(last[:-1]):
        for one in found:
            alike = sum(same_value(one.result, other.result) for others in last for other in others)
            if alike == 1 and not same_value(one.result, answer):
                yield Slip(at, "", one.result, one.left_shown)


# --- Wrong results that a solution in prose itself offers: a value on the way, where a user may have stopped.

# Arithmetic with its result, such as "$4 \cdot 3 = 12$": what the number is needs no other name.
_VALUE = r"-?\d[\d,]*(?:\.\d+)?|-?\\d?frac\{\d+\}\{\d+\}"
_SUM = r"(?:[\d.,+*/() -]|\\(?:cdot|times|div)(?![a-z])|\\d?frac\{[\d+*() -]+\}\{[\d+*() -]+\})+"
_RESULT = re.compile(rf"(?:[A-Za-z] ?= ?)?({_SUM}) ?=(?:{_SUM}=)* ?({_VALUE})")
# A value that is only tried or assumed is nobody's result: "If $x = 3$", "setting $x = 1$"; nor is one of several.
_ASSUMED = re.compile(
    r"\b(?:[Ww]hen|[Ii]f|[Ff]or|[Ww]here|[Ll]et|[Ss]et(?:ting)?|[Ss]uppose|[Aa]ssum\w+|[Pp]lug\w*|[Cc]ase|[Ss]ubstitut\w+|[Tt]ak(?:e|ing)"
    r"|[Tt]ry|[Gg]iven|at|with|[Cc]hoos\w+|not|using|[Ee]quation|check\w*|[Rr]ecall|know|either|or|minimum|maximum|divisible|divisors?|digits?|largest|smallest|greatest|least|close|consider)\b"
)
_MOST_OPERATIONS = 12
_ONE_OF_SEVERAL = re.compile(r"\b(?:or|not|cannot|composite|fails?|too|impossible|possible|solutions?)\b")


def text_slips(problem: Problem, question: Text, solution: Text) -> Iterator[Slip]:
    """The results of sums before the last sentence of the solution, each once, where they do not stand in the question."""
    if solution.raw.count(r"\boxed") != 1:  # the answer has parts, and the last box is only one of them
        return
    seen = set[str]()
    for at, (start, end) in enumerate(solution.sentences[:-1]):
        for formula in solution.formulas:
            if not start <= formula.start < end or _ASSUMED.search(solution.mask, start, formula.start):
                continue
            match = _RESULT.fullmatch(plain_inner(solution.inner(formula)).replace(r"\left", "").replace(r"\right", ""))
            if not match or _ONE_OF_SEVERAL.search(solution.mask, formula.end, end) or match[2] in seen:
                continue
            seen.add(match[2])
            name, value = match[1].strip(), match[2]
            true = computed(name) == number(value) and value != name
            if true and not stands_in(value, question.raw) and not same_value(value, problem.answer):
                yield Slip(at, "", value, f"${name}$")


def computed(formula: str) -> Fraction | float | None:
    """What arithmetic in LaTeX comes to; None for anything else, and for more than a sentence would hold."""
    bare = re.sub(r"\\d?frac\{([^{}]*)\}\{([^{}]*)\}", r"((\1)/(\2))", formula)
    bare = re.sub(r"[$,\s]", "", re.sub(r"\\(?:cdot|times)(?![a-z])", "*", bare).replace(r"\div", "/"))
    return None if "**" in bare or len(re.findall(r"[+*/-]", bare)) > _MOST_OPERATIONS else arithmetic(bare)


def plausible(value: str, problem: Problem) -> bool:
    """Whether somebody might believe the value: a plain number as the answer is one, of its sign, kind and size."""
    mine, right = number(value), number(problem.answer)
    if mine is None or right is None or mine == right or mine * right <= 0:
        return False
    if "probability" in problem.question and mine >= 1:
        return False
    whole = right.denominator > 1 or mine.denominator == 1
    return whole and Fraction(1, 2) <= mine / right <= 2
