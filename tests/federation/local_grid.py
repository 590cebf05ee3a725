"""Flower's grid within one process: for trials and tests, with Flower's own records.

Contents go through Flower's serialised form in both directions, as they do between machines.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.task_identity import TaskIdentity


def _over_the_wire(message: Message) -> Message:
    """The message after Flower has turned it into bytes and back."""
    objects = get_all_nested_objects(message)
    raw = {name: part.deflate() for name, part in objects.items()}
    back = inflate_object_from_contents(message.object_id, raw)
    assert isinstance(back, Message)
    back.metadata.__dict__["_message_id"] = message.object_id
    return back


class LocalGrid(Grid):
    """Runs a ClientApp in this process, one message after another.

    Args:
      app: the sites' app.
      nodes: each node's configuration, by its id.
    """

    def __init__(self, app: ClientApp, nodes: Mapping[int, dict[str, Any]]) -> None:
        # what Flower sets in the processes that it starts; without it no message can be made
        TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
        self.app, self.nodes = app, dict(nodes)
        self._states = {node: RecordDict() for node in nodes}
        self._replies: dict[str, Message] = {}
        self._lock = threading.Lock()

    def set_run(self, run: Any) -> None:
        """There is no run to set."""

    @property
    def run(self) -> Any:
        """There is no run."""
        return None

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """A message to a node."""
        return Message(
            content, dst_node_id=dst_node_id, message_type=message_type, group_id=group_id, ttl=ttl
        )

    def get_node_ids(self) -> Iterable[int]:
        """All nodes."""
        return list(self.nodes)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Lets each node answer its message at once."""
        ids = []
        for message in messages:
            there = _over_the_wire(message)
            node = there.metadata.dst_node_id
            context = Context(
                run_id=1,
                node_id=node,
                node_config=self.nodes[node],
                state=self._states[node],
                run_config={},
            )
            with self._lock:
                try:
                    reply = self.app(there, context)
                except Exception as error:  # as Flower does with an app that raises
                    reply = Message(Error(code=2, reason=str(error)), reply_to=there)
                self._replies[there.metadata.message_id] = _over_the_wire(reply)
            ids.append(there.metadata.message_id)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """The answers to these messages."""
        return [self._replies.pop(i) for i in message_ids if i in self._replies]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Both in one."""
        return self.pull_messages(list(self.push_messages(messages)))
