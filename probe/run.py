"""One probe run, read from top to bottom: answers, user turns, labels, figures.

The model is loaded once and serves accuracy, clarify and follow-up over all sets and temperatures; an answer
that two measures need is generated once. Everything is stored as it comes, so a killed run goes on where it
stopped and ends with the same results.json as one that was not.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from probe.chat import Chat, Message
from probe.engines.base import Completion, Engine, Request
from probe.errors import DataError, SetOutOfReach
from probe.files import read_jsonl
from probe.judges import get_judge
from probe.judges.labels import judge_all
from probe.measures import accuracy, clarify, followup
from probe.recipe import recipe_dict
from probe.sets import Item, Pair, choose, locate, read_items, read_pairs, sets_hash
from probe.settings import Measure, ProbeSection, SetSection
from probe.store import ModelInfo, RunStore, StoredEngine

NO_PERTURBATION = "none"


@dataclass(frozen=True)
class LoadedSet:
    """A set as it will be asked: items with messages, or pairs for clarify."""

    name: str
    items: tuple[Item, ...]
    pairs: tuple[Pair, ...]
    measures: tuple[Measure, ...]


@dataclass(frozen=True)
class Work:
    """What a set costs at most: answers, user turns, and tokens of both together."""

    answers: int
    user_turns: int
    tokens: int


def work_of(loaded: LoadedSet, probe: ProbeSection) -> Work:
    per_item = sum(probe.samples if temperature > 0 else 1 for temperature in probe.temperatures)
    answers = len(loaded.items) + 2 * len(loaded.pairs)
    turns = len(loaded.items) * per_item if "followup" in loaded.measures else 0
    return Work(answers, turns, answers * probe.max_answer_tokens + turns * probe.max_user_tokens)


def load_sets(probe: ProbeSection) -> list[LoadedSet]:
    """Reads every set of a recipe, local path first. Raises DataError for the first that cannot be used."""
    if not probe.sets:
        raise DataError("probe.sets: no set named, wanted at least one such as `gsm8k: {n: 200}`")
    return [_load_set(name, section, probe) for name, section in probe.sets.items()]


def sets_within_reach(
    probe: ProbeSection, unchecked: list[str], built_later: Path | None = None
) -> dict[str, LoadedSet | None]:
    """The sets for a dry run; None for those that cannot be had now, with the reason added to `unchecked`.

    `built_later` is a folder that is still to be built: a file missing in it is no error yet.
    """
    found: dict[str, LoadedSet | None] = {}
    for name, section in probe.sets.items():
        path = Path(section.path) if section.path else None
        if path and built_later and path.is_relative_to(built_later) and not path.exists():
            unchecked.append(f"probe set {name}: {path} is built with the data")
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
    items = choose(read_items(path, section.instruction), section.n, probe.seed)
    answered = all(item.answer is not None for item in items)
    measures = section.measures or (("accuracy", "followup") if answered else ("followup",))
    if "clarify" in measures:
        raise DataError(f"{path}: clarify needs pairs (`complete`, `underspecified`), these are single questions")
    if "accuracy" in measures and not answered:
        raise DataError(f"{path}: accuracy needs an answer in every row, and {name!r} has rows without one")
    if probe.system_prompt is not None:
        items = [replace(item, messages=_with_system(item.messages, probe.system_prompt)) for item in items]
    return LoadedSet(name, tuple(items), (), measures)


def settings_of(probe: ProbeSection, sets: Sequence[LoadedSet]) -> dict[str, Any]:
    """What a run is compared and resumed by: every choice that can move a number, and what was asked."""
    recipe = recipe_dict(probe)
    kept = {key: value for key, value in recipe.items() if key not in ("sets", "batch_tokens", "when", "judge")}
    asked = {
        loaded.name: {
            "sha256": sets_hash([*loaded.items, *loaded.pairs]),
            "n": len(loaded.items) + len(loaded.pairs),
            "measures": list(loaded.measures),
        }
        for loaded in sets
    }
    return {**kept, "judge": get_judge(probe.judge).version, "sets": asked}


def run_probe(
    engine: Engine,
    chat: Chat,
    model: ModelInfo,
    probe: ProbeSection,
    out: Path,
    sets: Sequence[LoadedSet] | None = None,
) -> dict[str, Any]:
    """Measures one model and returns the contents of `out`/results.json.

    Args:
        engine: serves the model that `model` describes.
        chat: renders with that model's template.
        sets: as from `load_sets`, where the caller has them already.

    Raises:
        SettingsChanged: `out` holds a run of another model or other settings.
    """
    started = time.monotonic()
    sets = load_sets(probe) if sets is None else sets
    store = RunStore(out, model, settings_of(probe, sets))
    finished = store.results()
    if finished is not None:
        return finished
    stored = StoredEngine(engine, out / "generations.jsonl", model)
    try:
        results = _Run(stored, chat, probe, store).measure(sets)
    finally:
        stored.close()
    results["timing"]["wall_s"] = round(time.monotonic() - started, 1)
    return store.finish(results)


class _Run:
    def __init__(self, engine: StoredEngine, chat: Chat, probe: ProbeSection, store: RunStore) -> None:
        self.engine, self.chat, self.probe, self.store = engine, chat, probe, store
        self.judge = get_judge(probe.judge)
        self.timing = {"wall_s": 0.0, "answer_tokens": 0, "user_tokens": 0, "judge_calls": 0, "cache_hits": 0}

    def measure(self, sets: Sequence[LoadedSet]) -> dict[str, Any]:
        results: dict[str, Any] = {"accuracy": {}, "clarify": {}, "followup": {}}
        replies = self._answers(sets)
        turns = {
            loaded.name: followup.turns(loaded.name, loaded.items, replies[loaded.name], self.chat, self.probe)
            for loaded in sets
            if "followup" in loaded.measures
        }
        said = self._generate([turn.request for name in turns for turn in turns[name]], "user turns", "user_tokens")
        self.store.write_samples([], first=True)
        for loaded in sets:
            rows: list[dict[str, Any]] = []
            if "accuracy" in loaded.measures:
                rows += self._accuracy(loaded, replies[loaded.name])
                results["accuracy"][loaded.name] = accuracy.summarise(rows)
            if loaded.pairs:
                rows += self._clarify(loaded, replies[loaded.name])
                results["clarify"][loaded.name] = clarify.summarise(rows)
            if loaded.name in turns:
                completions = [next(said) for _ in turns[loaded.name]]
                user_rows = self._followup(loaded.name, turns[loaded.name], completions)
                results["followup"][loaded.name] = {NO_PERTURBATION: _by_temperature(user_rows)}
                rows += user_rows
            self.store.write_samples(rows, first=False)
        self.timing["cache_hits"] = self.engine.hits
        return {**results, "timing": self.timing}

    def _answers(self, sets: Sequence[LoadedSet]) -> dict[str, list[Completion]]:
        """The model's own replies per set; for pairs, the complete and the underspecified form in turn."""
        contexts = {loaded.name: _contexts(loaded, self.probe.system_prompt) for loaded in sets}
        requests = [
            Request(self.chat.prompt_ids(messages), self.probe.max_answer_tokens, self.chat.stop_ids)
            for name in contexts
            for messages in contexts[name]
        ]
        replies = self._generate(requests, "answers", "answer_tokens")
        return {name: [next(replies) for _ in contexts[name]] for name in contexts}

    def _generate(self, requests: Sequence[Request], what: str, counter: str) -> Iterator[Completion]:
        from tqdm import tqdm

        done: dict[int, Completion] = {}
        with tqdm(total=len(requests), desc=f"probe {self.store.model.label}: {what}", unit="turn") as bar:
            for index, completion in self.engine.stream(requests):
                done[index] = completion
                self.timing[counter] += completion.tokens
                bar.update()
        return iter([done[index] for index in range(len(requests))])

    def _accuracy(self, loaded: LoadedSet, replies: Sequence[Completion]) -> list[dict[str, Any]]:
        return [
            _row("accuracy", loaded.name, item.id, _answered(item.messages, reply), **accuracy.grade(item, reply))
            for item, reply in zip(loaded.items, replies, strict=True)
        ]

    def _clarify(self, loaded: LoadedSet, replies: Sequence[Completion]) -> list[dict[str, Any]]:
        conditions = [(pair, condition) for pair in loaded.pairs for condition in ("complete", "underspecified")]
        contexts = _contexts(loaded, self.probe.system_prompt)
        return [
            _row("clarify", loaded.name, pair.id, _answered(messages, reply), **clarify.grade(condition, reply))
            for (pair, condition), messages, reply in zip(conditions, contexts, replies, strict=True)
        ]

    def _followup(
        self, name: str, turns: Sequence[followup.Turn], completions: Sequence[Completion]
    ) -> list[dict[str, Any]]:
        cases = [followup.case(turn, completion) for turn, completion in zip(turns, completions, strict=True)]
        verdicts = judge_all(self.judge, cases)
        self.timing["judge_calls"] += len(cases)
        return [
            _row(
                "followup", name, turn.item, turn.messages, turn.temperature, turn.sample, **followup.row(case, verdict)
            )
            for turn, case, verdict in zip(turns, cases, verdicts, strict=True)
        ]


def _row(
    kind: str,
    name: str,
    item: str,
    messages: Sequence[Message],
    temperature: float = 0.0,
    sample: int = 0,
    **measured: Any,
) -> dict[str, Any]:
    """One line of samples.jsonl; every row has every field, null where the measure has nothing to say."""
    return {
        "kind": kind, "set": name, "item": item, "perturbation": NO_PERTURBATION,
        "temperature": temperature, "sample": sample, "messages": list(messages),
        "user_turn": None, "user_cut": None, "label": None, "unscored": None, "judge_raw": None, "specific": None,
        "reference": None, "extracted": None, "strict": None, "lenient": None,
        "outcome": None, "condition": None, "asked": None,
        **measured,
    }  # fmt: skip


def _by_temperature(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    temperatures = dict.fromkeys(row["temperature"] for row in rows)
    return {f"T={t}": followup.summarise([row for row in rows if row["temperature"] == t]) for t in temperatures}


def _contexts(loaded: LoadedSet, system_prompt: str | None) -> list[tuple[Message, ...]]:
    if not loaded.pairs:
        return [item.messages for item in loaded.items]
    texts = [text for pair in loaded.pairs for text in (pair.complete, pair.underspecified)]
    asked: list[tuple[Message, ...]] = [({"role": "user", "content": text},) for text in texts]
    return asked if system_prompt is None else [_with_system(messages, system_prompt) for messages in asked]


def _answered(messages: Sequence[Message], reply: Completion) -> list[Message]:
    return [*messages, {"role": "assistant", "content": reply.text.strip()}]


def _with_system(messages: Sequence[Message], system_prompt: str) -> tuple[Message, ...]:
    own = messages[1:] if messages[0]["role"] == "system" else messages
    return ({"role": "system", "content": system_prompt}, *own)
