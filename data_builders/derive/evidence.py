r"""What may be withheld from a question: only what its solution needs, never the answer, never what is said twice."""

from __future__ import annotations

import functools
import itertools
import re
from fractions import Fraction

from data_builders.derive.amounts import NUMBER_WORDS, Amount, worth_of
from data_builders.derive.latex import Text, squeezed
from data_builders.derive.values import places, same_value
from probe.sets import Problem

# Sentences about the form of the answer, examples, and what is said in other words hold nothing that is needed.
_ASIDE = re.compile(
    r"your (?:final )?answers?|\b[Rr]ound|nearest|[Ff]or example|for instance|\bNote\b|[Rr]ecall|such as|decimal place|in the form"
    r"|[Ee]xpress(?:ing)? (?:your|the (?:answer|result|probability|sum)|all|any|each|it|them|in)\b|relatively prime|lowest terms"
    r"|[Ee]nter|can be (?:written|expressed)|[Ii]n other words|[Tt]hat is,|i\.e\.|\bAssume\b|mixed number|common fraction"
)
_CHOICES = re.compile(r"\(A\)|\\text(?:bf)?\{\s*\(?A[).]|(?:^|\n|\s)A[.)]")
_TERMS = re.compile(r"\\ldots|\\dots|\\cdots|\.\.\.")  # one term of a row follows from the others
_SMALL = 13
_COUNTED = re.compile(rf"\b(\d{{1,3}}|{'|'.join(NUMBER_WORDS)})\$? ([a-z]+(?: [a-z]+)?)", re.IGNORECASE)
_EXPONENT = re.compile(r"\^\{?$")
_OPERATED_BEFORE = re.compile(r"(?:[-+*/x×({]|\\times|\\cdot|\\div|\\sqrt)\s*\\?\$?$")
_OPERATED_AFTER = re.compile(r"(?:\s*[a-z]+)?\s*(?:[-+*/x×^)}%!]|\\times|\\cdot|\\div|\\pi|\\choose|[a-z]\b)")


class Evidence:
    """One problem as read: its question, its solution, and the numbers that the solution works with."""

    def __init__(self, problem: Problem, question: Text, solution: Text, latex: bool) -> None:
        self.question, self.solution, self.answer, self.latex = question, solution, problem.answer, latex
        self._asides: dict[int, bool] = {}  # by the start of the sentence
        choices = _CHOICES.search(question.raw) if latex else None
        self.end = choices.start() if choices else len(question.raw)  # lettered options begin here

    @functools.cached_property
    def worked(self) -> str:
        """The part of the solution where it calculates: its formulas, or all of it in plain text."""
        if not self.latex:
            return self.solution.raw
        return " ; ".join(self.solution.inner(formula) for formula in self.solution.formulas if not formula.drawing)

    @functools.cached_property
    def squeezed_solution(self) -> str:
        return squeezed(self.solution.raw)

    def aside(self, position: int) -> bool:
        """Whether the place is in a sentence about the answer's form, in an example, or among lettered options."""
        start, end = self.question.sentence(position)
        if start not in self._asides:
            self._asides[start] = _ASIDE.search(self.question.raw, start, end) is not None
        return position >= self.end or self._asides[start]

    def may_withhold(self, amount: Amount) -> bool:
        """A number that stands once in the question, is computed with, and is not the answer."""
        worth = worth_of(amount.value)
        if worth is None or worth < 2 and worth == int(worth) or self.aside(amount.start):
            return False
        if same_value(str(worth), self.answer) or not self._stands_once(amount):
            return False
        if _TERMS.search(self.question.raw, *self.question.sentence(amount.start)):
            return False
        return any(self._used(form, worth) for form in _forms(amount, worth))

    def said_again(self, amount: Amount, counted: str) -> bool:
        """Whether the number stands again before the same noun, in digits or as a word: "3 cards ... all three cards"."""
        noun = counted.partition(" of ")[0].rpartition(" ")[2][:4]
        worth = worth_of(amount.value)
        return bool(noun) and any(
            match.start() != amount.start and f" {noun}" in f" {match.group(2)}" and worth_of(match.group(1)) == worth
            for match in _COUNTED.finditer(self.question.raw)
        )

    def _stands_once(self, amount: Amount) -> bool:
        if amount.kind == "word":
            return len(re.findall(rf"\b{amount.value}\b", self.question.raw, re.IGNORECASE)) == 1
        return len(list(itertools.islice(places(amount.value, self.question.raw), 2))) == 1

    def _used(self, form: str, worth: Fraction) -> bool:
        """Whether the solution calculates with the number; exponents do not count.

        A small number may stand in a solution by chance, so it must be seen next to an operator.
        """
        small = worth < _SMALL and worth.denominator == 1
        for at in places(form, self.worked):
            before, after = self.worked[max(0, at - 12) : at], self.worked[at + len(form) : at + len(form) + 20]
            if _EXPONENT.search(before):
                continue
            if not small or _OPERATED_BEFORE.search(before) or _OPERATED_AFTER.match(after):
                return True
        return False


def _forms(amount: Amount, worth: Fraction) -> list[str]:
    """How a solution may write the number: 1,200 as 1200, 2.50 as 2.5, 25% as .25."""
    bare = amount.value.replace(",", "")
    forms = [amount.value, bare] if amount.kind != "word" else [str(worth)]
    if "." in bare:
        forms.append(bare.rstrip("0").rstrip("."))
    if amount.kind == "percent":
        share = f"{float(worth / 100):.4f}".rstrip("0")
        forms += [share, share.removeprefix("0"), str(worth / 100)]
    return list(dict.fromkeys(forms))
