"""Why `prime-inference up` stops, as sentences for the person who typed it."""


class UpError(Exception):
    """The message is the whole story: what is wrong and what to do."""


class StartFailed(UpError):
    """A process ended, or did not become ready, while the stack was starting."""

    def __init__(self, name: str, reason: str, log: str) -> None:
        super().__init__(f"{name} did not start: {reason}\nIts log: {log}")
        self.name = name
