"""Which steps a folder of any trainer holds, complete or not, by which trainer's mark.

`LAYOUTS` is a table: how a step is named, which file says that the step is complete, what shards look like, and what makes
whole weights of them. The files are checked in any case, since marks can be wrong: of an earlier run, of a step without
weights, or of a step that is being deleted. Nothing here writes into the folder: trainers delete by age and by count.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from nextturn.probe.command.errors import BadInput, ModelError
from nextturn.probe.command.files import read_json, write_json
from nextturn.probe.models.checkpoints import MARKER, why_incomplete
from nextturn.probe.models.folders import GENERATION_CONFIG, ModelFolder
from nextturn.probe.models.weights import ADAPTER_CONFIG, CONFIG, TOKENIZER_FILES, read_config, weight_files


class Layout(NamedTuple):
    """How one trainer writes its steps.

    Attributes:
        trainer: Its name.
        step: The whole name of a step's folder. The only digits are the number.
        told_by: Patterns of files in a step, if other trainers name their steps alike. One of them is enough.
        mark: The file in a step that is written last. `../NAME`: a file beside the steps that holds the last complete step.
            RENAMED: the folder gets its name when it is complete. Empty: there is none.
        shards: Patterns of shards in a step, each with the option or the command that makes whole weights.
    """

    trainer: str
    step: str
    told_by: tuple[str, ...] = ()
    mark: str = ""
    shards: tuple[tuple[str, str], ...] = ()


RENAMED = "."
NO_WEIGHTS = "no whole weights"
SOURCE = "source.json"
"""In a held model and in its probe: the step that it was taken from, and when its weights were written."""
_PRIME = 'set `weight_broadcast.type = "filesystem"`, or run tools/convert_dcp_to_bf16.py on a checkpoint'
_VERL = "add `hf_model` to `checkpoint.save_contents`, or run `python -m verl.model_merger merge --backend {} --local_dir STEP/actor`"
NEXTTURN = Layout("nextturn", r"checkpoint-\d+", (), MARKER)
# Steps of other trainers. The first layout that fits is taken.
LAYOUTS = (
    Layout("LLaMA-Factory v1", r"checkpoint-\d+", ("CHECKPOINT_COMPLETE", "model", "hf_model"), "CHECKPOINT_COMPLETE",
           (("model/*.distcp", "train with `save_ckpt_as_hf: true`"),)),
    # Of reward models and PPO: the weights are written again after trainer_state.json.
    Layout("LLaMA-Factory", r"checkpoint-\d+", ("value_head.safetensors",)),
    Layout("trl, axolotl, LLaMA-Factory or unsloth", r"checkpoint-\d+", (), "trainer_state.json",
           (("pytorch_model_fsdp_*", "train with `fsdp_state_dict_type: FULL_STATE_DICT`, or run `accelerate merge-weights`"),
            ("global_step*", "train with `stage3_gather_16bit_weights_on_model_save: true`, or run the step's zero_to_fp32.py"))),
    Layout("NeMo-RL", r"step_\d+", ("policy",), RENAMED,
           (("policy/weights/iter_*", "run NeMo-RL's convert_megatron_to_hf.py"),
            ("policy/weights/*", "train with `checkpointing.save_consolidated=true`, or run NeMo-RL's convert_dcp_to_hf.py"))),
    Layout("prime-rl", r"step_\d+", ("trainer", "orchestrator"), "", (("*", _PRIME),)),
    Layout("prime-rl", r"step_\d+", (), "STABLE", (("STABLE", _PRIME),)),
    Layout("verl", r"global_step_\d+", ("actor", "huggingface", "model_world_size_*"), "../latest_checkpointed_iteration.txt",
           (("**/model_world_size_*", _VERL.format("fsdp")), ("**/*.distcp", _VERL.format("megatron")))),
    Layout("SkyRL", r"global_step_\d+", ("policy",), "../latest_ckpt_global_step.txt",
           (("policy/*", "set `trainer.hf_save_interval` above 0 and watch `trainer.export_path`"),)),
    Layout("OpenRLHF", r"(?:best_)?global_step\d+_hf"),
    Layout("OpenRLHF", r"global_step\d+", (), "", (("*.pt", "train with `--ckpt.save_hf`"),)),
)  # fmt: skip
PARENTS = ("", "weights", "broadcasts", "run_default/broadcasts", "hf_exports", "_actor", "checkpoints")
"""Where steps lie in the folder that is watched. Of two places with the same step, the first with weights counts."""
# Beside a step's model lie other models, and copies that are no model of the step.
_OTHERS = re.compile(r"critic|optimizer.*|lora_adapters|pissa_.*|global_step.*|ref|\..*")
_WEIGHTS = re.compile(r"(adapter_)?model(-\d+-of-\d+)?\.safetensors")
_CONFIGS = (CONFIG, GENERATION_CONFIG)
_TOKENIZERS = (*TOKENIZER_FILES, "tokenizer.model", "vocab.json", "vocab.txt", "merges.txt", "added_tokens.json")
_MODEL_FILES = {".json", ".jinja", ".model", ".txt", ".tiktoken"}


class Step(NamedTuple):
    """A step's folder, complete or not."""

    number: int
    folder: Path
    layout: Layout


def refuse_store(root: Path) -> None:
    """Refuse what holds no checkpoints as files.

    Raises:
        BadInput: An address in place of a folder, or the log folder of tinker.
    """
    if match := re.fullmatch(r"(\w{2,}):/.*", str(root)):
        raise BadInput(f"{root}: a store ({match[1]}), expected a folder; mount the store or copy its steps to a disk")
    if (log := root / "checkpoints.jsonl").is_file() and "tinker://" in log.read_text(encoding="utf-8"):
        way = "download one with tinker_cookbook's `weights.download`, and give what `build_hf_model` makes of it to `probe run`"
        raise BadInput(f"{root}: tinker keeps its checkpoints on the service; {way}")


def find_steps(root: Path, layouts: Sequence[Layout] = LAYOUTS) -> list[Step]:
    """Return all steps under `root` by their number, those of one number in the order of PARENTS and of the layouts."""
    found = []
    for place, parent in enumerate(root / name for name in PARENTS):
        for folder in _children(parent):
            named = [layout for layout in layouts if re.fullmatch(layout.step, folder.name)]
            if named and folder.is_dir() and not folder.is_symlink():
                layout = next((each for each in named if not each.told_by or _any(folder, each.told_by)), None)
                number = int(re.sub(r"\D", "", folder.name))
                found += [(number, place, layouts.index(layout), Step(number, folder, layout))] if layout else []
    return [step for *_, step in sorted(found, key=lambda each: each[:3])]


def _children(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:  # deleted meanwhile, or not readable yet
        return []


def _any(folder: Path, patterns: Iterable[str]) -> bool:
    try:
        return any(any(folder.glob(pattern)) for pattern in patterns)
    except OSError:  # deleted meanwhile
        return False


def model_in(step: Step) -> Path | None:
    """Return the folder in a step that holds the model, found by its weights, or None. A whole model comes before an adapter."""
    with_weights = [(files[0][0], each) for each in _folders(step.folder) if (files := stamp(each))]
    found = [(file.startswith("adapter"), len(each.parts), each) for file, each in with_weights]
    return min(found)[2] if found else None


def _folders(folder: Path) -> Iterator[Path]:
    yield folder
    for child in _children(folder):
        if child.is_dir() and not child.is_symlink() and not _OTHERS.fullmatch(child.name):
            yield from _folders(child)


def stamp(folder: Path) -> list[list[Any]]:
    """Return name, size and time of each file of weights in a folder, by which weights that are written again are noticed."""
    found = [path for path in _children(folder) if _WEIGHTS.fullmatch(path.name)]
    return [[path.name, path.stat().st_size, path.stat().st_mtime_ns] for path in sorted(found, reverse=True)]


def saved_at(step: Step) -> list[list[Any]]:
    """Return the `stamp` of a step's model, or an empty list for a step without weights."""
    try:
        return stamp(model_in(step) or step.folder)
    except OSError:  # deleted meanwhile
        return []


def is_marked(step: Step) -> bool | None:
    """Return whether the trainer's mark says that a step is complete, or None if there is no such mark."""
    mark = step.layout.mark
    if not mark.startswith(".."):
        return (step.folder / mark).exists() if mark else None
    try:
        return int((step.folder / mark).read_text()) >= step.number
    except (OSError, ValueError):  # not written yet, half written, or steps that were copied without it
        return None


def why_not(step: Step) -> str | None:
    """Return None if a step's model is whole, else the reason why it cannot be measured, such as a missing mark."""
    if step.layout is NEXTTURN:
        return why_incomplete(step.folder)
    try:
        if is_marked(step) is False:
            return f"not complete by {step.layout.mark.removeprefix('../')}"
        folder = model_in(step) or step.folder
        shards = [advice for pattern, advice in step.layout.shards if _any(step.folder, [pattern])]
        if shards and not stamp(folder):
            return f"{NO_WEIGHTS} of {step.layout.trainer}: {shards[0]}"
        weight_files(folder)
        for path in folder.glob("*.json"):
            read_json(path)
    except (OSError, BadInput) as error:  # also a step that is deleted meanwhile
        return str(error)
    return None


def hold(step: Step, held: Path, base: ModelFolder | None = None) -> list[str]:
    """Link a step's model into the folder `held`, which the trainer does not delete, and add what the step lacks.

    A hard link needs no space while the step exists. Files are copied if links are impossible.

    Args:
        base: Gives the configuration and the tokenizer if a whole model has none, and is the base of an adapter.

    Returns:
        What was taken from elsewhere, for the log.

    Raises:
        OSError: The step was deleted meanwhile, or there is no room for a copy.
        ModelError: Something is missing, and no base gives it.
    """
    if (source := model_in(step)) is None:
        raise FileNotFoundError(f"{step.folder} was deleted meanwhile")
    weight_files(source)
    saved, making, taken = stamp(source), held.with_name(f".{held.name}"), []
    shutil.rmtree(making, ignore_errors=True)
    making.mkdir(parents=True)
    try:
        for path in source.iterdir():
            if _WEIGHTS.fullmatch(path.name) or path.suffix in _MODEL_FILES:
                link(path.resolve(), making / path.name)
        adapter = (making / ADAPTER_CONFIG).is_file()
        beside = next((folder for folder in _folders(step.folder) if folder.name == "tokenizer"), None)
        tokenizer = beside or (base.tokenizer_path if base else None)
        needed = {"config": (_CONFIGS, base.whole if base else None), "tokenizer": (_TOKENIZERS, tokenizer)}
        for what, (names, place) in needed.items():
            if any((making / name).is_file() for name in names[:2]) or (adapter and (what == "config" or not beside)):
                continue
            if place is None:
                raise ModelError(f"{source}: no {what} in it; name the model that training began with: --base MODEL")
            for name in names:
                if (place / name).is_file() and not (making / name).exists():
                    link((place / name).resolve(), making / name)
            taken.append(f"{what} of {place}")
        if adapter and base:
            config = read_config(making, ADAPTER_CONFIG)
            (making / ADAPTER_CONFIG).unlink()  # a link to the trainer's own file
            write_json(making / ADAPTER_CONFIG, {**config, "base_model_name_or_path": str(base.path)})
            taken.append(f"base {base.name} in place of {config.get('base_model_name_or_path')}")
        if stamp(source) != saved:
            raise FileNotFoundError(f"{step.folder} was saved again meanwhile")
        facts = {"step": step.folder.name, "folder": str(step.folder), "saved": saved, "base": base and base.name}
        write_json(making / SOURCE, facts)
        shutil.rmtree(held, ignore_errors=True)
        making.rename(held)
    finally:
        shutil.rmtree(making, ignore_errors=True)
    return taken


def link(source: Path, target: Path) -> None:
    """Make a hard link, or a copy on another file system or on one without hard links."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
