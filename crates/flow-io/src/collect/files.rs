//! Reads files of IPFIX or SIM messages, one message after the other (RFC 5655).

use super::intake::{DecoderQueueItem, ListenerCounters, MessageBlock, add_to_counter};
use super::stream::split_messages;
use super::{CollectorState, Error};
use crossbeam_channel::Sender;
use packetrig_flow::collect::{MessageSource, MessageTransport};
use packetrig_units::clamp_to_u16;
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;

const FILE_BUFFER_BYTES: usize = 2 * 65_536;

pub(super) fn start_file_reader(
    path: &Path,
    number: usize,
    shared: &Arc<CollectorState>,
    counters: Arc<ListenerCounters>,
    queue: Sender<DecoderQueueItem>,
) -> Result<JoinHandle<()>, Error> {
    let file = File::open(path).map_err(|source| Error::File { path: path.to_owned(), source })?;
    let address = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
    // A file has no port, so its number takes the place of the port: files with the same observation domain are
    // different sources. All files from number 65,535 on are one source.
    let source = MessageSource { address, port: clamp_to_u16(number), transport: MessageTransport::File };
    let shared = Arc::clone(shared);
    std::thread::Builder::new()
        .name("collect-file".into())
        .spawn(move || read_and_count_file(file, source, &shared, &counters, &queue))
        .map_err(Error::Thread)
}

fn read_and_count_file(
    file: File,
    source: MessageSource,
    shared: &CollectorState,
    counters: &ListenerCounters,
    queue: &Sender<DecoderQueueItem>,
) {
    match read_messages(file, source, shared, counters, queue) {
        FileReadOutcome::Whole => {}
        FileReadOutcome::Cut => add_to_counter(&counters.broken, 1),
        FileReadOutcome::Stopped => counters.stopped.store(true, Ordering::Relaxed),
        FileReadOutcome::Failed => counters.failed.store(true, Ordering::Relaxed),
    }
    // The send fails only if the decoding thread has ended: then no session is left to close.
    drop(queue.send(DecoderQueueItem::Closed(source)));
}

/// Outcome of reading a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FileReadOutcome {
    /// The file ends with a whole message.
    Whole,
    /// The file ends within a message, or contains something that is not a message.
    Cut,
    /// Reading stopped before the end of the file, because the collector ends.
    Stopped,
    /// The file cannot be read any further, or the decoding thread has ended.
    Failed,
}

fn read_messages(
    mut file: File,
    source: MessageSource,
    shared: &CollectorState,
    counters: &ListenerCounters,
    queue: &Sender<DecoderQueueItem>,
) -> FileReadOutcome {
    let mut room = vec![0; FILE_BUFFER_BYTES];
    let mut filled = 0;
    while !shared.is_stopping() {
        match file.read(&mut room[filled..]) {
            Ok(0) if filled == 0 => return FileReadOutcome::Whole,
            // The remaining bytes are not a whole message.
            Ok(0) => return FileReadOutcome::Cut,
            Ok(length) => filled += length,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(_) => return FileReadOutcome::Failed,
        }
        let mut messages = MessageBlock::new();
        let used = split_messages(&room[..filled], |message| messages.push_message(source, message));
        add_to_counter(&counters.messages, messages.parts.len() as u64);
        add_to_counter(&counters.bytes, messages.bytes.len() as u64);
        if !messages.send_to_decoder(queue) {
            return FileReadOutcome::Failed;
        }
        let Some(used) = used else { return FileReadOutcome::Cut };
        // The start of the next message moves to the front. It always fits: a message has at most 65,535 bytes
        // (16-bit length in the header), and the buffer holds two of that size.
        room.copy_within(used..filled, 0);
        filled -= used;
    }
    FileReadOutcome::Stopped
}

#[cfg(test)]
mod tests {
    use super::*;
    use crossbeam_channel::bounded;
    use packetrig_flow::collect::ExporterList;
    use std::sync::atomic::AtomicBool;

    /// Returns the outcome of reading a file, and the number of its messages.
    fn read_of(file: File, is_over: bool) -> (FileReadOutcome, u64) {
        let shared = CollectorState {
            over: AtomicBool::new(is_over),
            allowed: ExporterList::default(),
            connections: 1,
            message_timeout_ns: 1,
            first_message_ns: 1,
        };
        let address = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
        let source = MessageSource { address, port: 0, transport: MessageTransport::File };
        let (queue, _taken) = bounded(9);
        let counters = ListenerCounters::default();
        let ended = read_messages(file, source, &shared, &counters, &queue);
        (ended, counters.messages.load(Ordering::Relaxed))
    }

    #[test]
    fn file_end_tells_whole_cut_stopped_and_failed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a");
        let message = [&[0, 10, 0, 20][..], &[0; 16]].concat();
        let stored = |bytes: &[u8]| {
            std::fs::write(&path, bytes).unwrap();
            File::open(&path).unwrap()
        };
        let two = message.repeat(2);
        assert_eq!(read_of(stored(&two), false), (FileReadOutcome::Whole, 2));
        assert_eq!(read_of(stored(&[]), false), (FileReadOutcome::Whole, 0));
        assert_eq!(read_of(stored(&two[..30]), false), (FileReadOutcome::Cut, 1));
        let foreign = [&message[..], b"what is this?"].concat();
        assert_eq!(read_of(stored(&foreign), false), (FileReadOutcome::Cut, 1), "messages before it count");
        assert_eq!(read_of(stored(&two), true), (FileReadOutcome::Stopped, 0));
        assert_eq!(read_of(File::open(directory.path()).unwrap(), false), (FileReadOutcome::Failed, 0));
    }
}
