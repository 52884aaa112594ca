"""`python -m probe watch`: measures a training run's checkpoints from another process, GPU or machine.

It needs nothing of the training process but its folder, on a shared file system where machines differ. The base model
comes first, then every complete checkpoint in step order, each exactly once, into RUN_DIR/probe/{base,step-N} as a probe
inside training would have written it; then the comparison in RUN_DIR/probe/comparison, then the tracker.

Any number of watchers share one run: `Claims` settles who measures what. A killed watcher's probe is taken up where it
stopped, by another one or by the same command again. As soon as a checkpoint is complete its model is kept for the probe
(`keep`), also while another one is being measured, so that `save_total_limit` takes nothing away; one that was gone
before is reported. A probe that fails is reported at the end and stops no other.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from probe.checkpoints import MARKER, finished, is_complete, list_checkpoints, numbered, set_aside
from probe.claims import Claim, ClaimLost, Claims
from probe.errors import BadInput, DataError, ModelError, NextturnError
from probe.files import read_json, write_json
from probe.models import ModelFolder, fingerprint, resolve
from probe.terminal import say
from probe.weights import weight_files

if TYPE_CHECKING:
    from probe.run import LoadedSet
    from probe.settings import ProbeSection

CLAIMS, KEPT = ".claims", ".kept"  # folders in RUN_DIR/probe


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run_dir", type=Path, metavar="RUN_DIR", help="the training run's folder; it may not exist yet")
    parser.add_argument(
        "recipe", type=Path, metavar="RECIPE", help="a recipe with a `probe:` section, or the run's own recipe.json"
    )
    parser.add_argument("--poll", type=float, default=10.0, metavar="SECONDS", help="how often to look (default: 10)")
    parser.add_argument("--once", action="store_true", help="measure what is there now, then end")
    parser.add_argument("--dry-run", action="store_true", help="show what would be measured, and change nothing")
    parser.add_argument("--device", help="cpu, cuda, cuda:1 (default: the first GPU, else the CPU)")


def run(args: argparse.Namespace, overrides: Sequence[str]) -> None:
    from probe.run import load_sets, work_of
    from probe.settings import load_probe_recipe

    if args.poll <= 0:
        raise BadInput(f"--poll {args.poll:g}: wanted seconds above 0")
    begun = args.run_dir / "recipe.json"  # the first thing that training writes into its folder
    own = args.recipe.resolve() == begun.resolve()
    if not own:  # a bad recipe is told before any waiting
        load_probe_recipe(args.recipe, overrides)
    if not begun.is_file() and (own or not args.dry_run):
        if args.once or args.dry_run:
            raise BadInput(f"{args.run_dir}: no training run there yet, wanted its {begun.name}")
        say(f"waits for a training run to begin in {args.run_dir}")
        while not begun.is_file():
            time.sleep(args.poll)
    probe = load_probe_recipe(args.recipe, overrides).probe
    if probe.engine == "openai":
        raise BadInput("probe.engine: openai, wanted hf or vllm: a server cannot be given each checkpoint's weights")
    sets = load_sets(probe)
    if not args.dry_run:
        Watcher(args.run_dir, probe, sets, args.device, args.poll).follow(args.once)
        return
    for loaded in sets:
        work = work_of(loaded, probe)
        print(
            f"set       {loaded.name}: {work.answers} answers, {work.user_turns} user turns, {work.tokens:,} tokens at most"
        )
    if begun.is_file():
        watcher = Watcher(args.run_dir, probe, sets)
        for step in watcher.steps():
            print(f"{_name(step):<9} {watcher.state(step)}")
    else:
        print(f"no training run in {args.run_dir} yet")
    print("nothing was written")


def command(run_dir: Path) -> str:
    """The command that watches a run with the recipe it was trained with, to be started in the same directory."""
    return shlex.join(["python", "-m", "probe", "watch", str(run_dir), str(run_dir / "recipe.json")])


class Watcher:
    """Measures the models of one training run that nobody else is measuring. A model is named by its step, the base by 0."""

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
        self.folder = run_dir / "probe"
        self.claims = claims or Claims(self.folder / CLAIMS)
        self.recipe: dict[str, Any] = read_json(run_dir / "recipe.json")
        self.measured_here = 0
        self.failed: dict[int, str] = {}
        self.gone: set[int] = set()
        self._keeping = threading.Lock()
        self._said: set[str] = set()

    def follow(self, once: bool = False) -> None:
        """Measures until the run has come to its end and nothing is left, or with `once` what is there now.

        Raises:
            SettingsChanged: the run was probed with other settings already.
            NextturnError: some probes failed; the others are done.
        """
        from probe.run import refuse_other_settings

        folders = [self.folder / "base", *(folder for _, folder in numbered(self.folder, "step"))]
        refuse_other_settings(folders, "this probe was made", self.probe, self.sets)
        self.keep_new()
        now = set(self.steps()) if once else None
        while True:
            ended = finished(self.run_dir) is not None  # before looking: what was saved last is there by then
            self.keep_new()
            left = [step for step in self.steps() if self._to_measure(step) and (now is None or step in now)]
            # The first that no other process holds is measured; then everything is looked at anew.
            if any(self._measure_unclaimed(step) for step in left):
                continue
            self._track()
            if once or (ended and not left):
                break
            self._say_once(f"waits for checkpoints in {self.run_dir}")
            time.sleep(self.poll_s)
        self._conclude()

    def steps(self) -> list[int]:
        """What is measured or could be, in order."""
        steps = {step for step, _ in numbered(self.folder / KEPT, "step")}
        steps |= {step for step, _ in numbered(self.folder, "step") if self._finished(step)}
        steps |= {step for step, checkpoint in list_checkpoints(self.run_dir) if _is_whole(checkpoint)}
        return [0, *sorted(steps)]

    def state(self, step: int) -> str:
        """Where a model stands, in words."""
        if self._finished(step):
            return "measured"
        holder = self.claims.holder(_name(step))
        return f"being measured by {holder}" if holder else "to measure"

    def keep_new(self) -> None:
        """Keeps the model of every complete checkpoint that still has to be measured; drops those that have been."""
        with self._keeping:
            for step, kept in numbered(self.folder / KEPT, "step"):
                if self._finished(step):
                    drop(kept)
            for step, checkpoint in reversed(list_checkpoints(self.run_dir)):  # rotation takes the oldest first
                if self._finished(step) or not _is_whole(checkpoint):
                    continue
                kept = self.folder / KEPT / _name(step)
                try:
                    keep(checkpoint, kept)
                    self.gone.discard(step)
                except CheckpointGone as error:
                    if not self._finished(step) and not kept.is_dir():
                        self.gone.add(step)
                        self._say_once(f"step-{step} cannot be measured: {error}")
                except OSError as error:
                    self._say_once(f"step-{step} is measured where it lies, as it could not be kept ({error})")

    def _finished(self, step: int) -> bool:
        return (self.folder / _name(step) / "results.json").is_file() and not self._of_other_weights(step)

    def _of_other_weights(self, step: int) -> bool:
        """Whether a probe's results are of weights that training has written over since, after going back.

        Weights are only read where they were saved after the results were written, and then once (`sha256_seen`).
        """
        folder, results = self.run_dir / f"checkpoint-{step}", self.folder / _name(step) / "results.json"
        kept = self.folder / KEPT / _name(step)
        try:
            marker = folder / MARKER
            saved_at = marker.stat().st_mtime_ns if marker.is_file() else _saved_at(kept)
            if step == 0 or saved_at is None or saved_at <= results.stat().st_mtime_ns:
                return False
            measured: str = read_json(results)["model"]["weights_sha256"]
            return measured != fingerprint(resolve(str(folder if marker.is_file() else kept)))
        except (NextturnError, OSError):  # deleted while it was looked at, or nothing that could be measured
            return False

    def _to_measure(self, step: int) -> bool:
        return step not in self.failed and not self._finished(step)

    def _measure_unclaimed(self, step: int) -> bool:
        """False where another process holds the step."""
        claim = self.claims.take(_name(step))
        if claim is None:
            return False
        with claim, _repeated(self.keep_new, self.poll_s):
            if self._to_measure(step):  # another one may have finished it before the claim was taken
                self._measure(step, claim)
        return True

    def _measure(self, step: int, claim: Claim) -> None:
        from probe.run import measure_folder

        name = _name(step)
        if self._of_other_weights(step):
            aside = set_aside(self.folder / name)
            say(f"moved {self.folder / name} to {aside.name} (the checkpoint has other weights by now)")
        say(f"measures {name}")
        try:
            measure_folder(
                self._model(step),
                self.probe,
                self.sets,
                self.folder / name,
                name,
                self.device,
                step=step,
                check=claim.check,
            )
            claim.check()
        except ClaimLost as error:
            say(f"leaves {error}")
            return
        except Exception as error:  # noqa: BLE001 - whatever is wrong with one checkpoint must not stop the others
            reason = str(error) if isinstance(error, NextturnError) else f"{type(error).__name__}: {error}"
            self.failed[step] = " ".join(reason.split())
            say(f"{name} failed: {self.failed[step]}")
            return
        self.measured_here += 1
        self._compare()
        self._track()

    def _model(self, step: int) -> ModelFolder:
        """The base by its name, a checkpoint from what is kept of it, under the path that training gave it."""
        if step == 0:
            return resolve(self.recipe["model"]["name"])
        kept, checkpoint = self.folder / KEPT / _name(step), f"checkpoint-{step}"
        trained_in = self.recipe.get("train", {}).get("output_dir") or self.run_dir
        found = resolve(str(kept if kept.is_dir() else self.run_dir / checkpoint))
        folder = replace(found, name=str(Path(trained_in) / checkpoint))
        refuse_non_finite(folder)
        return folder

    def _compare(self) -> None:
        """Compares all finished probes, again when others were finished meanwhile: the last to write has seen all."""
        from probe.compare import compare

        before: set[Path] = set()
        while (found := set(self.folder.glob("*/results.json"))) != before:
            before = found
            try:
                compare([self.run_dir], self.folder / "comparison")
            except NextturnError as error:
                self._say_once(f"no comparison: {error}")

    def _track(self) -> None:
        """Shows every finished probe in the training run's tracker, those of other watchers too, each once."""
        from probe.tracking import join_tracking, track_probe

        if join_tracking(self.run_dir, self.recipe):
            for step in self.steps():
                if self._finished(step):
                    track_probe(self.folder / _name(step), self.run_dir)

    def _conclude(self) -> None:
        from probe.tracking import finish_tracking

        finish_tracking()
        for step in self.steps():
            if self._to_measure(step):
                say(f"{_name(step)} is left to {self.claims.holder(_name(step)) or 'a later start'}")
        failed = [f"{_name(step)} ({reason})" for step, reason in self.failed.items() if not self._finished(step)]
        gone = f"; gone before they could be kept: {', '.join(map(str, sorted(self.gone)))}" if self.gone else ""
        say(f"{self.measured_here} measured here, {len(failed)} failed{gone}; see {self.folder}")
        if failed:
            raise NextturnError(f"not measured: {'; '.join(failed)}. The same command tries them again")

    def _say_once(self, line: str) -> None:
        if line not in self._said:
            self._said.add(line)
            say(line)


def _name(step: int) -> str:
    return f"step-{step}" if step else "base"


def _is_whole(checkpoint: Path) -> bool:
    try:
        return is_complete(checkpoint) is None
    except OSError:  # deleted while it was being looked at
        return False


@contextmanager
def _repeated(call: Callable[[], None], seconds: float) -> Iterator[None]:
    """Calls something every so many seconds in a thread while the context lasts."""
    done = threading.Event()

    def repeat() -> None:
        while not done.wait(seconds):
            try:
                call()
            except OSError as error:  # the next round tries again
                say(f"could not look for checkpoints: {error}")

    thread = threading.Thread(target=repeat, name="keeps checkpoints", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def withdraw(run_dir: Path, above: int) -> None:
    """Takes the checkpoints past step `above` from whoever measures them: training will write them again."""
    claims = Claims(run_dir / "probe" / CLAIMS)
    for name in claims.names():
        step = name.removeprefix("step-")
        if step.isdigit() and int(step) > above:
            claims.withdraw(name)
    for kept_step, kept in numbered(run_dir / "probe" / KEPT, "step"):
        if kept_step > above:
            drop(kept)


# A checkpoint's model files are kept until they are measured, whatever the trainer's rotation does meanwhile.
#
# A hard link is another name for the same file: it costs nothing while the checkpoint stands, and afterwards the size of
# the model for each checkpoint that still waits. The state of the optimizer, the schedule and the random numbers, usually
# the larger part, is not kept. Where links are impossible the files are copied.
#
# Kept files are those that complete.json lists, checked against the sizes there. They appear under their final name all
# at once, by renaming the folder, and note which saving of the checkpoint they belong to, as training that goes back to
# an earlier step writes the same checkpoint again.

_SOURCE = "kept.json"
_TRAINING_STATE = ("optimizer", "scheduler", "scaler", "rng_state", "global_step")


class CheckpointGone(NextturnError):
    """A checkpoint was deleted before it could be kept."""


def keep(checkpoint: Path, kept: Path) -> None:
    """Links a complete checkpoint's model files into the folder `kept`; nothing to do where they are kept already.

    Several processes may do this at once.

    Raises:
        CheckpointGone: it was deleted before every file was linked.
        OSError: the file system takes neither links nor copies, for instance because it is full.
    """
    try:
        saved_at = (checkpoint / MARKER).stat().st_mtime_ns
        if _saved_at(kept) == saved_at:
            return
        sizes = read_json(checkpoint / MARKER)["files"]
    except (FileNotFoundError, DataError):
        raise CheckpointGone(f"{checkpoint} was deleted before its model could be kept") from None
    kept.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(dir=kept.parent, prefix=f".{kept.name}."))
    try:
        for name, size in sizes.items():
            if not name.startswith(_TRAINING_STATE):
                _link(checkpoint / name, temporary / name, size)
        write_json(temporary / _SOURCE, {"schema": 1, "checkpoint": str(checkpoint), "saved_at_ns": saved_at})
        if kept.exists() and _saved_at(kept) != saved_at:
            shutil.rmtree(kept, ignore_errors=True)
        try:
            temporary.rename(kept)
        except OSError:
            if _saved_at(kept) != saved_at:  # else another process was faster, with the same files
                raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def drop(kept: Path) -> None:
    """Removes what is kept of a checkpoint, and what an interrupted `keep` left behind."""
    for folder in (kept, *kept.parent.glob(f".{kept.name}.*")):
        shutil.rmtree(folder, ignore_errors=True)


def _saved_at(kept: Path) -> int | None:
    try:
        return int(read_json(kept / _SOURCE)["saved_at_ns"])
    except DataError:
        return None


def _link(source: Path, target: Path, size: int) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        try:
            os.link(source, target)
        except FileNotFoundError:
            raise
        except OSError:  # another file system, or one without hard links
            shutil.copy2(source, target)
    except FileNotFoundError:
        raise CheckpointGone(f"{source.parent} was deleted before its model could be kept") from None
    if target.stat().st_size != size:
        raise CheckpointGone(f"{source} changed while it was being kept: {target.stat().st_size} bytes, saved {size}")


def refuse_non_finite(folder: ModelFolder) -> None:
    """Raises ModelError for weights that are NaN or infinite: greedy decoding would give some text all the same."""
    from safetensors import safe_open

    for path in weight_files(folder.path):
        with safe_open(path, framework="pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118 - safetensors has no other way
                tensor = tensors.get_tensor(name)
                if tensor.is_floating_point() and not tensor.float().isfinite().all():
                    raise ModelError(
                        f"{folder.name}: {name} holds NaN or infinite values; the training run went wrong before it"
                    )
