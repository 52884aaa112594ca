"""A checkpoint is trusted only when it is whole, and a resumed run never mixes with what it left behind."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import nextturn.train.checkpoints
from nextturn.probe.checkpoints import (
    finish_run,
    finished,
    is_complete,
    list_checkpoints,
    mark_complete,
    newest_complete,
)
from nextturn.probe.errors import BadInput, DataError
from nextturn.train.checkpoints import (
    Launch,
    checkpoint_bytes,
    choose_resume,
    end_at_last_step,
    held_at_once,
    mark_checkpoints,
    order_by_epoch,
    remove_incomplete,
    saves,
    watch_line,
    without_optimizer,
)

HERE = Launch(processes=1, zero=0, per_step=8)
FILES = {"model.safetensors": 64, "trainer_state.json": 9, "global_step2/zero_rank_0.pt": 33, "empty.txt": 0}


def checkpoint(run_dir: Path, step: int, marked: bool = True, launch: Launch | None = None) -> Path:
    folder = run_dir / f"checkpoint-{step}"
    for name, size in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b'{"a": 12}' if name == "trainer_state.json" else b"x" * size)
    if marked:
        mark_complete(folder, step, vars(launch) if launch else None)
    return folder


def test_marker_lists_every_file_with_its_size_but_not_itself(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path, 2)
    (folder / ".complete.json.torn").write_text("left by a kill")
    mark_complete(folder, 2)
    assert json.loads((folder / "complete.json").read_text()) == {"schema": 1, "step": 2, "files": FILES}
    assert is_complete(folder) is None


def test_reasons_are_in_words(tmp_path: Path) -> None:
    assert is_complete(tmp_path / "nowhere") == "no such folder"
    assert "interrupted" in (is_complete(checkpoint(tmp_path, 1, marked=False)) or "")
    missing, cut, broken, listed = (checkpoint(tmp_path, step) for step in (2, 3, 4, 5))
    (missing / "global_step2/zero_rank_0.pt").unlink()
    (cut / "model.safetensors").write_bytes(b"x" * 10)
    (broken / "complete.json").write_text('{"files": ')
    (listed / "complete.json").write_text('{"schema": 1, "files": ["model.safetensors"]}')
    assert is_complete(missing) == "global_step2/zero_rank_0.pt is missing"
    assert is_complete(cut) == "model.safetensors has 10 bytes, 64 were saved"
    assert is_complete(broken) == is_complete(listed) == "its complete.json cannot be read"


def test_a_checkpoint_whose_state_is_damaged_is_skipped_for_the_one_before(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    two, state, marker = (checkpoint(tmp_path, step) for step in (2, 4, 6))
    (state / "trainer_state.json").write_bytes(b"\xff" * FILES["trainer_state.json"])
    (marker / "complete.json").write_text(json.dumps({"files": {}}))
    assert choose_resume(tmp_path, "auto", HERE) == two
    line = capsys.readouterr().out
    assert "skips checkpoint-6 (its complete.json" in line and "checkpoint-4 (its trainer_state.json" in line
    for damaged in (state, marker):
        with pytest.raises(BadInput, match="cannot be read"):
            choose_resume(tmp_path, str(damaged), HERE)
    mark_complete(two, 2, {"processes": 1})
    with pytest.raises(BadInput, match="`launch` is damaged"):
        choose_resume(tmp_path, "auto", HERE)
    (tmp_path / "finished.json").write_text("{}")
    with pytest.raises(DataError):
        finished(tmp_path)


@settings(max_examples=20)
@given(name=st.sampled_from(sorted(FILES)), size=st.integers(0, 80), seed=st.integers(0, 2**32))
def test_any_file_of_another_size_makes_it_incomplete(tmp_path: Path, name: str, size: int, seed: int) -> None:
    folder = checkpoint(tmp_path / str(random.Random(seed).random()), 7)
    (folder / name).write_bytes(b"y" * size)
    assert (is_complete(folder) is None) == (size == FILES[name])


def test_newest_complete_is_by_number_and_reports_only_newer_ones(tmp_path: Path) -> None:
    checkpoint(tmp_path, 2, marked=False)
    checkpoint(tmp_path, 9)
    ten, torn = checkpoint(tmp_path, 10), checkpoint(tmp_path, 100, marked=False)
    (tmp_path / "checkpoint-best").mkdir()
    (tmp_path / "checkpoint-300").write_text("a file")
    chosen, skipped = newest_complete(tmp_path)
    assert chosen == ten
    assert [path for path, _ in skipped] == [torn]
    assert newest_complete(tmp_path / "nowhere") == (None, [])


def test_resume_auto_says_once_what_it_takes_and_skips(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert choose_resume(tmp_path / "new", "auto", HERE) is None
    assert "starts from the beginning" in capsys.readouterr().out
    four = checkpoint(tmp_path, 4)
    checkpoint(tmp_path, 6, marked=False)
    assert choose_resume(tmp_path, "auto", HERE) == four
    line = capsys.readouterr().out
    assert line.count("\n") == 1 and f"resumes from {four}" in line and "skips checkpoint-6 (no complete.json" in line
    monkeypatch.setenv("RANK", "1")
    assert choose_resume(tmp_path, "auto", HERE) == four
    assert capsys.readouterr().out == "", "only one process speaks"


def test_resume_never_refuses_a_folder_that_holds_a_run(tmp_path: Path) -> None:
    assert choose_resume(tmp_path, "never", HERE) is None
    checkpoint(tmp_path, 2, marked=False)
    with pytest.raises(BadInput, match=r"checkpoint-2; give --resume auto, another train.output_dir, or delete it"):
        choose_resume(tmp_path, "never", HERE)


def test_resume_path_must_be_complete_and_names_one_that_is(tmp_path: Path) -> None:
    four, six = checkpoint(tmp_path, 4), checkpoint(tmp_path, 6, marked=False)
    assert choose_resume(tmp_path, str(four), HERE) == four
    for given_path in (six, tmp_path):
        with pytest.raises(BadInput, match=rf"not a complete checkpoint .*; {four} is complete"):
            choose_resume(tmp_path, str(given_path), HERE)
    with pytest.raises(BadInput, match="--resume Auto: not a complete checkpoint .no such folder.$"):
        choose_resume(tmp_path, "Auto", HERE)


def test_resume_path_must_be_of_the_run_which_looks_for_it_under_its_own_name(tmp_path: Path) -> None:
    aside = checkpoint(tmp_path, 4).rename(tmp_path / "set-aside-checkpoint-4")
    for elsewhere in (aside, checkpoint(tmp_path / "other", 4)):
        with pytest.raises(BadInput, match=rf"of this run, {tmp_path}, .* to {tmp_path}/checkpoint-4 first") as caught:
            choose_resume(tmp_path, str(elsewhere), HERE)
        assert f"--model.name {elsewhere} " in str(caught.value)
    own = aside.rename(tmp_path / "checkpoint-4")
    (tmp_path / "link").symlink_to(tmp_path)
    assert choose_resume(tmp_path, str(tmp_path / "link" / own.name), HERE) is not None


ZERO = Launch(processes=2, zero=2, per_step=8)


@pytest.mark.parametrize(
    ("then", "now", "found"),
    [
        (HERE, HERE, None),
        (ZERO, ZERO, None),
        (HERE, Launch(2, 0, 8), "saved by 1 process without DeepSpeed, and this is 2 processes without DeepSpeed: a step"),
        (ZERO, HERE, "saved by 2 processes under ZeRO-2, and this is 1 process without DeepSpeed, which its optimizer's"),
        (HERE, ZERO, "saved by 1 process without DeepSpeed, and this is 2 processes under ZeRO-2, which its optimizer's"),
        (ZERO, Launch(4, 2, 8), "and this is 4 processes under ZeRO-2, which its optimizer's state does not fit"),
        (ZERO, Launch(2, 3, 8), "and this is 2 processes under ZeRO-3, which its optimizer's state does not fit"),
        (HERE, Launch(2, 0, 16), "its steps are of 8 rows or samples .1 process without DeepSpeed., those of this launch of 16"),
    ],
)  # fmt: skip
def test_a_checkpoint_is_taken_up_where_its_optimizer_and_its_steps_fit(
    then: Launch, now: Launch, found: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = checkpoint(tmp_path, 4, launch=then)
    assert json.loads((folder / "complete.json").read_text())["launch"] == vars(then)
    for given_resume in ("auto", str(folder)):
        if found is None or found.endswith("a step"):
            assert choose_resume(tmp_path, given_resume, now) == folder
            assert re.search(found or "resumes from", capsys.readouterr().out)
        else:
            with pytest.raises(BadInput, match=found) as caught:
                choose_resume(tmp_path, given_resume, now)
            assert "\n" not in str(caught.value)
            assert ("--resume weights" in str(caught.value)) == (then.per_step == now.per_step), "a way out"
            assert ("--model.name" in str(caught.value)) == (then.per_step != now.per_step)
    if then.per_step == now.per_step:
        assert choose_resume(tmp_path, "weights", now) == folder
        assert "WITHOUT THE STATE OF THE OPTIMIZER" in capsys.readouterr().out
    else:
        with pytest.raises(BadInput, match="not be at its step"):
            choose_resume(tmp_path, "weights", now)


def test_checkpoints_of_older_runs_name_no_launch_and_weights_need_a_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="--resume weights: no complete checkpoint"):
        choose_resume(tmp_path, "weights", HERE)
    folder = checkpoint(tmp_path, 2)
    assert json.loads((folder / "complete.json").read_text()).keys() == {"schema", "step", "files"}
    assert choose_resume(tmp_path, "auto", ZERO) == choose_resume(tmp_path, "weights", ZERO) == folder


def test_incomplete_checkpoints_go_where_transformers_does_not_count_them(tmp_path: Path) -> None:
    from transformers.trainer_utils import get_last_checkpoint, rotate_checkpoints

    four = checkpoint(tmp_path, 4)
    for _ in range(2):
        checkpoint(tmp_path, 6, marked=False)
        remove_incomplete(tmp_path, choose_resume(tmp_path, "auto", HERE))
    aside = sorted(path.name for path in tmp_path.iterdir())
    assert aside == ["checkpoint-4", "set-aside-checkpoint-6", "set-aside-checkpoint-6.2"]
    assert get_last_checkpoint(tmp_path) == str(four)
    # A folder called checkpoint-6.incomplete would count here, and cost checkpoint-4 its place.
    os.utime(four, (1, 1))
    checkpoint(tmp_path, 8)
    rotate_checkpoints(str(tmp_path), save_total_limit=2, use_mtime=True)
    assert [step for step, _ in list_checkpoints(tmp_path)] == [8, 4]


def test_going_back_sets_later_checkpoints_and_probes_aside_and_takes_back_the_end(tmp_path: Path) -> None:
    two, four, six = (checkpoint(tmp_path, step) for step in (2, 4, 6))
    for name in ("base", "step-2", "step-4"):
        (tmp_path / "probe" / name).mkdir(parents=True)
    finish_run(tmp_path, 6, "0" * 64, note="kept")
    assert finished(tmp_path) == {"schema": 1, "step": 6, "recipe_sha256": "0" * 64, "note": "kept"}
    moved = remove_incomplete(tmp_path, choose_resume(tmp_path, str(two), HERE))
    assert sorted(path.name for path in moved) == [
        "set-aside-checkpoint-4",
        "set-aside-checkpoint-6",
        "set-aside-step-4",
    ]
    assert two.is_dir() and not four.exists() and not six.exists()
    assert sorted(path.name for path in (tmp_path / "probe").iterdir()) == ["base", "set-aside-step-4", "step-2"]
    assert finished(tmp_path) is None


def test_resuming_from_the_newest_moves_nothing_and_starting_over_keeps_only_the_base_probe(tmp_path: Path) -> None:
    for name in ("base", "step-2"):
        (tmp_path / "probe" / name).mkdir(parents=True)
    folder = checkpoint(tmp_path, 2)
    assert remove_incomplete(tmp_path, choose_resume(tmp_path, "auto", HERE)) == []
    (folder / "model.safetensors").unlink()
    moved = remove_incomplete(tmp_path, choose_resume(tmp_path, "auto", HERE))
    assert [path.name for path in moved] == ["set-aside-checkpoint-2", "set-aside-step-2"]
    assert remove_incomplete(tmp_path / "new") == []


@pytest.fixture
def trainer(tiny_chatml: Path, tmp_path: Path) -> Any:
    """Saves at 2, 4 and at the end, and keeps the newest two."""
    import torch
    from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

    model = AutoModelForCausalLM.from_pretrained(tiny_chatml)
    rows = [{"input_ids": torch.arange(8) + i, "labels": torch.arange(8) + i} for i in range(6)]
    args = TrainingArguments(
        output_dir=str(tmp_path / "run"),
        per_device_train_batch_size=1,
        max_steps=5,
        save_steps=2,
        save_total_limit=2,
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
    )
    trainer = Trainer(model, args, train_dataset=rows)
    mark_checkpoints(trainer)
    return trainer


def test_trainer_marks_each_checkpoint_and_keeps_its_rotation(trainer: Any, tmp_path: Path) -> None:
    trainer.train()
    assert [(step, is_complete(folder)) for step, folder in list_checkpoints(tmp_path / "run")] == [
        (5, None),
        (4, None),
    ]
    files = json.loads((tmp_path / "run/checkpoint-4/complete.json").read_text())["files"]
    parameters = sum(weight.numel() for weight in trainer.model.parameters())
    parts = checkpoint_bytes(parameters, parameters, tied=0, adapter=False, width=4, zero=0)
    assert parts["weights"] == pytest.approx(files["model.safetensors"], rel=0.05)
    assert parts["optimizer"] == pytest.approx(files["optimizer.pt"], rel=0.05)


def test_a_run_whose_checkpoints_will_not_fit_ends_before_its_first_step(
    trainer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = 12 * sum(weight.numel() for weight in trainer.model.parameters())
    monkeypatch.setattr(nextturn.train.checkpoints, "free_bytes", lambda folder: 3 * one - 1)
    with pytest.raises(
        BadInput, match=r"3 more checkpoints at once of .* GiB .weights .*, optimizer .* and the disk has"
    ):
        trainer.train()
    assert trainer.state.global_step == 0 and list_checkpoints(tmp_path / "run") == []
    # Two are there by now, which the limit keeps: one more for a while.
    for step in (1, 2):
        (tmp_path / "run" / f"checkpoint-{step}").mkdir(parents=True)
    monkeypatch.setattr(nextturn.train.checkpoints, "free_bytes", lambda folder: one - 1)
    with pytest.raises(BadInput, match="1 more checkpoints at once"):
        trainer.train()


ROWS = 16


def seen_rows(run: Path, sampling: str, resumed: str | None = None, **changes: Any) -> tuple[Any, list[list[int]]]:
    """A trainer that has trained a number for two epochs of eight steps, and the rows of each step that it took."""
    import torch
    from datasets import Dataset
    from transformers import Trainer, TrainingArguments
    from trl.trainer.utils import RepeatSampler

    class Number(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight, self.seen = torch.nn.Parameter(torch.zeros(1)), list[list[int]]()

        def forward(self, row: Any, **_: Any) -> dict[str, Any]:
            self.seen.append(sorted(row.tolist()))
            torch.rand(1)  # as dropout draws: the epochs of one start do not follow from its seed alone
            return {"loss": (self.weight * row).sum()}

    lengths = [5 + number % 7 for number in range(ROWS)]
    rows = Dataset.from_dict({"row": list(range(ROWS)), "length": lengths})
    settings = {
        "per_device_train_batch_size": 2, "num_train_epochs": 2, "save_steps": 4, "report_to": "none", "use_cpu": True,
        "disable_tqdm": True, "remove_unused_columns": False, "train_sampling_strategy": sampling, **changes,
    }  # fmt: skip
    if sampling == "prompts":
        settings["train_sampling_strategy"] = "random"
    model = Number()
    trainer = Trainer(
        model, TrainingArguments(str(run), **settings), train_dataset=rows,
        data_collator=lambda batch: {"row": torch.tensor([one["row"] for one in batch])},
    )  # fmt: skip
    if sampling == "prompts":
        trainer._get_train_sampler = lambda dataset: RepeatSampler(dataset, mini_repeat_count=1, batch_size=2, seed=3)
    order_by_epoch(trainer)
    end_at_last_step(trainer)
    trainer.train(resume_from_checkpoint=resumed and str(run / resumed))
    return trainer, model.seen


@pytest.mark.parametrize("sampling", ["group_by_length", "prompts", "random"])
def test_an_epoch_that_is_resumed_in_its_middle_takes_each_row_once(sampling: str, tmp_path: Path) -> None:
    """`prompts`: with trl's sampler for GRPO."""
    _, whole = seen_rows(tmp_path, sampling)
    assert sorted(sum(whole[:8], [])) == sorted(sum(whole[8:], [])) == list(range(ROWS))
    assert whole[:8] != whole[8:], "each epoch has an order of its own"
    assert seen_rows(tmp_path, sampling, "checkpoint-12")[1] == whole[12:]


@pytest.mark.parametrize("length", [{"max_steps": 4}, {"num_train_epochs": 1.5}])
def test_a_run_that_was_killed_after_its_last_checkpoint_takes_no_step_more(
    length: dict[str, float], tmp_path: Path
) -> None:
    trainer, seen = seen_rows(tmp_path, "random", **length)
    last = trainer.state.global_step
    assert last == trainer.state.max_steps == len(seen)
    again, seen = seen_rows(tmp_path, "random", f"checkpoint-{last}", **length)
    assert seen == [] and again.state.global_step == last


def test_checkpoints_are_counted_as_they_are_saved_and_kept() -> None:
    assert [saves("steps", 500, steps, 3) for steps in (1, 500, 501)] == [1, 1, 2], "the last step is saved as well"
    assert saves("steps", 0.5, 39, 1) == 2 and saves("epoch", 500, 1000, 2.5) == 3 and saves("no", 500, 9, 1) == 0
    assert [held_at_once(3, 0, more) for more in (1, 3, 4, 9)] == [1, 3, 4, 4]
    assert held_at_once(None, 2, 7) == 9 and held_at_once(2, 5, 1) == 5


def test_free_room_is_that_of_the_disk_that_the_folder_will_be_on(tmp_path: Path) -> None:
    assert nextturn.train.checkpoints.free_bytes(tmp_path / "not" / "there") == pytest.approx(
        shutil.disk_usage(tmp_path).free, rel=0.1
    )


def test_the_line_for_a_watcher_names_a_gpu_that_does_not_train(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    def line(gpus: int, processes: int, visible: str | None = None) -> str:
        monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
        monkeypatch.setenv("LOCAL_WORLD_SIZE", str(processes))
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible or "")
        return watch_line(Path("runs/a"))

    watched = "nextturn probe watch runs/a runs/a/recipe.json"
    assert line(0, 1).endswith(f"on another GPU or machine: {watched}")
    assert line(8, 7).endswith(f"directory: CUDA_VISIBLE_DEVICES=7 {watched}")
    assert line(4, 2, visible="3,4,6,7").endswith(f": CUDA_VISIBLE_DEVICES=6 {watched}")
    assert line(8, 8).endswith(f"on a GPU that does not train: CUDA_VISIBLE_DEVICES=<GPU> {watched}")


@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1), (2, 2)])
def test_a_schedule_goes_on_with_another_number_of_parameter_groups(tmp_path: Path, before: int, after: int) -> None:
    """ZeRO leaves out the group of weights without decay, which an adapter has none of; one process keeps it."""
    import torch
    from transformers import get_cosine_schedule_with_warmup

    def scheduler(groups: int) -> Any:
        weights = [{"params": [torch.nn.Parameter(torch.zeros(1))]} for _ in range(groups)]
        return get_cosine_schedule_with_warmup(torch.optim.AdamW(weights, lr=1e-3), 2, 10)

    saved = scheduler(before)
    for _ in range(5):
        saved.optimizer.step()
        saved.step()
    torch.save(saved.state_dict(), tmp_path / "scheduler.pt")
    state = SimpleNamespace(log_history=[], global_step=5)
    trainer = SimpleNamespace(lr_scheduler=scheduler(after), state=state, _prepare_for_training=lambda *_: "prepared")
    without_optimizer(trainer, tmp_path)
    assert trainer._prepare_for_training(10, None, "given") == "prepared"
    for _ in range(2):
        rates = {group["lr"] for group in trainer.lr_scheduler.optimizer.param_groups}
        assert rates == {saved.get_last_lr()[0]}
        for one in (saved, trainer.lr_scheduler):
            one.optimizer.step()
            one.step()
