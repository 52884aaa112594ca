"""What training saves, vLLM serves: checkpoints of train/sft.py under either set of weight names, and adapters."""

from __future__ import annotations

from pathlib import Path

from engine_parts import assert_equal_greedy
from safetensors.torch import load_file, save_file

from nextturn.train.export import export
from support.commands import call
from support.model_parts import copy_of, lora_on
from support.sft_parts import write_data, write_recipe

LONG, SHORT = "model.language_model.", "model."


def test_a_checkpoint_of_sft_is_served_under_either_set_of_names(lively_qwen35: Path, tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path, lively_qwen35, {"path": str(write_data(tmp_path))})
    call(["train/sft.py", str(recipe), "--train.max_steps", "2", "--probe.when", "never"], tmp_path)
    plain = tmp_path / "run" / "checkpoint-2"
    said = assert_equal_greedy(plain, "bfloat16", gap=3.0)

    # A text model loaded from the hub's multimodal checkpoint saves that one's names, and ZeRO-3 those of its modules.
    renamed = copy_of(plain, tmp_path / "renamed")
    tensors = load_file(plain / "model.safetensors")
    now, then = (SHORT, LONG) if any(name.startswith(LONG) for name in tensors) else (LONG, SHORT)
    other = {now + name.removeprefix(then): tensor for name, tensor in tensors.items() if name != "lm_head.weight"}
    save_file(other, renamed / "model.safetensors", {"format": "pt"})
    assert assert_equal_greedy(renamed, "bfloat16", gap=3.0) == said


def test_an_adapter_is_merged_and_served_and_so_is_its_export(
    lively_qwen35: Path, tmp_path: Path, own_cache: Path
) -> None:
    base = assert_equal_greedy(lively_qwen35, "bfloat16", gap=3.0)
    adapter = lora_on(lively_qwen35, tmp_path / "adapter")
    assert assert_equal_greedy(adapter, "bfloat16", gap=3.0) != base
    assert not [path for path in own_cache.iterdir() if path.is_dir()], "the merged copy is removed"
    assert assert_equal_greedy(export(str(adapter), tmp_path / "whole"), "bfloat16", gap=3.0) != base
