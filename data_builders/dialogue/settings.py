"""The `dialogue:` section of a data recipe: who speaks, how far is looked ahead, what is worth how much."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml

from probe.errors import RecipeError
from probe.recipe import recipe_dict, section
from probe.settings import ServerSection, VllmSection

PROMPTS: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("prompts.yaml").read_text(encoding="utf-8"))
"""All that the roles are told, by name."""
PERSONAS: dict[str, str] = PROMPTS["personas"]
KNOWLEDGES: dict[str, str] = PROMPTS["knowledge"]
EFFORTS: dict[str, str] = PROMPTS["effort"]


@dataclass(frozen=True)
class Persona:
    """One simulated user, by the names of its traits."""

    name: str
    knowledge: str
    effort: str

    @property
    def text(self) -> str:
        return "\n".join((PERSONAS[self.name], KNOWLEDGES[self.knowledge], EFFORTS[self.effort]))


def draw_persona(
    rng: random.Random, names: tuple[str, ...], knowledges: tuple[str, ...], efforts: tuple[str, ...]
) -> Persona:
    return Persona(rng.choice(names), rng.choice(knowledges), rng.choice(efforts))


Role = Literal["assistant", "simulator", "judge", "replay"]
ROLES: tuple[Role, ...] = ("assistant", "simulator", "judge")
"""Those of a conversation; `replay` answers plain questions."""


@section
class Price:
    """Money for a million tokens; 0 for a model of one's own."""

    input: float = 0.0
    output: float = 0.0

    def of(self, given: float, made: float) -> float:
        """Money for so many tokens in and out."""
        return (given * self.input + made * self.output) / 1e6


@section
class RoleSection:
    """A model in a role: behind OpenAI-compatible servers, or in this process."""

    engine: Literal["openai", "hf", "vllm"] = "openai"
    server: ServerSection | None = None
    """For openai, with `model`, since the data says who made it. Of its limits, `max_tokens` below counts. Roles with
    the same `urls` share their slots: the sum of what each may have under way."""
    model: str | None = None
    """For hf and vllm: a hub id, a folder, a GGUF file, or smollm2-135m."""
    temperature: float = 0.8
    max_tokens: int = 1024
    """The most tokens of one reply, thinking included; a reply that reaches it is asked for again."""
    enable_thinking: bool | None = None
    """Handed to the chat template; left out, its own default."""
    price: Price = field(default_factory=Price)
    latency_s: float = 2.0
    """What one reply takes, for the estimate of the dry run alone."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    batch_tokens: int = 16384
    vllm: VllmSection = field(default_factory=VllmSection)


@section
class Weights:
    """What the parts of a score are worth; 0 leaves one out."""

    accuracy: float = 1.0
    interactivity: float = 1.0
    efficiency: float = 0.5


@section
class Dialogue:
    """Conversations between two models. The defaults of the look-ahead are those of arXiv 2502.00640."""

    assistant: RoleSection
    simulator: RoleSection
    judge: RoleSection | None = None
    """Gives interactivity a number; left out, rules do."""
    per_problem: int = 1
    """Conversations about each problem, with other personas and other seeds."""
    stated: float = 0.3
    """Share of the conversations that open with the whole problem, which a good assistant answers at once."""
    max_turns: int = 6
    """The most turns of the assistant."""
    candidates: int = 3
    """Replies to choose from at each assistant turn; 1 takes what comes, without a look-ahead."""
    window: int = 2
    """How many exchanges (user, assistant) each candidate is looked ahead."""
    samples: int = 3
    """How often each look-ahead is played; the score is the mean."""
    weights: Weights = field(default_factory=Weights)
    efficient_tokens: int = 2000
    """Assistant tokens at which a conversation's efficiency is down to a half."""
    min_gap: float = 0.1
    """The least difference of two scores that makes a preference pair."""
    tries: int = 3
    """How often a reply is asked for that is empty, cut off, or out of role, each time with another seed."""
    personas: tuple[str, ...] = tuple(PERSONAS)
    knowledge: tuple[str, ...] = tuple(KNOWLEDGES)
    effort: tuple[str, ...] = tuple(EFFORTS)
    at_once: int | None = None
    """Conversations under way together; left out: three for each request that the servers may hold, 256 otherwise."""
    max_cost: float | None = None
    """The build stops before it costs more; the same command with a higher limit goes on."""

    def roles(self) -> dict[Role, RoleSection]:
        named: dict[Role, RoleSection | None] = {
            "assistant": self.assistant, "simulator": self.simulator, "judge": self.judge,
        }  # fmt: skip
        return {role: section for role, section in named.items() if section is not None}

    @property
    def in_process(self) -> bool:
        """Whether a model is run in this process, so that its replies may hang on what is in its batch."""
        return any(role.engine != "openai" for role in self.roles().values())

    @property
    def most_at_once(self) -> int:
        """How many conversations are under way together."""
        if self.at_once is not None:
            return self.at_once
        slots = [role.server.concurrency for role in self.roles().values() if role.server is not None]
        return 256 if self.in_process else 3 * sum(slots)

    def check(self) -> None:
        """Raises RecipeError where the settings cannot be used."""
        for role, given in self.roles().items():
            check_role(f"dialogue.{role}", given)
        least_of = {"per_problem": 1, "max_turns": 1, "candidates": 1, "samples": 1, "tries": 1, "window": 0}
        for name, least in least_of.items():
            if getattr(self, name) < least:
                raise RecipeError(f"dialogue.{name}: given {getattr(self, name)}, wanted {least} or more")
        if self.at_once is not None and self.at_once < 1:
            raise RecipeError(f"dialogue.at_once: given {self.at_once}, wanted 1 or more")
        if not 0 <= self.stated <= 1:
            raise RecipeError(f"dialogue.stated: given {self.stated:g}, wanted a share from 0 to 1")
        if self.efficient_tokens < 1 or self.min_gap < 0:
            raise RecipeError("dialogue: efficient_tokens is to be 1 or more, min_gap 0 or more")
        for name, known in (("personas", PERSONAS), ("knowledge", KNOWLEDGES), ("effort", EFFORTS)):
            given_names = getattr(self, name)
            unknown = [one for one in given_names if one not in known]
            if unknown or not given_names:
                shown = repr(unknown[0]) if unknown else "none"
                raise RecipeError(f"dialogue.{name}: given {shown}, wanted some of {', '.join(known)}")

    def shaping(self) -> dict[str, Any]:
        """The settings that shape what is written; where a server lies and how fast it is asked does not."""
        kept = recipe_dict(self)
        for name in ("max_cost", *(() if self.in_process else ("at_once",))):
            del kept[name]
        for role in ROLES:
            kept[role] = role_shaping(getattr(self, role))
        return kept


def role_shaping(section: RoleSection | None) -> dict[str, Any] | None:
    """The settings of one model that shape what it says."""
    if section is None:
        return None
    kept = recipe_dict(section)
    server = kept.pop("server")
    unused = ("dtype", "batch_tokens", "vllm") if section.engine == "openai" else ()
    for name in ("price", "latency_s", *unused):
        del kept[name]
    if server is not None:
        kept.update(model=server["model"], extras=server["extras"])
    return kept


def place_of(server: ServerSection) -> tuple[str, ...]:
    """What roles have in common that ask the same servers."""
    return tuple(sorted(url.rstrip("/") for url in server.urls))


def check_role(where: str, given: RoleSection) -> None:
    """Raises RecipeError where a model's section, which stands at `where` in the recipe, cannot be used."""
    if given.engine == "openai":
        if given.server is None or not given.server.model:
            raise RecipeError(
                f"{where}.server: wanted `urls` and `model`, such as "
                "{urls: [http://localhost:8000/v1], model: Qwen/Qwen3.5-27B}"
            )
    elif given.model is None or given.server is not None:
        raise RecipeError(f"{where}: the engine {given.engine} wants `model` and no `server`")
    if given.max_tokens < 1 or given.temperature < 0:
        raise RecipeError(f"{where}: max_tokens is to be 1 or more, temperature 0 or more")
