"""Parts of GRPO tests: prompts of two kinds, a model that ends its turns, a recipe for a tiny model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from nextturn.data_builders.rows import rl_columns
from nextturn.probe.questions.simulation import PromptRow
from support.conversations import messages, prompt_row


def rl_row(number: int, withheld: bool = False, **changes: Any) -> PromptRow:
    """Return a problem about Ann's apples. If information is withheld, it is how many she buys."""
    problem = f"Ann has {number} apples and buys {number + 1} more. How many apples does she have?"
    asked = f"Ann has {number} apples and buys some more. How many apples does she have?" if withheld else problem
    row: dict[str, Any] = {
        "id": f"apples-{number}-0", "kind": "underspecified" if withheld else "complete", "turn": 0,
        "prompt": ({"role": "user", "content": asked},), "answer": str(2 * number + 1), "problem": problem,
        "solution": f"{number} + {number + 1} = {2 * number + 1}",
    }  # fmt: skip
    if withheld:
        row |= {
            "hidden": (f"{number + 1}",), "clause": "how many apples she buys",
            "thing": "the number of apples that Ann buys", "reveal": f"She buys {number + 1} apples.",
            "short": f"{number + 1} apples",
        }  # fmt: skip
    return prompt_row(**{**row, **changes})


def write_prompts(path: Path, n: int = 8) -> Path:
    """Write prompts; every other one has information withheld."""
    rows = [rl_columns(rl_row(number, withheld=number % 2 == 0)) for number in range(3, 3 + n)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def teach_to_talk(base: Path, folder: Path, steps: int = 40) -> Path:
    """Train a tiny model for a few steps on short conversations, so that its replies sometimes end by themselves."""
    import torch

    from nextturn.probe.models.folders import load_model, load_tokenizer, resolve
    from nextturn.probe.text.chat import Chat

    torch.manual_seed(0)
    tokenizer = load_tokenizer(resolve(str(base)))
    model = load_model(resolve(str(base)), "float32", "cpu").train()
    replies = [
        ("How many?", "So \\boxed{7}."), ("It is 7.", "Yes."), ("\\boxed{9}", "It is 9."), ("She has 8.", "How many more?"),
    ]  # fmt: skip
    rows: list[Any] = []
    for n, (reply, again) in enumerate(replies):
        talk = messages(f"Ann has {n} apples. How many?", reply, "She buys more.", again)
        rows += Chat(tokenizer).training_rows(talk)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(steps):
        row = rows[step % len(rows)]
        ids = torch.tensor([row.input_ids])
        labels = torch.where(torch.tensor([row.loss_mask]).bool(), ids, -100)
        model(input_ids=ids, labels=labels).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def probe_section(folder: Path) -> dict[str, Any]:
    """Return a short probe of three questions."""
    asked = [
        {"id": str(n), "question": f"Ann has {n} apples and eats 1. How many?", "answer": str(n - 1)} for n in (3, 4, 5)
    ]
    (folder / "asked.jsonl").write_text("".join(json.dumps(row) + "\n" for row in asked))
    sets = {"apples": {"path": str(folder / "asked.jsonl")}}
    return {"sets": sets, "max_answer_tokens": 8, "max_user_tokens": 6}


def write_recipe(folder: Path, model: Path | str, /, **sections: dict[str, Any]) -> Path:
    """Write a recipe that trains a tiny model for a few steps; `sections` change its sections."""
    folder.mkdir(parents=True, exist_ok=True)
    recipe: dict[str, dict[str, Any]] = {
        "model": {"name": str(model), "dtype": "float32"},
        "data": {"path": str(write_prompts(folder / "prompts.jsonl"))},
        "rollout": {"mode": "reply", "window": 1, "max_turns": 2, "max_turn_tokens": 8},
        "reward": {
            "weights": {"accuracy": 1.0, "asking": 0.5, "interactivity": 0.5, "efficiency": 0.5}, "efficient_tokens": 8,
            "custom": {"length": {"function": "support.custom_rewards:length", "weight": 1.0}},  # differs within a group
            "workers": 1,
        },
        "train": {
            "output_dir": str(folder / "run"), "max_steps": 2, "save_steps": 2, "save_strategy": "steps",
            "logging_steps": 1, "num_generations": 4, "per_device_train_batch_size": 4, "max_completion_length": 24,
            "gradient_accumulation_steps": 2, "learning_rate": 1e-3, "bf16": False, "gradient_checkpointing": False,
            "seed": 3, "disable_tqdm": True,
        },
        "probe": probe_section(folder),
    }  # fmt: skip
    for name, section in sections.items():
        recipe[name] = {**recipe.get(name, {}), **section}
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump(recipe))
    return path
