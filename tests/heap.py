"""Garbage collection in test processes.

A process of pytest has about a million objects of collected tests and loaded modules. A full
collection over them takes about a second, and Python starts one at times in any test. So they are
moved to the permanent generation, which no collection searches, as a daemon does at its start.
"""

import gc


def keep_present_objects() -> None:
    """Exclude all present objects from later collections, for the rest of the process.

    A collection comes first, so no garbage stays. `gc.unfreeze` would return the objects of all
    collected tests too, so only a test of full collections calls it.
    """
    gc.collect()
    gc.freeze()
