"""Tries training and probing on this machine's GPUs with a random model of Qwen3.5-2B's shape; no hub is needed.

    python -m train.gpu_check [--tiny] [--out DIR]      # or: bash recipes/gpu_check.sh

Each stage is a process of its own, so that one that crashes leaves the others; after each, DIR/report.json holds all that was
found and DIR/verdict.txt one page of it, to be pasted into an issue. SFT and GRPO run the shipped 2B recipes with fewer steps.
Exit code 1 where a stage failed; a stage for which a library or a GPU is missing says so and is no failure.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from probe.errors import NextturnError, run_command
from probe.files import read_json, write_atomic, write_json
from train.speed import peak_tflops, training_flops

SECONDS_TINY = 900  # of a stage at most: a CPU that others use as well may be slow
MARK = "NEXTTURN_GPU_CHECK_STAGE"
SFT, GRPO = Path("recipes/qwen2b_sft.yaml"), Path("recipes/qwen2b_grpo_1gpu.yaml")


def main(argv: Sequence[str]) -> None:
    stages = [name for name in STAGES if name not in FIRST]
    parser = argparse.ArgumentParser(prog="python -m train.gpu_check", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--tiny", action="store_true", help="a tiny model, also on a CPU, in minutes")
    parser.add_argument("--out", type=Path, default=Path("runs/gpu_check"), metavar="DIR", help="default: %(default)s")
    parser.add_argument("--stages", nargs="+", choices=stages, default=stages, help="default: all")
    parser.add_argument("--stage", choices=list(STAGES), help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    if arguments.stage:
        write_json(arguments.out / f"{arguments.stage}.json", STAGES[arguments.stage](arguments.out, arguments.tiny))
        return
    report = check(arguments.out, arguments.tiny, arguments.stages)
    failed = [name for name, stage in report["stages"].items() if "error" in stage]
    page = arguments.out / "verdict.txt"
    if failed:
        raise NextturnError(f"{', '.join(failed)} failed; {page} is one page about it for an issue")
    print(f"all is well: {page}")


def check(out: Path, tiny: bool, stages: Sequence[str]) -> dict[str, Any]:
    """Looks at the machine, makes the model, then runs the stages one after the other; gives what report.json then holds."""
    report: dict[str, Any] = {"schema": 1, "tiny": tiny, "stages": {}}
    for name in (*FIRST, *stages):
        found = report["stages"][name] = run_stage(name, out, tiny)
        print(_line(name, found), flush=True)
        write_json(out / "report.json", report)
        write_atomic(out / "verdict.txt", verdict(report))
        if name == "model" and "error" in found:
            break
    return report


def run_stage(name: str, out: Path, tiny: bool) -> dict[str, Any]:
    """What the stage found, its `seconds`, and where it failed the `error`."""
    out.mkdir(parents=True, exist_ok=True)
    result, log = out / f"{name}.json", out / f"{name}.log"
    result.unlink(missing_ok=True)
    command = [sys.executable, "-m", "train.gpu_check", "--stage", name, "--out", str(out)]
    quiet = {"HF_HUB_OFFLINE": "1", "WANDB_MODE": "disabled", "NEXTTURN_CACHE": str(out.absolute() / "cache")}
    mark = f"{os.getpid()} {name} {time.time_ns()}"
    started, seconds = time.monotonic(), SECONDS_TINY if tiny else STAGES[name].seconds
    code: int | str
    with log.open("w") as written:
        process = subprocess.Popen(
            [*command, *(["--tiny"] if tiny else [])],
            env={**os.environ, **quiet, MARK: mark}, stdout=written, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            code = f"none within {seconds:g} s"
        finally:
            left = end(process, mark)
    found: dict[str, Any] = read_json(result) if result.is_file() else {}
    if code != 0:
        found["error"] = f"exit code {code}: {reason(log)} ({log})"
    if left:
        found["left_running"] = left  # what cannot be killed; it may hold memory that later stages lack
    return {**found, "seconds": round(time.monotonic() - started, 1)}


def end(process: subprocess.Popen[bytes], mark: str, seconds: float = 30.0) -> list[int]:
    """Kills a process with all that it has started, and waits until nothing of it runs; gives the ids of what still does.

    A killed process holds its memory on a GPU for a moment, which the next stage needs. The workers of an accelerate launch are
    in sessions of their own, and lose their parent where it dies first: they are known by `mark`, which stands in the
    stage's environment and so in theirs.
    """
    started, until = {psutil.Process(process.pid)} if process.poll() is None else set(), time.monotonic() + seconds
    while True:
        started |= {one for one in psutil.process_iter() if _carries(one, mark)}
        left = [one for one in started if _runs(one)]
        if not left or time.monotonic() > until:
            process.poll()
            return sorted(one.pid for one in left)
        for one in left:
            with suppress(psutil.Error):
                one.kill()
        process.poll()  # takes up what it left, which would count as running
        time.sleep(0.02)


def _carries(process: psutil.Process, mark: str) -> bool:
    with suppress(psutil.Error):
        return process.pid != os.getpid() and process.environ().get(MARK) == mark
    return False


def _runs(process: psutil.Process) -> bool:
    """A zombie with threads has not ended: one of them may still be giving back the GPU's memory."""
    with suppress(psutil.Error):
        return process.is_running() and (process.status() != psutil.STATUS_ZOMBIE or process.num_threads() > 1)
    return False


_RAISED = re.compile(r"(?:\[rank\d+\]: |\([^)]*\) )?(?:error: .|[\w.]+(?:Error|Exception|Interrupt|Exit)\b)")


def reason(log: Path) -> str:
    """The first line of the last error in a log, which may go on with advice; without one, the log's last line."""
    lines = [line.rstrip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return next((line for line in reversed(lines) if _RAISED.match(line)), lines[-1] if lines else "it said nothing")


# --- The verdict: one page.


def verdict(report: dict[str, Any]) -> str:
    """Chip, versions, and a line for each stage: ok, failed or skipped, its figures or the first line of its error."""
    stages: dict[str, dict[str, Any]] = report["stages"]
    machine = stages.get("machine", {})
    counts = [f"{sum(_state(found) == state for found in stages.values())} {state}" for state in _STATES]
    model = "a tiny model" if report["tiny"] else "a random model of Qwen3.5-2B's shape"
    lines = [f"nextturn's gpu_check of {datetime.now(UTC):%Y-%m-%d %H:%M} UTC on {model}: {', '.join(counts)}"]
    lines += [f"{key:<10} {machine[key]}" for key in ("chip", "system", "commit") if key in machine]
    lines += [f"versions   {', '.join(f'{name} {found}' for name, found in machine.get('versions', {}).items())}"]
    lines += [f"doctor     {found}" for found in machine.get("problems", ())]
    return "\n".join([*lines, "", *(_line(name, found) for name, found in stages.items()), ""])


_STATES = ("ok", "failed", "skipped")
_IN_THE_HEAD = ("seconds", "error", "skipped", "chip", "system", "commit", "versions", "problems")


def _state(found: dict[str, Any]) -> str:
    return "failed" if "error" in found else "skipped" if "skipped" in found else "ok"


def _line(name: str, found: dict[str, Any]) -> str:
    said = [str(found[key]) for key in ("error", "skipped") if key in found] + [
        f"{key.replace('_', ' ')} {value if isinstance(value, str) else json.dumps(value)}"
        for key, value in found.items()
        if key not in _IN_THE_HEAD
    ]
    return f"{_state(found):<8} {name:<10} {found['seconds']:>6.0f} s  {', '.join(said)}".rstrip()


# --- The stages, each in a process of its own: (out, tiny) to what it found, which goes to OUT/STAGE.json.


def look_at_machine(out: Path, tiny: bool) -> dict[str, Any]:
    """Chip, driver, versions, and what the doctor calls a problem."""
    import torch

    from train.doctor import check_compiler, check_gpus, check_packages, driver_cuda, installed

    gpus = torch.cuda.device_count()
    chip, peak = "cpu", None
    findings = [*check_packages(gpus > 0), *check_gpus()]
    if gpus:
        name, memory = torch.cuda.get_device_name(), torch.cuda.get_device_properties(0).total_memory
        chip, peak = f"{gpus} x {name}, {memory / 2**30:.0f} GiB, driver up to CUDA {driver_cuda()}", peak_tflops(name)
        findings += check_compiler()
    asked = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True)
    versions = {name: version for name in _SHOWN if (version := installed(name)[1])}
    return {
        "chip": chip, "peak_tflops": peak or "unknown chip", "commit": asked.stdout.strip() or "unknown",
        "system": f"{platform.platform()}, Python {platform.python_version()}", "versions": versions,
        "problems": [f"{found.about}: {found.found}" for found in findings if found.level == "problem"],
    }  # fmt: skip


_SHOWN = (
    "torch", "triton", "transformers", "trl", "peft", "accelerate", "deepspeed", "vllm", "flash-linear-attention",
    "causal-conv1d",
)  # fmt: skip


# Why a stage cannot be tried here; None where it can.


def without_kernels() -> str | None:
    if importlib.util.find_spec("fla") is not None and _gpus():
        return None
    return "flash-linear-attention and a GPU are needed; linear attention runs in plain torch"


def without_vllm() -> str | None:
    missing = [] if importlib.util.find_spec("vllm") else ["vllm is not installed"]
    missing += [] if _gpus() else ["there is no GPU"]
    return " and ".join(missing) or None


def without_two() -> str | None:
    return None if _gpus() > 1 else f"two GPUs are needed, there is {_gpus() or 'none'}"


def _gpus() -> int:
    import torch

    return torch.cuda.device_count()


# Of the Qwen3.5 family and small enough for a CPU; layers, heads and vocabulary are those of no release.
TINY_SHAPE = {
    "model_type": "qwen3_5_text", "vocab_size": 512, "hidden_size": 128, "intermediate_size": 256,
    "num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"], "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64,
    "linear_num_key_heads": 1, "linear_num_value_heads": 2, "linear_key_head_dim": 64, "linear_value_head_dim": 64,
    "max_position_embeddings": 4096, "tie_word_embeddings": True,
}  # fmt: skip


def make_model(out: Path, tiny: bool) -> dict[str, Any]:
    """A random model with a tokenizer of single bytes; of the 2B shape with its full vocabulary, most of it never used."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from train.plan import KNOWN_SHAPES

    folder = _model(out, tiny)
    if not (folder / "tokenizer_config.json").is_file():  # written last
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


def compare_kernels(out: Path, tiny: bool) -> dict[str, Any]:
    """The gated delta rule with the installed kernels against plain torch in float32: outputs and all gradients.

    Raises:
        NextturnError: they differ by more than GRADIENT_ERROR of the larger one's norm.
    """
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
    from train.recipe import load_sft_recipe
    from train.sft import train

    rows, length, steps = (2, 128, 4) if tiny else (8, 2048, 10)
    options = {**_sft_options(out, tiny, rows, length), "train.max_steps": steps}
    clock = _clock()
    train(load_sft_recipe(SFT, _words(out / "sft", options)), "never", [clock])
    return _figures(clock, rows, length, None)


def train_grpo(out: Path, tiny: bool) -> dict[str, Any]:
    from train.grpo import train
    from train.recipe import load_grpo_recipe

    turn, rows, steps = (8, 4, 2) if tiny else (256, 8, 4)
    options = {**_grpo_options(out, tiny, rows, turn), "train.max_steps": steps}
    clock = _clock()
    train(load_grpo_recipe(GRPO, _words(out / "grpo", options)), "never", [clock])
    missing = without_vllm()
    engine = f"transformers ({missing})" if missing else "vllm"
    return {"engine": engine, **_figures(clock, rows, 256 + turn, turn)}


def probe_model(out: Path, tiny: bool, engine: str = "hf") -> dict[str, Any]:
    """The seconds until the engine has said its first token, and its speed from there on."""
    from probe.chat import Chat
    from probe.engines import open_engine
    from probe.engines.base import Request, collect
    from probe.models import load_tokenizer, resolve
    from probe.run import load_sets, model_info, run_probe
    from probe.settings import load_probe_recipe

    probe = load_probe_recipe(
        "recipes/probe.yaml", _words(None, {**_probe_options(out, tiny), "probe.engine": engine})
    ).probe
    sets, folder, run = load_sets(probe), resolve(str(_model(out, tiny))), out / f"probe_{engine}"
    shutil.rmtree(run, ignore_errors=True)
    chat, begun = Chat(load_tokenizer(folder), probe.enable_thinking), time.monotonic()
    with closing(open_engine(folder, chat.tokenizer, probe)) as opened:
        collect(opened, [Request(chat.prompt_ids([{"role": "user", "content": "Who is there?"}]), 1, chat.stop_ids)])
        started = time.monotonic() - begun
        timing = run_probe(opened, chat, model_info(folder, chat), probe, run, sets)["timing"]
    made = timing["answer_tokens"] + timing["user_tokens"]
    speed = round(made / max(timing["wall_s"], 0.1), 1)
    return {"tokens_per_second": speed, "tokens": made, "seconds_to_start": round(started, 1)}


def go_round(out: Path, tiny: bool) -> dict[str, Any]:
    """SFT, the probe, GRPO from SFT's checkpoint, the probe: scripts as a user starts them, which probe as they train.

    GRPO's own vLLM answers its probe where there is one.
    """
    steps = 2
    common = {**_probe_options(out, tiny), "probe.when": "inline", "train.save_strategy": "steps"}
    common |= {"train.max_steps": steps, "train.save_steps": steps}
    rows, length, turn = (2, 128, 8) if tiny else (8, 512, 64)
    missing = without_vllm()
    sft, grpo = out / "circle_sft", out / "circle_grpo"
    shutil.rmtree(out / "cache", ignore_errors=True)  # SFT's adapter is merged there
    run_script("train/sft.py", str(SFT), *_words(sft, {**_sft_options(out, tiny, rows, length), **common}), out=sft)
    more = {**_grpo_options(out, tiny, 4 if tiny else 8, turn), **common, "probe.engine": "hf" if missing else "vllm"}
    more["model.name"] = sft / f"checkpoint-{steps}"
    run_script("train/grpo.py", str(GRPO), *_words(grpo, more), out=grpo)
    probed = [f"{run.name}/{path.parent.name}" for run in (sft, grpo) for path in run.glob("probe/*/results.json")]
    return {"probed": sorted(probed), "grpo_probed_by": f"hf ({missing})" if missing else "vllm"}


def reduce_over_nccl(out: Path, tiny: bool) -> dict[str, Any]:
    """A sum over all GPUs, as the gradients of a step take it: whether it is right, and how fast it comes."""
    return reduce_over(_gpus(), "nccl", out, 256 * 2**20)


def train_on_all(out: Path, tiny: bool) -> dict[str, Any]:
    """SFT launched on all GPUs, under the recipe's own ZeRO-2, which on CPUs only a launcher's can stand for."""
    gpus, steps, rows, length, run = _gpus(), 4, 2 if tiny else 8, 128 if tiny else 2048, out / "zero2"
    options = {**_sft_options(out, tiny, rows, length), "data.rows_per_step": rows * gpus}
    options |= {"train.max_steps": steps, "train.save_strategy": "steps", "train.save_steps": steps}
    launcher = ["-m", "accelerate.commands.launch", "--config_file", "recipes/accelerate/many_gpus.yaml"]
    launcher += ["--num_processes", str(gpus), "--main_process_port", "0"]
    log = run_script(*launcher, "train/sft.py", str(SFT), *_words(run, options), out=run)
    (launched,) = [line for line in log.read_text().splitlines() if line.startswith("launch ")]
    history = read_json(run / f"checkpoint-{steps}" / "trainer_state.json")["log_history"]
    return {"launch": launched.partition(" ")[2].strip(), "loss": [row["loss"] for row in history if "loss" in row][-1]}


class Stage(NamedTuple):
    """`seconds`: what it may take on a GPU at its first start, which compiles what later ones find. Set wide, not measured."""

    run: Callable[[Path, bool], dict[str, Any]]
    seconds: int
    cannot: Callable[[], str | None] = lambda: None

    def __call__(self, out: Path, tiny: bool) -> dict[str, Any]:
        why_not = self.cannot()
        return {"skipped": why_not} if why_not else self.run(out, tiny)


STAGES = {
    "machine": Stage(look_at_machine, 300),  # CUDA starts; torch comes from a disk that may be slow
    "model": Stage(make_model, 600),  # 3.8 GB are written
    "kernels": Stage(compare_kernels, 900, without_kernels),  # Triton compiles and tunes fla's, forward and backward
    "sft": Stage(train_sft, 1200),  # the same for other sizes, and trl's head
    "grpo": Stage(train_grpo, 1800),  # the same, and vLLM starts: torch.compile, CUDA graphs
    "probe": Stage(probe_model, 900),
    "probe_vllm": Stage(partial(probe_model, engine="vllm"), 1200, without_vllm),  # vLLM starts
    "circle": Stage(go_round, 3000),  # SFT and GRPO start anew, with what is compiled by now
    "nccl": Stage(reduce_over_nccl, 300, without_two),  # a wrong topology hangs for ever
    "zero2": Stage(train_on_all, 1200, without_two),
}
FIRST = ("machine", "model")


# --- What the stages have in common: recipes cut down, scripts that are run.


def _model(out: Path, tiny: bool) -> Path:
    return out / ("model-tiny" if tiny else "model")


def _sft_options(out: Path, tiny: bool, rows: int, length: int) -> dict[str, Any]:
    """Of a step of `rows` rows of at most `length` tokens, and hardly less."""
    from probe.chat import Chat
    from probe.models import load_tokenizer, resolve

    chat = Chat(load_tokenizer(resolve(str(_model(out, tiny)))), False)

    def conversation(sentences: int) -> list[dict[str, str]]:
        answer = " ".join(f"Then add {number}." for number in range(sentences))
        return [{"role": "user", "content": "How many are left?"}, {"role": "assistant", "content": answer}]

    n = 1
    while len(chat.training_rows(conversation(n + 1))[0].input_ids) <= length:
        n += max(1, n // 50)
    talks = [{"messages": conversation(max(1, n - n // 50 - 1))}] * (2 * rows)
    return {
        "model.name": _model(out, tiny), "data.recipe": "null", "data.path": _write(out / "talks.jsonl", talks),
        "data.rows_per_step": rows, "train.per_device_train_batch_size": rows, "train.max_length": length,
        "train.include_num_input_tokens_seen": "all",
    }  # fmt: skip


def _grpo_options(out: Path, tiny: bool, rows: int, turn: int) -> dict[str, Any]:
    """Of a step of `rows` samples, each turn of at most `turn` tokens."""
    from data_builders.rows import RlRow

    prompts = []
    for n in range(3, 19):
        problem = f"Ann has {n} apples and buys {n + 1} more. How many apples does she have?"
        prompts.append(
            RlRow(
                id=f"apples-{n}", kind="complete", turn=0, prompt=({"role": "user", "content": problem},),
                answer=str(2 * n + 1), problem=problem, solution=f"{n} + {n + 1} = {2 * n + 1}",
            )
        )  # fmt: skip
    return {
        "model.name": _model(out, tiny), "data.recipe": "null",
        "data.path": _write(out / "prompts.jsonl", [vars(row) for row in prompts]), "data.max_prompt_tokens": 256,
        "data.held_out": 4, "train.eval_steps": 2,
        "rollout.window": 1, "rollout.max_turn_tokens": turn, "rollout.samples_per_step": rows,
        "train.max_completion_length": turn, "train.num_generations": 4, "train.per_device_train_batch_size": rows,
        "train.vllm_max_model_length": 2048, "train.use_vllm": str(without_vllm() is None).lower(),
    }  # fmt: skip


def _probe_options(out: Path, tiny: bool) -> dict[str, Any]:
    questions = [
        {"id": str(n), "question": f"Ann has {n} apples and eats 1. How many?", "answer": str(n - 1)}
        for n in range(2, 6 if tiny else 18)
    ]
    tokens = 8 if tiny else 128
    return {
        "probe.sets": f"{{apples: {{path: {_write(out / 'questions.jsonl', questions)}}}}}",
        "probe.max_answer_tokens": tokens, "probe.max_user_tokens": tokens,
    }  # fmt: skip


def _words(run: Path | None, options: dict[str, Any]) -> list[str]:
    """The options of a command; for a training run into the new folder `run` with what holds for all of them."""
    if run is not None:
        shutil.rmtree(run, ignore_errors=True)
        common = {"train.output_dir": run, "train.save_strategy": "no", "train.warmup_steps": 0}
        options = {**common, "train.logging_steps": 1, "probe.when": "never", "tracking.to": "none", **options}
    return [word for key, value in options.items() for word in (f"--{key}", str(value))]


def _write(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def run_script(*words: str, out: Path) -> Path:
    """Runs `python WORDS` to the end; gives its log, OUT.log. Raises NextturnError with its reason where it fails."""
    log = out.with_name(f"{out.name}.log")
    with log.open("w") as written:
        done = subprocess.run([sys.executable, *words], stdout=written, stderr=subprocess.STDOUT)
    if done.returncode:
        raise NextturnError(f"{' '.join(words[:2])}: exit code {done.returncode}: {reason(log)} ({log})")
    return log


def reduce_over(processes: int, backend: str, out: Path, size: int) -> dict[str, Any]:
    """All-reduces `size` bytes over `processes` processes, each with a GPU of its own where the backend is nccl."""
    import torch.multiprocessing as spawning

    store, result = out.absolute() / "nccl.store", out.absolute() / "nccl.reduced.json"
    store.unlink(missing_ok=True)
    spawning.start_processes(_reduce, (processes, backend, store, result, size), nprocs=processes, start_method="spawn")
    found: dict[str, Any] = read_json(result)
    return found


def _reduce(rank: int, processes: int, backend: str, store: Path, result: Path, size: int) -> None:
    """One process of `reduce_over`.

    Bus bandwidth is what NCCL's own tests print: 2 (n - 1) / n bytes for each byte that is reduced (nccl-tests,
    doc/PERFORMANCE.md).
    """
    import torch
    import torch.distributed as dist

    device = torch.device("cuda", rank) if backend == "nccl" else torch.device("cpu")
    if backend == "nccl":
        torch.cuda.set_device(device)
    dist.init_process_group(
        backend, init_method=f"file://{store}", rank=rank, world_size=processes, timeout=timedelta(seconds=120)
    )
    numbers = torch.full((size // 4,), rank + 1.0, device=device)
    dist.all_reduce(numbers)
    wanted = processes * (processes + 1) / 2
    if not bool((numbers == wanted).all()):
        raise NextturnError(f"{backend} sums 1 to {processes} to {numbers[0].item():g}, wanted {wanted:g}")
    numbers.zero_()
    times = 20
    for number in range(times + 5):
        if number == 5:
            _finish(device)
            begun = time.monotonic()
        dist.all_reduce(numbers)
    _finish(device)
    seconds = (time.monotonic() - begun) / times
    if rank == 0:
        moved = 2 * (processes - 1) / processes * size
        write_json(result, {"processes": processes, "bus_gb_per_second": round(moved / seconds / 1e9, 2)})
    dist.destroy_process_group()


def _finish(device: Any) -> None:
    import torch

    if device.type == "cuda":
        torch.cuda.synchronize(device)


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
    step = step_memory(partial(size.make, "bfloat16"), Step(rows, length, completion, args.use_cpu, given))
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


if __name__ == "__main__":
    sys.exit(run_command(main))
