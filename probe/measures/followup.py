"""The user-turn probe of arXiv 2604.02315.

After a question and the model's own answer, the same model opens the user's turn, without instruction or persona, and a judge
labels the turn. The rate is genuine follow-ups over *judged* turns. Turns that the judge could not label are counted by reason and
never count as not genuine. A perturbation changes the answer before the turn. In finished conversations the turn is compared with
what the user really said, which is judged in the same way (rows of the kind "actual").
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from nextturn.probe.data.messages import Message, assistant
from nextturn.probe.engines.base import item_seed
from nextturn.probe.engines.stored import Row
from nextturn.probe.judges.verdicts import GENUINE, LABELS, ROLE_CONSISTENT, Case, Verdict, names_answer
from nextturn.probe.measures.base import Asking, Figure, Label, LogP, Measure, Reply, UserTurn, answer_in, cluster_of
from nextturn.probe.measures.perturb import HALF, NONE, parse_perturbations
from nextturn.probe.questions.sets import Item
from nextturn.probe.text.words import words

NO_ANSWER = "no_answer"
"""Why a user turn is unscored if the reply before it thinks and never answers: there is nothing to react to."""
NEUTRAL = "Ok."
"""A chat template cannot open a user turn directly after a user turn, so "without the answer" means after this answer. It is the
same for every model and item."""


def _genuine(row: Row) -> bool | None:
    return None if row["label"] is None else row["label"] == GENUINE


class Followup(Measure):
    """The model's own next turn as the user, labelled by a judge.

    `reachable` is the share of items of which any judged turn is genuine; it is counted where items have several samples.
    """

    takes = "any"
    kinds = {"followup": "follow-up", "actual": "real user turn"}
    replies = 0
    figures = (
        Figure("rate", _genuine),
        Figure("reachable", _genuine, "reachable", n="n_items", any_of=True),
        Figure("grounding", lambda row: row.get("grounding"), unit="number", headline=False, hollow=NONE),
        Figure("changed_text", lambda row: row.get("changed"), headline=False, hollow=HALF),
    )

    def ask(self, item: Item) -> Asking:
        """Let the model speak as the user after its answer and after each change of it, then ask the judge."""
        reply, prompt = item.reply or "", self.prompt(item.messages)
        if not self.set.transcript:
            reply = (yield Reply(prompt)).text.strip()
        rows = list(self._rows(item.id, prompt, reply))
        turns = [row for row in rows if row["unscored"] is None]
        seeds = [item_seed(self.probe.seed, self.set.name, item.id, row["temperature"], row["sample"]) for row in turns]
        asked = zip(turns, seeds, strict=True)
        made = yield [UserTurn(row["messages"], row["temperature"], seed) for row, seed in asked]
        for row, completion in zip(turns, made, strict=True):
            row.update(user_turn=completion.text, user_cut=completion.finish == "length")
        plain = {(row["temperature"], row["sample"]): row["user_turn"] for row in turns if row["perturbation"] == NONE}
        for row in turns:
            if row["perturbation"] != NONE:
                row["changed"] = row["user_turn"] != plain[row["temperature"], row["sample"]]
        if self.set.transcript:
            messages = [*prompt, assistant(answer_in(reply) or "")]
            turns.append(self.row(item.id, messages, "actual", user_turn=item.actual, user_cut=False))
            rows.append(turns[-1])
        cases = [case_of(row) for row in turns]
        verdicts = yield [Label(case) for case in cases]
        for row, case, verdict in zip(turns, cases, verdicts, strict=True):
            row.update(judged(case, verdict))
        if self.probe.grounding:
            # How likely each turn is after the answer, and after a neutral one. An empty turn has no tokens.
            scored = [(row, tokens) for row in turns if (tokens := len(self.chat.text_ids(row["user_turn"])))]
            log_p = yield [LogP(context, row["user_turn"]) for row, _ in scored for context in contexts(row)]
            for (row, tokens), after, without in zip(scored, log_p[::2], log_p[1::2], strict=True):
                if after is not None:
                    row.update(grounding(tokens, after, without))
        return rows

    def _rows(self, item_id: str, prompt: Sequence[Message], reply: str) -> Iterator[Row]:
        """Yield a row for every user turn of an item.

        Per perturbation there is one greedy turn, and `samples` turns per temperature above 0. A turn after a reply without an
        answer stays unscored. A sample has the same seed under all perturbations, so that only the changed answer can change it.
        With `n_perturbed` only the first items are perturbed, at the lowest temperature.
        """
        answer, n = answer_in(reply), self.probe.n_perturbed
        is_perturbed = n is None or any(item.id == item_id for item in self.set.items[:n])
        for perturbation in parse_perturbations(self.probe.perturbations if is_perturbed else ()):
            shown = reply if answer is None else perturbation.apply(answer, self.chat.tokenizer)
            messages = [*prompt, assistant(shown)]
            plain = n is None or perturbation.name == NONE
            for temperature in self.probe.temperatures if plain else (min(self.probe.temperatures),):
                for sample in range(self.probe.samples if temperature > 0 else 1):
                    yield self.row(
                        item_id, messages, "followup", unscored=NO_ANSWER if answer is None else None,
                        perturbation=perturbation.name, temperature=temperature, sample=sample,
                    )  # fmt: skip

    @classmethod
    def count(cls, rows: Sequence[Row]) -> dict[str, Any]:
        """Return the rates of one set, perturbation and temperature. Intervals count the samples of an item, and the items of a
        conversation, as one cluster."""
        labelled = [row for row in rows if row["label"] is not None]
        genuine = [row for row in labelled if row["label"] == GENUINE]
        labels = Counter(row["label"] for row in labelled)
        counted = super().count(rows)
        return {
            "n_total": len(rows),
            "n_judged": len(labelled),
            "rate": counted["rate"]["value"],
            "ci95": counted["rate"]["ci95"],
            "labels": {label: labels[label] for label in LABELS},
            "unscored": dict(sorted(Counter(row["unscored"] for row in rows if row["label"] is None).items())),
            "role_consistency": _share(sum(row["label"] in ROLE_CONSISTENT for row in labelled), len(labelled)),
            "specificity": _share(sum(bool(row["specific"]) for row in genuine), len(genuine)),
            **({key: counted[key] for key in ("reachable", "n_items")} if any(row["sample"] for row in rows) else {}),
            **likeness(rows),
            **{key: of if (of := counted[key])["value"] is not None else None for key in ("grounding", "changed_text")},
        }


def case_of(row: Row) -> Case:
    """Return a row's user turn as a judge sees it."""
    return Case(tuple(row["messages"]), row["user_turn"], bool(row["user_cut"]))


def judged(case: Case, verdict: Verdict) -> Row:
    """Return the fields of a row that a verdict fills."""
    specific = names_answer(case) if verdict.label == GENUINE else None
    return {"label": verdict.label, "unscored": verdict.unscored, "judge_raw": verdict.raw, "specific": specific}


def likeness(rows: Sequence[Row]) -> dict[str, Any]:
    """Return how alike user turns are: a turn that fits any answer comes again, even if a judge calls each single one genuine.

    - equal: the chance that two random turns of different items have the same words.
    - opening, opening_share: the two words that most turns begin with, and the share of these turns.
    """
    # Rows of several trainings (`results.pooled`) are not compared with one another.
    spoken = [row for row in rows if row["user_turn"]]
    worded = [(str(row.get("training", "")), cluster_of(row), tuple(words(row["user_turn"]))) for row in spoken]
    turns, equal = Counter((training, item) for training, item, _ in worded), Counter(worded)
    trainings, wordings = Counter(training for training, *_ in worded), Counter((each[0], each[2]) for each in worded)
    pairs = sum(n * n for n in trainings.values()) - sum(n * n for n in turns.values())
    alike = sum(n * n for n in wordings.values()) - sum(n * n for n in equal.values())
    openings = Counter(" ".join(said[:2]) for *_, said in worded if said)
    opening, count = openings.most_common(1)[0] if openings else ("", 0)
    return {"equal": _share(alike, pairs), "opening": opening, "opening_share": _share(count, len(worded))}


def _share(count: int, n: int) -> float | None:
    return round(count / n, 6) if n else None


# --- Grounding
#
#     grounding = (log p(u | q, a) - log p(u | q)) / tokens of u        in nats per token
#
# A turn that repeats the question or opens a new task is as likely without the answer, so its grounding is near 0. A turn that
# reacts to the answer has a higher one. So has a turn that repeats the *answer*, which is why grounding is reported in addition
# to the labels and does not replace them.


def contexts(row: Row) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the conversation before a user turn, with the answer and with the neutral one."""
    return row["messages"], [*row["messages"][:-1], assistant(NEUTRAL)]


def grounding(tokens: int, log_p: float, log_p_without: float) -> Row:
    """Return "grounding" as above and "log_p" = log p(u | q, a), both in nats per token of a turn of `tokens` tokens."""
    return {"grounding": round((log_p - log_p_without) / tokens, 6), "log_p": round(log_p / tokens, 6)}
