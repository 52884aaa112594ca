"""One probe run, read from top to bottom: answers, user turns, verdicts, grounding, figures.

The model is loaded once and serves accuracy, clarify and follow-up over all sets, temperatures and perturbations; an
answer that two measures need is generated once. Everything is stored as it comes, so a killed run goes on where it
stopped and ends with the same results.json as one that was not.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeVar

from probe.chat import Chat, Message
from probe.engines.base import Completion, Engine, Request, ScoreRequest
from probe.errors import CannotScore
from probe.judges import get_judge
from probe.judges.labels import Judge, Verdict
from probe.measures import accuracy, clarify, followup
from probe.measures.followup import Said
from probe.measures.grounding import UNMEASURED, Grounding, groundings, score_requests
from probe.perturb import NONE
from probe.processes import say
from probe.progress import collected
from probe.questions import LoadedSet, contexts, load_sets, settings_of
from probe.rows import Row, figures, make_row
from probe.settings import ProbeSection
from probe.store import ModelInfo, RunStore
from probe.stored import StoredEngine

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
