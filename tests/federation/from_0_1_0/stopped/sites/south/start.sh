#!/bin/sh
# Starts site 'south' of 'wards' (Flower's SuperNode), and again whenever it ends.
# PYTHON names the interpreter that FedTailor is installed in.
set -eu
cd "$(dirname "$0")"
exec "${PYTHON:-python3}" -m fedtailor.sites.node site.toml \
  --superlink "${COORDINATOR:-127.0.0.1:1}" \
  --insecure \
  --host 127.0.0.1 --port "${NODE_PORT:-9095}"
