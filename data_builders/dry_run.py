"""`--dry-run`: counts of what a build would make, and one example. No model is asked and nothing is written."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from nextturn.data_builders.build import Build
from nextturn.data_builders.card import chat
from nextturn.data_builders.numbers import estimated_tokens

_SAMPLE = 500  # problems whose conversations are made and counted


def dry_run(build: Build, out: Path) -> Iterator[str]:
    """Yield the lines of a dry run. They contain text of problems as it is, so print them with `visible`."""
    recipe, problems, written = build.recipe, len(build.problems), len(build.written)
    others = f" and {written:,} written conversations" if written else ""
    yield f"would write {out}: {problems:,} problems in {len(build.parts()):,} parts{others}"
    if recipe.dialogue is None:
        yield from _scripted(build)
    else:
        solver, simulator = recipe.dialogue.policy, recipe.dialogue.simulator
        yield (
            f"{solver.model or 'the policy'} solves them, with at most {recipe.dialogue.tries} attempts each; user turns: "
            f"{simulator.engine}{f' {simulator.model}' if simulator.model else ''}"
        )
        yield "conversations, rows and tokens: unknown until the models have answered; each solved problem gives one or two"
    if rows := len(build.replay):
        asked = f", each asked at most {recipe.replay.tries} times" if recipe.replay.asked else ""
        yield f"replay: {rows:,} questions{asked}"
    if recipe.preferences is not None:
        yield "preference pairs: unknown until the build, at most one per conversation"
    yield "dry run: no model was asked, nothing was written"


def _scripted(build: Build) -> Iterator[str]:
    """Yield counts of the conversations that need no model, from a sample of the problems, and one conversation."""
    problems = len(build.problems)
    sampled = range(0, problems, max(1, problems // _SAMPLE))
    made = [conversation for index in sampled for conversation in build.conversations(index)]
    sample = [*build.written, *made]
    rows = len(build.written) + (len(made) * problems / len(sampled) if problems else 0)
    tokens = rows * sum(estimated_tokens(each.messages) for each in sample) / len(sample)
    yield f"about {rows:,.0f} conversations with {tokens:,.0f} tokens (estimated without a tokenizer)"
    kinds = Counter(each.kind for each in sample).most_common()
    yield "kinds: " + ", ".join(f"{kind} {count / len(sample):.1%}" for kind, count in kinds)
    quality = build.quality_filter()
    reasons = Counter(each.reason or quality.reason(each) for each in sample)
    lost = "".join(f", {count} {reason}" for reason, count in sorted(reasons.items(), key=str) if reason)
    yield f"of {len(sample):,} sampled conversations, the quality filter keeps {reasons[None]:,}{lost}"
    yield f"\n--- {sample[0].id} ({sample[0].kind}); assistant turns carry loss, except those marked (no loss)"
    yield from chat(sample[0].messages)
