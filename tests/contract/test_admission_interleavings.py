"""The state machine of tests/unit/admission/test_any_interleaving.py on a real Valkey: each replica with a client of its
own, and now and then all of them asking at once. Time stays the test's."""

import asyncio
import itertools

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import rule, run_state_machine_as_test

from gateway.admission import Ask, Kind
from gateway.admission.policy import total
from gateway.admission.store import AdmissionStore
from gateway.admission.valkey_store import ValkeyAdmissionStore, lease_key
from gateway.site.valkey_store import SiteAddress, SiteValkey
from tests.contract.conftest import CALM
from tests.unit.admission.test_any_interleaving import CAPACITY, SETTINGS, AnyInterleaving
from tests.valkey_server import ValkeyServer

_LIVES = itertools.count()


class OnValkey(AnyInterleaving):
    """`grants` gets how many requests each life admitted: whether it was busy enough to show anything."""

    def __init__(self, port: int, grants: list[int]) -> None:
        self._address = SiteAddress(port=port)
        self._prefix = f"life{next(_LIVES)}"
        self._sites: list[SiteValkey] = []
        self._grants = grants
        super().__init__()

    def store(self) -> AdmissionStore:
        site = SiteValkey("test", self._address, self._prefix, CALM)
        self._sites.append(site)
        return ValkeyAdmissionStore(site, SETTINGS, self.now_ms)

    def live_epochs(self) -> set[str]:
        site = self._sites[0]
        leases = self.loop.run_until_complete(site._redis.zrange(lease_key(site), 0, -1, withscores=True))
        return {epoch.decode() for epoch, until in leases if until > self.now_ms()}

    @rule(
        tenant=st.sampled_from(["gold", "serverless"]), tokens=st.sampled_from([0, 10, 3_000]), count=st.integers(1, 6)
    )
    def all_ask_at_once(self, tenant: str, tokens: int, count: int) -> None:
        asking = [one for one in self.replicas if not one.paused]
        held = [total(one.admission._ledger.gauges("d").values()).requests for one in asking]
        ask = Ask("d", CAPACITY, tenant, tokens, Kind.INTERACTIVE)

        async def together() -> list[object]:
            return list(await asyncio.gather(*(one.admission.acquire(ask) for one in asking for _ in range(count))))

        answers = self.loop.run_until_complete(together())
        for number, one in enumerate(asking):
            self.note(one, answers[number * count : (number + 1) * count])
        for one, before in zip(asking, held, strict=True):
            self.check_after_grants(one, before)

    def teardown(self) -> None:
        self._grants.append(self.admitted)
        for site in self._sites:
            assert not site.troubles, "Valkey answered all the time"
            self.loop.run_until_complete(site.close())
        super().teardown()


def test_no_interleaving_of_replicas_on_a_real_valkey_admits_more_than_the_limit(shared_valkey: ValkeyServer) -> None:
    grants: list[int] = []
    run_state_machine_as_test(
        lambda: OnValkey(shared_valkey.port, grants),
        settings=settings(
            max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
    assert max(grants) > 24, "no life was busy enough to fill the deployment"
