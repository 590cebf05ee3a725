"""Cheap starts of Flower's process for a message: forked from one that has loaded Flower already.

SuperExec starts the command `flwr-clientapp` for every message, which loads Flower anew each time.
A few lines of that name come first on the node's PATH (see `node`): they hand their arguments to
this process, which forks, and the child goes on as Flower's own command would. Where this process
is not there, those lines start Flower's command instead, so that nothing depends on it.

python -m fedtailor.federation.site.prefork SOCKET
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import socket
import stat
import sys
import threading
from pathlib import Path

COMMAND = "flwr-clientapp"
SOCKET_VARIABLE = "FEDTAILOR_PREFORK"
_MOST = 1 << 16

# -S and -E: nothing but Python itself is loaded, which takes milliseconds. The first line does not
# name Python, since the system takes no spaces and no long paths there.
SHIM = """\
#!/bin/sh
exec {python} -SE {script} "$@"
"""
SCRIPT = '''\
"""Hands Flower's command over to a process that has loaded Flower already."""
import array, json, os, socket, sys

def real():
    here = os.path.dirname(os.path.realpath(__file__))
    for folder in os.environ.get("PATH", "").split(os.pathsep):
        command = os.path.join(folder, "{command}")
        if os.path.realpath(folder) != here and os.access(command, os.X_OK):
            os.execv(command, [command, *sys.argv[1:]])
    sys.exit("{command} is not installed")

link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
try:
    link.connect(os.environ["{variable}"])
    fds = array.array("i", [1, 2]).tobytes()
    said = json.dumps(sys.argv[1:]).encode()
    link.sendmsg([said], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)])
    link.shutdown(socket.SHUT_WR)
    begun = link.recv(1)
except (OSError, KeyError):
    real()
if not begun:
    real()
link.recv(1)
'''


def write_shim(folder: Path) -> Path:
    """Puts the command into a folder of its own, which must come first on PATH."""
    folder.mkdir(parents=True, exist_ok=True)
    script, path = folder / f"{COMMAND}.py", folder / COMMAND
    script.write_text(SCRIPT.format(command=COMMAND, variable=SOCKET_VARIABLE), encoding="utf-8")
    python = shlex.quote(sys.executable)
    text = SHIM.format(python=python, script=shlex.quote(str(script.resolve())))
    path.write_text(text, encoding="utf-8")
    path.chmod(stat.S_IRWXU)
    return folder


def _become(connection: socket.socket, arguments: list[str], streams: list[int]) -> None:
    """The child: Flower's command, with the arguments and the output of who asked."""
    for number, stream in zip((1, 2), streams, strict=True):
        os.dup2(stream, number)
        os.close(stream)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    from flwr.supernode.cli import flwr_clientapp

    sys.argv = [COMMAND, *arguments]
    connection.sendall(b"+")  # from here on the message is ours
    code = 1
    try:
        flwr_clientapp()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)  # the parent's own ending is not the child's business


def _take(connection: socket.socket) -> tuple[list[str], list[int]]:
    raw, streams, _, _ = socket.recv_fds(connection, _MOST, 2)
    while part := connection.recv(_MOST):
        raw += part
    arguments = json.loads(raw)
    if not isinstance(arguments, list) or len(streams) != 2:
        raise ValueError("not a call of the command")
    return [str(a) for a in arguments], list(streams)


def run_prefork(where: Path) -> None:
    """Forks a child for every call, until it is ended."""
    import flwr.supernode.cli  # noqa: F401  # what each child would load

    from fedtailor.federation.protocol.ipc import listen
    from fedtailor.federation.site import app  # noqa: F401

    if threading.active_count() > 1:  # a fork would leave their locks taken for ever
        raise SystemExit("threads were started by an import: a fork is not safe")
    where.unlink(missing_ok=True)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for children
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listen(listener, where)
        parent = os.getppid()
        listener.settimeout(2.0)
        while os.getppid() == parent:  # it ends with the node that it serves
            try:
                connection, _ = listener.accept()
            except TimeoutError:
                continue
            with connection:
                connection.settimeout(10.0)
                try:
                    arguments, streams = _take(connection)
                except (OSError, ValueError):
                    continue
                if os.fork() == 0:
                    listener.close()
                    connection.settimeout(None)
                    _become(connection, arguments, streams)
                for stream in streams:
                    os.close(stream)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    run_prefork(Path(sys.argv[1]))
