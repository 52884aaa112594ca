"""Positive controls: the answer is changed before the user turn, and a probe that works has to respond to the change.

Both kinds come from arXiv 2604.02315. The paper does not state which share of an answer it cuts, so the share is part of the
name here:

- `truncate(0.5)` keeps the first half of the answer's tokens;
- `question(What do you think?)` adds a question to the answer, in a paragraph of its own.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from nextturn.probe.command.errors import BadInput

NONE = "none"
HALF = "truncate(0.5)"
"""Half of the answer is cut."""
_FORM = re.compile(r"truncate\(\s*(0?\.\d+)\s*\)|question\((.*\S.*)\)", re.DOTALL)


@dataclass(frozen=True)
class Perturbation:
    """A change of an answer.

    Attributes:
        keep: Share of the answer's tokens that is kept.
        text: Paragraph that is added to the answer.
    """

    name: str
    keep: float = 1.0
    text: str = ""

    def apply(self, answer: str, tokenizer: Any) -> str:
        """Return the changed answer. At least one token of it is kept."""
        if self.keep < 1:
            # Cut at token offsets in the text: decoding would break a character that consists of several tokens.
            offsets = tokenizer(answer, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
            return answer[: offsets[max(1, int(len(offsets) * self.keep)) - 1][1]].rstrip() if offsets else answer
        return f"{answer}\n\n{self.text}".strip() if self.text else answer


def parse_perturbations(names: Sequence[str]) -> list[Perturbation]:
    """Return the plain run, which is always first, and the perturbations of a recipe.

    Raises:
        BadInput: A name is neither truncate(SHARE) with a share between 0 and 1 nor question(TEXT), or is given twice.
    """
    perturbations = {NONE: Perturbation(NONE)}
    for name in names:
        if name.strip() == NONE:
            continue
        match = _FORM.fullmatch(name.strip())
        share, text = (float(match[1] or 0), (match[2] or "").strip()) if match else (0.0, "")
        if not (share or text):
            expected = "truncate(SHARE) with the share between 0 and 1 that is kept, or question(TEXT)"
            raise BadInput(f"probe.perturbations: {name!r}, expected {expected}")
        key = f"question({text})" if text else f"truncate({share:g})"
        if key in perturbations:
            raise BadInput(f"probe.perturbations: {name!r} is given twice")
        perturbations[key] = Perturbation(key, text=text) if text else Perturbation(key, keep=share)
    return list(perturbations.values())
