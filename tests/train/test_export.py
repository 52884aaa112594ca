"""`nextturn export`: the merged weights, what lies beside them, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from nextturn.probe.command.errors import run_command
from nextturn.probe.models.checkpoints import mark_complete
from nextturn.probe.models.folders import load_model, resolve
from nextturn.train import export as command
from support.model_parts import change_json, copy_of, lora_on


def export(*words: object) -> int:
    return run_command(command.main, [str(word) for word in words])


def in_float32(adapter: Path, scale: float) -> dict[str, Any]:
    """Return PEFT's own merge of an adapter into its base in float32, with the update scaled by alpha."""
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    scaled = copy_of(adapter, adapter.with_name(f"scaled-{scale}"))
    alpha = json.loads((scaled / "adapter_config.json").read_text())["lora_alpha"]
    change_json(scaled / "adapter_config.json", lora_alpha=alpha * scale)
    base = AutoModelForCausalLM.from_pretrained(resolve(str(adapter)).base, dtype=torch.float32)
    merged: Any = PeftModel.from_pretrained(base, scaled).merge_and_unload()
    return dict(merged.state_dict())


@pytest.mark.parametrize(
    ("family", "dtype", "scale"),
    [
        ("tiny_chatml", "float32", 1.0),
        ("tiny_chatml", "bfloat16", 1.0),
        ("tiny_chatml", "float32", 0.0),
        ("tiny_multimodal", "bfloat16", 0.5),
    ],
)
def test_an_adapter_is_merged_in_float32_and_rounded_once(
    family: str, dtype: str, scale: float, tmp_path: Path, request: pytest.FixtureRequest, own_cache: Path
) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    base = copy_of(request.getfixturevalue(family), tmp_path / "base")
    load_model(resolve(str(base)), dtype, "cpu").save_pretrained(tmp_path / "typed")
    AutoTokenizer.from_pretrained(base).save_pretrained(tmp_path / "typed")
    adapter = lora_on(tmp_path / "typed", tmp_path / "adapter")
    assert export(adapter, "--out", tmp_path / "out", "--scale", scale) == 0
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype="auto")
    assert str(model.dtype) == f"torch.{dtype}" and model.config.architectures == [type(model).__name__]
    expected = in_float32(adapter, scale)
    assert model.state_dict().keys() == expected.keys()
    assert all(torch.equal(weight, expected[name].to(model.dtype)) for name, weight in model.state_dict().items())


def test_a_run_folder_becomes_a_model_that_the_next_stage_loads(
    tiny_multimodal: Path, tmp_path: Path, own_cache: Path
) -> None:
    """The base is multimodal on the hub; the export is text-only, and of the newest complete checkpoint."""
    run = tmp_path / "run"
    for step in (7, 9, 12):
        mark_complete(lora_on(tiny_multimodal, run / f"checkpoint-{step}", str(tiny_multimodal)), step)
    (run / "checkpoint-12" / "complete.json").unlink()
    out = tmp_path / "models" / "whole"
    assert export(run, "--out", out) == 0
    assert json.loads((out / "export.json").read_text())["checkpoint"] == str(run / "checkpoint-9")
    assert {"config.json", "generation_config.json", "tokenizer.json", "chat_template.jinja"} <= {
        path.name for path in out.iterdir()
    }
    text_only = resolve(str(run)).base
    assert text_only is not None
    for name in ("generation_config.json", "chat_template.jinja"):
        assert (out / name).read_text() == (text_only / name).read_text(), name
    assert load_model(resolve(str(out)), "auto", "cpu").config.architectures == ["Qwen3_5ForCausalLM"]

    before = (out / "model.safetensors").stat().st_mtime_ns
    assert export(run / "checkpoint-9", "--out", out) == 0, "the same export exists"
    assert (out / "model.safetensors").stat().st_mtime_ns == before


def test_a_refused_or_failed_export_leaves_nothing(
    tiny_chatml: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    adapter, out = lora_on(tiny_chatml, tmp_path / "adapter"), tmp_path / "out"
    dora = lora_on(tiny_chatml, tmp_path / "dora")
    change_json(dora / "adapter_config.json", use_dora=True)
    quantised = copy_of(tiny_chatml, tmp_path / "quantised")
    change_json(quantised / "config.json", quantization_config={"quant_method": "bitsandbytes"})
    for words in (
        (adapter, "--out", out, "--scale", 2.5),
        (adapter, "--out", out, "--scale", "nan"),
        (tiny_chatml, "--out", out, "--scale", 0.5),
        (dora, "--out", out, "--scale", 0.5),
        (quantised, "--out", out),
        (tmp_path / "nothing", "--out", out),
        (adapter, "--out", tmp_path),
    ):
        capsys.readouterr()
        assert export(*words) == 2, words
        assert capsys.readouterr().err.count("\n") == 1
    monkeypatch.setattr(command, "write_json", lambda *_: 1 / 0)
    (tmp_path / ".out.making-killed").mkdir()
    with pytest.raises(ZeroDivisionError):
        export(adapter, "--out", out)
    assert not out.exists() and not list(tmp_path.glob(".out.making-*"))
