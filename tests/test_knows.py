"""recipes/results/knows.py: what a model's states tell of an opening that lacks something."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

SCRIPT = Path(__file__).resolve().parent.parent / "recipes" / "results" / "knows.py"


@pytest.fixture(scope="module")
def knows() -> dict[str, Any]:
    return runpy.run_path(str(SCRIPT))


def test_a_direction_in_the_states_is_found_and_noise_is_not(knows: dict[str, Any]) -> None:
    given, pairs = knows["openings"]()
    rng = np.random.default_rng(0)
    noise = rng.normal(size=(len(given), 64)).astype(np.float32)
    signal = noise + 3 * np.outer([one.lacks for one in given], rng.normal(size=64)).astype(np.float32)
    found = knows["told"]("signal", knows["cosines"](signal), given, pairs)
    assert found.pairs[0] > 0.99 and found.conversations[0] > 0.99 and found.within == 1.0 and found.found[0] > 0.95
    nothing = knows["told"]("noise", knows["cosines"](noise), given, pairs)
    assert 0.3 < nothing.pairs[0] < 0.7 and nothing.pairs[1] < 0.5 < nothing.pairs[2] and nothing.found[0] < 0.3


def test_no_form_of_a_problem_is_on_both_sides(knows: dict[str, Any]) -> None:
    """States that name the problem, and nothing else, tell nothing about a problem that was not seen."""
    given, pairs = knows["openings"]()
    names = sorted({one.problem for one in given})
    states = np.eye(len(names), dtype=np.float32)[[names.index(one.problem) for one in given]]
    assert knows["told"]("problem", knows["cosines"](states), given, pairs).pairs[0] == pytest.approx(0.5, abs=0.1)


def test_the_script_reads_every_layer(
    knows: dict[str, Any], tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    knows["main"]([str(tiny_model), "--dtype", "float32", "--out", str(tmp_path / "knows.json")])
    said = capsys.readouterr().out
    assert "characters" in said and "layer " in said and "5% false alarms" in said
    found = json.loads((tmp_path / "knows.json").read_text())
    config = json.loads((tiny_model / "config.json").read_text())
    config = config.get("text_config", config)
    assert len(found[str(tiny_model)]) == config["num_hidden_layers"]
