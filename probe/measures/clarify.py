"""Does the model ask when information is missing, and answer when nothing is?

The two rates are reported separately, because a model that asks about everything has a high rate of needed questions.
"""

from __future__ import annotations

from nextturn.probe.data.messages import assistant, user
from nextturn.probe.engines.base import Completion
from nextturn.probe.engines.stored import Row
from nextturn.probe.measures.base import Asking, Figure, Measure, Reply
from nextturn.probe.questions.sets import Pair
from nextturn.probe.text import grading


def _asked(row: Row) -> bool | None:
    return row["asked"] if row["condition"] == "underspecified" else None


def _answered(row: Row) -> bool | None:
    # A reply that the token limit cut sets out to answer; a question and an empty reply do not.
    return row["outcome"] in ("answered", "truncated") if row["condition"] == "complete" else None


class Clarify(Measure):
    """A problem with a fact withheld, and the same problem complete."""

    takes = "pairs"
    kinds = {"clarify underspecified": "clarify, information missing", "clarify complete": "clarify, complete"}
    replies = 2
    figures = (
        Figure("ask_when_needed", _asked, shows="clarify underspecified"),
        Figure("answer_when_complete", _answered, shows="clarify complete"),
    )

    def ask(self, item: Pair) -> Asking:
        """Ask both forms of the problem."""
        texts = {"complete": item.complete, "underspecified": item.underspecified}
        prompts = [self.prompt([user(text)]) for text in texts.values()]
        replies = yield [Reply(prompt) for prompt in prompts]
        chats = [[*prompt, assistant(reply.text.strip())] for prompt, reply in zip(prompts, replies, strict=True)]
        graded = map(grade_clarify, texts, replies)
        return [self.row(item.id, chat, **of_reply) for chat, of_reply in zip(chats, graded, strict=True)]


def grade_clarify(condition: str, reply: Completion) -> Row:
    """Grade one reply to a problem in `condition` "complete" or "underspecified"."""
    kind = grading.outcome(reply.text, truncated=reply.finish == "length")
    return {"condition": condition, "outcome": kind, "asked": kind == "asked"}
