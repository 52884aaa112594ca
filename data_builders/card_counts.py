"""What the card counts, row by row: kinds and lengths, questions, rejects, and who talked. None grows with the rows."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Any

from data_builders.card_text import block, chat, excerpt, inline, table
from data_builders.checks import ANSWERED_AT_ONCE, asks_back, closes_asking
from probe.answers import boxed

Row = dict[str, Any]
_PERCENTILES = (10, 50, 90, 99)
_PLACES = 4
_EXCERPT = 180


class Kinds:
    """Rows of each kind, how long they are, and whether the first reply asks."""

    def __init__(self) -> None:
        self.rows: Counter[str] = Counter()
        self._asked: Counter[str] = Counter()
        self._words: Counter[int] = Counter()
        self._turns: Counter[int] = Counter()
        self._words_of: Counter[str] = Counter()

    def add(self, row: Row) -> None:
        kind, messages = row["kind"], row["messages"]
        length = sum(len(message["content"].split()) for message in messages)
        self.rows[kind] += 1
        self._asked[kind] += asks_back(messages[1]["content"])
        self._words[length] += 1
        self._words_of[kind] += length
        self._turns[len(messages)] += 1

    def table(self, wanted: Mapping[str, float], rejected: Mapping[str, int]) -> str:
        head = ("kind", "wanted", "share", "rows", "rejected", "first reply asks", "words")
        total = max(1, self.rows.total())
        kinds = [*wanted, *(kind for kind, _ in self.rows.most_common() if kind not in wanted)]
        lines = []
        for kind in kinds:
            rows = self.rows[kind]
            share = f"{wanted[kind]:.1%}" if kind in wanted else "–"
            asks = f"{self._asked[kind] / rows:.1%}" if rows else "–"
            words = f"{self._words_of[kind] / rows:.0f}" if rows else "–"
            lines.append(
                (inline(kind), share, f"{rows / total:.1%}", f"{rows:,}", f"{rejected.get(kind, 0):,}", asks, words)
            )
        return table(head, lines)

    def over_asking(self) -> str:
        rows = sum(self.rows[kind] for kind in ANSWERED_AT_ONCE)
        asked = sum(self._asked[kind] for kind in ANSWERED_AT_ONCE)
        return f"Over-asking: of {rows:,} conversations that open with the whole problem, {asked / max(1, rows):.1%} are asked back first."

    def lengths(self) -> str:
        total, longest = self._words.total(), max(self._words, default=0)
        if not total:
            return "No rows."
        shown, seen, wanted = [], 0, list(_PERCENTILES)
        for length, rows in sorted(self._words.items()):
            seen += rows
            while wanted and seen >= wanted[0] / 100 * total:
                shown.append(f"{wanted.pop(0)}% {length}")
        mean = sum(length * rows for length, rows in self._words.items()) / total
        turns = ", ".join(f"{count} ({rows:,})" for count, rows in sorted(self._turns.items()))
        return (
            f"Words a conversation: mean {mean:.0f}, percentiles {', '.join(shown)}, longest {longest:,}. "
            f"Messages a conversation (rows): {turns}."
        )


class Closings:
    """How often an assistant's turn closes with a question, by its place: checks of understanding are to be rare."""

    def __init__(self) -> None:
        self._turns: Counter[str] = Counter()
        self._ask: Counter[str] = Counter()
        self._box: Counter[str] = Counter()

    def add(self, row: Row) -> None:
        replies = [message["content"] for message in row["messages"][1::2]]
        for place, reply in enumerate(replies, start=1):
            asks, answers = closes_asking(reply), boxed(reply) is not None
            places = [str(place) if place < _PLACES else f"{_PLACES} and later"]
            for name in [*places, *(["last"] if place == len(replies) else [])]:
                self._turns[name] += 1
                self._ask[name] += asks
                self._box[name] += answers

    def table(self) -> str:
        head = ("assistant turn", "turns", "close with a question", "box an answer")
        lines = [
            (name, f"{turns:,}", f"{self._ask[name] / turns:.1%}", f"{self._box[name] / turns:.1%}")
            for name, turns in sorted(self._turns.items())
        ]
        return table(head, lines)


class Rejects:
    """Rejected rows by reason, with the first of each as an example."""

    def __init__(self) -> None:
        self.reasons: Counter[str] = Counter()
        self.kinds: Counter[str] = Counter()
        self._examples: dict[str, Row] = {}

    def add(self, row: Row) -> None:
        self.reasons[row["reason"]] += 1
        self.kinds[row["kind"]] += 1
        self._examples.setdefault(row["reason"], row)

    def lines(self, asked: int) -> list[str]:
        if not self.reasons:
            return ["None."]
        reasons = sorted(self.reasons, key=lambda reason: (-self.reasons[reason], reason))
        counts = [(inline(one), f"{self.reasons[one]:,}", f"{self.reasons[one] / asked:.2%}") for one in reasons]
        shown = [line for reason in reasons for line in _example(reason, self._examples[reason])]
        return [table(("reason", "rows", "share"), counts), "One example of each:", block(shown)]


def _example(reason: str, row: Row) -> list[str]:
    """How a rejected conversation begins, and its last turn."""
    messages = row["messages"]
    heading = excerpt(f"{reason}: {row['id']}, answer {row['answer'] or 'unknown'}", _EXCERPT)
    shown = [*messages[:2], *(messages[-1:] if len(messages) > 2 else [])]
    texts = [{**message, "content": excerpt(message["content"], _EXCERPT)} for message in shown]
    return ["", f"== {heading}", *chat(texts, 2 * _EXCERPT)]


class Talks:
    """Of conversations between models: who talked, and which replies had to be asked for again."""

    def __init__(self) -> None:
        self._counts: dict[str, Counter[str]] = defaultdict(Counter)
        self._slips: Counter[str] = Counter()

    def add(self, row: Row) -> None:
        if "dialogue" in row:
            for name in ("persona", "knowledge", "effort", "ended"):
                self._counts[name][row["dialogue"][name]] += 1
            self._slips.update(row["dialogue"]["slips"].split())

    def lines(self, calls: Mapping[str, int]) -> list[str]:
        """`calls`: {"assistant.calls", "assistant.input", "assistant.output", ...}, as in the manifest."""
        lines = []
        if self._counts:
            who = [(name, inline(_listed(counts), 400)) for name, counts in self._counts.items()]
            lines += ["## Who talked", table(("what", "conversations"), who)]
        if calls:
            roles = sorted({name.partition(".")[0] for name in calls})
            counts = [(inline(role), *(f"{calls.get(f'{role}.{what}', 0):,}" for what in _CALLS)) for role in roles]
            lines += ["## Calls", table(("role", "calls", "tokens in", "tokens out"), counts)]
        if self._counts:
            slips = inline(_listed(self._slips), 600) if self._slips else "none"
            lines.append(f"Replies that could not be used and were asked for again: {self._slips.total():,} ({slips}).")
        return lines


_CALLS = ("calls", "input", "output")


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{name} {rows:,}" for name, rows in sorted(counts.items()))
