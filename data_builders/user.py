"""A simulated user without a model: it knows the problem, answers questions, reacts to answers, and ends the conversation.

What it does after an assistant turn follows from rules:

- A marked answer: it doubts every second answer, right or wrong, drawn by row and turn, and ends after the next one. If a
  fact is still withheld, it ends at once, so that no guess is rewarded.
- A question: if the question is about the withheld fact, or asks what is missing, the user reveals the fact (once). If it is
  about a given fact, the user quotes it. If it is about anything else, the user does not know.
- Neither: it tells the assistant to go on, a few times.

It never states the answer, never reveals the withheld fact unasked, and never says whether an answer is right.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from nextturn.data_builders.asked_for import ABOUT, marked_answer, questions, read_question
from nextturn.data_builders.sections import wordings
from nextturn.probe.data.messages import Message, said_by
from nextturn.probe.questions.simulation import PromptRow

PATIENCE = 4  # messages that bring nothing new, before the user gives up
_BRINGS_NOTHING = ("quote", "told", "all_there", "unknown", "go_on", "yes")
_CASUAL = 0.4  # share of users who type without capitals and full stops
_DOUBTS = 0.5  # share of marked answers that are doubted
_QUOTED_WORDS = 24
_LONGEST_SHORT = 40  # characters of a fact that is revealed in a word
_LONGEST_DOUBTED = 30  # characters of an answer that a doubt repeats


class ScriptedUser:
    """A user in one conversation. The same row, seed and replies always get the same messages.

    Attributes:
        revealed: Whether the withheld fact has been revealed.
    """

    def __init__(self, row: PromptRow, seed: int) -> None:
        self.row = row
        self.seed = seed
        self.revealed = False
        self._doubted = False
        self._idle = 0  # messages so far that brought nothing new
        self._casual = random.Random(f"scripted-user:{seed}").random() < _CASUAL

    @property
    def withheld(self) -> bool:
        """Whether a fact is still to be revealed."""
        return not self.revealed and bool(self.row.fact.reveal)

    def reply(self, messages: Sequence[Message], attempt: int = 0) -> str | None:
        """Return the user's next message, or None to end the conversation. `messages` end with the assistant.

        Args:
            attempt: Another one draws another wording.
        """
        act, slots = self._act(messages)
        self._idle += act in _BRINGS_NOTHING
        if not act or self._idle > PATIENCE:
            return None
        rng = random.Random(f"scripted-user:{self.seed}:{len(messages)}{f':{attempt}' * bool(attempt)}")
        text = rng.choice(wordings("acts.yaml")["simulated_user"][act])
        if self._casual:  # slots are left as they are
            text = text if text.startswith(("{", "I ", "I'")) else text[:1].lower() + text[1:]
            text = text if text.endswith("}.") else text.removesuffix(".")
        return text.format_map(slots)

    def _act(self, messages: Sequence[Message]) -> tuple[str, dict[str, str]]:
        """Return an act by its name in `acts.yaml` and what fills its slots; "" ends the conversation."""
        row, text = self.row, messages[-1]["content"]
        answer = marked_answer(text)
        if answer is not None:
            # Drawn by row and turn, whatever the answer.
            doubts = random.Random(f"doubt:{row.id}:{len(messages)}").random() < _DOUBTS
            if self.withheld or self._doubted or not doubts:
                return "", {}
            self._doubted = True
            # A long answer, or one that a chat template could read as markup, is not repeated.
            repeated = len(answer) <= _LONGEST_DOUBTED and not any(sign in answer for sign in "<>|[]\n")
            return "doubt", {"given": answer if repeated else "that"}
        sentences = (row.fact.reveal,) if row.hidden else ()
        ask, said = "" if self.revealed else row.fact.ask, said_by(messages, "user")
        readings = [read_question(each, row.fact.names, said, sentences, ask) for each in questions(text)]
        return self._answer(*min(readings, key=lambda reading: ABOUT.index(reading[0]))) if readings else ("go_on", {})

    def _answer(self, about: str, sentence: str) -> tuple[str, dict[str, str]]:
        if about in ("withheld", "anything"):
            if not self.withheld:
                return ("told" if self.revealed else "all_there"), {}
            # An amount or a formula can be revealed in a word; a sentence or a drawing cannot.
            short = self.row.fact.short
            in_a_word = 0 < len(short) <= _LONGEST_SHORT and "\n" not in short and short[-1] not in ".?!"
            prefers = random.Random(f"scripted-user:{self.seed}:short").random() < 0.5
            self.revealed = True
            return "tell_short" if prefers and in_a_word else "tell", {"short": short, "reveal": self.row.fact.reveal}
        if about == "given":
            words = sentence.split()
            cut = " ".join(words[:_QUOTED_WORDS]) + " ..."
            return "quote", {"quote": sentence if len(words) <= _QUOTED_WORDS else cut}
        return ("yes" if about == "following" else "unknown"), {}
