"""The `dialogue:` section of a data recipe: who speaks, what users want, how often is tried, what is worth how much."""

from __future__ import annotations

from dataclasses import field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import Field

from probe.errors import RecipeError
from probe.files import sha256_text
from probe.recipe import Count, Share, Weight, recipe_dict, section
from probe.settings import ServerSection, VllmSection

_FILE = Path(__file__).with_name("prompts.yaml").read_text(encoding="utf-8")
PROMPTS: dict[str, Any] = yaml.safe_load(_FILE)
"""All that the roles are told, by name."""
PROMPT_VERSION = sha256_text(_FILE)[:12]
"""A part of a build's settings, since every word of it shapes what is said."""
PERSONAS: dict[str, str] = PROMPTS["personas"]
GOALS: dict[str, str] = PROMPTS["goals"]

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
    the same `urls` share their slots: the sum of what each section may have under way."""
    model: str | None = None
    """For hf and vllm: a hub id, a folder, a GGUF file, or smollm2-135m."""
    temperature: Weight = 0.8
    max_tokens: Count = 1024
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
class Goals:
    """How often users want what; the numbers are weights. `slip` is the assistant's: it is corrected, and concedes,
    about as often as a result that is right is doubted."""

    result: Weight = 4.0
    child: Weight = 1.0
    hint: Weight = 1.5
    steps: Weight = 1.0
    check: Weight = 1.5
    slip: Weight = 2.0


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
    goals: Goals = field(default_factory=Goals)
    personas: tuple[str, ...] = tuple(PERSONAS)
    reactions: Count = 2
    """The most reactions to a solution; at least one."""
    tries: Count = 4
    """How often a problem may be solved until it is right, and how often it is tried without what is withheld."""
    again: Count = 3
    """How often another reply is asked for that cannot be used, each time with another seed."""
    proposals: Count = 3
    """How many things to withhold are tried until one is needed."""
    judged_at_least: Annotated[int, Field(ge=0)] = 4
    """The verdict, 1 to 5, under which a conversation is refused; 0 asks no judge."""
    candidates: Count = 1
    """Replies to choose from at each assistant turn but the solution; 1 takes the first that can be used. More are looked
    ahead: `window` exchanges, `samples` times over (arXiv 2502.00640)."""
    window: Annotated[int, Field(ge=0)] = 2
    samples: Count = 3
    weights: Weights = field(default_factory=Weights)
    efficient_tokens: Count = 2000
    """Assistant tokens at which a conversation's efficiency is down to a half."""
    min_gap: Weight = 0.1
    """The least difference of two scores that makes a preference pair."""
    at_once: Count | None = None
    """Problems under way together; left out: three for each request that the servers may hold, 256 otherwise."""
    max_cost: float | None = None
    """The build stops before it costs more; the same command with a higher limit goes on."""

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
        """How many problems are under way together."""
        if self.at_once is not None:
            return self.at_once
        return 256 if self.in_process else 3 * sum(server.concurrency for server in servers(self.roles().values()))

    def check(self) -> None:
        """Raises RecipeError where the settings cannot be used."""
        for name in ("policy", "simulator", "judge"):
            if (given := getattr(self, name)) is not None:
                check_role(f"dialogue.{name}", given)
        if not self.goals.result:
            raise RecipeError(
                "dialogue.goals.result: given 0, wanted more: what has nothing for another goal becomes a result"
            )
        unknown = [one for one in self.personas if one not in PERSONAS]
        if unknown or not self.personas:
            shown = repr(unknown[0]) if unknown else "none"
            raise RecipeError(f"dialogue.personas: given {shown}, wanted some of {', '.join(PERSONAS)}")

    def shaping(self) -> dict[str, Any]:
        """The settings that shape what is written; where a server lies and how fast it is asked does not."""
        kept = recipe_dict(self) | {
            name: role_shaping(getattr(self, name)) for name in ("policy", "simulator", "judge")
        }
        for name in ("max_cost", *(() if self.in_process else ("at_once",))):
            del kept[name]
        return kept


def servers(sections: Any) -> list[ServerSection]:
    """The servers of some roles; a section that stands for several roles counts once."""
    found = {id(one.server): one.server for one in sections if one.server is not None}
    return list(found.values())


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
