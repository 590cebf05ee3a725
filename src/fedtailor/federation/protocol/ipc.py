"""How a message gets to the site's own process: over a socket that only its owner can open.

Nothing here needs torch. The process is started when it is first needed, ends when nobody asked for
a while, and is started again by the next message.
"""

from __future__ import annotations

import hashlib
import logging
import os
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from fedtailor.core import __version__
from fedtailor.core.errors import BadInput
from fedtailor.federation.protocol.packet import Limits, Packet, from_bytes, to_bytes
from fedtailor.results.lock import is_locked

log = logging.getLogger("fedtailor.site")

START_SECONDS = 120.0
STOP = "stop"
LONGEST_SOCKET = 103  # bytes of a socket's path: macOS has less than Linux
SOCKET_NAME = 30  # bytes of a socket's name, with its slash
_LENGTH = 8


def require_unix() -> None:
    """Refuses systems without sockets that have the rights of files: sites need them."""
    if os.name != "posix":
        raise BadInput(
            "a site's processes talk over Unix sockets, which this system does not have: run it on "
            "Linux or macOS, or on Windows in WSL or a container"
        )


def private_folder() -> Path:
    """A folder for sockets that nobody else can enter; somebody else's in its place is refused."""
    require_unix()
    name = f"fedtailor-{os.getuid()}"
    base = Path(os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir())
    if len(os.fsencode(base / name)) + SOCKET_NAME > LONGEST_SOCKET:
        base = Path("/tmp")  # some systems' own folders are too deep for sockets
    folder = base / name
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
    except OSError as error:
        raise BadInput(f"folder '{folder}' cannot be made: {error.strerror}") from None
    ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
    if not ours or found.st_mode & 0o077:
        raise BadInput(f"folder '{folder}' can be entered by others: remove it")
    return folder


def write_private(path: Path, raw: bytes) -> None:
    """Writes a file that only its owner can read."""
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(raw)


def socket_of(path: Path) -> Path:
    """The socket of the process that serves a site's file, which must be there, as it is now."""
    path = path.expanduser().resolve()
    try:
        content = path.read_bytes()
    except OSError as error:
        # this may travel, and where a site keeps its files is nobody's business
        log.error("site file '%s' cannot be read: %s", path, error.strerror)
        raise BadInput(f"site file '{path.name}' cannot be read: {error.strerror}") from None
    # another version or other settings need another process; the old one ends by itself
    mark = hashlib.sha256(f"{path}\0{__version__}\0".encode() + content).hexdigest()[:24]
    return private_folder() / f"{mark}.sock"


def listen(listener: socket.socket, where: Path) -> None:
    """Lets a socket listen where only this user can reach it."""
    before = os.umask(0o077)
    try:
        listener.bind(str(where))
    finally:
        os.umask(before)
    listener.listen(8)


def send(connection: socket.socket, packet: Packet) -> None:
    """Puts a packet on a connection, its length first."""
    raw = to_bytes(packet)
    connection.sendall(len(raw).to_bytes(_LENGTH, "big"))
    connection.sendall(raw)


def _exactly(connection: socket.socket, count: int) -> bytes:
    parts, left = [], count
    while left:
        part = connection.recv(min(left, 1 << 20))
        if not part:
            raise EOFError
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


def receive(connection: socket.socket, limits: Limits = Limits()) -> Packet:
    """Takes a packet from a connection.

    Raises:
      EOFError: the other side is gone.
      BadInput: what came is no packet.
    """
    size = int.from_bytes(_exactly(connection, _LENGTH), "big")
    if size > limits.bytes + limits.header:
        raise BadInput(f"packet: {size:,} bytes, at most {limits.bytes:,} are allowed")
    return from_bytes(_exactly(connection, size), limits)


def _connect(where: Path) -> socket.socket | None:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.connect(str(where))
    except OSError:
        connection.close()
        return None
    return connection


def start_worker(path: Path) -> subprocess.Popen[bytes]:
    """Starts the process of a site's file; it goes on when the caller ends."""
    site = str(path.expanduser().resolve())
    command = [sys.executable, "-m", "fedtailor.federation.site.worker", site]
    return subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True
    )


def _reach(path: Path) -> socket.socket:
    """A connection to the site's process, which is started if need be."""
    where = socket_of(path)
    if connection := _connect(where):
        return connection
    process = start_worker(path)
    until = time.monotonic() + START_SECONDS
    while time.monotonic() < until:
        if connection := _connect(where):
            return connection
        # a second process gives way to the first and ends well; a bad file ends it otherwise
        if process.poll() not in (None, 0):
            raise BadInput(f"the process of '{path.name}' did not start: the node's log says why")
        time.sleep(0.05)
    raise BadInput(f"the process of '{path.name}' did not start in {START_SECONDS:g} s")


def ask_site(path: Path, packet: Packet) -> Packet:
    """The answer of a site to a message.

    Raises:
      BadInput: the site's process cannot be reached, or died at it.
    """
    for attempt in range(2):
        with _reach(path) as connection:
            try:
                send(connection, packet)
                return receive(connection)
            except (EOFError, OSError):
                # it may just have ended because nobody asked; a message can be sent twice
                if attempt:
                    break
    raise BadInput("the site's process ended while it worked: its log may say why")


def worker_pid(where: Path) -> int | None:
    """The process that serves a socket, if one does: it holds its lock as long as it lives."""
    lock = where.with_suffix(".lock")
    if not is_locked(lock):
        return None
    try:  # it lives, and holds its lock
        return int(lock.read_text(encoding="utf-8") or 0) or None
    except (OSError, ValueError):
        return None


def stop_site(path: Path, seconds: float = 2.0) -> None:
    """Ends the process of a site's file, if there is one.

    It ends after what it is doing, but is asked to leave off after `seconds`, and made to after as
    many again. What it has kept on its disk is whole at any moment.
    """
    try:
        where = socket_of(path)
    except BadInput:
        return
    if connection := _connect(where):
        with connection:
            connection.settimeout(seconds)
            try:
                send(connection, Packet({"kind": STOP}, {}))
                receive(connection)
            except (EOFError, OSError, BadInput):
                pass
    for force in (signal.SIGTERM, signal.SIGKILL):
        until = time.monotonic() + seconds
        while worker_pid(where):
            if time.monotonic() > until:
                break
            time.sleep(0.05)
        if owner := worker_pid(where):
            with suppress(ProcessLookupError):
                os.kill(owner, force)
