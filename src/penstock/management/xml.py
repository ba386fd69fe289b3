"""XML of strangers, read into a small tree: no DTD, no entities, bounded in every direction."""

from __future__ import annotations

import re
from xml.parsers import expat
from xml.sax.saxutils import escape

import msgspec

from penstock.model import limits
from penstock.model.errors import ArgumentError

_SEPARATOR = " "  # between a namespace and a name; neither can hold one
# What XML 1.0 cannot carry, even escaped.
_NO_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


class Element(msgspec.Struct):
    """`name` is the local one; `namespace` is empty where there is none."""

    namespace: str
    name: str
    text: str = ""
    children: list[Element] = []

    def child(self, namespace: str, name: str) -> Element | None:
        wanted = (namespace, name)
        return next((each for each in self.children if (each.namespace, each.name) == wanted), None)


def parse(body: bytes) -> Element:
    """The root element; ArgumentError for what is no XML, or more than anybody needs."""
    if len(body) > limits.ATOM_BODY_BYTES_MAX:
        raise ArgumentError(
            f"The body has {len(body)} bytes: at most {limits.ATOM_BODY_BYTES_MAX} are allowed."
        )
    tree = _Tree()
    parser = expat.ParserCreate(namespace_separator=_SEPARATOR)
    parser.buffer_text = True
    parser.StartDoctypeDeclHandler = _refuse_doctype
    parser.EntityDeclHandler = _refuse_doctype
    parser.StartElementHandler = tree.start
    parser.EndElementHandler = tree.end
    parser.CharacterDataHandler = tree.characters
    try:
        parser.Parse(body, True)
    except (expat.ExpatError, ValueError, LookupError) as error:
        raise ArgumentError(f"The body is not XML: {error}.") from None
    assert tree.root is not None
    return tree.root


def text(value: str) -> str:
    """Any text as it may stand in an element or an attribute."""
    return escape(_NO_XML.sub("\ufffd", value), {'"': "&quot;", "'": "&apos;"})


class _Tree:
    def __init__(self) -> None:
        self.root: Element | None = None
        self._open: list[Element] = []
        self._count = 0

    def start(self, name: str, _attributes: object) -> None:
        namespace, _, local = name.rpartition(_SEPARATOR)
        element = Element(namespace, local)
        self._count += 1
        if self._count > limits.ATOM_ELEMENTS_MAX or len(self._open) >= limits.ATOM_DEPTH_MAX:
            raise ArgumentError(
                f"The body has more than {limits.ATOM_ELEMENTS_MAX} elements, or more than "
                f"{limits.ATOM_DEPTH_MAX} within each other."
            )
        if self._open:
            self._open[-1].children.append(element)
        else:
            self.root = element
        self._open.append(element)

    def end(self, _name: str) -> None:
        self._open.pop()

    def characters(self, data: str) -> None:
        if self._open:
            self._open[-1].text += data


def _refuse_doctype(*_arguments: object) -> None:
    raise ArgumentError("The body holds a document type or an entity, which is not allowed.")
