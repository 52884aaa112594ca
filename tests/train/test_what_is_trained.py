"""The model that is meant is trained, saved and resumed: room on the disk, adapters, ends of turns, dtypes, generations."""

from __future__ import annotations

import signal
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest

from nextturn.probe.command.errors import BadInput, ModelError, ToldToEnd
from nextturn.probe.engines.hf import _rounded
from nextturn.probe.models.checkpoints import list_checkpoints
from nextturn.probe.models.folders import ModelFolder, fingerprint, load_model, resolve
from nextturn.probe.models.weights import load_any_tokenizer, load_causal_lm, merge_adapter
from nextturn.train import doctor, grpo
from nextturn.train.export import export
from nextturn.train.guards import ending_line
from nextturn.train.memory import unloaded_policy
from nextturn.train.plan import describe
from nextturn.train.policy import load_policy, new_adapter
from nextturn.train.resume import checkpoint_bytes
from nextturn.train.sections import LoraSection, ModelSection, load_grpo_recipe, load_sft_recipe
from nextturn.train.setup import launcher_set_threads
from nextturn.train.sft import train
from support import grpo_parts, sft_parts
from support.model_parts import change_json, copy_of, logits
from support.tiny_models import build_tiny_multimodal, tiny_tokenizer


def sft(folder: Path, model: Path, keys: dict[str, Any] | None = None, **section: Any) -> Any:
    """Return a recipe that trains a tiny model and probes nothing."""
    data = {"path": str(sft_parts.write_data(folder))}
    keys = {"use_cpu": True, "disable_tqdm": True, **(keys or {})}
    return load_sft_recipe(sft_parts.write_recipe(folder, model, data, keys, {"when": "never"}, **section))


# --- Room on the disk.


@pytest.mark.parametrize(
    ("keys", "lora", "bytes_each"),
    [({}, None, 12), ({}, {"r": 64}, 12), ({"save_only_model": True}, None, 4), ({"optim": "adafactor"}, None, 4)],
)
def test_a_checkpoint_takes_what_was_said(
    keys: dict[str, Any], lora: Any, bytes_each: int, tiny_chatml: Path, tmp_path: Path
) -> None:
    recipe = sft(tmp_path, tiny_chatml, keys | {"max_steps": 1}, lora=lora)
    train(recipe)
    checkpoint = tmp_path / "run" / "checkpoint-1"
    weights = next(checkpoint.glob("*model.safetensors")).stat().st_size
    said = checkpoint_bytes(weights // 4, 4, 0, keys.get("optim", "adamw_torch_fused"), "save_only_model" in keys)
    files = [path for path in (checkpoint / "optimizer.pt",) if path.is_file() and "optim" not in keys]
    assert said == pytest.approx(weights + sum(path.stat().st_size for path in files), rel=0.1)
    assert said == pytest.approx(weights // 4 * bytes_each)


@pytest.mark.parametrize(
    ("keys", "checkpoints"),
    [
        ({"save_total_limit": 1}, 2),
        ({"save_total_limit": 8}, 4),
        ({}, 4),
        ({"save_steps": 0.5, "save_total_limit": 1}, 2),
    ],
)
def test_a_disk_without_room_is_refused_before_step_1(
    keys: dict[str, Any], checkpoints: int, tiny_chatml: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained = sum(weight.numel() for weight in load_causal_lm(tiny_chatml).parameters())
    free = checkpoints * checkpoint_bytes(trained, 4, 0, "adamw_torch", model_only=False)
    disk = namedtuple("disk", "total used free")
    recipe = sft(tmp_path, tiny_chatml, {"save_steps": 1} | keys)
    monkeypatch.setattr("shutil.disk_usage", lambda _: disk(10**15, 0, free - 1))
    assert "not enough" in describe(recipe)
    with pytest.raises(BadInput, match="save_total_limit"):
        train(recipe)
    assert not list((tmp_path / "run").glob("checkpoint-*"))
    monkeypatch.setattr("shutil.disk_usage", lambda _: disk(10**15, 0, free))
    train(recipe)


# --- What gets an adapter.

SIZES = {
    "vocab_size": 512, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 2, "head_dim": 16, "intermediate_size": 256,
}  # fmt: skip
EXPERTS = {"num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64}


def _random(kind: str, folder: Path, **more: Any) -> Any:
    """Save a random model of an architecture, as transformers has it, and return it."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **SIZES, **more))
    model.generation_config.pad_token_id = 0
    model.save_pretrained(folder)
    return model


@pytest.mark.parametrize(
    ("kind", "more", "lora", "share"),
    [
        ("olmo2", {}, {}, "100%"),
        ("cohere", {}, {}, "100%"),
        ("phi3", {}, {}, "all-linear"),  # qkv_proj and gate_up_proj are fused
        ("glm4", {}, {}, "all-linear"),  # gate_up_proj is
        ("phi3", {}, {"target_modules": "all-linear"}, "100%"),
        ("phi3", {}, {"target_modules": ("o_proj",)}, "qkv_proj"),  # what a recipe names is only reported
        ("mixtral", EXPERTS, {}, "target_parameters"),
        ("granitemoe", EXPERTS, {}, "target_parameters"),
        ("gpt_oss", EXPERTS, {"target_modules": ("q_proj", "o_proj")}, "experts.down_proj"),
    ],
)  # fmt: skip
def test_the_share_of_weights_with_an_adapter(
    kind: str, more: dict[str, int], lora: dict[str, Any], share: str, tmp_path: Path
) -> None:
    _random(kind, tmp_path, **more)
    section = ModelSection(name=str(tmp_path), lora=LoraSection(**lora))
    if not lora and share != "100%":
        with pytest.raises(ModelError, match=share):
            unloaded_policy(section, tmp_path)
    else:
        assert share in unloaded_policy(section, tmp_path)[2]


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("name", ["embed_tokens", "lm_head"])
def test_an_adapter_on_tied_embeddings_is_refused(name: str, tied: bool, tmp_path: Path) -> None:
    _random("llama", tmp_path, tie_word_embeddings=tied)
    section = ModelSection(name=str(tmp_path), lora=LoraSection(target_modules=("v_proj", name)))
    if tied:
        with pytest.raises(ModelError, match="target_modules"):
            unloaded_policy(section, tmp_path)
    else:
        assert "v_proj" not in unloaded_policy(section, tmp_path)[2]


def test_adapters_of_experts_are_measured_and_merged_as_they_are_trained(tmp_path: Path) -> None:
    import torch
    from peft import get_peft_model

    base = _random("gpt_oss", tmp_path / "base", **EXPERTS)
    experts = ("experts.gate_up_proj", "experts.down_proj")
    section = ModelSection(name=str(tmp_path), lora=LoraSection(target_parameters=experts))
    model = get_peft_model(base, new_adapter(section, base)).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "lora_B" in name:
                weight.normal_(std=0.1)
    model.save_pretrained(tmp_path / "adapter")
    trained = logits(model, below=500)
    merged = merge_adapter(load_causal_lm(tmp_path / "base"), tmp_path / "adapter")
    for other in (_rounded(model, torch.float32), merged):
        torch.testing.assert_close(logits(other.eval(), below=500), trained, atol=1e-4, rtol=1e-4)
    assert (logits(load_causal_lm(tmp_path / "base"), below=500) - trained).abs().max() > 0.01


# --- What checkpoints hold besides what was trained.


@pytest.mark.parametrize("template", ["llama3", "chatml", "qwen3_5_nothink"])
@pytest.mark.parametrize("lora", [None, {"r": 2}])
def test_a_checkpoint_of_a_base_model_stops_at_the_end_of_a_turn(
    template: str, lora: Any, tmp_path: Path, own_cache: Path
) -> None:
    """The base's own end is another token, by its tokenizer and by its generation config. Only an export has an adapter's."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

    tokenizer = tiny_tokenizer(template)
    end = tokenizer.eos_token_id
    tokenizer.eos_token = "<|end_of_text|>" if template == "llama3" else "<|endoftext|>"
    keys = SIZES | {"vocab_size": len(tokenizer), "eos_token_id": tokenizer.eos_token_id}
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model("llama", **keys))
    model.save_pretrained(tmp_path / "base")
    tokenizer.save_pretrained(tmp_path / "base")
    train(sft(tmp_path, tmp_path / "base", {"max_steps": 1}, lora=lora))
    saved = tmp_path / "run" / "checkpoint-1"
    for folder in (export(str(saved), tmp_path / "export"), *([] if lora else [saved])):
        ends = GenerationConfig.from_pretrained(folder).eos_token_id
        assert ends[0] == tokenizer.eos_token_id and end in ends


@pytest.mark.parametrize("keys", [{"temperature": 0.6}, {"top_p": 0.9, "top_k": 5}, {"min_p": 0.1}])
def test_a_generation_config_that_cannot_be_saved_is_refused(
    keys: dict[str, Any], tiny_chatml: Path, tmp_path: Path
) -> None:
    base = copy_of(tiny_chatml, tmp_path / "base")
    change_json(base / "generation_config.json", do_sample=False, **keys)
    with pytest.raises(ModelError, match="generation_config.json"):
        train(sft(tmp_path, base))


def test_float32_weights_of_a_model_in_bfloat16_stay_float32(tmp_path: Path, own_cache: Path) -> None:
    """As Qwen3.5 on the hub: its text-only copy, an adapter's export and the copy that is probed in training hold them."""
    import torch
    from peft import get_peft_model
    from transformers import AutoModelForImageTextToText

    model = AutoModelForImageTextToText.from_pretrained(build_tiny_multimodal(tmp_path / "hub")).to(torch.bfloat16)
    wide = {}
    for name, weight in model.named_parameters():
        if name.endswith(("A_log", "linear_attn.norm.weight")):
            weight.data = torch.rand_like(weight, dtype=torch.float32) + 0.1
            wide[name.partition("layers.")[2]] = weight.data.clone()
    model.config.text_config.dtype = torch.bfloat16
    model.save_pretrained(tmp_path / "hub")
    text = resolve(str(tmp_path / "hub"))
    section = ModelSection(name=text.name, lora=LoraSection(r=2))
    policy = load_policy(text, section, "bfloat16")
    policy = get_peft_model(policy, new_adapter(section, policy))
    policy.save_pretrained(tmp_path / "adapter")
    exported = load_model(ModelFolder("", export(str(tmp_path / "adapter"), tmp_path / "export")), device="cpu")
    copies = [load_model(text, device="cpu"), exported, _rounded(policy, torch.bfloat16)]
    for copy in copies:
        found = {name.partition("layers.")[2]: weight for name, weight in copy.named_parameters()}
        assert wide and all(torch.equal(found[name], weight) for name, weight in wide.items())
        assert {weight.dtype for name, weight in found.items() if name not in wide} == {torch.bfloat16}
        copy(input_ids=torch.tensor([[5, 6, 7]]))


# --- GRPO whose generations serve several steps.


@pytest.mark.parametrize(
    ("keys", "saves"),
    [
        ({"num_iterations": 2}, [2, 4, 5]),
        ({"steps_per_generation": 4, "gradient_accumulation_steps": 1}, [4, 5]),
        ({"steps_per_generation": 2}, [1, 2, 3, 4, 5]),  # as usual: a generation a step
        ({"steps_per_generation": 3}, [3, 5]),  # 1.5 steps
    ],
)
def test_a_run_that_ends_inside_a_generation_resumes_at_its_end(
    keys: dict[str, Any], saves: list[int], tiny_chatml: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = []
    for name in ("whole", "ended"):
        own: dict[str, Any] = {"max_steps": 5, "save_steps": 1, "num_generations": 2, "per_device_train_batch_size": 2}
        recipe = load_grpo_recipe(
            grpo_parts.write_recipe(
                tmp_path / name, tiny_chatml, train={**own, "use_cpu": True, **keys}, probe={"when": "never"},
                rollout={"window": 0}, reward={"weights": {"accuracy": 0.0, "asking": 0.0, "interactivity": 0.0}},
            )
        )  # fmt: skip
        run = tmp_path / name / "run"
        if name == "ended":
            with pytest.raises(ToldToEnd):
                grpo.train(recipe, callbacks=[sft_parts.sigterm_in(1)])
            assert [step for step, _ in list_checkpoints(run)] == saves[:1]
        grpo.train(recipe)
        assert sorted(step for step, _ in list_checkpoints(run)) == saves
        results.append((run / "checkpoint-5" / "model.safetensors").read_bytes())
    assert results[0] == results[1]


# --- The machine.


@pytest.mark.parametrize(
    ("command", "variables", "launcher"),
    [
        ("python /bin/accelerate launch train/sft.py", "HOME=/", True),
        ("python -m torch.distributed.run --nproc-per-node 2 train/sft.py", "", True),
        ("python /bin/accelerate launch train/sft.py", "HOME=/ OMP_NUM_THREADS=1", False),
        ("python /bin/accelerate launch --num_cpu_threads_per_process 1 train/sft.py", "", False),
        ("python -m pytest tests", "", False),
        ("", None, False),
    ],
)
def test_one_thread_is_kept_only_if_the_user_set_it(
    command: str, variables: str | None, launcher: bool, tmp_path: Path
) -> None:
    if variables is not None:
        (tmp_path / "cmdline").write_text(command.replace(" ", "\0"))
        (tmp_path / "environ").write_text(variables.replace(" ", "\0"))
    assert launcher_set_threads(tmp_path) is launcher


@pytest.mark.parametrize(("driver", "built"), [(False, None), (False, "13.0"), (True, None), (True, "13.0")])
def test_kernels_are_to_be_removed_only_where_no_gpu_will_ever_be(
    driver: bool, built: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    (tmp_path / "fla").mkdir()
    (tmp_path / "fla" / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(torch.version, "cuda", built)
    monkeypatch.setattr(doctor, "DRIVER", tmp_path / "fla" / "__init__.py" if driver else tmp_path / "none")
    monkeypatch.setattr(doctor, "check_gpus", lambda: iter(()))
    found = [finding.level for finding in doctor.examine() if finding.about == "fla"]
    assert found == ([] if driver or built else ["note"])


@pytest.mark.parametrize(("ranks", "limit"), [("1", None), ("2", None), ("2", "240")])
def test_a_signal_says_how_long_the_launcher_waits(
    ranks: str, limit: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", ranks)
    monkeypatch.delenv("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", raising=False)
    if limit:
        monkeypatch.setenv("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", limit)
    line = ending_line(signal.SIGTERM)
    assert ("TORCH_ELASTIC_SHUTDOWN_TIMEOUT" in line) is (ranks == "2")
    assert (limit or "30") in line or ranks == "1"


# --- The plan, and what else a checkpoint keeps.


def test_the_plan_names_the_base_the_adapter_and_the_disk(tiny_chatml: Path, tmp_path: Path) -> None:
    plan = describe(sft(tmp_path, tiny_chatml, lora={"target_modules": ["q_proj"]}))
    assert all(word in plan for word in (fingerprint(resolve(str(tiny_chatml)))[:12], "down_proj", "save_total_limit"))
    train_keys = {"use_vllm": True, "top_p": 0.9, "min_p": 0.0}
    path = grpo_parts.write_recipe(tmp_path / "grpo", tiny_chatml, train=train_keys, probe={"when": "never"})
    said = [line for line in describe(load_grpo_recipe(path)).splitlines() if "token_truncate" in line]
    assert len(said) == 1 and "top_p" in said[0] and "min_p" not in said[0]


def test_a_checkpoint_keeps_templates_other_than_the_default(
    tiny_chatml: Path, tmp_path: Path, own_cache: Path
) -> None:
    base = copy_of(tiny_chatml, tmp_path / "base")
    tokenizer = load_any_tokenizer(base)
    tokenizer.chat_template = {"default": tokenizer.chat_template, "tool_use": "{{ tools }}", "rag": "{{ documents }}"}
    tokenizer.save_pretrained(base)
    train(sft(tmp_path, base, {"max_steps": 1}, lora={"r": 2}))
    saved = tmp_path / "run" / "checkpoint-1"
    for folder in (saved, export(str(saved), tmp_path / "export")):
        assert load_any_tokenizer(folder).chat_template == tokenizer.chat_template


@pytest.mark.parametrize(
    ("tokenizer", "keys"),
    [(False, {}), (True, {"load_best_model_at_end": True, "metric_for_best_model": "probe/apples/accuracy"})],
)
def test_what_the_callback_cannot_serve_is_one_line(
    tokenizer: bool, keys: dict[str, Any], tiny_chatml: Path, tmp_path: Path
) -> None:
    from transformers import Trainer, TrainingArguments

    from nextturn.probe.callback import ProbeCallback

    keys |= {"eval_strategy": "steps", "save_strategy": "steps", "max_steps": 1, "use_cpu": True, "report_to": []}
    rows = [{"input_ids": [5, 6], "labels": [5, 6]}]
    trainer = Trainer(
        load_causal_lm(tiny_chatml), TrainingArguments(str(tmp_path), **keys), train_dataset=rows, eval_dataset=rows,
        processing_class=load_any_tokenizer(tiny_chatml) if tokenizer else None,
    )  # fmt: skip
    trainer.add_callback(ProbeCallback(grpo_parts.probe_section(tmp_path)["sets"], trainer))
    with pytest.raises(BadInput):
        trainer.train()
