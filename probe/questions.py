"""What a run asks: its sets as loaded, how much work they are, and the settings that a run is known by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from probe.chat import Message
from probe.errors import DataError, SetOutOfReach
from probe.files import read_jsonl
from probe.perturb import parse_perturbations
from probe.recipe import recipe_dict
from probe.sets import Item, Pair, choose, locate, read_items, read_pairs, sets_hash
from probe.settings import Measure, ProbeSection, SetSection

# What changes how fast or where a run is made, but no number; the judge's version stands for its name.
_NOT_COMPARED = ("sets", "batch_tokens", "when", "judge", "judge_server", "server", "vllm")


@dataclass(frozen=True)
class LoadedSet:
    """A set as it will be asked: items with messages, or pairs for clarify."""

    name: str
    items: tuple[Item, ...]
    pairs: tuple[Pair, ...]
    measures: tuple[Measure, ...]
    transcript: bool = False
    """The items bring their own replies, and the user turns that really followed."""


@dataclass(frozen=True)
class Work:
    """What a set costs at most: answers, user turns, and tokens of both together."""

    answers: int
    user_turns: int
    tokens: int


def work_of(loaded: LoadedSet, probe: ProbeSection) -> Work:
    answers = (0 if loaded.transcript else len(loaded.items)) + 2 * len(loaded.pairs)
    return work(answers, len(loaded.items) if "followup" in loaded.measures else 0, probe)


def work(answers: int, followed: int, probe: ProbeSection) -> Work:
    """Of so many answers, with user turns generated after `followed` items."""
    each = sum(probe.samples if temperature > 0 else 1 for temperature in probe.temperatures)
    turns = followed * each * len(parse_perturbations(probe.perturbations))
    return Work(answers, turns, answers * probe.max_answer_tokens + turns * probe.max_user_tokens)


def load_sets(probe: ProbeSection) -> list[LoadedSet]:
    """Reads every set of a recipe, local path first. Raises DataError for the first that cannot be used."""
    parse_perturbations(probe.perturbations)  # a typo is told before anything is read
    if not probe.sets:
        raise DataError("probe.sets: no set named, wanted at least one such as `gsm8k: {n: 200}`")
    return [_load_set(name, section, probe) for name, section in probe.sets.items()]


def sets_within_reach(
    probe: ProbeSection, unchecked: list[str], built_later: Sequence[Path] = ()
) -> dict[str, LoadedSet | None]:
    """The sets for a dry run; None for those that cannot be had now, with the reason added to `unchecked`.

    `built_later` are folders that are still to be filled: a file missing in one is no error yet.
    """
    found: dict[str, LoadedSet | None] = {}
    for name, section in probe.sets.items():
        path = Path(section.path) if section.path else None
        if path and not path.exists() and any(path.is_relative_to(folder) for folder in built_later):
            unchecked.append(f"probe set {name}: {path} is still to be built")
            found[name] = None
            continue
        try:
            found[name] = _load_set(name, section, probe)
        except SetOutOfReach as error:
            unchecked.append(f"probe set {name}: {error}")
            found[name] = None
    return found


def _load_set(name: str, section: SetSection, probe: ProbeSection) -> LoadedSet:
    path = locate(name, section.path)
    first = next((row for _, row in read_jsonl(path)), {})
    if "underspecified" in first:
        if section.measures not in (None, ("clarify",)):
            raise DataError(
                f"{path}: pairs of problems can only measure clarify, not {', '.join(section.measures or ())}"
            )
        return LoadedSet(name, (), tuple(choose(read_pairs(path), section.n, probe.seed)), ("clarify",))
    items = choose(read_items(path, section.instruction, section.transcript), section.n, probe.seed)
    answered = all(item.answer is not None for item in items) and not section.transcript
    measures = section.measures or (("accuracy", "followup") if answered else ("followup",))
    if section.transcript and measures != ("followup",):
        raise DataError(f"{path}: transcripts can only measure followup, not {', '.join(measures)}")
    if "clarify" in measures:
        raise DataError(f"{path}: clarify needs pairs (`complete`, `underspecified`), these are single questions")
    if "accuracy" in measures and not answered:
        raise DataError(f"{path}: accuracy needs an answer in every row, and {name!r} has rows without one")
    if probe.system_prompt is not None:
        items = [replace(item, messages=_with_system(item.messages, probe.system_prompt)) for item in items]
    return LoadedSet(name, tuple(items), (), measures, section.transcript)


def settings_of(probe: ProbeSection, sets: Sequence[LoadedSet], judge_version: str) -> dict[str, Any]:
    """What a run is compared and resumed by: every choice that can move a number, and what was asked."""
    recipe = recipe_dict(probe)
    kept = {key: value for key, value in recipe.items() if key not in _NOT_COMPARED}
    asked = {
        loaded.name: {
            "sha256": sets_hash([*loaded.items, *loaded.pairs]),
            "n": len(loaded.items) + len(loaded.pairs),
            "measures": list(loaded.measures),
        }
        for loaded in sets
    }
    perturbations = [one.name for one in parse_perturbations(probe.perturbations)[1:]]
    return {**kept, "perturbations": perturbations, "judge": judge_version, "sets": asked}


def contexts(loaded: LoadedSet, system_prompt: str | None) -> list[tuple[Message, ...]]:
    if not loaded.pairs:
        return [item.messages for item in loaded.items]
    texts = [text for pair in loaded.pairs for text in (pair.complete, pair.underspecified)]
    asked: list[tuple[Message, ...]] = [({"role": "user", "content": text},) for text in texts]
    return asked if system_prompt is None else [_with_system(messages, system_prompt) for messages in asked]


def _with_system(messages: Sequence[Message], system_prompt: str) -> tuple[Message, ...]:
    own = messages[1:] if messages[0]["role"] == "system" else messages
    return ({"role": "system", "content": system_prompt}, *own)
