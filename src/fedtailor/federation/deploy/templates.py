"""The words of a project's scripts, units and container files.

`$NAME` is filled in when it is written; `$$` is a dollar sign of the file's own.
"""

COORDINATOR_SH = """\
#!/bin/sh
# Starts the coordinator of '$federation' (Flower's SuperLink) and registers the sites' keys.
# PYTHON names the interpreter that FedTailor is installed in.
set -eu
cd "$$(dirname "$$0")/.."
exec "$${PYTHON:-python3}" -m fedtailor.federation.deploy.superlink .$insecure "$$@"
"""

SITE_SH = """\
#!/bin/sh
# Starts site '$site' of '$federation' (Flower's SuperNode), and again whenever it ends.
# PYTHON names the interpreter that FedTailor is installed in.
set -eu
cd "$$(dirname "$$0")"
exec "$${PYTHON:-python3}" -m fedtailor.federation.site.node site.toml \\
  --superlink "$${COORDINATOR:-$address}" \\
$trust  --host 127.0.0.1 --port "$${NODE_PORT:-$port}"
"""

SITE_TRUST = """\
  --root-certificates ca.crt --auth-supernode-private-key node.key \\
"""
SITE_INSECURE = """\
  --insecure \\
"""

# A node that comes back within a minute is turned away, since the coordinator still believes in
# the old one; `federation/site/node.py` waits that out by itself, and the unit restarts only the
# rest.
UNIT = """\
# $what of '$federation'. Change the two paths and the user, then:
#   sudo cp $unit /etc/systemd/system/ && sudo systemctl enable --now $unit
[Unit]
Description=FedTailor $what of $federation
After=network-online.target
Wants=network-online.target

[Service]
Type=exec
User=fedtailor
Environment=PYTHON=/opt/fedtailor/bin/python
ExecStart=/bin/sh $folder/start.sh
Restart=always
RestartSec=$seconds
KillMode=control-group
TimeoutStopSec=30
NoNewPrivileges=true
PrivateTmp=true

[Install]
WantedBy=multi-user.target
"""

DOCKERFILE = """\
# Coordinator and sites of a FedTailor federation. `docker compose build` takes the package from the
# index, or from wheels that were put into wheels/ (no network: pip download them there first).
FROM python:3.11-slim
COPY wheels/ /wheels/
RUN pip install --no-cache-dir --find-links /wheels 'fedtailor[flower]==$version' && rm -rf /wheels
# sockets and Flower's caches go to a home that any user may write to
ENV HOME=/tmp PYTHON=python3 OMP_NUM_THREADS=1 PYTHONUNBUFFERED=1
"""

COMPOSE = """\
# '$federation' in containers. All on one machine, for a trial: docker compose up
# On a site's own machine: this file, Dockerfile, wheels/ and sites/NAME, then
#   COORDINATOR=HOST:PORT docker compose up -d --no-deps NAME
# Private keys belong to one user: run as that one (UID and GID below).
x-shared: &shared
  build: .
  image: fedtailor:$version
  user: "$${UID:-1000}:$${GID:-1000}"
  init: true
  restart: unless-stopped

services:
  coordinator:
    <<: *shared
    command: ["sh", "/project/coordinator/start.sh", "--listen", "0.0.0.0"$contact]
    volumes:
      - ./federation.toml:/project/federation.toml:ro
$preprocessing      - ./coordinator:/project/coordinator
    ports:
      - "$port:$port"
$sites"""

COMPOSE_SITE = """\
  $site:
    <<: *shared
    command: ["sh", "/site/start.sh"]
    environment:
      COORDINATOR: "$${COORDINATOR:-coordinator:$port}"
    depends_on: [coordinator]
    volumes:
      - ./sites/$site:/site
"""

README = """\
# $federation

Made by FedTailor $version. $what

On the coordinator's machine (this folder, without `sites/`):

    sh coordinator/start.sh                 # leave it running, or use the systemd unit beside it
    fedtailor federation run .$insecure              # plays the rounds that are left
    fedtailor federation status .$insecure
    fedtailor federation stop .$insecure

On each site's machine (its own folder under `sites/`, nothing else):

    sh start.sh                             # leave it running, or use the systemd unit beside it

| file | whose | what |
|---|---|---|
| `federation.toml` | coordinator | what is learnt and by whom; `[coordinator]` says where it runs |
| `coordinator/certificates/` | coordinator | TLS; `server.key` is private |
| `coordinator/keys/NAME.pub` | coordinator | public keys of the sites that may come in |
| `sites/NAME/site.toml` | site NAME | its data, and what it agrees to |
| `sites/NAME/node.key` | site NAME | private: only that site may have it |
| `sites/NAME/ca.crt` | site NAME | the authority that it trusts |

**A real authority's certificates**: put them in the place of the trial ones (`ca.crt`,
`server.pem` with the coordinator's name in it, `server.key`), and the authority's into each
site's `ca.crt`. **Keys that never left their site**: there, run
`ssh-keygen -t ecdsa -b 384 -N "" -f node.key`, and send `node.key.pub` to the coordinator, who puts
it in the place of `coordinator/keys/NAME.pub`.
"""
