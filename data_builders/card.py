"""One page about a finished data set, so that nobody has to open the files to know what is in them: `card.md.j2`, filled in."""

from __future__ import annotations

import itertools
import re
import textwrap
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from nextturn.data_builders.duplicates import Checked
from nextturn.data_builders.quality import ANSWERED_AT_ONCE
from nextturn.data_builders.surface import LEAST, Openings, Sample
from nextturn.probe.conversations import Message, learned
from nextturn.probe.grading import asks, closes_asking
from nextturn.probe.stats import Estimate
from nextturn.probe.terminal import visible

Row = dict[str, Any]
_SAMPLES = 10  # conversations shown in full
_EXCERPT = 180
WARN = 0.7
"""A giveaway above this is worth a line."""


class Counts:
    """What the page tells of the rows, counted as they pass. Nothing of it grows with the rows."""

    def __init__(self) -> None:
        self.kinds: dict[str, Counter[str]] = defaultdict(Counter)  # rows, first replies that ask, words, rejected
        self.words, self.messages = Counter[int](), Counter[int]()
        self.turns = Counter[str]()  # of the assistant: all, those that close with a question, last ones that do
        self.reasons, self.examples = Counter[str](), dict[str, Row]()
        self.stories = Counter[str]()  # of generated problems
        # Of self-play: who talked, replies that could not be used, whether what was withheld was needed.
        self.who: dict[str, Counter[str]] = defaultdict(Counter)
        self.slips, self.needed, self.doubts = Counter[str](), Counter[bool](), Counter[bool]()

    def keep(self, row: Row) -> None:
        replies = [message["content"] for message in row["messages"][1::2]]
        words = sum(len(message["content"].split()) for message in row["messages"])
        self.kinds[row["kind"]].update(rows=1, asks=asks(replies[0]), words=words)
        self.words[words] += 1
        self.messages[len(row["messages"])] += 1
        self.turns.update(all=len(replies), ask=sum(map(closes_asking, replies)), end=closes_asking(replies[-1]))
        self.doubts.update(row.get("doubts", ()))
        self.stories.update([row["story"]] if "story" in row else [])
        measured = self._talked(row).get("measured", {})
        if "without" in measured:  # [right, tries] of a solver without what is withheld, and with it
            self.needed[not measured["without"][0] and bool(measured.get("with", [0])[0])] += 1

    def reject(self, row: Row) -> None:
        self.kinds[row["kind"]].update(rejected=1)
        self.reasons[row["reason"]] += 1
        self.examples.setdefault(row["reason"], row)
        self._talked(row)

    def _talked(self, row: Row) -> Row:
        told: Row = row.get("dialogue", {})
        for name in {"persona", "goal"} & told.keys():
            self.who[name][told[name]] += 1
        self.slips.update(told.get("slips", "").split())
        return told

    def example(self, reason: str) -> list[str]:
        """The first row with this reason: how the conversation begins, and its last turn."""
        row, messages = self.examples[reason], self.examples[reason]["messages"]
        ends = [*messages[:2], *messages[2:][-1:]]
        texts = [{**message, "content": excerpt(message["content"], _EXCERPT)} for message in ends]
        heading = excerpt(f"{reason}: {row['id']}, answer {row['answer'] or 'unknown'}", _EXCERPT)
        return ["", f"== {heading}", *chat(texts)]


def card(
    rows: Iterable[Row],
    rejected: Iterable[Row],
    settings: dict[str, Any],
    checked: Sequence[Checked] = (),
    calls: Mapping[str, int] | None = None,
) -> tuple[str, Estimate]:
    """The card as Markdown, and the AUC with which the first message gives away what lacks something. Reads the rows
    once and keeps counts, a sample and one example of each reason.

    Args:
        rejected: rows with their `reason`.
        checked: the probe sets that the rows were held against.
        calls: replies and tokens of the models that talked, {"assistant.calls", "assistant.input", "assistant.output",
            ...}, as in the manifest.
    """
    import jinja2

    seed = settings["seed"]
    counts, openings, sample = Counts(), Openings(seed), Sample(_SAMPLES, seed)
    for row in rows:
        for add in (counts.keep, openings.add, sample.add):
            add(row)
    for row in rejected:
        counts.reject(row)
    giveaway = openings.giveaway()
    reasons = sorted(counts.reasons, key=lambda reason: (-counts.reasons[reason], reason))
    whole = [counts.kinds[kind] for kind in ANSWERED_AT_ONCE if kind in counts.kinds]
    page = jinja2.Environment(undefined=jinja2.StrictUndefined, trim_blocks=True, keep_trailing_newline=True)
    page.filters.update(inline=inline, n="{:,}".format, percent="{:.1%}".format, share=_share, listed=_listed)
    told = {
        "counts": counts,
        "total": counts.words.total(),
        "lost": counts.reasons.total(),
        "kinds": sorted((one for one in counts.kinds.items() if one[1]["rows"]), key=lambda one: -one[1]["rows"]),
        "whole": sum(one["rows"] for one in whole),
        "whole_asked": sum(one["asks"] for one in whole),
        "median": _percentile(counts.words, 0.5),
        "ninth": _percentile(counts.words, 0.9),
        "examples": [line for reason in reasons for line in counts.example(reason)],
        "roles": sorted({name.partition(".")[0] for name in calls or {}}),
    }
    template = page.from_string(Path(__file__).with_name("card.md.j2").read_text(encoding="utf-8"))
    text = template.render(
        **told, reasons=reasons, settings=settings, giveaway=giveaway, least=LEAST, warn=WARN, checked=checked,
        calls=calls or {}, samples=sample.rows, block=block, chat=chat,
    )  # fmt: skip
    return text, giveaway


def _listed(counts: Counter[Any], form: str = "{} {:,}") -> str:
    return ", ".join(form.format(*one) for one in sorted(counts.items()))


def _share(counts: Counter[bool], none: str) -> str:
    return f"{counts[True] / counts.total():.0%} of {counts.total():,}" if counts else none


def _percentile(counts: Counter[int], share: float) -> int:
    """The value below or at which this share lies."""
    values = sorted(counts)
    below = zip(values, itertools.accumulate(counts[value] for value in values), strict=True)
    return next((value for value, count in below if count >= share * counts.total()), 0)


# --- Text that others wrote, on a Markdown page: it is seen as it is, and nothing in it is taken for the page's own.

_WIDTH = 100
_LABEL = 9  # "assistant"
# An underline inside a word emphasises nothing.
_MARKUP = re.compile(r"[\\`*{}\[\]()#+!|~$]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")
_ENTITIES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})


def inline(text: str, limit: int = 80) -> str:
    """The text on one line of a paragraph, a heading or a table, its markup and HTML shown rather than followed."""
    line = " ".join(visible(text).split())
    line = line if len(line) <= limit else f"{line[: limit - 1]}…"
    return _MARKUP.sub(r"\\\g<0>", line.translate(_ENTITIES))


def excerpt(text: str, limit: int) -> str:
    """The text on one line, of a longer one its beginning and its end; as it is otherwise, for a `block`."""
    line = " ".join(visible(text).split())
    if len(line) <= limit:
        return line
    return f"{line[: limit * 2 // 3].rstrip()} … {line[-limit // 3 :].lstrip()}"


def block(lines: Sequence[str]) -> str:
    """Lines as they are, between fences that no line can close."""
    longest = max((len(found) for line in lines for found in re.findall(r"`+", line)), default=0)
    fence = "`" * max(3, longest + 1)
    return "\n".join([f"{fence}text", *lines, fence])


def chat(messages: Iterable[Message]) -> list[str]:
    """Messages with who speaks before each. Every line has its edge, so that no message can feign another one."""
    lines = []
    for message in messages:
        label = message["role"] if learned(message) else "(no loss)"
        for paragraph in visible(message["content"]).split("\n"):
            for line in textwrap.wrap(paragraph, _WIDTH, break_on_hyphens=False) or [""]:
                lines.append(f"{label:{_LABEL}} | {line}".rstrip())
                label = ""
    return lines
