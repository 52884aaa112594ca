"""Tiny random models for tests: seconds instead of downloads, the real classes instead of fakes.

The model and tokenizer classes and the chat templates are the real ones; only sizes, weights and vocabulary are
small. Linear heads have 64 or 128 dimensions because vLLM's CPU kernels for gated DeltaNet accept nothing else.
"""

from __future__ import annotations

import importlib.util
import json
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from nextturn.probe.models.embedded import byte_level_bpe

# --- Tiny tokenizers of four model families, trained on the spot: the families' own special tokens and templates.
#
# The chat templates are the real ones, read from the installed trl package; what is small is the vocabulary,
# learned from sentences that are put together here.

VOCABULARY = 2048
IM_START, IM_END, END_OF_TEXT = "<|im_start|>", "<|im_end|>", "<|endoftext|>"

# ChatML as SmolLM2-Instruct renders it: a system turn of the model's own where the conversation has none.
CHATML = """\
{%- if messages and messages[0].role != 'system' -%}
{{ '<|im_start|>system\\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\\n' }}
{%- endif -%}
{%- for turn in messages -%}
{{ '<|im_start|>' + turn.role + '\\n' + turn.content + '<|im_end|>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{ '<|im_start|>assistant\\n' }}
{%- endif -%}"""


_NAMES = """
Anna Ben Carla David Emma Felix Grace Hugo Ivy Jonas Kim Leo Mia Noah Olga Paul Rosa Sam Tina Will
"""
_THINGS = """
apples books pencils coins eggs flowers tickets cookies stamps marbles bottles chairs boxes bags cards stickers
oranges balloons shirts tables miles hours minutes days weeks dollars cents pages students friends children
"""
_VERBS = """
has buys sells gives takes finds loses needs makes eats shares wants packs reads walks earns pays
"""
_STEMS = """
add allow answer appear ask bake bark bend boil bring brush build call catch clean clear climb collect color
cook count cover cross deliver depend draw dream drink dress drop end enter expect fill finish fix fold follow
form gain guess hand happen heat help hold jump keep land last learn lift list look mark match mean meet melt
mix mow move offer open order paint pass pick plant play point pour present print pull push rain reach rent
repair report rest return ride roll row save seat send show sing sort spend stack start step stop swim talk
teach test think throw travel turn wait wash watch weigh wish work
"""


@dataclass(frozen=True)
class Family:
    """One model family's special tokens; `markup` are tokens of their own that decoding does not skip."""

    special: tuple[str, ...]
    eos: str
    pad: str
    bos: str | None = None
    markup: tuple[str, ...] = ()
    adds_bos: bool = False


FAMILIES = {
    "qwen3_5_nothink": Family(
        special=(END_OF_TEXT, IM_START, IM_END, "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"),
        eos=IM_END,
        pad=END_OF_TEXT,
        markup=("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"),
    ),
    "llama3": Family(
        special=("<|begin_of_text|>", "<|end_of_text|>", "<|finetune_right_pad_id|>", "<|start_header_id|>",
                 "<|end_header_id|>", "<|eot_id|>"),
        eos="<|eot_id|>",
        pad="<|finetune_right_pad_id|>",
        bos="<|begin_of_text|>",
        adds_bos=True,
    ),
    "gemma3": Family(
        special=("<pad>", "<eos>", "<bos>", "<start_of_turn>", "<end_of_turn>", "<start_of_image>"),
        eos="<eos>",
        pad="<pad>",
        bos="<bos>",
        adds_bos=True,
    ),
    "chatml": Family(special=(END_OF_TEXT, IM_START, IM_END), eos=IM_END, pad=IM_END, bos=IM_START),
}  # fmt: skip


def shipped_template(template: str) -> str:
    """A template that trl ships, of whatever family."""
    trl = importlib.util.find_spec("trl")
    assert trl is not None and trl.origin is not None, "the templates of tests come with trl"
    return (Path(trl.origin).parent / "chat_templates" / f"{template}.jinja").read_text(encoding="utf-8")


SHIPPED_MARKUP = re.compile(
    r"<\|[^|<>\s{}]+\|>|<｜[^｜<>]+｜>|<\|[a-z_]+>|<[a-z_]+\|>|</?s>|<(?:start|end)_of_turn>|<(?:bos|eos)>|\[/?INST\]|</?think>"
)


def shipped_tokenizer(template: str) -> Any:
    """A tokenizer with a template of trl's, in which all tokens of markup that the template writes are tokens of their own."""
    from tokenizers import AddedToken

    tokenizer, text = tiny_tokenizer("chatml"), shipped_template(template)
    for token in sorted(set(SHIPPED_MARKUP.findall(text))):
        tokenizer.add_tokens([AddedToken(token, special="think>" not in token, normalized=False)])
    tokenizer.chat_template = text
    return tokenizer


def thinking_tokenizer(template: str) -> Any:
    """That of Qwen3.5 with a template of trl's that ends each prompt with <think>."""
    from tokenizers import AddedToken

    tokenizer = tiny_tokenizer("qwen3_5_nothink")
    tokenizer.add_tokens([AddedToken("<｜end▁of▁sentence｜>", special=True, normalized=False)])
    tokenizer.chat_template = shipped_template(template)
    return tokenizer


def tiny_tokenizer(template: str) -> Any:
    """A byte-level BPE tokenizer of about 1,700 tokens with one family's special tokens and chat template.

    As in the families themselves, Llama 3 and Gemma 3 tokenizers put their first token before any text when
    asked for special tokens, although their templates write it too; and Gemma's `eos_token` ends no turn.
    """
    from tokenizers import AddedToken, Regex, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast
    from transformers.models.qwen3_5.tokenization_qwen3_5 import PRETOKENIZE_REGEX, Qwen3_5Tokenizer

    tokenizer: Any
    family = FAMILIES[template]
    vocabulary, merges = _trained()
    names: dict[str, Any] = {"eos_token": family.eos, "pad_token": family.pad, "bos_token": family.bos}
    names["clean_up_tokenization_spaces"] = False
    if template == "qwen3_5_nothink":
        names["unk_token"] = END_OF_TEXT
        tokenizer = Qwen3_5Tokenizer(vocab=dict(vocabulary), merges=list(merges), **names)
    else:
        backend = byte_level_bpe(dict(vocabulary), list(merges))
        if template != "chatml":  # like Qwen, unlike SmolLM2, they keep the line breaks after a header together
            split = pre_tokenizers.Split(Regex(PRETOKENIZE_REGEX), behavior="isolated")
            backend.pre_tokenizer = pre_tokenizers.Sequence(
                [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
            )
        tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, **names)
    tokenizer.add_tokens([AddedToken(token, special=True, normalized=False) for token in family.special])
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in family.markup])
    if family.bos and family.adds_bos:
        pair = (family.bos, tokenizer.convert_tokens_to_ids(family.bos))
        tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{family.bos} $A", special_tokens=[pair]
        )
    tokenizer.chat_template = CHATML if template == "chatml" else shipped_template(template)
    return tokenizer


@lru_cache(maxsize=1)
def _trained() -> tuple[dict[str, int], list[Any]]:
    """Vocabulary and merges of a byte-level BPE trained on sentences that are put together here."""
    from tokenizers import pre_tokenizers, trainers

    backend = byte_level_bpe({}, [])
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=VOCABULARY, initial_alphabet=alphabet, show_progress=False)
    backend.train_from_iterator(_sentences(), trainer)
    state = json.loads(backend.to_str())["model"]
    return state["vocab"], [tuple(merge) for merge in state["merges"]]


def _sentences() -> list[str]:
    turns = (
        "How many does each person get? What is the total price? How much money is left over? Why did you multiply here?"
        " Could you explain that step again? I think the answer should be different. Let me check the result together."
        " First we add the two numbers. Then divide by four. Next subtract what was given away. So the final answer is"
        " \\boxed{42}. #### 42. That makes sense, thank you! Wait, are you sure about this? What happens if it doubles?"
        " Do you know which number was not given in the problem? Please tell me before we continue with our solution."
        " Yes, that is right. No, it was only half as large. Can we solve it another way? Because every part must be"
        " equal, their sum would also be less than one hundred. Write an email about the weather in the city. Sure, here"
        " you are: hello world. You are a helpful assistant. user system model I'm don't can't it's we'll they've you'd"
    )
    stories = [
        f"{name} {verb} {7 * i + 3 * j} {thing} and then {verb} {i + 2} more {thing}.\n"
        for i, name in enumerate(_NAMES.split())
        for j, (verb, thing) in enumerate(zip(_VERBS.split(), _THINGS.split()[i % 15 :], strict=False))
    ]
    forms = [" ".join((stem, f"{stem}s", f"{stem}ed", f"{stem}ing", stem.title())) + " \n\n" for stem in _STEMS.split()]
    return [*stories, *([turns, *turns.split(" ")] * 20), *(forms * 3)]


def build_tiny_qwen35(folder: Path) -> Path:
    """Writes a random Qwen3_5ForCausalLM of two layers, gated DeltaNet and full attention; returns `folder`."""
    from transformers import Qwen3_5ForCausalLM

    tokenizer = tiny_tokenizer("qwen3_5_nothink")
    return _save(folder, Qwen3_5ForCausalLM, _qwen35_text_config(tokenizer), tokenizer)


def build_tiny_multimodal(folder: Path) -> Path:
    """Writes a random Qwen3_5ForConditionalGeneration (text and vision tower), the class that the hub holds."""
    from transformers import Qwen3_5Config, Qwen3_5ForConditionalGeneration

    tokenizer = tiny_tokenizer("qwen3_5_nothink")
    vision = {"depth": 1, "hidden_size": 32, "intermediate_size": 32, "num_heads": 2, "out_hidden_size": 64}
    vision |= {"patch_size": 4, "spatial_merge_size": 2, "temporal_patch_size": 1, "num_position_embeddings": 16}
    names = {"image_token_id": "<|image_pad|>", "video_token_id": "<|video_pad|>"}
    names |= {"vision_start_token_id": "<|vision_start|>", "vision_end_token_id": "<|vision_end|>"}
    ids = {key: tokenizer.convert_tokens_to_ids(token) for key, token in names.items()}
    text = _qwen35_text_config(tokenizer).to_dict()
    config = Qwen3_5Config(text_config=text, vision_config=vision, tie_word_embeddings=True, **ids)
    return _save(folder, Qwen3_5ForConditionalGeneration, config, tokenizer)


def build_tiny_llama(folder: Path, seed: int = 0, dtype: str = "float32") -> Path:
    """Writes a random two-layer LlamaForCausalLM with ChatML's tokenizer; faster than Qwen3.5 on a CPU."""
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = tiny_tokenizer("chatml")
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_key_value_heads": 2}
    config = LlamaConfig(**_common(tokenizer), **sizes, bos_token_id=tokenizer.bos_token_id)
    return _save(folder, LlamaForCausalLM, config, tokenizer, seed, dtype)


def build_tiny_gpt_oss(folder: Path) -> Path:
    """Writes a random GptOssForCausalLM of two layers with trl's template of gpt-oss; returns `folder`."""
    from transformers import GptOssConfig, GptOssForCausalLM

    tokenizer = shipped_tokenizer("gptoss")
    tokenizer.eos_token, tokenizer.pad_token, tokenizer.bos_token = "<|return|>", END_OF_TEXT, None
    sizes = {
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_key_value_heads": 2,
        "head_dim": 16,
    }
    experts = {"num_local_experts": 2, "num_experts_per_tok": 1, "sliding_window": 64}
    return _save(folder, GptOssForCausalLM, GptOssConfig(**_common(tokenizer), **sizes, **experts), tokenizer)


def _common(tokenizer: Any) -> dict[str, Any]:
    """Return what the configs of all tiny models have in common."""
    ids = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id, "vocab_size": len(tokenizer)}
    return {**ids, "num_attention_heads": 4, "max_position_embeddings": 4096, "tie_word_embeddings": True}


def _qwen35_text_config(tokenizer: Any) -> Any:
    from transformers import Qwen3_5TextConfig

    sizes: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 128, "num_key_value_heads": 2, "head_dim": 64}
    sizes |= {"num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"]}
    sizes |= {f"linear_{name}_head_dim": 64 for name in ("key", "value")}
    sizes |= {"linear_num_key_heads": 1, "linear_num_value_heads": 2}
    # mrope_section sums to head_dim * partial_rotary_factor / 2.
    rope = {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25}
    rope |= {"mrope_section": [4, 2, 2], "mrope_interleaved": True}
    return Qwen3_5TextConfig(**_common(tokenizer), **sizes, rope_parameters=rope)


def _save(folder: Path, model_class: Any, config: Any, tokenizer: Any, seed: int = 0, dtype: str = "float32") -> Path:
    import torch

    # The generator of the caller's process is left as it was.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = model_class(config).to(getattr(torch, dtype))
    turn_ends = [IM_END, END_OF_TEXT, tokenizer.eos_token]
    model.generation_config.eos_token_id = list(dict.fromkeys(tokenizer.convert_tokens_to_ids(turn_ends)))
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
