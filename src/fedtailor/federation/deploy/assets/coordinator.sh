#!/bin/sh
# Starts the coordinator of '$federation' (Flower's SuperLink) and registers the sites' keys.
# PYTHON names the interpreter that FedTailor is installed in.
set -eu
cd "$$(dirname "$$0")/.."
exec "$${PYTHON:-python3}" -m fedtailor.federation.deploy.superlink .$insecure "$$@"
