"""Takes messages from the site's SuperNode and answers them with the FedTailor installed here.

python -m fedtailor.federation.site.executor ADDRESS SECRET [AUTHORITY]

Flower's own executor unpacks and imports the app that comes with a run: whoever controls the
coordinator would run code at the site. This one never opens that app. It asks the SuperNode for
tasks of every kind, so that none is left waiting, hands messages of FedTailor's runs to
`site.app`, one after another, and refuses all others by name.

A message whose run has ended may never come whole: the SuperNode keeps its task, and not what
belongs to it. So each is waited for in a thread of its own, and no later one waits behind it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from flwr.app import Context, Message
    from flwr.supercore.run import Run
    from flwr.supercore.runtime import RuntimeHttpClient

log = logging.getLogger("fedtailor.site")

APP = "fedtailor/fedtailor-app"  # publisher and name of what the coordinator submits
LOOK = 0.2  # seconds between two looks for a message
AWAY = 1.0  # likewise while the node does not listen
_ACQUIRE = "/flwr.proto.Runtime/AcquireTask"  # what the secret is needed for


def refused(run: Run, task_type: str) -> str:
    """Why a run is not played here; empty if it is FedTailor's."""
    from flwr.supercore.constant import TaskType

    if run.fab_id != APP:
        return f"run {run.run_id}: the app {run.fab_id!r:.120} is not FedTailor's: refused"
    if task_type != TaskType.CLIENT_APP:
        return f"run {run.run_id}: a task of the kind {task_type!r:.60} is not FedTailor's: refused"
    return ""


def reply_to(message: Message, context: Context, run: Run, task_type: str) -> Message:
    """The site's answer; a refusal or a failure is an error of Flower's, and logged here."""
    from flwr.app import Error, Message
    from flwr.common.constant import ErrorCode

    from fedtailor.federation.site.app import client_app

    if reason := refused(run, task_type):
        log.warning("%s", reason)
        return Message(Error(ErrorCode.INVALID_FAB, reason), reply_to=message)
    try:
        return client_app(message=message, context=context)
    except Exception as error:  # one message's failure is not the next one's
        log.exception("run %s: a message could not be answered", run.run_id)
        # no more than its kind: its text may quote data, or name files
        reason = f"{type(error).__name__}: the site's log says more"
        return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason), reply_to=message)


@dataclass(frozen=True)
class _Task:
    """A message that came whole, and what it takes to answer it."""

    message: Message
    context: Context
    run: Run
    type: str
    client: RuntimeHttpClient
    rest: Callable[[], None]  # ends what keeps it alive


class Executor:
    """Answers what the SuperNode at `address` has; `secret` shows it that we may."""

    def __init__(self, address: str, secret: bytes, authority: Path | None = None) -> None:
        from flwr.supercore.interceptors import SuperExecAuthHttpInterceptor

        self.address, self.authority = address, authority
        self._came: queue.SimpleQueue[_Task] = queue.SimpleQueue()
        self._link = self._client(
            SuperExecAuthHttpInterceptor(
                master_secret=secret, protected_methods=frozenset({_ACQUIRE})
            )
        )

    def _client(self, interceptor: Any) -> RuntimeHttpClient:
        from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
        from flwr.supercore.runtime import RuntimeHttpClient

        return RuntimeHttpClient.from_server_address(
            self.address,
            self.authority is None,
            self.authority.read_bytes() if self.authority else None,
            interceptors=[RuntimeVersionHttpInterceptor(component_name="SuperExec"), interceptor],
        )

    def step(self, wait: float = LOOK) -> None:
        """Takes a task, if there is one, and answers a message that comes within `wait` seconds."""
        from flwr.proto.runtime_pb2 import AcquireTaskRequest
        from flwr.supercore.constant import TaskType

        found = self._link.AcquireTask(AcquireTaskRequest(supported_task_types=list(TaskType)))
        if found.HasField("task") and found.token:
            self.take(found.token, found.task.type)
        try:
            task = self._came.get(timeout=wait)
        except queue.Empty:
            return
        self._answer(task)

    def keep_alive(self, token: str) -> Callable[[], None]:
        """Tells Flower that the task of `token` is worked on, until what is returned is called."""
        from flwr.supercore.heartbeat import HeartbeatSender
        from flwr.supercore.interceptors import RuntimeTokenHttpInterceptor

        client = self._client(RuntimeTokenHttpInterceptor(token))
        pulse = HeartbeatSender(lambda: _beat(client))
        pulse.start()

        def rest() -> None:
            pulse.stop()
            client.close()

        return rest

    def take(self, token: str, task_type: str) -> None:
        """Waits for the message that `token` is for, in a thread."""
        threading.Thread(target=self._pull, args=(token, task_type), daemon=True).start()

    def _pull(self, token: str, task_type: str) -> None:
        from flwr.supercore.interceptors import RuntimeTokenHttpInterceptor
        from flwr.supernode.runtime import run_clientapp as flower

        rest, client = self.keep_alive(token), self._client(RuntimeTokenHttpInterceptor(token))
        try:
            message, context, run, _ = flower.pull_task_input(client)
        except Exception as error:  # its run has ended, or the node has
            log.warning("a message did not come: %s: %.200s", type(error).__name__, error)
            rest()
            client.close()
        else:
            self._came.put(_Task(message, context, run, task_type, client, rest))

    def _answer(self, task: _Task) -> None:
        from flwr.common.constant import SubStatus
        from flwr.supernode.runtime import run_clientapp as flower

        try:
            reply = reply_to(task.message, task.context, task.run, task.type)
            failed = reply.has_error()
            flower.push_message(task.client, reply, task.context)
            status = SubStatus.FAILED if failed else SubStatus.COMPLETED
            said = "refused or failed" if failed else ""
            flower.push_task_output(task.client, task.context, status, said)
        finally:
            task.rest()
            task.client.close()


def _beat(client: RuntimeHttpClient) -> bool:
    """Tells the SuperNode that its message is still being worked on."""
    import httpx
    from flwr.proto.runtime_pb2 import SendTaskHeartbeatRequest

    try:
        client.SendTaskHeartbeat(SendTaskHeartbeatRequest())
    except httpx.HTTPError:
        return False
    return True


def serve(kind: type[Executor], arguments: list[str]) -> NoReturn:
    """A command: the address of Flower's process, a file with the secret, perhaps one to trust."""
    with contextlib.suppress(SystemExit):  # asked to end
        _serve(kind, arguments)
    logging.shutdown()
    os._exit(0)  # threads that wait for a message would be waited for


def _serve(kind: type[Executor], arguments: list[str]) -> None:
    import httpx

    address, secret, *authority = arguments
    from fedtailor.core.inputs.plain_text import start_log

    start_log()
    logging.getLogger("httpx").setLevel(logging.WARNING)  # a line for every request
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    trusted = Path(authority[0]) if authority else None
    executor, parent = kind(address, Path(secret).read_bytes(), trusted), os.getppid()
    while os.getppid() == parent:  # it ends with whoever it serves
        try:
            executor.step()
        except httpx.TransportError:  # the other side is being started, or was ended
            time.sleep(AWAY)
        except httpx.HTTPStatusError as error:
            log.warning("Flower answered %d: asked again", error.response.status_code)
            time.sleep(AWAY)
        except Exception:
            log.exception("a message was lost")
            time.sleep(AWAY)


if __name__ == "__main__":
    serve(Executor, sys.argv[1:])
