"""Send a run's figures to Weights & Biases while it goes on.

The files in the run directory stay the truth: a failure of wandb costs a warning, never the run. wandb comes with
`pip install 'nextturn[wandb]'` and is imported only where a recipe names it under `tracking.to`.

Training metrics come from transformers' `WandbCallback`, which joins the run that `start_tracking` has opened. Probe
figures use an axis of their own, `probe/step`, because they may arrive late or out of order and wandb drops points
that lie behind its own step counter. `probe watch` shows its figures in a wandb run of its own in the same group.

Two properties of the libraries decide the details:

- transformers declares `*` on the axis `train/global_step`, and wandb uses any pattern that matches a figure. So each
  probe figure is declared by its full name as well.
- `trainer.log` inside a callback drops the metrics that wait for the next log. So it is not used here.
"""

from __future__ import annotations

import importlib.util
import math
import os
import re
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from nextturn.probe.command.errors import BadInput, one_line
from nextturn.probe.command.files import json_line, read_json, sha256_text, write_json
from nextturn.probe.command.sections import TrackingSection
from nextturn.probe.command.terminal import is_main_process, say
from nextturn.probe.judges.verdicts import GENUINE, ROUGH, followup_name
from nextturn.probe.report.comparison import percent
from nextturn.probe.results import FollowupResults, Results, read_results
from nextturn.probe.stats import NOTHING, Estimate

TRACKED = "tracked.json"
RUN_FILE = "wandb_run.json"
STEP = "probe/step"
TRAIN_STEP = "train/global_step"
_SECRET = re.compile(r"(^|_)(key|token|secret|password|passwd|credentials?)$", re.IGNORECASE)


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
        raise BadInput(f"tracking.to: given {section.to}, expected none or one of {', '.join(installed)}")


# --- The wandb run of this process.


def start_tracking(section: TrackingSection, run_dir: Path, recipe: dict[str, Any], job_type: str = "sft") -> None:
    """Open the wandb run of a run directory, or continue the run that the directory already has.

    Call it before `trainer.train()`. It does nothing on other processes and for other trackers. If wandb cannot start
    online, the run is kept offline or, at worst, disabled, which stops transformers' callback from trying again.

    Args:
        recipe: The recipe as a dictionary; secrets are masked before it is sent.
        job_type: "sft", "dpo", "grpo" or "probe", by which wandb's pages group runs.
    """
    if section.to != "wandb" or not is_main_process():
        return
    import wandb

    run_dir.mkdir(parents=True, exist_ok=True)
    # Offline, wandb cannot resume a run. The same id joins the parts when they are uploaded.
    options: dict[str, Any] = {
        "id": read_json(run_dir / RUN_FILE)["id"] if (run_dir / RUN_FILE).is_file() else None,
        "project": section.project, "group": section.group, "name": section.name or run_dir.name, "dir": str(run_dir),
        "job_type": job_type, "config": {"recipe": without_secrets(recipe)}, "settings": wandb.Settings(quiet=True),
    }  # fmt: skip
    run, first = None, _mode()
    for mode in dict.fromkeys((first, "offline", "disabled")):
        resume = {"resume": "allow"} if mode == "online" else {}
        try:
            run = wandb.init(mode=mode, **({} if mode == "disabled" else options | resume))  # type: ignore[arg-type]
            break
        except Exception as error:  # noqa: BLE001 - no failure of a tracker may stop training
            if mode == first:
                _warn("could not start", error)
    if run is None or run.disabled:
        return
    declare(run, {"train/*": TRAIN_STEP, "probe/*": STEP})
    facts = {"id": run.id, "project": run.project, "entity": run.entity, "group": run.group, "name": run.name}
    write_json(run_dir / RUN_FILE, {"schema": 1, **facts})
    if run.offline:
        why = "WANDB_MODE" if "WANDB_MODE" in os.environ else "no login or no connection"
        say(f"wandb: kept offline ({why}); `wandb sync {run_dir}/wandb/offline-run-*` uploads it")


def _mode() -> str:
    """Return the mode that WANDB_MODE selects, else online if logged in, else offline."""
    mode = os.environ.get("WANDB_MODE") or ("online" if _logged_in() else "offline")
    return {"dryrun": "offline", "offline": "offline", "disabled": "disabled"}.get(mode, "online")


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


def track_probe(out: Path, plot: Path | None = None) -> None:
    """Send a finished probe to this process's wandb run, unless a process has sent it already.

    `tracked.json` is written before the figures are sent, so that one of several processes sends them. A kill between
    the two loses the point in wandb, and nothing in the run directory.

    Args:
        plot: The trade-off plot of the comparison, which is sent if the file exists.
    """
    if (run := current_run()) is None or run.disabled:
        return
    try:
        with (out / TRACKED).open("x", encoding="utf-8") as file:
            file.write(json_line({"schema": 1, "host": socket.gethostname(), "pid": os.getpid()}))
    except FileExistsError:
        return
    values = flatten(read_results(out))
    try:
        declare(run, dict.fromkeys([*values, "probe/tradeoff"], STEP))
        run.log(values)
        if plot is not None and plot.is_file():
            import wandb

            run.log({STEP: values[STEP], "probe/tradeoff": wandb.Image(str(plot))})
    except Exception as error:  # noqa: BLE001 - no failure of a tracker may stop training
        _warn(f"did not take the probe {out}", error)


def report_run(section: TrackingSection, out: Path, recipe: dict[str, Any]) -> None:
    """Send one finished `probe run` as a wandb run of its own, with the job type "probe", unless it was sent before."""
    if section.to == "wandb" and not (out / TRACKED).exists():
        start_tracking(section, out, recipe, job_type="probe")
        track_probe(out)
        finish_tracking()


def report_comparison(project: str, runs: Sequence[tuple[str, Results]], out: Path) -> None:
    """Send a comparison as a wandb run of its own: the headlines of all runs as a table and as a scatter of accuracy and
    follow-up, the plot with its arrows as a picture, and report.html as an artifact.

    Args:
        runs: Names and results of the compared runs.
        out: The comparison's folder.

    Raises:
        BadInput: wandb is not installed.
    """
    section = TrackingSection(project=project)
    check_tracker(section)
    start_tracking(section, out, {}, job_type="compare")
    if (run := current_run()) is None or run.disabled:
        return
    import wandb

    rows = []
    for name, results in runs:
        shown = {key.removeprefix("probe/"): value for key, value in headlines(results).items()}
        rows.append({"run": name, "step": results.model.step or 0, **shown})
    columns = list(dict.fromkeys(key for row in rows for key in row))
    table = wandb.Table(columns=columns, data=[[row.get(column) for column in columns] for row in rows])
    figures: dict[str, Any] = {"tradeoff/runs": table}
    follow_up = next((name for name in columns if re.fullmatch(r"follow_up(_rules_rough)?", name)), None)
    if follow_up and "accuracy" in columns:
        figures["tradeoff/scatter"] = wandb.plot.scatter(table, "accuracy", follow_up, title="accuracy and follow-up")
    if (out / "tradeoff.png").is_file():
        figures["tradeoff/plot"] = wandb.Image(str(out / "tradeoff.png"))
    try:
        run.log(figures)
        report = wandb.Artifact("comparison", type="report")
        report.add_file(str(out / "report.html"))
        run.log_artifact(report)
    except Exception as error:  # noqa: BLE001 - the comparison itself is written
        _warn(f"did not take the comparison {out}", error)
    finish_tracking()


def declare(run: Any, axes: dict[str, str]) -> None:
    """Put figures on their axes, {name: axis}."""
    for axis in dict.fromkeys(axes.values()):
        run.define_metric(axis, hidden=axis != TRAIN_STEP)  # an axis needs no panel of its own
    for name, axis in axes.items():
        if name != axis:
            run.define_metric(name, step_metric=axis)


def without_secrets(value: Any, key: str = "") -> Any:
    """Return a copy of a recipe in which texts under names such as `api_key` or `hub_token` are masked."""
    if isinstance(value, dict):
        return {name: without_secrets(item, str(name)) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [without_secrets(item, key) for item in value]
    return "<hidden>" if isinstance(value, str) and _SECRET.search(key) else value


# --- Probe results as wandb wants them: scalars with flat names.
#
# Names hold no dots, because wandb's pages lose the axis of a name with a dot, no spaces, and slashes only between their
# parts: `T=0.7` is called `T=0_7`. A perturbation by a question keeps its words and gets a short hash, so that two
# questions never share a name.

_SLUG_LENGTH = 40


def rough_suffix(results: Results) -> str:
    """Return the ending of the names of follow-up figures by the judge `rules`."""
    return "_rules_rough" if followup_name(results.settings.others.get("judge")) == ROUGH else ""


def headline_estimates(results: Results) -> dict[str, Estimate]:
    """Return the figures to look at first: `accuracy` (of the first set that has one, read leniently), `follow_up` (over the
    user turns of all sets after an unchanged answer, at the lowest temperature), and `sharded`."""
    at = [cells for kinds in results.followup.values() if (cells := kinds.get("none"))]
    turns = [cells[min(cells, key=lambda name: float(name.removeprefix("T=")))] for cells in at]
    figures = results.figures()

    def first(*wanted: str) -> Estimate:
        return next((of for metric, of in figures.items() if (metric.measure, metric.name) == wanted), NOTHING)

    follow_up = {f"follow_up{rough_suffix(results)}": pooled([cell for cell in turns if cell.n_judged])}
    return {"accuracy": first("accuracy", "lenient"), **follow_up, "sharded": first("sharded", "sharded")}


def pooled(cells: Sequence[FollowupResults]) -> Estimate:
    """Return the follow-up rate over the turns of several sets. Its interval is made of theirs (MOVER), which know which turns belong
    to one item."""
    n = sum(cell.n_judged for cell in cells)
    if not n:
        return NOTHING
    rate = sum(cell.labels[GENUINE] for cell in cells) / n
    ends = [[(end - (cell.rate or 0.0)) * cell.n_judged / n for end in cell.ci95] for cell in cells if cell.ci95]
    below, above = (math.hypot(*of_end) for of_end in zip(*ends, strict=True)) if ends else (0.0, 0.0)
    return Estimate(rate, (rate - below, rate + above) if len(ends) == len(cells) else None, n)


def headlines(results: Results) -> dict[str, float]:
    """Return the figures to look at first as `probe/accuracy` and the like, each with `_lo` and `_hi`."""
    values: dict[str, float] = {}
    for name, estimate in headline_estimates(results).items():
        if estimate.value is not None:
            values[f"probe/{name}"] = estimate.value
            bounds = zip(("lo", "hi"), estimate.ci95 or (), strict=False)
            values |= {f"probe/{name}_{end}": bound for end, bound in bounds}
    return values


def headline_line(folder: Path) -> str:
    """Return the headlines of a finished probe as text in percent: "accuracy 28.3 [18.5, 40.8], follow_up 65.0 [52.4, 75.8]"; "measured" if there are
    none."""
    estimates = headline_estimates(read_results(folder))
    shown = [f"{name} {percent(estimate)}" for name, estimate in estimates.items() if estimate.value is not None]
    return ", ".join(shown) or "measured"


def flatten(results: Results) -> dict[str, float]:
    """Return a results.json as flat scalars under `probe/`. A base model has no step and gets step 0.

    Examples of names: `probe/accuracy/gsm8k/strict` with `_lo` and `_hi`; `probe/followup/gsm8k/none/T=0_7/rate` with
    `lo` and `hi` (`probe/followup_rules_rough/...` for the judge `rules`); `probe/actual/talks/rate` for the real user
    turns of transcripts. Outcomes and `judged` are shares. Figures that were not measured (null) are left out.
    """
    values = {STEP: float(results.model.step or 0), **headlines(results)}
    rough = rough_suffix(results)
    for metric, estimate in results.figures().items():
        if estimate.value is None or metric.name.startswith("label:"):
            continue
        folder, parts, name = metric.measure, [metric.set], metric.name
        if metric.temperature:
            folder, parts = f"followup{rough}", [metric.set, metric.perturbation, metric.temperature]
        elif metric.measure == "outcome":
            folder, name = "accuracy", f"outcomes/{name}"
        key = "/".join(["probe", folder, *map(slug, [*parts, *filter(None, [metric.part])]), ""])
        if name == "unscored":
            values[f"{key}judged"] = 1 - estimate.value
        else:
            values[key + name] = estimate.value
            bounds = ("lo", "hi") if name == "rate" else (f"{name}_lo", f"{name}_hi")
            values |= {key + end: bound for end, bound in zip(bounds, estimate.ci95 or (), strict=False)}
    return values


def slug(text: str) -> str:
    """Return a text as part of a figure's name: letters, digits, `=` and `-`, and `_` in place of all else.

    A text that is long, or would lose more than dots and brackets, gets four digits of its sha256.
    """
    short = re.sub(r"[^A-Za-z0-9=-]+", "_", text).strip("_")
    if re.fullmatch(r"[A-Za-z0-9_.()=-]+", text) and len(short) <= _SLUG_LENGTH:
        return short
    return f"{short[:_SLUG_LENGTH].strip('_')}_{sha256_text(text)[:4]}".lstrip("_")
