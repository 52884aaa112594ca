"""The `probe:` section of a recipe: what is measured and how. Every choice that can move a number is here."""

from __future__ import annotations

from dataclasses import field
from typing import Literal

from probe.recipe import section

Measure = Literal["accuracy", "clarify", "followup"]


@section
class SetSection:
    """One question set. Without `path` the name must be one that the hub is known to hold."""

    path: str | None = None
    n: int | None = None
    """How many items, picked by the probe's seed; all where left out."""
    measures: tuple[Measure, ...] | None = None
    """Left out: clarify for pairs; else followup, and accuracy where the items have answers."""
    instruction: str = ""
    """Added to the question after an empty line, such as a wish for the answer's form."""


@section
class ProbeSection:
    """What the probe measures. The defaults follow arXiv 2604.02315 where it states a choice."""

    sets: dict[str, SetSection]
    temperatures: tuple[float, ...] = (0.0, 0.7, 1.0)
    samples: int = 1
    """User turns per item at each temperature above 0; greedy always makes one."""
    prefix_form: Literal["history", "generation"] = "history"
    system_prompt: str | None = None
    enable_thinking: bool | None = None
    judge: Literal["rules"] = "rules"
    engine: Literal["hf"] = "hf"
    max_answer_tokens: int = 512
    max_user_tokens: int = 96
    batch_tokens: int = 16384
    """The most tokens in one batch of the hf engine; more is faster and takes more memory."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    seed: int = 0
    when: Literal["inline", "never"] = "inline"
    """In training: after each checkpoint on the training ranks, or not at all."""


@section
class ProbeRecipe:
    """The recipe of `python -m probe run`."""

    probe: ProbeSection = field()
