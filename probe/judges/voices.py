"""Whose voice a sentence is in: phrases of the assistant, of the user, of somebody planning, and of nobody.

Closed lists of everyday English, none of them tied to a subject. Every pattern is an alternation of phrases with
bounded gaps, so matching stays linear in the text whatever it holds.
"""

from __future__ import annotations

import re


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
