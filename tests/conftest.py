"""What every test may use: tiny models made on the spot, the embedded model where its package is installed.

Tests never use the network. One thread: with models of a few million parameters, more are slower.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("OMP_NUM_THREADS", "1")

from tiny_models import build_tiny_llama, build_tiny_multimodal, build_tiny_qwen35

from probe.embedded import EMBEDDED_NAME, embedded_folder
from probe.errors import ModelError

# CI tries the same examples each time, so that a failure there is one of the change; elsewhere they are drawn anew.
settings.register_profile("ci", derandomize=True)
if os.environ.get("CI"):
    settings.load_profile("ci")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "real_weights: uses the embedded model smollm2-135m; skips without its package")


# Files whose few tests take minutes come first, so that no process waits for another's at the end.
LONG_FILES = ("test_grpo_distributed.py", "test_readme.py", "test_gpu_check.py", "test_train_distributed.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: LONG_FILES.index(item.path.name) if item.path.name in LONG_FILES else len(LONG_FILES))
    for item in items:
        if "smollm2" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.real_weights)


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
    from grpo_parts import teach_to_talk

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
