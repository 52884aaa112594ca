"""Judges give a user turn one of a closed set of labels, or leave it unscored with a reason."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nextturn.probe.command.errors import BadInput
from nextturn.probe.judges.verdicts import Judge

if TYPE_CHECKING:
    from nextturn.probe.command.sections import ServerSection


def get_judge(name: str, server: ServerSection | None = None) -> Judge:
    """Return the judge `name`: "rules", "llm", which asks `server`, or MODULE:CLASS, a judge of one's own.

    Raises:
        BadInput: There is no judge of that name, it has no server to ask, or its class cannot be used.
        EngineError: The server cannot be reached to say which model it serves.
    """
    if name == "rules":
        from nextturn.probe.judges.rules import RulesJudge

        return RulesJudge()
    if ":" in name:
        from nextturn.probe.judges.own import OwnJudge

        return OwnJudge(name, "probe.judge")
    if name != "llm":
        raise BadInput(f"judge: given {name!r}, expected rules, llm or MODULE:CLASS")
    if server is None or not server.urls:
        raise BadInput("judge llm has no server: set `judge_server: {urls: [http://HOST:PORT/v1]}` under probe:")
    from nextturn.probe.judges.llm import LlmJudge

    return LlmJudge(server)
