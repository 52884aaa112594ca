"""A simulated user: it asks one question after the reply and leaves. `grpo.yaml` uses it."""

from nextturn.probe.questions.simulation import UserTurn


class Curious:
    def __init__(self, turns: int = 1) -> None:
        self.most = turns

    def turns(self, requests):
        """Return the next turn of each user; the last message of `request.messages` is the assistant's."""
        return [self.turn(request) for request in requests]

    def turn(self, request):
        said = (len(request.messages) - request.start) // 2
        return UserTurn(ended=True) if said >= self.most else UserTurn("Ok, but why?")
