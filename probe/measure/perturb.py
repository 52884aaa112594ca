"""Positive controls: the answer is changed before the user turn, so that a probe that works must respond.

Both are those of arXiv 2604.02315. It does not say which share of an answer it cuts; here that is part of the name:

- `truncate(0.5)` keeps the first half of the answer's tokens;
- `question(What do you think?)` adds a question to the answer, as a paragraph of its own.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from nextturn.probe.errors import BadInput

NONE = "none"
_FORM = re.compile(r"(truncate|question)\((.*)\)", re.DOTALL)


@dataclass(frozen=True)
class Perturbation:
    """One way to change an answer: `keep` is the share of its tokens that stays, `text` what is added."""

    name: str
    keep: float = 1.0
    text: str = ""

    def apply(self, answer: str, tokenizer: Any) -> str:
        """The changed answer; at least one token of it stays."""
        if self.keep < 1:
            return _first_tokens(answer, self.keep, tokenizer)
        return f"{answer}\n\n{self.text}".strip() if self.text else answer


def parse_perturbations(given: Sequence[str]) -> list[Perturbation]:
    """The plain run, always first, and those of a recipe.

    Raises:
        BadInput: one is neither truncate(share between 0 and 1) nor question(text), or stands twice.
    """
    found = [Perturbation(NONE)]
    for written in given:
        one = _parse(written.strip())
        if one is None:
            continue
        if any(one.name == other.name for other in found):
            raise BadInput(f"probe.perturbations: {written!r} stands twice")
        found.append(one)
    return found


def _parse(written: str) -> Perturbation | None:
    if written == NONE:  # measured in any case
        return None
    match = _FORM.fullmatch(written)
    kind, inside = match.groups() if match else ("", "")
    inside = inside.strip()
    if kind == "question" and inside:
        return Perturbation(f"question({inside})", text=inside)
    if kind == "truncate":
        try:
            share = float(inside)
        except ValueError:
            share = 0.0
        if 0 < share < 1:
            return Perturbation(f"truncate({share:g})", keep=share)
    raise BadInput(
        f"probe.perturbations: {written!r}, wanted truncate(SHARE) with a share between 0 and 1 that is kept, "
        "such as truncate(0.5), or question(TEXT), such as question(What do you think?)"
    )


def _first_tokens(answer: str, share: float, tokenizer: Any) -> str:
    """Cut by the tokens' places in the text: decoding would break a character that several tokens make up."""
    ends = [
        end for _, end in tokenizer(answer, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
    ]
    return answer[: ends[max(1, int(len(ends) * share)) - 1]].rstrip() if ends else answer
