"""What several tests of models need: a chat, an adapter, a changed copy, the logits to compare, the largest tensor made."""

from __future__ import annotations

import json
import shutil
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from support.conversations import messages

CHAT = messages("Anna has 12 apples.\n\n1. How many are left?", "How many did she give away?", "Five.")


def logits(model: Any, seed: int = 0, below: int = 1000) -> Any:
    import torch

    ids = torch.randint(0, below, (2, 24), generator=torch.Generator().manual_seed(seed))
    with torch.no_grad():
        return model(input_ids=ids.to(model.device)).logits.float()


def lora_on(base: Path, folder: Path, named_base: str | None = None) -> Path:
    """A LoRA adapter with weights that are not zero, saved by peft, naming `named_base` as its base."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    torch.manual_seed(1)
    config = LoraConfig(r=4, target_modules=["q_proj", "v_proj", "gate_proj"], init_lora_weights=False)
    model = get_peft_model(AutoModelForCausalLM.from_pretrained(base), config)
    model.save_pretrained(str(folder))
    if named_base is not None:
        change_json(folder / "adapter_config.json", base_model_name_or_path=named_base)
    return folder


def change_json(path: Path, **values: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def copy_of(folder: Path, to: Path) -> Path:
    return Path(shutil.copytree(folder, to))


def known_config(name: str = "Qwen/Qwen3.5-2B") -> Any:
    """The shape that the plan knows of a model, as a config."""
    from transformers import AutoConfig

    from nextturn.train.memory import KNOWN_SHAPES

    shape = dict(KNOWN_SHAPES[name])
    return AutoConfig.for_model(shape.pop("model_type"), **shape)


def on_gpu_with(free: int, monkeypatch: Any) -> Any:
    """What an engine asks of Qwen3.5-2B on a GPU with so many free bytes, where there is none."""
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free, free))
    config = SimpleNamespace(get_text_config=known_config)
    return SimpleNamespace(device=torch.device("cuda:0"), dtype=torch.bfloat16, config=config)


class LargestTensor(TorchDispatchMode):
    """Notes the largest storage that is made while it is on, in bytes; what was there before does not count."""

    def __init__(self, before: Any = ()) -> None:
        super().__init__()
        self.bytes = 0
        self.shape: tuple[int, ...] = ()
        self._before = {tensor.untyped_storage()._cdata for tensor in before}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for made in tree_leaves(result):
            if isinstance(made, Tensor) and made.untyped_storage()._cdata not in self._before:
                size = made.untyped_storage().nbytes()
                if size > self.bytes:
                    self.bytes, self.shape = size, tuple(made.shape)
        return result


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of all storages that are made while it is on: alive `now`, and the `most` so far."""

    def __init__(self, before: Any = ()) -> None:
        super().__init__()
        self.now = self.most = 0
        self._sizes = {tensor.untyped_storage()._cdata: 0 for tensor in before}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for made in tree_leaves(result):
            if isinstance(made, Tensor) and (key := made.untyped_storage()._cdata) not in self._sizes:
                self._sizes[key] = made.untyped_storage().nbytes()  # a view shares its storage and costs nothing
                self.now += self._sizes[key]
                weakref.finalize(made.untyped_storage(), self._freed, key)
        self.most = max(self.most, self.now)
        return result

    def _freed(self, key: int) -> None:
        self.now -= self._sizes.pop(key)
