"""Endpoints that are shut down when their test ends."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from callboard.broker import Endpoint
from tests.proxies.papers import Papers

MakeEndpoint = Callable[..., Endpoint]


@pytest.fixture
def make_endpoint() -> Iterator[MakeEndpoint]:
    made: list[Endpoint] = []

    def make(*args: Any, **options: Any) -> Endpoint:
        endpoint = Endpoint(*args, **options)
        made.append(endpoint)
        return endpoint

    yield make
    for endpoint in made:
        endpoint.shutdown()


@pytest.fixture
def pair(make_endpoint):
    """Two endpoints that are not peers yet, and the port of the first."""
    here, there = make_endpoint(), make_endpoint()
    return here, there, here.listen("127.0.0.1", 0)


@pytest.fixture(scope="module")
def papers(tmp_path_factory) -> Papers:
    return Papers(tmp_path_factory.mktemp("tls") / "ours")
