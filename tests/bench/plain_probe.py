"""The script that one would write instead of the probe: answers, then user turns, with `generate` in batches.

    python -m bench.plain_probe MODEL QUESTIONS.jsonl OUT.json BATCH DTYPE

It measures what `nextturn probe run` does with `temperatures: [0.0, 0.7]` and `grounding: false`, without verdicts and report.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

ANSWER, TURN = 128, 48  # tokens at most


def main() -> None:
    model_path, questions, out, batch = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4])
    dtype = sys.argv[5]
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model_path, padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(model_path, dtype=getattr(torch, dtype))
    tokens = 0

    def generate(prompts: list[str], limit: int, temperature: float) -> list[str]:
        nonlocal tokens
        texts: list[str] = []
        for start in range(0, len(prompts), batch):
            encoded = tokenizer(
                prompts[start : start + batch], return_tensors="pt", padding=True, add_special_tokens=False
            )
            sampling = {"do_sample": True, "temperature": temperature} if temperature else {"do_sample": False}
            with torch.inference_mode():
                made = model.generate(**encoded, max_new_tokens=limit, **sampling)[:, encoded["input_ids"].shape[1] :]
            tokens += int((made != tokenizer.pad_token_id).sum())
            texts += tokenizer.batch_decode(made, skip_special_tokens=True)
        return texts

    rows = [json.loads(line) for line in questions.read_text().splitlines()]
    talks = [[{"role": "user", "content": row["question"]}] for row in rows]
    prompts = [tokenizer.apply_chat_template(talk, tokenize=False, add_generation_prompt=True) for talk in talks]
    answers = generate(prompts, ANSWER, 0.0)
    turns = {}
    for temperature in (0.0, 0.7):
        history = [
            tokenizer.apply_chat_template([*talk, {"role": "assistant", "content": answer}], tokenize=False)
            + "<|im_start|>user\n"
            for talk, answer in zip(talks, answers, strict=True)
        ]
        turns[temperature] = generate(history, TURN, temperature)
    out.write_text(json.dumps({"answers": answers, "turns": list(turns.values()), "tokens": tokens}))


if __name__ == "__main__":
    main()
