"""The score of the turns that no rule settles: how many points each signal gives to which label.

A plain sum: a label starts from its bias, every signal adds its value times its weight, the highest label wins.
Each signal speaks only for or against the labels that reason connects it with; the others stay out, so that a few
hundred labelled turns can settle the rest.

How the weights were made: `python -m probe.judges.fitting` on two files of labelled user turns (209 turns of
SmolLM2-135M-Instruct and of a fine-tune of it, 240 written by hand; 449 in all), quadratic penalty 2 on standardised
signals, then rounded. Cross-validated by conversation, ten folds, mean of ten ways to cut them: Cohen's kappa genuine
or not 0.66 on the first file and 0.77 on the second. Which signals, rules and phrases there are was chosen with the
same turns in view, so expect somewhat less elsewhere; weights from either file alone reach 0.49 and 0.58 on the other.
The same command makes them anew from other labels, and `--leave-out` says what each signal is worth.
"""

from __future__ import annotations

from collections.abc import Mapping

BIAS: dict[str, float] = {
    "genuine_followup": 4.79,
    "user_restatement": -1.15,
    "assistant_restatement": -2.55,
    "role_drift": -3.78,
    "new_task": 0.10,
    "generic_filler": -2.57,
    "malformed": -4.67,
}

WEIGHTS: dict[str, dict[str, float]] = {
    "in_question": {"user_restatement": 1.75, "new_task": 1.13},
    "question_covered": {"user_restatement": 0.59},
    "question_likeness": {"user_restatement": 3.42},
    "lone_question_asked": {"user_restatement": 1.66, "genuine_followup": 2.03},
    "question_sequences": {"user_restatement": 0.15, "genuine_followup": -1.86},
    "in_answer": {"assistant_restatement": 2.00, "new_task": -1.27},
    "answer_sequences": {"assistant_restatement": 1.18},
    "echo": {"assistant_restatement": 4.03, "genuine_followup": -2.26, "role_drift": 1.60},
    "answer_numbers": {"genuine_followup": 0.46},
    "new_words": {"new_task": 0.22, "malformed": 1.51, "genuine_followup": -1.83, "role_drift": -1.33},
    "new_numbers": {"new_task": 0.54},
    "indefinite_new": {"new_task": 1.18},
    "definite_known": {"genuine_followup": 1.60, "new_task": -1.73},
    "fresh_problem": {"new_task": 1.16},
    "assistant_voice": {"role_drift": 6.56},
    "solving_voice": {"role_drift": 2.84},
    "asking": {"assistant_restatement": -0.63, "genuine_followup": -0.20},
    "first_person": {"genuine_followup": 0.16, "new_task": -1.81},
    "person_reply": {"genuine_followup": 1.66},
    "second_person": {"role_drift": 0.43},
    "imperative": {"new_task": 2.94},
    "leaning": {"genuine_followup": 2.20},
    "reaction": {"genuine_followup": 1.21},
    "fresh_question": {"new_task": 1.21, "genuine_followup": -0.77},
    "length": {"genuine_followup": -2.82, "malformed": 6.58, "role_drift": 1.86},
    "sentences": {"role_drift": 3.93},
    "ends_asking": {"genuine_followup": 0.33, "new_task": 0.98},
    "filler": {"generic_filler": 8.02},
    "equations": {"role_drift": 2.28},
    "function_words": {"malformed": -2.76},
    "repetition": {"malformed": 1.98},
    "odd_words": {"malformed": 1.21},
    "glued": {"malformed": 1.35},
    "foreign_letters": {"malformed": 3.19},
    "asked_back": {"genuine_followup": -0.45, "new_task": -1.20, "user_restatement": -0.93},
    "leads_on": {"role_drift": 5.36},
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


def best_label(
    signals: Mapping[str, float],
    weights: Mapping[str, Mapping[str, float]] = WEIGHTS,
    bias: Mapping[str, float] = BIAS,
) -> str:
    """The label with most points; of equals the one named first."""
    scores = label_scores(signals, weights, bias)
    return max(scores, key=lambda label: scores[label])


def leading_signals(signals: Mapping[str, float], label: str, count: int = 3) -> list[tuple[str, float]]:
    """The signals that moved `label` most, with the points they gave or took."""
    points = [(name, row[label] * signals[name]) for name, row in WEIGHTS.items() if label in row]
    moved = [(name, value) for name, value in points if abs(value) >= 0.05]
    return sorted(moved, key=lambda item: -abs(item[1]))[:count]
