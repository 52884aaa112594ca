"""Conversations about problems: what is asked of the policy, what a turn must hold, and what becomes of a turn that cannot be used."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nextturn.data_builders.build import claimed, write_part
from nextturn.data_builders.dialogue import checks, prompts
from nextturn.data_builders.dialogue.conversation import (
    ConversationMaker,
    Draft,
    asks_for,
    tells,
    unfit_reply,
    unfit_turn,
)
from nextturn.data_builders.dialogue.replies import Parsed, read_assistant, read_message, tagged
from nextturn.data_builders.preferences import draft_pairs, write_pairs
from nextturn.data_builders.quality import Quality, QualityFilter
from nextturn.data_builders.rows import rl_columns, rl_rows, sft_row
from nextturn.data_builders.sections import DataRecipe, Dialogue, Output, Preferences, Source, shaping
from nextturn.data_builders.simulators import CheckedSimulator
from nextturn.data_builders.tasks import Conversation, Task
from nextturn.probe.command.errors import SettingsChanged
from nextturn.probe.command.sections import RoleSection, ServerSection, VllmSection
from nextturn.probe.data.messages import assistant, user
from nextturn.probe.engines.ask import Ask, ChatModel, EngineModel, Reply, ask
from nextturn.probe.questions.simulation import Fact, UserRequest, UserTurn

QUESTION = "Ann has 12 marbles in each of her 5 red bags and loses 7 of them on the way home. How many are left?"
SOLUTION = "Five bags hold 12 * 5 = 60 marbles.\nAfter the loss 60 - 7 = 53 stay.\nSo \\boxed{53}."
TASK = Task("t", QUESTION, "53", "own", ())
GAP = Fact(
    QUESTION.replace("12 ", ""), "how many marbles are in each bag", "How many marbles are in each bag?",
    "Each bag holds 12 marbles.", "12 marbles", "12", thing="number of marbles in each bag",
)  # fmt: skip
WHY, REASON = "why do you subtract the 7 at the end?", "Because the lost marbles are no longer in a bag."
DOUBT, KEPT = "hm, are you sure about 53? i get 55", "It stays 53: put the 7 back, and all five bags hold 60."
ROLE = RoleSection(server=ServerSection(urls=("http://localhost:1/v1",), model="m"))
NAMES = {
    "12 marbles": "how many marbles are in each bag", "5 red bags": "how many bags she has", "7": "how many she loses",
}  # fmt: skip
KINDS = {
    "Which quantity": "name", "forgets to tell": "leave_out", "One thing is missing": "ask", "was checked": "doubt",
    "If something seems": "guess", "Answer this last": "reply", "Put the final": "solve",
}  # fmt: skip


def named(text: str, seed: int) -> str:
    """Return what a good policy writes for a prompt, after its kind."""
    if match := re.search(r'Which quantity does "(.*?)"', text):
        return f"<name>{NAMES[match[1]]}</name>"
    sentence, fact = re.search(r"<text>(Ann.*?)</text>", text), re.search(r'not to tell: .*? \("(.*?)"\)', text)
    if sentence and fact:
        return f"<text>{sentence[1].replace(fact[1], re.sub(r'[0-9]+ ?', '', fact[1]))}</text>"
    return f"Say it is {seed % 997}, so \\boxed{{{1000 + seed % 997}}}."


SAYS: dict[str, Any] = {
    "name": named, "leave_out": named, "guess": named, "solve": SOLUTION, "reply": REASON, "doubt": KEPT,
    "ask": lambda text, seed: f"Can you tell me {text.split('solved without: ')[1].split('. Reply')[0]}?",
}  # fmt: skip


class Policy:
    """A policy whose replies come from a function of the prompt and the seed, by the prompt's kind."""

    def __init__(self, **says: Any) -> None:
        self.role, self.temperature = "assistant", 0.8
        self.says = {**SAYS, **says}
        self.kinds: list[str] = []
        self.sampled: list[tuple[int, float]] = []

    def replies(self, chats: Sequence[Any], ends: float | None = None) -> Iterator[tuple[int, Reply]]:
        for index, (messages, seed, temperature) in enumerate(chats):
            yield index, self.reply(messages[-1]["content"], seed, temperature)

    def reply(self, text: str, seed: int, temperature: float) -> Reply:
        kind = next((kind for words, kind in KINDS.items() if words in text), "other")
        self.kinds.append(kind)
        self.sampled.append((seed, temperature))
        said = self.says[kind]
        said = said(text, seed) if callable(said) else said
        return said if isinstance(said, Reply) else Reply(said, 10, 5)


class User:
    """A simulated user: reveals what `reveals` says in its first reply if something is hidden, else takes its turns from `says`."""

    def __init__(self, *says: str, reveals: str = "sorry, 12 marbles in each") -> None:
        self.says, self.reveals = says, reveals
        self.asked: list[UserRequest] = []

    def turns(self, requests: Sequence[UserRequest]) -> list[UserTurn]:
        return [self.turn(request) for request in requests]

    def turn(self, request: UserRequest) -> UserTurn:
        assert request.messages and request.messages[-1]["role"] == "assistant", "the user reacts to a reply"
        self.asked.append(request)
        if request.row.hidden and len(request.messages) == 2:
            return UserTurn(self.reveals)
        said = sum(message["content"] in self.says for message in request.messages)
        return UserTurn(self.says[said]) if said < len(self.says) else UserTurn(ended=True)


def made(
    policy: ChatModel, simulator: Any, task: Task = TASK, *others: Task, **settings: Any
) -> list[list[Conversation]]:
    dialogue = Dialogue(**{"policy": ROLE, "tries": 2, "withheld": 0.0, "candidates": 2, **settings})
    checked = CheckedSimulator(simulator, 1)
    return ConversationMaker(dialogue, policy, checked, seed=1).conversations([task, *others])


def texts(conversation: Conversation) -> list[str]:
    return [message["content"] for message in conversation.messages]


def events(conversation: Conversation) -> list[str]:
    return conversation.row["dialogue"]["events"].split()


# --- One problem.


def test_a_solution_a_reaction_and_a_doubt_make_a_conversation_until_the_user_ends_it() -> None:
    ((done,),) = made(Policy(), User(WHY, DOUBT), reactions=3)
    assert texts(done) == [QUESTION, SOLUTION, WHY, REASON, DOUBT, KEPT]
    assert (done.kind, done.reason, done.doubts) == ("complete", "", (False,))
    about = done.row["dialogue"]
    assert (about["ended"], about["measured"]) == ("user", {"solved": [1, 1]})
    assert (about["calls"]["assistant.calls"], about["calls"]["simulator.calls"]) == (3, 6)
    assert QualityFilter(Quality(), 10).reason(done) is None
    ((short,),) = made(Policy(), User(WHY, DOUBT), reactions=1)
    assert texts(short) == texts(done)[:4] and short.row["dialogue"]["ended"] == ""


@pytest.mark.parametrize(
    ("solve", "reason", "measured"),
    [
        ("It is \\boxed{54}.", "unsolved", [0, 2]),
        (lambda text, seed: Reply("", failure="server_error"), "assistant_server_error", [0, 0]),
        (Reply("So first", cut=True), "unsolved", [0, 2]),
    ],
)
def test_an_unsolved_problem_is_rejected_with_its_reason(solve: Any, reason: str, measured: list[int]) -> None:
    ((done,),) = made(Policy(solve=solve), User(WHY))
    assert (done.reason, done.row["dialogue"]["measured"], texts(done)) == (reason, {"solved": measured}, [QUESTION])
    assert len(done.unusable or ()) == measured[1]


@pytest.mark.parametrize(
    ("says", "turn", "ended"),
    [
        ({}, "thanks a lot", "turn"),
        ({}, "Assistant: sure, 53 it is.", "turn"),
        ({"reply": "So it is \\boxed{54} after all."}, WHY, "reply"),
        ({"doubt": "You are right, it is 55."}, DOUBT, "reply"),
    ],
)
def test_without_a_usable_turn_or_reply_the_solution_ends_it(says: dict[str, Any], turn: str, ended: str) -> None:
    ((done,),) = made(Policy(**says), User(turn))
    assert texts(done) == [QUESTION, SOLUTION] and done.reason == "" and done.row["dialogue"]["ended"] == ended
    assert ("assistant.wrong" in done.row["dialogue"]["slips"]) == ("reply" in says)


def test_a_turn_that_failed_is_none_and_most_turns_decide_the_end() -> None:
    turns = iter([UserTurn(failure="simulator_timeout"), UserTurn(WHY), UserTurn(ended=True), UserTurn(ended=True)])
    sampled = SimpleNamespace(turns=lambda requests: [next(turns) for _ in requests])
    ((done,),) = made(Policy(), sampled)
    assert texts(done)[2:] == [WHY, REASON] and done.row["dialogue"]["ended"] == "user"


class Scoring(EngineModel):
    """A policy in this process, for which a turn is likely where the chat has its last word."""

    def __init__(self) -> None:
        self.role, self.temperature = "assistant", 0.8
        self.chat: Any = SimpleNamespace(user_prefix_ids=lambda messages: messages[0]["content"], text_ids=str.split)
        self.engine: Any = SimpleNamespace(score=self.scores)

    replies = Policy().replies

    def scores(self, requests: Sequence[Any]) -> Iterator[tuple[int, float]]:
        for index, request in enumerate(requests):
            yield index, 0.0 if request.target_ids[-1].strip("?") in request.prefix_ids else -50.0


def test_the_turn_that_is_closest_to_its_own_conversation_is_taken() -> None:
    turns = ["why do you subtract the pens?", "why do you subtract the marbles?"]

    def sampled(requests: Sequence[UserRequest]) -> list[UserTurn]:
        return [UserTurn(turns[number % 2]) for number in range(len(requests))]

    other = replace(TASK, id="u", question=QUESTION.replace("marbles", "pens"))
    (first,), (second,) = made(Scoring(), SimpleNamespace(turns=sampled), TASK, other, reactions=1)
    assert (texts(first)[2], texts(second)[2]) == (turns[1], turns[0])
    (alike,), _ = made(Policy(), SimpleNamespace(turns=sampled), TASK, other, reactions=1)
    assert texts(alike)[2] == turns[0], "without scores the first"


def test_equal_replies_give_equal_conversations_whatever_is_made_beside_them() -> None:
    tasks = [replace(TASK, id=f"t{number}", gaps=(GAP,) if number % 2 else ()) for number in range(6)]

    def run(*tasks: Task) -> list[list[Conversation]]:
        return made(Policy(), User(WHY), *tasks, withheld=0.5)

    whole = run(*tasks)
    assert whole == run(*tasks) == [run(task)[0] for task in tasks]
    assert {len(own) for own in whole} == {1, 2}


# --- A fact that is withheld.


@pytest.mark.parametrize("gaps", [(GAP,), ()])
def test_a_fact_is_proved_to_be_needed_asked_for_and_revealed(gaps: tuple[Fact, ...]) -> None:
    simulated = User(WHY, reveals="sorry, it's 12, and 5, and 7 lost")
    ((whole, lacking),) = made(Policy(), simulated, replace(TASK, gaps=gaps), withheld=1.0)
    opening, question, told, solution, why, _ = texts(lacking)
    gap = lacking.fact
    assert gap.short and lacking.reveal_at == 2 and (gap == GAP) == bool(gaps)
    assert opening == gap.question and gap.short not in opening and question == f"Can you tell me {gap.thing}?"
    assert (told, solution, why) == (simulated.reveals, SOLUTION, WHY)
    hidden = {len(request.messages): request.row.hidden for request in simulated.asked if request.row.fact.short}
    assert hidden == {length: (gap.value,) * (length == 2) for length in (2, 4, 6)}, "it is told once, in any words"
    assert lacking.row["dialogue"]["measured"] == {"solved": [1, 1], "without": [0, 2], "with": [1, 1]}
    assert (lacking.kind, whole.kind, lacking.row["dialogue"]["fact"]) == ("underspecified", "complete", gap.short)
    first, second = rl_rows(lacking)
    assert (first.hidden, first.problem, first.fact.reveal) == ((gap.value,), QUESTION, gap.reveal)
    assert (second.hidden, second.fact.clause) == ((), "")


@pytest.mark.parametrize("gaps", [(GAP,), ()])
def test_a_problem_with_and_without_its_fact_gives_a_pair_of_each_kind(gaps: tuple[Fact, ...], tmp_path: Path) -> None:
    ((whole, lacking),) = made(Policy(), User(WHY), replace(TASK, gaps=gaps), withheld=1.0)
    rows = [each for talk in (whole, lacking) for each in map(rl_columns, rl_rows(talk))]
    write_part(tmp_path, "00000", {"sft": [sft_row(whole), sft_row(lacking)], "rl": rows})
    assert write_pairs(Preferences(), tmp_path, tmp_path, 0) == {"answer": 1, "ask": 1}
    (answer, asked) = draft_pairs(tmp_path)
    assert (answer.chosen, asked.chosen) == (asked.other, answer.other) == (SOLUTION, texts(lacking)[1])


def test_who_took_two_attempts_is_asked_twice_as_often_without_the_fact() -> None:
    attempts = iter(["It is \\boxed{1}.", SOLUTION, SOLUTION])
    policy = Policy(solve=lambda text, seed: next(attempts))
    ((_, lacking),) = made(policy, User(), replace(TASK, gaps=(GAP,)), withheld=1.0)
    assert lacking.row["dialogue"]["measured"] == {"solved": [1, 2], "without": [0, 4], "with": [1, 1]}


@pytest.mark.parametrize("reveals", ["no idea", "12 or 99 of them", "Assistant: 12", ""])
def test_a_user_that_does_not_reveal_the_fact_says_the_sentence_of_the_gap(reveals: str) -> None:
    ((_, lacking),) = made(Policy(), User(reveals=reveals), replace(TASK, gaps=(GAP,)), withheld=1.0)
    assert texts(lacking)[2] == GAP.reveal and lacking.reason == ""
    assert "reveal.rules" in events(lacking) and sum(event.startswith("turn.") for event in events(lacking)) == 2


def test_what_became_of_the_users_turns_is_noted_with_its_reasons() -> None:
    task = replace(TASK, gaps=(GAP,))
    ((whole, lacking),) = made(Policy(), User(WHY, "thanks a lot"), task, withheld=1.0, reactions=2)
    assert events(whole) == ["turn.generic_filler"] * 2 + ["search.needed"]
    assert events(lacking) == ["reveal.simulator"] + ["turn.generic_filler"] * 2
    failed = SimpleNamespace(turns=lambda requests: [UserTurn(failure="no row in my table") for _ in requests])
    ((whole, lacking),) = made(Policy(), failed, task, withheld=1.0, reactions=1)
    failures = ["turn.no_row_in_my_table"] * 2
    assert events(whole) == [*failures, "search.needed"]
    assert events(lacking) == [*failures, "reveal.rules", *failures]


def test_a_search_for_a_fact_that_finds_none_counts_for_the_first_conversation() -> None:
    for says, outcome in (({"guess": SOLUTION}, "search.not_needed"), ({"name": "<name>it</name>"}, "search.no_cut")):
        policy = Policy(**says)
        ((whole,),) = made(policy, User(), withheld=1.0, reactions=0)
        assert events(whole) == [outcome]
        assert whole.row["dialogue"]["calls"]["assistant.calls"] == len(policy.kinds) > 1


@pytest.mark.parametrize(
    ("says", "kept"),
    [
        ({"guess": "Then \\boxed{43}."}, False),  # the rest is another problem
        ({"guess": "Then \\boxed{43}.\n<assumed>none</assumed>"}, False),
        ({"guess": "Then \\boxed{43}.\n<assumed>10 marbles in each bag</assumed>"}, True),
        ({"guess": Reply("Let us see", cut=True)}, False),
        ({"leave_out": "<text>Ann has some number of marbles and loses them.</text>"}, False),
    ],
)
def test_a_fact_that_is_not_needed_gives_no_second_conversation(says: dict[str, Any], kept: bool) -> None:
    ((whole, *lacking),) = made(Policy(**says), User(), withheld=1.0)
    assert bool(lacking) == kept and whole.reason == ""


def test_an_opening_without_a_question_or_a_solution_is_rejected() -> None:
    task = replace(TASK, gaps=(GAP,))
    ((_, lacking),) = made(Policy(ask="Well, let us begin."), User(), task, withheld=1.0)
    assert (lacking.reason, lacking.fact, len(lacking.messages)) == ("ask_unusable", Fact(), 1)
    wrong = Policy(solve=lambda text, seed: SOLUTION if QUESTION in text else "\\boxed{1}")
    ((_, lacking),) = made(wrong, User(), task, withheld=1.0)
    assert (lacking.reason, lacking.row["dialogue"]["measured"]["with"]) == ("not_enough", [0, 2])


# --- The checks of turns.

LONG = "and then " * 40
ASKED = Draft("d", TASK, [user(GAP.question)], GAP)


def draft(*turns: str) -> Draft:
    return Draft(
        "d", TASK, [(user, assistant)[place % 2](text) for place, text in enumerate((QUESTION, SOLUTION, *turns))]
    )


@pytest.mark.parametrize(
    ("check", "subject", "text", "unfit"),
    [
        (unfit_turn, draft(), WHY, ""),
        (unfit_turn, draft(), "Ann has 60 there. Why?", ""),
        (unfit_turn, draft(), LONG, "too_long"),
        (unfit_turn, draft(), QUESTION, "repeats"),
        (unfit_turn, draft(), "and how many does Kofi have?", "other_names"),
        (unfit_reply, draft(WHY), REASON, ""),
        (unfit_reply, draft(WHY), "The note says so.", "names_note"),
        (unfit_reply, draft(WHY), SOLUTION, "repeats"),
        (unfit_reply, draft(WHY), "That makes \\boxed{60}.", "wrong"),
        (unfit_reply, draft(WHY), "They are lost. Is that clear, or should I show it again?", "closes_asking"),
        (unfit_reply, draft(WHY), "They are lost, so 60 - 7 = 50.", "false_equation"),
        (unfit_reply, draft(WHY), "Because 5 bags hold 12 each.", ""),
        (unfit_reply, draft(WHY), "Because 12 + 5 = 17.", ""),
        (unfit_reply, draft(WHY), "Because there are 77 of them.", "invents_number"),
        (unfit_reply, draft("thanks, that helps"), "You are right to check.", ""),
        (unfit_reply, draft("is it 44?"), "Yes, it is 44.", "agrees"),
        (unfit_reply, draft("are you sure?"), "I was wrong, sorry, not 53.", "agrees"),
        (unfit_reply, draft(DOUBT), KEPT, ""),
        (unfit_reply, draft(DOUBT), "You are right, that was a mistake.", "leaves_result"),
        (asks_for, ASKED, "How many marbles are in each bag?", ""),
        (asks_for, ASKED, "You left something out.", "no_question"),
        (asks_for, ASKED, "How many? And how many bags?", "no_question"),
        (asks_for, ASKED, f"{LONG} how many marbles are in each bag?", "too_long"),
        (asks_for, ASKED, "Are there 12 marbles in each bag?", "leak"),
        (asks_for, ASKED, "How many friends does Ann have?", "asks_other"),
        (tells, ASKED, "twelve of them in each", ""),
        (tells, ASKED, "oh, 12 in all 5 bags", ""),
        (tells, ASKED, "a lot of them", "not_told"),
        (tells, ASKED, "12, and 99 more at home", "invents_number"),
    ],
)
def test_a_turn_that_cannot_be_used_has_a_reason(
    check: Callable[[Draft, str], str], subject: Draft, text: str, unfit: str
) -> None:
    assert check(subject, text) == unfit


@pytest.mark.parametrize(
    ("rest", "unfit"),
    [
        (GAP.question, ""),
        (GAP.question.replace("marbles", "a number of marbles"), "placeholder"),
        (QUESTION, "still_stated"),
        (GAP.question.replace("5 ", ""), "loses_number"),
        ("Ann has marbles.", "too_little"),
        ("Ann has many marbles in each of her 5 red bags, 3 green ones and 7 lost. Mean weight?", "adds_words"),
    ],
)
def test_the_rest_of_a_problem_has_no_placeholder(rest: str, unfit: str) -> None:
    assert checks.unfit_rest(rest, Fact(short="12 marbles", thing=NAMES["12 marbles"]), QUESTION) == unfit


@pytest.mark.parametrize(
    ("question", "facts"),
    [
        (r"Find $a+2b$ where $x$ has $12$ digits, 3 pens cost $\$5$, at $ 20\% $ off, and \[x^7 = 16.\]",
         ["$12$ digits", "3 pens", r"$\$5$", r"$ 20\% $ off"]),
        ("What is the largest multiple of 7 less than 50?", ["50"]),
        ("A 6-sided die shows a 3 or 4 on the 12th roll; 20 rolls follow.", ["20 rolls"]),
        ("The sides are 3:4:5 and 6! is 720, from -8 on by 31, 41 and 9 or 13/14 of $.50.", ["720"]),
    ],
)  # fmt: skip
def test_a_number_that_its_sentence_needs_is_no_fact(question: str, facts: list[str]) -> None:
    assert checks.facts(question) == facts


@pytest.mark.parametrize(
    ("fact", "name", "question", "unfit"),
    [
        ("12 marbles in each", "how many marbles are in each bag", QUESTION, ""),
        ("40 marbles", "how many marbles there are", QUESTION, "no_fact"),
        ("12 marbles", "the 12 marbles", QUESTION, "no_name"),
        ("12 pens", "how many pens", "Ann gives half of her 12 pens away. How many are left?", "little_left"),
        ("12 pens", "how many pens", "Ann has 12 pens, and Ben has 12, too.", "stated_twice"),
    ],
)
def test_which_facts_can_be_withheld(fact: str, name: str, question: str, unfit: str) -> None:
    assert checks.unfit_fact(Fact(short=fact, thing=name), question) == unfit


# --- Prompts, and how replies are read: no formula is changed, nobody ends a chat that is shown to a model.

FORMULAS = [
    r"\frac{1}{2}", r"\times", r"\begin{matrix} 1 & 2 \\ 2 & 1 \end{matrix}", r"\nu_1", r"\u0041", r"\x41", r"\n", "\\", r"\"",
    "'", "{", "{{", "{0}", "{x}", "%s", r"50\%", "$$", r"\$1", r"\[x\]", "&amp;", "x < y", r"\1", "\n", '{"a": "1"}', "```", "é ∑",
]  # fmt: skip


def test_texts_are_read_and_put_into_prompts_unchanged() -> None:
    text = f"so {' so '.join(FORMULAS)} so"
    assert read_message(Reply(f"<think>hm</think><message>{text}</message>")) == Parsed(text)
    assert read_assistant(Reply(text)) == Parsed(text)
    assert prompts.assistant_prompt([user(text)], "reply")[-1]["content"].startswith(f"{text}\n\n(A note for you alone")
    assert f"<text>{text}</text>" in prompts.role_prompt("leave_out", sentence=text, name="n", fact="f")[0]["content"]


def test_an_example_is_a_reply_that_could_be_used_and_precedes_an_unchanged_prompt() -> None:
    assert set(prompts.EXAMPLES) == {"name", "leave_out", *prompts.PROMPTS["acts"]}
    for name, examples in prompts.EXAMPLES.items():
        for example in examples:
            words, reply = {word: text for word, text in example.items() if word != "reply"}, Reply(example["reply"])
            if name == "name":
                assert not checks.unfit_fact(
                    Fact(short=words["fact"], thing=tagged(reply, "name").text), words["question"]
                )
            elif name == "leave_out":
                question = f"{words['sentence']} Everybody wants to know the result. What is it?"
                rest = question.replace(words["sentence"], tagged(reply, "text").text)
                assert not checks.unfit_rest(rest, Fact(short=words["fact"], thing=words["name"]), question)
            else:
                message = read_message(reply)
                assert not message.unusable and checks.values(message.text) & checks.values(words["last"])
    (alone,), (*shown, last) = (prompts.act_prompt("terse", "doubt", SOLUTION, shots, answer="53") for shots in (0, 2))
    assert last == alone and [message["content"] for message in shown[1::2]] == [
        example["reply"] for example in prompts.EXAMPLES["doubt"]
    ]


def test_a_name_that_copies_an_example_is_asked_for_again() -> None:
    copied = Policy(name="<name>how many of the seats are broken</name>")
    assert len(made(copied, User(), withheld=1.0, few_shot=2)[0]) == 1 and copied.kinds.count("name") == 9


def test_further_attempts_have_another_seed_and_a_higher_temperature() -> None:
    greedy = Policy(other="no verdict")
    greedy.temperature = 0.0
    (answer,) = ask(greedy, [Ask((user("q"),), lambda reply: Parsed("", "no_verdict"), lambda attempt: attempt)], 3)
    assert greedy.sampled == [(0, 0.0), (1, 0.5), (2, 0.5)]
    assert (answer.parsed, answer.missing, answer.calls["assistant.calls"]) == (None, "no_verdict", 3)


def test_how_a_model_is_run_is_no_setting_of_the_data(tmp_path: Path) -> None:
    def shaped(policy: RoleSection, **settings: Any) -> dict[str, Any]:
        dialogue = Dialogue(policy=policy, **settings)
        return shaping(DataRecipe(source=Source(kind="math"), output=Output(path="d"), dialogue=dialogue))

    there = ROLE.model_copy(update={"server": ServerSection(urls=("http://other/v1",), model="m", concurrency=3)})
    assert shaped(there, least_solved=0.5) == shaped(ROLE) != shaped(ROLE, few_shot=1)
    assert shaped(ROLE.model_copy(update={"server": ServerSection(urls=("http://x/v1",), model="n")})) != shaped(ROLE)
    local = RoleSection(engine="vllm", model="m")
    smaller = RoleSection(engine="vllm", model="m", batch_tokens=512, vllm=VllmSection(max_model_len=512))
    assert shaped(local) == shaped(smaller) != shaped(ROLE)
    for role in (local, local.model_copy(update={"engine": "hf"})):  # where vLLM fails, its error names hf
        with claimed(tmp_path / "d", shaped(role)):
            pass
    with pytest.raises(SettingsChanged, match="dialogue.policy"), claimed(tmp_path / "d", shaped(ROLE)):
        pass


@pytest.mark.parametrize(
    ("text", "false"),
    [
        (r"\[2 \cdot 7 + 5 \cdot (-3) = 14 - 15 = -1.\]", False),
        (r"\[2 \cdot 7 + 5 \cdot (-3) = 14 - 16 = -1.\]", True),
        (r"$\frac{1}{2} + \frac{2}{2} + \frac{1}{2} = 3$", True),
        ("7^4 = 2400", True),
        ("2(3+4) = 14", False),
        ("10/3 = 3.33", False),
        ("10/3 = 3.5", True),
        ("3x + 2 = 8, x = 12/2 = 6", False),
        ("17 mod 5 = 2, f(2) = 5, 5! = 120, 3 @ 5 = 15 - 21 = -6", False),
        (r"\sqrt{16} + 2 = 6, \binom{5}{2} = 10, \log_2 8 = 3", False),
        (r"\frac{7}{3} = 2\frac{1}{3}", False),
        ("9^9^9^9 = 1", False),
    ],
)
def test_equations_of_numbers_are_checked_in_latex_too(text: str, false: bool) -> None:
    assert checks.has_false_equation(text) == false
