"""One probe run, from top to bottom: answers, user turns, verdicts, grounding, figures.

The model is loaded once and serves accuracy, clarify and follow-up over all sets, temperatures and perturbations. An answer
that two measures need is generated once. Everything is stored as soon as it exists, so a killed run is resumed where it
stopped and ends with the same results.json as a run that was not killed.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from nextturn.probe.command.errors import BadInput, CannotScore, DataError, SetOutOfReach
from nextturn.probe.command.files import only_process, read_json, refuse_changes, remove_unfinished, sha256_text
from nextturn.probe.command.recipe import Mark, load_named, recipe_dict
from nextturn.probe.command.sections import BY_JUDGE, Measure, ProbeSection, ServerSection, SetSection
from nextturn.probe.command.terminal import collected, say, say_once, visible
from nextturn.probe.data.messages import Message, assistant, user
from nextturn.probe.data.tables import read_rows
from nextturn.probe.engines import open_engine
from nextturn.probe.engines.base import Completion, Engine, Request
from nextturn.probe.engines.client import Client
from nextturn.probe.engines.stored import Row, StoredEngine
from nextturn.probe.judges import get_judge
from nextturn.probe.judges.answers import RIGHT, AnswerJudge, answer_case
from nextturn.probe.judges.verdicts import Verdict
from nextturn.probe.measures.one_turn import (
    Grader,
    answer_in,
    answer_kind,
    case_of,
    grade_answer,
    grade_clarify,
    grounding,
    grounding_requests,
    judged,
    make_row,
    mark_changed,
    user_turn_requests,
)
from nextturn.probe.measures.perturb import parse_perturbations
from nextturn.probe.measures.several_turns import doubted_rows, sharded_rows
from nextturn.probe.models import folders as models
from nextturn.probe.models.folders import ModelFolder, ModelInfo
from nextturn.probe.models.user_model import refuse_user_model
from nextturn.probe.questions.pieces import Shards, read_shards, split
from nextturn.probe.questions.sets import HUB, Item, Pair, choose, locate, read_items, read_pairs, remarks, sets_hash
from nextturn.probe.questions.simulation import ShardedUser
from nextturn.probe.results import count_figures
from nextturn.probe.store import RunStore, StoredJudge
from nextturn.probe.text.chat import Chat
from nextturn.probe.text.grading import VERSION as GRADING

T = TypeVar("T")

_GRADED = {"accuracy", "sharded", "doubted"}
"""Measures that need the right answer of each item."""


@dataclass(frozen=True)
class LoadedSet:
    """A question set as it will be asked: items with messages, or pairs for clarify."""

    name: str
    items: tuple[Item, ...]
    pairs: tuple[Pair, ...]
    measures: tuple[Measure, ...]
    transcript: bool = False
    """The items have their own replies, and the user turns that really followed."""
    instruction: str = ""
    shards: tuple[Shards | None, ...] = ()
    """For sharded: the pieces of each item that is asked so; None for the others."""
    doubted: tuple[int, ...] = ()
    """For doubted: the indices of its items."""
    grader: Grader | None = None
    """Decides whether replies are right, in place of the readings."""
    by_judge: bool = False
    """The model behind `judge_server` decides whether answers are right."""
    left_out: tuple[str, ...] = ()
    """Why rows of a set of the hub were left out."""
    remarks: tuple[str, ...] = ()
    """Lines for the plan."""

    @property
    def questions(self) -> list[str]:
        """The last user message of each item, without the instruction, or the complete form of each pair."""
        return [_question(item, self.instruction) for item in self.items] or [pair.complete for pair in self.pairs]


def run_probe(
    engine: Engine,
    chat: Chat,
    model: ModelInfo,
    probe: ProbeSection,
    out: Path,
    sets: Sequence[LoadedSet] | None = None,
    check: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """Measure one model and return the contents of `out`/results.json.

    Args:
        engine: Serves the model that `model` describes.
        chat: Renders with that model's template.
        sets: From `load_sets`, if the caller has loaded them already.
        check: Called before anything is stored. An exception that it raises ends the run.

    Raises:
        SettingsChanged: `out` holds a run of another model or other settings.
        EngineError, JudgeError: Too much failed. The rest is stored, and the same call resumes from there.
        NextturnError: `out` was moved meanwhile, or `check` found that another process has taken over.
    """
    started = time.monotonic()
    sets = load_sets(probe) if sets is None else sets
    if not sets:
        raise DataError("probe.sets: no set is available; name one that is, or give a file with its `path`")
    judge = get_judge(probe.judge, probe.judge_server)
    answer_judge = _answer_judge(probe, sets)
    store = RunStore(out, model, {**settings_of(probe, sets, judge.version, answer_judge), "stops": chat.ends})
    if (finished := store.results()) is not None:
        return finished
    if probe.judge_server and (judge.name == "llm" or answer_judge):
        Client(probe.judge_server).check()  # before hours of generation

    def collect(stream: Iterator[tuple[int, T]], total: int, what: str) -> list[T]:
        return collected(stream, total, f"probe {model.label}: {what}")

    def answer(chats: Sequence[Sequence[Message]], what: str) -> list[Completion]:
        """Return the model's greedy reply to each conversation."""
        asked = [
            Request(chat.prompt_ids(messages), probe.max_answer_tokens, chat.answer_stop_ids) for messages in chats
        ]
        made = collect(stored.stream(asked), len(asked), what)
        return [replace(reply, text=chat.whole_reply(reply.text)) for reply in made]

    with ExitStack() as opened:
        opened.enter_context(only_process(out / ".lock", f"measures into {out}"))
        remove_unfinished(out)  # temporary files of a killed run
        stored = opened.enter_context(closing(StoredEngine(engine, out, model, check)))
        # The rules judge costs nothing and always gives the same verdict, so only the verdicts of models are stored.
        if judge.name != "rules":
            judge = opened.enter_context(closing(StoredJudge(judge, out / "verdicts.jsonl", check=check)))

        # Answers: the model's greedy reply to each item (a transcript has its own), or to both forms of each pair.
        prompts = {loaded.name: _prompts(loaded, probe.system_prompt) for loaded in sets}
        in_order = iter(answer(list(chain(*prompts.values())), "answers"))
        answers = {name: list(islice(in_order, len(of_set))) for name, of_set in prompts.items()}

        # Several turns: the problem in pieces, and the answer doubted.
        rows: list[Row] = []
        for loaded in sets:
            grade = partial(grade_answer, grader=loaded.grader)
            answered = list(zip(loaded.items, answers[loaded.name], strict=False))  # a transcript has none
            if "sharded" in loaded.measures:
                told = zip(answered, loaded.shards, strict=True)
                cut = [(item, pieces, reply) for (item, reply), pieces in told if pieces]
                rows += sharded_rows(loaded.name, cut, loaded.instruction, answer, ShardedUser(), probe.seed, grade)
            if loaded.doubted:
                chosen = [answered[index] for index in loaded.doubted]
                rows += doubted_rows(loaded.name, chosen, answer, probe.seed, grade)

        # User turns: the model speaks as the user after each answer, and after each perturbation of it.
        planned: list[tuple[Row, Request | None]] = []
        for loaded in sets:
            if "followup" in loaded.measures:
                texts = [reply.text.strip() for reply in answers[loaded.name]]
                if loaded.transcript:
                    texts = [item.reply or "" for item in loaded.items]
                planned += user_turn_requests(loaded.name, loaded.items, texts, chat, probe)
        requests = [request for _, request in planned if request]
        completions = collect(stored.stream(requests), len(requests), "user turns")
        turns, unanswered = ([row for row, request in planned if bool(request) is known] for known in (True, False))
        for row, completion in zip(turns, completions, strict=True):
            text = chat.user_turn(completion.text)
            row.update(user_turn=text, user_cut=completion.finish == "length" and text == completion.text.strip())
        # The real user turns of transcripts are judged and scored like the generated ones.
        for loaded in sets:
            for item in loaded.items if loaded.transcript else ():
                messages = [*item.messages, assistant(answer_in(item.reply or "") or "")]
                turns.append(make_row("actual", loaded.name, item.id, messages, user_turn=item.actual, user_cut=False))
        mark_changed(turns)

        # Verdicts: which label each user turn gets.
        cases = [case_of(row) for row in turns]
        verdicts = collect(judge.stream(cases), len(cases), f"judged by {judge.name}")
        for row, case, verdict in zip(turns, cases, verdicts, strict=True):
            row.update(judged(case, verdict))

        # Grounding: how likely each user turn is after the answer, and after a neutral one.
        if probe.grounding:
            pairs = [grounding_requests(row["messages"], row["user_turn"], chat, probe.prefix_form) for row in turns]
            scored = list(chain(*pairs))
            try:
                log_p = iter(collect(stored.score(scored), len(scored), "grounding"))
            except CannotScore as error:
                say(f"grounding is not measured: {error}")
            else:
                for row, pair in zip(turns, pairs, strict=True):
                    if pair:  # an empty turn has no requests
                        row.update(grounding(len(pair[0].target_ids), next(log_p), next(log_p)))

        # Grades: whether each answer is right, where a model says so.
        grades: dict[str, list[Verdict]] = {}
        by_judge = [loaded for loaded in sets if loaded.by_judge and "accuracy" in loaded.measures]
        if answer_judge and by_judge:
            graders = opened.enter_context(closing(StoredJudge(answer_judge, out / "grades.jsonl", check=check)))
            for loaded in by_judge:
                given = zip(loaded.items, answers[loaded.name], strict=True)
                to_grade = [answer_case(item, reply.text, reply.finish == "length") for item, reply in given]
                of_set = collect(graders.stream(to_grade), len(to_grade), f"answers of {loaded.name} graded")
                if failed := Counter(verdict.unscored for verdict in of_set if verdict.label is None):
                    why = ", ".join(f"{reason} {count}" for reason, count in failed.most_common())
                    say(
                        f"set {loaded.name!r}: {failed.total()} of {len(of_set)} answers got no verdict ({why}) and count as wrong"
                    )
                grades[loaded.name] = of_set

    # Figures: every reply is graded, and the rows are counted.
    for loaded in sets:
        replies = answers[loaded.name]
        if "accuracy" in loaded.measures:
            of_judge = grades.get(loaded.name, [None] * len(replies))
            for item, reply, by_model in zip(loaded.items, replies, of_judge, strict=True):
                messages = [*item.messages, assistant(reply.text.strip())]
                graded = _by_verdict(item, reply, by_model) if by_model else grade_answer(item, reply, loaded.grader)
                rows.append(make_row("accuracy", loaded.name, item.id, messages, **graded))
        if "clarify" in loaded.measures:
            conditions = [(pair.id, name) for pair in loaded.pairs for name in ("complete", "underspecified")]
            for (item_id, condition), prompt, reply in zip(conditions, prompts[loaded.name], replies, strict=True):
                messages = [*prompt, assistant(reply.text.strip())]
                rows.append(make_row("clarify", loaded.name, item_id, messages, **grade_clarify(condition, reply)))
        rows += [row for row in [*turns, *unanswered] if row["set"] == loaded.name]
    check()
    store.write_samples(rows)
    timing = {
        "wall_s": round(time.monotonic() - started, 1),
        "answer_tokens": sum(reply.tokens for reply in chain(*answers.values())),
        "user_tokens": sum(completion.tokens for completion in completions),
        "judge_calls": judge.calls + (answer_judge.calls if answer_judge else 0),
        "cache_hits": stored.hits,
    }
    check()
    left_out = {loaded.name: len(loaded.left_out) for loaded in sets if loaded.left_out}
    return store.finish({**count_figures(rows), **({"left_out": left_out} if left_out else {}), "timing": timing})


def _prompts(loaded: LoadedSet, system_prompt: str | None) -> list[tuple[Message, ...]]:
    """Return the prompts of a set: each item's messages, or both forms of each pair; none for transcripts."""
    if loaded.transcript:
        return []
    if not loaded.pairs:
        return [item.messages for item in loaded.items]
    texts = [text for pair in loaded.pairs for text in (pair.complete, pair.underspecified)]
    return [_with_system((user(text),), system_prompt) for text in texts]


def _with_system(messages: tuple[Message, ...], system_prompt: str | None) -> tuple[Message, ...]:
    """Return the messages with `system_prompt` in place of their own system message, if there is one."""
    if system_prompt is None:
        return messages
    own = messages[1:] if messages[0]["role"] == "system" else messages
    return ({"role": "system", "content": system_prompt}, *own)


# --- A probe of a model by its name, and the plan of a run.


def open_model(name: str, probe: ProbeSection) -> tuple[ModelFolder, ProbeSection]:
    """Return the folder of a model, and the recipe, with a server if the name is the address of one.

    With the engine `openai` the weights are on the server, and only the tokenizer has to be on this machine. An address
    such as http://HOST:PORT/v1 stands for the model that the server lists, whose tokenizer is looked up by that name.
    """
    if name.startswith(("http://", "https://")):
        section = probe.server.model_copy(update={"urls": (name,)}) if probe.server else ServerSection(urls=(name,))
        probe = probe.model_copy(update={"engine": "openai", "server": section})
        name = Client(section).model
    folder = models.tokenizer_folder(name) if probe.engine == "openai" else models.resolve(name)
    refuse_user_model(folder.path, probe.user_model)
    return folder, probe


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
    """Run the probe on a folder from `open_model`. A finished run in `out` is returned without loading the model.

    Args:
        label: Name of the model in tables.
        step: None reads the step from the name of a `checkpoint-N` folder.
        check: See `run_probe`.
    """
    served = probe.server if probe.engine == "openai" else None
    tokenizer = models.load_tokenizer(folder)
    # What ends a text on a server is in a file of the server.
    chat = Chat(tokenizer, probe.switches, None if served else models.end_ids(folder))
    if served:
        say("stops     unknown: a server does not name its end tokens; those of tokenizer and template are sent")
        if chat.has_parts and not served.extras:
            raise BadInput(
                "probe.server.extras: given false, expected true for this chat template: it marks the answer with special "
                "tokens, which a server leaves out of its texts without extras"
            )
    else:  # the recipe says the dtype of a server, which cannot be asked
        probe = probe.model_copy(update={"dtype": models.used_dtype(folder, probe.dtype, device)})
    with closing(open_engine(folder, tokenizer, probe, device)) as engine:
        if served:
            # The weights of a server cannot be hashed. Only its name for the model identifies them.
            name = Client(served).model
            info = ModelInfo(f"served:{name}", label or Path(name).name, None, None, chat.template_sha256)
        else:
            info = models.model_info(folder, chat, label, step)
        return run_probe(engine, chat, info, probe, out, sets, check)


def describe(folder: ModelFolder, probe: ProbeSection, sets: Sequence[LoadedSet], unchecked: Sequence[str]) -> str:
    """Return the plan of a run: sets, completions, largest number of tokens, memory, and an example of a user-turn prefix."""
    chat = models.load_chat(folder, probe.switches)
    if probe.engine == "openai":
        model = f"served by {', '.join(probe.server.urls) if probe.server else 'no server yet'}"
    else:
        total = models.parameter_count(folder)
        dtype = models.used_dtype(folder, probe.dtype)
        size = f"{total / 1e6:,.1f}M parameters, {models.whole_bytes(folder, dtype) / 2**30:.2f} GiB in {dtype}"
        model = f"{size}, engine {probe.engine}"
    lines = [f"model     {folder.name}: {model}"]
    work = [work_of(loaded, probe) for loaded in sets]
    for loaded, of_set in zip(sets, work, strict=True):
        replies = "its own replies" if loaded.transcript else f"at most {of_set.answers} prompts"
        pieces = f"; {sum(map(bool, loaded.shards))} of {len(loaded.items)} given in pieces" if loaded.shards else ""
        lines.append(f"set       {loaded.name}: {replies} for {', '.join(loaded.measures)}{pieces}")
        lines += [f"          {loaded.name}: {remark}" for remark in loaded.remarks]
        if how := describe_grading(loaded):
            lines.append(f"graded    {loaded.name}: {how}")
    if probe.perturbations:
        names = [perturbation.name for perturbation in parse_perturbations(probe.perturbations)]
        lines.append(f"user turns after {', '.join(names)}")
    answers, turns, tokens = (sum(column) for column in zip(*work, strict=True)) if work else (0, 0, 0)
    lines.append(f"generate  {answers} answers, {turns} user turns: {tokens:,} tokens at most")
    servers = f" at {', '.join(probe.judge_server.urls)}" if probe.judge == "llm" and probe.judge_server else ""
    lines.append(f"judge     {probe.judge}{servers}{', grounding' if probe.grounding else ''}")
    if example := next((loaded for loaded in sets if "followup" in loaded.measures and loaded.items), None):
        messages = [*example.items[0].messages, assistant(example.items[0].reply or "(its answer)")]
        lines += [f"a user turn of {example.name} begins after ({probe.prefix_form} form):"]
        lines += ["  | " + line for line in chat.user_prefix_text(messages, probe.prefix_form).splitlines()]
        lines += [f"and ends at one of: {', '.join(repr(chat.tokenizer.decode([token])) for token in chat.stop_ids)}"]
    return visible("\n".join([*lines, *(f"could not check {line}" for line in unchecked), "nothing was written"]))


# --- The sets of a run, the settings that identify it, and the amount of work.


def load_sets(probe: ProbeSection, base: Path | None = None) -> list[LoadedSet]:
    """Load every set of a recipe, from its local path if there is one.

    Args:
        base: The folder of a training run's base probe. If given, gated sets of the hub that are not available are left out
            with a message. All probes of a run ask the same sets, so a set that its base probe left out stays left out.

    Raises:
        DataError: A set cannot be used.
    """
    parse_perturbations(probe.perturbations)  # reports a wrong name before anything is read
    if not probe.sets:
        raise DataError("probe.sets: no set is named, expected at least one such as `gsm8k: {n: 200}`")
    manifest = base / "manifest.json" if base else None
    begun = read_json(manifest)["settings"]["sets"] if manifest and manifest.is_file() else None
    loaded = []
    for name, section in probe.sets.items():
        optional = base is not None and section.path is None and name in HUB and HUB[name].gated
        if optional and begun is not None and name not in begun:
            say_once(f"probe set {name} is left out, because {base} was measured without it")
            continue
        try:
            loaded.append(_load_set(name, section, probe))
        except SetOutOfReach as error:
            if not optional or begun is not None:
                raise
            say_once(f"probe set {name} is left out: {error}")
    return loaded


def sets_within_reach(
    probe: ProbeSection, unchecked: list[str], built_later: Sequence[Path] = ()
) -> dict[str, LoadedSet | None]:
    """Return the sets for a dry run, with None for sets that are not available now.

    Args:
        unchecked: Gets a line with the reason for every set that is not available.
        built_later: Folders that are still to be filled, where a missing file is not an error.
    """
    sets: dict[str, LoadedSet | None] = {}
    for name, section in probe.sets.items():
        sets[name] = None
        path = Path(section.path) if section.path else None
        if path and not path.exists() and any(path.is_relative_to(folder) for folder in built_later):
            unchecked.append(f"probe set {name}: {path} is still to be built")
            continue
        try:
            sets[name] = _load_set(name, section, probe)
        except SetOutOfReach as error:
            unchecked.append(f"probe set {name}: {error}")
    return sets


def _load_set(name: str, section: SetSection, probe: ProbeSection) -> LoadedSet:
    path = locate(name, section.path)
    rows = [row for _, row in read_rows(path, section.columns)]
    if rows and "underspecified" in rows[0]:
        if section.measures not in (None, ("clarify",)):
            raise DataError(f"{path}: pairs of problems can only measure clarify, not {', '.join(section.measures)}")
        pairs = choose(read_pairs(path, section.columns), section.n, probe.seed)
        return LoadedSet(name, (), tuple(pairs), ("clarify",))
    # The user cannot correct a row of the hub.
    left_out: list[str] | None = None if section.path and Path(section.path).exists() else []
    items = read_items(path, section.instruction, section.transcript, section.columns, left_out)
    if left_out:
        say(f"set {name!r}: {len(left_out)} of {len(rows)} rows left out, the first: {left_out[0]}")
    items = choose(items, section.n, probe.seed)
    answered = all(item.answer is not None for item in items) and not section.transcript
    shards: tuple[Shards | None, ...] = ()
    measures = section.measures or (("accuracy", "followup") if answered else ("followup",))
    if section.transcript and measures != ("followup",):
        raise DataError(f"{path}: transcripts can only measure followup, not {', '.join(measures)}")
    if "clarify" in measures:
        raise DataError(f"{path}: clarify needs pairs (`complete`, `underspecified`), these are single questions")
    graded = [measure for measure in measures if measure in _GRADED]
    if graded and not answered:
        raise DataError(f"{path}: {graded[0]} needs an answer in every row, and {name!r} has rows without one")
    if "sharded" in measures:
        shards = _shards(read_shards(path, section.columns), items, section.instruction)
        cut = choose([index for index, pieces in enumerate(shards) if pieces], section.n_turns, probe.seed)
        shards = tuple(pieces if index in cut else None for index, pieces in enumerate(shards))
        if not cut:
            raise DataError(
                f"{path}: sharded needs problems that can be cut into a question and at least two facts, or rows with "
                f"`shards`, and none of the {len(items)} problems can be cut; leave sharded out of `measures`"
            )
    items = [replace(item, messages=_with_system(item.messages, probe.system_prompt)) for item in items]
    doubted = choose(range(len(items)), section.n_turns, probe.seed) if "doubted" in measures else ()
    by_judge = section.grader == BY_JUDGE
    if by_judge and probe.judge_server is None:
        raise DataError(
            f"probe.sets.{name}.grader: judge needs a model that grades; set `judge_server: {{urls: [http://HOST:PORT/v1]}}` "
            "under probe:"
        )
    if by_judge and {"sharded", "doubted"} & set(measures):
        raise DataError(f"probe.sets.{name}: with `grader: judge` only accuracy and followup can be measured")
    loaded = LoadedSet(
        name, tuple(items), (), measures, section.transcript, section.instruction, shards, tuple(doubted),
        _grader(section), by_judge, tuple(left_out or ()), () if section.transcript else tuple(remarks(rows, section.columns)),
    )  # fmt: skip
    if _words_by_rules(loaded):
        say(f"set {name!r}: answers graded as {describe_grading(loaded)}")
    return loaded


def _words_by_rules(loaded: LoadedSet) -> list[str]:
    """Return the answers in words that rules grade."""
    by_rules = _GRADED & set(loaded.measures) and not (loaded.grader or loaded.by_judge)
    return [item.answer or "" for item in loaded.items if answer_kind(item) == "words"] if by_rules else []


def describe_grading(loaded: LoadedSet) -> str:
    """Return how a set's answers are graded, such as "3 words, 2 numbers", with what is special about words; "" if none is."""
    if not _GRADED & set(loaded.measures):
        return ""
    if loaded.grader or loaded.by_judge:
        return "the model behind judge_server says" if loaded.by_judge else "the set's grader says"
    kinds = Counter(map(answer_kind, loaded.items))
    counts = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
    words = _words_by_rules(loaded)
    if letters := sum(len(answer) == 1 for answer in words):
        return f"{counts}; {letters} of the words are single letters: give the options as `choices` to have them graded as choices"
    how = "strict: the reply or its mark is the answer, lenient: the reply contains it"
    return f"{counts} (such as {words[0]!r}; {how})" if words else counts


def _shards(own: Mapping[str, Shards], items: Sequence[Item], instruction: str) -> tuple[Shards | None, ...]:
    """Return the pieces of each item, its own or cut by rules; None for a conversation, and where rules cannot cut."""
    return tuple(
        (own.get(item.id) or split(_question(item, instruction))) if len(item.messages) == 1 else None for item in items
    )


def _question(item: Item, instruction: str) -> str:
    """Return an item's last user message without the set's instruction."""
    return item.messages[-1]["content"].removesuffix(f"\n\n{instruction}")


def _grader(section: SetSection) -> Grader | None:
    """Return the function of `grader`, or None if there is none.

    Raises:
        DataError: It cannot be imported.
    """
    if section.grader is None or section.grader == BY_JUDGE:
        return None
    try:
        return load_named(section.grader)
    except (ImportError, AttributeError) as error:
        raise DataError(
            f"grader: {section.grader} cannot be imported ({error}); expected MODULE:FUNCTION of a module that Python can import, "
            "such as a file in this folder"
        ) from None


def _by_verdict(item: Item, reply: Completion, verdict: Verdict) -> Row:
    """Grade one reply by a judge's verdict on it."""
    graded = grade_answer(item, reply, lambda text, answer: verdict.label == RIGHT)
    return {**graded, "judge_raw": verdict.raw, "unscored": verdict.unscored, "graded_as": "judge"}


def _answer_judge(probe: ProbeSection, sets: Sequence[LoadedSet]) -> AnswerJudge | None:
    """Return the judge of answers, or None if no set is graded by it."""
    by_judge = any(loaded.by_judge for loaded in sets)
    return AnswerJudge(probe.judge_server) if by_judge and probe.judge_server else None


def _graded_otherwise(loaded: LoadedSet, section: SetSection | None, judge: AnswerJudge | None) -> dict[str, Any]:
    """Return the settings of a set whose answers are not read as numbers, letters or formulas."""
    if loaded.by_judge and judge:
        return {"grader": judge.version}
    if section is not None and section.grader:
        return {"grader": section.grader}
    return {"words": WORDS} if _words_by_rules(loaded) else {}


WORDS = 2
"""How answers in words are read; raised when the same reply would get another figure. Runs without it read marked ones only.
2: words with a number (Apollo 11) are words, too, and what a truncated reply merely mentions is no answer."""


def settings_of(
    probe: ProbeSection, sets: Sequence[LoadedSet], judge_version: str, answer_judge: AnswerJudge | None = None
) -> dict[str, Any]:
    """Return the settings by which a run is compared and resumed: all that can change a number, and the questions."""
    kept = recipe_dict(probe, Mark.FREE, Mark.IN_PROBES)  # the judge's version stands for its name
    asked = {
        loaded.name: {
            "sha256": sets_hash([*loaded.items, *loaded.pairs]),
            "n": len(loaded.items) + len(loaded.pairs),
            "measures": list(loaded.measures),
            **({"shards": sha256_text(repr(loaded.shards))} if loaded.shards else {}),
            **({"doubted": len(loaded.doubted)} if loaded.doubted else {}),
            **_graded_otherwise(loaded, probe.sets.get(loaded.name), answer_judge),
        }
        for loaded in sets
    }
    perturbations = [perturbation.name for perturbation in parse_perturbations(probe.perturbations)[1:]]
    # Without its extras a server samples by the model's own top_k, min_p and repetition penalty, which changes numbers. The key
    # is written only if they are off, so that runs begun with them on before this key existed can still be compared.
    bare = probe.engine == "openai" and probe.server is not None and not probe.server.extras
    extras = {"extras": False} if bare else {}
    return {**kept, "grading": GRADING, "perturbations": perturbations, "judge": judge_version, "sets": asked, **extras}


def refuse_other_settings(folders: Sequence[Path], made: str, probe: ProbeSection, sets: Sequence[LoadedSet]) -> None:
    """Raise SettingsChanged if one of these probes was begun with other settings, because they are compared later."""
    judge = get_judge(probe.judge, probe.judge_server)
    now = settings_of(probe, sets, judge.version, _answer_judge(probe, sets))
    for folder in folders:
        if (folder / "manifest.json").is_file():
            refuse_changes(folder, made, read_json(folder / "manifest.json")["settings"], now, free=("stops",))


class Work(NamedTuple):
    """The most that a set costs: answers, user turns, and the tokens of both together."""

    answers: int
    user_turns: int
    tokens: int


def work_of(loaded: LoadedSet, probe: ProbeSection) -> Work:
    """Return the most that a set costs under a recipe."""
    answers = (0 if loaded.transcript else len(loaded.items)) + 2 * len(loaded.pairs)
    answers += sum(len(pieces.facts) + 2 for pieces in loaded.shards if pieces)  # concat, and a reply to each piece
    answers += len(loaded.doubted)
    per_answer = sum(probe.samples if temperature > 0 else 1 for temperature in probe.temperatures)
    per_item = per_answer * len(parse_perturbations(probe.perturbations))
    turns = len(loaded.items) * per_item if "followup" in loaded.measures else 0
    return Work(answers, turns, answers * probe.max_answer_tokens + turns * probe.max_user_tokens)
