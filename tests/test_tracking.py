"""Every probe figure reaches the tracker, late and out of order too; no tracker can stop a run or learn a secret."""

from __future__ import annotations

import importlib.util
import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from probe.errors import BadInput
from probe.figures import SAMPLE_COLUMNS, SAMPLE_ROWS
from probe.tiny import build_tiny_llama
from probe.tracking import (
    TrackingSection,
    flatten,
    label_rows,
    log_probe,
    report_to,
    sample_rows,
    start_tracking,
    without_secrets,
)
from train import tracking


def results(step: int | None, rate: float = 0.25) -> dict[str, Any]:
    interval = {"value": 0.5, "ci95": [0.4, 0.6]}
    cell = {"n_total": 4, "n_judged": 3, "rate": rate, "ci95": [0.1, 0.5], "labels": {"genuine_followup": 1}}
    cell |= {"unscored": {"timeout": 1}, "role_consistency": 0.75, "specificity": None, "grounding": interval}
    return {
        "schema": 1,
        "model": {"step": step, "label": "x"},
        "accuracy": {"gsm8k": {"n": 4, "strict": interval, "lenient": interval, "outcomes": {"answered": 3}}},
        "clarify": {
            "pairs": {"n": 9, "ask_when_needed": interval, "answer_when_complete": {"value": None, "ci95": None}}
        },
        "followup": {"v1.5": {"none": {"T=0.0": cell, "T=0.7": {**cell, "rate": None, "ci95": None}}}},
    }


SAMPLES = [
    {"kind": "followup", "set": "v1.5", "item": str(i), "messages": [{"role": "user", "content": f"q{i}"}]}
    for i in range(450)
]


@pytest.fixture(autouse=True)
def no_account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine where nobody is logged in, and a process in which no run is open before or after."""
    import wandb

    for name in ("WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE", "WANDB_MODE", "WANDB_DIR", "RANK"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "no-netrc"))
    monkeypatch.setenv("WANDB_CONFIG_DIR", str(tmp_path / "wandb-config"))
    wandb.finish()
    yield
    wandb.finish()
    tracking._tensorboard = None


def records(run_dir: Path) -> Iterator[Any]:
    """The records of a run's .wandb files: LevelDB's log format in blocks of 32 KiB behind a header of 7 bytes."""
    import wandb
    from wandb.proto.wandb_internal_pb2 import Record  # type: ignore[attr-defined]

    # finish() may return before the last block is on disk; the end of wandb's own process settles it.
    wandb.finish()
    wandb.teardown()
    for path in sorted(run_dir.glob("wandb/offline-run-*/*.wandb")):
        data, position, record = path.read_bytes(), 7, b""
        while position + 7 <= len(data):
            left = 32768 - position % 32768
            if left < 7:
                position += left
                continue
            _, length, kind = struct.unpack("<IHB", data[position : position + 7])
            record += data[position + 7 : position + 7 + length]
            position += 7 + length
            if kind in (1, 4):  # a whole record, or the last part of one
                yield Record.FromString(record)
                record = b""


def history(run_dir: Path) -> list[dict[str, Any]]:
    rows = [record.history.item for record in records(run_dir) if record.HasField("history")]
    return [{item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in row} for row in rows]


def test_flatten_gives_every_figure_with_its_bounds_and_leaves_out_what_was_not_measured() -> None:
    values = flatten(results(None))
    assert values == {
        "probe/step": 0.0,
        **{f"probe/accuracy/gsm8k/{m}{s}": v for m in ("strict", "lenient") for s, v in BOUNDS.items()},
        "probe/accuracy/gsm8k/outcomes/answered": 0.75,
        **{f"probe/clarify/pairs/ask_when_needed{s}": v for s, v in BOUNDS.items()},
        "probe/followup/v1_5/none/T=0_0/rate": 0.25,
        "probe/followup/v1_5/none/T=0_0/lo": 0.1,
        "probe/followup/v1_5/none/T=0_0/hi": 0.5,
        **{f"probe/followup/v1_5/none/T=0_{t}/judged": 0.75 for t in (0, 7)},
        **{f"probe/followup/v1_5/none/T=0_{t}/role_consistency": 0.75 for t in (0, 7)},
        **{f"probe/followup/v1_5/none/T=0_{t}/grounding{s}": v for t in (0, 7) for s, v in BOUNDS.items()},
    }
    assert flatten(results(12))["probe/step"] == 12
    assert flatten({}) == {"probe/step": 0}


BOUNDS = {"": 0.5, "_lo": 0.4, "_hi": 0.6}


def test_tables_show_unscored_turns_and_at_most_200_spread_samples() -> None:
    assert label_rows(results(6))[:2] == [
        [6, "v1.5", "none", "T=0.0", "genuine_followup", 1],
        [6, "v1.5", "none", "T=0.0", "unscored: timeout", 1],
    ]
    rows = sample_rows(SAMPLES)
    items = [row[SAMPLE_COLUMNS.index("item")] for row in rows]
    assert len(rows) <= SAMPLE_ROWS and items[:2] == ["0", "3"] and int(items[-1]) > 440
    assert rows[0][SAMPLE_COLUMNS.index("messages")] == "user: q0"
    assert len(sample_rows(SAMPLES[:SAMPLE_ROWS])) == SAMPLE_ROWS and sample_rows([]) == []


def test_out_of_order_probes_all_reach_the_run_on_their_own_axis(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import wandb

    start_tracking(TrackingSection(), tmp_path / "run", {"model": {"name": "m"}})
    assert "kept offline" in capsys.readouterr().out
    for step in (4, None, 2):
        wandb.log({"train/loss": 1.0, "train/global_step": 9})
        log_probe(results(step, rate=(step or 0) / 10), SAMPLES, tmp_path / "run")
    probes = [row for row in history(tmp_path / "run") if "probe/step" in row]
    assert [row["probe/step"] for row in probes] == [4, 0, 2]
    for row, step in zip(probes, (4, None, 2), strict=True):
        expected = flatten(results(step, rate=(step or 0) / 10))
        assert {key: row[key] for key in expected} == expected
        assert "train/global_step" not in row
    tables = list((tmp_path / "run/wandb").glob("offline-run-*/files/media/table/probe/samples*.json"))
    assert len(tables) == 3 and len(json.loads(tables[0].read_text())["data"]) == 150


def test_every_probe_figure_is_declared_by_name_on_the_probe_axis(tmp_path: Path) -> None:
    # Of `probe/*` and transformers' `*`, wandb takes whichever it meets first; only a full name settles it.
    start_tracking(TrackingSection(), tmp_path, {})
    log_probe(results(2), [], tmp_path)
    axes = {r.metric.name: r.metric.step_metric for r in records(tmp_path) if r.HasField("metric") and r.metric.name}
    figures = flatten(results(2)).keys() - {"probe/step"} | {"probe/labels", "probe/samples"}
    assert {name: axes.get(name) for name in figures} == dict.fromkeys(figures, "probe/step")


def test_trainer_joins_the_run_that_stands_and_a_resumed_run_keeps_its_id(tmp_path: Path) -> None:
    import torch
    import wandb
    from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

    section, run_dir = TrackingSection(project="p", tags=("a",), name="n"), tmp_path / "run"
    model = AutoModelForCausalLM.from_pretrained(build_tiny_llama(tmp_path / "model"))
    row = {"input_ids": torch.arange(8), "labels": torch.arange(8)}
    ids = set()
    for steps in (1, 2):
        start_tracking(section, run_dir, {})
        ids.add(tracking._wandb_run().id)
        args = TrainingArguments(
            output_dir=str(run_dir),
            max_steps=steps,
            logging_steps=1,
            save_strategy="no",
            report_to=report_to(section),
            use_cpu=True,
            disable_tqdm=True,
        )
        Trainer(model, args, train_dataset=[row] * 16).train()
        log_probe(results(steps), [], run_dir)
        wandb.finish()
    assert ids == {json.loads((run_dir / "wandb_run.json").read_text())["id"]}
    assert len(list(run_dir.glob("wandb/offline-run-*"))) == 2
    runs = [record.run for record in records(run_dir) if record.HasField("run")]
    assert {(run.project, run.display_name, run.run_id, *run.tags) for run in runs} == {("p", "n", *ids, "a")}
    rows = history(run_dir)
    assert [row["train/global_step"] for row in rows if "train/loss" in row] == [1, 1, 2]
    assert [row["probe/step"] for row in rows if "probe/step" in row] == [1, 2]


def test_wandb_that_cannot_start_or_take_figures_only_warns(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import wandb

    real = wandb.init

    def broken(**options: Any) -> Any:
        if options.get("mode") != "disabled":
            raise wandb.errors.CommError("the server\nis away")
        return real(**options)

    monkeypatch.setattr(wandb, "init", broken)
    start_tracking(TrackingSection(), tmp_path, {})
    assert "warning: wandb could not start (the server is away)" in capsys.readouterr().out
    assert tracking._wandb_run().disabled and not (tmp_path / "wandb_run.json").exists()
    log_probe(results(1), SAMPLES, tmp_path, plot=tmp_path / "no-such-plot.png")
    assert "warning: wandb did not take the probe figures" in capsys.readouterr().out


def test_none_and_other_processes_open_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import wandb

    start_tracking(TrackingSection(to="none"), tmp_path / "run", {})
    monkeypatch.setenv("RANK", "1")
    start_tracking(TrackingSection(), tmp_path / "run", {})
    log_probe(results(1), SAMPLES, tmp_path / "run")
    assert wandb.run is None and not (tmp_path / "run").exists()
    assert report_to(TrackingSection(to="none")) == [] and report_to(TrackingSection()) == ["wandb"]


def test_netrc_login_counts_for_its_own_host_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not tracking._has_wandb_login()
    (tmp_path / "no-netrc").write_text("machine wandb.example.org\n login user\n password none\n")
    assert not tracking._has_wandb_login()
    monkeypatch.setenv("WANDB_BASE_URL", "https://wandb.example.org")
    assert tracking._has_wandb_login()


def test_secrets_stay_out_of_the_config() -> None:
    recipe = {"judge": {"api_key": "s3cret", "model": "m"}, "train": {"hub_token": "s3cret", "max_answer_tokens": 5}}
    recipe["servers"] = [{"password": "s3cret", "tokens": ["a"]}]  # type: ignore[assignment]
    assert "s3cret" not in json.dumps(without_secrets(recipe))
    assert without_secrets({"max_answer_tokens": 5, "model": "m", "hub_token": None, "tags": ("a",)}) == {
        "max_answer_tokens": 5, "model": "m", "hub_token": None, "tags": ["a"],
    }  # fmt: skip


def test_tensorboard_gets_the_same_scalars_or_a_clear_refusal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    section = TrackingSection(to="tensorboard")
    monkeypatch.delenv("TENSORBOARD_LOGGING_DIR", raising=False)
    if importlib.util.find_spec("tensorboard") is None:
        with pytest.raises(BadInput, match="pip install tensorboard"):
            start_tracking(section, tmp_path / "run", {})
        assert not (tmp_path / "run").exists()
        return
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "run/tensorboard"))
    start_tracking(section, tmp_path / "run", {})
    log_probe(results(4), SAMPLES, tmp_path / "run")
    events = EventAccumulator(str(tmp_path / "run/tensorboard"))
    events.Reload()
    shown = {tag: events.Scalars(tag)[0] for tag in events.Tags()["scalars"]}
    expected = {key: value for key, value in flatten(results(4)).items() if key != "probe/step"}
    assert {tag: round(event.value, 6) for tag, event in shown.items()} == expected
    assert {event.step for event in shown.values()} == {4}
