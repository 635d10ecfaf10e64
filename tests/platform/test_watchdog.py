"""The watchdog names code locations that do not load and daemons that do not run."""

from __future__ import annotations

import graphql
import pytest

from sensors import watchdog
from tests.helpers.servers.alerts import MailServer, Webhook


def answer(*daemons: tuple[str, bool], error: str | None = None) -> dict[str, object]:
    """What a webserver answers."""
    location = {"__typename": "PythonError", "message": error} if error else {"__typename": "RepositoryLocation"}
    statuses = [{"daemonType": name, "required": True, "healthy": healthy} for name, healthy in daemons]
    return {
        "workspaceOrError": {
            "__typename": "Workspace",
            "locationEntries": [
                {"name": "zarr_core", "locationOrLoadError": location},
                {"name": "loading", "locationOrLoadError": None},
            ],
        },
        "instance": {
            "daemonHealth": {
                "allDaemonStatuses": [*statuses, {"daemonType": "BACKFILL", "required": False, "healthy": False}]
            }
        },
    }


def test_the_query_is_one_that_dagster_answers() -> None:
    from dagster_graphql.schema import create_schema  # a second to import

    assert graphql.validate(create_schema().graphql_schema, graphql.parse(watchdog.QUERY)) == []


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (answer(("SENSOR", True)), []),
        (answer(("SENSOR", False), ("SCHEDULER", False)), ["daemons that do not run: SENSOR, SCHEDULER"]),
        (answer(error="No module named x\n"), ["the code location zarr_core does not load: No module named x"]),
        (
            {"workspaceOrError": {"__typename": "PythonError", "message": "bad"}},
            ["the workspace does not load: bad"],
        ),
    ],
)
def test_problems_are_named_and_sent(
    data: dict[str, object],
    found: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    webhook: Webhook,
    mail_server: MailServer,
) -> None:
    monkeypatch.setattr(watchdog.sys, "argv", ["watchdog", "http://webserver:3000/"])

    class Response:
        def raise_for_status(self) -> None:
            pass

        def json(self) -> dict[str, object]:
            return {"data": data}

    def post(address: str, **_: object) -> Response:
        assert address == "http://webserver:3000/graphql"
        return Response()

    monkeypatch.setattr(watchdog.requests, "post", post)
    assert watchdog.main() == bool(found)
    assert capsys.readouterr().err.splitlines() == found
    assert webhook.texts == mail_server.texts == (["\n".join(found)] if found else [])


def test_a_webserver_that_does_not_answer_is_a_problem() -> None:
    (problem,) = watchdog.problems_of("http://127.0.0.1:1")
    assert problem.startswith("the webserver http://127.0.0.1:1 does not answer: ConnectionError")
