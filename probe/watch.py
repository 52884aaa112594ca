"""`nextturn probe watch`: measure a training run's checkpoints from another process, GPU or machine.

The watcher reads the run directory, which has to be on a shared file system if machines differ. It measures the base model
first, then every complete checkpoint in step order, each once, into RUN_DIR/probe/{base,step-N} as a probe inside training
would. After each probe it writes the comparison to RUN_DIR/probe/comparison and updates the tracker.

One watcher works on a run at a time: it holds a lock on RUN_DIR/probe/watch.lock, which the system releases when the process
ends, however it ends. The same command resumes a killed watcher's probe. A failed probe is reported at the end and does not
stop the others.
"""

from __future__ import annotations

import argparse
import shlex
import shutil
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nextturn.probe.command.errors import BadInput, NextturnError
from nextturn.probe.command.files import only_process, read_json, remove_unfinished
from nextturn.probe.command.terminal import say, say_once
from nextturn.probe.models.checkpoints import (
    KEPT,
    finished,
    keep,
    list_checkpoints,
    numbered,
    recorded_inputs,
    saved_at,
    set_aside,
    why_incomplete,
)
from nextturn.probe.models.folders import resolve, usable_dtype
from nextturn.probe.models.user_model import refuse_user_model

if TYPE_CHECKING:
    from nextturn.probe.command.sections import ProbeSection
    from nextturn.probe.run import LoadedSet


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run_dir", type=Path, metavar="RUN_DIR", help="the training run's folder; it may not exist yet")
    parser.add_argument("recipe", type=Path, metavar="RECIPE", help="a recipe with `probe:`, or the run's recipe.json")
    parser.add_argument("--poll", type=float, default=10.0, metavar="SECONDS", help="how often to look (default: 10)")
    parser.add_argument("--once", action="store_true", help="measure the checkpoints that exist, then end")
    parser.add_argument("--dry-run", action="store_true", help="show what would be measured, and change nothing")
    parser.add_argument("--device", help="cpu, cuda, cuda:1 (default: the first GPU, else the CPU)")


def run(args: argparse.Namespace, overrides: Sequence[str]) -> None:
    from nextturn.probe.command.sections import load_probe_recipe
    from nextturn.probe.plan import load_sets, work_of

    if args.poll <= 0:
        raise BadInput(f"--poll: given {args.poll:g}, expected seconds above 0")
    begun = args.run_dir / "recipe.json"  # the first thing that training writes into its folder
    if args.recipe.resolve() != begun.resolve():  # a bad recipe is refused before any waiting
        load_probe_recipe(args.recipe, overrides)
    if not begun.is_file():
        if args.once or args.dry_run:
            raise BadInput(f"{args.run_dir}: expected the {begun.name} of a training run")
        say(f"waits for a training run to begin in {args.run_dir}")
        while not begun.is_file():
            time.sleep(args.poll)
    probe = load_probe_recipe(args.recipe, overrides).probe
    refuse_user_model(args.run_dir, probe.user_model)
    if probe.engine == "openai":
        raise BadInput(
            "probe.engine: given openai, expected hf or vllm: a server cannot load each checkpoint's weights"
        )
    sets = load_sets(probe, args.run_dir / "probe" / "base")
    watcher = Watcher(args.run_dir, probe, sets, args.device, args.poll)
    if not args.dry_run:
        watcher.follow(args.once)
        return
    for loaded in watcher.sets:
        work = work_of(loaded, probe)
        say(
            f"set       {loaded.name}: {work.answers} answers, {work.user_turns} user turns, at most {work.tokens:,} tokens"
        )
    for step in watcher.steps():
        say(f"{_name(step):<9} {'measured' if watcher.is_measured(step) else 'to measure'}")
    say("nothing was written")


def command(run_dir: Path) -> str:
    """Return the command that watches a run with its own recipe, to be started in the same directory."""
    return shlex.join(["nextturn", "probe", "watch", str(run_dir), str(run_dir / "recipe.json")])


class Watcher:
    """Measures the models of one training run. A model is named by its step, the base by 0."""

    def __init__(
        self, run_dir: Path, probe: ProbeSection, sets: Sequence[LoadedSet], device: str | None, poll_s: float
    ) -> None:
        self.run_dir, self.sets, self.device, self.poll_s = run_dir, sets, device, poll_s
        self.folder = run_dir / "probe"
        self.recipe: dict[str, Any] = read_json(run_dir / "recipe.json")
        # Checkpoints may be stored in another dtype than their base, and all of them are compared.
        dtype = self.recipe["model"]["dtype"] if probe.dtype == "auto" else probe.dtype
        self.probe = probe.model_copy(update={"dtype": usable_dtype(dtype, device)})
        self.failed: dict[int, str] = {}
        self._looked_at = 0.0

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
            now = self.steps()
            while True:
                ended = finished(self.run_dir) is not None  # before looking: what was saved last is there by then
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
        say(f"nothing is left to measure; see {self.folder}")
        if self.failed:
            failed = "; ".join(f"{_name(step)} ({reason})" for step, reason in self.failed.items())
            raise NextturnError(f"not measured: {failed}. The same command tries them again")

    def steps(self) -> list[int]:
        """Return the steps that are measured or can be, in order."""
        steps = {step for step, _ in numbered(self.folder / KEPT, "step")}
        steps |= {step for step, _ in numbered(self.folder, "step") if self.is_measured(step)}
        steps |= {step for step, checkpoint in list_checkpoints(self.run_dir) if why_incomplete(checkpoint) is None}
        return [0, *sorted(steps)]

    def is_measured(self, step: int) -> bool:
        """Return True if the probe of this step has finished."""
        return (self.folder / _name(step) / "results.json").is_file()

    def keep_new(self) -> None:
        """Keep the model of every complete checkpoint that is not measured yet, and delete the models of those that are."""
        self._looked_at = time.monotonic()
        for step, kept in numbered(self.folder / KEPT, "step"):
            if self.is_measured(step):
                shutil.rmtree(kept, ignore_errors=True)
        for step, checkpoint in reversed(list_checkpoints(self.run_dir)):  # rotation deletes the oldest first
            if self.is_measured(step) or why_incomplete(checkpoint) is not None:
                continue
            try:
                keep(checkpoint, self.folder / KEPT / _name(step))
            except OSError as error:  # deleted meanwhile, or no room for a copy; what is left is measured where it lies
                say_once(f"the model of {checkpoint} could not be kept for its probe ({error})")

    def _measure(self, step: int) -> None:
        from nextturn.probe.run import measure_folder

        name, source = _name(step), self.folder / KEPT / _name(step)
        source = source if source.is_dir() else self.run_dir / f"checkpoint-{step}"
        saved = saved_at(source)

        def check() -> None:
            """Raise NextturnError if training went back to an earlier step; keep what was saved meanwhile."""
            if saved_at(source) != saved:
                raise NextturnError(f"{source} was deleted or saved again")
            if time.monotonic() - self._looked_at > self.poll_s:
                self.keep_new()

        say(f"measures {name}")
        try:
            model = resolve(str(source) if step else self.base())
            in_run = Path(self.recipe["train"]["output_dir"]) / f"checkpoint-{step}"
            model = replace(model, name=str(in_run) if step else self.recipe["model"]["name"])  # as training names it
            measure_folder(model, self.probe, self.sets, self.folder / name, name, self.device, step=step, check=check)
        except Exception as error:  # noqa: BLE001 - whatever is wrong with one checkpoint must not stop the others
            if saved_at(source) != saved:
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

    def base(self) -> str:
        """Return the model that training started from, by its checkpoint if a run directory was named."""
        return str(recorded_inputs(self.run_dir).get("model", {}).get("path", self.recipe["model"]["name"]))

    def _compare(self) -> None:
        from nextturn.probe.compare import compare

        try:
            compare([self.run_dir], self.folder / "comparison")
        except NextturnError as error:
            say_once(f"no comparison: {error}")

    def _track(self) -> None:
        """Send every finished probe to the watcher's own run, each once."""
        from nextturn.probe.report.tracking import track_probe

        for step in self.steps():
            if self.is_measured(step):
                track_probe(self.folder / _name(step), self.folder / "comparison" / "tradeoff.png")


def _name(step: int) -> str:
    return f"step-{step}" if step else "base"
