"""`nextturn probe sheet`: figures of any models side by side, those of arXiv 2604.02315 as well with --paper.

Writes sheet.md and sheet.json. Runs that were measured differently are not refused: models are grouped by chat template and
thinking, and one line says what else differs. Follow-up rates are as judged.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from nextturn.probe.command.files import write_atomic, write_json
from nextturn.probe.command.sections import TemplateSection
from nextturn.probe.command.terminal import aligned
from nextturn.probe.judges.verdicts import in_order
from nextturn.probe.measures.base import Figure
from nextturn.probe.measures.perturb import NONE
from nextturn.probe.report.comparison import compare_runs, declared_by, differences, percent, plain, points, temperature
from nextturn.probe.report.page import escaped
from nextturn.probe.results import FinishedRun, Metric, load_runs
from nextturn.probe.stats import NOTHING, Estimate

GROUPED_BY = ("chat template", *TemplateSection.model_fields)
"""The settings by which models are grouped."""
GREEDY = "T=0.0"
FACTS = ("group", "template", "thinking", "judge", "parameters")
SIX = {"genuine_followup", "user_restatement", "assistant_restatement", "malformed", "meta_planning", "degenerate"}
"""The labels that the paper names, marked with * in the tables."""
Rows = list[list[str]]


@dataclass(frozen=True)
class Model:
    """A run, or a model of the paper, as a row of the tables.

    Attributes:
        facts: What the table of models says of it, by column.
        parameters: None where they were not recorded.
        base: The name of the model that this one was trained from, if it stands in the sheet.
        changes: Paired differences to the base.
    """

    name: str
    facts: Mapping[str, str]
    parameters: int | None
    figures: dict[Metric, Estimate]
    base: str = ""
    changes: Mapping[Metric, Estimate] = field(default_factory=dict)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    folders = "finished probe runs of any models, or training runs; give a base before what was trained from it"
    parser.add_argument("folders", nargs="+", type=Path, metavar="RUN", help=folders)
    parser.add_argument(
        "--out", type=Path, required=True, metavar="DIR", help="where sheet.md and sheet.json are written"
    )
    parser.add_argument("--paper", action="store_true", help="also show the figures of arXiv 2604.02315")


def run(arguments: argparse.Namespace) -> None:
    runs, paper = load_runs(arguments.folders), read_paper() if arguments.paper else []
    models = [*models_of(runs), *models_in_paper(paper)]
    tables = {**tables_of(models, declared_by(runs)), **({"The paper's figures": _sources(paper)} if paper else {})}
    differing = [line for line in differences(runs) if line.partition(": ")[0] not in GROUPED_BY]
    note = f"Measured differently: {'; '.join(differing)}" if differing else "All runs were measured in the same way"
    text = [f"# Models side by side\n\n{escaped(note, 2000)}. Rates are as judged, in percent with 95% intervals."]
    text += [f"## {title}\n\n{_markdown(rows)}" for title, rows in tables.items()]
    write_json(arguments.out / "sheet.json", {"schema": 1, **as_json(models), "differences": differing, "paper": paper})
    write_atomic(arguments.out / "sheet.md", "\n\n".join(text) + "\n")
    shown = aligned(tables["Accuracy and follow-up"])
    print("\n".join([*shown, f"{note}.", *(str(arguments.out / name) for name in ("sheet.md", "sheet.json"))]))


# --- Models


def models_of(runs: Sequence[FinishedRun]) -> list[Model]:
    """Return the runs as models, sorted by group. A run with a step belongs to the last run without one of its group, its base."""
    groups: dict[tuple[str, str], list[FinishedRun]] = {}
    for run in runs:
        settings = run.results.settings.others
        switches = (f"{key}={settings[key]}" for key in GROUPED_BY if settings.get(key) is not None)
        key = (run.results.model.template_sha256 or "-")[:12], ", ".join(switches) or "template's default"
        groups.setdefault(key, []).append(run)
    models = []
    for number, ((template, thinking), of_group) in enumerate(groups.items(), start=1):
        base: FinishedRun | None = None
        for run in of_group:
            base = base if run.results.model.step else run
            facts = {"group": str(number), "template": template, "thinking": thinking}
            facts |= {"judge": str(run.results.settings.others.get("judge", "-")), "folder": str(run.folder)}
            pair = compare_runs([base, run]).figures if base and base is not run else ()
            changes = {each.metric: each.changes["baseline"] for each in pair if "baseline" in each.changes}
            named = base.name if base else ""
            models.append(Model(run.name, facts, run.results.model.parameters, run.results.figures(), named, changes))
    return models


def read_paper() -> list[dict[str, Any]]:
    """Return the figures of arXiv 2604.02315, each with its source and whether it was read first or second hand."""
    content = yaml.safe_load(Path(__file__).with_name("paper.yaml").read_text(encoding="utf-8"))
    return [
        {**content["common"], **of_model, **each} for of_model in content["models"] for each in of_model.pop("figures")
    ]


def models_in_paper(paper: Sequence[Mapping[str, Any]]) -> list[Model]:
    """Return the models of `read_paper`; the paper gives no intervals."""
    models: dict[str, Model] = {}
    for each in paper:
        name, base = (f"paper: {each[key]}" if key in each else "" for key in ("model", "base"))
        known = {key: each[key] for key in Metric._fields if key in each}
        facts = {"group": "paper", "judge": each["judge"]}
        model = models.setdefault(name, Model(name, facts, each.get("parameters"), {}, base))
        model.figures[Metric(**known)] = Estimate(each["percent"] / 100, None)
    return list(models.values())


# --- Tables


def tables_of(models: Sequence[Model], declared: Mapping[str, Mapping[str, Figure]]) -> dict[str, Rows]:
    """Return the tables by title, without empty ones. A row of a model has "-" for what was not measured.

    Args:
        declared: The figures of each measure (`declared_by`).
    """
    every = list(dict.fromkeys(metric for model in models for metric in model.figures if not metric.part))
    rates = [metric for metric in every if metric.measure == "followup" and metric.name == "rate"]
    turns = sorted({metric.temperature for metric in rates}, key=temperature)

    def cell(model: Model, metric: Metric) -> str:
        figure = declared.get(metric.measure, {}).get(metric.name)
        return percent(model.figures.get(metric, NOTHING), unit=figure.unit if figure else "percent")

    def long(head: str, places: Mapping[tuple[str, ...], Mapping[str, Metric]]) -> Rows:
        """Make a table with a row for each place and model; the last column has the numbers of observations."""
        rows = []
        for place, of_place in places.items():
            for model in models:
                if found := [model.figures[metric] for metric in of_place.values() if metric in model.figures]:
                    n = " / ".join(dict.fromkeys(str(each.n or "-") for each in found))
                    rows.append([*place, model.name, *(cell(model, metric) for metric in of_place.values()), n])
        columns = dict.fromkeys(title for of_place in places.values() for title in of_place)
        return [[*head.split(), "model", *columns, "n"], *rows]

    def wide(of_models: Iterable[Model], changed: bool = False) -> Rows:
        """Make a table with a row for each model; a change to its base stands behind the figure."""

        def shown(model: Model, metric: Metric) -> str:
            change = model.changes.get(metric) if changed else None
            return cell(model, metric) + (f" ({points(change)})" if change else "")

        return [
            ["model", "parameters", *main],
            *(
                [model.name, _fact(model, "parameters"), *(shown(model, of) for of in main.values())]
                for model in of_models
            ),
        ]

    both = {
        name: {
            "lenient accuracy": Metric("accuracy", name, "lenient"),
            f"follow-up {GREEDY}": Metric("followup", name, "rate", GREEDY),
        }
        for name in sorted({metric.set for metric in every})
    }
    main = {f"{title}, {name}": of for name, of_set in both.items() for title, of in of_set.items() if of in every}
    controls = (metric for metric in every if metric.measure == "perturbed" and metric.name == "rate")
    labels = in_order({metric.name.partition(":")[2] for metric in every if metric.name.startswith("label:")})
    marked = {f"{label}*" if label in SIX else label: f"label:{label}" for label in labels}
    others = {
        (metric.set, figure.title or figure.name): {"value": metric}
        for metric in every
        if metric.measure != "accuracy" and (figure := declared.get(metric.measure, {}).get(metric.name))
        if figure.headline
    }
    bases = {model.base for model in models if model.base != model.name}
    trained = [model for model in models if model.base in bases]
    by_size = sorted(models, key=lambda model: model.parameters or float("inf"))
    tables = {
        "Models": [["model", *FACTS], *([model.name, *(_fact(model, key) for key in FACTS)] for model in models)],
        "Accuracy and follow-up": long("set", {(name,): of for name, of in both.items()}),
        "Follow-up by temperature": long(
            "set", {(each.set,): {at: each._replace(temperature=at) for at in turns} for each in rates}
        ),
        "By number of parameters": wide(by_size),
        "Base, SFT and RL": wide(trained, changed=True),
        "Controls": long("set control T", {
            (each.set, each.perturbation, each.temperature): {
                "follow-up before": each._replace(measure="followup", perturbation=NONE),
                "after": each, "changed text": each._replace(name="changed_text"),
            }
            for each in controls
        }),
        "Labels": long("set T", {
            (each.set, each.temperature): {title: each._replace(name=name) for title, name in marked.items()}
            for each in rates
        }),
        "Other measures": long("set figure", others),
    }  # fmt: skip
    return {title: rows for title, rows in tables.items() if len(rows) > 1 or "follow-up" in title}


def _fact(model: Model, key: str) -> str:
    return f"{model.parameters:,}" if key == "parameters" and model.parameters else model.facts.get(key, "-")


def _sources(paper: Sequence[Mapping[str, Any]]) -> Rows:
    keys = ("model", "set", "measure", "name", "temperature", "perturbation", "percent", "source", "read")
    return [list(keys), *([str(each.get(key, "-")) for key in keys] for each in paper)]


def _markdown(rows: Rows) -> str:
    lines = [f"| {' | '.join(escaped(cell, 300) for cell in row)} |" for row in rows]
    return "\n".join([lines[0], "|---" * len(rows[0]) + "|", *lines[1:]])


def as_json(models: Sequence[Model]) -> dict[str, Any]:
    """Return the models and all their figures as sheet.json holds them. Rates lie in [0, 1]."""
    return {
        "models": [
            {"name": model.name, **model.facts, "parameters": model.parameters, "base": model.base} for model in models
        ],
        "figures": [
            {"model": model.name, **metric._asdict(), **plain(estimate), "change": plain(model.changes.get(metric))}
            for model in models
            for metric, estimate in model.figures.items()
        ],
    }
