"""`nextturn probe watch`: measure a training run's checkpoints from another process, GPU or machine.

The watcher reads the folder of a run, which has to be on a shared file system if machines differ. It measures the base model
first, then every complete checkpoint in step order, each once, and writes the comparison after each probe.

Of a run of nextturn the probes go to RUN_DIR/probe/{base,step-N}, as those of a probe inside training would, and figures to the
tracker. Of any other trainer's folder (probe/models/layouts.py) they go to DIR-probe or `--out`, and nothing is written into the
folder itself. `--base` names the model that its training began with. Without a recipe or `--set`, `written_pairs` are asked.

One watcher works on a run at a time: it holds a lock on watch.lock in the folder of the probes, which the system releases when
the process ends, however it ends. The same command resumes a killed watcher's probe. A failed probe, and a step that never gets
complete or is deleted too early, are reported at the end and do not stop the others.
"""

from __future__ import annotations

import argparse
import shlex
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nextturn.probe.command.errors import BadInput, ModelError, NextturnError
from nextturn.probe.command.files import only_process, read_json, remove_unfinished
from nextturn.probe.command.terminal import say, say_once
from nextturn.probe.models import layouts
from nextturn.probe.models.checkpoints import KEPT, finished, numbered, recorded_inputs, set_aside
from nextturn.probe.models.folders import ModelFolder, own_device, resolve, usable_dtype, used_dtype
from nextturn.probe.models.user_model import refuse_user_model
from nextturn.probe.models.weights import changes_nothing, count_parameters

if TYPE_CHECKING:
    from nextturn.probe.command.sections import ProbeRecipe, ProbeSection
    from nextturn.probe.run import LoadedSet

GIB = 2**30


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run_dir", type=Path, metavar="DIR", help="the folder of a training; it may not exist yet")
    recipe = "a recipe with `probe:` (default: the run's own recipe.json; not needed for another trainer's folder)"
    parser.add_argument("recipe", type=Path, nargs="?", metavar="RECIPE", help=recipe)
    of_set = "in place of a recipe: a file of questions, or a known set; can be repeated"
    parser.add_argument("--set", action="append", default=[], metavar="FILE", help=of_set)
    parser.add_argument("--base", metavar="MODEL", help="the model that another trainer began with")
    parser.add_argument("--out", type=Path, metavar="DIR", help="of another trainer's probes (default: DIR-probe)")
    parser.add_argument("--poll", type=float, default=10.0, metavar="SECONDS", help="how often to look (default: 10)")
    parser.add_argument("--once", action="store_true", help="measure the checkpoints that exist, then end")
    parser.add_argument("--until", type=int, metavar="STEP", help="end when this step, or a later one, is complete")
    parser.add_argument("--dry-run", action="store_true", help="show what would be measured, and change nothing")
    parser.add_argument("--device", help="cpu, cuda, cuda:1 (default: the first GPU, else the CPU)")


def run(args: argparse.Namespace, overrides: Sequence[str]) -> None:
    from nextturn.probe.command.sections import load_probe_recipe, recipe_of_sets, take_recipe
    from nextturn.probe.plan import load_sets, work_of
    from nextturn.probe.report.tracking import check_tracker

    if args.poll <= 0:
        raise BadInput(f"--poll: given {args.poll:g}, expected seconds above 0")
    overrides = take_recipe(args, overrides, args.set)
    layouts.refuse_store(args.run_dir)
    begun = args.run_dir / "recipe.json"  # the first thing that training writes into its folder

    def load(own: bool) -> ProbeRecipe:
        path = args.recipe or (begun if own and not args.set else None)
        return load_probe_recipe(path, overrides) if path else recipe_of_sets(args.set or ["written_pairs"], overrides)

    def is_others() -> bool:
        """Return True for a folder of another trainer: --base or --out says so, or it holds a step and no recipe."""
        return bool(layouts.find_steps(args.run_dir)) or bool((args.base or args.out) and args.run_dir.is_dir())

    named = args.recipe is not None and args.recipe.resolve() == begun.resolve()
    if not named:  # a bad recipe is refused before any waiting
        load(own=False)
    while not begun.is_file() and (named or not is_others()):
        if args.once or args.dry_run:
            found = "no training run" if args.run_dir.is_dir() else "no such folder"
            raise BadInput(f"{args.run_dir}: {found}; expected its {begun.name}, or its steps")
        say_once(f"waits for a training run to begin in {args.run_dir}")
        time.sleep(args.poll)
    own = begun.is_file()
    if own and (args.base or args.out):
        raise BadInput(f"--base, --out: {args.run_dir} is a run of nextturn, which names its base and holds its probes")
    recipe = load(own)
    probe = recipe.probe
    check_tracker(recipe.tracking)
    refuse_user_model(args.run_dir, probe.user_model)
    if probe.engine == "openai":
        raise BadInput("probe.engine: given openai, expected hf or vllm: a server cannot load each checkpoint")
    root = args.run_dir.absolute()
    out = None if own else args.out or root.with_name(f"{root.name}-probe")
    sets = load_sets(probe, (out or root / "probe") / "base")
    where = args.device, args.poll, args.until, out, args.base, recipe.tracking.model_dump()
    watcher = Watcher(args.run_dir, probe, sets, *where)
    if not args.dry_run:
        watcher.follow(args.once)
        return
    for loaded in watcher.sets:
        work = work_of(loaded, probe)
        most = f"{work.answers} answers, {work.user_turns} user turns, at most {work.tokens:,} tokens"
        say(f"set       {loaded.name}: {most}")
    for line in watcher.plan():
        say(line)
    say("nothing was written")


def command(run_dir: Path) -> str:
    """Return the command that watches a run with its own recipe, to be started in the same directory."""
    return shlex.join(["nextturn", "probe", "watch", str(run_dir), str(run_dir / "recipe.json")])


@dataclass(eq=False)
class Watcher:
    """Measures the models of one training run. A model is named by its step, the base by 0.

    Args:
        run_dir: A run of nextturn, or any trainer's folder, in which then nothing is written.
        until: The last step that is measured.
        out: Gets the probes of another trainer's folder, and until then links to the models, which the trainer may delete.
        base: The model that another trainer began with: it is measured, too, and gives a step what the step lacks.
        tracking: Where the figures of another trainer's steps are shown.
    """

    run_dir: Path
    probe: ProbeSection
    sets: Sequence[LoadedSet]
    device: str | None
    poll_s: float
    until: int | None = None
    out: Path | None = None
    base: str | None = None
    tracking: dict[str, Any] = field(default_factory=lambda: {"to": "none"})

    def __post_init__(self) -> None:
        if self.out and self.out.resolve().is_relative_to(self.run_dir.resolve()):
            raise BadInput(f"--out {self.out}: in the trainer's folder, which may delete it; expected another")
        self.own, self.folder = self.out is None, self.out or self.run_dir / "probe"
        self.given_base = resolve(self.base) if self.base else None
        self.failed: dict[int, str] = {}
        self.left_out: dict[int, str] = {}
        self.recipe: dict[str, Any] = {"tracking": self.tracking}
        if self.own:
            # Checkpoints may be stored in another dtype than their base, and all of them are compared.
            self.recipe = read_json(self.run_dir / "recipe.json")
            dtype = self.recipe["model"]["dtype"] if self.probe.dtype == "auto" else self.probe.dtype
            self.probe = self.probe.model_copy(update={"dtype": usable_dtype(dtype, self.device)})
        else:
            self._fix_dtype(self.given_base)
        self._looked_at, self._newest = 0.0, 0
        self._seen: dict[int, Any] = {}  # when the weights of unmarked steps were written, at the look before

    def follow(self, once: bool = False) -> None:
        """Measure until the run has ended and all checkpoints are measured, or with `once` those that exist now.

        Raises:
            BadInput: Another process watches the run.
            SettingsChanged: The run was probed with other settings already.
            NextturnError: Some probes failed. The others are done.
        """
        from nextturn.probe.command.sections import TrackingSection
        from nextturn.probe.plan import refuse_other_settings
        from nextturn.probe.report.tracking import finish_tracking, start_tracking

        tracking = TrackingSection.model_validate(self.recipe.get("tracking", {"to": "none"}))
        tracking = tracking.model_copy(update={"name": f"{tracking.name or self.run_dir.name}-probe"})
        with only_process(self.folder / "watch.lock", f"watches {self.run_dir}"):
            remove_unfinished(self.folder)
            folders = [self.folder / "base", *(folder for _, folder in numbered(self.folder, "step"))]
            refuse_other_settings(folders, "this probe was made", self.probe, self.sets)
            start_tracking(tracking, self.folder, self.recipe, job_type="probe")
            self.keep_new()
            if self._seen:  # a step without a mark is complete if it stays the same
                time.sleep(self.poll_s)
                self.keep_new()
            for line in self._needs(list((self.folder / KEPT).glob("step-*"))):
                say(line)
            now = self.steps()
            while True:
                ended = self._has_ended()  # before looking: what was saved last is there by then
                self.keep_new()
                left = [step for step in self.steps() if not (step in self.failed or self.is_measured(step))]
                if left := [step for step in left if step in now or not once]:
                    self._measure(left[0])
                    continue
                self._track()
                if once or ended:
                    break
                say_once(f"waits for checkpoints in {self.run_dir}")
                time.sleep(self.poll_s)
            finish_tracking()
        for reason in dict.fromkeys(self.left_out.values()):
            names = ", ".join(_name(step) for step, why in self.left_out.items() if why == reason)
            say(f"not measured: {names}: {reason}")
        say("\n".join([f"nothing is left to measure; see {self.folder}", *self._compare()]))
        if self.failed:
            failed = "; ".join(f"{_name(step)} ({reason})" for step, reason in sorted(self.failed.items()))
            raise NextturnError(f"not measured: {failed}. The same command tries them again")
        if not any(map(self.is_measured, self.steps())):
            raise NextturnError(f"{self.run_dir}: no complete step, expected folders such as checkpoint-10 or step_10")

    def plan(self) -> list[str]:
        """Return the lines of the plan: the memory and the disk that are needed, and which steps are measured."""
        ready = {step.number: layouts.model_in(step) for step in self._look()}
        states = self.left_out | dict.fromkeys([*ready, *self.steps()], "to measure")
        states |= {step: "measured" for step in states if self.is_measured(step)}
        models = [model for model in ready.values() if model]
        return [*self._needs(models), *(f"{_name(step):<9} {states[step]}" for step in sorted(states))]

    def _needs(self, models: Sequence[Path]) -> list[str]:
        import psutil
        import torch

        if not models:
            return []
        device = self.device or own_device()
        free = psutil.virtual_memory().available if device == "cpu" else torch.cuda.mem_get_info(device)[0]
        wholes = [self.given_base.whole] if self.given_base else models
        memory = max(count_parameters(whole).total() for whole in wholes) * (4 if self.probe.dtype == "float32" else 2)
        disk = sum(size for folder in models for _, size, _ in layouts.stamp(folder))
        room = shutil.disk_usage(next(each for each in self.folder.absolute().parents if each.is_dir())).free
        return [
            f"memory    {memory / GIB:.2f} GiB of weights, and what generating takes; {free / GIB:.2f} GiB free on {device}",
            f"disk      {disk / GIB:.2f} GiB if all steps are deleted before they are measured; {room / GIB:.2f} GiB free",
        ]

    def steps(self) -> list[int]:
        """Return the steps that are measured or can be, in order, without those after `until`."""
        return [step for step in self._complete() if self.until is None or step <= self.until]

    def _complete(self) -> list[int]:
        steps = {step for step, _ in numbered(self.folder / KEPT, "step")}
        steps |= {step for step, _ in numbered(self.folder, "step") if self.is_measured(step)}
        steps |= {0} if self.own or self.given_base or self.source(0).is_dir() or self.is_measured(0) else set()
        return sorted(steps)

    def is_measured(self, step: int) -> bool:
        """Return True if the probe of this step has finished."""
        return (self.folder / _name(step) / "results.json").is_file()

    def source(self, step: int) -> Path:
        """Return the folder in which the model of a step is kept until it is measured."""
        return self.folder / KEPT / _name(step)

    def _has_ended(self) -> bool:
        if self.until is not None and max(self._newest, *self._complete(), 0) >= self.until:
            return True
        return self.own and finished(self.run_dir) is not None

    def keep_new(self) -> None:
        """Keep the model of every complete checkpoint that is not measured yet, and delete the models of those that are."""
        self._looked_at = time.monotonic()
        for kept in (self.folder / KEPT).glob("[!.]*"):
            if (self.folder / kept.name / "results.json").is_file():
                shutil.rmtree(kept, ignore_errors=True)
        for step in self._look():  # the oldest first, as training deletes them
            if self.until is not None and step.number > self.until:
                continue
            kept, probed = self.source(step.number), self.folder / _name(step.number)
            try:
                for taken in layouts.hold(step, kept, self.given_base):
                    say_once(f"{_name(step.number)}: {taken}")
            except ModelError as error:  # training saved something else than a model
                self.failed[step.number] = str(error)
            except OSError as error:  # deleted meanwhile, or no room for a copy
                self.left_out[step.number] = f"the model of {step.folder} could not be kept for its probe ({error})"
                say_once(self.left_out[step.number])
            else:
                self.failed.pop(step.number, None)
                then = read_json(probed / layouts.SOURCE) if (probed / layouts.SOURCE).is_file() else None
                if then and then["saved"] != read_json(kept / layouts.SOURCE)["saved"]:
                    say(f"{_name(step.number)} was saved again: its probe is set aside")
                    set_aside(probed)

    def _look(self) -> list[layouts.Step]:
        """Return the complete steps that are not kept or measured as they are now, and note why others are left out."""
        ready: dict[int, layouts.Step] = {}
        reasons: dict[int, str] = {}
        seen: dict[int, Any] = {}
        known = {0} if self.given_base else set[int]()
        for step in layouts.find_steps(self.run_dir, (layouts.NEXTTURN,) if self.own else layouts.LAYOUTS):
            number = step.number
            if number in ready or number in known or self._is_known(step):
                known.add(number)
                continue
            reason = layouts.why_not(step)
            if reason is None and layouts.is_marked(step) is None:
                seen[number] = layouts.saved_at(step)
                if self._seen.get(number) != seen[number]:
                    reason = "it is measured if its files are the same at the next look"
            if reason is None:
                ready[number] = step
            else:
                reasons.setdefault(number, reason)
        for number in self.left_out.keys() - reasons.keys() - ready.keys() - known:
            reasons[number] = "deleted before it was complete"
        self._seen, self._newest = seen, max([self._newest, *ready])
        self.left_out = {number: reasons[number] for number in sorted(reasons) if number not in ready}
        for number, reason in self.left_out.items():
            if reason.startswith(layouts.NO_WEIGHTS):
                say_once(f"{self.run_dir}: {reason}")
            elif number < max([self._newest, *self.steps()]):
                say_once(f"{_name(number)} is left out until it is complete: {reason}")
        return list(ready.values())

    def _is_known(self, step: layouts.Step) -> bool:
        """Return True if a step is measured or kept with the weights that it has now, or from another place."""
        place = self.folder / _name(step.number) if self.is_measured(step.number) else self.source(step.number)
        if not (place / layouts.SOURCE).is_file():
            return self.is_measured(step.number)  # inside training
        then, base = read_json(place / layouts.SOURCE), self.given_base and self.given_base.name
        within = step.folder.relative_to(self.run_dir).parts  # before these parts DIR stands, as it was given then
        is_other = Path(then["folder"]).parts[-len(within) :] != within
        same = is_other or layouts.saved_at(step) in ([], then["saved"])
        return same and (self.is_measured(step.number) or then["base"] == base)

    def _measure(self, step: int) -> None:
        from nextturn.probe.run import measure_folder

        name, source = _name(step), self.source(step)
        saved = layouts.stamp(source)

        def check() -> None:
            """Raise NextturnError if training went back to an earlier step; keep what was saved meanwhile."""
            if layouts.stamp(source) != saved:
                raise NextturnError(f"{source} was deleted or saved again")
            if time.monotonic() - self._looked_at > self.poll_s:
                self.keep_new()

        say(f"measures {name}")
        try:
            model = self._model(step, source)
            measure_folder(model, self.probe, self.sets, self.folder / name, name, self.device, step=step, check=check)
        except Exception as error:  # noqa: BLE001 - whatever is wrong with one checkpoint must not stop the others
            if layouts.stamp(source) != saved:
                say(f"leaves {name}: its checkpoint was deleted or saved again meanwhile")
                if (self.folder / name).is_dir():  # what was measured is of weights that are gone
                    set_aside(self.folder / name)
                return
            reason = str(error) if isinstance(error, NextturnError) else f"{type(error).__name__}: {error}"
            self.failed[step] = " ".join(reason.split())
            say(f"{name} failed: {self.failed[step]}")
            return
        self._compare()
        self._track()

    def _model(self, step: int, source: Path) -> ModelFolder:
        """Return the model of a step under the name that training gives it."""
        if not source.is_dir():
            return self.given_base or replace(resolve(self.started_from()), name=self.recipe["model"]["name"])
        saved = read_json(source / layouts.SOURCE)
        model = resolve(str(source))
        (self.folder / source.name).mkdir(exist_ok=True)
        shutil.copy(source / layouts.SOURCE, self.folder / source.name / layouts.SOURCE)
        if self.own:
            return replace(model, name=str(Path(self.recipe["train"]["output_dir"]) / saved["step"]))
        if changes_nothing(source, self.given_base.whole if self.given_base else None):
            say(f"warning: {source.name}: its weights are those of the base, so this may be no trained model")
        self._fix_dtype(model)
        return replace(model, name=saved["folder"])

    def _fix_dtype(self, first: ModelFolder | None) -> None:
        """Measure all models in the dtype of the base, or of the model that was measured first, since they are compared."""
        if self.probe.dtype == "auto":
            begun = next(self.folder.glob("*/manifest.json"), None)
            of_first = used_dtype(first, "auto", self.device) if first else "auto"
            dtype = read_json(begun)["settings"]["dtype"] if begun else of_first
            self.probe = self.probe.model_copy(update={"dtype": dtype})

    def started_from(self) -> str:
        """Return the model that training started from, by its checkpoint if a run directory was named."""
        return str(recorded_inputs(self.run_dir).get("model", {}).get("path", self.recipe["model"]["name"]))

    def _compare(self) -> list[str]:
        """Compare all finished probes and return the table and the path of the report; nothing if they cannot be compared."""
        from nextturn.probe.compare import compare
        from nextturn.probe.report.comparison import terminal_table

        measured, out = [step for step in self.steps() if self.is_measured(step)], self.folder / "comparison"
        runs = [self.run_dir] if self.own else [self.folder / _name(step) for step in measured]
        try:
            return ["", terminal_table(compare(runs, out)), str(out / "report.html")] if measured else []
        except NextturnError as error:
            say_once(f"no comparison: {error}")
            return []

    def _track(self) -> None:
        """Send every finished probe to the watcher's own run, each once."""
        from nextturn.probe.report.tracking import track_probe

        for step in self.steps():
            if self.is_measured(step):
                track_probe(self.folder / _name(step), self.folder / "comparison" / "tradeoff.png")


def _name(step: int) -> str:
    return f"step-{step}" if step else "base"
