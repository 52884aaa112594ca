"""`make torture`: every stage is ended at random moments and started again, and has to end as if it had not been.

    python -m bench.torture [--only data sft grpo probe watch compare] [--trials 3] [--seed N]

For each stage a run that nobody disturbs is the reference. Then, `trials` times for each of SIGKILL, SIGTERM and Ctrl-C (SIGINT),
the same command is started in a new folder, gets the signal at a moment drawn from the seed, and is given again until it ends by
itself. What it then holds must be the reference's: weights, rows, samples and figures to the byte. Times, optimizer containers and
logs are not compared, and a checkpoint that training saved at SIGTERM or Ctrl-C may be there besides. The model is random and
tiny; the seed is printed, and the same seed draws the same moments as shares of the reference's time.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import yaml

from nextturn.probe.command.files import sha256_file, write_jsonl
from support.problems import PROBLEMS
from support.tiny_models import build_tiny_llama

BIN = Path(sys.executable).parent
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
ENDS_WITHIN_S = 120
# Keys whose values tell times, places or how much of the work a later start found done.
VOLATILE = {
    "timing",
    "created",
    "started",
    "seconds",
    "folder",
    "path",
    "output_dir",
    "versions",
    "finished",
    "epoch",
    "launch",
    "files",
    "kept_s",
}
COMPARED = (
    "*.safetensors",
    "samples.jsonl",
    "results.json",
    "comparison.json",
    "sft/*.jsonl",
    "rl/*.jsonl",
    "trainer_state.json",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=STAGES, default=list(STAGES))
    parser.add_argument("--trials", type=int, default=3, help="for each stage and signal")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--signals", nargs="+", choices=[each.name for each in SIGNALS], default=[each.name for each in SIGNALS]
    )
    arguments = parser.parse_args()
    rng, failed = random.Random(arguments.seed), 0
    signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # a shell's background jobs ignore it, and so would their children
    print(f"seed {arguments.seed}, {arguments.trials} trials for each signal", flush=True)
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        prepare(work)
        for stage in arguments.only:
            reference, seconds = work / f"{stage}-reference", 0.0
            begin(stage, work, reference)
            started = time.perf_counter()
            finish(stage, work, reference)
            seconds = time.perf_counter() - started
            wanted = contents(reference)
            assert wanted, f"{stage} leaves nothing to compare"
            print(f"{stage}: {seconds:.0f} s undisturbed, {len(wanted)} files compared", flush=True)
            for number in map(signal.Signals.__getitem__, arguments.signals):
                for trial in range(arguments.trials):
                    at = rng.uniform(0.05, 1.0)
                    out = work / f"{stage}-{number.name}-{trial}"
                    begin(stage, work, out)
                    code = disturb(stage, work, out, number, at * seconds)
                    finish(stage, work, out)
                    found = contents(out)
                    more = steps(found) - steps(wanted)
                    wrong = sorted(
                        path
                        for path in {*wanted, *found}
                        if wanted.get(path) != found.get(path)
                        and not (number != signal.SIGKILL and follows(path, more))
                    )
                    failed += bool(wrong)
                    verdict = f"DIFFERENT: {', '.join(wrong)}" if wrong else "equal"
                    if more:
                        verdict += f", with a checkpoint of step {', '.join(map(str, sorted(more)))} besides"
                    print(f"  {number.name} at {at:.0%} (ended with {code}): {verdict}", flush=True)
                    shutil.rmtree(out)
    print(f"{failed} trials ended otherwise than undisturbed runs")
    sys.exit(1 if failed else 0)


# --- The stages: a command that is given again and again, and what is there before it.


def prepare(work: Path) -> None:
    """Write the model, data and recipes of all stages."""
    build_tiny_llama(work / "model")
    talks = [
        [{"role": "user", "content": f"Ann has {n} apples and buys {n + 1}. How many?"},
         {"role": "assistant", "content": f"{n} + {n + 1} = {2 * n + 1}. The answer is \\boxed{{{2 * n + 1}}}."}]
        for n in range(24)
    ]  # fmt: skip
    write_jsonl(work / "talks.jsonl", [{"messages": talk} for talk in talks])
    write_jsonl(
        work / "prompts.jsonl", [{"messages": talk[:1], "answer": str(2 * n + 1)} for n, talk in enumerate(talks)]
    )
    write_jsonl(work / "asked.jsonl", [{"question": f"What is {n} + 5?", "answer": str(n + 5)} for n in range(24)])
    probe = {
        "sets": {"asked": {"path": str(work / "asked.jsonl")}}, "max_answer_tokens": 24, "max_user_tokens": 12,
        "temperatures": [0.0, 0.7], "dtype": "float32", "batch_tokens": 400,
    }  # fmt: skip
    train = {
        "output_dir": "OUT", "max_steps": 6, "save_steps": 2, "logging_steps": 1, "learning_rate": 1e-3, "bf16": False,
        "gradient_checkpointing": False, "seed": 3, "save_strategy": "steps", "per_device_train_batch_size": 4,
    }  # fmt: skip
    model = {"name": str(work / "model"), "dtype": "float32"}
    recipes: dict[str, Any] = {
        "data": {"source": {"kind": "jsonl", "path": str(PROBLEMS / "rl.jsonl.gz")}, "output": {"path": "OUT", "shard_size": 100}},
        "sft": {"model": model, "data": {"path": str(work / "talks.jsonl")}, "train": train, "probe": probe},
        "grpo": {
            "model": model, "data": {"path": str(work / "prompts.jsonl")}, "probe": probe,
            "rollout": {"window": 0, "max_turn_tokens": 12}, "reward": {"weights": {"accuracy": 1.0, "asking": 0.0, "interactivity": 0.0, "format": 0.5}},
            "train": train | {"num_generations": 4, "max_completion_length": 12},
        },
        "probe": {"probe": probe},
    }  # fmt: skip
    for name, recipe in recipes.items():
        (work / f"{name}.yaml").write_text(yaml.safe_dump(recipe))
    run(["nextturn", "sft", work / "sft.yaml", "--train.output_dir", work / "trained", "--probe.when", "never"])
    for label in ("one", "two"):
        words: Sequence[str | Path] = ["nextturn", "probe", "run", work / "model", work / "probe.yaml"]
        run([*words, "--out", work / "probed" / label, "--label", label, "--probe.seed", "0"])


STAGES: dict[str, Sequence[str]] = {
    "data": ["nextturn", "data", "WORK/data.yaml", "--out", "OUT"],
    "sft": ["nextturn", "sft", "WORK/sft.yaml", "--train.output_dir", "OUT"],
    "grpo": ["nextturn", "grpo", "WORK/grpo.yaml", "--train.output_dir", "OUT"],
    "probe": ["nextturn", "probe", "run", "WORK/model", "WORK/probe.yaml", "--out", "OUT"],
    "watch": ["nextturn", "probe", "watch", "OUT", "WORK/sft.yaml", "--once"],
    "compare": ["nextturn", "probe", "compare", "WORK/probed/one", "WORK/probed/two", "--out", "OUT"],
}


def begin(stage: str, work: Path, out: Path) -> None:
    """Make what a stage finds when it starts: for the watcher, a finished run without probes."""
    if stage == "watch":
        shutil.copytree(work / "trained", out)


def words_of(stage: str, work: Path, out: Path) -> list[str]:
    return [word.replace("WORK", str(work)).replace("OUT", str(out)) for word in STAGES[stage]]


def finish(stage: str, work: Path, out: Path) -> None:
    run(words_of(stage, work, out))


def disturb(stage: str, work: Path, out: Path, number: signal.Signals, after_s: float) -> int:
    """Start a stage, send the signal after so many seconds, and return its exit code."""
    with (work / "log.txt").open("ab") as log:
        process = subprocess.Popen(named(words_of(stage, work, out)), stdout=log, stderr=log, env=environment())
        try:
            return process.wait(after_s)  # it was faster than the reference
        except subprocess.TimeoutExpired:
            process.send_signal(number)
        try:
            return process.wait(ENDS_WITHIN_S)
        except subprocess.TimeoutExpired:
            process.kill()
            raise SystemExit(f"{stage} went on for {ENDS_WITHIN_S} s after {number.name}") from None


def run(words: Sequence[str | Path]) -> None:
    done = subprocess.run(named(words), capture_output=True, text=True, env=environment(), check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, words))} failed:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")


def named(words: Sequence[str | Path]) -> list[str]:
    return [str(BIN / words[0]), *map(str, words[1:])]


def environment() -> dict[str, str]:
    return os.environ | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "WANDB_MODE": "disabled"}


# --- What a folder holds, without times.


def contents(folder: Path) -> dict[str, str]:
    """Return a digest of each file that has to be equal; what was set aside is not part of a run."""
    paths = {path for pattern in COMPARED for path in folder.rglob(pattern)}
    kept = [
        path
        for path in paths
        if not any(part.startswith(("set-aside", ".")) for part in path.relative_to(folder).parts)
    ]
    return {str(path.relative_to(folder)): digest(path) for path in kept}


def steps(found: Collection[str]) -> set[int]:
    """Return the steps of the checkpoints in a folder."""
    return {int(path.partition("/")[0].removeprefix("checkpoint-")) for path in found if path.startswith("checkpoint-")}


def follows(path: str, more: Collection[int]) -> bool:
    """Return True for a file that is there, or different, because training saves a checkpoint at SIGTERM and Ctrl-C: the
    checkpoint, its probe, and the comparison, in which that probe is a row."""
    return bool(more) and path.startswith(
        ("probe/comparison/", *(f"checkpoint-{step}/" for step in more), *(f"probe/step-{step}/" for step in more))
    )


def digest(path: Path) -> str:
    if path.suffix != ".json":
        return sha256_file(path)
    read = json.loads(path.read_text())
    if path.name == "trainer_state.json":  # the losses, and the rewards of GRPO
        read = [{key: row[key] for key in ("step", "loss", "reward") if key in row} for row in read["log_history"]]
    return json.dumps(without_times(read), sort_keys=True)


def without_times(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_times(each) for key, each in value.items() if key not in VOLATILE}
    return [without_times(each) for each in value] if isinstance(value, list) else value


if __name__ == "__main__":
    main()
