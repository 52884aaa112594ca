"""A probe's run folder: what was made once is not made again, and a folder belongs to one model and one setting."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nextturn.probe.command.errors import NextturnError, SettingsChanged
from nextturn.probe.command.files import read_jsonl
from nextturn.probe.engines.base import Completion, Request, ScoreRequest, collect
from nextturn.probe.engines.stored import StoredEngine
from nextturn.probe.models.folders import ModelInfo
from nextturn.probe.store import RunStore

MODEL = ModelInfo("models/a", "a", None, "w" * 64, "t" * 64)
SETTINGS = {"seed": 0, "temperatures": [0.0, 1.0], "sets": {"own": {"n": 3}}}
GREEDY = Request((1, 2, 3), 8, (0,))


class Echo:
    """Answers with the request's own numbers, last request first, and remembers what it was asked."""

    name = "echo"

    def __init__(self, together: int = 1) -> None:
        self.asked: list[Request] = []
        self.scored: list[ScoreRequest] = []
        self.together = together

    def batches(self, requests: Sequence[Request]) -> list[list[int]]:
        indices = list(range(len(requests)))
        return [indices[start : start + self.together] for start in range(0, len(indices), self.together)]

    def score(self, requests: Sequence[ScoreRequest]) -> Iterator[tuple[int, float]]:
        for index, request in enumerate(requests):
            self.scored.append(request)
            yield index, -float(sum(request.target_ids))

    def stream(self, requests: Sequence[Request]) -> Iterator[tuple[int, Completion]]:
        for index in reversed(range(len(requests))):
            request = requests[index]
            self.asked.append(request)
            yield index, Completion(f"{request.prompt_ids} {request.temperature} {request.seed}", 1, "stop")


def stored(path: Path, model: ModelInfo = MODEL, together: int = 1) -> tuple[Echo, StoredEngine]:
    echo = Echo(together)
    return echo, StoredEngine(echo, path, model)


def test_figures_are_not_written_where_the_run_was_moved_away_or_another_one_has_begun(tmp_path: Path) -> None:
    """Training that goes back moves a probe aside; what is still measuring the old weights must not answer for the new."""
    store = RunStore(tmp_path / "step-4", MODEL, SETTINGS)
    (tmp_path / "step-4").rename(tmp_path / "set-aside-step-4")
    for write in (lambda: store.write_samples([]), lambda: store.finish({})):
        with pytest.raises(NextturnError, match=r"step-4: its manifest.json is gone.*start the probe again"):
            write()
    assert not (tmp_path / "step-4").exists()
    RunStore(tmp_path / "step-4", replace(MODEL, weights_sha256="n" * 64), SETTINGS)
    with pytest.raises(SettingsChanged, match="model.weights_sha256"):
        store.finish({})
    assert [path.name for path in (tmp_path / "step-4").iterdir()] == ["manifest.json"]


def test_a_rerun_makes_together_what_the_first_run_did_whatever_its_engine_would_choose(tmp_path: Path) -> None:
    """A batch with a gap is made again as a whole, and a torn line is no row."""
    asked = [replace(GREEDY, prompt_ids=(number,)) for number in range(5)]
    _, engine = stored(tmp_path, together=3)
    stream = engine.stream(asked)
    done = dict(next(stream) for _ in range(4))  # a kill in the second batch
    engine.close()
    path = tmp_path / "generations.jsonl"
    path.write_bytes(path.read_bytes() + b'{"key": "torn by a ki')
    again, engine = stored(tmp_path, together=5)
    assert done.items() <= dict(engine.stream(asked)).items()
    assert sorted(request.prompt_ids for request in again.asked) == [(3,), (4,)], "the second batch alone, and whole"
    assert (engine.hits, len(list(read_jsonl(path)))) == (4, 5)


def test_scores_are_kept_too_and_belong_to_one_model(tmp_path: Path) -> None:
    asked = [ScoreRequest((1,), (2, 3)), ScoreRequest((1, 2), (3,)), ScoreRequest((1,), (2, 3))]
    echo, engine = stored(tmp_path)
    assert dict(engine.score(asked)) == {0: -5.0, 1: -3.0, 2: -5.0}
    assert len(echo.scored) == 2
    echo, engine = stored(tmp_path)
    assert dict(engine.score(asked)) == {0: -5.0, 1: -3.0, 2: -5.0}
    assert echo.scored == []
    echo, engine = stored(tmp_path, replace(MODEL, weights_sha256="x" * 64))
    assert len(list(engine.score(asked))) == 3
    assert len(echo.scored) == 2


def test_whatever_shapes_a_completion_makes_it_another_one(tmp_path: Path) -> None:
    echo, engine = stored(tmp_path)
    same = [GREEDY, replace(GREEDY, seed=5)]  # a greedy completion does not depend on the seed
    changes: list[dict[str, Any]] = [
        {"prompt_ids": (1, 2)},
        {"max_tokens": 9},
        {"stop_ids": (0, 4)},
        {"temperature": 0.7},
        {"temperature": 0.7, "seed": 1},
    ]
    collect(engine, [*same, *(replace(GREEDY, **changed) for changed in changes)])
    assert len(echo.asked) == 1 + len(changes)


@pytest.mark.parametrize("key", ["weights_sha256", "template_sha256"])
def test_another_model_never_gets_the_first_ones_completions(tmp_path: Path, key: str) -> None:
    collect(stored(tmp_path)[1], [GREEDY])
    echo, engine = stored(tmp_path, replace(MODEL, **{key: "x" * 64}))
    collect(engine, [GREEDY])
    assert echo.asked == [GREEDY]
    again, engine = stored(tmp_path, replace(MODEL, path="models/moved", label="b"))
    collect(engine, [GREEDY])
    assert again.asked == [], "where the weights lie and how they are called does not matter"


def test_what_another_process_has_taken_over_is_not_written(tmp_path: Path) -> None:
    def lost() -> None:
        raise SettingsChanged("taken over")

    engine = StoredEngine(Echo(), tmp_path, MODEL, check=lost)
    with pytest.raises(SettingsChanged, match="taken over"):
        collect(engine, [GREEDY])
    with pytest.raises(SettingsChanged, match="taken over"):
        list(engine.score([ScoreRequest((1,), (2,))]))
    engine.close()
    assert (tmp_path / "generations.jsonl").read_bytes() == (tmp_path / "scores.jsonl").read_bytes() == b""
