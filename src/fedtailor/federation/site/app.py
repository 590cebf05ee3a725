"""Flower's app at a site, one for every method: it hands messages on, and knows no method.

The site's executor calls it for every message, and loads nothing else of us: no torch, no data. The
work is done by the site's own process, which stays warm.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedtailor.core import __version__
from fedtailor.core.errors import BadInput
from fedtailor.core.inputs.settings_file import read_toml
from fedtailor.federation.protocol.ipc import ask_site
from fedtailor.federation.protocol.packet import (
    PROTOCOL,
    Header,
    Packet,
    from_records,
    named_file,
    refusal,
    site_name,
    to_records,
)

SITE = "site"  # in a node's config

Answerer = Callable[[Path, Packet], Packet]  # (the site's file, its message) -> its answer


def _signature(path: Path) -> Header:
    """Number and name of a site whose process may not answer, as far as its file has them."""
    try:
        found = read_toml(path, "site file")
    except BadInput:
        return {}
    client, name = found.get("client"), found.get("name", "")
    if type(client) is not int or not isinstance(name, str):
        return {}
    return {"client": client, "name": site_name(name, client)}


def make_client_app(answer: Answerer = ask_site) -> ClientApp:
    """A ClientApp whose node's config names the site's file; its own warm process does the work."""
    app = ClientApp()

    def handle(message: Message, context: Context) -> Message:
        own: Header = {"protocol": PROTOCOL, "version": __version__}
        try:
            path = named_file(context.node_config.get(SITE), f"node config '{SITE}'")
            own |= _signature(path)
            reply = answer(path, from_records(message.content))
        except BadInput as error:
            reply = refusal("site", str(error), **own)
        return Message(to_records(reply), reply_to=message)

    app.query()(handle)
    app.train()(handle)
    app.evaluate()(handle)
    return app


client_app = make_client_app()
