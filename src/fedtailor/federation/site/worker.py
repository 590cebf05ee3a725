"""A site's own process: keeps torch, data and method warm between messages.

python -m fedtailor.federation.site.worker SITE.toml
"""

from __future__ import annotations

import logging
import os
import socket
import sys
from pathlib import Path

from fedtailor.core import __version__
from fedtailor.core.errors import BadInput
from fedtailor.core.inputs.plain_text import start_log
from fedtailor.federation.protocol.ipc import STOP, listen, receive, send, socket_of
from fedtailor.federation.protocol.packet import PROTOCOL, Header, Packet, refusal
from fedtailor.federation.site.settings import SiteSettings, read_settings
from fedtailor.results.lock import try_lock

log = logging.getLogger("fedtailor.site")

LOG = "site.log"


def _answer_all(listener: socket.socket, settings: SiteSettings) -> None:
    """Answers one message after another until nobody asks any more."""
    import torch

    from fedtailor.federation.site.site import Site

    if settings.threads:
        torch.set_num_threads(settings.threads)
    site = Site(settings)
    listener.settimeout(settings.idle)
    while True:
        try:
            connection, _ = listener.accept()
        except TimeoutError:
            log.info("nobody asked for %g s: ended", settings.idle)
            return
        with connection:
            connection.settimeout(None)
            try:
                packet = receive(connection, settings.limits)
                if packet.header.get("kind") == STOP:
                    log.info("ended as asked")
                    send(connection, Packet({"status": "ok"}, {}))
                    return
                send(connection, site.answer(packet))
            except BadInput as error:
                log.error("%s", error)
                own: Header = {"protocol": PROTOCOL, "version": __version__}
                own |= {"client": settings.client, "name": settings.name}
                send(connection, refusal("message", str(error), **own))
            except (EOFError, OSError) as error:
                # whoever asked is gone; the answer is kept, and given when it is asked for again
                log.warning("the connection broke: %r", error)


def run_worker(path: Path) -> int:
    """Serves a site's file; ends at once where another process does so already."""
    settings = read_settings(path)
    settings.folder.mkdir(parents=True, exist_ok=True)
    form = "%(asctime)s %(levelname)s %(message)s"
    start_log(form, settings.folder / LOG)
    where = socket_of(settings.path)
    lock = where.with_suffix(".lock")
    with lock.open("a") as held:
        if try_lock(held.fileno()) is False:
            return 0
        held.truncate(0)
        held.write(f"{os.getpid()}\n")
        held.flush()
        where.unlink(missing_ok=True)
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            listen(listener, where)
            log.info("ready: client %d, pid %d", settings.client, os.getpid())
            try:
                _answer_all(listener, settings)
            finally:
                where.unlink(missing_ok=True)
    return 0


def main(arguments: list[str]) -> int:
    """The command: one site file."""
    if len(arguments) != 1:
        sys.stderr.write("usage: python -m fedtailor.federation.site.worker SITE.toml\n")
        return 2
    try:
        return run_worker(Path(arguments[0]))
    except BadInput as error:
        log.error("%s", error)
        sys.stderr.write(f"fedtailor: {error}\n")
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
