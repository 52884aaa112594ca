"""Opens, joins and describes a Weights & Biases run; a failure costs a warning, never the run.

Several processes write one run where watchers measure what another process trains. wandb has two ways for that, and
which one holds is written into RUN_DIR/wandb_run.json by the process that opens the run:

- online, "shared" mode: the trainer is its primary and every watcher a secondary one. Both sides have to say so: a
  secondary that joins a run opened for one writer makes the server overwrite that writer's earliest points
  (github.com/wandb/wandb/issues/12269), so such a run is not joined.
- offline: each process writes files of its own under the same id, which `wandb sync` uploads into one run.

In shared mode the last process to write replaces the declarations of which figure belongs on which axis, so each one
declares all that it can know of: every figure of every finished probe and what the trainer has logged.
"""

from __future__ import annotations

import netrc
import os
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from probe.checkpoints import list_checkpoints
from probe.errors import DataError
from probe.files import read_json, write_json
from probe.tracking.figures import STEP, flatten, tradeoff

RUN_FILE = "wandb_run.json"
TRAIN_STEP = "train/global_step"


def open_run(run_dir: Path, job_type: str, shared: bool, **options: Any) -> None:
    """Opens the run of a folder, or goes on with the one that it belongs to; `shared` lets other processes join.

    Offline where nobody is logged in. After a failure it is kept offline or, at worst, disabled, which keeps
    transformers' callback from trying again. Offline, wandb cannot resume; there the shared id joins the parts.
    """
    mode = _mode(shared)
    settings = {"x_label": "train"} if mode == "shared" else {}
    known = read_json(run_dir / RUN_FILE)["id"] if (run_dir / RUN_FILE).is_file() else None
    run = None
    for attempt in dict.fromkeys((mode, "offline", "disabled")):
        try:
            run = _init(attempt, settings, dir=str(run_dir), id=known, job_type=job_type, **options)
            break
        except Exception as error:  # noqa: BLE001 - whatever a tracker raises must not stop training
            if attempt == mode:
                print(f"warning: wandb could not start ({' '.join(str(error).split())}); training goes on", flush=True)
    if run is None or run.disabled:
        return
    facts = {"id": run.id, "project": run.project, "entity": run.entity, "group": run.group, "name": run.name}
    kind = "offline" if run.offline else "shared" if mode == "shared" else "online"
    write_json(run_dir / RUN_FILE, {"schema": 1, **facts, "mode": kind})
    if run.offline:
        why = "as WANDB_MODE says" if "WANDB_MODE" in os.environ else "no login or no connection"
        print(f"wandb: kept offline ({why}); `wandb sync {run_dir}/wandb/offline-run-*` uploads it", flush=True)
    _declare_axes(run)


def join_run(run_dir: Path) -> str | None:
    """Joins the training run's wandb run as a further writer; None when joined, else why not, in words."""
    facts = read_json(run_dir / RUN_FILE)
    mode = facts.get("mode", "online")
    writer = f"watch-{socket.gethostname()}-{os.getpid()}"
    if mode == "online":
        return "its wandb run takes one writer only; train with `probe.when: watch` to let watchers join"
    if mode == "shared" and _mode(shared=True) != "shared":
        return "its wandb run is online and this process is not logged in; `wandb login`, and start the watcher again"
    shared = {"x_primary": False, "x_update_finish_state": False, "x_label": writer, "x_disable_stats": True}
    settings = shared if mode == "shared" else {"x_sync_dir_suffix": writer}
    same = {"id": facts["id"], "project": facts["project"], "entity": facts.get("entity") or None}
    same |= {"group": facts.get("group") or None, "name": facts.get("name") or None}
    # Started from a process that has a run open, this one would find that process's wandb service, which gives a run
    # to one client only.
    os.environ.pop("WANDB_SERVICE", None)
    try:
        run = _init(mode, settings, dir=str(run_dir), **same)
    except Exception as error:  # noqa: BLE001 - whatever a tracker raises must not stop a probe
        return f"wandb could not join its run ({' '.join(str(error).split())})"
    if run.disabled:
        return "wandb is switched off here"
    _declare_axes(run)
    return None


def current_run() -> Any:
    """The run of this process, or None; wandb is not imported where nothing was started."""
    wandb = sys.modules.get("wandb")
    return wandb.run if wandb is not None else None


def is_shared(run: Any) -> bool:
    return bool(run.settings.mode == "shared")


def declare(run: Any, axes: Mapping[str, str]) -> None:
    """Puts figures on their axes, {name: axis}. By full name: transformers declares `*`, and wandb takes any match."""
    for axis in dict.fromkeys(axes.values()):
        run.define_metric(axis, hidden=axis != TRAIN_STEP)  # an axis needs no panel of its own
    for name, axis in axes.items():
        if name != axis:
            run.define_metric(name, step_metric=axis)


def known_axes(run_dir: Path) -> dict[str, str]:
    """{name: axis} of everything that this training run has shown so far, by whichever process."""
    axes: dict[str, str] = {}
    for path in sorted((run_dir / "probe").glob("*/results.json")):
        axes |= axes_of(read_json(path))
    for _, checkpoint in list_checkpoints(run_dir)[:1]:
        try:
            logged = read_json(checkpoint / "trainer_state.json")["log_history"]
        except DataError:  # rotated away, or being written
            continue
        axes |= {f"train/{key}": TRAIN_STEP for row in logged for key in row if key != "step"}
    return axes


def axes_of(results: dict[str, Any]) -> dict[str, str]:
    """{name: axis} of one results.json: probe figures by step, rates of the trade-off by accuracy."""
    axes = {name: STEP for name in flatten(results) if name != STEP}
    for axis, figures in tradeoff(results).items():
        axes |= {name: axis for name in figures}
    return axes


def _declare_axes(run: Any) -> None:
    run.define_metric("train/*", step_metric=TRAIN_STEP)
    run.define_metric("probe/*", step_metric=STEP)


def _init(mode: str, settings: Mapping[str, Any], **options: Any) -> Any:
    import wandb

    if mode == "disabled":
        return wandb.init(mode="disabled")
    # Offline it would only warn; in shared mode it is what keeps the config that another process has set.
    resume = {} if mode == "offline" else {"resume": "allow"}
    return wandb.init(mode=mode, settings=wandb.Settings(quiet=True, **settings), **options, **resume)  # type: ignore[arg-type]


def _mode(shared: bool) -> str:
    """What WANDB_MODE asks for, else online where there is a login; shared instead of online where wanted."""
    asked = os.environ.get("WANDB_MODE") or ("online" if _has_login() else "offline")
    if asked in ("offline", "dryrun"):
        return "offline"
    return "disabled" if asked == "disabled" else "shared" if shared else "online"


def _has_login() -> bool:
    """True where wandb finds credentials without asking: its two variables, or the netrc entry of `wandb login`."""
    if os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    host = urlsplit(os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")).netloc
    try:
        return netrc.netrc(os.environ.get("NETRC") or Path("~/.netrc").expanduser()).authenticators(host) is not None
    except (OSError, netrc.NetrcParseError):
        return False
