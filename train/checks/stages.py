"""The stages of train/gpu_check.py, each run in a process of its own; what it found goes to OUT/STAGE.json."""

from __future__ import annotations

import importlib.util
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from train.checks.speed import peak_tflops

SFT, GRPO = Path("recipes/qwen2b_sft.yaml"), Path("recipes/qwen2b_grpo_1gpu.yaml")
# Of the norm. bfloat16 rounds each number by up to 0.4% and the errors of a chunk add up; wrong gradients, as some
# versions of triton made on Hopper (fla issues 640 and 984), are off by far more.
GRADIENT_ERROR = 0.05


def run_stage(name: str, out: Path, tiny: bool) -> None:
    found: dict[str, Any] = _STAGES[name](out, tiny)
    from probe.files import write_json

    write_json(out / f"{name}.json", found)


def make_model(out: Path, tiny: bool) -> dict[str, Any]:
    """A random model with a small tokenizer; of the 2B shape with its full vocabulary, of which most is never used."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from probe.models.tiny import build_tiny_qwen35, tiny_tokenizer
    from train.memory import KNOWN_SHAPES

    folder = out / "model"
    if not (folder / "config.json").is_file():
        if tiny:
            build_tiny_qwen35(folder, dtype="bfloat16")
        else:
            shape = dict(KNOWN_SHAPES["Qwen/Qwen3.5-2B"])
            tokenizer = tiny_tokenizer("qwen3_5_nothink")
            ends = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
            config: Any = AutoConfig.for_model(shape.pop("model_type"), **shape, **ends)
            torch.manual_seed(0)
            with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
                model: Any = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
            model.save_pretrained(folder)
            tokenizer.save_pretrained(folder)
    return {"model": str(folder)}


def look_at_machine(out: Path, tiny: bool) -> dict[str, Any]:
    import torch

    if not torch.cuda.is_available():
        return {"chip": "cpu", "peak_tflops": "unknown chip"}
    name = torch.cuda.get_device_name()
    return {"chip": name, "peak_tflops": peak_tflops(name) or "unknown chip", "torch": torch.__version__}


def compare_kernels(out: Path, tiny: bool) -> dict[str, Any]:
    """The gated delta rule with the installed kernels against plain torch in float32: outputs and all gradients.

    Raises:
        NextturnError: they differ by more than GRADIENT_ERROR of the larger one's norm.
    """
    import torch

    if importlib.util.find_spec("fla") is None or not torch.cuda.is_available():
        return {"skipped": "flash-linear-attention and a GPU are needed; linear attention runs in plain torch"}
    from fla.ops.gated_delta_rule import chunk_gated_delta_rule
    from transformers.models.qwen3_5.modeling_qwen3_5 import torch_chunk_gated_delta_rule

    plain = getattr(torch_chunk_gated_delta_rule, "__wrapped__", torch_chunk_gated_delta_rule)
    return differences(chunk_gated_delta_rule, plain, "cuda")


def differences(kernel: Callable[..., Any], plain: Callable[..., Any], device: str) -> dict[str, Any]:
    """Relative differences of the output and of the gradients of q, k, v, g and beta: {"largest", "of"}."""
    import torch

    from probe.errors import NextturnError

    torch.manual_seed(0)
    inputs = {name: torch.randn(2, 256, 4, 128, device=device) for name in ("q", "k", "v")}
    inputs["g"] = -torch.rand(2, 256, 4, device=device)
    inputs["beta"] = torch.rand(2, 256, 4, device=device)
    weights = torch.randn(2, 256, 4, 128, device=device)
    results = []
    for rule, dtype in ((kernel, torch.bfloat16), (plain, torch.float32)):
        leaves = {
            name: value.to(dtype if name != "g" else torch.float32).requires_grad_() for name, value in inputs.items()
        }
        q, k, v, g, beta = leaves.values()
        made, _ = rule(q, k, v, g=g, beta=beta, use_qk_l2norm_in_kernel=True)
        (made.float() * weights).sum().backward()
        results.append({"output": made.detach().float(), **{name: leaf.grad.float() for name, leaf in leaves.items()}})  # type: ignore[union-attr]
    errors = {
        name: float((value - results[1][name]).norm() / results[1][name].norm()) for name, value in results[0].items()
    }
    worst = max(errors, key=errors.__getitem__)
    if not errors[worst] <= GRADIENT_ERROR:
        raise NextturnError(
            f"the kernels' {worst} is off by {errors[worst]:.1%}, wanted {GRADIENT_ERROR:.0%} at most: do not train with "
            "them; another version of flash-linear-attention or triton, or pip uninstall flash-linear-attention fla-core"
        )
    return {"largest_difference": round(errors[worst], 5), "of": worst}


def train_sft(out: Path, tiny: bool) -> dict[str, Any]:
    from train.checks.timed import Clock
    from train.recipe import load_sft_recipe
    from train.sft import train

    rows, length, steps = (2, 128, 4) if tiny else (8, 2048, 10)
    data = _talks(out, length, n=2 * rows)
    options = {"data.recipe": "null", "data.path": str(data), "train.max_steps": steps, "train.max_length": length}
    options |= {"train.per_device_train_batch_size": rows, "train.include_num_input_tokens_seen": "all"}
    clock = Clock()
    train(load_sft_recipe(SFT, _options(out, "sft", options)), "never", [clock])
    return clock.figures(rows, length, None)


def train_grpo(out: Path, tiny: bool) -> dict[str, Any]:
    import torch

    from train.checks.timed import Clock
    from train.grpo import train
    from train.grpo_recipe import load_grpo_recipe

    turn, rows, steps = (8, 4, 2) if tiny else (256, 8, 4)
    options: dict[str, Any] = {"data.recipe": "null", "data.path": str(_prompts(out)), "rollout.window": 1}
    options |= {"rollout.max_turn_tokens": turn, "train.max_completion_length": turn, "train.max_steps": steps}
    options |= {"train.num_generations": 4, "train.per_device_train_batch_size": rows, "data.max_prompt_tokens": 256}
    options |= {"train.gradient_accumulation_steps": 1, "train.vllm_max_model_length": 2048}
    vllm = importlib.util.find_spec("vllm") is not None and torch.cuda.is_available()
    options["train.use_vllm"] = str(vllm).lower()
    clock = Clock()
    train(load_grpo_recipe(GRPO, _options(out, "grpo", options)), "never", [clock])
    engine = "vllm" if vllm else "transformers (vllm is not installed or there is no GPU)"
    return {"engine": engine, **clock.figures(rows, 256 + turn, turn)}


def probe_model(out: Path, tiny: bool) -> dict[str, Any]:
    from probe.__main__ import main
    from probe.files import read_json

    questions = out / "questions.jsonl"
    rows = [
        {"id": str(n), "question": f"Ann has {n} apples and eats 1. How many?", "answer": str(n - 1)}
        for n in range(2, 18)
    ]
    questions.write_text("".join(json.dumps(row) + "\n" for row in rows[: 4 if tiny else 16]))
    tokens = 8 if tiny else 128
    sets = f"{{apples: {{path: {questions}}}}}"
    limits = ["--probe.max_answer_tokens", str(tokens), "--probe.max_user_tokens", str(tokens), "--probe.sets", sets]
    label = f"probe-{int(time.time())}"
    main(["run", str(out / "model"), "recipes/probe.yaml", "--out", str(out / label), *limits])
    timing = read_json(out / label / "results.json")["timing"]
    made = timing["answer_tokens"] + timing["user_tokens"]
    return {"tokens_per_second": round(made / max(timing["wall_s"], 0.1), 1), "tokens": made}


def _options(out: Path, stage: str, more: dict[str, Any]) -> list[str]:
    run = out / f"{stage}-{int(time.time())}"
    common = {
        "model.name": out / "model",
        "train.output_dir": run,
        "train.save_strategy": "no",
        "train.warmup_steps": 0,
    }
    common |= {"train.logging_steps": 1, "probe.when": "never", "tracking.to": "none"}
    return [word for key, value in {**common, **more}.items() for word in (f"--{key}", str(value))]


def _talks(out: Path, length: int, n: int) -> Path:
    """Conversations of one exchange that are as long as a row may be, almost to the token."""
    from probe.chat import Chat
    from probe.models import load_tokenizer, resolve

    chat = Chat(load_tokenizer(resolve(str(out / "model"))), False)

    def talk(words: int) -> list[dict[str, str]]:
        answer = " ".join(f"Then add {number}." for number in range(words))
        return [{"role": "user", "content": "How many are left?"}, {"role": "assistant", "content": answer}]

    words = 1
    while len(chat.training_rows(talk(words + 1))[0].input_ids) <= length:
        words += max(1, words // 50)
    path = out / "talks.jsonl"
    path.write_text((json.dumps({"messages": talk(max(1, words - words // 50 - 1))}) + "\n") * n)
    return path


def _prompts(out: Path) -> Path:
    from data_builders.rl import RlRow

    path, rows = out / "prompts.jsonl", []
    for n in range(3, 19):
        problem = f"Ann has {n} apples and buys {n + 1} more. How many apples does she have?"
        prompt = ({"role": "user", "content": problem},)
        solution = f"{n} + {n + 1} = {2 * n + 1}"
        told: dict[str, Any] = {"id": f"apples-{n}", "kind": "complete", "turn": 0, "prompt": prompt}
        rows.append(RlRow(**told, answer=str(2 * n + 1), problem=problem, solution=solution))
    path.write_text("".join(json.dumps(vars(row)) + "\n" for row in rows))
    return path


_STAGES: dict[str, Callable[[Path, bool], dict[str, Any]]] = {
    "model": make_model, "machine": look_at_machine, "kernels": compare_kernels,
    "sft": train_sft, "grpo": train_grpo, "probe": probe_model,
}  # fmt: skip
