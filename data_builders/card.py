"""One page about a finished data set, so that nobody has to open the files to know what is in them."""

from __future__ import annotations

import re
import textwrap
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from data_builders.duplicates import Checked
from data_builders.quality import ANSWERED_AT_ONCE
from data_builders.surface import LEAST, RUNS, Openings, Phrases, Sample, phrases, turns_of
from probe.conversations import Message, learned
from probe.grading import asks, closes_asking
from probe.stats import Estimate
from probe.terminal import visible

Row = dict[str, Any]
_SAMPLES, _PHRASES = 10, 1000  # conversations shown in full, and those whose phrases are counted
_EXCERPT = 180
WARN = 0.7
"""A giveaway above this is worth a line."""


class Page(NamedTuple):
    """The card as Markdown, and the AUC with which the first message gives away what lacks something."""

    text: str
    giveaway: Estimate


def card(
    rows: Iterable[Row],
    rejected: Iterable[Row],
    settings: dict[str, Any],
    checked: Sequence[Checked] = (),
    calls: Mapping[str, int] | None = None,
) -> Page:
    """Reads the rows once and keeps counts, a sample and one example of each reason.

    Args:
        rejected: rows with their `reason`.
        checked: the probe sets that the rows were held against.
        calls: replies and tokens of the models that talked, {"assistant.calls", "assistant.input", "assistant.output",
            ...}, as in the manifest.
    """
    seed = settings["seed"]
    kept, talks, openings, sample = Kept(), Talks(), Openings(seed), Sample(_PHRASES, seed)
    for row in rows:
        for count in (kept, talks, openings, sample):
            count.add(row)
    reasons, lost_kinds, examples = Counter[str](), Counter[str](), dict[str, Row]()
    for row in rejected:
        reasons[row["reason"]] += 1
        lost_kinds[row["kind"]] += 1
        examples.setdefault(row["reason"], row)
        talks.add(row)
    total, lost, giveaway = kept.rows.total(), reasons.total(), openings.giveaway()
    asked = total + lost
    parts = [
        "# Data card",
        f"{total:,} of {asked:,} conversations kept ({total / max(1, asked):.1%}), {lost:,} rejected. "
        f"Source: {inline(settings['source']['kind'])}, seed {settings['seed']}.",
        *kept.parts(lost_kinds),
        "## What it teaches",
        _giveaway(giveaway),
        *talks.judgements(),
        *_repetition(sample.rows),
        "## Rejected",
        *_rejected(reasons, examples, asked),
        *_compared(settings["quality"], checked, reasons),
        *talks.lines(calls or {}),
        f"## {min(_SAMPLES, len(sample.rows))} conversations, drawn at random",
    ]
    for row in sample.rows[:_SAMPLES]:
        parts += [f"### {inline(row['kind'])} ({inline(row['id'])})", block(chat(row["messages"]))]
    return Page("\n\n".join(parts) + "\n", giveaway)


def _giveaway(found: Estimate) -> str:
    if found.value is None:
        return (
            "Whether the first message gives away what lacks something: not measured, which takes "
            f"{LEAST} openings of either kind."
        )
    low, high = found.ci95 or (0.0, 1.0)
    return (
        f"Whether the first message gives away what lacks something: AUC {found.value:.2f} [{low:.2f}, {high:.2f}] of "
        f"{found.n:,} openings, by their characters alone, replay left out. 0.5 is nothing; above {WARN} a model may learn "
        "the wording in place of the judgement."
    )


# What people say, by the same count: MT-Bench-101 (arXiv 2402.14762), 1,000 of its conversations.
MT_BENCH_101 = {
    "user": Phrases(3038, RUNS, 0.9346, (("can you tell me", 0.0257), ("the best way to", 0.0128), ("what's the best way", 0.0112))),
    "assistant": Phrases(3038, RUNS, 0.9748, (("my apologies for the", 0.0112), ("are you interested in", 0.0109), ("are you looking for", 0.0105))),
}  # fmt: skip


def _repetition(rows: Sequence[Row]) -> Iterator[str]:
    lines = []
    for role, theirs in MT_BENCH_101.items():
        for name, found in ((role, phrases(turns_of(rows, role))), (f"{role}, MT-Bench-101", theirs)):
            common = "; ".join(f"{inline(run)} {share:.1%}" for run, share in found.commonest)
            lines.append((name, f"{found.turns:,}", f"{found.distinct:.2f} of {found.runs:,}", common))
    yield table(("turns of", "turns", "distinct runs of four words", "commonest, share of turns"), lines)


# --- Kinds and lengths, and how often an assistant's turn closes with a question.


class Kept:
    """Counts of the kept rows. None grows with the rows."""

    def __init__(self) -> None:
        self.rows: Counter[str] = Counter()
        self._asked: Counter[str] = Counter()  # the first reply asks
        self._words_of: Counter[str] = Counter()
        self._words: Counter[int] = Counter()
        self._messages: Counter[int] = Counter()
        self._turns: Counter[str] = Counter()

    def add(self, row: Row) -> None:
        kind, messages = row["kind"], row["messages"]
        words = sum(len(message["content"].split()) for message in messages)
        self.rows[kind] += 1
        self._asked[kind] += asks(messages[1]["content"])
        self._words_of[kind] += words
        self._words[words] += 1
        self._messages[len(messages)] += 1
        replies = [message["content"] for message in messages[1::2]]
        self._turns.update(
            {"all": len(replies), "ask": sum(map(closes_asking, replies)), "end": closes_asking(replies[-1])}
        )

    def parts(self, rejected: Mapping[str, int]) -> Iterator[str]:
        total = self.rows.total()
        if not total:
            yield "No rows."
            return
        lines = [
            (
                inline(kind), f"{rows / total:.1%}", f"{rows:,}", f"{rejected.get(kind, 0):,}",
                f"{self._asked[kind] / rows:.1%}", f"{self._words_of[kind] / rows:.0f}",
            )
            for kind, rows in self.rows.most_common()
        ]  # fmt: skip
        yield table(("kind", "share", "rows", "rejected", "first reply asks", "words"), lines)
        rows, asked = (sum(count[kind] for kind in ANSWERED_AT_ONCE) for count in (self.rows, self._asked))
        turns, words = self._turns, sorted(self._words.items())
        yield (
            f"Of {rows:,} conversations that open with the whole problem, {asked / max(1, rows):.1%} are asked back first. Of "
            f"{turns['all']:,} assistant turns {turns['ask'] / turns['all']:.1%} close with a question, of the last ones "
            f"{turns['end'] / total:.1%}."
        )
        yield (
            f"Words a conversation: {_percentile(words, 0.5)} (median), {_percentile(words, 0.9)} (90%), {words[-1][0]} (most). "
            + (
                f"Messages a conversation (rows): {', '.join(f'{n} ({rows:,})' for n, rows in sorted(self._messages.items()))}."
            )
        )


def _percentile(counts: Sequence[tuple[int, int]], share: float) -> int:
    """The value below or at which this share lies; `counts` in order."""
    left = share * sum(rows for _, rows in counts)
    for value, rows in counts:
        left -= rows
        if left <= 0:
            return value
    return counts[-1][0]


# --- Rejected rows by reason, with the first of each; and what the rows were held against.


def _rejected(reasons: Counter[str], examples: Mapping[str, Row], asked: int) -> list[str]:
    if not reasons:
        return ["None."]
    ordered = sorted(reasons, key=lambda reason: (-reasons[reason], reason))
    counts = [(inline(one), f"{reasons[one]:,}", f"{reasons[one] / asked:.2%}") for one in ordered]
    shown: list[str] = []
    for reason in ordered:  # how the conversation begins, and its last turn
        row, messages = examples[reason], examples[reason]["messages"]
        ends = [*messages[:2], *(messages[-1:] if len(messages) > 2 else [])]
        texts = [{**message, "content": excerpt(message["content"], _EXCERPT)} for message in ends]
        heading = excerpt(f"{reason}: {row['id']}, answer {row['answer'] or 'unknown'}", _EXCERPT)
        shown += ["", f"== {heading}", *chat(texts)]
    return [table(("reason", "rows", "share"), counts), "One example of each:", block(shown)]


def _compared(quality: dict[str, Any], checked: Sequence[Checked], reasons: Counter[str]) -> list[str]:
    """What the rows were held against: the probe sets, and each other."""
    lines = [
        (inline(one.name), f"{one.rows:,}", f"{one.ngrams:,}", f"{reasons[f'contaminated:{one.name}']:,}")
        for one in checked
    ]
    near = quality["near_duplicates"]
    same = (
        "not looked for"
        if near is None
        else f"of two of one kind that share {near:g} of their runs of 3 words, the first is kept"
    )
    return [
        "## Held against",
        "The problem and every turn, by runs of 13 words (arXiv 2005.14165, appendix C). A row that several sets reject is "
        "counted at the first. What a probe asks and is not in this table may stand in the data.",
        table(("set", "rows", "runs of 13 words", "rejected"), lines),
        f"Near-duplicates (MinHash): {same}. At most {quality['max_same_wording']:.1%} of all rows are alike but for their "
        "numbers and names.",
    ]


# --- Conversations between models: who talked, what they were asked, and which replies had to be asked for again.

_CALLS = ("calls", "input", "output")


class Talks:
    """Who talked, and what the rows say about what was withheld and doubted."""

    def __init__(self) -> None:
        self._counts: dict[str, Counter[str]] = defaultdict(Counter)
        self._slips: Counter[str] = Counter()
        self._needed: Counter[bool] = Counter()
        self._doubts: Counter[bool] = Counter()

    def add(self, row: Row) -> None:
        told = row.get("dialogue", {})
        for name in ("persona", "goal"):
            if name in told:
                self._counts[name][told[name]] += 1
        self._slips.update(told.get("slips", "").split())
        if "reason" in row:
            return
        self._doubts.update(row.get("doubts", ()))
        measured = told.get("measured", {})
        if "without" in measured:  # [right, tries] of a solver without what is withheld, and with it
            self._needed[not measured["without"][0] and bool(measured.get("with", [0])[0])] += 1

    def judgements(self) -> Iterator[str]:
        needed, doubts = self._needed, self._doubts
        yield "Withheld things that are needed, since a solver fails without and succeeds with them: " + (
            f"{needed[True] / needed.total():.0%} of {needed.total():,}." if needed else "not measured."
        )
        yield "Doubts of the user that are right: " + (
            f"{doubts[True] / doubts.total():.0%} of {doubts.total():,}." if doubts else "none is marked."
        )

    def lines(self, calls: Mapping[str, int]) -> list[str]:
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


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{name} {rows:,}" for name, rows in sorted(counts.items()))


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


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of cells that are safe already (`inline`); numbers stand on the right."""
    body = list(rows)
    right = [all(re.match(r"[\d.,–-]", line[place]) for line in body) for place in range(len(head))]
    lines = [head, ["---:" if one else "---" for one in right], *body]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


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
