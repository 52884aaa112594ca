"""Whose voice a sentence is in: patterns for the assistant's, the user's, the planner's, and for filler.

Closed lists of everyday English, none of them tied to a subject. Every pattern is an alternation of fixed phrases
with bounded gaps, so matching stays linear in the text whatever it holds.
"""

from __future__ import annotations

import re


def _any(*phrases: str) -> re.Pattern[str]:
    return re.compile(r"\b(?:" + "|".join(phrases) + r")\b", re.IGNORECASE)


def _opening(*phrases: str) -> re.Pattern[str]:
    return re.compile(r"^\W{0,4}(?:" + "|".join(phrases) + r")\b", re.IGNORECASE)


# Offers, sign-offs, advice, presenting one's own work, conceding: things only the answering side says.
ASSISTANT = _any(
    r"(?:can|could|may) i (?:help|assist)(?: you)?(?! (?:him|her|them|it))", r"would you like (?:me|to|some|more|help|a|an|another)",
    r"do you want me to", r"(?:i can|i could|i'?ll|i will|i'?m happy to|i'?d be happy to|i am happy to|happy to) (?:help|assist|"
    r"show|explain|provide|walk|guide|determine|adjust|revise|answer|clarify|send)", r"i'?m here to", r"i am here to",
    r"let me know (?:if|whether|how|which|what|when)", r"feel free to", r"(?:i )?hope (?:this|that|it|you find)[a-z' ]{0,30} (?:help|helps|clear|useful|"
    r"meets|clarifies|answers|makes)", r"anything else (?:i|you|we)", r"any (?:other|more|further) questions", r"here(?:'s| is| are) (?:the|a|an|how|what|"
    r"some|your|my|one|another)", r"let'?s (?:break|look|double|start|solve|calculate|check|find|consider|work|go through|see|compute|dive|take|move|try|say|begin)",
    r"let us", r"let me (?:recalculate|explain|break|correct|show|clarify|rephrase|walk|re-?do|fix|help|check|double|solve|revise)",
    r"(?:note|remember|keep in mind|bear in mind|recall) that", r"you can (?:also|use|try|verify|then|see|always|find|add|do this)",
    r"you (?:may|might) (?:also )?(?:want|need|consider|find|wish)", r"you should (?:also|always|be|use|consider|try|see|contact|never|avoid|first|instead)",
    r"(?:please )?(?:contact|consult|see|seek|speak (?:to|with)) (?:your|a|an|with your) (?:doctor|physician|"
    r"p(?:a)?ediatrician|lawyer|professional|therapist|pharmacist|specialist|vet|accountant|emergency|medical|healthcare)",
    r"in (?:summary|conclusion|short|other words)", r"to (?:summari[sz]e|conclude)", r"good luck (?:with|on|in)", r"thanks for (?:catching|pointing|asking|sharing|clarifying|letting)",
    r"thank you for (?:catching|pointing|asking|sharing|clarifying|letting|providing|your (?:question|patience|feedback))",
    r"you'?re (?:absolutely |quite |completely )?(?:right|correct|welcome)", r"you are (?:absolutely |quite )?(?:right|correct|welcome)",
    r"i apologi[sz]e", r"my apologies", r"as an ai", r"as a language model", r"(?:that'?s|that is|what) an? (?:great|good|excellent|interesting|"
    r"strong|solid|fantastic|wonderful|common) (?:question|answer|point|start|attempt|choice|observation|idea)", r"if you have (?:any|already|other|more|further)",
    r"if you (?:can|could|would like to|let me|share|provide|tell me)", r"if you(?:'d| would) like", r"don'?t hesitate",
    r"it(?:'s| is) (?:important|worth|recommended|essential|crucial|best) (?:to|noting|that)", r"(?:next|another) (?:question|one)[:,]",
    r"roll (?:a|an|for) ", r"to (?:improve|build on) (?:this|that|it|your|further)", r"revised version",
)  # fmt: skip
ASSISTANT_OPENING = _opening(
    r"sure(?:!|,|\.| thing)", r"certainly", r"of course", r"absolutely", r"definitely[!,]", r"great (?:question|job|work|answer|choice)", r"correct[!.,]",
    r"exactly[!.]", r"well done", r"good (?:job|question|answer|work)", r"remember,", r"note:", r"you'?re welcome", r"i'?m (?:glad|happy|sorry) (?:you|to|that|for)",
    r"glad (?:i|you|to)", r"yes, (?:you|that'?s|it|the|this)[a-z' ]{0,12} (?:correct|right)", r"that'?s (?:correct|right)[!.,]", r"nice work", r"not quite[!.,]",
)  # fmt: skip
# Working out loud and teaching: what a solution is made of.
SOLVING = _any(
    r"therefore", r"thus", r"hence", r"consequently", r"the (?:final |correct )?(?:answer|result|solution|total|difference|probability|sum)[a-z0-9 ,.()$*+/-]{0,60} (?:is|are|was|equals)",
    r"step \d+ ?[:.)]", r"that means", r"which (?:is|gives|equals|means|makes)", r"we (?:get|have|need to|can|find|know|multiply|add|divide|subtract|see|obtain|must)",
    r"(?:this|that|which) (?:gives|yields|results)", r"it follows", r"substitut(?:e|ing)", r"is equal to", r"adding (?:these|them|the)", r"multiply(?:ing)?", r"is defined (?:as|by|for)",
    r"usually", r"typically", r"in general", r"however,", r"additionally", r"furthermore", r"moreover", r"for (?:example|instance),",
)  # fmt: skip
# Thinking about the user's message instead of writing it. "The user" alone can be part of the subject.
PLANNING = re.compile(
    r"\b(?:"
    r"(?:next|following|new|plausible|realistic) user(?:'s)? (?:turn|message|reply|response|question|utterance|query|input)|"
    r"(?:next|follow-?up) (?:turn|message) (?:should|could|would|must|might|needs|has to|in the conversation|from the user|here)|"
    r"(?:as|from|for|in the role of|playing|role-?play(?:ing)? as|simulate|simulating|be|acting as|voice of|impersonat(?:e|ing)|perspective of) (?:the |a |an? human )user|"
    r"user (?:turn|message|utterance)s? (?:should|could|would|must|that|is|here|now|in)|"
    r"(?:we|i) (?:need to|should|must|have to|'?ll|will|could|can|might|are asked to|am asked to|are to|want to) (?:now )?(?:simulate|produce|generate|output|write|craft|come up with|respond as|reply as|act as|continue as|think about what|make (?:the|a) user|have (?:the user|them)|present another|say something like|go with something)|"
    r"(?:have|let|make) (?:the user|them|her|him) (?:ask|say|reply|respond|report|push|express|request|complain)|"
    r"(?:the )?user (?:would|might|may|could|should|will|maybe|probably|likely|now|then|seems?|appears?|wants?|is (?:likely|probably|asking|a|an|vulnerable|satisfied|confused|happy)|has (?:asked|now|been|given|said)|asks|asked|said|says|wrote|gave|just)|"
    r"(?:the )?assistant(?:'s)? (?:has |just |already )*(?:answered|gave|given|asked|asks|responded|replied|provided|explained|said|last|final|previous|response|reply|answer|listed|solved|offered)|"
    r"(?:likely|probable|natural|possible|plausible) (?:next|follow-?up|user) (?:question|turn|message|step|reply|response)s?|"
    r"what (?:a |an |the )?(?:human|person|user|real user|real person) (?:would|might|could|may) (?:say|ask|do|want|reply|respond|write)|"
    r"(?:the|this) (?:person|human) (?:is probably|probably|might|would|may|is likely|likely)|"
    r"i could say something|(?:keep|make) (?:it|the (?:tone|message|reply|turn)) (?:short|brief|natural|consistent|casual|polite|concise|in character)|"
    r"(?:should|must) (?:be|stay|remain|sound) (?:short|brief|natural|concise|casual|in character)|(?:more|sounds?|stay|sound) natural|"
    r"(?:do|should|must|may|can) not (?:be too long|solve|resolve|repeat|answer)|avoid (?:repeating|solving|restating)|stay in character|"
    r"tone: |final: |conversation (?:so far|history|context)|(?:produce|write) (?:the )?final"
    r")",
    re.IGNORECASE,
)
# Reacting: to have something to react to, there must have been an answer.
REACTION = _opening(
    r"ok(?:ay)?", r"o+h", r"a+h+a?", r"h+m+", r"huh", r"wow", r"lol", r"haha+", r"wait", r"hang on", r"hold on", r"but", r"and", r"so", r"yea?h?", r"yep", r"nope?",
    r"no", r"yes", r"not (?:really|sure|quite|exactly)", r"thanks", r"thank you", r"thx", r"cool", r"nice", r"great", r"perfect", r"right", r"then", r"actually",
    r"sorry", r"well", r"interesting", r"funny", r"really", r"i see", r"got it", r"makes sense", r"fair enough", r"sounds", r"seems", r"also", r"now", r"um+", r"er+", r"or", r"oops", r"damn", r"ugh", r"good",
)  # fmt: skip
# Words that lean on what was just said.
LEANING = _any(
    r"what if", r"how come", r"why (?:is|isn'?t|not|can'?t|can|did|didn'?t|do|does|doesn'?t|would|are|was|only|use)", r"what about", r"how about", r"how did you", r"where (?:does|did|do) (?:the|that|this|you)",
    r"instead", r"again", r"you (?:said|say|wrote|mentioned|used|got|gave|forgot|missed|listed|did|skip|skipped|suggest|suggested|mean|meant|stopped|never|put|just|count|counted|added|only)",
    r"your (?:answer|reply|response|last|first|second|third|solution|explanation|list|example|code|previous|step|line|version|table|plan|text|story|poem|email|reasoning|working)",
    r"did you", r"do you mean", r"does (?:that|this|it)", r"is (?:that|this|it)", r"isn'?t (?:that|this|it|the)", r"shouldn'?t", r"couldn'?t", r"wouldn'?t", r"doesn'?t", r"don'?t (?:get|think|understand|see|follow)",
    r"that (?:one|part|step|line|bit|number|means?|seems|looks|sounds|was|would|works|doesn)", r"the (?:last|first|second|third|fourth|next|previous|other|same|original) (?:one|part|step|line|bit|sentence|paragraph|option|point|item|bullet|example|version|stanza|day|question)",
    r"(?:the|this|that) part", r"step \d", r"line \d", r"point \d", r"day \d", r"these", r"those", r"it'?s", r"those ones", r"either", r"too", r"tho(?:ugh)?", r"as well", r"still", r"actually", r"already",
    r"rewrite", r"shorter", r"longer", r"shorten", r"simpler", r"rephrase", r"redo", r"change (?:it|the|that)", r"make (?:it|that|them|the)", r"drop the", r"add (?:a|an|the|some|in|one)", r"put (?:it|them|those|that|a|in)", r"turn (?:it|this|that|them)", r"swap", r"keep going", r"go on", r"finish",
    r"(?:are|were) you sure", r"i (?:thought|got|get|tried|meant|already|still|think|would|expected|counted|was|'?d|'?ve|have)", r"the (?:problem|question|text) (?:says?|states?|said|only|doesn)", r"it (?:says?|said)",
)  # fmt: skip
FIRST_PERSON = _any(r"i", r"i'?m", r"i'?ve", r"i'?d", r"i'?ll", r"im", r"ive", r"me", r"my", r"mine", r"we", r"our", r"us")
SECOND_PERSON = _any(r"you", r"your", r"you'?re", r"u", r"ur")
IMPERATIVE = _opening(
    r"(?:please |now,? |then |next,? |ok,? |perfect,? |great,? |thanks,? |can you |could you |can you please )*(?:write|find|list|compute|calculate|describe|explain|implement|prove|give|create|"
    r"draft|design|generate|suggest|compose|tell|name|solve|convert|translate|evaluate|determine|summari[sz]e|develop|consider|suppose|imagine|identify|compare|classify|analy[sz]e|rewrite|edit|simplify|show|use|recommend|discuss|define|provide|make|help|act as|pretend|answer|choose|select)",
)  # fmt: skip
# A question that brings all it needs along.
FRESH_QUESTION = _opening(
    r"(?:\d+[.)] )?what(?:'s| is| are| was| were| does) (?:the|a|an|some|your)", r"(?:\d+[.)] )?which of the following", r"who (?:is|was|are|were|won|wrote|invented|discovered)",
    r"how many", r"how much", r"what would (?:be|happen)", r"whats the", r"how (?:do|does|can|to)", r"what happens", r"(?:you are|you're) (?:given|a|an)", r"given", r"if a", r"a [a-z]+", r"an [a-z]+", r"in an? ",
    r"the [a-z]+ [a-z]+ (?:is|has|are|sells|buys)", r"question:", r"problem:", r"q:", r"can (?:my|i|a|an)", r"do [a-z]+",
)  # fmt: skip
QUESTION_OPENING = _opening(
    r"(?:and |but |so |ok(?:ay)? |then |or )?(?:what|which|who|whom|whose|how|why|when|where|is|are|was|were|do|does|did|can|could|would|will|should|isn'?t|aren'?t|wasn'?t|don'?t|doesn'?t|didn'?t|won'?t|shouldn'?t|couldn'?t|wouldn'?t|has|have|whats|wheres|hows)",
)  # fmt: skip
OPTIONS = re.compile(r"(?:^|\s)\(?[A-D][.)] ?\S")
# Worn words that fit any exchange whatever: praise, thanks, and requests for more of the same.
FILLER_WORDS = frozenset(
    """thank thanks thx please great good nice ok okay interesting helpful help explain explanation elaborate clarify
    clarification continue more tell think thought thoughts tips tip sounds sound looks look amazing perfect awesome wonderful
    fascinating topic answer response reply further see understand understood sense makes make detail details example
    examples question questions info information know anything something everything beautiful love loved appreciate
    appreciated appreciating cool wow sure yes agree right correct true go way work works fine alright brilliant excellent
    fantastic insightful useful lot much keep learn learned learning share bit little idea ideas advice hello hi hey
    bye goodbye well job done noted useful impressive glad welcome opinion point best
    problem solution today day""".split()
)
CONTINUING = re.compile(
    r"\b(?:continue|keep going|go on|carry on|finish|cut off|stopped|rest of|complete (?:it|that|the)|and then)\b", re.I
)
ANSWERING = re.compile(r"^\W*(?:yes|yeah|yep|yup|no|nope|not really|sure|please do|idk|i don'?t know|neither|both)\b", re.I)
