"""Where each site's Valkey is: the fleet file's word, else the process's own, else none."""

from dataclasses import dataclass, replace
from typing import Self
from urllib.parse import unquote, urlsplit

from gateway.fleet.registry import Fleet
from gateway.settings import PREFIX, GatewaySettings, SettingsError
from gateway.site.valkey_store import SiteAddress

DEFAULT_PORT = 6379


@dataclass(frozen=True)
class Addresses:
    own: SiteAddress | None
    password: str | None

    @classmethod
    def of(cls, settings: GatewaySettings) -> Self:
        """Raises SettingsError."""
        password = settings.valkey_password.get_secret_value() if settings.valkey_password is not None else None
        try:
            own = address_of(settings.valkey_url) if settings.valkey_url is not None else None
        except ValueError as error:
            raise SettingsError(f"{PREFIX}VALKEY_URL: {error}") from error
        return cls(own, password)

    def of_site(self, fleet: Fleet, site: str) -> SiteAddress | None:
        given = fleet.valkeys.get(site)
        return self.own if given is None else replace(given, password=self.password)


def address_of(url: str) -> SiteAddress:
    """`redis://` or `rediss://`, with user and password where there are any, or with Sentinels
    `redis+sentinel://user:password@host:port,host:port/PRIMARY` (`rediss+sentinel` for TLS). The database is the first:
    breakers and leases of a site share one. Raises ValueError for anything else."""
    parts = urlsplit(url)
    scheme, _, kind = parts.scheme.partition("+")
    if scheme not in ("redis", "rediss") or kind not in ("", "sentinel"):
        raise ValueError("a Valkey's URL begins with redis://, rediss://, redis+sentinel:// or rediss+sentinel://")
    user, password = (unquote(each) if each else None for each in (parts.username, parts.password))
    if not kind:
        host, port = parts.hostname or "127.0.0.1", parts.port or DEFAULT_PORT
        return SiteAddress(host=host, port=port, username=user, password=password, tls=scheme == "rediss")
    sentinels = tuple(_host_port(each) for each in parts.netloc.rpartition("@")[2].split(","))
    primary = parts.path.strip("/")
    if not primary:
        raise ValueError("a URL with Sentinels ends with the primary's name")
    return SiteAddress(
        sentinels=sentinels, primary_name=primary, username=user, password=password, tls=scheme == "rediss"
    )


def _host_port(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or not 1 <= int(port) <= 65535:
        raise ValueError(f"{text!r} is no host:port")
    return host, int(port)
