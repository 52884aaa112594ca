"""Launches that would fail late or train on the wrong device are refused in one line, before a model is loaded."""

from __future__ import annotations

from pathlib import Path

import pytest

from probe.errors import BadInput
from train.rows import as_dataset
from train.setup import check_devices


def test_more_processes_than_gpus_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    with pytest.raises(BadInput, match="8 processes were launched on this machine and 4 GPUs are usable"):
        check_devices({}, on_gpu=True, for_cpus=False, gpus=4)
    with pytest.raises(BadInput, match="no GPU is usable here .*doctor"):
        check_devices({}, on_gpu=False, for_cpus=False, gpus=0)
    check_devices({}, on_gpu=True, for_cpus=False, gpus=8)
    check_devices({}, on_gpu=False, for_cpus=True, gpus=0)


@pytest.mark.parametrize("key", ["packing", "padding_free"])
def test_packing_on_a_cpu_is_refused(key: str) -> None:
    with pytest.raises(BadInput, match="need a GPU"):
        check_devices({key: True}, on_gpu=False, for_cpus=False, gpus=0)


def test_packed_rows_keep_every_token_and_where_each_begins() -> None:
    rows = [{"input_ids": [number] * number, "labels": [-100] * number} for number in (5, 3, 4, 2)]
    packed = as_dataset(rows, packed_to=8)
    assert sorted(sum(packed["input_ids"], [])) == sorted(sum((row["input_ids"] for row in rows), []))
    assert sorted(sum(packed["seq_lengths"], [])) == [2, 3, 4, 5]
    assert all(
        len(ids) <= 8 and len(ids) == len(labels)
        for ids, labels in zip(packed["input_ids"], packed["labels"], strict=True)
    )


def test_the_slurm_script_is_sound_shell() -> None:
    import subprocess

    recipes = Path(__file__).resolve().parent.parent / "recipes"
    for script in ("slurm.sh", "gpu_check.sh"):
        subprocess.run(["bash", "-n", str(recipes / script)], check=True)
