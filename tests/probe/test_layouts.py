"""The steps of other trainers are found, complete or not, also while they are written and deleted, and nothing is written there."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save, save_file

from nextturn.probe.__main__ import main
from nextturn.probe.command.errors import BadInput, NextturnError
from nextturn.probe.command.sections import ProbeSection
from nextturn.probe.models.folders import ModelFolder
from nextturn.probe.models.layouts import Step, find_steps, hold, is_marked, model_in, refuse_store, why_not
from nextturn.probe.models.weights import changes_nothing
from nextturn.probe.watch import Watcher
from support.model_parts import copy_of, lora_on

WEIGHTS = save({"model.norm.weight": np.ones(4, np.float32)})
SHARDS = {f"model-0000{n}-of-00002.safetensors": save({f"w{n}": np.ones(4, np.float32)}) for n in (1, 2)}
INDEX = {
    "model.safetensors.index.json": {"weight_map": {f"w{n}": f"model-0000{n}-of-00002.safetensors" for n in (1, 2)}}
}
CONFIG, TOKENIZER = {"config.json": {}}, {"tokenizer_config.json": {}, "tokenizer.json": {}}
WHOLE = {"model.safetensors": WEIGHTS}
LORA = {"adapter_model.safetensors": WEIGHTS, "adapter_config.json": {"base_model_name_or_path": "gone"}}
RANKS = {"model_world_size_2_rank_0.pt": b"x", "model_world_size_2_rank_1.pt": b"x"}


def under(folder: str, *files: Mapping[str, Any]) -> dict[str, Any]:
    return {f"{folder}/{name}": content for each in files for name, content in each.items()}


# What a trainer writes for step 20, in its order, and where the model lies then. Until the last file, no step is complete.
TRAINERS: dict[str, tuple[dict[str, Any], str]] = {
    "trl": (under("checkpoint-20", CONFIG, WHOLE, TOKENIZER, {"optimizer.pt": b"x", "global_step20/a.pt": b"x",
            "trainer_state.json": {}}), "checkpoint-20"),
    "trl, in shards": (under("checkpoint-20", CONFIG, SHARDS, INDEX, {"trainer_state.json": {}}), "checkpoint-20"),
    "axolotl, LoRA": ({"config.json": {}, **under("checkpoint-20", {"tokens_state.json": {}}, LORA, {"trainer_state.json": {}})},
                      "checkpoint-20"),
    "LLaMA-Factory v1": (under("checkpoint-20", under("model", {"__0_0.distcp": b"x"}), under("hf_model", CONFIG, WHOLE),
                         {"CHECKPOINT_COMPLETE": b""}), "checkpoint-20/hf_model"),
    "unsloth": (under("checkpoint-20", LORA, TOKENIZER, {"trainer_state.json": {}}), "checkpoint-20"),
    "prime-rl": ({"checkpoints/step_20/trainer/.metadata": b"x", **under("broadcasts/step_20", SHARDS, INDEX, {"STABLE": b""})},
                 "broadcasts/step_20"),
    "prime-rl 0.8": (under("weights/step_20", WHOLE, CONFIG, TOKENIZER, under("lora_adapters", LORA), {"STABLE": b""}),
                     "weights/step_20"),
    "verl": ({"latest_checkpointed_iteration.txt": b"10", **under("global_step_20/actor", RANKS),
              **under("global_step_20/actor/huggingface", TOKENIZER, CONFIG, WHOLE),
              **under("global_step_20/critic/huggingface", CONFIG, WHOLE), "latest_checkpointed_iteration.txt ": b"20"},
             "global_step_20/actor/huggingface"),
    "OpenRLHF": ({"_actor/global_step20/mp_rank_00_model_states.pt": b"x", **under("global_step20_hf", CONFIG, WHOLE)},
                 "global_step20_hf"),
    "SkyRL": ({"dumped_evals/global_step_20_evals/a.json": {}, **under("global_step_20/policy", SHARDS, INDEX)},
              "global_step_20/policy"),
    "NeMo-RL": ({**under("tmp_step_20/policy", under("weights/model/consolidated", CONFIG, SHARDS, INDEX), under("tokenizer", TOKENIZER)),
                 "tmp_step_20 ": "step_20"}, "step_20/policy/weights/model/consolidated"),
}  # fmt: skip


def write(root: Path, name: str, content: Any) -> None:
    path = root / name.strip()
    if isinstance(content, str):
        path.rename(root / content)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())


def whole(root: Path) -> list[Step]:
    return [step for step in find_steps(root) if why_not(step) is None]


@pytest.mark.parametrize("trainer", TRAINERS)
def test_a_step_is_complete_with_its_last_file_and_no_longer_when_a_file_goes(trainer: str, tmp_path: Path) -> None:
    (files, model), root = TRAINERS[trainer], tmp_path / "run"
    root.mkdir()
    for name, content in files.items():
        assert not whole(root), f"before {name}"
        if isinstance(content, bytes) and content in (WEIGHTS, *SHARDS.values()):  # as its first half is on the disk
            write(root, name, content[: len(content) // 2])
            assert not whole(root), f"half of {name}"
        write(root, name, content)
    (step,) = whole(root)
    assert step.number == 20 and model_in(step) == root / model
    assert is_marked(step) is (None if trainer in ("OpenRLHF", "SkyRL") else True)
    before = sorted((path, path.stat().st_mtime_ns) for path in root.rglob("*"))
    base = tmp_path / "base"
    for name in (*CONFIG, *TOKENIZER):
        write(base, name, {})
    held = tmp_path / "held"
    hold(step, held, ModelFolder("base", base))
    assert sorted((path, path.stat().st_mtime_ns) for path in root.rglob("*")) == before, "nothing is written there"
    for weights in (root / model).glob("*.safetensors"):
        weights.unlink()
        assert not whole(root), "the mark still stands"
    assert list(held.glob("*.safetensors")), "the trainer's deletion leaves what is held"
    shutil.rmtree(root / model)
    assert not whole(root)
    with pytest.raises(OSError):
        hold(step, held, None)


@pytest.mark.parametrize(
    ("files", "option"),
    [
        (
            {"checkpoint-5/pytorch_model_fsdp_0/a.distcp": b"x", "checkpoint-5/trainer_state.json": {}},
            "FULL_STATE_DICT",
        ),
        ({"checkpoint-5/global_step5/a.pt": b"x", "checkpoint-5/trainer_state.json": {}}, "stage3_gather_16bit"),
        ({"checkpoint-5/model/a.distcp": b"x", "checkpoint-5/CHECKPOINT_COMPLETE": b""}, "save_ckpt_as_hf"),
        (under("global_step_5/actor", RANKS, under("huggingface", CONFIG, TOKENIZER)), "hf_model"),
        (under("global_step_5/policy", RANKS, under("huggingface", CONFIG)), "hf_save_interval"),
        ({"_actor/global_step5/mp_rank_00_model_states.pt": b"x"}, "--ckpt.save_hf"),
        ({"step_5/policy/weights/model/shard-00001-model-00001-of-00001.safetensors": WEIGHTS}, "save_consolidated"),
        ({"step_5/policy/weights/iter_0000000/a.distcp": b"x"}, "convert_megatron_to_hf"),
        ({"checkpoints/step_5/trainer/.metadata": b"x"}, "convert_dcp_to_bf16"),
        ({"broadcasts/step_5/STABLE": b""}, "filesystem"),
    ],
)
def test_of_shards_alone_the_trainers_option_is_named(files: dict[str, Any], option: str, tmp_path: Path) -> None:
    for name, content in files.items():
        write(tmp_path, name, content)
    (step,) = find_steps(tmp_path)
    assert option in str(why_not(step))


def test_steps_are_ordered_by_number_and_other_folders_are_none(tmp_path: Path) -> None:
    for number in (100, 9, 10):
        write(tmp_path, f"checkpoint-{number}/trainer_state.json", {})
    for name in ("checkpoint-9/global_step9", "tmp_step_3", "old_step_3", "token_exports/step_3", "_critic/global_step3",
                 "checkpoint-7-old", ".tmp-hf-export-a/checkpoint-3", "global_step_4_evals", "iter_0000000"):  # fmt: skip
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "checkpoint-11").symlink_to(tmp_path / "checkpoint-10")
    assert [step.number for step in find_steps(tmp_path)] == [9, 10, 100]


@pytest.mark.parametrize("root", ["s3://bucket/run", "tinker://run/weights", "log"])
def test_a_store_that_is_no_folder_is_refused(root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, "log/checkpoints.jsonl", {"state_path": "tinker://run/weights/000020"})
    with pytest.raises(BadInput):
        refuse_store(Path(root))


def test_weights_of_the_base_are_recognized(tiny_chatml: Path, tmp_path: Path) -> None:
    other = copy_of(tiny_chatml, tmp_path / "other")
    assert changes_nothing(other, tiny_chatml) and not changes_nothing(other, None)
    change(other)
    assert not changes_nothing(other, tiny_chatml)
    adapter = lora_on(tiny_chatml, tmp_path / "lora")
    assert not changes_nothing(adapter, None)
    save_file({"a.lora_A.weight": np.ones(2), "a.lora_B.weight": np.zeros(2)}, adapter / "adapter_model.safetensors")
    assert changes_nothing(adapter, None)


# --- The command, on a real small model.


def change(folder: Path, by: float = 0.01) -> Path:
    from safetensors.torch import load_file
    from safetensors.torch import save_file as save_tensors

    weights = load_file(folder / "model.safetensors")
    name = sorted(weights)[0]
    save_tensors({**weights, name: weights[name] + by}, folder / "model.safetensors", {"format": "pt"})
    return folder


@pytest.fixture
def watch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr("nextturn.probe.compare.compare", lambda runs, out: None)
    monkeypatch.setattr("nextturn.probe.report.comparison.terminal_table", lambda comparison: "")
    write(tmp_path, "asked.jsonl", {"id": "a", "question": "Ann has 3 apples and eats 1. How many?", "answer": "2"})
    keys = {"temperatures": "[0.0]", "grounding": "false", "max_answer_tokens": "4", "max_user_tokens": "3"}
    options = [word for key, value in keys.items() for word in (f"--probe.{key}", value)]

    def run(root: Path, *more: str) -> list[str]:
        where = ["watch", str(root), "--set", str(tmp_path / "asked.jsonl"), "--device", "cpu", "--poll", "0.01"]
        main([*where, *more, *options])
        out = root.with_name(f"{root.name}-probe")
        found = {path.parent.name for path in out.glob("*/results.json")}
        return sorted(name for name in found if not name.startswith("set-aside"))

    return run


def test_the_command_measures_each_whole_step_once_and_names_the_others(
    watch: Any, tiny_chatml: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root, out = tmp_path / "trl", tmp_path / "trl-probe"
    for number in (9, 10, 12):
        step = copy_of(tiny_chatml, root / f"checkpoint-{number}")
        write(change(step, number) if number < 12 else step, "trainer_state.json", {})  # step 12 is the base
    write(root, "checkpoint-8/config.json", {})  # never completes
    write(root, "checkpoint-7/global_step7/a.pt", b"x")
    write(root, "checkpoint-7/trainer_state.json", {})
    before = sorted((path, path.stat().st_mtime_ns) for path in root.rglob("*"))
    watch(root, "--dry-run", "--base", str(tiny_chatml))
    assert not out.exists() and "GiB" in capsys.readouterr().out
    assert watch(root, "--until", "10", "--base", str(tiny_chatml)) == ["base", "step-10", "step-9"]
    shown = capsys.readouterr().out
    assert shown.index("measures step-9") < shown.index("measures step-10")
    assert all(part in shown for part in ("step-7", "step-8", "stage3_gather_16bit"))
    assert sorted((path, path.stat().st_mtime_ns) for path in root.rglob("*")) == before
    result = json.loads((out / "step-9" / "results.json").read_text())
    assert (result["model"]["step"], result["model"]["path"]) == (9, str(root / "checkpoint-9"))

    shutil.rmtree(root / "checkpoint-9")  # measured, so that it is no longer needed
    change(Path(shutil.copytree(tiny_chatml, root / "checkpoint-8", dirs_exist_ok=True)), 5)
    write(root, "checkpoint-8/trainer_state.json", {})  # after all
    change(root / "checkpoint-10", 1)  # by a resumed run
    assert watch(root, "--once", "--base", str(tiny_chatml)) == ["base", "step-10", "step-12", "step-8", "step-9"]
    shown = capsys.readouterr().out
    assert [line for line in shown.splitlines() if line.startswith("measures")] == [
        "measures step-8", "measures step-10", "measures step-12",
    ]  # fmt: skip
    assert "warning: step-12" in shown and (out / "set-aside-step-10").is_dir()
    assert not list((out / ".kept").iterdir())
    watch(root, "--once", "--base", str(tiny_chatml))
    assert "\nmeasures " not in capsys.readouterr().out


def test_steps_that_change_or_vanish_between_two_looks(tmp_path: Path) -> None:
    root, out = tmp_path / "run", tmp_path / "out"
    probe = ProbeSection.model_validate({"sets": {"written_pairs": {}}, "dtype": "float32"})
    watcher = Watcher(root, probe, [], "cpu", 0.0, out=out)
    for step in ("global_step1_hf", "checkpoint-2"):  # the first has no mark
        for name, content in under(step, CONFIG, TOKENIZER, WHOLE).items():
            write(root, name, content)
    watcher.keep_new()
    assert watcher.steps() == [] and watcher.left_out.keys() == {1, 2}
    write(root, "global_step1_hf/model.safetensors", WEIGHTS.replace(b"norm", b"form"))  # written again
    shutil.rmtree(root / "checkpoint-2")
    watcher.keep_new()
    assert watcher.steps() == [] and watcher.left_out.keys() == {1, 2}, "the vanished step stays named"
    watcher.keep_new()
    assert watcher.steps() == [1] and watcher.left_out.keys() == {2}
    shutil.rmtree(root / "global_step1_hf")
    watcher.keep_new()
    assert watcher.steps() == [1] and (watcher.source(1) / "model.safetensors").is_file()


@pytest.mark.parametrize("again", ["{root}", "run", ".", "../{here}/run"])
def test_weights_that_changed_are_measured_again_however_the_folder_is_named(
    again: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "run"

    def watcher(named: str) -> Watcher:
        probe = ProbeSection.model_validate({"sets": {"written_pairs": {}}, "dtype": "float32"})
        found = Watcher(Path(named), probe, [], "cpu", 0.0, out=tmp_path / "out")
        found.keep_new()
        return found

    def save(weights: bytes) -> None:
        for name, content in under("checkpoint-2", CONFIG, {"model.safetensors": weights}, TOKENIZER).items():
            write(root, name, content)
        write(root, "checkpoint-2/trainer_state.json", {})

    monkeypatch.chdir(tmp_path)
    save(WEIGHTS)
    (tmp_path / "out" / "step-2").mkdir(parents=True)
    shutil.copy(watcher("run").source(2) / "source.json", tmp_path / "out" / "step-2")
    write(tmp_path, "out/step-2/results.json", {})
    monkeypatch.chdir(root if again == "." else tmp_path)
    named = again.format(root=root, here=tmp_path.name)
    assert watcher(named).is_measured(2)
    shutil.rmtree(root / "checkpoint-2")
    save(WEIGHTS.replace(b"norm", b"form"))
    assert not watcher(named).is_measured(2) and watcher(named).steps() == [2]


@pytest.mark.parametrize("until", [15, 20])
def test_a_watch_ends_if_a_later_step_was_measured_before(until: int, tmp_path: Path) -> None:
    write(tmp_path, "out/step-20/results.json", {})
    probe = ProbeSection.model_validate({"sets": {"written_pairs": {}}, "dtype": "float32"})
    (tmp_path / "run").mkdir()
    watcher = Watcher(tmp_path / "run", probe, [], "cpu", 0.0, until, tmp_path / "out")
    watcher.keep_new()
    assert watcher._has_ended() and watcher.steps() == [step for step in [20] if step <= until]
    assert not Watcher(tmp_path / "run", probe, [], "cpu", 0.0, 21, tmp_path / "out")._has_ended()


def test_a_step_takes_from_the_base_what_it_lacks(watch: Any, tiny_chatml: Path, tmp_path: Path) -> None:
    root = tmp_path / "prime"
    step = change(copy_of(tiny_chatml, root / "broadcasts" / "step_3"))
    for path in step.iterdir():
        if path.suffix != ".safetensors":
            path.unlink()
    write(step, "STABLE", b"")
    adapter = lora_on(tiny_chatml, root / "broadcasts" / "step_4", "unsloth/on-another-machine")
    write(adapter, "STABLE", b"")
    with pytest.raises(NextturnError, match="--base MODEL"):
        watch(root, "--once")
    assert watch(root, "--once", "--base", str(tiny_chatml)) == ["base", "step-3", "step-4"]
    assert json.loads((adapter / "adapter_config.json").read_text())["base_model_name_or_path"].startswith("unsloth")


def test_what_cannot_be_watched_is_refused_in_one_line(watch: Any, tiny_chatml: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for root, more in (("nowhere", ()), ("empty", ()), ("empty", ("--out", str(tmp_path / "empty" / "probe")))):
        with pytest.raises(NextturnError) as refused:
            watch(tmp_path / root, "--once", *more)
        assert "\n" not in str(refused.value)
