"""The gate of problems told piece by piece: what a policy is shown, when it opens, and that a resumed run goes on from it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from nextturn.data_builders.rows import RlRow
from nextturn.probe.errors import RecipeError
from nextturn.probe.files import read_json, read_jsonl
from nextturn.probe.simulation import ShardedUser
from nextturn.train.gate import RECENT, ShardGate
from nextturn.train.grpo import main
from nextturn.train.recipe import RolloutSection
from nextturn.train.rewards import Scored
from nextturn.train.rollouts import RolloutFunction
from support.grpo_parts import rl_row, write_recipe
from support.launches import history
from support.rollout_parts import chat_of, rolled, trainer_of
from support.sample_parts import given, sample, withheld

FACTS = ("Ann has 5 red bags.", "Each bag has 12 marbles.", "She loses 7.")
IN_PIECES = given(
    id="pieces", kind="sharded", shards=FACTS, prompt=({"role": "user", "content": "How many are left?"},)
)
WHOLE = given()


def added(gate: ShardGate, *given: tuple[RlRow, float | None], times: int = RECENT) -> int:
    """Let the gate see samples with these accuracies, and return how many pieces are left to tell."""
    rows = [(gate.open_row(row), value) for row, value in given] * times
    parts = [Scored(1.0, {"accuracy": value}, {}) for _, value in rows]
    before = gate.progress.left
    assert gate.add([sample("53", row=row) for row, _ in rows], parts)["gate/left"] == before, (
        "what the samples were told"
    )
    return gate.progress.left


def test_a_problem_loses_no_piece_and_the_last_ones_are_left() -> None:
    gate = ShardGate(0.8, [IN_PIECES, WHOLE])
    opened = gate.open_row(IN_PIECES)
    assert opened.prompt[-1]["content"] == f"How many are left?\n- {FACTS[0]}\n- {FACTS[1]}"
    assert opened.shards == FACTS[2:] and opened.intent.shards == FACTS[2:], "the simulated user tells only these"
    assert opened.id == IN_PIECES.id and gate.open_row(WHOLE) is WHOLE
    gate.progress.left = 3
    assert gate.open_row(IN_PIECES) is IN_PIECES


@pytest.mark.parametrize(
    ("in_pieces", "whole", "left"), [(0.5, 0.5, 2), (0.4, 0.5, 2), (0.39, 0.5, 1), (0.0, 0.0, 1), (None, 0.5, 1)]
)
def test_the_gate_opens_at_its_share_of_the_accuracy_on_whole_problems(
    in_pieces: float | None, whole: float, left: int
) -> None:
    gate = ShardGate(0.8, [IN_PIECES, WHOLE])
    assert added(gate, (IN_PIECES, in_pieces), (WHOLE, whole)) == left


def test_it_waits_for_enough_samples_of_its_own_and_ends_at_the_longest_problem() -> None:
    gate = ShardGate(0.8, [IN_PIECES, WHOLE])
    assert added(gate, (IN_PIECES, 1.0), (WHOLE, 1.0), times=RECENT - 1) == 1
    assert added(gate, (IN_PIECES, 1.0), (WHOLE, 1.0), times=1) == 2
    foreign = [withheld(), given(turn=1), given(kind="right_start"), replace(IN_PIECES, shards=FACTS[:1])]
    others = [(row, 0.0) for row in foreign]
    assert added(gate, *others, (IN_PIECES, 0.5), (WHOLE, 1.0)) == 2, "others say nothing about whole problems"
    assert added(gate, *[(row, 1.0) for row in foreign], (IN_PIECES, 0.5), (WHOLE, 1.0)) == 2, (
        "nor about those in pieces"
    )
    assert [added(gate, (IN_PIECES, 1.0)) for _ in range(3)] == [3, 3, 3]


@pytest.mark.parametrize("rows", [[WHOLE, withheld()], [IN_PIECES, withheld(), given(turn=1)]])
def test_prompts_of_one_kind_have_nothing_to_compare(rows: list[RlRow]) -> None:
    with pytest.raises(RecipeError, match=r"rollout\.gate"):
        ShardGate(0.8, rows)


def test_a_resumed_run_goes_on_from_the_checkpoints_progress(tmp_path: Path) -> None:
    args, state = SimpleNamespace(output_dir=str(tmp_path)), SimpleNamespace(global_step=4, is_world_process_zero=True)
    gate = ShardGate(0.8, [IN_PIECES, WHOLE])
    added(gate, (IN_PIECES, 1.0), (WHOLE, 1.0))
    added(gate, (IN_PIECES, 0.0), times=3)
    gate.callback().on_save(args, state, None)
    resumed = ShardGate(0.8, [IN_PIECES, WHOLE])
    resumed.callback().on_train_begin(args, state, None)
    assert resumed.progress == gate.progress and (gate.progress.left, gate.progress.in_pieces) == (2, [0.0] * 3)
    fresh = ShardGate(0.8, [IN_PIECES, WHOLE])
    fresh.callback().on_train_begin(args, SimpleNamespace(global_step=0), None)
    assert fresh.progress.left == 1 and not fresh.progress.whole


def test_held_out_problems_are_told_with_all_their_pieces(tiny_chatml: Path, tmp_path: Path) -> None:
    rows = {row.id: row for row in (IN_PIECES, WHOLE)}
    section = RolloutSection(mode="conversation", max_turn_tokens=4)
    chat, gate = chat_of(tiny_chatml), ShardGate(0.8, rows.values())
    rollout = RolloutFunction(section, chat, rows, ShardedUser(), 3, lambda: None, gate)
    trainer = trainer_of(tiny_chatml, rollout, tmp_path)
    prompts = {}
    for mode in ("train", "eval"):
        trainer.model.train(mode == "train")
        prompts[mode] = rolled(rollout, trainer, IN_PIECES.id)["prompt_ids"][0]
    assert prompts["eval"] == list(chat.prompt_ids(IN_PIECES.prompt))
    assert prompts["train"] == list(chat.prompt_ids(gate.open_row(IN_PIECES).prompt))


def test_a_run_logs_and_saves_how_far_it_got(talker: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = []
    for number in range(3, 9):
        asked = ({"role": "user", "content": "How many does she have?"},)
        facts = (f"Ann has {number} apples.", f"She buys {number + 1} more.")
        rows += [rl_row(number), rl_row(number, id=f"pieces-{number}-0", kind="sharded", shards=facts, prompt=asked)]
    (tmp_path / "own.jsonl").write_text("".join(json.dumps(vars(row)) + "\n" for row in rows))
    recipe = write_recipe(
        tmp_path, talker, data={"path": str(tmp_path / "own.jsonl")}, probe={"when": "never"},
        rollout={"mode": "conversation", "max_turns": 4, "gate": 0.8}, train={"max_steps": 3, "save_steps": 3},
    )  # fmt: skip
    with pytest.raises(RecipeError, match=r"rollout\.gate: needs accuracy"):
        main([str(recipe), "--reward.weights.accuracy", "0", "--dry-run"])
    main([str(recipe), "--dry-run"])
    assert "1 of at most 2 pieces" in capsys.readouterr().out
    main([str(recipe)])
    run = tmp_path / "run"
    assert [row["gate/left"] for row in history(run / "checkpoint-3")] == [1.0] * 3
    saved = read_json(run / "checkpoint-3" / "gate.json")
    assert saved["left"] == 1 and len(saved["in_pieces"]) + len(saved["whole"]) == 3 * 8
    kept = [row for path in (run / "samples").glob("step-*.jsonl") for _, row in read_jsonl(path)]
    shown = [row["conversations"][0][0]["content"] for row in kept if row["kind"] == "sharded"]
    assert shown and all("- Ann has" in text and "She buys" not in text for text in shown)
