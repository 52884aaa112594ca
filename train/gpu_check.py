"""Make a small random Qwen3.5 model for recipes/gpu_check.sh, and test the kernels of linear attention.

python -m nextturn.train.gpu_check model DIR | kernels
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from nextturn.probe.command.errors import BadInput, NextturnError, run_command


def main(argv: Sequence[str]) -> None:
    match argv:
        case ["model", folder]:
            make_model(Path(folder))
        case ["kernels"]:
            print(compare_kernels())
        case _:
            raise BadInput("gpu_check: expected `model DIR` or `kernels`; bash recipes/gpu_check.sh runs all stages")


def make_model(folder: Path) -> None:
    """Write a random model with Qwen3.5-2B's head sizes and layer kinds, and a tokenizer of single bytes."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    tokenizer = _byte_tokenizer()
    config: Any = AutoConfig.for_model(
        "qwen3_5_text", vocab_size=512, hidden_size=256, intermediate_size=512, num_hidden_layers=4,
        num_attention_heads=2, num_key_value_heads=2, head_dim=256, linear_num_key_heads=2, linear_num_value_heads=2,
        max_position_embeddings=4096, tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    torch.manual_seed(0)
    model: Any = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _byte_tokenizer() -> Any:
    """Return a tokenizer of the 256 bytes with Qwen3.5's class, special tokens and chat template (trl ships it)."""
    import trl
    from tokenizers import AddedToken, pre_tokenizers
    from transformers.models.qwen3_5.tokenization_qwen3_5 import Qwen3_5Tokenizer

    vocabulary = {character: number for number, character in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    ends = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "unk_token": "<|endoftext|>"}
    tokenizer: Any = Qwen3_5Tokenizer(vocab=vocabulary, merges=[], **ends)
    special = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
    tokenizer.add_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in ("<think>", "</think>")])
    template = Path(trl.__file__).parent / "chat_templates" / "qwen3_5_nothink.jinja"
    tokenizer.chat_template = template.read_text(encoding="utf-8")
    return tokenizer


# --- Gradients of flash-linear-attention, compared with plain torch.

# The largest relative error, by the norm. bfloat16 rounds each number by up to 0.4% and the errors of a chunk add up. Wrong
# gradients, which some versions of triton made on Hopper (fla issues 640 and 984), are off by far more.
GRADIENT_ERROR = 0.05


def compare_kernels() -> str:
    """Compare the gated delta rule of the installed kernels with plain torch in float32."""
    from fla.ops.gated_delta_rule import chunk_gated_delta_rule
    from transformers.models.qwen3_5.modeling_qwen3_5 import torch_chunk_gated_delta_rule

    plain = getattr(torch_chunk_gated_delta_rule, "__wrapped__", torch_chunk_gated_delta_rule)
    return differences(chunk_gated_delta_rule, plain, "cuda")


def differences(kernel: Callable[..., Any], plain: Callable[..., Any], device: str) -> str:
    """Return the largest relative difference of the output and of the gradients of q, k, v, g and beta.

    Raises:
        NextturnError: The difference is more than GRADIENT_ERROR.
    """
    import torch

    torch.manual_seed(0)
    inputs = {name: torch.randn(2, 256, 4, 128, device=device) for name in ("q", "k", "v")}  # [B, T, heads, width]
    inputs |= {"g": -torch.rand(2, 256, 4, device=device), "beta": torch.rand(2, 256, 4, device=device)}
    weights = torch.randn(2, 256, 4, 128, device=device)

    def results(rule: Callable[..., Any], dtype: Any) -> dict[str, Any]:
        kept = {name: torch.float32 if name == "g" else dtype for name in inputs}
        q, k, v, g, beta = leaves = [value.to(kept[name]).requires_grad_() for name, value in inputs.items()]
        output, _ = rule(q, k, v, g=g, beta=beta, use_qk_l2norm_in_kernel=True)
        gradients = torch.autograd.grad((output.float() * weights).sum(), leaves)
        values = (value.detach().float() for value in (output, *gradients))
        return dict(zip(("output", *inputs), values, strict=True))

    right = results(plain, torch.float32)
    errors = {
        name: float((value - right[name]).norm() / right[name].norm())
        for name, value in results(kernel, torch.bfloat16).items()
    }
    worst = max(errors, key=errors.__getitem__)
    if not errors[worst] <= GRADIENT_ERROR:
        raise NextturnError(
            f"the kernels' {worst} is off by {errors[worst]:.1%}, expected at most {GRADIENT_ERROR:.0%}: do not train with "
            "them; install other versions of flash-linear-attention or triton, or uninstall flash-linear-attention"
        )
    return f"largest difference {errors[worst]:.2%}, of {worst}"


if __name__ == "__main__":
    sys.exit(run_command(main))
