"""Only a complete checkpoint is resumed from, and a resumed run never mixes with files that it left behind."""

from __future__ import annotations

import json
import os
import resource
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from nextturn.probe.command.errors import BadInput, DataError, TrainingStopped
from nextturn.probe.models.checkpoints import (
    finish_run,
    finished,
    list_checkpoints,
    mark_complete,
    why_incomplete,
)
from nextturn.train.resume import Launch, choose_resume, mark_checkpoints, remove_incomplete

HERE = Launch(processes=1, zero=0, per_step=8)
ZERO = Launch(processes=2, zero=2, per_step=8)
FILES = {
    "model.safetensors": 64, "trainer_state.json": 9, "global_step2/zero_rank_0.pt": 33, "scheduler.pt": 2, "empty.txt": 0,
}  # fmt: skip


def checkpoint(run_dir: Path, step: int, marked: bool = True) -> Path:
    folder = run_dir / f"checkpoint-{step}"
    for name, size in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b'{"a": 12}' if name == "trainer_state.json" else b"x" * size)
    if marked:
        mark_complete(folder, step)
    return folder


# --- Complete or not.


def test_the_marker_lists_every_file_with_its_size_but_not_itself(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path, 2)
    (folder / ".complete.json.torn").write_text("left by a kill")
    mark_complete(folder, 2)
    assert json.loads((folder / "complete.json").read_text()) == {"schema": 1, "step": 2, "files": FILES}
    assert why_incomplete(folder) is None


def test_an_incomplete_checkpoint_has_a_reason(tmp_path: Path) -> None:
    assert why_incomplete(tmp_path / "nowhere") == "no such folder"
    assert "complete.json" in (why_incomplete(checkpoint(tmp_path, 1, marked=False)) or "")
    missing, cut, longer, broken, listed = (checkpoint(tmp_path, step) for step in (2, 3, 4, 5, 6))
    (missing / "global_step2/zero_rank_0.pt").unlink()
    (cut / "model.safetensors").write_bytes(b"x" * 10)
    (longer / "empty.txt").write_bytes(b"x")
    (broken / "complete.json").write_text('{"files": ')
    (listed / "complete.json").write_text('{"schema": 1, "files": ["model.safetensors"]}')
    assert "global_step2/zero_rank_0.pt" in (why_incomplete(missing) or "")
    assert "model.safetensors has 10 bytes" in (why_incomplete(cut) or "")
    assert "empty.txt has 1 bytes" in (why_incomplete(longer) or "")
    for folder in (broken, listed):
        assert "complete.json" in (why_incomplete(folder) or "")


# --- Which checkpoint a run resumes from.


def test_auto_skips_incomplete_and_damaged_checkpoints_and_says_so_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert choose_resume(tmp_path / "new", "auto", HERE) is None
    checkpoint(tmp_path, 2, marked=False)
    nine, state, marker = (checkpoint(tmp_path, step) for step in (9, 10, 11))
    checkpoint(tmp_path, 100, marked=False)
    (tmp_path / "checkpoint-best").mkdir()
    (tmp_path / "checkpoint-300").write_text("a file")
    (state / "trainer_state.json").write_bytes(b"\xff" * FILES["trainer_state.json"])
    (marker / "complete.json").write_text(json.dumps({"files": {}}))
    capsys.readouterr()
    assert choose_resume(tmp_path, "auto", HERE) == nine
    line = capsys.readouterr().out
    assert line.count("\n") == 1 and str(nine) in line and "checkpoint-2 " not in line, "only newer ones are reported"
    assert all(f"checkpoint-{step} (" in line for step in (10, 11, 100))
    monkeypatch.setenv("RANK", "1")
    assert choose_resume(tmp_path, "auto", HERE) == nine
    assert capsys.readouterr().out == "", "only the main process prints"
    (tmp_path / "finished.json").write_text("{}")
    with pytest.raises(DataError):
        finished(tmp_path)


def test_never_refuses_a_run_directory_in_use(tmp_path: Path) -> None:
    assert choose_resume(tmp_path, "never", HERE) is None
    checkpoint(tmp_path, 2, marked=False)
    with pytest.raises(BadInput, match="checkpoint-2"):
        choose_resume(tmp_path, "never", HERE)


def test_a_path_must_be_a_complete_checkpoint_of_the_run_under_its_own_name(tmp_path: Path) -> None:
    four, six = checkpoint(tmp_path, 4), checkpoint(tmp_path, 6, marked=False)
    (tmp_path / "link").symlink_to(tmp_path)
    for path in (four, tmp_path / "link" / "checkpoint-4"):
        assert choose_resume(tmp_path, str(path), HERE) == path
    for path in (six, tmp_path):
        with pytest.raises(BadInput, match=str(four)):
            choose_resume(tmp_path, str(path), HERE)
    with pytest.raises(BadInput, match="Auto"):
        choose_resume(tmp_path, "Auto", HERE)
    for elsewhere in (four.rename(tmp_path / "set-aside-checkpoint-4"), checkpoint(tmp_path / "other", 4)):
        with pytest.raises(BadInput, match=f"{tmp_path}/checkpoint-4 .*--model.name {elsewhere} "):
            choose_resume(tmp_path, str(elsewhere), HERE)


@pytest.mark.parametrize(
    ("then", "now", "way_out"),
    [
        (ZERO, ZERO, None),
        (HERE, Launch(2, 0, 8), None),
        (ZERO, HERE, "--model.name"),
        (HERE, ZERO, "--model.name"),
        (ZERO, Launch(4, 2, 8), "--model.name"),
        (ZERO, Launch(2, 3, 8), "--model.name"),
        (HERE, Launch(2, 0, 16), "--model.name"),
    ],
)
def test_a_checkpoint_is_resumed_if_its_steps_and_its_optimizer_fit_the_launch(
    then: Launch, now: Launch, way_out: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = checkpoint(tmp_path, 4)
    assert choose_resume(tmp_path, "auto", now) == folder, "markers of older versions name no launch"
    mark_complete(folder, 4, vars(then))
    assert json.loads((folder / "complete.json").read_text())["launch"] == vars(then)
    for resume in ("auto", str(folder)):
        if way_out is None:
            capsys.readouterr()
            assert choose_resume(tmp_path, resume, now) == folder
            assert (f"saved by {then}" in capsys.readouterr().out) == (then != now)
        else:
            with pytest.raises(BadInput, match=way_out) as error:
                choose_resume(tmp_path, resume, now)
            assert str(then) in str(error.value) and str(now) in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("step", [4, 6])
def test_a_checkpoint_without_optimizer_is_resumed_only_after_the_last_step(step: int, tmp_path: Path) -> None:
    """transformers would go on with a new optimizer and a new schedule."""
    folder = checkpoint(tmp_path, step, marked=False)
    (folder / "scheduler.pt").unlink()  # a scheduler of DeepSpeed's own is in its folder
    mark_complete(folder, step, vars(HERE))
    assert choose_resume(tmp_path, "auto", HERE) == folder
    shutil.rmtree(folder / "global_step2")
    (folder / "trainer_state.json").write_text(json.dumps({"global_step": step, "max_steps": 6}))
    mark_complete(folder, step, vars(HERE))
    if step == 6:
        assert choose_resume(tmp_path, "auto", HERE) == folder
    else:
        with pytest.raises(BadInput, match="--model.name"):
            choose_resume(tmp_path, "auto", HERE)


# --- What is set aside.


def test_incomplete_checkpoints_go_where_transformers_does_not_count_them(tmp_path: Path) -> None:
    from transformers.trainer_utils import get_last_checkpoint, rotate_checkpoints

    four = checkpoint(tmp_path, 4)
    for _ in range(2):
        checkpoint(tmp_path, 6, marked=False)
        remove_incomplete(tmp_path, choose_resume(tmp_path, "auto", HERE))
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["checkpoint-4", "set-aside-checkpoint-6", "set-aside-checkpoint-6.2"]
    assert get_last_checkpoint(tmp_path) == str(four)
    # A folder called checkpoint-6.incomplete would count here, and cost checkpoint-4 its place.
    os.utime(four, (1, 1))
    checkpoint(tmp_path, 8)
    rotate_checkpoints(str(tmp_path), save_total_limit=2, use_mtime=True)
    assert [step for step, _ in list_checkpoints(tmp_path)] == [8, 4]


def test_later_checkpoints_and_probes_are_set_aside_and_the_run_is_no_longer_finished(tmp_path: Path) -> None:
    two, four, six = (checkpoint(tmp_path, step) for step in (2, 4, 6))
    for name in ("base", "step-2", "step-4"):
        (tmp_path / "probe" / name).mkdir(parents=True)
    finish_run(tmp_path, 6, "0" * 64, note="kept")
    assert finished(tmp_path) == {"schema": 1, "step": 6, "recipe_sha256": "0" * 64, "note": "kept"}
    moved = remove_incomplete(tmp_path, choose_resume(tmp_path, str(two), HERE))
    assert {path.name for path in moved} == {
        "set-aside-checkpoint-4", "set-aside-checkpoint-6", "set-aside-step-4",
    }  # fmt: skip
    assert two.is_dir() and not four.exists() and not six.exists() and finished(tmp_path) is None
    assert sorted(path.name for path in (tmp_path / "probe").iterdir()) == ["base", "set-aside-step-4", "step-2"]
    assert remove_incomplete(tmp_path, choose_resume(tmp_path, "auto", HERE)) == []
    (two / "model.safetensors").unlink()
    moved = remove_incomplete(tmp_path, choose_resume(tmp_path, "auto", HERE))
    assert {path.name for path in moved} == {"set-aside-checkpoint-2", "set-aside-step-2"}, "starting over"


# --- The trainer.


def test_each_checkpoint_is_marked_while_all_processes_wait(
    tiny_chatml: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The run saves at 2, 4 and at the end, and keeps the newest two.

    The next collective may be of DeepSpeed's own group, which waits for ten minutes at most. A disk without room for the
    next checkpoint is a warning, and after the last one there is no next.
    """
    import torch
    from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

    run, marked = tmp_path / "run", list[tuple[int, bool]]()
    model = AutoModelForCausalLM.from_pretrained(tiny_chatml)
    rows = [{"input_ids": torch.arange(8) + i, "labels": torch.arange(8) + i} for i in range(6)]
    args = TrainingArguments(
        output_dir=str(run), per_device_train_batch_size=1, max_steps=5, save_steps=2, save_total_limit=2,
        report_to="none", use_cpu=True, disable_tqdm=True,
    )  # fmt: skip
    trainer = Trainer(model, args, train_dataset=rows)
    mark_checkpoints(trainer)
    marker = run / "checkpoint-2" / "complete.json"
    monkeypatch.setattr(
        "accelerate.Accelerator.wait_for_everyone",
        lambda _: marked.append((trainer.state.global_step, marker.is_file())),
    )
    free = {"run": 2**40, "checkpoint-2": 0, "checkpoint-4": 2**40, "checkpoint-5": 0}
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=free[folder.name]))
    trainer.train()
    assert [(step, why_incomplete(folder)) for step, folder in list_checkpoints(run)] == [(5, None), (4, None)]
    assert marked[:2] == [(2, False), (2, True)]
    warnings = [line for line in capsys.readouterr().out.splitlines() if "warning" in line]
    assert len(warnings) == 1 and "checkpoint-2" in warnings[0]


ROWS = 16


def seen_rows(run: Path, sampling: str, resumed: str | None = None) -> tuple[Any, list[list[int]]]:
    """Train a number for one and a half epochs of eight steps. Return the trainer and the rows of each step."""
    import torch
    from datasets import Dataset
    from transformers import Trainer, TrainingArguments
    from trl.trainer.utils import RepeatSampler

    from nextturn.train.overrides import ResumableTrainer

    class Number(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight, self.seen = torch.nn.Parameter(torch.zeros(1)), list[list[int]]()

        def forward(self, row: Any, **_: Any) -> dict[str, Any]:
            self.seen.append(sorted(row.tolist()))
            torch.rand(1)  # as dropout draws: the epochs of one start do not follow from its seed alone
            return {"loss": (self.weight * row).sum()}

    class Sampling(Trainer):
        def _get_train_sampler(self, dataset: Any = None) -> Any:
            if sampling == "prompts":  # as trl's GRPOTrainer
                return RepeatSampler(self.train_dataset, mini_repeat_count=1, batch_size=2, seed=3)
            return super()._get_train_sampler(dataset)

    class Resumable(ResumableTrainer, Sampling):
        pass

    lengths = [5 + number % 7 for number in range(ROWS)]
    rows = Dataset.from_dict({"row": list(range(ROWS)), "length": lengths})
    settings = {
        "per_device_train_batch_size": 2, "num_train_epochs": 1.5, "save_steps": 5, "report_to": "none", "use_cpu": True,
        "disable_tqdm": True, "remove_unused_columns": False,
        "train_sampling_strategy": "random" if sampling == "prompts" else sampling,
    }  # fmt: skip
    model = Number()
    trainer = Resumable(
        model, TrainingArguments(str(run), **settings), train_dataset=rows,
        data_collator=lambda batch: {"row": torch.tensor([row["row"] for row in batch])},
    )  # fmt: skip
    trainer.train(resume_from_checkpoint=resumed and str(run / resumed))
    return trainer, model.seen


@pytest.mark.parametrize("sampling", ["group_by_length", "prompts", "random"])
def test_a_resumed_run_takes_the_rows_that_are_left_and_no_further_step(sampling: str, tmp_path: Path) -> None:
    """It was killed in the middle of its second epoch, or after its last checkpoint."""
    _, whole = seen_rows(tmp_path, sampling)
    assert sorted(sum(whole[:8], [])) == list(range(ROWS)) and len(whole) == 12
    assert whole[:4] != whole[8:], "each epoch has an order of its own"
    assert seen_rows(tmp_path, sampling, "checkpoint-10")[1] == whole[10:]
    trainer, seen = seen_rows(tmp_path, sampling, "checkpoint-12")
    assert seen == [] and trainer.state.global_step == 12


@pytest.mark.parametrize("within", ["_save", "_save_optimizer_and_scheduler"])
def test_a_full_disk_ends_training_with_the_path_of_the_checkpoint(
    within: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """safetensors and torch report it with errors of their own. A limit of 64 bytes a file stands in for the disk."""
    from transformers import Trainer

    written = getattr(Trainer, within)

    def limited(*arguments: Any) -> None:
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (64, before[1]))
        try:
            written(*arguments)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)

    monkeypatch.setattr(Trainer, within, limited)
    with pytest.raises(TrainingStopped, match="checkpoint-5"):
        seen_rows(tmp_path, "random")


def test_another_error_of_saving_is_raised_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transformers.Trainer._save", Mock(side_effect=RuntimeError("CUDA error")))
    with pytest.raises(RuntimeError, match="CUDA error"):
        seen_rows(tmp_path, "random")
