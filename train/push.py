"""Push a finished run to the hub: the last checkpoint's model, the card with the probe's table, and its figures.

The trainer's own push is off: it would upload the whole run directory, trackers' files and stored replies included, and write
another card. Optimizer states stay here, so a pushed model can be used but not trained on from its step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from nextturn.probe.errors import BadInput, one_line
from nextturn.probe.files import read_json
from nextturn.probe.sets import HUB
from nextturn.probe.settings import SetSection
from nextturn.probe.terminal import say

_NOT_A_MODEL = ("complete.json", "trainer_state.json", "latest")  # state of the training run
_SUFFIXES = (".safetensors", ".json", ".jinja", ".txt", ".model")


def create_repository(args: Any, run_dir: Path) -> str:
    """Create the run's repository on the hub, or find it, and return its id: `hub_model_id`, else the run directory's name.

    Call it before training, so that a missing login is found before the work is done.

    Args:
        args: trl's config with `hub_model_id`, `hub_private_repo` and `hub_revision`.

    Raises:
        BadInput: The hub cannot be reached, or nobody is logged in who may write there.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.utils import httpx  # httpx under huggingface_hub 1.x, httpx2 under 2.x

    name = args.hub_model_id or run_dir.name
    try:
        return HfApi().create_repo(name, private=args.hub_private_repo, exist_ok=True).repo_id
    except (OSError, ValueError, httpx.HTTPError) as error:  # the hub's own errors are OSErrors
        raise _failed(name, error) from None


def push_run(run_dir: Path, step: int, args: Any, sets: Mapping[str, SetSection]) -> str:
    """Upload a finished run in one commit and return the repository's address.

    Args:
        step: Of the checkpoint to push.
        args: See `create_repository`.
        sets: The probe's question sets, by which whole public benchmarks are known.

    Raises:
        BadInput: The checkpoint has no whole weights, or the hub refuses the files.
    """
    from huggingface_hub import CommitOperationAdd, HfApi
    from huggingface_hub.utils import httpx

    files = dict(_files(run_dir, run_dir / f"checkpoint-{step}"))
    if not any(name.endswith(".safetensors") for name in files):
        raise BadInput(
            f"{run_dir / f'checkpoint-{step}'}: no safetensors to push; under ZeRO-3 set stage3_gather_16bit_weights_on_model_save"
        )
    results = run_dir / "probe" / f"step-{step}" / "results.json"
    contents: dict[str, Path | bytes] = {**files}
    for name, entry in _benchmarks(read_json(results) if results.is_file() else {}, sets):
        contents[f".eval_results/{name}.yaml"] = yaml.safe_dump([entry], sort_keys=False).encode()
    repository = create_repository(args, run_dir)
    operations = [CommitOperationAdd(name, content) for name, content in sorted(contents.items())]
    say(f"push      {len(operations)} files to {repository}")
    try:
        commit = HfApi().create_commit(
            repository, operations, commit_message=f"Step {step}", revision=args.hub_revision
        )
    except (OSError, ValueError, httpx.HTTPError) as error:
        raise _failed(repository, error) from None
    return str(commit.repo_url)


def _files(run_dir: Path, checkpoint: Path) -> Iterator[tuple[str, Path]]:
    """Yield (name in the repository, file): the model in the root, the run's files under the names that the card uses."""
    for path in sorted(checkpoint.iterdir()):
        if path.suffix in _SUFFIXES and path.name not in _NOT_A_MODEL:
            yield path.name, path
    run_files = ["README.md", "recipe.json", "probe/comparison/tradeoff.png"]
    run_files += [str(path.relative_to(run_dir)) for path in run_dir.glob("probe/*/results.json")]
    yield from ((name, run_dir / name) for name in run_files if (run_dir / name).is_file())


def _benchmarks(results: Mapping[str, Any], sets: Mapping[str, SetSection]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (set, entry in the hub's format of `.eval_results`) for each whole public benchmark whose accuracy was measured."""
    for name, figures in results.get("accuracy", {}).items():
        section, hub = sets.get(name), HUB.get(name)
        if section is None or hub is None or hub.task is None or section.path or section.n or section.grader:
            continue
        lenient, strict = (100 * figures[reading]["value"] for reading in ("lenient", "strict"))
        notes = f"nextturn, zero-shot, greedy, one sample; n = {figures['n']}; marked answers alone: {strict:.1f}"
        yield (
            name,
            {
                "dataset": {"id": hub.hub_id, "task_id": hub.task},
                "value": round(lenient, 1),
                "date": datetime.now(UTC).strftime("%Y-%m-%d"),
                "notes": notes,
            },
        )


def _failed(repository: str, error: Exception) -> BadInput:
    return BadInput(
        f"train.push_to_hub: {repository}: {one_line(error)}; log in with `hf auth login` or HF_TOKEN, and give a name that you "
        "may write to as train.hub_model_id; the same command pushes what is trained"
    )
