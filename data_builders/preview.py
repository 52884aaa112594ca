"""What `--dry-run` and `--preview` show of a build; lines of text, with what others wrote still in it as it is."""

from __future__ import annotations

import itertools
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from data_builders.build import Build
from data_builders.card import chat
from data_builders.dialogue import prompts
from data_builders.dialogue.prompts import Plan
from data_builders.recipe import Dialogue, Price, Role
from data_builders.replay import question
from data_builders.tasks import Conversation, Task
from data_builders.text import estimated_tokens
from probe.conversations import Message, user

# Problems that an estimate is made from: of rules, and of self-play, whose prompts are longer.
_SAMPLE, _ESTIMATED = 500, 40


def dry_run(build: Build, out: Path) -> Iterator[str]:
    """What would be written, estimated from a sample of the problems. Writes nothing and asks nobody."""
    written = f" and {len(build.written):,} written conversations" if build.written else ""
    yield f"would write {out}: {len(build.problems):,} problems in {len(build.shards()):,} shards{written}"
    if build.recipe.dialogue is None:
        made, share = build.sample(_SAMPLE)
        yield from _sample_lines(build, made, share)
    else:
        step = max(1, len(build.problems) // _ESTIMATED)
        plans = [plan for index in range(0, len(build.problems), step) for plan in build.plans(index)]
        asked = len(build.problems) * build.recipe.per_problem
        yield from estimate_lines(plans, asked, build.recipe.dialogue)
        outlines, share = build.sample(_SAMPLE)
        kept = sum(one.source != "written" for one in outlines) / share
        yield f"  kept      about {kept:,.0f} of them with a large model in all roles; with one of 0.5B or 1.5B parameters none was"
    yield from _replay_lines(build)
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
        plan = plans[0]
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


# --- What models will be asked, and what that takes.

# A chat reply explains more than a terse reference solution does.
_LONGER, _LEAST_WORDS = 1.3, 60
_USER = "hm ok, i do not see how you get from the second line to the next one. can you show me that part?"
_REPLY = "word " * 45
_VERDICT = "The assistant takes up what the user says and asks for what it needs.\nVERDICT: 4"
# Replies that are asked for until one can be used, as a model of 1.5B took them: solutions, messages, proposals.
_SOLVED, _SAID, _PROPOSED = 1.5, 1.5, 2.0
# Turns of user and assistant after the solution, by goal; of a hint and of steps there is no solution to ask for.
_TURNS = {"result": 1.5, "child": 1.5, "hint": 2.5, "steps": 3.0, "check": 1.6, "slip": 2.0}


def _solution(task: Task) -> str:
    """As long as a usual reply about this problem."""
    return "word " * max(_LEAST_WORDS, round(_LONGER * len((task.boxed_solution or task.solution).split())))


def _tokens(text: str) -> int:
    return estimated_tokens([{"content": text}])


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} seconds"
    return f"{seconds / 3600:.1f} hours" if seconds >= 5400 else f"{seconds / 60:.0f} minutes"


def _replay_lines(build: Build) -> Iterator[str]:
    """What the model that answers the replay questions will be asked at least and at most."""
    tries, asked = build.recipe.replay.tries, build.recipe.replay.asked
    tasks = list(build.replay.questions().values()) if asked else []
    if asked is None or not tasks:
        return
    sample = tasks[:: max(1, len(tasks) // _SAMPLE)]
    share, slots = len(tasks) / len(sample), asked.server.concurrency if asked.server is not None else 1
    given = share * sum(estimated_tokens(question(task)) for task in sample)
    made = share * sum(min(asked.max_tokens, _tokens(_solution(task))) for task in sample)
    yield f"replay: {len(tasks):,} questions to {asked.model or (asked.server and asked.server.model)}, estimated"
    for least, n in ("if every first reply is right", 1), (f"if all are asked {tries} times", tries):
        yield (
            f"  {least}: {n * len(tasks):,} calls, {n * given:,.0f} tokens in, {n * made:,.0f} out, "
            f"{_duration(n * len(tasks) * asked.latency_s / slots)}"
            + (f", cost {asked.price.of(n * given, n * made):,.2f}" if asked.price != Price() else "")
        )
    yield f"  where a reply takes {asked.latency_s:g} s (`latency_s`) and {slots} are made at once"


def estimate_lines(plans: Sequence[Plan], conversations: float, settings: Dialogue) -> Iterator[str]:
    """Calls, tokens, time and money of `conversations` conversations that are like `plans`, a sample of them.

    Prompts are the real ones. How often a reply has to be asked for again is what a small model took; candidates beyond
    the first, with their look-aheads, come on top.
    """
    total: Counter[str] = Counter()
    for plan in plans:
        total.update(_calls_of(plan, settings))
    roles, cost, seconds, many = settings.roles(), 0.0, 0.0, conversations / len(plans)
    yield f"about, for {conversations:,.0f} conversations asked for:"
    for role, section in roles.items():
        calls, given, made = (round(total[f"{role}.{name}"] * many) for name in ("calls", "input", "output"))
        yield f"  {role:9} {calls:>10,} calls {given:>14,} tokens in {made:>12,} out"
        cost += section.price.of(given, made)
        seconds += calls * section.latency_s / (section.server.concurrency if section.server else settings.most_at_once)
    assumed = ", ".join(f"{role} {section.latency_s:g} s" for role, section in roles.items())
    yield f"  time      {_duration(seconds)}, where a reply takes: {assumed} (`latency_s`)"
    priced = any(section.price != Price() for section in roles.values())
    at = f"{cost:,.2f} at the recipe's prices" if priced else "none, no prices are given (`price`)"
    yield f"  cost      {at}"


def _calls_of(plan: Plan, settings: Dialogue) -> Counter[str]:
    question, solution, shots = plan.question, _solution(plan.task), settings.few_shot
    talk: list[Message] = [user(question), {"role": "assistant", "content": solution}] * 2
    counts: Counter[Any] = Counter()

    def add(role: Role, times: float, prompt: Sequence[Message], text: str) -> None:
        made = min(_tokens(text), settings.roles()[role].max_tokens)
        given = {"calls": times, "input": times * estimated_tokens(prompt), "output": times * made}
        counts.update({f"{role}.{name}": number for name, number in given.items()})

    alone, opening = prompts.assistant_prompt(talk[:1], "solve"), prompts.opening_prompt(plan, question, shots)
    if plan.withholds:
        fact, name = "12 marbles", "how many marbles are in each bag"
        add("assistant", _PROPOSED * _SAID, prompts.prompt("choose", shots, question=question), "word " * 25)
        add(
            "assistant",
            _PROPOSED * _SAID,
            prompts.prompt("leave_out", shots, sentence=_USER, name=name, fact=fact),
            _USER,
        )
        add("assistant", _PROPOSED * _SOLVED * settings.tries, alone, solution)
        add("simulator", (_PROPOSED - 1) * _SAID, opening, question)
        add("assistant", _SAID, prompts.assistant_prompt(talk[:1], "ask", name=name), _USER)
        add("simulator", _SAID, prompts.act_prompt(plan.persona, "reveal", _USER, shots, fact=fact), _USER)
    else:  # the problem is solved once for both conversations
        add("assistant", _SOLVED, alone, solution)
    add("simulator", _SAID, opening, question)
    if plan.goal in ("result", "child", "slip"):
        add("assistant", _SOLVED, prompts.assistant_prompt(talk[:3], "solve"), solution)
    turns = _TURNS[plan.goal] * _SAID
    add("simulator", turns, prompts.act_prompt(plan.persona, "why", solution, shots), f"<message>{_USER}</message>")
    add("assistant", turns * settings.candidates, prompts.assistant_prompt(talk[:3]), _REPLY)
    if settings.candidates > 1:
        looked = _TURNS[plan.goal] * settings.candidates * settings.samples
        simulated = prompts.simulator_prompt(prompts.User(question, plan.persona, plan.goal), talk)
        add("simulator", looked * settings.window, simulated, f"<message>{_USER}</message>")
        add("assistant", looked * settings.window, prompts.assistant_prompt(talk[:3]), _REPLY)
        add("judge", looked * (settings.judge is not None), prompts.judge_prompt(talk), _VERDICT)
    if settings.judged_at_least:
        add("judge", 1, prompts.review_prompt(plan, "", talk), _VERDICT)
    return counts
