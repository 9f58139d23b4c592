"""Sending failed messages back: to the broker for a later retry, or to the dead letters.

RocketMQ's send-back request (36) is tried first; the broker then copies its own record. If the broker of the message fails,
the message is sent to the group's retry topic as a new one. In both cases the broker decides when retries are used up.
"""

from __future__ import annotations

import attrs
import trio

from ..message.flags import HOST_BITS
from ..message.message import RETRY_PREFIX
from ..message.properties import (
    DELAY,
    MAX_RECONSUME_TIMES,
    ORIGIN_MESSAGE_ID,
    RECONSUME_TIME,
    RETRY_TOPIC,
    encode_properties,
)
from ..remoting.codes import RequestCode
from ..world.events import get_logger
from .errors import ClientError, NoRoute, NoRouteReason, Refused
from .queue_calls import master_of, request
from .received import ReceivedMessage
from .route import AUTO_CREATE_QUEUES, AUTO_CREATE_TOPIC
from .sending import SendStatus
from .session import CALL_SECONDS, Session

log = get_logger(__name__)

FIRST_RETRY_LEVEL = 3
"""As in RocketMQ, the first retry waits for delay level 3 (10 s), and each further one for one level more."""
RECONSUME_TIMES_MAX = 16
STORED_CODES = frozenset(status.value for status in SendStatus)
"""The answer codes that mean that a copy is stored; all but SEND_OK guarantee less than the broker's mode."""


@attrs.frozen
class SendBack:
    """Sends messages back for one group."""

    session: Session
    group: str
    reconsume_times_max: int | None
    """How many deliveries may fail before a message is a dead letter; None means as the group's configuration says."""

    async def send(self, message: ReceivedMessage, delay_level: int) -> bool:
        """Send a message back; False if no broker accepted it, and this client must deliver it again."""
        try:
            await self._by_request(message, delay_level)
        except ClientError as error:
            log.info("send_back_failed", queue=str(message.queue), offset=message.queue_offset, reason=str(error))
            if isinstance(error, Refused) and error.code in STORED_CODES:
                return False  # The broker has a copy that may be lost; a second copy would be no safer.
        else:
            return True
        return await self.resend(message, delay_level)

    async def resend(self, message: ReceivedMessage, delay_level: int = 0) -> bool:
        """Send a copy to the retry topic; False if no broker accepted it."""
        try:
            with trio.fail_after(CALL_SECONDS):
                await self._by_sending(message, delay_level)
        except (ClientError, trio.TooSlowError) as error:
            log.warning("resend_failed", queue=str(message.queue), offset=message.queue_offset, reason=str(error))
            return False
        return True

    async def _by_request(self, message: ReceivedMessage, delay_level: int) -> None:
        fields = {
            "offset": message.physical_offset,
            "group": self.group,
            "delayLevel": delay_level,
            "originMsgId": message.message_id,
            "originTopic": message.topic,
            "unitMode": False,
            "maxReconsumeTimes": self.reconsume_times_max,
            "bname": message.queue.broker_name,
        }
        address = await master_of(self.session, message.queue)
        await self.session.ask(address, request(RequestCode.CONSUMER_SEND_MSG_BACK, fields))

    async def _by_sending(self, message: ReceivedMessage, delay_level: int) -> None:
        topic = RETRY_PREFIX + self.group
        route = self.session.routes.routes.get(topic) or await self.session.refresh_route(topic)
        queues = route.publish_queues()
        if not queues:
            raise NoRoute(topic, NoRouteReason.NO_MASTER)
        queue = self.session.world.randomness.choice(queues)
        record = message.stored()
        times = message.reconsume_times + 1
        times_max = RECONSUME_TIMES_MAX if self.reconsume_times_max is None else self.reconsume_times_max
        if delay_level < 0:
            times = max(times, times_max + 1)  # over the limit, so that the broker makes it a dead letter
        properties = {
            name: value for name, value in record.properties.items() if name not in (RECONSUME_TIME, MAX_RECONSUME_TIMES)
        }
        properties[RETRY_TOPIC] = message.topic
        properties.setdefault(ORIGIN_MESSAGE_ID, record.message_id)
        properties[DELAY] = str(delay_level if delay_level > 0 else FIRST_RETRY_LEVEL + message.reconsume_times)
        fields = {
            "a": self.group,
            "b": topic,
            "c": AUTO_CREATE_TOPIC,
            "d": AUTO_CREATE_QUEUES,
            "e": queue.queue_id,
            "f": record.sys_flag & ~HOST_BITS,
            "g": self.session.world.clock.wall_ms(),
            "h": record.flag,
            "i": encode_properties(properties),
            "j": times,
            "k": False,
            "l": times_max,
            "m": False,
            "n": queue.broker_name,
        }
        address = await master_of(self.session, queue)
        await self.session.ask(address, request(RequestCode.SEND_MESSAGE_V2, fields, record.body))
