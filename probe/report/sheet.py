"""`nextturn probe sheet`: figures of any models side by side, those of arXiv 2604.02315 as well with --paper.

Writes sheet.md and sheet.json. Runs that were measured differently are not refused: models are grouped by chat template and
thinking, and one line says what else differs. Follow-up rates are as judged.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from nextturn.probe.command.files import write_atomic, write_json
from nextturn.probe.command.sections import TemplateSection
from nextturn.probe.command.terminal import aligned
from nextturn.probe.judges.verdicts import LABELS
from nextturn.probe.measures.base import Figure
from nextturn.probe.measures.perturb import NONE
from nextturn.probe.report.comparison import compare_runs, declared_by, differences, percent, plain, points, temperature
from nextturn.probe.report.page import escaped, markdown_table
from nextturn.probe.results import FinishedRun, Metric, load_runs
from nextturn.probe.stats import NOTHING, Estimate

Rows = list[list[str]]
Columns = Mapping[str, Mapping[str, Any]]
"""The columns of a table, each with what it changes of the metric of a row."""

SWITCHES = tuple(TemplateSection.model_fields)
"""The settings by which models are grouped, beside the chat template."""
FACTS = ("group", "template", "thinking", "judge", "parameters", "base")
SOURCE = ("model", "set", "measure", "name", "temperature", "perturbation", "percent", "source", "read")
SIX = {"genuine_followup", "user_restatement", "assistant_restatement", "malformed", "meta_planning", "degenerate"}
"""The labels that the paper names, marked with * in the tables."""
BY_LABEL = {label + "*" * (label in SIX): {"name": f"label:{label}"} for label in LABELS}
MAIN = "Accuracy and follow-up at T=0"
PLAIN = {"measure": "followup", "perturbation": NONE}
ACCURACY = {"measure": "accuracy", "name": "lenient", "temperature": "", "perturbation": NONE}
AXES = {"accuracy": ACCURACY, "follow-up": {**PLAIN, "name": "rate", "temperature": "T=0.0"}}
CONTROLS = {"before": PLAIN, "after": {}, "changed text": {"name": "changed_text"}}


class Model(NamedTuple):
    """A run, or a model of the paper.

    Attributes:
        facts: What is known of it beside its figures, by FACTS. `base` is the model that it was trained from, or itself.
        changes: Paired differences to the base.
    """

    name: str
    facts: dict[str, Any]
    figures: dict[Metric, Estimate]
    changes: Mapping[Metric, Estimate]

    def fact(self, key: str) -> str:
        """Return a fact as text, "-" where it is not known."""
        value = self.facts.get(key)
        return f"{value:,}" if isinstance(value, int) else value or "-"

    def as_json(self) -> dict[str, Any]:
        """Return what sheet.json holds of the model. Rates lie in [0, 1]."""
        figures = [{**metric._asdict(), **plain(estimate)} for metric, estimate in self.figures.items()]
        return {"name": self.name, **self.facts, "figures": figures}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    folders = "finished probe runs of any models, or training runs; give a base before what was trained from it"
    parser.add_argument("folders", nargs="+", type=Path, metavar="RUN", help=folders)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="where the sheet is written")
    parser.add_argument("--paper", action="store_true", help="also show the figures of arXiv 2604.02315")


def run(arguments: argparse.Namespace) -> None:
    runs, paper = load_runs(arguments.folders), read_paper() if arguments.paper else []
    models = [*models_of(runs), *models_in_paper(paper)]
    tables = tables_of(models, declared_by(runs))
    tables["Sources"] = [list(SOURCE), *([str(each.get(key, "-")) for key in SOURCE] for each in paper)]
    differing = [line for line in differences(runs) if line.partition(": ")[0] not in ("chat template", *SWITCHES)]
    note = f"Measured differently: {'; '.join(differing)}" if differing else "Nothing but template and thinking differs"
    text = [f"# Models side by side\n\n{escaped(note, 2000)}. Rates are as judged, in percent with 95% intervals."]
    text += [f"## {title}\n\n{markdown_table(rows)}" for title, rows in tables.items() if rows[1:]]
    found = [model.as_json() for model in models]
    write_json(arguments.out / "sheet.json", {"schema": 1, "differences": differing, "models": found, "paper": paper})
    write_atomic(arguments.out / "sheet.md", "\n\n".join(text) + "\n")
    print("\n".join([*aligned(tables[MAIN]), f"{note}.", *(f"{arguments.out}/sheet.{end}" for end in ("md", "json"))]))


def models_of(runs: Sequence[FinishedRun]) -> list[Model]:
    """Return the runs as models, sorted by group.

    The base of a run with a step is the last run before it that has no step, the same group and the same sets.
    """
    groups: dict[tuple[str, str], int] = {}
    bases: dict[tuple[int, frozenset[str]], FinishedRun] = {}
    models = []
    for run in runs:
        info, settings = run.results.model, run.results.settings
        switches = [f"{key}={settings.others[key]}" for key in SWITCHES if settings.others.get(key) is not None]
        template, thinking = (info.template_sha256 or "-")[:12], ", ".join(switches) or "template's default"
        group = groups.setdefault((template, thinking), len(groups) + 1)
        if not info.step:
            bases[group, frozenset(settings.sets)] = run
        base = bases.get((group, frozenset(settings.sets)))
        pair = compare_runs([base, run]).figures if base and base is not run else ()
        changes = {each.metric: each.changes["baseline"] for each in pair if "baseline" in each.changes}
        known = (group, template, thinking, settings.others.get("judge"), info.parameters, base and base.name)
        facts = {**dict(zip(FACTS, known, strict=True)), "folder": str(run.folder)}
        models.append(Model(run.name, facts, run.results.figures(), changes))
    return sorted(models, key=lambda model: model.facts["group"])


def read_paper() -> list[dict[str, Any]]:
    """Return the figures of arXiv 2604.02315, each with its source and whether it was read first or second hand."""
    data = yaml.safe_load(Path(__file__).with_name("paper.yaml").read_text(encoding="utf-8"))
    sets = [(model["facts"], *of_set) for model in data["models"] for of_set in model["sets"].items()]
    cells = [(facts, name, *cell) for facts, name, figures in sets for cell in figures.items()]
    columns = data["columns"]
    return [{**data["common"], **facts, "set": name, **columns[of], "percent": n} for facts, name, of, n in cells]


def models_in_paper(paper: Sequence[Mapping[str, Any]]) -> list[Model]:
    """Return the models of `read_paper`; the paper gives no intervals."""
    models: dict[str, Model] = {}
    for each in paper:
        facts = {"group": "paper", **{key: each[key] for key in FACTS if key in each}}
        model = models.setdefault(each["model"], Model(each["model"], facts, {}, {}))
        metric = Metric(**{key: each[key] for key in Metric._fields if key in each})
        model.figures[metric] = Estimate(each["percent"] / 100, None)
    return list(models.values())


def tables_of(models: list[Model], declared: Mapping[str, Mapping[str, Figure]]) -> dict[str, Rows]:
    """Return the tables by title. What was not measured of a model is "-", and a table of nothing has only its head.

    Args:
        declared: The figures of each measure (`declared_by`).
    """

    def figure(metric: Metric) -> Figure:
        return declared.get(metric.measure, {}).get(metric.name) or Figure(metric.name, headline=False)

    def cell(model: Model, metric: Metric, changed: bool) -> str:
        text = percent(model.figures.get(metric, NOTHING), unit=figure(metric).unit)
        return f"{text} ({points(model.changes[metric])})" if changed and metric in model.changes else text

    def table(
        metrics: list[Metric], keys: str, columns: Columns, of: list[Model] = models, fact: str = "group"
    ) -> Rows:
        """Make a table with a row for each place, named by `keys` of the metrics, and each model that has a figure there."""
        head, rows = keys.split(), []
        for place, metric in {tuple(getattr(each, key) for key in head): each for each in metrics}.items():
            shown = [metric._replace(**new) for new in columns.values()]
            for model in of:
                found = [model.figures[each] for each in shown if each in model.figures]
                if found and (columns is not CONTROLS or metric in model.figures):
                    n = " / ".join(dict.fromkeys(str(each.n or "-") for each in found))
                    cells = (cell(model, each, of is trained) for each in shown)
                    rows.append([*place, model.name, model.fact(fact), *cells, n])
        return [[*head, "model", fact, *columns, "n"], *rows]

    every = list(dict.fromkeys(metric for model in models for metric in model.figures if not metric.part))
    rates = [metric for metric in every if metric.measure == "followup" and metric.name == "rate"]
    controls = [metric for metric in every if metric.measure == "perturbed" and metric.name == "rate"]
    others = [metric for metric in every if metric.measure != "accuracy" and figure(metric).headline]
    over = {at: {"temperature": at} for at in sorted({metric.temperature for metric in rates}, key=temperature)}
    bases = {model.facts.get("base") for model in models if model.facts.get("base") != model.name} - {None}
    trained = [model for model in models if model.facts.get("base") in bases]
    by_size = sorted(models, key=lambda model: model.facts.get("parameters") or float("inf"))
    return {
        "Models": [["model", *FACTS], *([model.name, *map(model.fact, FACTS)] for model in models)],
        MAIN: table(every, "set", AXES),
        "Follow-up by temperature": table(rates, "set", over),
        "By number of parameters": table(every, "set", AXES, by_size, "parameters"),
        "Base, SFT and RL": table(every, "set", AXES, trained),
        "Controls": table(controls, "set perturbation temperature", CONTROLS),
        "Labels": table(rates, "set temperature", BY_LABEL),
        "Other measures": table(others, "set measure name", {"value": {}}),
    }
