"""A self-play conversation from its plan to its end: which model is asked what, in which order, and which replies count.

A problem is kept if the policy solves it. If a fact is withheld, it is proved to be needed: without it the policy does not
find the result, and with it the policy does. The assistant sees the chat, with a note that the stored row does not contain,
such as what is missing or where an attempt goes wrong. The *simulator* plays the user; it knows the problem, a persona, a
goal and what it has revealed, and no answer. A *judge* reads the finished conversation.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from nextturn.data_builders.dialogue import checks, prompts
from nextturn.data_builders.dialogue.checks import Proposal, Slip
from nextturn.data_builders.dialogue.finished import Finished
from nextturn.data_builders.dialogue.prompts import Plan, Prompt, assistant_prompt
from nextturn.data_builders.dialogue.replies import (
    Parsed,
    Reply,
    read_assistant,
    read_judge,
    read_message,
    same_words,
    tagged,
)
from nextturn.data_builders.dialogue.roles import Answer, RoleModel
from nextturn.data_builders.recipe import Dialogue, Role
from nextturn.probe.engines.base import item_seed
from nextturn.probe.grading import asks, boxed, closes_asking, same_answer


class _Refused(Exception):
    """Raised to reject the current conversation; carries the reason."""


_AGAIN = 3  # the most requests for a usable reply, each with another seed
_PROPOSALS = 3  # the most facts that are proposed to be withheld, until one is needed

Check = Callable[[str], str]
"""Return why a text cannot be used, or ""."""


async def play(plans: Sequence[Plan], settings: Dialogue, roles: Mapping[Role, RoleModel], seed: int) -> list[Finished]:
    """Return the conversations about one problem; equal replies always give equal conversations.

    Raises:
        EngineError: A model cannot be asked at all. A single failure becomes the conversation's `reason`.
    """
    conversations = [_SelfPlay(plan, settings, roles, seed) for plan in plans]
    first, *others = conversations
    solution = await first.solved_alone()
    for other in others:
        other.done.measured |= first.done.measured
        other.done.reason = first.done.reason
    await asyncio.gather(*(each.play(solution) for each in conversations if not each.done.reason))
    return [conversation.done for conversation in conversations]


class _SelfPlay:
    def __init__(self, plan: Plan, settings: Dialogue, roles: Mapping[Role, RoleModel], seed: int) -> None:
        self.plan, self.settings, self.roles, self.seed = plan, settings, roles, seed
        self.done = Finished(plan)
        self.rng = random.Random(f"talk:{seed}:{plan.id}")
        self.answer = plan.task.answer
        self.shots = settings.few_shot

    # --- Asking, and what a reply must hold.

    async def ask(
        self, role: Role, prompt: Prompt, where: str, read: Callable[[Reply], Parsed], tries: int, **options: Any
    ) -> Answer:
        """Ask for a usable reply; the seed follows from the position in the conversation. See `RoleModel.ask`."""
        seed = partial(item_seed, self.seed, self.plan.id, role, where)
        answer = await self.roles[role].ask(prompt, read, seed, tries, **options)
        self.done.calls.update(answer.calls)
        self.done.unusable += [
            {"role": role, "where": where, "reason": reply.unusable, "text": reply.text} for reply in answer.unusable
        ]
        return answer

    async def text(self, role: Role, prompt: Prompt, where: str, read: Callable[[Reply], Parsed]) -> str:
        """Return a usable text or reject the conversation. The model sees why its last attempt was unusable, except for
        first user messages, whose prompt has to be the same whether they lack a fact or not."""
        options = {} if where.startswith("opening") else {"again": prompts.again}
        answer = await self.ask(role, prompt, where, read, _AGAIN, **options)
        if answer.parsed is None:
            raise _Refused(f"{where.partition('.')[0]}_{answer.missing.partition('_')[2]}")
        return answer.parsed.text

    def said(self, role: str) -> list[str]:
        return [message["content"] for message in self.done.messages if message["role"] == role]

    def say(self, role: str, text: str) -> None:
        self.done.messages.append({"role": role, "content": text})

    def copies(self, text: str, named: str, *context: str) -> bool:
        """Return True if a reply copies an example that preceded its prompt."""
        known = "\n".join([self.plan.question, *context, *(message["content"] for message in self.done.messages)])
        return any(checks.copies(text, example, known) for example in prompts.shown_replies(named, self.shots))

    def right(self, text: str) -> bool:
        found = boxed(text)
        return found is not None and same_answer(found[1], self.answer)

    def unfit_solution(self, text: str) -> str:
        if not self.right(text):
            return "wrong" if boxed(text) else "no_box"
        return "closes_asking" if closes_asking(text) else "false_equation" if checks.has_false_equation(text) else ""

    # --- The turns.

    async def solve(self, prompt: Prompt, where: str) -> str:
        """Return a right solution, or "" if none of the attempts is right."""
        tries = self.settings.tries
        answer = await self.ask("assistant", prompt, where, _checked(read_assistant, self.unfit_solution), tries)
        asked = len(answer.unusable) + (answer.parsed is not None)
        self.done.measured[where] = [int(answer.parsed is not None), asked]
        if answer.parsed is None and len(answer.unusable) < tries:  # the model could not be asked
            raise _Refused(answer.missing)
        return answer.parsed.text if answer.parsed else ""

    async def solved_alone(self) -> str:
        """Return the policy's own right solution of the problem alone, or "" and set the reason."""
        prompt = assistant_prompt([{"role": "user", "content": self.plan.question}], "solve")
        try:
            solution = await self.solve(prompt, "solved")
        except _Refused as refused:
            self.done.reason = str(refused)
            return ""
        self.done.reason = "" if solution else "unsolved"
        return solution

    async def user(self, act: str, check: Check, where: str = "", **words: str) -> None:
        """Add the user's next message, which repeats no earlier message and no example."""

        def unfit(text: str) -> str:
            if len(text.split()) > 70:
                return "too_long"
            said = any(same_words(text, one["content"]) for one in self.done.messages)
            return "repeats" if said or self.copies(text, act, *words.values()) else check(text)

        prompt = prompts.act_prompt(self.plan.persona, act, self.done.messages[-1]["content"], self.shots, **words)
        self.say("user", await self.text("simulator", prompt, where or act, _checked(read_message, unfit)))

    async def assistant(self, note: str, check: Check, where: str = "", **words: str) -> None:
        """Add the assistant's next message, the first one that can be used."""

        def unfit(text: str) -> str:
            # A corrected solution repeats the rest of the wrong one.
            if note != "concede" and any(same_words(text, one) for one in self.said("assistant")):
                return "repeats"
            if _NOTE.search(text):
                return "names_note"
            quotes = words.get("wrong", "")
            return check(text) or ("false_equation" if checks.has_false_equation(text, quotes) else "")

        prompt = assistant_prompt(self.done.messages, note, **words)
        self.say("assistant", await self.text("assistant", prompt, where or note, _checked(read_assistant, unfit)))

    # --- The course of a conversation.

    async def play(self, solution: str) -> None:
        done = self.done
        if not self.possible(solution):
            done.plan = self.plan = replace(self.plan, goal="result")
        try:
            await getattr(self, f"with_{self.plan.goal}")(solution)
            await self.review()
        except _Refused as refused:
            done.reason = str(refused)
        # Sorted by position, since replies come in any order.
        done.unusable.sort(key=lambda reply: (reply["where"], reply["role"]))

    async def with_result(self, solution: str) -> None:
        await self.open(self.plan.question)
        await self.solve_here("child" if self.plan.goal == "child" else "solve")
        await self.react(self.settings.reactions)

    with_child = with_result

    async def with_hint(self, solution: str) -> None:
        """A hint, an attempt or two of the user, and a confirmation at the end: the user finds the result."""
        slip = None if self.plan.tries_right else self.slip(solution)
        await self.open(self.plan.question)
        await self.assistant("hint", self.hides_result, first=self.first(solution), answer=self.answer)
        if slip is not None:
            await self.user("attempt", self.shows(slip.answer), "try", work=checks.shown_work(slip.text))
            await self.assistant("wrong_try", self.hides_result, wrong=slip.wrong, right=slip.right)
            words = {"value": slip.right, "wrong": slip.instead, "answer": self.answer}
            await self.user("mended", self.shows(self.answer), **words)
        else:
            await self.user("attempt", self.shows(self.answer), work=checks.shown_work(solution))
        await self.assistant("right_try", self.boxes_result, answer=self.answer)

    async def with_steps(self, solution: str) -> None:
        steps = _steps(solution)
        await self.open(self.plan.question)
        for number, step in enumerate(steps[:-1]):
            await self.assistant("step", self.hides_result, f"step.{number}", step=step)
            seen = checks.shown_work(step).rpartition(" ")[2]
            await self.user("next", partial(self.goes_on, seen), f"next.{number}", seen=seen)
        await self.assistant("last_step", self.boxes_result, step=steps[-1], answer=self.answer)

    async def with_check(self, solution: str) -> None:
        slip = None if self.plan.tries_right else self.slip(solution)
        await self.open(self.plan.question, checks.shown_work(slip.text if slip else solution))
        if slip is not None:
            named = {"wrong": slip.wrong, "right": slip.right}
            await self.assistant("check_wrong", self.boxes_result, answer=self.answer, **named)
            await self.react(1)
        else:  # no reaction: the solution is the user's own
            await self.assistant("check_right", self.boxes_result, answer=self.answer)

    async def with_slip(self, solution: str) -> None:
        """The assistant's own solution with a slip, not trained on; the user corrects it, and the assistant concedes."""
        await self.open(self.plan.question)
        await self.solve_here("solve")
        slip = self.slip(self.done.messages[-1]["content"])
        if slip is None:
            raise _Refused("no_slip")
        self.done.messages[-1] = {"role": "assistant", "content": slip.text, "loss": False}
        await self.user("spot", self.shows(slip.right), line=slip.wrong, value=slip.right)
        self.done.doubts.append(True)
        words = {"wrong": slip.wrong, "right": slip.right, "answer": self.answer}
        await self.assistant("concede", self.boxes_result, **words)
        await self.react(1)

    def slip(self, solution: str) -> Slip | None:
        rng = random.Random(f"slip:{self.seed}:{self.plan.id}")
        return checks.slipped(solution, self.answer, self.plan.question, rng)

    def first(self, solution: str) -> str:
        """Return the first line of a solution that does not reveal the result, or ""."""
        return next((line for line in solution.split("\n") if line.strip() and not self.hides_result(line)), "")

    def possible(self, solution: str) -> bool:
        """Return True if the solution has what the goal needs: steps, work to show, or a line to get wrong."""
        # An attempt that does not end with the result cannot be confirmed.
        work = same_answer(checks.last_result(solution), self.answer)
        needs: dict[str, Callable[[], object]] = {
            "hint": lambda: work and self.first(solution),
            "check": lambda: work,
            "steps": lambda: len(_steps(solution)) > 1,
            "slip": lambda: self.slip(solution),
        }
        return self.plan.goal not in needs or bool(needs[self.plan.goal]())

    async def open(self, question: str, work: str = "") -> None:
        """Add the first user message; if it lacks a fact, the assistant asks for it and the user reveals it."""
        if not self.plan.withholds:
            text = prompts.PROMPTS["attempt"].format(question=question, work=work) if work else question
            await self.opening(text, "opening")
            return
        for number in range(_PROPOSALS):
            self.done.messages.clear()
            if await self.leave_out(number):
                break
        else:
            raise _Refused("nothing_needed")
        fact = self.done.withheld
        assert fact is not None
        await self.assistant("ask", partial(self.asks_for, fact), name=fact.name)
        await self.user("reveal", partial(self.tells, fact), fact=fact.fact)
        self.done.reveal_at = len(self.done.messages) - 1
        if self.plan.goal in ("hint", "steps"):  # no later solution proves that all facts are revealed
            await self.solve_here("solve")
            del self.done.messages[-1]

    async def opening(self, text: str, where: str, withheld: frozenset[float] = frozenset()) -> None:
        question, wish = self.plan.question, prompts.PROMPTS["wishes"][self.plan.goal]

        def unfit(made: str) -> str:
            if self.copies(made, "opening", wish):
                return "repeats"
            return (
                "placeholder"
                if checks.shows_hole(made, question)
                else checks.changed_numbers(made, text, withheld, wish)
            )

        read = _checked(read_message, unfit)
        self.say("user", await self.text("simulator", prompts.opening_prompt(self.plan, text, self.shots), where, read))

    async def leave_out(self, number: int) -> bool:
        """Return True if proposal `number` gives a first user message with which the policy does not find the result."""
        try:
            proposal = await self.propose(number)
            rest = await self.without(proposal, f"left_out.{number}")
            await self.opening(rest, f"opening.{number}", proposal.values)
        except _Refused:
            return False
        # A model that solves a problem in one of k attempts fails 4k times in a row with probability exp(-4) by chance.
        tries = self.settings.tries * self.done.measured["solved"][1]
        prompt = assistant_prompt(self.done.messages, "guess")
        asked = (self.ask("assistant", prompt, f"without.{number}.{k}", read_assistant, _AGAIN) for k in range(tries))
        answers = await asyncio.gather(*asked)
        no_reply = (answer.missing for answer in answers if answer.parsed is None and len(answer.unusable) < _AGAIN)
        if reason := next(no_reply, ""):
            raise _Refused(reason)
        guesses = [answer.parsed.text for answer in answers if answer.parsed is not None]
        if len(guesses) < tries:  # a truncated attempt is not a failed one
            return False
        wrong = {k: text for k, text in enumerate(guesses) if not self.right(text)}
        self.done.unusable += [
            {"role": "assistant", "where": f"without.{number}.{k}", "reason": "guess", "text": text}
            for k, text in wrong.items()
        ]
        self.done.measured["without"] = [tries - len(wrong), tries]
        self.done.withheld, self.done.rest = proposal, rest
        # Guesses that agree without an assumption show that the rest is a complete problem with another result. Models often
        # make the same assumption: of 32 pairs of guesses that agreed, 29 stated one.
        sure = [text for text in wrong.values() if not _assumes(text)]
        return len(wrong) == tries and not _mostly_alike(sure, tries)

    async def without(self, proposal: Proposal, where: str) -> str:
        """Return the problem without the fact: a sentence that states only the fact is removed, another is rewritten."""
        question, sentence = self.plan.question, checks.sentence_with(proposal.fact, self.plan.question)
        if not re.search(r"\w", sentence.replace(proposal.fact, "")):
            rest = re.sub(" {2,}", " ", question.replace(sentence, "")).strip()
            if unfit := checks.unfit_rest(rest, proposal, question):
                raise _Refused(f"left_out_{unfit}")
            return rest
        read = _checked(
            partial(tagged, tag="text"),
            lambda text: checks.unfit_rest(question.replace(sentence, text), proposal, question),
        )
        prompt = prompts.prompt("leave_out", self.shots, sentence=sentence, name=proposal.name, fact=proposal.fact)
        return question.replace(sentence, await self.text("assistant", prompt, where, read))

    async def propose(self, number: int) -> Proposal:
        """Return a fact to withhold: a number with its words that the model names, or, every other time, a fact of its choice."""
        question = self.plan.question
        if checks.little_left("", question) or checks.one_formula(question):
            raise _Refused("little_left")
        found = []
        if number % 2 == 0:
            found = [fact for fact in checks.facts(question) if not checks.little_left(fact, question)]
        quoted = self.rng.choice(found) if found else ""
        asked = "name" if quoted else "choose"

        def read(reply: Reply) -> Parsed:
            fact, name = Parsed(quoted) if quoted else tagged(reply, "fact"), tagged(reply, "name")
            unfit = fact.unusable or name.unusable or checks.unfit_proposal(Proposal(fact.text, name.text), question)
            unfit = unfit or ("repeats" if self.copies(name.text, asked) else "")
            return Parsed(f"{fact.text}\n{name.text}", unfit)

        text = await self.text(
            "assistant",
            prompts.prompt(asked, self.shots, question=question, fact=quoted),
            f"choose.{number}",
            read,
        )
        fact, _, name = text.rpartition("\n")
        return Proposal(fact, name)

    async def solve_here(self, note: str) -> None:
        """Add a right solution as a turn of this chat, which proves that the chat contains all facts."""
        prompt = assistant_prompt(self.done.messages, note)
        solution = await self.solve(prompt, "with")
        if not solution:
            raise _Refused("not_enough" if self.plan.withholds else "opening_unsolved")
        self.say("assistant", solution)

    async def react(self, most: int) -> None:
        """Add up to `most` reactions to the last message, each with a reply; a reaction that fails is left out."""
        wanted = self.rng.randint(1, most)
        # A user who has just solved the problem does not doubt the result.
        acts = [act for act in self.plan.reactions if act != "doubt" or self.plan.goal not in ("check", "slip")]
        for act in acts[: wanted + 1]:
            start, answer = len(self.done.messages), self.answer
            last = checks.values(self.done.messages[-1]["content"])
            where, words = f"{act}.{start}", {"answer": answer} if act in ("doubt", "proof") else {}

            def particular(text: str, last: set[float] = last) -> str:
                return "" if checks.values(text) & last else "nothing_particular"

            # A doubt of a right line has the wording of a doubt of a wrong line: only the mathematics differs.
            slip = self.slip(self.done.messages[-1]["content"]) if act == "doubt" else None
            try:
                if slip is not None:
                    await self.user("spot", self.shows(slip.instead), where, line=slip.line, value=slip.instead)
                else:
                    await self.user(act, particular, where, **words)
                await self.assistant(act, self.stays if act == "doubt" else _anything, where, **words)
                self.done.doubts += [False] * (act == "doubt")
                wanted -= 1
            except _Refused:
                del self.done.messages[start:]
            if not wanted:
                return

    async def review(self) -> None:
        if not self.settings.judged_at_least:
            return
        withheld = self.done.withheld.name if self.done.withheld else ""
        prompt = prompts.review_prompt(self.plan, withheld, self.done.messages)
        answer = await self.ask("judge", prompt, "review", read_judge, _AGAIN)
        if answer.parsed is None or answer.parsed.verdict is None:
            raise _Refused(answer.missing)
        self.done.verdict, self.done.judged = answer.parsed.verdict, answer.parsed.text
        if self.done.verdict < self.settings.judged_at_least:
            raise _Refused("judge_refused")

    # --- Checks of the turns.

    def asks_for(self, proposal: Proposal, text: str) -> str:
        if not asks(text) or text.count("?") > 1:
            return "no_question"
        if len(text.split()) > 40:
            return "too_long"
        if checks.values(text) & proposal.values:
            return "leak"
        return "" if checks.names_it(text, proposal, self.done.messages[0]["content"]) else "asks_other"

    def tells(self, proposal: Proposal, text: str) -> str:
        stated, known = checks.values(text), checks.values(self.plan.question)
        if not proposal.values <= stated:
            return "not_told"
        return "invents_number" if stated - known - {1.0, 2.0} else ""

    def shows(self, value: str) -> Check:
        wanted = checks.values(value)
        return lambda text: "" if wanted <= checks.values(text) else "not_told"

    def goes_on(self, seen: str, text: str) -> str:
        return _anything(text) or self.shows(seen)(text)

    def hides_result(self, text: str) -> str:
        if boxed(text):
            return "boxes_early"
        wanted = set(checks.digits(self.answer))
        known = checks.values("\n".join([self.plan.question, *self.said("user")]))
        return "tells_result" if wanted - known and wanted <= checks.values(text) else ""

    def boxes_result(self, text: str) -> str:
        return "closes_asking" if closes_asking(text) else "" if self.right(text) else "wrong"

    def stays(self, text: str) -> str:
        if boxed(text) and not self.right(text):
            return "wrong"
        return "" if set(checks.digits(self.answer)) <= checks.values(text) else "leaves_result"


_ASSUMED = re.compile(r"<assumed>(.*?)(?:</assumed>|$)", re.IGNORECASE | re.DOTALL)
_NOTE = re.compile(
    r"\b(?:private |my |the |this )note\b|\bfor you alone\b|\bthe person\b"
    r"|\b(?:my|the) (?:last|previous|earlier) (?:try|attempt|reply|version)\b",
    re.IGNORECASE,
)


def _anything(text: str) -> str:
    return "boxes_again" if boxed(text) else "closes_asking" if closes_asking(text) else ""


def _checked(read: Callable[[Reply], Parsed], check: Check) -> Callable[[Reply], Parsed]:
    def reading(reply: Reply) -> Parsed:
        parsed = read(reply)
        return parsed if parsed.unusable else Parsed(parsed.text, check(parsed.text))

    return reading


def _assumes(guess: str) -> bool:
    """Return True if a guess states an assumption."""
    found = _ASSUMED.search(guess)
    return found is not None and not re.fullmatch(
        r"\W*(?:(?:nothing|none|no assumptions?|n/a)\b.*)?", found[1].strip(), re.IGNORECASE
    )


def _mostly_alike(guesses: Sequence[str], tries: int) -> bool:
    """Return True if more than half of the attempts end with the same result."""
    results = [box[1] for box in map(boxed, guesses) if box]
    return any(2 * sum(same_answer(one, other) for other in results) > tries > 1 for one in results)


def _steps(solution: str, most: int = 4) -> list[str]:
    """Split a solution into parts that each compute something; the last ends with the result."""
    lines = [line for line in solution.split("\n") if line.strip()]
    ends = [place for place, line in enumerate(lines) if any(checks.equations(line))]
    ends = [*ends[: most - 1], len(lines) - 1] if len(ends) >= most else [*ends[:-1], len(lines) - 1]
    return ["\n".join(lines[start + 1 : end + 1]) for start, end in itertools.pairwise([-1, *ends])]
