"""The access control of a broker, as its configuration asks for it."""

from __future__ import annotations

from functools import partial

from ...ha.classic.table_proofs import node_credentials
from ...world.real import World
from ..config import BrokerConfig
from .account_files import AccountFiles
from .audit import Audit
from .control import AccessControl
from .plain_acl import PlainAccessControl
from .users import AccessTable, User


def access_of(config: BrokerConfig, world: World, table: AccessTable) -> AccessControl | PlainAccessControl | None:
    """What checks every request; None if everybody may do everything.

    Raises:
        BadAccountFile: the files of accounts cannot be read.
    """
    node = node_credentials(config.ha_secret.encode())
    nodes = {} if node is None else {node.access_key: User(node.access_key, node.secret_key, is_super=True)}
    configured, cluster = {**config.configured_users, **nodes}, config.broker_cluster_name
    if config.acl_enable:
        files = AccountFiles(world.disk, f"{config.rocketmq_home or config.store_path_root_dir}/conf")
        control = PlainAccessControl(accounts=files.load(), nodes=configured, cluster=cluster, audit=Audit(world.clock))
        control.watch = partial(files.watch, control, world.workers)
        return control
    if not config.authentication_enabled:
        return None
    return AccessControl(
        table=table,
        cluster=cluster,
        authorizes=config.authorization_enabled,
        configured=configured,
        audit=Audit(world.clock),
    )
