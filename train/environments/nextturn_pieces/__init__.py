"""The user tells a problem piece by piece, and the answer is due after the last piece. For verifiers: `vf-eval nextturn-pieces`."""

from nextturn.train.environments.plugin import Chat, Conversation, Prompts


class Tasks(Prompts):
    """The task set `nextturn-pieces`."""

    kind = "pieces"


__all__ = ["Chat", "Conversation", "Tasks"]
