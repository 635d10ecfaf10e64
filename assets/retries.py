"""Retries of a step, without the retry policy of its asset.

Dagster 1.13 applies a retry policy to a terminated run as well: the step is retried and the run ends as a success. A
step under :func:`retried` ends at once when its run is terminated, because the interrupt is not an ``Exception``.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import dagster as dg

_MAX_RETRIES = 2


@contextmanager
def retried(context: dg.AssetExecutionContext, seconds: float) -> Iterator[None]:
    """Retry the step after an error, because a network outage or a lack of memory may soon be over.

    Args:
        context: of the step.
        seconds: pause before the first retry; it doubles with each further one.
    """
    try:
        with ended_by_a_person(context):
            yield
    except dg.DagsterError:
        raise  # the definitions or the instance are at fault, and still will be
    except Exception as error:
        final = isinstance(error, dg.Failure) and not error.allow_retries
        # The last attempt fails with the error itself: the UI then begins with its message, and shows its metadata.
        if final or context.retry_number >= _MAX_RETRIES:
            raise
        raise dg.RetryRequested(_MAX_RETRIES, seconds * 2**context.retry_number) from error


@contextmanager
def ended_by_a_person(context: dg.AssetExecutionContext) -> Iterator[None]:
    """End a step as cancelled, with a sentence, if an error in it follows from the termination of its run.

    An interrupt in the middle of an import is not raised as one: numpy and torch make an ``ImportError`` or a
    ``SystemError`` of it, and the run would fail with a long traceback that has nothing to do with it.
    """
    try:
        yield
    except Exception as error:
        run = context.instance.get_run_by_id(context.run.run_id)
        if run is None or run.status is not dg.DagsterRunStatus.CANCELING:
            raise
        context.log.info(f"The run was terminated ({type(error).__name__}: {error})")
        raise dg.DagsterExecutionInterruptedError("The run was terminated") from None
