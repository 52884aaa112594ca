"""A multimodal Qwen3.5 checkpoint becomes its text-only folder once.

The hub holds Qwen3.5 as a vision-language class. Training, the KL reference, vLLM and the probe all want the
text class, and mixing the two breaks weight syncing and puts adapters on the vision tower. transformers knows
how to load the text class from such a checkpoint, so it does the extraction: no weight name is spelled here.
"""

from __future__ import annotations

from pathlib import Path

from probe.errors import ModelError
from probe.files import sha256_text
from probe.models.conversions import made_once
from probe.models.loading import load_any_tokenizer, load_causal_lm
from probe.models.weights import count_parameters, fingerprint_of, read_config, tokenizer_sha256

MULTIMODAL_TYPE = "qwen3_5"
TEXT_CLASS = "Qwen3_5ForCausalLM"
TURN_END, TEXT_END = "<|im_end|>", "<|endoftext|>"


def is_multimodal(folder: Path) -> bool:
    """Whether the folder holds a whole Qwen3.5, vision tower included."""
    config = read_config(folder)
    classes = config.get("architectures") or []
    return config.get("model_type") == MULTIMODAL_TYPE or "Qwen3_5ForConditionalGeneration" in classes


def text_only_folder(folder: Path) -> Path:
    """The cached text-only folder of a multimodal checkpoint, made on the first call.

    Keyed by the weights, tokenizer and template of the source, so a changed source gets a folder of its own.
    """
    source = sha256_text(fingerprint_of([folder]) + tokenizer_sha256(folder))
    needed = count_parameters(folder)["bytes"]
    return made_once(f"text-only-{source[:16]}", source, needed, lambda made: _extract(folder, made))


def _extract(folder: Path, made: Path) -> None:
    model = load_causal_lm(folder)
    if type(model).__name__ != TEXT_CLASS:
        raise ModelError(f"{folder}: its text part loads as {type(model).__name__}, wanted {TEXT_CLASS}")
    tokenizer = load_any_tokenizer(folder)
    vocabulary = tokenizer.get_vocab()
    if TURN_END not in vocabulary:
        raise ModelError(f"{folder}: its tokenizer has no {TURN_END}, wanted a Qwen3.5 tokenizer")
    tokenizer.eos_token = TURN_END
    model.config.architectures = [TEXT_CLASS]
    ends = [vocabulary[token] for token in (TURN_END, TEXT_END) if token in vocabulary]
    model.generation_config.eos_token_id = ends
    model.generation_config.pad_token_id = ends[-1]
    model.save_pretrained(made)
    tokenizer.save_pretrained(made)
    written = read_config(made)
    if written.get("architectures") != [TEXT_CLASS]:
        raise ModelError(f"{folder}: saved as {written.get('architectures')}, wanted [{TEXT_CLASS!r}]")
