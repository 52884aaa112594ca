"""Where the named sets live on the hub, and the one copy of each that is kept here.

The table is the paper's sets (arXiv 2604.02315), MT-Bench, and the sources of problems. Only the columns that are
read are kept: rubrics, annotators and the like stay on the hub. A set that moved or changed its columns gives a line
with what was found; any set can be given as a JSONL file by its `path` instead.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from probe.errors import DataError, SetOutOfReach
from probe.files import write_jsonl


@dataclass(frozen=True)
class HubSet:
    """A set on the hub: dataset id, split, and which of its columns are read.

    `fields` must be there, `more` may be. `file` names one file of a dataset whose files have different columns.
    """

    hub_id: str
    split: str
    fields: tuple[str, ...]
    config: str | None = None
    file: str | None = None
    more: tuple[str, ...] = ()
    gated: bool = False


_GPQA = ("Question", "Correct Answer", "Incorrect Answer 1", "Incorrect Answer 2", "Incorrect Answer 3")
_MATH = HubSet(
    # One of several mirrors: the authors' own copy was withdrawn. Its test split is MATH-500, its train split the rest.
    "nlile/hendrycks-MATH-benchmark",
    "test",
    ("problem", "solution"),
    more=("answer", "level", "subject", "type", "unique_id"),
)

HUB: dict[str, HubSet] = {
    "gsm8k": HubSet("openai/gsm8k", "test", ("question", "answer"), config="main"),
    "gsm8k_train": HubSet("openai/gsm8k", "train", ("question", "answer"), config="main"),
    "gpqa_diamond": HubSet(
        "Idavidrein/gpqa", "train", _GPQA, config="gpqa_diamond", more=("Record ID", "Subdomain"), gated=True
    ),
    "ifbench": HubSet("allenai/IFBench_test", "train", ("prompt",), more=("key",)),
    # Four files with different columns; this one holds all 5,000 conversations, the others a choice or judgments of it.
    "healthbench": HubSet(
        "openai/healthbench", "train", ("prompt",), file="2025-05-07-06-14-12_oss_eval.jsonl", more=("prompt_id",)
    ),
    # 1,078 prompts, each {messages} with developer, user and assistant. The paper's rates fit 31 of them; it does not
    # say which, so `n: 31` is another draw. Not verified: whether every prompt ends with the user.
    "coval": HubSet("openai/coval", "train", ("prompt",), config="comparisons", more=("prompt_id",)),
    # `prompt` is the list of both turns; the second needs an answer to the first, so only the first is asked.
    "mt_bench": HubSet("HuggingFaceH4/mt_bench_prompts", "train", ("prompt",), more=("prompt_id", "category")),
    "math": _MATH,
    "math_train": HubSet(_MATH.hub_id, "train", _MATH.fields, more=_MATH.more),
}


def locate(name: str, path: Path | str | None = None) -> Path:
    """The JSONL file of a set: `path` where given, else the hub's copy, stored once in the cache folder.

    Raises:
        DataError: no file there, a file of another kind, or no path and an unknown name.
        SetOutOfReach: no path, and the hub cannot be reached, refuses, or holds other columns than are read.
    """
    if path is not None:
        path = Path(path)
        if not path.is_file():
            raise DataError(
                f"{path}: no such file (set {name!r}); give the path of a JSONL file, or leave the path out"
            )
        if kind := _other_kind(path):
            raise DataError(f"{path}: {kind} (set {name!r}), wanted JSONL: one JSON object a line, in UTF-8")
        return path
    if name not in HUB:
        raise DataError(f"set {name!r}: unknown name, and no path given; known: {', '.join(HUB)}")
    from probe.models import cache_root

    stored = cache_root() / "sets" / f"{name}.jsonl"
    return stored if stored.is_file() else _download(name, stored)


def _download(name: str, stored: Path) -> Path:
    from probe.hub import hub_rows

    hub = HUB[name]
    try:
        write_jsonl(stored, _read_columns(hub, hub_rows(hub.hub_id, hub.config, hub.split, hub.file)))
    except DataError as error:
        gated = f" {hub.hub_id} is gated: accept the terms on its page there and set HF_TOKEN." if hub.gated else ""
        raise SetOutOfReach(
            f"set {name!r}: no local path given, and {error}.{gated} "
            f"Give a JSONL file with its `path`; its rows need {', '.join(f'`{field}`' for field in hub.fields)}"
        ) from None
    return stored


def _read_columns(hub: HubSet, rows: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for row in rows:
        missing = [field for field in hub.fields if field not in row]
        if missing:
            raise DataError(
                f"{hub.hub_id} has no {', '.join(f'`{field}`' for field in missing)}, only {', '.join(row)}"
            )
        yield {field: row[field] for field in (*hub.fields, *hub.more) if field in row}


def _other_kind(path: Path) -> str | None:
    """What a file is that is no JSONL, where its first bytes or its name say so."""
    with path.open("rb") as file:
        start = file.read(4096)
    if start.startswith(b"PAR1"):
        return "a Parquet file"
    if start.startswith((b"\x1f\x8b", b"PK\x03\x04", b"(\xb5/\xfd")):
        return "a compressed file"
    if start.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "a file in UTF-16"
    text = start.removeprefix(b"\xef\xbb\xbf").lstrip()
    if text.startswith(b"["):
        return "one JSON array (`jq -c '.[]' FILE` writes its elements a line each)"
    if text.splitlines()[:1] == [b"{"]:
        return "one JSON object over several lines (`jq -c . FILE` puts it on one)"
    if text and not text.startswith(b"{") and path.suffix.lower() in (".csv", ".tsv"):
        return "a table"
    return None
