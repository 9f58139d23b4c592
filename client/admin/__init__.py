"""The admin client: topics, groups, offsets, messages, brokers and name servers, with the requests of RocketMQ's mqadmin."""

from __future__ import annotations

from .admin import Admin, open_admin
from .calls import LATEST

__all__ = ["LATEST", "Admin", "open_admin"]
