"""Protobuf messages made from a table of the fields that are used, so that there is no generated code.

A table has a line per message: its name, then its fields as `name=number` (a string) or `name=number:type`. A type is
one of protobuf's scalars, `map` (string to string) or a message of the same table; `*` after it means repeated. Enums
are int32 here, which is the same on the wire. Fields that are not in the table are skipped; a message that is
serialized again retains them.

Importing this module loads the protobuf library (some 50 ms), so callers import it when they need it."""

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from vmpin.errors import WireError

_Field = descriptor_pb2.FieldDescriptorProto
_SCALARS = {name: _Field.Type.Value(f"TYPE_{name.upper()}") for name in
            ("string", "bytes", "bool", "int32", "int64", "uint32", "uint64", "double")}


class Messages:
    """The message classes of one protobuf package; `messages["Name"]` is a class of the protobuf library.

    >>> pods = Messages("example", "Pod name=1 pid=2:uint32 labels=3:map")
    >>> pods["Pod"](name="web", pid=7).SerializeToString()
    b'\\n\\x03web\\x10\\x07'
    """

    def __init__(self, package: str, table: str) -> None:
        """Build the message classes of a table. :raises ValueError: the table, part of the program, has an error."""
        file = descriptor_pb2.FileDescriptorProto(name=f"{package}.proto", package=package, syntax="proto3")
        for line in table.strip().splitlines():
            name, *fields = line.split()
            message = file.message_type.add(name=name)
            for field in fields:
                _add(message, package, field)
        # A pool of its own: another library in the process may have registered the same package.
        pool = descriptor_pool.DescriptorPool()
        try:
            pool.Add(file)
            self._classes = {message.name: _class(pool.FindMessageTypeByName(f"{package}.{message.name}"), pool)
                             for message in file.message_type}
        except (TypeError, KeyError) as err:
            raise ValueError(f"{package}: {err}") from err
        self.package = package

    # Any: the classes are made at run time, so no type checker knows their fields.
    def __getitem__(self, name: str) -> Any:
        return self._classes[name]

    def decode(self, name: str, raw: bytes) -> Any:
        """Parse a message of class `name`. :raises WireError: the bytes are no such message."""
        try:
            return self._classes[name].FromString(raw)
        except (DecodeError, ValueError, RecursionError, SystemError) as err:
            # The library's three implementations differ: the one in pure Python also raises the next two, the one on
            # C++ (Debian's) the last, for invalid UTF-8.
            raise WireError(f"{self.package}.{name}",
                            f"{len(raw)} bytes are no such message: {str(err)[:100]}") from err


def _add(message: descriptor_pb2.DescriptorProto, package: str, text: str) -> None:
    name, _, rest = text.partition("=")
    number, _, kind = rest.partition(":")
    field = message.field.add(name=name, number=int(number), label=_Field.LABEL_OPTIONAL)
    if kind.endswith("*"):
        field.label = _Field.LABEL_REPEATED
    kind = kind.removesuffix("*") or "string"
    if kind in _SCALARS:
        field.type = _SCALARS[kind]
        return
    field.type = _Field.TYPE_MESSAGE
    if kind == "map":
        # A map is, on the wire and to the library, a repeated message whose name it insists on.
        entry = message.nested_type.add(name="".join(part.capitalize() for part in name.split("_")) + "Entry")
        entry.options.map_entry = True
        for number_, part in enumerate(("key", "value"), 1):
            entry.field.add(name=part, number=number_, label=_Field.LABEL_OPTIONAL, type=_Field.TYPE_STRING)
        field.label, field.type_name = _Field.LABEL_REPEATED, f".{package}.{message.name}.{entry.name}"
    else:
        field.type_name = f".{package}.{kind}"


def _class(descriptor: Any, pool: descriptor_pool.DescriptorPool) -> Any:
    if hasattr(message_factory, "GetMessageClass"):
        return message_factory.GetMessageClass(descriptor)
    # protobuf before 4.22, which is Debian's
    return message_factory.MessageFactory(pool).GetPrototype(descriptor)  # type: ignore[attr-defined, unused-ignore]
