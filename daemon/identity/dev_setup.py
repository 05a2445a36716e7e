"""Example login method, role and policy for the fake cloud of a development daemon."""

from collections.abc import Iterator

from daemon.acl import policy_store
from daemon.clock import Clock
from daemon.identity import devcloud, mounts, roles
from daemon.identity.methods import LoginMethods
from daemon.text.request_fields import RequestFields
from storage.queries import identity, policies
from storage.queries import mounts as stored_mounts
from storage.records.acl import Policy
from storage.store import Store
from storage.writer import Transaction

PATH = "cloudid/"
ROLE = "dev"
POLICY = "dev"
_RULES = """\
# Clients with the role dev can run jobs in the namespace default.
namespace "default" {
  policy = "write"
}
"""


async def prepare(store: Store, methods: LoginMethods, clock: Clock, ids: Iterator[str]) -> None:
    """Create the mount, role and policy with which a machine of the fake cloud can log in.

    Do nothing if the mount has a configuration. The configuration is created last, so a mount
    without a configuration comes from an interrupted start.
    """
    mount = store.read(lambda db: stored_mounts.find(db, PATH))
    if mount is None:
        mount = mounts.new_mount(PATH, RequestFields({"type": "cloudid"}), next(ids))
        await mounts.enable(store, mount)
    elif mount.accessor in store.read(identity.configured):
        return
    await roles.write(
        store,
        mount,
        ROLE,
        RequestFields(
            {
                "bound_service_principal_ids": [devcloud.PRINCIPAL],
                "bound_subscription_ids": [devcloud.SUBSCRIPTION],
                "token_policies": [POLICY],
                "token_ttl": "1h",
            }
        ),
    )
    now = clock.now()

    def write(tx: Transaction) -> None:
        if policies.find(tx, POLICY) is None:
            policy_store.put_policy(
                tx, policy_store.check_policy(Policy(name=POLICY, rules=_RULES, modified_at=now))
            )

    await store.write(write)
    await methods.configure(
        mount, RequestFields({"tenant_id": devcloud.TENANT, "resource": devcloud.RESOURCE})
    )
