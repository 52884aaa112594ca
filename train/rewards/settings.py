"""The `reward:` section of a recipe: which parts a reward has, what they are worth, and what happens where one fails."""

from __future__ import annotations

import math
import re
from dataclasses import field

from data_builders.dialogue.settings import RoleSection, check_role
from probe.errors import RecipeError
from probe.recipe import section

PARTS = ("accuracy", "interactivity", "efficiency", "format", "followup")
_NAME = re.compile(r"[A-Za-z_]\w*")
_FUNCTION = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")


@section
class Weights:
    """What the parts are worth, relative to each other; a part without weight is logged but not rewarded."""

    accuracy: float = 1.0
    interactivity: float = 0.5
    efficiency: float = 0.1
    format: float = 0.0
    followup: float = 0.0
    """Exploratory: how genuine the policy's own user turn is. Without weight it is not even measured, since each sample
    then needs one more generation."""


@section
class CustomPart:
    """A part of one's own: `function(played: train.played.Played) -> float | None`, best from 0 to 1."""

    function: str
    """module:function, where the module can be imported from the directory that the command runs in."""
    weight: float = 1.0


@section
class RewardSection:
    """One reward for each sample: the weighted mean of its parts."""

    weights: Weights = field(default_factory=Weights)
    required: tuple[str, ...] | None = None
    """Parts without which a sample has no reward, and is left out; left out: every part with a weight. Any other part
    that fails is left out of that sample's mean, which then compares unlike things within a group."""
    judge: RoleSection | None = None
    """A model behind servers (engine openai) that judges interactivity; left out, rules do."""
    judge_timeout_s: float = 300.0
    """The longest that a step waits for all its verdicts together; `judge.server` bounds each request."""
    partial_credit: bool = False
    """A wrong or missing answer gets up to 0.2 for steps that the reference solution has too."""
    efficient_tokens: int = 500
    """Assistant tokens at which efficiency is down to a half; it falls for ever, and is never flat."""
    timeout_s: float = 10.0
    """The longest that comparing one answer, or one call of a custom function, may take."""
    workers: int = 2
    """Processes for that, beside each training process; none is started before it is needed."""
    max_failed: float = 0.2
    """Share of a step's samples without a reward, over all processes, above which the run stops."""
    custom: dict[str, CustomPart] = field(default_factory=dict)

    @property
    def weight_of(self) -> dict[str, float]:
        """Every part's weight, custom ones included."""
        return {**vars(self.weights), **{name: part.weight for name, part in self.custom.items()}}

    @property
    def required_parts(self) -> frozenset[str]:
        given = self.required
        return (
            frozenset(name for name, weight in self.weight_of.items() if weight) if given is None else frozenset(given)
        )

    @property
    def wants_user_turns(self) -> bool:
        """Whether samples are to hold the policy's own user turns."""
        return self.weights.followup > 0

    def check(self) -> None:
        """Raises RecipeError, with the key, where the settings cannot be used."""
        self._check_weights()
        for name, part in self.custom.items():
            if not _NAME.fullmatch(name) or name in PARTS:
                raise RecipeError(
                    f"reward.custom.{name}: wanted a name of letters and digits other than {', '.join(PARTS)}"
                )
            if not _FUNCTION.fullmatch(part.function):
                raise RecipeError(f"reward.custom.{name}.function: given {part.function!r}, wanted module:function")
        for name in self.required or ():
            if not self.weight_of.get(name):
                known = ", ".join(part for part, weight in self.weight_of.items() if weight)
                raise RecipeError(f"reward.required: given {name!r}, wanted parts that have a weight: {known}")
        for name in ("judge_timeout_s", "timeout_s", "workers", "efficient_tokens"):
            if not 0 < getattr(self, name) < math.inf:
                raise RecipeError(f"reward.{name}: given {getattr(self, name)}, wanted more than 0")
        if not 0 <= self.max_failed <= 1:
            raise RecipeError(f"reward.max_failed: given {self.max_failed:g}, wanted a share from 0 to 1")
        if self.judge is not None:
            if self.judge.engine != "openai":
                raise RecipeError(
                    f"reward.judge.engine: given {self.judge.engine}, wanted openai: a judge runs elsewhere"
                )
            check_role("reward.judge", self.judge)

    def _check_weights(self) -> None:
        for name, weight in self.weight_of.items():
            if not 0 <= weight < math.inf:
                where = f"custom.{name}.weight" if name in self.custom else f"weights.{name}"
                raise RecipeError(f"reward.{where}: given {weight}, wanted 0 or more")
        if not sum(self.weight_of.values()):
            raise RecipeError("reward.weights: all are 0, wanted at least one part that counts")
