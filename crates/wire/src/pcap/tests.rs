use super::*;
use pcap_parser::traits::PcapReaderIterator;
use pcap_parser::{Block, LegacyPcapReader, PcapBlockOwned, PcapNGReader};
use proptest::prelude::*;

/// A record with its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
struct KeptRecord {
    bytes: Vec<u8>,
    full_len: u32,
    at_ns: Option<u64>,
    link_type: u16,
}

/// Reads all of `file`, giving the decoder `window` bytes at first and more only when it asks. Returns the records, and
/// whether the file was whole, cut or damaged.
fn read(file: &[u8], window: usize) -> (Vec<KeptRecord>, Result<bool, CaptureDamage>) {
    let (mut decoder, mut records) = (CaptureDecoder::new(), Vec::new());
    let (mut at, mut want) = (0, window);
    while at < file.len() {
        let end = file.len().min(at + want);
        match decoder.next_step(&file[at..end]) {
            Err(damage) => return (records, Err(damage)),
            Ok(DecodedElement::More(more)) => {
                assert!(more > end - at && more <= MAX_DECODER_INPUT_BYTES, "{more} of {}", end - at);
                if end == file.len() {
                    return (records, Ok(false));
                }
                want = more;
            }
            Ok(DecodedElement::Skip(bytes)) => {
                assert!(bytes > 0);
                at = usize::try_from(bytes).map_or(file.len(), |bytes| at.saturating_add(bytes));
                want = window;
            }
            Ok(DecodedElement::Record { record, used }) => {
                assert!(used > 0 && used <= end - at);
                let CaptureRecord { full_len, at_ns, link_type, .. } = record;
                records.push(KeptRecord { bytes: record.bytes.to_vec(), full_len, at_ns, link_type });
                at += used;
                want = window;
            }
        }
    }
    (records, Ok(at == file.len()))
}

/// Writes numbers in one byte order.
#[derive(Clone, Copy)]
struct NumberWriter(bool);

impl NumberWriter {
    fn u16(self, value: u16) -> [u8; 2] {
        if self.0 { value.to_be_bytes() } else { value.to_le_bytes() }
    }
    fn u32(self, value: u32) -> [u8; 4] {
        if self.0 { value.to_be_bytes() } else { value.to_le_bytes() }
    }
    fn words(self, words: &[u32]) -> Vec<u8> {
        words.iter().flat_map(|word| self.u32(*word)).collect()
    }

    fn classic(self, nanoseconds: bool, packets: &[(u64, Vec<u8>, u32)]) -> Vec<u8> {
        let magic = if nanoseconds { 0xa1b2_3c4d } else { 0xa1b2_c3d4 };
        let mut out = self.words(&[magic]);
        out.extend(self.u16(2));
        out.extend(self.u16(4));
        out.extend(self.words(&[0, 0, 65_535, 1]));
        for (at, bytes, more) in packets {
            let fraction = at % 1_000_000_000 / if nanoseconds { 1 } else { 1000 };
            let len = u32::try_from(bytes.len()).unwrap();
            let seconds = u32::try_from(at / 1_000_000_000).unwrap();
            out.extend(self.words(&[seconds, u32::try_from(fraction).unwrap(), len, len + more]));
            out.extend(bytes);
        }
        out
    }

    fn block(self, kind: u32, body: &[u8]) -> Vec<u8> {
        let padded = body.len().next_multiple_of(4);
        let total = u32::try_from(padded + 12).unwrap();
        let mut out = self.words(&[kind, total]);
        out.extend(body);
        out.resize(8 + padded, 0);
        out.extend(self.u32(total));
        out
    }

    fn section(self) -> Vec<u8> {
        let mut body = self.words(&[0x1a2b_3c4d]);
        body.extend(self.u16(1));
        body.extend(self.u16(0));
        body.extend([0xff; 8]);
        self.block(0x0a0d_0d0a, &body)
    }

    fn interface(self, link_type: u16, snap_len: u32, options: &[(u16, &[u8])]) -> Vec<u8> {
        let mut body = self.u16(link_type).to_vec();
        body.extend([0, 0]);
        body.extend(self.u32(snap_len));
        for (code, value) in options {
            body.extend(self.u16(*code));
            body.extend(self.u16(u16::try_from(value.len()).unwrap()));
            body.extend(*value);
            body.resize(body.len().next_multiple_of(4), 0);
        }
        self.block(1, &body)
    }

    fn enhanced(self, interface: u32, units: u64, bytes: &[u8], full_len: u32) -> Vec<u8> {
        let (high, low) = (u32::try_from(units >> 32).unwrap(), u32::try_from(units & 0xffff_ffff).unwrap());
        let mut body = self.words(&[interface, high, low, u32::try_from(bytes.len()).unwrap(), full_len]);
        body.extend(bytes);
        self.block(6, &body)
    }
}

fn packets() -> impl Strategy<Value = Vec<(u64, Vec<u8>, u32)>> {
    let packet = (0u64..4_000_000_000_000_000_000, prop::collection::vec(any::<u8>(), 0..100), 0u32..2000);
    prop::collection::vec(packet, 0..20)
}

#[test]
fn interfaces_have_their_own_units_and_offsets() {
    for pen in [NumberWriter(false), NumberWriter(true)] {
        let mut file = pen.section();
        let offset = if pen.0 { 3i64.to_be_bytes() } else { 3i64.to_le_bytes() };
        file.extend(pen.interface(1, 0, &[(2, b"eth0"), (9, &[9]), (0, &[])]));
        file.extend(pen.interface(1, 0, &[]));
        file.extend(pen.interface(101, 0, &[(9, &[0x8a]), (14, &offset)]));
        file.extend(pen.block(0xbad, &[1; 33]));
        file.extend(pen.enhanced(0, 1_700_000_000_123_456_789, b"one", 3));
        file.extend(pen.enhanced(1, 1_700_000_000_123_456, b"two", 1500));
        file.extend(pen.enhanced(2, 1536, b"three", 5));
        file.extend(pen.block(3, &[&pen.u32(4)[..], b"four"].concat()));
        for window in [1, 7, 10_000] {
            let (records, end) = read(&file, window);
            assert_eq!(end, Ok(true));
            let times: Vec<_> = records.iter().map(|record| record.at_ns).collect();
            let (ns, us) = (1_700_000_000_123_456_789, 1_700_000_000_123_456_000);
            assert_eq!(times, [Some(ns), Some(us), Some(4_500_000_000), None]);
            assert_eq!(records.iter().map(|r| r.link_type).collect::<Vec<_>>(), [1, 1, 101, 1]);
            assert_eq!(records[3].bytes, b"four");
            assert_eq!((records[1].full_len, records[1].bytes.as_slice()), (1500, &b"two"[..]));
        }
    }
}

#[test]
fn pcapng_section_resets_byte_order_and_interfaces() {
    let mut file = NumberWriter(false).section();
    file.extend(NumberWriter(false).interface(1, 0, &[]));
    file.extend(NumberWriter(false).enhanced(0, 5, b"a", 1));
    file.extend(NumberWriter(true).section());
    file.extend(NumberWriter(true).interface(1, 2, &[]));
    file.extend(NumberWriter(true).block(3, &[&NumberWriter(true).u32(4)[..], b"bb"].concat()));
    let (records, end) = read(&file, 100);
    assert_eq!((records.len(), end), (2, Ok(true)));
    assert_eq!((records[1].bytes.as_slice(), records[1].full_len), (&b"bb"[..], 4));
    file.extend(NumberWriter(true).enhanced(1, 5, b"a", 1));
    assert_eq!(read(&file, 100).1, Err(CaptureDamage::Interface(1)));
}

#[test]
fn file_declaration_of_fcs_is_read() {
    let fcs = |file: &[u8]| {
        let mut decoder = CaptureDecoder::new();
        let mut at = 0;
        loop {
            match decoder.next_step(&file[at..]).unwrap() {
                DecodedElement::Record { record, .. } => return record.has_fcs,
                DecodedElement::Skip(bytes) => at += usize::try_from(bytes).unwrap(),
                DecodedElement::More(_) => panic!("no record"),
            }
        }
    };
    let mut file = NumberWriter(false).classic(true, &[(1, vec![1; 60], 0)]);
    assert_eq!(fcs(&file), None);
    file[20..24].copy_from_slice(&0x2400_0001u32.to_le_bytes());
    assert_eq!(fcs(&file), Some(true));
    let mut file = NumberWriter(false).section();
    file.extend(NumberWriter(false).interface(1, 0, &[(13, &[0])]));
    file.extend(NumberWriter(false).enhanced(0, 5, b"a", 1));
    assert_eq!(fcs(&file), Some(false));
}

#[test]
fn other_files_are_refused() {
    assert_eq!(read(b"PK\x03\x04 and so on, and so on", 100).1, Err(CaptureDamage::Magic));
    assert_eq!(
        read(b"\xa1\xb2\xc3\xd4\0\x01\0\0aaaaaaaaaaaaaaaaaaaa", 100).1,
        Err(CaptureDamage::Version(1))
    );
    assert_eq!(read(b"abc", 100).1, Ok(false));
}

proptest! {
    #[test]
    fn any_bytes_are_fine(bytes in prop::collection::vec(any::<u8>(), 0..300), window in 1usize..64, start in 0usize..4) {
        let mut file = match start {
            0 => Vec::new(),
            1 => NumberWriter(false).classic(true, &[]),
            2 => [NumberWriter(true).section(), NumberWriter(true).interface(1, 0, &[])].concat(),
            _ => NumberWriter(false).section(),
        };
        file.extend(bytes);
        drop(read(&file, window));
    }

    #[test]
    fn a_damaged_file_is_read_to_its_end(packets in packets(), at: prop::sample::Index, value: u8, window in 1usize..64) {
        let mut file = [NumberWriter(true).section(), NumberWriter(true).interface(1, 0, &[])].concat();
        file.extend(packets.iter().flat_map(|(ns, bytes, more)| NumberWriter(true).enhanced(0, *ns, bytes, *more)));
        let at = at.index(file.len());
        file[at] = value;
        drop(read(&file, window));
    }

    #[test]
    fn classic_files_read_as_the_other_reader_does(packets in packets(), big: bool, nanoseconds: bool, window in 1usize..200) {
        let file = NumberWriter(big).classic(nanoseconds, &packets);
        let (ours, end) = read(&file, window);
        prop_assert_eq!(end, Ok(true));
        prop_assert_eq!(ours.len(), packets.len());
        let mut reader = LegacyPcapReader::new(65_536, &file[..]).unwrap();
        let mut records = ours.iter().zip(&packets);
        while let Ok((used, block)) = reader.next() {
            if let PcapBlockOwned::Legacy(theirs) = block {
                let (ours, (at, ..)) = records.next().unwrap();
                prop_assert_eq!((&ours.bytes[..], ours.full_len), (theirs.data, theirs.origlen));
                let unit = if nanoseconds { 1 } else { 1000 };
                let theirs = u64::from(theirs.ts_sec) * 1_000_000_000 + u64::from(theirs.ts_usec) * unit;
                prop_assert_eq!((ours.at_ns, at / unit), (Some(theirs), theirs / unit));
            }
            reader.consume(used);
        }
        prop_assert!(records.next().is_none());
    }

    #[test]
    fn blocks_read_as_the_other_reader_does(packets in packets(), big: bool, window in 1usize..200) {
        let pen = NumberWriter(big);
        let mut file = [pen.section(), pen.interface(1, 0, &[(9, &[9])])].concat();
        for (at, bytes, more) in &packets {
            file.extend(pen.enhanced(0, *at, bytes, u32::try_from(bytes.len()).unwrap() + more));
            file.extend(pen.block(0x4242, bytes));
        }
        let (ours, end) = read(&file, window);
        prop_assert_eq!(end, Ok(true));
        let mut reader = PcapNGReader::new(65_536, &file[..]).unwrap();
        let mut records = ours.iter();
        while let Ok((used, block)) = reader.next() {
            if let PcapBlockOwned::NG(Block::EnhancedPacket(theirs)) = block {
                let ours = records.next().unwrap();
                let at = u64::from(theirs.ts_high) << 32 | u64::from(theirs.ts_low);
                prop_assert_eq!((ours.at_ns, ours.full_len), (Some(at), theirs.origlen));
                prop_assert_eq!(&ours.bytes[..], &theirs.data[..theirs.caplen as usize]);
            }
            reader.consume(used);
        }
        prop_assert!(records.next().is_none());
    }

    #[test]
    fn a_cut_file_gives_everything_before_the_cut(packets in packets(), cut: prop::sample::Index) {
        let file = NumberWriter(false).classic(true, &packets);
        let (all, _) = read(&file, 64);
        let (some, end) = read(&file[..cut.index(file.len())], 64);
        prop_assert!(end.is_ok());
        prop_assert_eq!(&all[..some.len()], &some[..]);
    }
}
