"""Measures the models of one training run that nobody else is measuring: the base first, then checkpoints by step."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from probe.checkpoints import finished, is_complete, list_checkpoints, numbered
from probe.engines.checked import CheckedEngine
from probe.errors import NextturnError
from probe.files import read_json
from probe.processes import say
from probe.watching.claims import Claim, ClaimLost, Claims
from probe.watching.kept import CheckpointGone, drop, keep, kept_checkpoints, kept_model, refuse_non_finite

if TYPE_CHECKING:
    from probe.models import ModelFolder
    from probe.questions import LoadedSet
    from probe.settings import ProbeSection

CLAIMS, KEPT = ".claims", ".kept"


class Target(NamedTuple):
    """A model to measure, by step: the base at 0, as "base", and checkpoints as "step-N"."""

    step: int
    name: str


class Watcher:
    """Measures the models of one training run that nobody else is measuring."""

    def __init__(
        self,
        run_dir: Path,
        probe: ProbeSection,
        sets: Sequence[LoadedSet],
        device: str | None = None,
        poll_s: float = 10.0,
        claims: Claims | None = None,
    ) -> None:
        self.run_dir, self.probe, self.sets, self.device, self.poll_s = run_dir, probe, sets, device, poll_s
        self.place = run_dir / "probe"
        self.claims = claims or Claims(self.place / CLAIMS)
        self.recipe: dict[str, Any] = read_json(run_dir / "recipe.json")
        self.failed: dict[str, str] = {}
        self.gone: set[int] = set()
        self.done_here: list[str] = []
        self._keeping = threading.Lock()
        self._said: set[str] = set()

    def follow(self, once: bool = False) -> None:
        """Measures until the run has come to its end and nothing is left, or with `once` what is there now.

        Raises:
            SettingsChanged: the run was probed with other settings already.
            NextturnError: some probes failed; the others are done.
        """
        self._refuse_other_settings()
        self.keep_new()
        now = set(self.targets()) if once else None
        while True:
            ended = finished(self.run_dir) is not None  # before looking: what was saved last is there by then
            self.keep_new()
            left = [target for target in self.targets() if self._open(target) and (now is None or target in now)]
            if self._measure_one(left):
                continue
            self._tell()
            if once or (ended and not left):
                break
            self._say_once(f"waits for checkpoints in {self.run_dir}")
            time.sleep(self.poll_s)
        self._conclude()

    def keep_new(self) -> None:
        """Keeps the model of every complete checkpoint that still has to be measured; drops those that have been."""
        with self._keeping:
            for step, kept in kept_checkpoints(self.place / KEPT):
                if self._finished(f"step-{step}"):
                    drop(kept)
            for step, checkpoint in reversed(list_checkpoints(self.run_dir)):  # rotation takes the oldest first
                if not self._finished(f"step-{step}") and _complete(checkpoint):
                    self._keep(step, checkpoint)

    def _keep(self, step: int, checkpoint: Path) -> None:
        try:
            keep(checkpoint, self.place / KEPT / f"step-{step}")
            self.gone.discard(step)
        except CheckpointGone as error:
            if not self._finished(f"step-{step}") and not (self.place / KEPT / f"step-{step}").is_dir():
                self.gone.add(step)
                self._say_once(f"step-{step} cannot be measured: {error}")
        except OSError as error:
            self._say_once(f"step-{step} is measured where it lies, as it could not be kept ({error})")

    def targets(self) -> list[Target]:
        """What is measured or could be, in step order."""
        steps = {step for step, _ in kept_checkpoints(self.place / KEPT)}
        steps |= {step for step, folder in numbered(self.place, "step") if self._finished(folder.name)}
        steps |= {step for step, checkpoint in list_checkpoints(self.run_dir) if _complete(checkpoint)}
        return [Target(0, "base"), *(Target(step, f"step-{step}") for step in sorted(steps))]

    def state(self, target: Target) -> str:
        """Where a target stands, in words."""
        if self._finished(target.name):
            return "measured"
        holder = self.claims.holder(target.name)
        return f"being measured by {holder}" if holder else "to measure"

    def _open(self, target: Target) -> bool:
        return target.name not in self.failed and not self._finished(target.name)

    def _finished(self, name: str) -> bool:
        return (self.place / name / "results.json").is_file()

    def _measure_one(self, left: Sequence[Target]) -> bool:
        """Measures the first that no other process holds; False where there is none."""
        for target in left:
            claim = self.claims.take(target.name)
            if claim is None:
                continue
            with claim, _Repeat(self.keep_new, self.poll_s):
                if self._open(target):
                    self._measure(target, claim)
            return True
        return False

    def _measure(self, target: Target, claim: Claim) -> None:
        from probe.local import measure_folder

        say(f"measures {target.name}")
        try:
            measure_folder(
                self._model(target),
                self.probe,
                self.sets,
                self.place / target.name,
                target.name,
                self.device,
                step=target.step,
                wrap=lambda engine: CheckedEngine(engine, claim.check),
            )
            claim.check()
        except ClaimLost as error:
            say(f"leaves {error}")
            return
        except Exception as error:  # noqa: BLE001 - whatever is wrong with one checkpoint must not stop the others
            reason = str(error) if isinstance(error, NextturnError) else f"{type(error).__name__}: {error}"
            self.failed[target.name] = " ".join(reason.split())
            say(f"{target.name} failed: {self.failed[target.name]}")
            return
        self.done_here.append(target.name)
        self._compare()
        self._tell()

    def _model(self, target: Target) -> ModelFolder:
        """The base by its name, a checkpoint from what is kept of it, under the path that training gave it."""
        from probe.models import resolve

        if target.name == "base":
            return resolve(self.recipe["model"]["name"])
        own = self.recipe.get("train", {}).get("output_dir") or self.run_dir
        checkpoint = f"checkpoint-{target.step}"
        kept = self.place / KEPT / target.name
        folder = kept_model(kept if kept.is_dir() else self.run_dir / checkpoint, str(Path(own) / checkpoint))
        refuse_non_finite(folder)
        return folder

    def _compare(self) -> None:
        """Compares all finished probes, again when others were finished meanwhile: the last to write has seen all."""
        from probe.compare import compare

        before: set[Path] = set()
        while (found := set(self.place.glob("*/results.json"))) != before:
            before = found
            try:
                compare([self.run_dir], self.place / "comparison")
            except NextturnError as error:
                self._say_once(f"no comparison: {error}")

    def _tell(self) -> None:
        """Shows every finished probe in the training run's tracker, those of other watchers too, each once."""
        from probe.tracking import join_tracking, tell_probe

        if join_tracking(self.run_dir, self.recipe):
            for target in self.targets():
                if self._finished(target.name):
                    tell_probe(self.place / target.name, self.run_dir)

    def _refuse_other_settings(self) -> None:
        from probe.judges import get_judge
        from probe.questions import settings_of
        from probe.store import refuse_changes

        now = settings_of(self.probe, self.sets, get_judge(self.probe.judge, self.probe.judge_server).version)
        for name in ("base", *(folder.name for _, folder in numbered(self.place, "step"))):
            manifest = self.place / name / "manifest.json"
            if manifest.is_file():
                refuse_changes(manifest.parent, "this probe was made", read_json(manifest)["settings"], now)

    def _conclude(self) -> None:
        from probe.tracking import finish_tracking

        finish_tracking()
        failed = {name: reason for name, reason in self.failed.items() if not self._finished(name)}
        for target in self.targets():
            if self._open(target):
                say(f"{target.name} is left to {self.claims.holder(target.name) or 'a later start'}")
        gone = f"; gone before they could be kept: {', '.join(map(str, sorted(self.gone)))}" if self.gone else ""
        say(f"{len(self.done_here)} measured here, {len(failed)} failed{gone}; see {self.place}")
        if failed:
            told = "; ".join(f"{name} ({reason})" for name, reason in failed.items())
            raise NextturnError(f"not measured: {told}. The same command tries them again")

    def _say_once(self, line: str) -> None:
        if line not in self._said:
            self._said.add(line)
            say(line)


class _Repeat:
    """Calls something every so many seconds in a thread while the context lasts."""

    def __init__(self, call: Callable[[], None], seconds: float) -> None:
        self._call, self._seconds = call, seconds
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="keeps checkpoints", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *exception: object) -> None:
        self._done.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._done.wait(self._seconds):
            try:
                self._call()
            except OSError as error:  # the next round tries again
                say(f"could not look for checkpoints: {error}")


def _complete(checkpoint: Path) -> bool:
    try:
        return is_complete(checkpoint) is None
    except OSError:  # deleted while it was being looked at
        return False
