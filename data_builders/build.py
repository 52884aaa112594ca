"""Build a data directory from a recipe, part by part.

settings.json is written first, manifest.json last. A part covers a range of problems and depends only on the settings and
on earlier parts, so a build that was killed skips the finished parts and ends with the same bytes; the replies of models are
stored as they come. All sources are read and checked before the directory is created.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from nextturn.data_builders.card import CARD, WARN, card, user_notes
from nextturn.data_builders.dialogue.conversation import ConversationMaker
from nextturn.data_builders.preferences import write_pairs
from nextturn.data_builders.problems import Problems
from nextturn.data_builders.quality import QualityFilter, probe_files
from nextturn.data_builders.replay import ReplayRows
from nextturn.data_builders.rows import rl_columns, rl_rows, sft_row
from nextturn.data_builders.scripted import converse, plan
from nextturn.data_builders.sections import DataRecipe, Dialogue, SimulatorSection, shaping
from nextturn.data_builders.sharded import Teller
from nextturn.data_builders.simulators import check_own_class, check_user_model, open_simulator
from nextturn.data_builders.tasks import Conversation
from nextturn.data_builders.written import FILE, only_talk, written
from nextturn.probe.command import files
from nextturn.probe.command.errors import BadInput, DataError, SetOutOfReach
from nextturn.probe.command.recipe import Mark, may_differ
from nextturn.probe.command.terminal import say
from nextturn.probe.data.tables import is_saved, sha256_of
from nextturn.probe.engines.ask import open_model
from nextturn.probe.questions.sets import HUB, PACKAGED

Row = dict[str, Any]
WORK = ".work"
"""Subdirectory for files that are needed only during the build."""
_REASONS_SHOWN = 4
NEEDS = (
    "these conversations need problems (`source.path`) and a model: a folder or hub id (`dialogue.policy.model`), or a "
    "server (`dialogue.policy: {engine: openai, server: {urls, model}}`); recipes/written.yaml needs nothing"
)


def build(recipe: DataRecipe, out: Path | None = None) -> Path:
    """Build the recipe's data into `out` (default: the recipe's output.path), unless it holds a finished build already."""
    folder = out or Path(recipe.output.path)
    if not is_built(folder, recipe, elsewhere=True):
        Build(recipe).run(folder)
    return folder


def is_built(out: Path, recipe: DataRecipe, elsewhere: bool = False) -> bool:
    """Return True if `out` holds a finished build of this recipe. The sources are not opened.

    Args:
        elsewhere: Also accept a build from another `source.path`, with another `preferences.model` or with another
            simulator, and print both values: a training recipe does not repeat the options of the build.

    Raises:
        SettingsChanged: `out` holds a build with other settings, or from files that have changed since.
    """
    if not (out / "manifest.json").is_file():
        return False
    recipe, before = with_simulator(recipe), files.read_json(out / "settings.json")
    inputs = before["inputs"].items()
    there = {name: Path(name).is_file() or (name not in HUB and is_saved(Path(name))) for name, _ in inputs}
    hashes = {name: sha256_of(Path(name)) if there[name] else known for name, known in inputs}
    now = {**shaping(recipe), "inputs": hashes}
    _refuse_changes(out, before, now, *([Mark.AFTER_BUILDS] if elsewhere else []))
    for line in files.differences(before, now):
        say(
            f"{out}: this finished build is used, although the recipe has changed since: {line}; delete the folder to build it again"
        )
    shutil.rmtree(out / WORK, ignore_errors=True)  # left by a build that was killed at its very end
    return True


def with_simulator(recipe: DataRecipe) -> DataRecipe:
    """Return the recipe with its fallback in place of a user model that does not exist yet, and say so."""
    dialogue = recipe.dialogue
    if dialogue is None or not dialogue.simulator.fallback or Path(str(dialogue.simulator.model)).is_dir():
        return recipe
    say(
        f"note: there is no user model in {dialogue.simulator.model}, so a script writes the user turns. A user model writes "
        "better ones: train it first, with a recipe such as recipes/user_qwen2b.yaml"
    )
    dialogue = dialogue.model_copy(update={"simulator": SimulatorSection()})
    return recipe.model_copy(update={"dialogue": dialogue})


def look_for_models(dialogue: Dialogue) -> dict[str, str]:
    """Check that the models and packages of the recipe can be found, and return the hash of a user model's weights.

    Raises:
        BadInput: A model, or the package that runs it, is missing.
    """
    from nextturn.probe.engines.vllm import import_vllm
    from nextturn.probe.models.folders import fingerprint, resolve

    simulator = dialogue.simulator
    if simulator.engine == "adapter":
        check_user_model(simulator, "dialogue.simulator")
    try:
        for section in (dialogue.policy, simulator.running):
            if section.model is not None:
                resolve(section.model)
            if section.engine == "vllm":
                import_vllm()
    except BadInput as error:
        raise type(error)(f"{error}; {NEEDS}") from None
    name = str(simulator.model)
    return {f"{name}: weights": fingerprint(resolve(name))} if simulator.engine == "adapter" else {}


class Build:
    """A recipe whose sources have been read and checked. Nothing is written, no server is asked, no model is loaded yet.

    Raises:
        BadInput: The recipe or a file that it names cannot be used.
    """

    def __init__(self, recipe: DataRecipe) -> None:
        recipe = with_simulator(recipe)
        self.recipe = recipe
        # First of all, so that a dry run says so even where the problems are out of reach.
        own = check_own_class(recipe.dialogue.simulator, "dialogue.simulator") if recipe.dialogue else {}
        try:
            self.problems = Problems(recipe.source, recipe.seed, reserved=recipe.reserved)
        except SetOutOfReach as error:
            raise SetOutOfReach(f"{error}; {NEEDS}" if recipe.dialogue else str(error)) from None
        self.written = written(recipe.chosen, recipe.seed) if recipe.chosen else []
        self.replay = ReplayRows(recipe, len(self.problems), len(self.written))
        sets = probe_files(dict.fromkeys([*recipe.quality.decontaminate, *PACKAGED]))
        self.quality = recipe.quality.model_copy(update={"decontaminate": list(sets)})
        hashes = {name: files.sha256_file(path) for name, path in sets.items()}
        if self.written:
            hashes[FILE.name] = files.sha256_file(FILE)
        inputs = {**self.problems.inputs(), **self.replay.inputs(), **hashes, **own}
        self.settings: dict[str, Any] = {**shaping(recipe), "inputs": inputs}
        self.teller = Teller(recipe) if recipe.sharded else None

    def conversations(self, index: int) -> Iterator[Conversation]:
        """Yield the scripted conversations about problem `index`."""
        task, settings, seed = self.problems[index], self.recipe.conversations, self.recipe.seed
        for kind in plan(task, seed, settings):
            yield converse(task, kind, seed, settings)

    def parts(self) -> list[range]:
        size, every = self.recipe.output.shard_size, range(len(self.problems))
        return [every[start : start + size] for start in every[::size]]

    def quality_filter(self) -> QualityFilter:
        """Return the quality filter of this build.

        Raises:
            DataError: A probe set cannot be used.
        """
        rows = (len(self.problems) * self.recipe.per_problem + len(self.written)) / (1 - self.recipe.replay.fraction)
        return QualityFilter(self.quality, round(rows * (1 + self.recipe.sharded)))

    def run(self, out: Path) -> dict[str, Any]:
        """Build into `out`, or resume the build there, and return the manifest."""
        if self.recipe.dialogue is not None:
            self.settings["inputs"] |= look_for_models(self.recipe.dialogue)
        quality = self.quality_filter()  # it reads files, so it comes before anything is written
        with claimed(out, self.settings):
            return self.write(out, quality)

    def write(self, out: Path, quality: QualityFilter) -> dict[str, Any]:
        """Write what is missing in a claimed folder, and return the manifest."""
        self.replay.ask(out / WORK / "replay")
        if self.written and not resumed(out, "written", quality, self.teller):
            indices = range(0 if len(self.problems) else len(self.written))
            replay = (row for index in indices for row in self.replay.rows(index))
            write_part(out, "written", self.filtered([*self.written, *replay], quality))
        self.write_parts(out, quality)
        with files.atomic(out / "rejected.jsonl") as file:
            for part in sorted((out / "rejected").glob("part-*.jsonl")):
                with part.open("rb") as source:
                    shutil.copyfileobj(source, file)
        totals = self.totals(out)
        if self.recipe.preferences is not None:
            totals["pairs"] = write_pairs(self.recipe.preferences, out, out / WORK / "preferences", self.recipe.seed)
        return self.finish(out, totals, quality)

    def write_parts(self, out: Path, quality: QualityFilter) -> None:
        """Write each part that an earlier run has not written: conversations about its problems, and their replay rows."""
        from tqdm import tqdm

        parts = {f"{number:05}": part for number, part in enumerate(self.parts())}
        while parts and resumed(out, next(iter(parts)), quality, self.teller):
            del parts[next(iter(parts))]
        total = len(self.problems)
        done = total - sum(map(len, parts.values()))
        with ExitStack() as stack:
            maker = stack.enter_context(self.maker(out / "calls")) if self.recipe.dialogue else None
            bar = stack.enter_context(tqdm(total=total, initial=done, unit=" problems", disable=not total))
            for name, part in parts.items():
                by_problem: Iterable[Iterable[Conversation]] = map(self.conversations, part)
                if maker is not None:
                    by_problem = made = maker.conversations([self.problems[index] for index in part])
                    if not part.start:
                        self.check_yield(made)
                pairs = zip(part, by_problem, strict=True)
                rows = (row for index, own in pairs for row in (*own, *self.replay.rows(index)))
                write_part(out, name, self.filtered(rows, quality))
                bar.update(len(part))

    @contextmanager
    def maker(self, folder: Path) -> Iterator[ConversationMaker]:
        """Open the policy and the simulated user, whose replies are stored in `folder`."""
        dialogue, seed = self.recipe.dialogue, self.recipe.seed
        assert dialogue is not None
        with (
            open_model("assistant", dialogue.policy, seed, "dialogue.policy", folder) as policy,
            open_simulator(dialogue.simulator, seed, "dialogue.simulator", folder / "simulator") as simulator,
        ):
            yield ConversationMaker(dialogue, policy, simulator, seed)

    def check_yield(self, made: Sequence[Sequence[Conversation]]) -> None:
        """Stop a build whose policy solves next to nothing.

        Raises:
            DataError: The share of solved problems is below `dialogue.least_solved`.
        """
        assert self.recipe.dialogue is not None
        least, solved = self.recipe.dialogue.least_solved, sum(not own[0].reason for own in made)
        if solved < least * len(made):
            reasons = Counter(own[0].reason for own in made if own[0].reason).most_common(_REASONS_SHOWN)
            named = ", ".join(f"{count} {reason}" for reason, count in reasons)
            raise DataError(
                f"the policy solved {solved} of the first {len(made)} problems ({named}), below dialogue.least_solved "
                f"{least:g}; use easier problems (source.levels), more dialogue.tries, or lower that bound"
            )
        say(f"solved {solved} of the first {len(made)} problems, conversations: {sum(map(len, made))}")

    def filtered(self, conversations: Iterable[Conversation], quality: QualityFilter) -> dict[str, list[Row]]:
        """Return the rows by view: rejected ones with their reason, and the sft and rl rows of kept ones."""
        views: dict[str, list[Row]] = {name: [] for name in ("rejected", "rl", "sft")}
        if teller := self.teller:
            conversations = (
                each for made in conversations for each in (made, teller.sharded(made)) if each is not None
            )
        talk = self.recipe.chosen is not None and self.recipe.chosen.loss_on == "talk"
        for conversation in conversations:
            row = sft_row(conversation)
            if reason := conversation.reason or quality.reason(conversation):
                unusable = {} if conversation.unusable is None else {"slips": conversation.unusable}
                views["rejected"].append({**row, "reason": reason, **unusable})
            else:
                if talk and conversation.source == "written":
                    row["messages"] = only_talk(row["messages"])
                if teller:
                    teller.remember(row)
                views["sft"].append(row)
                views["rl"] += map(rl_columns, rl_rows(conversation))
        return views

    def totals(self, out: Path) -> dict[str, Any]:
        """Return the manifest's numbers of conversations with a simulated user, of replies by role, and of what became of the
        user's turns (`events`, read by `card.user_notes`); remove the replies."""
        calls, events, conversations = self.replay.calls(), Counter[str](), 0
        for path in sorted([*(out / "sft").glob("part-*.jsonl"), *(out / "rejected").glob("part-*.jsonl")]):
            for row in (row for _, row in files.read_jsonl(path) if "dialogue" in row):
                conversations += 1
                calls.update(row["dialogue"]["calls"])
                events.update(row["dialogue"].get("events", "").split())
        shutil.rmtree(out / "calls", ignore_errors=True)
        totals: dict[str, Any] = {"conversations": conversations, "events": events} if self.recipe.dialogue else {}
        return {**totals, "calls": dict(sorted(calls.items()))} if calls else totals

    def finish(self, out: Path, totals: dict[str, Any], quality: QualityFilter) -> dict[str, Any]:
        """Write the card and then the manifest, both counted from the files themselves.

        Args:
            totals: Further fields of the manifest.

        Raises:
            DataError: The first messages give away what lacks a fact. The card is written then, the manifest is not.
        """
        lost = out / "rejected.jsonl"
        parts = {view: sorted((out / view).glob("*.jsonl")) for view in ("sft", "rejected", "rl", "preference")}
        views = {view: parts[view] for view in ("sft", "rl", "preference") if parts[view]}
        rejected = Counter[str](row["reason"] for row in _rows(lost))
        rows, calls, notes = _rows(*parts["sft"]), totals.get("calls"), user_notes(totals)
        for note in notes:
            say(f"{out}: {note}")
        page, giveaway = card(rows, _rows(lost), self.settings, quality.checked, calls, views, notes)
        files.write_atomic(out / CARD, page)
        auc, limit = giveaway.value, self.quality.max_giveaway
        if auc is not None and auc > WARN:
            message = (
                f"{out}: first messages that lack a fact can be recognized by their wording (AUC {auc:.2f} of "
                f"{giveaway.n} first messages)"
            )
            if auc > limit:
                raise DataError(
                    f"{message}, above quality.max_giveaway {limit:g}: a model would learn the wording instead of when to "
                    f"ask; see {out / CARD}, reword the first messages, or raise the limit"
                )
            say(f"warning: {message}. The model may learn the wording instead of when to ask.")
        parts["rejected"].append(lost)
        counts = {path: sum(1 for _ in files.read_jsonl(path)) for paths in parts.values() for path in paths}
        kept = sum(counts[path] for path in parts["sft"])
        manifest = {
            "schema": 1,
            "asked": kept + rejected.total(),
            "kept": kept,
            "rejected": dict(sorted(rejected.items())),
            "seed": self.settings["seed"],
            "settings": self.settings,
            "giveaway": vars(giveaway),
            **totals,
            "files": {
                str(path.relative_to(out)): {"rows": n, "sha256": files.sha256_file(path)} for path, n in counts.items()
            },
        }
        files.write_json(out / "manifest.json", manifest)
        shutil.rmtree(out / WORK, ignore_errors=True)
        return manifest


def _rows(*paths: Path) -> Iterator[Row]:
    return (row for path in paths for _, row in files.read_jsonl(path))


def resumed(out: Path, name: str, quality: QualityFilter, teller: Teller | None) -> bool:
    """Return True if an earlier run wrote this part, and load its kept rows into the quality filter and the teller."""
    path = out / f"sft/part-{name}.jsonl"
    if not path.is_file():
        return False
    for _, row in files.read_jsonl(path):
        quality.remember(row["messages"], row["kind"])
        if teller:
            teller.remember(row)
    return True


def _refuse_changes(out: Path, before: dict[str, Any], now: dict[str, Any], *where: Mark) -> None:
    free = may_differ(DataRecipe, Mark.IN_BUILDS, *where)
    engines = {((settings.get("dialogue") or {}).get("simulator") or {}).get("engine") for settings in (before, now)}
    if engines <= {"hf", "vllm"}:  # other simulators may differ in nothing but this key
        free += ("dialogue.simulator.engine",)
    files.refuse_changes(out, "built", before, now, free)


@contextmanager
def claimed(out: Path, settings: dict[str, Any]) -> Iterator[None]:
    """Write settings.json, or check that the existing one has the same settings. Other processes are kept out of the folder.

    Raises:
        BadInput: `out` holds something else, or another process builds into it.
    """
    begun = out / "settings.json"
    if out.exists() and not out.is_dir():
        raise BadInput(f"{out}: is a file, expected a directory for the data")
    if out.is_dir() and not begun.is_file() and any(path.name[0] != "." for path in out.iterdir()):
        raise BadInput(f"{out}: holds other files and is no data build; give an empty or new directory with --out")
    with files.only_process(out / WORK / "lock", f"builds into {out}"):
        files.remove_unfinished(out)
        if begun.is_file():
            _refuse_changes(out, files.read_json(begun), settings)
        else:
            files.write_json(begun, settings)
        yield


def write_part(out: Path, name: str, views: dict[str, list[Row]]) -> None:
    """Write the files of a part. The sft file comes last: it marks the part as written."""
    for view, rows in views.items():
        files.write_jsonl(out / f"{view}/part-{name}.jsonl", rows)
