"""Positive controls: what they do to an answer, how a recipe names them, and that a run pairs them with the plain one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nextturn.probe.command.errors import BadInput
from nextturn.probe.command.files import read_jsonl, write_jsonl
from nextturn.probe.command.sections import ProbeSection, SetSection
from nextturn.probe.engines.hf import HfEngine
from nextturn.probe.measures.perturb import NONE, Perturbation, parse_perturbations
from nextturn.probe.models.folders import load_tokenizer, resolve
from nextturn.probe.plan import load_sets
from nextturn.probe.run import measure_folder

TRUNCATE, QUESTION = "truncate(0.5)", "question(What do you think?)"


def test_a_recipe_names_them_as_the_results_do_and_anything_else_is_refused() -> None:
    found = parse_perturbations([QUESTION, " truncate( 0.50 ) ", NONE])
    assert [one.name for one in found] == [NONE, QUESTION, TRUNCATE]
    for wrong in ("truncate", "truncate()", "truncate(0)", "truncate(1)", "truncate(half)", "question()", "x(1)", ""):
        with pytest.raises(BadInput):
            parse_perturbations([wrong])
    with pytest.raises(BadInput):
        parse_perturbations(["truncate(0.5)", "truncate(0.50)"])


@pytest.fixture(scope="module")
def tokenizer(tiny_chatml: Path) -> Any:
    return load_tokenizer(resolve(str(tiny_chatml)))


@settings(max_examples=settings().max_examples // 4)
@given(answer=st.text(min_size=1, max_size=80).filter(str.strip), share=st.floats(0.05, 0.95))
def test_truncation_keeps_a_beginning_that_ends_with_a_whole_character(
    tokenizer: Any, answer: str, share: float
) -> None:
    assert answer.startswith(Perturbation("truncate", keep=share).apply(answer, tokenizer))


def test_truncation_keeps_the_share_of_tokens(tokenizer: Any) -> None:
    sentence = "First add the pens, then take away the three that were lost."
    kept = Perturbation(TRUNCATE, keep=0.5).apply(sentence, tokenizer)
    count, half = (len(tokenizer(text, add_special_tokens=False)["input_ids"]) for text in (sentence, kept))
    assert half == pytest.approx(count // 2, abs=1)


def test_a_run_pairs_every_perturbed_turn_with_the_plain_one(
    tiny_chatml: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_jsonl(tmp_path / "own.jsonl", [{"prompt": "How long does tea brew?"}, {"prompt": "What is a fjord?"}])
    probe = ProbeSection(
        sets={"own": SetSection(path=str(tmp_path / "own.jsonl"))}, perturbations=(TRUNCATE, QUESTION),
        temperatures=(0.0, 1.0), samples=2, max_answer_tokens=12, max_user_tokens=6, dtype="float32", grounding=False,
    )  # fmt: skip
    monkeypatch.setattr(HfEngine, "score", None)  # without grounding nothing is scored
    results = measure_folder(resolve(str(tiny_chatml)), probe, load_sets(probe), tmp_path / "out", device="cpu")
    assert list(results["followup"]["own"]) == [NONE, TRUNCATE, QUESTION]
    assert results["settings"]["perturbations"] == [TRUNCATE, QUESTION]
    rows = [row for _, row in read_jsonl(tmp_path / "out" / "samples.jsonl")]
    plain = {_place(row): row for row in rows if row["perturbation"] == NONE}
    assert len(rows) == 3 * len(plain) == 3 * 2 * 3
    for row in rows:
        answer = plain[_place(row)]["messages"][-1]["content"]
        shown = row["messages"][-1]["content"]
        if row["perturbation"] == NONE:
            assert row["changed"] is None
            continue
        assert row["changed"] == (row["user_turn"] != plain[_place(row)]["user_turn"])
        question = f"{answer}\n\nWhat do you think?".strip()  # a paragraph of its own
        assert shown == (question if row["perturbation"] == QUESTION else answer[: len(shown)])
    for name in (TRUNCATE, QUESTION):
        for key, cell in results["followup"]["own"][name].items():
            of_cell = [row for row in rows if row["perturbation"] == name and f"T={row['temperature']}" == key]
            assert cell["changed_text"]["value"] == pytest.approx(sum(row["changed"] for row in of_cell) / len(of_cell))
    cell = results["followup"]["own"][NONE]["T=0.0"]
    assert cell["changed_text"] is None and cell["grounding"] is None


def _place(row: dict[str, object]) -> tuple[object, ...]:
    return row["item"], row["temperature"], row["sample"]
