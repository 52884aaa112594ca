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

SECONDS = 240  # of one stage on a GPU at most, so that all end within ten minutes unless several hang
SECONDS_TINY = 900  # a CPU that others use as well may be slow
SFT, GRPO = Path("recipes/qwen2b_sft.yaml"), Path("recipes/qwen2b_grpo_1gpu.yaml")


def main(argv: Sequence[str]) -> None:
    stages = list(STAGES)[1:]
    parser = argparse.ArgumentParser(prog="python -m train.gpu_check", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--tiny", action="store_true", help="a tiny model, also on a CPU, in about a minute")
    parser.add_argument("--out", type=Path, default=Path("runs/gpu_check"), metavar="DIR", help="default: %(default)s")
    parser.add_argument("--stages", nargs="+", choices=stages, default=stages, help="default: all")
    parser.add_argument("--stage", choices=list(STAGES), help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    if arguments.stage:
        from probe.files import write_json

        found = STAGES[arguments.stage](arguments.out, arguments.tiny)
        write_json(arguments.out / f"{arguments.stage}.json", found)
        return
    report = check(arguments.out, arguments.tiny, arguments.stages)
    failed = [name for name, stage in report["stages"].items() if "error" in stage]
    if failed:
        raise NextturnError(f"{', '.join(failed)} failed; the reasons are in {arguments.out / 'report.json'}")
    print(f"all is well: {arguments.out / 'report.json'}")


def check(out: Path, tiny: bool, stages: Sequence[str]) -> dict[str, Any]:
    """Makes the model, then runs the stages one after the other; gives what report.json then holds."""
    from probe.files import write_json

    report: dict[str, Any] = {"schema": 1, "tiny": tiny, "stages": {}}
    made = _stage("model", out, tiny)
    if "error" in made:
        report["stages"]["model"] = made
    for name in stages if "error" not in made else ():
        found = report["stages"][name] = _stage(name, out, tiny)
        parts = [
            f"{key.replace('_', ' ')} {value if isinstance(value, str) else json.dumps(value)}"
            for key, value in found.items()
            if key not in ("seconds", "error")
        ]
        failed = f"FAILED: {found['error']}; " if "error" in found else ""
        print(f"{name:<8} {failed}{', '.join(parts)} ({found['seconds']:.0f} s)", flush=True)
        write_json(out / "report.json", report)
    write_json(out / "report.json", report)
    return report


def _stage(name: str, out: Path, tiny: bool) -> dict[str, Any]:
    """What the stage found, or `error` with the end of what it said."""
    from probe.files import read_json

    out.mkdir(parents=True, exist_ok=True)
    result = out / f"{name}.json"
    result.unlink(missing_ok=True)
    command = [sys.executable, "-m", "train.gpu_check", "--stage", name, "--out", str(out)]
    started = time.monotonic()
    seconds = SECONDS_TINY if tiny else SECONDS
    code: int | str
    with (out / f"{name}.log").open("w") as log:
        try:
            done = subprocess.run(
                [*command, *(["--tiny"] if tiny else [])], stdout=log, stderr=subprocess.STDOUT, timeout=seconds
            )
            code = done.returncode
        except subprocess.TimeoutExpired:
            code = f"none within {seconds} s"
    found: dict[str, Any] = read_json(result) if result.is_file() else {}
    if code != 0:
        lines = (out / f"{name}.log").read_text(errors="replace").strip().splitlines()
        found["error"] = f"exit code {code}: {lines[-1] if lines else 'it said nothing'} ({out / name}.log)"
    return {**found, "seconds": round(time.monotonic() - started, 1)}


# --- The stages, each in a process of its own: (out, tiny) to what it found, which goes to OUT/STAGE.json.


# Of the Qwen3.5 family and small enough for a CPU; layers, heads and vocabulary are those of no release.
TINY_SHAPE = {
    "model_type": "qwen3_5_text", "vocab_size": 512, "hidden_size": 128, "intermediate_size": 256,
    "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64,
    "linear_num_key_heads": 1, "linear_num_value_heads": 2, "linear_key_head_dim": 64, "linear_value_head_dim": 64,
    "max_position_embeddings": 4096, "tie_word_embeddings": True,
}  # fmt: skip


def make_model(out: Path, tiny: bool) -> dict[str, Any]:
    """A random model with a tokenizer of single bytes; of the 2B shape with its full vocabulary, most of it never used."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from train.plan import KNOWN_SHAPES

    folder = out / "model"
    if not (folder / "config.json").is_file():
        shape = dict(TINY_SHAPE if tiny else KNOWN_SHAPES["Qwen/Qwen3.5-2B"])
        tokenizer = _byte_tokenizer()
        ends = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
        config: Any = AutoConfig.for_model(shape.pop("model_type"), **shape, **ends)
        torch.manual_seed(0)
        with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
            model: Any = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    return {"model": str(folder)}


def _byte_tokenizer() -> Any:
    """Qwen3.5's tokenizer class, special tokens and chat template (trl ships it) over a vocabulary of the 256 bytes."""
    import trl
    from tokenizers import AddedToken, pre_tokenizers
    from transformers.models.qwen3_5.tokenization_qwen3_5 import Qwen3_5Tokenizer

    characters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer: Any = Qwen3_5Tokenizer(
        vocab={character: number for number, character in enumerate(characters)},
        merges=[],
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        unk_token="<|endoftext|>",
    )
    special = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
    tokenizer.add_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in ("<think>", "</think>")])
    template = Path(trl.__file__).parent / "chat_templates" / "qwen3_5_nothink.jinja"
    tokenizer.chat_template = template.read_text(encoding="utf-8")
    return tokenizer


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


# Of the norm. bfloat16 rounds each number by up to 0.4% and the errors of a chunk add up; wrong gradients, as some
# versions of triton made on Hopper (fla issues 640 and 984), are off by far more.
GRADIENT_ERROR = 0.05


def differences(kernel: Callable[..., Any], plain: Callable[..., Any], device: str) -> dict[str, Any]:
    """Relative differences of the output and of the gradients of q, k, v, g and beta: {"largest_difference", "of"}."""
    import torch

    torch.manual_seed(0)
    inputs = {name: torch.randn(2, 256, 4, 128, device=device) for name in ("q", "k", "v")}  # [B, T, heads, width]
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
    """Conversations of one exchange that are as long as a row may be, almost to the token."""
    from probe.chat import Chat
    from probe.models import load_tokenizer, resolve
    from train.recipe import load_sft_recipe
    from train.sft import train

    rows, length, steps = (2, 128, 4) if tiny else (8, 2048, 10)
    chat = Chat(load_tokenizer(resolve(str(out / "model"))), False)

    def conversation(sentences: int) -> list[dict[str, str]]:
        answer = " ".join(f"Then add {number}." for number in range(sentences))
        return [{"role": "user", "content": "How many are left?"}, {"role": "assistant", "content": answer}]

    n = 1
    while len(chat.training_rows(conversation(n + 1))[0].input_ids) <= length:
        n += max(1, n // 50)
    data = _write(out / "talks.jsonl", [{"messages": conversation(max(1, n - n // 50 - 1))}] * (2 * rows))
    options = {"data.recipe": "null", "data.path": data, "train.max_steps": steps, "train.max_length": length}
    options |= {"train.per_device_train_batch_size": rows, "train.include_num_input_tokens_seen": "all"}
    clock = _clock()
    train(load_sft_recipe(SFT, _options(out, "sft", options)), "never", [clock])
    return _figures(clock, rows, length, None)


def train_grpo(out: Path, tiny: bool) -> dict[str, Any]:
    import torch

    from data_builders.rows import RlRow
    from train.grpo import train
    from train.recipe import load_grpo_recipe

    turn, rows, steps = (8, 4, 2) if tiny else (256, 8, 4)
    prompts = []
    for n in range(3, 19):
        problem = f"Ann has {n} apples and buys {n + 1} more. How many apples does she have?"
        prompts.append(
            RlRow(
                id=f"apples-{n}", kind="complete", turn=0, prompt=({"role": "user", "content": problem},),
                answer=str(2 * n + 1), problem=problem, solution=f"{n} + {n + 1} = {2 * n + 1}",
            )
        )  # fmt: skip
    data = _write(out / "prompts.jsonl", [vars(row) for row in prompts])
    options: dict[str, Any] = {"data.recipe": "null", "data.path": data, "rollout.window": 1}
    options |= {"rollout.max_turn_tokens": turn, "train.max_completion_length": turn, "train.max_steps": steps}
    options |= {"train.num_generations": 4, "train.per_device_train_batch_size": rows, "data.max_prompt_tokens": 256}
    options |= {"train.gradient_accumulation_steps": 1, "train.vllm_max_model_length": 2048}
    vllm = importlib.util.find_spec("vllm") is not None and torch.cuda.is_available()
    options["train.use_vllm"] = str(vllm).lower()
    clock = _clock()
    train(load_grpo_recipe(GRPO, _options(out, "grpo", options)), "never", [clock])
    engine = "vllm" if vllm else "transformers (vllm is not installed or there is no GPU)"
    return {"engine": engine, **_figures(clock, rows, 256 + turn, turn)}


def probe_model(out: Path, tiny: bool) -> dict[str, Any]:
    from probe.__main__ import main
    from probe.files import read_json

    rows = [
        {"id": str(n), "question": f"Ann has {n} apples and eats 1. How many?", "answer": str(n - 1)}
        for n in range(2, 18)
    ]
    questions = _write(out / "questions.jsonl", rows[: 4 if tiny else 16])
    tokens = "8" if tiny else "128"
    sets = f"{{apples: {{path: {questions}}}}}"
    limits = ["--probe.max_answer_tokens", tokens, "--probe.max_user_tokens", tokens, "--probe.sets", sets]
    label = f"probe-{int(time.time())}"
    main(["run", str(out / "model"), "recipes/probe.yaml", "--out", str(out / label), *limits])
    timing = read_json(out / label / "results.json")["timing"]
    made = timing["answer_tokens"] + timing["user_tokens"]
    return {"tokens_per_second": round(made / max(timing["wall_s"], 0.1), 1), "tokens": made}


STAGES: dict[str, Callable[[Path, bool], dict[str, Any]]] = {
    "model": make_model, "machine": look_at_machine, "kernels": compare_kernels,
    "sft": train_sft, "grpo": train_grpo, "probe": probe_model,
}  # fmt: skip


def _write(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


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


# --- Speed and peak memory of a script's own run, beside what its dry run would have estimated.

WARM_UP = 2  # steps that are not timed: kernels are chosen and compiled in them
TERA = 1e12


def _clock() -> Any:
    """A callback that notes the time and the tokens so far after every step, and keeps what the run ended with."""
    import torch
    from transformers import TrainerCallback

    class Clock(TrainerCallback):  # type: ignore[misc]
        def __init__(self) -> None:
            self.marks: list[tuple[float, int]] = []

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            # SFT counts what goes in, padding included; GRPO prompts and completions.
            self.marks.append((time.monotonic(), int(state.num_input_tokens_seen or getattr(state, "num_tokens", 0))))

        def on_train_end(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
            self.args, self.state, self.model = args, state, model

    return Clock()


def _figures(clock: Any, rows: int, length: int, completion: int | None) -> dict[str, Any]:
    """Speed over `rows` sequences of `length` tokens a step, of which GRPO trains the last `completion`."""
    import torch

    from train.plan import GIB, memory_parts, size_of
    from train.recipe import LoraSection, ModelSection
    from train.step_memory import Step, step_memory

    warm = min(WARM_UP, len(clock.marks) - 2)
    (begun, before), (ended, after) = clock.marks[warm], clock.marks[-1]
    steps, seconds = len(clock.marks) - 1 - warm, ended - begun
    losses = [row["loss"] for row in clock.state.log_history if "loss" in row]
    speed = (after - before or steps * rows * length) / seconds

    args, model = clock.args, clock.model
    folder = Path(model.get_base_model().config._name_or_path)
    size = size_of(ModelSection(name=str(folder), lora=LoraSection()), folder)
    given = {"gradient_accumulation_steps": args.gradient_accumulation_steps, "bf16": args.bf16}
    given["gradient_checkpointing"] = args.gradient_checkpointing
    step = step_memory(size.make, Step(rows, length, completion, args.use_cpu, given))
    estimated = sum(memory_parts(size, step, given, stage=0, ranks=1).values())

    found: dict[str, Any] = {"loss": losses[-1] if losses else None, "seconds_a_step": round(seconds / steps, 3)}
    found |= {"tokens_per_second": round(speed), "estimated_gib": round(estimated / GIB, 2)}
    if not torch.cuda.is_available():
        return found
    found["peak_gib"] = round(torch.cuda.max_memory_allocated() / GIB, 2)
    if completion is None:
        parameters = sum(p.numel() for p in model.parameters())
        flops = speed * training_flops(model.config, parameters, length, lora=True)
        peak = peak_tflops(torch.cuda.get_device_name())
        found["model_tflops"] = round(flops / TERA, 1)
        found["share_of_peak"] = round(flops / TERA / peak, 3) if peak else "unknown chip"
    return found


# Dense bf16 tensor-core peak in TFLOP/s by a part of torch's device name; the first that fits counts. From NVIDIA's data
# sheets: B200 and H200 (2024), H100 (2023: SXM, PCIe and NVL differ), A100 (2021), L40S, L4 (2023), A10 (2021), and the
# white papers of Ada (RTX 4090, 6000 Ada) and Ampere GA102 (RTX 3090), with float32 accumulation.
PEAKS = {
    "B200": 2250.0, "H200": 989.4, "H100 PCIe": 756.0, "H100 NVL": 835.0, "H100": 989.4, "A100": 312.0, "L40S": 362.0,
    "L4": 121.0, "A10": 125.0, "RTX 6000 Ada": 364.2, "RTX 4090": 165.2, "RTX 3090": 71.0,
}  # fmt: skip


def peak_tflops(device_name: str) -> float | None:
    """None for a chip that is not in the table."""
    words = f"{device_name} ".replace("-", " ")
    return next((peak for name, peak in PEAKS.items() if f"{name} " in words), None)


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


if __name__ == "__main__":
    sys.exit(run_command(main))
