"""Tries training and probing on this machine's GPU with a random model of Qwen3.5-2B's shape; no hub is needed.

    python -m train.gpu_check [--tiny] [--out DIR]      # or: bash recipes/gpu_check.sh

Each stage is a process of its own, so that one that crashes leaves the others; DIR/report.json is written after each.
SFT and GRPO run the shipped 2B recipes through train/sft.py's and train/grpo.py's own functions, with fewer steps.
Exit code 1 where a stage failed; a stage whose library is missing says so and is no failure.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from probe.errors import NextturnError, run_command

STAGES = ("machine", "kernels", "sft", "grpo", "probe")
SECONDS = 240  # of one stage on a GPU at most, so that all end within ten minutes unless several hang
SECONDS_TINY = 900  # a CPU that others use as well may be slow


def main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m train.gpu_check", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--tiny", action="store_true", help="a tiny model, also on a CPU, in about a minute")
    parser.add_argument("--out", type=Path, default=Path("runs/gpu_check"), metavar="DIR", help="default: %(default)s")
    parser.add_argument("--stages", nargs="+", choices=STAGES, default=list(STAGES), help="default: all")
    parser.add_argument("--stage", choices=("model", *STAGES), help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    if arguments.stage:
        run_stage(arguments.stage, arguments.out, arguments.tiny)
        return
    report = check(arguments.out, arguments.tiny, arguments.stages)
    failed = [name for name, stage in report["stages"].items() if "error" in stage]
    if failed:
        raise NextturnError(f"{', '.join(failed)} failed; the reasons are in {arguments.out / 'report.json'}")
    print(f"all is well: {arguments.out / 'report.json'}")


def check(out: Path, tiny: bool, stages: Sequence[str]) -> dict[str, Any]:
    """Runs the stages one after the other; gives what report.json then holds."""
    from probe.files import write_json

    report: dict[str, Any] = {"schema": 1, "tiny": tiny, "stages": {}}
    made = _stage("model", out, tiny)
    if "error" in made:
        report["stages"]["model"] = made
    for name in stages if "error" not in made else ():
        report["stages"][name] = _stage(name, out, tiny)
        print(told(name, report["stages"][name]), flush=True)
        write_json(out / "report.json", report)
    write_json(out / "report.json", report)
    return report


def _stage(name: str, out: Path, tiny: bool) -> dict[str, Any]:
    """What the stage found, or `error` with the end of what it said."""
    from probe.files import read_json

    out.mkdir(parents=True, exist_ok=True)
    result = out / f"{name}.json"
    result.unlink(missing_ok=True)
    command = [
        sys.executable,
        "-m",
        "train.gpu_check",
        "--stage",
        name,
        "--out",
        str(out),
        *(["--tiny"] if tiny else []),
    ]
    started = time.monotonic()
    seconds = SECONDS_TINY if tiny else SECONDS
    code: int | str
    with (out / f"{name}.log").open("w") as log:
        try:
            code = subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, timeout=seconds).returncode
        except subprocess.TimeoutExpired:
            code = f"none within {seconds} s"
    found: dict[str, Any] = read_json(result) if result.is_file() else {}
    if code != 0:
        lines = (out / f"{name}.log").read_text(errors="replace").strip().splitlines()
        found["error"] = f"exit code {code}: {lines[-1] if lines else 'it said nothing'} ({out / name}.log)"
    return {**found, "seconds": round(time.monotonic() - started, 1)}


def told(name: str, found: dict[str, Any]) -> str:
    """One stage as a line."""
    shown = {key: value for key, value in found.items() if key not in ("seconds", "error")}
    parts = [
        f"{key.replace('_', ' ')} {value if isinstance(value, str) else json.dumps(value)}"
        for key, value in shown.items()
    ]
    failed = f"FAILED: {found['error']}; " if "error" in found else ""
    return f"{name:<8} {failed}{', '.join(parts)} ({found['seconds']:.0f} s)"


# --- Floating-point work of training, and what chips can do at most: the share of one in the other is the MFU.

TERA = 1e12

# Dense bf16 tensor-core peak in TFLOP/s by a part of torch's device name; the first that fits counts. From NVIDIA's data
# sheets: B200 and H200 (2024), H100 (2023: SXM, PCIe and NVL differ), A100 (2021), L40S, L4 (2023), A10 (2021), and the
# white papers of Ada (RTX 4090, 6000 Ada) and Ampere GA102 (RTX 3090), with float32 accumulation.
PEAKS: tuple[tuple[str, float], ...] = (
    ("B200", 2250.0),
    ("H200", 989.4),
    ("H100 PCIe", 756.0),
    ("H100 NVL", 835.0),
    ("H100", 989.4),
    ("A100", 312.0),
    ("L40S", 362.0),
    ("L4", 121.0),
    ("A10", 125.0),
    ("RTX 6000 Ada", 364.2),
    ("RTX 4090", 165.2),
    ("RTX 3090", 71.0),
)


def peak_tflops(device_name: str) -> float | None:
    """None for a chip that is not in the table."""
    words = f"{device_name} "
    return next((peak for name, peak in PEAKS if f"{name} " in words.replace("-", " ")), None)


def training_flops(config: Any, parameters: int, length: int, lora: bool) -> float:
    """Model FLOPs per token of a forward and a backward pass, without what gradient checkpointing repeats.

    6 N a token (arXiv 2001.08361, section 2.1), 4 N where the weights are frozen and only pass gradients on; and for each
    layer with full attention 6 x length x width of its heads, causal, as in arXiv 2204.02311, appendix B. The recurrence
    of linear attention, a few per cent, is left out.
    """
    kinds = getattr(config, "layer_types", None) or ["full_attention"] * config.num_hidden_layers
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    attention = 6 * kinds.count("full_attention") * length * config.num_attention_heads * head
    return (4 if lora else 6) * parameters + attention


# --- The stages of train/gpu_check.py, each run in a process of its own; what it found goes to OUT/STAGE.json.

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

    from probe.tiny import build_tiny_qwen35, tiny_tokenizer
    from train.plan import KNOWN_SHAPES

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
    from train.recipe import load_sft_recipe
    from train.sft import train
    from train.timed import Clock

    rows, length, steps = (2, 128, 4) if tiny else (8, 2048, 10)
    data = _talks(out, length, n=2 * rows)
    options = {"data.recipe": "null", "data.path": str(data), "train.max_steps": steps, "train.max_length": length}
    options |= {"train.per_device_train_batch_size": rows, "train.include_num_input_tokens_seen": "all"}
    clock = Clock()
    train(load_sft_recipe(SFT, _options(out, "sft", options)), "never", [clock])
    return clock.figures(rows, length, None)


def train_grpo(out: Path, tiny: bool) -> dict[str, Any]:
    import torch

    from train.grpo import train
    from train.recipe import load_grpo_recipe
    from train.timed import Clock

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
    from data_builders.rows import RlRow

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


if __name__ == "__main__":
    sys.exit(run_command(main))
