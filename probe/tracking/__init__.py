"""Shows a run in Weights & Biases or TensorBoard. The files of the run folder remain the truth: nothing here stops it.

Training metrics come from transformers' own callback, which joins a run that already stands; `start_tracking` opens
that run first, so that both share it. A watcher joins it from another process (`join_tracking`). Probe figures go on an
axis of their own, `probe/step`, because they may arrive late or out of order and wandb drops what lies behind its own
step counter. The trade-off is shown a second time as `tradeoff/SET/T=0_0` over `tradeoff/SET/accuracy`, which is what
wandb's own pages draw for all runs of a project together. Two traps decide the details:

- transformers declares `*` on `train/global_step`, and wandb takes any of the patterns that match, so each figure is
  declared by its full name as well (probe/tracking/wandb_runs.py);
- `trainer.log` inside a callback swallows the metrics that wait for the next log, so it is not used.
"""

from __future__ import annotations

import importlib.util
import os
import re
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from probe.errors import BadInput
from probe.files import json_line, read_json, read_jsonl
from probe.processes import is_main_process, say
from probe.recipe import section
from probe.tracking.figures import LABEL_COLUMNS, SAMPLE_COLUMNS, STEP, flatten, label_rows, sample_rows, tradeoff
from probe.tracking.wandb_runs import RUN_FILE, axes_of, current_run, declare, is_shared, join_run, known_axes, open_run

TOLD = "tracked.json"
_SECRET = re.compile(r"(^|_)(key|token|secret|password|passwd|credentials?)$", re.IGNORECASE)

# One tracked run per process, as in wandb itself.
_tensorboard: Any = None
_refused: set[str] = set()


@section
class TrackingSection:
    """Where figures are shown while a run goes on; `to: none` keeps them in the run folder only."""

    project: str = "nextturn"
    group: str | None = None
    """What belongs together in wandb's pages, such as one base model's SFT, RL and probe runs."""
    name: str | None = None
    tags: tuple[str, ...] = ()
    to: Literal["wandb", "tensorboard", "none"] = "wandb"


def check_tracking(section: TrackingSection) -> None:
    """Raises BadInput where the recipe asks for a tracker that is not installed; quick enough for a dry run."""
    if section.to == "tensorboard" and importlib.util.find_spec("tensorboard") is None:
        raise BadInput("tracking.to: tensorboard is not installed; pip install tensorboard, or give wandb or none")


def report_to(section: TrackingSection) -> list[str]:
    """What the trainer's own `report_to` must be, so that its metrics land in the same run."""
    return [] if section.to == "none" else [section.to]


def start_tracking(
    section: TrackingSection, run_dir: Path, recipe: dict[str, Any], job_type: str = "sft", shared: bool = False
) -> None:
    """Opens the tracked run, or goes on with the one this folder belongs to. Call it before `trainer.train()`.

    Args:
        job_type: "sft", "grpo" or "probe", by which wandb's pages can tell them apart.
        shared: lets watchers write into the run from other processes.

    Raises:
        BadInput: TensorBoard is wanted and not installed.
    """
    check_tracking(section)
    if not is_main_process() or section.to == "none":
        return
    run_dir.mkdir(parents=True, exist_ok=True)
    if section.to == "tensorboard":
        _start_tensorboard(_tensorboard_folder(run_dir))
        return
    open_run(
        run_dir,
        job_type,
        shared,
        project=section.project,
        group=section.group,
        name=section.name or run_dir.name,
        tags=section.tags,
        config={"recipe": without_secrets(recipe)},
    )


def join_tracking(run_dir: Path, recipe: dict[str, Any]) -> bool:
    """Joins the tracker of a training run from another process; False where it has none, or not yet.

    Args:
        recipe: the training run's recipe.json.
    """
    if _is_open():
        return True
    to = recipe.get("tracking", {}).get("to", "none")
    if to == "tensorboard":
        try:
            check_tracking(TrackingSection(to=to))
        except BadInput as error:
            return _refuse(run_dir, str(error))
        # A folder of its own: TensorBoard stops reading a file as soon as a newer one stands beside it.
        _start_tensorboard(str(Path(_tensorboard_folder(run_dir)) / f"watch-{socket.gethostname()}-{os.getpid()}"))
        return True
    if to == "none" or not (run_dir / RUN_FILE).is_file() or str(run_dir) in _refused:
        return False
    reason = join_run(run_dir)
    return reason is None or _refuse(run_dir, reason)


def tell_probe(out: Path, run_dir: Path) -> None:
    """Shows a finished probe, with the comparison's plot, unless a process has shown it already.

    The mark is set before the figures are sent, so that among several processes one sends them; a kill right between
    the two loses that point in the tracker, and nothing in the run folder.
    """
    if not _is_open():
        return
    try:
        with (out / TOLD).open("x", encoding="utf-8") as file:
            file.write(json_line({"schema": 1, "host": socket.gethostname(), "pid": os.getpid()}))
    except FileExistsError:
        return
    plot = run_dir / "probe" / "comparison" / "tradeoff.png"
    samples = [row for _, row in read_jsonl(out / "samples.jsonl")]
    log_probe(read_json(out / "results.json"), samples, run_dir, plot if plot.is_file() else None)


def report_run(section: TrackingSection, out: Path, recipe: dict[str, Any]) -> None:
    """Shows one finished `probe run` as a tracked run of its own, job type "probe"; nothing for one shown before."""
    if section.to != "none" and not (out / TOLD).exists():
        start_tracking(section, out, recipe, job_type="probe")
        tell_probe(out, out)
        finish_tracking()


def log_probe(
    results: dict[str, Any], samples: Sequence[dict[str, Any]], run_dir: Path, plot: Path | None = None
) -> None:
    """Shows one results.json at its step, with tables of labels and samples and, where given, the trade-off plot.

    Does nothing on other processes and in a run without tracking.
    """
    values = flatten(results)
    for figures in tradeoff(results).values():
        values |= figures
    if _tensorboard is not None:
        for key, value in values.items():
            if key != STEP:
                _tensorboard.add_scalar(key, value, int(values[STEP]))
        _tensorboard.flush()
    run = current_run()
    if run is None:
        return
    axes = known_axes(run_dir) if is_shared(run) else {}
    axes |= axes_of(results)
    axes |= dict.fromkeys(("probe/labels", "probe/samples", "probe/tradeoff"), STEP)
    # Tables are uploaded as artifacts, which can fail alone; the numbers then go without them.
    for what, make in (("tables and plot", lambda: _media(results, samples, plot)), ("figures", dict)):
        try:
            declare(run, axes)
            run.log({**values, **make()})
            return
        except Exception as error:  # noqa: BLE001 - whatever a tracker raises must not stop training
            reason = " ".join(str(error).split())
            print(f"warning: wandb did not take the probe's {what} ({reason}); see {run_dir / 'probe'}", flush=True)


def _media(results: dict[str, Any], samples: Sequence[dict[str, Any]], plot: Path | None) -> dict[str, Any]:
    import wandb

    shown: dict[str, Any] = {"probe/labels": wandb.Table(columns=list(LABEL_COLUMNS), data=label_rows(results))}
    shown["probe/samples"] = wandb.Table(columns=list(SAMPLE_COLUMNS), data=sample_rows(samples))
    if plot is not None:
        shown["probe/tradeoff"] = wandb.Image(str(plot))
    return shown


def declare_figures(run_dir: Path) -> None:
    """Declares what watchers have shown so far in a run that this process shares with them."""
    run = current_run()
    if run is not None and not run.disabled and is_shared(run):
        declare(run, known_axes(run_dir))


def finish_tracking() -> None:
    """Sends what is waiting and closes the tracked run of this process."""
    global _tensorboard
    if _tensorboard is not None:
        _tensorboard.close()
        _tensorboard = None
    run = current_run()
    if run is not None:
        run.finish()


def without_secrets(value: Any, key: str = "") -> Any:
    """A copy of a recipe in which texts under names like `api_key` or `hub_token` are masked."""
    if isinstance(value, dict):
        return {name: without_secrets(item, str(name)) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [without_secrets(item, key) for item in value]
    return "<hidden>" if isinstance(value, str) and _SECRET.search(key) else value


def _is_open() -> bool:
    run = current_run()
    return _tensorboard is not None or (run is not None and not run.disabled)


def _refuse(run_dir: Path, reason: str) -> bool:
    if str(run_dir) not in _refused:
        _refused.add(str(run_dir))
        say(f"figures stay in {run_dir / 'probe'}: {reason}")
    return False


def _tensorboard_folder(run_dir: Path) -> str:
    # transformers' callback reads this variable.
    return os.environ.setdefault("TENSORBOARD_LOGGING_DIR", str(run_dir / "tensorboard"))


def _start_tensorboard(folder: str) -> None:
    global _tensorboard
    from torch.utils.tensorboard import SummaryWriter

    _tensorboard = SummaryWriter(folder)
