"""The offline judge: clear cases by rule, all others by a score over named signals. No model, no network.

A turn goes through four steps: what is no speech is taken off (`text.clean`), turn and context are cut into words and
sentences (`Turn`), rules settle what is clear (`settle`), and the rest is weighed (`signals`, `label_scores`). Its words,
phrases and weights stand in `rules.yaml`. All of it reads English only; other languages are left unscored. Text aimed at
the judge is never taken for a verdict.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property

from nextturn.probe.judges.labels import GENUINE, Case, Verdict
from nextturn.probe.text import (
    clean,
    content_stems,
    is_number,
    ngrams,
    phrases,
    rule_data,
    sentences,
    stem,
    stems,
    word_list,
    words,
)


class RulesJudge:
    """Deterministic: the same case gets the same verdict, on any machine and in any batch."""

    name = "rules"
    version = "rules/3"

    calls = 0

    def stream(self, cases: Sequence[Case], known: Sequence[Verdict] = ()) -> Iterator[tuple[int, Verdict]]:
        """(index, verdict) in order; `raw` names the rule or the signals that decided."""
        for index, case in enumerate(cases):
            yield index, self.consider(case)

    def consider(self, case: Case) -> Verdict:
        """Return the verdict of the first rule that applies, else of the score. The label of an unscored turn is None."""
        turn = Turn(case)
        note = "; text aimed at the judge left out" if turn.aimed else ""
        if (settled := settle(turn)) is not None:
            label, rule = settled
            return Verdict(label, rule if label is None else None, f"rule: {rule}{note}")
        counted = signals(turn)
        best = best_label(label_scores(counted, rule_data().weights, rule_data().bias))
        # The three signals that moved this label most.
        points = [(name, row[best] * counted[name]) for name, row in rule_data().weights.items() if best in row]
        moved = sorted(((name, value) for name, value in points if abs(value) >= 0.05), key=lambda item: -abs(item[1]))
        because = ", ".join(f"{name} {value:+.1f}" for name, value in moved[:3])
        return Verdict(best, None, f"score: {because}{note}")


# How far from its end an answer may ask something and still wait for a reply.
_ASKING_TAIL = 160
_ENDED = re.compile(r"[.!?:。!?\"'”’)*`}\]$]\s*$")
_WORD = re.compile(r"[A-Za-z]+(?:['’][a-z]+)?|\d+")
# "it" that stands for nothing: "is it true that".
_EMPTY_IT = re.compile(
    r"\bis it (?:true|possible|safe|okay|ok|better|necessary|important|worth|legal|normal|hard|easy|bad|good|the case)\b"
    r"|\bit(?:'s| is) (?:true|possible|important)\b",
    re.IGNORECASE,
)


class Sentence:
    """One sentence or line of a turn; `size` is its number of words."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.size = len(words(text))

    def has(self, *groups: str) -> bool:
        """Whether one of these groups of phrases stands in it."""
        return any(phrases(group).search(self.text) for group in groups)

    @cached_property
    def asks(self) -> bool:
        """Ends with a question mark, or opens like a question, which casual writers leave unmarked."""
        return self.text.endswith("?") or self.has("question_opening")

    @cached_property
    def mentions_answer(self) -> bool:
        return self.has("about_answer")

    @cached_property
    def leans(self) -> bool:
        """Rests on what was just said, or asks about the answer by name or for a change of it."""
        return (self.mentions_answer and (self.asks or self.has("imperative"))) or self.has("leaning")


class Turn:
    """A user turn and the conversation before it, cut into the pieces that rules and signals are counted on.

    Attributes:
        text: the turn as speech.
        markup, aimed, leads_on: what cleaning found, see `text.Cleaned`.
        asked: the user's own messages so far.
        answer: the last assistant message.
        answers: all assistant messages, in one text.
    """

    def __init__(self, case: Case) -> None:
        cleaned = clean(case.user_turn)
        self.text, self.markup = cleaned.text, cleaned.markup
        self.aimed, self.leads_on = cleaned.aimed, cleaned.leads_on
        self.asked = tuple(message["content"] for message in case.messages if message["role"] == "user")
        answers = [message["content"] for message in case.messages if message["role"] == "assistant"]
        self.answer = answers[-1] if answers else ""
        self.answers = "\n".join(answers)

    @cached_property
    def words(self) -> list[str]:
        return words(self.text)

    @cached_property
    def content(self) -> tuple[str, ...]:
        return content_stems(self.text)

    @cached_property
    def sentences(self) -> list[Sentence]:
        return [Sentence(text) for text in sentences(self.text)]

    @cached_property
    def context(self) -> str:
        return "\n".join([*self.asked, self.answers])

    @cached_property
    def in_question(self) -> frozenset[str]:
        return frozenset(content_stems("\n".join(self.asked)))

    @cached_property
    def in_answer(self) -> frozenset[str]:
        return frozenset(content_stems(self.answer))

    @cached_property
    def known(self) -> frozenset[str]:
        """The content of all that was said before."""
        return self.in_question | frozenset(content_stems(self.answers))

    @cached_property
    def asks(self) -> bool:
        return any(sentence.asks for sentence in self.sentences)

    @cached_property
    def points_back(self) -> bool:
        """A pronoun stands before anything in the turn that it could stand for, so it stands for something earlier."""
        tokens = _WORD.findall(_EMPTY_IT.sub(" ", self.text))
        lower = [token.lower().replace("’", "'").split("'")[0] for token in tokens]
        for index, word in enumerate(lower):
            following = lower[index + 1] if index + 1 < len(lower) else ""
            if word in word_list("pronouns"):
                return True
            if word == "that" and (not following or following in word_list("after_that")):
                return True
            if word in word_list("introducing") or word[0].isdigit():
                return False
            # A name, unless the capital may only be that of the first word.
            opens = not index and (phrases("imperative").search(self.text) or phrases("reaction").search(self.text))
            if tokens[index][0].isupper() and word not in word_list("function") and not opens:
                return False
        return False

    @cached_property
    def asked_back(self) -> bool:
        """The assistant's message ends by asking, so that a plain statement can be a reply."""
        return "?" in self.answer[-_ASKING_TAIL:]

    @cached_property
    def unfinished(self) -> bool:
        """The assistant's message stops in mid-sentence."""
        return bool(self.answer) and not _ENDED.search(self.answer)


def share_inside(items: Collection[object], pool: Collection[object]) -> float:
    """Share of `items` that are in `pool`; 0 when there are none."""
    return _share(sum(item in pool for item in items), len(items))


def repetition(tokens: Sequence[str]) -> float:
    """Share of the four-word sequences that occurred before in the same text."""
    grams = ngrams(tuple(tokens), 4)
    return _share(len(grams) - len(Counter(grams)), len(grams))


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


# The clear cases, settled by rule before anything is weighed.

_QUANTITY = re.compile(
    r"\bhow (?:many|much|old|long|far|often|tall|heavy)\b|\bwhat (?:is|are|was|were)\b", re.IGNORECASE
)
# How an assistant asks for what it was not told.
_CLARIFYING = re.compile(
    r"\bis it (?:known|given|stated)\b|\bdo you know\b|\b(?:can|could) you (?:tell me|look up|find out|say)\b"
    r"|\b(?:text|problem|question) does(?:n.t| not) (?:say|tell|state)\b|\bi (?:need|miss|can.t|cannot) "
    r"|\byou did(?:n.t| not) (?:say|tell|mention)\b",
    re.IGNORECASE,
)
_THANKS = re.compile(r"\b(?:thanks|thank you|thx|appreciate)\b", re.IGNORECASE)
_RUN = re.compile(r"(.)\1{19,}|\d{25,}|[A-Za-z]{23,}", re.DOTALL)
_BEYOND_LATIN = "\u024f"

Settled = tuple[str | None, str]
"""What a rule made of a turn: a label, or None where the turn cannot be scored; and which rule."""


def settle(turn: Turn) -> Settled | None:
    """The first rule that applies, or None where the turn has to be weighed."""
    return (
        _broken(turn) or _unreadable(turn) or _planning(turn) or _copied(turn) or _asks_for_a_given(turn) or _worn(turn)
    )


def _broken(turn: Turn) -> Settled | None:
    """Broken or looping text, and no words at all."""
    tokens, text = turn.words, turn.text
    if turn.markup > 0.5 or (not tokens and (turn.aimed or turn.markup)):
        return "malformed", "markup"
    solid = [character for character in text if not character.isspace()]
    if not tokens:
        return ("malformed", "symbols only") if len(solid) > 8 else ("degenerate", "no words")
    function = word_list("function")
    if len(tokens) <= 2 and all(token in function and token not in word_list("telling") for token in tokens):
        return "degenerate", "function words only"
    if 3 * sum(len(match.group()) for match in _RUN.finditer(text)) > len(text):
        return "malformed", "run without a break"
    if len(tokens) >= 10 and repetition(tokens) > 0.38:
        return "malformed", "loop"
    if len(solid) >= 20 and sum(not character.isalnum() for character in solid) > 0.42 * len(solid):
        return "malformed", "mostly symbols"
    if text[0] in "{[" and not any(token in function for token in tokens):
        return "malformed", "data without speech"
    return None


def _unreadable(turn: Turn) -> Settled | None:
    """Text in a language that the rules cannot read; not text that merely switches script in the middle."""
    letters = [character for character in turn.text if character.isalpha()]
    latin = sum(character <= _BEYOND_LATIN for character in letters)
    foreign = letters and latin * 2 < len(letters) and turn.markup < 0.1
    return (None, "not_english") if foreign or (letters and not _english(turn)) else None


def _english(turn: Turn) -> bool:
    def counted(tokens: list[str]) -> tuple[int, int]:
        """English and foreign function words."""
        function, foreign = word_list("function"), word_list("foreign")
        return sum(token in function for token in tokens), sum(token in foreign for token in tokens)

    tokens = turn.words
    english, foreign = counted(tokens)
    if foreign > english:
        return foreign * 6 < len(tokens)
    if english or any(token in word_list("filler") for token in tokens):
        return True
    # Nobody writes a long English sentence without one function word, unless the words stand in the conversation.
    if len(tokens) >= (4 if not turn.text.isascii() else 8):
        return 3 * share_inside(turn.content, turn.known) >= 1
    # A word or two: in the language of the conversation.
    english, foreign = counted(words(turn.context))
    return english >= foreign


def _planning(turn: Turn) -> Settled | None:
    """Thinks about the user's message instead of writing it."""
    found = {match.group().lower() for match in phrases("planning").finditer(turn.text)}
    # "The user" can be somebody in the subject: where the conversation speaks of users, one phrase shows nothing.
    about_roles = "user" not in turn.context.lower() and any("user" in each or "assistant" in each for each in found)
    needed = 1 if about_roles or len(turn.sentences) == 1 else 2
    return ("meta_planning", f"planning: {', '.join(sorted(found)[:3])}") if len(found) >= needed else None


def _copied(turn: Turn) -> Settled | None:
    """The question or part of the answer again, almost word for word and hardly anything else."""
    said = stems(turn.text)
    # A statement lifted from the question can answer the assistant; a question lifted from it only asks again.
    if turn.asks and len(said) >= 4 and any(said in ngrams(stems(text), len(said)) for text in turn.asked):
        return "user_restatement", "part of the question word for word"
    sequences = ngrams(said, 3)
    if len(sequences) < 3:
        return None

    def same(other: Sequence[tuple[str, ...]]) -> bool:
        return share_inside(sequences, set(other)) >= 0.8 and share_inside(other, set(sequences)) >= 0.8

    answer = ngrams(stems(turn.answer), 3)
    if same(answer):
        return "assistant_restatement", "the answer word for word"
    if any(same(ngrams(stems(text), 3)) for text in turn.asked):
        return "user_restatement", "the question word for word"
    if not turn.asks and share_inside(sequences, set(answer)) >= 0.9:
        return "assistant_restatement", "part of the answer word for word"
    return None


def _asks_for_a_given(turn: Turn) -> Settled | None:
    """Asks for what the user stated, as an assistant does to whom it was not told.

    A model that was trained to ask for missing givens says such questions under the user's header too. The user
    knows the given and reacts to no part of the answer: it is the assistant's act, in the assistant's place or not.
    """
    asking = [part for part in sentences(turn.text) if _QUANTITY.search(part)] if turn.text.endswith("?") else []
    question = asking[-1] if asking else ""
    if not question or any(character.isdigit() for character in question):
        return None
    wanted = set(content_stems(question)) - set(map(stem, word_list("of_asking")))
    if not wanted:
        return None
    stated = [part for text in turn.asked for part in sentences(text) if not part.endswith("?")]
    if any(wanted <= set(content_stems(part)) for part in stated if any(map(str.isdigit, part))):
        return "role_drift", "asks for a given that the user stated"
    if _CLARIFYING.search(turn.text) and wanted <= {one for text in turn.asked for one in content_stems(text)}:
        return "role_drift", "asks back about the user's own words"
    return None


def _worn(turn: Turn) -> Settled | None:
    """Worn words that fit any exchange, unless they answer or go on from this one."""
    content = [token for token in turn.words if token not in word_list("function")]
    if not all(token in word_list("filler") for token in content):
        return None
    if turn.unfinished and phrases("continuing").search(turn.text):
        return GENUINE, "asks for the rest of an unfinished answer"
    if turn.asked_back and phrases("answering").search(turn.text):
        return GENUINE, "answers the assistant's question"
    if phrases("assistant").search(turn.text):
        return None
    thanks = not turn.asks and _THANKS.search(turn.text)
    if content and phrases("leaning").search(turn.text) and not thanks:
        return None
    return "generic_filler", "worn words only"


# What is weighed: four families of signals, as numbers that mean the same in every conversation. A "share" is of the
# turn's words or content words, so that a long turn and a short one compare.

_EQUATION = re.compile(r"[\d)}%] ?=|= ?[-$\d\\({]")
_DEFINITE = re.compile(
    r"\b(?:the|this|that|these|those|his|her|their|its|your|my|our)\s+(?:[a-z]+\s+)?([a-z]+)", re.IGNORECASE
)
_INDEFINITE = re.compile(r"(?:^|[^a-z])an?\s+(?:[a-z]+[- ])?([a-z]+)", re.IGNORECASE)
_CAMEL = re.compile(r"[a-z][A-Z]")
_CONSONANTS = re.compile(r"[bcdfghjklmnpqrstvwxz]{5}")
_LETTERS = re.compile(r"[A-Za-z]+")


def signals(turn: Turn) -> dict[str, float]:
    """Every signal by name; each has its row of weights in `rules.yaml`."""
    return {**_repeated(turn), **_brought(turn), **_voice(turn), **_build(turn)}


def _repeated(turn: Turn) -> dict[str, float]:
    """What the turn repeats of the question and of the answer."""
    content = set(turn.content)

    def likeness(text: str) -> float:
        """Dice coefficient of two sets of stems: 1 for the same words, 0 for none in common."""
        other = set(content_stems(text))
        return _share(2 * len(content & other), len(content) + len(other))

    return {
        "question_likeness": max(map(likeness, turn.asked), default=0),
        "in_answer": share_inside(turn.content, turn.in_answer),
        # says what the answer says, and asks nothing
        "echo": 0.0 if turn.asks else share_inside(turn.content, turn.in_answer),
        "answer_numbers": float(any(map(is_number, content & (turn.in_answer - turn.in_question)))),
    }


def _brought(turn: Turn) -> dict[str, float]:
    """What it brings along."""
    known = turn.known
    new = [item for item in turn.content if item not in known]
    definite = [stem(word.lower()) for word in _DEFINITE.findall(turn.text)]
    indefinite = [stem(word.lower()) for word in _INDEFINITE.findall(turn.text)]
    return {
        "new_words": _share(len(new), len(turn.content)),
        "new_numbers": math.log1p(sum(map(is_number, new))),
        # "a ladder" brings a ladder along; "the ladder" leans on one that is there
        "indefinite_new": min(2, sum(item not in known for item in indefinite)) / 2,
        "definite_known": 5 * _share(sum(item in known for item in definite), len(turn.words)),
        "unanchored": float(_unanchored(turn)),
    }


def _unanchored(turn: Turn) -> bool:
    """Names several things, none of them named before, and neither leans on nor points at what was said.

    A statement after the assistant's question is no such turn: what it was asked for may well be new.
    """
    content = set(turn.content)
    if len(content) < 2 or not content.isdisjoint(turn.known) or (turn.asked_back and not turn.asks):
        return False
    return not turn.points_back and not any(each.leans or each.mentions_answer for each in turn.sentences)


def _voice(turn: Turn) -> dict[str, float]:
    """In whose voice it speaks."""
    spoken = turn.sentences
    total = sum(sentence.size for sentence in spoken)

    def share(chosen: Iterable[Sentence]) -> float:
        return _share(sum(sentence.size for sentence in chosen), total)

    first_person = share(sentence for sentence in spoken if sentence.has("first_person"))
    # What is asked of the answer, or with a pronoun for something in it, is asked on: no task of its own.
    alone = [
        sentence
        for index, sentence in enumerate(spoken)
        if not sentence.mentions_answer and (index or not turn.points_back)
    ]
    opens_alone = bool(alone) and alone[0] is spoken[0]
    return {
        "assistant_voice": share(sentence for sentence in spoken if sentence.has("assistant", "assistant_opening")),
        "solving_voice": share(one for one in spoken if one.has("solving") or _EQUATION.search(one.text)),
        "asking": share(sentence for sentence in spoken if sentence.asks),
        "first_person": first_person,
        "person_reply": float(turn.asked_back and first_person > 0),
        "imperative": share(sentence for sentence in alone if sentence.has("imperative")),
        "leaning": share(sentence for sentence in spoken if sentence.leans),
        "reaction": float(bool(phrases("reaction").search(turn.text))),
        "fresh_question": float(opens_alone and bool(phrases("fresh_question").search(turn.text))),
    }


def _build(turn: Turn) -> dict[str, float]:
    """How it is built."""
    tokens, text = turn.words, turn.text
    content = [token for token in tokens if token not in word_list("function")]
    known_words = set(words(turn.context))
    return {
        "length": math.log1p(len(tokens)) / 4,
        "sentences": math.log1p(len(turn.sentences)) / 2,
        "ends_asking": float(text.endswith("?")),
        "filler": _share(sum(token in word_list("filler") for token in content), len(content)),
        "equations": min(4, len(_EQUATION.findall(text))) / 4,
        "function_words": _share(len(tokens) - len(content), len(tokens)),
        "odd_words": float(any(_odd(word) for word in _LETTERS.findall(text) if word.lower() not in known_words)),
        "foreign_letters": float(any(character.isalpha() and character > _BEYOND_LATIN for character in text)),
        "asked_back": float(turn.asked_back),
        "leads_on": float(turn.leads_on),
    }


def _odd(word: str) -> bool:
    """Spelt like no everyday English word: capitals inside, five consonants in a row, no vowel, or very long."""
    lower = word.lower()
    return bool(
        len(word) >= 16
        or _CAMEL.search(word)
        or _CONSONANTS.search(lower)
        or (len(word) >= 4 and not any(vowel in lower for vowel in "aeiouy"))
    )


def label_scores(
    counted: Mapping[str, float], weights: Mapping[str, Mapping[str, float]], bias: Mapping[str, float]
) -> dict[str, float]:
    """Points by label: its bias and every signal times its weight. Every signal that has a weight must be given."""
    scores = dict(bias)
    for name, row in weights.items():
        for label, weight in row.items():
            scores[label] += weight * counted[name]
    return scores


def best_label(scores: Mapping[str, float]) -> str:
    """Return the label with most points. Of labels with equal points, the one named first wins."""
    return max(scores, key=lambda label: scores[label])
