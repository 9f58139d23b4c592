"""The options of a consumer that brokers and tools see, checked."""

from __future__ import annotations

from typing import Literal, get_args

import attrs

from .arguments import INT_MAX, LONG_MAX, check_choice, check_integer, check_switch
from .errors import InvalidArgument
from .subscription import ConsumeFrom, MessageModel, ReadFrom

AckMode = Literal["auto", "explicit"]


@attrs.frozen
class ConsumerOptions:
    """The options of a consumer, checked."""

    ack: AckMode
    orderly: bool
    model: MessageModel
    consume_from: ConsumeFrom
    consume_timestamp_ms: int
    pull_messages_max: int
    messages_per_queue_max: int
    bytes_per_queue_max: int
    bytes_max: int
    reconsume_times_max: int | None
    read_from: ReadFrom

    def __attrs_post_init__(self) -> None:
        if self.ack not in get_args(AckMode):
            raise InvalidArgument(f"ack must be one of {', '.join(get_args(AckMode))} (got {self.ack!r})")
        check_switch("orderly", self.orderly)
        check_choice("model", self.model, MessageModel)
        check_choice("consume_from", self.consume_from, ConsumeFrom)
        check_choice("read_from", self.read_from, ReadFrom)
        check_integer("consume_timestamp_ms", self.consume_timestamp_ms, 0, LONG_MAX)
        check_integer("pull_messages_max", self.pull_messages_max, 1, INT_MAX)
        check_integer("messages_per_queue_max", self.messages_per_queue_max, 1, INT_MAX)
        check_integer("bytes_per_queue_max", self.bytes_per_queue_max, 1, INT_MAX)
        check_integer("bytes_max", self.bytes_max, 1, LONG_MAX)
        if self.reconsume_times_max is not None:
            check_integer("reconsume_times_max", self.reconsume_times_max, 0, INT_MAX)
