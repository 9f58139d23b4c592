"""Requests of clients for offsets (RocketMQ ConsumerManageProcessor, AdminBrokerProcessor): codes 14, 15 and 29 to 32."""

from __future__ import annotations

import attrs

from ...ha.classic.sync import ONLY_FORWARD_FIELD
from ...remoting.codes import RequestCode, ResponseCode
from ...remoting.command import RemotingCommand
from ...remoting.dispatcher import AnswerPolicy, Dispatcher
from ...remoting.errors import RequestRefused
from ...remoting.server import ServerConnection
from ...store.message_store import MessageStore
from ...world.clock import Clock
from ..tables.commits import Commits
from ..tables.groups import GroupTable
from ..tables.offsets import ConsumerOffsets
from ..tables.topics import TopicTable


@attrs.define(eq=False, kw_only=True, repr=False)
class OffsetRequests:
    """The handlers of offset requests."""

    store: MessageStore
    topics: TopicTable
    groups: GroupTable
    offsets: ConsumerOffsets
    commits: Commits
    clock: Clock
    policy: AnswerPolicy | None
    """Which nodes take commits."""

    def register(self, dispatcher: Dispatcher) -> None:
        """Register the handlers."""
        dispatcher.register(RequestCode.QUERY_CONSUMER_OFFSET, self.query_offset)
        dispatcher.register(RequestCode.UPDATE_CONSUMER_OFFSET, self.commit_offset, policy=self.policy)
        dispatcher.register(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, self.search_offset)
        dispatcher.register(RequestCode.GET_MAX_OFFSET, self.max_offset)
        dispatcher.register(RequestCode.GET_MIN_OFFSET, self.min_offset)
        dispatcher.register(RequestCode.GET_EARLIEST_MSG_STORETIME, self.earliest_store_time)

    def query_offset(self, connection: ServerConnection, request: RemotingCommand) -> RemotingCommand:
        group, topic, queue_id = request.text("consumerGroup"), request.text("topic"), request.integer("queueId")
        offset = self.offsets.query(group, topic, queue_id)
        if offset is None:
            # A new group begins at the first message of a young queue, whatever start the consumer has configured.
            store = self.store
            young = store.min_offset(topic, queue_id) <= 0 and (
                store.unit(topic, queue_id, 0) is None or store.is_in_memory(topic, queue_id, 0)
            )
            if not young or not request.boolean("setZeroIfNotFound", default=True):
                raise RequestRefused(
                    ResponseCode.QUERY_NOT_FOUND, f"the group {group} has no offset for queue {queue_id} of {topic}"
                )
            offset = 0
        self.offsets.resets.follow(group, topic, queue_id, connection, self.clock.monotonic())
        return request.response(ext={"offset": offset})

    def commit_offset(self, connection: ServerConnection, request: RemotingCommand) -> RemotingCommand:
        group, topic = request.text("consumerGroup"), request.text("topic")
        queue_id, offset = request.integer("queueId"), request.integer("commitOffset")
        config = self.topics.topics.get(topic)
        if config is None:
            raise RequestRefused(ResponseCode.TOPIC_NOT_EXIST, f"the topic {topic!r} does not exist; nothing was committed")
        queue_nums = max(config.read_queue_nums, config.write_queue_nums)
        if not 0 <= queue_id < queue_nums and queue_id not in self.store.queue_ids(topic):
            raise RequestRefused(
                ResponseCode.INVALID_PARAMETER,
                f"queueId {queue_id} is not one of the {queue_nums} queues of {topic}; nothing was committed",
            )
        if self.groups.find(group) is None:
            raise RequestRefused(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"the consumer group {group!r} does not exist; nothing was committed"
            )
        # Progress from before a reset does not count. It does not matter whether the connection belongs to a member, because
        # one that has just connected again may commit before its first heartbeat.
        if request.boolean(ONLY_FORWARD_FIELD) and (self.offsets.query(group, topic, queue_id) or -1) >= offset:
            return request.response()
        if not self.offsets.resets.must_follow(group, topic, queue_id, connection):
            self.commits.commit(group, topic, queue_id, offset)
        return request.response()

    def search_offset(self, _connection: ServerConnection, request: RemotingCommand) -> RemotingCommand:
        upper = request.ext.get("boundaryType", "").lower() == "upper"
        self.store.catch_up()
        offset = self.store.offset_by_time(
            request.text("topic"), request.integer("queueId"), request.integer("timestamp"), upper=upper
        )
        return request.response(ext={"offset": offset})

    def max_offset(self, _connection: ServerConnection, request: RemotingCommand) -> RemotingCommand:
        self.store.catch_up()  # a client that has just sent a message must find it before the end
        offset = self.store.max_offset(request.text("topic"), request.integer("queueId"))
        return request.response(ext={"offset": offset})

    def min_offset(self, _connection: ServerConnection, request: RemotingCommand) -> RemotingCommand:
        offset = self.store.min_offset(request.text("topic"), request.integer("queueId"))
        return request.response(ext={"offset": offset})

    def earliest_store_time(self, _connection: ServerConnection, request: RemotingCommand) -> RemotingCommand:
        self.store.catch_up()
        timestamp = self.store.earliest_store_time(request.text("topic"), request.integer("queueId"))
        return request.response(ext={"timestamp": timestamp})
