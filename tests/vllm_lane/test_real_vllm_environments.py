"""The environments in verifiers' own evaluation, with SmolLM2 in vLLM; `make test-reach` runs this file."""

from __future__ import annotations

from pathlib import Path

from engine_parts import real_engine

from nextturn.probe.models.folders import load_tokenizer, resolve
from support.verifiers_parts import assert_talked, evaluate, spoken_by


def test_smollm2_in_vllm_talks_with_the_scripted_user(smollm2: Path, tmp_path: Path) -> None:
    folder = resolve(str(smollm2))
    with real_engine(folder, "float32") as engine:
        (trace,) = evaluate("doubt", spoken_by(engine, load_tokenizer(folder)), tmp_path, 1, 160)
    assert_talked(trace)
