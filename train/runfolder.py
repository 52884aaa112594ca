"""A training run's folder: recipe.json first, checkpoints and probes as they come, finished.json and the card last."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from probe.checkpoints import finish_run, finished
from probe.files import read_json, sha256_text, write_atomic, write_json
from probe.processes import is_main_process, say
from probe.recipe import recipe_dict
from probe.store import refuse_changes

if TYPE_CHECKING:
    from train.grpo_recipe import GrpoRecipe
    from train.recipe import SftRecipe

# What may differ when a run is taken up again: it changes what is kept or shown, or where and how patiently servers are
# asked, not what is computed.
_SERVED = ("price", "latency_s", "server.urls", "server.concurrency", "server.timeout_s", "server.max_wait_s")
_FREE = (
    *("tracking.", "train.logging_", "train.save_total_limit", "train.disable_tqdm", "probe.batch_tokens"),
    *("reward.max_failed", "reward.timeout_s", "reward.judge_timeout_s", "reward.workers", "train.vllm_server_"),
    *(f"{role}.{key}" for role in ("rollout.simulator", "reward.judge") for key in _SERVED),
)


def already_finished(run_dir: Path, recipe: SftRecipe | GrpoRecipe) -> bool:
    """Whether the folder holds a finished run of this recipe. Writes nothing: the input may still prove wrong.

    Raises:
        SettingsChanged: the folder holds a run of another recipe; the differing keys are named.
    """
    if (run_dir / "recipe.json").is_file():
        refuse_changes(run_dir, "this run was begun", read_json(run_dir / "recipe.json"), recipe_dict(recipe), _FREE)
    done = finished(run_dir)
    if done:
        say(f"{run_dir}: finished at step {done['step']}; nothing to do (delete the folder to train again)")
    return done is not None


def claim(run_dir: Path, recipe: SftRecipe | GrpoRecipe) -> None:
    """Writes recipe.json, once all input has been found good; on the main process."""
    if is_main_process() and not (run_dir / "recipe.json").is_file():
        write_json(run_dir / "recipe.json", recipe_dict(recipe))


def conclude(
    run_dir: Path, trainer: Any, recipe: SftRecipe | GrpoRecipe, told: tuple[str, str], **facts: dict[str, Any]
) -> None:
    """Writes the model card and the mark of a finished run; on the main process.

    Args:
        told: what the card says was done to the model and on what, such as ("fine-tuned", "on 12 conversations: ...").
        facts: counts for finished.json.
    """
    if not trainer.accelerator.is_main_process:
        return
    step = trainer.state.global_step
    write_atomic(run_dir / "README.md", _card(run_dir, recipe, told, step))
    recipe_sha256 = sha256_text(json.dumps(recipe_dict(recipe), sort_keys=True))
    finish_run(run_dir, step, recipe_sha256, **facts)
    print(f"finished: {run_dir / f'checkpoint-{step}'}; model card {run_dir / 'README.md'}")


def _card(run_dir: Path, recipe: SftRecipe | GrpoRecipe, told: tuple[str, str], step: int) -> str:
    comparison = run_dir / "probe" / "comparison" / "comparison.md"
    table = comparison.read_text(encoding="utf-8") if comparison.is_file() else "# Not probed during training\n"
    table = table.replace("\n#", "\n##").replace("(tradeoff.png)", "(probe/comparison/tradeoff.png)")
    trained = "LoRA" if recipe.model.lora else "all weights"
    return f"""# {run_dir.name}

{recipe.model.name}, {told[0]} for {step} steps ({trained}) {told[1]}
Data: {recipe.data.path or recipe.data.recipe}. Weights: `checkpoint-{step}/`.

#{table}
## Recipe

```json
{json.dumps(recipe_dict(recipe), indent=2)}
```
"""
