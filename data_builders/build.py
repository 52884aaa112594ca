"""Builds a data folder from a recipe: problems in, conversations out, shard by shard.

settings.json is written first, manifest.json last. A shard is a run of problems and is a function of the settings and of
the shards before it, so a build that was killed skips the finished shards and ends with the same bytes. In self-play a
shard is written when its conversations have ended and all shards before it are written; until then replies are kept.
Sources are read and checked in full before the folder is made.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import chain
from pathlib import Path
from typing import Any

from nextturn.data_builders.card import WARN, card
from nextturn.data_builders.dialogue.conversation import play
from nextturn.data_builders.dialogue.finished import Finished
from nextturn.data_builders.dialogue.prompts import Plan, plans_of
from nextturn.data_builders.dialogue.roles import Roles, ask_all, look_for_models
from nextturn.data_builders.preferences import write_pairs
from nextturn.data_builders.problems import Problems, held_out
from nextturn.data_builders.quality import Gate, probe_files
from nextturn.data_builders.recipe import DataRecipe, shaping
from nextturn.data_builders.replay import ReplayRows
from nextturn.data_builders.rows import rl_rows, sft_row
from nextturn.data_builders.scripted import converse, plan
from nextturn.data_builders.tasks import Conversation
from nextturn.data_builders.written import FILE, written
from nextturn.probe.errors import BadInput, DataError, SetOutOfReach
from nextturn.probe.files import (
    atomic,
    read_json,
    read_jsonl,
    remove_unfinished,
    sha256_file,
    write_atomic,
    write_json,
    write_jsonl,
)
from nextturn.probe.measure.store import differences, refuse_changes
from nextturn.probe.sets import PACKAGED
from nextturn.probe.terminal import say

Row = dict[str, Any]
Made = Iterable[Iterable[Conversation]]
"""Of each problem of a shard, in order, its conversations."""
WORK = ".work"
"""The folder inside a build's for what is needed only until it ends."""
_FEW = 50  # conversations, under which shares are left to chance
_TOLD_AFTER, _REASONS_TOLD = 20, 4  # conversations of self-play after which it is said that none can be used
NEEDS = (
    "self-play needs problems (`source.path`) and a model: a folder or hub id with a GPU (`dialogue.policy.model`), or a "
    "server (`dialogue.policy: {engine: openai, server: {urls, model}}`); recipes/written.yaml needs nothing"
)


_ELSEWHERE = ("source.path:", "preferences.model")


def build(recipe: DataRecipe, out: Path | None = None) -> Path:
    """Build the recipe's data into `out` (default: the recipe's output.path), unless it holds a finished build already."""
    folder = out or Path(recipe.output.path)
    if not finished(folder, recipe, elsewhere=True):
        Build(recipe).run(folder)
    return folder


def finished(out: Path, recipe: DataRecipe, elsewhere: bool = False) -> bool:
    """Return True if `out` holds a finished build of this recipe. The sources are not opened.

    Args:
        elsewhere: Also accept a build from another `source.path` or with another `preferences.model`, and print both
            values: a training recipe does not repeat the options of the build.

    Raises:
        SettingsChanged: `out` holds a build with other settings, or of files that have changed since.
    """
    if not (out / "manifest.json").is_file():
        return False
    before = read_json(out / "settings.json")
    files = {
        name: sha256_file(Path(name)) if Path(name).is_file() else known for name, known in before["inputs"].items()
    }
    now = {**shaping(recipe), "inputs": files}
    refuse_changes(out, "built", before, now, _ELSEWHERE if elsewhere else ())
    for line in differences(before, now):
        say(f"{out}: using the finished build there, although its recipe differs: {line}")
    shutil.rmtree(out / WORK, ignore_errors=True)  # of a build that was killed at its very end
    return True


class Build:
    """A recipe with everything it names read and checked; nothing is written yet, no server asked, no model loaded.

    Raises:
        BadInput: anything in the recipe or in the files it names cannot be used.
    """

    def __init__(self, recipe: DataRecipe) -> None:
        self.recipe = recipe
        try:
            self.problems = Problems(recipe.source, recipe.seed, reserved=recipe.reserved)
        except SetOutOfReach as error:
            raise SetOutOfReach(f"{error}; {NEEDS}" if recipe.dialogue else str(error)) from None
        self.written = written(recipe.chosen, recipe.seed) if recipe.chosen else []
        self.replay = ReplayRows(recipe, len(self.problems), len(self.written))
        rows = held_out(recipe)
        self.eval_rows = {"eval/accuracy.jsonl": rows} if rows else {}
        checked = [*recipe.quality.decontaminate, *PACKAGED]
        sets = probe_files(recipe.quality.model_copy(update={"decontaminate": list(dict.fromkeys(checked))}))
        self.quality = recipe.quality.model_copy(update={"decontaminate": list(sets)})
        files = {given: sha256_file(path) for given, path in sets.items()}
        if self.written:
            files[FILE.name] = sha256_file(FILE)
        inputs = {**self.problems.inputs(), **self.replay.inputs(), **files}
        self.settings: dict[str, Any] = {**shaping(recipe), "inputs": inputs}

    # --- What is to be made.

    def conversations(self, index: int) -> Iterator[Conversation]:
        """What problem `index` gives without a model, replay and what is written left out."""
        task, settings, seed = self.problems[index], self.recipe.conversations, self.recipe.seed
        for kind in plan(task, seed, settings):
            yield converse(task, kind, seed, settings)

    def plans(self, index: int) -> list[Plan]:
        """The conversations of self-play about problem `index`."""
        assert self.recipe.dialogue is not None
        return plans_of(self.problems[index], self.recipe.seed, self.recipe.dialogue)

    def shards(self) -> list[range]:
        size, every = self.recipe.output.shard_size, range(len(self.problems))
        return [every[start : start + size] for start in every[::size]]

    def gate(self, folder: Path) -> Gate:
        """The gate of this build, with what grows in `folder`. Raises DataError for a file that it cannot use."""
        rows = (len(self.problems) * self.recipe.per_problem + len(self.written)) / (1 - self.recipe.replay.fraction)
        return Gate(self.quality, round(rows), folder / "gate.sqlite")

    # --- Making it.

    def run(self, out: Path) -> dict[str, Any]:
        """Builds into `out`, or takes up an interrupted build there, and returns the manifest."""
        dialogue = self.recipe.dialogue
        if dialogue is not None:
            try:
                look_for_models(dialogue)
            except BadInput as error:
                raise type(error)(f"{error}; {NEEDS}") from None
        with closing(self.gate(out / WORK)) as gate:  # reads files, so before anything is written
            claim(out, self.settings)
            self.replay.ask(out / WORK / "replay")
            if self.written and not self.taken_up(out, "written", gate):
                places = range(0 if len(self.problems) else len(self.written))
                replayed = (one for place in places for one in self.replay.rows(place))
                write_shard(out, "written", self.judged(chain(self.written, replayed), gate))
            shards = {f"{number:05}": shard for number, shard in enumerate(self.shards())}
            while shards and self.taken_up(out, next(iter(shards)), gate):
                del shards[next(iter(shards))]

            def write(name: str, made: Made) -> None:
                """A shard, of what was made of each of its problems and of the replay that goes with it."""
                rows = (
                    one
                    for index, conversations in zip(shards[name], made, strict=True)
                    for one in (*conversations, *self.replay.rows(index))
                )
                write_shard(out, name, self.judged(rows, gate))

            done = len(self.problems) - sum(map(len, shards.values()))
            self.make(shards, out / "calls", write, done)
        with atomic(out / "rejected.jsonl") as file:
            for part in sorted((out / "rejected").glob("part-*.jsonl")):
                with part.open("rb") as source:
                    shutil.copyfileobj(source, file)
        for name, rows in self.eval_rows.items():
            write_jsonl(out / name, rows)
        totals = self.totals(out)
        if self.recipe.preferences is not None:
            totals["pairs"] = write_pairs(self.recipe.preferences, out, out / WORK / "preferences", self.recipe.seed)
        return self.finish(out, totals, gate)

    def taken_up(self, out: Path, name: str, gate: Gate) -> bool:
        """Return True if an earlier run wrote this shard, and load its kept rows into the gate."""
        if not (out / f"sft/part-{name}.jsonl").is_file():
            return False
        for _, row in read_jsonl(out / f"sft/part-{name}.jsonl"):
            gate.remember(row["messages"], row["kind"])
        return True

    def make(
        self, shards: Mapping[str, range], folder: Path, write: Callable[[str, Made], object], done: int = 0
    ) -> None:
        """Makes the conversations of each shard's problems and has it written, in order; `done` problems came before.

        The replies of models are kept in `folder`.
        """
        dialogue, seed, total = self.recipe.dialogue, self.recipe.seed, done + sum(map(len, shards.values()))
        if dialogue is None:
            from tqdm import tqdm

            with tqdm(total=total, initial=done, unit=" problems", disable=not total or None) as bar:
                for name, shard in shards.items():
                    write(name, map(self.conversations, shard))
                    bar.update(len(shard))
            return
        left, made, reasons = list(shards), list[list[Conversation]](), Counter[str]()

        async def one(index: int, roles: Roles) -> list[Finished]:
            return await play(self.plans(index), dialogue, roles, seed)

        def take(index: int, finished: list[Finished]) -> None:
            before = reasons.total()
            reasons.update(one.reason for one in finished)
            if before < _TOLD_AFTER <= reasons.total() and not reasons[""]:
                named = ", ".join(f"{count} {reason}" for reason, count in reasons.most_common(_REASONS_TOLD))
                say(
                    f"warning: of the first {reasons.total()} conversations none can be used ({named}); a small model cannot "
                    "play all roles: Ctrl-C, and a larger dialogue.policy or dialogue.simulator and dialogue.judge of their own"
                )
            made.append([one.conversation() for one in finished])
            if len(made) == len(shards[left[0]]):
                write(left.pop(0), made)
                made.clear()

        # In this process a reply may hang on what is asked beside it, so each shard is played by itself.
        together: dict[str, Sequence[int]] = {"": [index for shard in shards.values() for index in shard]}
        if dialogue.in_process:
            together = {f"part-{name}": shard for name, shard in shards.items()}
        at_once = dialogue.most_at_once
        ask_all(together, one, dialogue.roles(), seed, "dialogue", folder, at_once, "problems", take, done)

    def judged(self, conversations: Iterable[Conversation], gate: Gate) -> dict[str, list[Row]]:
        """Rows by the folder that they go to: those kept, with what else training reads of them, and those rejected."""
        views: dict[str, list[Row]] = {name: [] for name in ("rejected", "rl", "sft")}
        for made in conversations:
            if reason := made.reason or gate.reason(made):
                slips = {} if made.slips is None else {"slips": made.slips}
                views["rejected"].append({**sft_row(made), "reason": reason, **slips})
            else:
                views["sft"].append(sft_row(made))
                views["rl"] += map(vars, rl_rows(made))
        return views

    def totals(self, out: Path) -> dict[str, Any]:
        """What the manifest says beside counts and files: of self-play the conversations, and replies by role."""
        calls, played = self.replay.calls(), 0
        for path in (*(out / "sft").glob("part-*.jsonl"), *(out / "rejected").glob("part-*.jsonl")):
            for row in (row for _, row in read_jsonl(path) if "dialogue" in row):
                played += 1
                calls.update(row["dialogue"]["calls"])
        shutil.rmtree(out / "calls", ignore_errors=True)
        told = {"conversations": played} if self.recipe.dialogue else {}
        return {**told, "calls": dict(sorted(calls.items()))} if calls else told

    def finish(self, out: Path, totals: dict[str, Any], gate: Gate) -> dict[str, Any]:
        """Writes the card and, last, the manifest, both counted from the files themselves; `totals` joins the manifest.

        Raises:
            DataError: the openings give away what lacks something; the card is there, and no manifest.
        """
        rejected: Counter[str] = Counter(row["reason"] for _, row in read_jsonl(out / "rejected.jsonl"))
        parts = sorted((out / "sft").glob("part-*.jsonl"))
        kept_rows, lost = (row for part in parts for _, row in read_jsonl(part)), read_jsonl(out / "rejected.jsonl")
        page, giveaway = card(kept_rows, (row for _, row in lost), self.settings, gate.checked, totals.get("calls"))
        write_atomic(out / "card.md", page)
        made = (row for part in [*parts, out / "rejected.jsonl"] for _, row in read_jsonl(part))
        if short := self.shortfall(Counter(row["kind"] for row in made if row["source"] != "written")):
            say(f"note: {out}: {short}")
        auc, limit = giveaway.value, self.quality.max_giveaway
        if auc is not None and auc > WARN:
            found = f"AUC {auc:.2f} of {giveaway.n} openings"
            told = f"{out}: the first message alone tells what lacks something ({found})"
            if auc > limit:
                raise DataError(
                    f"{told}, more than quality.max_giveaway {limit:g}: a model would learn that wording; see "
                    f"{out / 'card.md'}, reword the openings, or raise the limit"
                )
            say(f"warning: {told}: a model may learn that wording in place of the judgement")
        views = ("rejected", "rejected.jsonl", "rl", "preference", "eval")
        others = (path for view in views for path in [out / view, *sorted((out / view).glob("*.jsonl"))])
        files = [*parts, *(path for path in others if path.is_file())]
        rows = {path: sum(1 for _ in read_jsonl(path)) for path in files}
        kept = sum(rows[part] for part in parts)
        manifest = {
            "schema": 1,
            "asked": kept + sum(rejected.values()),
            "kept": kept,
            "rejected": dict(sorted(rejected.items())),
            "seed": self.settings["seed"],
            "settings": self.settings,
            "giveaway": vars(giveaway),
            **totals,
            "files": {str(path.relative_to(out)): {"rows": rows[path], "sha256": sha256_file(path)} for path in files},
        }
        write_json(out / "manifest.json", manifest)
        shutil.rmtree(out / WORK, ignore_errors=True)
        return manifest

    def shortfall(self, kinds: Counter[str]) -> str:
        """The scripted kinds of which the problems gave less than half of what the recipe asks for; "" where none.
        `kinds` counts their conversations, rejected ones too."""
        wanted = self.recipe.conversations.shares
        made = sum(kinds[kind] for kind in wanted)
        if self.recipe.dialogue is not None or made < _FEW:
            return ""
        few = [
            f"{kind} {kinds[kind] / made:.1%} of {made:,} (asked for: {share:.0%})"
            for kind, share in wanted.items()
            if kinds[kind] / made < share / 2
        ]
        if not few:
            return ""
        return f"few of these problems give what it takes for {', '.join(few)}; other problems or self-play give more"


def claim(out: Path, settings: dict[str, Any]) -> None:
    """Writes settings.json first, or checks the one that is there."""
    if out.exists() and not out.is_dir():
        raise BadInput(f"{out}: is a file, wanted a folder for the data")
    if out.is_dir():
        remove_unfinished(out)
    if (out / "settings.json").is_file():
        refuse_changes(out, "built", read_json(out / "settings.json"), settings)
    elif out.is_dir() and any(out.iterdir()):
        raise BadInput(f"{out}: holds other files and is no data build; give an empty or new folder with --out")
    else:
        write_json(out / "settings.json", settings)


def write_shard(out: Path, name: str, views: dict[str, list[Row]]) -> None:
    """sft comes last: its file says that the shard is written."""
    for view, rows in views.items():
        write_jsonl(out / f"{view}/part-{name}.jsonl", rows)
