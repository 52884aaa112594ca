"""One probe run, read from top to bottom: answers, user turns, verdicts, grounding, figures.

The model is loaded once and serves accuracy, clarify and follow-up over all sets, temperatures and perturbations; an
answer that two measures need is generated once. Everything is stored as it comes, so a killed run goes on where it
stopped and ends with the same results.json as one that was not.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from nextturn.probe.chat import Chat, Message
from nextturn.probe.engines import open_engine
from nextturn.probe.engines.base import Engine, Request
from nextturn.probe.errors import CannotScore, DataError, SetOutOfReach
from nextturn.probe.files import only_process, read_json, read_jsonl, remove_unfinished
from nextturn.probe.grading import VERSION as GRADING
from nextturn.probe.grading import is_words
from nextturn.probe.judges import get_judge
from nextturn.probe.measure.measures import (
    Row,
    answer_in,
    case_of,
    figures,
    grade_answer,
    grade_clarify,
    grounding,
    grounding_requests,
    judged,
    make_row,
    mark_changed,
    user_turn_requests,
)
from nextturn.probe.measure.perturb import parse_perturbations
from nextturn.probe.measure.store import ModelInfo, RunStore, StoredEngine, StoredJudge, refuse_changes
from nextturn.probe.models import ModelFolder, fingerprint, load_tokenizer, parameter_count, resolve, tokenizer_folder
from nextturn.probe.recipe import recipe_dict
from nextturn.probe.sets import HUB, Item, Pair, choose, locate, read_items, read_pairs, sets_hash
from nextturn.probe.settings import Measure, ProbeSection, ServerSection, SetSection
from nextturn.probe.terminal import collected, say, say_once, visible

T = TypeVar("T")


@dataclass(frozen=True)
class LoadedSet:
    """A set as it will be asked: items with messages, or pairs for clarify."""

    name: str
    items: tuple[Item, ...]
    pairs: tuple[Pair, ...]
    measures: tuple[Measure, ...]
    transcript: bool = False
    """The items bring their own replies, and the user turns that really followed."""


def run_probe(
    engine: Engine,
    chat: Chat,
    model: ModelInfo,
    probe: ProbeSection,
    out: Path,
    sets: Sequence[LoadedSet] | None = None,
    check: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """Measures one model and returns the contents of `out`/results.json.

    Args:
        engine: serves the model that `model` describes.
        chat: renders with that model's template.
        sets: as from `load_sets`, where the caller has them already.
        check: called before anything that was made is kept; what it raises ends the run.

    Raises:
        SettingsChanged: `out` holds a run of another model or other settings.
        EngineError, JudgeError: too much failed; what was made is stored, and the same call goes on from there.
        NextturnError: `out` was moved away meanwhile, or `check` says that the work is no longer this process's.
    """
    started = time.monotonic()
    sets = load_sets(probe) if sets is None else sets
    if not sets:
        raise DataError("probe.sets: none of the sets can be had; name one that can, or give a file with its `path`")
    judge = get_judge(probe.judge, probe.judge_server)
    store = RunStore(out, model, settings_of(probe, sets, judge.version))
    finished = store.results()
    if finished is not None:
        return finished

    def collect(stream: Iterator[tuple[int, T]], total: int, what: str) -> list[T]:
        return collected(stream, total, f"probe {model.label}: {what}")

    with ExitStack() as opened:
        opened.enter_context(only_process(out / ".lock", f"measures into {out}"))
        remove_unfinished(out)  # what a kill left
        stored = opened.enter_context(closing(StoredEngine(engine, out, model, check)))
        # The rules judge costs nothing and is never wrong about what it said before: only models' verdicts are kept.
        if judge.name != "rules":
            judge = opened.enter_context(closing(StoredJudge(judge, out / "verdicts.jsonl", check=check)))

        # Answers: the model's greedy reply to each item (a transcript has its own), or to both forms of each pair.
        prompts = {loaded.name: _prompts(loaded, probe.system_prompt) for loaded in sets}
        requests = [
            Request(chat.prompt_ids(messages), probe.max_answer_tokens, chat.stop_ids)
            for of_set in prompts.values()
            for messages in of_set
        ]
        replies = collect(stored.stream(requests), len(requests), "answers")
        replies = [replace(reply, text=chat.whole_reply(reply.text)) for reply in replies]
        in_order = iter(replies)
        answers = {name: list(islice(in_order, len(of_set))) for name, of_set in prompts.items()}

        # User turns: the model speaks as the user after each answer, and after each change of it.
        asked: list[tuple[Row, Request | None]] = []
        for loaded in sets:
            if "followup" in loaded.measures:
                texts = [reply.text.strip() for reply in answers[loaded.name]]
                if loaded.transcript:
                    texts = [item.reply or "" for item in loaded.items]
                asked += user_turn_requests(loaded.name, loaded.items, texts, chat, probe)
        requests = [request for _, request in asked if request]
        spoken = collect(stored.stream(requests), len(requests), "user turns")
        turns, unanswered = ([row for row, request in asked if bool(request) is made] for made in (True, False))
        for row, completion in zip(turns, spoken, strict=True):
            said = chat.user_turn(completion.text)
            cut = completion.finish == "length" and said == completion.text.strip()
            row.update(user_turn=said, user_cut=cut)
        # The real user turns of transcripts are judged and grounded beside the generated ones.
        for loaded in sets:
            for item in loaded.items if loaded.transcript else ():
                messages = [*item.messages, {"role": "assistant", "content": answer_in(item.reply or "") or ""}]
                real = make_row("actual", loaded.name, item.id, messages, user_turn=item.actual, user_cut=False)
                turns.append(real)
        mark_changed(turns)

        # Verdicts: what each user turn is.
        cases = [case_of(row) for row in turns]
        verdicts = collect(judge.stream(cases), len(cases), f"judged by {judge.name}")
        for row, case, verdict in zip(turns, cases, verdicts, strict=True):
            row.update(judged(case, verdict))

        # Grounding: how likely each user turn is after the answer, and after a neutral one.
        if probe.grounding:
            to_score = [grounding_requests(row["messages"], row["user_turn"], chat, probe.prefix_form) for row in turns]
            flat = [request for both in to_score for request in both]
            try:
                log_p = iter(collect(stored.score(flat), len(flat), "grounding"))
            except CannotScore as error:
                say(f"grounding is not measured: {error}")
            else:
                for row, both in zip(turns, to_score, strict=True):
                    if both:  # an empty turn has none
                        row.update(grounding(len(both[0].target_ids), next(log_p), next(log_p)))

    # Figures: every reply graded and every user turn, set by set, then counted.
    rows: list[Row] = []
    for loaded in sets:
        replied = [
            ([*messages, {"role": "assistant", "content": reply.text.strip()}], reply)
            for messages, reply in zip(prompts[loaded.name], answers[loaded.name], strict=True)
        ]
        if "accuracy" in loaded.measures:
            for item, (messages, reply) in zip(loaded.items, replied, strict=True):
                rows.append(make_row("accuracy", loaded.name, item.id, messages, **grade_answer(item, reply)))
        if "clarify" in loaded.measures:
            both_forms = [(pair.id, form) for pair in loaded.pairs for form in ("complete", "underspecified")]
            for (name, form), (messages, reply) in zip(both_forms, replied, strict=True):
                rows.append(make_row("clarify", loaded.name, name, messages, **grade_clarify(form, reply)))
        rows += [row for row in [*turns, *unanswered] if row["set"] == loaded.name]
    check()
    store.write_samples(rows)
    timing = {
        "wall_s": round(time.monotonic() - started, 1),
        "answer_tokens": sum(reply.tokens for reply in replies),
        "user_tokens": sum(completion.tokens for completion in spoken),
        "judge_calls": judge.calls,
        "cache_hits": stored.hits,
    }
    check()
    return store.finish({**figures(rows), "timing": timing})


def _prompts(loaded: LoadedSet, system_prompt: str | None) -> list[tuple[Message, ...]]:
    """What is asked of a set: each item's messages, or the two forms of each pair; nothing of transcripts."""
    if loaded.transcript:
        return []
    if not loaded.pairs:
        return [item.messages for item in loaded.items]
    texts = [text for pair in loaded.pairs for text in (pair.complete, pair.underspecified)]
    asked: list[tuple[Message, ...]] = [({"role": "user", "content": text},) for text in texts]
    return asked if system_prompt is None else [_with_system(messages, system_prompt) for messages in asked]


def _with_system(messages: Sequence[Message], system_prompt: str) -> tuple[Message, ...]:
    own = messages[1:] if messages[0]["role"] == "system" else messages
    return ({"role": "system", "content": system_prompt}, *own)


# --- A model by its name: opens what serves it, then runs the probe; or only tells what that would take.


def open_model(name: str, probe: ProbeSection) -> tuple[ModelFolder, ProbeSection]:
    """The folder of a model, and the recipe with its server where the name is a server's address.

    With the engine `openai` the weights are the server's, and only the tokenizer has to be here. A bare address,
    http://HOST:PORT/v1, stands for the model that the server lists, whose tokenizer is looked for under that name.
    """
    if name.startswith(("http://", "https://")):
        section = probe.server.model_copy(update={"urls": (name,)}) if probe.server else ServerSection(urls=(name,))
        probe = probe.model_copy(update={"engine": "openai", "server": section})
        from nextturn.probe.client import Client

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
    check: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """Runs the probe on a folder from `open_model`; a finished run in `out` is returned without loading the model.

    Args:
        step: left out, it is read off a `checkpoint-N` folder's name.
        check: as of `run_probe`.
    """
    tokenizer = load_tokenizer(folder)
    chat = Chat(tokenizer, probe.enable_thinking)
    with closing(open_engine(folder, tokenizer, probe, device)) as engine:
        if probe.server and probe.engine == "openai":
            from nextturn.probe.client import Client

            # A server's weights cannot be hashed; its own name for the model is all that identifies them.
            served = Client(probe.server).model
            info = ModelInfo(f"served:{served}", label or Path(served).name, None, None, chat.template_sha256)
        else:
            info = model_info(folder, chat, label, step)
        return run_probe(engine, chat, info, probe, out, sets, check)


def model_info(folder: ModelFolder, chat: Chat, label: str | None = None, step: int | None = None) -> ModelInfo:
    """What results.json says of a model; the step is read off a `checkpoint-N` folder's name."""
    found = re.fullmatch(r"checkpoint-(\d+)", folder.path.name)
    step = int(found.group(1)) if found and step is None else step
    name = label or (f"step-{step}" if step is not None else Path(folder.name).name)
    return ModelInfo(folder.name, name, step, fingerprint(folder), chat.template_sha256)


def describe(folder: ModelFolder, probe: ProbeSection, sets: Sequence[LoadedSet], unchecked: Sequence[str]) -> str:
    """The plan of a run: sets, completions, tokens at most, memory, and one example with its user-turn prefix."""
    chat = Chat(load_tokenizer(folder), probe.enable_thinking)
    if probe.engine == "openai":
        lines = [f"model     {folder.name}: served by {', '.join(probe.server.urls) if probe.server else 'nobody yet'}"]
    else:
        total = parameter_count(folder)
        size = f"{total / 1e6:,.1f}M parameters, {total * 2 / 2**30:.2f} GiB in bfloat16"
        lines = [f"model     {folder.name}: {size}, engine {probe.engine}"]
    works = [work_of(loaded, probe) for loaded in sets]
    for loaded, needed in zip(sets, works, strict=True):
        replies = "replies of its own" if loaded.transcript else f"{needed.answers} prompts"
        lines.append(f"set       {loaded.name}: {replies} for {', '.join(loaded.measures)}")
    perturbations = [one.name for one in parse_perturbations(probe.perturbations)]
    if len(perturbations) > 1:
        lines.append(f"user turns after {', '.join(perturbations)}")
    answers, turns = sum(one.answers for one in works), sum(one.user_turns for one in works)
    tokens = sum(one.tokens for one in works)
    lines.append(f"generate  {answers} answers, {turns} user turns: {tokens:,} tokens at most")
    lines.append(f"judge     {probe.judge}{', grounding' if probe.grounding else ''}")
    example = next((loaded for loaded in sets if "followup" in loaded.measures and loaded.items), None)
    if example is not None:
        answer = example.items[0].reply or "(its answer)"
        messages = [*example.items[0].messages, {"role": "assistant", "content": answer}]
        lines += [f"a user turn of {example.name} begins after ({probe.prefix_form} form):"]
        lines += ["  | " + line for line in chat.user_prefix_text(messages, probe.prefix_form).splitlines()]
        lines += [f"and ends at one of: {', '.join(repr(chat.tokenizer.decode([token])) for token in chat.stop_ids)}"]
    return visible("\n".join([*lines, *(f"could not check {line}" for line in unchecked), "nothing was written"]))


# --- What a run asks: its sets as loaded, the settings that it is known by, and how much work that is.


def load_sets(probe: ProbeSection, base: Path | None = None) -> list[LoadedSet]:
    """Load every set of a recipe, from its local path if there is one.

    Args:
        base: The folder of a training run's base probe. Where given, gated sets of the hub that cannot be had are left out
            and named. All probes of a run ask the same sets, so a set that its base probe left out stays left out.

    Raises:
        DataError: A set cannot be used.
    """
    parse_perturbations(probe.perturbations)  # a typo is told before anything is read
    if not probe.sets:
        raise DataError("probe.sets: no set named, wanted at least one such as `gsm8k: {n: 200}`")
    begun = (
        read_json(base / "manifest.json")["settings"]["sets"] if base and (base / "manifest.json").is_file() else None
    )
    loaded = []
    for name, section in probe.sets.items():
        leaves_out = base is not None and section.path is None and name in HUB and HUB[name].gated
        if leaves_out and begun is not None and name not in begun:
            say_once(f"probe set {name} is left out, as {base} was measured without it")
            continue
        try:
            loaded.append(_load_set(name, section, probe))
        except SetOutOfReach as error:
            if not leaves_out or begun is not None:
                raise
            say_once(f"probe set {name} is left out: {error}")
    return loaded


def sets_within_reach(
    probe: ProbeSection, unchecked: list[str], built_later: Sequence[Path] = ()
) -> dict[str, LoadedSet | None]:
    """The sets for a dry run; None for those that cannot be had now, with the reason added to `unchecked`.

    `built_later` are folders that are still to be filled: a file missing in one is no error yet.
    """
    found: dict[str, LoadedSet | None] = {}
    for name, section in probe.sets.items():
        found[name] = None
        path = Path(section.path) if section.path else None
        if path and not path.exists() and any(path.is_relative_to(folder) for folder in built_later):
            unchecked.append(f"probe set {name}: {path} is still to be built")
            continue
        try:
            found[name] = _load_set(name, section, probe)
        except SetOutOfReach as error:
            unchecked.append(f"probe set {name}: {error}")
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
    if "accuracy" in measures:
        _check_gradable(name, items)
    return LoadedSet(name, tuple(items), (), measures, section.transcript)


def _check_gradable(name: str, items: Sequence[Item]) -> None:
    """Warn about answers in words, which no reading finds unless the reply marks them, where no prompt asks for a mark.

    Raises:
        DataError: All answers are of this kind.
    """
    lost = [
        item.answer
        for item in items
        if item.answer and not item.options and is_words(item.answer)
        and not any(mark in message["content"] for message in item.messages for mark in ("boxed", "####"))
    ]  # fmt: skip
    if not lost:
        return
    problem = (
        f"set {name!r}: {len(lost)} of {len(items)} answers are words, such as {lost[0]!r}; a reply in words is graded wrong "
        "unless it marks its answer with \\boxed{} or ####, which no prompt asks for; "
    )
    if len(lost) == len(items):
        raise DataError(
            problem + "set the set's `instruction`, such as 'Put the answer in \\boxed{}.', or measure followup alone"
        )
    say(f"warning: {problem}ask for it with the set's `instruction`")


# What changes how fast or where a run is made, but no number; the judge's version stands for its name.
_NOT_COMPARED = ("sets", "batch_tokens", "when", "judge", "judge_server", "server", "vllm")


def settings_of(probe: ProbeSection, sets: Sequence[LoadedSet], judge_version: str) -> dict[str, Any]:
    """What a run is compared and resumed by: every choice that can move a number, and what was asked."""
    kept = {key: value for key, value in recipe_dict(probe).items() if key not in _NOT_COMPARED}
    asked = {
        loaded.name: {
            "sha256": sets_hash([*loaded.items, *loaded.pairs]),
            "n": len(loaded.items) + len(loaded.pairs),
            "measures": list(loaded.measures),
        }
        for loaded in sets
    }
    perturbations = [one.name for one in parse_perturbations(probe.perturbations)[1:]]
    # Without its extras a server samples by the model's own top_k, min_p and repetition penalty: other numbers. Named only
    # where they are off, so that what was begun with them on, before this key was there, still counts as measured alike.
    bare = probe.engine == "openai" and probe.server is not None and not probe.server.extras
    extras = {"extras": False} if bare else {}
    read = {"grading": GRADING, "perturbations": perturbations, "judge": judge_version}
    return {**kept, **read, "sets": asked, **extras}


def refuse_other_settings(folders: Sequence[Path], made: str, probe: ProbeSection, sets: Sequence[LoadedSet]) -> None:
    """What is compared has to be measured alike: raises SettingsChanged where one of these probes was begun otherwise."""
    now = settings_of(probe, sets, get_judge(probe.judge, probe.judge_server).version)
    for folder in folders:
        if (folder / "manifest.json").is_file():
            refuse_changes(folder, made, read_json(folder / "manifest.json")["settings"], now)


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
