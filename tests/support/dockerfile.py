"""A Dockerfile as data: its stages, and what an image made of a stage runs with.

Only what deploy/Dockerfile uses: exec and shell form, line continuations, ARG, and variables of ARG
in FROM and RUN. Anything else is refused, so that no instruction is silently left out.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

KNOWN = (
    *("ARG", "FROM", "RUN", "COPY", "WORKDIR", "ENV", "VOLUME", "EXPOSE", "USER"),
    *("HEALTHCHECK", "ENTRYPOINT", "CMD"),
)
_FLAG = re.compile(r"--([a-z-]+)=(\S+)\s*")
_VARIABLE = re.compile(r"\$\{(\w+)\}")


class Instruction(NamedTuple):
    name: str
    text: str
    flags: dict[str, str]

    @property
    def words(self) -> list[str]:
        """The arguments: of the exec form a JSON list, else split as a shell does."""
        if self.text.startswith("["):
            words: list[str] = json.loads(self.text)
            return words
        return shlex.split(self.text)


class Stage(NamedTuple):
    name: str
    base: str  # another stage, or the image to start from
    instructions: list[Instruction]


@dataclass
class ImageSettings:
    """What `docker run` takes from an image."""

    environ: dict[str, str] = field(default_factory=dict)
    workdir: str = "/"
    user: str = "0:0"
    volumes: list[str] = field(default_factory=list)
    ports: list[int] = field(default_factory=list)
    entrypoint: list[str] = field(default_factory=list)
    command: list[str] = field(default_factory=list)
    health: list[str] = field(default_factory=list)
    health_flags: dict[str, str] = field(default_factory=dict)

    def apply(self, instruction: Instruction) -> None:
        name, words = instruction.name, instruction.words
        if name == "ENV":
            self.environ |= dict(word.split("=", 1) for word in words)
        elif name == "WORKDIR":
            self.workdir = words[0]
        elif name == "USER":
            self.user = words[0]
        elif name == "VOLUME":
            self.volumes += words
        elif name == "EXPOSE":
            self.ports += map(int, words)
        elif name == "ENTRYPOINT":
            self.entrypoint, self.command = words, []
        elif name == "CMD":
            self.command = words
        elif name == "HEALTHCHECK":
            form, _, command = instruction.text.partition(" ")
            assert form == "CMD", instruction.text
            self.health, self.health_flags = json.loads(command), instruction.flags


class Dockerfile:
    """Stages by name, in order; the last one is built when no target is named."""

    def __init__(self, text: str) -> None:
        self.arguments: dict[str, str] = {}  # with their defaults
        self.stages: dict[str, Stage] = {}
        for instruction in _instructions(text):
            self._add(instruction)

    @classmethod
    def read(cls, file: Path) -> Dockerfile:
        return cls(file.read_text())

    @property
    def default_target(self) -> str:
        return next(reversed(self.stages))

    def _add(self, instruction: Instruction) -> None:
        assert instruction.name in KNOWN, f"the tests cannot execute {instruction.name}"
        if instruction.name == "ARG":
            name, _, default = instruction.text.partition("=")
            self.arguments[name] = default
        elif instruction.name == "FROM":
            base, word, name = self.expand(instruction.text).split()
            assert word == "AS"
            self.stages[name] = Stage(name, base, [])
        else:
            self.stages[self.default_target].instructions.append(instruction)

    def expand(self, text: str) -> str:
        """The text with the defaults of ARG; `${NAME}` of other names stays."""
        return _VARIABLE.sub(lambda found: self.arguments.get(found[1], found[0]), text)

    def lineage(self, target: str) -> list[Stage]:
        """The stages that `target` is made from, the first one first, and itself."""
        stage = self.stages[target]
        earlier = self.lineage(stage.base) if stage.base in self.stages else []
        return [*earlier, stage]

    def settings(self, target: str) -> ImageSettings:
        settings = ImageSettings()
        for stage in self.lineage(target):
            for instruction in stage.instructions:
                settings.apply(instruction)
        return settings

    def needed(self, target: str) -> list[str]:
        """Every stage that has to be built for `target`, in order, itself last."""
        names: list[str] = []
        for stage in self.lineage(target):
            for instruction in stage.instructions:
                if source := instruction.flags.get("from"):
                    names += self.needed(source)
            names.append(stage.name)
        return list(dict.fromkeys(names))


def _instructions(text: str) -> Iterator[Instruction]:
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    for line in "\n".join(lines).replace("\\\n", " ").splitlines():
        if line.strip():
            name, _, rest = line.strip().partition(" ")
            flags = {}
            while found := _FLAG.match(rest := rest.lstrip()):
                flags[found[1]] = found[2]
                rest = rest[found.end() :]
            yield Instruction(name, rest, flags)
