"""One page about a finished data set, so that nobody has to open the files to know what is in them."""

from __future__ import annotations

from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Any

from data_builders.acts import ACTS
from probe.answers import sentences


def card(rows: Iterable[dict[str, Any]], rejected: Counter[str], settings: dict[str, Any]) -> str:
    """Markdown: counts, lengths, rejects, asking, variety of wording, three samples. Reads `rows` once."""
    kinds: Counter[str] = Counter()
    turns: Counter[int] = Counter()
    words = array("I")
    asked: Counter[str] = Counter()
    wordings: dict[str, Counter[str]] = defaultdict(Counter)
    samples: dict[str, dict[str, Any]] = {}
    talks = Talks()
    for row in rows:
        kinds[row["kind"]] += 1
        turns[len(row["messages"])] += 1
        words.append(sum(len(message["content"].split()) for message in row["messages"]))
        asked[row["kind"]] += _asks(row["messages"][1]["content"])
        for wording in row["acts"]:
            wordings[wording.partition(":")[0]][wording] += 1
        talks.add(row)
        if row["kind"] != "replay":
            samples.setdefault(row["kind"], row)
    total = sum(kinds.values())
    at_once = ("complete", "replay", "stated")
    over = sum(asked[kind] for kind in at_once) / max(1, sum(kinds[kind] for kind in at_once))
    parts = [
        "# Data card",
        f"{total} kept, {sum(rejected.values())} rejected. Source: {settings['source']['kind']}, seed {settings['seed']}.",
        _table(("kind", "rows", "share", "first reply asks"), [
            (kind, str(n), f"{n / total:.1%}", f"{asked[kind] / n:.1%}") for kind, n in kinds.most_common()
        ]),
        f"Over-asking, the share of complete problems whose first reply asks: {over:.1%}.",
        "## Length",
        _lengths(words),
        "Messages a conversation: " + ", ".join(f"{count} ({n})" for count, n in sorted(turns.items())) + ".",
        "## Rejected",
        _table(("reason", "rows"), [(reason, str(n)) for reason, n in rejected.most_common()]) if rejected else "None.",
        *(talks.lines() if "dialogue" in settings else _wordings(wordings)),
        "## Samples",
        *(_sample(row) for row in list(samples.values())[:3]),
    ]  # fmt: skip
    return "\n\n".join(parts) + "\n"


def _asks(text: str) -> bool:
    return any(part.endswith("?") for part in sentences(text)[-2:])


def _wordings(used: dict[str, Counter[str]]) -> list[str]:
    head = ("act", "uses", "wordings seen", "of", "commonest")
    return ["## Variety of wording", _table(head, [_variety(act, n) for act, n in sorted(used.items())])]


class Talks:
    """What the rows of conversations between models say beside their messages."""

    def __init__(self) -> None:
        self.counts: dict[str, Counter[str]] = defaultdict(Counter)

    def add(self, row: dict[str, Any]) -> None:
        for name in ("persona", "knowledge", "effort", "ended"):
            if "dialogue" in row:
                self.counts[name][row["dialogue"][name]] += 1

    def lines(self) -> list[str]:
        rows = [(name, _listed(counts)) for name, counts in self.counts.items()]
        return ["## Who talked", _table(("what", "conversations"), rows)]


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{name} {n}" for name, n in sorted(counts.items()))


def _variety(act: str, used: Counter[str]) -> tuple[str, ...]:
    uses = sum(used.values())
    return act, str(uses), str(len(used)), str(ACTS[act].combinations), f"{used.most_common(1)[0][1] / uses:.1%}"


def _lengths(words: array[int]) -> str:
    if not words:
        return "No rows."
    ordered = sorted(words)
    at = {share: ordered[min(len(ordered) - 1, int(share / 100 * len(ordered)))] for share in (10, 50, 90, 99)}
    shown = ", ".join(f"{share}% {n}" for share, n in at.items())
    return f"Words a conversation: mean {sum(ordered) / len(ordered):.0f}, percentiles {shown}, longest {ordered[-1]}."


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _sample(row: dict[str, Any]) -> str:
    lines = []
    for message in row["messages"]:
        text = "\n> ".join(message["content"].split("\n"))
        lines.append(f"> **{message['role']}:** {text}")
    return f"### {row['kind']} ({row['id']})\n\n" + "\n>\n".join(lines)
