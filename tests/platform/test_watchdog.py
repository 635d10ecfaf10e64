"""The watchdog names code locations that do not load and daemons that do not run."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import graphql
import pytest
from zarr_core.platform.sensors import watchdog

from tests.helpers.servers.alerts import MailServer, Webhook

NOW = 1_800_000_000.0


def answer(
    *daemons: tuple[str, bool], error: str | None = None, heartbeat: float = 30, ticks: dict[str, float] | None = None
) -> dict[str, object]:
    """What a webserver answers.

    Args:
        daemons: names, and whether Dagster calls them healthy.
        error: of the code location.
        heartbeat: seconds since the last heartbeat of each daemon.
        ticks: seconds since the last tick of each running sensor; their intervals are 30 s, of "slow" an hour.
    """
    location: dict[str, object] = {"__typename": "RepositoryLocation", "repositories": [{"sensors": []}]}
    if error:
        location = {"__typename": "PythonError", "message": error}
    if ticks:
        states = {name: {"status": "RUNNING", "ticks": [{"timestamp": NOW - age}]} for name, age in ticks.items()}
        states["new"] = {"status": "RUNNING", "ticks": []}
        states["stopped"] = {"status": "STOPPED", "ticks": [{"timestamp": 0.0}]}
        sensors = [
            {"name": name, "minIntervalSeconds": 3600 if name == "slow" else 30, "sensorState": state}
            for name, state in states.items()
        ]
        location["repositories"] = [{"sensors": sensors}]
    statuses = [
        {"daemonType": name, "required": True, "healthy": healthy, "lastHeartbeatTime": NOW - heartbeat}
        for name, healthy in daemons
    ]
    backfill = {"daemonType": "BACKFILL", "required": False, "healthy": False, "lastHeartbeatTime": None}
    return {
        "workspaceOrError": {
            "__typename": "Workspace",
            "locationEntries": [
                {"name": "zarr_core", "locationOrLoadError": location},
                {"name": "loading", "locationOrLoadError": None},
            ],
        },
        "instance": {"daemonHealth": {"allDaemonStatuses": [*statuses, backfill]}},
    }


@pytest.mark.slow
def test_the_query_is_one_that_dagster_answers() -> None:
    from dagster_graphql.schema import create_schema  # a second to import

    assert graphql.validate(create_schema().graphql_schema, graphql.parse(watchdog.QUERY)) == []


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (answer(("SENSOR", True)), []),
        (answer(("SENSOR", False), ("SCHEDULER", False)), ["daemons that do not run: SENSOR, SCHEDULER"]),
        (answer(("SENSOR", True), heartbeat=301), ["daemons that do not run: SENSOR"]),
        (answer(("SENSOR", True), ticks={"a": 299, "slow": 10_799}), []),
        (
            answer(("SENSOR", True), ticks={"a": 301, "slow": 10_801}),
            ["sensors of zarr_core that run but do not tick: a, slow"],
        ),
        (answer(("SENSOR", True), heartbeat=301, ticks={"a": 301}), ["daemons that do not run: SENSOR"]),
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
    serve(monkeypatch, lambda: data)
    assert watchdog.main(["http://webserver:3000/"]) == bool(found)
    assert capsys.readouterr().err.splitlines() == found
    assert webhook.texts == mail_server.texts == (["\n".join(found)] if found else [])


def serve(monkeypatch: pytest.MonkeyPatch, data: Callable[[], dict[str, object]]) -> None:
    """A webserver that gives these answers at the time NOW."""

    class Response:
        def raise_for_status(self) -> None:
            pass

        def json(self) -> dict[str, object]:
            return {"data": data()}

    def post(address: str, **_: object) -> Response:
        assert address == "http://webserver:3000/graphql"
        return Response()

    monkeypatch.setattr(watchdog.requests, "post", post)
    monkeypatch.setattr(
        "zarr_core.platform.sensors.watchdog.time", SimpleNamespace(time=lambda: NOW, sleep=lambda _: None)
    )


def test_a_problem_is_sent_when_it_begins_every_hour_and_when_it_is_over(
    monkeypatch: pytest.MonkeyPatch, webhook: Webhook, mail_server: MailServer
) -> None:
    healthy = False
    serve(monkeypatch, lambda: answer(("SENSOR", healthy)))
    watch = watchdog.Watch("http://webserver:3000")
    down, over = "daemons that do not run: SENSOR", "the watchdog finds no problem any more"
    webhook.statuses, mail_server.statuses = [403], [451]
    for seconds, texts in ((0, []), (60, [down]), (3659, [down]), (3660, [down, down])):
        watch.look(NOW + seconds)
        assert webhook.texts == texts, seconds
    healthy = True
    watch.look(NOW + 3720)
    watch.look(NOW + 9999)
    assert webhook.texts == [down, down, over]


def test_a_webserver_that_does_not_answer_is_a_problem() -> None:
    (problem,) = watchdog.problems_of("http://127.0.0.1:1")
    assert problem.startswith("the webserver http://127.0.0.1:1 does not answer: ConnectionError")
