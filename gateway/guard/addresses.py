"""Where each site's Valkey is: the fleet file's word, else the process's own, else none."""

from dataclasses import dataclass, replace
from typing import Self
from urllib.parse import unquote, urlsplit

from gateway.fleet.registry import Fleet
from gateway.settings import GatewaySettings
from gateway.site.valkey_store import SiteAddress

DEFAULT_PORT = 6379


@dataclass(frozen=True)
class Addresses:
    own: SiteAddress | None
    password: str | None

    @classmethod
    def of(cls, settings: GatewaySettings) -> Self:
        password = settings.valkey_password.get_secret_value() if settings.valkey_password is not None else None
        own = address_of(settings.valkey_url) if settings.valkey_url is not None else None
        return cls(own, password)

    def of_site(self, fleet: Fleet, site: str) -> SiteAddress | None:
        given = fleet.valkeys.get(site)
        return self.own if given is None else replace(given, password=self.password)


def address_of(url: str) -> SiteAddress:
    """`redis://` or `rediss://`, with user and password where there are any. The database is the first: breakers and
    leases of a site share one."""
    parts = urlsplit(url)
    return SiteAddress(
        host=parts.hostname or "127.0.0.1",
        port=parts.port or DEFAULT_PORT,
        username=unquote(parts.username) if parts.username else None,
        password=unquote(parts.password) if parts.password else None,
        tls=parts.scheme == "rediss",
    )
