"""A policy that says the same to everything: the run warns, or ends with a checkpoint, also after a resume."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from transformers import TrainerControl, TrainerState

from nextturn.probe.command.errors import TrainingStopped
from nextturn.probe.command.files import read_json
from nextturn.probe.models.checkpoints import list_checkpoints
from nextturn.train import collapse, grpo, scoring
from nextturn.train.collapse import LEAST, WatchesCollapse
from nextturn.train.sections import load_grpo_recipe
from support.grpo_parts import write_recipe


def replies(distinct: int, number: int = LEAST) -> list[str]:
    return [f"reply {place % distinct}" for place in range(number)]


def right(share: float, number: int = LEAST, problems: int = LEAST) -> list[tuple[str, float]]:
    """Samples of so many problems; those of one problem are right or wrong together."""
    return [(f"problem {place % problems}", float(place % problems < share * problems)) for place in range(number)]


@pytest.mark.parametrize(
    ("kind", "looks", "outcome"),
    [
        ("replies", [replies(60), replies(29)], "collapsed"),
        ("replies", [replies(60), replies(30)], ""),
        ("replies", [replies(8), replies(4)], ""),  # few at the start, too
        ("replies", [replies(40, 40), replies(1, 20)], ""),  # not enough samples yet
        ("replies", [replies(40, 40), replies(40, 40), replies(1, 80)], "collapsed"),
        ("replies", [replies(60), replies(2), replies(60)], "warned"),  # it came back
        ("replies", [replies(60), [], replies(3), []], "collapsed"),  # steps without a generation
        ("held_out", [right(0.75), right(0.25)], "collapsed"),
        ("held_out", [right(0.75), right(0.5)], ""),
        ("held_out", [right(0.375, problems=8), right(0.125, problems=8)], ""),  # eight problems: up to 0.47
        ("held_out", [right(0.5, 32), right(0.5, 32), right(0.0, 32), right(0.0, 32)], "collapsed"),  # evaluations together
        ("held_out", [right(0.0), right(0.0)], ""),
    ],
)  # fmt: skip
def test_a_run_is_compared_with_its_start(kind: str, looks: list[list[Any]], outcome: str, capsys: Any) -> None:
    rewards: Any = SimpleNamespace(seen={"replies": [], "held_out": []})
    watch, state, stops = WatchesCollapse(rewards, False), TrainerState(max_steps=9), WatchesCollapse(rewards, True)
    for step, new in enumerate(looks, start=1):
        rewards.seen[kind], state.global_step = list(new), step
        (watch.on_step_end if kind == "replies" else watch.on_evaluate)(None, state, control := TrainerControl())
        assert not control.should_save, "a warning alone saves nothing"
    assert ("warning" in capsys.readouterr().out) == bool(outcome)

    watch.on_save(None, state, control)
    stops.on_step_end(None, state, control)
    assert control.should_save == (outcome == "collapsed")
    if outcome == "collapsed":
        with pytest.raises(TrainingStopped, match=rf"step {len(looks)}\b.*stop_on_collapse"):
            stops.on_save(None, state, control)
        state.global_step = 9
    stops.on_save(None, state, control)  # after the last step a run ends by itself


def test_a_run_that_collapsed_ends_with_a_checkpoint_and_stays_ended(
    tiny_chatml: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = count()
    monkeypatch.setattr(collapse, "LEAST", 8)  # one step's samples
    monkeypatch.setattr(scoring, "sha256_text", lambda _: str(min(next(numbers), 10)))
    path = write_recipe(
        tmp_path, tiny_chatml, rollout={"window": 0, "stop_on_collapse": True}, probe={"when": "never"},
        train={"max_steps": 4, "save_steps": 9},
    )  # fmt: skip

    def steps() -> list[int]:
        return [step for step, _ in list_checkpoints(tmp_path / "run")]

    # In the second step most replies are equal. The same command does not go on from there.
    for _ in range(2):
        with pytest.raises(TrainingStopped, match="checkpoint-2"):
            grpo.train(load_grpo_recipe(path))
        assert steps() == [2]
    assert not (tmp_path / "run" / "finished.json").exists()

    grpo.train(load_grpo_recipe(path, ["--rollout.stop_on_collapse", "false"]))
    assert max(steps()) == 4
    state = read_json(tmp_path / "run" / "checkpoint-4" / "trainer_state.json")
    seen = state["stateful_callbacks"]["WatchesCollapse"]["replies"]
    assert len(set(seen["start"])) == 8, "of the run, not of the resumed part"
    assert set(seen["newest"]) == {"10"}
