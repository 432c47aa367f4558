"""What a session's last turn used, to guess what the next one will: pure but for the table.

A turn repeats what came before it, so at the deployment that answered last, its prompt and answer are found and only the
rest is computed. The ratio of bytes to tokens is the session's own once it has had a turn.
"""

from collections import OrderedDict

import msgspec

from gateway.metering.usage import Usage

MAX_SESSIONS = 65_536
"""About 10 MB. A session pushed out is estimated as a new one: too heavy, never too light."""

BYTES_A_TOKEN = 4
"""Of JSON around English text and code, with tokenizers of 100,000 words and more."""


class Turn(msgspec.Struct, frozen=True, gc=False):
    """Out of the garbage collector's sight (`gc=False`; it refers to nothing that could refer back): a full table looked
    through is 65,536 objects in one pause."""

    deployment: str
    body_bytes: int
    prompt_tokens: int
    total_tokens: int


class Sessions:
    def __init__(self, most: int = MAX_SESSIONS) -> None:
        self._turns: OrderedDict[str, Turn] = OrderedDict()
        self._most = most

    def __len__(self) -> int:
        return len(self._turns)

    def prompt_tokens(self, session: str, body_bytes: int) -> int:
        """Estimated length of the whole prompt, at least 1."""
        last = self._turns.get(session)
        if last is None or not last.prompt_tokens:
            return max(1, body_bytes // BYTES_A_TOKEN)
        return max(1, body_bytes * last.prompt_tokens // max(1, last.body_bytes))

    def uncached_tokens(self, session: str, deployment: str, prompt_tokens: int) -> int:
        """What of it a prefill at this deployment must compute, at least 1."""
        last = self._turns.get(session)
        if last is None or last.deployment != deployment:
            return prompt_tokens
        return max(1, prompt_tokens - last.total_tokens)

    def answered(self, session: str, deployment: str, body_bytes: int, usage: Usage) -> None:
        self._turns[session] = Turn(deployment, body_bytes, usage.prompt_tokens, usage.total_tokens)
        self._turns.move_to_end(session)
        if len(self._turns) > self._most:
            self._turns.popitem(last=False)
