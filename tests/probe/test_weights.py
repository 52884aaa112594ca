"""A model is known by its weights wherever it lies, and its size is read without loading it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nextturn.probe import weights
from nextturn.probe.errors import ModelError
from nextturn.probe.models import fingerprint, load_model, parameter_count, resolve
from nextturn.train import run
from nextturn.train.recipe import load_sft_recipe
from support.model_parts import change_json, copy_of, lora_on


def test_the_fingerprint_follows_the_weights_not_the_place(tiny_chatml: Path, tmp_path: Path) -> None:
    from support.tiny_models import build_tiny_llama

    original = fingerprint(resolve(str(tiny_chatml)))
    moved = copy_of(tiny_chatml, tmp_path / "moved")
    change_json(moved / "config.json", _name_or_path="elsewhere", transformers_version="5.99.0")
    assert fingerprint(resolve(str(moved))) == original
    assert fingerprint(resolve(str(build_tiny_llama(tmp_path / "other", seed=7)))) != original
    content = bytearray((moved / "model.safetensors").read_bytes())
    content[-1] ^= 1
    (moved / "model.safetensors").write_bytes(content)
    assert fingerprint(resolve(str(moved))) != original
    change_json(copy_of(tiny_chatml, tmp_path / "eps") / "config.json", rms_norm_eps=1e-3)
    assert fingerprint(resolve(str(tmp_path / "eps"))) != original


def test_an_adapter_s_fingerprint_holds_its_base(tiny_chatml: Path, tmp_path: Path) -> None:
    from support.tiny_models import build_tiny_llama

    adapter = lora_on(tiny_chatml, tmp_path / "adapter")
    one = fingerprint(resolve(str(adapter)))
    assert one != fingerprint(resolve(str(tiny_chatml)))
    moved = copy_of(tiny_chatml, tmp_path / "moved-base")
    change_json(adapter / "adapter_config.json", base_model_name_or_path=str(moved))
    assert fingerprint(resolve(str(adapter))) == one
    other = build_tiny_llama(tmp_path / "other-base", seed=9)
    change_json(adapter / "adapter_config.json", base_model_name_or_path=str(other))
    assert fingerprint(resolve(str(adapter))) != one


def test_parameters_are_counted_without_loading(tiny_model: Path, tiny_chatml: Path, tmp_path: Path) -> None:
    counted = parameter_count(resolve(str(tiny_model)))
    assert counted["total"] == load_model(resolve(str(tiny_model)), device="cpu").num_parameters()
    assert counted["by_dtype"] == {"F32": counted["total"]} and counted["bytes"] == 4 * counted["total"]
    shape = {key: counted[key] for key in ("layers", "full_attention_layers", "hidden", "kv_heads", "head_dim")}
    assert shape == {"layers": 4, "full_attention_layers": 1, "hidden": 128, "kv_heads": 2, "head_dim": 64}
    adapter = parameter_count(resolve(str(lora_on(tiny_chatml, tmp_path / "adapter"))))
    assert adapter["adapter"] == 2 * 4 * ((64 + 64) + (64 + 32) + (64 + 128))
    assert adapter["total"] == parameter_count(resolve(str(tiny_chatml)))["total"]


@pytest.mark.parametrize(
    "content",
    [b"", b"{}", b"\xff" * 8 + b"{}", b"\x02" + bytes(7) + b"[]", b"\x04" + bytes(7) + b'{"a"', bytes(100)],
    ids=["empty", "short", "huge header", "list", "torn", "zeros"],
)
def test_a_damaged_header_is_told_with_the_file(tiny_chatml: Path, tmp_path: Path, content: bytes) -> None:
    damaged = copy_of(tiny_chatml, tmp_path / "damaged")
    (damaged / "model.safetensors").write_bytes(content)
    with pytest.raises(ModelError, match=r"model\.safetensors: .*copy or download it again"):
        resolve(str(damaged))


@pytest.mark.parametrize(
    "changed",
    [
        {"attn_implementation": "someone/kernels"},
        {"_attn_implementation": {"text_config": "someone/kernels@main"}},
        {"text_config": {"attn_implementation": "someone/kernels"}},
    ],
)
def test_a_config_that_names_code_on_the_hub_is_refused(
    tiny_chatml: Path, tmp_path: Path, changed: dict[str, Any]
) -> None:
    folder = copy_of(tiny_chatml, tmp_path / "kernels")
    change_json(folder / "config.json", **changed)
    with pytest.raises(ModelError, match="someone/kernels"):
        resolve(str(folder))


def test_a_tied_output_head_that_was_saved_twice_counts_once(tiny_chatml: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    twice = copy_of(tiny_chatml, tmp_path / "twice")
    tensors = load_file(twice / "model.safetensors")
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    save_file(tensors, twice / "model.safetensors", metadata={"format": "pt"})
    assert parameter_count(resolve(str(twice))) == parameter_count(resolve(str(tiny_chatml)))


def test_the_processes_of_a_launch_take_the_main_one_s_hashes_over(
    tiny_chatml: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 2B parameters that is 4.5 GB which eight processes would read at once."""
    from nextturn.train.run import Run

    fingerprint(resolve(str(tiny_chatml)))  # on process 0
    theirs = dict(weights.sha256_of_seen)
    monkeypatch.setattr(weights, "sha256_of_seen", {})
    monkeypatch.setattr(run, "sha256_of_seen", weights.sha256_of_seen)
    monkeypatch.setattr(run, "on_main_process", lambda *_: (tmp_path, theirs))
    monkeypatch.setattr(weights, "sha256_file", None)
    (tmp_path / "recipe.yaml").write_text(
        f"model: {{name: {tiny_chatml}}}\ndata: {{path: d}}\ntrain: {{output_dir: {tmp_path}}}\n"
    )
    assert fingerprint(Run(load_sft_recipe(tmp_path / "recipe.yaml"), "auto").folder)
