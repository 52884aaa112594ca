"""The assistant solves: at once, after a reveal, in parts. None of these turns closes with a question.

{solution} and {rest} are the problem's own worked solution, word for word, with the boxed answer.
"""

from __future__ import annotations

from data_builders.acts.act import Act, Parts

_NOW: Parts = (
    "Now everything is there.", "With that it works.", "Now we can solve it.", "Then it goes like this.", "Here is the solution.",
    "That is all I needed.", "Now the way is clear.", "Let's work it out.", "So let's solve it.", "Here we go.",
    "Now it can be done.", "Then we can start.",
)  # fmt: skip
_REST: Parts = (
    "Now the rest.", "From there we go on.", "Here is the rest.", "Let's finish it.", "The rest goes like this.", "Then it goes on.",
    "This is how it ends.", "It goes on like this.", "Let's bring it to the end.", "Here is what follows.", "Then the next part.",
    "On we go.", "And on to the answer.",
)  # fmt: skip
_THEN_SOLUTION: Parts = ("\n{solution}", " Step by step:\n{solution}", " From the start:\n{solution}")
_THEN_REST: Parts = ("\n{rest}", " Step by step:\n{rest}", " Line by line:\n{rest}")
_AND_REST: Parts = (
    "\n{rest}", " Now the rest.\n{rest}", " Then it goes on.\n{rest}", " From there:\n{rest}", " Here is what follows.\n{rest}",
    " Let's finish it.\n{rest}",
)  # fmt: skip
_RIGHT: Parts = ("", "Right. ", "Exactly. ", "Okay. ", "Good. ", "Yes. ", "Great. ", "Well done. ")
_CLOSE: Parts = (
    "Not yet. ",
    "No. ",
    "Close. ",
    "Careful. ",
    "Look again. ",
    "Not quite. ",
    "Almost. ",
    "Good try, but no. ",
    "Hm, no. ",
)

# fmt: off
ASSISTANT_SOLVES: dict[str, Act] = {
    "solve": Act(
        "assistant",
        ("", "Sure. ", "Okay. ", "Yes. ", "All right. ", "Happy to. ", "Of course. ", "Good. "),
        ("Let's go step by step.", "Here is how it works.", "Here is the solution.", "Everything we need is there.", "Let's work it out.",
         "This is how I would do it.", "We take it in order.", "Here is one way to do it.", "We can solve this directly.",
         "Nothing is missing here.", "Here is the whole way.", "It goes like this.", "Let's see how this works."),
        ("\n{solution}", " From the start:\n{solution}"),
        plain="{solution}", bare=0.5,
    ),
    "solve_revealed": Act(
        "assistant", ("", "Thanks. ", "Good. ", "Okay. ", "Great. ", "Perfect. ", "Got it. ", "Thank you. ", "Ah, good. "),
        ("That was the missing piece.", *_NOW), _THEN_SOLUTION, plain="{solution}", bare=0.3,
    ),
    "solve_found": Act(
        "assistant",
        ("", "Good that you looked. ", "Great. ", "Good find. ", "Perfect. ", "That helps. ", "Excellent. ", "Thanks for looking. "),
        ("Now there is one answer.", "That was the missing piece.", *_NOW), _THEN_SOLUTION, plain="{solution}", bare=0.15,
    ),
    "solve_picked": Act(
        "assistant",
        ("", "Thanks. ", "Good. ", "Okay. ", "That settles it. ", "All right. ", "Thanks for checking. ", "Got it. ", "Great. "),
        ("Then {short} it is.", "We go on with {short}.", "So we leave out {other}.", "With {short} it works.", "I take {short} then.",
         "Now the text fits together.", "Then we can forget about {other}.", "So {other} was the wrong one.", "Then we can solve it.",
         "So we use {short}.", "We work with {short}, not {other}."),
        _THEN_SOLUTION, plain="{solution}", bare=0.15,
    ),
    "finish": Act(
        "assistant", _RIGHT, (*_REST, "From {result} we go on.", "With {result} we can go on.", "We go on with the {result}."),
        _THEN_REST, plain="{rest}", bare=0.1,
    ),
    "finish_text": Act("assistant", _RIGHT, _REST, _THEN_REST, plain="{rest}", bare=0.1),
    "finish_shown": Act(  # the user gave up
        "assistant",
        ("", "No problem. ", "That's fine. ", "Sure. ", "Okay. ", "You were on the way. ", "It's a hard one. ", "All right. "),
        _REST, _THEN_REST, plain="{rest}", bare=0.1,
    ),
    "explain_and_finish": Act(
        "assistant",
        ("", "Good that you ask. ", "Look at it this way. ", "Here is the reason. ", "Fair question. ", "Let me explain. "),
        ("{Why}. So we {verb}: {equation}.", "{Why}, so we {action}.", "It is because {why}. So we get {equation}.",
         "{Why}. That is where {equation} comes from.", "We {action}, since {why}.", "The reason is that {why}. So we {verb}."),
        _AND_REST,
    ),
    "correct_start": Act(
        "assistant",
        ("Not quite. ", "Almost. ", "{slip} is not right. ", "No, it is not {slip}. ", "Good try, but no. ", "I see the idea. ",
         "Not {slip}. ", "I get something else. ", "That is not it yet. ", "Close, but no. ", "It isn't {slip}. "),
        ("{diagnosis}\n{solution}", "{diagnosis} Here is the whole way.\n{solution}", "{diagnosis} From the start:\n{solution}",
         "{diagnosis} So it goes like this.\n{solution}", "{diagnosis} Let's redo it.\n{solution}",
         "{diagnosis} Compare it with yours.\n{solution}", "{diagnosis} In full:\n{solution}", "{diagnosis} Step by step:\n{solution}",
         "{diagnosis} Let's go through it.\n{solution}", "{diagnosis} This is how I would do it.\n{solution}"),
    ),
    # A hint and what comes of it.
    "hint": Act(
        "assistant",
        ("", "Sure. ", "Here is a hint. ", "Okay, only the start. ", "One hint. ", "Happy to. "),
        ("Look at this first: {why}. So {action}.", "{Why}. Use that and {action} first.",
         "Start here: {why}. That means you {verb}.", "Begin with {expression}, because {why}.",
         "{Why}, so your first step is to {verb}.", "Think of this: {why}. What follows is to {verb}."),
        ("", " Tell me what you get.", " Then go on with the result.", " The rest is yours."),
    ),
    "hint_text": Act(
        "assistant",
        ("", "Sure. ", "Happy to. ", "Okay, only the start. ", "One hint. ", "Good idea. "),
        ("Begin like this.\n{start}", "Here is the first step.\n{start}", "This is how it starts.\n{start}",
         "A first push:\n{start}", "Think of it this way.\n{start}", "{start}"),
        ("", "\n\nTell me what you get from there.", "\n\nThen go on yourself.", "\n\nThe rest is yours.", "\n\nNow it's your turn."),
    ),
    "second_hint": Act(
        "assistant",
        ("", "Okay, one more. ", "Sure. ", "A second hint. ", "You are close. ", "Take it slowly. "),
        ("Try to get to {formula}.", "The next thing to find is {formula}.", "You should arrive at {formula}.",
         "Aim for {formula}.", "From there you get to {formula}.", "The line to look for is {formula}.",
         "Check that you get {formula}.", "See if you can reach {formula}."),
        ("", " Take it from there.", " Write it down before you go on.", " Tell me how far you get.", " Use what we have so far.",
         " The rest is yours again."),
    ),
    "confirm": Act(
        "assistant", ("", "Yes. ", "Right. ", "Exactly. ", "That's it. ", "Correct. "),
        ("{equation} is the first step.", "{step}", "{result} is right.", "{equation} it is.", "{expression} gives {result}.",
         "The {result} is what we need."),
        _AND_REST,
    ),
    "confirm_formula": Act(
        "assistant", ("", "Yes. ", "Right. ", "Exactly. ", "That's it. ", "Correct. ", "Well done. "),
        ("{formula} is right.", "{formula} comes up on the way.", "You have {formula}, good.", "{formula} is one of the lines.",
         "That is the right track, {formula}.", "You found {formula}, and it is correct."),
        ("\n{rest}", " Here is the rest.\n{rest}", " In full:\n{rest}", " Line by line:\n{rest}", " This is how it goes.\n{rest}"),
    ),
    "redirect": Act(
        "assistant", _CLOSE,
        ("{why_sentence} So it is {equation}, not {tried}.", "{why_sentence} That calls for {expression}, which is {result}.",
         "{tried} doesn't fit: {why}. It is {equation}.", "{why_sentence} It should be {equation}.",
         "Instead of {tried} take {equation}: {why}.", "In this problem {why}, so {equation}."),
        _AND_REST,
    ),
    "redirect_text": Act(
        "assistant", _CLOSE, ("{diagnosis}",),
        ("\n{rest}", " It goes on.\n{rest}", " Here is the rest.\n{rest}", " From the hint on it goes like this.\n{rest}",
         " So:\n{rest}", " After the hint comes this.\n{rest}", " Let's finish it.\n{rest}", " In full:\n{rest}",
         " Look at what follows.\n{rest}", " Here is how it goes on.\n{rest}", " Step by step:\n{rest}", " Now from the hint to the answer.\n{rest}", " This is what is left.\n{rest}", " Compare:\n{rest}", " Line by line:\n{rest}"),
    ),
    # The sentence with the boxed answer, where the solution has none of its own; the problem's own one is `bare`.
    "final": Act(
        "assistant",
        ("", "So ", "In short, ", "That means ", "Therefore ", "Altogether, ", "Hence ", "And so "),
        ("the answer is {box}.", "we get {box}.", "it is {box}.", "the result is {box}.", "it comes to {box}.", "we arrive at {box}.",
         "what we wanted is {box}.", "the answer comes out as {box}.", "we have {box}.", "it works out to {box}.",
         "the final answer is {box}.", "the number asked for is {box}."),
    ),
}
