"""Where thinking ends. GLM's prompt opens the thinking (or closes it at once), so that a text starts inside it or
not at all.

Thinking ends at the first `</think>`; every marker before it is thought, not a call, and every think marker after
it is the answer's own text. Dynamo's reasoning parser goes on looking for think markers to the end, and takes them
out of arguments (seen with 1.6.1: `"<think>x</think>"` as an argument came back as `""`).
"""

THINK_END = "</think>"


class ReasoningSplit:
    """Text in pieces of any size; thinking and answer out. With `thinking` false all of it is the answer."""

    def __init__(self, thinking: bool) -> None:
        self.thinking = thinking
        self._held = ""

    def feed(self, text: str) -> tuple[str, str]:
        if not self.thinking:
            return "", text
        text, self._held = self._held + text, ""
        thought, end, answer = text.partition(THINK_END)
        if end:
            self.thinking = False
            return thought, answer
        certain = len(text) - _partial_end(text)
        self._held = text[certain:]
        return text[:certain], ""

    def finish(self) -> str:
        """What was still held: thinking that was cut off."""
        held, self._held = self._held, ""
        return held


def _partial_end(text: str) -> int:
    at = text.rfind("<", max(0, len(text) - len(THINK_END) + 1))
    return len(text) - at if at >= 0 and THINK_END.startswith(text[at:]) else 0
