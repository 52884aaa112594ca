"""The data card: one page about a finished data set (`card.md.j2`, filled in), so that nobody has to open its files."""

from __future__ import annotations

import json
import re
import textwrap
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from nextturn.data_builders.duplicates import Checked
from nextturn.data_builders.quality import ANSWERED_AT_ONCE
from nextturn.data_builders.surface import LEAST, Openings, Reservoir
from nextturn.probe.command.terminal import visible
from nextturn.probe.data.messages import Message, learned
from nextturn.probe.stats import Estimate
from nextturn.probe.text.grading import asks, closes_asking

CARD = "README.md"
"""The card's name in the data folder, where the hub shows it and `datasets` reads which rows there are."""

Row = dict[str, Any]
_SAMPLES = 10  # conversations shown in full
_EXCERPT = 180
WARN = 0.7
"""A giveaway above this value gets a warning."""
_LICENCES = {"gsm8k": "mit", "math": "mit", "written": "apache-2.0"}  # of the sets that the hub or the package holds


class Counts:
    """What the card reports about rows, counted one row at a time. Its size does not grow with the rows."""

    def __init__(self) -> None:
        self.kinds: dict[str, Counter[str]] = defaultdict(Counter)  # rows, first replies that ask, words, rejected
        self.turns = Counter[str]()  # assistant turns: all, those that end with a question, last turns that do
        self.reasons, self.examples = Counter[str](), dict[str, Row]()
        self.stories = Counter[str]()  # rows by the story of their problem
        self.doubts = Counter[bool]()  # whether a user's doubt is right
        self.simulated = Counter[str]()  # conversations with a simulated user: all, with a reaction, and by their end

    def keep(self, row: Row) -> None:
        replies = [message["content"] for message in row["messages"][1::2]]
        words = sum(len(message["content"].split()) for message in row["messages"])
        self.kinds[row["kind"]].update(rows=1, asks=asks(replies[0]), words=words)
        self.turns.update(all=len(replies), ask=sum(map(closes_asking, replies)), end=closes_asking(replies[-1]))
        self.doubts.update(row.get("doubts", ()))
        self.stories.update(filter(None, [row.get("story")]))
        if "dialogue" in row:
            self.simulated.update(["all", row["dialogue"]["ended"]], reacted=len(row["messages"]) > 3)

    def reject(self, row: Row) -> None:
        self.kinds[row["kind"]].update(rejected=1)
        self.reasons[row["reason"]] += 1
        self.examples.setdefault(row["reason"], row)

    def example(self, reason: str) -> list[str]:
        """Return lines about the first row with this reason: its first two messages and its last one."""
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
    views: Mapping[str, Sequence[Path]] | None = None,
    notes: Sequence[str] = (),
) -> tuple[str, Estimate]:
    """Return the card as Markdown, and the AUC with which first messages give away that they lack a fact.

    Args:
        rows: Kept rows; they are read once.
        rejected: Rejected rows with their `reason`.
        settings: Settings of the build.
        checked: The probe sets that the rows were compared with.
        calls: Replies and tokens of models, {"assistant.calls", "assistant.input", "assistant.output", ...}, as in the
            manifest.
        views: The files of each folder of rows, which `datasets.load_dataset(folder, view)` loads.
        notes: What `user_notes` says.
    """
    import jinja2

    seed = settings["seed"]
    counts, openings, sample = Counts(), Openings(seed), Reservoir(_SAMPLES, seed)
    for row in rows:
        for add in (counts.keep, openings.add, sample.add):
            add(row)
    for row in rejected:
        counts.reject(row)
    giveaway = openings.giveaway()
    reasons = sorted(counts.reasons, key=lambda reason: (-counts.reasons[reason], reason))
    page = jinja2.Environment(undefined=jinja2.StrictUndefined, trim_blocks=True, keep_trailing_newline=True)
    page.filters.update(inline=inline, n="{:,}".format, percent="{:.1%}".format)
    kinds = [(kind, kind_counts) for kind, kind_counts in counts.kinds.items() if kind_counts["rows"]]
    text = page.from_string(Path(__file__).with_name("card.md.j2").read_text(encoding="utf-8")).render(
        counts=counts,
        total=sum(count["rows"] for _, count in kinds),
        lost=counts.reasons.total(),
        kinds=sorted(kinds, key=lambda item: -item[1]["rows"]),
        whole=sum((counts.kinds[kind] for kind in ANSWERED_AT_ONCE if kind in counts.kinds), Counter[str]()),
        reasons=reasons,
        examples=[line for reason in reasons for line in counts.example(reason)],
        roles=sorted({name.partition(".")[0] for name in calls or {}}),
        calls=calls or {},
        settings=settings,
        licences=licences(settings),
        views={view: json.dumps(columns(paths)) for view, paths in (views or {}).items()},
        notes=notes,
        giveaway=giveaway,
        least=LEAST,
        warn=WARN,
        checked=checked,
        samples=sample.rows,
        block=block,
        chat=chat,
    )
    return text, giveaway


def columns(paths: Sequence[Path]) -> list[dict[str, Any]]:
    """Return the names and types of all columns of some JSON files, as `dataset_info` of a card names them.

    `datasets` takes the types of the first file for all, but some kinds of rows have columns of their own.
    """
    import pyarrow
    from pyarrow import json as arrow_json

    def read(path: Path) -> Any:
        whole = arrow_json.ReadOptions(block_size=path.stat().st_size)
        schema = arrow_json.read_json(path, whole).schema
        # Arrow takes texts for times where all of a file look so, such as answers that are dates; in another file they are texts.
        times = [field for field in schema if pyarrow.types.is_timestamp(field.type)]
        for field in times:
            schema = schema.set(schema.get_field_index(field.name), field.with_type(pyarrow.string()))
        return schema

    def fields(of: Any) -> list[dict[str, Any]]:
        return [{"name": field.name, **described(field.type)} for field in of]

    def described(kind: Any) -> dict[str, Any]:
        if pyarrow.types.is_struct(kind):
            return {"struct": fields(kind)}
        if pyarrow.types.is_list(kind):
            item = described(kind.value_type)
            return {"list": item.get("struct") or item.get("dtype") or item}
        return {"dtype": {"double": "float64"}.get(str(kind), str(kind))}

    schemas = [read(path) for path in paths if path.stat().st_size]
    return fields(pyarrow.unify_schemas(schemas, promote_options="permissive")) if schemas else []


def licences(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return the licence of each source of a build by the hub's name; "unknown" for a file or a source of one's own."""
    source, replay = settings["source"], settings["replay"]
    found = {source["kind"]: bool(source["path"])}
    if replay["fraction"]:
        kind = replay["source"] or source["kind"]
        found[kind] = bool(replay["path"]) or found.get(kind, False)
    if settings["written"]:
        found["written"] = False
    return {kind: "unknown" if own else _LICENCES.get(kind, "unknown") for kind, own in found.items()}


def user_notes(totals: Mapping[str, Any]) -> list[str]:
    """Return what became of the facts to withhold and of the simulated user's turns, a line for each.

    Args:
        totals: {"events", "calls"} of the manifest.
    """
    events = Counter[str](totals.get("events", {}))
    needed, not_needed, no_cut = (events[f"search.{outcome}"] for outcome in ("needed", "not_needed", "no_cut"))
    rules, searched = events["reveal.rules"], needed + not_needed + no_cut
    reasons = Counter({name[5:]: count for name, count in events.items() if name.startswith("turn.")})
    frequent = ", ".join(f"{count:,} {reason}" for reason, count in reasons.most_common(4))
    asked = totals.get("calls", {}).get("simulator.calls", 0)
    notes = {
        f"problems searched for a fact to withhold: {searched:,} ({needed:,} need one, {no_cut:,} have none that can be left out, "
        f"{not_needed:,} were solved without it or not proved to need it)": searched,
        "reveals written by rules, since the simulated user's could not be used: "
        f"{rules:,} of {rules + events['reveal.simulator']:,}": rules,
        f"turns of the simulated user that could not be used: {reasons.total():,} of {asked:,} ({frequent})": reasons,
    }
    return [note for note, count in notes.items() if count]


# --- Text of others on a Markdown page: it is shown as it is, and none of it counts as the page's own markup.

_WIDTH = 100
_LABEL = 9  # characters of "assistant"
# An underscore inside a word is no markup.
_MARKUP = re.compile(r"[\\`*{}\[\]()#+!|~$]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")
_ENTITIES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})


def inline(text: str, limit: int = 80) -> str:
    """Return the text for one line of a paragraph, heading or table, with its markup and HTML escaped."""
    line = " ".join(visible(text).split())
    line = line if len(line) <= limit else f"{line[: limit - 1]}…"
    return _MARKUP.sub(r"\\\g<0>", line.translate(_ENTITIES))


def excerpt(text: str, limit: int) -> str:
    """Return the text on one line for a `block`; of a longer text its start and its end."""
    line = " ".join(visible(text).split())
    if len(line) <= limit:
        return line
    return f"{line[: limit * 2 // 3].rstrip()} … {line[-limit // 3 :].lstrip()}"


def block(lines: Sequence[str]) -> str:
    """Return the lines between fences that no line can close."""
    longest = max((len(ticks) for line in lines for ticks in re.findall(r"`+", line)), default=0)
    fence = "`" * max(3, longest + 1)
    return "\n".join([f"{fence}text", *lines, fence])


def chat(messages: Iterable[Message]) -> list[str]:
    """Return the lines of a conversation, each behind the role or an edge, so that no message can imitate another."""
    lines = []
    for message in messages:
        label = message["role"] if learned(message) else "(no loss)"
        for paragraph in visible(message["content"]).split("\n"):
            for line in textwrap.wrap(paragraph, _WIDTH, break_on_hyphens=False) or [""]:
                lines.append(f"{label:{_LABEL}} | {line}".rstrip())
                label = ""
    return lines
