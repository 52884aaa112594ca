"""`probe run` is killed with SIGKILL, in bfloat16 and with a model as judge: the resumed run is like one that was not killed."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import Any

import yaml

from nextturn.probe.command.files import read_json, read_jsonl, write_jsonl
from support.commands import call, start
from support.loopback import Loopback, Seen, chat_reply

STORED = 8
LABELS = ("genuine_followup", "new_task", "malformed", "role_drift")


class Judge:
    """Its label depends on the prompt only, so that every run of the same model gets the same verdicts.

    Attributes:
        asked: Verdicts that it was asked for.
        answers: How many of them it still gives; the others wait until the client goes away.
    """

    def __init__(self) -> None:
        self.asked, self.answers = 0, math.inf

    def __call__(self, request: Seen) -> dict[str, Any] | None:
        self.asked += 1
        self.answers -= 1
        prompt = json.dumps(request.body["messages"], sort_keys=True)
        reply = chat_reply(f"It reads so.\nVERDICT: {LABELS[sum(prompt.encode()) % len(LABELS)]}")
        return reply if self.answers >= 0 else None


def test_a_killed_run_is_resumed(tiny_chatml: Path, tmp_path: Path) -> None:
    """A run that is killed while the judge answers ends like one that was not."""
    questions = [{"question": f"Ivo has {n} pens and buys 3 more. How many?", "answer": str(n + 3)} for n in range(12)]
    write_jsonl(tmp_path / "own.jsonl", questions)
    judge = Judge()
    with Loopback({"/chat/completions": judge}) as server:
        probe = {
            "sets": {"own": {"path": str(tmp_path / "own.jsonl")}},
            "temperatures": [0.0, 1.0], "perturbations": ["truncate(0.5)"],
            "max_answer_tokens": 16, "max_user_tokens": 12, "dtype": "bfloat16", "batch_tokens": 500, "judge": "llm",
            # One attempt waits its full time: what a busy machine gives up on would be asked, and counted here, twice.
            "judge_server": {"urls": [server.url], "model": "judge", "concurrency": 4, "attempts": 1},
        }  # fmt: skip
        (tmp_path / "probe.yaml").write_text(yaml.safe_dump({"probe": probe}))
        words = ["-m", "nextturn.probe", "run", str(tiny_chatml), "probe.yaml", "--device", "cpu", "--out"]
        call([*words, "whole"], tmp_path)
        asked, judge.answers = judge.asked, STORED
        process, verdicts = (
            start([*words, "killed"], tmp_path, log=tmp_path / "log"),
            tmp_path / "killed/verdicts.jsonl",
        )
        deadline = time.monotonic() + 300
        while not verdicts.exists() or verdicts.read_bytes().count(b"\n") < STORED:
            assert process.poll() is None and time.monotonic() < deadline, process.output[-1000:]
            time.sleep(0.005)
        process.kill()
        before, judge.answers = judge.asked, math.inf
        call([*words, "killed"], tmp_path)
        assert judge.asked - before == asked - STORED, "only what was on its way at the kill is asked again"
    whole, resumed = (read_json(tmp_path / name / "results.json") | {"timing": None} for name in ("whole", "killed"))
    assert resumed == whole
    rows, again = ((tmp_path / name / "samples.jsonl").read_bytes() for name in ("whole", "killed"))
    assert again == rows
    for name in ("generations.jsonl", "scores.jsonl", "verdicts.jsonl"):
        keys = [row["key"] for _, row in read_jsonl(tmp_path / "killed" / name)]
        assert len(keys) == len(set(keys)), f"{name}: nothing is made twice"
