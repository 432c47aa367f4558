"""The guards of the sites in the present snapshot: one a site, started when the site appears."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from gateway.breaker import Ending, State
from gateway.fleet.choice import Standing
from gateway.fleet.snapshot import Snapshot
from gateway.guard.addresses import Addresses
from gateway.guard.site_guard import GuardSettings, SiteGuard


class Guards:
    def __init__(
        self,
        settings: GuardSettings,
        addresses: Addresses,
        send_probe: Callable[[str], Awaitable[Ending]],
    ) -> None:
        self._settings = settings
        self._addresses = addresses
        self._send_probe = send_probe
        self._guards: dict[str, SiteGuard] = {}
        self._left: list[SiteGuard] = []
        self._deployments: dict[str, Sequence[str]] = {}
        self._site_of: dict[str, str] = {}

    async def follow(self, snapshot: Snapshot) -> None:
        """Before a snapshot rules, its sites have guards. A site that is gone, or moved, keeps its former guard until the
        process ends: requests that began there still hold grants of it."""
        fleet = snapshot.fleet
        sites: dict[str, list[str]] = {}
        for deployment in fleet.deployments.values():
            sites.setdefault(deployment.site, []).append(deployment.name)
        started = {}
        for site in sites:
            address = self._addresses.of_site(fleet, site)
            guard = self._guards.get(site)
            if guard is None or guard.address != address:
                started[site] = SiteGuard(site, address, self._settings, self._names_of(site), self._send_probe)
        self._deployments = {site: sites.get(site, ()) for site in (*self._guards, *sites)}
        await asyncio.gather(*(guard.start() for guard in started.values()))
        self._left += [self._guards[site] for site in started if site in self._guards]
        self._guards.update(started)
        # Names that have left stay: requests with the former snapshot may still ask for them.
        self._site_of.update({name: site for site, names in sites.items() for name in names})

    def of(self, site: str) -> SiteGuard:
        return self._guards[site]

    def all(self) -> list[SiteGuard]:
        return list(self._guards.values())

    async def probe(self, deployment: str) -> Ending:
        """A short synthetic prompt, now, whatever the breaker says of it; nothing is reported. Has no timeout."""
        return await self._send_probe(deployment)

    def standing(self, deployment: str) -> Standing:
        """From what this replica knows without asking anybody."""
        guard = self._guards[self._site_of[deployment]]
        if guard.breakers.board.state(deployment) is not State.CLOSED:
            return Standing.CLOSED_OFF
        return Standing.SCARCE if guard.admission.is_scarce(deployment) else Standing.FREE

    def stop_admitting(self) -> None:
        for guard in (*self._guards.values(), *self._left):
            guard.admission.stop_admitting()

    async def close(self) -> None:
        await asyncio.gather(*(guard.close() for guard in (*self._guards.values(), *self._left)))

    def _names_of(self, site: str) -> Callable[[], Sequence[str]]:
        return lambda: self._deployments.get(site, ())
