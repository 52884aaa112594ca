"""How varied the wording of each dialogue act is, from the rows alone.

`acts` of a row names the wording of each turn, and after it those of the phrases inside that turn. A turn's act is
found by who speaks: the acts of one speaker in a row make up one turn. The measures of the text itself are taken on the
first uses of each act, as many for every act, since the share of distinct words falls with their number.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

from data_builders.acts import ACTS
from data_builders.card_text import inline, table

MOST = 0.05
"""Share of its act's uses above which a phrasing is named."""
ENOUGH = 200
"""Uses of an act below which the share of its commonest phrasing says little."""
SAMPLE = 1000
_WORDS, _FIRST = 12, 4
_BARE = "bare"


class Variety:
    """Counts by act; what it holds grows with the phrasings, not with the rows."""

    def __init__(self) -> None:
        self._wordings: dict[str, Counter[str]] = defaultdict(Counter)
        self._bare: Counter[str] = Counter()
        self._texts: dict[str, _Texts] = defaultdict(_Texts)

    def add(self, row: dict[str, Any]) -> None:
        for wording in row["acts"]:
            act, _, parts = wording.partition(":")
            if parts == _BARE:
                self._bare[act] += 1
            else:
                self._wordings[act][parts] += 1
        for wording, text in _by_turn(row):
            act, _, parts = wording.partition(":")
            if parts != _BARE and self._texts[act].uses < SAMPLE:
                self._texts[act].add(text)

    def lines(self) -> list[str]:
        """A verdict and a table; nothing where no turn was phrased."""
        acts = sorted({*self._wordings, *self._bare})
        if not acts:
            return []
        head = ("act", "uses", "bare", "wordings", "commonest", "distinct-2", "commonest first words")
        return ["## Variety of wording", self.verdict(), table(head, map(self._row, acts)), _LEGEND]

    def verdict(self) -> str:
        shares = {act: _top(used) / used.total() for act, used in self._wordings.items()}
        over = [act for act, share in sorted(shares.items()) if share > MOST]
        told = [f"{inline(act)} ({shares[act]:.1%})" for act in over if self._wordings[act].total() >= ENOUGH]
        rare = sum(used.total() < ENOUGH for used in self._wordings.values())
        said = (
            f"Phrasings above {MOST:.0%} of their act's phrased uses: {', '.join(told)}."
            if told
            else f"No phrasing makes up more than {MOST:.0%} of its act's phrased uses."
        )
        few = f" {rare} acts with fewer than {ENOUGH} uses are not judged: a phrasing used twice may be 5% there."
        return said + (few if rare else "")

    def _row(self, act: str) -> tuple[str, ...]:
        used, bare = self._wordings[act], self._bare[act]
        uses = used.total()
        commonest = f"{_top(used) / uses:.1%}" if uses else "–"
        texts = self._texts.get(act)
        shown = texts.shown() if texts else ("–", "–")
        return inline(act), str(uses + bare), f"{bare / (uses + bare):.0%}", str(len(used)), commonest, *shown


_LEGEND = (
    "Bare: turns that are nothing but the problem's own text; the other columns leave them out. Commonest: the share of "
    f"the most used wording. Distinct-2: of the pairs of neighbouring words in the first {_WORDS} words of a turn, the "
    f"share that is distinct, over the first {SAMPLE:,} uses; over the same uses, the commonest first {_FIRST} words. "
    "–: phrases inside other turns."
)


class _Texts:
    def __init__(self) -> None:
        self.uses = 0
        self._pairs: Counter[tuple[str, str]] = Counter()
        self._starts: Counter[str] = Counter()

    def add(self, text: str) -> None:
        self.uses += 1
        found = re.findall(r"\S+", text.lower()[:400])[:_WORDS]
        self._pairs.update(itertools.pairwise(found))
        self._starts[" ".join(found[:_FIRST])] += 1

    def shown(self) -> tuple[str, str]:
        distinct = len(self._pairs) / max(1, self._pairs.total())
        start, uses = min(self._starts.items(), key=lambda one: (-one[1], one[0]))
        return f"{distinct:.2f}", f"{uses / self.uses:.1%} {inline(start, 40)}"


def _top(used: Counter[str]) -> int:
    return max(used.values(), default=0)


def _by_turn(row: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Each turn's own wording with its text; nothing where the acts do not add up to the turns."""
    if not all(wording.partition(":")[0] in ACTS for wording in row["acts"]):
        return
    groups = itertools.groupby(row["acts"], key=lambda wording: ACTS[wording.partition(":")[0]].speaker)
    turns = [(speaker, next(group)) for speaker, group in groups]
    if [speaker for speaker, _ in turns] == [message["role"] for message in row["messages"]]:
        for (_, wording), message in zip(turns, row["messages"], strict=True):
            yield wording, message["content"]
