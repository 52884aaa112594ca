"""`make bench`: which share of a stage's time the model's linear layers alone would need, the limit of that stage.

    python -m bench.limit [MODEL] [--n N] [--threads T] [--dtype bfloat16]

The limit is the time of the stage's tokens in the linear layers, at the number of tokens a pass that is fastest on this machine.
In it attention, norms, sampling, the optimizer and the passes over few tokens at the end of a batch cost nothing. Linear
layers are timed right before and right after each stage, because a machine's speed changes.

- replies: `n` questions, three greedy replies each, which share the pass over the question;
- scores: the log-probabilities of three user turns after each question;
- SFT: steps of 4 conversations, the time of 12 steps less that of 4, so that the start does not count. A backward pass costs two forward passes.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from bench.peers import conversations
from bench.probe import QUESTION

from nextturn.probe.command.files import write_jsonl
from nextturn.probe.data.messages import training_messages
from nextturn.probe.engines.base import Request, ScoreRequest, collect
from nextturn.probe.engines.hf import HfEngine
from nextturn.probe.models.folders import load_model, load_tokenizer, resolve
from nextturn.probe.text.chat import Chat
from nextturn.train.encoding import make_rows

PASSES = (16, 64, 256, 1024)
STEPS = (4, 12)
ROWS_A_STEP = 4


class Tokens(NamedTuple):
    """Tokens that pass all layers but the last, and those that pass the last, which gives the logits."""

    body: int
    head: int


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="smollm2-135m")
    parser.add_argument("--n", type=int, default=24, help="questions")
    parser.add_argument("--tokens", type=int, default=96, help="tokens a reply at most")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    arguments = parser.parse_args()
    import torch

    torch.set_num_threads(arguments.threads)
    folder = resolve(arguments.model)
    tokenizer = load_tokenizer(folder)
    model = load_model(folder, dtype=arguments.dtype)
    engine, chat = HfEngine(model, tokenizer), Chat(tokenizer)
    prompts = [
        chat.prompt_ids([{"role": "user", "content": QUESTION.format(n, 3 * n)}]) for n in range(2, arguments.n + 2)
    ]
    read = sum(map(len, prompts))

    requests = [Request(prompt, arguments.tokens, chat.stop_ids, 0.0, n) for n, prompt in enumerate(prompts * 3)]
    made: list[int] = []

    def reply() -> None:
        made[:] = [each.tokens for each in collect(engine, requests)]

    seconds, limit = timed(lambda: clocked(reply), model)
    show("replies", arguments, seconds, limit(Tokens(read + sum(made), len(prompts) + sum(made))))

    turns = [chat.text_ids(text) for text in ("Why half of them?", "I think it is 12.", "Thank you, that is clear.")]
    scores = [ScoreRequest(prompt, turn) for prompt in prompts for turn in turns]
    said = len(prompts) * sum(map(len, turns))
    seconds, limit = timed(lambda: clocked(lambda: dict(engine.score(scores))), model)
    show("scores", arguments, seconds, limit(Tokens(read + said, len(prompts) + said)))

    talks = conversations(STEPS[1] * ROWS_A_STEP)
    rows, _ = make_rows([training_messages({"messages": talk}, "row") for talk in talks], chat, "assistant", 512)
    # Each row is seen once, and the rows of the first steps are as long as the others on average.
    share = 3 * (STEPS[1] - STEPS[0]) / STEPS[1]
    body, head = (sum(len(row["input_ids"]) for row in rows), sum(label != -100 for row in rows for label in row["labels"]))  # fmt: skip
    with tempfile.TemporaryDirectory() as out:
        seconds, limit = timed(lambda: sft(Path(out), folder.path, talks, arguments), model)
    show("SFT", arguments, seconds, limit(Tokens(round(share * body), round(share * head))))


def timed(stage: Callable[[], float], model: Any) -> tuple[float, Callable[[Tokens], float]]:
    """Run a stage, which returns its seconds, four times. Return the median of the last three, and the limit of any number of tokens."""
    stage()
    taken, speeds = [], [linear_seconds(model)]
    for _ in range(3):
        taken.append(stage())
        speeds.append(linear_seconds(model))
    body, head = (statistics.median(of_part) for of_part in zip(*speeds, strict=True))
    return statistics.median(taken), lambda tokens: body * tokens.body + head * tokens.head


def clocked(run: Callable[[], Any]) -> float:
    """Return the seconds that a call takes."""
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def linear_seconds(model: Any) -> tuple[float, float]:
    """Return the seconds a token of all linear layers but the last, and of the last, each at its fastest number of tokens a pass."""
    import torch

    last = model.get_output_embeddings()
    body = [each for each in model.modules() if isinstance(each, torch.nn.Linear) and each is not last]

    def seconds(layers: list[Any], tokens: int) -> float:
        """Return the seconds a token of one pass."""
        inputs = {of.in_features: torch.randn(tokens, of.in_features, dtype=of.weight.dtype) for of in layers}
        return clocked(lambda: [layer(inputs[layer.in_features]) for layer in layers]) / tokens

    with torch.no_grad():
        sizes = PASSES * 2
        return min(seconds(body, tokens) for tokens in sizes), min(seconds([last], tokens) for tokens in sizes)


def sft(folder: Path, model: Path, talks: list[list[dict[str, str]]], arguments: argparse.Namespace) -> float:
    """Return the seconds that the longer training takes longer than the shorter."""
    write_jsonl(folder / "rows.jsonl", [{"messages": talk} for talk in talks])
    recipe = {
        "model": {"name": str(model), "dtype": "float32"},
        "data": {"path": "rows.jsonl"},
        "probe": {"when": "never", "sets": {"written_pairs": {}}},
        "tracking": {"to": "none"},
        "train": {
            "per_device_train_batch_size": ROWS_A_STEP, "learning_rate": 1e-4, "max_length": 512, "save_steps": 1000,
            "bf16": arguments.dtype == "bfloat16", "gradient_checkpointing": False, "output_dir": "RUN",
        },
    }  # fmt: skip
    (folder / "sft.yaml").write_text(yaml.safe_dump(recipe))
    environment = {**os.environ, "OMP_NUM_THREADS": str(arguments.threads), "HF_HUB_OFFLINE": "1"}
    taken = []
    for steps in STEPS:
        out = tempfile.mkdtemp(dir=folder)
        words = ["sft", "sft.yaml", "--train.output_dir", f"{out}/run", "--train.max_steps", str(steps)]
        command = [Path(sys.executable).parent / "nextturn", *words]

        def train(command: list[str | Path] = command) -> None:
            done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
            if done.returncode:
                raise SystemExit(f"nextturn sft failed:\n{(done.stdout + done.stderr)[-3000:]}")

        taken.append(clocked(train))
    return taken[1] - taken[0]


def show(stage: str, arguments: argparse.Namespace, seconds: float, limit: float) -> None:
    print(
        f"{stage}, {arguments.dtype}, {arguments.threads} threads: the linear layers need {100 * limit / seconds:.0f}% of {seconds:.1f} s",
        flush=True,
    )


if __name__ == "__main__":
    main()
