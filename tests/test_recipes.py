"""Every shipped recipe goes through its dry run, also where the hub is out of reach, and every config is sound."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
import yaml
from commands import call

ROOT = Path(__file__).resolve().parent.parent
RECIPES = sorted((ROOT / "recipes").glob("*.yaml"))
# What a plan has to say, of the recipes whose model, data and sets are out of reach here.
PLANS = {
    "probe.yaml": ("could not check",),
    "qwen2b_sft.yaml": (
        # 24 layers of Qwen3.5-2B's known shape; 1.88 billion parameters, of which LoRA r=32 trains 1 to 3 in 100.
        "Qwen/Qwen3.5-2B: 1,88", "LoRA r=32", "GiB a GPU with 8 under ZeRO-2", "could not check the model",
        "could not check the data", "could not check probe set gpqa_diamond", "HF_HUB_OFFLINE",
    ),
    "qwen2b_grpo.yaml": (  # with WORLD_SIZE=8
        "8 samples of each of 16 prompts: 128 at a time (4 a process x 8 x 4)",
        # 128 x 2,048 tokens are trained, and 3 x 2 x 128 x 2,048 looked ahead.
        "1,835,008 tokens at most a generation (262,144 trained, 1,572,864 ahead",
        "reference 3.51",  # 1.88 billion parameters in bfloat16
        "vllm      takes 30% of each GPU's memory",
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The recipes alone, so that data of an earlier demo changes nothing here."""
    folder = tmp_path_factory.mktemp("elsewhere")
    (folder / "recipes").symlink_to(ROOT / "recipes")
    return folder


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.name)
def test_a_shipped_recipe_goes_through_its_dry_run(
    recipe: Path, elsewhere: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = str(Path("recipes") / recipe.name)
    content = yaml.safe_load(recipe.read_text())
    if "source" in content:
        command = ["-m", "data_builders", name, "--dry-run"]
    elif "train" in content:
        command = [f"train/{'grpo' if 'rollout' in content else 'sft'}.py", name, "--dry-run"]
    else:
        command = ["-m", "probe", "run", "smollm2-135m", name, "--dry-run"]
    call(command, elsewhere, **({"WORLD_SIZE": "8"} if recipe.name == "qwen2b_grpo.yaml" else {}))
    said = capsys.readouterr().out
    assert sorted(path.name for path in elsewhere.iterdir()) == ["recipes"], "a dry run writes nothing"
    for part in PLANS.get(recipe.name, ()):
        assert part in said


@pytest.mark.parametrize("stage", [2, 3])
def test_deepspeed_files_leave_sizes_to_the_recipe(stage: int) -> None:
    config = json.loads((ROOT / "recipes" / "deepspeed" / f"zero{stage}.json").read_text())
    assert config["zero_optimization"]["stage"] == stage
    for key in ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"):
        assert config[key] == "auto"
    if stage == 3:
        assert config["zero_optimization"]["stage3_gather_16bit_weights_on_model_save"]


@pytest.mark.parametrize("config", sorted((ROOT / "recipes" / "accelerate").glob("*.yaml")), ids=lambda path: path.name)
def test_accelerate_reads_its_configs(config: Path) -> None:
    from accelerate.commands.config.config_args import load_config_from_file

    loaded = load_config_from_file(str(config))
    assert loaded.num_processes >= 1
    if "zero" in config.name:
        assert loaded.deepspeed_config["zero_stage"] == int(config.stem[-1])


@pytest.mark.parametrize("script", ["slurm.sh", "gpu_check.sh"])
def test_scripts_are_sound_shell(script: str) -> None:
    subprocess.run(["bash", "-n", str(ROOT / "recipes" / script)], check=True)
