"""The Vault token of a task: issued, delivered, and renewed.

A task gets its token in the file `secrets/vault_token`, which only the task's user can read, and in
its environment. The token is renewed at half of its TTL. A token that cannot be renewed is
replaced, and the change action of the job runs. The accessor, not the secret, is stored in the
allocation directory, where no task has access. With the accessor, a restarted daemon finds the
token.
"""

from collections.abc import Callable

import trio

from daemon.runner.core import task_events
from daemon.runner.core.task_files import TaskFiles
from daemon.runner.core.task_instance import TaskInstance, workload
from daemon.runner.setup.change_actions import ChangeAction, PendingActions
from daemon.runner.setup.given_secrets import GivenSecrets
from daemon.runner.setup.runtime import TaskToken, TokenProvider
from storage.errors import Refused
from storage.records.allocation import TaskEvent
from storage.records.base import SECOND
from storage.records.task import SecretsConfig

_FILE = "secrets/vault_token"
_SOURCE = "token"  # name of this source of secrets, for masking
_LONGEST = 4096  # bytes of a token file
_AGAIN = 30.0  # seconds until issuing a token is retried
_LEAST = 4  # a token with less than 1/4 of its TTL left is replaced


class VaultTokenRenewer:
    """Issues and renews the token of one task. `note` emits an event immediately."""

    def __init__(
        self,
        credentials: TokenProvider,
        instance: Callable[[], TaskInstance],
        task: str,
        files: TaskFiles,
        now: Callable[[], int],
        note: Callable[[TaskEvent], None],
        secrets: GivenSecrets | None = None,
    ) -> None:
        self._credentials, self._instance, self._task = credentials, instance, task
        self._files, self._now, self._note = files, now, note
        self._token: TaskToken | None = None
        self._secret = ""
        self.secrets = secrets or GivenSecrets()
        self._pending = PendingActions(files, "replaced")
        # Whether an earlier daemon replaced the token, but did not tell the task.
        self._is_action_due = False

    @property
    def _block(self) -> SecretsConfig:
        task = self._instance().group.task(self._task)
        return (task and task.secrets_config) or SecretsConfig()

    @property
    def environment(self) -> dict[str, str]:
        """Return the environment variables that hold the token."""
        if not (self._secret and self._block.env):
            return {}
        return {"STEWARD_TOKEN": self._secret, "VAULT_TOKEN": self._secret}

    async def deliver(self) -> None:
        """Deliver a valid token, issuing a new one if needed. Raises `Refused` or `OSError`."""
        await self.forget_action()
        token = self._token and self._credentials.find(self._token.accessor)
        if token is None or not self._secret:
            await self._replace()
        else:
            self._token = token
            await self._write(token.accessor, self._secret)

    async def recall(self) -> None:
        """Restore the token that an earlier daemon delivered, and a pending change action."""
        self._is_action_due = bool(await self._pending.recall())
        try:
            accessor = await self._files.recall("token")
        except OSError:
            return
        if accessor is None:
            return
        self._token = self._credentials.find(accessor)
        try:
            content = await self._files.read(self._files.own(_FILE), _LONGEST)
        # The token was not delivered as a file, or the task removed the file.
        except (OSError, Refused):
            return
        # The task can write arbitrary bytes to this file.
        stored_accessor = content.decode(errors="replace")
        self._secret = (
            stored_accessor if self._credentials.is_secret(accessor, stored_accessor) else ""
        )
        self.secrets.add(_SOURCE, self._secret)

    async def renew_when_due(self) -> list[ChangeAction]:
        """Renew the token if it is due; return the change action if the token was replaced.

        Call `forget_action` after the action. A later daemon repeats an action without this call.
        """
        while not self._is_action_due:
            await trio.sleep(max(0, self._due() - self._now()) / SECOND)
            if self._block.allow_token_expiration and self._token is not None:
                await trio.sleep_forever()
            try:
                if await self._renew():
                    continue
                if self._block.change_mode in ("restart", "signal"):
                    await self._pending.store([0])
                await self._replace()
            except (Refused, OSError) as error:
                self._note(
                    task_events.secrets_failure(
                        self._now(), f"the task got no new Vault token: {error}"
                    )
                )
                await trio.sleep(_AGAIN)
            else:
                break
        self._is_action_due = False
        block = self._block
        return [
            ChangeAction(
                mode=block.change_mode,
                signal=block.change_signal,
                description="Vault: new Vault token acquired",
            )
        ]

    async def forget_action(self) -> None:
        """Forget the pending change action, after it has run."""
        self._is_action_due = False
        await self._pending.forget()

    def _due(self) -> int:
        """Return the renewal time, at half of the TTL, in nanoseconds.

        Without a token, return the present time.
        """
        token = self._token
        return (token.renewed_at + token.expires_at) // 2 if token else 0

    async def _renew(self) -> bool:
        """Renew the token; return whether its remaining TTL is sufficient."""
        if self._token is None:
            return False
        try:
            token = await self._credentials.renew(self._token.accessor)
        except Refused:
            return False
        self._token = token
        return (token.expires_at - self._now()) * _LEAST > token.ttl

    async def _replace(self) -> None:
        before = self._token
        token = await self._credentials.make(workload(self._instance(), self._task), self._block)
        self.secrets.add(_SOURCE, token.secret)
        try:
            await self.secrets.store()
            await self._write(token.accessor, token.secret)
        except (Refused, OSError):
            await self._credentials.end(token.accessor)
            raise
        self._token, self._secret = token, token.secret
        if before is not None:
            await self._credentials.end(before.accessor)

    async def _write(self, accessor: str, secret: str) -> None:
        """Deliver a token.

        The note with the accessor is written last. If the daemon stops before that, the next daemon
        replaces the token.
        """
        await self._files.write_note("token", None)
        if not self._block.disable_file:
            await self._files.write(self._files.own(_FILE), secret.encode())
        await self._files.write_note("token", accessor)
