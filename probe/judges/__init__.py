"""Judges say what a user turn is: one of a closed set of labels, or unscored with a reason."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nextturn.probe.errors import BadInput
from nextturn.probe.judges.labels import Judge

if TYPE_CHECKING:
    from nextturn.probe.settings import ServerSection

KNOWN_JUDGES = ("rules", "llm")


def get_judge(name: str, server: ServerSection | None = None) -> Judge:
    """Return the judge called `name`. The judge `llm` asks `server`.

    Raises:
        BadInput: there is no judge of that name, or it has no server to ask.
        EngineError: the server cannot be reached to say which model it serves.
    """
    if name not in KNOWN_JUDGES:
        raise BadInput(f"judge: given {name!r}, wanted one of {', '.join(KNOWN_JUDGES)}")
    if name == "rules":
        from nextturn.probe.judges.rules import RulesJudge

        return RulesJudge()
    if server is None or not server.urls:
        raise BadInput(
            f"judge {name}: no server to ask; a recipe wants probe.judge_server with `urls: [http://HOST:PORT/v1]`, "
            "`probe agreement` wants --url"
        )
    from nextturn.probe.judges.llm import LlmJudge

    return LlmJudge(server)
