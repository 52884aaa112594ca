"""Markup that cannot be broken by what stands in it: every text is escaped unless it is already `Html`.

Names of runs, sets, labels and settings come from folders, data files and models. Characters that would hide or
reorder what is read are replaced, so that nothing on the page passes for something else.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from urllib.parse import quote, urlencode


class Html(str):
    """Text that is markup already; made by `tag` and `join` only."""


BREAK = Html("<br>")
LONG = 30
"""The name of a row breaks into lines beyond so many letters."""

Child = str | None
Attribute = str | int | float | None


def tag(name: str, *children: Child, **attributes: Attribute) -> Html:
    """<name attributes>children</name>. `class_` stands for class, `aria_label` for aria-label; None is left out."""
    shown = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{_text(_number(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    return Html(f"<{name}{shown}>{join(children)}</{name}>")


def join(children: Iterable[Child]) -> Html:
    return Html("".join(child if isinstance(child, Html) else _text(child) for child in children if child))


def table(caption: str, head: Sequence[Child], rows: Iterable[Sequence[Child]]) -> Html:
    """A table in a box that scrolls by itself; the first column names the row."""
    return _table(caption, head, tag("tbody", *map(_row, rows)))


def grouped_table(caption: str, head: Sequence[Child], groups: Mapping[str, Iterable[Sequence[Child]]]) -> Html:
    """A table whose rows stand in groups, each under a line with its name."""
    bodies = [
        tag("tbody", tag("tr", tag("th", name, colspan=len(head), scope="rowgroup"), class_="group"), *map(_row, rows))
        for name, rows in groups.items()
    ]
    return _table(caption, head, *bodies)


def beside(tables: Iterable[Child]) -> Html:
    """Tables side by side where there is room."""
    return tag("div", *tables, class_="beside")


def view(**filters: str | None) -> str:
    """The address, within the page, of the conversations that these filters leave."""
    return "#" + urlencode({key: value for key, value in filters.items() if value is not None}, quote_via=quote)


def link(text: str, **filters: str | None) -> Html:
    return tag("a", text, href=view(**filters))


def label_class(label: str) -> str:
    """One colour per label, in bars and in the conversations alike."""
    return f"label-{label}" if label.isidentifier() else "label-other"


def _table(caption: str, head: Sequence[Child], *bodies: Html) -> Html:
    top = tag("thead", tag("tr", *(tag("th", cell, scope="col") for cell in head)))
    made = tag("table", tag("caption", caption), top, *bodies)
    return tag("div", made, class_="scroll", role="region", aria_label=caption, tabindex=0)


def _row(cells: Sequence[Child]) -> Html:
    first, *others = cells
    long = len(re.sub(r"<[^>]*>", "", first or "")) > LONG
    return tag(
        "tr", tag("th", first, scope="row", class_="long" if long else None), *(tag("td", cell) for cell in others)
    )


def _text(text: str) -> str:
    """`escape` leaves control, bidirectional and other invisible characters as they are."""
    return escape("".join(one if one.isprintable() else "\N{REPLACEMENT CHARACTER}" for one in text))


def _number(value: Attribute) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
