"""What the loader reads of an ELF file: run paths, needed libraries, symbol versions, flags.

Pure Python, so that a wheel can be described where there are no binutils."""

import struct

DYNAMIC, GNU_RELRO, GNU_STACK = 2, 0x6474E552, 0x6474E551
NEEDED, STRTAB, SYMTAB, STRSZ, SYMENT = 1, 5, 6, 10, 11
RPATH, RUNPATH, BIND_NOW, FLAGS, FLAGS_1 = 15, 29, 24, 30, 0x6FFFFFFB
VERNEED, VERNEEDNUM = 0x6FFFFFFE, 0x6FFFFFFF
SHARED = 3  # also a position-independent program


def is_elf(path):
    with open(path, "rb") as file:
        return file.read(4) == b"\x7fELF"


class Elf:
    """A 64-bit little-endian file with a dynamic section."""

    def __init__(self, path):
        with open(path, "rb") as file:
            self._bytes = file.read()
        if self._bytes[:6] != b"\x7fELF\x02\x01":
            raise ValueError(f"{path} is no 64-bit little-endian ELF file")
        (self.type,) = struct.unpack_from("<H", self._bytes, 16)
        (table,) = struct.unpack_from("<Q", self._bytes, 32)
        size, count = struct.unpack_from("<HH", self._bytes, 54)
        # (type, flags, offset, address, bytes in the file)
        self._segments = []
        for i in range(count):
            kind, flags, offset, address, _, length = struct.unpack_from(
                "<IIQQQQ", self._bytes, table + i * size
            )
            self._segments.append((kind, flags, offset, address, length))
        self._dynamic = {}  # tag -> values
        for kind, _, offset, _, length in self._segments:
            if kind == DYNAMIC:
                for at in range(offset, offset + length, 16):
                    tag, value = struct.unpack_from("<QQ", self._bytes, at)
                    if tag == 0:
                        break
                    self._dynamic.setdefault(tag, []).append(value)

    def _offset(self, address):
        for kind, _, offset, start, length in self._segments:
            if kind == 1 and start <= address < start + length:
                return offset + address - start
        raise ValueError(f"address {address:#x} is in no segment")

    def _value(self, tag):
        return self._dynamic.get(tag, [0])[0]

    def _text(self, offset):
        begin = self._offset(self._value(STRTAB)) + offset
        return self._bytes[begin : self._bytes.index(b"\0", begin)].decode()

    def _texts(self, tag):
        return [self._text(offset) for offset in self._dynamic.get(tag, [])]

    def needed(self):
        return self._texts(NEEDED)

    def run_paths(self):
        """The elements of RPATH and RUNPATH; an empty one is the current folder."""
        return [e for path in self._texts(RPATH) + self._texts(RUNPATH) for e in path.split(":")]

    def binds_now(self):
        return BIND_NOW in self._dynamic or bool(self._value(FLAGS) & 8 or self._value(FLAGS_1) & 1)

    def has_relro(self):
        return any(kind == GNU_RELRO for kind, *_ in self._segments)

    def has_executable_stack(self):
        flags = [flags for kind, flags, *_ in self._segments if kind == GNU_STACK]
        return not flags or bool(flags[0] & 1)

    def symbols(self):
        """Names in the dynamic symbol table, which the string table follows in every linker."""
        begin, end = self._offset(self._value(SYMTAB)), self._offset(self._value(STRTAB))
        for at in range(begin, end, self._value(SYMENT)):
            (name,) = struct.unpack_from("<I", self._bytes, at)
            if name:
                yield self._text(name)

    def versions(self):
        """{library: {symbol version, ...}} of what the file imports."""
        found, at = {}, self._offset(self._value(VERNEED)) if VERNEED in self._dynamic else 0
        for _ in range(self._value(VERNEEDNUM)):
            _, count, library, first, following = struct.unpack_from("<HHIII", self._bytes, at)
            names = found.setdefault(self._text(library), set())
            entry = at + first
            for _ in range(count):
                _, _, _, name, step = struct.unpack_from("<IHHII", self._bytes, entry)
                names.add(self._text(name))
                entry += step
            at += following
        return found
