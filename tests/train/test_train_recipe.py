"""Recipes of all stages: what is refused in one line, trl's field names, batch arithmetic, the plan."""

from __future__ import annotations

import dataclasses
import math
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

import nextturn.train.plan
from nextturn.data_builders.build import build
from nextturn.data_builders.recipe import load_data_recipe
from nextturn.probe.checkpoints import mark_complete
from nextturn.probe.errors import DataError, RecipeError
from nextturn.probe.files import write_json
from nextturn.probe.models import ModelFolder, resolve
from nextturn.train.memory import size_of
from nextturn.train.plan import describe
from nextturn.train.recipe import (
    GrpoArguments,
    GrpoRecipe,
    ModelSection,
    PromptSection,
    RolloutSection,
    batch_of,
    fitted,
    load_grpo_recipe,
    load_sft_recipe,
    trl_section,
)
from support.grpo_parts import write_recipe

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def recipe(tmp_path: Path, tiny_chatml: Path) -> Path:
    return write_recipe(tmp_path, tiny_chatml)


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
    said = capsys.readouterr().out
    assert said.count("\n") == 1 and "runs/my_sft" in said and f"train/sft.py {tmp_path / 'my_sft.yaml'}" in said
    assert started("org/other") == "org/other", "a hub id is taken as it is"
    for run, model in {"from_base": "org/base", "from_sft": "runs/my_sft"}.items():
        write_json(tmp_path / "runs" / run / "recipe.json", {"model": {"name": model}})
        assert started(run=run) == model
    shutil.copytree(tiny_chatml, sft)
    assert started() == "org/base", "its checkpoint is not complete"
    mark_complete(sft, 4)
    assert started() == "runs/my_sft" and started(run="from_base") == "org/base"


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("train.num_generations", "1", "train.num_generations: given 1, wanted 2 or more"),
        ("train.num_generations", "3", "are 8 samples at a time, wanted a multiple of num_generations 3"),
        ("train.generation_batch_size", "6", "train.generation_batch_size: given 6, wanted a multiple of 4"),
        ("train.max_completion_length", "4", "max_turn_tokens"),
        ("train.report_to", "wandb", "train.report_to: not for a recipe (tracking.to decides it)"),
        ("train.reward_weights", "[1.0]", "train.reward_weights: not for a recipe (reward.weights decides it)"),
        ("train.remove_unused_columns", "true", "not for a recipe (prompts carry what the reward needs)"),
        ("train.eval_strategy", "steps", "data.held_out: given 0 with train.eval_strategy 'steps'"),
        ("data.held_out", "8", "data.held_out: given 8 with train.eval_strategy 'no'"),
        ("train.top_p", "0.9", "train.top_p: given 0.9"),
        ("train.lerning_rate", "1", "train.lerning_rate: unknown key; did you mean train.learning_rate?"),
        ("rollout.mode", "turns", "rollout.mode: given 'turns' (str), wanted one of 'reply' or 'conversation'"),
        ("rollout.simulator.engine", "openai", "rollout.simulator.server: wanted `urls` and `model`"),
        ("reward.weights.acuracy", "1.0", "reward.weights.acuracy: unknown key"),
        ("reward.required", "[format]", "reward.required: given 'format', wanted parts that have a weight"),
        ("data.recipe", "x.yaml", "data: give either `path` or `recipe`"),
        ("data.max_prompt_tokens", "0", "data.max_prompt_tokens: given 0 (int), wanted 1 or more"),
        ("model.lora", "{adapter: continue, r: 8}", "`adapter: continue` keeps the checkpoint's own settings"),
        ("probe.engine", "vllm", "with `when: inline` the live weights are measured"),
    ],
)
def test_a_wrong_grpo_recipe_is_one_line(option: str, value: str, message: str, recipe: Path) -> None:
    with pytest.raises(RecipeError) as caught:
        load_grpo_recipe(recipe, [f"--{option}", value])
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("train.learing_rate", "1e-5", "train.learing_rate: unknown key; did you mean train.learning_rate?"),
        ("train.learning_rate", "fast", "train.learning_rate: given 'fast' (str), wanted a number"),
        ("train.save_steps", "1.0", "train.save_steps: given 1.0 (float), wanted a whole number or less than 1"),
        ("train.eval_steps", "2.5", "train.eval_steps: given 2.5 (float), wanted a whole number"),
        ("train.logging_steps", "0", "train.logging_steps: given 0 (int), wanted 1 or more"),
        ("train.bf16", "1", "train.bf16: given 1 (int), wanted true or false"),
        ("train.assistant_only_loss", "true", "not for a recipe (data.loss_on decides"),
        ("train.packing", "true", "to keep documents apart"),
        ("train.trust_remote_code", "true", "custom model code is never run"),
        ("data.recipe", "recipes/demo_data.yaml", "give either `path` or `recipe`"),
    ],
)
def test_a_wrong_sft_recipe_is_one_line(option: str, value: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text("model: {name: m}\ndata: {path: d.jsonl}\ntrain: {output_dir: runs/x}\n")
    load_sft_recipe(path)
    with pytest.raises(RecipeError) as caught:
        load_sft_recipe(path, [f"--{option}", value])
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_trl_fields_are_those_of_the_installed_trl() -> None:
    from trl import DPOConfig, GRPOConfig, SFTConfig

    for module, config in (("sft_config", SFTConfig), ("dpo_config", DPOConfig), ("grpo_config", GRPOConfig)):
        ours = set(trl_section(module, config.__name__).model_fields)
        assert ours == {field.name for field in dataclasses.fields(config) if field.init}


@given(
    per_device=st.integers(1, 6),
    accumulation=st.integers(1, 4),
    group=st.integers(1, 6),
    more=st.fixed_dictionaries(
        {}, optional={"steps_per_generation": st.integers(1, 6), "generation_batch_size": st.integers(1, 24)}
    ),
)
def test_batches_are_those_of_trl(per_device: int, accumulation: int, group: int, more: dict[str, int]) -> None:
    from trl import GRPOConfig

    section = {
        "per_device_train_batch_size": per_device,
        "gradient_accumulation_steps": accumulation,
        "num_generations": group,
        **more,
    }
    try:
        batch = batch_of(section, ranks=1)
    except RecipeError:
        with pytest.raises(ValueError):
            GRPOConfig(output_dir="x", use_cpu=True, bf16=False, report_to=[], **section)
        return
    theirs = GRPOConfig(output_dir="x", use_cpu=True, bf16=False, report_to=[], **section)
    assert batch.samples == theirs.generation_batch_size
    assert batch.steps_per_generation == theirs.steps_per_generation


def test_groups_may_be_spread_over_processes() -> None:
    section = {"per_device_train_batch_size": 2, "num_generations": 8}
    with pytest.raises(RecipeError, match="gradient_accumulation_steps 4"):
        batch_of(section, ranks=1)
    batch = batch_of(section, ranks=8)
    assert (batch.samples, batch.prompts) == (16, 2)
    assert batch.steps(prompts=9, num_iterations=1) == 4, "the ninth prompt makes no whole batch"


@given(wanted=st.integers(1, 300), most=st.integers(1, 12), ranks=st.integers(1, 12), group=st.integers(2, 6))
def test_shares_are_equal_and_a_number_that_cannot_be_shared_is_met_by_ones_that_can(
    wanted: int, most: int, ranks: int, group: int
) -> None:
    train = GrpoArguments(output_dir="x", per_device_train_batch_size=most, num_generations=group)
    model, data = ModelSection(name="m"), PromptSection(path="x")
    recipe = GrpoRecipe(model=model, data=data, train=train, rollout=RolloutSection(samples_per_step=wanted))
    try:
        given = fitted(recipe, ranks)
    except RecipeError as error:
        assert wanted % ranks or wanted % group
        nearest = [int(number) for number in re.findall(r"\d+", str(error).rpartition("such as")[2])]
        for one in nearest:
            fitted(replace(recipe, rollout=RolloutSection(samples_per_step=one)), ranks)
            assert abs(one - wanted) < math.lcm(ranks, group)
        assert nearest
        return
    at_once, parts = given["per_device_train_batch_size"], given["gradient_accumulation_steps"]
    assert at_once * parts * ranks == wanted and at_once <= most
    fewer = [more for more in range(1, parts) if wanted // ranks % more == 0]
    assert all(wanted // ranks // more > most for more in fewer), "in the fewest parts"


def test_a_step_that_does_not_fit_the_launch_or_is_said_twice_is_one_line(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sft = tmp_path / "sft.yaml"
    sft.write_text("model: {name: m}\ndata: {path: d.jsonl, rows_per_step: 64}\ntrain: {output_dir: runs/x}\n")
    with pytest.raises(RecipeError, match="data.rows_per_step 64 decides it; leave it out, or give data.rows_per_step"):
        load_sft_recipe(sft, ["--train.gradient_accumulation_steps", "2"])
    monkeypatch.setenv("WORLD_SIZE", "3")
    with pytest.raises(RecipeError, match=r"given 64, wanted a multiple of 3 \(3 processes\), such as 63 or 66"):
        load_sft_recipe(sft)
    given = fitted(load_sft_recipe(sft, ["--data.rows_per_step", "66"]))
    assert (given["per_device_train_batch_size"], given["gradient_accumulation_steps"]) == (2, 11), "22 a process"
    load_sft_recipe(sft, ["--data.rows_per_step", "null", "--train.gradient_accumulation_steps", "2"])
    with pytest.raises(RecipeError, match="train.gradient_accumulation_steps: rollout.samples_per_step 12 decides it"):
        load_grpo_recipe(recipe, ["--rollout.samples_per_step", "12"])


def test_the_plan_counts_what_a_generation_takes(recipe: Path) -> None:
    plan = describe(load_grpo_recipe(recipe))
    assert "8 (4 complete, 4 underspecified)" in plan
    assert "4 samples of each of 2 prompts: 8 at a time" in plan
    # 8 samples: 8 tokens each are trained, and after each one exchange of 8 tokens is looked ahead.
    assert "128 tokens at most a generation (64 trained, 64 ahead" in plan
    assert "scripted: 8 calls at most a generation" in plan
    assert "apples: 3 answers, 9 user turns" in plan
    assert "Ann has 3 apples" in plan and "nothing was written" in plan
    assert not (recipe.parent / "run").exists()
    plan = describe(load_grpo_recipe(recipe, ["--rollout.mode", "conversation", "--train.beta", "0.1"]))
    assert "128 tokens at most a generation (128 trained, 0 ahead" in plan
    assert "reference" in plan, "without LoRA a KL term holds a second model"


def test_the_plan_counts_the_calls_of_models(recipe: Path) -> None:
    served = "{engine: openai, server: {urls: [http://localhost:9/v1], model: big}}"
    plan = describe(
        load_grpo_recipe(
            recipe,
            ["--rollout.simulator", served, "--reward.judge", served, "--train.beta", "0.1", "--model.lora", "{r: 4}"],
        )
    )
    assert "simulator openai big: 8 calls at most a generation" in plan
    assert "judge     openai big: 8 calls at most a generation" in plan
    assert "reference" not in plan and "LoRA r=4" in plan


def test_a_plan_takes_only_prompts_that_are_wanted_and_leaves_a_later_checkpoint_open(recipe: Path) -> None:
    with pytest.raises(DataError, match="no prompt of the kind hint, there are complete, underspecified"):
        describe(load_grpo_recipe(recipe, ["--data.kinds", "[hint]"]))
    with pytest.raises(DataError, match="0 prompts, wanted at least the 2 of one generation batch"):
        describe(load_grpo_recipe(recipe, ["--data.max_prompt_tokens", "5"]))
    assert "4 (4 complete)" in describe(load_grpo_recipe(recipe, ["--data.kinds", "[complete]"]))
    plan = describe(load_grpo_recipe(recipe, ["--model.name", "runs/later/checkpoint-40"]))
    assert "could not check the model: runs/later/checkpoint-40: no such model folder" in plan


def test_a_plan_says_what_is_unknown_until_the_data_are_built(recipe: Path, tmp_path: Path) -> None:
    data = {"source": {"kind": "starter", "n": 20}, "output": {"path": str(tmp_path / "built")}, "seed": 0}
    (tmp_path / "data.yaml").write_text(yaml.safe_dump(data))
    content = yaml.safe_load(recipe.read_text())
    content["data"] = {"recipe": str(tmp_path / "data.yaml")}
    recipe.write_text(yaml.safe_dump(content))
    plan = describe(load_grpo_recipe(recipe))
    assert "prompts   number and tokens: unknown until `nextturn data" in plan and "an example" not in plan
    sft = {name: content[name] for name in ("model", "data", "probe", "tracking")}
    sft["train"] = {
        "output_dir": str(tmp_path / "sft"), "max_length": 1024, "per_device_train_batch_size": 4, "save_steps": 0.5,
        "num_train_epochs": 1,
    }  # fmt: skip
    recipe.write_text(yaml.safe_dump(sft))
    plan = describe(load_sft_recipe(recipe))
    assert "rows and tokens: unknown until" in plan and "an unknown number at 4 rows" in plan
    assert "save_steps 0.5: 2 times per run\n" in plan and "2 at once" in plan
    assert not (tmp_path / "built").exists()

    build(load_data_recipe(tmp_path / "data.yaml"))
    plan = describe(load_sft_recipe(recipe))
    (rows, steps) = (int(number) for number in re.findall(r"(\d+) (?:rows, |at 4 rows)", plan))
    assert steps == math.ceil(rows / 4) and "with loss" in plan and "⟦" in plan
    assert f"save_steps 0.5: 2 times per run, every {math.ceil(steps / 2)} of {steps} steps" in plan
    packed = load_sft_recipe(recipe)
    packed.train.packing = True  # not as an option: no recipe has it where the kernels are missing
    sequences = int(re.findall(r"into (\d+) sequences of at most 1,024 tokens", plan := describe(packed))[0])
    assert 0 < sequences < rows and f"{math.ceil(sequences / 4)} at 4 rows" in plan


def test_a_plan_reads_no_weights_of_the_hub_and_converts_no_multimodal_model(
    recipe: Path,
    tiny_chatml: Path,
    tiny_multimodal: Path,
    own_cache: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shutil.copytree(tiny_chatml, tmp_path / "hub", ignore=shutil.ignore_patterns("*.safetensors"))
    monkeypatch.setattr(nextturn.train.plan, "tokenizer_folder", lambda name: ModelFolder(name, tmp_path / "hub"))

    def planned(name: str) -> int:
        model = nextturn.train.plan._model(load_grpo_recipe(recipe, ["--model.name", name]))
        assert model.size is not None and model.chat is not None and not model.unchecked
        return model.size.parameters

    assert planned("org/model") == planned(str(tiny_chatml))
    parameters = planned(str(tiny_multimodal))
    assert not own_cache.exists()
    assert parameters == size_of(ModelSection(name="text"), resolve(str(tiny_multimodal)).path).parameters
