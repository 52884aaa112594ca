"""A conversation while it is being written: its turns so far, and what has been said about whom to whom."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from data_builders.acts import Said, say
from data_builders.reactions import react
from data_builders.slots import shown
from data_builders.tasks import Gap, Step, Task
from probe.sets import Message

if TYPE_CHECKING:
    from data_builders.scripted import Conversations

_OWN_FINAL = 0.4


@dataclass
class Script:
    """Turns alternate from the user on. `frame` draws the words around the problem, alike for both of a pair."""

    task: Task
    settings: Conversations
    rng: random.Random
    frame: random.Random
    casual: bool
    messages: list[Message] = field(default_factory=list)
    wordings: list[str] = field(default_factory=list)
    gap: Gap | None = None
    hidden: str = ""
    reveal_at: int = 0
    # Reactions that would say again what the conversation already holds.
    used: set[str] = field(default_factory=set)

    def turn(self, act: str, **slots: str | Said) -> None:
        self.add(say(act, self.rng, {"answer": shown(self.task, self.task.answer), **slots}, self.casual))

    def add(self, said: Said) -> None:
        self.wordings += said.wordings
        self.messages.append({"role": ("user", "assistant")[len(self.messages) % 2], "content": said.text})

    def chance(self, share: float) -> bool:
        return self.rng.random() < share

    def open(self, question: str, act: str = "open", **slots: str | Said) -> None:
        """The user's first turn, with the problem in it."""
        self.add(say(act, self.frame, {"question": question.strip(), **slots}, self.casual))

    def solve(self, act: str, **slots: str) -> None:
        """A turn with the whole solution."""
        self.turn(act, solution=self.rest(0), **slots)

    def rest(self, after: int) -> Said:
        """The solution after its first steps, with the boxed answer; of 0 the reference solution word for word."""
        task = self.task
        if task.boxed_solution:
            return Said(task.boxed_solution if not after else task.rest.strip(), "")
        final = self._final()
        return Said(f"{self._laid_out(task.steps[after:])}\n{final.text}".strip(), "", (final.wording,))

    def _laid_out(self, steps: Sequence[Step]) -> str:
        # Lines of a text solution may lack their full stop, so only our own steps are set in one line.
        in_lines = not self.task.template or self.rng.random() < 0.75
        return ("\n" if in_lines else " ").join(step.text for step in steps)

    def _final(self) -> Said:
        """The sentence with the boxed answer: the problem's own, or one of ours."""
        box = f"\\boxed{{{self.task.answer}}}"
        if self.task.template and self.rng.random() < _OWN_FINAL:
            return Said(self.task.final.format(box=box), "final:bare")
        return say("final", self.rng, {"box": box})

    def go_on(self) -> None:
        """Reactions after the answer, each with its reply."""
        if not self.chance(self.settings.reactions):
            return
        for _ in range(2 if self.chance(self.settings.second_reaction) else 1):
            for said in react(self.task, self.rng, self.casual, self.used):
                self.add(said)
