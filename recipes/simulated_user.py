"""A simulated user of one's own: it wants the answer in few words and gives up soon.

nextturn data RECIPE --dialogue.simulator "{engine: 'recipes.simulated_user:Impatient', options: {patience: 2}}" --dialogue.reactions 1

With `reactions: 0` a build asks the user for withheld facts only.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from nextturn.probe.questions.simulation import UserRequest, UserTurn

COMPLAINTS = ("Shorter please.", "That's too long. Which step matters most?", "ok but why do you {verb} there?")


class Impatient:
    """A user who complains about long replies and reveals a withheld fact when asked.

    Args:
        patience: User turns until it leaves.
        longest: Words of a reply that it still reads.
    """

    def __init__(self, patience: int = 2, longest: int = 60) -> None:
        self.patience = patience
        self.longest = longest

    def turns(self, requests: Sequence[UserRequest]) -> list[UserTurn]:
        """Return the next turn of each user. Everything follows from the request, so that a build can resume."""
        return [self._turn(request) for request in requests]

    def _turn(self, request: UserRequest) -> UserTurn:
        reply, row = request.messages[-1]["content"], request.row
        if row.hidden and "?" in reply:
            return UserTurn(row.fact.reveal)
        said = (len(request.messages) - request.start) // 2
        if said >= self.patience or len(reply.split()) <= self.longest:
            return UserTurn(ended=True)
        verb = "multiply" if "*" in reply or "times" in reply else "add"
        rng = random.Random(f"impatient:{request.seed}:{len(request.messages)}")
        return UserTurn(rng.choice(COMPLAINTS).format(verb=verb))
