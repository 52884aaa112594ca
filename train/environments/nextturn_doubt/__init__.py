"""The user doubts the answer: a right one is to be kept, and a wrong one put right. For verifiers: `vf-eval nextturn-doubt`."""

from nextturn.train.environments.plugin import Chat, Conversation, Prompts


class Tasks(Prompts):
    """The task set `nextturn-doubt`."""

    kind = "doubt"


__all__ = ["Chat", "Conversation", "Tasks"]
