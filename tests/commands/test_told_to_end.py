"""SIGTERM ends training after the step that is under way, with a checkpoint that the same command goes on from."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from nextturn.probe.checkpoints import newest_complete
from nextturn.probe.errors import ToldToEnd, run_command
from nextturn.probe.files import read_json
from nextturn.train.recipe import LOADERS
from nextturn.train.sft import main, train
from support.commands import start
from support.launches import Launched, history
from support.sft_parts import told_in, write_data, write_recipe

RARELY = {"save_steps": 100, "max_steps": 4}  # of itself it would save the last step alone


def test_a_run_that_is_told_to_end_goes_on_as_if_it_had_not_been(
    tiny_chatml: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = {"path": str(write_data(tmp_path))}
    for name in ("whole", "told"):
        (tmp_path / name).mkdir()
    whole, told = (write_recipe(tmp_path / name, tiny_chatml, data, RARELY) for name in ("whole", "told"))
    assert run_command(main, [str(whole)]) == 0

    before, run = signal.getsignal(signal.SIGTERM), tmp_path / "told" / "run"
    with pytest.raises(
        ToldToEnd, match=r"ended after step 2, saved as checkpoint-2; the same command goes on"
    ) as ended:
        train(LOADERS["sft"](told, []), callbacks=[told_in(2)])
    assert ended.value.exit_code == 143 and signal.getsignal(signal.SIGTERM) is before
    assert newest_complete(run) == (run / "checkpoint-2", []) and not (run / "finished.json").exists()
    assert not (run / "probe" / "step-2").exists(), "who is told to end has seconds, and a probe takes minutes"

    capsys.readouterr()
    assert run_command(main, [str(told)]) == 0
    assert f"resumes from {run / 'checkpoint-2'}" in capsys.readouterr().out
    assert (run / "probe" / "step-2" / "results.json").is_file(), "every checkpoint is measured"
    ours, theirs = history(run / "checkpoint-4"), history(tmp_path / "whole" / "run" / "checkpoint-4")
    assert [row["loss"] for row in ours] == [row["loss"] for row in theirs]


def test_a_probe_that_is_told_to_end_stops_between_batches_and_is_resumed(
    tiny_chatml: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from nextturn.probe.engines.hf import HfEngine

    recipe, run = write_recipe(tmp_path, tiny_chatml, {"path": str(write_data(tmp_path))}), tmp_path / "run"
    made, stream = [], HfEngine.stream

    def told(self: Any, requests: Any) -> Any:
        made.append(self)
        if (run / "checkpoint-2").exists():
            os.kill(os.getpid(), signal.SIGTERM)
        yield from stream(self, requests)

    monkeypatch.setattr(HfEngine, "stream", told)
    with pytest.raises(ToldToEnd, match="in the probe at step 2"):
        train(LOADERS["sft"](recipe, []))
    assert len({id(engine) for engine in made}) == 2 and len([one for one in made if one is made[-1]]) == 1
    assert (
        newest_complete(run) == (run / "checkpoint-2", []) and not (run / "probe" / "step-2" / "results.json").exists()
    )

    monkeypatch.setattr(HfEngine, "stream", stream)
    assert run_command(main, [str(recipe)]) == 0
    for step in (2, 4):
        assert (run / "probe" / f"step-{step}" / "results.json").is_file()


def test_in_its_last_step_it_finishes(tiny_chatml: Path, tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path, tiny_chatml, {"path": str(write_data(tmp_path))}, RARELY, {"when": "never"})
    train(LOADERS["sft"](recipe, []), callbacks=[told_in(4)])
    assert (tmp_path / "run" / "finished.json").is_file()


WITHOUT_WANDB = """
import pathlib, psutil, sys
from transformers import TrainerCallback
from nextturn.probe.errors import run_command
from support.sft_parts import told_in
from nextturn.train.recipe import LOADERS
from nextturn.train.sft import train

class EndsWandb(TrainerCallback):
    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step == 1:
            core = [child for child in psutil.Process().children(True) if child.name() == "wandb-core"]
            core[0].terminate()
            core[0].wait()

def main(argv):
    callbacks = [EndsWandb(), told_in(3)]
    train(LOADERS["sft"](pathlib.Path(argv[0]), ["--tracking.to", "wandb"]), callbacks=callbacks)

sys.exit(run_command(main))
"""


def test_the_checkpoint_is_saved_though_wandb_is_gone(tiny_chatml: Path, tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path, tiny_chatml, {"path": str(write_data(tmp_path))}, RARELY, {"when": "never"})
    (tmp_path / "sft.py").write_text(WITHOUT_WANDB)
    process = start(
        [str(tmp_path / "sft.py"), str(recipe)],
        environment={"WANDB_MODE": "offline", "TMPDIR": str(tmp_path)},
        log=tmp_path / "log",
    )
    assert process.wait() == 143, process.output
    assert newest_complete(tmp_path / "run") == (tmp_path / "run" / "checkpoint-3", [])
    assert process.output.count("warning: wandb") == 1 and "Traceback" not in process.output


ONE_OF_TWO = """
import pathlib, sys
from nextturn.probe.errors import run_command
from support.sft_parts import told_in
from nextturn.train.recipe import LOADERS
from nextturn.train.sft import train

def main(argv):
    train(LOADERS["sft"](pathlib.Path(argv[0]), []), callbacks=[told_in(2, rank=1)])

sys.exit(run_command(main))
"""


def test_all_processes_end_with_the_one_that_is_told(tiny_chatml: Path, tmp_path: Path) -> None:
    data = {"path": str(write_data(tmp_path))}
    recipe = write_recipe(tmp_path, tiny_chatml, data, {**RARELY, "use_cpu": True}, {"when": "never"})
    (tmp_path / "sft.py").write_text(ONE_OF_TWO)
    launched = Launched([tmp_path / "sft.py", recipe], None, tmp_path)
    assert launched.wait() == [143, 143], launched.output
    checkpoint = tmp_path / "run" / "checkpoint-2"
    assert newest_complete(tmp_path / "run") == (checkpoint, [])
    assert read_json(checkpoint / "complete.json")["launch"]["processes"] == 2
    assert "error: SIGTERM: ended after step 2" in launched.output
