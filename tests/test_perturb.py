"""Positive controls: what they do to an answer, how a recipe names them, and that a run pairs them with the plain one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from probe.engines.hf import HfEngine
from probe.errors import BadInput
from probe.files import read_jsonl, write_jsonl
from probe.models import load_tokenizer, resolve
from probe.perturb import NONE, Perturbation, parse_perturbations
from probe.run import load_sets, measure_folder
from probe.settings import ProbeSection, SetSection

TRUNCATE, QUESTION = "truncate(0.5)", "question(What do you think?)"


def test_a_recipe_names_them_as_the_results_do() -> None:
    found = parse_perturbations([QUESTION, " truncate( 0.50 ) ", NONE])
    assert [one.name for one in found] == [NONE, QUESTION, TRUNCATE]


@pytest.mark.parametrize(
    "wrong", ["truncate", "truncate()", "truncate(0)", "truncate(1)", "truncate(half)", "question()", "shuffle(1)", ""]
)
def test_anything_else_is_refused_and_both_forms_are_shown(wrong: str) -> None:
    with pytest.raises(BadInput, match=r"truncate\(0\.5\), or question\(TEXT\)"):
        parse_perturbations([wrong])


def test_one_that_stands_twice_is_refused() -> None:
    with pytest.raises(BadInput, match="twice"):
        parse_perturbations(["truncate(0.5)", "truncate(0.50)"])


def test_a_question_is_a_paragraph_of_its_own() -> None:
    assert Perturbation("question(Ok?)", text="Ok?").apply("It is 7.", None) == "It is 7.\n\nOk?"


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(answer=st.text(min_size=1, max_size=80).filter(str.strip), share=st.floats(0.05, 0.95))
def test_truncation_keeps_a_beginning_that_ends_with_a_whole_character(
    tiny_chatml: Path, answer: str, share: float
) -> None:
    tokenizer = load_tokenizer(resolve(str(tiny_chatml)))
    kept = Perturbation("truncate", keep=share).apply(answer, tokenizer)
    assert answer.startswith(kept)


def test_half_of_the_tokens_stay(tiny_chatml: Path) -> None:
    tokenizer = load_tokenizer(resolve(str(tiny_chatml)))
    answer = "First add the pens, then take away the three that were lost."
    kept = Perturbation(TRUNCATE, keep=0.5).apply(answer, tokenizer)
    count = len(tokenizer(answer, add_special_tokens=False)["input_ids"])
    assert answer.startswith(kept)
    assert len(tokenizer(kept, add_special_tokens=False)["input_ids"]) == pytest.approx(count // 2, abs=1)


def test_a_run_pairs_every_perturbed_turn_with_the_plain_one(tiny_chatml: Path, tmp_path: Path) -> None:
    write_jsonl(tmp_path / "own.jsonl", [{"prompt": "How long does tea brew?"}, {"prompt": "What is a fjord?"}])
    probe = ProbeSection(
        sets={"own": SetSection(path=str(tmp_path / "own.jsonl"))}, perturbations=(TRUNCATE, QUESTION),
        temperatures=(0.0, 1.0), samples=2, max_answer_tokens=12, max_user_tokens=6, dtype="float32",
    )  # fmt: skip
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
        else:
            assert row["changed"] == (row["user_turn"] != plain[_place(row)]["user_turn"])
            wanted = (
                f"{answer}\n\nWhat do you think?".strip() if row["perturbation"] == QUESTION else answer[: len(shown)]
            )
            assert shown == wanted
        assert (row["grounding"] is None) == (not row["user_turn"])
    for name in (TRUNCATE, QUESTION):
        for key, cell in results["followup"]["own"][name].items():
            of_cell = [row for row in rows if row["perturbation"] == name and f"T={row['temperature']}" == key]
            assert cell["changed_text"]["value"] == pytest.approx(sum(row["changed"] for row in of_cell) / len(of_cell))
    assert results["followup"]["own"][NONE]["T=0.0"]["changed_text"] is None


def test_without_grounding_nothing_is_scored(
    tiny_chatml: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HfEngine, "score", None)
    write_jsonl(tmp_path / "own.jsonl", [{"prompt": "How long does tea brew?"}])
    probe = ProbeSection(
        sets={"own": SetSection(path=str(tmp_path / "own.jsonl"))}, temperatures=(0.0,), grounding=False,
        max_answer_tokens=8, max_user_tokens=6,
    )  # fmt: skip
    results = measure_folder(resolve(str(tiny_chatml)), probe, load_sets(probe), tmp_path / "out", device="cpu")
    assert results["followup"]["own"][NONE]["T=0.0"]["grounding"] is None
    assert replace(probe, grounding=True) != probe


def _place(row: dict[str, object]) -> tuple[object, ...]:
    return row["item"], row["temperature"], row["sample"]
