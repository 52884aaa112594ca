"""Where a run takes up after a crash: at the newest complete checkpoint, where transformers takes the highest number.

What a resumed run would write again is set aside first, as `set-aside-checkpoint-N`: an interrupted checkpoint, and
everything past the one taken up, its probes included, which measured other weights. Left in place, old files would
mix with new ones behind a marker that still fits (equal shapes give equal sizes), and the rotation of
`save_total_limit`, which counts all folders called `checkpoint-*`, would delete a whole checkpoint to make room for a
broken one. They are moved, not deleted: a folder without a marker may be another tool's good checkpoint.

A checkpoint also remembers the launch that saved it. Without DeepSpeed one process saves the whole state of the optimizer, which
any number of them can load; ZeRO saves a part for each process, which fits no other launch.
"""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nextturn.probe.checkpoints import (
    FINISHED,
    KEPT,
    MARKER,
    is_complete,
    list_checkpoints,
    mark_complete,
    newest_complete,
    numbered,
    set_aside,
)
from nextturn.probe.errors import BadInput
from nextturn.probe.files import read_json
from nextturn.probe.report.watch import command
from nextturn.probe.terminal import say
from nextturn.train.setup import zero_in_force

GIB = 2**30


@dataclass(frozen=True)
class Launch:
    """What a step and the optimizer's saved state depend on.

    Attributes:
        processes: over all nodes.
        zero: the stage of ZeRO, 0 without DeepSpeed.
        per_step: rows, for GRPO samples, of one optimizer step over all processes.
    """

    processes: int
    zero: int
    per_step: int

    def __str__(self) -> str:
        number = f"{self.processes} process{'es' if self.processes > 1 else ''}"
        return f"{number} {f'under ZeRO-{self.zero}' if self.zero else 'without DeepSpeed'}"


def this_launch(args: Any) -> Launch:
    """`args`: trl's config in this launch."""
    batch = args.per_device_train_batch_size * args.world_size * args.gradient_accumulation_steps
    return Launch(args.world_size, zero_in_force(args), batch)


def choose_resume(run_dir: Path, resume: str, launch: Launch) -> Path | None:
    """The checkpoint that `--resume auto|never|weights|PATH` takes up, or None to start from the beginning.

    Changes nothing on disk, so every process may call it; one of them says what it takes up and skips.

    Raises:
        BadInput: the path is no complete checkpoint of this run, there is none for `weights`, `never` was given for a folder
            that holds a run, or what the checkpoint holds does not fit this launch.
    """
    if resume == "never":
        present = [path.name for _, path in list_checkpoints(run_dir)]
        present += [FINISHED] if (run_dir / FINISHED).exists() else []
        if present:
            raise BadInput(
                f"{run_dir}: --resume never, but it already holds {', '.join(present[:3])}"
                f"{f' and {len(present) - 3} more' if len(present) > 3 else ''}; "
                "give --resume auto, another train.output_dir, or delete it"
            )
        return None
    if resume not in ("auto", "weights"):
        folder = Path(resume)
        reason = is_complete(folder)
        if reason is not None:
            whole, _ = newest_complete(folder.parent if folder.name.startswith("checkpoint-") else folder)
            instead = f"; {whole} is complete" if whole else ""
            raise BadInput(f"--resume {resume}: not a complete checkpoint ({reason}){instead}")
        # Probes, the model card and the next `auto` look for a step's checkpoint under its own name in the run's folder.
        own = run_dir / f"checkpoint-{read_json(folder / MARKER)['step']}"
        if folder.resolve() != own.resolve():
            raise BadInput(
                f"--resume {resume}: wanted a checkpoint of this run, {run_dir}, under its own name: move or copy it to {own} "
                f"first, or begin anew with its weights: --model.name {folder} --train.output_dir ANOTHER"
            )
        say(f"resumes from {folder}")
        _check_fits(folder, launch)
        return folder
    chosen, skipped = newest_complete(run_dir)
    if chosen is None and resume == "weights":
        raise BadInput(f"--resume weights: no complete checkpoint in {run_dir} to take them from")
    start = f"resumes from {chosen}" if chosen else f"starts from the beginning: no complete checkpoint in {run_dir}"
    say("; ".join([start, *(f"skips {path.name} ({reason})" for path, reason in skipped)]))
    if chosen is not None:
        _check_fits(chosen, launch, resume == "weights")
    return chosen


def _check_fits(checkpoint: Path, now: Launch, weights_alone: bool = False) -> None:
    """Raises BadInput where a step or the optimizer's state of the checkpoint is not this launch's; says what changes."""
    told = read_json(checkpoint / MARKER).get("launch")
    try:
        then = Launch(**told) if told is not None else now  # older versions did not write it
    except TypeError:
        raise BadInput(
            f"{checkpoint / MARKER}: `launch` is damaged; move the folder away to resume from one before"
        ) from None
    if then.per_step != now.per_step:
        raise BadInput(
            f"{checkpoint}: its steps are of {then.per_step} rows or samples ({then}), those of this launch of "
            f"{now.per_step} ({now}), so that it would not be at its step: launch as then, or begin anew with its weights, "
            f"--model.name {checkpoint} --train.output_dir ANOTHER; data.rows_per_step or rollout.samples_per_step would hold "
            "on any launch"
        )
    if weights_alone:
        say(
            "--resume weights: WITHOUT THE STATE OF THE OPTIMIZER, whose means begin anew at zero; the weights, the step, the "
            f"schedule and the place in the data are those of {checkpoint}"
        )
    elif then != now and (then.zero or now.zero):
        raise BadInput(
            f"{checkpoint}: saved by {then}, and this is {now}, which its optimizer's state does not fit: launch as then, "
            "or give --resume weights for all but that state"
        )
    elif then != now:
        say(
            f"saved by {then}, and this is {now}: a step stays {now.per_step}, the rows keep their order, and the optimizer "
            "goes on; random numbers such as those of dropout begin anew"
        )


def without_optimizer(trainer: Any, checkpoint: Path) -> None:
    """Has `trainer`, whose model was loaded from the checkpoint, resume from it but for the state of the optimizer.

    transformers loads weights, optimizer and schedule where it prepares for training, under DeepSpeed all at once from files
    that fit one launch alone; so nothing is loaded there, and the schedule after it.

    Raises:
        BadInput: the checkpoint has no schedule of its own, since DeepSpeed's configuration makes one.
    """
    import torch

    schedule = checkpoint / "scheduler.pt"
    if not schedule.is_file():
        raise BadInput(f"--resume weights: {checkpoint} has no {schedule.name}, so its learning rate is not known")
    prepare = trainer._prepare_for_training

    def prepare_without(max_steps: int, dataloader: Any, resumed: str | None) -> Any:
        prepared = prepare(max_steps, dataloader, None)
        scheduler = trainer.lr_scheduler
        groups, saved = scheduler.optimizer.param_groups, torch.load(schedule, map_location="cpu", weights_only=True)
        # ZeRO drops a group without weights (an adapter has none that is not decayed), one process keeps it; their rates,
        # the first and the last ones, are all alike.
        for name in ("base_lrs", "_last_lr", "lr_lambdas"):
            if name in saved:
                saved[name] = saved[name][:1] * len(groups)
        scheduler.load_state_dict(saved)
        for group, rate in zip(groups, scheduler.get_last_lr(), strict=True):
            group["lr"] = rate  # which a resumed optimizer would have brought along
        # Later checkpoints carry the log on, and so the model card knows.
        trainer.state.log_history.append({"optimizer_anew": 1, "step": trainer.state.global_step})
        return prepared

    trainer._prepare_for_training = prepare_without


def order_by_epoch(trainer: Any) -> None:
    """Has `trainer` take the rows of an epoch in an order that hangs on seed and epoch alone.

    transformers resumes by skipping the rows of the epoch that were trained on, which are others in another order. It draws
    that of `group_by_length` from the process's own random numbers, before it has restored them; trl's sampler of prompts
    begins at every start with the order of the first epoch. What `RandomSampler` gives accelerate seeds in this way itself.
    """
    from torch.utils.data import RandomSampler
    from transformers.trainer_pt_utils import LengthGroupedSampler

    sampler_of = trainer._get_train_sampler

    def ordered(dataset: Any = None) -> Any:
        sampler = sampler_of(dataset)
        if isinstance(sampler, LengthGroupedSampler):
            # It groups the rows of one process's step. Those of a whole step are as many on any number of processes.
            sampler.batch_size = this_launch(trainer.args).per_step
        if isinstance(sampler, RandomSampler) or not hasattr(sampler, "generator"):
            return sampler
        return _epoch_sampler(sampler, trainer)

    trainer._get_train_sampler = ordered


def _epoch_sampler(sampler: Any, trainer: Any) -> Any:
    import torch

    class EpochSampler(torch.utils.data.Sampler):  # type: ignore[type-arg]
        """Reads the epoch from the trainer: transformers' `set_epoch` does not get through accelerate's samplers of batches."""

        def __len__(self) -> int:
            return len(sampler)

        def __iter__(self) -> Iterator[int]:
            args, epoch = trainer.args, int(trainer.state.epoch)  # of one that begins, or is resumed in its middle
            seed = args.seed if args.data_seed is None else args.data_seed
            sampler.generator = torch.Generator().manual_seed(seed + epoch)
            return iter(sampler)

    return EpochSampler()


def end_at_last_step(trainer: Any) -> None:
    """Has `trainer` take no step more where it resumes from its last checkpoint, as after a kill in the last probe.

    transformers looks whether it is done only after a step.
    """
    run_epoch = trainer._run_epoch

    def unless_done(**kwargs: Any) -> None:
        if trainer.state.global_step < trainer.state.max_steps:
            run_epoch(**kwargs)
        else:
            trainer.control.should_training_stop = True

    trainer._run_epoch = unless_done


def remove_incomplete(run_dir: Path, resume: Path | None = None) -> list[Path]:
    """Sets aside what this run would write again or trip over; returns where it went. Main process only.

    That is every incomplete checkpoint, and every checkpoint and probe past the step of `resume`, which is what
    `choose_resume` returned (None: past the beginning). `finished.json` is deleted: a run about to train is not.
    """
    reached = read_json(resume / MARKER)["step"] if resume else 0
    past = f"training goes on from step {reached}"
    moved = []

    def move(folder: Path, reason: str) -> None:
        moved.append(set_aside(folder))
        say(f"moved {folder} to {moved[-1].name} ({reason}); delete it when you need the space")

    for step, folder in list_checkpoints(run_dir):
        if reason := is_complete(folder) or (past if step > reached else None):
            move(folder, reason)
    # `probe watch` leaves a checkpoint when the model that it kept is gone. Deleted after the checkpoints, that model cannot
    # be kept again; deleted before the probes are moved, nothing is measured into the folders of the checkpoints to come.
    for step, kept in numbered(run_dir / "probe" / KEPT, "step"):
        if step > reached:
            shutil.rmtree(kept, ignore_errors=True)
    for step, folder in numbered(run_dir / "probe", "step"):
        if step > reached:
            move(folder, past)
    (run_dir / FINISHED).unlink(missing_ok=True)
    return moved


def mark_checkpoints(trainer: Any) -> None:
    """Has `trainer` mark each checkpoint once all processes have saved it, and refuse to start where they have no room.

    Call it before adding callbacks that read checkpoints. transformers' rotation (`save_total_limit`) stays as it is.
    """
    from transformers import TrainerCallback

    class CompletionMarker(TrainerCallback):
        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            # Rotation comes before the marker: with a limit of one, a kill in between leaves nothing to resume from.
            if args.save_total_limit == 1:
                say("train.save_total_limit: 1 can lose a run that is killed while it saves; 2 or more cannot")
            check_room(trainer, state)

        def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            # on_save fires on each process as soon as that one has written its own files.
            trainer.accelerator.wait_for_everyone()
            if state.is_world_process_zero:
                folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
                mark_complete(folder, state.global_step, vars(this_launch(args)))
            # Syncing the files to the disk can take minutes, and the next collective may be of DeepSpeed's own group.
            trainer.accelerator.wait_for_everyone()

    trainer.add_callback(CompletionMarker())


def watch_line(run_dir: Path) -> str:
    """How to measure a run with `probe.when: watch`, which starts no probe of its own.

    A watcher takes the first GPU that it sees, and that one trains here: where there are GPUs the line names another.
    """
    import torch

    gpus, taken = torch.cuda.device_count(), int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    line = command(run_dir)
    if not gpus:
        return f"probe     not here; start it in this directory, on another GPU or machine: {line}"
    if gpus > taken:  # the processes take the first ones of those that are visible
        numbers = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(gpus)))
        return (
            f"probe     not here; start it in this directory: CUDA_VISIBLE_DEVICES={numbers.split(',')[taken]} {line}"
        )
    where = "on another machine, or on a GPU that does not train"
    return f"probe     not here; start it in this directory, {where}: CUDA_VISIBLE_DEVICES=<GPU> {line}"


# --- Room for them on the disk: each is written before the oldest is deleted.


def checkpoint_bytes(
    parameters: int, trained: int, tied: int, adapter: bool, width: int, zero: int, whole: bool = True
) -> dict[str, float]:
    """Bytes of one checkpoint by part: of an adapter's or of all weights, and of AdamW's state.

    `model.safetensors` holds all weights once. ZeRO-1 and -2 write a head that is tied to the embedding out there as well,
    and all weights once more into `mp_rank_00_model_states.pt`. The optimizer has two float32 moments for each trained
    weight, and under ZeRO its float32 copy. (Seen in the files of transformers 5.17 with DeepSpeed 0.19.)

    Args:
        tied: numbers of the head that are the embedding's.
        width: bytes of a saved number.
        zero: the stage, 0 without DeepSpeed.
        whole: the optimizer as well (not `save_only_model`).
    """
    saved = trained if adapter else parameters
    weights = saved * width
    if zero in (1, 2):
        weights += (0 if adapter else tied * width) + (saved * width if whole else 0)
    return {"weights": weights, "optimizer": trained * (12 if zero else 8) if whole else 0}


def saves(strategy: str, every: float, steps: int, epochs: float) -> int:
    """How many checkpoints `steps` more steps make; `every` below 1 is a share of them, and the last step is saved too."""
    if strategy == "no" or steps < 1:
        return 0
    if strategy == "epoch":
        return math.ceil(epochs)
    return math.ceil(steps / (every if every >= 1 else math.ceil(steps * every)))


def held_at_once(limit: int | None, there: int, more: int) -> int:
    """Checkpoints on the disk at most, where `there` of them are by now and `more` come: one over the limit for a while."""
    return there + more if limit is None else max(there, min(there + more, limit + 1))


def free_bytes(folder: Path) -> int:
    """On the disk that `folder` is on, or will be."""
    there = next(place for place in (folder.absolute(), *folder.absolute().parents) if place.exists())
    return shutil.disk_usage(there).free


def check_room(trainer: Any, state: Any) -> None:
    """Call it on every process, before the first step.

    Raises:
        BadInput: the checkpoints of this run will not fit on the disk.
    """
    args, plugin = trainer.args, trainer.accelerator.state.deepspeed_plugin
    weights = list(trainer.model.parameters())
    sizes = [getattr(weight, "ds_numel", weight.numel()) for weight in weights]  # under ZeRO-3 a weight is its part
    trained = [weight for weight in weights if weight.requires_grad]
    whole = trainer.model.get_base_model() if hasattr(trainer.model, "get_base_model") else trainer.model
    head = whole.get_output_embeddings().weight
    is_tied = head is whole.get_input_embeddings().weight
    parts = checkpoint_bytes(
        parameters=sum(sizes),
        trained=sum(size for size, weight in zip(sizes, weights, strict=True) if weight.requires_grad),
        tied=getattr(head, "ds_numel", head.numel()) if is_tied else 0,
        adapter=whole is not trainer.model,
        width=trained[0].element_size(),
        zero=plugin.zero_stage if plugin else 0,
        whole=not args.save_only_model,
    )
    run_dir, there = Path(args.output_dir), len(list_checkpoints(Path(args.output_dir)))
    left = state.max_steps - state.global_step
    more = saves(args.save_strategy, state.save_steps, left, left / state.max_steps * state.num_train_epochs)
    room = held_at_once(args.save_total_limit, there, more) - there
    needed, free = room * sum(parts.values()), free_bytes(run_dir)
    if needed > free:
        listed = ", ".join(f"{name} {size / GIB:.2f}" for name, size in parts.items())
        raise BadInput(
            f"{run_dir}: {room} more checkpoints at once of {sum(parts.values()) / GIB:.2f} GiB ({listed}) need "
            f"{needed / GIB:.1f} GiB, and the disk has {free / GIB:.1f} GiB free; make room, or give another "
            f"train.output_dir or a lower train.save_total_limit (now {args.save_total_limit})"
        )
