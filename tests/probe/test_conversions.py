"""Converted models are made once, whole or not at all; a multimodal Qwen3.5 becomes its text class."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from nextturn.probe.command.errors import ModelError
from nextturn.probe.models import conversions
from nextturn.probe.models.folders import load_model, load_tokenizer, resolve
from support.model_parts import CHAT, change_json, copy_of, logits, lora_on


def test_a_multimodal_qwen35_becomes_text_only_once(tiny_multimodal: Path, own_cache: Path) -> None:
    from transformers import AutoModelForImageTextToText, AutoTokenizer

    folder = resolve(str(tiny_multimodal))
    assert folder.path.parent == own_cache
    assert json.loads((folder.path / "config.json").read_text())["architectures"] == ["Qwen3_5ForCausalLM"]
    model = load_model(folder, device="cpu")
    whole = AutoModelForImageTextToText.from_pretrained(tiny_multimodal)
    assert type(model).__name__ == "Qwen3_5ForCausalLM" and type(whole).__name__ == "Qwen3_5ForConditionalGeneration"
    assert (logits(model) - logits(whole)).abs().max() == 0
    assert not [name for name, _ in model.named_parameters() if "visual" in name]
    tokenizer = load_tokenizer(folder)
    assert model.generation_config.eos_token_id[0] == tokenizer.eos_token_id
    assert tokenizer.eos_token == "<|im_end|>"
    source = AutoTokenizer.from_pretrained(tiny_multimodal)
    assert tokenizer.chat_template == source.chat_template
    assert tokenizer.apply_chat_template(CHAT, tokenize=False) == source.apply_chat_template(CHAT, tokenize=False)
    made = (folder.path / "model.safetensors").stat().st_mtime_ns
    assert resolve(str(tiny_multimodal)).path == folder.path
    assert (folder.path / "model.safetensors").stat().st_mtime_ns == made


def writes_weights(folder: Path) -> None:
    (folder / "weights").write_text("whole")


def test_two_that_ask_at_once_convert_once(own_cache: Path) -> None:
    made: list[Path] = []
    entered = threading.Event()

    def make(folder: Path) -> None:
        made.append(folder)
        entered.set()
        threading.Event().wait(0.3)
        (folder / "weights").write_text("w")

    second = threading.Thread(target=lambda: entered.wait() and conversions.made_once("m", "s", 0, make))
    second.start()
    folder = conversions.made_once("m", "s", 0, make)
    second.join()
    assert len(made) == 1 and (folder / "weights").read_text() == "w"


def test_locks_are_taken_on_files_that_nfs_can_lock(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """NFSv4 refuses a shared lock on a file that is not open for reading, and an exclusive one if it is not open for writing."""
    flock, modes = fcntl.flock, []

    def seen(file: Any, operation: int) -> None:
        modes.append(fcntl.fcntl(file, fcntl.F_GETFL) & os.O_ACCMODE)
        flock(file, operation)

    monkeypatch.setattr(fcntl, "flock", seen)
    with conversions.made_while_used("m", "s", 0, writes_weights):
        pass
    assert set(modes) == {os.O_RDWR}


def test_a_file_system_without_flock(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: Any) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(fcntl, "flock", missing)
    with pytest.warns(UserWarning):
        folder = conversions.made_once("m", "s", 0, writes_weights)
    assert (folder / "weights").read_text() == "whole"
    with pytest.raises(ModelError), conversions.made_while_used("m", "s", 0, writes_weights):
        pass


def test_a_conversion_that_was_killed_leaves_nothing_and_is_made_again(own_cache: Path) -> None:
    def dies(folder: Path) -> None:
        (folder / "weights").write_text("half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        conversions.made_once("m", "s", 0, dies)
    left = own_cache / ".m.making-left"
    left.mkdir()
    folder = conversions.made_once("m", "s", 0, writes_weights)
    assert sorted(path.name for path in own_cache.iterdir()) == [".m.lock", "m"]
    assert (folder / "weights").read_text() == "whole"


@pytest.mark.parametrize("harm", ["cut short", "another source", "no manifest"])
def test_a_damaged_conversion_is_made_again(own_cache: Path, harm: str) -> None:
    folder = conversions.made_once("m", "s", 0, writes_weights)
    if harm == "cut short":
        (folder / "weights").write_text("who")
    elif harm == "another source":
        change_json(folder / conversions.MANIFEST, source_sha256="other")
    else:
        (folder / conversions.MANIFEST).unlink()
    conversions.made_once("m", "s", 0, writes_weights)
    assert (folder / "weights").read_text() == "whole" and conversions.is_complete(folder, "s")


def test_a_cache_without_room_or_rights_is_one_line(
    own_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from safetensors import SafetensorError

    def full(folder: Path) -> None:
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    with pytest.raises(ModelError, match="NEXTTURN_CACHE"):
        conversions.made_once("m", "s", 10**18, full)
    with pytest.raises(ModelError, match=r"2\.0 GB .*No space left.*NEXTTURN_CACHE"):
        conversions.made_once("m", "s", 2 * 10**9, full)  # safetensors' own error, which is not an OSError
    (tmp_path / "file").touch()
    monkeypatch.setenv("NEXTTURN_CACHE", str(tmp_path / "file"))
    with pytest.raises(ModelError, match="NEXTTURN_CACHE"):
        conversions.made_once("m", "s", 0, full)


def test_a_multimodal_checkpoint_without_some_of_its_text_weights_is_refused(
    tiny_multimodal: Path, own_cache: Path, tmp_path: Path
) -> None:
    from safetensors.torch import load_file, save_file

    holed = copy_of(tiny_multimodal, tmp_path / "holed")
    tensors = load_file(holed / "model.safetensors")
    gone = next(name for name in tensors if "layers.1.mlp" in name)
    del tensors[gone]
    save_file(tensors, holed / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match="config.json"):
        resolve(str(holed))
    assert not [path for path in own_cache.iterdir() if path.is_dir()]


@pytest.mark.parametrize("saved", ["zero2", "zero3"])
def test_a_multimodal_checkpoint_round_trips_however_it_was_saved(
    tiny_multimodal: Path, own_cache: Path, tmp_path: Path, saved: str
) -> None:
    """The names that a save under ZeRO leaves (tests/train/test_train_distributed.py launches the real ones): ZeRO-2 writes
    the tied output head a second time, ZeRO-3 the text's weights without the part of the name that the hub's have."""
    whole = rewritten(copy_of(tiny_multimodal, tmp_path / "source"), saved)
    text = resolve(str(whole))
    expected = load_model(resolve(str(tiny_multimodal)), device="cpu")
    assert (logits(load_model(text, device="cpu")) - logits(expected)).abs().max() == 0

    # The text-only folder is what training loads; what it saves comes back too, alone and under an adapter.
    again = rewritten(copy_of(text.path, tmp_path / "again"), saved)
    assert (logits(load_model(resolve(str(again)), device="cpu")) - logits(expected)).abs().max() == 0
    adapter = resolve(str(lora_on(again, tmp_path / "adapter", str(whole))))
    assert adapter.base == text.path, "the text-only folder of its base"
    adapted = load_model(adapter, device="cpu")
    difference = (
        logits(adapted) - logits(load_model(resolve(str(lora_on(again, tmp_path / "own"))), device="cpu"))
    ).abs()
    assert difference.max() == 0 and (logits(adapted) - logits(expected)).abs().max() > 1e-3


def rewritten(folder: Path, saved: str) -> Path:
    """The folder with the weight names of a save under ZeRO-2 or ZeRO-3; a multimodal one has those of a plain save under
    ZeRO-3."""
    from safetensors.torch import load_file, save_file

    tensors = load_file(folder / "model.safetensors")
    (tied,) = (name for name in tensors if name.endswith("language_model.embed_tokens.weight"))
    if saved == "zero2":
        tensors["lm_head.weight"] = tensors[tied].clone()
    if saved == "zero3" and not any("visual" in name for name in tensors):
        tensors = {name.replace("model.language_model.", "model."): tensor for name, tensor in tensors.items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder
