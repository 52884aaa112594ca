"""Conversations about problems: the policy's own verified solution, the turns of a simulated user, and checked replies.

A problem is used if the policy solves it. Then the simulated user reacts: several turns are sampled, rules drop those that
no user would write, and a score takes the one that belongs most to this conversation. The policy replies; a reply is kept
if the result stays and no equation is false. Without a usable turn or reply the conversation ends after the solution, so
every verified solution gives a conversation.

Some problems give a second conversation, whose first message lacks a fact. The fact is proved to be needed: without it
the policy does not find the result, and with it the policy does.

All conversations of a part of the build take each step together, so models get large batches. Equal replies give equal conversations.
"""

from __future__ import annotations

import random
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from nextturn.data_builders.asked_for import names_fact
from nextturn.data_builders.dialogue import checks
from nextturn.data_builders.dialogue.prompts import Prompt, assistant_prompt, copies_example, role_prompt
from nextturn.data_builders.dialogue.replies import Parsed, read_assistant, same_words, tagged
from nextturn.data_builders.sections import ROLES, Dialogue
from nextturn.data_builders.tasks import Conversation, Task
from nextturn.probe.data.messages import Message, assistant, user
from nextturn.probe.engines.ask import COUNTS, Answer, Ask, ChatModel, EngineModel, Reply, ask
from nextturn.probe.engines.base import ScoreRequest, item_seed
from nextturn.probe.judges.rules import RulesJudge
from nextturn.probe.judges.verdicts import GENUINE, Case
from nextturn.probe.questions.simulation import Fact, PromptRow, Simulator, UserRequest, UserTurn, Wish
from nextturn.probe.text.equality import same_answer
from nextturn.probe.text.grading import asks, boxed, closes_asking, says

Row = dict[str, Any]
_AGAIN = 3  # attempts for a usable reply, each with another seed
_PROPOSALS = 3  # facts that are tried for a problem, until one is needed
_LONGEST_TURN = 60  # words of a user turn


@dataclass
class Draft:
    """A conversation in progress.

    Attributes:
        fact: What the first message lacks.
        reveal_at: Index of the message that reveals it.
        measured: {"solved", "without", "with"}: [right, attempts] of the problem alone, of the first message without the
            withheld fact, and of the conversation.
        doubts: One False for each doubt of the user: the results of the assistant are verified.
        unusable: {role, where, reason, text} of each reply that could not be used.
        calls: {"assistant.calls", "assistant.input", "assistant.output", ...}: replies and their tokens, by role.
        reason: Why the conversation cannot be used, or "".
        ended: Why there are no further reactions: "user", "turn" or "reply"; "" while there are.
        events: "search.OUTCOME" of the search for a fact to withhold, "reveal.simulator" or "reveal.rules" by who wrote the
            message that reveals it, and "turn.REASON" for each user turn that could not be used.
    """

    id: str
    task: Task
    messages: list[Message] = field(default_factory=list)
    fact: Fact = Fact()
    reveal_at: int = 0
    measured: dict[str, list[int]] = field(default_factory=dict)
    doubts: list[bool] = field(default_factory=list)
    unusable: list[Row] = field(default_factory=list)
    calls: Counter[str] = field(default_factory=Counter)
    reason: str = ""
    ended: str = ""
    events: list[str] = field(default_factory=list)

    def conversation(self) -> Conversation:
        """Return the record for the quality filter and the training views."""
        dialogue = {
            "measured": self.measured,
            "ended": self.ended,
            "slips": " ".join(f"{reply['role']}.{reply['reason']}" for reply in self.unusable),
            "events": " ".join(self.events),
            "calls": {f"{role}.{count}": self.calls[f"{role}.{count}"] for role in ROLES for count in COUNTS},
        }
        if self.fact.short:
            dialogue |= {"withheld": self.fact.name, "fact": self.fact.short}
        return Conversation(
            self.id, "underspecified" if self.fact.short else "complete", tuple(self.messages), self.task.source, self.task.answer,
            self.reveal_at, self.task, self.fact if self.reveal_at else Fact(), tuple(self.doubts), reason=self.reason,
            row={"dialogue": dialogue}, unusable=self.unusable,
        )  # fmt: skip

    def right(self, text: str) -> bool:
        """Return True if the text boxes the right result."""
        box = boxed(text)
        return box is not None and same_answer(box[1], self.task.answer)

    def usable(self, turns: Sequence[UserTurn], check: Check) -> list[UserTurn]:
        """Return the turns that can be used, and note the reasons of the others."""
        reasons = [turn.failure or ("ended" if turn.ended else check(self, turn.text)) for turn in turns]
        self.events += ["turn." + "_".join(reason.split()) for reason in reasons if reason]
        return [turn for turn, reason in zip(turns, reasons, strict=True) if not reason]


Check = Callable[[Draft, str], str]
"""Return why a text cannot be used in a conversation, or ""."""
Wanted = tuple[Draft, Prompt, Callable[[Reply], Parsed]]
"""A reply that is wanted for a conversation: the chat, and how a reply to it is read."""


class ConversationMaker:
    """Makes the conversations about a part of the problems.

    Args:
        policy: The model that will be trained.
        simulator: Writes the user turns.
    """

    def __init__(self, settings: Dialogue, policy: ChatModel, simulator: Simulator, seed: int) -> None:
        self.settings = settings
        self.policy = policy
        self.simulator = simulator
        self.seed = seed

    def conversations(self, tasks: Sequence[Task]) -> list[list[Conversation]]:
        """Return the conversations about each problem, also those that cannot be used, with their reason.

        Raises:
            EngineError: A model cannot be asked at all.
        """
        whole = [Draft(f"{task.id}-whole", task, [user(task.question)]) for task in tasks]
        self.add_solutions(whole, "solved")
        solved = [draft for draft in whole if not draft.reason]
        lacking = [
            Draft(f"{draft.task.id}-withheld", draft.task, measured=dict(draft.measured))
            for draft in solved
            if self.rng("withheld", draft).random() < self.settings.withheld
        ]
        self.withhold(lacking)
        asked = [draft for draft in lacking if draft.fact.short]
        self.add_question_and_reveal(asked)
        self.add_solutions([draft for draft in asked if not draft.reason], "with")
        for exchange in range(self.settings.reactions):
            self.add_reactions([draft for draft in (*solved, *asked) if not (draft.reason or draft.ended)], exchange)
        firsts = {draft.task.id: draft for draft in solved}
        for draft in lacking:
            first = firsts[draft.task.id]
            if not draft.fact.short:  # the search belongs to the first conversation then, with what it cost
                first.calls.update(draft.calls)
            outcome = "needed" if draft.fact.short else "not_needed" if "without" in draft.measured else "no_cut"
            first.events.append(f"search.{outcome}")
        # A problem without a fact that can be withheld is no failure.
        second = {draft.task.id: draft for draft in asked}
        return [
            [draft.conversation() for draft in (first, second.get(first.task.id)) if draft is not None]
            for first in whole
        ]

    # --- Asking the policy.

    def rng(self, purpose: str, draft: Draft) -> random.Random:
        return random.Random(f"{purpose}:{self.seed}:{draft.id}")

    def ask(self, wanted: Sequence[Wanted], where: str, tries: int = _AGAIN) -> list[Answer[Parsed]]:
        """Ask the policy for replies; seeds follow from the draft, `where`, and how often the draft comes."""
        times, asks = Counter[str](), []
        for draft, messages, read in wanted:
            asks.append(Ask(messages, read, partial(item_seed, self.seed, draft.id, where, times[draft.id])))
            times[draft.id] += 1
        answers = ask(self.policy, asks, tries)
        for (draft, *_), answer in zip(wanted, answers, strict=True):
            draft.calls.update(answer.calls)
            draft.unusable += [
                {"role": "assistant", "where": where, "reason": reply.unusable, "text": reply.text}
                for reply in answer.unusable
            ]
        return answers

    def add_solutions(self, drafts: Sequence[Draft], where: str) -> None:
        """Add the policy's right solution to each chat, or set the reason why there is none."""
        wanted = [_wanted(draft, "solve", unfit_solution) for draft in drafts]
        answers = self.ask(wanted, where, self.settings.tries)
        for draft, answer in zip(drafts, answers, strict=True):
            draft.measured[where] = [int(answer.parsed is not None), len(answer.unusable) + (answer.parsed is not None)]
            if answer.parsed is not None:
                draft.messages.append(assistant(answer.parsed.text))
            elif len(answer.unusable) < self.settings.tries:  # the model could not be asked
                draft.reason = f"assistant_{answer.missing}"
            else:
                draft.reason = "unsolved" if where == "solved" else "not_enough"

    # --- A missing fact: proposed, proved to be needed, asked for, revealed.

    def withhold(self, drafts: Sequence[Draft]) -> None:
        """Set the fact and the first message of each draft with a fact that is needed."""
        proposals = {draft.id: self.proposals(draft) for draft in drafts}
        for number in range(_PROPOSALS):
            tried = [draft for draft in drafts if not draft.fact.short and len(proposals[draft.id]) > number]
            cut = self.cut_out([(draft, proposals[draft.id][number]) for draft in tried], number)
            found = [(draft, fact) for draft, fact in zip(tried, cut, strict=True) if fact.question]
            # A model that solves a problem in one of k attempts fails 4k times in a row with probability exp(-4) by chance.
            attempts = [pair for pair in found for _ in range(self.settings.tries * pair[0].measured["solved"][1])]
            wanted = [
                (draft, assistant_prompt([user(fact.question)], "guess"), read_assistant) for draft, fact in attempts
            ]
            answers = self.ask(wanted, f"without.{number}")
            guesses = defaultdict[str, list[str]](list)
            for (draft, _), answer in zip(attempts, answers, strict=True):
                guesses[draft.id].append(answer.parsed.text if answer.parsed else "")
            for draft, fact in found:
                texts = guesses[draft.id]
                # Guesses that agree without an assumption show that the rest is a complete problem with another result.
                sure = [text for text in texts if text and not _assumes(text)]
                right = sum(draft.right(text) for text in texts)
                draft.measured["without"] = [right, len(texts)]
                if all(texts) and not right and not _mostly_alike(sure, len(texts)):
                    draft.fact, draft.messages = fact, [user(fact.question)]

    def proposals(self, draft: Draft) -> list[Fact]:
        """Return what may be withheld: facts that rules cut out, then numbers of the problem with the words after them, which
        have no name yet and are revealed by their sentence."""
        question, rng = draft.task.question, self.rng("proposals", draft)
        found = rng.sample(draft.task.gaps, len(draft.task.gaps))
        if not (checks.little_left("", question) or checks.one_formula(question)):
            numbers = [text for text in checks.facts(question) if not checks.little_left(text, question)]
            for text in rng.sample(numbers, len(numbers)):
                found.append(Fact(short=text, value=text, reveal=checks.sentence_with(text, question)))
        return found[:_PROPOSALS]

    def cut_out(self, proposed: Sequence[tuple[Draft, Fact]], number: int) -> list[Fact]:
        """Return the proposed facts with the question without them; "" if it was not found.

        The policy names a number, and writes its sentence without it.
        """
        shots, facts = self.settings.few_shot, [fact for _, fact in proposed]
        names, rests = dict[int, Wanted](), dict[int, Wanted]()
        for index, (draft, fact) in enumerate(proposed):
            if not fact.question:
                chat = role_prompt("name", shots, question=draft.task.question, fact=fact.short)
                names[index] = (draft, chat, partial(_read_name, draft, fact, shots))
        named = zip(names, self.ask([*names.values()], f"name.{number}"), strict=True)
        for index, name in ((index, answer.parsed.text) for index, answer in named if answer.parsed):
            draft, fact = proposed[index][0], replace(facts[index], thing=name)
            chat = role_prompt("leave_out", shots, sentence=fact.reveal, fact=fact.short, name=name)
            facts[index], rests[index] = fact, (draft, chat, partial(_read_rest, draft, fact))
        left = zip(rests, self.ask([*rests.values()], f"leave_out.{number}"), strict=True)
        for index, text in ((index, answer.parsed.text) for index, answer in left if answer.parsed):
            question = proposed[index][0].task.question.replace(facts[index].reveal, text)
            facts[index] = replace(facts[index], question=question)
        return facts

    def add_question_and_reveal(self, drafts: Sequence[Draft]) -> None:
        """Add the policy's question for the missing fact, and the user's reply that states it."""
        answers = self.ask([_wanted(draft, "ask", asks_for, name=draft.fact.name) for draft in drafts], "ask")
        for draft, answer in zip(drafts, answers, strict=True):
            if answer.parsed is None:
                draft.reason = "ask_unusable"
            else:
                draft.messages.append(assistant(answer.parsed.text))
        asked = [draft for draft in drafts if not draft.reason]
        turns = self.user_turns(asked, "reveal")
        for draft, candidates in zip(asked, turns, strict=True):
            usable = draft.usable(candidates, tells)
            draft.messages.append(user(usable[0].text if usable else draft.fact.reveal))
            draft.events.append("reveal.simulator" if usable else "reveal.rules")
            draft.reveal_at = len(draft.messages) - 1

    # --- Reactions to an answer.

    def user_turns(self, drafts: Sequence[Draft], where: str) -> list[list[UserTurn]]:
        """Return `candidates` turns of the simulated user for each conversation."""
        count = self.settings.candidates
        requests = [
            UserRequest(self.row(draft), tuple(draft.messages), item_seed(self.seed, draft.id, where, number))
            for draft in drafts
            for number in range(count)
        ]
        turns = self.simulator.turns(requests)
        for draft in drafts:
            draft.calls["simulator.calls"] += count
        return [turns[start : start + count] for start in range(0, len(turns), count)]

    def row(self, draft: Draft) -> PromptRow:
        """Return what the user of a conversation knows and wants. One user in four doubts."""
        wish: Wish = "doubt" if self.rng("wish", draft).random() < 0.25 else "result"
        hidden = (draft.fact.value,) if draft.fact.short and not draft.reveal_at else ()
        return PromptRow(draft.id, draft.task.question, draft.task.answer, hidden=hidden, fact=draft.fact, wish=wish)

    def add_reactions(self, drafts: Sequence[Draft], exchange: int) -> None:
        """Add the user's reaction and the policy's reply to each conversation, or end it."""
        candidates = self.user_turns(drafts, f"react.{exchange}")
        chosen = self.choose(drafts, candidates)
        open_ = []
        for draft, turn in zip(drafts, chosen, strict=True):
            if turn is None or turn.ended:
                draft.ended = "turn" if turn is None else "user"
            else:
                draft.messages.append(user(turn.text))
                open_.append(draft)
        wanted = [
            _wanted(draft, "doubt" if doubts(draft) else "reply", unfit_reply, answer=draft.task.answer)
            for draft in open_
        ]
        answers = self.ask(wanted, f"reply.{exchange}", self.settings.tries)
        for draft, answer in zip(open_, answers, strict=True):
            if answer.parsed is None:
                draft.messages.pop()
                draft.ended = "reply"
            else:
                draft.doubts += [False] * doubts(draft)
                draft.messages.append(assistant(answer.parsed.text))

    def choose(self, drafts: Sequence[Draft], candidates: Sequence[Sequence[UserTurn]]) -> list[UserTurn | None]:
        """Return the best turn for each conversation: genuine by the offline judge, and closest to this conversation.

        Closeness is (log p(turn | chat) - log p(turn | another chat)) per token under the policy. It is the one sign of
        sense that needs no other model; without log-probabilities the first genuine turn is taken. The conversation ends
        if most turns end it.
        """
        judge = RulesJudge()

        def check(draft: Draft, text: str) -> str:
            label = judge.verdict(Case(tuple(draft.messages), text)).label
            return unfit_turn(draft, text) or ("" if label == GENUINE else str(label))

        fit = [
            draft.usable([turn for turn in turns if not turn.ended], check)
            for draft, turns in zip(drafts, candidates, strict=True)
        ]
        scores = self.closeness(drafts, fit)
        chosen: list[UserTurn | None] = []
        for turns, usable, score in zip(candidates, fit, scores, strict=True):
            if 2 * sum(turn.ended for turn in turns) > sum(not turn.failure for turn in turns):
                chosen.append(UserTurn(ended=True))
            else:
                chosen.append(max(zip(score, usable, strict=True), key=lambda pair: pair[0])[1] if usable else None)
        return chosen

    def closeness(self, drafts: Sequence[Draft], fit: Sequence[Sequence[UserTurn]]) -> list[list[float]]:
        """Return the score of each candidate; zeros where there is nothing to choose or the policy gives no scores."""
        scores = [[0.0] * len(turns) for turns in fit]
        if not isinstance(self.policy, EngineModel):
            return scores
        chat = self.policy.chat
        prefixes = [chat.user_prefix_ids(draft.messages) for draft in drafts]
        requests, signs = [], []
        for index, turns in enumerate(fit):
            for place, turn in enumerate(turns if len(turns) > 1 else ()):
                target = chat.text_ids(turn.text)
                for prefix, sign in ((prefixes[index], 1), (prefixes[index - 1], -1)):
                    requests.append(ScoreRequest(prefix, target))
                    signs.append((index, place, sign / len(target)))
        for number, log_p in self.policy.engine.score(requests):
            index, place, weight = signs[number]
            scores[index][place] += weight * log_p
        return scores


# --- Checks of the turns.


def unfit_solution(draft: Draft, text: str) -> str:
    if not draft.right(text):
        return "wrong" if boxed(text) else "no_box"
    return _unfit_mathematics(text)


def unfit_turn(draft: Draft, text: str) -> str:
    """Return why a user turn cannot be used, or ""."""
    said = "\n".join(message["content"] for message in draft.messages)
    if len(text.split()) > _LONGEST_TURN:
        return "too_long"
    if any(same_words(text, message["content"]) for message in draft.messages):
        return "repeats"
    # A user model brings people and things of its training data.
    names = set(re.findall(r"(?<![.?!:\"] )(?<!^)\b[A-Z][a-z]{2,}", text)) - set(re.findall(r"\w+", said))
    return "other_names" if names else ""


def unfit_reply(draft: Draft, text: str) -> str:
    """Return why a reply to a reaction cannot be used, or ""."""
    if _NOTE.search(text):
        return "names_note"
    if any(same_words(text, message["content"]) for message in draft.messages):
        return "repeats"
    if boxed(text) and not draft.right(text):
        return "wrong"
    if doubts(draft) and not says(text, draft.task.answer):
        return "leaves_result"
    last = draft.messages[-1]["content"]
    # Nobody has checked what the user claims.
    if _AGREES.match(text) and (doubts(draft) or re.search(r"[\d$\\]", last)):
        return "agrees"
    said = "\n".join(message["content"] for message in draft.messages)
    computed = checks.values(" ".join(_RESULT.findall(text)))
    if checks.values(text) - checks.values(said) - computed - {0.0, 1.0, 2.0}:
        return "invents_number"
    return _unfit_mathematics(text)


def _unfit_mathematics(text: str) -> str:
    return "closes_asking" if closes_asking(text) else "false_equation" if checks.has_false_equation(text) else ""


def doubts(draft: Draft) -> bool:
    """Return True if the user's last message doubts the result."""
    return _DOUBT.search(draft.messages[-1]["content"]) is not None


def asks_for(draft: Draft, text: str) -> str:
    """Return why a reply is no question for the missing fact, or ""."""
    if not asks(text) or text.count("?") > 1:
        return "no_question"
    if len(text.split()) > 40:
        return "too_long"
    if checks.values(text) & checks.fact_values(draft.fact.short):
        return "leak"
    return "" if names_fact(text, draft.fact.name, draft.fact.question) else "asks_other"


def tells(draft: Draft, text: str) -> str:
    """Return why a user message does not state the missing fact and nothing else, or ""."""
    wanted = checks.values(draft.fact.value)
    if not wanted or not wanted <= checks.values(text) or len(text.split()) > _LONGEST_TURN:
        return "not_told"
    return "invents_number" if checks.values(text) - checks.values(draft.task.question) - {1.0, 2.0} else ""


_DOUBT = re.compile(
    r"\b(?:wrong|not right|mistake|doubt|can(?:'t|not) be|are you sure|should(?:n't)? (?:it )?be|is(?:n't| it not) it"
    r"|i (?:got|get|think it'?s|have|had)|but (?:the|my|it|i)|instead of)\b",
    re.IGNORECASE,
)
_AGREES = re.compile(
    r"\W*(?:yes|correct|right|exactly|indeed|of course|sorry|(?:i )?apologi[sz]e|i (?:was|am) (?:wrong|sorry)"
    r"|you(?:'re| are) (?:\w+ )?(?:right|correct))\b",
    re.IGNORECASE,
)
_RESULT = re.compile(r"[=≈]\s*(?:\\boxed\{)?(-?\$?[\d.,]+)")  # no equation of a reply is false
_ASSUMED = re.compile(r"<assumed>(.*?)(?:</assumed>|$)", re.IGNORECASE | re.DOTALL)
_NOTE = re.compile(r"\b(?:private |my |the |this )note\b|\bfor you alone\b|\bthe person\b", re.IGNORECASE)


def _wanted(draft: Draft, note: str, check: Check, **words: str) -> Wanted:
    """Return what is asked for the assistant's next turn. `words` fill the note."""

    def read(reply: Reply) -> Parsed:
        parsed = read_assistant(reply)
        return parsed if parsed.unusable else Parsed(parsed.text, check(draft, parsed.text))

    return draft, assistant_prompt(draft.messages, note, **words), read


def _read_name(draft: Draft, fact: Fact, shots: int, reply: Reply) -> Parsed:
    parsed, question = tagged(reply, "name"), draft.task.question
    unfit = parsed.unusable or checks.unfit_fact(replace(fact, thing=parsed.text), question)
    return Parsed(parsed.text, unfit or copies_example("name", shots, parsed.text, question))


def _read_rest(draft: Draft, fact: Fact, reply: Reply) -> Parsed:
    parsed, question = tagged(reply, "text"), draft.task.question
    rest = question.replace(fact.reveal, parsed.text)
    return Parsed(parsed.text, parsed.unusable or checks.unfit_rest(rest, fact, question))


def _assumes(guess: str) -> bool:
    """Return True if a guess states an assumption."""
    stated = _ASSUMED.search(guess)
    return stated is not None and not re.fullmatch(
        r"\W*(?:(?:nothing|none|no assumptions?|n/a)\b.*)?", stated[1].strip(), re.IGNORECASE
    )


def _mostly_alike(guesses: Sequence[str], tries: int) -> bool:
    """Return True if more than half of the attempts end with the same result."""
    results = [box[1] for box in map(boxed, guesses) if box]
    return any(2 * sum(same_answer(first, second) for second in results) > tries > 1 for first in results)
