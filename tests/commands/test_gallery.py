"""The gallery's runs can be compared with each other and with one's own demo, and the README's tables have their figures."""

from __future__ import annotations

from pathlib import Path

import pytest

from nextturn.probe.command.files import read_json
from nextturn.probe.command.recipe import load_recipe, recipe_dict
from nextturn.probe.judges import get_judge
from nextturn.probe.kept import samples_file
from nextturn.probe.results import Metric, read_samples
from nextturn.probe.text.grading import VERSION as GRADING
from nextturn.train.sections import SftRecipe
from support.commands import ROOT, call

GALLERY = "recipes/gallery"


def test_a_demo_of_ones_own_is_measured_as_the_gallery_was() -> None:
    """The dtype is the machine's, and the stops were not recorded then."""
    demo = load_recipe(SftRecipe, ROOT / "recipes/demo_sft.yaml").probe
    gallery = read_json(ROOT / GALLERY / "demo/probe/step-39/manifest.json")["settings"]
    assert gallery["grading"] == GRADING
    assert gallery["judge"] == get_judge("rules").version
    now = recipe_dict(demo)
    for key in ("temperatures", "samples", "grounding", "prefix_form", "max_answer_tokens", "max_user_tokens", "seed"):
        assert gallery[key] == now[key], key
    assert set(gallery["sets"]) == set(demo.sets)


KEPT = sorted({path.parent for path in (ROOT / "recipes" / "results").glob("*/*/results.json")})


@pytest.mark.parametrize("folder", KEPT, ids=lambda folder: f"{folder.parent.name}-{folder.name}")
def test_a_kept_run_counts_to_its_own_figures_and_is_shown_without_its_questions(folder: Path, tmp_path: Path) -> None:
    call(["nextturn", "probe", "compare", str(folder), "--out", str(tmp_path)], ROOT)
    shown = {
        (row["measure"], row["set"], row["name"]): row for row in read_json(tmp_path / "comparison.json")["figures"]
    }
    results, samples = read_json(folder / "results.json"), read_samples(samples_file(folder))
    assert samples is not None
    for name, counted in results["accuracy"].items():
        rights = samples.values[Metric("accuracy", name, "lenient")]
        assert len(rights) == counted["n"] == shown["accuracy", name, "lenient"]["n"]
        assert sum(sum(values) for values in rights.values()) / len(rights) == pytest.approx(
            counted["lenient"]["value"], abs=1e-6
        )
    assert sum(path.stat().st_size for path in folder.iterdir()) < 3_000_000
