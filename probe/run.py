"""One probe run, read from top to bottom: answers, user turns, verdicts, grounding, figures.

The model is loaded once and serves accuracy, clarify and follow-up over all sets, temperatures and perturbations; an
answer that two measures need is generated once. Everything is stored as it comes, so a killed run goes on where it
stopped and ends with the same results.json as one that was not.
"""

from __future__ import annotations

import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from probe.chat import Chat, Message
from probe.engines import open_engine
from probe.engines.base import Completion, Engine, Request, ScoreRequest
from probe.errors import CannotScore, DataError, SetOutOfReach
from probe.files import read_jsonl
from probe.judges import get_judge
from probe.judges.labels import Judge, Verdict
from probe.measures import accuracy, clarify, followup
from probe.measures.followup import Said
from probe.measures.grounding import UNMEASURED, Grounding, groundings, score_requests
from probe.models import ModelFolder, fingerprint, load_tokenizer, parameter_count, resolve, tokenizer_folder
from probe.perturb import NONE, parse_perturbations
from probe.recipe import recipe_dict
from probe.sets import Item, Pair, choose, locate, read_items, read_pairs, sets_hash
from probe.settings import Measure, ProbeSection, ServerSection, SetSection
from probe.store import ModelInfo, RunStore, StoredEngine
from probe.terminal import collected, say

# --- What a run asks: its sets as loaded, how much work they are, and the settings that a run is known by.

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


# --- samples.jsonl: one row per answer and user turn; and results.json's figures, made from such rows alone.
#
# Because the figures need nothing but the rows, a finished run can be judged anew without its model.

Row = dict[str, Any]


def make_row(kind: str, name: str, item: str, messages: Sequence[Message], **measured: Any) -> Row:
    """One line of samples.jsonl; every row has every field, null where the measure has nothing to say."""
    return {
        "kind": kind, "set": name, "item": item, "perturbation": NONE,
        "temperature": 0.0, "sample": 0, "messages": list(messages),
        "user_turn": None, "user_cut": None, "label": None, "unscored": None, "judge_raw": None, "specific": None,
        "grounding": None, "log_p": None, "changed": None,
        "reference": None, "extracted": None, "strict": None, "lenient": None,
        "outcome": None, "condition": None, "asked": None,
        **measured,
    }  # fmt: skip


def figures(rows: Sequence[Row]) -> dict[str, Any]:
    """{"accuracy", "clarify", "followup"} of results.json; with transcripts also "actual", their real user turns."""
    found: dict[str, Any] = {"accuracy": {}, "clarify": {}, "followup": {}}
    by_place: dict[tuple[str, str, str, float], list[Row]] = defaultdict(list)
    for row in rows:
        by_place[row["kind"], row["set"], row["perturbation"], row["temperature"]].append(row)
    for (kind, name, perturbation, temperature), of_place in by_place.items():
        if kind == "accuracy":
            found[kind][name] = accuracy.summarise(of_place)
        elif kind == "clarify":
            found[kind][name] = clarify.summarise(of_place)
        elif kind == "actual":
            found.setdefault(kind, {})[name] = followup.summarise(of_place)
        else:
            cells = found[kind].setdefault(name, {}).setdefault(perturbation, {})
            cells[f"T={temperature}"] = followup.summarise(of_place)
    return found


T = TypeVar("T")


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
        EngineError, JudgeError: too much failed; what was made is stored, and the same call goes on from there.
    """
    started = time.monotonic()
    sets = load_sets(probe) if sets is None else sets
    judge = get_judge(probe.judge, probe.judge_server)
    store = RunStore(out, model, settings_of(probe, sets, judge.version))
    finished = store.results()
    if finished is not None:
        return finished
    stored = StoredEngine(engine, out, model)
    # The rules judge costs nothing and is never wrong about what it said before: only models' verdicts are kept.
    with ExitStack() as opened:
        opened.callback(stored.close)
        if judge.name != "rules":
            from probe.judges.stored import StoredJudge

            judge = StoredJudge(judge, out / "verdicts.jsonl")
            opened.callback(judge.close)
        results = _Run(stored, judge, chat, probe, store).measure(sets)
    results["timing"]["wall_s"] = round(time.monotonic() - started, 1)
    return store.finish(results)


class _Run:
    def __init__(self, engine: StoredEngine, judge: Judge, chat: Chat, probe: ProbeSection, store: RunStore) -> None:
        self.engine, self.judge, self.chat, self.probe, self.store = engine, judge, chat, probe, store
        self.timing = {"wall_s": 0.0, "answer_tokens": 0, "user_tokens": 0, "judge_calls": 0, "cache_hits": 0}

    def measure(self, sets: Sequence[LoadedSet]) -> dict[str, Any]:
        answers = self._answers(sets)
        said = self._user_turns(sets, answers)
        verdicts = self._verdicts(said)
        grounded = self._groundings(said)
        rows: list[Row] = []
        for loaded in sets:
            if "accuracy" in loaded.measures:
                rows += self._accuracy(loaded, answers[loaded.name])
            if loaded.pairs:
                rows += self._clarify(loaded, answers[loaded.name])
            rows += _user_rows(loaded.name, said, verdicts, grounded)
        self.store.write_samples(rows)
        self.timing.update(judge_calls=self.judge.calls, cache_hits=self.engine.hits)
        return {**figures(rows), "timing": self.timing}

    def _answers(self, sets: Sequence[LoadedSet]) -> dict[str, list[Completion]]:
        """The model's replies per set: to each item (a transcript has its own), or to both forms of each pair."""
        asked = [
            (loaded.name, Request(self.chat.prompt_ids(messages), self.probe.max_answer_tokens, self.chat.stop_ids))
            for loaded in sets
            if not loaded.transcript
            for messages in contexts(loaded, self.probe.system_prompt)
        ]
        replies = self._generate([request for _, request in asked], "answers", "answer_tokens")
        answers: dict[str, list[Completion]] = {loaded.name: [] for loaded in sets}
        for (name, _), reply in zip(asked, replies, strict=True):
            answers[name].append(reply)
        return answers

    def _user_turns(self, sets: Sequence[LoadedSet], answers: dict[str, list[Completion]]) -> list[Said]:
        """Every user turn, generated ones first, each set's in the order of its items."""
        turns = []
        for loaded in sets:
            if "followup" in loaded.measures:
                texts = [item.reply or "" for item in loaded.items]
                if not loaded.transcript:
                    texts = [reply.text.strip() for reply in answers[loaded.name]]
                turns += list(followup.turns(loaded.name, loaded.items, texts, self.chat, self.probe))
        completions = self._generate([turn.request for turn in turns], "user turns", "user_tokens")
        said = [followup.said(turn, completion) for turn, completion in zip(turns, completions, strict=True)]
        real = [followup.actual(loaded.name, item) for loaded in sets if loaded.transcript for item in loaded.items]
        return said + real

    def _verdicts(self, said: Sequence[Said]) -> list[Verdict]:
        cases = [turn.case() for turn in said]
        return self._collect(self.judge.stream(cases), len(cases), f"judged by {self.judge.name}")

    def _groundings(self, said: Sequence[Said]) -> list[Grounding]:
        if not self.probe.grounding:
            return [UNMEASURED] * len(said)
        form = self.probe.prefix_form
        requests = [score_requests(turn.messages, turn.text, self.chat, form) for turn in said]
        flat: list[ScoreRequest] = [request for pair in requests for request in pair]
        try:
            scores = self._collect(self.engine.score(flat), len(flat), "grounding")
        except CannotScore as error:
            say(f"grounding is not measured: {error}")
            return [UNMEASURED] * len(said)
        return groundings(requests, iter(scores))

    def _generate(self, requests: Sequence[Request], what: str, counter: str) -> list[Completion]:
        completions = self._collect(self.engine.stream(requests), len(requests), what)
        self.timing[counter] += sum(completion.tokens for completion in completions)
        return completions

    def _collect(self, stream: Iterator[tuple[int, T]], total: int, what: str) -> list[T]:
        return collected(stream, total, f"probe {self.store.model.label}: {what}")

    def _accuracy(self, loaded: LoadedSet, replies: Sequence[Completion]) -> Iterable[Row]:
        for item, reply in zip(loaded.items, replies, strict=True):
            messages = _answered(item.messages, reply)
            yield make_row("accuracy", loaded.name, item.id, messages, **accuracy.grade(item, reply))

    def _clarify(self, loaded: LoadedSet, replies: Sequence[Completion]) -> Iterable[Row]:
        conditions = [(pair, condition) for pair in loaded.pairs for condition in ("complete", "underspecified")]
        asked = contexts(loaded, self.probe.system_prompt)
        for (pair, condition), messages, reply in zip(conditions, asked, replies, strict=True):
            measured = clarify.grade(condition, reply)
            yield make_row("clarify", loaded.name, pair.id, _answered(messages, reply), **measured)


def _user_rows(
    name: str, said: Sequence[Said], verdicts: Sequence[Verdict], grounded: Sequence[Grounding]
) -> Iterable[Row]:
    """The rows of one set's user turns; a perturbed one is held against the plain one of the same place."""
    plain = {
        (turn.place.item, turn.place.temperature, turn.place.sample): turn.text
        for turn in said
        if turn.place.set == name and turn.place.perturbation == NONE and turn.kind == "followup"
    }
    for turn, verdict, grounding in zip(said, verdicts, grounded, strict=True):
        place = turn.place
        if place.set != name:
            continue
        unperturbed = plain[place.item, place.temperature, place.sample] if place.perturbation != NONE else None
        measured = followup.row(turn, verdict, grounding, unperturbed)
        yield make_row(turn.kind, name, place.item, turn.messages, **measured)


def _answered(messages: Sequence[Message], reply: Completion) -> list[Message]:
    return [*messages, {"role": "assistant", "content": reply.text.strip()}]


# --- Measures a model by its name: opens what serves it, then runs the probe; or only tells what that would take.


def model_info(folder: ModelFolder, chat: Chat, label: str | None = None, step: int | None = None) -> ModelInfo:
    """What results.json says of a model; the step is read off a `checkpoint-N` folder's name."""
    found = re.fullmatch(r"checkpoint-(\d+)", folder.path.name)
    step = int(found.group(1)) if found and step is None else step
    name = label or (f"step-{step}" if step is not None else Path(folder.name).name)
    return ModelInfo(folder.name, name, step, fingerprint(folder), chat.template_sha256)


def open_model(name: str, probe: ProbeSection) -> tuple[ModelFolder, ProbeSection]:
    """The folder of a model, and the recipe with its server where the name is a server's address.

    With the engine `openai` the weights are the server's, and only the tokenizer has to be here. A bare address,
    http://HOST:PORT/v1, stands for the model that the server lists, whose tokenizer is looked for under that name.
    """
    if name.startswith(("http://", "https://")):
        section = replace(probe.server, urls=(name,)) if probe.server else ServerSection(urls=(name,))
        probe = replace(probe, engine="openai", server=section)
        from probe.client import Client

        name = Client(section).model
    return (tokenizer_folder(name) if probe.engine == "openai" else resolve(name)), probe


def measure_folder(
    folder: ModelFolder,
    probe: ProbeSection,
    sets: Sequence[LoadedSet],
    out: Path,
    label: str | None = None,
    device: str | None = None,
    step: int | None = None,
    wrap: Callable[[Engine], Engine] = lambda engine: engine,
) -> dict[str, Any]:
    """Runs the probe on a folder from `open_model`; a finished run in `out` is returned without loading the model.

    Args:
        step: left out, it is read off a `checkpoint-N` folder's name.
        wrap: goes around the engine, to look at or stop what it makes.
    """
    tokenizer = load_tokenizer(folder)
    chat = Chat(tokenizer, probe.enable_thinking)
    with closing(open_engine(folder, tokenizer, probe, device)) as engine:
        if probe.server and probe.engine == "openai":
            info = _served_info(probe.server, chat, label)
        else:
            info = model_info(folder, chat, label, step)
        return run_probe(wrap(engine), chat, info, probe, out, sets)


def describe(folder: ModelFolder, probe: ProbeSection, sets: Sequence[LoadedSet], unchecked: Sequence[str]) -> str:
    """The plan of a run: sets, completions, tokens at most, memory, and one example with its user-turn prefix."""
    chat = Chat(load_tokenizer(folder), probe.enable_thinking)
    works = [work_of(loaded, probe) for loaded in sets]
    lines = [_model_line(folder, probe)]
    for loaded, work in zip(sets, works, strict=True):
        replies = "replies of its own" if loaded.transcript else f"{work.answers} prompts"
        lines.append(f"set       {loaded.name}: {replies} for {', '.join(loaded.measures)}")
    perturbations = [one.name for one in parse_perturbations(probe.perturbations)]
    if len(perturbations) > 1:
        lines.append(f"user turns after {', '.join(perturbations)}")
    lines += [_work_line(works), f"judge     {probe.judge}{', grounding' if probe.grounding else ''}"]
    example = next((loaded for loaded in sets if "followup" in loaded.measures and loaded.items), None)
    if example is not None:
        answer = example.items[0].reply or "(its answer)"
        messages = [*example.items[0].messages, {"role": "assistant", "content": answer}]
        lines += [f"a user turn of {example.name} begins after ({probe.prefix_form} form):"]
        lines += ["  | " + line for line in chat.user_prefix_text(messages, probe.prefix_form).splitlines()]
        lines += [f"and ends at one of: {', '.join(repr(chat.tokenizer.decode([token])) for token in chat.stop_ids)}"]
    return "\n".join([*lines, *(f"could not check {line}" for line in unchecked), "nothing was written"])


def _served_info(server: ServerSection, chat: Chat, label: str | None) -> ModelInfo:
    """A server's weights cannot be hashed; its own name for the model is all that identifies them."""
    from probe.client import Client

    served = Client(server).model
    return ModelInfo(f"served:{served}", label or Path(served).name, None, None, chat.template_sha256)


def _model_line(folder: ModelFolder, probe: ProbeSection) -> str:
    if probe.engine == "openai":
        return f"model     {folder.name}: served by {', '.join(probe.server.urls) if probe.server else 'nobody yet'}"
    total = parameter_count(folder)["total"]
    return (
        f"model     {folder.name}: {total / 1e6:,.1f}M parameters, {total * 2 / 2**30:.2f} GiB in bfloat16, "
        f"engine {probe.engine}"
    )


def _work_line(works: Sequence[Work]) -> str:
    answers, turns = sum(work.answers for work in works), sum(work.user_turns for work in works)
    return f"generate  {answers} answers, {turns} user turns: {sum(work.tokens for work in works):,} tokens at most"
