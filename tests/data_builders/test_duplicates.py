"""Near-duplicates and questions of the probe: what is found, in which forms, and what is not."""

from __future__ import annotations

import functools
import json
import random
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nextturn.data_builders.duplicates import Checked, Fingerprint, KeptRows
from nextturn.data_builders.quality import QualityFilter, probe_files
from nextturn.data_builders.recipe import Quality
from nextturn.data_builders.tasks import Conversation, Task
from nextturn.probe.errors import DataError, SetOutOfReach
from nextturn.probe.files import write_jsonl
from nextturn.probe.sets import PACKAGED
from support.conversations import conversation

VOCABULARY = [f"{a}{b}" for a in "bcdfgklmnprst" for b in ("ab", "el", "im", "on", "ur")]


def text(seed: str, words: int = 120) -> str:
    rng = random.Random(f"near:{seed}")
    return " ".join(rng.choice(VOCABULARY) for _ in range(words))


def row(question: str, reply: str = "", kind: str = "complete") -> Conversation:
    return conversation(question, f"{reply} It is \\boxed{{7}}.", kind=kind)


def reasons(rows: Sequence[Conversation], **quality: Any) -> list[str | None]:
    quality_filter = QualityFilter(Quality(**quality), max(10, len(rows)))
    return [quality_filter.reason(each) for each in rows]


def changed(words: str, every: int) -> str:
    """Return the text with each `every`-th word changed."""
    return " ".join(f"{word}x" if index % every == 0 else word for index, word in enumerate(words.split()))


TEXT, NEAR = text("told"), "near_duplicate"
FIGURE = "[asy]\n" + text("figure", 400) + "\n[/asy]"


@pytest.mark.parametrize(
    ("rows", "quality", "expected"),
    [
        ([row(TEXT), row(f"Hi! {TEXT}"), row(f"{TEXT} thanks a lot")], {}, [None, NEAR, NEAR]),
        ([row(TEXT), row(changed(TEXT, 10))], {}, [None, None]),
        ([row(TEXT), row(changed(TEXT, 10))], {"near_duplicates": 0.5}, [None, NEAR]),
        ([row(TEXT), row(f"Hi! {TEXT}")], {"near_duplicates": None}, [None, None]),
        # Another kind, as in contrast pairs; other numbers; other drawings; other operators.
        ([row(TEXT), conversation(TEXT, "Which?", "7", "\\boxed{7}", kind="underspecified", hidden="7")], {}, [None, None]),
        ([row(TEXT), row(TEXT, kind="wrong_start"), row(TEXT.replace(" ", " \n\t"))], {}, [None, "duplicate", "duplicate"]),
        ([row(f"Ann has {n} bags of {n + 3} and gives {n - 1} away. How many?", f"{n} * {n + 3} = 7.") for n in (5, 8, 12)],
         {}, [None, None, None]),
        ([row(f"The graph of f(x) is shown. {FIGURE} Which is the graph of f(x {shift})?") for shift in ("+2", "-5")], {},
         [None, None]),
        ([row(f"$x {sign} y {sign} z {sign} w$ is to be found, and $y {sign} z$") for sign in "+-"], {}, [None, None]),
    ],
)  # fmt: skip
def test_near_duplicates(rows: list[Conversation], quality: dict[str, Any], expected: list[str | None]) -> None:
    assert reasons(rows, **quality) == expected


@settings(max_examples=20)
@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 1)), min_size=2, max_size=12),
    st.randoms(use_true_random=False),
)
def test_the_first_of_similar_rows_is_kept_whatever_is_between_them(
    versions: list[tuple[int, int]], rng: random.Random
) -> None:
    """Six unrelated texts, each in two similar versions."""
    rows = [row(text(str(which)) + " thanks" * version) for which, version in versions]
    first = {which: index for index, (which, _) in reversed(list(enumerate(versions)))}
    kept = [reason is None for reason in reasons(rows)]
    assert kept == [first[which] == index for index, (which, _) in enumerate(versions)]
    # With the texts in another order, the same rows of each text are kept.
    order = sorted(range(len(rows)), key=lambda index: (rng.random(), index))
    grouped = sorted(order, key=lambda index: versions[index][0])
    alone, mixed = (dict(zip(each, reasons([rows[index] for index in each]), strict=True)) for each in (grouped, order))
    assert alone == mixed


@pytest.mark.parametrize(("alike", "most_missed"), [(0.9, 12), (0.95, 1), (1.0, 0)])
def test_bands_miss_few_similar_signatures(alike: float, most_missed: int) -> None:
    rng, kept = np.random.default_rng(0), KeptRows(0.9)
    missed = 0
    for number in range(60):
        signature = rng.integers(0, 2**32, 128, dtype=np.uint32)
        kept.add(Fingerprint(number, number, signature, kept.bands_of(signature, "complete")))
        other = signature.copy()
        other[rng.permutation(128)[: 128 - round(alike * 128 + 0.499)]] += 1
        missed += kept.repeats(Fingerprint(-1, -1, other, kept.bands_of(other, "complete")), 2) is None
    assert missed <= most_missed


# --- Questions of the probe.

WORDS = re.findall(r"\w+", "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen")
WHOLE, SHORT = (
    Task("t", " ".join(WORDS) + "?", "7", "math", ()),
    Task("t", "Find $\\cos  150^\\circ$.", "7", "math", ()),
)
PHRASE = "enter your answer in the form a over b where both are whole numbers"


@pytest.mark.parametrize(
    ("probe", "made", "found"),
    [
        # Thirteen words in a row, of the problem or of a turn.
        ([" ".join(WORDS[:14])], conversation("So: " + ", ".join(WORDS[:13]).upper() + "?", "\\boxed{7}"), True),
        ([" ".join(WORDS[:14])], conversation(" ".join(WORDS[:12]) + "?", "\\boxed{7}"), False),
        ([" ".join(WORDS[:14])], conversation("What?", " ".join(WORDS[1:14]) + " \\boxed{7}"), True),
        # A question of fewer words as a whole: one in eight of MATH.
        (["Find $\\cos 150^\\circ$."], conversation("Find $\\cos 150^\\circ$.", "\\boxed{7}"), True),
        (["Find $\\cos 150^\\circ$."], conversation("hey. what is it?", "\\boxed{7}", task=SHORT), True),
        (["Find $\\cos 150^\\circ$."],
         conversation("Two", "\\boxed{7}", task=replace(SHORT, question="What is $1 + 1$?", whole_beside=SHORT.question)), True),
        (["Find $\\cos 150^\\circ$."], conversation("Find $-\\cos 150^\\circ$.", "\\boxed{7}"), False),
        (["Thank you!"], conversation("What is $1 + 1$?", "\\boxed{7}", "Thank you!", "Gladly."), False),
        # The problem, in all kinds, even if the messages say little of it.
        ([" ".join(WORDS)], conversation("Numbers", "\\boxed{7}", task=WHOLE), True),
        ([" ".join(WORDS)], conversation("Numbers", "Which?", "7", "\\boxed{7}", kind="underspecified", task=WHOLE), True),
        ([" ".join(WORDS)], conversation("Numbers", "Which?", "7", "\\boxed{7}", kind="hint", task=WHOLE), True),
        # A phrase that many questions share does not count; a drawing is one word.
        ([f"Number {i}: {PHRASE}." for i in range(11)], conversation(f"Something else. {PHRASE}?", "\\boxed{7}"), False),
        ([f"Number {i}: {PHRASE}." for i in range(11)], conversation(f"Number 3: {PHRASE}?", "\\boxed{7}"), True),
        ([f"Find the area. {FIGURE}"], conversation(f"What is its perimeter? {FIGURE}", "\\boxed{7}"), False),
    ],
)  # fmt: skip
def test_contaminated_conversations(probe: list[str], made: Conversation, found: bool, tmp_path: Path) -> None:
    write_jsonl(tmp_path / "probe.jsonl", [{"problem": question} for question in probe])
    expected = f"contaminated:{tmp_path.name}/probe.jsonl" if found else None
    assert reasons([made], decontaminate=[str(tmp_path / "probe.jsonl")]) == [expected]


@pytest.mark.parametrize(
    "fields",
    [
        {"Question": "TEXT", "Correct Answer": "x"},
        {"prompt": {"messages": [{"role": "user", "content": "TEXT"}]}},
        {"prompt": [{"role": "developer", "content": "Be kind."}, {"role": "user", "content": "TEXT"}]},
        {"conversations": [{"from": "human", "value": "TEXT"}]},
        {"history": [{"user": "Hello", "bot": "TEXT"}]},
        {"prompt": functools.reduce(lambda inner, _: [inner], range(700), "TEXT")},
    ],
)
def test_probe_questions_are_read_in_every_form(tmp_path: Path, fields: dict[str, Any]) -> None:
    (tmp_path / "probe.jsonl").write_text(json.dumps(fields).replace("TEXT", WHOLE.question) + "\n")
    (reason,) = reasons([row(WHOLE.question.capitalize())], decontaminate=[str(tmp_path / "probe.jsonl")])
    assert reason is not None and reason.startswith("contaminated:")


def test_sets_are_counted_and_the_first_one_is_named(own_cache: Path, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    write_jsonl(tmp_path / "a/test.jsonl", [{"question": " ".join(WORDS[:13])}, {"question": "Short?"}])
    write_jsonl(own_cache / "sets" / "gsm8k.jsonl", [{"question": " ".join(WORDS), "answer": "#### 7"}])
    sets = [str(tmp_path / "a/test.jsonl"), "gsm8k"]
    quality_filter = QualityFilter(Quality(decontaminate=sets), 10)
    assert quality_filter.checked == (Checked("a/test.jsonl", 2, 2), Checked("gsm8k", 1, 2))
    assert quality_filter.reason(row(" ".join(WORDS))) == "contaminated:a/test.jsonl"
    assert quality_filter.reason(row(" ".join(WORDS[1:]))) == "contaminated:gsm8k"


def test_a_gated_set_out_of_reach_is_left_out_by_name_and_any_other_is_an_error(
    own_cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert probe_files(["gpqa_diamond", "written_pairs"]) == PACKAGED
    assert "gpqa_diamond" in capsys.readouterr().out
    with pytest.raises(SetOutOfReach, match="quality.decontaminate: set 'gsm8k'"):
        probe_files(["gsm8k"])


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("nowhere.jsonl", None, "no such file"),
        ("gsm9k", None, "known set .*gsm8k"),
        ("broken.jsonl", '{"question": "Fine?"}\n{"question\n', "broken.jsonl:2"),
        ("empty.jsonl", '{"number": 3}\n', "empty.jsonl:1: .*question"),
        ("list.jsonl", '[{"question": "Fine?"}]\n', "list.jsonl"),
    ],
)
def test_a_set_that_cannot_be_used_is_named(
    name: str, content: str | None, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    if content is not None:
        Path(name).write_text(content)
    with pytest.raises(DataError, match=message):
        QualityFilter(Quality(decontaminate=[name]), 10)
