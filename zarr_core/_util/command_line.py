"""What the command-line tools share: known errors are a line on stderr and a status, never a traceback."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from typing import Any

from zarr_core.errors import ZarrCoreError

INTERRUPTED = 130


def exit_status(work: Callable[[], int]) -> int:
    """Run a command's work and return its exit status: 1 after an error that has a message, 130 after Ctrl-C."""
    with warnings.catch_warnings():
        warnings.simplefilter("always", UserWarning)
        warnings.showwarning = _print_warning
        try:
            return work()
        except (ZarrCoreError, OSError) as error:
            print(f"error: {error}", file=sys.stderr)
            return 1
        except KeyboardInterrupt:
            print("interrupted; what was finished is kept", file=sys.stderr)
            return INTERRUPTED


def number_or_tag(text: str) -> int | str:
    """A generation as one types it: its number, or a tag, which begins with a letter."""
    return int(text) if text.isdigit() else text


def _print_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    print(f"warning: {message}", file=sys.stderr)
