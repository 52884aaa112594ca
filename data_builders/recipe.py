"""The recipe of `nextturn data`: every section and key, what it means, and what can be asked for together.

`shaping` says which of the settings shape what is written: a build goes on only with the same ones.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import field, replace
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import yaml
from pydantic import Field

from nextturn.probe.errors import RecipeError
from nextturn.probe.files import sha256_file
from nextturn.probe.recipe import Count, Share, Weight, load_recipe, recipe_dict, section
from nextturn.probe.settings import ServerSection, VllmSection


@functools.cache
def wordings(name: str) -> Any:
    """A packaged YAML file, such as "acts.yaml"; read when it is first wanted, by the C parser where it was built."""
    text = (Path(__file__).parent / name).read_text(encoding="utf-8")
    return yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))


# --- Where problems come from, and what becomes of them without a model.

ProblemKind = Literal["starter", "gsm8k", "math", "jsonl"]
WrittenKind = Literal["complete", "underspecified", "twin", "wrong_start", "doubt", "slip", "hint", "chat"]
ScriptedKind = Literal["complete", "underspecified", "wrong_start", "right_start"]


@section
class Source:
    """Where problems come from. Without `path`, gsm8k and math are fetched from the hub (train split). `written` is
    conversations, and has no problems."""

    kind: ProblemKind | Literal["written"]
    path: str | None = None
    # How many problems; more than a file holds takes it again with other wording.
    n: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    kinds: list[WrittenKind] | None = None  # written only
    levels: list[int] | None = None  # MATH's levels; for starter problems the numbers of steps, 1 to 3
    largest: int | None = None  # starter only: no number above this, results included
    subjects: list[str] | None = None


@section
class Written:
    """Which of the written conversations; all where nothing is said."""

    n: int | None = None  # drawn by the seed; a twin stays beside the one whose problem it shares
    kinds: list[WrittenKind] | None = None
    subjects: list[str] | None = None  # money, rates, measuring, algebra, competition_algebra, ...


@section
class Conversations:
    """Shares of the scripted kinds (they add up to 1), and how a conversation goes on."""

    complete: Share = 0.5
    underspecified: Share = 0.3
    wrong_start: Share = 0.1
    right_start: Share = 0.1
    contrast_pairs: Share = 0.9  # of the underspecified: the same problem also complete and answered at once
    reactions: Share = 0.6  # go on after the answer, where the problem knows a reason to give

    def check(self) -> None:
        total = sum(self.shares.values())
        if abs(total - 1) > 1e-6:
            raise RecipeError(f"conversations: the {len(self.shares)} kinds add up to {total:g}, wanted 1")
        if self.complete < self.paired - 1e-9:
            raise RecipeError(
                f"conversations.complete: given {self.complete:g}, wanted at least contrast_pairs * underspecified "
                f"= {self.paired:g}, since every pair holds one complete conversation"
            )

    @property
    def shares(self) -> dict[ScriptedKind, float]:
        return {kind: getattr(self, kind) for kind in get_args(ScriptedKind)}

    @property
    def paired(self) -> float:
        """Share of all conversations that are the underspecified half of a pair."""
        return self.contrast_pairs * self.underspecified

    @property
    def per_problem(self) -> float:
        """Conversations that a problem gives on average: one, or two where it becomes a contrast pair. Fewer where
        some problems have nothing to withhold."""
        return 1 / (1 - self.paired)


# --- Models.

Role = Literal["assistant", "simulator", "judge", "replay"]
ROLES: tuple[Role, ...] = ("assistant", "simulator", "judge")
"""Those of a conversation; `replay` answers plain questions."""


@section
class RoleSection:
    """A model in a role: behind OpenAI-compatible servers, or in this process."""

    engine: Literal["openai", "hf", "vllm"] = "openai"
    server: ServerSection | None = None
    """For openai, with `model`, since the data says who made it. Of its limits, `max_tokens` below counts. Roles with
    the same `urls` share their slots: the sum of what each section may have under way."""
    model: str | None = None
    """For hf and vllm: a hub id, a folder, or smollm2-135m."""
    temperature: Weight = 0.8
    max_tokens: Count = 1024
    """The most tokens of one reply, thinking included; a reply that reaches it is asked for again."""
    enable_thinking: bool | None = None
    """Handed to the chat template; left out, its own default."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    batch_tokens: int | None = None
    """The most tokens in one batch of the hf engine; left out, what fits in the free GPU memory, and 16,384 on a CPU."""
    vllm: VllmSection = field(default_factory=VllmSection)


def check_role(where: str, given: RoleSection) -> None:
    """Raises RecipeError where a model's section, which stands at `where` in the recipe, cannot be used."""
    if given.engine == "openai":
        if given.server is None or not given.server.model:
            raise RecipeError(
                f"{where}.server: wanted `urls` and `model`, such as "
                "{urls: [http://localhost:8000/v1], model: Qwen/Qwen3.5-27B}"
            )
        if given.server.enable_thinking is not None:
            raise RecipeError(f"{where}.server.enable_thinking: set {where}.enable_thinking instead, beside `server`")
    elif given.model is None or given.server is not None:
        raise RecipeError(f"{where}: the engine {given.engine} wants `model` and no `server`")


def servers(sections: Iterable[RoleSection]) -> list[ServerSection]:
    """The servers of some roles; a section that stands for several roles counts once."""
    return list({id(one.server): one.server for one in sections if one.server is not None}.values())


# --- Self-play.


@section
class Goals:
    """How often users want what; the numbers are weights. `slip` is the assistant's: it is corrected, and concedes,
    about as often as a result that is right is doubted."""

    result: Weight = 4.0
    child: Weight = 1.0
    hint: Weight = 1.5
    steps: Weight = 1.0
    check: Weight = 1.5
    slip: Weight = 2.0


PROMPTS_FILE, EXAMPLES_FILE = "dialogue/prompts.yaml", "dialogue/examples.yaml"
PERSONAS: dict[str, str] = wordings(PROMPTS_FILE)["personas"]


@section
class Dialogue:
    """Self-play: the policy speaks for the assistant and, where no other model is named, for user and judge."""

    policy: RoleSection
    simulator: RoleSection | None = None
    """Writes the users' messages."""
    judge: RoleSection | None = None
    """Reads each finished conversation; the policy judges at temperature 0."""
    withheld: Share = 0.7
    """Share of the problems that also open with something left out, in a second conversation of the same person."""
    few_shot: Annotated[int, Field(ge=0, le=2)] = 0
    """Examples (dialogue/examples.yaml) before each prompt for what to withhold, for an opening, and for a user's message with a
    part to play; none before those of the assistant and of the judge. Of 60 reactions of Qwen2.5-Coder-1.5B
    2 read as a user's without them, 30 with one, 34 with two."""
    goals: Goals = field(default_factory=Goals)
    reactions: Count = 2
    """The most reactions to a solution; at least one."""
    tries: Count = 4
    """How often a problem may be solved until it is right; and how often it is tried without what is withheld, for each try
    that solving it took."""
    judged_at_least: Annotated[int, Field(ge=0)] = 4
    """The verdict, 1 to 5, under which a conversation is refused; 0 asks no judge."""
    at_once: Count | None = None
    """Problems under way together; left out: three for each request that the servers may hold, 256 otherwise."""

    @property
    def per_problem(self) -> float:
        """Conversations that a problem gives on average."""
        return 1 + self.withheld

    def roles(self) -> dict[Role, RoleSection]:
        return {
            "assistant": self.policy,
            "simulator": self.simulator or self.policy,
            "judge": self.judge or replace(self.policy, temperature=0.0),
        }

    @property
    def in_process(self) -> bool:
        """Whether a model is run in this process, so that its replies may hang on what is in its batch."""
        return any(role.engine != "openai" for role in self.roles().values())

    @property
    def most_at_once(self) -> int:
        if self.at_once is not None:
            return self.at_once
        return 256 if self.in_process else 3 * sum(server.concurrency for server in servers(self.roles().values()))

    def check(self) -> None:
        for name in ("policy", "simulator", "judge"):
            if (given := getattr(self, name)) is not None:
                check_role(f"dialogue.{name}", given)
        if not self.goals.result:
            raise RecipeError(
                "dialogue.goals.result: given 0, wanted more: what has nothing for another goal becomes a result"
            )


# --- What is kept, and what comes beside the conversations.


@section
class Quality:
    """What keeps a conversation out, beside the rules that always hold."""

    decontaminate: list[str] = field(default_factory=list)
    """Sets that the probe measures: JSONL files, or known names (gsm8k, ifbench, mt_bench, ...), fetched once. The packaged
    pairs are always checked."""
    near_duplicates: Annotated[float, Field(ge=0.5, le=1)] | None = 0.9
    """Two conversations of one kind count as the same from this share of common word runs on (Jaccard, by MinHash); null
    leaves the test out. On MATH, pairs at 0.9 and above differ in a few words of ours; at 0.8 in the numbers of a problem."""
    max_same_wording: Annotated[float, Field(gt=0, le=1)] = 0.02
    """Share of all rows that may be alike but for their numbers and names, which MinHash does not see in short texts."""
    max_giveaway: Annotated[float, Field(ge=0.5, le=1)] = 0.8
    """The build fails where the first message alone tells what lacks something with a higher AUC (data_builders/surface.py);
    1 lets anything pass. It may be raised afterwards: what is built stays."""


@section
class Replay:
    """`fraction` of all rows is replay, from `source` (the file at `path`, else generated or from the hub)."""

    fraction: Annotated[float, Field(ge=0, lt=1)] = 0.0
    source: ProblemKind = "starter"
    path: str | None = None
    answers: Literal["reference", "model"] = "reference"
    """Where the assistant turn comes from; `model` and what follows count only for `model`."""
    model: RoleSection | None = None
    """Asked the bare question; the base model itself is meant, so that what it can do already stays."""
    tries: Count = 4
    """How often a question is asked at most; the first right reply is kept, a question without one is rejected."""

    def check(self) -> None:
        if self.answers == "model":
            if self.model is None:
                raise RecipeError("replay.model: missing, wanted a section such as {engine: hf, model: smollm2-135m}")
            check_role("replay.model", self.model)

    def per_row(self, per_problem: float) -> float:
        """Replay rows for each problem that gives `per_problem` other rows."""
        return per_problem * self.fraction / (1 - self.fraction)

    @property
    def asked(self) -> RoleSection | None:
        """The model that is asked; None where no reply is needed."""
        return self.model if self.answers == "model" and self.fraction else None


@section
class Preferences:
    """Whether pairs are made, and whose replies are the ones to leave."""

    model: RoleSection | None = None
    """Says the replies that are not preferred; the model to be trained is meant. Left out: the conversations' own."""
    tries: Count = 4
    """How often it is asked at most for one reply of the unwanted kind; where none comes the conversations' own is left."""


@section
class Evaluation:
    """A held-out set of generated problems, written beside the data of the starter source."""

    accuracy_n: Annotated[int, Field(ge=0)] = 0


@section
class Output:
    path: str
    shard_size: Count = 500  # problems


@section
class DataRecipe:
    source: Source
    output: Output
    conversations: Conversations = field(default_factory=Conversations)
    dialogue: Dialogue | None = None
    """Two models talk, in place of the scripted conversations."""
    written: Written | None = None
    """Written conversations beside those of the source."""
    quality: Quality = field(default_factory=Quality)
    replay: Replay = field(default_factory=Replay)
    preferences: Preferences | None = None
    """Also pairs of replies for train/dpo.py; `{}` takes both sides from the conversations."""
    eval: Evaluation = field(default_factory=Evaluation)
    seed: int = 0

    @property
    def per_problem(self) -> float:
        """Conversations that a problem gives on average, without replay."""
        return self.conversations.per_problem if self.dialogue is None else self.dialogue.per_problem

    @property
    def reserved(self) -> float:
        """Which share of the source's file is kept for replay, so that it repeats nothing of the conversations; 0 where
        replay comes from elsewhere."""
        replay, source = self.replay, self.source
        same = replay.source == source.kind if replay.path is None else replay.path == source.path
        rows = replay.per_row(self.per_problem) if same else 0.0
        return rows / (1 + rows)

    @property
    def chosen(self) -> Written | None:
        """Which of the written conversations are in the data."""
        source = self.source
        if source.kind != "written":
            return self.written
        return Written(n=source.n, kinds=source.kinds, subjects=source.subjects)

    def check(self) -> None:
        """Raises RecipeError where the conversations asked for cannot be made."""
        if self.source.kind == "written" and (self.written or self.dialogue):
            raise RecipeError("source.kind: `written` has no problems, wanted no `written` or `dialogue` beside it")
        self.conversations.check()
        self.replay.check()
        if self.preferences is not None and self.preferences.model is not None:
            check_role("preferences.model", self.preferences.model)
        if self.dialogue is not None:
            if self.conversations != Conversations():
                raise RecipeError(
                    "conversations: these are the scripted ones; wanted either this section or `dialogue`"
                )
            self.dialogue.check()


def load_data_recipe(path: Path, overrides: Sequence[str] = ()) -> DataRecipe:
    """The recipe at `path`, with overrides such as ["--source.n", "100"]. Raises RecipeError."""
    return load_recipe(DataRecipe, path, overrides)


def shaping(recipe: DataRecipe) -> dict[str, Any]:
    """Return the settings that identify a build: not where it lies or how a model is run."""
    kept = recipe_dict(recipe)
    del kept["output"]["path"], kept["quality"]["max_giveaway"]
    if recipe.replay.asked:
        kept["replay"]["model"] = _role_shaping(recipe.replay.model)
    else:
        del kept["replay"]["answers"], kept["replay"]["model"], kept["replay"]["tries"]
    if (pairs := recipe.preferences) is None:
        del kept["preferences"]
    else:
        asked = {"tries": pairs.tries} if pairs.model else {}
        kept["preferences"] = {"model": _role_shaping(pairs.model), **asked}
    if (dialogue := recipe.dialogue) is None:
        del kept["dialogue"]
    else:
        del kept["conversations"], kept["dialogue"]["at_once"]
        roles = {name: _role_shaping(getattr(dialogue, name)) for name in ("policy", "simulator", "judge")}
        kept["dialogue"] |= {**roles, "prompts": sha256_file(Path(__file__).parent / PROMPTS_FILE)[:12]}
        if dialogue.few_shot:
            kept["dialogue"]["examples"] = sha256_file(Path(__file__).parent / EXAMPLES_FILE)[:12]
        else:
            del kept["dialogue"]["few_shot"]
    return kept


def _role_shaping(section: RoleSection | None) -> dict[str, Any] | None:
    if section is None:
        return None
    kept = recipe_dict(section)
    server = kept.pop("server")
    for name in ("batch_tokens", "vllm", *(("dtype",) if section.engine == "openai" else ())):
        del kept[name]
    return kept | ({"model": server["model"], "extras": server["extras"]} if server else {})
