"""GRPO from start to end in one process: both modes, the files, adapters, and what stops a run."""

from __future__ import annotations

import math
import shutil
from pathlib import Path
from typing import Any, Literal

import pytest
from huggingface_hub import metadata_load

from nextturn.probe.command.errors import run_command
from nextturn.probe.command.files import read_json, read_jsonl
from nextturn.probe.models.folders import load_model, resolve
from nextturn.train.grpo import main
from nextturn.train.policy import load_policy, new_adapter, policy_folder
from nextturn.train.sections import LoraSection, ModelSection
from support.grpo_parts import write_recipe
from support.launches import history
from support.loopback import Answer, Loopback
from support.model_parts import change_json, logits, lora_on
from support.rollout_parts import trainer_of


def test_whole_conversations_are_trained_probed_and_shown(
    talker: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    conversation = {"mode": "conversation", "max_turns": 3}
    train = {"max_completion_length": 48, "eval_strategy": "steps", "eval_steps": 2, "num_generations_eval": 1}
    recipe = write_recipe(tmp_path, talker, rollout=conversation, train=train, data={"held_out": 3})
    main([str(recipe)])
    run = tmp_path / "run"
    rows = history(run / "checkpoint-2")
    assert [row["step"] for row in rows] == [1, 2]
    for row in rows:
        assert math.isfinite(row["loss"]) and row["grad_norm"] > 0
        parts = [row[f"reward/{part}"] for part in ("accuracy", "asking", "interactivity", "efficiency", "length")]
        weighted = sum(part * weight for part, weight in zip(parts, (1.0, 0.5, 0.5, 0.5, 1.0), strict=True)) / 3.5
        assert row["reward"] == pytest.approx(weighted, abs=1e-5), "no sample was left out, so means of parts add up"
    assert any(row["watch/simulated_tokens"] > 8 for row in rows), "some conversations went on"
    log = read_json(run / "checkpoint-2" / "trainer_state.json")["log_history"]
    (unseen,) = [row for row in log if "eval_reward" in row]
    assert unseen["step"] == 2
    assert {"eval_reward/accuracy", "eval_watch/ask_when_needed", "eval_watch/over_asking"} <= set(unseen)
    assert sorted(path.parent.name for path in (run / "probe").glob("*/results.json")) == ["base", "step-2"]

    kept = [row for _, row in read_jsonl(run / "samples" / "step-2.jsonl")]
    assert len(kept) == 8 and all(row["conversations"] and "accuracy" in row["parts"] for row in kept)
    assert "step 2/2  reward " in capsys.readouterr().out
    card = (run / "README.md").read_text()
    assert {"nextturn", "trl"} <= set(metadata_load(run / "README.md")["tags"]), "the hub reads the card"
    assert "Mean reward: " in card and "3 held out" in card and "| step-2 |" in card

    main([str(recipe)])
    assert "finished at step 2" in capsys.readouterr().out


@pytest.mark.parametrize("kind", ["merged", "trained on"])
def test_replies_are_trained_with_lora_on_a_checkpoint_and_a_kl_term(
    kind: str, talker: Path, tmp_path: Path, own_cache: Path
) -> None:
    """A LoRA checkpoint is merged under a new adapter, or its adapter is continued."""
    checkpoint = lora_on(talker, tmp_path / "checkpoint")
    change_json(checkpoint / "adapter_config.json", lora_alpha=1)  # so that it still ends its turns
    lora = {"r": 2} if kind == "merged" else {"adapter": "continue"}
    recipe = write_recipe(tmp_path, checkpoint, model={"lora": lora}, probe={"when": "never"}, train={"beta": 0.1})
    main([str(recipe)])
    first, second = history(tmp_path / "run" / "checkpoint-2")
    assert first["kl"] == pytest.approx(0, abs=1e-5), "the reference is the model that the run started from"
    assert second["kl"] != 0 and first["grad_norm"] > 0
    saved = read_json(tmp_path / "run" / "checkpoint-2" / "adapter_config.json")
    assert Path(saved["base_model_name_or_path"]).name.startswith("merged-") == (kind == "merged")


@pytest.mark.parametrize("adapter", ["new", "continue"])
def test_a_resumed_lora_run_has_its_weights_and_its_reference(
    adapter: Literal["new", "continue"], tiny_chatml: Path, tmp_path: Path
) -> None:
    """The reference is what the run began from: the base, or the continued adapter, which trl copies in every launch."""
    import torch
    from trl.trainer.utils import use_adapter

    start = lora_on(tiny_chatml, tmp_path / "start") if adapter == "continue" else tiny_chatml
    lora = LoraSection(adapter="continue") if adapter == "continue" else LoraSection(r=2)
    section = ModelSection(name=str(start), dtype="float32", lora=lora)
    trained, checkpoint = lora_trainer(section, tmp_path), tmp_path / "checkpoint-1"
    for name, parameter in trained.model.named_parameters():
        if "lora_B.default" in name:
            parameter.data.fill_(0.5)
    trained.save_model(str(checkpoint))
    assert not [path for path in checkpoint.iterdir() if path.is_dir()], (
        "no second adapter that would be loaded instead"
    )
    shutil.copytree(lora_on(tiny_chatml, tmp_path / "other"), checkpoint / "ref")  # as older versions saved it
    began, saved = logits(load_model(resolve(str(start)), device="cpu")), logits(trained.model.eval())
    assert not torch.allclose(began, saved, atol=1e-2)
    trainer = lora_trainer(section, tmp_path)
    trainer._load_from_checkpoint(str(checkpoint))
    model = trainer.model.eval()
    torch.testing.assert_close(logits(model), saved, rtol=1e-4, atol=1e-4)
    with use_adapter(model, "ref" if "ref" in model.peft_config else None):  # as trl takes it for the KL
        torch.testing.assert_close(logits(model), began, rtol=1e-4, atol=1e-4)
    moving = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    assert moving and all(".default." in name for name in moving)


def lora_trainer(section: ModelSection, folder: Path) -> Any:
    """Return a trainer with a KL term, as train/grpo.py makes it."""
    model = load_policy(policy_folder(section), section)
    return trainer_of(Path(section.name), None, folder, model=model, adapter=new_adapter(section, model), beta=0.1)


def test_a_run_in_which_every_judge_call_fails_stops_with_the_reason(
    tiny_chatml: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    refused = Answer(400, {"error": {"message": "no such model"}})
    with Loopback({"/chat/completions": lambda request: refused}) as server:
        judge = {"server": {"urls": [server.url], "model": "big", "attempts": 1}}
        reward = {"judge": judge, "custom": {}}
        recipe = write_recipe(tmp_path, tiny_chatml, reward=reward, probe={"when": "never"})
        assert run_command(main, [str(recipe)]) == 1
    error = capsys.readouterr().err
    assert "8 of 8 samples" in error and "judge" in error
    assert not list((tmp_path / "run").glob("checkpoint-*"))
