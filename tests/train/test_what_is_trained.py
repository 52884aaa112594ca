"""The model that is meant is trained, saved and resumed: room on the disk, adapters, ends of turns, dtypes, generations."""

from __future__ import annotations

from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest

from nextturn.probe.command.errors import BadInput
from nextturn.train.plan import describe
from nextturn.train.resume import checkpoint_bytes
from nextturn.train.sections import load_sft_recipe
from nextturn.train.sft import train
from support import sft_parts


def sft(folder: Path, model: Path, keys: dict[str, Any] | None = None, **section: Any) -> Any:
    """Return a recipe that trains a tiny model and probes nothing."""
    data = {"path": str(sft_parts.write_data(folder))}
    keys = {"use_cpu": True, "disable_tqdm": True, **(keys or {})}
    return load_sft_recipe(sft_parts.write_recipe(folder, model, data, keys, {"when": "never"}, **section))


# --- Room on the disk.


@pytest.mark.parametrize(
    ("keys", "lora", "bytes_each"),
    [({}, None, 12), ({}, {"r": 64}, 12), ({"save_only_model": True}, None, 4), ({"optim": "adafactor"}, None, 4)],
)
def test_a_checkpoint_takes_what_was_said(
    keys: dict[str, Any], lora: Any, bytes_each: int, tiny_chatml: Path, tmp_path: Path
) -> None:
    recipe = sft(tmp_path, tiny_chatml, keys | {"max_steps": 1}, lora=lora)
    train(recipe)
    checkpoint = tmp_path / "run" / "checkpoint-1"
    weights = next(checkpoint.glob("*model.safetensors")).stat().st_size
    said = checkpoint_bytes(weights // 4, 4, 0, keys.get("optim", "adamw_torch_fused"), "save_only_model" in keys)
    files = [path for path in (checkpoint / "optimizer.pt",) if path.is_file() and "optim" not in keys]
    assert said == pytest.approx(weights + sum(path.stat().st_size for path in files), rel=0.1)
    assert said == pytest.approx(weights // 4 * bytes_each)


@pytest.mark.parametrize(
    ("keys", "checkpoints"),
    [
        ({"save_total_limit": 1}, 2),
        ({"save_total_limit": 8}, 4),
        ({}, 4),
        ({"save_steps": 0.5, "save_total_limit": 1}, 2),
    ],
)
def test_a_disk_without_room_is_refused_before_step_1(
    keys: dict[str, Any], checkpoints: int, tiny_chatml: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained = sum(weight.numel() for weight in _model(tiny_chatml).parameters())
    free = checkpoints * checkpoint_bytes(trained, 4, 0, "adamw_torch", model_only=False)
    disk = namedtuple("disk", "total used free")
    recipe = sft(tmp_path, tiny_chatml, {"save_steps": 1} | keys)
    monkeypatch.setattr("shutil.disk_usage", lambda _: disk(10**15, 0, free - 1))
    assert "not enough" in describe(recipe)
    with pytest.raises(BadInput, match="save_total_limit"):
        train(recipe)
    assert not list((tmp_path / "run").glob("checkpoint-*"))
    monkeypatch.setattr("shutil.disk_usage", lambda _: disk(10**15, 0, free))
    train(recipe)


def _model(folder: Path) -> Any:
    from nextturn.probe.models.weights import load_causal_lm

    return load_causal_lm(folder)
