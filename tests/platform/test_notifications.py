"""The arrivals sensor with a queue that the source's bucket notifies: it looks only at what is named there."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote_plus

import boto3
import pydantic
import pytest
from zarr_core.platform.assets.dataset import DatasetDeclaration
from zarr_core.platform.sensors import arrivals, notifications

from tests.platform.test_source_watch import Watcher, observed
from tests.platform.trial import Trial, write_run
from zarr_core.sources import SampleTree
from zarr_core.sources.sample import FoundSamples
from zarr_core.storage import Storage

EVENTS = ["s3:ObjectCreated:*", "s3:ObjectRemoved:*"]


class Bucket(Watcher):
    """A watched bucket with a queue. A tick follows the one before after half a minute, by the clock of both sides.

    Attributes:
        looked: what the last tick listed: folders of samples, or None for the whole source.
    """

    def __init__(self, trial: Trial, root: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.client, self.source, self.folder, self.now = boto3.client("sqs"), Storage(root), folder, time.time()
        self.queue = self.client.create_queue(QueueName=root.split("/")[2])["QueueUrl"]
        declared = trial.dataset.model_copy(update={"source": root, "notifications": self.queue})
        super().__init__(Trial(declared, trial.instance))
        self.looked: list[str] | None = []

        find = SampleTree.find

        def keep(tree: Any, sample_ids: Any = None, folders: Any = None) -> FoundSamples:
            self.looked = None if folders is None else sorted(folders)
            return find(tree, sample_ids, folders)

        monkeypatch.setattr(SampleTree, "find", keep)
        monkeypatch.setattr(arrivals, "time", SimpleNamespace(time=lambda: self.now))
        monkeypatch.setattr("moto.sqs.models.unix_time_millis", lambda: self.now * 1000)
        self.notify()

    def notify(self, *, on: bool = True) -> None:
        names = ["QueueArn"]
        arn = self.client.get_queue_attributes(QueueUrl=self.queue, AttributeNames=names)["Attributes"]["QueueArn"]
        settings = {"QueueConfigurations": [{"QueueArn": arn, "Events": EVENTS}]} if on else {}
        bucket = self.source.url.split("/")[2]
        boto3.client("s3").put_bucket_notification_configuration(Bucket=bucket, NotificationConfiguration=settings)

    def upload(self, number: int, *, shift: float = 0.0, files: slice = slice(None)) -> None:
        paths = sorted(write_run(self.folder, number, shift=shift).iterdir())
        for path in paths[files]:
            self.source.write(f"run_{number}/{path.name}", [path.read_bytes()])

    def tick(self) -> Any:
        self.now += 31
        return super().tick()

    def messages(self) -> int:
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        found = self.client.get_queue_attributes(QueueUrl=self.queue, AttributeNames=names)["Attributes"]
        return sum(int(found[name]) for name in names)


@pytest.fixture
def bucket(trial: Trial, s3_root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    return Bucket(trial, s3_root, tmp_path / "made", monkeypatch)


def registered(bucket: Bucket) -> list[str]:
    return bucket.trial.samples()


@pytest.mark.slow
def test_a_tick_looks_only_at_the_samples_that_messages_name(bucket: Bucket) -> None:
    bucket.upload(9)
    bucket.tick()
    assert bucket.looked is None, "the first tick"
    bucket.settle()
    assert registered(bucket) == ["run_9"]
    bucket.upload(1, files=slice(-1))
    bucket.source.write("run_7", [b"beside the samples, by its name"])
    bucket.tick()
    assert bucket.looked is None, "a file that belongs to no sample"
    result = bucket.tick()
    assert bucket.looked == []
    assert bucket.messages() == 0
    bucket.upload(1, files=slice(-1, None))
    for samples in (["run_9"], ["run_9", "run_1"]):  # two looks have to agree
        result = bucket.tick()
        assert bucket.looked == ["run_1"]
        assert registered(bucket) == samples
    assert observed(result) == ["run_1"]
    assert "1 complete notified sample, 1 new (run_1)" in str(result.skip_reason)
    assert bucket.messages() == 0

    bucket.upload(2, files=slice(-1))
    result = bucket.tick()
    assert bucket.looked == ["run_2"]
    assert "1 incomplete (run_2 lacks" in str(result.skip_reason)
    assert registered(bucket) == ["run_9", "run_1"]
    bucket.upload(1, shift=1.0, files=slice(1))
    bucket.tick()
    assert observed(bucket.tick()) == ["run_1"], "a changed sample"
    assert bucket.messages() == 0


@pytest.mark.slow
def test_a_message_is_deleted_when_what_it_reports_is_recorded(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket.upload(1)
    bucket.settle()
    assert registered(bucket) == ["run_1"]
    bucket.tick()
    assert bucket.messages() == 0
    bucket.upload(2)
    for _ in range(3):  # ticks whose results the daemon could not store
        cursor = bucket.cursor
        with monkeypatch.context() as patched:
            patched.setattr(bucket.trial.instance, "report_runless_asset_event", lambda _: None)
            bucket.tick()
        bucket.cursor = cursor
        assert bucket.looked == ["run_2"]
        assert bucket.messages() > 0
    bucket.tick()
    assert registered(bucket) == ["run_1"]
    bucket.tick()
    assert registered(bucket) == ["run_1", "run_2"]
    assert bucket.messages() == 0


@pytest.mark.slow
def test_the_listing_of_the_whole_source_decides(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in (1, 2):
        bucket.upload(number)
    bucket.settle()
    bucket.tick()
    bucket.notify(on=False)
    bucket.upload(3)
    bucket.settle()
    assert (bucket.looked, registered(bucket)) == ([], ["run_1", "run_2"]), "messages that never came"
    bucket.now += notifications.LIST_SECONDS
    bucket.settle()
    assert registered(bucket) == ["run_1", "run_2", "run_3"]
    bucket.notify()
    bucket.tick()
    bucket.source.delete(list(bucket.source.list("run_2")))
    assert observed(bucket.settle()) == ["run_2"]
    assert registered(bucket) == ["run_1", "run_3"], "a removed object is answered by a listing"
    bucket.tick()
    assert bucket.looked == []
    monkeypatch.setattr("zarr_core.platform.sensors.notifications.MAX_FOLDERS", 1)
    for number in (4, 5):
        bucket.upload(number)
    bucket.tick()
    assert bucket.looked is None, "many samples are found faster by a listing"
    bucket.tick()
    assert registered(bucket) == ["run_1", "run_3", "run_4", "run_5"]
    bucket.tick()
    assert bucket.messages() == 0


def notification(key: str, name: str = "ObjectCreated:Put") -> str:
    """A message of the bucket, with the fields that count; ``key`` is "bucket/key"."""
    bucket, _, key = key.partition("/")
    place = {"bucket": {"name": bucket}, "object": {"key": quote_plus(key)}}
    return json.dumps({"Records": [{"eventName": name, "s3": place}]})


def bridge_event(key: str, name: str = "Object Created") -> str:
    bucket, _, key = key.partition("/")
    place = {"bucket": {"name": bucket}, "object": {"key": key}, "reason": "PutObject"}
    return json.dumps({"version": "0", "detail-type": name, "source": "aws.s3", "detail": place})


def topic_message(body: str) -> str:
    return json.dumps({"Type": "Notification", "MessageId": "1", "Subject": "Amazon S3 Notification", "Message": body})


@pytest.mark.slow
def test_a_clock_that_was_set_back_loses_no_message(bucket: Bucket) -> None:
    bucket.upload(1)
    bucket.settle()
    bucket.now += 86_400
    bucket.tick()
    bucket.now -= 86_400
    bucket.upload(2)
    bucket.tick()
    assert bucket.looked is None, "nobody knows when the source was listed last"
    bucket.tick()
    assert registered(bucket) == ["run_1", "run_2"]
    bucket.upload(3)
    bucket.settle()
    assert bucket.looked == ["run_3"]
    assert registered(bucket) == ["run_1", "run_2", "run_3"]


@pytest.mark.slow
def test_notifications_through_a_topic_or_eventbridge(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    warned: list[str] = []
    monkeypatch.setattr(logging.Logger, "warning", lambda _, text, *__: warned.append(text))
    bucket.upload(1)
    bucket.settle()
    bucket.tick()
    bucket.notify(on=False)
    place = bucket.source.url.removeprefix("s3://")
    for folder, body in (
        ("a b", topic_message(notification(f"{place}/a b/x.pt"))),
        ("a+b", bridge_event(f"{place}/a+b/x.pt")),
        ("run_2", topic_message(bridge_event(f"{place}/run_2/x.pt"))),
    ):
        bucket.client.send_message(QueueUrl=bucket.queue, MessageBody=body)
        bucket.tick()
        assert bucket.looked == [folder]
    bucket.client.send_message(QueueUrl=bucket.queue, MessageBody=bridge_event(f"{place}/run_1/x.pt", "Object Deleted"))
    bucket.tick()
    assert bucket.looked is None
    bucket.client.send_message(QueueUrl=bucket.queue, MessageBody=topic_message('{"Event": "s3:TestEvent"}'))
    bucket.tick()
    assert bucket.looked is None
    assert warned == []
    bucket.tick()
    for body in ("hello", topic_message("hello")):
        bucket.client.send_message(QueueUrl=bucket.queue, MessageBody=body)
    bucket.tick()
    assert bucket.looked is None
    assert len(warned) == 1
    assert f"2 messages of {bucket.queue} are not notifications of S3" in warned[0]


def test_only_buckets_have_notifications(dataset: DatasetDeclaration) -> None:
    document: dict[str, Callable[..., object] | object] = dict(dataset)
    with pytest.raises(pydantic.ValidationError, match="notifications: only sources in S3 have them"):
        DatasetDeclaration(**document | {"notifications": "https://sqs.eu-central-1.amazonaws.com/1/arrivals"})
