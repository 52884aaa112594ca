"""What several tests of models need: a chat, an adapter, a changed copy, the logits to compare."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

CHAT = [
    {"role": "user", "content": "Anna has 12 apples.\n\n1. How many are left?"},
    {"role": "assistant", "content": "How many did she give away?"},
    {"role": "user", "content": "Five."},
]


def logits(model: Any, seed: int = 0) -> Any:
    import torch

    ids = torch.randint(0, 1000, (2, 24), generator=torch.Generator().manual_seed(seed))
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
