"""What a run of the tests promises: the same examples everywhere, and no files left behind."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st


@pytest.mark.skipif("HYPOTHESIS_PROFILE" in os.environ, reason="make fuzz draws new examples")
def test_property_tests_draw_the_same_examples_whatever_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[int] = []

    @given(st.integers())
    @settings(max_examples=300)
    def draws(number: int) -> None:
        drawn.append(number)

    draws()
    first, module = list(drawn), ModuleType("with_constants")
    module.__file__ = str(tmp_path / "with_constants.py")
    Path(module.__file__).write_text(f"NUMBERS = {[10**9 + number for number in range(200)]}\n")
    monkeypatch.setitem(sys.modules, "with_constants", module)
    drawn.clear()
    draws()
    assert drawn == first
