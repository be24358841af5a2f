"""The bytes of a pickle -> the plain values it describes, by a small stack machine of our own.

A pickle is a program. This machine knows the steps that build plain values and no others, and every name that a
pickle may ask for stands in a table of inert stand-ins: nothing is imported, called or set because a file says so.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, NamedTuple

MOST_STEPS: Final = 500_000  # a training run's file of 4,000 tensors takes about 150,000
DEEPEST_STACK: Final = 50_000
MOST_REMEMBERED: Final = 250_000  # values in its memory
LONGEST_TEXT: Final = 2**20  # bytes of one text or line
LONGEST_NUMBER: Final = 32  # bytes of a whole number
LARGEST_KEY: Final = 2**60  # numbers beyond could be made to collide in a dict
LONGEST_KEY: Final = 1000
SPARE: Final = 8 * 2**20  # bytes that all texts together may take beyond the size of the pickle
PROTOCOL: Final = 5  # the newest

MODULES: Final = ("torch.nn.", "torch.optim.", "torch.fx.", "torch.jit.")  # whole objects, where found in a file

_NEWOBJ = b")\x81"
_SHORT = struct.Struct("<B")
_MIDDLE = struct.Struct("<I")
_LONG = struct.Struct("<Q")


class RefusedPickle(ValueError):  # noqa: N818
    """A pickle that asks for more than plain values, or for too much of them."""


class RefusedName(RefusedPickle):
    """A pickle that asks for a name outside of the table."""


class CutShort(ValueError):  # noqa: N818
    """A pickle that goes on after the bytes at hand."""


class Symbol(NamedTuple):
    """A name that a pickle may ask for, and what making one of it gives; without `make` it only stands there."""

    name: str
    make: Callable[..., Any] | None = None


class Inert:
    """Something that a pickle may hold and that nobody here needs."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def fill(self, state: Any) -> None:
        """Its state is not needed either."""

    def __repr__(self) -> str:
        return f"<{self.name}>"


class Bag(dict[Any, Any]):
    """A dict in the place of an object: its attributes by name."""

    def fill(self, state: Any) -> None:
        """Take the attributes."""
        if type(state) is not dict:
            raise RefusedPickle("has an object whose attributes are no dict: refused")
        self.update(state)


class PickleResult(NamedTuple):
    """What a pickle gave, and where in the bytes it ended."""

    value: Any
    end: int


def run(
    data: bytes,
    symbols: Mapping[str, Any],
    persistent: Callable[[Any], Any] | None = None,
    start: int = 0,
    longest: int = LONGEST_TEXT,
) -> PickleResult:
    """Run one pickle; RefusedPickle or CutShort say why not, any other ValueError that it is broken.

    `longest` is how many bytes one text may have.
    """
    machine = _Machine(data, symbols, persistent, start, longest)
    try:
        return machine.run()
    except (RefusedPickle, CutShort):
        raise
    except (struct.error, IndexError) as error:
        if machine.at >= len(data) - 8:
            raise CutShort("it is cut short") from None
        raise ValueError(f"its steps make no sense ({error})") from None
    except (TypeError, KeyError, OverflowError, UnicodeError, RecursionError, MemoryError) as error:
        raise ValueError(f"its steps make no sense ({type(error).__name__})") from None


def printable(text: str) -> str:
    """A name out of a file, fit for a message: one line, never long."""
    text = text if text.isprintable() else repr(text)
    return text if len(text) <= 120 else f"{text[:117]}..."


class _Machine:
    """Stack, marks and memo of one pickle, and how far it has been run."""

    def __init__(
        self,
        data: bytes,
        symbols: Mapping[str, Any],
        persistent: Callable[[Any], Any] | None,
        start: int,
        longest: int,
    ) -> None:
        self.data, self.at, self.longest = data, start, longest
        self.symbols, self.persistent = symbols, persistent
        self.stack: list[Any] = []
        self.marks: list[int] = []  # how high the stack was
        self.memo: dict[int, Any] = {}
        self.copied = 0  # items that went into something made from a list or dict
        self.room = len(data) + SPARE  # bytes left for long texts

    def run(self) -> PickleResult:
        data, stack = self.data, self.stack
        for _ in range(MOST_STEPS):
            code = data[self.at]
            self.at += 1
            if code == 0x2E:  # STOP
                if len(stack) != 1 or self.marks:
                    raise ValueError("it ends in the middle")
                return PickleResult(stack[0], self.at)
            step = _STEPS.get(code)
            if step is None:
                raise RefusedPickle(_unknown(code))
            step(self)
            if len(stack) > DEEPEST_STACK:
                raise RefusedPickle(f"piles up more than {DEEPEST_STACK:,} values: refused")
        raise RefusedPickle(f"has a pickle of more than {MOST_STEPS:,} steps: refused")

    # ---- reading

    def piece(self, count: int) -> bytes:
        """The next bytes."""
        if count > self.longest:
            raise RefusedPickle(f"has a text of {count:,} bytes, at most {self.longest:,} are read")
        end = self.at + count
        if end > len(self.data):
            raise CutShort("it is cut short")
        found = self.data[self.at : end]
        self.at = end
        return found

    def line(self) -> bytes:
        """The bytes up to the next end of line."""
        end = self.data.find(b"\n", self.at, self.at + LONGEST_TEXT)
        if end < 0:
            if len(self.data) - self.at < LONGEST_TEXT:
                raise CutShort("it is cut short")
            raise RefusedPickle("has a line without end: refused")
        found = self.data[self.at : end]
        self.at = end + 1
        return found

    def weigh(self, value: str | bytes) -> None:
        """Count a long text, which may take four times the memory that it takes in the file."""
        if len(value) > 64:
            self.room -= sys.getsizeof(value)
            if self.room < 0:
                raise RefusedPickle("has texts that take far more memory than it has bytes: refused")

    def items(self) -> list[Any]:
        """What was piled up since the last mark."""
        at = self.marks.pop()
        found = self.stack[at:]
        del self.stack[at:]
        return found

    # ---- steps that push a value

    def push_number(self, kind: struct.Struct) -> None:
        (value,) = kind.unpack_from(self.data, self.at)
        self.at += kind.size
        self.stack.append(value)

    def push_long(self, length: struct.Struct) -> None:
        (count,) = length.unpack_from(self.data, self.at)
        self.at += length.size
        if count > LONGEST_NUMBER:
            raise RefusedPickle(f"has a whole number of {count:,} bytes: refused")
        self.stack.append(int.from_bytes(self.piece(count), "little", signed=True))

    def push_text(self, length: struct.Struct, decode: Callable[[bytes], str | bytes]) -> None:
        (count,) = length.unpack_from(self.data, self.at)
        self.at += length.size
        value = decode(self.piece(count))
        if count > 64:
            self.weigh(value)
        self.stack.append(value)

    def push_line(self, decode: Callable[[bytes], Any]) -> None:
        value = decode(self.line())
        if isinstance(value, str):
            self.weigh(value)
        self.stack.append(value)

    def push_tuple(self, count: int) -> None:
        if len(self.stack) < count:
            raise ValueError("its steps make no sense (a tuple of nothing)")
        found = tuple(self.stack[-count:])
        del self.stack[-count:]
        self.stack.append(found)

    def push_dict(self) -> None:
        self.stack.append(_pairs(self.items()))

    # ---- steps that change what is there

    def mark(self) -> None:
        self.marks.append(len(self.stack))

    def pop(self) -> None:
        if self.marks and self.marks[-1] == len(self.stack):
            self.marks.pop()
        else:
            self.stack.pop()

    def append(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if type(target) is not list:
            raise ValueError("it appends to what is no list")
        target += items

    def set(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if not isinstance(target, dict):
            raise ValueError("it sets entries of what is no dict")
        target.update(_pairs(items))

    def set_one(self) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        self.set([key, value])

    def put(self, index: int) -> None:
        if not 0 <= index < MOST_REMEMBERED:
            raise RefusedPickle(f"remembers a value under the number {index:,}: refused")
        self.memo[index] = self.stack[-1]

    def get(self, index: int) -> None:
        self.stack.append(self.memo[index])

    # ---- steps that ask for a name

    def ask(self, module: str, name: str) -> None:
        """Push the stand-in of a name, or refuse it."""
        full = f"{module}.{name}"
        if full not in self.symbols:
            raise RefusedName(_refusal(full, self.makes_an_object()))
        self.stack.append(self.symbols[full])

    def makes_an_object(self) -> bool:
        """Whether the steps that follow make an instance of the name just asked for."""
        at = self.at
        skip = {0x71: 2, 0x72: 5, 0x94: 1}.get(self.data[at], 0) if at < len(self.data) else 0  # it is remembered first
        return self.data[at + skip : at + skip + 2] == _NEWOBJ

    def ask_line(self) -> None:
        module, name = self.line(), self.line()
        self.ask(module.decode(), name.decode())

    def ask_stack(self) -> None:
        name, module = self.stack.pop(), self.stack.pop()
        if type(module) is not str or type(name) is not str:
            raise RefusedPickle("asks for a name that is no text: refused")
        self.ask(module, name)

    def ask_old(self) -> None:
        self.ask_line()
        raise RefusedPickle(_unknown(0x69))

    def make(self) -> None:
        """REDUCE, NEWOBJ: something made from a name and arguments, by our own stand-in for it."""
        arguments, symbol = self.stack.pop(), self.stack.pop()
        if type(symbol) is not Symbol or symbol.make is None or type(arguments) is not tuple:
            what = symbol.name if type(symbol) is Symbol else f"a {type(symbol).__name__}"
            raise RefusedPickle(f"calls {printable(what)}, which is refused")
        for each in arguments:
            if type(each) in (str, bytes):
                self.weigh(each)
            elif isinstance(each, list | dict):
                self.copied += len(each)
        self.copied += len(arguments) // 16
        if self.copied > MOST_STEPS // 2:
            raise RefusedPickle("makes the same things over and over: refused")
        self.stack.append(symbol.make(*arguments))

    def build(self) -> None:
        """BUILD: attributes. Those of a dict (torch notes versions there) are not needed."""
        state, target = self.stack.pop(), self.stack[-1]
        if isinstance(target, Inert | Bag):
            self.copied += len(state) if isinstance(state, dict) else 0
            target.fill(state)
        elif type(target) is not dict:
            raise RefusedPickle(f"sets attributes of a {type(target).__name__}: refused")

    def persist(self) -> None:
        if self.persistent is None:
            raise RefusedPickle("asks for a value outside of its pickle: refused")
        self.stack.append(self.persistent(self.stack.pop()))

    def protocol(self) -> None:
        if self.piece(1)[0] > PROTOCOL:
            raise RefusedPickle(f"is a pickle of a newer protocol than {PROTOCOL}: save it with an older one")

    def frame(self) -> None:
        self.piece(8)  # how far the next pieces go: of use to those who read from a stream


def _pairs(items: list[Any]) -> dict[Any, Any]:
    """Keys and values in turn -> dict."""
    if len(items) % 2:
        raise ValueError("it has a key without a value")
    return dict(zip(map(plain_key, items[::2]), items[1::2], strict=True))


def plain_key(value: Any) -> Any:
    """A key that cannot be made to collide with others; a short tuple becomes its text."""
    kind = type(value)
    if kind is str:
        return value
    if (kind is int and -LARGEST_KEY < value < LARGEST_KEY) or kind in (bool, float, bytes, type(None)):
        return value
    if kind is tuple and len(value) <= 8:
        long = [each for each in value if type(each) in (str, bytes) and len(each) > LONGEST_KEY]
        if not long and not any(type(each) is tuple for each in value):
            return repr(tuple(plain_key(each) for each in value))
    raise RefusedPickle(f"has a dict with a key of kind {kind.__name__}: refused")


def _refusal(name: str, makes_an_object: bool) -> str:
    """Why a name is refused, and what to do."""
    shown = printable(name)
    if makes_an_object or name.startswith(MODULES):
        return (
            f"holds a whole pickled object ({shown}), not only weights: to open it, its code would have to run. "
            "Where it was made, save model.state_dict(), best as safetensors"
        )
    return f"asks for {shown}, which is refused: only plain weights are read. Save the state_dict, best as safetensors"


def _unknown(code: int) -> str:
    known = {0x69: "INST", 0x6F: "OBJ", 0x50: "PERSID", 0x82: "EXT1", 0x83: "EXT2", 0x84: "EXT4"}
    known |= {0x92: "NEWOBJ_EX", 0x97: "NEXT_BUFFER", 0x98: "READONLY_BUFFER", 0x32: "DUP"}
    return f"takes the step {known.get(code, hex(code))}, which no file of plain weights takes: refused"


def _whole(line: bytes) -> int | bool:
    """A whole number, True or False, as the oldest protocol writes them."""
    if line in (b"00", b"01"):
        return line == b"01"
    text = line.removesuffix(b"L")
    if len(text) > 2 * LONGEST_NUMBER:
        raise RefusedPickle(f"has a whole number of {len(text):,} digits: refused")
    return int(text)


def _quoted(line: bytes) -> str:
    """Text in quotes, as the oldest protocol writes it; escapes stay as they are, since nobody needs them."""
    if len(line) < 2 or line[:1] != line[-1:] or line[:1] not in (b"'", b'"'):
        raise ValueError("a text without quotes")
    return line[1:-1].decode("latin-1")


def _old_text(raw: bytes) -> str:
    """Text of Python 2, which may be bytes."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw.decode("latin-1")


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogatepass")


def _push(value: Any) -> Callable[[_Machine], None]:
    return lambda machine: machine.stack.append(value)


def _push_new(kind: type) -> Callable[[_Machine], None]:
    return lambda machine: machine.stack.append(kind())


def _index(length: struct.Struct, use: Callable[[_Machine, int], None]) -> Callable[[_Machine], None]:
    def step(machine: _Machine) -> None:
        (index,) = length.unpack_from(machine.data, machine.at)
        machine.at += length.size
        use(machine, index)

    return step


_M = _Machine
_STEPS: Final[dict[int, Callable[[_Machine], None]]] = {
    # plain values
    0x4E: _push(None),
    0x88: _push(True),
    0x89: _push(False),
    0x29: _push(()),
    0x5D: _push_new(list),
    0x7D: _push_new(dict),
    0x8F: _push_new(list),  # a set
    0x4B: partial(_M.push_number, kind=_SHORT),
    0x4D: partial(_M.push_number, kind=struct.Struct("<H")),
    0x4A: partial(_M.push_number, kind=struct.Struct("<i")),
    0x47: partial(_M.push_number, kind=struct.Struct(">d")),
    0x8A: partial(_M.push_long, length=_SHORT),
    0x8B: partial(_M.push_long, length=_MIDDLE),
    0x8C: partial(_M.push_text, length=_SHORT, decode=_text),
    0x58: partial(_M.push_text, length=_MIDDLE, decode=_text),
    0x8D: partial(_M.push_text, length=_LONG, decode=_text),
    0x55: partial(_M.push_text, length=_SHORT, decode=_old_text),
    0x54: partial(_M.push_text, length=_MIDDLE, decode=_old_text),
    0x43: partial(_M.push_text, length=_SHORT, decode=bytes),
    0x42: partial(_M.push_text, length=_MIDDLE, decode=bytes),
    0x8E: partial(_M.push_text, length=_LONG, decode=bytes),
    0x96: partial(_M.push_text, length=_LONG, decode=bytes),  # a bytearray
    # the same as lines of text
    0x49: partial(_M.push_line, decode=_whole),
    0x4C: partial(_M.push_line, decode=_whole),
    0x46: partial(_M.push_line, decode=float),
    0x53: partial(_M.push_line, decode=_quoted),
    0x56: partial(_M.push_line, decode=lambda line: line.decode("raw-unicode-escape")),
    # containers
    0x28: _M.mark,
    0x30: _M.pop,
    0x31: lambda machine: (machine.items(), None)[1],
    0x85: partial(_M.push_tuple, count=1),
    0x86: partial(_M.push_tuple, count=2),
    0x87: partial(_M.push_tuple, count=3),
    0x74: lambda machine: machine.stack.append(tuple(machine.items())),
    0x6C: lambda machine: machine.stack.append(machine.items()),
    0x91: lambda machine: machine.stack.append(machine.items()),  # a frozenset
    0x64: _M.push_dict,
    0x61: lambda machine: machine.append([machine.stack.pop()]),
    0x65: lambda machine: machine.append(machine.items()),
    0x90: lambda machine: machine.append(machine.items()),  # to a set
    0x73: _M.set_one,
    0x75: lambda machine: machine.set(machine.items()),
    # memory
    0x71: _index(_SHORT, _M.put),
    0x72: _index(_MIDDLE, _M.put),
    0x94: lambda machine: machine.put(len(machine.memo)),
    0x70: lambda machine: machine.put(int(_whole(machine.line()))),
    0x68: _index(_SHORT, _M.get),
    0x6A: _index(_MIDDLE, _M.get),
    0x67: lambda machine: machine.get(int(_whole(machine.line()))),
    # names
    0x63: _M.ask_line,
    0x93: _M.ask_stack,
    0x69: _M.ask_old,
    0x52: _M.make,
    0x81: _M.make,
    0x62: _M.build,
    0x51: _M.persist,
    # about the pickle itself
    0x80: _M.protocol,
    0x95: _M.frame,
}
