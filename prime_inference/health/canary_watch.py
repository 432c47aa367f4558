"""The canary beside an agent's loop: asks in a thread of its own, and lends the loop its last findings.

They are told again each round until the next asking, so that a fault stays as long as it is not disproved; findings that
are too old, because the frontend or Kubernetes does not answer, are no findings.
"""

import logging
import threading
import time
from collections.abc import Callable

import httpx

from prime_inference.health.canary import ending_of, golden_of, successor_of
from prime_inference.health.canary_client import FrontendError, ask, canary_workers
from prime_inference.health.canary_rounds import judged, questions
from prime_inference.health.kubernetes import KubernetesError
from prime_inference.health.verdicts import Finding

log = logging.getLogger("prime_inference.health")

STALE_AFTER_ROUNDS = 3
WITHIN_S = 60.0
"""One answer: some hundred tokens of prefill, a transfer, 24 tokens."""


class CanaryWatch:
    def __init__(
        self,
        frontend: str,
        model: str,
        here: Callable[[], frozenset[str]],
        interval_s: float,
        within_s: float = WITHIN_S,
    ) -> None:
        """`here` says the addresses of this node's workers; it may raise KubernetesError."""
        self._http = httpx.Client(base_url=frontend)
        self._model = model
        self._here = here
        self._interval_s = interval_s
        self._within_s = within_s
        self._golden: str | None = None
        self._last: tuple[float, tuple[Finding, ...]] = (float("-inf"), ())

    def findings(self) -> tuple[Finding, ...]:
        at, found = self._last
        return found if time.monotonic() - at < STALE_AFTER_ROUNDS * self._interval_s else ()

    def look(self) -> None:
        """One asking. The golden answer is learned from pairs that agree, and kept: it is the model's, and greedy. Where nobody
        gives it any more and all agree on another, another model has its name."""
        try:
            workers, here = canary_workers(self._http), self._here()
        except (FrontendError, KubernetesError) as error:
            log.warning("the canary cannot ask: %s", error)
            return
        answers = [(pair, ask(self._http, self._model, pair, self._within_s)) for pair in questions(workers, here)]
        self._golden = successor_of(answers) or self._golden or golden_of(answers)
        if self._golden is None and answers:
            # Nothing to compare with: an answer, whatever it says, proves nothing.
            return
        endings = {pair: ending_of(pair, answer, self._golden) for pair, answer in answers}
        self._last = (time.monotonic(), tuple(judged(workers, here, endings)))

    def start(self, stop: threading.Event) -> threading.Thread:
        thread = threading.Thread(target=self._run, args=(stop,), name="canary", daemon=True)
        thread.start()
        return thread

    def _run(self, stop: threading.Event) -> None:
        while not stop.is_set():
            self.look()
            stop.wait(self._interval_s)
