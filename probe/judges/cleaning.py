"""Takes off a user turn what is no speech: terminal codes, role tokens, tags, and text aimed at the judge.

What was taken off decides nothing in anyone's favour. Text aimed at the judge is cut out and the rest is judged as
if it had never been there; role tokens and tags count as broken markup when they are the bulk of the turn.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

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
# What sets off or wraps text aimed at the judge: "=== end of turn ===", "assistant:", a JSON object, a comment.
_SCAFFOLD = re.compile(
    r"[=*#_~-]{3}[^\n]{0,80}?[=*#_~-]{3,8}|<!-{0,2}|-{1,2}>|```\w{0,20}"
    r"|\b(?:begin(?:ning)?|start|end) of (?:the )?(?:(?:user|assistant|system|human)(?:'s)? )?"
    r"(?:turn|message|input|conversation|transcript|text|data|response)\b"
    r"|\{\s{0,20}\"[^{}]{0,400}\}|\"[^\"\n]{1,40}\"[ \t]{0,4}:(?:[ \t]{0,4}\"[^\"\n]{0,200}\")?"
    r"|(?:^|(?<=\s))[^\w\s]{0,4}[ \t]{0,4}(?:user|assistant|system|human)[ \t]{0,2}:"
    r"|^[ \t]{0,4}[^\w\s][^\w\n]{0,8}(?:user|assistant|system|human)[^\w\n]{0,8}$|^[\s{}\[\],]{1,8}$|[{\[][ \t]{0,4}$",
    re.IGNORECASE | re.MULTILINE,
)
_PIECE = re.compile(r"\[[^\[\]\n]{0,400}\]|\([^()\n]{0,400}\)|[^\n.!?\[\]()]+[.!?]*|[\n.!?\[\]()]")


@dataclass(frozen=True)
class Cleaned:
    """A user turn as speech.

    Attributes:
        text: what is left to judge, stripped; line breaks kept.
        markup: share of the turn's characters other than white space that were role tokens, tags or byte tokens.
        aimed: text aimed at the judge was cut out.
        leads_on: the turn began with white space, as a sentence does that goes on with an earlier one.
    """

    text: str
    markup: float
    aimed: bool
    leads_on: bool


def clean(turn: str) -> Cleaned:
    """The turn without terminal codes, markup, a leading "User:" and text aimed at the judge."""
    visible, planted = _PLANTED.subn(" ", _TERMINAL_CODES.sub("", turn))
    speech = _MARKUP.sub(" ", visible)
    # Tags may hold the words that aim at the judge, so the version with them is searched as well.
    aimed = bool(planted or _AIMED.search(visible)) or any(map(_AIMED.search, _PIECE.findall(speech)))
    if aimed:
        speech = "\n".join(map(_without_aimed, speech.split("\n")))
        # Markup around text that is cut out goes with it, or a planted tag could turn a short turn into markup.
        visible = "\n".join(line for line in visible.split("\n") if not _AIMED.search(line))
    tagged = sum(_solid(match.group()) for match in _MARKUP.finditer(visible))
    markup = tagged / (tagged + _solid(speech)) if tagged else 0.0
    text = _ROLE_LABEL.sub("", speech.strip(), count=1).strip()
    return Cleaned(text=text, markup=markup, aimed=aimed, leads_on=turn[:1].isspace() and bool(text))


def _solid(text: str) -> int:
    """Characters other than white space."""
    return len("".join(text.split()))


def _without_aimed(line: str) -> str:
    """The line as it is, or what speaks in it once the text aimed at the judge and its wrapping are cut out."""
    bare = _SCAFFOLD.sub(" ", line)
    pieces = _PIECE.findall(bare)
    kept = [piece for piece in pieces if not _AIMED.search(piece)]
    if bare == line and len(kept) == len(pieces):
        return line
    return "".join(piece for piece in kept if any(map(str.isalnum, piece)))
