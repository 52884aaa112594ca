"""`train.push_to_hub` uploads the last checkpoint's model with our card and figures, once, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from nextturn.probe.command.errors import BadInput
from nextturn.probe.command.files import write_jsonl
from nextturn.train.push import push_run
from nextturn.train.sections import load_sft_recipe
from nextturn.train.sft import train
from support.sft_parts import write_data, write_recipe


class FakeHub:
    """Stands in for huggingface_hub.HfApi and remembers commits; `fails` lets the next ones fail."""

    def __init__(self) -> None:
        self.created: list[tuple[str, Any]] = []
        self.commits: list[dict[str, bytes]] = []
        self.branches: list[str] = []
        self.fails = False

    def __call__(self) -> FakeHub:
        return self

    def create_repo(self, name: str, private: bool | None, exist_ok: bool) -> Any:
        assert exist_ok
        self.created.append((name, private))
        return SimpleNamespace(repo_id=f"me/{name.split('/')[-1]}")

    def create_branch(self, repository: str, branch: str, exist_ok: bool) -> None:
        self.branches.append(branch)

    def list_repo_files(self, repository: str, revision: str | None) -> list[str]:
        return ["README.md", "LICENSE", "adapter_model.safetensors"]

    def create_commit(self, repository: str, operations: list[Any], commit_message: str, revision: Any) -> Any:
        if self.fails:
            raise OSError("no connection")
        assert revision == (self.branches or [None])[-1]
        self.deleted = [each.path_in_repo for each in operations if not hasattr(each, "path_or_fileobj")]
        content = {each.path_in_repo: each.path_or_fileobj for each in operations if hasattr(each, "path_or_fileobj")}
        self.commits.append(
            {name: Path(c).read_bytes() if isinstance(c, str | Path) else c for name, c in content.items()}
        )
        return SimpleNamespace(repo_url=f"https://hub.test/{repository}")


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> FakeHub:
    hub = FakeHub()
    monkeypatch.setattr("huggingface_hub.HfApi", hub)
    return hub


def test_a_finished_run_is_pushed_with_its_card_and_the_figures_of_whole_benchmarks(
    hub: FakeHub, tiny_chatml: Path, tmp_path: Path, own_cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"question": f"What is {n} + {n}?", "answer": f"#### {2 * n}"} for n in range(2, 5)]
    (own_cache / "sets").mkdir(parents=True)
    write_jsonl(own_cache / "sets" / "gsm8k.jsonl", rows)
    write_jsonl(own_cache / "sets" / "math.jsonl", [{"problem": r["question"], "solution": r["answer"]} for r in rows])
    sets = {"gsm8k": {}, "math": {"n": 2}}
    pushed = {"push_to_hub": True, "hub_model_id": "me/tutor", "hub_private_repo": True, "max_steps": 2}
    path = write_recipe(tmp_path, tiny_chatml, {"path": str(write_data(tmp_path))}, pushed, {"sets": sets})

    hub.fails = True
    with pytest.raises(BadInput, match="me/tutor"):
        train(load_sft_recipe(path), "auto")
    assert not (tmp_path / "run" / "finished.json").exists() and hub.created[0] == ("me/tutor", True)
    hub.fails = False
    train(load_sft_recipe(path), "auto")
    (files,) = hub.commits
    assert hub.deleted == ["adapter_model.safetensors"], "weights of an earlier push would be loaded instead"
    assert {"model.safetensors", "config.json", "tokenizer.json", "README.md", "recipe.json"} <= set(files)
    assert {"probe/base/results.json", "probe/step-2/results.json", "probe/comparison/tradeoff.png"} <= set(files)
    assert not [name for name in files if name.endswith((".pt", ".bin", ".pth", ".jsonl")) or "state" in name]
    assert files["README.md"] == (tmp_path / "run" / "README.md").read_bytes() and b"gsm8k" in files["README.md"]
    assert [name for name in files if name.startswith(".eval_results/")] == [".eval_results/gsm8k.yaml"]
    (entry,) = yaml.safe_load(files[".eval_results/gsm8k.yaml"])
    assert entry["dataset"] == {"id": "openai/gsm8k", "task_id": "gsm8k"} and 0 <= entry["value"] <= 100
    assert "https://hub.test/me/tutor" in capsys.readouterr().out
    train(load_sft_recipe(path), "auto")
    assert len(hub.commits) == 1


def test_an_adapter_of_a_model_that_is_only_here_is_pushed_merged(
    hub: FakeHub, tiny_chatml: Path, tmp_path: Path
) -> None:
    """An adapter names its base by a path of this machine, which nobody else has."""
    pushed = {"push_to_hub": True, "hub_revision": "main-2", "max_steps": 1}
    data, lora = {"path": str(write_data(tmp_path))}, {"r": 2, "target_modules": ["q_proj"]}
    path = write_recipe(tmp_path, tiny_chatml, data, pushed, {"when": "never"}, lora=lora)
    train(load_sft_recipe(path), "auto")
    (files,) = hub.commits
    assert "adapter_config.json" not in files and "model.safetensors" in files and hub.branches[0] == "main-2"
    (tmp_path / "run" / "checkpoint-1" / "base_of.json").write_text('["/home/somebody/run"]')
    push_run(tmp_path / "run", 1, pushed, {}, "org/base")
    assert "base_of.json" not in hub.commits[1]
    adapter = json.loads(hub.commits[1]["adapter_config.json"])
    assert adapter["base_model_name_or_path"] == "org/base" and "model.safetensors" not in hub.commits[1]
    assert not [name for name in (tmp_path / "run").iterdir() if name.name.startswith(".push")]
