"""verifiers' own evaluation command, in the environment of `make test-reach`, and servers that it asks."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from nextturn.probe.engines.base import Request, collect
from nextturn.probe.text.chat import Chat
from support.loopback import Loopback, Seen, chat_reply

Message = dict[str, str]
Model = Callable[[Sequence[Message], int], tuple[str, str]]
"""Returns text and finish reason of the reply to messages, with at most so many tokens."""


def spoken_by(engine: Any, tokenizer: Any) -> Model:
    """The greedy replies of an engine; it is asked once here, since some load their model in the main thread only."""
    chat = Chat(tokenizer)

    def model(messages: Sequence[Message], tokens: int) -> tuple[str, str]:
        (made,) = collect(engine, [Request(tuple(chat.prompt_ids(messages)), tokens, tuple(chat.answer_stop_ids))])
        return made.text, made.finish

    model([{"role": "user", "content": "Hello."}], 1)
    return model


def evaluate(kind: str, model: Model, out: Path, n: int, tokens: int, *options: str) -> list[dict[str, Any]]:
    """Run `vf-eval nextturn-KIND` on `n` tasks against a server of the model, and return the traces."""
    command = Path(os.environ.get("VERIFIERS_VENV", ".venv-verifiers")) / "bin" / "vf-eval"
    if not command.is_file():
        pytest.skip("verifiers is not installed; `make test-reach` installs it")

    def reply(seen: Seen) -> dict[str, Any]:
        text, finish = model(seen.body["messages"], seen.body["max_tokens"])
        usage = {"prompt_tokens": 8, "completion_tokens": len(text.split()), "total_tokens": 8 + len(text.split())}
        return {**chat_reply(text, finish), "id": f"chat-{seen.number}", "created": 1, "usage": usage}

    with Loopback({"/chat/completions": reply}) as server:
        arguments = [f"nextturn-{kind}", "-m", "tiny", "-n", str(n), "--client.base-url", server.url, *options]
        arguments += ["--client.api-key-var", "NO_KEY", "--sampling.max-tokens", str(tokens)]
        arguments += ["--no-push", "--no-rich", "--output-dir", str(out), "--run.name", kind]
        done = subprocess.run([str(command), *arguments], capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr[-4000:]
    episodes = [json.loads(line) for line in (out / kind / "traces.jsonl").read_text().splitlines()]
    assert all(episode["ok"] for episode in episodes), episodes[0]["errors"]
    return [trace for episode in episodes for trace in episode["traces"]]


def said(trace: dict[str, Any]) -> list[Message]:
    """The conversation of a trace without its system message."""
    return [node["message"] for node in trace["nodes"] if node["message"]["role"] != "system"]


def assert_talked(trace: dict[str, Any]) -> None:
    """Check that a model with words of its own talked with the doubting user and got a reward."""
    messages = said(trace)
    assert [message["role"] for message in messages[:2]] == ["user", "assistant"]
    assert messages[1]["content"].strip() and 0 <= trace["rewards"]["reward"]["score"] <= 1
    assert len(messages) == 4 or trace["calls"][-1]["finish_reason"] == "length"
