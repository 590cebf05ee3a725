"""nginx in front of a coordinator: sites reach what they need of Flower, and nobody more.

Flower answers sites, its owner's commands and its own processes at one port. So the SuperLink
listens on loopback, and nginx passes on the paths that sites use, from keys that are known.
"""

from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
import tempfile
import time
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import resources
from pathlib import Path
from string import Template

from fedtailor.core.errors import BadInput
from fedtailor.federation.deploy.project import Project, address_of
from fedtailor.federation.site.node import wait_or_kill

CONFIGURATION = "nginx.conf"
CURE = "install it (Debian, Ubuntu: apt-get install nginx-light; Fedora: dnf install nginx)"
LONGEST_LOG = 10_000_000  # bytes; one older log of that size is kept
START_SECONDS = 20.0
# what a SuperNode calls of `/v1/fleet/`; registering is an act of the coordinator's owner
FLEET = (
    "activate-node", "deactivate-node", "send-node-heartbeat", "pull-messages", "push-messages",
    "get-run", "get-fab", "push-object", "pull-object", "confirm-message-received",
)  # fmt: skip


def find_nginx() -> str | None:
    """Where nginx is installed; ordinary users' PATH may lack its folder."""
    folders = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"])
    return shutil.which("nginx", path=folders)


def _quoted(path: Path, home: Path | None = None) -> str:
    """A path as nginx takes it; within `home`, so that the folder can be moved."""
    text = str(path.relative_to(home) if home and path.is_relative_to(home) else path)
    if any(c in text for c in '"\\$') or not text.isprintable():
        raise BadInput(f"'{text}': nginx takes no quotes, dollars and backslashes in a path")
    return text


def configuration(project: Project, temporary: Path) -> str:
    """The text of nginx.conf; bodies of requests wait in the folder `temporary`."""
    assert project.certificates is not None
    user, home = "", project.folder / "coordinator"
    if os.geteuid() == 0:
        import grp
        import pwd

        found = pwd.getpwnam("nobody")
        user = f"user nobody {grp.getgrgid(found.pw_gid).gr_name};"
    text = resources.files(__package__).joinpath("assets", "nginx.conf").read_text("utf-8")
    return Template(text).substitute(
        user=user,
        temporary=_quoted(temporary),
        paths="\n".join(f"    /v1/fleet/{name} /v1/fleet/{name};" for name in FLEET),
        control=project.control_port,
        listen=address_of(project.listen, project.port),
        certificate=_quoted(project.certificates.certificate, home),
        key=_quoted(project.certificates.key, home),
    )


def known_keys(folder: Path) -> str:
    """Lines for nginx: the sites' public keys in the form in which nodes send them."""
    from cryptography.hazmat.primitives import serialization

    lines = []
    for path in sorted(folder.glob("*.pub")):
        with suppress(OSError, ValueError):  # whoever registers the keys names a bad one
            key = serialization.load_ssh_public_key(path.read_bytes())
            form = serialization.PublicFormat.SubjectPublicKeyInfo
            sent = b64encode(key.public_bytes(serialization.Encoding.PEM, form)).decode()
            lines.append(f'"{sent}" 1;\n')
    return "".join(dict.fromkeys(lines))


class Proxy:
    """nginx of a project, started by `running`."""

    def __init__(self, project: Project, program: str, temporary: Path) -> None:
        self.project, self.home = project, project.folder / "coordinator"
        self._command = [program, "-p", f"{self.home}/", "-c", CONFIGURATION, "-e", "stderr"]
        (self.home / "proxy").mkdir(exist_ok=True, mode=0o700)
        text = configuration(project, temporary)
        (self.home / CONFIGURATION).write_text(text, encoding="utf-8")
        self._seen = self._stamp()
        done = subprocess.run([*self._command, "-t"], capture_output=True, text=True, check=False)
        if done.returncode:
            why = " ".join(done.stderr.split())[:300]
            raise BadInput(f"nginx does not take '{self.home / CONFIGURATION}': {why}")
        self._start()

    def _start(self) -> None:
        # a group of its own: workers outlive a killed master, and would hold the port
        self.process = subprocess.Popen(
            self._command, stdin=subprocess.DEVNULL, start_new_session=True
        )

    def _end_workers(self) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def _stamp(self) -> tuple[str, list[int]]:
        """What it must be told of when it changes; the keys are written for it to read."""
        keys, files = known_keys(self.project.keys), self.project.certificates or ()
        (self.home / "proxy" / "keys.conf").write_text(keys, encoding="utf-8")
        return keys, [path.stat().st_mtime_ns for path in files]

    def look(self) -> str:
        """Keeps it going; says what had to be done."""
        said = ""
        with suppress(OSError):  # a certificate is being replaced: the next look finds it
            if (now := self._stamp()) != self._seen:
                self._seen, said = now, "the proxy takes new keys or certificates"
                self.process.send_signal(signal.SIGHUP)
        for name in ("refused.log", "error.log"):
            path = self.home / "proxy" / name
            if path.exists() and path.stat().st_size > LONGEST_LOG:
                path.replace(path.with_suffix(".log.1"))
                self.process.send_signal(signal.SIGUSR1)
        if (code := self.process.poll()) is not None:
            said = f"the proxy ended (code {code}): started again"
            self._end_workers()
            self._start()
        return said

    def stop(self) -> None:
        """Ends nginx, which lets go of its workers."""
        self.process.terminate()
        wait_or_kill(self.process)
        self._end_workers()


def _for_everybody() -> str:
    """A folder for temporary files that other users can enter; root's own TMPDIR may be closed."""
    usual = Path(tempfile.gettempdir()).resolve()
    ways = [usual, *usual.parents]
    return str(usual) if all(way.stat().st_mode & stat.S_IXOTH for way in ways) else "/tmp"


@contextmanager
def running(project: Project) -> Iterator[Proxy]:
    """nginx for as long as the block lasts.

    Raises:
      BadInput: nginx is missing, does not take its configuration, or cannot listen.
    """
    program = find_nginx()
    if program is None:
        raise BadInput(missing(project))
    temporary, made = Path("proxy"), None
    if os.geteuid() == 0:  # its workers are nobody's, who cannot enter the project's folder
        temporary = made = Path(tempfile.mkdtemp(prefix="fedtailor-proxy-", dir=_for_everybody()))
        made.chmod(0o711)
    proxy = None
    try:
        proxy = Proxy(project, program, temporary)
        until = time.monotonic() + START_SECONDS
        while not project.reachable():
            if proxy.process.poll() is not None or time.monotonic() > until:
                raise BadInput(
                    f"nginx cannot listen at {address_of(project.listen, project.port)}: see above"
                )
            time.sleep(0.1)
        yield proxy
    finally:
        if proxy:
            proxy.stop()
        if made:
            shutil.rmtree(made, ignore_errors=True)


def missing(project: Project) -> str:
    """One line for a coordinator that may not be started without nginx."""
    return (
        f"listen is '{project.listen}': a coordinator that others can reach needs nginx in front "
        f"of it, which is not installed: {CURE}, or set listen to 127.0.0.1 for a trial here"
    )
