"""`NamedTuple`: the same as typing's for a type checker and in use, but defined in a sixth of the time.

typing's compiles a constructor for each class, which takes 0.1 ms: an eighth of a command's start. Here all classes
share the descriptors of their fields, and one constructor until they are called with names or without all values. A
class's module has `from __future__ import annotations`: then Python 3.14 has the annotations when the class is made,
too. With a `cached_property` a class's values have a dictionary, in which it is kept; typing's have none. Standard
library only, and runs on Python 3.9.
"""

from __future__ import annotations

from collections import namedtuple
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import NamedTuple as NamedTuple
else:
    _names = [f"field{position}" for position in range(64)]
    #: Kept: a class that nothing refers to is emptied by the garbage collector at any moment.
    _fields_class = namedtuple("_fields_class", _names)
    #: A named tuple's descriptor of a field has the field's position alone.
    _FIELDS = [*map(vars(_fields_class).get, _names)]
    _new = tuple.__new__

    class _Tuple(tuple):
        __slots__ = ()

        def __new__(cls, *values, **by_name):
            if by_name or len(values) != len(cls._fields):
                # From now on the class has its own, which is as fast with names and defaults.
                cls.__new__ = namedtuple(cls.__name__, cls._fields, defaults=cls._field_defaults.values()).__new__
                return cls.__new__(cls, *values, **by_name)
            return _new(cls, values)

        @classmethod
        def _make(cls, values):
            return cls(*values)

        def _replace(self, **by_name):
            made = _new(type(self), map(by_name.pop, self._fields, self))
            if by_name:
                raise ValueError(f"{type(self).__name__} has no field {', '.join(by_name)}")
            return made

        def _asdict(self):
            return dict(zip(self._fields, self))

        def __repr__(self):
            values = ", ".join(f"{field}={value!r}" for field, value in zip(self._fields, self))
            return f"{type(self).__name__}({values})"

        def __getnewargs__(self):
            return tuple(self)

    class _Maker(type):
        def __new__(maker, name, bases, space):
            if not bases:
                return super().__new__(maker, name, bases, space)
            fields = tuple(space.get("__annotations__", ()))
            if len(fields) > len(_FIELDS):
                raise TypeError(f"{name} has {len(fields)} fields, more than {len(_FIELDS)}")
            space["_field_defaults"] = {field: space[field] for field in fields if field in space}
            space.update(zip(fields, _FIELDS))
            space.update({"_fields": fields, "__match_args__": fields})
            if cached_property not in map(type, space.values()):
                space["__slots__"] = ()
            return type(name, (_Tuple, *bases[1:]), space)  # Generic may follow

    class NamedTuple(metaclass=_Maker):
        pass
