"""The offline judge: rules settle the clear cases, and a score over named signals decides the rest. No model, no network.

A turn goes through four steps. Text that is not speech is removed (`text.clean`). Turn and context are cut into words and
sentences (`Turn`). Rules settle what is clear (`settle`). Everything else is weighed (`signals`). The
words, phrases and weights are in `rules.yaml`. The judge reads English only and leaves other languages unscored. Text
aimed at the judge never counts as a verdict.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import cached_property

from nextturn.probe.judges.verdicts import GENUINE, Case, Verdict
from nextturn.probe.text import words as wording
from nextturn.probe.text.words import (
    content_stems,
    is_number,
    ngrams,
    phrases,
    sentences,
    stem,
    stems,
    word_list,
    words,
)


class RulesJudge:
    """A deterministic judge: one case gets the same verdict on any machine and in any batch."""

    name = "rules"
    version = "rules/3"
    calls = 0

    def stream(self, cases: Sequence[Case], known: Sequence[Verdict] = ()) -> Iterator[tuple[int, Verdict]]:
        """Yield (index, verdict) in order. `raw` names the rule or the signals that decided."""
        for index, case in enumerate(cases):
            yield index, self.verdict(case)

    def verdict(self, case: Case) -> Verdict:
        """Return the verdict of the first rule that applies, else of the score."""
        turn = Turn(case)
        note = "; text aimed at the judge left out" if turn.aimed else ""
        if (settled := settle(turn)) is not None:
            label, rule = settled
            return Verdict(label, rule if label is None else None, f"rule: {rule}{note}")
        values, weights, scores = signals(turn), wording.rule_data().weights, dict(wording.rule_data().bias)
        for name, row in weights.items():
            for label, weight in row.items():
                scores[label] += weight * values[name]
        best = max(scores, key=lambda label: scores[label])  # of labels with equal points the first
        # The three signals that changed this label's score most.
        points = [(name, row[best] * values[name]) for name, row in weights.items() if best in row]
        largest = sorted((point for point in points if abs(point[1]) >= 0.05), key=lambda point: -abs(point[1]))[:3]
        return Verdict(best, None, f"score: {', '.join(f'{name} {value:+.1f}' for name, value in largest)}{note}")


# An answer asks for a reply if it asks something this close to its end (in characters).
_ASKING_TAIL = 160
_ENDED = re.compile(r"[.!?:。!?\"'”’)*`}\]$]\s*$")
_WORD = re.compile(r"[A-Za-z]+(?:['’][a-z]+)?|\d+")
# "it" that refers to nothing: "is it true that".
_EMPTY_IT = re.compile(
    r"\bis it (?:true|possible|safe|okay|ok|better|necessary|important|worth|legal|normal|hard|easy|bad|good|the case)\b"
    r"|\bit(?:'s| is) (?:true|possible|important)\b",
    re.IGNORECASE,
)


class Sentence:
    """One sentence or line of a turn.

    Attributes:
        size: Number of words.
        asks: The sentence ends with a question mark, or opens like a question, which casual writers leave unmarked.
        mentions_answer: The sentence names the answer.
        leans: The sentence refers to what was just said, or asks about the answer by name or for a change of it.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.size = len(words(text))
        self.asks = text.endswith("?") or self.has("question_opening")
        self.mentions_answer = self.has("about_answer")
        self.leans = (self.mentions_answer and (self.asks or self.has("imperative"))) or self.has("leaning")

    def has(self, *groups: str) -> bool:
        """Return True if the sentence holds a phrase of one of these groups."""
        return any(phrases(group).search(self.text) for group in groups)


class Turn:
    """A user turn and the conversation before it, cut into the pieces that rules and signals are counted on.

    Attributes:
        text: The turn as speech.
        markup, aimed, leads_on: Results of cleaning, see `text.Cleaned`.
        questions: The user's own messages so far.
        answer: The last assistant message.
        context: All messages in one text.
        words, content: The words of the turn, and the stems of its content words.
        in_question, in_answer: Content stems of the user's messages, and of the last assistant message.
        known: Content stems of all messages.
        asked_back: The assistant's message ends by asking, so that a plain statement can be a reply.
    """

    def __init__(self, case: Case) -> None:
        self.text, self.markup, self.aimed, self.leads_on = wording.clean(case.user_turn)
        self.questions = [message["content"] for message in case.messages if message["role"] == "user"]
        answers = [message["content"] for message in case.messages if message["role"] == "assistant"]
        self.answer = answers[-1] if answers else ""
        self.context = "\n".join([*self.questions, "\n".join(answers)])
        self.words = words(self.text)
        self.content = content_stems(self.text)
        self.in_question = frozenset(content_stems("\n".join(self.questions)))
        self.in_answer = frozenset(content_stems(self.answer))
        self.known = self.in_question | frozenset(content_stems("\n".join(answers)))
        self.asked_back = "?" in self.answer[-_ASKING_TAIL:]

    @cached_property
    def sentences(self) -> list[Sentence]:
        return [Sentence(text) for text in sentences(self.text)]

    @cached_property
    def asks(self) -> bool:
        return any(sentence.asks for sentence in self.sentences)

    @cached_property
    def points_back(self) -> bool:
        """A pronoun comes before anything in the turn that it could refer to, so it refers to something earlier."""
        tokens = _WORD.findall(_EMPTY_IT.sub(" ", self.text))
        lower = [token.lower().replace("’", "'").split("'")[0] for token in tokens]
        for index, (token, word, following) in enumerate(zip(tokens, lower, [*lower, ""][1:], strict=True)):
            if word in word_list("pronouns"):
                return True
            if word == "that" and (not following or following in word_list("after_that")):
                return True
            if word in word_list("introducing") or word[0].isdigit():
                return False
            # A name, unless the capital may only be that of the first word.
            opens = not index and (phrases("imperative").search(self.text) or phrases("reaction").search(self.text))
            if token[0].isupper() and word not in word_list("function") and not opens:
                return False
        return False


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def share_inside(items: Collection[object], pool: Collection[object]) -> float:
    """Return the share of `items` that are in `pool`; 0 when there are none."""
    return _share(sum(item in pool for item in items), len(items))


def repetition(tokens: Sequence[str]) -> float:
    """Return the share of four-word sequences that occurred before in the same text."""
    grams = ngrams(tuple(tokens), 4)
    return _share(len(grams) - len(set(grams)), len(grams))


def _function_words(tokens: Iterable[str], language: str = "function") -> int:
    return sum(token in word_list(language) for token in tokens)


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
"""A rule's result: a label, or None where the turn cannot be scored; and the name of the rule."""


def settle(turn: Turn) -> Settled | None:
    """Return the result of the first rule that applies, or None where the turn has to be weighed."""
    rules: tuple[Callable[[Turn], Settled | None], ...] = (
        _broken, _unreadable, _planning, _copied, _asks_for_a_given, _worn
    )  # fmt: skip
    return next((settled for rule in rules if (settled := rule(turn)) is not None), None)


def _broken(turn: Turn) -> Settled | None:
    """Find broken or looping text, and text without words."""
    tokens, text = turn.words, turn.text
    if turn.markup > 0.5 or (not tokens and (turn.aimed or turn.markup)):
        return "malformed", "markup"
    solid = [character for character in text if not character.isspace()]
    if not tokens:
        return ("malformed", "symbols only") if len(solid) > 8 else ("degenerate", "no words")
    if len(tokens) <= 2 and set(tokens) <= word_list("function") - word_list("telling"):
        return "degenerate", "function words only"
    if 3 * sum(len(match.group()) for match in _RUN.finditer(text)) > len(text):
        return "malformed", "run without a break"
    if len(tokens) >= 10 and repetition(tokens) > 0.38:
        return "malformed", "loop"
    if len(solid) >= 20 and sum(not character.isalnum() for character in solid) > 0.42 * len(solid):
        return "malformed", "mostly symbols"
    if text[0] in "{[" and not _function_words(tokens):
        return "malformed", "data without speech"
    return None


def _unreadable(turn: Turn) -> Settled | None:
    """Find text in a language that the rules cannot read; text that merely switches script in the middle is read."""
    letters = [character for character in turn.text if character.isalpha()]
    latin = sum(character <= _BEYOND_LATIN for character in letters)
    foreign = letters and latin * 2 < len(letters) and turn.markup < 0.1
    return (None, "not_english") if foreign or (letters and not _english(turn)) else None


def _english(turn: Turn) -> bool:
    tokens = turn.words
    english, foreign = _function_words(tokens), _function_words(tokens, "foreign")
    if foreign > english:
        return foreign * 6 < len(tokens)
    if english or _function_words(tokens, "filler"):
        return True
    # Nobody writes a long English sentence without one function word, unless the words come from the conversation.
    if len(tokens) >= (4 if not turn.text.isascii() else 8):
        return 3 * share_inside(turn.content, turn.known) >= 1
    # A word or two: in the language of the conversation.
    before = words(turn.context)
    return _function_words(before) >= _function_words(before, "foreign")


def _planning(turn: Turn) -> Settled | None:
    """Find turns that think about the user's message instead of writing it."""
    planned = {match.group().lower() for match in phrases("planning").finditer(turn.text)}
    # "The user" can be somebody in the subject: where the conversation speaks of users, one phrase shows nothing.
    about_roles = "user" not in turn.context.lower() and any("user" in each or "assistant" in each for each in planned)
    needed = 1 if about_roles or len(turn.sentences) == 1 else 2
    return ("meta_planning", f"planning: {', '.join(sorted(planned)[:3])}") if len(planned) >= needed else None


def _copied(turn: Turn) -> Settled | None:
    """Find the question or part of the answer again, almost word for word and with hardly anything else."""
    own = stems(turn.text)
    # A statement taken from the question can answer the assistant; a question taken from it only asks again.
    if turn.asks and len(own) >= 4 and any(own in ngrams(stems(text), len(own)) for text in turn.questions):
        return "user_restatement", "part of the question word for word"
    sequences = ngrams(own, 3)
    if len(sequences) < 3:
        return None

    def same(other: Sequence[tuple[str, ...]]) -> bool:
        return share_inside(sequences, set(other)) >= 0.8 and share_inside(other, set(sequences)) >= 0.8

    answer = ngrams(stems(turn.answer), 3)
    if same(answer):
        return "assistant_restatement", "the answer word for word"
    if any(same(ngrams(stems(text), 3)) for text in turn.questions):
        return "user_restatement", "the question word for word"
    if not turn.asks and share_inside(sequences, set(answer)) >= 0.9:
        return "assistant_restatement", "part of the answer word for word"
    return None


def _asks_for_a_given(turn: Turn) -> Settled | None:
    """Find questions for facts that the user stated. Only an assistant would ask for them.

    A model that was trained to ask for missing information asks such questions under the user's header too. The user
    knows the information and reacts to no part of the answer, so it is the assistant's act, in the assistant's turn or not.
    """
    asking = [part for part in sentences(turn.text) if _QUANTITY.search(part)] if turn.text.endswith("?") else []
    question = asking[-1] if asking else ""
    if not question or any(character.isdigit() for character in question):
        return None
    wanted = set(content_stems(question)) - set(map(stem, word_list("of_asking")))
    if not wanted:
        return None
    stated = [part for text in turn.questions for part in sentences(text) if not part.endswith("?")]
    if any(wanted <= set(content_stems(part)) for part in stated if any(map(str.isdigit, part))):
        return "role_drift", "asks for a given that the user stated"
    if _CLARIFYING.search(turn.text) and wanted <= {item for text in turn.questions for item in content_stems(text)}:
        return "role_drift", "asks back about the user's own words"
    return None


def _worn(turn: Turn) -> Settled | None:
    """Find worn words that fit any exchange, unless they answer or continue this one."""
    content = [token for token in turn.words if token not in word_list("function")]
    if not all(token in word_list("filler") for token in content):
        return None
    unfinished = turn.answer and not _ENDED.search(turn.answer)  # the assistant's message stops in mid-sentence
    if unfinished and phrases("continuing").search(turn.text):
        return GENUINE, "asks for the rest of an unfinished answer"
    if turn.asked_back and phrases("answering").search(turn.text):
        return GENUINE, "answers the assistant's question"
    if phrases("assistant").search(turn.text):
        return None
    thanks = not turn.asks and _THANKS.search(turn.text)
    if content and phrases("leaning").search(turn.text) and not thanks:
        return None
    return "generic_filler", "worn words only"


# What is weighed: signals as numbers that mean the same in every conversation. A "share" is of the turn's words or
# content words, so that a long turn and a short one compare.

_EQUATION = re.compile(r"[\d)}%] ?=|= ?[-$\d\\({]")
_DEFINITE = re.compile(
    r"\b(?:the|this|that|these|those|his|her|their|its|your|my|our)\s+(?:[a-z]+\s+)?([a-z]+)", re.IGNORECASE
)
_INDEFINITE = re.compile(r"(?:^|[^a-z])an?\s+(?:[a-z]+[- ])?([a-z]+)", re.IGNORECASE)
_CAMEL = re.compile(r"[a-z][A-Z]")
_CONSONANTS = re.compile(r"[bcdfghjklmnpqrstvwxz]{5}")
_LETTERS = re.compile(r"[A-Za-z]+")


def signals(turn: Turn) -> dict[str, float]:
    """Return every signal by name; each has its row of weights in `rules.yaml`."""
    return {**_repeated(turn), **_introduced(turn), **_voice(turn), **_form(turn)}


def _repeated(turn: Turn) -> dict[str, float]:
    """Count what the turn repeats of the question and of the answer."""
    content = set(turn.content)

    def likeness(text: str) -> float:
        """Return the Dice coefficient of two sets of stems: 1 for the same words, 0 for none in common."""
        other = set(content_stems(text))
        return _share(2 * len(content & other), len(content) + len(other))

    in_answer = share_inside(turn.content, turn.in_answer)
    return {
        "question_likeness": max(map(likeness, turn.questions), default=0),
        "in_answer": in_answer,
        "echo": 0.0 if turn.asks else in_answer,  # repeats the answer and asks nothing
        "answer_numbers": float(any(map(is_number, content & (turn.in_answer - turn.in_question)))),
    }


def _introduced(turn: Turn) -> dict[str, float]:
    """Count what the turn introduces."""
    new = [item for item in turn.content if item not in turn.known]
    definite = [stem(word.lower()) for word in _DEFINITE.findall(turn.text)]
    indefinite = [stem(word.lower()) for word in _INDEFINITE.findall(turn.text)]
    return {
        "new_words": _share(len(new), len(turn.content)),
        "new_numbers": math.log1p(sum(map(is_number, new))),
        # "a ladder" introduces a ladder; "the ladder" refers to one that was mentioned
        "indefinite_new": min(2, sum(item not in turn.known for item in indefinite)) / 2,
        "definite_known": 5 * _share(sum(item in turn.known for item in definite), len(turn.words)),
        "unanchored": float(_unanchored(turn)),
    }


def _unanchored(turn: Turn) -> bool:
    """Return True if the turn names several things, all of them new, and refers to nothing that was said.

    A statement after the assistant's question is never unanchored: what was asked for may well be new.
    """
    content = set(turn.content)
    if len(content) < 2 or not content.isdisjoint(turn.known) or (turn.asked_back and not turn.asks):
        return False
    return not turn.points_back and not any(each.leans or each.mentions_answer for each in turn.sentences)


def _voice(turn: Turn) -> dict[str, float]:
    """Measure whether a user or an assistant speaks, as shares of the turn's words."""
    spoken = turn.sentences
    total = sum(sentence.size for sentence in spoken)

    def share(chosen: Iterable[Sentence]) -> float:
        return _share(sum(sentence.size for sentence in chosen), total)

    first_person = share(sentence for sentence in spoken if sentence.has("first_person"))
    # A request about the answer, or with a pronoun for something in it, continues the exchange: it is no task of its own.
    first = 1 if turn.points_back else 0
    alone = [sentence for sentence in spoken[first:] if not sentence.mentions_answer]
    opens_alone = bool(alone) and alone[0] is spoken[0]
    return {
        "assistant_voice": share(sentence for sentence in spoken if sentence.has("assistant", "assistant_opening")),
        "solving_voice": share(each for each in spoken if each.has("solving") or _EQUATION.search(each.text)),
        "asking": share(sentence for sentence in spoken if sentence.asks),
        "first_person": first_person,
        "person_reply": float(turn.asked_back and first_person > 0),
        "imperative": share(sentence for sentence in alone if sentence.has("imperative")),
        "leaning": share(sentence for sentence in spoken if sentence.leans),
        "reaction": float(bool(phrases("reaction").search(turn.text))),
        "fresh_question": float(opens_alone and bool(phrases("fresh_question").search(turn.text))),
    }


def _form(turn: Turn) -> dict[str, float]:
    """Measure length, punctuation and spelling."""
    tokens, text = turn.words, turn.text
    content = [token for token in tokens if token not in word_list("function")]
    known_words = set(words(turn.context))
    return {
        "length": math.log1p(len(tokens)) / 4,
        "sentences": math.log1p(len(turn.sentences)) / 2,
        "ends_asking": float(text.endswith("?")),
        "filler": share_inside(content, word_list("filler")),
        "equations": min(4, len(_EQUATION.findall(text))) / 4,
        "function_words": share_inside(tokens, word_list("function")),
        "odd_words": float(any(_odd(word) for word in _LETTERS.findall(text) if word.lower() not in known_words)),
        "foreign_letters": float(any(character.isalpha() and character > _BEYOND_LATIN for character in text)),
        "asked_back": float(turn.asked_back),
        "leads_on": float(turn.leads_on),
    }


def _odd(word: str) -> bool:
    """Return True if a word is spelled like no everyday English word.

    That is capitals inside, five consonants in a row, no vowel, or 16 letters and more.
    """
    lower = word.lower()
    voiceless = len(word) >= 4 and not any(vowel in lower for vowel in "aeiouy")
    return voiceless or len(word) >= 16 or bool(_CAMEL.search(word) or _CONSONANTS.search(lower))
