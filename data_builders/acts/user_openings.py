"""How users open: with the problem and some words around it, or with hardly more than a feeling.

`{question}` is the problem word for word, or with something withheld. The same words stand around a complete and an
incomplete problem, so that they say nothing about which of the two it is.
"""

from __future__ import annotations

from data_builders.acts.act import Act

# fmt: off
USER_OPENINGS: dict[str, Act] = {
    "open": Act(
        "user",
        ("", "Hi! ", "Hey, ", "Ok, ", "Hello. ", "So, ", "Homework again. ", "Quick one. "),
        ("can you solve this?\n\n{question}", "can you help me with this one?\n\n{question}", "what do you get here?\n\n{question}",
         "here's the problem:\n\n{question}", "this is the next one:\n\n{question}", "I need the answer to this.\n\n{question}",
         "how does this one work?\n\n{question}", "please solve:\n\n{question}", "I need help with this one:\n\n{question}",
         "could you do this one for me?\n\n{question}"),
        ("", "\n\nThanks!", "\n\nShow me how you get there.", "\n\nI have no idea how to do this.", "\n\nWith steps please.",
         "\n\nI got nowhere."),
        plain="{question}", bare=0.7,
    ),
    "vague": Act(
        "user",
        ("", "Hi, ", "Hey, ", "Help! ", "Hi there. ", "Ugh. ", "Ok so, "),
        ("I'm stuck on {a_topic}.", "there's {a_topic} I don't get.", "I have {a_topic} here and no idea how to begin.",
         "I've been staring at {a_topic} for half an hour.", "I keep getting nonsense on {a_topic}.",
         "we got {a_topic} for homework and it makes no sense to me.", "I need help with {a_topic}.",
         "I can't get anywhere with {a_topic}.", "it's about {a_topic}. I'm lost.", "I messed up {a_topic} on the last test."),
        ("", " Can you help?", " Got a minute?", " Can you help me with it?", " The test is tomorrow.", " Please help.",
         " Where do I even begin?"),
    ),
    "give": Act(
        "user",
        ("", "Ok. ", "Sure, ", "Yeah, ", "Thanks. ", "Right, "),
        ("here it is:\n\n{question}", "this one:\n\n{question}", "it says:\n\n{question}", "the sheet says:\n\n{question}",
         "from the book:\n\n{question}", "it goes like this:\n\n{question}", "I'll copy it:\n\n{question}",
         "so:\n\n{question}"),
        ("", "\n\nAny idea?", "\n\nI don't know where to begin.", "\n\nI hope I typed it right.", "\n\nHow does that work?"),
        plain="{question}", bare=0.4,
    ),
    "wrong_start": Act(
        "user",
        ("", "Can you check this?\n\n", "My homework:\n\n", "Is this right?\n\n", "I did this one:\n\n", "Please check:\n\n",
         "Check me on this.\n\n", "Hi, this is mine:\n\n", "I'm not sure about this one.\n\n"),
        ("{question}\n\nI got {slip}. {way}", "{question}\n\nMy answer is {slip}. {way}", "{question}\n\nIs it {slip}? {way}",
         "{question}\n\nI think it's {slip}. {way}", "{question}\n\nI tried it and have {slip}. {way}",
         "{question}\n\nI say {slip}. {way}", "{question}\n\nMy result is {slip}. {way}", "{question}\n\n{slip}, right? {way}",
         "{question}\n\nIt came out as {slip}. {way}", "{question}\n\nShould be {slip}, no? {way}",
         "{question}\n\nI wrote {slip}. {way}", "{question}\n\nI ended up with {slip}. {way}"),
    ),
    # How the wrong result came about, as a part of another turn.
    "way": Act(
        "user",
        ("", "Hm, ", "You see, ", "Well, "),
        ("I did {did}.", "Because {did}.", "My way: {did}.", "I just took {did}.", "I went with {did}.", "I wrote {did}.",
         "I used {did}.", "I calculated {did}.", "What I did: {did}.", "I had {did}."),
        ("", " Where's the mistake?", " What did I do wrong?", " Is that not allowed?", " I checked it twice.", " Looks fine to me."),
    ),
    "way_formula": Act(
        "user",
        ("", "Hm, ", "You see, ", "Well, "),
        ("I have {quote}.", "Because {quote}.", "I got to {quote}.", "I found {quote}.", "At the end I have {quote}.",
         "It comes from {quote}.", "I came to {quote}.", "My last line is {quote}.", "I ended with {quote}.",
         "On my paper it says {quote}."),
        ("", " That's it, no?", " What's wrong with that?", " Is that not the answer?", " I checked it twice.", " Looks fine to me."),
    ),
    "ask_hint": Act(
        "user",
        ("", "I need a hint for this one.\n\n", "I'm stuck here.\n\n", "Don't solve this for me!\n\n", "Ok, a hard one:\n\n",
         "I want to do this one myself.\n\n"),
        ("{question}\n\nJust a hint please.", "{question}\n\nGive me a hint, I'll do the rest.",
         "{question}\n\nhow do I start?", "{question}\n\nOnly a hint, ok?", "{question}\n\nWhat should I do first?",
         "{question}\n\nhint?", "{question}\n\nA small push would be enough.", "{question}\n\nHow would you begin?",
         "{question}\n\nWhich way should I go?", "{question}\n\nOne tip please."),
        ("", " No solution.", " Don't tell me the result.", " I want to solve it myself."),
    ),
    "ask_guided": Act(
        "user",
        ("", "Can we do this one together?\n\n", "Here's one I want to understand:\n\n", "Next one:\n\n",
         "Help me with this one:\n\n", "I want to learn how this works.\n\n"),
        ("{question}\n\nOne step at a time please.", "{question}\n\nWalk me through it slowly.",
         "{question}\n\nStart with the first step and wait for me.", "{question}\n\nGive me the first step, then stop.",
         "{question}\n\nGo step by step and let me follow.", "{question}\n\nNot all at once, step by step.",
         "{question}\n\nFirst the beginning only, then we go on.", "{question}\n\nLet's take it in small steps.",
         "{question}\n\nExplain it in parts and wait after the first.", "{question}\n\nBegin, and then let me catch up."),
        ("", " I get lost otherwise.", " I want to understand every part.", " I'm slow with these."),
    ),
    # One given, stated twice with two values; `{second}` is the statement with the other value.
    "two_values": Act(
        "user",
        ("", "Hi! ", "Hey, ", "Next one. ", "Ok, ", "Hello. "),
        ("can you solve this?\n\n{question}\n\n{second}", "what do you get here?\n\n{question}\n\n{second}",
         "this is the next one:\n\n{question}\n\n{second}", "could you do this one for me?\n\n{question}\n\n{second}", "I need help with this one:\n\n{question}\n\n{second}",
         "here's the problem:\n\n{question}\n\n{second}", "what's the answer here?\n\n{question}\n\n{second}",
         "how does this one work?\n\n{question}\n\n{second}", "please solve:\n\n{question}\n\n{second}"),
        ("", "\n\nThanks!", "\n\nWith steps please.", "\n\nHow do I do this?"),
        plain="{question}\n\n{second}", bare=0.3,
    ),
    # A part of the turn above: where the other value stands.
    "second": Act(
        "user",
        ("", "Oh, and ", "Also, ", "One more thing: ", "Ah, ", "By the way, ", "And ", "Hm, ", "P.S. ", "Ok, and ", "Don't know why, but ", "Not sure if it matters, but ", "Strange, ",
         "If it helps, ", "Oh, "),
        ("below that it says: {statement}", "in my notes it says: {statement}", "on the back it says: {statement}",
         "at the end there is this line: {statement}", "further down it says: {statement}", "my friend's sheet says: {statement}",
         "the caption says: {statement}", "somebody wrote next to it: {statement}", "a second line says: {statement}",
         "the other copy says: {statement}", "under the title it says: {statement}", "the last line is: {statement}"),
    ),
}
