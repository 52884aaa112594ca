"""A checkpoint is trusted only when it is whole, and a resumed run never mixes with what it left behind."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from probe.checkpoints import finish_run, finished, is_complete, list_checkpoints, mark_complete, newest_complete
from probe.errors import BadInput
from train.checkpoints import choose_resume, mark_checkpoints, remove_incomplete

FILES = {"model.safetensors": 64, "trainer_state.json": 9, "global_step2/zero_rank_0.pt": 33, "empty.txt": 0}


def checkpoint(run_dir: Path, step: int, marked: bool = True) -> Path:
    folder = run_dir / f"checkpoint-{step}"
    for name, size in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"x" * size)
    if marked:
        mark_complete(folder, step)
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


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
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
    assert choose_resume(tmp_path / "new", "auto") is None
    assert "starts from the beginning" in capsys.readouterr().out
    four = checkpoint(tmp_path, 4)
    checkpoint(tmp_path, 6, marked=False)
    assert choose_resume(tmp_path, "auto") == four
    line = capsys.readouterr().out
    assert line.count("\n") == 1 and f"resumes from {four}" in line and "skips checkpoint-6 (no complete.json" in line
    monkeypatch.setenv("RANK", "1")
    assert choose_resume(tmp_path, "auto") == four
    assert capsys.readouterr().out == "", "only one process speaks"


def test_resume_never_refuses_a_folder_that_holds_a_run(tmp_path: Path) -> None:
    assert choose_resume(tmp_path, "never") is None
    checkpoint(tmp_path, 2, marked=False)
    with pytest.raises(BadInput, match=r"checkpoint-2; give --resume auto, another train.output_dir, or delete it"):
        choose_resume(tmp_path, "never")


def test_resume_path_must_be_complete_and_names_one_that_is(tmp_path: Path) -> None:
    four, six = checkpoint(tmp_path, 4), checkpoint(tmp_path, 6, marked=False)
    assert choose_resume(tmp_path, str(four)) == four
    for given_path in (six, tmp_path):
        with pytest.raises(BadInput, match=rf"not a complete checkpoint .*; {four} is complete"):
            choose_resume(tmp_path, str(given_path))
    with pytest.raises(BadInput, match="--resume Auto: not a complete checkpoint .no such folder.$"):
        choose_resume(tmp_path, "Auto")


def test_incomplete_checkpoints_go_where_transformers_does_not_count_them(tmp_path: Path) -> None:
    from transformers.trainer_utils import get_last_checkpoint, rotate_checkpoints

    four = checkpoint(tmp_path, 4)
    for _ in range(2):
        checkpoint(tmp_path, 6, marked=False)
        remove_incomplete(tmp_path, choose_resume(tmp_path, "auto"))
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
    moved = remove_incomplete(tmp_path, choose_resume(tmp_path, str(two)))
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
    assert remove_incomplete(tmp_path, choose_resume(tmp_path, "auto")) == []
    (folder / "model.safetensors").unlink()
    moved = remove_incomplete(tmp_path, choose_resume(tmp_path, "auto"))
    assert [path.name for path in moved] == ["set-aside-checkpoint-2", "set-aside-step-2"]
    assert remove_incomplete(tmp_path / "new") == []


def test_trainer_marks_each_checkpoint_and_keeps_its_rotation(tiny_chatml: Path, tmp_path: Path) -> None:
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
    trainer.train()
    # Saves at 2, 4 and at the end; a limit of two keeps the newest two.
    assert [(step, is_complete(folder)) for step, folder in list_checkpoints(tmp_path / "run")] == [
        (5, None),
        (4, None),
    ]
    assert "optimizer.pt" in json.loads((tmp_path / "run/checkpoint-4/complete.json").read_text())["files"]
