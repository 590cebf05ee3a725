#!/bin/sh
# Starts site '$site' of '$federation' (Flower's SuperNode), and again whenever it ends.
# PYTHON names the interpreter that FedTailor is installed in.
set -eu
cd "$$(dirname "$$0")"
exec "$${PYTHON:-python3}" -m fedtailor.federation.site.node site.toml \
  --superlink "$${COORDINATOR:-$address}" \
  $trust \
  --host 127.0.0.1 --port "$${NODE_PORT:-$port}"
