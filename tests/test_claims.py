"""Of all processes that want one checkpoint exactly one gets it, dead owners are succeeded, and a lost claim stops."""

from __future__ import annotations

import functools
import json
import multiprocessing
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import pytest
from clock import Clock
from hypothesis import given
from hypothesis import strategies as st

from probe import claims
from probe.claims import Claim, ClaimLost, Claims

NAMES = [f"step-{n}" for n in range(40)]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(claims, "time", clock)
    return clock


def take_all(folder: Path, started: object, won: object) -> None:
    """One process of the race: takes what it can and holds it."""
    started.wait()  # type: ignore[attr-defined]
    mine = Claims(folder)
    won.put([name for name in NAMES if mine.take(name)])  # type: ignore[attr-defined]
    started.wait()  # type: ignore[attr-defined]


def test_processes_that_race_for_the_same_names_share_them_out(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    barrier, won = context.Barrier(4), context.Queue()
    racers = [context.Process(target=take_all, args=(tmp_path, barrier, won)) for _ in range(3)]
    for racer in racers:
        racer.start()
    barrier.wait(60)
    shares = [won.get(timeout=60) for _ in racers]
    barrier.wait(60)
    for racer in racers:
        racer.join(30)
    assert Counter(name for share in shares for name in share) == Counter(NAMES)


def test_threads_that_race_to_succeed_a_dead_owner_give_it_one_successor(tmp_path: Path) -> None:
    for _ in range(20):
        dead_claim(tmp_path, "base")
        barrier, won = threading.Barrier(8), list[Claim]()

        def race(barrier: threading.Barrier = barrier, won: list[Claim] = won) -> None:
            mine = Claims(tmp_path)
            barrier.wait()
            claim = mine.take("base")
            if claim is not None:
                won.append(claim)

        racers = [threading.Thread(target=race) for _ in range(8)]
        for racer in racers:
            racer.start()
        for racer in racers:
            racer.join()
        assert [claim.number for claim in won] == [2]
        won[0].release()
        assert not list(tmp_path.iterdir()), "the successor removes what it succeeded"


def dead_claim(folder: Path, name: str) -> None:
    """A claim as a killed process of this machine leaves it."""
    content = {"host": "here", "machine": claims._machine(), "pid": ended_process(), "started": 0.0, "token": "t"}
    (folder / f"{name}.1").write_text(json.dumps({**content, "beat": "000000000001"}))


@functools.cache
def ended_process() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait(60)
    return process.pid


def test_a_dead_process_of_this_machine_is_succeeded_at_once_and_a_live_one_is_not(tmp_path: Path) -> None:
    mine = Claims(tmp_path).take("base")
    assert mine is not None and Claims(tmp_path).take("base") is None
    assert f"process {mine.owner['pid']} on" in (Claims(tmp_path).holder("base") or "")
    mine.release()
    assert Claims(tmp_path).holder("base") is None

    dead_claim(tmp_path, "base")
    successor = Claims(tmp_path).take("base")
    assert successor is not None and successor.number == 2


def test_a_process_id_means_nothing_on_another_machine(tmp_path: Path, clock: Clock) -> None:
    owner = {"host": "elsewhere", "machine": "elsewhere boot 1", "pid": 1, "started": 0.0, "token": "t", "beat": "1"}
    (tmp_path / "base.1").write_text(json.dumps(owner))
    mine = Claims(tmp_path)
    for seconds in (0, 30, 29):
        clock.now += seconds
        assert mine.take("base") is None
    (tmp_path / "base.1").write_text(json.dumps({**owner, "beat": "2"}))
    for seconds in (1, 59):
        clock.now += seconds
        assert mine.take("base") is None, "what changed since the last look begins its minute anew"
    clock.now += 1
    assert mine.take("base") is not None


def test_an_owner_that_stood_still_stops_before_it_writes_again(tmp_path: Path, clock: Clock) -> None:
    owner, other = Claims(tmp_path).take("base"), Claims(tmp_path)
    assert owner is not None and other.take("base") is None
    clock.now += 60
    successor = other.take("base")
    assert successor is not None
    with pytest.raises(ClaimLost, match=r"base: the claim on it is lost: base\.2 has taken over"):
        owner.check()
    owner.release()
    successor.check()
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["base.1", "base.2"]
    successor.release()
    assert not list(tmp_path.iterdir())


def test_a_withdrawn_claim_is_lost_and_does_not_come_back(tmp_path: Path) -> None:
    mine = Claims(tmp_path)
    owner = mine.take("step-4")
    assert owner is not None and mine.names() == ["step-4"]
    mine.withdraw("step-4")
    successor = Claims(tmp_path).take("step-4")
    assert successor is not None and successor.path == owner.path
    owner.beat()
    with pytest.raises(ClaimLost, match="withdrawn"):
        owner.check()
    owner.release()
    assert mine.take("step-4") is None, "the new owner's claim was left alone"
    successor.check()


ACTIONS = st.lists(
    st.tuples(st.sampled_from(["take", "beat", "check", "release"]), st.integers(0, 2), st.floats(0, 100)), max_size=60
)


@given(actions=ACTIONS)
def test_whatever_the_order_at_most_one_process_may_write(
    actions: list[tuple[str, int, float]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Three processes take, refresh, stand still and release in any order; only one of them passes its check."""
    folder, clock = tmp_path_factory.mktemp("claims"), Clock()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(claims, "time", clock)
        seen, held = [Claims(folder) for _ in range(3)], dict[int, Claim]()
        for action, who, seconds in actions:
            clock.now += seconds
            if action == "take" and who not in held and (claim := seen[who].take("base")):
                held[who] = claim
            elif action == "beat" and who in held:
                held[who].beat()
            elif action == "release" and who in held:
                held.pop(who).release()
            writers = [who for who, claim in held.items() if passes(claim)] if action == "check" else []
            assert len(writers) <= 1, actions


def passes(claim: Claim) -> bool:
    try:
        claim.check()
    except ClaimLost:
        return False
    return True
