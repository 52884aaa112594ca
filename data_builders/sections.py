"""The recipe of `nextturn data`: every section and key, and what can be asked for together.

`shaping` returns the settings that decide what is written: a build is resumed only with the same ones.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import yaml
from pydantic import Field

from nextturn.probe.command.errors import RecipeError
from nextturn.probe.command.files import sha256_file
from nextturn.probe.command.recipe import Count, Mark, RecipeSection, Share, load_recipe, read_yaml, recipe_dict
from nextturn.probe.command.sections import RoleSection


@functools.cache
def wordings(name: str) -> Any:
    """Return the content of a packaged YAML file, such as "acts.yaml", read at first use by the C parser if there is one."""
    text = (Path(__file__).parent / name).read_text(encoding="utf-8")
    return yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))


# --- Sources of problems, and conversations that need no model.

OwnSource = Annotated[str, Field(pattern=r"^[\w.]+:\w+$")]
WrittenKind = Literal["complete", "underspecified", "twin", "wrong_start", "doubt", "slip", "hint", "chat"]
ScriptedKind = Literal["complete", "underspecified", "wrong_start", "right_start"]


class Source(RecipeSection):
    """The source of problems. `written` is conversations and has no problems."""

    kind: Literal["gsm8k", "math", "jsonl", "written"] | OwnSource
    """gsm8k or math, a JSONL file, MODULE:NAME of a source of one's own, or the packaged conversations (written)."""
    path: Annotated[str | None, Mark.AFTER_BUILDS] = None
    """File with the problems; default for gsm8k and math: the train split, fetched from the hub."""
    n: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    """Number of problems; more than a file holds repeat it with other wording."""
    kinds: list[WrittenKind] | None = None
    """For written: the kinds of conversation; default: all."""
    levels: list[int] | None = None
    """MATH's levels; default: all."""
    subjects: list[str] | None = None
    """Subjects of MATH or of the written conversations; default: all."""


class Written(RecipeSection):
    """Which of the packaged conversations are added to those of the source."""

    n: int | None = None
    """Number of conversations, sampled with the seed; a twin stays with the conversation of the same problem; default: all."""
    kinds: list[WrittenKind] | None = None
    """Kinds of conversation; default: all."""
    subjects: list[str] | None = None
    """Subjects such as money, rates, measuring, algebra; default: all."""
    loss_on: Literal["assistant", "talk"] = "assistant"
    """`talk`: their solutions carry no loss where there are other turns, so that a model keeps its own way to solve."""


class Conversations(RecipeSection):
    """Shares of the scripted kinds, which sum to 1, and how a conversation continues."""

    complete: Share = 0.5
    """Share of problems with all facts, answered at once."""
    underspecified: Share = 0.3
    """Share of problems without a needed fact, which the assistant asks for."""
    wrong_start: Share = 0.1
    """Share of conversations whose user begins with a wrong result."""
    right_start: Share = 0.1
    """Share of conversations whose user begins with the right result."""
    contrast_pairs: Share = 0.9
    """Share of the underspecified problems that also appear complete and answered at once."""
    reactions: Share = 0.6
    """Share of conversations that continue after the answer, if the problem offers a reason."""

    def check_keys(self) -> None:
        total = sum(self.shares.values())
        if abs(total - 1) > 1e-6:
            raise ValueError(f"complete: the {len(self.shares)} kinds sum to {total:g}, expected 1")
        if self.complete < self.paired - 1e-9:
            raise ValueError(
                f"complete: given {self.complete:g}, expected at least contrast_pairs * underspecified = {self.paired:g}, "
                "since every pair has one complete conversation"
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
        """Mean number of conversations from a problem: one, or two for a contrast pair. Problems without a fact that can be
        withheld give fewer."""
        return 1 / (1 - self.paired)


# --- Models.

ROLES = ("assistant", "simulator")
"""The roles of a conversation; `replay` answers plain questions."""


# --- Conversations with a simulated user.

PROMPTS_FILE, EXAMPLES_FILE = "dialogue/prompts.yaml", "dialogue/examples.yaml"
PERSONAS: dict[str, str] = wordings(PROMPTS_FILE)["personas"]


class SimulatorSection(RoleSection):
    """The simulated user: rules, a model that is prompted, a user model, or a class of one's own."""

    engine: str = "scripted"  # type: ignore[assignment]
    """scripted: rules; openai, hf or vllm: a prompted model; adapter: a user model; MODULE:CLASS: a class of one's own."""
    model: str | None = None
    """For hf and vllm: a hub id or folder; for adapter: the folder of a run with `data.loss_on: user`."""
    runs_on: Annotated[Literal["hf", "vllm", "openai"], Mark.IN_BUILDS] = "hf"
    """For adapter: transformers or vLLM in this process, or a server with completions (`server`)."""
    fallback: Literal["scripted"] | None = None
    """For adapter: what writes the user turns while the folder of the user model does not exist; default: that is an error."""
    max_tokens: Count = 1024
    """Tokens of a user turn at most; a user model's turn that reaches the limit is not used."""
    tries: Count = 3
    """Attempts for a message that is empty, cut off or out of role, each with another seed."""
    few_shot: Annotated[int, Field(ge=0, le=2)] = 0
    """For a prompted model: examples before its prompt, which then asks for one of five reactions; small models need them."""
    options: dict[str, Any] = {}
    """For a class of one's own: the arguments of its constructor."""

    def check_keys(self) -> None:
        if self.engine == "scripted" or ":" in self.engine:
            if self.model is not None or self.server is not None:
                raise ValueError(f"engine: {self.engine} takes no `model` and no `server`")
        elif self.engine == "adapter":
            if self.model is None or (self.server is None) is (self.runs_on == "openai"):
                raise ValueError(
                    "model: adapter needs the folder of a user model, and `server` with `runs_on: openai` only"
                )
        elif self.engine in ("openai", "hf", "vllm"):
            super().check_keys()
        else:
            raise ValueError(
                f"engine: given {self.engine}, expected scripted, openai, hf, vllm, adapter or MODULE:CLASS"
            )
        if self.fallback and self.engine != "adapter":
            raise ValueError("fallback: for the engine adapter only")

    @property
    def running(self) -> RoleSection:
        """The section of the model itself."""
        return self.model_copy(update={"engine": self.runs_on}) if self.engine == "adapter" else self


class Dialogue(RecipeSection):
    """Conversations from the policy's own verified solutions and the turns of a simulated user."""

    policy: RoleSection
    """The model that is trained later: it solves the problems, asks for missing facts and replies to the user."""
    simulator: Annotated[SimulatorSection, Mark.AFTER_BUILDS] = SimulatorSection()
    """The simulated user."""
    withheld: Share = 0.3
    """Share of solved problems that also give a conversation whose first message lacks a needed fact, where one is found."""
    reactions: Annotated[int, Field(ge=0)] = 2
    """Reactions to a solution at most; 0: conversations end after the solution, as those without a usable reaction do."""
    candidates: Count = 4
    """Turns that are sampled for each reaction; rules and a score choose one."""
    tries: Count = 4
    """Attempts to solve a problem or to reply, and attempts without the withheld fact for each attempt that solving it took."""
    few_shot: Annotated[int, Field(ge=0, le=2)] = 0
    """Examples before the prompts for the withheld fact; small models need them."""
    least_solved: Annotated[Share, Mark.FREE] = 0.02
    """Share of solved problems in the first part below which the build stops: conversations need solutions."""

    @property
    def per_problem(self) -> float:
        """Mean number of conversations from a problem."""
        return 1 + self.withheld


# --- Quality filters, and what is added to the conversations.


class Quality(RecipeSection):
    """What rejects a conversation, in addition to the fixed rules."""

    decontaminate: list[str] = []
    """Sets that the probe measures: JSONL files or known names (gsm8k, ifbench, mt_bench, ...); the packaged pairs always count."""
    near_duplicates: Annotated[float, Field(ge=0.5, le=0.99)] | None = 0.9
    """Share of common word runs (Jaccard, by MinHash) from which two conversations of one kind are duplicates; null: no test."""
    max_same_wording: Annotated[float, Field(gt=0, le=1)] = 0.02
    """Share of all rows that may be equal except for numbers and names."""
    max_giveaway: Annotated[float, Field(ge=0.5, le=1), Mark.FREE] = 0.8
    """AUC with which the first message's wording may tell incomplete problems; above it the build fails; 1: no limit."""


class Replay(RecipeSection):
    """Plain questions that are mixed in, so that the model keeps what it can do."""

    fraction: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of all rows that is replay."""
    source: Literal["gsm8k", "math", "jsonl"] | OwnSource | None = None
    """Source of the questions; default: the kind of `source`."""
    path: str | None = None
    """File with the questions; default: that of `source` if it has this kind, or from the hub."""
    answers: Literal["reference", "model"] = "reference"
    """The assistant turn is the reference solution, or a reply of `model` that is right."""
    model: RoleSection | None = None
    """For `answers: model`: the model to ask, meant to be the base model."""
    tries: Count = 4
    """Attempts at a question; the first right reply is kept, a question without one is rejected."""

    def check_keys(self) -> None:
        if self.answers == "model" and self.model is None:
            raise ValueError("model: missing, expected a section such as {engine: hf, model: smollm2-135m}")

    def per_row(self, per_problem: float) -> float:
        """Return the number of replay rows for each problem that gives `per_problem` other rows."""
        return per_problem * self.fraction / (1 - self.fraction)

    @property
    def asked(self) -> RoleSection | None:
        """The model that is asked; None if no reply is needed."""
        return self.model if self.answers == "model" and self.fraction else None


class Preferences(RecipeSection):
    """Pairs of replies for DPO."""

    model: Annotated[RoleSection | None, Mark.AFTER_BUILDS] = None
    """Writes the rejected replies, meant to be the model to train; default: those of the conversations."""
    tries: Count = 4
    """Attempts to sample a reply of the rejected kind; then the conversation's own is used."""


class Output(RecipeSection):
    """Where the data are written."""

    path: Annotated[str, Mark.FREE]
    """The output folder."""
    shard_size: Count = 500
    """Problems in a part of the build; a build that is stopped resumes after the last whole part."""


class DataRecipe(RecipeSection):
    """The recipe of `nextturn data`."""

    source: Source
    """Where problems come from."""
    output: Output
    """Where the data are written."""
    conversations: Conversations = Conversations()
    """Scripted conversations, which need no model."""
    dialogue: Dialogue | None = None
    """Conversations with a model and a simulated user, instead of scripted ones."""
    written: Written | None = None
    """Packaged conversations, in addition to those of the source."""
    quality: Quality = Quality()
    """Filters."""
    replay: Replay = Replay()
    """Plain questions in the data."""
    sharded: Share = 0.0
    """Share of the complete problems and replay rows that are also told piece by piece, where a problem can be cut."""
    sharded_replies: Literal["plain", "varied"] = "plain"
    """The replies before the last piece: a few sentences (plain), or many forms that take up what was told (varied)."""
    sharded_loss: Literal["all", "one", "none"] = "all"
    """Which of these replies carry loss; one: drawn with the seed."""
    sharded_after: Share = 0.0
    """Share of these conversations that continue: the user asks about a step of the solution, and the assistant explains it."""
    preferences: Preferences | None = None
    """Also write pairs of replies for train/dpo.py; `{}` takes both sides from the conversations."""
    seed: int = 0
    """Seed of everything that is drawn."""

    @property
    def per_problem(self) -> float:
        """Mean number of conversations from a problem, without replay and without those told piece by piece."""
        return self.conversations.per_problem if self.dialogue is None else self.dialogue.per_problem

    @property
    def reserved(self) -> float:
        """Share of the source's file that is kept for replay, so that replay repeats no problem of the conversations; 0 if
        replay has another source."""
        replay, source = self.replay, self.source
        same = replay.source in (None, source.kind) if replay.path is None else replay.path == source.path
        rows = replay.per_row(self.per_problem) if same else 0.0
        return rows / (1 + rows)

    @property
    def chosen(self) -> Written | None:
        """Which of the packaged conversations are in the data."""
        source = self.source
        if source.kind != "written":
            return self.written
        return Written(n=source.n, kinds=source.kinds, subjects=source.subjects)

    def check_keys(self) -> None:
        if self.source.kind == "written" and (self.written or self.dialogue):
            raise ValueError("source.kind: `written` has no problems, expected no `written` or `dialogue` section")
        if self.source.kind == "written" and self.replay.fraction and self.replay.source is None:
            raise ValueError(
                "replay.source: missing, expected gsm8k, math, jsonl or MODULE:NAME, since `written` has no problems"
            )
        if self.dialogue is not None and self.conversations != Conversations():
            raise ValueError("conversations: these are the scripted ones; expected this section or `dialogue`")


def load_data_recipe(path: Path, overrides: Sequence[str] = ()) -> DataRecipe:
    """Return the recipe at `path`, with overrides such as ["--source.n", "100"]. Raises RecipeError."""
    try:
        return load_recipe(DataRecipe, path, overrides)
    except RecipeError:
        if "train" in read_yaml(path):
            raise RecipeError(f"{path}: a recipe for training; run `nextturn sft {path}` (or dpo, grpo)") from None
        raise


def shaping(recipe: DataRecipe) -> dict[str, Any]:
    """Return the settings that identify a build: not where it is written or how a model is run."""
    kept = recipe_dict(recipe, Mark.FREE)
    for name in [key for key in kept if key.startswith("sharded")]:  # builds from before these keys stay usable
        if not recipe.sharded or kept[name] == DataRecipe.model_fields[name].default:
            del kept[name]
    if recipe.replay.asked:
        kept["replay"]["model"] = _role_shaping(recipe.replay.model)
    else:
        del kept["replay"]["answers"], kept["replay"]["model"], kept["replay"]["tries"]
    if (pairs := recipe.preferences) is None:
        del kept["preferences"]
    else:
        kept["preferences"] = {"model": _role_shaping(pairs.model)} | ({"tries": pairs.tries} if pairs.model else {})
    if (dialogue := recipe.dialogue) is None:
        del kept["dialogue"]
    else:
        del kept["conversations"]
        roles = {name: _role_shaping(getattr(dialogue, name)) for name in ("policy", "simulator")}
        files = {name: sha256_file(Path(__file__).parent / name)[:12] for name in (PROMPTS_FILE, EXAMPLES_FILE)}
        kept["dialogue"] |= {**roles, "prompts": files}
    return kept


def _role_shaping(section: RoleSection | None) -> dict[str, Any] | None:
    if section is None:
        return None
    kept = recipe_dict(section, Mark.FREE)
    if (server := kept.pop("server")) is None:
        return kept
    del kept["dtype"]
    return kept | {"model": server["model"], "extras": server["extras"]}
