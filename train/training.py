"""Run a stage around its trainer: the command, the input, the run directory, guards and probes, the model card.

A stage makes a `Run`, then its rows, then its trainer. `Run.train` trains from the beginning or from a checkpoint. Files of
a run directory, in the order in which they are written: user_model.json of a user model, recipe.json, checkpoints and probes,
README.md, finished.json.
"""

from __future__ import annotations

import argparse
import json
import sys
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from nextturn.probe.command.errors import SettingsChanged, TrainingStopped, require
from nextturn.probe.command.files import (
    only_process,
    read_json,
    refuse_changes,
    remove_unfinished,
    sha256_text,
    write_atomic,
    write_json,
)
from nextturn.probe.command.recipe import Mark, may_differ, recipe_dict, with_later_keys
from nextturn.probe.command.terminal import is_main_process, processes, say, visible
from nextturn.probe.data.tables import as_hub_set, located
from nextturn.probe.models.checkpoints import finish_run, finished, list_checkpoints, newest_complete
from nextturn.probe.models.embedded import EMBEDDED_NAME
from nextturn.probe.models.folders import load_chat, resolve
from nextturn.probe.models.user_model import (
    USER_MODEL,
    UserModelInfo,
    mark_user_model,
    refuse_user_model,
    user_model_info,
)
from nextturn.probe.models.weights import sha256_of_seen
from nextturn.probe.report.tracking import check_tracker, start_tracking
from nextturn.probe.text.chat import Message
from nextturn.train import inputs
from nextturn.train.policy import held_in, load_policy, policy_folder, zero_in_force
from nextturn.train.resume import choose_resume, mark_checkpoints, remove_incomplete, this_launch
from nextturn.train.rewards import PARTS
from nextturn.train.sections import LOADERS, GrpoRecipe, TrainRecipe, fitted
from nextturn.train.setup import (
    check_shared,
    dtype_here,
    launch_line,
    on_main_process,
    training_arguments,
    trains_on_gpus,
)

if TYPE_CHECKING:
    from nextturn.probe.run import LoadedSet


def command(stage: str, summary: str, argv: Sequence[str], train: Callable[[Any, str], None]) -> None:
    """Run the command of a stage.

    Args:
        stage: "sft", "dpo" or "grpo": the script and the kind of recipe.
        summary: What the stage does, for `--help`.
        argv: The words after the script's name.
        train: Called with the recipe and the value of `--resume`.
    """
    parser = argparse.ArgumentParser(
        prog=f"nextturn {stage}" if Path(sys.argv[0]).stem == "nextturn" else f"accelerate launch train/{stage}.py",
        description=f"{summary}, and probe it before training and at every checkpoint.",
        epilog="Every recipe key is also an option: --train.learning_rate 2e-5",
    )
    parser.add_argument("recipe", type=Path, help=f"a recipe such as recipes/qwen2b_{stage}.yaml")
    parser.add_argument("--dry-run", action="store_true", help="check everything, show the plan, change nothing")
    parser.add_argument(
        "--resume",
        default="auto",
        metavar="auto|never|PATH",
        help="default: the newest complete checkpoint",
    )
    arguments, overrides = parser.parse_known_args(argv)
    recipe = LOADERS[stage](arguments.recipe, overrides)
    if processes() == 1 and not finished(Path(recipe.arguments["output_dir"])):
        check_names(recipe)
    if not arguments.dry_run:
        require("trl", "train", f"nextturn {stage}")
        try:
            train(recipe, arguments.resume)
        except (RuntimeError, MemoryError) as error:  # torch.OutOfMemoryError is a RuntimeError
            from accelerate.utils.memory import should_reduce_batch_size

            if not (isinstance(error, MemoryError) or should_reduce_batch_size(error)):
                raise
            from nextturn.train.memory import advice

            raise TrainingStopped(f"out of memory: {advice(recipe)}; --dry-run shows the parts of the memory") from None
    elif is_main_process():  # one plan for all processes
        from nextturn.train.plan import describe

        print(visible(describe(recipe)))


def check_names(recipe: TrainRecipe) -> None:
    """Check that the recipe's data and model are names of something, before anything heavy is imported.

    Raises:
        BadInput: A file is missing or empty, or the model's name is no hub id, and there is nothing here under it.
    """
    for key in ("path", "validation"):
        if name := getattr(recipe.data, key, None):
            as_hub_set(name, f"data.{key}")
    name = recipe.model.name
    if "/" not in name and name != EMBEDDED_NAME and not (Path(name).exists() or recipe.model.fallback):
        resolve(name)


class Run:
    """One run of a recipe in this launch.

    The constructor reads all input but the rows, before the process group exists and before a model is loaded: process 0
    downloads, converts and builds while the others wait.

    Args:
        resume: The value of `--resume`.

    Attributes:
        folder: The model that training starts from.
        data: The folder or file of the rows.
        sets: What the inline probe measures, on process 0 only.
        args: trl's config, after `arguments`.
        checkpoint: The checkpoint to resume from, after `begin`; None from the beginning.
    """

    args: Any

    def __init__(self, recipe: TrainRecipe, resume: str) -> None:
        self.recipe, self.resume = recipe, resume
        self.run_dir = Path(recipe.arguments["output_dir"])
        self.pushes = bool(recipe.arguments.get("push_to_hub"))
        self.sets: list[LoadedSet] = []
        self.inputs: inputs.Inputs = {}
        check_tracker(recipe.tracking)
        trains_on_gpus(fitted(recipe))
        self.data, self.inputs, hashes = on_main_process("prepare the model and the data", self._prepare)
        sha256_of_seen.update(hashes)  # so that the other processes need not read all weights again
        self.folder = policy_folder(recipe.model, self.inputs["model"]["path"])
        self.chat = load_chat(self.folder, recipe.data.switches)
        self.tokenizer = self.chat.tokenizer
        self.checkpoint: Path | None = None
        self._alone = ExitStack()

    def _prepare(self) -> tuple[Path, inputs.Inputs, dict[Any, str]]:
        from nextturn.train.encoding import data_path  # which needs numpy, and a recipe is read without it
        from nextturn.train.memory import unloaded_policy
        from nextturn.train.probing import sets_to_probe

        known = inputs.recorded(self.run_dir)
        folder, self.inputs["model"] = inputs.find_base(self.recipe.model.name, self.run_dir, known)
        start = policy_folder(self.recipe.model, self.inputs["model"]["path"])
        if self.recipe.model.lora is not None:
            say(f"adapter   {unloaded_policy(self.recipe.model, start.path, start.base)[2]}")
        if self.pushes:
            from nextturn.train.push import create_repository

            create_repository(self.recipe.arguments, self.run_dir)
        if (probe := self.recipe.probe) and probe.when != "never":  # the base is measured, too
            refuse_user_model(folder.path, probe.user_model)
        # A set that cannot be downloaded ends the run before the data is built.
        sets_to_probe(self.recipe.probe, self.run_dir, before_build=True)
        data = data_path(self.recipe.data.path, self.recipe.data.recipe)
        if validation := getattr(self.recipe.data, "validation", None):
            located(validation, "data.validation")
        self.sets = sets_to_probe(self.recipe.probe, self.run_dir)
        return data, self.inputs, sha256_of_seen

    def warn_of_probed(self, conversations: Iterable[Sequence[Message]]) -> None:
        """Warn if questions of the inline probe occur in the training data. Prints on process 0."""
        from nextturn.train.encoding import probed_in_training

        for warning in probed_in_training(conversations, {loaded.name: loaded.questions for loaded in self.sets}):
            say(warning)

    def arguments(self, config_class: type, **fixed: Any) -> Any:
        """Return trl's config, see `training_arguments`. Creates the process group."""
        self.args = training_arguments(self.recipe, config_class, **fixed)
        check_shared(self.data)
        return self.args

    def begin(self, user_model: UserModelInfo | None = None) -> None:
        """Choose the checkpoint to resume from, and write recipe.json. Call it once all input is read.

        Args:
            user_model: What the run's marker says if a user model is trained.
        """
        self.checkpoint, token = on_main_process("choose the checkpoint", lambda: self._begin(user_model))
        try:
            check_shared(token)
        finally:
            if is_main_process():
                token.unlink()

    def _begin(self, user_model: UserModelInfo | None) -> tuple[Path | None, Path]:
        # After Ctrl-C `accelerate launch` returns to the prompt while its process still saves. Held until this process ends.
        self._alone.enter_context(only_process(self.run_dir / ".lock", f"trains into {self.run_dir}"))
        if self.recipe.probe is None or self.recipe.probe.when != "watch":  # a watcher writes here, too
            remove_unfinished(self.run_dir)  # temporary files of a killed run
        checkpoint = choose_resume(self.run_dir, self.resume, this_launch(self.args))
        validation = getattr(self.recipe.data, "validation", None)
        self.inputs |= inputs.inputs_of(self.recipe, self.data, validation and located(validation, "data.validation"))
        if user_model is not None:
            mark_user_model(self.run_dir, user_model)  # before recipe.json, for which a watcher waits
        elif checkpoint is None:
            (self.run_dir / USER_MODEL).unlink(missing_ok=True)  # of an earlier run that did nothing yet
        known = inputs.recorded(self.run_dir)
        inputs.refuse_changed(self.run_dir, known, self.inputs)
        if checkpoint is not None and not known:
            say("note: an earlier version began this run and recorded no inputs; those of now are recorded")
        # A run that did nothing yet has nothing that other settings could mix with.
        if checkpoint is None or not (self.run_dir / "recipe.json").is_file():
            write_json(self.run_dir / "recipe.json", recipe_dict(self.recipe))
        # A new name in every launch, so that a folder of another node's own cannot hold it.
        token = self.run_dir / f".shared-{uuid.uuid4().hex}"
        token.touch()
        return checkpoint, token

    def load_policy(self) -> Any:
        """Return the model to train, all weights or LoRA, on no device yet. `train` loads a checkpoint's adapter."""
        section = self.recipe.model
        dtype = dtype_here(held_in(section, zero_in_force(self.args)), self.args)
        return load_policy(self.folder, section, dtype, self.chat.answer_end_ids)

    def train(self, trainer: Any, stage: str) -> None:
        """Train from the beginning, or from the checkpoint after setting aside what a killed run left past it.

        No step with a loss or gradient that is not finite changes a weight. Each checkpoint first gets its completion
        marker, then its probe, whose results go to the tracker. SIGTERM and Ctrl-C end training after a step, with a checkpoint, or
        within a probe.

        Args:
            trainer: One of train/overrides.py.
            stage: "sft", "dpo" or "grpo".
        """
        from nextturn.train.guards import FiniteGuard, ReturnsFreedMemory, SavesAfterGenerations, StopsOnSignal
        from nextturn.train.overrides import guard_tracking
        from nextturn.train.probing import probe_checkpoints

        recipe, probe = self.recipe, self.recipe.probe
        say(launch_line(trainer))
        trainer.add_callback(FiniteGuard(trainer))
        guard_tracking(trainer)
        mark_checkpoints(trainer, inputs.to_record(self.inputs), on_main_process)
        trainer.add_callback(signals := StopsOnSignal(trainer))
        probe_checkpoints(
            trainer, probe, self.folder, self.chat, self.sets, dtype_here(recipe.model.dtype, self.args), signals.check
        )
        if self.args.use_cpu:
            trainer.add_callback(ReturnsFreedMemory())
        if isinstance(recipe, GrpoRecipe):
            from nextturn.train.collapse import WatchesCollapse

            trainer.add_callback(WatchesCollapse(trainer.reward_funcs[0], recipe.rollout.stop_on_collapse))
            trainer.add_callback(SavesAfterGenerations(trainer))
        start_tracking(recipe.tracking, self.run_dir, recipe_dict(recipe), stage)

        if trainer.accelerator.is_main_process:
            remove_incomplete(self.run_dir, self.checkpoint)
        trainer.accelerator.wait_for_everyone()
        with signals.listening():
            trainer.train(resume_from_checkpoint=str(self.checkpoint) if self.checkpoint else None)

    def conclude(self, trainer: Any, verb: str, summary: str, **facts: dict[str, Any]) -> None:
        """Write the model card and `finished.json`, on the main process.

        Args:
            verb: What was done to the model, such as "fine-tuned".
            summary: The data and the result, for the card.
            facts: Counts for finished.json.
        """
        if not trainer.accelerator.is_main_process:
            return
        recipe, run_dir, step = self.recipe, self.run_dir, trainer.state.global_step
        comparison = run_dir / "probe" / "comparison" / "comparison.md"
        table = comparison.read_text(encoding="utf-8") if comparison.is_file() else "# Not probed during training\n"
        table = table.replace("\n#", "\n##").replace("(tradeoff.png)", "(probe/comparison/tradeoff.png)")
        says = ""
        if user_model_info(run_dir):
            says = "This is a user model: it writes the user's turns, not the assistant's. "
        card = f"""---
{self._metadata().to_yaml()}
---

# {run_dir.name}

{recipe.model.name}, {verb} for {step} steps ({"LoRA" if recipe.model.lora else "all weights"}) {summary}
{says}Data: {recipe.data.path or recipe.data.recipe}. Weights: `checkpoint-{step}/`{" (on the hub: next to this card)" if self.pushes else ""}.

#{table}
## Recipe

```json
{json.dumps(recipe_dict(recipe), indent=2)}
```
"""
        write_atomic(run_dir / "README.md", card)
        if self.pushes:  # before the run is finished, so that the same command pushes again after a failure
            from nextturn.train.push import push_run

            sets = recipe.probe.sets if recipe.probe else {}
            # A run on an adapter is pushed as a merged model: the base of its own adapter is on this machine alone.
            started = resolve(self.inputs["model"]["path"])
            local = Path(recipe.model.name).is_dir() or started.base is not None
            base = None if local else str(self._metadata().base_model)
            say(f"pushed    {push_run(run_dir, step, recipe.arguments, sets, base)}")
        finish_run(run_dir, step, sha256_text(json.dumps(recipe_dict(recipe), sort_keys=True)), **facts)
        print(f"finished: {run_dir / f'checkpoint-{step}'}; model card {run_dir / 'README.md'}")

    def _metadata(self) -> Any:
        """Return the hub's metadata of the model card (ModelCardData), with base, license and data set if known."""
        from huggingface_hub import ModelCardData, try_to_load_from_cache

        from nextturn.probe.models.embedded import EMBEDDED_NAME, ON_HUB
        from nextturn.probe.questions.sets import HUB

        name, settings = self.recipe.model.name, self.data / "settings.json"
        if Path(name).is_dir():
            # A checkpoint's card is in its run directory. It names the base if nextturn wrote it.
            cards = (_metadata_of(folder / "README.md") for folder in (Path(name), Path(name).parent))
            known = next(filter(None, cards), {})
            base = known.get("base_model") if "nextturn" in (known.get("tags") or []) else None
        else:
            cached = try_to_load_from_cache(name, "README.md")
            known = _metadata_of(Path(cached)) if isinstance(cached, str) else {}
            base = ON_HUB if name == EMBEDDED_NAME else name
        source = read_json(settings).get("source", {}) if settings.is_file() else {}
        on_hub = HUB.get(f"{source.get('kind')}_train") if not source.get("path") else None
        return ModelCardData(
            base_model=base,
            license=known.get("license"),
            datasets=[on_hub.hub_id] if on_hub else None,
            library_name="peft" if self.recipe.model.lora else "transformers",
            pipeline_tag="text-generation",
            tags=["nextturn", "trl", *(["lora"] if self.recipe.model.lora else [])],
        )


def _metadata_of(card: Path) -> dict[str, Any]:
    from huggingface_hub import metadata_load
    from yaml import YAMLError

    try:
        return metadata_load(card) or {}
    except (OSError, ValueError, YAMLError):
        return {}


def already_finished(recipe: TrainRecipe) -> bool:
    """Return True if the recipe's run directory holds a finished run of it, as process 0 sees the directory.

    Writes nothing: the input may still prove wrong.

    Raises:
        SettingsChanged: The directory holds a run of another recipe; the message names the keys that differ.
    """
    return on_main_process("read the run directory", lambda: _already_finished(recipe))


def _already_finished(recipe: TrainRecipe) -> bool:
    run_dir = Path(recipe.arguments["output_dir"])
    if (run_dir / "recipe.json").is_file():
        # If the recipe states a step's rows, how many of them a process takes at once changes memory only.
        free = may_differ(type(recipe), Mark.FREE)
        free += ("train.per_device_train_batch_size",) if recipe.rows_per_step else ()
        try:
            begun = with_later_keys(read_json(run_dir / "recipe.json"), recipe)
            refuse_changes(run_dir, "this run was begun", begun, recipe_dict(recipe), free)
        except SettingsChanged as error:
            newest, _ = newest_complete(run_dir)
            if not (list_checkpoints(run_dir) or finished(run_dir) or (run_dir / "probe").exists()):
                say(
                    f"{run_dir}: the earlier run here has other settings and did nothing yet; training starts from the beginning"
                )
                return False
            more = f"; to train on from it: --model.name {newest} --train.output_dir ANOTHER" if newest else ""
            raise SettingsChanged(f"{error}{more}") from None
    if done := finished(run_dir):
        say(f"{run_dir}: finished at step {done['step']}; nothing to do (delete the folder to train again)")
    return done is not None


def reward_line(history: Sequence[Mapping[str, Any]]) -> str:
    """Return the mean reward at the beginning and at the end of a GRPO run, for its model card.

    Args:
        history: The trainer's log.
    """
    rewards = [row["reward"] for row in history if row.get("reward") is not None]
    if not rewards:
        return "No reward was logged."
    fifth = max(1, len(rewards) // 5)
    first, last = rewards[:fifth], rewards[-fifth:]
    return f"Mean reward: {fmean(first):.3f} in the first fifth of the logged steps, {fmean(last):.3f} in the last."


MOSTLY_FLAT = 0.9


def flat_warning(history: Sequence[Mapping[str, Any]], weight_of: Mapping[str, float]) -> str:
    """Return a warning if nearly all groups had equal rewards, so that GRPO learned almost nothing; else "".

    Args:
        history: The trainer's log.
        weight_of: The weight of each part of the reward.
    """
    equal = ", ".join(name for name in weight_of if weight_of[name] and not (name in PARTS and PARTS[name].style))
    flat = [row["groups/flat"] for row in history if row.get("groups/flat") is not None]
    if not equal or not flat or fmean(flat) < MOSTLY_FLAT:
        return ""
    return (
        f"warning: in {fmean(flat):.0%} of groups all samples had the same reward for {equal}. These groups teach "
        "almost nothing. Use prompts that the model solves sometimes, or check the reward in samples/"
    )
