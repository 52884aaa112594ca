"""Problems that the user tells piece by piece, answered after the last piece (arXiv 2505.06120).

The last reply is the solution of the conversation that has the whole problem, so with a policy's own right solutions the policy
learns to answer a told problem as it answers a whole one (self-distillation; arXiv 2605.24432 and 2605.27186 found that it
brings most of the lost accuracy back). The replies before it answer nothing: they ask for the rest or wait.
"""

from __future__ import annotations

import random
from typing import Any

from nextturn.data_builders.forms import MOST, Wordings, fact_slots, question_slots, step_slots
from nextturn.data_builders.recipe import DataRecipe
from nextturn.data_builders.scripted import say
from nextturn.data_builders.tasks import Conversation
from nextturn.probe.conversations import Message, assistant, user
from nextturn.probe.shards import Shards, split

KINDS = ("complete", "replay")
"""Kinds whose first exchange is a whole problem and its solution."""


class Teller:
    """Tells problems of a build piece by piece, as the `sharded` keys of its recipe say."""

    def __init__(self, recipe: DataRecipe) -> None:
        self._recipe = recipe
        self._wordings = Wordings()

    def remember(self, row: dict[str, Any]) -> None:
        """Count the forms of a kept row, so that later rows use others."""
        if "forms" in row:
            self._wordings.remember(row["forms"], [message["content"] for message in row["messages"]])

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
        pieces = split(conversation.task.question if conversation.task else conversation.messages[0]["content"])
        if pieces is None:
            return None
        replies = (self._plain if recipe.sharded_replies == "plain" else self._varied)(pieces, rng)
        if len(replies) < len(pieces.facts):
            return None
        messages: list[Message] = [user(pieces.wish)]
        for (_, reply), fact in zip(replies, pieces.facts, strict=True):
            messages += [assistant(reply), user(fact)]
        learned = {"all": range(len(replies)), "one": [rng.randrange(len(replies))], "none": []}[recipe.sharded_loss]
        for number, message in enumerate(messages[1::2]):
            message |= {} if number in learned else {"loss": False}
        messages.append(conversation.messages[1])
        forms = ["", *(each for form, _ in replies for each in (form, "")), ""]
        for form, message in self._after(messages, rng) if rng.random() < recipe.sharded_after else []:
            forms.append(form)
            messages.append(message)
        return Conversation(
            f"{conversation.id}-sharded", "sharded", tuple(messages), conversation.source,
            conversation.answer, reveal_at=2 * len(replies), task=conversation.task, shards=pieces.facts,
            row={"forms": forms} if any(forms) else {},
        )  # fmt: skip

    def _plain(self, pieces: Shards, rng: random.Random) -> list[tuple[str, str]]:
        """Return the replies in one of a few sentences, each as ("", text)."""
        told = ["", *pieces.facts[:-1]]
        return [("", say("ask_rest" if fact else "ask_facts", rng, {"told": fact})) for fact in told]

    def _varied(self, pieces: Shards, rng: random.Random) -> list[tuple[str, str]]:
        """Return the replies as (form, text), up to the first one for which there is no form."""
        replies: list[tuple[str, str]] = []
        for number in range(len(pieces.facts)):
            slots = fact_slots(pieces, number - 1) if number else question_slots(pieces.wish)
            drawn = self._wordings.draw("rest" if number else "first", rng, slots, [form for form, _ in replies])
            if drawn is None:
                break
            replies.append(drawn)
        return replies

    def _after(self, messages: list[Message], rng: random.Random) -> list[tuple[str, Message]]:
        """Return a question of the user about a step of the solution, and its answer; nothing if no step can be asked about."""
        steps = step_slots(messages[-1]["content"], [message["content"] for message in messages[::2]])
        rng.shuffle(steps)
        for slots in steps:
            asked = self._wordings.draw("reaction", rng, slots, most=MOST)
            explained = self._wordings.draw("reply", rng, slots, most=MOST)
            if asked and explained:
                return [(asked[0], user(asked[1])), (explained[0], assistant(explained[1]))]
        return []
