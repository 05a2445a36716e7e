"""The token of the secrets side that a task has: made for it, handed over, kept alive.

It reaches the task in `secrets/vault_token`, which only its user can read, and in its environment.
It is renewed at half of its life. One that cannot live on is replaced, and the task is told of it
as the job says. In the allocation's own directory, which no task can look into, lies by what it
is found after a restart of the daemon: not the secret itself.
"""

from collections.abc import Callable

import trio

from daemon.runner import events
from daemon.runner.host import Credentials, Held
from daemon.runner.instance import Instance, workload_of
from daemon.runner.taskfiles import TaskFiles
from daemon.runner.wishes import Wish
from storage.errors import Refused
from storage.records.allocation import TaskEvent
from storage.records.base import SECOND
from storage.records.task import SecretsConfig

_FILE = "secrets/vault_token"
_LONGEST = 4096  # bytes of such a file
_AGAIN = 30.0  # seconds until it is tried again to get one
_LEAST = 4  # a token that has less than this part of its life left is replaced


class SecretToken:
    """The token of one task. `note` tells at once what happens."""

    def __init__(
        self,
        credentials: Credentials,
        instance: Callable[[], Instance],
        task: str,
        files: TaskFiles,
        now: Callable[[], int],
        note: Callable[[TaskEvent], None],
    ) -> None:
        self._credentials, self._instance, self._task = credentials, instance, task
        self._files, self._now, self._note = files, now, note
        self._held: Held | None = None
        self._secret = ""

    @property
    def _block(self) -> SecretsConfig:
        task = self._instance().group.task(self._task)
        return (task and task.secrets_config) or SecretsConfig()

    @property
    def environment(self) -> dict[str, str]:
        """Return the variables that hold the token."""
        if not (self._secret and self._block.env):
            return {}
        return {"STEWARD_TOKEN": self._secret, "VAULT_TOKEN": self._secret}

    async def bring(self) -> None:
        """Hand over a token that is good, a new one if need be. Raises `Refused` or `OSError`."""
        held = self._held and self._credentials.find(self._held.accessor)
        if held is None or not self._secret:
            await self._replace()
        else:
            self._held = held
            await self._write(held.accessor, self._secret)

    async def recall(self) -> None:
        """Go on with the token that an earlier daemon has handed over."""
        try:
            accessor = await self._files.recall("token")
        except OSError:
            return
        if accessor is None:
            return
        self._held = self._credentials.find(accessor)
        try:
            found = await self._files.read(self._files.own(_FILE), _LONGEST)
        except (OSError, Refused):  # it is not kept in a file, or the task has removed it
            return
        # A task may have written anything else there.
        kept = found.decode(errors="replace")
        self._secret = kept if self._credentials.is_secret(accessor, kept) else ""

    async def keep(self) -> list[Wish]:
        """Return, when the task has got another token, how it wants to be told."""
        while True:
            await trio.sleep(max(0, self._due() - self._now()) / SECOND)
            if self._block.allow_token_expiration and self._held is not None:
                await trio.sleep_forever()
            try:
                if await self._renew():
                    continue
                await self._replace()
            except (Refused, OSError) as error:
                self._note(events.secrets_failure(self._now(), f"no new token: {error}"))
                await trio.sleep(_AGAIN)
                continue
            block = self._block
            return [
                Wish(
                    mode=block.change_mode,
                    signal=block.change_signal,
                    said="Vault: new Vault token acquired",
                )
            ]

    def _due(self) -> int:
        """Return when half of the token's life is over; at once for one that there is not."""
        held = self._held
        return (held.renewed_at + held.expires_at) // 2 if held else 0

    async def _renew(self) -> bool:
        """Prolong the token's life; tell whether enough of it is left then."""
        if self._held is None:
            return False
        try:
            held = await self._credentials.renew(self._held.accessor)
        except Refused:
            return False
        self._held = held
        return (held.expires_at - self._now()) * _LEAST > held.ttl

    async def _replace(self) -> None:
        before = self._held
        held = await self._credentials.make(workload_of(self._instance(), self._task), self._block)
        try:
            await self._write(held.accessor, held.secret)
        except (Refused, OSError):
            await self._credentials.end(held.accessor)
            raise
        self._held, self._secret = held, held.secret
        if before is not None:
            await self._credentials.end(before.accessor)

    async def _write(self, accessor: str, secret: str) -> None:
        """Hand over a token. Without the note, if one is stopped in between, it is replaced."""
        await self._files.note("token", None)
        if not self._block.disable_file:
            await self._files.write(self._files.own(_FILE), secret.encode())
        await self._files.note("token", accessor)
