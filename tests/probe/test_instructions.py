"""The measure `instructions`: verdicts, rows without a value, what has to be installed, and a run that is killed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nextturn.probe.command.errors import BadInput, DataError
from nextturn.probe.command.files import write_jsonl
from nextturn.probe.command.sections import ProbeSection, SetSection
from nextturn.probe.engines.hf import HfEngine
from nextturn.probe.measures.base import QuestionSet
from nextturn.probe.measures.instructions import DATA, Instructions
from nextturn.probe.models.folders import load_model, load_tokenizer, model_info, resolve
from nextturn.probe.questions.sets import read_items
from nextturn.probe.results import Metric, Results, count_figures
from nextturn.probe.run import run_probe
from nextturn.probe.text.chat import Chat
from support.commands import without
from support.measured import Said, failing, question_set, rows_of

REASON = "install nextturn[ifbench]"


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which nltk finds all data, the lists of words that the checks here need and otherwise nothing."""
    pytest.importorskip("if_verifiable", reason=REASON)
    import nltk

    for name in DATA:
        (tmp_path / "nltk" / name).mkdir(parents=True)
    monkeypatch.setattr(nltk.data, "path", [str(tmp_path / "nltk")])
    return tmp_path / "nltk"


def given(folder: Path, *rows: dict[str, Any]) -> QuestionSet:
    """Return a set of rows, each {id of an instruction: arguments}."""
    columns = [
        {"key": n, "prompt": f"Say {n}.", "instruction_id_list": list(row), "kwargs": [*row.values()]}
        for n, row in enumerate(rows)
    ]
    write_jsonl(folder / "rows.jsonl", columns)
    return replace(question_set("ifbench", read_items(folder / "rows.jsonl")), path=folder / "rows.jsonl")


@pytest.mark.parametrize(
    ("name", "arguments", "follows", "does_not"),
    [
        ("count:word_count_range", {"min_words": 3.0, "max_words": 5.0, "N": None}, "Four words are here.", "No."),
        ("count:conjunctions", {"small_n": 2}, "Cats and dogs, but no birds.", "Cats and dogs."),
        ("count:numbers", {"N": 2.0}, "From 3 to 14.", "Only 3."),
        ("format:no_whitespace", {}, "Yes.", "Yes, it is."),
        ("format:options", {"options": "early/late/never"}, "Late.", "Late in the year."),
        ("words:palindrome", {}, " ".join(["level"] * 9 + ["kayak"]), "level kayak"),
        ("punctuation:no_comma", {}, "<think>Well, now.</think>It is one.", "Well, one."),
        (
            "keywords:frequency",
            {"keyword": "tea", "frequency": 2, "relation": "at least"},
            "Tea for tea.",
            "A cup of tea.",
        ),
        (
            "language:response_language",
            {"language": "de"},
            "Das ist ein schöner Tag im Wald.",
            "A fine day in the woods.",
        ),
        ("detectable_format:json_format", {}, '{"a": 1}', ""),
    ],
)
def test_a_reply_follows_an_instruction_or_does_not(
    data: Path, tmp_path: Path, name: str, arguments: dict[str, Any], follows: str, does_not: str
) -> None:
    of_set = given(tmp_path, {name: arguments}, {name: arguments, "startend:end_checker": {"end_phrase": "Bye."}})
    for reply, strict in ((follows, [True, False]), (does_not, [False, False])):
        rows = rows_of(Instructions, of_set, Said(reply, reply))
        assert [row["strict"] for row in rows] == strict
        counted = count_figures(rows)["instructions"]["ifbench"]
        assert (counted["n"], counted["instructions"]["value"]) == (2, 0.75 if strict[0] else 0.0)


def test_the_loose_reading_leaves_out_the_first_line(data: Path, tmp_path: Path) -> None:
    (row,) = rows_of(Instructions, given(tmp_path, {"punctuation:no_comma": {}}), Said("Sure, here it is:\nA dog."))
    assert (row["strict"], row["lenient"], row["extracted"]) == (False, True, [])


@pytest.mark.parametrize(
    ("row", "reply"),
    [
        ({"punctuation:no_comma": {}, "count:unheard_of": {}}, "One."),
        ({"repeat:repeat_span": {"n_start": 0, "n_end": 2, "prompt_to_repeat": "Say it now."}}, "say it"),
        ({"count:numbers": {"N": None}}, "3"),
        ({"count:numbers": {"N": 1, "letter": "a"}}, "3"),
        ({"format:quote_unquote": {}}, "..."),
    ],
)
def test_what_cannot_be_verified_has_no_value(data: Path, tmp_path: Path, row: dict[str, Any], reply: str) -> None:
    rows = rows_of(Instructions, given(tmp_path, {"punctuation:no_comma": {}}, row), Said("One.", reply))
    assert [(each["strict"], each["lenient"], each["extracted"]) for each in rows][1] == (None, None, None)
    counted = count_figures(rows)["instructions"]["ifbench"]
    assert (counted["n"], counted["followed"]["value"], counted["instructions"]["value"]) == (1, 1.0, 1.0)


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "Say it."},
        {"prompt": "Say it.", "instruction_id_list": ["punctuation:no_comma"], "kwargs": []},
        {"prompt": "Say it.", "instruction_id_list": "punctuation:no_comma", "kwargs": [{}]},
        {"prompt": "Say it.", "instruction_id_list": ["count:unheard_of"], "kwargs": [{}]},
    ],
)
def test_a_set_without_instructions_is_refused(data: Path, tmp_path: Path, row: dict[str, Any]) -> None:
    write_jsonl(tmp_path / "rows.jsonl", [row])
    of_set = replace(question_set("mine", read_items(tmp_path / "rows.jsonl")), path=tmp_path / "rows.jsonl")
    with pytest.raises(DataError, match=r"rows\.jsonl"):
        Instructions.choose(of_set)


def test_a_missing_package_is_named_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, "if_verifiable")
    with pytest.raises(BadInput, match=r"nextturn\[ifbench\]"):
        Instructions.choose(given(tmp_path, {"punctuation:no_comma": {}}))


def test_missing_data_of_nltk_is_named_before_anything_is_asked(data: Path, tmp_path: Path) -> None:
    (data / "corpora" / "stopwords").rmdir()
    with pytest.raises(BadInput, match="nltk.downloader .* stopwords"):
        Instructions.choose(given(tmp_path, {"punctuation:no_comma": {}}))


def test_a_run_that_was_killed_ends_like_one_that_was_not(data: Path, tmp_path: Path, tiny_model: Path) -> None:
    of_set = given(tmp_path, *[{"punctuation:no_comma": {}, "count:numbers": {"N": n + 1}} for n in range(6)])
    ifbench = SetSection(path=str(of_set.path), measures=("followup", "instructions"))
    probe = ProbeSection(sets={"ifbench": ifbench}, temperatures=(0.0,), max_answer_tokens=12, max_user_tokens=8)
    model = resolve(str(tiny_model))
    tokenizer = load_tokenizer(model)
    chat, net = Chat(tokenizer), load_model(model, "float32", "cpu")

    def run(out: Path, dies_after: int | None = None) -> dict[str, Any]:
        engine = failing(HfEngine(net, tokenizer, batch_tokens=400), dies_after)
        return run_probe(engine, chat, model_info(model, chat), probe, out)

    whole = run(tmp_path / "whole")
    with pytest.raises(MemoryError):
        run(tmp_path / "died", 3)
    assert {**run(tmp_path / "died"), "timing": 0} == {**whole, "timing": 0}
    written = [(tmp_path / name / "samples.jsonl").read_bytes() for name in ("whole", "died")]
    assert written[0] == written[1]
    figures = Results.model_validate(whole).figures()
    assert figures[Metric("instructions", "ifbench", "followed")].n == 6
    assert whole["timing"]["cache_hits"] == 0 and written[0].count(b"\n") == 12
