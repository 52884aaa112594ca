"""DPO: pairs as the data builder writes them and as training takes them, runs of one and two processes, and what is refused."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import yaml

from nextturn.data_builders import preferences
from nextturn.data_builders.__main__ import main as build_main
from nextturn.probe.command.errors import DataError, TemplateError, run_command
from nextturn.probe.command.files import read_json, read_jsonl, write_jsonl
from nextturn.probe.models.checkpoints import newest_complete
from nextturn.probe.models.folders import load_tokenizer, resolve
from nextturn.probe.text.chat import Chat
from nextturn.train.dpo import main
from nextturn.train.encoding import PreferencePair, load_pairs, make_pairs
from support.conversations import messages
from support.grpo_parts import probe_section
from support.launches import ROOT, Launched, history, shipped
from support.loopback import Loopback, Seen, chat_reply
from support.sft_parts import take_back
from support.tiny_models import thinking_tokenizer

STEPS, SAVE = 4, 2
NEVER = ("--probe.when", "never")


def pair(number: int, **changes: Any) -> dict[str, Any]:
    prompt = [{"role": "user", "content": f"Ann has {number} apples and buys some more. How many now?"}]
    sides = {"chosen": "How many does she buy?", "rejected": f"She has \\boxed{{{number + 2}}} apples."}
    said = {name: [{"role": "assistant", "content": text}] for name, text in sides.items()}
    return {"id": str(number), "kind": "ask", "prompt": prompt, **said, **changes}


def write_pairs(folder: Path) -> Path:
    write_jsonl(folder / "pairs.jsonl", [pair(number) for number in range(3, 15)])
    return folder / "pairs.jsonl"


def recipe_of(folder: Path, model: Path, **model_options: Any) -> Path:
    """The shipped recipe for a few steps of a tiny model."""
    train = {"max_steps": STEPS, "save_steps": SAVE, "logging_steps": 1, "per_device_train_batch_size": 2}
    train |= {"learning_rate": 1e-2, "warmup_steps": 0, "lr_scheduler_type": "constant", "bf16": False}
    train |= {"gradient_checkpointing": False, "optim": "adamw_torch", "num_train_epochs": 1}
    section = {"name": str(model), "dtype": "float32", "lora": None, **model_options}
    data = {"path": str(write_pairs(folder)), "rows_per_step": 4}
    return shipped(
        "qwen2b_dpo", folder, model=section, data=data, train=train, probe={**probe_section(folder), "dtype": "auto"}
    )


# --- The view that the data builder writes.


def built(folder: Path, **section: Any) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    data = {"source": {"kind": "written", "n": 60}, "output": {"path": str(folder / "data")}, "preferences": section}
    (folder / "data.yaml").write_text(yaml.safe_dump(data))
    assert run_command(build_main, [str(folder / "data.yaml")]) == 0
    manifest = read_json(folder / "data" / "manifest.json")
    return manifest, [row for _, row in read_jsonl(folder / "data" / "preference" / "part-00000.jsonl")]


def test_pairs_are_minimal_and_come_from_the_conversations_themselves(tmp_path: Path) -> None:
    manifest, rows = built(tmp_path)
    kinds = [row["kind"] for row in rows]
    assert (
        manifest["pairs"]["ask"] == kinds.count("ask") > 5 and manifest["pairs"]["answer"] == kinds.count("answer") > 3
    )
    for row in rows:
        good, bad = (row[side][0]["content"] for side in ("chosen", "rejected"))
        boxed = good if row["kind"] == "answer" else bad
        question = bad if row["kind"] == "answer" else good
        assert "\\boxed" in boxed and "\\boxed" not in question and "?" in question
        assert row["prompt"][-1]["role"] == "user"
    prompts = {row["prompt"][0]["content"] for row in rows}
    held_out = (Path(preferences.__file__).parent.parent / "probe" / "questions" / "written_pairs.jsonl").read_text()
    assert not any(json.dumps(prompt)[1:-1] in held_out for prompt in prompts), "evaluation pairs are never trained on"


def test_a_model_writes_the_rejected_reply_and_is_asked_again_if_it_does_right(tmp_path: Path) -> None:
    prompts: list[str] = []

    def reply(seen: Seen) -> dict[str, Any]:
        prompts.append(text := seen.body["messages"][-1]["content"])
        return chat_reply("What else is known?" if prompts.count(text) == 1 else "It is \\boxed{1}.")

    with Loopback({"/chat/completions": reply}) as server:
        model = {"server": {"urls": [server.url], "model": "base", "concurrency": 1}, "max_tokens": 100}
        manifest, rows = built(tmp_path, model=model, tries=3)
    pairs = manifest["pairs"]
    assert rows and pairs["ask"] == pairs["ask_other_of_model"] == sum(row["kind"] == "ask" for row in rows)
    for row in rows:
        rejected = row["rejected"][0]["content"]
        assert rejected == "It is \\boxed{1}." if row["kind"] == "ask" else rejected.endswith("?")
    assert len(prompts) > len(rows)


def test_if_a_model_never_asks_the_conversations_question_is_rejected(tmp_path: Path) -> None:
    with Loopback({"/chat/completions": lambda seen: chat_reply("It is \\boxed{1}.")}) as server:
        model = {"server": {"urls": [server.url], "model": "base", "concurrency": 4}, "max_tokens": 100}
        manifest, rows = built(tmp_path, model=model, tries=1)
    pairs = manifest["pairs"]
    assert pairs["answer"] > 3 and pairs["answer_other_of_model"] == 0 < pairs["ask_other_of_model"] == pairs["ask"]
    assert all("?" in row["rejected"][0]["content"] for row in rows if row["kind"] == "answer")


# --- As training takes them.


def test_both_sides_follow_the_prompt_of_inference(tiny_model: Path, tmp_path: Path) -> None:
    """On a template that does not keep its prompt as history (Qwen3.5), where trl's own rendering would part from it."""
    chat = Chat(load_tokenizer(resolve(str(tiny_model))))
    rows, counts = make_pairs(load_pairs(write_pairs(tmp_path)), chat, 200)
    assert (counts.pairs, counts.kinds, counts.too_long) == (12, {"ask": 12}, 0)
    prompt = pair(3)["prompt"]
    assert tuple(rows[0]["prompt_ids"]) == chat.prompt_ids(prompt)
    for side in ("chosen", "rejected"):
        text = chat.tokenizer.decode(rows[0][f"{side}_ids"])
        assert text == pair(3)[side][0]["content"] + chat.tokenizer.decode(chat.turn_end_ids)
    with pytest.raises(DataError, match="12 .*train.max_length 10"):
        make_pairs(load_pairs(write_pairs(tmp_path)), chat, 10)


def test_behind_an_opened_think_block_the_side_to_prefer_has_to_end_it() -> None:
    """What the prompt's own history says, and the side to leave, is not learned."""
    chat = Chat(thinking_tokenizer("qwen3_5_think"))
    asked = tuple(messages("2 + 2?", "4", "Why?"))
    thought = "Hm.\n</think>\n\nTwo pairs."
    (row,), _ = make_pairs([PreferencePair("pair", asked, thought, "Because.")], chat, None)
    assert chat.tokenizer.decode(row["chosen_ids"]).startswith(thought)
    with pytest.raises(TemplateError):
        make_pairs([PreferencePair("pair", asked, "Because.", thought)], chat, None)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"rejected": pair(3)["chosen"]}, "`chosen` and `rejected` are equal"),
        ({"chosen": "How many?"}, "`chosen` is 'How many?', expected a list of one assistant message"),
        ({"prompt": [*pair(3)["prompt"], *pair(3)["chosen"]]}, "the prompt ends with the assistant"),
        ({"rejected": [{"role": "assistant", "content": "cut \ud83d"}]}, "`rejected` holds half a character"),
    ],
)
def test_a_row_that_is_no_pair_is_refused_in_one_line(
    changes: Any, said: str, tiny_chatml: Path, tmp_path: Path, capsys: Any
) -> None:
    recipe = recipe_of(tmp_path, tiny_chatml)
    (tmp_path / "pairs.jsonl").write_text("\n".join(map(json.dumps, [pair(1), pair(2, **changes)])))
    assert run_command(main, [str(recipe)]) == 2
    error = capsys.readouterr().err
    assert f"pairs.jsonl:2: {said}" in error and error.count("\n") == 1


def test_one_process_learns_the_preference_and_is_resumed(tiny_chatml: Path, tmp_path: Path, capsys: Any) -> None:
    """All weights, with a frozen copy as the reference; then the plan, with the same figures."""
    recipe = recipe_of(tmp_path, tiny_chatml)
    assert run_command(main, [str(recipe), *NEVER]) == 0
    run = tmp_path / "run"
    whole = history(run / f"checkpoint-{STEPS}")
    first, last = whole[0], whole[-1]
    assert first["rewards/margins"] == 0, "before the first step the model is its reference"
    assert first["loss"] > math.log(2), "the preference at its start, and the likelihood of the chosen side"
    assert last["rewards/margins"] > 0.1 and last["rewards/accuracies"] == 1
    assert "trained by DPO for 4 steps (all weights) on 12 pairs (12 ask)" in (run / "README.md").read_text()

    take_back(run, SAVE)
    assert run_command(main, [str(recipe), *NEVER]) == 0
    again = history(run / f"checkpoint-{STEPS}")
    for row in [*whole, *again]:
        del row["num_tokens"]  # trl counts those of each start
    assert again == whole

    capsys.readouterr()
    assert run_command(main, [str(recipe), "--dry-run"]) == 0
    plan = capsys.readouterr().out
    assert "12 pairs (12 ask)" in plan and "4 at 4 rows (2 a process x 1 x 2 accumulated)" in plan
    assert "sigmoid + sft, beta 0.1; the reference is a frozen copy" in plan and "reference 0." in plan
    assert plan.count("⟦") == 3, "where it is explained, and of both sides"


POISONED = "base_model.model.model.layers.1.mlp.down_proj.lora_B.default.weight"
# In step 3, one gradient of process 1 is NaN. Each process compares its part of the weights with that at the end of step 2.
NOT_FINITE = """
import pathlib, sys, torch, transformers
from nextturn.probe.command.errors import TrainingStopped, run_command
from nextturn.train.dpo import train
from nextturn.train.sections import load_dpo_recipe

class Poison(transformers.TrainerCallback):
    def weights(self):
        return [getattr(p, "ds_tensor", p).detach().clone() for p in self.model.parameters()]

    def on_train_begin(self, args, state, control, model=None, **kwargs):
        self.model, self.rank = model, args.process_index
        poisoned = dict(model.named_parameters())[sys.argv[2]]
        poisoned.register_hook(lambda g: g * float("nan") if self.rank == 1 and state.global_step == 2 else g)

    def on_step_end(self, args, state, control, **kwargs):
        self.snapshot = self.weights()

def main(argv):
    poison = Poison()
    try:
        train(load_dpo_recipe(pathlib.Path(argv[0]), argv[2:]), callbacks=[poison])
    except TrainingStopped:
        same = all(torch.equal(a, b) for a, b in zip(poison.snapshot, poison.weights()))
        print(f"rank {poison.rank}: weights {'same' if same else 'CHANGED'}")
        raise

sys.exit(run_command(main))
"""


def test_two_processes_under_zero_3_stop_together_before_a_step_that_is_not_finite(
    tiny_chatml: Path, tmp_path: Path
) -> None:
    """LoRA: the reference is the model without its adapter."""
    recipe, run = recipe_of(tmp_path, tiny_chatml, lora={"r": 4, "alpha": 8}), tmp_path / "run"
    (tmp_path / "dpo.py").write_text(NOT_FINITE)
    words = [tmp_path / "dpo.py", recipe, POISONED, "--train.save_steps", "1", *NEVER]
    launched = Launched(words, ROOT / "recipes" / "accelerate" / "cpu2_zero3.yaml", tmp_path)
    codes, output = launched.wait(), launched.output
    assert all(codes) and "ZeRO-3 on 2 processes" in output, output
    assert "rank 0: weights same" in output and "rank 1: weights same" in output, output
    message = next(line for line in output.splitlines() if line.startswith("error: "))
    assert "before step 3" in message and POISONED in message and f"{run}/checkpoint-2" in message
    assert newest_complete(run) == (run / "checkpoint-2", [])
    first, second = history(run / "checkpoint-2")
    assert first["rewards/margins"] == 0 < second["rewards/margins"]
    names = sorted(path.name for path in (run / "checkpoint-2").glob("adapter*"))
    assert names == ["adapter_config.json", "adapter_model.safetensors"]
