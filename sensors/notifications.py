"""Notifications of a bucket about its objects, taken from a queue of SQS. Without Dagster.

The bucket sends them to the queue itself, through a topic of SNS, or through EventBridge; AWS documents the forms:
https://docs.aws.amazon.com/AmazonS3/latest/userguide/notification-content-structure.html (of the bucket and SNS) and
https://docs.aws.amazon.com/AmazonS3/latest/userguide/ev-events.html (of EventBridge).

A message is deleted only when what it reports is recorded: by a listing of the whole source that the sensor's cursor
names, as a pending change in the cursor, or because its sample is known as it is. Until then it comes again, so a tick
that fails loses nothing. One dataset reads a queue.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal
from urllib.parse import unquote_plus

import pydantic
from zarr_core.platform.sensors.pending import PendingChanges

from zarr_core.sources import SampleTree
from zarr_core.sources.listing import Listing
from zarr_core.sources.tree import MAX_FOLDERS

# With notifications, the whole source is listed this often: the listing decides.
LIST_SECONDS = 3600
# A tick has to end within its minute. SQS gives at most ten messages per request, and keeps them from other requests
# for a time.
_RECEIVE_SECONDS, _MESSAGES, _REQUESTS, _INVISIBLE_SECONDS = 10.0, 10, 8, 30
# Difference between the clocks of the queue and of this machine that loses no message.
_CLOCK_SECONDS = 5.0


class _Named(pydantic.BaseModel):
    name: str


class _Key(pydantic.BaseModel):
    key: str


class _Place(pydantic.BaseModel):
    bucket: _Named
    object: _Key


class _Record(pydantic.BaseModel):
    eventName: str
    s3: _Place


class _Notification(pydantic.BaseModel):
    """Of the bucket. Keys are URL-encoded."""

    Records: list[_Record]


class _TestEvent(pydantic.BaseModel):
    """The first message of a bucket to a queue or topic."""

    Event: Literal["s3:TestEvent"]


class _BridgeEvent(pydantic.BaseModel):
    """Of EventBridge. Keys are not encoded."""

    detail_type: str = pydantic.Field(alias="detail-type")
    detail: _Place


class _TopicMessage(pydantic.BaseModel):
    """Of SNS, without raw message delivery: the message is a string."""

    Type: Literal["Notification"]
    Message: str


_BODY: pydantic.TypeAdapter[_Notification | _TestEvent | _BridgeEvent | _TopicMessage] = pydantic.TypeAdapter(
    _Notification | _TestEvent | _BridgeEvent | _TopicMessage
)


@dataclass(frozen=True)
class Message:
    """A message of the queue.

    Attributes:
        receipt: by which it is deleted.
        sent: when, in seconds since 1970.
        folders: of the samples whose files were written.
        needs_listing: the whole source has to be listed: an object was removed, or lies in no folder of a sample, or
            the message names no object, as the first one of a bucket.
        is_known: whether the message has one of the documented forms.
    """

    receipt: str
    sent: float
    folders: frozenset[str] = frozenset()
    needs_listing: bool = False
    is_known: bool = True


@dataclass(frozen=True)
class Notified:
    """What a queue reports of a source.

    Attributes:
        messages: of the queue.
        folders: of the samples to look at; None if the whole source has to be listed.
    """

    messages: Sequence[Message]
    folders: frozenset[str] | None


def notified(queue: str, tree: SampleTree, before: PendingChanges, now: float) -> Notified:
    """The messages of a queue, and the folders of the samples that they name or that are pending.

    The whole source has to be listed once per hour, when known samples are missing, and when it is faster.

    Args:
        queue: URL of the queue.
        tree: the source.
        before: changes that the last tick left pending.
        now: seconds since 1970.
    """
    # A time that is still to come was read from a clock that was set back since.
    listed_at = before.listed_at if before.listed_at <= now else 0.0
    messages = receive(queue, tree, listed_at)
    if now - listed_at > LIST_SECONDS or before.gone_once or needs_listing(messages):
        return Notified(messages, None)
    folders = folders_of(messages) | _pending_folders(tree, before)
    return Notified(messages, frozenset(folders) if len(folders) <= MAX_FOLDERS else None)


def delete_recorded(
    queue: str,
    messages: Sequence[Message],
    tree: SampleTree,
    listing: Listing,
    observed: Mapping[str, str | None],
    before: PendingChanges,
) -> None:
    """Delete the messages about samples that Dagster knows as they are now.

    Args:
        queue: URL of the queue.
        messages: of this tick.
        tree: the source.
        listing: of the samples that the messages name.
        observed: fingerprint that Dagster has recorded of each sample.
        before: changes that the last tick left pending: its cursor has recorded these.
    """
    unrecorded = set()
    for sample_id, item in listing.items.items():
        if observed.get(sample_id) != item.fingerprint:
            unrecorded.add(listing.details[sample_id]["folder"])
    unrecorded -= _pending_folders(tree, before)
    delete(queue, [message.receipt for message in messages if unrecorded.isdisjoint(message.folders)])


def _pending_folders(tree: SampleTree, pending: PendingChanges) -> set[str]:
    """Folders of the samples that were new or changed in the last tick."""
    folders: set[str] = set()
    for sample_id in pending.seen_once:
        folders.update(tree.folders_of(sample_id))
    return folders


def receive(queue: str, tree: SampleTree, listed_at: float) -> list[Message]:
    """Take messages until the queue is empty, ten seconds have passed, or a listing of the source is needed.

    Messages that were sent before the last listing are deleted, because they report nothing.

    Args:
        queue: URL of the queue.
        tree: the source.
        listed_at: time of the last listing of the whole source that was recorded.
    """
    found: list[Message] = []
    began, requests, since = time.monotonic(), 1, listed_at - _CLOCK_SECONDS
    with ThreadPoolExecutor(_REQUESTS) as pool:
        while time.monotonic() < began + _RECEIVE_SECONDS and not needs_listing(found):
            answers = pool.map(_receive, [queue] * requests)
            messages = [_parse(message, tree) for messages in answers for message in messages]
            if not messages:
                break
            delete(queue, [message.receipt for message in messages if message.sent < since])
            found += [message for message in messages if message.sent >= since]
            requests = _REQUESTS
    return found


def needs_listing(messages: Sequence[Message]) -> bool:
    """Whether messages are answered by a listing of the whole source."""
    return any(message.needs_listing for message in messages) or len(folders_of(messages)) > MAX_FOLDERS


def folders_of(messages: Sequence[Message]) -> set[str]:
    """The samples' folders that messages report."""
    return set().union(*(message.folders for message in messages))


def delete(queue: str, receipts: Sequence[str]) -> None:
    """Delete messages. Those that cannot be deleted come again."""
    for first in range(0, len(receipts), _MESSAGES):
        some = receipts[first : first + _MESSAGES]
        entries = [{"Id": str(number), "ReceiptHandle": receipt} for number, receipt in enumerate(some)]
        _client(queue).delete_message_batch(QueueUrl=queue, Entries=entries)


def _receive(queue: str) -> Sequence[Mapping[str, Any]]:
    answer: Mapping[str, Any] = _client(queue).receive_message(
        QueueUrl=queue,
        MaxNumberOfMessages=_MESSAGES,
        VisibilityTimeout=_INVISIBLE_SECONDS,
        MessageSystemAttributeNames=["SentTimestamp"],
    )
    return answer.get("Messages", ())


def _parse(message: Mapping[str, Any], tree: SampleTree) -> Message:
    receipt, sent = message["ReceiptHandle"], float(message["Attributes"]["SentTimestamp"]) / 1000
    try:
        objects = _objects(message["Body"])
    except pydantic.ValidationError:
        return Message(receipt, sent, needs_listing=True, is_known=False)
    root = f"{tree.url.rstrip('/')}/"
    folders = set()
    needs_listing = not objects
    for url, created in objects:
        if not url.startswith(root):
            continue
        folder = tree.folder_of(url.removeprefix(root))
        if folder is not None:
            folders.add(folder)
        if folder is None or not created:
            needs_listing = True
    return Message(receipt, sent, frozenset(folders), needs_listing)


def _objects(body: str) -> list[tuple[str, bool]]:
    """URLs of the objects that a message names, and whether they were created; raises ValidationError."""
    match _BODY.validate_json(body):
        case _TopicMessage(Message=inner):
            return _objects(inner)
        case _BridgeEvent(detail_type=kind, detail=place):
            return [(f"s3://{place.bucket.name}/{place.object.key}", kind == "Object Created")]
        case _Notification(Records=records):
            objects = []
            for record in records:
                url = f"s3://{record.s3.bucket.name}/{unquote_plus(record.s3.object.key)}"
                objects.append((url, record.eventName.startswith("ObjectCreated")))
            return objects
    return []


@cache
def _client(queue: str) -> Any:
    """A client, which threads share. The address of a queue of AWS names its region."""
    import boto3

    address = re.match(r"https://sqs\.([a-z0-9-]+)\.amazonaws\.com", queue)
    return boto3.client("sqs", region_name=address[1] if address else None)
