"""How the assistant answers a reaction, and how it names a slip. None of these turns closes with a question."""

from __future__ import annotations

from data_builders.acts.act import Act, Parts

_BACK: Parts = ("", "It follows from the line before. ", "Let me put the two lines next to each other. ",
                "Here is that part again. ", "One line at a time. ", "Good question. ", "I'll go back one line. ",
                "Let's look at the line before it. ", "Sure. ", "That is a big step. ")  # fmt: skip
_REASON: Parts = ("", "Good question. ", "Look at it this way. ", "Here is the reason. ", "I can explain that. ",
                  "That part is easy to miss. ")  # fmt: skip
# Before a diagnosis; "{equation} is right" may follow.
_ON_TRACK: Parts = ("", "You were on the right track. ", "I see where it comes from. ", "You stopped too early. ",
                    "That number does come up. ", "Part of that is right. ", "You are not far off. ")  # fmt: skip

# fmt: off
ASSISTANT_REPLIES: dict[str, Act] = {
    "because": Act(
        "assistant", _REASON,
        ("We {action} because {why}.", "{Why}, so we {action}.", "It is because {why}. So we {verb}.",
         "{Why}. That is why we {action}.", "We have to {action}, since {why}.", "The reason is that {why}. So we {verb}."),
        ("", " That gives {result}.", " So {equation}.", " This makes {equation}."),
    ),
    "settle": Act(
        "assistant",
        ("", "No. ", "Not here. ", "I am sure about this one. ", "It would not fit. ", "I see the idea. "),
        ("{why_sentence} So we {verb}: {equation}.", "{why_sentence} That means {equation}.",
         "{why_sentence} {wrong} would answer another question.", "{wrong} doesn't fit, because {why}.",
         "{equation} is the right one, since {why}.", "We need {expression} and not {wrong}: {why}."),
        ("", " The answer stays {answer}.", " So {answer} is right.", " It remains {answer}."),
    ),
    "correct": Act(
        "assistant",
        ("", "Not quite. ", "That is a common slip. ", "Close, but no. ", "Almost. ", "I see what happened. "),
        ("{diagnosis}", "{slip} is not it. {diagnosis}", "It isn't {slip}. {diagnosis}"),
        ("", " So it is {answer}, not {slip}.", " That is why the answer is {answer}.", " The answer stays {answer}.",
         " {answer} is what was asked for.", " So {answer} is right.", " It remains {answer}."),
    ),
    # What went wrong, as a part of another turn. The user told how the result came about, or it is inferred.
    "diagnose_told": Act(
        "assistant",
        ("", "Look closely. ", "The operation is the problem. ", "The numbers are the right ones, the operation is not. ",
         "Read that part again. ", "One step went another way. ", "It is only one step. "),
        ("{did} goes wrong: {why}, so we need to {verb}.", "You {past} in step {n}, but {why}, so it is {equation}.",
         "In step {n} it has to be {expression} and not {wrong}, because {why}.",
         "{why_sentence} So {wrong} doesn't fit, {equation} does.", "Instead of {wrong} we need {expression}, since {why}.",
         "You {past}, but {why}. That calls for {equation}.", "{why_sentence} So it can't be {wrong}."),
        ("", " That is the only slip.", " Only that one step is off."),
    ),
    "diagnose_guess": Act(
        "assistant",
        ("", "I think I see it. ", "I tried to follow you. ", "I can only guess how you got there. ", "Let me guess. ",
         "I think it is one step. "),
        ("It looks like you took {did} in step {n}. But {why}, so it is {equation}.",
         "You get there with {did}, but {why}, so we need {equation}.",
         "It seems you {past}, {did}, in step {n}. But {why}: {equation}.",
         "If you take {did}, you end up there. But {why}, so {equation}.",
         "That is what {did} leads to. But {why}, so it has to be {equation}.",
         "With {did} you would get that. But {why}, which makes {equation}."),
        ("", " That is the only slip.", " Only that one step is off."),
    ),
    "diagnose_early": Act(
        "assistant",
        ("", "You were on the right track. ", "One step is missing. ", "You stopped too early. ", "The first part is right. ",
         "You are almost there. "),
        ("{slip} is only the result of one step: {equation}.", "{equation} is right, but it is not the end.",
         "That is a number on the way, {equation}.", "{equation} is one of the steps, not the last.",
         "With {equation} you are not done yet.", "{slip} is what {expression} gives, and the problem goes on."),
        (" After that comes {following}.", " Then comes {following}.", " What follows is {following}.", " There is more to do: {following}."),
    ),
    # A text's next step need not build on this one, so only what is sure is said.
    "diagnose_on_the_way": Act(
        "assistant", _ON_TRACK,
        ("{equation} is right, but it is only a number on the way.", "{slip} is what {expression} gives, and the problem does not end there.",
         "{equation} is one of the steps, not the last.", "{equation} is part of it, but something else is asked for.",
         "With {equation} you are not done yet.", "{equation} is correct. It just isn't what is asked for.",
         "{slip} comes from {equation}, which is a step in between."),
        ("", " Read the question once more.", " There is more to do."),
    ),
    "diagnose_formula": Act(
        "assistant", _ON_TRACK,
        ("{quote} is a line on the way, and the problem asks for something else.", "{quote} comes up in the solution, but it is not the end of it.",
         "{slip} comes from {quote}, which is a step in between.", "With {quote} you are not done yet.",
         "{quote} is only a part of it.", "{quote} is one of the lines, not the last.", "After {quote} there is more to do."),
        ("", " Read the question once more.", " That is not what is asked for."),
    ),
    "recompute": Act(
        "assistant",
        ("", "Then it changes. ", "Let's see. ", "The way stays the same. ", "Only the numbers change. ", "Good idea. "),
        ("{steps}", "In that case: {steps}", "With that: {steps}", "Now it goes like this: {steps}"),
        ("", " The new answer is {new}.", " So it would be {new} instead of {answer}.", " That makes {new} and not {answer}.",
         " So {answer} turns into {new}."),
    ),
    "checked": Act(
        "assistant",
        ("", "Yes. ", "Sure. ", "Let's check it backwards. ", "Let's undo the step. ", "We can test it. "),
        ("{check}, so {equation} is right.", "Going back, {check}. That is the number we started from.",
         "{equation}, because {check}.", "If {expression} is {result}, then {check_left} must be {left}, and it is.",
         "Undo it: {check}.", "From {result} back: {check}. It fits."),
        ("", " So {answer} stands.", " The answer {answer} is fine."),
    ),
    "traced": Act(
        "assistant", _BACK,
        ("{before} {line}", "First: {before} Then: {line}", "We had this: {before} From there: {line}", "{before}\n{line}",
         "Start here: {before} That leads to this: {line}", "The line before says: {before} So: {line}"),
        ("", " That is all there is to it.", " Put them next to each other on paper."),
    ),
    "traced_line": Act(
        "assistant",
        ("", "It is one line. ", "Let me show the whole line. ", "Good question. ", "Here is that part again. ", "Sure. "),
        ("{line}", "The line is this: {line}", "It stands here: {line}", "Read it once more: {line}", "In full: {line}"),
        ("", " Nothing else goes into it.", " Go through it slowly.", " Try it on paper."),
    ),
    "source": Act(
        "assistant",
        ("", "Good question. ", "Look at the text again. ", "From the problem itself. ", "It is in the text. ", "Read it once more. "),
        ('The problem says "{quote}" That is where {expression} comes from.', 'It says "{quote}" So we {action}.',
         'Because of this sentence: "{quote}" It gives {equation}.', 'There it says "{quote}" That makes {equation}.',
         'We {action} because the text says "{quote}"', 'The sentence is this: "{quote}" That is where we get {expression}.'),
        ("", " The rest builds on it.", " Nothing else is needed for that step.", " So it is {result}."),
    ),
    "used_at": Act(
        "assistant",
        ("", "Good question. ", "It is in there. ", "Look closely. ", "We did use it. ", "Sure. "),
        ("The {number} goes into step {n}: {equation}.", "It is in step {n}, where we {action}.", "Step {n} has it: {equation}.",
         "It stands in {equation}.", "We need it in step {n} to {action}.", "{expression} in step {n} is where the {number} goes in.",
         "Without the {number} there would be no {equation}."),
        ("", " Nothing else uses it.", " That is the only place."),
    ),
    "short": Act(
        "assistant",
        ("", "Sure. ", "Yes. ", "Okay. ", "In short: ", "Of course. ", "Here you go. ", "Two or three lines are enough. "),
        ("{lines}. That gives {answer}.", "{lines}. So {answer}.", "write down {lines}. The answer is {answer}.",
         "the main lines are {lines}. Answer: {answer}.", "{lines}, and that makes {answer}.",
         "these carry it: {lines}. It comes to {answer}.", "it boils down to {lines}. Result: {answer}."),
        ("", " Leave out the rest.", " The words around it are only for reading."),
    ),
    "yes": Act(
        "assistant",
        ("", "Yes. ", "Right. ", "Exactly. ", "Correct. ", "That's it. ", "Yes, that is all. "),
        ("{answer} is the answer.", "It is {answer}.", "{answer} is what was asked for.", "The result is {answer}.",
         "Write down {answer}.", "{answer} answers the question."),
        ("", " But write down the way, too.", " The steps above show why.", " You can rely on it."),
    ),
    "welcome": Act(
        "assistant",
        ("", "You're welcome. ", "Glad it helped. ", "Good. ", "Happy to help. ", "Great. ", "Anytime. ", "Glad to hear that. "),
        ("Good luck with the next one.", "Come back when another one is stuck.", "Try a similar one while it is fresh.",
         "Have a good day.", "The next one will go faster.", "The same way works for similar ones.",
         "Keep the steps, the next ones are often alike.", "See you.", "You did well.", "Write it down once more by yourself.",
         "It gets easier with every one.", "Take care.", "Enjoy the rest of your day."),
    ),
}
