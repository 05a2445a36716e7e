"""Shared pages: viewers with the same token who reload a page share its rendering for a second.

A page reloads itself after changes. Without sharing, many open pages would read and render the same
data at the same time. A shared page is at most `AGE` older than its viewer's request. The script of
the page compares the index of the page with the index of the newest change, and reloads again if
the page is older.
"""

from collections import OrderedDict
from collections.abc import Mapping

import trio

AGE = 1.0  # seconds for which a page is shared
MOST = 64  # pages; a page is rarely larger than 100 kB

Key = tuple[object, ...]


class SharedPage:
    """A page that is being rendered, or was rendered recently; its renderer holds `lock`.

    `known` is the data of the page and `tag` its hash. `body` is empty until a viewer needs it.
    """

    def __init__(self, grant: object, began: float) -> None:
        self.grant, self.began = grant, began
        self.lock = trio.Lock()
        self.known: Mapping[str, object] | None = None
        self.tag, self.body = "", b""
        self.index = 0  # index of the store before the data was read


class SharedPages:
    """The pages of the last second. A key contains all inputs of a page except for the store."""

    def __init__(self) -> None:
        self._pages: OrderedDict[Key, SharedPage] = OrderedDict()

    def find(self, key: Key, grant: object, now: float) -> SharedPage:
        """Return the page of a key, or a new page; `now` is in seconds of Trio's clock.

        A page is not shared after a change of the viewer's rights.
        """
        while self._pages and now - next(iter(self._pages.values())).began >= AGE:
            self._pages.popitem(last=False)
        page = self._pages.get(key)
        if page is None or page.grant is not grant:
            page = self._pages[key] = SharedPage(grant, now)
            self._pages.move_to_end(key)
            if len(self._pages) > MOST:
                self._pages.popitem(last=False)
        return page
