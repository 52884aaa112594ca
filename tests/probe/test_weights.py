"""A model is identified by its weights, wherever they are, and its size is read without loading it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nextturn.probe.command.errors import ModelError
from nextturn.probe.models import weights
from nextturn.probe.models.folders import fingerprint, load_model, parameter_count, resolve
from nextturn.train import training as run
from nextturn.train.memory import size_of
from nextturn.train.sections import ModelSection, load_sft_recipe
from support.model_parts import change_json, copy_of, lora_on
from support.tiny_models import build_tiny_llama


def identity(folder: Path) -> str:
    return fingerprint(resolve(str(folder)))


def test_the_fingerprint_follows_weights_and_config_not_the_path(tiny_chatml: Path, tmp_path: Path) -> None:
    original, moved = identity(tiny_chatml), copy_of(tiny_chatml, tmp_path / "moved")
    change_json(moved / "config.json", _name_or_path="elsewhere", transformers_version="5.99.0")
    assert identity(moved) == original
    content = bytearray((moved / "model.safetensors").read_bytes())
    content[-1] ^= 1
    (moved / "model.safetensors").write_bytes(content)
    assert identity(moved) != original
    change_json(copy_of(tiny_chatml, tmp_path / "eps") / "config.json", rms_norm_eps=1e-3)
    assert identity(tmp_path / "eps") != original


def test_an_adapter_s_fingerprint_includes_its_base(tiny_chatml: Path, tmp_path: Path) -> None:
    adapter = lora_on(tiny_chatml, tmp_path / "adapter")
    original = identity(adapter)
    assert original != identity(tiny_chatml)
    moved, other = copy_of(tiny_chatml, tmp_path / "moved"), build_tiny_llama(tmp_path / "other", seed=9)
    for base, same in ((moved, True), (other, False)):
        change_json(adapter / "adapter_config.json", base_model_name_or_path=str(base))
        assert (identity(adapter) == original) is same


def test_parameters_are_counted_without_loading_and_tied_ones_once(
    tiny_model: Path, tiny_chatml: Path, tmp_path: Path
) -> None:
    from safetensors.torch import load_file, save_file

    count = parameter_count(resolve(str(tiny_model)))
    assert count == load_model(resolve(str(tiny_model)), device="cpu").num_parameters()
    twice = copy_of(tiny_chatml, tmp_path / "twice")
    tensors = load_file(twice / "model.safetensors")
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    save_file(tensors, twice / "model.safetensors", metadata={"format": "pt"})
    assert weights.count_parameters(twice) == weights.count_parameters(tiny_chatml)
    adapter = resolve(str(lora_on(tiny_chatml, tmp_path / "adapter")))
    assert parameter_count(adapter) == parameter_count(resolve(str(tiny_chatml)))


@pytest.mark.parametrize(
    "content",
    [b"", b"{}", b"\xff" * 8 + b"{}", b"\x02" + bytes(7) + b"[]", b"\x04" + bytes(7) + b'{"a"', bytes(100), 0.5, -1],
    ids=["empty", "short", "huge header", "list", "torn", "zeros", "half", "all but one byte"],
)
def test_a_damaged_weight_file_is_refused(tiny_chatml: Path, tmp_path: Path, content: bytes | float) -> None:
    path = copy_of(tiny_chatml, tmp_path / "damaged") / "model.safetensors"
    if not isinstance(content, bytes):
        complete = path.read_bytes()
        content = complete[: len(complete) // 2 if content == 0.5 else -1]
    path.write_bytes(content)
    with pytest.raises(ModelError, match=r"model\.safetensors:"):
        resolve(str(path.parent))


@pytest.mark.parametrize(
    "config",
    [
        {"attn_implementation": "someone/kernels"},
        {"_attn_implementation": {"text_config": "someone/kernels@main"}},
        {"text_config": {"attn_implementation": "someone/kernels"}},
    ],
)
def test_a_config_that_names_code_on_the_hub_is_refused(
    tiny_chatml: Path, tmp_path: Path, config: dict[str, Any]
) -> None:
    folder = copy_of(tiny_chatml, tmp_path / "kernels")
    change_json(folder / "config.json", **config)
    with pytest.raises(ModelError, match="someone/kernels"):
        resolve(str(folder))
    with pytest.raises(ModelError, match="someone/kernels"):
        size_of(ModelSection(name="org/model"), folder)  # of a plan, which reads a model of the hub without its weights


def test_the_processes_of_a_launch_copy_the_hashes_of_the_main_process(
    tiny_chatml: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With 2B parameters, eight processes would otherwise read 4.5 GB each at once."""
    identity(tiny_chatml)  # on process 0
    hashes = dict(weights.sha256_of_seen)
    monkeypatch.setattr(weights, "sha256_of_seen", {})
    monkeypatch.setattr(run, "sha256_of_seen", weights.sha256_of_seen)
    monkeypatch.setattr(run, "on_main_process", lambda *_: (tmp_path, {"model": {"path": str(tiny_chatml)}}, hashes))
    monkeypatch.setattr(weights, "sha256_file", None)
    (tmp_path / "recipe.yaml").write_text(
        f"model: {{name: {tiny_chatml}}}\ndata: {{path: d}}\ntrain: {{output_dir: {tmp_path}}}\n"
    )
    assert fingerprint(run.Run(load_sft_recipe(tmp_path / "recipe.yaml"), "auto").folder)
