r"""Gaps of kind "goal" and "figure": a question without its question, and a problem without its drawing."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator

from data_builders.derive.english import STOPS
from data_builders.derive.evidence import Evidence
from data_builders.derive.latex import DRAWING, MATH, Formula, Text, balanced
from data_builders.derive.values import stands_in
from data_builders.tasks import Gap

_GOAL = re.compile(
    r"(?:Find|What(?:'s| is| are| was| will| would| must| does| fraction| percent| number| value| integer)?|How|Compute|Determine|Evaluate"
    r"|Calculate|In how many|For how many|For what|For which|At what|Which|Express|Enter|Simplify|Solve|By how|To what|On what|With what"
    r"|After how many|Who|Where|When did|When will|In what|Write|Give)\b"
)
# What may follow the question and goes with it: how the answer is to be written.
_FORM = re.compile(
    r"Express|Enter|Round|Give|Write|Note|Your answer|Assume|\(|If your|Leave|Do not|State|Use|Include|Simplify|Answer"
)
# A beginning that only works with what follows, or asks already.
_HANGS = re.compile(r"(?::|,|\bsuch that|\bfollowing|\bbelow)\s*$")
_LONGEST = 300

_SHAPES = "triangle|rectangle|square|circle|trapezoid|parallelogram|rhombus|quadrilateral|pentagon|hexagon|cube|pyramid|line|segment|parabola|ellipse"
_NAMED = re.compile(rf"\b(?P<shape>{_SHAPES})s? (?P<name>\$[A-Z]{{2,8}}(?:[.,]?\$))", re.IGNORECASE)
_FUNCTION = re.compile(r"\b([a-zA-Z]\([xyznt]\)) ?=")
_ADJECTIVES = (
    "right|rectangular|square|circular|regular|equilateral|isosceles|arithmetic|geometric|quadratic|cubic|fair|large|small|convex|linear"
    "|infinite|complex|random|circular|standard|school|football|basketball"
)
_THINGS = (
    "triangle|rectangle|square|circle|trapezoid|parallelogram|rhombus|quadrilateral|pentagon|hexagon|octagon|polygon|cube|cylinder|cone"
    "|sphere|prism|pyramid|tetrahedron|sequence|series|polynomial|parabola|ellipse|hyperbola|matrix|bag|box|jar|deck|coin|die|team|class"
    "|school|club|committee|store|car|train|bus|garden|field|room|wall|floor|pool|tank|ladder|clock|fraction|list|rope|wire|board|game"
    "|tournament|lottery|password|license plate|code|book|tree|wheel|pizza|cake|farmer|company|restaurant|shop|factory|trip|race|bakery"
    "|library|concert|party|recipe|movie|painting|map|ball|spinner|urn|drawer|grid|tower|building|teacher|student|family|baker|tailor"
    "|bookstore|zoo|park|farm|house|apartment|truck|boat|ship"
)
_NOUN = re.compile(
    rf"\b(?:A|An|The|a|an|the) (?P<noun>(?:(?:{_ADJECTIVES}) )*(?:{_THINGS}))\b(?! (?:roots?|feet|inch|unit|mile|meter|yard|centimeter|numbers?)\b)"
)
_WEAK_NOUN = re.compile(
    r"\b(?:A|An|The|a|an|the) (?P<noun>function|equation|graph|line|plane|set|operation|equations|roots)\b"
)
_SEVERAL = re.compile(
    r"\b(?P<many>[Tt]wo|[Tt]hree|[Ff]our|[Ff]ive|[Ss]ix) (?P<noun>(?:[a-z]+ )?(?:numbers|integers|dice|cards|points|lines|circles|people|students|friends|boys|girls|teams))\b"
)
_LETTERS = re.compile(r"\$([a-zA-Z])[,.]?\$")
_DOES = (
    "has|had|have|is|was|buys|bought|wants|needs|goes|went|makes|made|can|sells|sold|works|worked|spends|spent|gets|got|eats|ate|runs|ran"
    "|does|did|gives|gave|takes|took|starts|started|decides|decided|plans|earns|earned|collects|owns|drives|drove|bakes|likes|reads|saves"
)
_PERSON = re.compile(rf"\b(?P<name>(?:(?:Mr|Mrs|Ms|Dr)\. )?[A-Z][a-z]+)(?= (?:{_DOES})\b)")
_NOBODY = STOPS | frozenset(
    [
        "today",
        "tomorrow",
        "three",
        "four",
        "five",
        "six",
        "half",
        "one",
        "two",
        "such",
        "many",
        "most",
        "some",
        "it",
        "any",
        "there",
    ]
)

_REFERS = re.compile(
    r"\b(?:figure|diagram|shown|picture(?! frame)|pictured|drawing|graph|below|illustrat\w+|drawn|grid|histogram|chart|table|plot|spinner|shaded)\b",
    re.IGNORECASE,
)
_KINDS = ("figure", "diagram", "graph", "table", "histogram", "chart", "picture", "drawing", "plot")


def goal_gap(evidence: Evidence, rng: random.Random) -> Iterator[Gap]:
    """The problem without its question, where what comes before it stands alone and names something."""
    text = evidence.question
    at = _goal(text)
    if at is None or evidence.end < len(text.raw):
        return
    start, end = text.sentences[at][0], text.sentences[-1][1]
    given, goal = text.raw[:start].rstrip(), text.raw[start:end]
    drawn = next((formula for formula in text.formulas if formula.drawing and formula.start >= start), None)
    if drawn is not None:
        goal = text.raw[start : text.sentences[at][1]]
        given = f"{given}\n\n{text.raw[drawn.start : drawn.end]}" if drawn.start > start + len(goal) - 1 else ""
    about = _about(text, start)
    if (
        not about
        or len(given) < 30
        or len(goal) > _LONGEST
        or not balanced(given)
        or not balanced(goal)
        or _HANGS.search(text.raw[:start].rstrip())
    ):
        return
    asks = (
        f"What do you want to know about {about}?",
        f"What should I find out about {about}?",
        f"What is the question about {about}?",
    )
    if stands_in(goal, given) or len(goal.split()) < 4 and "$" not in goal:
        return
    yield Gap(
        given,
        f"what you want to know about {about}",
        rng.choice(asks),
        goal,
        goal,
        goal,
        "goal",
        f"the question about {about}",
    )


def _goal(text: Text) -> int | None:
    """The number of the sentence that asks, if only sentences about the answer's form follow and none before asks."""
    raws = [text.raw[slice(*pair)] for pair in text.sentences]
    for at in range(len(raws) - 1, 0, -1):
        if _GOAL.match(raws[at]) and not _FORM.match(raws[at]):
            quiet = not any("?" in raw for raw in raws[:at]) and not any(_GOAL.match(raw) for raw in raws[:at])
            return at if quiet else None
        if not _FORM.match(raws[at]) and DRAWING not in text.mask[slice(*text.sentences[at])][:1]:
            return None
    return None


def _about(text: Text, end: int) -> str:
    """Something that the text before its question names: a shape, a function, a thing, a variable, a person."""
    raw = text.raw[:end]
    named = _NAMED.search(raw)
    if named:
        return f"{named.group('shape').lower()} {re.sub(r'[.,]?[$]$', '$', named.group('name'))}"
    function = _FUNCTION.search(raw)
    if function:
        return f"${function.group(1)}$"
    noun = _NOUN.search(text.mask, 0, end)
    person = next((found for found in _PERSON.findall(raw) if found.lower() not in _NOBODY), "")
    if person:
        return person
    if noun:
        return f"the {noun.group('noun')}"
    letters = [f"${letter}$" for letter in dict.fromkeys(_LETTERS.findall(raw))][:3]
    if letters:
        return letters[0] if len(letters) == 1 else f"{', '.join(letters[:-1])} and {letters[-1]}"
    several = _SEVERAL.search(text.mask, 0, end)
    if several:
        return f"the {several.group('many').lower()} {several.group('noun')}"
    weak = _WEAK_NOUN.search(text.mask, 0, end)
    return f"the {weak.group('noun')}" if weak else ""


def figure_gaps(evidence: Evidence) -> Iterator[Gap]:
    """The problem without the one drawing or table that its text speaks of."""
    text = evidence.question
    drawings = [formula for formula in text.formulas if formula.drawing]
    words = _REFERS.findall(text.mask)
    if len(drawings) != 1 or not words or evidence.end < len(text.raw) or _plotted(text):
        return
    drawing = drawings[0]
    code = text.raw[drawing.start : drawing.end]
    question = _without(text, drawing)
    table = code.startswith("\\begin{tabular")
    kind = (
        "table"
        if table
        else next((kind for kind in _KINDS if kind in " ".join(words).lower() and kind != "table"), "figure")
    )
    if len(question) < 20 or not balanced(question):
        return
    how = "copy it here" if table else "describe it or paste its code"
    yield Gap(
        question=question,
        clause=f"what the {kind} looks like" if not table else "what the table says",
        ask=f"I can't see the {kind}. Can you {how}?",
        reveal=f"Here is the {kind}:\n{code}",
        short=code,
        value=code,
        kind="figure",
        thing=f"the {kind}",
    )


def _plotted(text: Text) -> bool:
    """Whether the drawing only plots a formula that the text gives: "the graph of $|x| + |2y| = 10$ shown here"."""
    graph = re.search(rf"\bgraph of (?:the )?(?:function |equation |parabola )?(?={MATH})", text.mask)
    formula = next((formula for formula in text.formulas if graph and formula.start == graph.end()), None)
    return formula is not None and re.search(r"\d", text.inner(formula)) is not None


def _without(text: Text, drawing: Formula) -> str:
    before, after = text.raw[: drawing.start].rstrip(), text.raw[drawing.end :].lstrip()
    gap = (
        "\n\n"
        if "\n" in text.raw[len(before) : drawing.start] + text.raw[drawing.end : len(text.raw) - len(after)]
        else " "
    )
    return f"{before}{gap}{after}".strip()
