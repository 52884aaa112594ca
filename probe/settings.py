"""The `probe:` section of a recipe: what is measured and how. Every choice that can move a number is here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from pathlib import Path
from typing import Any, Literal, cast

from nextturn.probe.recipe import load_recipe, section
from nextturn.probe.terminal import say

Measure = Literal["accuracy", "clarify", "followup"]


@section
class TrackingSection:
    """Where figures are shown while a run goes on. A recipe without this section keeps them in the run directory only."""

    project: str = "nextturn"
    group: str | None = None
    """What belongs together in wandb's pages, such as one base model's SFT, RL and probe runs."""
    name: str | None = None
    to: str = "wandb"
    """`wandb` (offline if nobody is logged in), `none`, or another tracker of transformers' `report_to`, which gets the
    training metrics alone."""


@section
class SetSection:
    """One question set. Without `path` the name must be `written_pairs` or one that the hub is known to hold."""

    path: str | None = None
    n: int | None = None
    """How many items, picked by the probe's seed; all where left out."""
    measures: tuple[Measure, ...] | None = None
    """Left out: clarify for pairs; else followup, and accuracy where the items have answers."""
    instruction: str = ""
    """Added to the question after an empty line, such as a wish for the answer's form."""
    transcript: bool = False
    """The rows are finished conversations: the last user message is taken away, the answer before it stays as it
    is, and the model's user turn is judged beside the one that was taken away."""


@section
class ServerSection:
    """OpenAI-compatible servers, one or several with the same model. Keys come from the environment only."""

    urls: tuple[str, ...]
    """Such as http://localhost:8000/v1; requests go to the one with the fewest under way."""
    model: str | None = None
    """As the server calls it; left out: the one model that it lists."""
    api_key_env: str = "OPENAI_API_KEY"
    """The environment variable that holds the key; without it none is sent."""
    concurrency: int = 16
    """Requests under way at once, over all servers."""
    timeout_s: float = 120.0
    """The longest that one attempt may take."""
    attempts: int = 6
    """How often one request is tried before it counts as failed; waiting out a rate limit (429) is not a try."""
    max_wait_s: float = 600.0
    """The longest that one request waits on rate limits in all."""
    max_tokens: int = 1024
    """A judge's reply, thinking included; user turns and answers have limits of their own."""
    verdict: Literal["text", "probability"] = "text"
    """How a judge answers: a reason and a label, or one token, whose log-probabilities say how likely each label is."""
    enable_thinking: bool | None = None
    """Of a judge: handed to the server's chat template (`chat_template_kwargs` of vLLM and SGLang). A model that thinks by
    default may spend all of `max_tokens` on one verdict: false stops that. Left out, the template's own default holds."""
    extras: bool = True
    """Send fields that vLLM and SGLang know and the protocol does not: stop_token_ids, the handling of special tokens,
    and neutral top_k, min_p and repetition_penalty, which such servers else take from the model's own defaults."""


@section
class VllmSection:
    """How vLLM is set up in this process; the names are its own."""

    gpu_memory_utilization: float | None = None
    """The share of a device's memory that vLLM takes; left out: nine tenths of what is free when it starts, and half of
    it on a CPU. A trainer that starts later on the same device needs its part left free by hand."""
    max_model_len: int | None = None
    tensor_parallel_size: int = 1
    enforce_eager: bool = False


@section
class ProbeSection:
    """What the probe measures. The defaults follow arXiv 2604.02315 where it states a choice."""

    sets: dict[str, SetSection]
    temperatures: tuple[float, ...] = (0.0, 0.7, 1.0)
    samples: int = 1
    """User turns per item at each temperature above 0; greedy always makes one."""
    perturbations: tuple[str, ...] = ()
    """Positive controls beside the plain run: `truncate(0.5)`, `question(What do you think?)`."""
    grounding: bool = True
    """Also measure how much the answer explains the user turn: (log p(u | q, a) - log p(u | q)) per token."""
    prefix_form: Literal["history", "generation"] = "history"
    system_prompt: str | None = None
    enable_thinking: bool | None = None
    judge: Literal["rules", "llm"] = cast(Any, None)
    """Left out: llm where `judge_server` is set, else rules."""
    judge_server: ServerSection | None = None
    """The server that the judge `llm` asks."""
    engine: Literal["hf", "vllm", "openai"] = "hf"
    server: ServerSection | None = None
    """Where the engine `openai` asks; it serves the model that is named on the command line."""
    vllm: VllmSection = field(default_factory=VllmSection)
    max_answer_tokens: int = 512
    max_user_tokens: int = 96
    batch_tokens: int | None = None
    """The most tokens in one batch of the hf engine; left out, as many as the free memory of the GPU holds, and 16,384
    on a CPU."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    seed: int = 0
    when: Literal["inline", "watch", "never"] = "inline"
    """In training: after each checkpoint on the training ranks, by `nextturn probe watch` elsewhere, or not at all."""

    def __post_init__(self) -> None:
        if self.judge is None:
            object.__setattr__(self, "judge", "llm" if self.judge_server else "rules")
            if self.judge_server:
                say("judge     llm, because probe.judge_server is set; `judge: rules` in the recipe keeps the rules")


@section
class ProbeRecipe:
    """The recipe of `nextturn probe run`."""

    probe: ProbeSection = field()
    tracking: TrackingSection = field(default_factory=lambda: TrackingSection(to="none"))
    """A run by itself is shown nowhere unless the recipe says so."""


def load_probe_recipe(path: Path | str, overrides: Sequence[str] = ()) -> ProbeRecipe:
    """The recipe at `path`; of a training's only `probe:` is read, since the rest describes that run and not this one.

    Raises:
        RecipeError: as `probe.recipe.load_recipe`.
    """
    return load_recipe(ProbeRecipe, path, overrides, inside=("train", "probe"))
