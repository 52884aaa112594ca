"""Every probe figure reaches wandb, also late and out of order; no failure of wandb stops a run; no secret is sent."""

from __future__ import annotations

import json
import re
import struct
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nextturn.probe.__main__ import main
from nextturn.probe.command.files import read_json, write_json
from nextturn.probe.command.sections import ProbeSection, TrackingSection
from nextturn.probe.report import tracking
from nextturn.probe.report.tracking import flatten, slug, start_tracking, track_probe, without_secrets
from nextturn.probe.results import Results
from nextturn.probe.watch import Watcher
from support.page_runs import probe_run

BOUNDS = {"": 0.5, "_lo": 0.4, "_hi": 0.6}


def results(step: int | None, rate: float = 0.25, **more: Any) -> dict[str, Any]:
    interval = {"value": 0.5, "ci95": [0.4, 0.6]}
    cell = {"n_total": 4, "n_judged": 3, "rate": rate, "ci95": [0.1, 0.5], "labels": {"genuine_followup": 1}}
    cell |= {"unscored": {"timeout": 1}, "role_consistency": 0.75, "specificity": None, "grounding": interval}
    return {
        "schema": 1,
        "model": {"path": "m", "step": step, "label": "x"},
        "settings": {},
        "accuracy": {"gsm8k": {"n": 4, "strict": interval, "lenient": interval, "outcomes": {"answered": 3}}},
        "clarify": {
            "pairs": {"n": 9, "ask_when_needed": interval, "answer_when_complete": {"value": None, "ci95": None}}
        },
        "followup": {"v1.5": {"none": {"T=0.0": cell, "T=0.7": {**cell, "rate": None, "ci95": None}}}},
        **more,
    }


def flat(*content: Any, **more: Any) -> dict[str, float]:
    return flatten(Results.model_validate(results(*content, **more)))


def log_probe(out: Path, step: int | None, rate: float = 0.25, plot: Path | None = None) -> None:
    out.mkdir(parents=True, exist_ok=True)
    (out / "results.json").write_text(json.dumps(results(step, rate)))
    track_probe(out, plot)


@pytest.fixture(autouse=True)
def no_account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nobody is logged in on this machine, and no run is open in this process before or after a test."""
    import wandb

    for name in ("WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE", "WANDB_MODE", "WANDB_DIR", "RANK"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "no-netrc"))
    monkeypatch.setenv("WANDB_CONFIG_DIR", str(tmp_path / "wandb-config"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # wandb keeps folders of artifacts until the process ends
    wandb.finish()
    yield
    wandb.finish()


def records(run_dir: Path) -> Iterator[Any]:
    """Yield the records of a run's .wandb files: LevelDB's log format, in blocks of 32 KiB after a header of 7 bytes."""
    import wandb
    from wandb.proto.wandb_internal_pb2 import Record  # type: ignore[attr-defined]

    # finish() may return before the last block is on disk. The end of wandb's own process makes sure that it is.
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


def test_flatten_gives_every_measured_figure_with_its_bounds() -> None:
    headlines = {f"probe/accuracy{end}": value for end, value in BOUNDS.items()}
    figures = flat(None)
    for end in ("", "_lo", "_hi"):
        headlines[f"probe/follow_up{end}"] = figures[f"probe/follow_up{end}"]
    assert 0 < headlines["probe/follow_up_lo"] < headlines["probe/follow_up"] == pytest.approx(1 / 3)
    assert figures == headlines | {
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
    assert flat(12)["probe/step"] == 12


@pytest.mark.parametrize(("sets", "share"), [(1, 1.0), (4, 0.5)])
def test_the_pooled_follow_up_rate_has_the_interval_of_its_sets(sets: int, share: float) -> None:
    """Sets know which turns belong to one item; four equal sets halve the interval of one of them."""
    cell = {
        "n_total": 40,
        "n_judged": 40,
        "rate": 0.25,
        "ci95": [0.05, 0.55],
        "labels": {"genuine_followup": 10},
        "unscored": {},
    }
    figures = flat(None, followup={str(number): {"none": {"T=0.7": cell}} for number in range(sets)})
    found = [figures[f"probe/follow_up{end}"] for end in ("", "_lo", "_hi")]
    assert found == pytest.approx([0.25, 0.25 - 0.2 * share, 0.25 + 0.3 * share])
    few = flat(None, followup={"one": {"none": {"T=0.7": {**cell, "ci95": None}}}})
    assert few["probe/follow_up"] == 0.25 and "probe/follow_up_lo" not in few


def test_names_of_perturbed_runs_and_of_real_user_turns_are_readable_and_unique() -> None:
    assert slug("truncate(0.5)") == "truncate_0_5" and slug("none") == "none" and slug("T=0.7") == "T=0_7"
    question = slug("question(What do you think?)")
    assert re.fullmatch(r"question_What_do_you_think_[0-9a-f]{4}", question)
    assert len({question, slug("question(What do you think!)"), slug("question(What/do.you think?)")}) == 3
    assert len(slug("question(" + "why " * 100 + ")")) <= 45
    cell = results(None)["followup"]["v1.5"]["none"]["T=0.0"]
    changed = {**cell, "changed_text": {"value": 0.5, "ci95": [0.4, 0.6]}}
    perturbed = {"v1.5": {"question(What do you think?)": {"T=0.0": changed}}}
    values = flat(None, followup=perturbed, actual={"talks": cell})
    assert values[f"probe/followup/v1_5/{question}/T=0_0/changed_text_hi"] == 0.6
    assert values["probe/actual/talks/rate"] == 0.25 and values["probe/actual/talks/grounding"] == 0.5
    assert all(re.fullmatch(r"[A-Za-z0-9_=/-]+", name) for name in values)


def test_probes_in_any_order_reach_the_run_and_each_figure_is_declared_by_its_full_name(tmp_path: Path) -> None:
    """Of `probe/*` and transformers' `*`, wandb uses the first that matches. Only a full name settles the axis."""
    import wandb

    run_dir = tmp_path / "run"
    start_tracking(TrackingSection(), run_dir, {"model": {"name": "m"}})
    for step in (4, None, 2):
        wandb.log({"train/loss": 1.0, "train/global_step": 9})
        log_probe(run_dir / "probe" / f"step-{step}", step, (step or 0) / 10)
    everything = list(records(run_dir))
    axes = {r.metric.name: r.metric.step_metric for r in everything if r.HasField("metric") and r.metric.name}
    figures = flat(2).keys() - {"probe/step"}
    assert {name: axes.get(name) for name in figures} == dict.fromkeys(figures, "probe/step")
    probes = [row for row in history(run_dir) if "probe/step" in row]
    assert [row["probe/step"] for row in probes] == [4, 0, 2]
    for row, step in zip(probes, (4, None, 2), strict=True):
        expected = flat(step, (step or 0) / 10)
        assert {key: row[key] for key in expected} == expected
        assert "train/global_step" not in row


def test_the_trainer_joins_the_open_run_and_a_resumed_run_keeps_its_id(tiny_chatml: Path, tmp_path: Path) -> None:
    import torch
    import wandb
    from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

    section, run_dir = TrackingSection(project="p", name="n"), tmp_path / "run"
    model = AutoModelForCausalLM.from_pretrained(tiny_chatml)
    row = {"input_ids": torch.arange(8), "labels": torch.arange(8)}
    ids = set()
    for steps in (1, 2):
        start_tracking(section, run_dir, {})
        ids.add(tracking.current_run().id)
        args = TrainingArguments(
            output_dir=str(run_dir), max_steps=steps, logging_steps=1, save_strategy="no", report_to=section.to,
            use_cpu=True, disable_tqdm=True,
        )  # fmt: skip
        Trainer(model, args, train_dataset=[row] * 16).train()
        log_probe(run_dir / "probe" / f"step-{steps}", steps)
        wandb.finish()
    assert ids == {json.loads((run_dir / "wandb_run.json").read_text())["id"]}
    assert len(list(run_dir.glob("wandb/offline-run-*"))) == 2
    runs = [record.run for record in records(run_dir) if record.HasField("run")]
    assert {(run.project, run.display_name, run.run_id) for run in runs} == {("p", "n", *ids)}
    rows = history(run_dir)
    assert [row["train/global_step"] for row in rows if "train/loss" in row] == [1, 1, 2]
    assert [row["probe/step"] for row in rows if "probe/step" in row] == [1, 2]


def test_a_watcher_shows_each_probe_once_in_a_run_of_its_own(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    recipe = {"model": {"name": "m", "dtype": "float32"}, "tracking": {"to": "wandb", "project": "p", "group": "g"}}
    write_json(run_dir / "recipe.json", recipe)
    for step in (0, 2):
        log_probe(run_dir / "probe" / (f"step-{step}" if step else "base"), step)
    probe = ProbeSection.model_validate({"sets": {"written_pairs": {}}})
    for _ in range(2):
        Watcher(run_dir, probe, [], None, 0).follow(once=True)
    runs = [record.run for record in records(run_dir / "probe") if record.HasField("run")]
    assert {(run.project, run.run_group, run.display_name, run.job_type) for run in runs} == {
        ("p", "g", "run-probe", "probe")
    }
    assert {run.run_id for run in runs} == {read_json(run_dir / "probe" / "wandb_run.json")["id"]}
    assert [row["probe/step"] for row in history(run_dir / "probe") if "probe/step" in row] == [0, 2]


def test_a_probe_run_is_reported_once_as_a_run_of_its_own_in_the_group(tmp_path: Path) -> None:
    log_probe(tmp_path, None)
    for _ in range(2):
        tracking.report_run(TrackingSection(group="qwen2b"), tmp_path, {})
    tracking.report_run(TrackingSection(to="none"), tmp_path / "nowhere", {})
    runs = [record.run for record in records(tmp_path) if record.HasField("run")]
    assert {(run.run_group, run.job_type) for run in runs} == {("qwen2b", "probe")}
    assert [row["probe/step"] for row in history(tmp_path)] == [0]


def test_wandb_that_cannot_start_only_warns_and_stays_disabled(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import wandb

    init = wandb.init

    def broken(**options: Any) -> Any:
        if options.get("mode") != "disabled":
            raise wandb.errors.CommError("the server\nis away")
        return init(**options)

    monkeypatch.setattr(wandb, "init", broken)
    start_tracking(TrackingSection(), tmp_path, {})
    assert capsys.readouterr().out.count("warning: wandb could not start (the server is away)") == 1
    assert tracking.current_run().disabled and not (tmp_path / "wandb_run.json").exists()


def test_figures_are_sent_if_the_plot_cannot_be(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    start_tracking(TrackingSection(), tmp_path, {})
    (tmp_path / "plot.png").write_text("no picture")
    log_probe(tmp_path / "probe" / "step-4", 4, plot=tmp_path / "plot.png")
    assert "warning: wandb did not take" in capsys.readouterr().out
    (row,) = [row for row in history(tmp_path) if "probe/step" in row]
    assert row["probe/accuracy/gsm8k/strict"] == 0.5


def test_without_wandb_in_the_recipe_and_on_other_processes_nothing_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import wandb

    for name in ("none", "tensorboard"):
        start_tracking(TrackingSection(to=name), tmp_path / "run", {})
    monkeypatch.setenv("RANK", "1")
    start_tracking(TrackingSection(), tmp_path / "run", {})
    assert wandb.run is None and not (tmp_path / "run").exists()


@pytest.mark.parametrize("outcome", [False, True, ValueError("the key is too short")])
def test_wandb_decides_whether_somebody_is_logged_in(
    outcome: bool | Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    import wandb

    def login(**options: Any) -> bool:
        assert options == {"prompt": False, "verify": False}
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    assert tracking._mode() == "offline", "wandb itself finds no credentials here"
    monkeypatch.setattr(wandb, "login", login)
    assert tracking._mode() == ("online" if outcome is True else "offline")
    monkeypatch.setenv("WANDB_MODE", "disabled")
    assert tracking._mode() == "disabled"


def test_secrets_stay_out_of_the_config() -> None:
    recipe = {"judge": {"api_key": "s3cret", "model": "m"}, "train": {"hub_token": "s3cret", "max_answer_tokens": 5}}
    recipe["servers"] = [{"password": "s3cret", "tokens": ["a"]}]  # type: ignore[assignment]
    assert "s3cret" not in json.dumps(without_secrets(recipe))
    kept = {"max_answer_tokens": 5, "model": "m", "hub_token": None, "tags": ["a"]}
    assert without_secrets({**kept, "tags": ("a",)}) == kept


def test_a_comparison_is_one_table_a_scatter_a_picture_and_the_report(tmp_path: Path) -> None:
    """Read back from the files that wandb keeps offline."""
    folders = [probe_run(tmp_path / name, name, None, genuine, 20) for name, genuine in (("base", 0.1), ("sft", 0.6))]
    main(["compare", *map(str, folders), "--out", str(tmp_path / "out"), "--wandb", "nextturn"])
    logged = [row for row in history(tmp_path / "out") if "tradeoff/runs/_type" in row or "tradeoff/runs" in row]
    text = json.dumps(logged)
    assert "table-file" in text and "image-file" in text and len(logged) == 1
    (path,) = [path for path in (tmp_path / "out" / "wandb").rglob("*.table.json") if "runs" in path.name][:1]
    table = json.loads(path.read_text())
    assert table["columns"][:3] == ["run", "step", "accuracy"] and [row[0] for row in table["data"]] == ["base", "sft"]
    follow_up = table["columns"].index("follow_up_rules_rough")
    assert table["data"][0][follow_up] < 0.3 < table["data"][1][follow_up]
    assert "report.html" in "".join(str(record) for record in records(tmp_path / "out"))
