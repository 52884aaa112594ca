"""Counts replies, tokens and money while a build runs, and stops it where the money runs out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from data_builders.dialogue.settings import Price, Role
from data_builders.dialogue.speaker import Said
from probe.errors import NextturnError


class Meter:
    """All that was said so far, by role; `max_cost` None is no limit. `limit` is the recipe's key for it."""

    def __init__(self, prices: Mapping[Role, Price], max_cost: float | None, limit: str = "dialogue.max_cost") -> None:
        self.prices = prices
        self.max_cost = max_cost
        self.limit = limit
        self.counts: Counter[str] = Counter()

    def heard(self, role: Role, said: Said) -> None:
        """Raises NextturnError where what was said costs more than the limit."""
        self.add({f"{role}.calls": 1, f"{role}.input": said.prompt_tokens, f"{role}.output": said.tokens})
        if self.max_cost is not None and self.cost > self.max_cost:
            raise NextturnError(
                f"{self.limit}: {self.max_cost:g} is used up ({self.cost:.2f} so far); what came is stored, and "
                "the same command with a higher limit goes on from there"
            )

    def add(self, counts: Mapping[str, int]) -> None:
        self.counts.update(counts)

    @property
    def calls(self) -> int:
        return sum(self.counts[f"{role}.calls"] for role in self.prices)

    @property
    def tokens(self) -> int:
        return sum(self.counts[f"{role}.{kind}"] for role in self.prices for kind in ("input", "output"))

    @property
    def cost(self) -> float:
        million = 1_000_000
        return sum(
            (self.counts[f"{role}.input"] * price.input + self.counts[f"{role}.output"] * price.output) / million
            for role, price in self.prices.items()
        )

    def shown(self) -> dict[str, str]:
        """For a progress bar; the cost where there is one."""
        cost = {"cost": f"{self.cost:.2f}"} if self.cost else {}
        return {"calls": f"{self.calls:,}", "tokens": f"{self.tokens:,}", **cost}
