"""Problems that the user tells piece by piece, answered after the last piece (arXiv 2505.06120).

The last reply is the solution of the conversation that has the whole problem, so with a policy's own right solutions the policy
learns to answer a told problem as it answers a whole one (self-distillation; arXiv 2605.24432 and 2605.27186 found that it
brings most of the lost accuracy back). The replies before it answer nothing: they ask for the rest or wait.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

from nextturn.data_builders.duplicates import masked
from nextturn.data_builders.forms import Slots, fact_slots, filled, fits, forms, question_slots, step_slots
from nextturn.data_builders.scripted import worded
from nextturn.data_builders.sections import DataRecipe
from nextturn.data_builders.tasks import Conversation
from nextturn.probe.data.messages import Message, assistant, user
from nextturn.probe.questions.pieces import split

KINDS = ("complete", "replay")
"""Kinds whose first exchange is a whole problem and its solution."""


MOST = 3
"""Messages of a build that may be equal except for numbers and names; also the uses of a form after the solution."""


class Teller:
    """Tells the problems of a build piece by piece, as the `sharded` keys of its recipe say."""

    def __init__(self, recipe: DataRecipe) -> None:
        self._recipe = recipe
        self._used: Counter[str] = Counter()  # forms of the rows kept so far, and their texts without numbers and names

    def remember(self, row: dict[str, Any]) -> None:
        """Count the forms of a kept row, so that later rows prefer others."""
        for form, message in zip(row.get("forms", ()), row["messages"], strict=False):
            self._used.update([form, masked(message["content"])] if form else [])

    def sharded(self, conversation: Conversation) -> Conversation | None:
        """Return the same problem told piece by piece.

        Returns:
            None for another kind, without a solution, for the rest of the share, if the problem cannot be cut, and if no form
            fits its words.
        """
        recipe = self._recipe
        rng = random.Random(f"sharded:{recipe.seed}:{conversation.id}")
        if conversation.kind not in KINDS or conversation.reason or rng.random() >= recipe.sharded:
            return None
        question = conversation.task.question if conversation.task else conversation.messages[0]["content"]
        pieces = split(question)
        if pieces is None:
            return None
        made: list[tuple[str, Message]] = [("", user(pieces.wish))]  # each message with its form
        for number, fact in enumerate(pieces.facts):
            if recipe.sharded_replies == "plain":
                told = pieces.facts[number - 1] if number else ""
                form, reply = "", worded("ask_rest" if number else "ask_facts", rng, {"told": told})
            else:
                slots = fact_slots(pieces, number - 1) if number else question_slots(pieces)
                form, reply = self._draw("rest" if number else "first", rng, slots, made)
                if not form:
                    return None
            made += [(form, assistant(reply)), ("", user(fact))]
        asking = [message for _, message in made[1::2]]
        kept = rng.choice(asking)
        for message in {"all": [], "one": [each for each in asking if each is not kept], "none": asking}[
            recipe.sharded_loss
        ]:
            message["loss"] = False
        made.append(("", conversation.messages[1]))
        if rng.random() < recipe.sharded_after:
            steps = step_slots(conversation.messages[1]["content"], [pieces.wish, *pieces.facts])
            slots = rng.choice(steps) if steps else {}
            asked, explained = (self._draw(kind, rng, slots, made, MOST) for kind in ("reaction", "reply"))
            if asked[0] and explained[0]:
                made += [(asked[0], user(asked[1])), (explained[0], assistant(explained[1]))]
        used, messages = map(list, zip(*made, strict=True))
        return Conversation(
            f"{conversation.id}-sharded", "sharded", tuple(messages), conversation.source, conversation.answer,
            reveal_at=2 * len(pieces.facts), task=conversation.task, shards=pieces.facts, whole=question,
            row={"forms": used} if any(used) else {},
        )  # fmt: skip

    def _draw(
        self, kind: str, rng: random.Random, slots: Slots, made: list[tuple[str, Message]], most: int = 10**9
    ) -> tuple[str, str]:
        """Return one of the forms that were used least, and its text; two empty texts if no form is left.

        Args:
            made: The messages of the row so far, with their forms, which are not used again.
            most: Uses of a form at most.
        """
        taken = {form for form, _ in made}
        left = [form for form in forms(kind) if fits(form, slots) and form not in taken and self._used[form] < most]
        rng.shuffle(left)
        texts = ((form, filled(form, slots)) for form in sorted(left, key=self._used.__getitem__))
        return next(((form, text) for form, text in texts if self._used[masked(text)] < MOST), ("", ""))
