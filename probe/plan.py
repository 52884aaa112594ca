"""What a probe run will measure: its sets, the settings that identify it, and the amount of work."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from nextturn.probe.command.errors import DataError, SetOutOfReach
from nextturn.probe.command.files import read_json, refuse_changes, sha256_file
from nextturn.probe.command.own import load_own, own_code
from nextturn.probe.command.recipe import Mark, recipe_dict
from nextturn.probe.command.sections import BY_JUDGE, ProbeSection, SetSection
from nextturn.probe.command.terminal import say, say_once, visible
from nextturn.probe.data.messages import assistant, with_system
from nextturn.probe.data.tables import read_rows
from nextturn.probe.judges import get_judge
from nextturn.probe.judges.answers import AnswerJudge
from nextturn.probe.measures import MEASURES, measure_named
from nextturn.probe.measures.accuracy import Accuracy, Grader, answer_kind
from nextturn.probe.measures.base import Measure, QuestionSet
from nextturn.probe.measures.followup import Followup
from nextturn.probe.measures.perturb import parse_perturbations
from nextturn.probe.measures.sharded import Sharded
from nextturn.probe.models import folders as models
from nextturn.probe.models.folders import ModelFolder
from nextturn.probe.questions.sets import HUB, choose, locate, read_items, read_pairs, remarks, sets_hash
from nextturn.probe.stats import detectable
from nextturn.probe.text.grading import VERSION as GRADING


@dataclass(frozen=True)
class LoadedSet(QuestionSet):
    """A question set as it will be asked.

    Attributes:
        chosen: What each measure takes of it, by the measure's name in the recipe.
        left_out: Why rows of a set of the hub were left out.
        remarks: Lines for the plan.
    """

    chosen: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()

    @property
    def measures(self) -> list[type[Measure]]:
        """The measures of the set."""
        return [measure_named(name) for name in self.chosen]

    @property
    def is_graded(self) -> bool:
        """Whether a measure needs the right answer of each item."""
        return any(measure.takes == "answers" for measure in self.measures)

    @property
    def questions(self) -> list[str]:
        """The last user message of each item, without the instruction, or the complete form of each pair."""
        return [self.question(item) for item in self.items] or [pair.complete for pair in self.pairs]


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
    rows = [row for _, row in read_rows(path)]
    of_pairs = bool(rows) and "underspecified" in {**rows[0], **section.columns}
    left_out: list[str] = []
    # The user cannot correct a row of the hub.
    stops = section.on_bad_row == "stop" and section.path and Path(section.path).exists()
    skipped = None if stops else left_out
    if of_pairs:
        items, pairs = [], choose(read_pairs(path, section.columns, skipped), section.n, probe.seed)
    else:
        every = section.turns == "all"
        by = tuple(dict.fromkeys([*["depth"] * every, *section.by]))
        items = read_items(path, section.instruction, section.transcript, section.columns, skipped, every, by)
        items, pairs = choose(items, section.n, probe.seed), []
    if left_out:
        say(f"set {name!r}: {len(left_out)} of {len(rows)} rows left out, the first: {left_out[0]}")
    answered = not (of_pairs or section.transcript) and all(item.answer is not None for item in items)
    default = ("clarify",) if of_pairs else ("accuracy", "followup") if answered else ("followup",)
    names = section.measures or default
    measures = [measure_named(each) for each in names]
    if ":" in probe.judge:
        get_judge(probe.judge)  # a wrong name ends the run before anything is generated
    for measure in measures:
        if (measure.takes == "pairs") != of_pairs:
            kinds = ("single questions", "pairs of problems (`complete`, `underspecified`)")
            raise DataError(f"{path}: {measure.name} needs {kinds[not of_pairs]}, these are {kinds[of_pairs]}")
        if section.transcript and measure.takes != "any":
            raise DataError(f"{path}: transcripts can only measure followup, not {measure.name}")
        if measure.takes == "answers" and not answered:
            raise DataError(f"{path}: {measure.name} needs an answer in every row, and {name!r} has rows without one")
    by_judge = section.grader == BY_JUDGE
    if by_judge and probe.judge_server is None:
        server = "`judge_server: {urls: [http://HOST:PORT/v1]}`"
        raise DataError(f"probe.sets.{name}.grader: judge needs a model that grades; set {server} under probe:")
    if by_judge and any(measure.takes == "answers" and measure is not Accuracy for measure in measures):
        raise DataError(f"probe.sets.{name}: with `grader: judge` only accuracy and followup can be measured")
    how = section.transcript, _grader(section), by_judge
    of_set = QuestionSet(name, path, section, tuple(items), tuple(pairs), probe.seed, *how)
    chosen = {each: measure.choose(of_set) for each, measure in zip(names, measures, strict=True)}
    notes = () if section.transcript or of_pairs else tuple(remarks(rows, section.columns))
    loaded = LoadedSet(**vars(of_set), chosen=chosen, left_out=tuple(left_out), remarks=notes)
    if _words_by_rules(loaded):
        say(f"set {name!r}: answers graded as {describe_grading(loaded)}")
    return loaded


def _words_by_rules(loaded: LoadedSet) -> list[str]:
    """Return the answers in words that rules grade."""
    by_rules = loaded.is_graded and not (loaded.grader or loaded.by_judge)
    return [item.answer or "" for item in loaded.items if answer_kind(item) == "words"] if by_rules else []


def describe_grading(loaded: LoadedSet) -> str:
    """Return how a set's answers are graded, such as "3 words, 2 numbers", with what is special about words; "" if none is."""
    if not loaded.is_graded:
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


def _grader(section: SetSection) -> Grader | None:
    """Return the function of `grader`, or None if there is none.

    Raises:
        DataError: It cannot be imported.
    """
    if section.grader is None or section.grader == BY_JUDGE:
        return None
    grader = load_own(section.grader, "grader", "MODULE:FUNCTION")

    def named(reply: str, answer: str) -> bool:
        with own_code(f"grader {section.grader} on the reply {reply[:60]!r}"):
            return bool(grader(reply, answer))

    return named


def answer_judge_of(probe: ProbeSection, sets: Sequence[LoadedSet]) -> AnswerJudge | None:
    """Return the judge of answers, or None if no set is graded by it."""
    by_judge = any(loaded.by_judge for loaded in sets)
    return AnswerJudge(probe.judge_server) if by_judge and probe.judge_server else None


def _graded_otherwise(loaded: LoadedSet, judge: AnswerJudge | None) -> dict[str, Any]:
    """Return the settings of a set whose answers are not read as numbers, letters or formulas."""
    if loaded.by_judge and judge:
        return {"grader": judge.version}
    if loaded.section.grader:
        return {"grader": loaded.section.grader}
    return {"words": WORDS} if _words_by_rules(loaded) else {}


WORDS = 2
"""How answers in words are read; raised when the same reply would get another figure. Runs without it read marked ones only.
2: words with a number (Apollo 11) are words, too, and what a truncated reply merely mentions is no answer."""


def settings_of(
    probe: ProbeSection, sets: Sequence[LoadedSet], judge_version: str, answer_judge: AnswerJudge | None = None
) -> dict[str, Any]:
    """Return the settings by which a run is compared and resumed: all that can change a number, and the questions."""
    kept = recipe_dict(probe, Mark.FREE, Mark.IN_PROBES)  # the judge's version stands for its name
    asked = {}
    for loaded in sets:
        items = [replace(item, messages=with_system(item.messages, probe.system_prompt)) for item in loaded.items]
        of_set: dict[str, Any] = {"sha256": sets_hash([*items, *loaded.pairs]), "n": len([*items, *loaded.pairs])}
        of_set |= {"measures": list(loaded.chosen), **_graded_otherwise(loaded, answer_judge)}
        asked[loaded.name] = {**of_set, **({"by": list(loaded.section.by)} if loaded.section.by else {})}
        for measure, chosen in zip(loaded.measures, loaded.chosen.values(), strict=True):
            asked[loaded.name] |= measure.settings(loaded, chosen)
            if measure.name not in MEASURES:  # a change of its code makes another run
                code = sha256_file(Path(inspect.getfile(measure)))[:12]
                asked[loaded.name].setdefault("own", {})[measure.name] = code
    perturbations = [perturbation.name for perturbation in parse_perturbations(probe.perturbations)[1:]]
    # Without its extras a server samples by the model's own top_k, min_p and repetition penalty, which changes numbers. The key
    # is written only if they are off, so that runs begun with them on before this key existed can still be compared.
    bare = probe.engine == "openai" and probe.server is not None and not probe.server.extras
    extras = {"extras": False} if bare else {}
    return {**kept, "grading": GRADING, "perturbations": perturbations, "judge": judge_version, "sets": asked, **extras}


def refuse_other_settings(folders: Sequence[Path], made: str, probe: ProbeSection, sets: Sequence[LoadedSet]) -> None:
    """Raise SettingsChanged if one of these probes was begun with other settings, because they are compared later."""
    judge = get_judge(probe.judge, probe.judge_server)
    now = settings_of(probe, sets, judge.version, answer_judge_of(probe, sets))
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
    answers = 0 if loaded.transcript else len(loaded.items)
    answers += sum(map(lambda measure, chosen: measure.most_replies(chosen), loaded.measures, loaded.chosen.values()))
    perturbed = len(loaded.items[: probe.n_perturbed]) * (len(parse_perturbations(probe.perturbations)) - 1)
    turns = (len(loaded.items) + perturbed) * _turns_per_answer(probe) if Followup in loaded.measures else 0
    return Work(answers, turns, answers * probe.max_answer_tokens + turns * probe.max_user_tokens)


def _turns_per_answer(probe: ProbeSection) -> int:
    return sum(probe.samples if temperature > 0 else 1 for temperature in probe.temperatures)


# --- The plan of a run.

CHANGED = 0.16
"""Share of questions whose answer becomes right or wrong between two runs: 12 to 20% of 200 in this project's runs."""


def plan_power(sets: Sequence[LoadedSet | None], probe: ProbeSection) -> Iterator[str]:
    """Return `power_lines` for 60 labels a run, or for all unperturbed user turns if a run has fewer."""
    turns = sum(len(each.items) for each in sets if each and Followup in each.measures) * _turns_per_answer(probe)
    return power_lines(sets, 60 if None in sets else min(60, turns))


def power_lines(sets: Sequence[LoadedSet | None], labels: int) -> Iterator[str]:
    """Yield which changes are likely to be missed: those that are found in fewer than 4 of 5 tries.

    Args:
        sets: Sets of a plan; those with accuracy get a line. None is out of reach.
        labels: Labels of each run, if a set measures user turns or there are no sets. Fewer than 10 get no line.
    """
    loaded = [each for each in sets if each]
    graded = {each.name: len(each.chosen[Accuracy.name]) for each in loaded if Accuracy.name in each.chosen}
    sizes = [(f"{name}: n = {n}: a loss of accuracy", n, CHANGED) for name, n in graded.items()]
    if labels >= 10 and (not sets or any(Followup in each.measures for each in loaded)):
        sizes.append((f"{labels} labels a run: a change of follow-up", labels, 0.5))
    for what, n, changed in sizes:
        least = f"{100 * detectable(n, changed):.0f} points"
        yield f"power     {what} below about {least} will usually not be told from none"


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
        cut = loaded.chosen.get(Sharded.name)
        pieces = f"; {len(cut)} of {len(loaded.items)} given in pieces" if cut else ""
        lines.append(f"set       {loaded.name}: {replies} for {', '.join(loaded.chosen)}{pieces}")
        lines += [f"          {loaded.name}: {remark}" for remark in loaded.remarks]
        if how := describe_grading(loaded):
            lines.append(f"graded    {loaded.name}: {how}")
    lines += plan_power(sets, probe)
    if probe.perturbations:
        names = [perturbation.name for perturbation in parse_perturbations(probe.perturbations)]
        lines.append(f"user turns after {', '.join(names)}")
    answers, turns, tokens = (sum(column) for column in zip(*work, strict=True)) if work else (0, 0, 0)
    lines.append(f"generate  {answers} answers, {turns} user turns: {tokens:,} tokens at most")
    servers = f" at {', '.join(probe.judge_server.urls)}" if probe.judge == "llm" and probe.judge_server else ""
    if turns or any(each not in MEASURES for loaded in sets for each in loaded.chosen):
        lines.append(f"judge     {probe.judge}{servers}{', grounding' if probe.grounding else ''}")
    if example := next((loaded for loaded in sets if Followup in loaded.measures and loaded.items), None):
        item = example.items[0]
        messages = [*with_system(item.messages, probe.system_prompt), assistant(item.reply or "(its answer)")]
        messages = chat.with_tools(messages)
        lines += [f"a user turn of {example.name} begins after ({probe.prefix_form} form):"]
        lines += ["  | " + line for line in chat.user_prefix_text(messages, probe.prefix_form).splitlines()]
        lines += [f"and ends at one of: {', '.join(repr(chat.tokenizer.decode([token])) for token in chat.stop_ids)}"]
    return visible("\n".join([*lines, *(f"could not check {line}" for line in unchecked), "nothing was written"]))
