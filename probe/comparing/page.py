"""report.html: a comparison as one file that works offline, figures first, then every conversation behind them.

The figures are plain HTML and SVG, made here and readable without a script. The conversations travel as JSON, and
the page's script shows them as text, never as markup: what a model wrote cannot become part of the page. The
page's own policy forbids every request and every script and style but the two that it carries.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable
from importlib.resources import files
from typing import TYPE_CHECKING

from probe.comparing.page_parts.bars import labels, outcomes
from probe.comparing.page_parts.controls import actual, grounding, measured, perturbations
from probe.comparing.page_parts.conversations import CHARACTERS, ROWS, Conversations, conversations
from probe.comparing.page_parts.figures import changes, patterns, results, warnings
from probe.comparing.page_parts.markup import Html, join, tag
from probe.comparing.page_parts.numbers import setting
from probe.comparing.page_parts.plane import planes

if TYPE_CHECKING:
    from probe.compare import Comparison

Section = Callable[["Comparison"], Html | None]
SECTIONS: dict[str, tuple[str, Section]] = {
    "results": ("Results", results),
    "tradeoff": ("Accuracy against follow-up", planes),
    "patterns": ("Latent, absent or present", patterns),
    "changes": ("Change against the baseline", changes),
    "labels": ("User turns by label", labels),
    "outcomes": ("How the answers ended", outcomes),
    "perturbations": ("Perturbed answers", perturbations),
    "grounding": ("Grounding", grounding),
    "actual": ("Real user turns", actual),
    "measured": ("How it was measured", measured),
}


def html(comparison: Comparison, rows: int = ROWS, characters: int = CHARACTERS) -> str:
    """The page; reads samples.jsonl beside each run's results.json.

    Of a comparison with more than `rows` rows or `characters` of text, the page holds the conversations of items
    chosen evenly, and says so. The same runs always give the same bytes.

    Raises:
        DataError: a samples.jsonl holds a line that is no JSON object.
    """
    told = conversations(comparison, rows, characters)
    made = {name: (title, section(comparison)) for name, (title, section) in SECTIONS.items()}
    shown = {name: (title, part) for name, (title, part) in made.items() if part is not None}
    style, script = _part("page.css"), _part("page.js")
    allowed = f"style-src {_hash(style)}; script-src {_hash(script)}; img-src data:"
    return _fill(
        _part("page.html"),
        policy=f"default-src 'none'; {allowed}; base-uri 'none'; form-action 'none'",
        title=_title(comparison),
        summary=_summary(comparison),
        warnings=warnings(comparison) or "",
        contents=join(tag("a", title, href=f"#{name}") for name, (title, _) in shown.items()),
        sections=join(tag("section", tag("h2", title), part, id=name) for name, (title, part) in shown.items()),
        left_out=_left_out(told),
        style=style,
        script=script,
        data=told.as_script(),
    )


def _title(comparison: Comparison) -> Html:
    baseline, *others = comparison.names
    named = f"{', '.join(others)} against {baseline}" if others else f"{baseline}, probed"
    return join([named if len(named) <= 80 else f"{len(comparison.names)} probe runs compared"])


def _summary(comparison: Comparison) -> Html:
    """What was compared, in a sentence or two."""
    baseline, *others = comparison.names
    settings = comparison.runs[0].results.settings
    sets = ", ".join(f"{name} ({info.n} items: {', '.join(info.measures)})" for name, info in settings.sets.items())
    held = join([tag("strong", ", ".join(others)), " held against the baseline ", tag("strong", baseline)])
    return tag(
        "p",
        held if others else join(["One run: ", tag("strong", baseline)]),
        f". Sets: {sets or 'none'}. Judge: {setting(settings.others().get('judge'))}.",
    )


def _left_out(told: Conversations) -> Html | None:
    if told.rows == told.rows_found:
        return None
    return tag(
        "p",
        f"This page holds the conversations of {told.items:,} of {told.items_found:,} items ({told.rows:,} of "
        f"{told.rows_found:,} rows), chosen evenly over each set and the same ones for every run. All figures above "
        "are over all items; samples.jsonl in each run's folder holds every row.",
        class_="note left-out",
    )


def _fill(template: str, **parts: str | None) -> str:
    """Puts each part in its place in one pass, so that a part which looks like a place stays as it is."""
    return re.sub(r"\{\{(\w+)\}\}", lambda place: parts[place[1]] or "", template)


def _part(name: str) -> str:
    return (files("probe.comparing.page_parts") / name).read_text(encoding="utf-8")


def _hash(source: str) -> str:
    """The source of a policy that allows exactly this inline style or script."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()}'"
