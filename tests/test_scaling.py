"""The models between a base and a checkpoint: their weights, which base is accepted, and `python -m train.scale`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from model_parts import change_json, copy_of, logits, lora_on

from probe.checkpoints import mark_complete
from probe.errors import BadInput, ModelError
from probe.models import fingerprint, forget_merged, load_model, merged_folder, resolve
from probe.scaling import Trained, check_scales, find_checkpoint, trained, write_base


def moved(base: Path, folder: Path, dtype: str | None = None, by: float = 0.02) -> Path:
    """A checkpoint with every weight of `base` moved at random, as training leaves it in a run of its own."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(base, dtype=getattr(torch, dtype) if dtype else "auto")
    torch.manual_seed(3)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight) * by)
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(base).save_pretrained(folder)
    return of_run(folder, base)


def of_run(folder: Path, base: Path, lora: bool = False) -> Path:
    """Marks a checkpoint complete and writes what training writes beside it."""
    recipe = {"model": {"name": str(base), "lora": {} if lora else None}, "train": {"output_dir": str(folder.parent)}}
    (folder.parent / "recipe.json").write_text(json.dumps(recipe))
    write_base(folder.parent, resolve(str(base)))
    mark_complete(folder, 7)
    return folder


def weights(model: Any) -> dict[str, Any]:
    return dict(model.state_dict())


def loaded(ends: Trained, scale: float, dtype: str = "auto") -> Any:
    return load_model(ends.at(scale), dtype, "cpu")


def between(ends: Trained, scale: float) -> Any:
    """The model at 0 or 1 as any other scale is made, not by taking an end."""
    from dataclasses import replace

    from probe.models import Dial

    return load_model(replace(ends.checkpoint, dial=Dial(ends.base, scale)), "auto", "cpu")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", ["tiny_chatml", "tiny_model"])
def test_all_weights_lie_on_the_line_from_the_base_to_the_checkpoint(
    family: str, dtype: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Llama with tied embeddings, and Qwen3.5 with its linear attention; the base is float32 or rounded to bfloat16 first."""
    import torch

    base = copy_of(request.getfixturevalue(family), tmp_path / "base")
    if dtype == "bfloat16":
        shutil.rmtree(base)
        load_model(resolve(str(request.getfixturevalue(family))), dtype, "cpu").save_pretrained(base)
        load_tokenizer_into(request.getfixturevalue(family), base)
    ends = trained(moved(base, tmp_path / "run" / "checkpoint-7"))
    assert ends.known
    before, after = (weights(load_model(folder, "auto", "cpu")) for folder in (ends.base, ends.checkpoint))
    for scale, wanted in ((0.0, before), (1.0, after)):
        found = weights(between(ends, scale))
        assert found.keys() == wanted.keys()
        assert all(torch.equal(found[name], wanted[name]) for name in wanted), f"{scale} is an end, bit for bit"
    for scale in (0.25, 0.5, 1.5, 2.0):
        found = weights(loaded(ends, scale))
        for name, start in before.items():
            wanted = start.double() + scale * (after[name].double() - start.double())
            room = 1e-6 if dtype == "float32" else wanted.abs() / 2**8 + 1e-6  # one rounding
            assert ((found[name].double() - wanted).abs() <= room).all(), (scale, name)
    model = loaded(ends, 0.5)
    if model.config.tie_word_embeddings:
        assert model.get_input_embeddings().weight is model.get_output_embeddings().weight
    assert loaded(ends, 0.5, "bfloat16").dtype == torch.bfloat16


def load_tokenizer_into(source: Path, folder: Path) -> None:
    from transformers import AutoTokenizer

    AutoTokenizer.from_pretrained(source).save_pretrained(folder)


@pytest.mark.parametrize("family", ["tiny_chatml", "tiny_model"])
def test_a_scaled_adapter_says_what_pefts_own_scaled_adapter_says(
    family: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    import torch
    from peft import PeftModel
    from peft.helpers import rescale_adapter_scale
    from transformers import AutoModelForCausalLM

    base = request.getfixturevalue(family)
    folder = of_run(lora_on(base, tmp_path / "run" / "checkpoint-7"), base, lora=True)
    ends = trained(folder)
    assert ends.known and ends.base.path == base
    start, end = weights(load_model(ends.base, "auto", "cpu")), weights(load_model(ends.checkpoint, "auto", "cpu"))
    assert all(torch.equal(one, start[name]) for name, one in weights(between(ends, 0.0)).items())
    assert all(torch.equal(one, end[name]) for name, one in weights(between(ends, 1.0)).items())
    adapted = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), folder).eval()
    for scale in (0.25, 0.5, 1.5):
        with rescale_adapter_scale(adapted, scale):
            theirs = logits(adapted)
        ours = logits(loaded(ends, scale))
        assert (ours - theirs).abs().max() < 1e-4
        assert (ours - logits(adapted)).abs().max() > 1e-3, "the scale does something"


def test_an_adapter_that_alpha_does_not_scale_is_interpolated(tiny_chatml: Path, tmp_path: Path) -> None:
    """DoRA changes norms, too: at alpha 0 it would not be the base."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    torch.manual_seed(1)
    config = LoraConfig(r=4, target_modules=["q_proj"], init_lora_weights=False, use_dora=True)
    model = get_peft_model(AutoModelForCausalLM.from_pretrained(tiny_chatml), config)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "magnitude" in name:
                weight.mul_(1.5)
    model.save_pretrained(str(tmp_path / "run" / "checkpoint-7"))
    ends = trained(of_run(tmp_path / "run" / "checkpoint-7", tiny_chatml, lora=True))
    start, end = weights(load_model(ends.base, "auto", "cpu")), weights(load_model(ends.checkpoint, "auto", "cpu"))
    for scale in (0.0, 0.5, 1.0):
        for name, found in weights(between(ends, scale)).items():
            assert torch.allclose(found, start[name] + scale * (end[name] - start[name]), atol=1e-6)


def test_every_scale_has_a_fingerprint_of_its_own_and_a_folder_for_vllm(
    tiny_chatml: Path, tmp_path: Path, own_cache: Path
) -> None:
    import torch

    ends = trained(moved(tiny_chatml, tmp_path / "run" / "checkpoint-7"))
    assert len({fingerprint(ends.at(scale)) for scale in (0, 0.25, 0.5, 1, 1.5)}) == 5
    assert fingerprint(ends.at(0.5)) == fingerprint(ends.at(0.50))
    folder = merged_folder(ends.at(0.5))
    same = weights(load_model(resolve(str(folder.path)), "auto", "cpu"))
    assert all(torch.equal(one, same[name]) for name, one in weights(loaded(ends, 0.5)).items())
    forget_merged(ends.at(1))
    assert folder.path.is_dir()
    forget_merged(ends.at(0.5))
    assert not folder.path.exists()


def test_bad_scales_are_one_line_each() -> None:
    assert check_scales([1, 0.25, 0]) == [0.0, 0.25, 1.0]
    for scales, message in {
        (-0.1,): "scale -0.1: wanted a number from 0",
        (2.5,): "scale 2.5: wanted a number from 0",
        (float("nan"),): "scale nan: wanted",
        (0.5, 0.50): "scale 0.5: given 2 times",
        (0.123456,): "at most four decimals",
    }.items():
        with pytest.raises(BadInput, match=message):
            check_scales(scales)


def test_a_base_that_is_not_the_checkpoints_is_refused_in_one_line(
    tiny_chatml: Path, tiny_model: Path, tmp_path: Path
) -> None:
    checkpoint = moved(tiny_chatml, tmp_path / "run" / "checkpoint-7")
    other = moved(tiny_chatml, tmp_path / "other" / "checkpoint-1")
    adapter = lora_on(tiny_chatml, tmp_path / "alone" / "adapter")
    quantised = copy_of(tiny_chatml, tmp_path / "quantised")
    change_json(quantised / "config.json", quantization_config={"quant_method": "bitsandbytes"})
    bare = copy_of(checkpoint, tmp_path / "bare" / "checkpoint-7")
    cases: dict[tuple[Path, str | None], str] = {
        (checkpoint, str(other)): "not the base of .*, which was trained from weights",
        (adapter, str(other)): "not the base of .*, which was trained from weights",
        (checkpoint, str(quantised)): r"quantised \(bitsandbytes\), wanted weights in bfloat16",
        (checkpoint, str(tmp_path / "gone")): "its base is missing .*name it with --base",
        (bare, None): "neither an adapter nor a recipe.json .*give --base MODEL",
        (bare, str(tiny_model)): "not the base of .*: it has .*, and the checkpoint",
    }
    for (folder, base), message in cases.items():
        with pytest.raises(ModelError, match=message) as raised:
            trained(folder, base)
        assert "\n" not in str(raised.value)
    assert not trained(bare, str(tiny_chatml)).known, "of equal shape, and nothing says more"
    assert trained(adapter).known


def test_the_checkpoint_is_the_one_that_was_asked_for(tiny_chatml: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    first = moved(tiny_chatml, run / "checkpoint-7")
    second = copy_of(first, run / "checkpoint-9")
    (copy_of(first, run / "checkpoint-12") / "complete.json").unlink()
    assert find_checkpoint(run) == second == find_checkpoint(second)
    assert (
        find_checkpoint(run, "7") == find_checkpoint(run, "checkpoint-7") == find_checkpoint(run, str(first)) == first
    )
    for run_dir, wanted, message in (
        (run, "12", "not a complete checkpoint .*interrupted.* has checkpoint-12, checkpoint-9, checkpoint-7"),
        (run, "3", "not a complete checkpoint .no such folder"),
        (tmp_path, None, "no complete checkpoint in it"),
    ):
        with pytest.raises(BadInput, match=message):
            find_checkpoint(run_dir, wanted)


def scale_command(*words: object) -> int:
    from probe.errors import run_command
    from train.scale import main

    return run_command(main, [str(word) for word in words])


@pytest.mark.parametrize("kind", ["all weights", "LoRA"])
def test_a_scale_is_written_as_a_model_of_its_own(
    kind: str, tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = tmp_path / "run" / "checkpoint-7"
    if kind == "LoRA":
        of_run(lora_on(tiny_model, folder), tiny_model, lora=True)
    else:
        moved(tiny_model, folder)
    out = tmp_path / "models" / "half"
    assert scale_command(tmp_path / "run", "--scale", 0.5, "--out", out) == 0
    ends = trained(folder)
    model = AutoModelForCausalLM.from_pretrained(out)
    assert all(torch.equal(one, weights(model)[name]) for name, one in weights(loaded(ends, 0.5)).items())
    assert type(model).__name__ == "Qwen3_5ForCausalLM"
    assert AutoTokenizer.from_pretrained(out).chat_template == AutoTokenizer.from_pretrained(tiny_model).chat_template
    said = json.loads((out / "scale.json").read_text())
    assert said["scale"] == 0.5 and said["base"]["weights_sha256"] == fingerprint(ends.base)
    assert said["checkpoint"] == {"path": str(folder), "weights_sha256": fingerprint(ends.checkpoint)}
    assert f"{tiny_model} moved 0.5 of the way to {folder}" in (out / "README.md").read_text()

    before = (out / "model.safetensors").stat().st_mtime_ns
    assert scale_command(folder, "--scale", 0.5, "--out", out) == 0, "it is there already"
    assert (out / "model.safetensors").stat().st_mtime_ns == before
    for words, message in (
        ((folder, "--scale", 0.25, "--out", out), "exists and is not this model at scale 0.25"),
        ((folder, "--scale", 0.5, "--out", tmp_path), "exists and is not this model"),
        ((folder, "--scale", 3, "--out", tmp_path / "new"), "scale 3: wanted a number from 0"),
    ):
        capsys.readouterr()
        assert scale_command(*words) == 2
        error = capsys.readouterr().err
        assert message in error and error.count("\n") == 1
    assert sorted(path.name for path in out.parent.iterdir()) == ["half"], "nothing half-written"


def test_a_write_that_fails_leaves_nothing(tiny_chatml: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from train import scale

    ends = trained(moved(tiny_chatml, tmp_path / "run" / "checkpoint-7"))
    (tmp_path / "out" / ".half.making-killed").mkdir(parents=True)

    def full(*_: object) -> None:
        raise OSError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr(scale, "write_json", full)
        with pytest.raises(OSError, match="disk full"):
            scale.write(ends, 0.5, tmp_path / "out" / "half")
    assert not list((tmp_path / "out").iterdir())
    assert scale.write(ends, 0.5, tmp_path / "out" / "half").is_dir()
