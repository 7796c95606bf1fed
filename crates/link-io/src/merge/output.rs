//! The merged file: pcapng, with one interface for each combination of captures that have the same packets.
//!
//! An interface's name and description list the captures that have its packets. Wireshark shows the interface with each
//! packet, and filters by it (`frame.interface_name`).
//!
//! Invariant: the file gets its final name only when it is complete and on the disk.

use super::{Error, MergeReport, file_error};
use packetrig_link::merge::{CaptureSet, MergedPacket};
use packetrig_sys::private_files;
use packetrig_units::clamp_to_u32;
use packetrig_wire::pcap::block::{
    low_32_bits, write_block, write_block_option, write_padded_bytes, write_words,
};
use packetrig_wire::pcap::merged::MergeComment;
use std::collections::HashMap;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

/// Block types and options of pcapng.
const SECTION_HEADER_BLOCK: u32 = 0x0a0d_0d0a;
const INTERFACE_BLOCK: u32 = 1;
const PACKET_BLOCK: u32 = 6;
const END_OPTION: u16 = 0;
const COMMENT_OPTION: u16 = 1;
const APPLICATION_OPTION: u16 = 4;
const NAME_OPTION: u16 = 2;
const DESCRIPTION_OPTION: u16 = 3;
const RESOLUTION_OPTION: u16 = 9;
/// Time resolution of 10^-9 s.
const NANOSECOND_RESOLUTION: u8 = 9;

/// Key of an interface: a set of captures and a link type.
type InterfaceKey = (CaptureSet, u16);

pub(super) struct MergedFile {
    path: PathBuf,
    /// The file's name until it is complete.
    partial: PathBuf,
    out: BufWriter<File>,
    names: Vec<String>,
    interfaces: HashMap<InterfaceKey, u32>,
    /// The pcapng block that is being built.
    bytes: Vec<u8>,
}

impl MergedFile {
    pub(super) fn create_partial_file(path: &Path, report: &MergeReport) -> Result<Self, Error> {
        let mut name = path.as_os_str().to_owned();
        // The partial file is in the same directory, because a rename works only within one file system.
        name.push(".part");
        let partial = PathBuf::from(name);
        let out =
            BufWriter::new(private_files::create_file(&partial).map_err(file_error("write", &partial))?);
        let names = report.captures.iter().map(|capture| capture.name.clone()).collect();
        let mut file = Self {
            path: path.to_owned(),
            partial,
            out,
            names,
            interfaces: HashMap::new(),
            bytes: Vec::new(),
        };
        write_block(&mut file.bytes, SECTION_HEADER_BLOCK, |body| {
            // The byte order, version 1.0, and an unknown length of the section (-1).
            write_words(body, &[0x1a2b_3c4d, 1, u32::MAX, u32::MAX]);
            write_block_option(
                body,
                APPLICATION_OPTION,
                concat!("packetrig ", env!("CARGO_PKG_VERSION")).as_bytes(),
            );
            write_block_option(body, COMMENT_OPTION, describe_sources(report).as_bytes());
            write_block_option(body, END_OPTION, &[]);
        });
        file.flush_block()?;
        Ok(file)
    }

    pub(super) fn write_packet(&mut self, packet: &MergedPacket) -> Result<(), Error> {
        let interface = self.ensure_interface(packet)?;
        let kept = clamp_to_u32(packet.packet.bytes.len());
        write_block(&mut self.bytes, PACKET_BLOCK, |body| {
            write_words(
                body,
                &[
                    interface,
                    // The time has 64 bits in two words, the upper one first.
                    low_32_bits(packet.at_ns >> 32),
                    low_32_bits(packet.at_ns),
                    kept,
                    packet.packet.full_len,
                ],
            );
            write_padded_bytes(body, &packet.packet.bytes);
            if let Some(segment_bytes) = packet.packet.merged {
                write_block_option(body, COMMENT_OPTION, MergeComment::new(segment_bytes).as_bytes());
                write_block_option(body, END_OPTION, &[]);
            }
        });
        self.flush_block()
    }

    /// Returns the number of the packet's interface. Writes the interface's description before its first packet.
    fn ensure_interface(&mut self, packet: &MergedPacket) -> Result<u32, Error> {
        let key = (packet.captures, packet.packet.link_type);
        if let Some(number) = self.interfaces.get(&key) {
            return Ok(*number);
        }
        let number = clamp_to_u32(self.interfaces.len());
        self.interfaces.insert(key, number);
        let names: Vec<String> = self
            .names
            .iter()
            .enumerate()
            .filter(|(index, _)| packet.captures.has_capture(*index))
            .map(|(_, name)| name.clone())
            .collect();
        let is_all = names.len() == self.names.len();
        let description =
            if is_all { "in all captures".into() } else { format!("only in {}", names.join(", ")) };
        write_block(&mut self.bytes, INTERFACE_BLOCK, |body| {
            // A snap length of 0 means "no limit" in pcapng: the captures may have different snap lengths.
            write_words(body, &[packet.packet.link_type.into(), 0]);
            write_block_option(body, NAME_OPTION, names.join("+").as_bytes());
            write_block_option(body, DESCRIPTION_OPTION, description.as_bytes());
            write_block_option(body, RESOLUTION_OPTION, &[NANOSECOND_RESOLUTION]);
            write_block_option(body, END_OPTION, &[]);
        });
        self.flush_block()?;
        Ok(number)
    }

    /// Writes the block in `bytes` to the file.
    fn flush_block(&mut self) -> Result<(), Error> {
        let written = self.out.write_all(&self.bytes);
        self.bytes.clear();
        written.map_err(file_error("write", &self.partial))
    }

    /// Syncs the file and gives it its final name.
    pub(super) fn finish_file(mut self) -> Result<(), Error> {
        // The file is synced before the rename: a power cut must not leave the final name on half a file.
        let written = self.out.flush().and_then(|()| self.out.get_ref().sync_all());
        written.map_err(file_error("write", &self.partial))?;
        std::fs::rename(&self.partial, &self.path).map_err(file_error("write", &self.path))
    }
}

/// Removes the partial file if the merge ended with an error.
impl Drop for MergedFile {
    fn drop(&mut self) {
        // After `finish_file` this file does not exist.
        drop(std::fs::remove_file(&self.partial));
    }
}

/// Describes the captures and their clock offsets, for the file's comment.
fn describe_sources(report: &MergeReport) -> String {
    let clocks = report.captures.iter().map(|capture| match &capture.clock {
        None => format!("{} (its clock is used)", capture.name),
        Some(clock) => format!("{} ({:+} ns)", capture.name, clock.ahead_ns),
    });
    format!("merged from {}", clocks.collect::<Vec<_>>().join(", "))
}
