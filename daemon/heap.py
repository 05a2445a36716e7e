"""Where memory comes from: one heap for all threads.

By itself the C library gives each thread one of many heaps, up to eight for each processor. Work in
threads is small and runs in whichever is free, so over hours each heap comes to hold what the largest
work took. Since the interpreter runs one thread at a time, one heap is as fast.
"""

import ctypes

_M_ARENA_MAX = -8  # malloc.h of the GNU C library


def share_one_heap() -> None:
    """Give this process one heap; before its first thread starts. Other C libraries have one anyway."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(_M_ARENA_MAX, 1)
