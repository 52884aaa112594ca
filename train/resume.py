"""Checkpoints of a training run: which one to resume from, and what is set aside first.

A run resumes from the newest complete checkpoint, whereas transformers takes the highest number. What the resumed run
would write again is first renamed to `set-aside-...`: interrupted checkpoints, and all checkpoints and probes past the
one that the run resumes from. Left in place, old files would mix with new ones under a marker that still fits (equal
shapes give equal sizes), and the rotation of `save_total_limit`, which counts all folders called `checkpoint-*`, would
delete a complete checkpoint to make room for a broken one. They are renamed, not deleted: a folder without a marker may
be another tool's good checkpoint.

The completion marker also records the launch that saved the checkpoint. Without DeepSpeed, one process saves the whole
state of the optimizer, which any number of processes can load. ZeRO saves a part for each process, which fits no other
launch.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nextturn.probe.command.errors import BadInput
from nextturn.probe.command.files import read_json, write_atomic
from nextturn.probe.command.terminal import say
from nextturn.probe.models.checkpoints import (
    FINISHED,
    KEPT,
    MARKER,
    list_checkpoints,
    mark_complete,
    newest_complete,
    numbered,
    set_aside,
    why_incomplete,
)
from nextturn.probe.models.user_model import mark_user_model, user_model_info
from nextturn.probe.watch import command
from nextturn.train.inputs import is_base
from nextturn.train.policy import zero_in_force

GIB = 2**30


@dataclass(frozen=True)
class Launch:
    """The properties of a launch that a step and the optimizer's saved state depend on.

    Attributes:
        processes: Over all nodes.
        zero: The ZeRO stage, 0 without DeepSpeed.
        per_step: Rows, or samples of GRPO, of one optimizer step over all processes.
    """

    processes: int
    zero: int
    per_step: int

    def __str__(self) -> str:
        number = f"{self.processes} process{'es' if self.processes > 1 else ''}"
        return f"{number} {f'under ZeRO-{self.zero}' if self.zero else 'without DeepSpeed'}"


def this_launch(args: Any) -> Launch:
    """Return this launch. `args` is trl's config."""
    batch = args.per_device_train_batch_size * args.world_size * args.gradient_accumulation_steps
    return Launch(args.world_size, zero_in_force(args), batch)


def choose_resume(run_dir: Path, resume: str, launch: Launch) -> Path | None:
    """Return the checkpoint that `--resume auto|never|PATH` selects, or None to start from the beginning.

    Nothing changes on disk, so every process may call it. The main process prints what is selected and skipped.

    Raises:
        BadInput: The path is no complete checkpoint of this run, `never` was given for a run directory in use, or the
            checkpoint does not fit this launch.
    """
    if resume == "never":
        present = [path.name for _, path in list_checkpoints(run_dir)]
        present += [FINISHED] if (run_dir / FINISHED).exists() else []
        if present:
            raise BadInput(
                f"{run_dir}: --resume never, but it already holds {', '.join(present)}; "
                "give --resume auto, another train.output_dir, or delete it"
            )
        return None
    if resume == "auto":
        checkpoint, skipped = newest_complete(run_dir)
        start = f"resumes from {checkpoint}" if checkpoint else "starts from the beginning: no complete checkpoint"
        say("; ".join([start, *(f"skips {path.name} ({reason})" for path, reason in skipped)]))
    else:
        checkpoint = _checkpoint_at(Path(resume), run_dir)
        say(f"resumes from {checkpoint}")
    if checkpoint is not None:
        _check_fits(checkpoint, launch)
    return checkpoint


def _checkpoint_at(folder: Path, run_dir: Path) -> Path:
    """Return `folder` if it is a complete checkpoint of this run under its own name. Raises BadInput."""
    if (reason := why_incomplete(folder)) is not None:
        whole, _ = newest_complete(folder.parent if folder.name.startswith("checkpoint-") else folder)
        instead = f"; {whole} is complete" if whole else ""
        raise BadInput(f"--resume {folder}: not a complete checkpoint ({reason}){instead}")
    # Probes, the model card and the next `auto` look for a step's checkpoint under its own name in the run directory.
    own = run_dir / f"checkpoint-{read_json(folder / MARKER)['step']}"
    if folder.resolve() != own.resolve():
        raise BadInput(
            f"--resume {folder}: expected a checkpoint of this run, {run_dir}, under its own name: copy it to {own} "
            f"first, or begin a new run with its weights: --model.name {folder} --train.output_dir ANOTHER"
        )
    return folder


def _check_fits(checkpoint: Path, now: Launch) -> None:
    """Raise BadInput if this launch has other steps or cannot load the optimizer's state. Print what changes.

    transformers would go on without a state that is not there, with a new optimizer and a new schedule.
    """
    if not any(checkpoint.glob("optimizer*")) and not any(
        checkpoint.glob("global_step*")
    ):  # the latter are DeepSpeed's
        state = read_json(checkpoint / "trainer_state.json")
        if state["global_step"] < state["max_steps"]:  # after the last step only a probe or the card is missing
            raise BadInput(
                f"{checkpoint}: saved without the optimizer (train.save_only_model), so it cannot be resumed; begin a new run "
                f"with its weights: --model.name {checkpoint} --train.output_dir ANOTHER"
            )
    saved_by = read_json(checkpoint / MARKER).get("launch")
    then = Launch(**saved_by) if saved_by is not None else now  # markers of older runs have no launch
    if then.per_step != now.per_step:
        raise BadInput(
            f"{checkpoint}: saved with {then.per_step} rows a step ({then}), now {now.per_step} ({now}); launch as before, "
            "set data.rows_per_step (GRPO: rollout.samples_per_step), or begin anew with --model.name"
        )
    if then != now and (then.zero or now.zero):
        raise BadInput(
            f"{checkpoint}: saved by {then}. This launch ({now}) cannot load the optimizer's state; launch as before, "
            f"or begin a new run: --model.name {checkpoint} --train.output_dir ANOTHER"
        )
    if then != now:
        say(
            f"saved by {then}, and this is {now}: a step still has {now.per_step} rows, the order of the rows and the "
            "optimizer continue; random numbers such as those of dropout begin anew"
        )


def remove_incomplete(run_dir: Path, resume: Path | None = None) -> list[Path]:
    """Set aside every incomplete checkpoint, and every checkpoint and probe past the one that the run resumes from.

    `finished.json` is deleted: a run about to train is not finished. Call it on the main process only.

    Args:
        resume: What `choose_resume` returned. None sets everything aside.

    Returns:
        The new names of the folders.
    """
    step_now = read_json(resume / MARKER)["step"] if resume else 0
    past = f"training continues from step {step_now}"
    moved = []

    def move(folder: Path, reason: str) -> None:
        moved.append(set_aside(folder))
        say(f"moved {folder} to {moved[-1].name} ({reason}); delete it when you need the space")

    for step, folder in list_checkpoints(run_dir):
        if reason := why_incomplete(folder) or (past if step > step_now else None):
            move(folder, reason)
    # Delete the kept models after the checkpoints, so that `probe watch` cannot keep them again, and before the probes are
    # moved, so that it writes nothing into the new folders.
    for step, kept in numbered(run_dir / "probe" / KEPT, "step"):
        if step > step_now:
            shutil.rmtree(kept, ignore_errors=True)
    for step, folder in numbered(run_dir / "probe", "step"):
        if step > step_now:
            move(folder, past)
    (run_dir / FINISHED).unlink(missing_ok=True)
    return moved


def mark_checkpoints(
    trainer: Any,
    inputs: dict[str, Any] | None = None,
    on_main_process: Callable[[str, Callable[[], str]], str] = lambda task, work: work(),
) -> None:
    """Have `trainer` mark each checkpoint complete once all processes have saved it.

    Call it before adding callbacks that read checkpoints. It takes over transformers' rotation (`save_total_limit`),
    which would delete the base of another run, and the last complete checkpoint before the new one is marked. Before step 1 a
    run whose checkpoints do not fit on the disk raises BadInput.

    Args:
        inputs: What the markers record (train/inputs.py).
        on_main_process: That of train/setup.py, which runs the check on process 0 for all of them.
    """
    from transformers import TrainerCallback

    limit, trainer.args.save_total_limit = trainer.args.save_total_limit, None

    class CompletionMarker(TrainerCallback):
        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            trained = [parameter for parameter in trainer.model.parameters() if parameter.requires_grad]
            number = sum(getattr(parameter, "ds_numel", parameter.numel()) for parameter in trained)
            stage, width = zero_in_force(args), max(parameter.element_size() for parameter in trained)
            size = checkpoint_bytes(number, width, stage, args.optim.value, args.save_only_model)
            by_steps = args.save_strategy == "steps"
            saves = math.ceil(state.max_steps / state.save_steps if by_steps else args.num_train_epochs)
            run_dir = Path(args.output_dir)
            say(on_main_process("check the disk", lambda: disk_line(size, saves, limit, run_dir, refuse=True)))

        def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            # on_save fires on each process as soon as that one has written its own files.
            trainer.accelerator.wait_for_everyone()
            if state.is_world_process_zero:
                folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
                if info := user_model_info(Path(args.output_dir)):
                    mark_user_model(folder, info)
                for name, text in getattr(trainer.processing_class, "more_templates", {}).items():
                    (folder / "additional_chat_templates").mkdir(exist_ok=True)
                    write_atomic(folder / "additional_chat_templates" / f"{name}.jinja", text)
                mark_complete(folder, state.global_step, vars(this_launch(args)), inputs)
                rotate(folder.parent, limit, state.best_model_checkpoint)
                size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
                if state.global_step < state.max_steps and (free := shutil.disk_usage(folder).free) < size:
                    say(
                        f"warning: {folder} has {size / GIB:.1f} GiB, and the disk has {free / GIB:.1f} GiB free: make room for the next"
                    )
            # Syncing the files to the disk can take minutes, and the next collective may be of DeepSpeed's own group.
            trainer.accelerator.wait_for_everyone()

    trainer.add_callback(CompletionMarker())


def checkpoint_bytes(trained: int, width: int, stage: int, optim: str, model_only: bool) -> int:
    """Return the bytes of a checkpoint: of so many trained weights, and of the optimizer if it is a plain Adam.

    Args:
        width: Bytes of a weight.
        stage: The ZeRO stage, 0 without DeepSpeed. ZeRO has the weights in files of its own, too, up to stage 2, and float32
            copies of them with the moments.
    """
    if model_only or "adam" not in optim or "bit" in optim.replace("32bit", ""):
        return trained * width
    return trained * (width * (2 if stage in (1, 2) else 1) + (12 if stage else 2 * width))


def disk_line(size: int, saves: int | None, limit: int | None, run_dir: Path, refuse: bool = False) -> str:
    """Return what the checkpoints of a run need at once, as text, and what the disk has.

    Args:
        size: Bytes of a checkpoint.
        saves: How many the run saves; None if that is unknown.
        limit: `save_total_limit`; one more is there while a checkpoint is saved.
        refuse: Raise BadInput if the disk has no room.
    """
    most = [number for number in (saves, limit and limit + 1) if number]
    number = min(most, default=1)
    place = next(path for path in (run_dir.absolute(), *run_dir.absolute().parents) if path.is_dir())
    own = sum(file.stat().st_size for _, folder in list_checkpoints(run_dir) for file in folder.rglob("*"))
    free = shutil.disk_usage(place).free
    line = (
        f"disk      {'' if most else 'at least '}{number} x {size / 1e9:,.2f} GB for checkpoints "
        f"(train.save_total_limit {limit or 'null'}); free in {place}: {free / 1e9:,.1f} GB"
    )
    if number * size <= free + own:
        return line
    advice = (
        f"{line}: not enough. Lower train.save_total_limit, save less often (train.save_steps), set train.save_only_model to "
        "true (no resuming), or name another disk with train.output_dir"
    )
    if refuse:
        raise BadInput(advice)
    return advice


def rotate(run_dir: Path, limit: int | None, best: str | None = None) -> None:
    """Delete all but the newest `limit` checkpoints (None: all), the best, and those that other runs start from."""
    for _, folder in list_checkpoints(run_dir)[limit:] if limit else []:
        if not is_base(folder) and folder != Path(best or ""):
            shutil.rmtree(folder, ignore_errors=True)


def watch_line(run_dir: Path) -> str:
    """Return how to measure a run with `probe.when: watch`, which starts no probe of its own.

    A watcher takes the first GPU that it sees, which trains here, so the line asks for another one.
    """
    import torch

    device = "CUDA_VISIBLE_DEVICES=<a GPU that does not train> " if torch.cuda.device_count() else ""
    return f"probe     start the watcher in this directory, also on another machine: {device}{command(run_dir)}"
