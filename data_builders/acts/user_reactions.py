"""What users say after an answer. Each cites a number, a formula or a step of it, apart from the short sign-offs."""

from __future__ import annotations

from data_builders.acts.act import Act, Parts

_WAIT: Parts = ("", "Wait, ", "Hm, ", "Ok but ", "One thing: ", "Sorry, ", "Hang on, ", "Quick question: ", "Umm, ", "Hey, ",
                "Just so I get it: ")  # fmt: skip
_HMM: Parts = (
    "",
    "Hmm, ",
    "Wait, ",
    "Are you sure? ",
    "Hold on, ",
    "Sorry, ",
    "Weird, ",
    "Ok, but ",
    "Strange, ",
    "Uh, ",
)
_GOT_IT: Parts = (
    "",
    "Ok. ",
    "Got it. ",
    "Nice. ",
    "And ",
    "Hm, ",
    "Alright. ",
    "Interesting. ",
    "Makes sense. ",
    "Ok, one more: ",
)

# fmt: off
USER_REACTIONS: dict[str, Act] = {
    "why": Act(
        "user", _WAIT,
        ("why do you {action}?", "why {expression}?", "where does the {result} come from?", "how did you get {result}?",
         "why {verb} there?", "I don't get the {result}. Why {verb}?", "what is {expression} for?",
         "how do you know you have to {verb}?", "what does {expression} tell us?", "what made you {action}?"),
        ("", " I lost you there.", " I can't see it."),
    ),
    "doubt": Act(
        "user", _HMM,
        ("shouldn't it be {wrong}?", "isn't it {wrong} instead of {expression}?", "I would do {wrong}, not {expression}.",
         "why not {wrong}?", "I thought you have to {wrong_verb} there, so {wrong}.", "{result} looks off. Isn't it {wrong}?",
         "my first idea was {wrong}. Why is that wrong?", "what's wrong with {wrong}?", "I had {wrong} there.",
         "I'd have said {wrong}.", "can't you just take {wrong}?"),
    ),
    "own_wrong": Act(
        "user", _HMM,
        ("I got {slip} instead. {way}", "my answer was {slip}. {way}", "I have {slip} in my notebook. {way}",
         "why is it not {slip}? {way}", "my friend says it's {slip}. {way}", "{slip} is what I had. {way}",
         "I'd say {slip}. {way}", "I come to {slip}. {way}", "isn't it {slip}? {way}", "I keep getting {slip}. {way}",
         "my calculator says {slip}. {way}"),
    ),
    "what_if": Act(
        "user", _GOT_IT,
        ("what if {condition} instead?", "what would change if {condition}?", "what happens if {condition}?",
         "what's the answer if {condition} instead?", "suppose {condition}. What then?", "say {condition}. Does {answer} change?",
         "how would it go if {condition}?", "would it still be {answer} if {condition}?", "and if {condition}?",
         "let's say {condition}. How much is it then?", "does it stay {answer} if {condition}?"),
    ),
    "check": Act(
        "user", _WAIT,
        ("are you sure about {result}?", "can you check the {result}?", "how do we know {result} is right?",
         "is {equation} really right?", "can you prove that it's {result}?", "{result} seems strange. Can you check it?",
         "how can I check the {result} myself?", "is there a way to test {equation}?", "can you double-check {equation}?",
         "I don't trust the {result}. Is it right?"),
    ),
    "trace": Act(
        "user", _WAIT,
        ("how did you get {formula}?", "where does {formula} come from?", "I don't see {formula}. Can you show that part again?",
         "can you explain the part with {formula}?", "why is that {formula}?", "you lost me at {formula}.",
         "how do you come to {formula}?", "what's behind {formula}?", "I'd never have found {formula}. How do you see it?",
         "I don't follow {formula}.", "can we go back to {formula}?", "what gives {formula}?"),
    ),
    "where": Act(
        "user", _WAIT,
        ("where did you use the {number}?", "what happened to the {number}?", "which step has the {number} in it?",
         "where does the {number} go in?", "do we need the {number} at all?", "in which step is the {number}?",
         "I don't see where the {number} is used.", "what is the {number} good for?", "what about the {number}? Where is it?",
         "what did you do with the {number}?"),
    ),
    "shorter": Act(
        "user",
        ("", "Ok, ", "Hm, ", "Thanks. ", "Phew. ", "Good. ", "Alright, ", "Long one. ", "Got it. "),
        ("can you give me that shorter?", "what's the short version?", "just the main lines please.",
         "can I have only the calculation?", "what do I write down?", "what are the key lines?",
         "can you sum that up?", "how do I write that in two lines?", "which lines do I need for my notebook?",
         "I only need the bare calculation.", "can you boil that down?", "how would you put that on a card?"),
        ("", " I have to write it down.", " It's for my notes."),
    ),
    "restate": Act(
        "user",
        ("", "Ok, ", "Ah, ", "Wait, ", "I see, ", "Got it. ", "Alright, ", "Cool, ", "Oh, "),
        ("so it's {answer}, right?", "so {answer} is all I have to write down?", "that means {answer} at the end?",
         "and {answer} is the final answer?", "so I put {answer}?", "it really is {answer}?", "then {answer} it is?",
         "so I can hand in {answer}?", "{answer}, that's it?", "so the answer is just {answer}?", "{answer}, final?",
         "I write {answer} then?"),
        ("", " Just to be sure.", " I have to hand it in."),
    ),
    "thanks": Act(
        "user",
        ("", "Ok, ", "Ah, ", "Nice, ", "Oh, ", "Cool, "),
        ("thanks.", "got it.", "that makes sense now.", "thx, that helped.", "now I get it.", "that was easier than I thought.",
         "I'll try the next one alone.", "perfect.", "great, thank you.", "so that's how it works."),
        ("", " Bye!", " I'm done for today.", " On to the next one."),
    ),
}
