"""Links relocatable ELF objects into one flat, position-independent blob of code that can be mapped and run anywhere.

LLVM emits one object a kernel; a program holds one image.  `link` puts the code of all objects first and their constants
after it, binds every reference between them, and refuses whatever would need work at loading: undefined symbols, absolute
addresses, writable data.  What comes out needs no dynamic linker, on any x86-64 or AArch64 processor.

Sources: the ELF-64 object file format; System V ABI, AMD64 supplement (relocation types); ELF for the Arm 64-bit
architecture (IHI 0056).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

from sartor.errors import LoopError

_SHT_PROGBITS, _SHT_SYMTAB, _SHT_RELA, _SHT_NOBITS, _SHT_REL = 1, 2, 4, 8, 9
_SHF_WRITE, _SHF_ALLOC, _SHF_EXECINSTR, _SHF_TLS = 1, 2, 4, 0x400
_SHN_UNDEF, _SHN_LORESERVE, _SHN_COMMON = 0, 0xFF00, 0xFFF2
_STB_LOCAL = 0
_ET_REL = 1
_MACHINES = {62: "x86_64", 183: "aarch64"}


@dataclass(frozen=True)
class Image:
    """Linked code.

    Attributes
    ----------
    code
        To be mapped readable and executable at a multiple of 4096.
    symbols
        Offset into `code` of each exported function, by name.
    machine
        `x86_64` or `aarch64`.
    """

    code: bytes
    symbols: dict[str, int]
    machine: str


@dataclass
class _Section:
    """A section of one object; `place` is where it stands in the image, -1 while it has no place there."""

    name: str
    kind: int
    flags: int
    align: int
    data: bytes
    link: int
    info: int
    place: int = -1


@dataclass(frozen=True)
class _Symbol:
    name: str
    is_local: bool
    section: int
    value: int


@dataclass
class _Object:
    label: str
    machine: int
    sections: list[_Section]
    symbols: list[_Symbol] = field(default_factory=list)


def link(objects: Sequence[bytes]) -> Image:
    """One image of several ELF-64 relocatable objects.

    Local symbols of different objects may have the same name; exported ones are unique.  Unwind tables and notes are left
    out.

    Raises
    ------
    LoopError
        An object is not a relocatable of a known machine, machines differ, two objects export the same name, a symbol is
        undefined, a section is writable, or a relocation is absolute or of an unknown kind.
    """
    if not objects:
        raise LoopError("there are no objects to link")
    parsed = [_parse(data, f"object {i}") for i, data in enumerate(objects)]
    machine = parsed[0].machine
    for each in parsed:
        if each.machine != machine:
            raise LoopError(f"{each.label} is for {_MACHINES[each.machine]}, {parsed[0].label} for {_MACHINES[machine]}")
    code = _lay_out(parsed)
    exported = _exported(parsed)
    for each in parsed:
        _relocate(each, code, exported)
    return Image(bytes(code), exported, _MACHINES[machine])


def _parse(data: bytes, label: str) -> _Object:
    if len(data) < 64 or data[:6] != b"\x7fELF\x02\x01":
        raise LoopError(f"{label} is not a little-endian ELF-64 object")
    kind, machine = struct.unpack_from("<HH", data, 16)
    if kind != _ET_REL or machine not in _MACHINES:
        raise LoopError(f"{label} has ELF type {kind} for machine {machine}; expected a relocatable for x86-64 or AArch64")
    (table,) = struct.unpack_from("<Q", data, 40)
    entry_size, count, names_index = struct.unpack_from("<HHH", data, 58)
    if not 0 < count < _SHN_LORESERVE or names_index >= count or table + count * entry_size > len(data):
        raise LoopError(f"{label} is damaged: its table of sections lies outside it")
    headers = [struct.unpack_from("<IIQQQQIIQQ", data, table + i * entry_size) for i in range(count)]
    names = data[headers[names_index][4]:][:headers[names_index][5]]
    sections = []
    for name, section_kind, flags, _, offset, size, link_index, info, align, _ in headers:
        content = b"" if section_kind == _SHT_NOBITS else data[offset:offset + size]
        if section_kind != _SHT_NOBITS and len(content) < size:
            raise LoopError(f"{label} is damaged: its section {_string(names, name)} lies outside it")
        if section_kind == _SHT_NOBITS and size and flags & _SHF_ALLOC:
            raise LoopError(f"{label} has writable data in {_string(names, name)}; code must be free of it")
        sections.append(_Section(_string(names, name), section_kind, flags, max(1, align), content, link_index, info))
    parsed = _Object(label, machine, sections)
    for section in sections:
        if section.kind == _SHT_SYMTAB:
            parsed.symbols = _symbols(section, sections)
    return parsed


def _string(table: bytes, offset: int) -> str:
    return table[offset:table.index(b"\0", offset)].decode()


def _symbols(section: _Section, sections: list[_Section]) -> list[_Symbol]:
    names = sections[section.link].data
    found = []
    for name, info, _, index, value, _ in struct.iter_unpack("<IBBHQQ", section.data):
        text = _string(names, name) or (sections[index].name if index < len(sections) else "")
        found.append(_Symbol(text, info >> 4 == _STB_LOCAL, index, value))
    return found


def _is_placed(section: _Section, label: str) -> bool:
    """Whether a section belongs into the image; refuses the ones that cannot be there."""
    if not section.flags & _SHF_ALLOC or section.kind != _SHT_PROGBITS or section.name == ".eh_frame":
        return False
    if not section.data:
        return False
    # .data.rel.ro is constant once relocated; absolute addresses in it are refused with their relocation.
    if section.flags & _SHF_TLS or (section.flags & _SHF_WRITE and not section.name.startswith(".data.rel.ro")):
        raise LoopError(f"{label} has writable data in {section.name}; code must be free of it")
    return True


def _lay_out(objects: list[_Object]) -> bytearray:
    """Gives each section its place, code first, and returns the image before relocation."""
    code = bytearray()
    kept = [s for o in objects for s in o.sections if _is_placed(s, o.label)]
    for section in sorted(kept, key=lambda s: not s.flags & _SHF_EXECINSTR):
        code += bytes(-len(code) % section.align)
        section.place = len(code)
        code += section.data
    return code


def _exported(objects: list[_Object]) -> dict[str, int]:
    """Places of all global symbols."""
    found: dict[str, int] = {}
    for each in objects:
        for symbol in each.symbols:
            if symbol.is_local or symbol.section == _SHN_UNDEF:
                continue
            if symbol.section == _SHN_COMMON:
                raise LoopError(f"{symbol.name} of {each.label} is writable data; code must be free of it")
            if symbol.name in found:
                raise LoopError(f"{symbol.name} is exported by {each.label} and by an object before it")
            place = _place(each, symbol)
            if place is not None:
                found[symbol.name] = place
    return found


def _place(owner: _Object, symbol: _Symbol) -> int | None:
    """Where a defined symbol stands in the image; None when its section is not in it."""
    if symbol.section >= len(owner.sections) or owner.sections[symbol.section].place < 0:
        return None
    return owner.sections[symbol.section].place + symbol.value


def _relocate(owner: _Object, code: bytearray, exported: dict[str, int]) -> None:
    """Binds the references of one object."""
    apply = _apply_x86_64 if _MACHINES[owner.machine] == "x86_64" else _apply_aarch64
    for section in owner.sections:
        if section.kind not in (_SHT_RELA, _SHT_REL) or owner.sections[section.info].place < 0:
            continue
        target = owner.sections[section.info]
        if section.kind == _SHT_REL:
            raise LoopError(f"{owner.label} has relocations without addends for {target.name}; expected RELA")
        for offset, info, addend in struct.iter_unpack("<QQq", section.data):
            symbol = owner.symbols[info >> 32]
            place = exported.get(symbol.name) if symbol.section == _SHN_UNDEF else _place(owner, symbol)
            if place is None:
                raise LoopError(f"{owner.label} refers to {symbol.name}, which no object of the image defines")
            fault = apply(code, target.place + offset, info & 0xFFFFFFFF, place, addend)
            if fault:
                raise LoopError(f"{owner.label} refers to {symbol.name} in {target.name} by {fault}")


# --- x86-64 ---------------------------------------------------------------------------------------------------------------

_X86_ABSOLUTE = {1: "R_X86_64_64", 10: "R_X86_64_32", 11: "R_X86_64_32S", 12: "R_X86_64_16", 14: "R_X86_64_8"}
_X86_PC64, _X86_PC32, _X86_PLT32, _X86_GOTPCREL, _X86_GOTPCRELX, _X86_REX_GOTPCRELX = 24, 2, 4, 9, 41, 42


def _apply_x86_64(code: bytearray, at: int, kind: int, place: int, addend: int) -> str:
    """Applies one relocation; returns what is wrong with it, or nothing."""
    if kind in (_X86_PC32, _X86_PLT32):
        return _write_signed(code, at, place + addend - at, 4)
    if kind == _X86_PC64:
        return _write_signed(code, at, place + addend - at, 8)
    if kind in (_X86_GOTPCRELX, _X86_REX_GOTPCRELX) and addend == -4:
        # The loads of an address from the global offset table that the ABI lets a linker turn into the address itself.
        operation = bytes(code[at - 2:at])
        if operation[0] == 0x8B:
            code[at - 2] = 0x8D  # mov to lea
            return _write_signed(code, at, place + addend - at, 4)
        if operation == b"\xff\x15":
            code[at - 2:at] = b"\x67\xe8"  # call *address(%rip) to addr32 call
            return _write_signed(code, at, place + addend - at, 4)
        if operation == b"\xff\x25":
            code[at - 2] = 0xE9  # jmp *address(%rip) to jmp; nop
            code[at + 3] = 0x90
            return _write_signed(code, at - 1, place + addend - (at - 1), 4)
    if kind in (_X86_GOTPCREL, _X86_GOTPCRELX, _X86_REX_GOTPCRELX):
        return "the global offset table, which an image has not"
    return f"an absolute address ({_X86_ABSOLUTE[kind]})" if kind in _X86_ABSOLUTE else f"the unknown relocation {kind}"


def _write_signed(code: bytearray, at: int, value: int, size: int) -> str:
    if not -(1 << 8 * size - 1) <= value < 1 << 8 * size - 1:
        return f"a distance of {value}, too far for {size} bytes"
    code[at:at + size] = value.to_bytes(size, "little", signed=True)
    return ""


# --- AArch64 --------------------------------------------------------------------------------------------------------------

_ARM_ABSOLUTE = {257: "R_AARCH64_ABS64", 258: "R_AARCH64_ABS32", 259: "R_AARCH64_ABS16"}
_ARM_GOT = (309, 310, 313)
_ARM_GOT_PAGE, _ARM_GOT_LO12 = 311, 312
_ARM_PREL64, _ARM_PREL32, _ARM_ADR_LO21, _ARM_ADR_PAGE, _ARM_ADD_LO12 = 260, 261, 274, 275, 277
_ARM_LO12_SCALE = {277: 0, 278: 0, 284: 1, 285: 2, 286: 3, 299: 4}  # ADD, LDST8, 16, 32, 64, 128
_ARM_BRANCH = {  # bits of the distance in words, and where they stand in the instruction
    282: (26, 0), 283: (26, 0),  # JUMP26, CALL26
    273: (19, 5), 280: (19, 5),  # LD_PREL_LO19, CONDBR19
    279: (14, 5),  # TSTBR14
}


def _apply_aarch64(code: bytearray, at: int, kind: int, place: int, addend: int) -> str:
    """Applies one relocation; returns what is wrong with it, or nothing."""
    value = place + addend
    if kind == _ARM_PREL64:
        return _write_signed(code, at, value - at, 8)
    if kind == _ARM_PREL32:
        return _write_signed(code, at, value - at, 4)
    if kind in _ARM_BRANCH:
        bits, shift = _ARM_BRANCH[kind]
        if (value - at) % 4:
            return f"a branch to {value:#x}, which is not a multiple of 4"
        return _insert(code, at, (value - at) >> 2, bits, [(0, bits, shift)])
    if kind == _ARM_GOT_LO12:
        # The load of an address from the global offset table becomes its addition to the page, which ADRP then yields.
        (word,) = struct.unpack_from("<I", code, at)
        if word & 0xFFC00000 != 0xF9400000:
            return "the global offset table, which an image has not"
        struct.pack_into("<I", code, at, 0x91000000 | word & 0x3FF)
        return _insert(code, at, value & 0xFFF, 13, [(0, 12, 10)])
    if kind in (_ARM_ADR_LO21, _ARM_ADR_PAGE, _ARM_GOT_PAGE):
        distance = value - at if kind == _ARM_ADR_LO21 else (value >> 12) - (at >> 12)
        return _insert(code, at, distance, 21, [(0, 2, 29), (2, 19, 5)])
    if kind in _ARM_LO12_SCALE:
        scale = _ARM_LO12_SCALE[kind]
        low = value & 0xFFF
        if low % (1 << scale):
            return f"an access of {1 << scale} bytes at {value:#x}, which is not aligned to it"
        return _insert(code, at, low >> scale, 13, [(0, 12, 10)])
    if kind in _ARM_GOT:
        return "the global offset table, which an image has not"
    return f"an absolute address ({_ARM_ABSOLUTE[kind]})" if kind in _ARM_ABSOLUTE else f"the unknown relocation {kind}"


def _insert(code: bytearray, at: int, value: int, bits: int, fields: Sequence[tuple[int, int, int]]) -> str:
    """Puts a signed value of `bits` bits into an instruction: of each field (first bit, bits, position in the word)."""
    if not -(1 << bits - 1) <= value < 1 << bits - 1:
        return f"a distance of {value}, too far for {bits} bits"
    (word,) = struct.unpack_from("<I", code, at)
    for first, width, position in fields:
        mask = (1 << width) - 1
        word = word & ~(mask << position) | (value >> first & mask) << position
    struct.pack_into("<I", code, at, word)
    return ""


