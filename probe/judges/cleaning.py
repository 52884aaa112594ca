"""Takes off a user turn what is no speech: terminal codes, role tokens, tags, and text aimed at the judge.

What was taken off decides nothing in anyone's favour. Text aimed at the judge is cut out and the rest is judged as
if it had never been there; role tokens and tags count as broken markup when they are the bulk of the turn.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_TERMINAL_CODES = re.compile(r"\x1b\[[0-9;?]{0,32}[ -/]?[@-~]|\x1b\][^\x07\x1b\n]{0,200}(?:\x07|\x1b\\)|[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2064\ufeff]")  # fmt: skip
_MARKUP = re.compile(
    r"<\|[^<>|]{0,60}\|>"  # <|im_start|>
    r"|<[/!]?[A-Za-z][\w:-]{0,30}(?:\s[^<>\n]{0,200})?/?>"  # <tag>, </tag>
    r"|<0x[0-9A-Fa-f]{2}>|▁+|\[/?INST\]|\[/?SYS\]|</?s>|<<[/A-Z]{1,8}>>"
)
_ROLE_LABEL = re.compile(r"^\W{0,4}(?:user|human|customer|me)\s{0,2}\W{0,2}:\s{0,4}", re.IGNORECASE)

_LABEL_NAMES = r"(?:genuine|user|assistant|role|new|meta|generic)[\s_-]{0,2}(?:follow[\s_-]?ups?|restatement|drift|task|planning|filler)"
_JUDGE_NAMES = r"(?:judges?|graders?|evaluators?|annotators?|raters?|classifiers?|labell?ers?|scorers?|reviewers?)"
_VERDICT_WORDS = r"(?:verdict|rubric|label|labell?ed|mark|marked|grade|graded|score|scored|classify|classified|classification|categor\w{1,8}|rate|rated|count|counts|output|return|respond|answer|reply|treat|tag|class)"
_AIMED = re.compile(
    rf"\b(?:genuine|user|assistant|role|new|meta|generic)_(?:followup|follow_up|restatement|drift|task|planning|filler)\b"
    rf"|\b{_VERDICT_WORDS}\b[^\n]{{0,80}}?\b{_LABEL_NAMES}\b"
    rf"|\b{_VERDICT_WORDS}\W{{1,3}}(?:(?:this|it|turn|message|as|is|with|being|the|a|user)\W{{1,2}}){{0,5}}(?:genuine|malformed|degenerate)\W{{0,4}}$"
    rf"|\b(?:{_LABEL_NAMES})\b[^\n]{{0,60}}?\b(?:{_JUDGE_NAMES}|{_VERDICT_WORDS})\b"
    rf"|\b(?:note|message|attention|instructions?|memo|hint|dear|hey|system|as|you are|you're)\W{{1,3}}(?:(?:to|for|the|an|a|all)\s){{0,2}}{_JUDGE_NAMES}\b"
    rf"|\b{_JUDGE_NAMES}\b[^\n]{{0,40}}?\b(?:must|should|shall|will|please|need to|has to|have to)\b[^\n]{{0,40}}?\b{_VERDICT_WORDS}\b"
    rf"|\b(?:ignore|disregard|forget|override)\b[^\n]{{0,20}}?\b(?:rubric|grading|labels?|criteria)\b"
    rf"|\b(?:verdict|final label|label|classification)\s{{0,2}}[:=]\s{{0,2}}\S",
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
        leads_on: the turn began with white space or closed something, as a continued sentence does.
    """

    text: str
    markup: float
    aimed: bool
    leads_on: bool


def clean(turn: str) -> Cleaned:
    """The turn without terminal codes, markup, a leading "User:" and text aimed at the judge."""
    visible = _TERMINAL_CODES.sub("", turn)
    speech = _MARKUP.sub(" ", visible)
    size = len("".join(visible.split()))
    markup = 1 - len("".join(speech.split())) / size if size else 0.0
    # Tags may hold the words that aim at the judge, so both versions are searched.
    aimed = bool(_AIMED.search(visible) or _AIMED.search(speech))
    if aimed:
        speech = "".join(piece for piece in _PIECE.findall(speech) if not _AIMED.search(piece))
        speech = _without_leftovers(speech)
    text = _ROLE_LABEL.sub("", speech.strip(), count=1).strip()
    return Cleaned(text=text, markup=markup, aimed=aimed, leads_on=turn[:1].isspace() and bool(text))


def _without_leftovers(speech: str) -> str:
    """Lines that hold no letter or digit any more once the aimed text is gone."""
    return "\n".join(line for line in speech.split("\n") if any(character.isalnum() for character in line))
