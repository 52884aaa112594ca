"""Shows a run in Weights & Biases. The files of the run folder remain the truth: nothing here stops it.

Training metrics come from transformers' own callback, which joins a run that already stands; `start_tracking` opens
that run first, so that both share it. A watcher joins it from another process (`join_tracking`). Probe figures go on an
axis of their own, `probe/step`, because they may arrive late or out of order and wandb drops what lies behind its own
step counter. The trade-off is shown a second time as `tradeoff/SET/T=0_0` over `tradeoff/SET/accuracy`, which is what
wandb's own pages draw for all runs of a project together. Two traps decide the details:

- transformers declares `*` on `train/global_step`, and wandb takes any of the patterns that match, so each figure is
  declared by its full name as well;
- `trainer.log` inside a callback swallows the metrics that wait for the next log, so it is not used.
"""

from __future__ import annotations

import hashlib
import math
import netrc
import os
import re
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from nextturn.probe.checkpoints import list_checkpoints
from nextturn.probe.errors import DataError, one_line
from nextturn.probe.files import json_line, read_json, read_jsonl, write_json
from nextturn.probe.judges.labels import ROUGH, followup_name
from nextturn.probe.settings import TrackingSection
from nextturn.probe.terminal import is_main_process, say

TRACKED = "tracked.json"
STEP = "probe/step"
TRAIN_STEP = "train/global_step"
RUN_FILE = "wandb_run.json"
_SECRET = re.compile(r"(^|_)(key|token|secret|password|passwd|credentials?)$", re.IGNORECASE)
# One tracked run per process, as in wandb itself.
_refused: set[str] = set()


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
    """
    if not is_main_process() or section.to == "none":
        return
    run_dir.mkdir(parents=True, exist_ok=True)
    open_run(
        run_dir,
        job_type,
        shared,
        project=section.project,
        group=section.group,
        name=section.name or run_dir.name,
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
    if to == "none" or not (run_dir / RUN_FILE).is_file() or str(run_dir) in _refused:
        return False
    reason = join_run(run_dir)
    return reason is None or _refuse(run_dir, reason)


def track_probe(out: Path, run_dir: Path) -> None:
    """Shows a finished probe, with the comparison's plot, unless a process has shown it already.

    The mark is set before the figures are sent, so that among several processes one sends them; a kill right between
    the two loses that point in the tracker, and nothing in the run folder.
    """
    if not _is_open():
        return
    try:
        with (out / TRACKED).open("x", encoding="utf-8") as file:
            file.write(json_line({"schema": 1, "host": socket.gethostname(), "pid": os.getpid()}))
    except FileExistsError:
        return
    plot = run_dir / "probe" / "comparison" / "tradeoff.png"
    samples = [row for _, row in read_jsonl(out / "samples.jsonl")]
    log_probe(read_json(out / "results.json"), samples, run_dir, plot if plot.is_file() else None)


def report_run(section: TrackingSection, out: Path, recipe: dict[str, Any]) -> None:
    """Shows one finished `probe run` as a tracked run of its own, job type "probe"; nothing for one shown before."""
    if section.to != "none" and not (out / TRACKED).exists():
        start_tracking(section, out, recipe, job_type="probe")
        track_probe(out, out)
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
    return run is not None and not run.disabled


def _refuse(run_dir: Path, reason: str) -> bool:
    if str(run_dir) not in _refused:
        _refused.add(str(run_dir))
        say(f"figures stay in {run_dir / 'probe'}: {reason}")
    return False


# Opens, joins and describes a Weights & Biases run; a failure costs a warning, never the run.
#
# Several processes write one run where watchers measure what another process trains. wandb has two ways for that, and
# which one holds is written into RUN_DIR/wandb_run.json by the process that opens the run:
#
# - online, "shared" mode: the trainer is its primary and every watcher a secondary one. Both sides have to say so: a
#   secondary that joins a run opened for one writer makes the server overwrite that writer's earliest points
#   (github.com/wandb/wandb/issues/12269), so such a run is not joined.
# - offline: each process writes files of its own under the same id, which `wandb sync` uploads into one run.
#
# In shared mode the last process to write replaces the declarations of which figure belongs on which axis, so each one
# declares all that it can know of: every figure of every finished probe and what the trainer has logged.


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


def current_run() -> Any:
    """The run of this process, or None; wandb is not imported where nothing was started."""
    wandb = sys.modules.get("wandb")
    return wandb.run if wandb is not None else None


def leave_run(error: Exception) -> None:
    """Stop tracking in this process after `error`, with a warning; its figures stay in the run folder."""
    import wandb

    print(f"warning: wandb failed ({one_line(error)}); the run goes on without it", flush=True)
    if isinstance(error, ConnectionError):  # its process is gone, and at exit wandb would try once more to reach it
        with suppress(Exception):
            wandb.teardown()
    wandb.run = None


def is_shared(run: Any) -> bool:
    return bool(run.settings.mode == "shared")


def declare(run: Any, axes: Mapping[str, str]) -> None:
    """Puts figures on their axes, {name: axis}. By full name: transformers declares `*`, and wandb takes any match."""
    for axis in dict.fromkeys(axes.values()):
        run.define_metric(axis, hidden=axis != TRAIN_STEP)  # an axis needs no panel of its own
    for name, axis in axes.items():
        if name != axis:
            run.define_metric(name, step_metric=axis)


def _declare_axes(run: Any) -> None:
    run.define_metric("train/*", step_metric=TRAIN_STEP)
    run.define_metric("probe/*", step_metric=STEP)


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


# Probe results as a tracker wants them: flat scalars, points of the trade-off, and rows for two tables.
#
# Names hold neither dots, because wandb's pages lose the axis of a name with one, nor spaces, nor slashes but those between
# their parts: `T=0.7` is called `T=0_7`, and a perturbation by a question keeps its words and gets a short hash, so that two
# questions never share a name.

SAMPLE_ROWS = 200
LABEL_COLUMNS = ("step", "set", "perturbation", "temperature", "label", "count")
SAMPLE_COLUMNS = (
    *("kind", "set", "item", "perturbation", "temperature", "sample", "messages", "user_turn", "label", "unscored"),
    *("grounding", "changed", "extracted", "reference", "strict", "lenient", "outcome", "condition"),
)
ACTUAL = "actual"
_SLUG_LENGTH = 40


def flatten(results: dict[str, Any]) -> dict[str, float]:
    """A results.json as flat scalars under `probe/`; a base model, which has no step, stands at 0.

    For example `probe/accuracy/gsm8k/strict` with `_lo` and `_hi`, `probe/followup/gsm8k/none/T=0_7/rate` with `lo`
    and `hi` beside it (`probe/followup_rules_rough/...` of the judge `rules`), `probe/actual/talks/rate` for the real user turns of transcripts. Outcomes and `judged` are
    shares. A figure that was not measured (null) is left out.
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
    for place, cell in _followup_cells(results):
        _put_cell(values, f"probe/followup{rough}/" + "/".join(map(slug, place)), cell)
    for name, cell in results.get(ACTUAL, {}).items():
        _put_cell(values, f"probe/actual/{slug(name)}", cell)
    return values


def tradeoff(results: dict[str, Any]) -> dict[str, dict[str, float]]:
    """{axis: {figure: value}}: what each set's follow-up rates are drawn against, and the rates of the plain run.

    The axis `tradeoff/SET/accuracy` is the lenient accuracy of the set itself, else of the first set that has one; it
    stands among its own figures. A set without rates, or a run without accuracy, is left out.
    """
    accuracies = {
        name: entry["lenient"]["value"]
        for name, entry in results.get("accuracy", {}).items()
        if (entry.get("lenient") or {}).get("value") is not None
    }
    found: dict[str, dict[str, float]] = {}
    for (name, perturbation, temperature), cell in _followup_cells(results):
        if perturbation != "none" or cell.get("rate") is None or not accuracies:
            continue
        accuracy = accuracies.get(name, next(iter(accuracies.values())))
        axis = f"tradeoff/{slug(name)}/accuracy"
        figures = found.setdefault(axis, {axis: float(accuracy)})
        figures[f"tradeoff/{slug(name)}/{slug(temperature)}"] = float(cell["rate"])
    return found


def slug(text: str) -> str:
    """A part of a name: the text's letters, digits, `=` and `-`, whatever else as `_`; always the same for one text.

    What would lose more than dots and brackets, or is long, is told apart by four digits of the text's sha256.
    """
    short = re.sub(r"[^A-Za-z0-9=-]+", "_", text).strip("_")
    if re.fullmatch(r"[A-Za-z0-9_.()=-]+", text) and len(short) <= _SLUG_LENGTH:
        return short
    digest = hashlib.sha256(text.encode()).hexdigest()[:4]
    return f"{short[:_SLUG_LENGTH].strip('_')}_{digest}".lstrip("_")


def label_rows(results: dict[str, Any]) -> list[list[Any]]:
    """LABEL_COLUMNS for every label of every cell; unscored turns stand as `unscored: REASON`."""
    actual = (((name, ACTUAL, ""), cell) for name, cell in results.get(ACTUAL, {}).items())
    rows: list[list[Any]] = []
    for place, cell in (*_followup_cells(results), *actual):
        unscored = {f"unscored: {reason}": count for reason, count in cell.get("unscored", {}).items()}
        counts = {**cell.get("labels", {}), **unscored}
        rows += [[_step(results), *place, label, count] for label, count in counts.items()]
    return rows


def sample_rows(samples: Sequence[dict[str, Any]]) -> list[list[Any]]:
    """SAMPLE_COLUMNS of at most SAMPLE_ROWS samples, evenly spread over all of them."""
    stride = max(1, math.ceil(len(samples) / SAMPLE_ROWS))
    return [[_cell(row.get(column)) for column in SAMPLE_COLUMNS] for row in samples[::stride]]


def _step(results: dict[str, Any]) -> int:
    return results.get("model", {}).get("step") or 0


def _followup_cells(results: dict[str, Any]) -> Iterator[tuple[tuple[str, str, str], dict[str, Any]]]:
    """((set, perturbation, temperature), figures)"""
    for name, perturbations in results.get("followup", {}).items():
        for perturbation, temperatures in perturbations.items():
            for temperature, cell in temperatures.items():
                yield (name, perturbation, temperature), cell


def _put_cell(values: dict[str, float], key: str, cell: dict[str, Any]) -> None:
    _put(values, f"{key}/rate", cell.get("rate"))
    for suffix, bound in zip(("lo", "hi"), cell.get("ci95") or (), strict=False):
        _put(values, f"{key}/{suffix}", bound)
    _put(values, f"{key}/judged", _share(cell.get("n_judged", 0), cell.get("n_total", 0)))
    for measure in ("role_consistency", "specificity", "grounding", "changed_text"):
        _put(values, f"{key}/{measure}", cell.get(measure))


def _share(count: int, total: int) -> float | None:
    return count / total if total else None


def _put(values: dict[str, float], key: str, value: Any) -> None:
    """Adds a number, or {"value", "ci95"} as `key`, `key_lo` and `key_hi`; nothing for null."""
    if isinstance(value, dict):
        _put(values, key, value.get("value"))
        for suffix, bound in zip(("_lo", "_hi"), value.get("ci95") or (), strict=False):
            _put(values, key + suffix, bound)
    elif value is not None:
        values[key] = float(value)


def _cell(value: Any) -> Any:
    """A table column holds one type, so everything is text; messages read as a transcript."""
    if isinstance(value, list):
        return "\n\n".join(f"{turn['role']}: {turn['content']}" for turn in value)
    if isinstance(value, float):
        return f"{value:.6g}"
    return "" if value is None else str(value)
