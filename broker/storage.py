"""Where the store of a broker is: on the disk, or in the memory of the process (`storeType=MEMORY`)."""

from __future__ import annotations

import attrs

from ..ha.errors import WrongHaSetting
from ..world.memory_disk import MemoryDisk
from ..world.real import World
from .config import MEMORY, BrokerConfig


def world_of_store(config: BrokerConfig, world: World) -> World:
    """The world in which the store and the files of tables are; accounts and certificates stay on the disk.

    A node with a store in memory comes back from each stop as one that has lost its disk, without a vote until it knows what it
    had. A ledger on the disk would let it come back later as one that has not: with an older vote, and without what it has
    acknowledged meanwhile.

    Raises:
        WrongHaSetting: the store is to be in memory, and there is one on the disk.
    """
    if config.store_type != MEMORY:
        return world
    root = config.store_path_root_dir
    on_disk = (config.store_config().commit_log_directory, f"{root}/dledger-{config.dleger_self_id}")
    for directory in filter(None, (*on_disk, config.store_path_dledger_commit_log)):
        if world.disk.exists(directory):
            raise WrongHaSetting(
                f"storeType is {MEMORY}, and {directory} is there: this node would not use it now, and with another storeType "
                "later it could vote as if it had never been away. Remove the whole store first; the leader fills the node"
            )
    return attrs.evolve(world, disk=MemoryDisk())
