"""What the assistant asks, and what it says while something is missing. Only these turns end in a question.

A question for what is withheld names it: {ask} is a whole question, {clause} follows "tell me", {thing} is a noun
phrase. None of them states a value.
"""

from __future__ import annotations

from data_builders.acts.act import Act, Parts

# The bare question is the best one. It is also what lets greedy decoding ask at all: many openings share what chance
# asking has, so each of them alone would lose against the first word of a solution.
_BARE_ASK = 0.4
_UNCLEAR: Parts = (
    "", "I can't finish this yet. ", "Before I start, one thing is unclear. ", "Almost everything is here. ",
    "I need one more detail. ", "One thing is missing. ", "I read it twice, and something is missing. ",
    "There is a gap in the text. ", "I'd like to solve this, but something is missing. ", "Quick question first. ",
)  # fmt: skip
_TELL: Parts = (
    "{ask}", "Could you tell me {clause}?", "Do you know {clause}?", "Can you tell me {clause}?",
    "Your text doesn't say {clause}. Do you have that?", "I still need to know {clause}. Can you look it up?",
    "Can you look up {clause}?", "Would you tell me {clause}?",
)  # fmt: skip
_CHECKS: Parts = (
    " Is that step clear?", " Do you see why?", " Does that make sense so far?", " Can you see what comes next?",
    " What would you do next?", " Can you follow that?", " Is that clear so far?", " Does that step look right to you?",
)  # fmt: skip
_BEGIN: Parts = ("", "Sure. ", "Okay. ", "Good. ", "Let's begin. ", "All right. ")

# fmt: off
ASSISTANT_ASKS: dict[str, Act] = {
    "ask_number": Act(
        "assistant", (*_UNCLEAR, "One number is missing. ", "The way is clear, but I lack a number. "),
        (*_TELL, "I don't have {thing}. What does the problem say?", "I can't find {thing}. Can you give it?",
         "The answer depends on {thing}. What is it?", "I need {thing} for that. Do you have it?",
         "Without {thing} I can't compute it. Can you add it?"),
        plain="{ask}", bare=_BARE_ASK,
    ),
    "ask_formula": Act(
        "assistant", (*_UNCLEAR, "A formula is missing. ", "I can't work with this yet. "),
        (*_TELL, "I don't have {thing}. Can you write it out?", "I can't find {thing}. How does it read?",
         "Everything depends on {thing}. What does it say?", "I need {thing} for that. Do you have it?",
         "Without {thing} I can't go on. Can you add it?"),
        plain="{ask}", bare=_BARE_ASK,
    ),
    "ask_goal": Act(
        "assistant",
        (*_UNCLEAR, "I see what is given, but not what is wanted. ", "The end of the problem seems to be cut off. "),
        (*_TELL, "I don't see {thing}. Can you add it?", "What is {thing}?",
         "The text stops before {thing}. How does it end?", "I can't find {thing}. Can you copy it here?",
         "Without {thing} I don't know where to go. Can you send it?"),
        plain="{ask}", bare=_BARE_ASK,
    ),
    "ask_figure": Act(
        "assistant", (*_UNCLEAR, "The text mentions {thing}, but it didn't come through. ", "Something didn't come through. "),
        (*_TELL[1:], "I don't have {thing}. Can you paste it?", "I would need {thing}. Can you describe it?",
         "The answer depends on {thing}. Can you send it?", "I can't see {thing}. What is in it?",
         "Without {thing} I can't go on. Can you add it?"),
        plain="{ask}", bare=_BARE_ASK,
    ),
    "ask_problem": Act(
        "assistant",
        ("", "Sure. ", "Of course. ", "Yes, happily. ", "Okay. ", "Let's look at it. ", "No problem. ",
         "We can sort that out. ", "I'm here. ", "Glad to help. ", "All right. ", "Don't worry. "),
        ("What does the problem say?", "Can you type out the whole problem?", "What is the exact wording?",
         "Could you send me the problem as it is written?", "Which problem is it?", "What are you given, and what is asked?",
         "Can you copy the problem here, with all its numbers?", "How does the problem read, word for word?",
         "Can you paste the full text?", "What exactly is the question?", "What does it say, from start to end?",
         "Can you send the wording?", "How is {the_topic} worded?",
         "Can you write {the_topic} down here?"),
    ),
    # The user did not see what is meant, or named something else.
    "which_place": Act(
        "assistant",
        ("", "Let me put it another way. ", "Sorry, I'll be clearer. ", "I mean one place in particular. ",
         "It's easy to overlook. ", "Let me say it again. ", "One thing isn't there. ", "Sorry if that was unclear. ",
         "You did give the rest. ", "Nearly everything is there. ", "I'll say it differently. ", "One spot is empty. ",
         "Let me be more exact. ", "I may have been too short. ", "It's only one thing. ", "No harm done. "),
        ("What I need is {thing}. {ask}", "I mean {thing}. {ask}", "It's about {thing}. What does it say there?",
         "Your text never says {clause}. Can you find that?", "I'm looking for {thing}. Can you find it?",
         "Nothing in the text tells me {clause}. Is a line missing?", "I can't tell {clause}. Does your book say it?",
         "It's only about {thing}. Do you have that?", "I was asking {clause}. Can you look again?",
         "Somewhere it should say {clause}. Can you see it?", "Everything but {thing} is there. Do you have it?",
         "Do you see anywhere {clause}?", "Your sheet should say {clause}. Does it?", "Can you check once more {clause}?", "I only lack {thing}. Can you add it?"),
    ),
    "not_that": Act(
        "assistant",
        ("", "No. ", "Not that one. ", "I have that. ", "That part is clear. ", "That one is there, yes. ", "Thanks, I saw that. ",
         "Something else. ", "That one I can read. ", "Not quite. ", "I mean something else. ", "Close, but no. ", "That's another one. ",
         "I did see that. ", "Almost. "),
        ("What I need is {thing}. {ask}", "I mean {thing}. {ask}", "{known} is in the text, {thing} is not. What is it?",
         "Besides {known} I need {thing}. Do you have it?", "The text says {known}, but not {clause}. Can you look that up?",
         "I know about {known}. What about {thing}?", "It's about {thing}, not {known}. Can you find it?",
         "I can use {known}. I still don't know {clause}. Can you add that?",
         "{known} is fine. It's {thing} that I don't have. Can you find it?",
         "With {known} alone I still can't tell {clause}. Is there more?",
         "{known} is one thing, {thing} another. Do you have that, too?", "Apart from {known}, I need to know {clause}. Can you look?",
         "Yes, {known} is given. Can you also tell me {clause}?"),
    ),
    # {about} is " for {thing}", or empty where the given has no name.
    "contradiction": Act(
        "assistant",
        ("", "Something doesn't fit. ", "Two places disagree. ", "I can't solve it like this. ", "The text contradicts itself. ",
         "Before I start, one thing. ", "Hold on. ", "Something is off in the text. ", "I stumbled over one thing. ",
         "The text doesn't agree with itself. ", "There may be a typo. ", "One thing confuses me. ", "I have to ask first. ",
         "Something is there twice. ", "Not so fast. ", "I read it twice. ", "There is a contradiction. ", "A small problem first. ",
         "One place is wrong. ", "I can't use both. "),
        ("I see {short} and also {other}{about}. Which one is right?",
         "It says {short} in one place and {other} in another. Which should I take{about}?",
         "Both {short} and {other} are given{about}. Which is it?",
         "There are two values{about}, {short} and {other}. Which one holds?",
         "First it says {short}, then {other}{about}. Which one counts?",
         "They can't both be right{about}: {short} and {other}. Can you check?",
         "Is it {short} or {other}? The text has both{about}. Can you check which is right?",
         "I find two values{about}: {short} and {other}. Which should I use?",
         "{short} and {other} are both there{about}. Which one is it?",
         "The text gives {short} and, further on, {other}{about}. Which one should I trust?",
         "I don't know which to use{about}, {short} or {other}. Can you look it up?",
         "We have {short} and {other}{about}, and only one can be true. Which one?"),
    ),
    # Nothing can be settled without it: no guess, no question.
    "cannot": Act(
        "assistant",
        ("", "Then I have to stop here. ", "I would only be guessing. ", "Then it stays open. ", "Then I can't give you an answer. ",
         "A guess would not help you. "),
        ("It can't be worked out without {thing}.", "The answer depends on {thing}, and the text doesn't give it.",
         "Everything else is there, but {thing} is not, and the answer depends on it.",
         "As long as {thing} is open, the answer is open too.", "The text leaves {thing} open, and the answer with it.",
         "Nothing else in the text tells us {thing}, and the answer depends on it."),
        ("", " If you find it, I can finish.", " Once you have it, the rest is quick.", " Send it once you have it.",
         " Maybe somebody in your class has it.", " It must be somewhere near the problem."),
    ),
    "cannot_goal": Act(
        "assistant",
        ("", "Then I have to stop here. ", "I would only be guessing. ", "Then I can't give you an answer. ", "A guess would not help you. "),
        ("Without the question there is nothing to solve.", "I have what is given, but not what is asked.",
         "As long as nobody says what is wanted, there is no answer.", "What is given leads to many things, and the text asks for none of them.",
         "There has to be a question first.", "I can't answer before I know what is asked."),
        ("", " If you find it, I can finish.", " Once you have it, we can go on.", " Send it once you have it.",
         " Maybe somebody in your class has it.", " It must be somewhere near the problem."),
    ),
    "cannot_text": Act(
        "assistant",
        ("", "Then I have to stop here. ", "I would only be guessing. ", "Then it stays open. ", "Then I can't give you an answer. ",
         "A guess would not help you. "),
        ("It can't be worked out without {thing}.", "The answer depends on {thing}, and it isn't here.",
         "Everything depends on {thing}, and I don't have it.", "As long as {thing} is missing, the answer is open.",
         "The problem needs {thing}, and nothing in the text replaces it.", "Without {thing} there is nothing to work with."),
        ("", " If you find it, I can finish.", " Once you have it, we can go on.", " Send it once you have it.",
         " Maybe somebody in your class has it.", " It must be somewhere near the problem."),
    ),
    # A first step and a check of understanding, in this turn only.
    "first_step": Act("assistant", _BEGIN, ("{step}", "First: {step_small}", "Step one: {step_small}"), _CHECKS),
    "first_part": Act(
        "assistant",
        (*_BEGIN, "One step at a time. "),
        ("It begins like this.\n{start}", "The first step:\n{start}", "{start}", "Here is the beginning.\n{start}",
         "We start here.\n{start}"),
        tuple(f"\n\n{check.strip()}" for check in _CHECKS),
    ),
}
