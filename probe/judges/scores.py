"""The score of the turns that no rule settles: how many points each signal gives to which label.

A plain sum: a label starts from its bias, every signal adds its value times its weight, the highest label wins.
Each signal speaks only for or against the labels that reason connects it with; the others stay out, so that a few
hundred labelled turns can settle the rest.

How the weights were made: `python -m probe.judges.fitting` on two files of labelled user turns (209 turns of
SmolLM2-135M-Instruct and of a fine-tune of it, 240 written by hand; 449 in all), then rounded. Cohen's kappa genuine
or not on the first and the second file: 0.72 [0.63, 0.81] and 0.82 [0.74, 0.89] on the turns they were made from;
0.71 and 0.78 cross-validated by conversation (ten folds, mean of ten ways to cut them); 0.69 [0.56, 0.80] and
0.73 [0.64, 0.81] with weights from the other file alone. People agree with each other to 0.92. Which signals, rules
and phrases there are was chosen with part of the same turns in view, so expect somewhat less elsewhere. The same
command makes the weights anew from other labels, and `--leave-out` says what each signal is worth.
"""

from __future__ import annotations

from collections.abc import Mapping

from probe.judges.labels import GENUINE

# Which labels a signal may speak for (1) or against (-1), chosen by reason before any weight is made.
DIRECTIONS: dict[str, dict[str, int]] = {
    "question_likeness": {"user_restatement": 1},
    "in_answer": {"assistant_restatement": 1, "new_task": -1},
    "echo": {"assistant_restatement": 1, "genuine_followup": -1, "role_drift": 1},
    "answer_numbers": {"genuine_followup": 1},
    "new_words": {"new_task": 1, "malformed": 1, "genuine_followup": -1, "role_drift": -1},
    "new_numbers": {"new_task": 1},
    "indefinite_new": {"new_task": 1},
    "definite_known": {"genuine_followup": 1, "new_task": -1},
    "unanchored": {"new_task": 1, "genuine_followup": -1},
    "assistant_voice": {"role_drift": 1},
    "solving_voice": {"role_drift": 1},
    "asking": {"assistant_restatement": -1, "role_drift": -1},
    "first_person": {"genuine_followup": 1, "new_task": -1},
    "person_reply": {"genuine_followup": 1},
    "imperative": {"new_task": 1},
    "leaning": {"genuine_followup": 1},
    "reaction": {"genuine_followup": 1},
    "fresh_question": {"new_task": 1},
    "length": {"genuine_followup": -1, "malformed": 1, "role_drift": 1},
    "sentences": {"role_drift": 1},
    "ends_asking": {"genuine_followup": 1, "new_task": 1},
    "filler": {"generic_filler": 1},
    "equations": {"role_drift": 1},
    "function_words": {"malformed": -1},
    "odd_words": {"malformed": 1},
    "foreign_letters": {"malformed": 1},
    "asked_back": {"new_task": -1, "user_restatement": -1},
    "leads_on": {"role_drift": 1},
}

BIAS: dict[str, float] = {
    "genuine_followup": 4.87,
    "user_restatement": -0.50,
    "assistant_restatement": -2.54,
    "role_drift": -4.08,
    "new_task": 0.24,
    "generic_filler": -2.49,
    "malformed": -4.84,
}

WEIGHTS: dict[str, dict[str, float]] = {
    "question_likeness": {"user_restatement": 5.44},
    "in_answer": {"assistant_restatement": 2.60, "new_task": -1.56},
    "echo": {"assistant_restatement": 4.00, "genuine_followup": -2.10, "role_drift": 1.66},
    "answer_numbers": {"genuine_followup": 0.82},
    "new_words": {"new_task": 0.27, "malformed": 2.08, "genuine_followup": -1.18, "role_drift": -1.34},
    "new_numbers": {"new_task": 0.75},
    "indefinite_new": {"new_task": 1.42},
    "definite_known": {"genuine_followup": 1.37, "new_task": -2.04},
    "unanchored": {"new_task": 0.87, "genuine_followup": -1.28},
    "assistant_voice": {"role_drift": 7.38},
    "solving_voice": {"role_drift": 2.87},
    "asking": {"assistant_restatement": -1.49, "role_drift": -0.54},
    "first_person": {"genuine_followup": 0.63, "new_task": -2.07},
    "person_reply": {"genuine_followup": 1.50},
    "imperative": {"new_task": 3.79},
    "leaning": {"genuine_followup": 2.28},
    "reaction": {"genuine_followup": 1.78},
    "fresh_question": {"new_task": 1.42},
    "length": {"genuine_followup": -3.93, "malformed": 7.28, "role_drift": 2.49},
    "sentences": {"role_drift": 3.91},
    "ends_asking": {"genuine_followup": 0.30, "new_task": 1.25},
    "filler": {"generic_filler": 8.41},
    "equations": {"role_drift": 2.43},
    "function_words": {"malformed": -3.85},
    "odd_words": {"malformed": 1.81},
    "foreign_letters": {"malformed": 3.57},
    "asked_back": {"new_task": -1.19, "user_restatement": -1.10},
    "leads_on": {"role_drift": 7.10},
}


def label_scores(
    signals: Mapping[str, float],
    weights: Mapping[str, Mapping[str, float]] = WEIGHTS,
    bias: Mapping[str, float] = BIAS,
) -> dict[str, float]:
    """Points by label. Every signal that has a weight must be given."""
    scores = dict(bias)
    for name, row in weights.items():
        for label, weight in row.items():
            scores[label] += weight * signals[name]
    return scores


def best_label(scores: Mapping[str, float]) -> tuple[str, float]:
    """The label with most points, and its lead.

    The lead is over the best label on the other side of genuine or not, so it says how sure that decision is,
    whichever of the failures comes first. Of equal labels the one named first wins.
    """
    best = max(scores, key=lambda label: scores[label])
    across = [points for label, points in scores.items() if (label == GENUINE) != (best == GENUINE)]
    return best, scores[best] - max(across)


def leading_signals(signals: Mapping[str, float], label: str, count: int = 3) -> list[tuple[str, float]]:
    """The signals that moved `label` most, with the points they gave or took."""
    points = [(name, row[label] * signals[name]) for name, row in WEIGHTS.items() if label in row]
    moved = [(name, value) for name, value in points if abs(value) >= 0.05]
    return sorted(moved, key=lambda item: -abs(item[1]))[:count]
