"""Push a finished run to the hub: the last checkpoint's model, the card with the probe's table, and its figures.

The trainer's own push is off: it would upload the whole run directory, trackers' files and stored replies included, and write
another card. Optimizer states stay here, so a pushed model can be used but not trained on from its step.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from nextturn.probe.command.errors import BadInput, one_line
from nextturn.probe.command.files import read_json
from nextturn.probe.command.sections import SetSection
from nextturn.probe.command.terminal import say
from nextturn.probe.models.weights import ADAPTER_CONFIG
from nextturn.probe.questions.sets import HUB

_NOT_A_MODEL = ("complete.json", "trainer_state.json", "export.json", "base_of.json")  # state of the run
_SUFFIXES = (".safetensors", ".json", ".jinja", ".txt", ".model")


def create_repository(given: Mapping[str, Any], run_dir: Path) -> str:
    """Create the run's repository on the hub, or find it, and return its id: `hub_model_id`, else the run directory's name.

    Call it before training, so that a missing login is found before the work is done.

    Args:
        given: The recipe's `train:` section with `hub_model_id`, `hub_private_repo` and `hub_revision`.

    Raises:
        BadInput: The hub cannot be reached, or refuses.
    """
    from huggingface_hub import HfApi

    name, revision = given.get("hub_model_id") or run_dir.name, given.get("hub_revision")
    with _hub_errors(name):
        repository: str = HfApi().create_repo(name, private=given.get("hub_private_repo"), exist_ok=True).repo_id
        if revision:
            HfApi().create_branch(repository, branch=revision, exist_ok=True)
    return repository


def push_run(
    run_dir: Path, step: int, given: Mapping[str, Any], sets: Mapping[str, SetSection], base: str | None
) -> str:
    """Upload a finished run in one commit and return the repository's address.

    A LoRA adapter whose base is on the hub is pushed as an adapter of that base. With a base that exists here alone, the merged
    model is pushed, which anybody can load.

    Args:
        step: Of the checkpoint to push.
        given: See `create_repository`.
        sets: The probe's question sets, by which whole public benchmarks are known.
        base: The hub id of the model that training started from; None if it is not on the hub.

    Raises:
        BadInput: The checkpoint has no whole weights, or the hub refuses the files.
    """
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi

    from nextturn.train.export import export

    repository = create_repository(given, run_dir)
    checkpoint, revision = run_dir / f"checkpoint-{step}", given.get("hub_revision")
    with tempfile.TemporaryDirectory(dir=run_dir, prefix=".push-") as folder:
        adapter = (checkpoint / ADAPTER_CONFIG).is_file()
        model = export(str(checkpoint), Path(folder) / "model") if adapter and base is None else checkpoint
        contents: dict[str, Path | bytes] = dict(_files(run_dir, model))
        if not any(name.endswith(".safetensors") for name in contents):
            raise BadInput(
                f"{checkpoint}: no safetensors to push; under ZeRO-3 set stage3_gather_16bit_weights_on_model_save"
            )
        if adapter and base is not None:
            config = read_json(checkpoint / ADAPTER_CONFIG) | {"base_model_name_or_path": base}
            contents[ADAPTER_CONFIG] = json.dumps(config, indent=2).encode()
        results = run_dir / "probe" / f"step-{step}" / "results.json"
        for name, entry in _benchmarks(read_json(results) if results.is_file() else {}, sets):
            contents[f".eval_results/{name}.yaml"] = yaml.safe_dump([entry], sort_keys=False).encode()

        with _hub_errors(repository):
            there = HfApi().list_repo_files(repository, revision=revision)
            operations: list[Any] = [CommitOperationAdd(name, content) for name, content in sorted(contents.items())]
            say(f"push      {len(operations)} files to {repository}")
            for name in there:  # weights of an earlier push would be loaded too
                if name not in contents and (name.endswith(".safetensors") or name == ADAPTER_CONFIG):
                    operations.append(CommitOperationDelete(name))
            commit = HfApi().create_commit(repository, operations, commit_message=f"Step {step}", revision=revision)
    return str(commit.repo_url)


def _files(run_dir: Path, model: Path) -> Iterator[tuple[str, Path]]:
    """Yield (name in the repository, file): the model in the root, the run's files under the names that the card uses."""
    for path in sorted(model.iterdir()):
        if path.suffix in _SUFFIXES and path.name not in _NOT_A_MODEL:
            yield path.name, path
    run_files = ["README.md", "recipe.json", "probe/comparison/tradeoff.png", "probe/base/results.json"]
    run_files += [path.relative_to(run_dir).as_posix() for path in run_dir.glob("probe/step-*/results.json")]
    yield from ((name, run_dir / name) for name in run_files if (run_dir / name).is_file())


def _benchmarks(results: Mapping[str, Any], sets: Mapping[str, SetSection]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (set, entry in the hub's format of `.eval_results`) for each whole public benchmark whose accuracy was measured."""
    for name, figures in results.get("accuracy", {}).items():
        section, hub = sets.get(name), HUB.get(name)
        if section is None or hub is None or hub.task is None or section.path or section.n or section.grader:
            continue
        lenient, strict = (100 * figures[reading]["value"] for reading in ("lenient", "strict"))
        notes = f"nextturn, zero-shot, greedy, one sample; n = {figures['n']}; marked answers alone: {strict:.1f}"
        dataset = {"id": hub.hub_id, "task_id": hub.task}
        today = datetime.now(UTC).strftime("%Y-%m-%d")
        yield name, {"dataset": dataset, "value": round(lenient, 1), "date": today, "notes": notes}


@contextmanager
def _hub_errors(repository: str) -> Iterator[None]:
    """Context manager: raise BadInput if the hub cannot be reached or refuses."""
    from huggingface_hub.utils import httpx  # httpx under huggingface_hub 1.x, httpx2 under 2.x

    try:
        yield
    except (OSError, ValueError, httpx.HTTPError) as error:  # the hub's own errors are OSErrors
        raise BadInput(
            f"train.push_to_hub: {repository}: {one_line(error)}; it needs a connection, a login that may write there (`hf auth login` or "
            "HF_TOKEN) and train.hub_model_id; then give the same command again"
        ) from None
