"""Conversations and labelled next turns, written for these tests; several of each label, in mathematics and outside."""

from __future__ import annotations

from probe.judges import get_judge
from probe.judges.labels import Case, Verdict, judge_all

CONVERSATIONS: dict[str, tuple[str, str]] = {
    "paint": (
        "Nadia paints a fence of 18 panels. Each panel takes 25 minutes and she takes a 10 minute break after every 6 "
        "panels. How many minutes does the whole job take?",
        "Painting: 18 × 25 = 450 minutes.\nBreaks: after panels 6, 12 and 18, so 3 × 10 = 30 minutes.\n\n"
        "The whole job takes 450 + 30 = 480 minutes.",
    ),
    "roots": (
        "Solve $x^2 - 5x + 6 = 0$.",
        "Factor: $x^2-5x+6=(x-2)(x-3)$, so the roots are $x=2$ and $x=3$.\n\nThe answer is $\\boxed{2, 3}$.",
    ),
    "missing": (
        "A baker sells muffins for $3 each. How much does he earn on Saturday?",
        "I can work that out, but one thing is missing. How many muffins does he sell on Saturday?",
    ),
    "sourdough": (
        "Why is my sourdough bread so dense?",
        "The usual reasons are a weak starter, too short a bulk fermentation, or too little water. Check that your "
        "starter doubles within six hours, and let the dough grow by half before you shape it.",
    ),
    "python": (
        "How do I remove duplicates from a Python list but keep the order?",
        "Use `list(dict.fromkeys(items))`. Dictionaries keep insertion order, so the first copy of every item stays.",
    ),
    "email": (
        "Write a short email to my neighbour Mr. Okafor asking him to keep his dog quiet at night.",
        "Dear Mr. Okafor,\n\nI hope you are well. I wanted to mention that your dog has been barking after midnight "
        "this week, and I have found it hard to sleep. Could you keep him indoors at night?\n\nBest wishes,\nPriya",
    ),
    "quiz": (
        "Quiz me on chemistry, one question at a time.",
        "What is the chemical symbol for potassium?",
    ),
    "cut": (
        "Explain how a heat pump works.",
        "A heat pump moves heat instead of making it. A refrigerant evaporates in the outdoor coil, which draws heat "
        "from the air even when it is cold, and then the compressor",
    ),
}

# conversation, turn
TURNS: dict[str, list[tuple[str, str]]] = {
    "genuine_followup": [
        ("paint", "why do you count a break after panel 18? she's already done by then"),
        ("paint", "ok and what if she only rests 5 minutes each time"),
        ("paint", "Wait, shouldn't it be 470, since the last break doesn't matter?"),
        ("paint", "I got 460. Did I drop one of the breaks?"),
        ("roots", "How did you know to use 2 and 3 for the factors?"),
        ("roots", "so does that trick still work if the middle term is +5x instead"),
        ("missing", "he sells 40 of them"),
        ("missing", "Oh sorry, I forgot that part. It says 36 muffins."),
        ("sourdough", "My starter only rises by maybe a third in six hours, is that what you mean by weak?"),
        ("sourdough", "How do I tell when the dough has grown by half? I just use a mixing bowl."),
        ("python", "what if the items are lists though, those aren't hashable"),
        ("python", "Does that still keep the order in 3.5? We're stuck on an old server."),
        ("email", "Make it a bit friendlier and leave out the part about me not sleeping."),
        ("email", "Too formal, he's about my age. Call him Tunde."),
        ("quiz", "K"),
        ("quiz", "is it P? no wait that's phosphorus"),
        ("cut", "you got cut off after the compressor"),
        ("cut", "Continue, what does the compressor do?"),
    ],
    "user_restatement": [
        (
            "paint",
            "Nadia paints a fence of 18 panels. Each panel takes 25 minutes and she takes a 10 minute break after "
            "every 6 panels. How many minutes does the whole job take?",
        ),
        ("paint", "How many minutes does the whole job take?"),
        ("roots", "Solve x^2 - 5x + 6 = 0."),
        ("sourdough", "Why is my sourdough bread so dense?"),
        ("python", "How can I remove the duplicates from a list in Python but keep the order?"),
        ("email", "Please write a short email to my neighbour Mr. Okafor asking him to keep his dog quiet at night."),
    ],
    "assistant_restatement": [
        ("paint", "Painting takes 450 minutes and the breaks take 30 minutes, so the whole job takes 480 minutes."),
        ("roots", "The roots are x = 2 and x = 3."),
        ("sourdough", "The usual reasons are a weak starter, too short a bulk fermentation, or too little water."),
        ("python", "Dictionaries keep insertion order, so the first copy of every item stays."),
    ],
    "role_drift": [
        ("paint", "Is it known how many minutes each panel takes?"),
        ("paint", "You didn't say how many panels the fence has. Can you tell me?"),
        (
            "paint",
            "Let's check this step by step. First, 18 × 25 = 450. Then we add the breaks: 450 + 30 = 480. "
            "Therefore, the answer is 480 minutes.",
        ),
        (
            "paint",
            "You're right, I apologize for the mistake. There are only two breaks, so the total is 450 + 20 = 470.",
        ),
        (
            "roots",
            "You can also use the quadratic formula: x = (5 ± √(25 − 24)) / 2 = (5 ± 1) / 2, which gives 3 and 2.",
        ),
        ("sourdough", "I hope this helps! Let me know if you have any other questions about baking."),
        ("sourdough", "Remember, practice makes perfect. Happy baking, and feel free to ask if you need more tips!"),
        (
            "python",
            "Here's another way to do it:\n\n```python\nseen = set()\nresult = []\nfor item in items:\n"
            "    if item not in seen:\n        seen.add(item)\n        result.append(item)\n```",
        ),
        ("email", "Certainly! Here is a friendlier version:\n\nHi Mr. Okafor,\n\nHope you are doing great."),
        ("missing", "Would you like me to assume a number of muffins?"),
        ("cut", " raises its pressure and temperature, so that it gives off its heat indoors."),
        ("quiz", "Correct! Next question: what is the symbol for sodium?"),
    ],
    "new_task": [
        (
            "paint",
            "A farmer has 24 cows and 36 sheep. He sells a third of the cows and buys 8 goats. How many animals "
            "does he have now?",
        ),
        ("paint", "Write a poem about the sea in winter."),
        ("roots", "What is the capital of Portugal?"),
        ("sourdough", "Translate the following sentence into French: The train leaves at noon."),
        ("sourdough", "List five famous painters of the Renaissance."),
        ("python", "Write a function that computes the factorial of a given integer."),
        ("email", "Which of the following is a mammal?\nA) trout\nB) whale\nC) eagle\nD) frog"),
        ("quiz", "Explain the causes of the French Revolution in three paragraphs."),
    ],
    "meta_planning": [
        (
            "paint",
            "The user would probably check the number of breaks now. I should write a short message in their voice.",
        ),
        (
            "roots",
            "We need to generate the next user message. The assistant solved the equation, so the user might ask "
            "about another one.",
        ),
        (
            "sourdough",
            "Okay, so what would a real person say here? They might mention their starter. Keep it short and casual.",
        ),
        (
            "python",
            "The user seems satisfied with the answer. The next turn should be a thank you or a question about speed.",
        ),
    ],
    "generic_filler": [
        ("paint", "Thanks, that was very helpful!"),
        ("roots", "Great explanation, thank you so much."),
        ("sourdough", "Interesting. Can you tell me more?"),
        ("python", "What do you think?"),
        ("email", "Sounds good, thanks!"),
    ],
    "malformed": [
        (
            "paint",
            "The job takes 480 minutes. The job takes 480 minutes. The job takes 480 minutes. The job takes 480 "
            "minutes. The job takes 480 minutes.",
        ),
        ("roots", "<|im_end|>\n<|im_start|>user\n<|im_end|>"),
        ("roots", "x^2-5x+6=(((((((((((((((((((((((((((((((((("),
        ("sourdough", "</div></span><br/><p></p><|endoftext|>"),
        ("python", '{"tool_call": {"name": "run", "args": {"code": "["[["["}}}]]'),
        ("email", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"),
        (
            "cut",
            "What is the heat of the heat of the heat of the heat of the heat of the heat of the heat of the heat of",
        ),
    ],
    "degenerate": [
        ("paint", ""),
        ("roots", "."),
        ("sourdough", "the"),
        ("python", "   \n\n  "),
        ("email", "a of"),
    ],
}

JUDGE = get_judge("rules")
ALL_TURNS = [(label, name, turn) for label, turns in TURNS.items() for name, turn in turns]


def case(name: str, turn: str) -> Case:
    question, answer = CONVERSATIONS[name]
    return Case(({"role": "user", "content": question}, {"role": "assistant", "content": answer}), turn)


def judge(name: str, turn: str) -> Verdict:
    return judge_all(JUDGE, [case(name, turn)])[0]
