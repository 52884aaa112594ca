"""`make bench`: what the probe's own machinery is worth, as ratios against a plain way in the same run.

    python -m bench.probe [MODEL] [--n N] [--threads T]

- completions: the hf engine's decode loop (shared prefill, rows leave when done) against `generate` of transformers, batch
  by batch over the same prompts, greedy, same limits;
- decode steps: the same loop as it is, and over transformers' own cache and attention, which copy what was said at each step;
- scores: prefix prefilled once for all its targets against one plain forward pass per target.

Each side runs three times in turn; the ratio is of the medians, with the lowest and highest of each side beside it.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any
from unittest.mock import patch

from nextturn.probe.engines.base import Request, ScoreRequest, collect
from nextturn.probe.engines.hf import HfEngine
from nextturn.probe.models.folders import load_model, load_tokenizer, resolve
from nextturn.probe.text.chat import Chat

ROUNDS = 3
QUESTION = "A shelf holds {} books and {} more stand on the table. Half of them are sold. How many are left, and why?"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="smollm2-135m")
    parser.add_argument("--n", type=int, default=24, help="questions")
    parser.add_argument("--tokens", type=int, default=48, help="tokens per completion at most")
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    import torch

    torch.set_num_threads(arguments.threads)
    folder = resolve(arguments.model)
    tokenizer = load_tokenizer(folder)
    engine = HfEngine(load_model(folder), tokenizer)
    chat = Chat(tokenizer)
    talks = [[{"role": "user", "content": QUESTION.format(n, 3 * n)}] for n in range(2, arguments.n + 2)]
    requests = [
        Request(chat.prompt_ids(talk), arguments.tokens, chat.stop_ids, temperature, n)
        for n, talk in enumerate(talks)
        for temperature in (0.0, 0.0, 0.0)  # a context at three temperatures; greedy here, so that both sides agree
    ]
    _compare(
        "completions, own loop against generate",
        lambda: collect(engine, requests),
        lambda: _generate(engine.model, tokenizer, requests),
    )
    _compare(
        "decode steps, without copies of keys and values against transformers' own",
        lambda: collect(engine, requests),
        lambda: _with_copies(engine, requests),
    )
    targets = [chat.text_ids(text) for text in ("Why half of them?", "I think it is 12.", "Thank you, that is clear.")]
    scores = [ScoreRequest(chat.prompt_ids(talk), target) for talk in talks for target in targets]
    _compare(
        "scores, shared prefix against a forward pass each",
        lambda: dict(engine.score(scores)),
        lambda: [_forward(engine.model, score) for score in scores],
    )


def _compare(what: str, ours: Callable[[], Any], plain: Callable[[], Any]) -> None:
    seconds: dict[str, list[float]] = {"ours": [], "plain": []}
    for _ in range(ROUNDS):
        for name, run in (("ours", ours), ("plain", plain)):
            started = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - started)
    ratio = statistics.median(seconds["plain"]) / statistics.median(seconds["ours"])
    shown = ", ".join(f"{name} {min(taken):.1f} to {max(taken):.1f} s" for name, taken in seconds.items())
    print(f"{what}: {ratio:.2f} times as fast ({shown})", flush=True)


def _with_copies(engine: HfEngine, requests: list[Request]) -> None:
    with (
        patch("nextturn.probe.engines.decoding.preallocate"),
        patch("nextturn.probe.engines.decoding.shared_keys", nullcontext),
    ):
        collect(engine, requests)


def _generate(model: Any, tokenizer: Any, requests: list[Request], batch: int = 32) -> None:
    import torch

    for start in range(0, len(requests), batch):
        part = requests[start : start + batch]
        padded = tokenizer.pad({"input_ids": [list(one.prompt_ids) for one in part]}, return_tensors="pt")
        with torch.no_grad():
            model.generate(
                **padded, max_new_tokens=part[0].max_tokens, do_sample=False, eos_token_id=list(part[0].stop_ids)
            )


def _forward(model: Any, score: ScoreRequest) -> float:
    import torch

    ids = torch.tensor([score.prefix_ids + score.target_ids])
    with torch.no_grad():
        logits = model(input_ids=ids, logits_to_keep=len(score.target_ids) + 1).logits[0, :-1]
    log_p = logits.float().log_softmax(dim=-1)
    return float(log_p.gather(1, torch.tensor(score.target_ids)[:, None]).sum())


if __name__ == "__main__":
    main()
