"""What a master tells its slaves: topics, groups, offsets (RocketMQ AdminBrokerProcessor; codes 21, 43, 45, 201)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import orjson

from ..message.json import dumps
from ..remoting.codes import RequestCode
from ..remoting.command import RemotingCommand
from ..remoting.server import ServerConnection

if TYPE_CHECKING:
    from .broker import Broker


@attrs.define(eq=False)
class SlaveSync:
    """Answers the slaves of one broker; whole tables, unpaged, which every version takes."""

    broker: Broker

    def register(self) -> None:
        dispatcher = self.broker.dispatcher
        dispatcher.register(RequestCode.GET_ALL_TOPIC_CONFIG, self.topics)
        dispatcher.register(RequestCode.GET_ALL_CONSUMER_OFFSET, self.consumer_offsets)
        dispatcher.register(RequestCode.GET_ALL_DELAY_OFFSET, self.delay_offsets)
        dispatcher.register(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, self.groups)

    def topics(self, _connection: ServerConnection, request: RemotingCommand) -> RemotingCommand:
        return request.response(body=self.broker.topics.wrapper())

    def groups(self, _connection: ServerConnection, request: RemotingCommand) -> RemotingCommand:
        return request.response(body=orjson.dumps(self.broker.groups.to_json()))

    def consumer_offsets(self, _connection: ServerConnection, request: RemotingCommand) -> RemotingCommand:
        return request.response(body=dumps(self.broker.offsets.to_json()))

    def delay_offsets(self, _connection: ServerConnection, request: RemotingCommand) -> RemotingCommand:
        return request.response(body=dumps(self.broker.delay.to_json()))
