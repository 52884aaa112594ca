"""Send a run's figures to Weights & Biases while it goes on.

The files in the run directory stay the truth: a failure of wandb costs a warning, never the run. wandb comes with
`pip install 'nextturn[wandb]'` and is imported only where a recipe names it under `tracking.to`.

Training metrics come from transformers' `WandbCallback`, which joins the run that `start_tracking` has opened. Probe
figures use an axis of their own, `probe/step`, because they may arrive late or out of order and wandb drops points
that lie behind its own step counter.

Two properties of the libraries decide the details:

- transformers declares `*` on the axis `train/global_step`, and wandb uses any pattern that matches a figure. So each
  probe figure is declared by its full name as well.
- `trainer.log` inside a callback drops the metrics that wait for the next log. So it is not used here.

Several processes write one wandb run if watchers measure what another process trains. `RUN_DIR/wandb_run.json` records
the mode in which the first process opened the run:

- "shared" (online): the trainer is the primary writer, every watcher a secondary writer. A run that was opened for one
  writer ("online") cannot be joined: the server would overwrite that writer's earliest points
  (github.com/wandb/wandb/issues/12269).
- "offline": each process writes files of its own under the same id, which `wandb sync` uploads into one run.

In shared mode the process that writes last replaces the declared axes. So each process declares all figures that the
run has shown so far (`known_axes`).
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import socket
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from nextturn.probe.checkpoints import list_checkpoints
from nextturn.probe.errors import BadInput, DataError, NextturnError, one_line
from nextturn.probe.files import json_line, read_json, write_json
from nextturn.probe.judges.labels import ROUGH, followup_name
from nextturn.probe.settings import TrackingSection
from nextturn.probe.terminal import is_main_process, say

TRACKED = "tracked.json"
RUN_FILE = "wandb_run.json"
STEP = "probe/step"
TRAIN_STEP = "train/global_step"
_SECRET = re.compile(r"(^|_)(key|token|secret|password|passwd|credentials?)$", re.IGNORECASE)
_refused: set[Path] = set()
"""Run directories whose wandb run this process could not join."""


def check_tracker(section: TrackingSection) -> None:
    """Check that the tracker of a recipe is installed, before anything slow begins.

    Raises:
        BadInput: The tracker is unknown or not installed.
    """
    if section.to == "none" or (section.to == "wandb" and importlib.util.find_spec("wandb")):
        return
    if section.to == "wandb":
        raise BadInput("tracking.to: wandb is not installed; pip install 'nextturn[wandb]', or set tracking.to to none")
    from transformers.integrations.integration_utils import get_available_reporting_integrations

    if section.to not in (installed := get_available_reporting_integrations()):
        known = ", ".join(["none", *installed])
        raise BadInput(
            f"tracking.to: given {section.to}, expected none or an installed tracker of transformers: {known}"
        )


# --- The wandb run of this process.


def start_tracking(
    section: TrackingSection, run_dir: Path, recipe: dict[str, Any], job_type: str = "sft", shared: bool = False
) -> None:
    """Open the wandb run of a run directory, or continue the run that the directory already has.

    Call it before `trainer.train()`. It does nothing on other processes and for other trackers. If wandb cannot start
    online, the run is kept offline or, at worst, disabled, which stops transformers' callback from trying again.

    Args:
        recipe: The recipe as a dictionary; secrets are masked before it is sent.
        job_type: "sft", "dpo", "grpo" or "probe", by which wandb's pages group runs.
        shared: Let watchers write into the run from other processes.
    """
    if section.to != "wandb" or not is_main_process():
        return
    run_dir.mkdir(parents=True, exist_ok=True)
    # Offline, wandb cannot resume a run. The same id joins the parts when they are uploaded.
    options = {
        "id": read_json(run_dir / RUN_FILE)["id"] if (run_dir / RUN_FILE).is_file() else None,
        "project": section.project, "group": section.group, "name": section.name or run_dir.name,
        "job_type": job_type, "config": {"recipe": without_secrets(recipe)},
    }  # fmt: skip
    mode, run = _mode(shared), None
    for attempt in dict.fromkeys((mode, "offline", "disabled")):
        try:
            run = _init(attempt, run_dir, {"x_label": "train"} if attempt == "shared" else {}, **options)
            break
        except Exception as error:  # noqa: BLE001 - no failure of a tracker may stop training
            if attempt == mode:
                _warn("could not start", error)
    if run is None or run.disabled:
        return
    facts = {"id": run.id, "project": run.project, "entity": run.entity, "group": run.group, "name": run.name}
    kind = "offline" if run.offline else "shared" if mode == "shared" else "online"
    write_json(run_dir / RUN_FILE, {"schema": 1, **facts, "mode": kind})
    if run.offline:
        why = "WANDB_MODE" if "WANDB_MODE" in os.environ else "no login or no connection"
        say(f"wandb: kept offline ({why}); `wandb sync {run_dir}/wandb/offline-run-*` uploads it")


def join_tracking(run_dir: Path, recipe: dict[str, Any]) -> bool:
    """Join the wandb run of a training run from another process.

    Args:
        recipe: The training run's recipe.json.

    Returns:
        True if this process can send figures. False if the training run has no wandb run, or none yet, or if it
        cannot be joined; the reason is printed once.
    """
    if (run := current_run()) is not None and not run.disabled:
        return True
    uses_wandb = recipe.get("tracking", {}).get("to") == "wandb"
    if not uses_wandb or not (run_dir / RUN_FILE).is_file() or run_dir in _refused:
        return False
    try:
        _join(run_dir, read_json(run_dir / RUN_FILE))
    except Exception as error:  # noqa: BLE001 - no failure of a tracker may stop a probe
        _refused.add(run_dir)
        say(f"figures stay in {run_dir / 'probe'}: {one_line(error)}")
        return False
    return True


def _join(run_dir: Path, facts: dict[str, Any]) -> None:
    mode = facts.get("mode", "online")
    if mode == "online":
        raise NextturnError("its wandb run takes one writer only; train with `probe.when: watch` to let watchers join")
    if mode == "shared" and _mode(shared=True) != "shared":
        raise NextturnError("its wandb run is online and this process is not logged in; run `wandb login` and restart")
    writer = f"watch-{socket.gethostname()}-{os.getpid()}"
    settings: dict[str, Any] = {"x_sync_dir_suffix": writer}
    if mode == "shared":
        settings = {"x_primary": False, "x_update_finish_state": False, "x_label": writer, "x_disable_stats": True}
    # A process that was started by one with an open run would use that one's wandb service, which serves one client.
    os.environ.pop("WANDB_SERVICE", None)
    options = {name: facts.get(name) or None for name in ("id", "project", "entity", "group", "name")}
    run = _init(mode, run_dir, settings, **options)
    if run.disabled:
        raise NextturnError("wandb is disabled in this process")


def _init(mode: str, run_dir: Path, settings: Mapping[str, Any], **options: Any) -> Any:
    import wandb

    if mode == "disabled":
        return wandb.init(mode="disabled")
    # In shared mode, `resume` keeps the config that another process has set. Offline it would only give a warning.
    resume = {} if mode == "offline" else {"resume": "allow"}
    quiet: Any = wandb.Settings(quiet=True, **settings)
    run = wandb.init(mode=mode, dir=str(run_dir), settings=quiet, **options, **resume)  # type: ignore[arg-type]
    declare(run, {"train/*": TRAIN_STEP, "probe/*": STEP})
    return run


def _mode(shared: bool) -> str:
    """Return the mode that WANDB_MODE selects, else online if logged in; "shared" in place of online if asked for."""
    mode = os.environ.get("WANDB_MODE") or ("online" if _logged_in() else "offline")
    if mode in ("offline", "dryrun"):
        return "offline"
    return "disabled" if mode == "disabled" else "shared" if shared else "online"


def _logged_in() -> bool:
    """Return True if wandb has credentials. wandb does not ask for them here."""
    import wandb

    try:
        return wandb.login(prompt=False, verify=False)
    except Exception as error:  # noqa: BLE001 - such as an API key that is too short
        _warn("refused the login", error)
        return False


def current_run() -> Any:
    """Return the wandb run of this process, or None. wandb is not imported for it."""
    wandb = sys.modules.get("wandb")
    return wandb.run if wandb is not None else None


def finish_tracking() -> None:
    """Send what is waiting and close the wandb run of this process."""
    if (run := current_run()) is not None:
        run.finish()


def leave_run(error: Exception) -> None:
    """Stop tracking in this process after `error`, with a warning."""
    import wandb

    _warn("failed, and the run continues without it", error)
    if isinstance(error, ConnectionError):  # wandb's own process is gone, and at exit wandb would try to reach it again
        with suppress(Exception):
            wandb.teardown()
    wandb.run = None


def _warn(what: str, error: Exception) -> None:
    print(f"warning: wandb {what} ({one_line(error)})", flush=True)


# --- Probe figures.


def track_probe(out: Path, run_dir: Path) -> None:
    """Send a finished probe, with the comparison's plot, unless a process has sent it already.

    `tracked.json` is written before the figures are sent, so that one of several processes sends them. A kill between
    the two loses the point in wandb, and nothing in the run directory.
    """
    if (run := current_run()) is None or run.disabled:
        return
    try:
        with (out / TRACKED).open("x", encoding="utf-8") as file:
            file.write(json_line({"schema": 1, "host": socket.gethostname(), "pid": os.getpid()}))
    except FileExistsError:
        return
    plot = run_dir / "probe" / "comparison" / "tradeoff.png"
    log_probe(read_json(out / "results.json"), run_dir, plot if plot.is_file() else None)


def report_run(section: TrackingSection, out: Path, recipe: dict[str, Any]) -> None:
    """Send one finished `probe run` as a wandb run of its own, with the job type "probe", unless it was sent before."""
    if section.to == "wandb" and not (out / TRACKED).exists():
        start_tracking(section, out, recipe, job_type="probe")
        track_probe(out, out)
        finish_tracking()


def log_probe(results: dict[str, Any], run_dir: Path, plot: Path | None = None) -> None:
    """Send one results.json at its step and, if given, the trade-off plot. Does nothing without a wandb run."""
    if (run := current_run()) is None:
        return
    values = flatten(results)
    axes = known_axes(run_dir) if _is_shared(run) else {}
    try:
        declare(run, axes | axes_of(results) | {"probe/tradeoff": STEP})
        run.log(values)
        if plot is not None:
            import wandb

            run.log({STEP: values[STEP], "probe/tradeoff": wandb.Image(str(plot))})
    except Exception as error:  # noqa: BLE001 - no failure of a tracker may stop training
        _warn(f"did not take a probe, which stays in {run_dir / 'probe'}", error)


def declare_figures(run_dir: Path) -> None:
    """Declare the axes of what watchers have shown so far, if this process shares its wandb run with them."""
    if (run := current_run()) is not None and not run.disabled and _is_shared(run):
        declare(run, known_axes(run_dir))


def declare(run: Any, axes: Mapping[str, str]) -> None:
    """Put figures on their axes, {name: axis}."""
    for axis in dict.fromkeys(axes.values()):
        run.define_metric(axis, hidden=axis != TRAIN_STEP)  # an axis needs no panel of its own
    for name, axis in axes.items():
        if name != axis:
            run.define_metric(name, step_metric=axis)


def known_axes(run_dir: Path) -> dict[str, str]:
    """Return {name: axis} of all figures that any process of this training run has shown so far."""
    axes: dict[str, str] = {}
    for path in sorted((run_dir / "probe").glob("*/results.json")):
        axes |= axes_of(read_json(path))
    for _, checkpoint in list_checkpoints(run_dir)[:1]:
        with suppress(DataError):  # rotated away, or being written
            logged = read_json(checkpoint / "trainer_state.json")["log_history"]
            axes |= {f"train/{key}": TRAIN_STEP for row in logged for key in row if key != "step"}
    return axes


def axes_of(results: dict[str, Any]) -> dict[str, str]:
    """Return {name: axis} of one results.json."""
    return {name: STEP for name in flatten(results) if name != STEP}


def without_secrets(value: Any, key: str = "") -> Any:
    """Return a copy of a recipe in which texts under names such as `api_key` or `hub_token` are masked."""
    if isinstance(value, dict):
        return {name: without_secrets(item, str(name)) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [without_secrets(item, key) for item in value]
    return "<hidden>" if isinstance(value, str) and _SECRET.search(key) else value


def _is_shared(run: Any) -> bool:
    return bool(run.settings.mode == "shared")


# --- Probe results as wandb wants them: scalars with flat names.
#
# Names hold no dots, because wandb's pages lose the axis of a name with a dot, no spaces, and slashes only between their
# parts: `T=0.7` is called `T=0_7`. A perturbation by a question keeps its words and gets a short hash, so that two
# questions never share a name.

ACTUAL = "actual"
_SLUG_LENGTH = 40


def flatten(results: dict[str, Any]) -> dict[str, float]:
    """Return a results.json as flat scalars under `probe/`. A base model has no step and gets step 0.

    Examples of names: `probe/accuracy/gsm8k/strict` with `_lo` and `_hi`; `probe/followup/gsm8k/none/T=0_7/rate` with
    `lo` and `hi` (`probe/followup_rules_rough/...` for the judge `rules`); `probe/actual/talks/rate` for the real user
    turns of transcripts. Outcomes and `judged` are shares. Figures that were not measured (null) are left out.
    """
    values: dict[str, float] = {STEP: float(_step(results))}
    for name, entry in results.get("accuracy", {}).items():
        for measure in ("strict", "lenient"):
            _put(values, f"probe/accuracy/{slug(name)}/{measure}", entry.get(measure))
        for outcome, count in entry.get("outcomes", {}).items():
            _put(values, f"probe/accuracy/{slug(name)}/outcomes/{outcome}", _share(count, entry["n"]))
    for name, entry in results.get("clarify", {}).items():
        for measure in ("ask_when_needed", "answer_when_complete"):
            _put(values, f"probe/clarify/{slug(name)}/{measure}", entry.get(measure))
    rough = "_rules_rough" if followup_name(results.get("settings", {}).get("judge")) == ROUGH else ""
    for condition, cell in _followup_cells(results):
        actual = condition[1] == ACTUAL
        key = f"actual/{slug(condition[0])}" if actual else f"followup{rough}/" + "/".join(map(slug, condition))
        _put(values, f"probe/{key}/rate", cell.get("rate"))
        for suffix, bound in zip(("lo", "hi"), cell.get("ci95") or (), strict=False):
            _put(values, f"probe/{key}/{suffix}", bound)
        _put(values, f"probe/{key}/judged", _share(cell.get("n_judged", 0), cell.get("n_total", 0)))
        for measure in ("role_consistency", "specificity", "grounding", "changed_text"):
            _put(values, f"probe/{key}/{measure}", cell.get(measure))
    return values


def slug(text: str) -> str:
    """Return a text as part of a figure's name: letters, digits, `=` and `-`, and `_` in place of all else.

    A text that is long, or would lose more than dots and brackets, gets four digits of its sha256.
    """
    short = re.sub(r"[^A-Za-z0-9=-]+", "_", text).strip("_")
    if re.fullmatch(r"[A-Za-z0-9_.()=-]+", text) and len(short) <= _SLUG_LENGTH:
        return short
    digest = hashlib.sha256(text.encode()).hexdigest()[:4]
    return f"{short[:_SLUG_LENGTH].strip('_')}_{digest}".lstrip("_")


def _step(results: dict[str, Any]) -> int:
    return results.get("model", {}).get("step") or 0


def _followup_cells(results: dict[str, Any]) -> Iterator[tuple[tuple[str, str, str], dict[str, Any]]]:
    """Yield ((set, perturbation, temperature), figures); real user turns come last, as the perturbation `actual`."""
    for name, perturbations in results.get("followup", {}).items():
        for perturbation, temperatures in perturbations.items():
            for temperature, cell in temperatures.items():
                yield (name, perturbation, temperature), cell
    for name, cell in results.get(ACTUAL, {}).items():
        yield (name, ACTUAL, ""), cell


def _share(count: int, total: int) -> float | None:
    return count / total if total else None


def _put(values: dict[str, float], key: str, value: Any) -> None:
    """Add a number, or {"value", "ci95"} as `key`, `key_lo` and `key_hi`; nothing for null."""
    if isinstance(value, dict):
        _put(values, key, value.get("value"))
        for suffix, bound in zip(("_lo", "_hi"), value.get("ci95") or (), strict=False):
            _put(values, key + suffix, bound)
    elif value is not None:
        values[key] = float(value)
