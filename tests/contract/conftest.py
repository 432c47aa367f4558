"""A real Valkey for the session, and one a test may break."""

import itertools
from collections.abc import AsyncIterator, Iterator

import pytest

from gateway.site import Patience
from gateway.site.valkey_store import SiteAddress, SiteValkey
from tests.valkey_server import ValkeyServer

CALM = Patience(request_s=5.0, background_s=5.0)
"""For tests of the law: a busy machine is not Valkey trouble."""

_PREFIXES = itertools.count()


@pytest.fixture(scope="session")
def shared_valkey() -> Iterator[ValkeyServer]:
    server = ValkeyServer().start()
    yield server
    server.close()


@pytest.fixture
def own_valkey() -> Iterator[ValkeyServer]:
    """For tests that pause, kill or fill it."""
    server = ValkeyServer().start()
    yield server
    server.close()


@pytest.fixture
async def site(shared_valkey: ValkeyServer) -> AsyncIterator[SiteValkey]:
    """A site of its own inside the shared server: the prefix keeps tests apart."""
    site = SiteValkey("test", SiteAddress(port=shared_valkey.port), prefix=f"test{next(_PREFIXES)}", patience=CALM)
    yield site
    await site.close()
