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
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal
from urllib.parse import unquote_plus

import pydantic

from zarr_core.sources import SampleTree

# A tick has to end within its minute. SQS gives at most ten messages per request, and keeps them from other requests
# for a time.
_RECEIVE_SECONDS, _MESSAGES, _REQUESTS, _INVISIBLE_SECONDS = 10.0, 10, 8, 30
# More samples than these are found faster by a listing of the whole source: a page of it has a thousand objects.
MAX_FOLDERS = 100
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
    return {folder for message in messages for folder in message.folders}


def recorded(messages: Sequence[Message], unrecorded: Callable[[str], bool]) -> list[str]:
    """Receipts of the messages of which no folder holds an ``unrecorded`` change."""
    return [message.receipt for message in messages if not any(map(unrecorded, message.folders))]


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
    folders, others = set(), not objects
    for url, created in objects:
        if url.startswith(root):
            folder = tree.folder_of(url.removeprefix(root))
            others |= folder is None or not created
            folders |= {folder} if folder else set()
    return Message(receipt, sent, frozenset(folders), others)


def _objects(body: str) -> list[tuple[str, bool]]:
    """URLs of the objects that a message names, and whether they were created; raises ValidationError."""
    match _BODY.validate_json(body):
        case _TopicMessage(Message=inner):
            return _objects(inner)
        case _BridgeEvent(detail_type=kind, detail=place):
            return [(f"s3://{place.bucket.name}/{place.object.key}", kind == "Object Created")]
        case _Notification(Records=records):
            return [
                (f"s3://{r.s3.bucket.name}/{unquote_plus(r.s3.object.key)}", r.eventName.startswith("ObjectCreated"))
                for r in records
            ]
    return []


@cache
def _client(queue: str) -> Any:
    """A client, which threads share. The address of a queue of AWS names its region."""
    import boto3

    region = re.match(r"https://sqs\.([a-z0-9-]+)\.amazonaws\.com", queue)
    return boto3.client("sqs", **({"region_name": region[1]} if region else {}))
