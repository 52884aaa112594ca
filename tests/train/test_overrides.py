"""What train/overrides.py depends on in trl, transformers, accelerate and DeepSpeed is what is installed."""

from __future__ import annotations

import hashlib
import inspect
import pkgutil
from importlib.metadata import version


def test_each_overridden_source_is_the_one_that_was_read() -> None:
    from nextturn.train.overrides import SOURCES, VERSIONS

    changed = []
    for source in SOURCES:
        library = source.name.partition(".")[0]
        found = pkgutil.resolve_name(source.name)
        text = inspect.getsource(inspect.unwrap(getattr(found, "func", found)))  # `func`: of a cached property
        digest = hashlib.sha256(text.encode()).hexdigest()[:12]
        if source.line not in text or digest != source.digest:
            changed.append(
                f"{source.name} of {library} {version(library)}, read in {VERSIONS[library]}: adapt {source.override} and "
                f"record {digest}"
            )
    assert not changed, "\n".join(changed)
    assert {source.name.partition(".")[0] for source in SOURCES} == VERSIONS.keys()
