"""One page about a finished data set, so that nobody has to open the files to know what is in them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, get_args

from data_builders.card_counts import Closings, Kinds, Rejects, Row, Talks
from data_builders.card_text import block, chat, inline, table
from data_builders.scripted import Kind
from data_builders.variety import Variety

if TYPE_CHECKING:
    from data_builders.decontaminate import Checked

_SAMPLES = 3
# A sample is a conversation that can be read at a glance, where there is one.
_SHORT, _MESSAGE = 1_500, 900
_SHOWN_FIRST = ("underspecified", "withheld", "complete", "stated")


def card(
    rows: Iterable[Row],
    rejected: Iterable[Row],
    settings: dict[str, Any],
    checked: Sequence[Checked] = (),
    calls: Mapping[str, int] | None = None,
) -> str:
    """Markdown. Reads the rows once and keeps counts, a few samples and one example of each reason.

    Args:
        rejected: rows with their `reason`.
        checked: the probe sets that the rows were held against.
        calls: replies and tokens of the models that talked, as in the manifest.
    """
    kinds, closings, variety, talks, rejects = Kinds(), Closings(), Variety(), Talks(), Rejects()
    samples: dict[str, Row] = {}
    for row in rows:
        for count in (kinds, closings, variety, talks):
            count.add(row)
        kind = row["kind"]
        if kind not in samples or (_size(samples[kind]) > _SHORT >= _size(row)):
            samples[kind] = row
    for row in rejected:
        rejects.add(row)
        talks.add(row)
    kept, lost = kinds.rows.total(), rejects.reasons.total()
    asked = kept + lost
    parts = [
        "# Data card",
        f"{kept:,} of {asked:,} conversations kept ({kept / max(1, asked):.1%}), {lost:,} rejected. "
        f"Source: {inline(settings['source']['kind'])}, seed {settings['seed']}.",
        kinds.table(_wanted(settings), rejects.kinds),
        kinds.over_asking(),
        closings.table(),
        kinds.lengths(),
        "## Rejected",
        *rejects.lines(asked),
        *_compared(settings["quality"], checked, rejects),
        *variety.lines(),
        *talks.lines(calls or {}),
        "## Samples",
        *(part for row in _chosen(samples) for part in _sample(row)),
    ]
    return "\n\n".join(parts) + "\n"


def _wanted(settings: dict[str, Any]) -> dict[str, float]:
    """The recipe's shares of all rows, by kind."""
    fraction = settings["replay"]["fraction"]
    if "dialogue" in settings:
        stated = settings["dialogue"]["stated"]
        shares = {"stated": stated, "withheld": 1 - stated}
    else:
        shares = {kind: settings["conversations"][kind] for kind in get_args(Kind)}
    wanted = {kind: share * (1 - fraction) for kind, share in shares.items() if share}
    return {**wanted, "replay": fraction} if fraction else wanted


def _compared(quality: dict[str, Any], checked: Sequence[Checked], rejects: Rejects) -> list[str]:
    """What the rows were held against: the probe sets, and each other."""
    if checked:
        lines = [
            (inline(one.name), f"{one.rows:,}", f"{one.ngrams:,}", f"{rejects.reasons[f'contaminated:{one.name}']:,}")
            for one in checked
        ]
        held = [
            "Held against these sets by runs of 13 words (arXiv 2005.14165, appendix C): the problem and every turn of "
            "each conversation. A row that several sets reject is counted at the first.",
            table(("set", "rows", "runs of 13 words", "rejected"), lines),
        ]
    else:
        held = [
            "Held against no probe set (`quality.decontaminate` is empty): what a probe asks may stand in the data."
        ]
    near = quality["near_duplicates"]
    same = (
        f"MinHash, {quality['permutations']} permutations, runs of 3 words; of two conversations of one kind that share "
        f"{near:g} or more (Jaccard), the first is kept."
        if near is not None
        else "Not looked for (`quality.near_duplicates` is null)."
    )
    alike = f"At most {quality['max_same_wording']:.1%} of all rows are alike but for their numbers and names."
    return ["## Decontamination", *held, "## Near-duplicates", f"{same} {alike}"]


def _size(row: Row) -> int:
    return sum(len(message["content"]) for message in row["messages"])


def _chosen(samples: dict[str, Row]) -> list[Row]:
    names = [*_SHOWN_FIRST, *(kind for kind in samples if kind not in (*_SHOWN_FIRST, "replay")), "replay"]
    return [samples[kind] for kind in names if kind in samples][:_SAMPLES]


def _sample(row: Row) -> list[str]:
    return [f"### {inline(row['kind'])} ({inline(row['id'])})", block(chat(row["messages"], _MESSAGE))]
