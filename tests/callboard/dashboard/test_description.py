"""The API agrees with its description: schemathesis sends allowed requests to live nodes."""

import json
import urllib.parse

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from tests.callboard.dashboard.conftest import Cluster

pytestmark = pytest.mark.slow


@pytest.mark.faults
@pytest.mark.timeout(600)
def test_the_api_answers_as_its_description_states():
    schemathesis = pytest.importorskip("schemathesis", reason="needs schemathesis")
    with Cluster(actions=True) as cluster:
        client = cluster.client
        document = json.loads(client.ask("api/v1/openapi.json")[1])
        schema = schemathesis.openapi.from_dict(document)
        for found in schema.get_all_operations():
            operation = found.ok()

            @settings(
                max_examples=2 if "put" in operation.path else 15,  # it looks for the store
                deadline=None,
                database=None,
                suppress_health_check=list(HealthCheck),
                phases=[Phase.generate],
            )
            @given(case=operation.as_strategy())
            def try_it(case):
                query = urllib.parse.urlencode(case.query or {}, errors="replace")
                path = f"{case.formatted_path.lstrip('/')}?{query}"
                body = case.body if isinstance(case.body, dict | list | str | int) else None
                status, text, _ = client.ask(path, case.method.upper(), body)
                known = document["paths"][case.path][case.method.lower()]["responses"]
                assert str(status) in known, (case.path, status, text)

            try_it()
