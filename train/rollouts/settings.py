"""The `rollout:` section of a recipe: what a sample is, and who plays the user."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any, Literal

from data_builders.dialogue.settings import RoleSection
from probe.errors import RecipeError
from probe.recipe import section


@section
class SimulatorSection(RoleSection):
    """The simulated user: `scripted` needs no model; the other engines take the fields of a data builder's role."""

    engine: Literal["scripted", "openai", "hf", "vllm"] = "scripted"  # type: ignore[assignment]
    tries: int = 3
    """How often a message is asked for that is empty, cut off, or out of role, each time with another seed."""


@section
class RolloutSection:
    """How a group's samples are made."""

    mode: Literal["reply", "conversation"] = "reply"
    """`reply` trains one assistant turn, rewarded for what comes after it; `conversation` trains all of them."""
    simulator: SimulatorSection = field(default_factory=SimulatorSection)
    window: int = 2
    """reply: how many exchanges (user, assistant) are looked ahead after the reply; 0 for none."""
    samples: int = 1
    """reply: how often each look-ahead is played."""
    max_turns: int = 4
    """conversation: the policy's turns at most."""
    max_turn_tokens: int = 256
    """Tokens of one turn at most, look-ahead included. `train.max_completion_length` bounds the trained whole: a
    conversation takes another turn only while a whole one fits."""
    batch_tokens: int = 32768
    """The most tokens in one batch where transformers generates; more is faster and takes more memory."""


def check_rollout(rollout: RolloutSection, train: Mapping[str, Any]) -> None:
    """Refuses what could only go wrong, or be ignored, later; `train` holds trl's arguments as far as they are known.

    Raises:
        RecipeError: one line, with the key.
    """
    for name, least in {"window": 0, "samples": 1, "max_turns": 1, "max_turn_tokens": 1, "batch_tokens": 1}.items():
        if getattr(rollout, name) < least:
            raise RecipeError(f"rollout.{name}: given {getattr(rollout, name)}, wanted {least} or more")
    _check_simulator(rollout.simulator)
    most = train.get("max_completion_length")
    if most is not None and most < rollout.max_turn_tokens:
        raise RecipeError(
            f"rollout.max_turn_tokens: given {rollout.max_turn_tokens}, and train.max_completion_length, which bounds "
            f"all that is trained of a sample, is {most}; wanted no more than that"
        )
    if not train.get("use_vllm"):
        _check_sampling(train)


def check_launch(simulator: SimulatorSection, accelerator: Any) -> None:
    """Refuses a simulator in this process where the launch would take its model for a part of the training.

    Raises:
        RecipeError: ZeRO-3 spreads every model that is loaded over the processes; vLLM wants a process of its own.
    """
    plugin = accelerator.state.deepspeed_plugin
    spread = plugin is not None and plugin.zero_stage == 3
    if (simulator.engine == "hf" and spread) or (simulator.engine == "vllm" and accelerator.num_processes > 1):
        why = "with ZeRO-3" if spread else "in a launch of several processes"
        raise RecipeError(
            f"rollout.simulator.engine: {simulator.engine}, wanted openai {why}: serve the model by itself, such as with "
            f"`vllm serve {simulator.model}`, and name it under rollout.simulator.server"
        )


def _check_simulator(simulator: SimulatorSection) -> None:
    where = "rollout.simulator"
    if simulator.engine == "scripted":
        if simulator.model is not None or simulator.server is not None:
            raise RecipeError(f"{where}: the engine scripted takes no `model` and no `server`")
    elif simulator.engine == "openai":
        if simulator.server is None or not simulator.server.model:
            raise RecipeError(
                f"{where}.server: wanted `urls` and `model`, such as "
                "{urls: [http://localhost:8000/v1], model: Qwen/Qwen3.5-27B}"
            )
    elif simulator.model is None or simulator.server is not None:
        raise RecipeError(f"{where}: the engine {simulator.engine} wants `model` and no `server`")
    if simulator.max_tokens < 1 or simulator.tries < 1 or simulator.temperature < 0:
        raise RecipeError(f"{where}: max_tokens and tries are to be 1 or more, temperature 0 or more")


# What leaves sampling as it is, by trl's name. Rollouts with transformers draw from the whole distribution at a
# temperature, which is also what the loss scores; anything narrower would be trained on as if it were that.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "top_p": (None, 1, 1.0),
    "top_k": (None, 0, -1),
    "min_p": (None, 0, 0.0),
    "repetition_penalty": (None, 1, 1.0),
    "generation_kwargs": (None, {}),
    "cache_implementation": (None,),
    "use_transformers_continuous_batching": (None, False),
    "ds3_gather_for_generation": (None, True),
}


def _check_sampling(train: Mapping[str, Any]) -> None:
    for name, neutral in _NEUTRAL.items():
        if train.get(name) not in neutral:
            raise RecipeError(
                f"train.{name}: given {train[name]!r}; rollouts with transformers sample at train.temperature alone, so "
                "leave it out, or set train.use_vllm"
            )
    temperature = train.get("temperature")
    if temperature is not None and temperature <= 0:
        raise RecipeError(f"train.temperature: given {temperature:g}, wanted more than 0: a group must differ")
