"""Loads weights and tokenizers through transformers and peft, strictly: what is missing is an error, not a warning.

transformers fills missing weights with random numbers and peft leaves unmatched adapters at zero, both with no
more than a warning; a probe of such a model would measure something that nobody trained.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from probe.errors import one_line, ModelError
from probe.models.weights import CONFIG, read_config

WANTED_TRANSFORMERS = "transformers>=5.16.1,<6"
"""As in pyproject.toml: what this project was written for, Qwen3.5 included."""


def load_causal_lm(folder: Path, dtype: Any = "auto") -> Any:
    """A folder's causal language model, text class, on the CPU; safetensors only, no custom code.

    Raises:
        ModelError: transformers does not know its type, or weights are missing or have another shape.
    """
    from transformers import AutoModelForCausalLM

    with _explained(folder):
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            folder, dtype=dtype, use_safetensors=True, trust_remote_code=False, output_loading_info=True
        )
    model, found = loaded
    if missing := sorted(found["missing_keys"]):
        raise ModelError(
            f"{folder}: {len(missing)} weights that its config.json asks for are missing, first {missing[0]}; "
            "is the checkpoint whole, and the config its own?"
        )
    return model


def merge_adapter(model: Any, adapter: Path) -> Any:
    """The model with a LoRA adapter folded into its weights, in its own class again.

    Raises:
        ModelError: the adapter was made for another model.
    """
    from peft import PeftModel

    with _explained(adapter), warnings.catch_warnings():
        warnings.filterwarnings("error", message="(?s).*missing adapter keys")
        return PeftModel.from_pretrained(model, adapter).merge_and_unload()


def load_any_tokenizer(folder: Path) -> Any:
    """A folder's tokenizer as it was saved."""
    from transformers import AutoTokenizer

    with _explained(folder):
        return AutoTokenizer.from_pretrained(folder, trust_remote_code=False)



def _unknown_type(folder: Path) -> str | None:
    """The folder's model type where this transformers has no class for it."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    kind = read_config(folder).get("model_type") if (folder / CONFIG).is_file() else None
    return str(kind) if kind and kind not in CONFIG_MAPPING else None
