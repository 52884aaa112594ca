"""Problems of which some lack a needed fact: the model asks for it there, and answers elsewhere. For verifiers: `vf-eval nextturn-ask`."""

from nextturn.train.environments.plugin import Chat, Conversation, Prompts


class Tasks(Prompts):
    """The task set `nextturn-ask`."""

    kind = "ask"


__all__ = ["Chat", "Conversation", "Tasks"]
