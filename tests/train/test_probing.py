"""The inline probe's engine over several ranks: which rank makes what, and that all ranks are asked equally often."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nextturn.probe import callback
from nextturn.probe.command.errors import NextturnError, ToldToEnd
from nextturn.probe.command.sections import ProbeSection
from nextturn.probe.engines import shared as shared_engine
from nextturn.probe.engines.base import Completion, Request, ScoreRequest
from nextturn.probe.engines.shared import SharedEngine
from nextturn.probe.models.folders import ModelFolder
from nextturn.train import probing
from support.ranks import Ranks


class Counting:
    """Makes `together` requests at a time, and records them. Its scores are the prefix's sum."""

    name = "counting"

    def __init__(self, together: int) -> None:
        self.together = together
        self.asked: list[list[int]] = []
        self.fails = False

    def batches(self, requests: Sequence[Request]) -> list[list[int]]:
        places = sorted(range(len(requests)), key=lambda place: -requests[place].prompt_ids[0])
        return [places[start : start + self.together] for start in range(0, len(places), self.together)]

    def stream(self, requests: Sequence[Request]) -> Iterator[tuple[int, Completion]]:
        self.asked.append([request.prompt_ids[0] for request in requests])
        if self.fails:
            raise MemoryError("no room")
        for place in reversed(range(len(requests))):
            yield place, Completion(str(requests[place].prompt_ids[0]), 1, "stop")

    def score(self, requests: Sequence[ScoreRequest]) -> Iterator[tuple[int, float]]:
        self.asked.append([request.prefix_ids[0] for request in requests])
        for place, request in enumerate(requests):
            yield place, -float(sum(request.prefix_ids))

    def close(self) -> None:
        pass


def run(
    engines: Sequence[Counting],
    ask: Callable[[SharedEngine], Any],
    monkeypatch: pytest.MonkeyPatch,
    fails: bool = False,
) -> Any:
    """Return what `ask` gets from rank 0's engine while the other ranks serve. If it `fails`, they raise as well."""
    ranks = Ranks(len(engines))
    monkeypatch.setattr("accelerate.utils.broadcast_object_list", lambda value: list(ranks.exchange(value)[0]))
    monkeypatch.setattr("accelerate.utils.gather_object", ranks.gather)

    def work(rank: int) -> Any:
        shared = SharedEngine(engines[rank], SimpleNamespace(num_processes=ranks.number, process_index=rank))
        if rank:
            with pytest.raises(NextturnError) if fails else nullcontext():
                return shared.serve()
            return None
        with shared:
            return ask(shared)

    return ranks.run(work)[0]


def asked(number: int) -> list[Request]:
    return [Request((n,), 4, ()) for n in range(number)]


def test_each_rank_makes_one_of_the_engines_batches_at_a_time_and_even_parts_of_the_rest(monkeypatch: Any) -> None:
    engines = [Counting(4), Counting(4)]

    def ask(shared: SharedEngine) -> Any:
        requests = asked(11)
        rounds = shared.batches(requests)  # as the store asks: round by round
        return rounds, [dict(shared.stream([requests[index] for index in one])) for one in rounds]

    rounds, made = run(engines, ask, monkeypatch)
    assert [sorted(one) for one in rounds] == [list(range(3, 11)), [0, 1, 2]]
    assert engines[0].asked == [[10, 9, 8, 7], [2]]
    assert engines[1].asked == [[6, 5, 4, 3], [1, 0]]
    for one, completions in zip(rounds, made, strict=True):
        assert {one[place]: done.text for place, done in completions.items()} == {n: str(n) for n in one}


def test_an_engine_without_batches_gets_even_shares_of_all_that_is_asked(monkeypatch: Any) -> None:
    engines = [Counting(1), Counting(1), Counting(1)]

    def ask(shared: SharedEngine) -> Any:
        assert shared.batches(asked(4)) == [[3], [2], [1], [0]]
        return dict(shared.stream(asked(300))), dict(shared.stream(asked(1))), list(shared.stream([]))

    many, one, none = run(engines, ask, monkeypatch)
    assert {place: done.text for place, done in many.items()} == {n: str(n) for n in range(300)}
    assert [len(engine.asked[0]) for engine in engines] == [100, 100, 100]
    assert (one[0].text, none) == ("0", [])
    assert all(len(engine.asked) == 2 for engine in engines), "every rank is asked equally often, if for nothing"
    engines = [Counting(1), Counting(1), Counting(1)]
    monkeypatch.setattr(shared_engine, "_ROUND", 10)
    run(engines, lambda shared: dict(shared.stream(asked(70))), monkeypatch)
    assert [[len(one) for one in engine.asked] for engine in engines] == [[10, 10, 3], [10, 10, 3], [10, 10, 4]]


def test_equal_prefixes_are_scored_on_one_rank(monkeypatch: Any) -> None:
    engines = [Counting(1), Counting(1)]
    requests = [ScoreRequest((n % 2,), (5,)) for n in range(8)]
    scores = run(engines, lambda shared: dict(shared.score(requests)), monkeypatch)
    assert scores == {n: -float(n % 2) for n in range(8)}
    assert [engine.asked for engine in engines] == [[[0] * 4], [[1] * 4]]


def test_an_error_on_one_rank_is_raised_on_all_of_them(monkeypatch: Any) -> None:
    engines = [Counting(4), Counting(4)]
    engines[1].fails = True
    with pytest.raises(NextturnError, match="the probe failed; rank 1: MemoryError: no room"):
        run(engines, lambda shared: dict(shared.stream(asked(8))), monkeypatch)


@pytest.mark.parametrize("error", [ToldToEnd("SIGTERM"), OSError("disk full")])
def test_an_error_on_rank_0_between_two_rounds_ends_all_ranks(error: Exception, monkeypatch: Any) -> None:
    def ask(shared: SharedEngine) -> None:
        dict(shared.stream(asked(4)))
        raise error

    with pytest.raises(type(error)):
        run([Counting(4), Counting(4)], ask, monkeypatch, fails=True)


def test_all_processes_wait_for_rank_0_to_write_what_a_probe_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next collective may be of DeepSpeed's own group, which waits for ten minutes at most."""
    done: list[str] = []
    for name in ("compare", "headline_line", "track_probe"):
        monkeypatch.setattr(probing, name, lambda *_, name=name: done.append(name))
    monkeypatch.setattr(callback, "on_all_ranks", lambda *_: done.append("on_all_ranks"))
    monkeypatch.setattr(probing, "live_model", lambda *_, **__: nullcontext(SimpleNamespace(dtype="torch.float32")))
    monkeypatch.setattr("accelerate.PartialState.wait_for_everyone", lambda _: done.append("wait"))
    trainer = SimpleNamespace(args=SimpleNamespace(output_dir=str(tmp_path), deepspeed=None))
    chat: Any = SimpleNamespace(tokenizer=None)
    probe = probing.CheckpointProbe(trainer, ProbeSection(sets={}), ModelFolder("m", tmp_path), chat, [], "auto", print)
    probe.on_save(trainer.args, SimpleNamespace(global_step=2), None)
    assert done[:2] == ["wait", "on_all_ranks"] and done[-2:] == ["track_probe", "wait"]
