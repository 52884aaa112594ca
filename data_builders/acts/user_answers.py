"""What users say while a problem is being worked on: they supply what was asked for, try, follow, or give up."""

from __future__ import annotations

from data_builders.acts.act import Act, Parts

# Some are sorry, some are short with whoever asks.
_SORRY: Parts = ("", "Oh, ", "Sorry, ", "Oops, ", "Right, ", "Ah, ", "My bad. ", "Ugh, ", "I thought I wrote that. ",
                 "Let me look. ", "Come on, ", "Didn't I say? ", "Forgot that. ", "Hm, ")  # fmt: skip

_YES: Parts = ("", "Yes, ", "Ok, ", "Yeah, ", "I think so, ", "Mhm, ", "Yep, ", "Alright, ", "Sure, ", "Right, ")
_TRY: Parts = (
    "",
    "Ok, ",
    "So, ",
    "Let me try. ",
    "Hmm, ",
    "Got it, ",
    "Ah, ",
    "Like this? ",
    "I tried, ",
    "Well, ",
    "Alright, ",
    "Let's see, ",
    "Oh, ",
    "I think I have it. ",
)

# fmt: off
USER_ANSWERS: dict[str, Act] = {
    # What is withheld, by its kind: {reveal} is a sentence, {short} the bare thing.
    "reveal_number": Act(
        "user", _SORRY,
        ("{reveal}", "it's {short}.", "{short}.", "it says {short}.", "that one is {short}.", "{short}, I left that out.",
         "{short}, I skipped it.", "it should say {short}.", "I see it now, {short}.", "here it says {short}.",
         "{short}. Go on.", "it was {short}."),
        plain="{short}", bare=0.15,
    ),
    "reveal_formula": Act(
        "user", _SORRY,
        ("{reveal}", "it's {short}.", "{short}.", "it says {short}.", "I left it out: {short}.", "I skipped that line: {short}.",
         "the book has {short}.", "that was {short}.", "I see it now: {short}.", "here it says {short}.", "it was {short}."),
        plain="{short}", bare=0.15,
    ),
    "reveal_goal": Act(
        "user", _SORRY,
        ("{reveal}", "I cut off the end: {short}", "it ends with this: {short}", "the last line is missing: {short}",
         "here's the question: {short}", "the task is this: {short}", "it goes on: {short}", "the end of it: {short}",
         "there is one more line: {short}", "I need this: {short}", "what they want is this: {short}"),
        plain="{short}", bare=0.15,
    ),
    "reveal_figure": Act(
        "user", _SORRY,
        ("{reveal}", "here it is:\n\n{short}", "it didn't come through:\n\n{short}", "I forgot to paste it:\n\n{short}",
         "this is what it looks like:\n\n{short}", "that's it:\n\n{short}", "this goes with it:\n\n{short}",
         "it came with this:\n\n{short}", "the code of it:\n\n{short}"),
        ("", "\n\nCan you see it now?", "\n\nThat's all of it."),
        plain="{short}", bare=0.15,
    ),
    # The user does not see at first what is being asked for.
    "huh": Act(
        "user",
        ("", "Hm, ", "Wait, ", "Sorry, ", "Uh, ", "Huh? "),
        ("what do you mean?", "which one do you mean?", "I don't get what you're asking.", "isn't it in the text?",
         "I typed everything, no?", "what exactly is missing?", "it's all there, isn't it?", "where is that missing?",
         "you need what?", "didn't I write that?"),
        ("", " I copied it all.", " I'm confused.", " I don't see it."),
    ),
    "wrong_thing": Act(
        "user",
        ("", "Hm, ", "Wait, ", "Uh, ", "Ok, ", "Huh? "),
        ("you mean {known}?", "that's {known}, it's in there.", "I wrote {known}.", "isn't that {known}?",
         "it says {known} right there.", "is it {known}?", "{known}, no?", "you have it already: {known}.",
         "what about {known}?", "the text has {known}."),
        ("", " I did give that.", " Or something else?"),
    ),
    # It is not to be had, and then it is.
    "no_idea": Act(
        "user",
        ("", "Hm, ", "Sorry, ", "No, ", "Nope. ", "I looked again, "),
        ("that's all it says.", "it doesn't say.", "that isn't given anywhere.", "I don't have that.",
         "there's nothing about it on my sheet.", "the book doesn't tell me.", "no idea, that's the whole text.",
         "I can't find it.", "it's not in there."),
        ("", " Can't you just assume something?", " Can you solve it anyway?", " Just give me an answer.", " Does it matter?",
         " What now?", " Take whatever you like."),
    ),
    "found": Act(
        "user",
        ("", "Oh wait, ", "Ok, ", "Found it. ", "I asked my teacher. ", "There it is. ", "It was on the next page. ",
         "My friend has it. ", "Got it now. ", "You were right, ", "Hold on, ", "It was under the fold. "),
        ("{reveal}", "it's there: {short}", "it says this: {short}", "this was missing: {short}", "I overlooked it: {short}",
         "the sheet has it after all: {short}", "that was on the back: {short}", "here you go: {short}",
         "the missing bit: {short}", "I found this: {short}"),
        ("", "\n\nDoes that do it?", "\n\nNow?"),
    ),
    "pick": Act(
        "user",
        ("", "Oh, ", "Oops, ", "Good catch, ", "Sorry, ", "Hm, ", "Uh, ", "I checked, ", "Didn't see that, ", "Ah, "),
        ("it's {short}.", "{short}.", "take {short}.", "{short}, not {other}.", "{short} is right.", "go with {short}.",
         "{other} is a typo, it's {short}.", "the {other} is from another problem. {short}.", "{short} is what the book says.",
         "forget the {other}. {short}.",
         "the first one, {short}.", "I copied {other} by mistake. {short} it is."),
        ("", " Sorry about that.", " My mistake."),
    ),
    # A first step was given.
    "go_on": Act(
        "user",
        _YES,
        ("{result} makes sense. What comes after that?", "so {result}. And then?", "I see the {result}. What next?",
         "I got {result} there too. What's the rest?", "{expression} is clear. Show me the rest.",
         "now what do I do with the {result}?", "{equation}, got it. Next?", "I can follow {expression}. What now?",
         "{result} it is. How does it go on?",
         "{result}, ok. And now?", "I wrote down {equation}. What follows?"),
    ),
    "go_on_text": Act(
        "user",
        _YES,
        ("that part is clear. And then?", "I can follow that. What comes next?", "that makes sense so far. What's the rest?",
         "I get why it starts like that. How does it go on?", "I'd have begun the same way. What now?",
         "got it. Next?", "I see it. What do we do with that?", "so that's the start. Where does it lead?",
         "fine so far. Show me the rest.", "clear. Go on."),
        ("", " I'm writing it down.", " I'm still with you."),
    ),
    "lost": Act(
        "user",
        ("", "No, ", "Not really, ", "Hm, ", "Wait, ", "Sorry, "),
        ("why {expression}?", "why do you {verb} there?", "where does the {result} come from?", "how did you get {result}?",
         "I don't see why you {action}.", "what is {expression} for?", "I don't get the {result}."),
        ("", " Then go on please.", " And what comes after it?", " I'd like to get that before we go on."),
    ),
    # A hint was given.
    "attempt": Act(
        "user",
        _TRY,
        ("{tried}. Is that it?", "I get {tried_result}. Right?", "{tried}. And now?", "that's {tried_result}, what's next?",
         "then {tried}?", "{tried}, correct?", "I did {tried}. Ok?", "{tried_result}? And then?", "my result is {tried_result}.",
         "I come to {tried_result}. Good?", "{tried}, I think."),
        ("", " I'm not sure.", " I did it in my head."),
    ),
    "try_formula": Act(
        "user",
        _TRY,
        ("I get {formula}. Right?", "then {formula}?", "{formula}, correct?", "that gives me {formula}. And now?",
         "I have {formula} now. What's next?", "{formula}. Is that the way?", "it leads to {formula}, no?",
         "so far I have {formula}.", "I came to {formula}. Ok?", "{formula}, I think.",
         "does that make {formula}?"),
        ("", " I'm not sure.", " It took me a while."),
    ),
    "try_result": Act(
        "user", _TRY,
        ("is it {slip}? {way}", "then it's {slip}? {way}", "I get {slip}. {way}", "that makes {slip}. {way}",
         "so {slip}? {way}", "{slip}, done? {way}", "I'd say {slip}. {way}", "it comes out as {slip}. {way}",
         "my answer is {slip}. {way}", "{slip}. Is that it? {way}",
         "I come to {slip}. {way}", "I wrote {slip}. {way}", "could it be {slip}? {way}", "it should be {slip}. {way}"),
    ),
    "stuck": Act(
        "user",
        ("", "Hm, ", "Ok, but ", "Sorry, ", "Hmm. ", "No, ", "Argh, ", "Honestly, "),
        ("I still don't see it.", "I don't know what to do with that.", "I got that far, and now?", "what do I do after that?",
         "I need one more hint.", "that's not enough for me.", "I'm still stuck.", "and how does that help?",
         "I don't see where this is going.", "one more push?"),
        ("", " I've tried twice.", " I have the hint in front of me.", " My page is empty.", " I don't want the solution yet."),
    ),
    "give_up": Act(
        "user",
        ("", "Ok, ", "Nah, ", "Hm, ", "Alright, ", "Sorry, ", "Argh, ", "Honestly, "),
        ("just show me the rest.", "I give up, how does it end?", "I don't get it. Show me how it's done.",
         "I'd rather see the whole thing now.", "please finish it for me.", "no chance. What's the answer?",
         "my head hurts, just tell me.", "I can't do it. What comes next?", "tell me the rest.", "show me, I'm out of time."),
        ("", " I tried.", " It's too hard.", " I'd like to see the end."),
    ),
}
