"""SIGTERM and Ctrl-C end training after the current step, with a checkpoint that the same command resumes from."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from transformers import TrainerCallback

from nextturn.data_builders.build import build
from nextturn.data_builders.sections import load_data_recipe
from nextturn.probe.command.errors import BadInput, Interrupted, ToldToEnd, run_command
from nextturn.probe.command.files import read_json
from nextturn.probe.models.checkpoints import newest_complete
from nextturn.probe.rejudge import rejudge
from nextturn.train import guards
from nextturn.train.export import export
from nextturn.train.sections import LOADERS
from nextturn.train.sft import main, train
from support.commands import ROOT, start
from support.launches import Launched, history
from support.model_parts import lora_on
from support.page_runs import probe_run
from support.sft_parts import sigterm_in, write_data, write_recipe

RARELY = {"save_steps": 100, "max_steps": 4}  # without a signal, only the last step is saved


def test_a_run_that_gets_sigterm_resumes(tiny_chatml: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A run that gets SIGTERM resumes to the figures of one that gets it in its last step, and so finishes."""
    data = {"path": str(write_data(tmp_path))}
    for name in ("whole", "ended"):
        (tmp_path / name).mkdir()
    whole = write_recipe(tmp_path / "whole", tiny_chatml, data, RARELY, {"when": "never"})
    train(LOADERS["sft"](whole, []), callbacks=[sigterm_in(4)])
    assert (tmp_path / "whole" / "run" / "finished.json").is_file(), "the last step is the end all the same"
    ended = write_recipe(tmp_path / "ended", tiny_chatml, data, RARELY, {"temperatures": [0.0]})

    before, run = signal.getsignal(signal.SIGTERM), tmp_path / "ended" / "run"
    with pytest.raises(ToldToEnd, match="checkpoint-2") as error:
        train(LOADERS["sft"](ended, []), callbacks=[sigterm_in(2)])
    assert error.value.exit_code == 143 and signal.getsignal(signal.SIGTERM) is before
    assert newest_complete(run) == (run / "checkpoint-2", []) and not (run / "finished.json").exists()
    assert not (run / "README.md").exists(), "trl's card names no base, and the run's own is written at its end"
    assert not (run / "probe" / "step-2").exists(), "there are seconds left, and a probe takes minutes"

    capsys.readouterr()
    assert run_command(main, [str(ended)]) == 0
    assert f"resumes from {run / 'checkpoint-2'}" in capsys.readouterr().out
    assert (run / "probe" / "step-2" / "results.json").is_file(), "every checkpoint is measured"
    ours, theirs = history(run / "checkpoint-4"), history(tmp_path / "whole" / "run" / "checkpoint-4")
    assert [row["loss"] for row in ours] == [row["loss"] for row in theirs]


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """Ctrl-C as in a terminal: a suite that was started in the background ignores it, and so do its runs."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_the_first_ctrl_c_saves_and_the_second_ends_at_once(ctrl_c: None, tiny_chatml: Path, tmp_path: Path) -> None:
    data, before = {"path": str(write_data(tmp_path))}, signal.getsignal(signal.SIGINT)
    recipe = write_recipe(tmp_path, tiny_chatml, data, RARELY, {"when": "never"})
    with pytest.raises(Interrupted, match="checkpoint-2") as error:
        train(LOADERS["sft"](recipe, []), callbacks=[sigterm_in(2, number=signal.SIGINT)])
    assert error.value.exit_code == 130 and signal.getsignal(signal.SIGINT) is before
    assert newest_complete(tmp_path / "run") == (tmp_path / "run" / "checkpoint-2", [])

    class Impatient(TrainerCallback):  # type: ignore[misc]
        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(2 * guards.SAME_CTRL_C_S)
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(guards, "SAME_CTRL_C_S", 0.05)
        with pytest.raises(KeyboardInterrupt):
            train(LOADERS["sft"](recipe, []), callbacks=[Impatient()])
    assert newest_complete(tmp_path / "run") == (tmp_path / "run" / "checkpoint-2", [])
    train(LOADERS["sft"](recipe, []))
    assert (tmp_path / "run" / "finished.json").is_file()


def test_a_signal_while_the_processes_agree_counts_at_the_next_step() -> None:
    class Accelerator:
        num_processes, device = 2, "cpu"

        def reduce(self, got: Any, reduction: str) -> Any:
            stops._note(signal.SIGTERM, None)  # after this process has said that it got nothing
            return got

    stops = guards.StopsOnSignal(SimpleNamespace(accelerator=Accelerator()))
    state = SimpleNamespace(global_step=1, max_steps=9)
    control = SimpleNamespace(should_save=False, should_evaluate=True)
    stops.on_step_end(None, state, control)
    assert not control.should_save
    stops.on_step_end(None, state, control)
    assert control.should_save


@contextmanager
def held(lock: Path) -> Iterator[int]:
    """Let another process hold a lock, and give its id."""
    hold = "import sys, pathlib, nextturn.probe.command.files as f\nwith f.only_process(pathlib.Path(sys.argv[1]), 'works'):\n print(flush=True); input()"
    other = subprocess.Popen([sys.executable, "-c", hold, str(lock)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert other.stdout and other.stdout.readline()
        yield other.pid
    finally:
        other.communicate(b"\n")


@pytest.mark.parametrize("command", ["data", "export", "judge"])
def test_two_processes_do_not_write_one_folder(command: str, tiny_chatml: Path, tmp_path: Path) -> None:
    """The second one ends at once, and leaves what the first one is writing alone."""
    out = tmp_path / "out"
    small = ["--written", "null", "--source.n", "3", "--replay.fraction", "0"]
    adapter = lora_on(tiny_chatml, tmp_path / "adapter")
    write, lock, unfinished = {
        "data": (lambda: build(load_data_recipe(ROOT / "tests/demo.yaml", small), out), out / ".work/lock", out / ".a.jsonl.abcd1234"),
        "export": (lambda: export(str(adapter), out), tmp_path / ".out.lock", tmp_path / ".out.making-abcd"),
        "judge": (lambda: rejudge(probe_run(out, "step-4", 4, 0.5, n=4), None), out / ".lock", out / ".a.json.abcd1234"),
    }[command]  # fmt: skip
    with held(lock) as pid:
        unfinished.mkdir() if command == "export" else unfinished.touch()
        with pytest.raises(BadInput, match=f"process {pid} "):
            write()
        assert unfinished.exists()
    if command != "judge":  # its test is tests/probe/test_rejudge.py
        write()
        assert any((out / name).is_file() for name in ("manifest.json", "export.json"))


def test_two_trainings_do_not_share_a_folder(tiny_chatml: Path, tmp_path: Path) -> None:
    data = {"path": str(write_data(tmp_path))}
    recipe = write_recipe(tmp_path, tiny_chatml, data, {"max_steps": 1}, {"when": "never"})
    with held(tmp_path / "run" / ".lock") as pid, pytest.raises(BadInput, match=f"process {pid} "):
        train(LOADERS["sft"](recipe, []))
    (left := tmp_path / "run" / ".recipe.json.ab12_xyz").touch()  # by a kill
    train(LOADERS["sft"](recipe, []))
    assert (tmp_path / "run" / "finished.json").is_file() and not left.exists()


def test_a_probe_that_gets_sigterm_stops(tiny_chatml: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A probe that gets SIGTERM stops between batches and is resumed."""
    from nextturn.probe.engines.hf import HfEngine

    data, run = {"path": str(write_data(tmp_path))}, tmp_path / "run"
    recipe = write_recipe(tmp_path, tiny_chatml, data, probe={"temperatures": [0.0]})
    calls, stream = [], HfEngine.stream

    def signalled(self: Any, requests: Any) -> Any:
        calls.append(self)
        if (run / "checkpoint-2").exists():
            os.kill(os.getpid(), signal.SIGTERM)
        yield from stream(self, requests)

    monkeypatch.setattr(HfEngine, "stream", signalled)
    with pytest.raises(ToldToEnd, match="step 2"):
        train(LOADERS["sft"](recipe, []))
    assert len({id(engine) for engine in calls}) == 2 and calls.count(calls[-1]) == 1
    assert newest_complete(run) == (run / "checkpoint-2", [])
    assert not (run / "probe" / "step-2" / "results.json").exists()

    monkeypatch.setattr(HfEngine, "stream", stream)
    assert run_command(main, [str(recipe)]) == 0
    for step in (2, 4):
        assert (run / "probe" / f"step-{step}" / "results.json").is_file()


WITHOUT_WANDB = """
import pathlib, psutil, sys
from transformers import TrainerCallback
from nextturn.probe.command.errors import run_command
from nextturn.train.sections import LOADERS
from nextturn.train.sft import train
from support.sft_parts import sigterm_in

class EndsWandb(TrainerCallback):
    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step == 1:
            core = [child for child in psutil.Process().children(True) if child.name() == "wandb-core"]
            core[0].terminate()
            core[0].wait()

def main(argv):
    train(LOADERS["sft"](pathlib.Path(argv[0]), ["--tracking.to", "wandb"]), callbacks=[EndsWandb(), sigterm_in(3)])

sys.exit(run_command(main))
"""


def test_the_checkpoint_is_saved_though_wandbs_process_has_ended(tiny_chatml: Path, tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path, tiny_chatml, {"path": str(write_data(tmp_path))}, RARELY, {"when": "never"})
    (tmp_path / "sft.py").write_text(WITHOUT_WANDB)
    environment = {"WANDB_MODE": "offline", "TMPDIR": str(tmp_path)}
    process = start([str(tmp_path / "sft.py"), str(recipe)], environment=environment, log=tmp_path / "log")
    assert process.wait() == 143, process.output
    assert newest_complete(tmp_path / "run") == (tmp_path / "run" / "checkpoint-3", [])
    assert process.output.count("warning: wandb") == 1 and "Traceback" not in process.output


ONE_OF_TWO = """
import pathlib, sys
from nextturn.probe.command.errors import run_command
from nextturn.train.sections import LOADERS
from nextturn.train.sft import train
from support.sft_parts import sigterm_in

sys.exit(run_command(lambda argv: train(LOADERS["sft"](pathlib.Path(argv[0]), []), callbacks=[sigterm_in(2, rank=1)])))
"""


def test_all_processes_end_with_the_one_that_gets_sigterm(tiny_chatml: Path, tmp_path: Path) -> None:
    data = {"path": str(write_data(tmp_path))}
    recipe = write_recipe(tmp_path, tiny_chatml, data, {**RARELY, "use_cpu": True}, {"when": "never"})
    (tmp_path / "sft.py").write_text(ONE_OF_TWO)
    launched = Launched([tmp_path / "sft.py", recipe], None, tmp_path)
    assert launched.wait() == [143, 143], launched.output
    checkpoint = tmp_path / "run" / "checkpoint-2"
    assert newest_complete(tmp_path / "run") == (checkpoint, [])
    assert read_json(checkpoint / "complete.json")["launch"]["processes"] == 2
