//! BPF programs from the ELF objects that clang makes of `bpf/*.bpf.c`.
//!
//! Reads only files that packetrig's own build makes: 64-bit little-endian, one program per section, references to maps
//! by symbol. BTF is ignored. The caller creates the maps, and the references find them by name.

use super::BpfMap;
use crate::{Error, UnsupportedFeature};

/// One instruction in the kernel's encoding.
pub type BpfInstruction = u64;

/// Marks a load of 64 bits (two instructions) as the load of a map, by its descriptor: `BPF_PSEUDO_MAP_FD`
/// in the field `src_reg`.
pub(super) const MAP_DESCRIPTOR: u64 = 1 << 12;
const ELF_RELOCATIONS: u32 = 9;
const ELF_SYMBOLS: u32 = 2;

#[derive(Clone, Copy, Debug)]
pub struct BpfObject<'a> {
    bytes: &'a [u8],
}

#[derive(Clone, Copy)]
struct ObjectSection {
    name: usize,
    kind: u32,
    start: usize,
    len: usize,
    link: usize,
    info: usize,
}

impl<'a> BpfObject<'a> {
    /// Refers to an object in memory. Its content is checked only when a program is linked.
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self { bytes }
    }

    /// Links the program in the section of that name: replaces its references to maps by the descriptors of `maps`.
    pub fn link_program(&self, section: &str, maps: &[&BpfMap]) -> Result<Vec<BpfInstruction>, Error> {
        if self.bytes.is_empty() {
            return Err(UnsupportedFeature {
                feature: "a BPF program of packetrig",
                needs: "a build with clang".into(),
                found: "a build with PACKETRIG_SKIP_BPF".into(),
            }
            .into());
        }
        self.link_section(section, maps).ok_or_else(|| {
            Error::from_call(
                "link",
                format!("the program `{section}`"),
                std::io::Error::from(std::io::ErrorKind::InvalidData),
            )
        })
    }

    fn link_section(&self, name: &str, maps: &[&BpfMap]) -> Option<Vec<BpfInstruction>> {
        // ELF64 header: section headers at 40, size of a section header at 58, their number at 60, the index
        // of the section with names at 62.
        let sections = self.read_sections()?;
        let names = self.read_section(self.read_u16(62)?.into())?;
        let index = sections.iter().position(|s| self.read_text(names.start + s.name) == Some(name))?;
        let program = &sections[index];
        let code = self.bytes.get(program.start..program.start + program.len)?;
        let mut code: Vec<BpfInstruction> =
            code.chunks_exact(8).map(|c| u64::from_le_bytes(c.try_into().unwrap_or_default())).collect();
        for relocations in sections.iter().filter(|s| s.kind == ELF_RELOCATIONS && s.info == index) {
            let symbols = sections.get(relocations.link).filter(|s| s.kind == ELF_SYMBOLS)?;
            let strings = sections.get(symbols.link)?;
            for at in (relocations.start..relocations.start + relocations.len).step_by(16) {
                // Elf64_Rel: the offset in the section, and in the upper half of the next word the symbol. An
                // Elf64_Sym has 24 bytes and begins with its name.
                let place = self.read_u64(at)?;
                let symbol = symbols.start + 24 * usize::try_from(self.read_u64(at + 8)? >> 32).ok()?;
                let name = self.read_text(strings.start + self.read_u32(symbol)? as usize)?;
                let map = maps.iter().find(|map| map.name() == name)?;
                let descriptor = u64::from(map.descriptor());
                let load = code.get_mut(usize::try_from(place / 8).ok()?)?;
                // Opcode and target register stay. `src_reg` says that the number in the upper half is the descriptor of a map.
                *load = (*load & 0xffff_0fff) | MAP_DESCRIPTOR | descriptor << 32;
            }
        }
        Some(code)
    }

    fn read_sections(&self) -> Option<Vec<ObjectSection>> {
        (0..self.read_u16(60)?).map(|index| self.read_section(index.into())).collect()
    }

    fn read_section(&self, index: usize) -> Option<ObjectSection> {
        let at = usize::try_from(self.read_u64(40)?).ok()? + index * usize::from(self.read_u16(58)?);
        Some(ObjectSection {
            name: self.read_u32(at)? as usize,
            kind: self.read_u32(at + 4)?,
            start: usize::try_from(self.read_u64(at + 24)?).ok()?,
            len: usize::try_from(self.read_u64(at + 32)?).ok()?,
            link: self.read_u32(at + 40)? as usize,
            info: self.read_u32(at + 44)? as usize,
        })
    }

    fn read_text(&self, at: usize) -> Option<&'a str> {
        let rest = self.bytes.get(at..)?;
        std::str::from_utf8(&rest[..rest.iter().position(|b| *b == 0)?]).ok()
    }

    fn read_u16(&self, at: usize) -> Option<u16> {
        Some(u16::from_le_bytes(self.bytes.get(at..)?.first_chunk().copied()?))
    }

    fn read_u32(&self, at: usize) -> Option<u32> {
        Some(u32::from_le_bytes(self.bytes.get(at..)?.first_chunk().copied()?))
    }

    fn read_u64(&self, at: usize) -> Option<u64> {
        Some(u64::from_le_bytes(self.bytes.get(at..)?.first_chunk().copied()?))
    }
}
