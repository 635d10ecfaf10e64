"""``functools.cached_property``, without the lock that it has before Python 3.12.

That lock is one for all instances of a class. A process that is forked while a thread of its parent holds it would wait
for that thread for ever.
"""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING or sys.version_info >= (3, 12):
    cached_property = functools.cached_property
else:

    class cached_property(functools.cached_property):
        """A property that is calculated once for each instance; by two threads at once, perhaps twice."""

        def __get__(self, instance: Any, owner: Any = None) -> Any:
            """The value, which the instance keeps under the name of the property."""
            if instance is None:
                return self
            kept = vars(instance)
            if self.attrname not in kept:
                kept[self.attrname] = self.func(instance)
            return kept[self.attrname]
