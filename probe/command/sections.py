"""The `probe:` and `tracking:` sections of a recipe. Every choice that can change a figure is in `probe:`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from nextturn.probe.command.errors import RecipeError
from nextturn.probe.command.recipe import NAMED, Count, Mark, Named, RecipeSection, Weight, load_recipe, section_from
from nextturn.probe.command.terminal import say

Measure = Literal["accuracy", "clarify", "followup", "sharded", "doubted", "instructions"] | Named


class TrackingSection(RecipeSection):
    """Where figures are shown during a run. A recipe without this section shows them nowhere but in the run directory."""

    to: str = "wandb"
    """`wandb` (offline without a login), `none`, or another tracker of transformers' `report_to`, for training metrics only."""
    project: str = "nextturn"
    """wandb's project."""
    group: str | None = None
    """wandb's group, such as the name of a base model for its SFT, RL and probe runs."""
    name: str | None = None
    """The run's name; default: the name of the run directory."""


BY_JUDGE = "judge"
"""The grader that is a language model."""

_COLUMNS = frozenset({
    "id", "question", "answer", "solution", "choices", "prompt", "messages", "complete", "underspecified", "missing", "shards",
    "date",
})  # fmt: skip
"""The columns that a question set is read from."""


class TemplateSection(RecipeSection):
    """Switches of the chat template."""

    enable_thinking: bool | None = None
    """Passed to the chat template; default: the template's own."""
    thinking: bool | None = None
    """Passed to the chat template, as DeepSeek V3.1 and Granite name the switch; default: the template's own."""
    reasoning_effort: str | None = None
    """Passed to the chat template, such as `low` for gpt-oss; default: the template's own."""

    @property
    def switches(self) -> dict[str, bool | str]:
        """The switches that are set."""
        return {name: value for name in TemplateSection.model_fields if (value := getattr(self, name)) is not None}


class SetSection(RecipeSection):
    """A question set. Without `path` its name must be `written_pairs` or a set that the hub is known to have."""

    path: str | None = None
    """File with the set's rows, in any form of docs/your-data.md; default: the packaged or the hub's set of this name."""
    columns: dict[str, str] = {}
    """Names of the file's own columns, such as {question: Frage, answer: Antwort} or {messages: dialog}."""
    on_bad_row: Literal["stop", "skip"] = "stop"
    """What to do with rows that cannot be read as questions: stop at the first, or skip them and count them in results.json."""
    n: Count | None = None
    """Number of items, sampled with the probe's seed; default: all."""
    measures: tuple[Measure, ...] | None = None
    """What to measure, also MODULE:CLASS of your own; default: clarify for pairs, else followup, and accuracy if the items have answers."""
    n_turns: Count | None = None
    """Number of these items for sharded and doubted, which ask a model several times; default: all."""
    pressures: tuple[Literal["authority", "insistence"], ...] = ()
    """Other wordings in which the user of doubted claims the same result, beside the plain one."""
    instruction: str = ""
    """Text that is added to each question after an empty line, such as the wanted form of the answer."""
    grader: Annotated[str, Field(pattern=rf"^({BY_JUDGE}|{NAMED})$")] | None = None
    """module:function(reply, answer) that grades a reply, or `judge`: the model behind `judge_server`; default: by the kind of answer."""
    transcript: bool = False
    """The rows are finished conversations: the model's user turn is compared with the last user message, which is removed."""
    turns: Literal["last", "all"] = "last"
    """Of finished conversations: the last user turn, or every one after an answer, with figures by depth; tool calls are then context."""
    by: tuple[str, ...] = ()
    """Columns by whose values figures are also counted apart, such as [segment]; `depth` is the number of the user turn, `week` that of `date`."""

    def check_keys(self) -> None:
        if unknown := sorted(self.columns.keys() - _COLUMNS):
            raise RecipeError(f"columns.{unknown[0]}: expected one of {', '.join(sorted(_COLUMNS))}")
        if self.turns == "all" and not self.transcript:
            raise RecipeError("turns: all needs finished conversations (`transcript: true`)")


class ServerSection(RecipeSection):
    """OpenAI-compatible servers, one or several with the same model. API keys come from the environment only."""

    urls: Annotated[tuple[str, ...], Mark.FREE]
    """Base URLs such as http://localhost:8000/v1; each request goes to the server with the fewest open requests."""
    model: str | None = None
    """The model's name on the server; default: the only model that the server lists."""
    api_key_env: Annotated[str, Mark.FREE] = "OPENAI_API_KEY"
    """The environment variable that holds the API key; no key is sent if it is not set."""
    concurrency: Annotated[Count, Mark.FREE] = 16
    """Open requests at a time, over all servers."""
    timeout_s: Annotated[float, Field(gt=0), Mark.FREE] = 120.0
    """Time limit of one attempt in seconds."""
    attempts: Annotated[Count, Mark.FREE] = 6
    """Attempts before a request counts as failed; waiting for a rate limit (429) is no attempt."""
    max_wait_s: Annotated[float, Mark.FREE] = 600.0
    """The longest time in seconds that one request waits for rate limits in total."""
    max_tokens: int = 1024
    """Tokens of a judge's reply at most, thinking included; user turns and answers have limits of their own."""
    enable_thinking: bool | None = None
    """For a judge: passed to the chat template by vLLM and SGLang, since thinking may use up `max_tokens`; default: the template's."""
    extras: bool = True
    """Send what vLLM and SGLang know beyond the protocol: stop_token_ids, special tokens, neutral top_k, min_p, repetition_penalty."""


class VllmSection(RecipeSection):
    """vLLM in this process, with vLLM's own names."""

    gpu_memory_utilization: float | None = None
    """Share of each GPU's memory that vLLM takes; default: 90% of what is free at its start, on a CPU half of it."""
    max_model_len: int | None = None
    """Tokens of prompt and completion together at most; default: the model's own limit."""
    tensor_parallel_size: int = 1
    """Number of GPUs that share the model."""
    enforce_eager: bool = False
    """Run without CUDA graphs, which saves memory and costs speed."""


def _default_judge(section: dict[str, Any]) -> str:
    if section.get("judge_server") is None:
        return "rules"
    say("judge     llm, because probe.judge_server is set; `judge: rules` in the recipe keeps the rules")
    return "llm"


class EngineSection(TemplateSection):
    """What runs a model."""

    engine: Annotated[Literal["openai", "hf", "vllm"], Mark.IN_BUILDS] = "openai"
    """Servers, or transformers or vLLM in this process."""
    server: ServerSection | None = None
    """The servers of the engine openai."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Data type of the weights; auto: the checkpoint's own."""
    batch_tokens: Annotated[int | None, Mark.FREE] = None
    """Tokens in one batch of the engine hf; default: what fits in the free GPU memory, 16,384 on a CPU."""
    vllm: Annotated[VllmSection, Mark.FREE] = VllmSection()
    """Settings of the engine vllm."""


class RoleSection(EngineSection):
    """A model in a role: behind OpenAI-compatible servers, or in this process."""

    server: ServerSection | None = None
    """For openai, with `model`; `max_tokens` below replaces its own limit, and roles with equal `urls` share their concurrency."""
    model: str | None = None
    """For hf and vllm: a hub id, a folder, or smollm2-135m."""
    temperature: Weight = 0.8
    """Sampling temperature."""
    max_tokens: Count = 1024
    """Tokens of a reply at most, thinking included; a reply that reaches the limit is sampled again."""

    def check_keys(self) -> None:
        if self.engine != "openai":
            if self.model is None or self.server is not None:
                raise ValueError(f"model: the engine {self.engine} needs `model` and takes no `server`")
        elif self.server is None or not self.server.model:
            raise ValueError(
                "server: missing `urls` or `model`, expected such as "
                "{urls: [http://localhost:8000/v1], model: Qwen/Qwen3.5-27B}"
            )
        elif self.server.enable_thinking is not None:
            raise ValueError("server.enable_thinking: expected `enable_thinking` one level up, next to `server`")


class ProbeSection(EngineSection):
    """What the probe measures. The defaults follow arXiv 2604.02315 where it states a choice."""

    sets: Annotated[dict[str, SetSection], Mark.IN_PROBES]
    """Question sets by name."""
    temperatures: Annotated[tuple[Weight, ...], Mark.COMPARED] = (0.0, 0.7, 1.0)
    """Temperatures at which user turns are sampled; answers are always greedy."""
    samples: Annotated[Count, Mark.COMPARED] = 1
    """User turns per item at each temperature above 0; greedy decoding always makes one."""
    perturbations: Annotated[tuple[str, ...], Mark.COMPARED] = ()
    """Changes of the answer that are measured as positive controls: `truncate(0.5)`, `question(What do you think?)`."""
    n_perturbed: Annotated[Count | None, Mark.COMPARED] = None
    """Perturb the answers of the first so many items alone, at the lowest temperature; default: all items, at all temperatures."""
    grounding: Annotated[bool, Mark.COMPARED] = True
    """Also measure how much the answer explains the user turn: (log p(u | q, a) - log p(u | q)) per token."""
    prefix_form: Literal["history", "generation"] = "history"
    """The answer before the user turn as the template renders it in the history, or as it was generated."""
    system_prompt: str | None = None
    """System message before each conversation; default: none."""
    engine: Annotated[Literal["hf", "vllm", "openai"], Mark.COMPARED] = "hf"
    """What generates: transformers, vLLM in this process, or servers."""
    server: Annotated[ServerSection | None, Mark.IN_PROBES] = None
    """The servers of the engine `openai`; they serve the model that is named on the command line."""
    judge_server: Annotated[ServerSection | None, Mark.IN_PROBES] = None
    """The servers of the judge `llm`, and of sets with `grader: judge`."""
    judge: Annotated[Literal["rules", "llm"] | Named, Mark.IN_PROBES] = Field(default_factory=_default_judge)
    """What labels user turns: rules, llm, or MODULE:CLASS of your own; default: llm if `judge_server` is set, else rules."""
    max_answer_tokens: Count = 512
    """Tokens of an answer at most."""
    max_user_tokens: Count = 96
    """Tokens of a user turn at most."""
    batch_tokens: Annotated[Count | None, Mark.FREE] = None
    """Tokens in one batch of the engine `hf`; default: what fits in the free GPU memory, 16,384 on a CPU."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Data type of the weights; auto: the checkpoint's own, of a server unknown. A CPU without bfloat16 instructions uses float32."""
    seed: int = 0
    """Seed of the item sample and of all sampled turns."""
    user_model: Annotated[bool, Mark.FREE] = False
    """Also measure a user model (`data.loss_on: user`) as if it were a policy; without it the probe refuses user models."""
    when: Annotated[Literal["inline", "watch", "never"], Mark.IN_PROBES] = "inline"
    """In training: after each checkpoint on the training processes, by `nextturn probe watch` elsewhere, or not at all."""


class ProbeRecipe(RecipeSection):
    """The recipe of `nextturn probe run`."""

    probe: ProbeSection
    """What is measured."""
    tracking: TrackingSection = TrackingSection(to="none")
    """Where the figures are shown; without this section nowhere."""


def recipe_of_sets(names: Sequence[str], overrides: Sequence[str] = (), transcripts: Sequence[str] = ()) -> ProbeRecipe:
    """Return the recipe of a probe without a recipe file: question sets by file or by the name of a known set, and files of
    finished conversations.

    Raises:
        RecipeError: There is no set, or an option is wrong.
    """
    if not names and not transcripts:
        raise RecipeError("expected a recipe such as recipes/probe.yaml, or --set FILE, or --transcripts FILE")
    sets: dict[str, Any] = {Path(name).stem: {"path": name} if Path(name).suffix else {} for name in names}
    sets |= {Path(name).stem: {"path": name, "transcript": True} for name in transcripts}
    if len(sets) < len(names) + len(transcripts):
        raise RecipeError("--set and --transcripts: two files have the same name; a recipe can give the sets names")
    return section_from(ProbeRecipe, {"probe": {"sets": sets}}, "--set", overrides)


def take_recipe(arguments: argparse.Namespace, rest: Sequence[str], sets: Sequence[str]) -> Sequence[str]:
    """Take a recipe that came after an option from the rest of the command line, and return what is left.

    Raises:
        RecipeError: There are a recipe and `sets`.
    """
    if arguments.recipe is None and rest and not rest[0].startswith("--"):
        arguments.recipe, rest = Path(rest[0]), rest[1:]
    if arguments.recipe and sets:
        raise RecipeError("--set or --transcripts: given with a recipe, which names its sets; expected one of them")
    return rest


def load_probe_recipe(path: Path | str, overrides: Sequence[str] = ()) -> ProbeRecipe:
    """Load the recipe at `path`. Of a training recipe only `probe:` is read, since the rest describes the training run.

    Raises:
        RecipeError: The recipe is wrong, see `load_recipe`.
    """
    return load_recipe(ProbeRecipe, path, overrides, inside=("train", "probe"))
