"""One probe run, from top to bottom: what the measures ask, in rounds, then their figures.

The model is loaded once and serves all measures and sets. A reply that two measures need is generated once. Everything is stored as soon as it exists, so a killed run is resumed where it
stopped and ends with the same results.json as a run that was not killed.
"""

from __future__ import annotations

import json
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, TypeVar

from nextturn.probe.command.errors import BadInput, CannotScore, DataError
from nextturn.probe.command.files import only_process, remove_unfinished
from nextturn.probe.command.own import own_code
from nextturn.probe.command.sections import ProbeSection, ServerSection
from nextturn.probe.command.terminal import collected, say
from nextturn.probe.data.messages import Message
from nextturn.probe.engines import open_engine
from nextturn.probe.engines.base import Completion, Engine, Request, ScoreRequest
from nextturn.probe.engines.client import Client
from nextturn.probe.engines.stored import Row, StoredEngine
from nextturn.probe.judges import get_judge
from nextturn.probe.measures import MEASURES
from nextturn.probe.measures.base import Grade, Label, LogP, Measure, Reply, UserTurn, Wish
from nextturn.probe.models import folders as models
from nextturn.probe.models.folders import ModelFolder, ModelInfo
from nextturn.probe.models.user_model import refuse_user_model
from nextturn.probe.plan import LoadedSet, answer_judge_of, load_sets, settings_of
from nextturn.probe.results import OwnMeasure, count_figures
from nextturn.probe.store import RunStore, StoredJudge
from nextturn.probe.text.chat import Chat

T = TypeVar("T")


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
    answer_judge = answer_judge_of(probe, sets)
    store = RunStore(out, model, {**settings_of(probe, sets, judge.version, answer_judge), "stops": chat.ends})
    if (finished := store.results()) is not None:
        return finished
    if probe.judge_server and (judge.name == "llm" or answer_judge):
        Client(probe.judge_server).check()  # before hours of generation

    def collect(stream: Iterator[tuple[int, T]], total: int, what: str) -> list[T]:
        return collected(stream, total, f"probe {model.label}: {what}")

    def prefix_ids(messages: Sequence[Message]) -> tuple[int, ...]:
        return chat.user_prefix_ids(chat.with_tools(messages), probe.prefix_form)

    def request(wish: Reply | UserTurn) -> Request:
        if isinstance(wish, Reply):
            prompt = chat.prompt_ids(chat.with_tools(wish.messages))
            return Request(prompt, probe.max_answer_tokens, chat.answer_stop_ids)
        prefix = prefix_ids(wish.messages)
        return Request(prefix, probe.max_user_tokens, chat.stop_ids, wish.temperature, wish.seed)

    def complete(wishes: Sequence[Reply | UserTurn]) -> list[Completion]:
        """Return the model's replies and user turns, in one round."""
        requests = [request(wish) for wish in wishes]
        made = collect(stored.stream(requests), len(requests), "replies and user turns")
        return [
            replace(reply, text=chat.whole_reply(reply.text)) if isinstance(wish, Reply) else _user_turn(chat, reply)
            for wish, reply in zip(wishes, made, strict=True)
        ]

    def score(wishes: Sequence[LogP]) -> Sequence[float | None]:
        requests = [ScoreRequest(prefix_ids(wish.messages), chat.text_ids(wish.text)) for wish in wishes]
        try:
            return collect(stored.score(requests), len(requests), "grounding")
        except CannotScore as error:
            say(f"grounding is not measured: {error}")
            return [None] * len(requests)

    def answer(wishes: Sequence[Any]) -> Sequence[Any]:
        kind = type(wishes[0])
        if kind is LogP:
            return score(wishes)
        if kind in (Reply, UserTurn):
            return complete(wishes)
        by = judge if kind is Label else graders
        assert by is not None, "a set with `grader: judge` has a judge of answers"
        cases = [wish.case for wish in wishes]
        return collect(by.stream(cases), len(cases), f"judged by {by.name}")

    with ExitStack() as opened:
        opened.enter_context(only_process(out / ".lock", f"measures into {out}"))
        remove_unfinished(out)  # temporary files of a killed run
        stored = opened.enter_context(closing(StoredEngine(engine, out, model, check)))
        # The rules judge costs nothing and always gives the same verdict, so only the verdicts of models are stored.
        if judge.name != "rules":
            judge = opened.enter_context(closing(StoredJudge(judge, out / "verdicts.jsonl", check=check)))
        graders = StoredJudge(answer_judge, out / "grades.jsonl", check=check) if answer_judge else None
        if graders:
            opened.enter_context(closing(graders))
        rows, replies = ask_all(measures_of(sets, probe, chat), answer)
    _say_ungraded(rows)
    _add_parts(rows, sets)
    others = {each.name: each for loaded in sets for each in loaded.measures if each.name not in MEASURES}
    for row in (row for row in rows if row["kind"] in others):  # when figures are counted, no item is known any more
        with _naming(others[row["kind"]], row["set"], row["item"]):
            for figure in others[row["kind"]].figures:
                figure.of(row)
    check()
    store.write_samples(rows)
    made = {kind: [reply.tokens for wish, reply in replies if isinstance(wish, kind)] for kind in (Reply, UserTurn)}
    timing = {
        "wall_s": round(time.monotonic() - started, 1),
        "answer_tokens": sum(made[Reply]),
        "user_tokens": sum(made[UserTurn]),
        "judge_calls": judge.calls + (graders.calls if graders else 0),
        "cache_hits": stored.hits,
    }
    check()
    left_out = {loaded.name: len(loaded.left_out) for loaded in sets if loaded.left_out}
    own = {name: OwnMeasure(title=of.kinds.get(name, name), figures=tuple(of.figures)) for name, of in others.items()}
    counted = count_figures(rows, own)
    for name, measure in counted.get("own", {}).items():
        for of_set, figures in measure["sets"].items():
            if empty := [each.name for each in own[name].figures if figures[each.name]["value"] is None]:
                say(f"measure {name} on {of_set}: no row has a value of {', '.join(empty)}")
    return store.finish({**counted, **({"left_out": left_out} if left_out else {}), "timing": timing})


def measures_of(sets: Sequence[LoadedSet], probe: ProbeSection, chat: Chat) -> list[tuple[Measure, Sequence[Any]]]:
    """Return the measures of every set with what each takes of it, in the order of samples.jsonl."""
    order = [*MEASURES.values()]
    found = []
    for loaded in sets:
        pairs = list(zip(loaded.measures, loaded.chosen.values(), strict=True))
        pairs.sort(key=lambda pair: order.index(pair[0]) if pair[0] in order else len(order))
        found += [(measure(loaded, probe, chat), chosen) for measure, chosen in pairs]
    return found


# --- Rounds

_STAGES: dict[type, int] = {Reply: 0, UserTurn: 0, Label: 1, LogP: 2, Grade: 3}
"""Wishes of one stage are answered together. A later stage waits until nobody wants an earlier one, so that a judge, whose share of
failures ends a run, gets all user turns at once."""


def ask_all(
    measures: Sequence[tuple[Measure, Sequence[Any]]], answer: Callable[[Sequence[Any]], Sequence[Any]]
) -> tuple[list[Row], list[tuple[Wish, Any]]]:
    """Move the generators of all items forward together, and return their rows and every wish with its reply.

    What they want at one moment is one round, and equal wishes are made once. The rows are in the order of measures and items.

    Args:
        measures: Each measure with what it takes of its set.
        answer: Returns the replies to the wishes of one stage.
    """
    asking = [(measure, item, measure.ask(item)) for measure, items in measures for item in items]
    rows: list[list[Row]] = [[] for _ in asking]
    wishes: dict[str, Wish] = {}
    replies: dict[str, Any] = {}
    waiting: dict[int, tuple[list[str], bool]] = {}
    moving: list[tuple[int, Any]] = [(place, None) for place in range(len(asking))]
    while moving or waiting:
        for place, reply in moving:
            measure, item, generator = asking[place]
            with _naming(type(measure), measure.set.name, getattr(item, "id", item)):
                try:
                    wanted = generator.send(reply)
                except StopIteration as end:
                    rows[place] = end.value
                    continue
                several = [wanted] if isinstance(wanted, Wish) else wanted
                keys = [_key(wish) for wish in several]
            wishes.update(zip(keys, several, strict=True))
            waiting[place] = keys, several is wanted
        if missing := [key for key, wish in wishes.items() if key not in replies]:
            stage = min(_STAGES[type(wishes[key])] for key in missing)
            together = [key for key in missing if _STAGES[type(wishes[key])] == stage]
            replies.update(zip(together, answer([wishes[key] for key in together]), strict=True))
        ready = [place for place, (keys, _) in waiting.items() if all(key in replies for key in keys)]
        moving = []
        for place in ready:
            keys, as_list = waiting.pop(place)
            found = [replies[key] for key in keys]
            moving.append((place, found if as_list else found[0]))
    of_measures: dict[Measure, list[Row]] = {measure: [] for measure, _ in measures}
    for (measure, *_), of_item in zip(asking, rows, strict=True):
        of_measures[measure] += of_item
    in_order: list[Row] = []
    for measure, found in of_measures.items():
        in_order += sorted(found, key=lambda row: row["kind"] != measure.name)
    return in_order, [(wishes[key], reply) for key, reply in replies.items()]


def _naming(measure: type[Measure], of_set: str, item: Any) -> AbstractContextManager[None]:
    """Name measure and item in what the code of a measure of one's own raises. A fault of this package keeps its traceback."""
    named = f"measure {measure.__module__}:{measure.__qualname__} on {of_set}:{str(item)[:60]}"
    return nullcontext() if measure.name in MEASURES else own_code(named)


def _key(wish: Wish) -> str:
    """Return what two equal wishes have in common."""
    return json.dumps([type(wish).__name__, asdict(wish)], sort_keys=True, default=str)


def _user_turn(chat: Chat, completion: Completion) -> Completion:
    """Return the user's turn in a completion; it is cut only if the limit ended the turn itself."""
    text = chat.user_turn(completion.text)
    cut = completion.finish == "length" and text == completion.text.strip()
    return replace(completion, text=text, finish="length" if cut else "stop")


def _add_parts(rows: Sequence[Row], sets: Sequence[LoadedSet]) -> None:
    """Write into rows the conversation of their item, and its values of the columns by which figures are counted apart."""
    items = {(loaded.name, item.id): item for loaded in sets for item in loaded.items if item.cluster or item.by}
    for row in rows:
        if item := items.get((row["set"], row["item"])):
            row.update({"by": dict(item.by), **({"cluster": item.cluster} if item.cluster else {})})


def _say_ungraded(rows: Sequence[Row]) -> None:
    """Say how many answers a model should have graded and did not."""
    graded: dict[str, list[str | None]] = defaultdict(list)
    for row in rows:
        if row["graded_as"] == "judge":
            graded[row["set"]].append(row["unscored"])
    for name, unscored in graded.items():
        if failed := Counter(reason for reason in unscored if reason):
            why = ", ".join(f"{reason} {count}" for reason, count in failed.most_common())
            say(f"set {name!r}: {failed.total()} of {len(unscored)} answers got no verdict ({why}) and count as wrong")


# --- A probe of a model by its name.


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
        say("stops     unknown: a server does not report its end tokens; the run sends those of tokenizer and template")
        if chat.has_parts and not served.extras:
            why = "its special tokens mark the answer, and with `server: {extras: false}` a server leaves them out"
            raise BadInput(f"probe.server.extras: given false, expected true for this chat template: {why}")
    else:  # the recipe says the dtype of a server, which cannot be asked
        probe = probe.model_copy(update={"dtype": models.used_dtype(folder, probe.dtype, device)})
    with closing(open_engine(folder, tokenizer, probe, probe.seed, device)) as engine:
        if served:
            # The weights of a server cannot be hashed. Only its name for the model identifies them.
            name = Client(served).model
            info = ModelInfo(f"served:{name}", label or Path(name).name, None, None, chat.template_sha256)
        else:
            info = models.model_info(folder, chat, label, step)
        return run_probe(engine, chat, info, probe, out, sets, check)
