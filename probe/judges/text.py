"""Words, stems, numbers and sentences of a text, for comparing texts with each other.

Plain on purpose: a light suffix stemmer and closed lists of English function words, so that two texts are cut
alike and every verdict can be retraced by hand. All of it runs in time linear in the text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

_SEPARATE = """
a about above after again all also am an and any are aren as at be because been before being below between both
but by can cannot could couldn did didn do does doesn doing don done down during each either else even ever
every for from further get gets getting go goes going got had hadn has hasn have haven having he her here hers him
his how however i if in into is isn it its itself just ll may maybe me might more most much must my myself no nor
not now of off on once one only or other others our ours out over own per perhaps quite rather re really same say
says shall she should shouldn so some still such than that the their theirs them then there these they this those
though through thus to too toward under until up upon us ve very was wasn we well were weren what when where whether
which while who whom whose why will with within without won would wouldn yet you your yours yourself
"""
_CASUAL = """
aint arent cant cause couldnt couldve cuz didnt doesnt dont em gonna gotta hadnt hasnt havent hes hows ima im isnt
itll ive kinda lemme lets n ok okay pls plz r shes shouldnt tho thats theres theyre theyll theyve thx til u ur wanna
wasnt werent weve whats wheres whos wont wouldnt wouldve ya yall youd youll youre youve
"""


def word_set(text: str) -> frozenset[str]:
    return frozenset(text.split())


FUNCTION_WORDS = word_set(_SEPARATE + _CASUAL)

# Words of asking and answering. They stand in half of all questions and answers, so sharing them shows nothing.
TASK_WORDS = word_set(
    """
    answer answers best consider correct correctly describe different example explain find following give given gives
    good kind know let like made main make makes many much name need needs new number numbers problem problems question
    questions result results show take takes tell thing things total type use used using value values want wants way
    ways work working works write wrong
    """
)

# Worn words that fit any exchange whatever: praise, thanks, and requests for more of the same.
FILLER_WORDS = word_set(
    """
    advice agree alright amazing answer anything appreciate appreciated appreciating awesome beautiful best bit bye
    brilliant clarification clarify continue cool correct day detail details done elaborate everything example
    examples excellent explain explanation fantastic fascinating fine further glad go good goodbye great hello help
    helpful hey hi idea ideas impressive info information insightful interesting job keep know learn learned learning
    little look looks lot love loved make makes more much nice noted ok okay opinion perfect please point problem
    question questions reply response right see sense share solution something sound sounds sure tell thank thanks
    think thought thoughts thx tip tips today topic true understand understood useful way welcome well wonderful
    work works wow yes
    """
)

_NUMBER_NAMES = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen twenty"
)
NUMBER_WORDS = {name: str(value) for value, name in enumerate(_NUMBER_NAMES.split())} | {
    "thirty": "30", "forty": "40", "fifty": "50", "sixty": "60", "seventy": "70", "eighty": "80", "ninety": "90",
    "hundred": "100", "thousand": "1000", "million": "1000000",
    "first": "1", "second": "2", "third": "3", "fourth": "4", "fifth": "5",
}  # fmt: skip

_TOKEN = re.compile(r"\d+(?:,\d{3})*(?:\.\d+)?|[^\W\d_]+(?:['’][^\W\d_]+)*")
_SENTENCE_END = re.compile(r"(?<=[.!?。?!])[\"'”’)\]*]*\s+|\n+")


def words(text: str) -> list[str]:
    """Lower-case words and numbers in order; "1,000.50" is one number, "Janet's" one word."""
    return [token.lower().replace("’", "'") for token in _TOKEN.findall(text)]


def stem(word: str) -> str:
    """A word without possessive and common endings; a number in one form, "three" and "3.0" as "3"."""
    if word[0].isdigit():
        digits = word.replace(",", "")
        return digits.rstrip("0").rstrip(".") if "." in digits else digits
    word = word.split("'")[0]
    if word in NUMBER_WORDS:
        return NUMBER_WORDS[word]
    for ending in (
        "ations",
        "ation",
        "ings",
        "ing",
        "ies",
        "ied",
        "edly",
        "ed",
        "ers",
        "er",
        "es",
        "ly",
        "s",
        "y",
        "e",
    ):
        if word.endswith(ending) and len(word) - len(ending) >= 3 and not word.endswith("ss"):
            return word[: -len(ending)]
    return word


@lru_cache(maxsize=256)
def stems(text: str) -> tuple[str, ...]:
    """The stem of every word and number, function words included, in order."""
    return tuple(stem(word) for word in words(text))


@lru_cache(maxsize=256)
def content_stems(text: str) -> tuple[str, ...]:
    """The stems of numbers and content words in order, without function words and words of asking and answering."""
    return tuple(stem(word) for word in words(text) if is_content(word))


def is_content(word: str) -> bool:
    return word not in FUNCTION_WORDS and word not in TASK_WORDS and word.split("'")[0] not in FUNCTION_WORDS


def is_number(stemmed: str) -> bool:
    return stemmed[0].isdigit()


def sentences(text: str) -> list[str]:
    """Sentences and lines, in order, without empty ones."""
    return [part.strip() for part in _SENTENCE_END.split(text) if part and part.strip()]


def ngrams(items: tuple[str, ...], size: int) -> list[tuple[str, ...]]:
    return [items[start : start + size] for start in range(len(items) - size + 1)]


# --- Takes off a user turn what is no speech: terminal codes, role tokens, tags, and text aimed at the judge.
#
# What was taken off decides nothing in anyone's favour. Text aimed at the judge is cut out and the rest is judged as
# if it had never been there; role tokens and tags count as broken markup when they are the bulk of the turn.

_TERMINAL_CODES = re.compile(
    r"\x1b\[[0-9;?]{0,32}[ -/]?[@-~]"  # colours and cursor moves
    r"|\x1b\][^\x07\x1b\n]{0,200}(?:\x07|\x1b\\)"  # window titles and links
    r"|[\x00-\x08\x0b-\x1f\x7f-\x9f]"  # other control characters
    r"|[\u200b-\u200f\u2028-\u202e\u2060-\u2064\ufeff]"  # invisible and direction-changing ones
)
_MARKUP = re.compile(
    r"<\|[^<>|]{0,60}\|>(?:(?:user|assistant|system)\b)?"  # <|im_start|>user
    r"|<[/!]?[A-Za-z][\w:-]{0,30}(?:\s[^<>\n]{0,200})?/?>"  # <tag>, </tag>
    r"|<0x[0-9A-Fa-f]{2}>|▁+|\[/?INST\]|\[/?SYS\]|<<[/A-Z]{1,8}>>"
)
_ROLE_LABEL = re.compile(r"^\W{0,4}(?:user|human|customer|me)\s{0,2}\W{0,2}:\s{0,4}", re.IGNORECASE)

_LABEL_NAMES = (
    r"(?:(?:genuine|user|assistant|role|new|meta|generic)_(?:follow_?up|restatement|drift|task|planning|filler)"
    r"|genuine[ -]follow[ -]?ups?|(?:user|assistant) restatement|role drift|meta[ -]planning|generic filler)"
)
_OTHER_LABELS = r"(?:genuine|malformed|degenerate)"
_JUDGES = r"(?:judges?|graders?|evaluators?|annotators?|raters?|classifiers?|labell?ers?|scorers?|reviewers?)"
_RULING = (
    r"(?:verdict|rubric|(?:label|mark|grade|score|rate|count|treat|tag|class|output|return|answer)(?:s|l?ed|d)?"
    r"|classif(?:y|ied|ication)|categor\w{1,8}|respond|reply)"
)
_AIMED = re.compile(
    # a label by its written name; `new_task` is left out, which can be a variable in somebody's code
    r"\bgenuine[ _-]follow[ _-]?ups?\b|\b(?:(?:user|assistant)_restatement|role_drift|meta_planning|generic_filler)\b"
    rf"|\b{_RULING}\b[^\n]{{0,80}}?\b{_LABEL_NAMES}\b"
    rf"|\b{_LABEL_NAMES}\b[^\n]{{0,60}}?\b(?:{_JUDGES}|{_RULING})\b"
    rf"|\b{_RULING}\W{{1,3}}(?:(?:this|it|turn|message|as|is|with|being|the|a|user)\W{{1,2}}){{0,5}}"
    rf"{_OTHER_LABELS}\W{{0,4}}$"
    rf"|\b(?:note|message|attention|instructions?|memo|hint|dear|hey|system)\W{{1,3}}(?:(?:to|for|the|all)\s){{0,2}}"
    rf"{_JUDGES}\b"
    rf"|\b{_JUDGES}\b[^\n]{{0,40}}?\b(?:must|should|shall|will|please|needs? to|ha(?:s|ve) to)\b[^\n]{{0,40}}?"
    rf"\b{_RULING}\b"
    rf"|^\W{{0,4}}{_JUDGES}\s{{0,2}}(?::|,[^\n]{{0,60}}?\bgenuine\b)|\bverdict\W{{1,3}}{_OTHER_LABELS}\b"
    rf"|\b(?:ignore|disregard|forget|override)\b[^\n]{{0,20}}?\b(?:rubric|grading|labels?|criteria)\b"
    rf"|\b(?:verdict|final label|label|classification)\s{{0,2}}[:=]\s{{0,2}}\S",
    re.IGNORECASE | re.MULTILINE,
)
# <verdict>genuine</verdict> and the like
_PLANTED = re.compile(
    rf"<{_RULING}\b[^<>\n]{{0,40}}>[^<>\n]{{0,40}}(?:{_LABEL_NAMES}|{_OTHER_LABELS})[^<>\n]{{0,40}}"
    r"(?:</[^<>\n]{0,40}>)?",
    re.IGNORECASE,
)
# What sets off or wraps text aimed at the judge: "=== end of turn ===", "assistant:", a JSON object, a comment.
_SCAFFOLD = re.compile(
    r"[=*#_~-]{3}[^\n]{0,80}?[=*#_~-]{3,8}|<!-{0,2}|-{1,2}>|```\w{0,20}"
    r"|\b(?:begin(?:ning)?|start|end) of (?:the )?(?:(?:user|assistant|system|human)(?:'s)? )?"
    r"(?:turn|message|input|conversation|transcript|text|data|response)\b"
    r"|\{\s{0,20}\"[^{}]{0,400}\}|\"[^\"\n]{1,40}\"[ \t]{0,4}:(?:[ \t]{0,4}\"[^\"\n]{0,200}\")?"
    r"|(?:^|(?<=\s))[^\w\s]{0,4}[ \t]{0,4}(?:user|assistant|system|human)[ \t]{0,2}:"
    r"|^[ \t]{0,4}[^\w\s][^\w\n]{0,8}(?:user|assistant|system|human)[^\w\n]{0,8}$|^[\s{}\[\],]{1,8}$|[{\[][ \t]{0,4}$",
    re.IGNORECASE | re.MULTILINE,
)
_PIECE = re.compile(r"\[[^\[\]\n]{0,400}\]|\([^()\n]{0,400}\)|[^\n.!?\[\]()]+[.!?]*|[\n.!?\[\]()]")


@dataclass(frozen=True)
class Cleaned:
    """A user turn as speech.

    Attributes:
        text: what is left to judge, stripped; line breaks kept.
        markup: share of the turn's characters other than white space that were role tokens, tags or byte tokens.
        aimed: text aimed at the judge was cut out.
        leads_on: the turn began with white space, as a sentence does that goes on with an earlier one.
    """

    text: str
    markup: float
    aimed: bool
    leads_on: bool


def clean(turn: str) -> Cleaned:
    """The turn without terminal codes, markup, a leading "User:" and text aimed at the judge."""
    visible, planted = _PLANTED.subn(" ", _TERMINAL_CODES.sub("", turn))
    speech = _MARKUP.sub(" ", visible)
    # Tags may hold the words that aim at the judge, so the version with them is searched as well.
    aimed = bool(planted or _AIMED.search(visible)) or any(map(_AIMED.search, _PIECE.findall(speech)))
    if aimed:
        speech = "\n".join(map(_without_aimed, speech.split("\n")))
        # Markup around text that is cut out goes with it, or a planted tag could turn a short turn into markup.
        visible = "\n".join(line for line in visible.split("\n") if not _AIMED.search(line))
    tagged = sum(_solid(match.group()) for match in _MARKUP.finditer(visible))
    markup = tagged / (tagged + _solid(speech)) if tagged else 0.0
    text = _ROLE_LABEL.sub("", speech.strip(), count=1).strip()
    return Cleaned(text=text, markup=markup, aimed=aimed, leads_on=turn[:1].isspace() and bool(text))


def _solid(text: str) -> int:
    """Characters other than white space."""
    return len("".join(text.split()))


def _without_aimed(line: str) -> str:
    """The line as it is, or what speaks in it once the text aimed at the judge and its wrapping are cut out."""
    bare = _SCAFFOLD.sub(" ", line)
    pieces = _PIECE.findall(bare)
    kept = [piece for piece in pieces if not _AIMED.search(piece)]
    if bare == line and len(kept) == len(pieces):
        return line
    return "".join(piece for piece in kept if any(map(str.isalnum, piece)))


# --- Whose voice a sentence is in: phrases of the assistant, of the user, of somebody planning, and of nobody.
#
# Closed lists of everyday English, none of them tied to a subject. Every pattern is an alternation of phrases with
# bounded gaps, so matching stays linear in the text whatever it holds.


def _anywhere(phrases: str) -> re.Pattern[str]:
    return re.compile(rf"\b(?:{_alternatives(phrases)})(?!\w)", re.IGNORECASE)


def _opening(phrases: str) -> re.Pattern[str]:
    return re.compile(rf"^\W{{0,4}}(?:{_alternatives(phrases)})(?!\w)", re.IGNORECASE)


def _alternatives(phrases: str) -> str:
    """One pattern from lines of alternatives; an indented line goes on with the one before it."""
    return "|".join(re.sub(r"\n +", "", phrases.strip()).splitlines())


# Offers, sign-offs, advice, presenting one's own work, conceding a point: only the answering side talks like this.
ASSISTANT = _anywhere(r"""
(?:can|could|may) i (?:help|assist)(?: you)?
would you like (?:me|to|some|more|help|a|an|another)|do you want me to|(?:want|shall|should) (?:me|i) to
i'?m here to|i am here to|feel free to|don'?t hesitate|anything else (?:i|you|we)|any (?:other|more|
    further) questions
(?:i can|i could|i'?ll|i will|i'?d be|i'?m|i am|i would be)? ?(?:happy|glad) to (?:help|assist|explain|show|
    clarify|answer)
(?:i can|i could|i will|i'?ll) (?:help|assist|show|explain|provide|walk|guide|determine|adjust|revise|clarify|
    send) (?:you|it|the|a|this|that|who)
let me know (?:if|whether|how|which|what|when)|(?:i )?hope (?:this|that|it)[a-z' ]{0,30} (?:helps?|clear|
    useful|meets|clarifies|answers)
here(?:'s| is| are) (?:the|a|an|how|what|some|your|my|one|another)|revised version
let'?s (?:break|look|double|start|solve|calculate|check|find|consider|work|go through|see|compute|dive|take|
    move|begin)
let us|let me (?:recalculate|explain|break|correct|show|clarify|rephrase|walk|re-?do|fix|help|check|double|
    solve|revise)
(?:note|remember|keep in mind|bear in mind|recall) that|you can (?:also|use|try|verify|then|see|always|find|
    add|do this)
you (?:may|might) (?:also )?(?:want|need|consider|find|wish)
you should (?:also|always|be|use|consider|try|see|contact|never|avoid|first|instead)
(?:contact|consult|see|seek|speak (?:to|with)) (?:your|a|an|with your) (?:doctor|physician|pa?ediatrician|
    lawyer|professional)
(?:contact|consult|see|seek|speak (?:to|with)) (?:your|a|an|with your) (?:therapist|pharmacist|specialist|vet|
    medical|healthcare)
in (?:summary|conclusion|short|other words)|to (?:summari[sz]e|conclude)|good luck (?:with|on|in)
thank(?:s| you) for (?:catching|pointing|asking|sharing|clarifying|letting|providing|your (?:question|patience|
    feedback))
you(?:'| a)?re (?:absolutely |quite |completely )?(?:right|correct|welcome)|i apologi[sz]e|my apologies
as an ai|as a language model|if you have (?:any|already|other|more|further)|if you(?:'d| would) like
if you (?:can|could|let me|share|provide|tell me)|(?:next|another) (?:question|one)[:,]|roll (?:a|an|for)
(?:that'?s|that is|what) an? (?:great|good|excellent|strong|solid|fantastic|wonderful|common|
    very good) (?:question|answer|point|start|attempt|choice|idea)
it(?:'s| is) (?:important|worth|recommended|essential|crucial|best) (?:to|noting|that)|to (?:improve|
    build on) (?:this|that|it|your|further)
""")
ASSISTANT_OPENING = _opening(r"""
sure(?:[!,.]| thing)|certainly|of course|absolutely|definitely[!,]|correct[!.,]|exactly[!.]|well done|
    nice work|not quite[!.,]
great (?:question|job|work|answer|choice)|good (?:job|question|answer|work)|remember,|note:|you'?re welcome|
    that'?s (?:correct|right)[!.,]
i'?m (?:glad|happy|sorry) (?:you|to|that|for)|glad (?:i|you|to)|yes, (?:you|that'?s|it|the|
    this)[a-z' ]{0,12} (?:correct|right)
""")
# Working out loud and teaching: what a solution is made of.
SOLVING = _anywhere(r"""
therefore|thus|hence|consequently|step \d+ ?[:.)]|that means|it follows|substitut(?:e|ing)|multiply(?:ing)?|
    is equal to
the (?:final |correct )?(?:answer|result|solution|total|difference|probability|
    sum)[a-z0-9 ,.()$*+/-]{0,60} (?:is|are|was|equals)
which (?:is|gives|equals|means|makes)|(?:this|that|which) (?:gives|yields|results)|adding (?:these|them|the)|
    is defined (?:as|by|for)
we (?:get|have|need to|can|find|know|multiply|add|divide|subtract|see|obtain|must)
usually|typically|in general|however,|additionally|furthermore|moreover|for (?:example|instance),
""")
# Thinking about the user's message instead of writing it. "The user" alone can be part of the subject.
PLANNING = _anywhere(r"""
(?:next|following|new|plausible|realistic|simulated) user(?:'s)? (?:turn|message|reply|response|question|
    utterance|query|input)
(?:next|follow-?up) (?:turn|message) (?:should|could|would|must|might|needs|has to|in the conversation|
    from the user|here)
(?:as|from|for|playing|simulate|simulating|be|voice of|perspective of) (?:the |a |an? (?:human|real) )user
user (?:turn|message|utterance)s? (?:should|could|would|must|that|is|here|now|in)
(?:we|i)(?:'ll| need to| should| must| have to| will| could| can| might| are asked to| am asked to| are to)? (?:now )?
    (?:simulate|produce|generate|output|craft) (?:a|an|the|one|something)
(?:we|i)(?:'ll| need to| should| must| have to| will| could| can| might| are asked to| am asked to| are to) (?:now )?
    write (?:a|an|the|one|something) (?:\w+ ){0,3}(?:message|reply|turn|response|question)
in (?:their|the user's) (?:voice|words|style)
(?:we|i)(?:'ll| need to| should| must| have to| will| could| might)? (?:come up with|respond as|reply as|
    act as|write as|speak as|continue as|think about what|present another|say something like|go with something)
(?:have|let|make) (?:the user|them|her|him) (?:ask|say|reply|respond|report|push|express|request|complain|
    thank|want)
(?:the )?user (?:would|might|may|could|should|will|maybe|probably|likely|now|then|seems?|appears?|wants?|
    needs?|has (?:asked|now|been|given|said))
(?:the )?user (?:is (?:likely|probably|asking|a|an|vulnerable|satisfied|confused|happy|curious)|asks|asked|
    said|says|wrote|gave|just|thanks|did)
(?:the )?assistant(?:'s)? (?:has |just |already |now )*(?:answered|gave|given|asked|asks|responded|replied|
    provided|explained|said|listed|solved|offered|made)
(?:the )?assistant(?:'s)? (?:last|final|previous|response|reply|answer|message)
(?:likely|probable|natural|possible|plausible|good|reasonable) (?:next|follow-?up|user) (?:question|turn|
    message|step|reply|response)s?
what would (?:a|the) (?:real |human |normal )?(?:person|human|user|student|customer)
what (?:a |an |the )?(?:human|person|user|student|customer|real user|real person|normal person) (?:would|might|
    could|may) (?:say|ask|do|want|reply|respond|write)
(?:the|this|a real) (?:person|human|student|customer) (?:is probably|probably|might|would|may|is likely|
    likely) (?:\w+ ){0,2}(?:ask|say|want|reply|thank|react|prepar\w+)
(?:they|he|she)(?:'d| would| might| could| may)(?: \w+)? (?:ask|reply|respond|say|react|thank)|
    i could say something|in character
(?:keep|make) (?:it|the (?:tone|message|reply|turn)) (?:short|brief|natural|consistent|casual|polite|concise)
(?:should|must|to) (?:be|stay|remain|sound|feel) (?:short|brief|natural|concise|casual|realistic)|(?:more|
    sounds?|stay) natural
(?:do|should|must|may|can) not (?:be too long|solve|resolve|repeat)|avoid (?:repeating|solving|restating|
    answering)
tone:|final:|conversation (?:so far|history|context)|(?:produce|write) (?:the )?final
""")
# Reacting: to have something to react to, there must have been an answer.
REACTION = _opening(r"""
ok(?:ay)?|o+h|a+h+a?|h+m+|huh|wow|lol|haha+|wait|hang on|hold on|but|and|so|yea?h?|yep|nope?|no|yes|
    not (?:really|sure|quite|exactly)
thanks|thank you|thx|cool|nice|great|perfect|right|then|actually|sorry|well|interesting|funny|really|i see|
    got it|makes sense|fair enough
sounds|seems|also|now|um+|er+|or|oops|damn|ugh|good
""")
# Words that lean on what was just said.
LEANING = _anywhere(r"""
what if|how come|what about|how about|how did you|where (?:does|did|do) (?:the|that|this|you)|instead|again|
    did you|do you mean
why (?:is|isn'?t|not|can'?t|can|did|didn'?t|do|does|doesn'?t|would|are|was|only|use)
you (?:said|say|wrote|mentioned|used|got|gave|forgot|missed|listed|did|skip|skipped|suggest|suggested|mean|
    meant|stopped|never|put|count|counted|added)
your (?:answer|reply|response|last|first|second|third|solution|explanation|list|example|code|previous|step|
    line|version|table|plan|text|story|poem|email|working)
(?:does|is|isn'?t|shouldn'?t|couldn'?t|wouldn'?t|doesn'?t) (?:that|this|it)|isn'?t the|shouldn'?t|couldn'?t|
    wouldn'?t|doesn'?t
don'?t (?:get|think|understand|see|follow)|that (?:one|part|step|line|bit|number|means?|seems|looks|sounds|was|
    would|works|doesn)
the (?:last|first|second|third|fourth|next|previous|other|same|original) (?:one|part|step|line|bit|sentence|
    paragraph|option|point|item|bullet)
the (?:last|first|second|third|fourth|next|previous|other|same|original) (?:example|version|stanza|day|question)
(?:the|this|that) part|(?:step|line|point|day) \d|either|too|tho(?:ugh)?|as well|still|actually|already|(?:are|
    were) you sure
rewrite|shorter|longer|shorten|simpler|rephrase|redo|change (?:it|the|that)|make (?:it|that|them|the)|drop the|
    keep going|go on|finish
add (?:a|an|the|some|in|one)|put (?:it|them|those|that|a|in)|turn (?:it|this|that|them)|swap
i (?:thought|got|get|tried|meant|already|still|think|would|expected|counted|was|'?d|'?ve|have)
the (?:problem|question|text) (?:says?|states?|said|only|doesn)|it (?:says?|said)
""")
# The answer itself by name, or told to be changed.
ABOUT_ANSWER = _anywhere(r"""
(?:this|that|these|those|your|(?:the )?(?:same|above|previous|earlier|last|original|initial|current)) (?:\w{1,20} )?
    (?:answer|advice|analogy|article|argument|calculation|code|concept|definition|description|draft|e-?mail|essay|
    estimate|example|explanation|formula|function|idea|information|insight|letter|line|list|message|method|passage|
    paragraph|part|plan|poem|point|program|proof|reasoning|recipe|recommendation|reply|response|result|script|
    sentence|snippet|solution|statement|step|story|suggestion|summary|table|text|tip|translation|version|word|
    working)s?
(?:re(?:write|phrase|state|word|frame|work|organi[sz]e|structure|format|do)|condense|shorten|summari[sz]e|
    expand on|elaborate on|present|explain|express|translate|put|turn|make|simplify|describe|say|repeat|change|
    convert) (?:it|that|this|them|those|these)
""")
FIRST_PERSON = _anywhere(r"i|i'?m|i'?ve|i'?d|i'?ll|im|ive|me|my|mine|we|our|us")
IMPERATIVE = _opening(r"""
(?:(?:please|now|then|next|ok|okay|perfect|great|thanks|(?:can|could) you(?: please)?),? ){0,2}(?:write|find|
    list|compute|calculate|describe|explain|implement|prove|give|create|draft|design|generate|suggest|compose|
    tell|name|solve|convert|translate|evaluate|determine|summari[sz]e|develop|consider|suppose|imagine|
    identify|compare|classify|analy[sz]e|rewrite|edit|simplify|show|use|recommend|discuss|define|provide|make|
    help|act as|pretend|answer|choose|select)
""")
# A question or problem that brings along all that it needs.
FRESH_QUESTION = _opening(r"""
(?:\d+[.)] )?what(?:'s| is| are| was| were| does) (?:the|a|an|some|your)|(?:\d+[.)] )?which of the following|
    what would (?:be|happen)
who (?:is|was|are|were|won|wrote|invented|discovered)|how (?:many|much)|whats the|how (?:do|does|can|to)|
    what happens|(?:you are|you're) (?:given|a|an)
given|if a|a [a-z]+|an [a-z]+|in an?|the [a-z]+ [a-z]+ (?:is|has|are|sells|buys)|question:|problem:|q:|
    can (?:my|i|a|an)|do [a-z]+
""")
QUESTION_OPENING = _opening(r"""
(?:(?:and|but|so|ok|okay|then|or) )?(?:what|which|who|whom|whose|how|why|when|where|whats|wheres|hows)
(?:(?:and|but|so|ok|okay|then|or) )?(?:is|are|was|were|do|does|did|can|could|would|will|should|has|have)
(?:(?:and|but|so|ok|okay|then|or) )?(?:isn'?t|aren'?t|wasn'?t|don'?t|doesn'?t|didn'?t|won'?t|shouldn'?t|
    couldn'?t|wouldn'?t)
""")
CONTINUING = _anywhere(
    r"continue|keep going|go on|carry on|finish|cut off|stopped|rest of|complete (?:it|that|the)|and then|go ahead"
)
ANSWERING = _opening(r"yes|yeah|yep|yup|no|nope|not really|sure|please do|idk|i don'?t know|neither|both")
