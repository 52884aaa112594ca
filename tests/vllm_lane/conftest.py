"""The real vLLM in its CPU build: only `make test-vllm` collects this folder.

In this process where a test does not ask for more, since an engine process of its own imports everything again.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

_STAND_INS = str(Path(__file__).parent / "stand_ins")

# Engine processes inherit these; the stand-in comes last, so that a real torchvision is preferred.
sys.path.append(_STAND_INS)
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), _STAND_INS]))
os.environ |= {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"


@pytest.fixture(scope="session", autouse=True)
def no_temporary_file_is_left() -> None:
    """Nothing is checked here: vLLM leaves the sockets of its engines among the temporary files."""


@pytest.fixture
def engine_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM as it runs for a user, its engine in a process of its own."""
    monkeypatch.delenv("VLLM_ENABLE_V1_MULTIPROCESSING")


@pytest.fixture(scope="session")
def lively_qwen35(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny Qwen3.5 with larger weights: as it is made, its output head only repeats the last token of the prompt."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = tmp_path_factory.mktemp("models") / "lively-qwen35"
    model = AutoModelForCausalLM.from_pretrained(tiny_model)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() == 2:
                weight.mul_(40 if "embed" in name else 5)
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(tiny_model).save_pretrained(folder)
    return folder
