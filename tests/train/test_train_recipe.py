"""Recipes of all stages: what is refused in one line, trl's names, keys and schema, batch arithmetic, the plan."""

from __future__ import annotations

import json
import math
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

import nextturn.train.plan
from nextturn.data_builders.build import build
from nextturn.data_builders.sections import load_data_recipe
from nextturn.probe.command.errors import BadInput, DataError, RecipeError, TrainingStopped
from nextturn.probe.command.files import write_json
from nextturn.probe.command.recipe import REMOVED, recipe_dict, recipe_keys
from nextturn.probe.models.checkpoints import mark_complete
from nextturn.probe.models.folders import ModelFolder, resolve
from nextturn.train.keys import RECIPES, describe_keys, main
from nextturn.train.memory import size_of
from nextturn.train.plan import describe
from nextturn.train.sections import (
    GrpoArguments,
    GrpoRecipe,
    LoraSection,
    ModelSection,
    PromptSection,
    RolloutSection,
    batch_of,
    fitted,
    load_dpo_recipe,
    load_grpo_recipe,
    load_sft_recipe,
)
from nextturn.train.training import command
from support.grpo_parts import write_recipe
from support.problems import MIXED
from support.schema import SCHEMAS, TRL_FIELDS, schema, text_of, trl_fields

ROOT = Path(__file__).resolve().parents[2]
SERVED = "{engine: openai, server: {urls: [http://localhost:9/v1], model: big}}"


@pytest.fixture
def recipe(tmp_path: Path, tiny_chatml: Path) -> Path:
    return write_recipe(tmp_path, tiny_chatml)


@pytest.fixture
def sft(tmp_path: Path) -> Path:
    path = tmp_path / "sft.yaml"
    path.write_text("model: {name: m}\ndata: {path: d.jsonl}\ntrain: {output_dir: runs/x}\n")
    return path


def test_a_run_starts_from_sft_if_it_is_there_and_keeps_its_first_choice(
    tmp_path: Path, tiny_chatml: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    recipe, sft = write_recipe(tmp_path, tiny_chatml), tmp_path / "runs" / "my_sft" / "checkpoint-4"
    (tmp_path / "my_sft.yaml").touch()

    def started(name: str = "runs/my_sft", run: str = "new") -> str:
        options = ("--model.name", name, "--model.fallback", "org/base", "--train.output_dir", f"runs/{run}")
        return load_grpo_recipe(recipe, options).model.name

    assert started() == "org/base"
    printed = capsys.readouterr().out
    assert (
        printed.count("\n") == 1 and "runs/my_sft" in printed and f"nextturn sft {tmp_path / 'my_sft.yaml'}" in printed
    )
    assert started("org/other") == "org/other", "a hub id is taken as it is"
    for run, model in {"from_base": "org/base", "from_sft": "runs/my_sft"}.items():
        write_json(tmp_path / "runs" / run / "recipe.json", {"model": {"name": model}})
        assert started(run=run) == model
    shutil.copytree(tiny_chatml, sft)
    assert started() == "org/base", "its checkpoint is not complete"
    mark_complete(sft, 4)
    assert started() == "runs/my_sft" and started(run="from_base") == "org/base"


# --- What is refused.

WRONG_GRPO = [
    ("train.num_generations", "3", "train.num_generations: given 3"),
    ("train.generation_batch_size", "6", "train.generation_batch_size: given 6, expected a multiple of 4"),
    ("train.max_completion_length", "4", "rollout.max_turn_tokens: given "),
    ("train.report_to", "wandb", "train.report_to: not for a recipe (tracking.to decides it)"),
    ("train.eval_strategy", "steps", "data.held_out: given 0 with train.eval_strategy 'steps'"),
    ("data.held_out", "8", "data.held_out: given 8 with train.eval_strategy 'no'"),
    ("train.top_p", "0.9", "train.top_p: given 0.9; rollouts with transformers sample at train.temperature alone"),
    ("train.ds3_gather_for_generation", "false", "train.ds3_gather_for_generation: given False"),
    ("rollout.simulator.engine", "openai", "rollout.simulator.server: missing `urls` or `model`"),
    ("rollout.simulator.model", "m", "rollout.simulator.engine: scripted takes no `model`"),
    ("rollout.simulator", "{engine: hf}", "rollout.simulator.model: the engine hf needs `model`"),
    ("rollout.simulator", "{engine: vllm, model: m}", "rollout.simulator.vllm.gpu_memory_utilization: missing"),
    (
        "rollout.simulator", SERVED.replace("big", "big, enable_thinking: true"),
        "rollout.simulator.server.enable_thinking: expected",
    ),
    ("reward.weights.accuracy", ".nan", "reward.weights.accuracy: given nan (float), expected a finite number"),
    ("reward", "{weights: {accuracy: 0, asking: 0, interactivity: 0, efficiency: 0}}", "reward.weights: all are 0"),
    ("reward.required", "[format]", "reward.required: given 'format', expected parts that have a weight"),
    ("reward.custom", "{accuracy: {function: 'a:b'}}", "reward.custom.accuracy: the name of a built-in part"),
    ("reward.custom", "{own: {function: a.b}}", "reward.custom.own.function: given 'a.b'"),
    ("reward.judge", "{}", "reward.judge.server: missing `urls` or `model`"),
    ("data", "{path: x.jsonl, recipe: x.yaml}", "data.path: "),
    ("model.lora", "{adapter: continue, r: 8}", "model.lora.adapter: `continue` keeps the checkpoint's own settings"),
    *((key, "0.8", f"{key}: unknown key; it was removed: {instead}") for key, instead in REMOVED.items() if key.startswith("rollout")),
    ("probe.engine", "vllm", "probe.engine: given vllm, expected hf: with `when: inline`"),
]  # fmt: skip
WRONG_SFT = [
    ("train.learing_rate", "1e-5", "train.learing_rate: unknown key; did you mean train.learning_rate?"),
    ("train.save_steps", "1.0", "train.save_steps: given 1.0 (float), expected a whole number or less than 1"),
    ("train.bf16", "1", "train.bf16: given 1 (int), expected true or false"),
    ("train.assistant_only_loss", "true", "not for a recipe (data.loss_on decides"),
    ("train.packing", "true", "train.packing: not for a recipe"),
    ("train.trust_remote_code", "true", "custom model code is never run"),
    ("train.hub_token", "hf_s3cret", "train.hub_token: expected no token"),
    ("train", "{output_dir: x, push_to_hub: true, hub_strategy: every_save}", "train.hub_strategy: given every_save"),
]


@pytest.mark.parametrize(("stage", "option", "value", "message"), [
    *(("grpo", *case) for case in WRONG_GRPO), *(("sft", *case) for case in WRONG_SFT),
    ("dpo", "train.loss_typ", "sigmoid", "train.loss_typ: unknown key; did you mean train.loss_type?"),
    ("dpo", "train.padding_free", "true", "train.padding_free: not for a recipe (trl pads pairs)"),
    *((stage, "train.sync_ref_model", "true", "train.sync_ref_model: not for a recipe") for stage in ("dpo", "grpo")),
    ("dpo", "model.lora", "{adapter: continue}", "model.lora.adapter: given continue, expected new"),
])  # fmt: skip
def test_a_wrong_recipe_is_one_line(
    stage: str, option: str, value: str, message: str, request: pytest.FixtureRequest
) -> None:
    load = {"sft": load_sft_recipe, "dpo": load_dpo_recipe, "grpo": load_grpo_recipe}[stage]
    path = request.getfixturevalue("recipe" if stage == "grpo" else "sft")
    with pytest.raises(RecipeError) as caught:
        load(path, [f"--{option}", value])
    assert str(caught.value).startswith((f"{path}: ", "command line: ")) and "\n" not in str(caught.value)
    assert message in str(caught.value) and "s3cret" not in str(caught.value)


def test_sampling_that_vllm_can_do_is_left_to_it(recipe: Path) -> None:
    assert load_grpo_recipe(recipe, ["--train.top_p", "0.9", "--train.use_vllm", "true"]).arguments["top_p"] == 0.9


def test_names_of_other_libraries_are_read_and_ours_are_written(sft: Path, tiny_chatml: Path) -> None:
    options = ["--model.model_name_or_path", "x", "--model.lora", "{lora_alpha: 8, target_modules: all-linear}"]
    model = recipe_dict(load_sft_recipe(sft, [*options, "--model.lora.lora_dropout", "0.1"]).model)
    assert (model["name"], model["lora"]["alpha"], model["lora"]["dropout"]) == ("x", 8, 0.1)
    assert model["lora"]["target_modules"] == "all-linear" and "lora_alpha" not in model["lora"]
    named, linear = (
        ModelSection(name="m", lora=LoraSection(**keys)) for keys in ({}, {"target_modules": "all-linear"})
    )
    assert size_of(linear, tiny_chatml).trained == size_of(named, tiny_chatml).trained > 0


def test_figures_are_shown_only_if_the_recipe_says_so(sft: Path) -> None:
    assert load_sft_recipe(sft).tracking.to == "none"
    assert load_sft_recipe(sft, ["--tracking.project", "p"]).tracking.to == "wandb"
    assert load_sft_recipe(sft, ["--tracking.to", "tensorboard"]).tracking.to == "tensorboard"


# --- trl's names, `nextturn keys` and the schema.


def test_make_schema_has_been_run_since_trl_or_a_key_changed() -> None:
    assert TRL_FIELDS.read_text() == text_of(trl_fields())
    for name in RECIPES:
        assert json.loads((SCHEMAS / f"{name}.json").read_text()) == schema(name), name


@pytest.mark.parametrize("name", RECIPES)
def test_every_key_has_one_plain_sentence_of_its_own(name: str) -> None:
    for key, field in recipe_keys(RECIPES[name]):
        if not key.startswith("train."):
            assert field.description and field.description.endswith("."), key
            assert "\n" not in field.description and len(field.description) <= 140, key


def test_keys_prints_type_default_and_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    main(["sft", "model.lora"])
    printed = capsys.readouterr().out
    assert "model.lora.alpha, also lora_alpha: int, default 16\n    Scale of the adapter" in printed
    assert "model.dtype" not in printed
    assert "probe.sets.NAME.n: int or null, default null" in describe_keys("probe")
    assert not any(line.startswith("train.") for line in describe_keys("grpo"))
    assert list(describe_keys("grpo", "train.beta")) == ["train.beta: float, default 0.0", "    KL coefficient."]
    with pytest.raises(BadInput, match=r"model.lora.alhpa: .*model.lora.alpha"):
        list(describe_keys("sft", "model.lora.alhpa"))


@pytest.mark.parametrize(
    ("error", "ends"),
    [
        (RuntimeError("[enforce fail at alloc_cpu.cpp:1] DefaultCPUAllocator: can't allocate memory"), TrainingStopped),
        (RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB."), TrainingStopped),
        (MemoryError(), TrainingStopped),
        (RuntimeError("shapes do not match"), RuntimeError),
    ],
)
def test_out_of_memory_names_the_keys_to_lower(error: Exception, ends: type[Exception], tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text("{}")
    path = tmp_path / "sft.yaml"
    path.write_text(
        f"model: {{name: org/m}}\ndata: {{path: {tmp_path / 'rows.jsonl'}}}\n"
        f"train: {{output_dir: {tmp_path / 'run'}, per_device_train_batch_size: 6, max_length: 77}}\n"
    )

    def train(recipe: Any, resume: str) -> None:
        raise error

    with pytest.raises(ends) as caught:
        command("sft", "Fine-tune", [str(path)], train)
    told = str(caught.value)
    assert (ends is RuntimeError) == (told == str(error))
    for part in ("train.per_device_train_batch_size (now 6)", "train.max_length (now 77)", "model.lora"):
        assert (ends is TrainingStopped) == (part in told)


# --- The effective batch size.


def grpo_recipe(rows: int | None = None, **train: Any) -> GrpoRecipe:
    arguments = GrpoArguments(output_dir="x", **train)
    rollout = RolloutSection(samples_per_step=rows)
    return GrpoRecipe(model=ModelSection(name="m"), data=PromptSection(path="x"), train=arguments, rollout=rollout)


@given(
    per_device=st.integers(1, 6),
    accumulation=st.integers(1, 4),
    group=st.integers(2, 6),
    more=st.fixed_dictionaries(
        {}, optional={"steps_per_generation": st.integers(1, 6), "generation_batch_size": st.integers(1, 24)}
    ),
)
def test_batches_are_those_of_trl(per_device: int, accumulation: int, group: int, more: dict[str, int]) -> None:
    from trl import GRPOConfig

    train = {
        "per_device_train_batch_size": per_device, "gradient_accumulation_steps": accumulation, "num_generations": group,
        **more,
    }  # fmt: skip
    ours = {"output_dir": "x", "use_cpu": True, "bf16": False, "report_to": []}
    try:
        batch = batch_of(grpo_recipe(**train), ranks=1)
    except RecipeError:
        with pytest.raises(ValueError):
            GRPOConfig(**ours, **train)
        return
    config = GRPOConfig(**ours, **train)
    assert (batch.samples, batch.steps_per_generation) == (config.generation_batch_size, config.steps_per_generation)


@given(rows=st.integers(1, 300), most=st.integers(1, 12), ranks=st.integers(1, 12), group=st.integers(2, 6))
def test_processes_share_the_batch_equally_or_the_nearest_sizes_are_named(
    rows: int, most: int, ranks: int, group: int
) -> None:
    train = {"per_device_train_batch_size": most, "num_generations": group}
    try:
        batch = batch_of(grpo_recipe(rows, **train), ranks)
    except RecipeError as error:
        assert rows % ranks or rows % group
        nearest = [int(number) for number in re.findall(r"\d+", str(error).rpartition("such as")[2])]
        assert nearest and all(abs(size - rows) < math.lcm(ranks, group) for size in nearest)
        assert all(batch_of(grpo_recipe(size, **train), ranks).rows_per_step == size for size in nearest)
        return
    parts, share = batch.accumulation, rows // ranks
    assert batch.rows_per_step == rows and batch.per_device <= most
    fewer = [other for other in range(1, parts) if share % other == 0]
    assert all(share // other > most for other in fewer), "in the fewest parts"


def test_a_batch_that_does_not_fit_the_launch_is_one_line(
    recipe: Path, sft: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = ["--data.rows_per_step", "64"]
    with pytest.raises(RecipeError, match="train.gradient_accumulation_steps: data.rows_per_step 64"):
        load_sft_recipe(sft, [*rows, "--train.gradient_accumulation_steps", "2"])
    with pytest.raises(RecipeError, match="train.gradient_accumulation_steps: rollout.samples_per_step 12"):
        load_grpo_recipe(recipe, ["--rollout.samples_per_step", "12"])
    monkeypatch.setenv("WORLD_SIZE", "3")
    with pytest.raises(RecipeError, match="given 64, .*63 or 66"):
        load_sft_recipe(sft, rows)
    train = fitted(load_sft_recipe(sft, ["--data.rows_per_step", "66"]))
    assert (train["per_device_train_batch_size"], train["gradient_accumulation_steps"]) == (2, 11), "22 a process"


# --- The plan of `--dry-run`.


@pytest.mark.parametrize(
    ("options", "said", "unsaid"),
    [
        # 8 samples: 8 tokens each are trained, and after each one exchange of 8 tokens is looked ahead.
        ([], ["8 (4 complete, 4 underspecified)", "(64 trained, 64 ahead", "scripted: 8 calls", "apples: 3 answers"], ""),
        (["--rollout.mode", "conversation", "--train.beta", "0.1"], ["(128 trained, 0 ahead", "reference"], ""),
        (
            ["--rollout.simulator", SERVED, "--reward.judge", SERVED, "--train.beta", "0.1", "--model.lora", "{r: 4}"],
            ["simulator openai big: 8 calls", "judge     openai big: 8 calls", "LoRA r=4"], "reference",
        ),
        (["--data.kinds", "[complete]"], ["4 (4 complete)"], "underspecified"),
        (["--model.name", "runs/later/checkpoint-40"], ["could not check the model: runs/later/checkpoint-40"], "Ann"),
    ],
)  # fmt: skip
def test_the_plan_of_grpo(options: list[str], said: list[str], unsaid: str, recipe: Path) -> None:
    plan = describe(load_grpo_recipe(recipe, options))
    assert [each for each in said if each not in plan] == [] and not (unsaid and unsaid in plan)
    assert not (recipe.parent / "run").exists()


@pytest.mark.parametrize(
    ("key", "value", "error"),
    [
        ("data.kinds", "[hint]", DataError),
        ("data.max_prompt_tokens", "5", DataError),
        ("reward.custom", "{own: {function: no_such_module:length}}", RecipeError),
    ],
)
def test_a_plan_refuses_what_the_run_would(key: str, value: str, error: type[Exception], recipe: Path) -> None:
    with pytest.raises(error, match=key):
        describe(load_grpo_recipe(recipe, [f"--{key}", value]))


def test_a_plan_names_what_is_unknown_until_the_data_are_built(recipe: Path, tmp_path: Path) -> None:
    data = {"source": {"kind": "jsonl", "path": MIXED, "n": 20}, "output": {"path": str(tmp_path / "built")}, "seed": 0}
    (tmp_path / "data.yaml").write_text(yaml.safe_dump(data))
    content = yaml.safe_load(recipe.read_text())
    content["data"] = {"recipe": str(tmp_path / "data.yaml")}
    recipe.write_text(yaml.safe_dump(content))
    plan = describe(load_grpo_recipe(recipe))
    assert "prompts   number and tokens: unknown until `nextturn data" in plan and "an example" not in plan
    sft = {name: content[name] for name in ("model", "data", "probe")}
    sft["train"] = {
        "output_dir": str(tmp_path / "sft"), "max_length": 1024, "per_device_train_batch_size": 4, "save_steps": 0.5,
        "num_train_epochs": 1,
    }  # fmt: skip
    recipe.write_text(yaml.safe_dump(sft))
    plan = describe(load_sft_recipe(recipe))
    assert "rows and tokens: unknown until" in plan and "an unknown number at 4 rows" in plan
    assert "2 times, save_steps 0.5" in plan
    assert not (tmp_path / "built").exists()

    build(load_data_recipe(tmp_path / "data.yaml"))
    plan = describe(load_sft_recipe(recipe))
    (rows, steps) = (int(number) for number in re.findall(r"(\d+) (?:rows, |at 4 rows)", plan))
    assert steps == math.ceil(rows / 4) and "with loss" in plan and "⟦" in plan


def test_a_plan_reads_no_weights_of_the_hub_and_converts_no_multimodal_model(
    tiny_chatml: Path, tiny_multimodal: Path, own_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(tiny_chatml, tmp_path / "hub", ignore=shutil.ignore_patterns("*.safetensors"))
    monkeypatch.setattr(nextturn.train.plan, "tokenizer_folder", lambda name: ModelFolder(name, tmp_path / "hub"))
    recipe = write_recipe(tmp_path, tiny_chatml)

    def parameters(name: str) -> int:
        size, chat, unchecked = nextturn.train.plan._model(load_grpo_recipe(recipe, ["--model.name", name]))
        assert size is not None and chat is not None and not unchecked
        return size.parameters

    assert parameters("org/model") == parameters(str(tiny_chatml))
    text_only = parameters(str(tiny_multimodal))
    assert not own_cache.exists()
    assert text_only == size_of(ModelSection(name="text"), resolve(str(tiny_multimodal)).path).parameters
