"""Finished probe runs made of fake rows, with text that tries to break out of a page, and what a page holds of them."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

from nextturn.probe.command.files import write_json
from nextturn.probe.engines.stored import Row
from nextturn.probe.judges.verdicts import GENUINE, LABELS
from nextturn.probe.measures.base import make_row
from nextturn.probe.report.comparison import Comparison, compare_runs
from nextturn.probe.results import count_figures, load_runs

HOSTILE = (
    "</script><script>window.owned = 1</script><img src=x onerror='window.owned = 2'>-->\u2028next\u2029"
    "\x1b[31mred\x1b[0m \u202eabc\u202c\x00\x07 {{data}} ${1} <!-- <b>bold</b> \ud800 \U000e0041 e\u0301 \u05d0\r\nend"
)
QUESTION = "question(What do <you> think?)"


def write_run(
    folder: Path, label: str, step: int | None, rows: list[Row], sets: dict[str, Any], **settings: Any
) -> Path:
    """Write a finished run with these rows and the figures that the measures count from them.

    Args:
        sets: Measures and number of items by set: {"maths": ("accuracy", 60)}.
        settings: Settings of the run, "template", the template's hash, and "own", measures that are not of this package.
    """
    model = {"path": f"models/{label}", "label": label, "step": step, "weights_sha256": "a" * 64}
    model["template_sha256"] = settings.pop("template", "b" * 64)
    counted = count_figures(rows, settings.pop("own", None))
    known = {name: {"sha256": "1" * 64, "n": n, "measures": [measure]} for name, (measure, n) in sets.items()}
    settings = {"judge": "rules/1", "samples": 1, "seed": 0, **settings, "sets": known}
    # As in the file of a real run, a lone surrogate is escaped.
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "samples.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    content = {"schema": 1, "model": model, "settings": settings, **counted, "timing": {"wall_s": 1}}
    write_json(folder / "results.json", content)
    return folder


def probe_run(folder: Path, label: str, step: int | None, genuine: float, n: int = 60, **settings: Any) -> Path:
    """Write a finished run over three sets: maths (with a perturbation), pairs to clarify, and transcripts."""
    rng = random.Random(label)
    rows: list[Row] = []
    for number in range(n):
        item = f"item-{number}"
        asked = {"role": "user", "content": f"Question {number}: how many?" if number else HOSTILE}
        answer = {"role": "assistant", "content": f"{label} says {rng.randrange(5)}."}
        right = rng.random() < genuine
        graded: Row = {"strict": right and number % 3 > 0, "lenient": right, "reference": "3", "extracted": "3"}
        graded["outcome"] = "answered" if number % 4 else "truncated"
        rows.append(make_row("accuracy", "maths", item, [asked, answer], **graded))
        for temperature, perturbation in ((0.0, "none"), (0.7, "none"), (0.0, QUESTION)):
            turn = _turn(rng, genuine, None if perturbation == "none" else rng.random() < 0.5)
            where = {"temperature": temperature, "perturbation": perturbation, "sample": 0}
            rows.append(make_row("followup", "maths", item, [asked, answer], **{**turn, **where}))
        for condition in ("underspecified", "complete"):
            asks = rng.random() < 0.5
            given = {"condition": condition, "asked": asks, "outcome": "asked" if asks else "answered"}
            rows.append(make_row("clarify", "pairs", item, [asked, answer], **given))
        if number < n // 2:
            shared = [asked, {"role": "assistant", "content": "A real answer."}]
            real = _turn(random.Random(number), 0.8, None)
            rows.append(make_row("actual", "chat", item, shared, **{**real, "user_turn": "What a person wrote."}))
            rows.append(make_row("followup", "chat", item, shared, **_turn(rng, genuine, None)))
    sets = {name: ("followup", n) for name in ("maths", "pairs", "chat")}
    return write_run(folder, label, step, rows, sets, **{"temperatures": [0.0, 0.7], **settings})


def _turn(rng: random.Random, genuine: float, changed: bool | None) -> Row:
    label = GENUINE if rng.random() < genuine else rng.choice(LABELS[1:]) if rng.random() < 0.95 else None
    turn: Row = {"label": label, "unscored": None if label else "no_verdict", "judge_raw": "rule: </script>"}
    wrote = HOSTILE if rng.random() < 0.1 else rng.choice(["Why 3?", "Thanks.", "And then?"])
    turn |= {"changed": changed, "user_turn": wrote, "user_cut": False, "specific": True}
    return {**turn, "grounding": round(rng.gauss(0.3, 0.2), 4), "log_p": -1.5}


def three_runs(folder: Path, n: int = 60) -> Comparison:
    """A baseline and two checkpoints that get better."""
    probes = folder / "sft" / "probe"
    return compare_runs(load_runs([
        probe_run(probes / "base", "base", None, 0.1, n),
        probe_run(probes / "step-20", "step-20", 20, 0.5, n),
        probe_run(probes / "step-40", "step-40", 40, 0.7, n),
    ]))  # fmt: skip


def data_of(page: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert found
    data: dict[str, Any] = json.loads(found[1])
    return data


def rows_of(page: str) -> list[Row]:
    """Return the rows of a page as samples.jsonl had them, with the index of their run."""
    data = data_of(page)
    rows = [dict(zip(data["fields"], values, strict=True)) for values in data["rows"]]
    for row in rows:
        row["messages"] = [{"role": role, "content": content} for role, content in data["contexts"][row.pop("context")]]
        row["kind"], _, condition = row["kind"].partition(" ")
        row |= {"condition": condition or None, "temperature": float(row["temperature"][2:])}
    return rows
