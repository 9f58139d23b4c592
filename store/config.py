"""The configuration of the store, under RocketMQ's names (its `MessageStoreConfig`)."""

from __future__ import annotations

import re
from functools import lru_cache

import attrs

from ..world.memory import ASSUMED_MEMORY_BYTES

DELAY_LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"

CONSUMED = "consumed"
"""The value of `clean_file_forcibly_enable` that RocketMQ does not have: beside "true" and "false"."""

_UNIT_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_LEVEL = re.compile(r"([0-9]{1,12})([smhd])")


@lru_cache(maxsize=4)
def parse_delay_levels(text: str) -> tuple[int, ...]:
    """Read `messageDelayLevel` into milliseconds; index 0 is level 1.

    Raises:
        ValueError: an item is not a number and one of s m h d.
    """
    levels: list[int] = []
    for item in text.split():
        match = _LEVEL.fullmatch(item)
        if match is None:
            raise ValueError(f"messageDelayLevel: {item!r} is not a number followed by s, m, h or d")
        levels.append(int(match[1]) * _UNIT_MS[match[2]])
    return tuple(levels)


@attrs.frozen(kw_only=True)
class StoreConfig:
    """Sizes in bytes, times in milliseconds unless the name says otherwise."""

    store_path_root_dir: str
    store_path_commit_log: str | None = None
    mapped_file_size_commit_log: int = 1 << 30
    mapped_file_size_consume_queue: int = 6_000_000
    max_hash_slot_num: int = 5_000_000
    max_index_num: int = 20_000_000
    message_index_enable: bool = True
    flush_disk_type: str = "ASYNC_FLUSH"
    flush_interval_commit_log: int = 500
    flush_interval_consume_queue: int = 1000
    """The interval of syncing queues, index and checkpoint; five times as long while few slots of the index have changed."""
    flush_interval_index: int = 10_000
    """The interval of syncing the unfinished index file. It bounds what a start after a power cut has to index again."""
    sync_flush_timeout: int = 5000
    check_crc_on_recover: bool = True
    message_delay_level: str = DELAY_LEVELS
    file_reserved_time: int = 72  # hours
    delete_when: str = "04"  # local hours, separated by ;
    disk_max_used_space_ratio: int = 75  # percent
    disk_space_clean_forcibly_ratio: float = 0.85
    disk_space_warning_level_ratio: float = 0.90
    clean_file_forcibly_enable: str = CONSUMED
    clean_resource_interval: int = 10_000
    delete_file_batch_max: int = 10
    access_message_in_memory_max_ratio: int = 40  # percent of `memory_bytes`
    memory_bytes: int = ASSUMED_MEMORY_BYTES
    """The memory of the machine."""
    max_transfer_bytes_on_message_in_memory: int = 262_144
    max_transfer_count_on_message_in_memory: int = 32
    max_transfer_bytes_on_message_in_disk: int = 65_536
    max_transfer_count_on_message_in_disk: int = 8
    max_filter_message_size: int = 16_000
    offset_check_in_slave: bool = False
    max_msgs_num_batch: int = 64

    @property
    def commit_log_directory(self) -> str:
        return self.store_path_commit_log or f"{self.store_path_root_dir}/commitlog"

    @property
    def sync_flush(self) -> bool:
        return self.flush_disk_type == "SYNC_FLUSH"

    @property
    def delay_levels_ms(self) -> tuple[int, ...]:
        return parse_delay_levels(self.message_delay_level)
