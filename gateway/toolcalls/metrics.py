"""What is counted of tool calls. Labels are the fleet file's model names and closed enums; a tool's name is none of them."""

from prometheus_client import CollectorRegistry

from gateway.telemetry.instruments import Counter, Histogram

DOOR_BUCKETS_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1, 5, 30)
"""From tools of an earlier turn to a compile process that is still starting."""


class ToolMetrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        self.calls = Counter(
            "prime_gateway_tool_calls",
            "Final tool calls, by what they are worth under the client's own schema.",
            ["model", "verdict"],
            registry=registry,
        )
        self.counted = Counter(
            "prime_gateway_tool_calls_counted",
            "Final tool calls, by what OpenRouter's validator makes of them.",
            ["model", "verdict"],
            registry=registry,
        )
        self.answers = Counter(
            "prime_gateway_tool_answers",
            "Ended answers to requests with tools, by outcome.",
            ["model", "outcome"],
            registry=registry,
        )
        self.faults = Counter(
            "prime_gateway_tool_faults",
            "Promises about tool calls that an answer broke.",
            ["model", "fault"],
            registry=registry,
        )
        self.refused = Counter(
            "prime_gateway_tool_requests_refused",
            "Requests answered with 400 for their tools or their tool_choice.",
            ["model"],
            registry=registry,
        )
        self.not_held = Counter(
            "prime_gateway_tools_not_held",
            "Declared tools that the grammar does not hold in full: names_only (arguments free), looser (a part is),"
            " left_out (only its vendor runs it).",
            ["model", "how"],
            registry=registry,
        )
        self.door = Histogram(
            "prime_gateway_tool_door_seconds",
            "From a request's body to its grammar: reading the tools, and the compile process where they are new.",
            ["model"],
            buckets=DOOR_BUCKETS_S,
            registry=registry,
        )
