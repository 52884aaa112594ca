"""Check this machine's GPUs: run the real commands on a small random model of the Qwen3.5 family. The hub is not needed.

    bash recipes/gpu_check.sh [--out DIR] [--stages NAME ...]

Each stage is a process of its own, so that one that crashes or hangs does not stop the others. DIR/STAGE.log holds its output,
and DIR/verdict.txt is one page to paste into an issue. Exit code 1: a stage failed. A stage is skipped if its GPU or library
is missing.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from nextturn.probe.errors import NextturnError, run_command
from nextturn.probe.files import read_json, write_atomic

MARK = "NEXTTURN_GPU_CHECK_STAGE"
STEPS = 2


class Stage(NamedTuple):
    """A command and how to read its results.

    Attributes:
        command: The words after `python`.
        read: Takes the log and returns a summary of the results. Raises an error if they are missing.
        seconds: The time limit. The first run on a machine compiles kernels and CUDA graphs.
        skip: Why the stage cannot run here; empty if it can.
    """

    command: list[str]
    read: Callable[[Path], str]
    seconds: float
    skip: str = ""


def main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m nextturn.train.gpu_check", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--out", type=Path, default=Path("runs/gpu_check"), metavar="DIR", help="default: %(default)s")
    parser.add_argument("--stages", nargs="+", metavar="NAME", help="default: all")
    parser.add_argument("--kernels", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    if arguments.kernels:
        print(compare_kernels())
        return
    make_model(arguments.out / "model")
    stages = stages_in(arguments.out)
    if unknown := set(arguments.stages or ()) - set(stages):
        parser.error(f"--stages: given {', '.join(sorted(unknown))}, expected some of {', '.join(stages)}")
    page, failed = arguments.out / "verdict.txt", []
    lines = [f"gpu_check of {time.strftime('%Y-%m-%d %H:%M')}"]
    for name in arguments.stages or stages:
        state, summary = run_stage(name, stages[name], arguments.out)
        failed += [name] if state == "failed" else []
        lines.append(f"{state:<8} {name:<10} {summary}")
        print(lines[-1], flush=True)
        doctor = arguments.out / "doctor.log"
        versions = doctor.read_text(errors="replace") if doctor.is_file() else ""
        write_atomic(page, "\n".join([*lines, "", versions]))
    if failed:
        raise NextturnError(f"{', '.join(failed)} failed; paste {page} into an issue")
    print(f"no stage failed: {page}")


# --- A stage's process, and the end of all that it started.


def run_stage(name: str, stage: Stage, out: Path) -> tuple[str, str]:
    """Run a stage and return "ok", "failed" or "skipped", and a summary."""
    if stage.skip:
        return "skipped", stage.skip
    shutil.rmtree(out / name, ignore_errors=True)
    log, started, mark = out / f"{name}.log", time.monotonic(), f"{os.getpid()} {name} {time.time_ns()}"
    quiet = {"HF_HUB_OFFLINE": "1", "WANDB_MODE": "disabled", "NEXTTURN_CACHE": str(out.absolute() / "cache")}
    code: int | str
    with log.open("w") as written:
        process = subprocess.Popen(
            [sys.executable, *stage.command], env={**os.environ, **quiet, MARK: mark},
            stdout=written, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        try:
            code = process.wait(stage.seconds)
        except subprocess.TimeoutExpired:
            code = f"none within {stage.seconds:g} s"
        finally:
            left = end(process, mark)
    failure = f"exit code {code}: {reason(log)}" if code else ""
    if left:  # they may hold memory that later stages need
        failure = f"{failure or 'ended'}, but processes {left} cannot be killed"
    try:
        summary = failure or stage.read(log)
    except (NextturnError, OSError, LookupError) as error:
        summary = failure = f"its results cannot be read: {error!r}"
    seconds = f"{time.monotonic() - started:.0f} s"
    return ("failed", f"{summary} ({log}, {seconds})") if failure else ("ok", f"{summary} ({seconds})")


def end(process: subprocess.Popen[bytes], mark: str, seconds: float = 30.0) -> list[int]:
    """Kill a process and all that it has started, and wait until they have ended.

    A killed process holds its GPU memory for a moment, which the next stage needs. The workers of an accelerate launch are in
    sessions of their own and lose their parent if it dies first. They are found by `mark` in the environment that they
    inherit.

    Args:
        seconds: The time limit.

    Returns:
        The ids of processes that still run.
    """
    family, deadline = {psutil.Process(process.pid)} if process.poll() is None else set(), time.monotonic() + seconds
    while True:
        family |= {member for member in psutil.process_iter() if _carries(member, mark)}
        running = [member for member in family if _runs(member)]
        if not running or time.monotonic() > deadline:
            process.poll()
            return sorted(member.pid for member in running)
        for member in running:
            with suppress(psutil.Error):
                member.kill()
        process.poll()  # collects a zombie, which would count as running
        time.sleep(0.02)


def _carries(process: psutil.Process, mark: str) -> bool:
    with suppress(psutil.Error):
        return process.pid != os.getpid() and process.environ().get(MARK) == mark
    return False


def _runs(process: psutil.Process) -> bool:
    """Return True if the process runs, also if it is a zombie with threads, which may still hold GPU memory."""
    with suppress(psutil.Error):
        return process.is_running() and (process.status() != psutil.STATUS_ZOMBIE or process.num_threads() > 1)
    return False


_RAISED = re.compile(r"(?:\[rank\d+\]: |\([^)]*\) )?(?:error: .|[\w.]+(?:Error|Exception|Interrupt|Exit)\b)")


def reason(log: Path) -> str:
    """Return the first line of the last error in a log; without an error, the log's last line."""
    lines = [line.rstrip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return next((line for line in reversed(lines) if _RAISED.match(line)), lines[-1] if lines else "no output")


# --- The stages: recipes for Qwen3.5-2B with a small model and two steps.


def stages_in(out: Path) -> dict[str, Stage]:
    """Return the stages in their order. They write under `out`."""
    import torch

    gpus = torch.cuda.device_count()
    no_gpu = "" if gpus else "no GPU"
    no_vllm = no_gpu or ("" if importlib.util.find_spec("vllm") else "vllm is not installed")
    no_fla = no_gpu or ("" if importlib.util.find_spec("fla") else "flash-linear-attention is not installed")
    launch = ["-m", "accelerate.commands.launch", "--main_process_port", "0", "--config_file"]
    on_one = [*launch, f"recipes/accelerate/{'one_gpu' if gpus else 'cpu'}.yaml"]
    on_all = [*launch, "recipes/accelerate/many_gpus.yaml", "--num_processes", str(gpus)]
    sft, grpo = ("train/sft.py", "recipes/qwen2b_sft.yaml"), ("train/grpo.py", "recipes/qwen2b_grpo_1gpu.yaml")
    measure = ("-m", "nextturn.probe", "run", str(out / "model"), "recipes/probe.yaml", *_words(PROBE))

    def training(run: str, model: str, **more: Any) -> list[str]:
        paths = {"model.name": out / model, "data.path": out / "data", "train.output_dir": out / run}
        return _words({**PROBE, **TRAIN, **paths, **more})

    engine = {"train.use_vllm": str(not no_vllm).lower(), "probe.engine": "hf" if no_vllm else "vllm"}
    from_sft = f"sft/checkpoint-{STEPS}"
    return {
        "doctor": Stage(["-m", "nextturn.train.doctor"], _last_line, 600),
        "kernels": Stage(["-m", "nextturn.train.gpu_check", "--kernels"], _last_line, 900, no_fla),
        "data": Stage(["-m", "nextturn.data_builders", "recipes/written.yaml", "--out", str(out / "data")], _last_line, 600),
        "sft": Stage([*on_one, *sft, *training("sft", "model", **{"data.rows_per_step": 2})], _trained(out / "sft"), 1200),
        "grpo": Stage(
            [*on_one, *grpo, *training("grpo", from_sft, **GRPO, **engine)], _trained(out / "grpo"), 1800
        ),
        "probe": Stage([*measure, "--out", str(out / "probe")], _probed(out / "probe"), 900),
        "vllm": Stage(
            [*measure, "--out", str(out / "vllm"), "--probe.engine", "vllm"], _probed(out / "vllm"), 1200, no_vllm
        ),
        "zero2": Stage(
            [*on_all, *sft, *training("zero2", "model", **{"data.rows_per_step": 2 * gpus})], _trained(out / "zero2"),
            1200, "" if gpus > 1 else "needs two GPUs",
        ),
    }  # fmt: skip


PROBE = {"probe.sets": "{written_pairs: {n: 2}}", "probe.max_answer_tokens": 16, "probe.max_user_tokens": 16}
TRAIN = {
    "data.recipe": "null", "train.max_steps": STEPS, "train.save_steps": STEPS, "train.logging_steps": 1,
    "train.warmup_steps": 0, "train.per_device_train_batch_size": 4, "tracking.to": "none",
}  # fmt: skip
GRPO = {
    "data.held_out": 4, "train.eval_steps": STEPS, "rollout.window": 1, "rollout.max_turn_tokens": 16,
    "rollout.samples_per_step": 4, "train.max_completion_length": 16, "train.num_generations": 4,
    "train.vllm_max_model_length": 2048,
}  # fmt: skip


def _words(options: dict[str, Any]) -> list[str]:
    return [word for key, value in options.items() for word in (f"--{key}", str(value))]


def _last_line(log: Path) -> str:
    return log.read_text().splitlines()[-1]


def _trained(run: Path) -> Callable[[Path], str]:
    def read(log: Path) -> str:
        rows = read_json(run / f"checkpoint-{STEPS}" / "trainer_state.json")["log_history"]
        for name in ("base", f"step-{STEPS}"):
            read_json(run / "probe" / name / "results.json")
        (launch,) = [line for line in log.read_text().splitlines() if line.startswith("launch ")]
        return f"loss {[row['loss'] for row in rows if 'loss' in row][-1]:.3g}, {launch.partition(' ')[2].strip()}"

    return read


def _probed(run: Path) -> Callable[[Path], str]:
    def read(log: Path) -> str:
        timing = read_json(run / "results.json")["timing"]
        return f"{timing['answer_tokens'] + timing['user_tokens']} tokens in {timing['wall_s']:.0f} s"

    return read


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
    results = []
    for rule, dtype in ((kernel, torch.bfloat16), (plain, torch.float32)):
        leaves: dict[str, Any] = {
            name: value.to(torch.float32 if name == "g" else dtype).requires_grad_() for name, value in inputs.items()
        }
        q, k, v, g, beta = leaves.values()
        output, _ = rule(q, k, v, g=g, beta=beta, use_qk_l2norm_in_kernel=True)
        (output.float() * weights).sum().backward()
        gradients = {name: leaf.grad.float() for name, leaf in leaves.items()}
        results.append({"output": output.detach().float(), **gradients})
    errors = {
        name: float((value - results[1][name]).norm() / results[1][name].norm()) for name, value in results[0].items()
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
