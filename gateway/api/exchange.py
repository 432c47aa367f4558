"""One request's accounts, closed together: the settle record, the key's limits, what the session used."""

from dataclasses import dataclass

from gateway.guard.gate import Gate
from gateway.metering.settle import Outcome, Settlement
from gateway.metering.usage import Usage
from gateway.relay.sessions import Sessions


@dataclass
class Exchange:
    settlement: Settlement
    gate: Gate
    sessions: Sessions
    session: str
    body_bytes: int

    def failed(self, outcome: Outcome) -> None:
        """Nothing was generated for the client: the key's tokens come back, unless it did not wait for them."""
        self.gate.settle(None if outcome is Outcome.CLIENT_GONE else 0)
        self.settlement.close(outcome)

    def ended(self, outcome: Outcome, usage: Usage | None, timing: dict[str, object] | None, deployment: str) -> None:
        """An answer began. Without a usage nobody knows what it took, and the limit keeps the estimate."""
        self.settlement.usage, self.settlement.timing = usage, timing
        if usage is not None:
            self.sessions.answered(self.session, deployment, self.body_bytes, usage)
        self.gate.settle(None if usage is None else usage.total_tokens)
        self.settlement.close(outcome)
