"""Files survive a crash: the old content or the new one, and a torn last line never outlives a restart."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nextturn.probe.command import files
from nextturn.probe.command.errors import DataError, run_command
from nextturn.probe.command.terminal import say

ROWS = [
    {"id": "a", "text": "first"},
    {"id": "b", "text": "zwölf Äpfel\nin 2 lines"},
    {"id": "c", "text": "日本\u2028語"},
]


def left_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_an_atomic_write_makes_folders_and_replaces_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "down" / "x.txt"
    files.write_atomic(path, "one")
    files.write_atomic(path, "zwei, größer")
    assert path.read_text(encoding="utf-8") == "zwei, größer"
    files.write_atomic(path, b"\x00\xff")
    assert path.read_bytes() == b"\x00\xff"
    assert left_in(path.parent) == ["x.txt"]


@pytest.mark.parametrize("step", ["fsync", "chmod", "replace"])
def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    """A write that fails half way leaves the old file and nothing beside it."""
    path = tmp_path / "x.txt"
    files.write_atomic(path, "old")
    with monkeypatch.context() as patch, pytest.raises(OSError) as caught:
        patch.setattr(os, step, Mock(side_effect=OSError(28, "No space left on device")))
        files.write_atomic(path, "new")
    assert (caught.value.errno, caught.value.filename) == (28, str(path))
    assert path.read_text() == "old"
    assert left_in(tmp_path) == ["x.txt"]


def test_rows_that_are_no_json_leave_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    files.write_jsonl(path, ROWS)
    before = path.read_bytes()

    def failing() -> Any:
        yield ROWS[0]
        raise RuntimeError("the source broke")

    with pytest.raises(RuntimeError):
        files.write_jsonl(path, failing())
    with pytest.raises(ValueError):
        files.write_jsonl(path, [{"rate": float("nan")}])
    with pytest.raises(TypeError):
        files.write_json(path, {"path": tmp_path})
    assert path.read_bytes() == before
    assert left_in(tmp_path) == ["x.jsonl"]


BROKEN = {
    "torn": b'{"id": "b", "te', "text": b"plain text", "bytes": b"\xff\xfe", "number": b'{"n": ' + b"1" * 5000 + b"}",
    "nested": b"[" * 100_000, "string": b'"id"', "list": b"[1]",
}  # fmt: skip


@pytest.mark.parametrize("broken", BROKEN.values(), ids=BROKEN)
def test_a_broken_line_is_named_by_file_and_line(tmp_path: Path, broken: bytes) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(files.json_line(ROWS[0]).encode() + b"\n" + broken + b"\n" + files.json_line(ROWS[2]).encode())
    with pytest.raises(DataError, match=rf"^{path}:3: [^\n]*$"):
        list(files.read_jsonl(path))


@pytest.mark.parametrize("content", [b"{", b"", b"\xff", b"[" * 100_000, None])
def test_a_broken_or_missing_json_file_is_named(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "x.json").write_bytes(content)
    with pytest.raises(DataError, match=r"x\.json:"):
        files.read_json(tmp_path / "x.json")
    with pytest.raises(DataError, match=r"nowhere\.jsonl:"):
        list(files.read_jsonl(tmp_path / "nowhere.jsonl"))


def test_a_full_disk_ends_a_command_with_one_line_that_names_the_file(capsys: pytest.CaptureFixture[str]) -> None:
    def command(_: Any) -> None:
        with Path("/dev/full").open("ab", buffering=0) as file:
            files.append_rows(file, ROWS)

    assert run_command(command, []) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: /dev/full: No space left on device")


def test_a_message_brings_no_control_character_to_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    def command(_: Any) -> None:
        say("a\x1b[2Jb")
        raise DataError("key \x1b[31m\u202e")

    assert run_command(command, []) == 2
    said = capsys.readouterr()
    assert (said.out, said.err) == ("a\\u001b[2Jb\n", "error: key \\u001b[31m\\u202e\n")


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=5,
)


@settings(max_examples=40)
@given(st.lists(st.fixed_dictionaries({"value": JSON_VALUES}), min_size=1, max_size=6), st.data())
def test_a_file_cut_at_any_byte_is_taken_up_to_the_same_bytes(rows: list[dict[str, Any]], data: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.jsonl"
        files.write_jsonl(path, rows)
        whole = path.read_bytes()
        path.write_bytes(whole[: data.draw(st.integers(0, len(whole)))])
        with files.open_append(path) as file:
            kept = sum(1 for _ in files.read_jsonl(path))
            files.append_rows(file, rows[kept:])
        assert path.read_bytes() == whole


def test_what_a_kill_left_half_written_goes_and_nothing_else(tmp_path: Path) -> None:
    kept = ["part-1.jsonl", ".hidden", ".env.json", "a/.part-1.jsonl.ab12", ".work/gate.sqlite"]
    for name in [*kept, ".settings.json.ab12_xyz", ".report.html.ab12_xyz", "a/.part-1.jsonl.abcdefgh"]:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    files.remove_unfinished(tmp_path)
    assert {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()} == set(kept)
