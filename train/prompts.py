"""Prompts of GRPO: the rl rows of a data build, as trl's dataset and as what a rollout looks up."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data_builders.rl import RlRow, load_rl_rows
from probe.chat import Chat
from probe.errors import DataError
from train.grpo_recipe import PromptSection


@dataclass(frozen=True)
class PromptCounts:
    """What became of the rl rows: how many prompts of which kind, their tokens, and rows left out as too long."""

    prompts: int
    kinds: dict[str, int]
    tokens: int
    longest: int
    too_long: int

    def told(self) -> str:
        """For a model card."""
        kinds = ", ".join(f"{count:,} {kind}" for kind, count in sorted(self.kinds.items()))
        return f"{self.prompts:,} prompts ({kinds}), {self.too_long} left out as too long"


def load_prompts(
    path: Path, section: PromptSection, chat: Chat, seed: int, least: int
) -> tuple[dict[str, RlRow], PromptCounts]:
    """The rows to train on by id, in the order of the data; trl shuffles them by `train.seed`.

    Args:
        path: a builder's output folder or a JSONL file.
        least: prompts of one generation batch; with fewer, trl would train no step.

    Raises:
        DataError: a broken row (file:line), an unknown kind, or too few prompts.
    """
    return choose_prompts(load_rl_rows(path), section, chat, seed, least, str(path))


def choose_prompts(
    rows: Iterable[RlRow], section: PromptSection, chat: Chat, seed: int, least: int, where: str
) -> tuple[dict[str, RlRow], PromptCounts]:
    """The same from rows at hand; `where` names them in errors."""
    every = list(rows)
    kept = [row for row in every if section.kinds is None or row.kind in section.kinds]
    there = sorted({row.kind for row in every})
    unknown = [kind for kind in section.kinds or () if kind not in there]
    if unknown:
        raise DataError(f"{where}: data.kinds: no prompt of the kind {unknown[0]}, there are {', '.join(there)}")
    sizes = {row.id: len(chat.prompt_ids(row.prompt)) for row in kept}
    short = [row for row in kept if sizes[row.id] <= section.max_prompt_tokens]
    too_long = len(kept) - len(short)
    if section.max_prompts is not None and section.max_prompts < len(short):
        picked = random.Random(f"prompts:{seed}").sample(range(len(short)), section.max_prompts)
        short = [short[place] for place in sorted(picked)]
    if len(short) < least:
        raise DataError(
            f"{where}: {len(short)} prompts, wanted at least the {least} of one generation batch "
            f"({too_long} are longer than data.max_prompt_tokens {section.max_prompt_tokens})"
        )
    counts = PromptCounts(
        prompts=len(short),
        kinds=dict(Counter(row.kind for row in short)),
        tokens=sum(sizes[row.id] for row in short),
        longest=max(sizes.values(), default=0),
        too_long=too_long,
    )
    return {row.id: row for row in short}, counts


def prompt_dataset(rows: Sequence[RlRow]) -> Any:
    """trl's dataset; the last message of each prompt says which row it is, since a rollout is given messages alone."""
    from datasets import Dataset

    return Dataset.from_list([{"prompt": prompt_of(row)} for row in rows])


def prompt_of(row: RlRow) -> list[dict[str, str]]:
    return [*map(dict, row.prompt[:-1]), {**row.prompt[-1], "row": row.id}]
