"""Runs of plain sends, which the compiled path has found in received bytes: put together, and answered in one write.

It decides nothing that `SendHandler` would decide otherwise: a run with a message that needs a closer look is left to it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import attrs

from ...message.layout import encode_host
from ...remoting.command import RemotingCommand, Wire, encode_frame
from ...remoting.server import ServerConnection
from ...store.message_store import MessageStore
from ...store.put_side import PutBatch
from ...store.statuses import PutStatus
from ..live_config import LiveConfig
from ..stats import Stats
from .put_outcomes import UNKNOWN_REMARK, count_puts, response_code
from .send_answers import Push, SendAnswers

if TYPE_CHECKING:
    from ...native import SendRun


@attrs.frozen(eq=False, kw_only=True, repr=False)
class PlainSends:
    """Turns runs of plain sends into puts."""

    store: MessageStore
    config: LiveConfig
    stats: Stats
    answers: SendAnswers
    queue_nums_of: Callable[[str], int]
    """The number of write queues of a topic that needs no further checks; 0 if each message must be checked."""
    body_max: int
    """Copies of messages with bodies of up to this size fit a segment of the log."""
    addition: bytes
    """The property that is added to each message."""

    def take(self, connection: ServerConnection, run: SendRun) -> bool:
        """Put the messages of a run and answer them; False, and nothing is done, if one of them needs a closer look."""
        queue_nums = {topic: self.queue_nums_of(topic) for topic, _ in run.queues}
        if run.body_max > min(self.config.now.max_message_size, self.body_max):
            return False
        if not all(queue_id < queue_nums[topic] for topic, queue_id in run.queues):
            return False
        batch = self.store.put_run(run, born_host(connection), self.addition)
        if batch is None:
            return False
        count_puts(self.stats, run.topics_of_messages if len(queue_nums) > 1 else [*queue_nums] * len(run), batch)
        if self.store.waits and batch.end:
            self.store.when_stored(batch, lambda status: self._answer(connection.push, run, batch, status))
        else:
            self._answer(connection.push, run, batch, PutStatus.PUT_OK)
        return True

    def _answer(self, push: Push, run: SendRun, batch: PutBatch, status: PutStatus) -> None:
        """Answer the requests of a run, all of whose messages were appended with `status`, or none of them was."""
        remark = UNKNOWN_REMARK
        if batch.statuses[0] is not PutStatus.PUT_OK:
            status, remark = batch.statuses[0], batch.remark
        if status.stored:
            answers = run.answers(batch.physical_offsets, *self.answers.parts(int(response_code(status))))
        else:
            code = response_code(status)
            answers = b"".join(
                encode_frame(RemotingCommand(0, opaque=opaque, wire=Wire(wire)).response(code, remark=remark))
                for opaque, wire in run.unanswered
            )
        if answers:
            push(answers)


def born_host(connection: ServerConnection) -> bytes:
    """The address of the connection's peer, encoded as in messages."""
    host = connection.attachments.get("born_host")
    if host is None:
        host = connection.attachments["born_host"] = encode_host(connection.remote.host, connection.remote.port)
    return host
