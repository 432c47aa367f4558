"""What can be wrong with a request's tools. Each error carries the HTTP status it should be answered with."""


class ToolError(ValueError):
    """Base of them all: the request's tools cannot be served as they are."""

    status = 400

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class Unreadable(ToolError):
    """A schema that says nothing a validator or a grammar could follow. `path` is a JSON pointer into the schema."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path or '/'}: {reason}")
        self.path = path or "/"
        self.reason = reason


class UnsupportedTool(ToolError):
    """A declared tool that is refused, with the tool's name and the place in its schema (the message of the 400)."""

    def __init__(self, tool: str, path: str, reason: str) -> None:
        super().__init__(f"tool {tool!r}: parameters{'' if path == '/' else path}: {reason}")
        self.tool = tool
        self.path = path
        self.reason = reason


class BadToolChoice(ToolError):
    """`tool_choice` names a tool that is not declared, requires one of none, or is no choice at all."""


class Unspellable(ToolError):
    """A name, key or value that the GLM wire format has no spelling for (it would end where the text does not)."""


class CompilerGone(RuntimeError):
    """The compile process ended, or did not answer in time. Not the request's fault."""

    status = 503
