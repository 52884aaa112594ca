"""`python -m probe watch`: measures a training run's checkpoints from another process, GPU or machine.

It needs nothing of the training process but its folder, on a shared file system where machines differ. The base model
comes first, then every complete checkpoint in step order, each exactly once, into RUN_DIR/probe/{base,step-N} as a probe
inside training would have written it; then the comparison in RUN_DIR/probe/comparison, then the tracker.

Any number of watchers share one run (probe/watching/claims.py says how). A killed watcher's probe is taken up where it stopped,
by another one or by the same command again. As soon as a checkpoint is complete its model is kept for the probe
(probe/watching/kept.py says what that costs), also while another one is being measured, so that `save_total_limit` takes nothing
away; one that was gone before is reported. A probe that fails is reported at the end and stops no other.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import socket
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from probe.checkpoints import MARKER, finished, is_complete, list_checkpoints, numbered
from probe.errors import BadInput, DataError, ModelError, NextturnError
from probe.files import read_json, write_json
from probe.models import ModelFolder, resolve, weight_files
from probe.terminal import say

if TYPE_CHECKING:
    from probe.run import LoadedSet
    from probe.settings import ProbeSection


# --- Which process measures which checkpoint, settled by files alone, so that it holds between machines.
#
# `flock` is not kept between machines on many shared file systems and wall clocks differ, so neither is used. A claim is
# a file NAME.K. Creating it with O_EXCL succeeds for exactly one process, on NFS too. Its owner rewrites it every BEAT_S
# seconds, each time with another number in it. An observer holds a claim for abandoned
#
# - when its content stayed the same for STALE_S seconds of the observer's *own* monotonic clock, or
# - at once, when it names this machine and a process that no longer lives.
#
# An abandoned claim K is not deleted, because a slow second observer could then delete its successor. It is succeeded by
# creating K + 1, which again exactly one process can do. An owner can only be succeeded while it stands still, for
# instance suspended with its machine. When it wakes, `check`, which is called before anything is written, looks before
# it believes: a claim not refreshed for half of STALE_S is refreshed first, and an owner that finds K + 1, or its own file
# gone (training went back to an earlier step and withdrew it), stops. Should two owners overlap by one write all the same,
# it is one of equal content, as completions are seeded.
#
# Contents are read by opening the file, never from its time of change: NFS answers `stat` from a cache for up to a minute,
# while opening asks the server. Files are removed by their owner when it is done; whoever takes a claim afterwards has to
# look whether the work is done already.

BEAT_S = 10.0
STALE_S = 60.0
# A process counts as another one with the same id when it began this much earlier or later than the claim says; wide,
# because a corrected system clock moves the time that is computed for the start of a process.
_SAME_START_S = 60.0


class ClaimLost(NextturnError):
    """Another process has taken the work over, or it was withdrawn: nothing more may be written."""


class Claims:
    """The claims in a folder as one process sees them; it remembers since when each stands still."""

    def __init__(self, folder: Path, beat_s: float = BEAT_S, stale_s: float = STALE_S) -> None:
        self.folder, self.beat_s, self.stale_s = folder, beat_s, stale_s
        self._seen: dict[Path, tuple[bytes, float]] = {}

    def take(self, name: str) -> Claim | None:
        """The claim on `name`, or None while another process holds it. Use it as a context, which refreshes it."""
        number = max(self._numbers(name), default=0)
        if number and not self._abandoned(self.folder / f"{name}.{number}"):
            return None
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            return Claim(self.folder, name, number + 1, self.beat_s, self.stale_s)
        except FileExistsError:
            return None

    def holder(self, name: str) -> str | None:
        """Who holds `name`, for messages; None where nobody does."""
        number = max(self._numbers(name), default=0)
        owner = _read(self.folder / f"{name}.{number}")[1] if number else {}
        return f"process {owner['pid']} on {owner['host']}" if owner else None

    def names(self) -> list[str]:
        """What is claimed, by whomever."""
        found = self.folder.glob("*.*") if self.folder.is_dir() else ()
        return sorted({path.name.rpartition(".")[0] for path in found})

    def withdraw(self, name: str) -> None:
        """Takes `name` away from whoever holds it; that process stops within BEAT_S."""
        for number in self._numbers(name):
            (self.folder / f"{name}.{number}").unlink(missing_ok=True)

    def _numbers(self, name: str) -> list[int]:
        if not self.folder.is_dir():
            return []
        found = (re.fullmatch(rf"{re.escape(name)}\.(\d+)", path.name) for path in self.folder.iterdir())
        return sorted(int(match[1]) for match in found if match)

    def _abandoned(self, path: Path) -> bool:
        content, owner = _read(path)
        if content is None:  # released a moment ago; the next look settles it
            return False
        if owner.get("machine") == _machine() and not _alive(owner["pid"], owner["started"]):
            return True
        before, now = self._seen.get(path), time.monotonic()
        if before is None or before[0] != content:
            self._seen[path] = (content, now)
            return False
        return now - before[1] >= self.stale_s


class Claim:
    """One claim, held. As a context it refreshes itself in a thread and is released at the end.

    Raises:
        FileExistsError: another process was first.
    """

    def __init__(self, folder: Path, name: str, number: int, beat_s: float = BEAT_S, stale_s: float = STALE_S) -> None:
        self.folder, self.name, self.number = folder, name, number
        self.beat_s, self.stale_s = beat_s, stale_s
        self.path, self.successor = folder / f"{name}.{number}", folder / f"{name}.{number + 1}"
        self._owner = {**_me(), "token": uuid.uuid4().hex}
        self._count = 0
        self._lost: str | None = None
        self._lock = threading.Lock()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._keep_beating, name=f"claim {name}", daemon=True)
        self._beaten = time.monotonic()
        with os.fdopen(os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644), "wb") as file:
            file.write(self._content())

    def __enter__(self) -> Claim:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._done.set()
        self._thread.join()
        self.release()

    def check(self) -> None:
        """Call it before anything is written.

        Raises:
            ClaimLost: the work is another process's now, or was withdrawn.
        """
        if time.monotonic() - self._beaten > self.stale_s / 2:
            self.beat()
        if self._lost is None and time.monotonic() - self._beaten > self.stale_s:
            self._lost = f"it could not be refreshed for {self.stale_s:g} s"
        if self._lost is not None:
            raise ClaimLost(f"{self.name}: the claim on it is lost: {self._lost}")

    def beat(self) -> None:
        """Refreshes the claim, unless it is lost. A file system that fails for a while is told apart by time."""
        with self._lock:
            now = time.monotonic()
            try:
                # Without creating: a withdrawn claim must not come back. And what another process has put in its
                # place must not be written over.
                with self.path.open("r+b") as file:
                    if _parse(file.read()).get("token") != self._owner["token"]:
                        self._lost = "it was withdrawn"
                        return
                    self._count += 1
                    file.seek(0)
                    file.write(self._content())
            except FileNotFoundError:
                self._lost = "it was withdrawn"
                return
            except OSError:
                return
            if self.successor.exists():
                self._lost = f"{self.successor.name} has taken over, as this process stood still"
                return
            self._beaten = now

    def release(self) -> None:
        """Removes this claim and those it succeeded; a lost one is left to its successor."""
        self.beat()
        if self._lost is None:
            for number in range(1, self.number + 1):
                (self.folder / f"{self.name}.{number}").unlink(missing_ok=True)

    def _keep_beating(self) -> None:
        while not self._done.wait(self.beat_s):
            self.beat()

    def _content(self) -> bytes:
        # The same length each time, so that rewriting it leaves nothing of the old content behind.
        return (json.dumps({**self._owner, "beat": f"{self._count:012d}"}) + "\n").encode()


def _read(path: Path) -> tuple[bytes | None, dict[str, Any]]:
    """A claim's content, None where it is gone, and its owner, empty where the content is torn or not written yet."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None, {}
    return content, _parse(content)


def _parse(content: bytes) -> dict[str, Any]:
    try:
        owner = json.loads(content)
    except ValueError:
        return {}
    return owner if isinstance(owner, dict) and {"host", "machine", "pid", "started"} <= owner.keys() else {}


def _me() -> dict[str, Any]:
    import psutil

    started = psutil.Process().create_time()
    return {"host": socket.gethostname(), "machine": _machine(), "pid": os.getpid(), "started": started}


def _machine() -> str:
    """Where a process id means the same process: containers share a host's name, but not its process ids."""
    parts = [socket.gethostname()]
    try:
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip())
        parts.append(os.readlink("/proc/self/ns/pid"))
    except OSError:  # not on Linux, or /proc is closed: the name has to do
        pass
    return " ".join(parts)


def _alive(pid: int, started: float) -> bool:
    import psutil

    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return False
        return abs(process.create_time() - started) < _SAME_START_S
    except psutil.NoSuchProcess:
        return False
    except psutil.AccessDenied:  # it is there, and somebody else's
        return True


# --- A checkpoint's model files, kept until they are measured, whatever the trainer's rotation does meanwhile.
#
# `save_total_limit` deletes old checkpoints while a probe may be reading them or before it comes to them. A hard link is
# another name for the same file: it costs nothing while the checkpoint stands, and afterwards the size of the model for
# each checkpoint that still waits. The state of the optimizer, the schedule and the random numbers, usually the larger
# part, is not kept. Where links are impossible the files are copied.
#
# Kept files are those that complete.json lists, checked against the sizes there. They appear under their final name all at
# once, by renaming the folder, and note which saving of the checkpoint they belong to, as training that goes back to an
# earlier step writes the same checkpoint again.

SOURCE = "kept.json"
_TRAINING_STATE = ("optimizer", "scheduler", "scaler", "rng_state", "global_step")


class CheckpointGone(NextturnError):
    """A checkpoint was deleted before it could be kept."""


def kept_checkpoints(place: Path) -> list[tuple[int, Path]]:
    """(step, folder) of what is kept in `place`, in step order."""
    return numbered(place, "step")[::-1]


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
        write_json(temporary / SOURCE, {"schema": 1, "checkpoint": str(checkpoint), "saved_at_ns": saved_at})
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


def kept_model(kept: Path, checkpoint: str) -> ModelFolder:
    """The model in a kept folder, under the name of the checkpoint that it is."""
    return replace(resolve(str(kept)), name=checkpoint)


def refuse_non_finite(folder: ModelFolder) -> None:
    """Raises ModelError for weights that are NaN or infinite: greedy decoding would give some text all the same."""
    for name in _non_finite(weight_files(folder.path)):
        raise ModelError(f"{folder.name}: {name} holds NaN or infinite values; the training run went wrong before it")


def _non_finite(files: Iterable[Path]) -> Iterable[str]:
    from safetensors import safe_open

    for path in files:
        with safe_open(path, framework="pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118 - safetensors has no other way
                tensor = tensors.get_tensor(name)
                if tensor.is_floating_point() and not tensor.float().isfinite().all():
                    yield name


def _saved_at(kept: Path) -> int | None:
    try:
        return int(read_json(kept / SOURCE)["saved_at_ns"])
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


# --- Measures the models of one training run that nobody else is measuring: the base first, then checkpoints by step.

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
        from probe.run import measure_folder

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
                check=claim.check,
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
        from probe.run import settings_of
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
    from probe.run import load_sets
    from probe.settings import load_probe_recipe

    if args.poll <= 0:
        raise BadInput(f"--poll {args.poll:g}: wanted seconds above 0")
    begun = args.run_dir / "recipe.json"
    own = args.recipe.resolve() == begun.resolve()
    if not own:  # a bad recipe is told before any waiting
        load_probe_recipe(args.recipe, overrides)
    if not begun.is_file() and (own or not args.dry_run):
        _wait_for(begun, args.once or args.dry_run, args.poll)
    probe = load_probe_recipe(args.recipe, overrides).probe
    if probe.engine == "openai":
        raise BadInput("probe.engine: openai, wanted hf or vllm: a server cannot be given each checkpoint's weights")
    sets = load_sets(probe)
    if args.dry_run:
        print(_describe(args.run_dir, probe, sets))
        return
    Watcher(args.run_dir, probe, sets, args.device, args.poll).follow(args.once)


def _describe(run_dir: Path, probe: ProbeSection, sets: Sequence[LoadedSet]) -> str:
    """What would be measured for each checkpoint, and what there is now."""
    from probe.run import work_of

    works = [(loaded.name, work_of(loaded, probe)) for loaded in sets]
    lines = [
        f"set       {name}: {work.answers} answers, {work.user_turns} user turns, {work.tokens:,} tokens at most"
        for name, work in works
    ]
    if (run_dir / "recipe.json").is_file():
        watcher = Watcher(run_dir, probe, sets)
        lines += [f"{target.name:<9} {watcher.state(target)}" for target in watcher.targets()]
    else:
        lines.append(f"no training run in {run_dir} yet")
    return "\n".join([*lines, "nothing was written"])


def withdraw(run_dir: Path, above: int) -> None:
    """Takes the checkpoints past step `above` from whoever measures them: training will write them again."""
    claims = Claims(run_dir / "probe" / CLAIMS)
    for name in claims.names():
        step = name.removeprefix("step-")
        if step.isdigit() and int(step) > above:
            claims.withdraw(name)
    for step_kept, kept in kept_checkpoints(run_dir / "probe" / KEPT):
        if step_kept > above:
            drop(kept)


def command(run_dir: Path) -> str:
    """The command that watches a run with the recipe it was trained with, to be started in the same directory."""
    return shlex.join(["python", "-m", "probe", "watch", str(run_dir), str(run_dir / "recipe.json")])


def _wait_for(recipe: Path, once: bool, poll_s: float) -> None:
    """Returns when training has written its recipe, the first thing in its folder."""
    if once:
        raise BadInput(f"{recipe.parent}: no training run there yet, wanted its {recipe.name}")
    say(f"waits for a training run to begin in {recipe.parent}")
    while not recipe.is_file():
        time.sleep(poll_s)
