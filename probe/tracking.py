"""Shows a run in Weights & Biases or TensorBoard. The files of the run folder remain the truth: nothing here stops it.

Training metrics come from transformers' own callback, which joins a run that already stands; `start_tracking` opens
that run first, so that both share it. Probe figures go on an axis of their own, `probe/step`, because they may arrive
late or out of order and wandb drops what lies behind its own step counter. Two traps decide the details:

- transformers declares `*` on `train/global_step`, and wandb takes any of the patterns that match, so each probe
  figure is declared by its full name as well;
- `trainer.log` inside a callback swallows the metrics that wait for the next log, so it is not used.
"""

from __future__ import annotations

import importlib.util
import netrc
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from probe.errors import BadInput
from probe.figures import LABEL_COLUMNS, SAMPLE_COLUMNS, STEP, flatten, label_rows, sample_rows
from probe.files import read_json, write_json
from probe.processes import is_main_process
from probe.recipe import section

RUN_FILE = "wandb_run.json"
_SECRET = re.compile(r"(^|_)(key|token|secret|password|passwd|credentials?)$", re.IGNORECASE)

# One tracked run per process, as in wandb itself.
_tensorboard: Any = None


@section
class TrackingSection:
    """Where figures are shown while a run goes on; `to: none` keeps them in the run folder only."""

    project: str = "nextturn"
    group: str | None = None
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


def start_tracking(section: TrackingSection, run_dir: Path, recipe: dict[str, Any]) -> None:
    """Opens the tracked run, or goes on with the one this folder belongs to. Call it before `trainer.train()`.

    Raises:
        BadInput: TensorBoard is wanted and not installed.
    """
    global _tensorboard
    check_tracking(section)
    if not is_main_process() or section.to == "none":
        return
    run_dir.mkdir(parents=True, exist_ok=True)
    if section.to == "tensorboard":
        from torch.utils.tensorboard import SummaryWriter

        # transformers' callback reads this variable.
        folder = os.environ.setdefault("TENSORBOARD_LOGGING_DIR", str(run_dir / "tensorboard"))
        _tensorboard = SummaryWriter(folder)
        return
    _start_wandb(section, run_dir, recipe)


def log_probe(
    results: dict[str, Any], samples: Sequence[dict[str, Any]], run_dir: Path, plot: Path | None = None
) -> None:
    """Shows one results.json at its step, with tables of labels and samples and, where given, the trade-off plot.

    Does nothing on other processes and in a run without tracking.
    """
    values = flatten(results)
    if _tensorboard is not None:
        for key, value in values.items():
            if key != STEP:
                _tensorboard.add_scalar(key, value, int(values[STEP]))
        _tensorboard.flush()
    run = _wandb_run()
    if run is None:
        return
    try:
        import wandb

        row: dict[str, Any] = dict(values)
        row["probe/labels"] = wandb.Table(columns=list(LABEL_COLUMNS), data=label_rows(results))
        row["probe/samples"] = wandb.Table(columns=list(SAMPLE_COLUMNS), data=sample_rows(samples))
        if plot is not None:
            row["probe/tradeoff"] = wandb.Image(str(plot))
        for key in row:
            if key != STEP:
                run.define_metric(key, step_metric=STEP)
        run.log(row)
    except Exception as error:  # noqa: BLE001 - whatever a tracker raises must not stop training
        print(f"warning: wandb did not take the probe figures ({error}); they are in {run_dir / 'probe'}", flush=True)


def without_secrets(value: Any, key: str = "") -> Any:
    """A copy of a recipe in which texts under names like `api_key` or `hub_token` are masked."""
    if isinstance(value, dict):
        return {name: without_secrets(item, str(name)) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [without_secrets(item, key) for item in value]
    return "<hidden>" if isinstance(value, str) and _SECRET.search(key) else value


def _start_wandb(section: TrackingSection, run_dir: Path, recipe: dict[str, Any]) -> None:
    run = _open_wandb(
        project=section.project,
        group=section.group,
        name=section.name or run_dir.name,
        tags=section.tags,
        config={"recipe": without_secrets(recipe)},
        dir=str(run_dir),
        id=read_json(run_dir / RUN_FILE)["id"] if (run_dir / RUN_FILE).is_file() else None,
    )
    if run.disabled:
        return
    write_json(run_dir / RUN_FILE, {"schema": 1, "id": run.id, "project": section.project})
    if run.offline:
        why = "as WANDB_MODE says" if "WANDB_MODE" in os.environ else "no login or no connection"
        print(f"wandb: kept offline ({why}); `wandb sync {run_dir}/wandb/offline-run-*` uploads it", flush=True)
    run.define_metric("train/*", step_metric="train/global_step")
    run.define_metric("probe/*", step_metric=STEP)


def _open_wandb(**options: Any) -> Any:
    """wandb.init as wandb is set up, offline where nobody is logged in; a failure costs a warning, not the run.

    After a failure the run is kept offline or, at worst, disabled, which keeps transformers' callback from trying
    again. Offline, wandb cannot resume; there the shared id joins the parts of a run when they are synced.
    """
    import wandb

    options["settings"] = wandb.Settings(quiet=True)
    offline: dict[str, Any] = {"mode": "offline"}
    attempts: list[dict[str, Any]] = [{"resume": "allow"}, offline]
    if "WANDB_MODE" not in os.environ and not _has_wandb_login():
        attempts = [offline]
    for attempt in attempts:
        try:
            return wandb.init(**options, **attempt)
        except Exception as error:  # noqa: BLE001 - whatever a tracker raises must not stop training
            if attempt is attempts[0]:
                print(f"warning: wandb could not start ({' '.join(str(error).split())}); training goes on", flush=True)
    return wandb.init(mode="disabled")


def _wandb_run() -> Any:
    """The run of this process, or None; wandb is not imported where nothing was started."""
    wandb = sys.modules.get("wandb")
    return wandb.run if wandb is not None else None


def _has_wandb_login() -> bool:
    """True where wandb finds credentials without asking: its two variables, or the netrc entry of `wandb login`."""
    if os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    host = urlsplit(os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")).netloc
    try:
        return netrc.netrc(os.environ.get("NETRC") or Path("~/.netrc").expanduser()).authenticators(host) is not None
    except (OSError, netrc.NetrcParseError):
        return False
