"""What every test may use: tiny models made on the spot, the embedded model where its package is installed.

Tests never use the network. One thread: with models of a few million parameters, more are slower.
"""

from __future__ import annotations

import multiprocessing.util
import os
import re
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Processes that tests start import `support` too.
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(Path(__file__).parent), os.environ.get("PYTHONPATH")]))
# Else torch makes a folder for its cache among the temporary files.
os.environ.setdefault(
    "TORCHINDUCTOR_CACHE_DIR", str(Path(__file__).resolve().parent.parent / ".pytest_cache" / "torchinductor")
)

from nextturn.probe.command.errors import ModelError
from nextturn.probe.models.embedded import EMBEDDED_NAME, embedded_folder
from support.tiny_models import build_tiny_llama, build_tiny_multimodal, build_tiny_qwen35

# Property tests draw the same examples everywhere. `make fuzz` draws new ones. Hypothesis also draws constants of the
# modules that are imported so far, which depend on the tests that the process ran before: the list of them stays empty.
_UNHURRIED = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
settings.register_profile("same", derandomize=True, deadline=None, suppress_health_check=_UNHURRIED)
settings.register_profile("fuzz", max_examples=300, deadline=None, suppress_health_check=_UNHURRIED)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))
if "HYPOTHESIS_PROFILE" not in os.environ:
    providers._get_local_constants = lambda: providers._local_constants


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "real_weights: uses the embedded model smollm2-135m; skips without its package")


# Files whose few tests take minutes come first, so that no process waits for another's at the end.
LONG_FILES = [
    f"test_{name}.py"
    for name in (
        *("train_distributed", "grpo_distributed", "callback", "gpu_check", "recipes", "memory", "told_to_end", "dpo"),
        *("readme", "readme_sequence", "page_browser", "dialogue_build", "grpo_run", "checkpoints", "colocated"),
    )
]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: LONG_FILES.index(item.path.name) if item.path.name in LONG_FILES else len(LONG_FILES))
    for item in items:
        if "smollm2" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.real_weights)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print one line with the reasons of all skipped tests."""
    skipped = Counter(
        report.longrepr[2].removeprefix("Skipped: ") for report in terminalreporter.stats.get("skipped", [])
    )
    if skipped:
        terminalreporter.write_line("skipped: " + "; ".join(f"{count} ({why})" for why, count in skipped.most_common()))


@pytest.fixture(scope="session", autouse=True)
def no_temporary_file_is_left(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Give temporary files a folder of pytest's, which pytest removes, and check that the tests left nothing in it."""
    multiprocessing.util.get_temp_dir()  # this process's own, which goes after pytest's
    folder = tmp_path_factory.mktemp("temporary")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(folder))
        patch.setattr(tempfile, "tempdir", None)
        yield
    # Processes that a test kills leave these.
    known = re.compile(r"pymp-.*|.*wandb-(media|artifacts)")
    left = [path.name for path in folder.iterdir() if not known.fullmatch(path.name)]
    assert not left, f"the tests left files in the folder for temporary files: {left}"


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a tiny random Qwen3.5 text model with the template that its 2B release ships."""
    return build_tiny_qwen35(tmp_path_factory.mktemp("models") / "tiny-qwen35")


@pytest.fixture(scope="session")
def tiny_chatml(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a tiny random Llama with SmolLM2's ChatML template."""
    return build_tiny_llama(tmp_path_factory.mktemp("models") / "tiny-chatml")


@pytest.fixture(scope="session")
def talker(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny Qwen3.5, taught to end its turns."""
    from support.grpo_parts import teach_to_talk

    return teach_to_talk(tiny_model, tmp_path_factory.mktemp("models") / "talker")


@pytest.fixture(scope="session")
def tiny_multimodal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a tiny random multimodal Qwen3.5, as the hub holds the real ones."""
    return build_tiny_multimodal(tmp_path_factory.mktemp("models") / "tiny-multimodal")


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """Folder of the embedded model: real weights, a real chat model."""
    try:
        return embedded_folder()
    except ModelError as error:
        pytest.skip(f"{EMBEDDED_NAME} is not available: {error}")


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache for converted models, for this test alone."""
    monkeypatch.setenv("NEXTTURN_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"
