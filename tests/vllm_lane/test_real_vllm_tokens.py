"""The real vLLM and transformers mean the same by a request: tokens, stops, scores, and a whole run of the probe.

SmolLM2 in float32, so that equal means equal. Qwen3.5 in bfloat16: vLLM's CPU kernels for its linear layers take no
other type.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from engine_parts import assert_equal_greedy, real_engine, sure_prompts

from nextturn.probe.__main__ import main
from nextturn.probe.engines.base import Request, ScoreRequest, collect
from nextturn.probe.engines.hf import HfEngine
from nextturn.probe.engines.vllm import ENVIRONMENT, check_versions, import_vllm
from nextturn.probe.models.folders import load_model, load_tokenizer, resolve


def test_this_vllm_fits_and_knows_the_variables_that_are_set_for_it() -> None:
    check_versions()
    import_vllm()
    from vllm import envs

    assert set(ENVIRONMENT) <= set(envs.environment_variables)


def test_smollm2_says_and_scores_the_same_as_in_transformers(smollm2: Path) -> None:
    folder = resolve(str(smollm2))
    model, tokenizer = load_model(folder, "float32", "cpu"), load_tokenizer(folder)
    hf = HfEngine(model, tokenizer)
    prompts = sure_prompts(model, 0.02, among=16)[:8]
    assert len(prompts) == 8
    asked = [Request(prompt, 10, ()) for prompt in prompts]
    (stop,) = tokenizer(collect(hf, asked[:1])[0].text, add_special_tokens=False).input_ids[-1:]
    asked += [Request(prompt, 10, (stop,)) for prompt in prompts]
    scores = [ScoreRequest(prompt, (7, 8, 9)) for prompt in prompts]
    sampled = [Request(prompts[0], 12, (), 1.0, seed) for seed in range(4)]
    with real_engine(folder, "float32") as engine:
        assert collect(engine, asked) == collect(hf, asked)
        assert dict(engine.score(scores)) == pytest.approx(dict(hf.score(scores)), abs=1e-3)
        assert len({completion.text for completion in collect(engine, sampled)}) == 4


def test_a_qwen35_says_the_same_as_in_transformers(lively_qwen35: Path) -> None:
    assert_equal_greedy(lively_qwen35, "bfloat16", gap=3.0)


def test_a_run_with_vllm_has_the_fields_and_greedy_turns_of_one_with_hf(
    smollm2: Path, tmp_path: Path, engine_process: None
) -> None:
    asked = [
        {"id": str(n), "question": f"Ann has {n} apples and eats 1. How many?", "answer": str(n - 1)} for n in (3, 8)
    ]
    (tmp_path / "asked.jsonl").write_text("".join(json.dumps(row) + "\n" for row in asked))
    probe = {"sets": {"apples": {"path": str(tmp_path / "asked.jsonl"), "measures": ["accuracy", "followup"]}}}
    probe |= {"temperatures": [0.0, 1.0], "max_answer_tokens": 24, "max_user_tokens": 12, "dtype": "float32"}
    probe |= {"vllm": {"enforce_eager": True}, "perturbations": ["truncate(0.5)"]}
    (tmp_path / "probe.yaml").write_text(yaml.safe_dump({"probe": probe}))
    runs = {}
    for engine in ("hf", "vllm"):
        arguments = ["run", str(smollm2), str(tmp_path / "probe.yaml"), "--out", str(tmp_path / engine)]
        arguments += ["--probe.engine", engine]
        if engine == "hf":
            main([*arguments, "--device", "cpu"])
        else:
            command, log = [sys.executable, "-m", "nextturn.probe", *arguments], tmp_path / "log"
            code = _ends_alone(command, log)
            if code == -signal.SIGABRT and "terminate called without an active exception" in log.read_text():
                # vLLM's CPU build aborts at times when Python unloads it. By then the run must be complete.
                assert (tmp_path / engine / "results.json").is_file(), log.read_text()[-4000:]
                code = subprocess.run(command, env={**os.environ, "HF_HUB_OFFLINE": "1"}, timeout=120).returncode
            assert code == 0, log.read_text()[-4000:]
        samples = [json.loads(line) for line in (tmp_path / engine / "samples.jsonl").read_text().splitlines()]
        runs[engine] = json.loads((tmp_path / engine / "results.json").read_text()), samples
    (hf, hf_samples), (vllm, vllm_samples) = runs["hf"], runs["vllm"]
    assert _fields(vllm) == _fields(hf)
    assert vllm["accuracy"] == hf["accuracy"] and vllm["model"] == hf["model"]
    assert _greedy(vllm_samples) == _greedy(hf_samples)
    assert len(_greedy(hf_samples)) == 2 + 2 * 2, "answers, and user turns plain and truncated"


def _ends_alone(command: list[str], log: Path) -> int:
    """Runs a command to its end, sees that vLLM's engine ran beside it and ended with it; gives the exit code."""
    with log.open("w") as file:
        environment = {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONFAULTHANDLER": "1"}
        process = psutil.Popen(command, env=environment, stdout=file, stderr=file)
    seen: set[psutil.Process] = set()
    while process.poll() is None:
        seen |= set(process.children(recursive=True)) if process.is_running() else set()
        try:
            process.wait(timeout=0.5)
        except (psutil.TimeoutExpired, subprocess.TimeoutExpired):
            continue
    _, alive = psutil.wait_procs(list(seen), timeout=20)
    assert seen and not alive, log.read_text()[-2000:]
    return int(process.returncode)


def _fields(value: Any) -> Any:
    """The shape of results.json; which labels and reasons came up hangs on what was sampled."""
    if not isinstance(value, dict):
        return None
    return {key: None if key in ("labels", "unscored") else _fields(part) for key, part in value.items()}


def _greedy(samples: list[dict[str, Any]]) -> list[Any]:
    return sorted(json.dumps(row["messages"]) + str(row["user_turn"]) for row in samples if not row.get("temperature"))
