"""What `--dry-run` and `--preview` show of a build; lines of text, with what others wrote still in it as it is."""

from __future__ import annotations

import itertools
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

from data_builders.build import Build
from data_builders.card import chat
from data_builders.dialogue import prompts
from data_builders.tasks import Conversation
from data_builders.text import estimated_tokens

# Problems whose conversations are made by rules for a dry run.
_SAMPLE = 500


def dry_run(build: Build, out: Path) -> Iterator[str]:
    """Yield what is known of a build before any model is asked. Nothing is written."""
    written = f" and {len(build.written):,} written conversations" if build.written else ""
    yield f"would write {out}: {len(build.problems):,} problems in {len(build.shards()):,} shards{written}"
    if build.recipe.dialogue is None:
        made, share = build.sample(_SAMPLE)
        yield from _sample_lines(build, made, share)
    else:
        asked = len(build.problems) * build.recipe.per_problem
        yield f"asks {', '.join(build.recipe.dialogue.roles())} for {asked:,.0f} conversations"
        yield "conversations kept, calls, tokens and cost: unknown until the models have answered (--preview 10 makes ten)"
    if build.replay.section.asked and (n := len(build.replay.questions())):
        yield f"replay: {n:,} questions, {n:,} to {n * build.recipe.replay.tries:,} calls"
    if (pairs := build.recipe.preferences) is not None:
        whose = (
            f"{pairs.model.model or 'the served model'}'s, or the conversations' own where it gives none"
            if pairs.model
            else "the conversations' own"
        )
        yield f"and pairs of replies to the openings, where one is found; the replies to leave are {whose}"
    for name, rows in build.eval_rows.items():
        yield f"{name}: {len(rows)} held-out rows"
    if build.recipe.dialogue is None:
        yield from described(made[0])
    else:
        plan = build.plans(0)[0]
        yield f"\n--- {plan.id} ({plan.persona}, {plan.goal}): how the opening of a complete problem is asked for"
        yield from prompts.opening_prompt(plan, plan.question)[-1]["content"].split("\n")
        yield "--- the assistant's turns, and nothing else, carry loss; its own planted slips do not"
    yield "dry run: no model was asked, nothing was written"


def _sample_lines(build: Build, made: Sequence[Conversation], share: float) -> Iterator[str]:
    """Of what is made by rules: how many, of which kinds, and what the gate says to a sample."""
    mean = sum(estimated_tokens(one.messages) for one in made) / len(made)
    count = len(made) / share
    yield f"about {count:,.0f} conversations of {mean:.0f} tokens, {count * mean:,.0f} in all (an estimate)"
    if build.recipe.replay.fraction:
        yield f"and about {build.recipe.replay.per_row(count):,.0f} replay rows"

    # Not every problem carries every kind, so the shares may be others than the recipe's.
    kinds = Counter(one.kind for one in made).most_common()
    yield f"kinds in a sample of {len(made)}: " + ", ".join(f"{kind} {rows / len(made):.1%}" for kind, rows in kinds)

    # How many are alike shows only over all rows.
    with tempfile.TemporaryDirectory() as folder, closing(build.gate(Path(folder))) as gate:
        reasons = Counter(one.reason or gate.reason(one) for one in made)
    kept = reasons.pop(None, 0)
    told = ", ".join(f"{count} {reason}" for reason, count in sorted(reasons.items(), key=str))
    rejected = f" ({told})" if told else ""
    yield f"of the sample's {len(made)} conversations the gate keeps {kept / len(made):.1%}{rejected}"


def preview(build: Build, n: int) -> Iterator[str]:
    """The first `n` conversations; those of self-play are made for it, which asks its models, and kept nowhere."""
    found = [] if build.recipe.dialogue else build.written[:n]
    wanted = range(min(n - len(found), len(build.problems)))
    with tempfile.TemporaryDirectory() as folder:
        if wanted:
            build.make({"": wanted}, Path(folder), lambda _, made: found.extend(itertools.chain.from_iterable(made)))
        with closing(build.gate(Path(folder))) as gate:
            for one in found[:n]:
                yield from described(one, one.reason or gate.reason(one))
    if (replay := build.recipe.replay).fraction:
        yield f"\nreplay rows, {replay.fraction:.0%} of all, are not shown: " + (
            "a model answers them when the data is built"
            if replay.asked
            else "questions with their reference solutions"
        )


def described(made: Conversation, rejected: str | None = None) -> Iterator[str]:
    """A conversation, with who talks, what is withheld in it, and until when."""
    told = made.row.get("dialogue", {})
    who = ", ".join([made.kind, *(told[name] for name in ("persona", "goal") if told)])
    yield f"\n--- {made.id} ({who}{f'; rejected: {rejected}' if rejected else ''}); assistant turns carry loss, but (no loss)"
    yield from chat(made.messages)
    if made.gap is not None:
        until = f"until message {made.reveal_at + 1}" if made.reveal_at < len(made.messages) else "to the end"
        yield f"  withheld {until}: {made.gap.thing or made.gap.clause} ({made.gap.short})"
    elif told and told["withheld"]:  # the conversation ended before it was told
        yield f"  withheld at first: {told['withheld']} ({told['fact']})"
    if told:
        yield f"  right, tries: {told['measured']}"
