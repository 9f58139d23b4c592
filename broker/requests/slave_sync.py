"""The tables that a master gives its slaves: topics, groups, offsets (RocketMQ AdminBrokerProcessor; codes 21, 43, 45, 201).

Users and their rights are in a table of ours (60003), which contains passwords. With a secret, only nodes that know it get it.
Without one, the port of replication gives everybody the log, which contains them, too.
"""

from __future__ import annotations

import attrs
import orjson
import trio

from ...ha.classic.sync import ONLY_LOGGED_FIELD, TABLES_APPENDED, TABLES_LOG_OFFSET
from ...ha.classic.table_proofs import NONCE_FIELD, PROOF_FIELD, node_credentials, table_proof
from ...message.json import dumps
from ...remoting.codes import RequestCode, ResponseCode
from ...remoting.command import RemotingCommand
from ...remoting.dispatcher import Dispatcher
from ...remoting.errors import RequestRefused
from ...remoting.server import ServerConnection
from ...remoting.signature import ACCESS_KEY, is_signed
from ...store.message_store import MessageStore
from ..role import LiveRole
from ..tables.persistence import encoded_offsets
from ..tables.tables import Tables


@attrs.define(eq=False, kw_only=True, repr=False)
class SlaveSync:
    """Answers the slaves of one broker with whole tables in one frame, which every version accepts."""

    tables: Tables
    role: LiveRole
    store: MessageStore
    secret: bytes = attrs.field(repr=False)
    """The secret of slaves and master, which is used for the proof in answers to slaves that ask for one."""

    def register(self, dispatcher: Dispatcher) -> None:
        """Register the handlers. Only the master answers requests with `ofMaster`."""
        dispatcher.register(RequestCode.GET_ALL_TOPIC_CONFIG, self.show_topics)
        dispatcher.register_long(
            {
                RequestCode.GET_ALL_CONSUMER_OFFSET: self.show_consumer_offsets,
                RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: self.show_groups,
            }
        )
        dispatcher.register(RequestCode.GET_ALL_DELAY_OFFSET, self.show_delay_offsets)
        dispatcher.register(RequestCode.GET_ALL_ACCESS, self.show_access)

    def show_topics(self, _connection: ServerConnection, request: RemotingCommand) -> RemotingCommand:
        """21: all topics."""
        self._check(request)
        return self._proved(request, self.tables.topics.wrapper())

    async def show_groups(self, _connection: ServerConnection, request: RemotingCommand) -> RemotingCommand:
        """201: all groups."""
        self._check(request)
        table = await self.tables.groups.to_json_in_slices()
        await trio.lowlevel.checkpoint()  # the proof of eight megabytes takes a turn of its own
        return self._proved(request, orjson.dumps(table))

    async def show_consumer_offsets(self, _connection: ServerConnection, request: RemotingCommand) -> RemotingCommand:
        """43: all offsets; queue ids are unquoted keys, as RocketMQ writes them, unless strict JSON is requested."""
        self._check(request)
        quoted, logged = request.boolean("acceptStandardJsonOnly"), request.boolean(ONLY_LOGGED_FIELD)
        table = await encoded_offsets(self.tables.offsets, quoted=quoted, logged=logged)
        version = orjson.dumps(self.tables.offsets.version.to_json())
        return self._proved(request, b'{"dataVersion":%b,"offsetTable":%b}' % (version, table))

    def show_delay_offsets(self, _connection: ServerConnection, request: RemotingCommand) -> RemotingCommand:
        """45: how far delayed messages have been delivered, and whether slaves derive the tables, so that they need not ask."""
        self._check(request)
        content = self.tables.delay.to_json()
        content[TABLES_APPENDED] = True
        if self.tables.in_log:
            content[TABLES_LOG_OFFSET] = self.store.dispatcher.dispatched_offset
        return self._proved(request, dumps(content))

    def show_access(self, _connection: ServerConnection, request: RemotingCommand) -> RemotingCommand:
        """60003: all users and rights."""
        self._check(request)
        node = node_credentials(self.secret)
        if node is not None and not (request.ext.get(ACCESS_KEY) == node.access_key and is_signed(request, node.secret_key)):
            raise RequestRefused(ResponseCode.NO_PERMISSION, "the request does not prove that its sender knows haSecret")
        return self._proved(request, orjson.dumps(self.tables.access.to_json()))

    def _check(self, request: RemotingCommand) -> None:
        if request.boolean("ofMaster") and (refusal := self.role.refusal) is not None:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"the tables of this node may be old: {refusal}")

    def _proved(self, request: RemotingCommand, body: bytes) -> RemotingCommand:
        nonce = request.ext.get(NONCE_FIELD, "")
        return request.response(ext={PROOF_FIELD: table_proof(self.secret, nonce, request.code, body)}, body=body)
