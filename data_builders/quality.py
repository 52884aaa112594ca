"""The gate: what keeps a conversation out of the training data, each with one named reason.

Rejected rows are written beside the kept ones, so asked = kept + rejected always holds. The rules, in their order:

    roles, empty_turn       user and assistant do not take turns, or one says nothing
    leak, not_withheld      what is withheld stands in an assistant's turn before it is told, or in the user's own
    over_asking             the whole problem is there, and the first reply asks
    no_question             something is missing, and the first reply does not ask
    closes_asking           a turn that answers closes with a question
    answer_missing          no boxed answer, or the problem has no reference to hold it against
    answered_early          a boxed answer before what it takes was told
    answer_wrong            a boxed answer that is not the reference
    contaminated:SET        a run of 13 words that a probe set has, too
    duplicate               the same text was kept before
    near_duplicate          nearly the same text of the same kind was kept before
    same_wording            too many are alike but for their numbers and names
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from data_builders.checks import answer, asking, form
from data_builders.leaks import leak
from data_builders.scripted import Conversation
from probe.errors import DataError, RecipeError
from probe.recipe import section
from probe.sets import HUB, Message, locate

if TYPE_CHECKING:
    from data_builders.decontaminate import Checked


@section
class Quality:
    """What keeps a conversation out, beside the rules that always hold."""

    decontaminate: list[str] = dataclasses.field(default_factory=list)
    """Sets that the probe measures: JSONL files, or known names (gsm8k, ifbench, mt_bench, ...), fetched once."""
    near_duplicates: float | None = 0.9
    """Two conversations of one kind count as the same from this share of common word runs on (Jaccard, by MinHash); null
    leaves the test out. On MATH, pairs at 0.9 and above differ in a few words of ours; at 0.8 in the numbers of a problem."""
    permutations: int = 128
    """Numbers in a MinHash signature. More tell 0.9 from 0.85 better and take more time: 128 are right to about 0.03."""
    max_same_wording: float = 0.02
    """Share of all rows that may be alike but for their numbers and names, which MinHash does not see in short texts."""

    def files(self) -> dict[str, Path]:
        """The file of each set in `decontaminate`.

        Raises:
            DataError: neither a file nor a known name.
            SetOutOfReach: a known name whose set is neither in the cache nor to be had from the hub.
        """
        return {given: _set_file(given) for given in self.decontaminate}

    def check(self) -> None:
        """Raises RecipeError where the settings cannot be used."""
        if self.near_duplicates is not None and not 0.5 <= self.near_duplicates <= 1:
            raise RecipeError(
                f"quality.near_duplicates: given {self.near_duplicates:g}, wanted 0.5 to 1, or null to leave the test out"
            )
        if not 16 <= self.permutations <= 1024:
            raise RecipeError(f"quality.permutations: given {self.permutations}, wanted 16 to 1024")
        if not 0 < self.max_same_wording <= 1:
            raise RecipeError(f"quality.max_same_wording: given {self.max_same_wording:g}, wanted above 0, at most 1")


class Gate:
    """Judges conversations one by one; the same ones in the same order always get the same reasons.

    Args:
        asked: how many conversations there will be, for the share of those alike.
        index: a file for what grows with the rows, made anew at the first row and deleted by `close`.

    Raises:
        BadInput: settings or probe sets that cannot be used; nothing has been written then.
    """

    def __init__(self, quality: Quality, asked: int, index: Path) -> None:
        from data_builders.decontaminate import ProbeTexts
        from data_builders.near import Kept

        quality.check()
        self._probe = ProbeTexts(quality.files())
        self._kept = Kept(index, quality.near_duplicates, quality.permutations)
        self._most_alike = max(3, int(quality.max_same_wording * asked))

    @property
    def checked(self) -> tuple[Checked, ...]:
        """The probe sets that conversations are held against."""
        return self._probe.checked

    def reason(self, conversation: Conversation) -> str | None:
        """Why the conversation is rejected; None keeps it and remembers it."""
        found = form(conversation) or leak(conversation) or asking(conversation) or answer(conversation)
        return found or self._known(conversation)

    def remember(self, messages: Sequence[Message], kind: str) -> None:
        """Takes a row as kept, one of an earlier run of the same build."""
        from data_builders.words import hashed

        texts = [message["content"] for message in messages]
        self._kept.add(self._kept.print_of(texts, [hashed(text) for text in texts], kind))

    def close(self) -> None:
        self._kept.close()

    def _known(self, conversation: Conversation) -> str | None:
        """Whether a probe set holds some of it, or it was kept before."""
        from data_builders.words import hashed

        texts = [message["content"] for message in conversation.messages]
        words = [hashed(text) for text in texts]
        problem = [hashed(conversation.task.question)] if conversation.task is not None and self.checked else []
        if held := self._probe.holding([*words, *problem]):
            return f"contaminated:{held}"
        made = self._kept.print_of(texts, words, conversation.kind)
        if self._kept.same_text(made):
            return "duplicate"
        if self._kept.nearly_same(made):
            return "near_duplicate"
        if self._kept.same_wording(made) >= self._most_alike:
            return "same_wording"
        self._kept.add(made)
        return None


def _set_file(given: str) -> Path:
    if Path(given).is_file():
        return locate(given, given)  # says so where it is no JSONL
    if given not in HUB:
        raise DataError(f"quality.decontaminate: {given}: no such file, and no known set ({', '.join(HUB)})")
    return locate(given)
