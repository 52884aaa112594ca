"""Where a run takes up after a crash: at the newest complete checkpoint, where transformers takes the highest number.

What a resumed run would write again is set aside first, as `set-aside-checkpoint-N`: an interrupted checkpoint, and
everything past the one taken up, its probes included, which measured other weights. Left in place, old files would
mix with new ones behind a marker that still fits (equal shapes give equal sizes), and the rotation of
`save_total_limit`, which counts all folders called `checkpoint-*`, would delete a whole checkpoint to make room for a
broken one. They are moved, not deleted: a folder without a marker may be another tool's good checkpoint.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from probe.checkpoints import FINISHED, MARKER, is_complete, list_checkpoints, mark_complete, newest_complete, numbered
from probe.errors import BadInput
from probe.files import read_json
from probe.terminal import say
from probe.watch import command, withdraw

ASIDE = "set-aside-"


def choose_resume(run_dir: Path, resume: str) -> Path | None:
    """The checkpoint that `--resume auto|never|PATH` takes up, or None to start from the beginning.

    Changes nothing on disk, so every process may call it; one of them says what it takes up and skips.

    Raises:
        BadInput: the path is no complete checkpoint, or `never` was given for a folder that holds a run.
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
    if resume != "auto":
        folder = Path(resume)
        reason = is_complete(folder)
        if reason is not None:
            whole, _ = newest_complete(folder.parent if folder.name.startswith("checkpoint-") else folder)
            instead = f"; {whole} is complete" if whole else ""
            raise BadInput(f"--resume {resume}: not a complete checkpoint ({reason}){instead}")
        say(f"resumes from {folder}")
        return folder
    chosen, skipped = newest_complete(run_dir)
    start = f"resumes from {chosen}" if chosen else f"starts from the beginning: no complete checkpoint in {run_dir}"
    say("; ".join([start, *(f"skips {path.name} ({reason})" for path, reason in skipped)]))
    return chosen


def remove_incomplete(run_dir: Path, resume: Path | None = None) -> list[Path]:
    """Sets aside what this run would write again or trip over; returns where it went. Main process only.

    That is every incomplete checkpoint, and every checkpoint and probe past the step of `resume`, which is what
    `choose_resume` returned (None: past the beginning). `finished.json` is deleted: a run about to train is not.
    """
    reached = read_json(resume / MARKER)["step"] if resume else 0
    past = f"training goes on from step {reached}"
    leftovers = []
    for step, folder in list_checkpoints(run_dir):
        reason = is_complete(folder) or (past if step > reached else None)
        if reason is not None:
            leftovers.append((folder, reason))
    withdraw(run_dir, above=reached)
    leftovers += [(folder, past) for step, folder in numbered(run_dir / "probe", "step") if step > reached]
    moved = []
    for folder, reason in leftovers:
        names = [f"{ASIDE}{folder.name}", *(f"{ASIDE}{folder.name}.{number}" for number in range(2, 1000))]
        target = next(folder.with_name(name) for name in names if not folder.with_name(name).exists())
        folder.rename(target)
        moved.append(target)
        say(f"moved {folder} to {target.name} ({reason}); delete it when you need the space")
    (run_dir / FINISHED).unlink(missing_ok=True)
    return moved


def mark_checkpoints(trainer: Any) -> None:
    """Has `trainer` mark each checkpoint once all processes have saved it.

    Call it before adding callbacks that read checkpoints. transformers' rotation (`save_total_limit`) stays as it is.
    """
    from transformers import TrainerCallback

    class CompletionMarker(TrainerCallback):
        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            # Rotation comes before the marker: with a limit of one, a kill in between leaves nothing to resume from.
            if args.save_total_limit == 1:
                say("train.save_total_limit: 1 can lose a run that is killed while it saves; 2 or more cannot")

        def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            # on_save fires on each process as soon as that one has written its own files.
            trainer.accelerator.wait_for_everyone()
            if state.is_world_process_zero:
                mark_complete(Path(args.output_dir) / f"checkpoint-{state.global_step}", state.global_step)

    trainer.add_callback(CompletionMarker())


def watch_line(run_dir: Path) -> str:
    """How to measure a run with `probe.when: watch`, which starts no probe of its own."""
    return f"probe     not here; start it in this directory, on another GPU or machine: {command(run_dir)}"
