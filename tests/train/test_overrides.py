"""What train/overrides.py relies on in trl, transformers, accelerate and DeepSpeed is what is installed."""

from __future__ import annotations

import inspect
import sys

import pytest

from nextturn.probe.command.errors import BadInput
from nextturn.train import overrides


def test_each_source_that_an_override_relies_on_is_the_one_that_was_read() -> None:
    text = inspect.getsource(overrides)
    libraries = {found[0] for found in overrides._RELIED_ON.findall(text)}
    assert len(overrides._RELIED_ON.findall(text)) == text.count("# Relies on ") - 1 > 15, "all comments can be read"
    assert libraries == {"accelerate", "deepspeed", "transformers", "trl"}
    assert not list(overrides.changed_sources(*libraries))


def test_training_with_a_function_of_trl_that_nobody_has_read_is_refused_by_its_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from trl import DPOTrainer

    monkeypatch.setattr(DPOTrainer, "_prepare_dataset", lambda self, dataset: dataset)
    assert len(list(overrides.changed_sources("trl"))) == 1
    monkeypatch.delitem(sys.modules, overrides.__name__)
    with pytest.raises(BadInput, match="DPOTrainer._prepare_dataset"):
        import nextturn.train.overrides  # noqa: F401
