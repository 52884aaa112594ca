"""`probe run` is killed with SIGKILL at random moments: the resumed run has the results of one that was not killed.

One trial, in bfloat16 and with a model as judge; NEXTTURN_KILL_TRIALS=20 makes twenty.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from nextturn.probe.files import read_json, read_jsonl, write_jsonl
from support.commands import call, start
from support.loopback import Faults, Loopback, Seen, chat_reply

TRIALS = int(os.environ.get("NEXTTURN_KILL_TRIALS", "1"))
CONCURRENCY = 4
LABELS = ("genuine_followup", "new_task", "malformed", "role_drift")


def verdict(request: Seen) -> dict[str, Any]:
    """Return a label that depends on the prompt only, so that every run of the same model gets the same verdicts."""
    prompt = json.dumps(request.body["messages"], sort_keys=True)
    return chat_reply(f"It reads so.\nVERDICT: {LABELS[sum(prompt.encode()) % len(LABELS)]}")


@pytest.fixture
def server() -> Iterator[Loopback]:
    with Loopback({"/chat/completions": verdict}, Faults(latency_s=0.02)) as judge:
        yield judge


@pytest.fixture
def recipe(tmp_path: Path, server: Loopback) -> Path:
    questions = [{"question": f"Ivo has {n} pens and buys 3 more. How many?", "answer": str(n + 3)} for n in range(16)]
    write_jsonl(tmp_path / "own.jsonl", questions)
    probe = {
        "sets": {"own": {"path": str(tmp_path / "own.jsonl")}},
        "temperatures": [0.0, 1.0], "samples": 2, "perturbations": ["truncate(0.5)"],
        "max_answer_tokens": 16, "max_user_tokens": 12, "dtype": "bfloat16", "batch_tokens": 500,
        "judge": "llm",
        # One attempt waits its full time: what a busy machine gives up on would be asked, and counted here, twice.
        "judge_server": {"urls": [server.url], "model": "judge", "concurrency": CONCURRENCY, "attempts": 1},
    }  # fmt: skip
    (tmp_path / "probe.yaml").write_text(yaml.safe_dump({"probe": probe}))
    return tmp_path / "probe.yaml"


def without_timing(out: Path) -> dict[str, Any]:
    return {key: value for key, value in read_json(out / "results.json").items() if key != "timing"}


def test_a_killed_run_is_resumed(tiny_chatml: Path, recipe: Path, server: Loopback, tmp_path: Path) -> None:
    """A run killed at a random moment ends like one that was not."""
    probe = ["-m", "nextturn.probe", "run", str(tiny_chatml), str(recipe), "--device", "cpu", "--out"]
    call([*probe, str(tmp_path / "whole")], tmp_path)
    whole, rows = without_timing(tmp_path / "whole"), (tmp_path / "whole" / "samples.jsonl").read_bytes()
    asked = verdicts_of(server)
    moments = random.Random(0)
    for trial in range(TRIALS):
        out, before = tmp_path / f"killed-{trial}", verdicts_of(server)
        process = start([*probe, str(out)])
        wait_for(process, out / "manifest.json")
        time.sleep(moments.uniform(0, 1.5))
        process.kill()
        stored = kept(out)
        call([*probe, str(out)], tmp_path)
        assert without_timing(out) == whole
        assert (out / "samples.jsonl").read_bytes() == rows
        for name in ("generations.jsonl", "scores.jsonl", "verdicts.jsonl"):
            keys = [row["key"] for _, row in read_jsonl(out / name)]
            assert len(keys) == len(set(keys)), f"{name}: nothing is made twice"
        assert kept(out) >= stored
        repeated = verdicts_of(server) - before - asked
        assert repeated <= CONCURRENCY, "only what was on its way at the kill is asked again"


def verdicts_of(server: Loopback) -> int:
    """Return how many verdicts were asked for; each run also asks for the server's models once."""
    return sum(request.path == "/chat/completions" for request in server.requests)


def kept(out: Path) -> set[str]:
    """Keys of the verdicts that lie in whole lines."""
    path = out / "verdicts.jsonl"
    lines = path.read_text().splitlines(keepends=True) if path.is_file() else []
    return {json.loads(line)["key"] for line in lines if line.endswith("\n")}


def wait_for(process: start, path: Path) -> None:
    deadline = time.monotonic() + 120
    while not path.exists():
        assert process.poll() is None, f"it ended by itself: {process.output[-1000:]}"
        assert time.monotonic() < deadline, "no manifest within two minutes"
        time.sleep(0.005)
