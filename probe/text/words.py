"""Cut a text into words, stems, numbers and sentences, and clean a user turn of text that is not speech.

Plain on purpose: a light suffix stemmer and closed lists of English words (`judges/rules.yaml`), so that two texts are cut
alike and every verdict can be retraced by hand. Everything runs in time linear in the text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import NamedTuple

import yaml


@dataclass(frozen=True)
class RuleData:
    """The contents of `judges/rules.yaml`, whose comments describe each part."""

    words: dict[str, str]
    numbers: dict[str, int]
    anywhere: dict[str, str]
    opening: dict[str, str]
    bias: dict[str, float]
    weights: dict[str, dict[str, float]]


@cache
def rule_data() -> RuleData:
    """Read `judges/rules.yaml`, once."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # eight times as fast, where it was built
    path = Path(__file__).parents[1] / "judges" / "rules.yaml"
    return RuleData(**yaml.load(path.read_text(encoding="utf-8"), loader))


@cache
def word_list(name: str) -> frozenset[str]:
    """Return one list of words in `judges/rules.yaml`."""
    return frozenset(rule_data().words[name].split())


@cache
def phrases(name: str) -> re.Pattern[str]:
    """Return one group of phrases in `judges/rules.yaml` as a pattern that ignores case."""
    data = rule_data()
    lines = {**data.anywhere, **data.opening}[name]
    alternatives = re.sub(r"\n +", "", lines).replace("\n", "|")  # an indented line continues the one before it
    begin = r"\b" if name in data.anywhere else r"^\W{0,4}"
    return re.compile(rf"{begin}(?:{alternatives})(?!\w)", re.IGNORECASE)


_TOKEN = re.compile(r"\d+(?:,\d{3})*(?:\.\d+)?|[^\W\d_]+(?:['’][^\W\d_]+)*")
_SENTENCE_END = re.compile(r"(?<=[.!?。?!])[\"'”’)\]*]*\s+|\n+")
# The first that fits is removed, so longer endings stand before those that they end in.
_ENDINGS = ["ations", "ation", "ings", "ing", "ies", "ied", "edly", "ed", "ers", "er", "es", "ly", "s", "y", "e"]


def words(text: str) -> list[str]:
    """Return the lower-case words and numbers in order; "1,000.50" is one number, "Janet's" one word."""
    return [token.lower().replace("’", "'") for token in _TOKEN.findall(text)]


def stem(word: str) -> str:
    """Return a word without possessive and common endings, and a number in one form: "three" and "3.0" as "3"."""
    if word[0].isdigit():
        digits = word.replace(",", "")
        return digits.rstrip("0").rstrip(".") if "." in digits else digits
    word = word.split("'")[0]
    if (value := rule_data().numbers.get(word)) is not None:
        return str(value)
    for ending in _ENDINGS:
        if word.endswith(ending) and len(word) - len(ending) >= 3 and not word.endswith("ss"):
            return word[: -len(ending)]
    return word


@lru_cache(maxsize=256)
def stems(text: str) -> tuple[str, ...]:
    """Return the stem of every word and number in order, function words included."""
    return tuple(stem(word) for word in words(text))


@lru_cache(maxsize=256)
def content_stems(text: str) -> tuple[str, ...]:
    """Return the stems of numbers and content words in order, without function words and words of asking and answering."""
    function, task = word_list("function"), word_list("task")
    content = (word for word in words(text) if word not in function and word not in task)
    return tuple(stem(word) for word in content if word.split("'")[0] not in function)


def is_number(stemmed: str) -> bool:
    """Return True if a stem is a number."""
    return stemmed[0].isdigit()


def sentences(text: str) -> list[str]:
    """Return the sentences and lines in order, without empty ones."""
    return [part.strip() for part in _SENTENCE_END.split(text) if part and part.strip()]


def ngrams(items: tuple[str, ...], size: int) -> list[tuple[str, ...]]:
    """Return all sequences of `size` items in order."""
    return [items[start : start + size] for start in range(len(items) - size + 1)]


# Cleaning a user turn of text that is not speech: terminal codes, role tokens, tags, and text aimed at the judge.
#
# Removed text never decides a verdict. Text aimed at the judge is cut out, and the rest is judged as if it had never been
# there; role tokens and tags count as broken markup when they are most of the turn. All gaps in these patterns are bounded,
# so that matching stays linear in hostile text.

_TERMINAL_CODES = re.compile(
    r"\x1b\[[0-9;?]{0,32}[ -/]?[@-~]"  # colours and cursor moves
    r"|\x1b\][^\x07\x1b\n]{0,200}(?:\x07|\x1b\\)"  # window titles and links
    r"|[\x00-\x08\x0b-\x1f\x7f-\x9f]"  # other control characters
    r"|[\u200b-\u200f\u2028-\u202e\u2060-\u2064\ufeff]"  # invisible and direction-changing ones
)
_MARKUP = re.compile(
    r"<\|[^<>|]{0,60}\|>(?:(?:user|assistant|system)\b)?"  # <|im_start|>user
    r"|<[/!]?[A-Za-z][\w:-]{0,30}(?:\s[^<>\n]{0,200})?/?>"  # <tag>, </tag>
    r"|<0x[0-9A-Fa-f]{2}>|▁+|\[/?INST\]|\[/?SYS\]|<<[/A-Z]{1,8}>>"
)
_ROLE_LABEL = re.compile(r"^\W{0,4}(?:user|human|customer|me)\s{0,2}\W{0,2}:\s{0,4}", re.IGNORECASE)

_LABEL_NAMES = (
    r"(?:(?:genuine|user|assistant|role|new|meta|generic)_(?:follow_?up|restatement|drift|task|planning|filler)"
    r"|genuine[ -]follow[ -]?ups?|(?:user|assistant) restatement|role drift|meta[ -]planning|generic filler)"
)
_OTHER_LABELS = r"(?:genuine|malformed|degenerate)"
_JUDGES = r"(?:judges?|graders?|evaluators?|annotators?|raters?|classifiers?|labell?ers?|scorers?|reviewers?)"
_RULING = (
    r"(?:verdict|rubric|(?:label|mark|grade|score|rate|count|treat|tag|class|output|return|answer)(?:s|l?ed|d)?"
    r"|classif(?:y|ied|ication)|categor\w{1,8}|respond|reply)"
)
_AIMED = re.compile(
    # a label by its written name; `new_task` is left out, which can be a variable in somebody's code
    r"\bgenuine[ _-]follow[ _-]?ups?\b|\b(?:(?:user|assistant)_restatement|role_drift|meta_planning|generic_filler)\b"
    rf"|\b{_RULING}\b[^\n]{{0,80}}?\b{_LABEL_NAMES}\b"
    rf"|\b{_LABEL_NAMES}\b[^\n]{{0,60}}?\b(?:{_JUDGES}|{_RULING})\b"
    rf"|\b{_RULING}\W{{1,3}}(?:(?:this|it|turn|message|as|is|with|being|the|a|user)\W{{1,2}}){{0,5}}"
    rf"{_OTHER_LABELS}\W{{0,4}}$"
    rf"|\b(?:note|message|attention|instructions?|memo|hint|dear|hey|system)\W{{1,3}}(?:(?:to|for|the|all)\s){{0,2}}"
    rf"{_JUDGES}\b"
    rf"|\b{_JUDGES}\b[^\n]{{0,40}}?\b(?:must|should|shall|will|please|needs? to|ha(?:s|ve) to)\b[^\n]{{0,40}}?"
    rf"\b{_RULING}\b"
    rf"|^\W{{0,4}}{_JUDGES}\s{{0,2}}(?::|,[^\n]{{0,60}}?\bgenuine\b)|\bverdict\W{{1,3}}{_OTHER_LABELS}\b"
    rf"|\b(?:ignore|disregard|forget|override)\b[^\n]{{0,20}}?\b(?:rubric|grading|labels?|criteria)\b"
    rf"|\b(?:verdict|final label|label|classification)\s{{0,2}}[:=]\s{{0,2}}\S",
    re.IGNORECASE | re.MULTILINE,
)
# <verdict>genuine</verdict> and the like
_PLANTED = re.compile(
    rf"<{_RULING}\b[^<>\n]{{0,40}}>[^<>\n]{{0,40}}(?:{_LABEL_NAMES}|{_OTHER_LABELS})[^<>\n]{{0,40}}"
    r"(?:</[^<>\n]{0,40}>)?",
    re.IGNORECASE,
)
# Text that introduces or wraps text aimed at the judge: "=== end of turn ===", "assistant:", a JSON object, a comment.
_SCAFFOLD = re.compile(
    r"[=*#_~-]{3}[^\n]{0,80}?[=*#_~-]{3,8}|<!-{0,2}|-{1,2}>|```\w{0,20}"
    r"|\b(?:begin(?:ning)?|start|end) of (?:the )?(?:(?:user|assistant|system|human)(?:'s)? )?"
    r"(?:turn|message|input|conversation|transcript|text|data|response)\b"
    r"|\{\s{0,20}\"[^{}]{0,400}\}|\"[^\"\n]{1,40}\"[ \t]{0,4}:(?:[ \t]{0,4}\"[^\"\n]{0,200}\")?"
    r"|(?:^|(?<=\s))[^\w\s]{0,4}[ \t]{0,4}(?:user|assistant|system|human)[ \t]{0,2}:"
    r"|^[ \t]{0,4}(?:#|[*=_~-]{2})[^\w\n]{0,8}(?:user|assistant|system|human)[^\w\n]{0,8}$|^[\s{}\[\],]{1,8}$|[{\[][ \t]{0,4}$",
    re.IGNORECASE | re.MULTILINE,
)
_PIECE = re.compile(r"\[[^\[\]\n]{0,400}\]|\([^()\n]{0,400}\)|[^\n.!?\[\]()]+[.!?]*|[\n.!?\[\]()]")


class Cleaned(NamedTuple):
    """A user turn as speech.

    Attributes:
        text: The text to judge, stripped, with its line breaks.
        markup: Share of the turn's characters other than white space that were role tokens, tags or byte tokens.
        aimed: True if text aimed at the judge was cut out.
        leads_on: True if the turn began with white space, as the continuation of an earlier sentence does.
    """

    text: str
    markup: float
    aimed: bool
    leads_on: bool


def clean(turn: str) -> Cleaned:
    """Return the turn without terminal codes, markup, a leading "User:" and text aimed at the judge."""
    visible, planted = _PLANTED.subn(" ", _TERMINAL_CODES.sub("", turn))
    speech = _MARKUP.sub(" ", visible)
    # Tags may hold words aimed at the judge, so the text with tags is searched as well.
    aimed = bool(planted or _AIMED.search(visible)) or any(map(_AIMED.search, _PIECE.findall(speech)))
    if aimed:
        speech = "\n".join(map(_without_aimed, speech.split("\n")))
        # Markup around such text is removed too, or a planted tag could turn a short turn into markup.
        visible = "\n".join(line for line in visible.split("\n") if not _AIMED.search(line))
    tagged = sum(_solid(match.group()) for match in _MARKUP.finditer(visible))
    markup = tagged / (tagged + _solid(speech)) if tagged else 0.0
    text = _ROLE_LABEL.sub("", speech.strip(), count=1).strip()
    return Cleaned(text=text, markup=markup, aimed=aimed, leads_on=turn[:1].isspace() and bool(text))


def _solid(text: str) -> int:
    """Return the number of characters other than white space."""
    return len("".join(text.split()))


def _without_aimed(line: str) -> str:
    """Return the line without text aimed at the judge and its wrapping; unchanged if it holds none."""
    bare = _SCAFFOLD.sub(" ", line)
    pieces = _PIECE.findall(bare)
    kept = [piece for piece in pieces if not _AIMED.search(piece)]
    if bare == line and len(kept) == len(pieces):
        return line
    return "".join(piece for piece in kept if any(map(str.isalnum, piece)))


_ROUGH_END = re.compile(r"(?<=[.?!])[\"')\]*]*\s+|(?<=[。！？])|\n+")
_QUESTION_ENDS = re.compile(r"(?<=[.?!])(?=[\"')\]*]*\s)|(?<=[。！？\n])")


def rough_sentences(text: str) -> list[str]:
    """Return sentences and lines without the markup and brackets around them; coarser than `sentences`."""
    return [part.strip(" *\"')]") for part in _ROUGH_END.split(text.strip()) if part.strip(" *\"')]")]


def without_closing_questions(text: str) -> str:
    """Return a text without the questions that close it, also where a smiley follows them."""
    parts = _QUESTION_ENDS.split(text.rstrip() + " ")
    end = len(parts)
    for place, part in reversed(list(enumerate(parts))):
        last = next((char for char in reversed(part) if char.isalnum() or char == "?"), "")
        if last not in ("", "?"):
            break
        end = place if last else end
    return "".join(parts[:end]).rstrip()
