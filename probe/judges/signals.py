"""What can be counted about a user turn and its context, as numbers that mean the same in every conversation.

Three families: how much of the turn stands already in the question and in the answer (containment of content words
and of word sequences), what is new in it (words, numbers, names), and in whose voice it speaks. A share is of the
turn's words unless it says otherwise, so a long turn and a short one compare.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence

from probe.judges import voices
from probe.judges.labels import Case
from probe.judges.words import FUNCTION_WORDS, content_stems, is_number, ngrams, sentences, stems, words

_EQUATION = re.compile(r"[\d)}%] ?=|= ?[-$\d\\({]")
_LAYOUT = re.compile(r"^(?:\s{0,3}(?:[-*•] |\d{1,2}[.)] |#{1,4} |\|)|```)", re.MULTILINE)
_ENDED = re.compile(r"[.!?:。!?\"'”’)*`}\]$]\s*$")
_NAME = re.compile(r"(?<![.!?:\"“'‘] )(?<!^)(?<!\n)\b[A-Z][a-z]{2,}\b")


def signals(case: Case, turn: str) -> dict[str, float]:
    """Every signal by name; `turn` is the user turn after cleaning."""
    asked = [message["content"] for message in case.messages if message["role"] == "user"]
    answered = [message["content"] for message in case.messages if message["role"] == "assistant"]
    return {
        **_overlap(turn, asked, answered),
        **_novelty(turn, asked, answered),
        **_voice(turn),
        **_shape(turn),
        **_exchange(turn, answered[-1] if answered else ""),
    }


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def _inside(items: Sequence[object], pool: set[object]) -> float:
    return _share(sum(item in pool for item in items), len(items))


def _overlap(turn: str, asked: list[str], answered: list[str]) -> dict[str, float]:
    content = content_stems(turn)
    sequence = stems(turn)
    question_words: set[object] = set(content_stems("\n".join(asked)))
    answer = answered[-1] if answered else ""
    answer_words: set[object] = set(content_stems(answer))
    last = sentences(asked[-1])[-1:] if asked else []
    ask: set[object] = set(content_stems(last[0])) if last else set()
    pairs = ngrams(sequence, 3)
    return {
        "in_question": _inside(content, question_words),
        "in_answer": _inside(content, answer_words),
        "only_in_answer": _inside(content, answer_words - question_words),
        "question_covered": max((_inside(sorted(set(content_stems(text))), set(content)) for text in asked), default=0.0),
        "ask_covered": _inside(sorted(map(str, ask)), set(content)),
        "answer_covered": _inside(sorted(map(str, answer_words)), set(content)),
        "question_sequences": _inside(pairs, {gram for text in asked for gram in ngrams(stems(text), 3)}),
        "answer_sequences": _inside(pairs, set(ngrams(stems(answer), 3))),
    }


def _novelty(turn: str, asked: list[str], answered: list[str]) -> dict[str, float]:
    context = "\n".join([*asked, *answered])
    known = set(content_stems(context))
    content = content_stems(turn)
    new = [item for item in content if item not in known]
    new_numbers = [item for item in new if is_number(item)]
    known_words = set(words(context))
    names = {name for name in _NAME.findall(turn) if name.lower() not in known_words}
    return {
        "new_words": _share(len(new), len(content)),
        "new_words_count": math.log1p(len(set(new))),
        "new_numbers": math.log1p(len(new_numbers)),
        "new_names": math.log1p(len(names)),
        "answer_numbers": float(
            any(
                is_number(item)
                for item in set(content)
                & (set(content_stems(answered[-1] if answered else "")) - set(content_stems("\n".join(asked))))
            )
        ),
    }


def _voice(turn: str) -> dict[str, float]:
    parts = [(part, len(words(part))) for part in sentences(turn)]
    total = sum(count for _, count in parts)

    def spoken(*patterns: re.Pattern[str]) -> float:
        return _share(sum(count for part, count in parts if any(pattern.search(part) for pattern in patterns)), total)

    asks = sum(count for part, count in parts if part.endswith("?") or voices.QUESTION_OPENING.search(part))
    plain = sum(
        count
        for part, count in parts
        if not part.endswith("?")
        and not voices.QUESTION_OPENING.search(part)
        and not voices.FIRST_PERSON.search(part)
        and not voices.SECOND_PERSON.search(part)
        and not voices.IMPERATIVE.search(part)
        and not voices.REACTION.search(part)
    )
    return {
        "assistant_voice": spoken(voices.ASSISTANT, voices.ASSISTANT_OPENING),
        "solving_voice": spoken(voices.SOLVING, _EQUATION),
        "asking": _share(asks, total),
        "plain_statement": _share(plain, total),
        "first_person": spoken(voices.FIRST_PERSON),
        "second_person": spoken(voices.SECOND_PERSON),
        "imperative": spoken(voices.IMPERATIVE),
        "fresh_question": float(bool(voices.FRESH_QUESTION.search(turn))),
        "leaning": min(3, len(voices.LEANING.findall(turn))) / 3,
        "reaction": float(bool(voices.REACTION.search(turn))),
    }


def _shape(turn: str) -> dict[str, float]:
    tokens = words(turn)
    last = turn.rstrip()
    filler = [token for token in tokens if token in voices.FILLER_WORDS]
    content = [token for token in tokens if token not in FUNCTION_WORDS]
    return {
        "length": math.log1p(len(tokens)) / 4,
        "sentences": math.log1p(len(sentences(turn))) / 2,
        "ends_asking": float(last.endswith("?")),
        "casual": float(bool(last) and last[:1].islower()),
        "unpunctuated": float(not _ENDED.search(last)),
        "filler": _share(len(filler), len(content)),
        "layout": float(bool(_LAYOUT.search(turn))),
        "equations": min(4, len(_EQUATION.findall(turn))) / 4,
        "options": float(bool(voices.OPTIONS.search(turn))),
        "function_words": _share(sum(token in FUNCTION_WORDS for token in tokens), len(tokens)),
        "repetition": repetition(turn),
    }


def _exchange(turn: str, answer: str) -> dict[str, float]:
    tail = sentences(answer)[-1:] or [""]
    asks_back = tail[0].endswith("?") or "?" in answer[-160:]
    unfinished = bool(answer) and not _ENDED.search(answer)
    question = "?" in turn
    return {
        "asked_back": float(asks_back),
        "replies": float(asks_back and not question),
        "completes": float(unfinished and not question and not voices.FIRST_PERSON.search(turn)),
    }


def repetition(text: str) -> float:
    """Share of the text's words that stand in a four-word sequence seen before in it."""
    grams = ngrams(tuple(words(text)), 4)
    return _share(len(grams) - len(Counter(grams)), len(grams))
