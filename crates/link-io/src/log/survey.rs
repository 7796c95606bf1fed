//! Reads a file of a log and counts its frames: to check an index, and to repair the file of a killed log.

use super::{Error, file_error};
use packetrig_engine::capture::numbers::{TapNumbers, TrailerCounter};
use packetrig_wire::checksum::crc32;
use packetrig_wire::pcap::{CaptureDecoder, DecodedElement, MAX_DECODER_INPUT_BYTES};
use packetrig_wire::trailer;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// Length of an FCS in bytes.
const FCS: u64 = 4;

/// Facts about a log file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogFileSurvey {
    pub frames: u64,
    /// Bytes of the frames on the wire, FCS included.
    pub frame_bytes: u64,
    /// Arrival times of the first and the last frame, nanoseconds since 1970.
    pub arrivals_ns: Option<(u64, u64)>,
    /// State of the tap's trailer numbers after this file, continued from earlier files.
    pub numbers: TapNumbers,
    /// Bytes up to the end of the last complete record, before compression.
    pub whole: u64,
    /// True if there are bytes after the last complete record.
    pub is_cut: bool,
    /// CRC-32 of all bytes of the file, as they are on the disk.
    pub crc32: u32,
}

/// Reads from `input`, and computes the checksum of all bytes that were read.
struct ChecksumReader<R> {
    input: R,
    crc32: u32,
}

impl<R: Read> Read for ChecksumReader<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let read = self.input.read(into)?;
        self.crc32 = crc32(self.crc32, &into[..read]);
        Ok(read)
    }
}

/// Computes the CRC-32 of a file's bytes.
pub(super) fn compute_file_crc32(path: &Path) -> Result<u32, Error> {
    let input = File::open(path).map_err(file_error("read", path))?;
    let mut reader = ChecksumReader { input, crc32: 0 };
    io::copy(&mut reader, &mut io::sink()).map_err(file_error("read", path))?;
    Ok(reader.crc32)
}

/// Surveys a file, compressed or not. `known` is the state of the trailer numbers before this file.
pub fn survey_file(path: &Path, known: TapNumbers) -> Result<LogFileSurvey, Error> {
    let file = File::open(path).map_err(file_error("read", path))?;
    let mut file = ChecksumReader { input: file, crc32: 0 };
    let is_compressed = path.extension().is_some_and(|extension| extension == "zst");
    let mut reading = LogFileSurveyor {
        found: LogFileSurvey::default(),
        counter: TrailerCounter::new(known),
        decoder: CaptureDecoder::new(),
    };
    let read = if is_compressed {
        zstd::Decoder::new(&mut file).and_then(|mut input| reading.read_capture_input(&mut input))
    } else {
        reading.read_capture_input(&mut file)
    };
    match read {
        Ok(()) => {}
        // A partial compressed block at the end is like a partial record: the file is cut.
        Err(error) if is_compressed && error.kind() != io::ErrorKind::InvalidData => {
            reading.found.is_cut = true;
        }
        Err(error) => return Err(Error::Damaged { path: path.to_owned(), why: error.to_string() }),
    }
    // The checksum covers all bytes, including those that the decoder did not read.
    io::copy(&mut file, &mut io::sink()).map_err(file_error("read", path))?;
    let numbers = reading.counter.tap_numbers();
    Ok(LogFileSurvey { numbers, crc32: file.crc32, ..reading.found })
}

struct LogFileSurveyor {
    found: LogFileSurvey,
    counter: TrailerCounter,
    decoder: CaptureDecoder,
}

impl LogFileSurveyor {
    fn read_capture_input(&mut self, input: &mut dyn Read) -> io::Result<()> {
        // The buffer has twice the length of the longest record, so after the used bytes have been moved out,
        // a whole record always fits. A read that returns nothing therefore means the end of the file and
        // never a full buffer.
        let mut buffer = vec![0; 2 * MAX_DECODER_INPUT_BYTES];
        let mut from = 0;
        let mut to = 0;
        loop {
            let used = self.decode_next_element(&buffer[from..to])?;
            if let Some(used) = used {
                from += used;
                continue;
            }
            buffer.copy_within(from..to, 0);
            to -= from;
            from = 0;
            let more = input.read(&mut buffer[to..])?;
            if more == 0 {
                self.found.is_cut = to > 0;
                return Ok(());
            }
            to += more;
        }
    }

    /// Decodes the front of `bytes`; returns the number of bytes used, or `None` if more are needed first.
    fn decode_next_element(&mut self, bytes: &[u8]) -> io::Result<Option<usize>> {
        let step = self
            .decoder
            .next_step(bytes)
            .map_err(|damage| io::Error::new(io::ErrorKind::InvalidData, damage))?;
        let used = match step {
            DecodedElement::More(_) => return Ok(None),
            DecodedElement::Skip(bytes_used) => match usize::try_from(bytes_used) {
                Ok(used) if used <= bytes.len() => used,
                // In a log's file, blocks without frames are short, so a longer one is cut off or damaged.
                _ => return Ok(None),
            },
            DecodedElement::Record { record, used } => {
                self.found.frames += 1;
                // Records are without FCS, and the index counts frames as they are on the wire.
                self.found.frame_bytes += u64::from(record.full_len) + FCS;
                if let Some(at_ns) = record.at_ns {
                    let first = self.found.arrivals_ns.map_or(at_ns, |(first, _)| first);
                    self.found.arrivals_ns = Some((first, at_ns));
                }
                // The trailer is at the end of a frame. A frame that was cut by a snap length has none,
                // whatever its last bytes are.
                if let Some((_, trailer)) = trailer::split_trailer(record.bytes).filter(|_| !record.is_cut())
                {
                    self.counter.count_trailer(&trailer);
                }
                used
            }
        };
        self.found.whole += used as u64;
        Ok(Some(used))
    }
}
