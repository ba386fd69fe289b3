"""An image without a container engine: the instructions of a Dockerfile, executed in a clean root.

The clean root stands for the base image: Debian as debootstrap makes it, with Python, from the
mirror that this machine's apt is configured for. Each stage is an overlay above it. A container is
a chroot into a read-only overlay in namespaces of its own: mounts, processes, network. All of this
needs root.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.support.dockerfile import Dockerfile, ImageSettings, Instruction
from tests.support.toolchains import BUILT, ROOT

# As python:3.12-slim has them. The headers belong to that image; Debian packs them apart.
PACKAGES = ("python3", "python3-dev", "python3-pip", "python3-venv", "ca-certificates")
DEADLINE_S = 1200  # for one instruction: packages may come over a slow network
START_DEADLINE_S = 60
STOP_DEADLINE_S = 30
NAME = "penstock-test"  # of a container
ADDRESS = "10.77.0.2"  # of a container, in its own network
OTHER_ADDRESS = "10.77.0.3"  # a peer that is not the container
NETWORK_SCRIPT = f"""ip link set lo up
ip address add {ADDRESS}/32 dev lo
ip address add {OTHER_ADDRESS}/32 dev lo
"""
# How this machine reaches its package index; a builder would pass them on as well.
_PASSED_ON = ("PIP_", "SSL_CERT_", "REQUESTS_CA_BUNDLE", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")
_CERTIFICATES = Path("/etc/ssl/certs")
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_HOSTS = "127.0.0.1 localhost\n::1 localhost\n{address} {names}\n"


class Mirror(NamedTuple):
    uri: str
    suite: str
    files: list[str]  # of apt's configuration that name Debian's archives


def find_mirror() -> Mirror:
    """Debian's archive as this machine's apt reaches it."""
    columns = "$(ORIGIN)|$(LABEL)|$(CODENAME)|$(REPO_URI)|$(SOURCESENTRY)"
    listed = _run(["apt-get", "indextargets", "--format", columns, "Created-By: Packages"])
    rows = [line.split("|") for line in listed.splitlines()]
    debian = [row for row in rows if row[0] == "Debian"]
    uri, suite = next((uri, suite) for _, label, suite, uri, _ in debian if label == "Debian")
    return Mirror(uri, suite, sorted({row[4].rpartition(":")[0] for row in debian}))


def prepare_clean_root() -> Path:
    """The root, made once for this environment."""
    mirror = find_mirror()
    root, stamp = BUILT / "clean-root", BUILT / "clean-root.stamp"
    wanted = f"{mirror.uri} {mirror.suite} {PACKAGES}"
    BUILT.mkdir(parents=True, exist_ok=True)
    with (BUILT / "clean-root.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if stamp.exists() and stamp.read_text() == wanted:
            return root
        shutil.rmtree(root, ignore_errors=True)
        include = f"--include={','.join(PACKAGES)}"
        _run(["debootstrap", "--variant=minbase", include, mirror.suite, str(root), mirror.uri])
        for name in ("python", "python3"):  # the base image has its own Python there
            (root / "usr/local/bin" / name).symlink_to("/usr/bin/python3")
        (root / "etc/apt/sources.list").unlink(missing_ok=True)
        for file in mirror.files:
            shutil.copy(file, root / file.lstrip("/"))
        stamp.write_text(wanted)
    return root


class CleanRootImage:
    """The layers of one target, and its settings."""

    def __init__(self, layers: Sequence[Path], settings: ImageSettings) -> None:
        self.layers = layers  # the top one first
        self.settings = settings

    def size_bytes(self) -> int:
        """What the layers add to the base."""
        found = {}
        for layer in self.layers[:-1]:
            for file in layer.rglob("*"):
                info = file.lstat()
                found[info.st_dev, info.st_ino] = info.st_blocks * 512
        return sum(found.values())


class Builder:
    """Executes stages; `log` gets the output of every instruction."""

    def __init__(self, dockerfile: Dockerfile, folder: Path, log: Path) -> None:
        self._dockerfile = dockerfile
        self._folder = folder
        self._log = log
        self._base = prepare_clean_root()
        self._built: dict[str, CleanRootImage] = {}

    def build(self, target: str) -> CleanRootImage:
        for name in self._dockerfile.needed(target):
            if name not in self._built:
                self._built[name] = self._build_stage(name)
        return self._built[target]

    def _build_stage(self, name: str) -> CleanRootImage:
        stage = self._dockerfile.stages[name]
        parent = self._built.get(stage.base)
        layers = parent.layers if parent else [self._base]
        upper = self._folder / name
        upper.mkdir(parents=True)
        settings = self._dockerfile.settings(stage.base) if parent else ImageSettings()
        for instruction in stage.instructions:
            settings.apply(instruction)
            if instruction.name == "RUN":
                self._run(upper, layers, settings, self._dockerfile.expand(instruction.text))
            elif instruction.name == "COPY":
                self._copy(upper, layers, settings, instruction)
            elif instruction.name == "WORKDIR":
                self._run(upper, layers, ImageSettings(), f"mkdir -p {settings.workdir}")
        return CleanRootImage([upper, *layers], settings)

    def _run(
        self, upper: Path, layers: Sequence[Path], settings: ImageSettings, command: str
    ) -> None:
        passed_on = {k: v for k, v in os.environ.items() if k.upper().startswith(_PASSED_ON)}
        environ = {"PATH": _PATH, "HOME": "/root", **passed_on, **settings.environ}
        script = _mount_script(layers, upper)
        if _CERTIFICATES.is_dir():  # an authority of this machine's may sign for its package index
            script += f"mount --bind {_CERTIFICATES} $R{_CERTIFICATES}\n"
        self._execute(script + _enter_script(settings, environ, command), command)

    def _copy(
        self,
        upper: Path,
        layers: Sequence[Path],
        settings: ImageSettings,
        instruction: Instruction,
    ) -> None:
        *sources, target = instruction.words
        script = _mount_script(layers, upper)
        if stage := instruction.flags.get("from"):
            folder = Path("/mnt/from")
            script += f"mkdir {folder}\n{_overlay(self._built[stage].layers)} {folder}\n"
        else:
            folder = self._export_context()
        place = f"$R{target if target.startswith('/') else f'{settings.workdir}/{target}'}"
        for source in sources:
            found = folder / source.lstrip("/")
            is_directory = bool(stage) or found.is_dir()
            is_into = target.endswith("/") or len(sources) > 1
            script += (
                f'mkdir -p "{place}" && cp -a {found}/. "{place}"\n'
                if is_directory
                else f'mkdir -p "{place if is_into else "$(dirname " + place + ")"}"'
                f' && cp -a {found} "{place}"\n'
            )
        self._execute(script, str(instruction))

    def _export_context(self) -> Path:
        """What is committed or would be: the working tree has leftovers that a context has not."""
        folder = self._folder / "context"
        if not folder.exists():
            options = ("--cached", "--others", "--exclude-standard")
            for name in _run(["git", "-C", str(ROOT), "ls-files", *options]).splitlines():
                if (ROOT / name).is_file() and not name.startswith("tests/"):
                    (folder / name).parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy2(ROOT / name, folder / name)
        return folder

    def _execute(self, script: str, what: str) -> None:
        with self._log.open("a") as log:
            print(f"\n==> {what}", file=log, flush=True)
            done = subprocess.run(
                ["unshare", "--mount", "--pid", "--fork", "sh", "-euc", script],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                timeout=DEADLINE_S,
                check=False,
            )
        assert done.returncode == 0, f"{what}\n{self._log.read_text()[-4000:]}"


class CleanRootContainer:
    """A running image. Programs of this machine reach it in its network by `run`.

    `network` is a process whose network it shares; by default it has one of its own."""

    def __init__(
        self,
        image: CleanRootImage,
        log: Path,
        *,
        environ: Mapping[str, str],
        volumes: Mapping[Path, str],
        entrypoint: Sequence[str] = (),
        command: Sequence[str] = (),
        network: int | None = None,
        names: str = "",
    ) -> None:
        self._settings = settings = image.settings
        self.log = log
        words = [*(entrypoint or settings.entrypoint), *(command or settings.command)]
        self._environ = {"HOME": "/nonexistent", **settings.environ, **environ}
        self._hosts = log.with_name("hosts")
        self._hosts.write_text(_HOSTS.format(address=ADDRESS, names=f"{NAME} {names}"))
        mounts = {self._hosts: "/etc/hosts", **volumes}
        script = _mount_script(
            [_mount_points(log.with_name("places"), mounts), *image.layers], None
        )
        script += f"hostname {NAME}\n" + (NETWORK_SCRIPT if network is None else "")
        for source, place in mounts.items():
            script += f"mount --bind {source} $R{place}\n"
        script += _enter_script(settings, self._environ, shlex.join(words), is_exec=True)
        shared = [] if network is None else ["nsenter", "--target", str(network), "--net"]
        own = ["--mount", "--pid", "--uts", *(["--net"] if network is None else [])]
        with log.open("a") as output:
            self._process = subprocess.Popen(
                [*shared, "unshare", *own, "--fork", "sh", "-euc", script],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    @property
    def pid(self) -> int:
        """Of the service, which is process 1 in its container."""
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children")
        deadline = time.monotonic() + START_DEADLINE_S
        while not (found := children.read_text().split()):
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.01)
        return int(found[0])

    def wait_for(self, text: str) -> None:
        """Until the log has the text."""
        deadline = time.monotonic() + START_DEADLINE_S
        while text not in self.log.read_text():
            ended = self._process.poll()
            assert ended is None and time.monotonic() < deadline, (ended, self.log.read_text())
            time.sleep(0.04)

    def wait(self, timeout_s: float) -> int:
        """Until it ends by itself; the exit code."""
        return self._process.wait(timeout_s)

    def execute(
        self, command: Sequence[str], *, timeout_s: float = 120
    ) -> subprocess.CompletedProcess[str]:
        """As `docker exec`, or the health check: in the container, without the entry point."""
        entered = ["nsenter", "--target", str(self.pid), "--mount", "--net", "--pid", "--root"]
        user, _, group = self._settings.user.partition(":")
        user_options = ["--wd", "--setuid", user, "--setgid", group]
        variables = [f"{name}={value}" for name, value in self._environ.items()]
        return subprocess.run(
            [*entered, *user_options, "env", "-i", *variables, *command],
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    def run(self, program: Path, *arguments: str, names: str = "penstock") -> str:
        """Run a Python program of this machine in the container's network, where `names` are host
        names of the container. Return its standard output."""
        self._hosts.write_text(_HOSTS.format(address=ADDRESS, names=f"{NAME} {names}"))
        script = f"mount --bind {self._hosts} /etc/hosts\n"
        script += "exec " + shlex.join([sys.executable, str(program), *arguments])
        entered = ["nsenter", "--target", str(self.pid), "--net", "unshare", "--mount"]
        done = subprocess.run(
            [*entered, "sh", "-euc", script],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr + self.log.read_text()[-4000:]
        return done.stdout

    def stop(self) -> int:
        """SIGTERM, as `docker stop`; the exit code."""
        with contextlib.suppress(ProcessLookupError, IndexError, FileNotFoundError):
            os.kill(self.pid, signal.SIGTERM)
        try:
            return self._process.wait(STOP_DEADLINE_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise

    def kill(self) -> None:
        """kill -9 of its first process, with which all others of the container end."""
        if self._process.poll() is None:
            os.kill(self.pid, signal.SIGKILL)
        self._process.wait(STOP_DEADLINE_S)


def _overlay(layers: Sequence[Path], upper: Path | None = None) -> str:
    """The command that mounts the layers, the first one on top; without `upper` read-only."""
    options = f"lowerdir={':'.join(map(str, layers))}"
    if upper is not None:
        options += f",upperdir={upper},workdir={upper}.work"
    return f"mount -t overlay overlay -o {options}"


def _mount_script(layers: Sequence[Path], upper: Path | None) -> str:
    """Mount the root at $R; without `upper` it is read-only."""
    if upper is not None:
        upper.with_name(f"{upper.name}.work").mkdir(exist_ok=True)
    return (
        "mount -t tmpfs tmpfs /mnt\nR=/mnt/root\nmkdir $R\n"
        f"{_overlay(layers, upper)} $R\n"
        "mount -t proc proc $R/proc\nmount --rbind /dev $R/dev\n"
    )


def _mount_points(folder: Path, mounts: Mapping[Path, str]) -> Path:
    """A layer with the places of the mounts, which a read-only root cannot get."""
    for source, place in mounts.items():
        target = folder / place.lstrip("/")
        if source.is_dir():
            target.mkdir(parents=True)
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.touch()
    return folder


def _enter_script(
    settings: ImageSettings, environ: Mapping[str, str], command: str, *, is_exec: bool = False
) -> str:
    """Run a command of the root's shell as the image's user."""
    variables = shlex.join(f"{name}={value}" for name, value in environ.items())
    inside = f"cd {settings.workdir} && {'exec ' if is_exec else ''}{command}"
    enter = f'exec chroot --userspec={settings.user} --groups="" $R'
    return f"{enter} /usr/bin/env -i {variables} sh -c {shlex.quote(inside)}\n"


def _run(command: Sequence[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert done.returncode == 0, f"{shlex.join(command)}\n{done.stdout}{done.stderr}"
    return done.stdout


def missing_tool() -> Iterator[str]:
    """Why no clean root can be made here; nothing when it can."""
    if os.geteuid() != 0:
        yield "a clean root needs root"
    for name in ("debootstrap", "unshare", "nsenter", "chroot", "ip", "apt-get"):
        if shutil.which(name) is None:
            yield f"{name} is not installed"
