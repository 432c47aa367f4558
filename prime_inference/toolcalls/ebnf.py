"""The grammar text that an engine gets, with the white space around raw values taken out.

xgrammar lets white space stand on both sides of every value of a GLM call. Around JSON it means nothing. Around a raw
string it is part of the string, because nothing is trimmed: under an enumeration, a pattern or a length bound the engine
could write `EUR` and a line break, and the client would get a value that its schema forbids (seen live with SmolLM2).
"""

import re

from prime_inference.toolcalls.glm import VALUE, VALUE_END

_SPACE = r"(?:whitespace(?:_\d+)?\{0, \d+\}|\[ \\n\\r\\t\]\*)"
"""White space as xgrammar 0.2.7 prints it, bounded or not."""
_AFTER = re.compile(rf'("{VALUE}") {_SPACE}')
_BEFORE = re.compile(rf'{_SPACE} ("{VALUE_END}")')


def tight(grammar: str) -> str:
    """The same grammar, with every value directly between its markers. A quote inside a literal is escaped in EBNF, so
    that nothing of a client's schema can be met here."""
    return _BEFORE.sub(r"\1", _AFTER.sub(r"\1", grammar))
