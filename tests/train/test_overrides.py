"""What train/overrides.py relies on in trl, transformers, accelerate and DeepSpeed is what is installed."""

from __future__ import annotations

import hashlib
import inspect
import pkgutil
import re
from importlib.metadata import version

from support.commands import ROOT

COMMENT = re.compile(r"# Relies on (\w+) (\S+) \((\w+)\) (\S+)\n *#   (.+)\n")


def test_each_source_that_an_override_relies_on_is_the_one_that_was_read() -> None:
    text = (ROOT / "train" / "overrides.py").read_text(encoding="utf-8")
    comments = COMMENT.findall(text)
    assert len(comments) == text.count("# Relies on ") > 15, "all comments can be read"
    changed = []
    for library, read_in, digest, name, line in comments:
        found = pkgutil.resolve_name(name)
        source = inspect.getsource(inspect.unwrap(getattr(found, "func", found)))  # `func`: of a cached property
        actual = hashlib.sha256(source.encode()).hexdigest()[:12]
        if line not in source or actual != digest:
            changed.append(f"{name} of {library} {version(library)} has changed since {read_in}, record {actual}")
    assert not changed, "\n".join(changed)
