"""A clause said again with its number asked for in place: "A train travels 270 miles in how many hours?".

The way people ask back, and it needs no grammar beyond where the clause begins and ends.
"""

from __future__ import annotations

import re

from data_builders.derive.amounts import Amount
from data_builders.derive.english import FIRST_PERSON, has_verb, lower_first, upper_first

_LONGEST_BEFORE, _LONGEST_AFTER = 12, 8
_ASKING = re.compile(r"\b(?:how|what|which|who|why|find|calculate|determine|compute)\b", re.IGNORECASE)
# "another how many daisies", "size how much" and lists ("8, 15 and how many") do not read.
_NO_ASKING_AFTER = re.compile(
    r"(?:\b(?:an?|the|another|these|those|size|grade|number|age|aged|at)|,|\d\$?,? and)$", re.IGNORECASE
)
_COUNTED = re.compile(r" (?:times|fewer|more|less|of|cm|mm|km|m|g|kg|ml|mL|lbs?|oz|mph|kph|degrees|percent)\b")
_REST = re.compile(r"[,.](?!\d)|[;:?!()\n\"]|\s(?:and|but|which|that|who|if|when|while|so|because|where)\b")
_CONNECTOR = re.compile(
    r"^(?:If|Since|Suppose(?: that)?|Assume(?: that)?|Then|So|Also|However|And|But|Finally|Meanwhile),? "
)
# The clause after one of these only stands with its main clause.
_SUBORDINATE = re.compile(r"(?:When|While|After|Before|As|Once|Whenever|Until|Although|Because|Out|Of)\b")
_LAST_CLAUSE = re.compile(r"[,;:] (?:and |but |so |then |while |if )?((?:(?!, |; |: ).)*)$")


def echo(before: str, amount: Amount, after: str, counted: str) -> str:
    """The question, or "" where the clause is too long, asks itself, or cannot take "how many" in this place."""
    clause = _clause(before)
    asked = {"money": "how much", "percent": "what percent"}.get(amount.kind, "how many")
    if not clause or _ASKING.search(clause) or _NO_ASKING_AFTER.search(clause) or before.rstrip().endswith(","):
        return ""
    if asked == "how many" and not counted and not _COUNTED.match(after) or after.startswith("-"):
        return ""
    behind = after[len(counted) + 1 :] if counted else after
    if clause.endswith(" and") and re.match(r" [a-z]", behind) or re.match(r" \d", behind):
        return ""
    rest = _REST.split(after)[0].rstrip()
    if len(rest.split()) > _LONGEST_AFTER:
        if not counted:
            return ""
        rest = f" {counted}"
    # A formula may be cut in two here, so none is said again; in plain text a dollar sign is money.
    if "\\" in before + after or ("$" in clause + rest and re.search(r"[A-Za-z]\$|\$[A-Za-z]", before + after)):
        return ""
    if (
        "both" in rest
        or "  " in rest
        or " - " in rest
        or (amount.kind == "money" and not rest and re.match(r" [a-z]", after))
    ):
        return ""
    return upper_first(f"{lower_first(clause)} {asked}{rest}?")


def _clause(before: str) -> str:
    """The clause that leads up to the number, if it has a verb: "a train travels 270 miles in"."""
    text = _CONNECTOR.sub("", before.lstrip())
    if _SUBORDINATE.match(text) and "," not in text:
        return ""
    last = _LAST_CLAUSE.search(text)
    clause = last.group(1) if last and has_verb(last.group(1)) else text
    plain = has_verb(clause) and not re.search(r"[\"“”()?\n]|  | - ", clause) and not FIRST_PERSON.search(clause)
    return clause.strip() if plain and 1 < len(clause.split()) <= _LONGEST_BEFORE else ""
