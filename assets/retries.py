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

    An error while the run is being terminated follows from that, and ends the step.

    Args:
        context: of the step.
        seconds: pause before the first retry; it doubles with each further one.
    """
    try:
        yield
    except dg.DagsterError:
        raise  # the definitions or the instance are at fault, and still will be
    except Exception as error:
        run = context.instance.get_run_by_id(context.run.run_id)
        if run is not None and run.status is dg.DagsterRunStatus.CANCELING:
            # Extension modules that are being imported make an ImportError or a SystemError of the interrupt.
            context.log.info(f"The run was terminated ({type(error).__name__}: {error})")
            raise dg.DagsterExecutionInterruptedError("The run was terminated") from None
        final = isinstance(error, dg.Failure) and not error.allow_retries
        # The last attempt fails with the error itself: the UI then begins with its message, and shows its metadata.
        if final or context.retry_number >= _MAX_RETRIES:
            raise
        raise dg.RetryRequested(_MAX_RETRIES, seconds * 2**context.retry_number) from error
