//! Files of messages (RFC 5655): IPFIX or SIM, one message behind the other.

use super::intake::{Counters, Item, Messages, add};
use super::stream::cut;
use super::{Error, Shared};
use crossbeam_channel::Sender;
use packetrig_flow::collect::{Source, Transport};
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;

const ROOM: usize = 2 * 65_536;

pub(super) fn start(
    path: &Path,
    number: usize,
    shared: &Arc<Shared>,
    counters: Arc<Counters>,
    queue: Sender<Item>,
) -> Result<JoinHandle<()>, Error> {
    let file = File::open(path).map_err(|source| Error::File { path: path.to_owned(), source })?;
    let address = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
    let source =
        Source { address, port: u16::try_from(number).unwrap_or(u16::MAX), transport: Transport::File };
    let shared = Arc::clone(shared);
    let work = move || {
        match read(file, source, &shared, &counters, &queue) {
            Ended::Whole => {}
            Ended::Cut => add(&counters.broken, 1),
            Ended::Stopped => counters.stopped.store(true, Ordering::Relaxed),
            Ended::Failed => counters.failed.store(true, Ordering::Relaxed),
        }
        // Nobody may be there any more to hear of it.
        queue.send(Item::Closed(source)).unwrap_or(());
    };
    std::thread::Builder::new().name("collect-file".into()).spawn(work).map_err(Error::Thread)
}

/// How reading came to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ended {
    /// Where the file ends, and a message with it.
    Whole,
    /// Within a message, or at what is none.
    Cut,
    /// Before the end of the file, because the collector is to end.
    Stopped,
    /// It cannot be read on, or nobody takes what is read.
    Failed,
}

fn read(mut file: File, source: Source, shared: &Shared, counters: &Counters, queue: &Sender<Item>) -> Ended {
    let mut room = vec![0; ROOM];
    let mut filled = 0;
    while !shared.is_over() {
        match file.read(&mut room[filled..]) {
            Ok(0) if filled == 0 => return Ended::Whole,
            Ok(0) => return Ended::Cut,
            Ok(length) => filled += length,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(_) => return Ended::Failed,
        }
        let mut messages = Messages::new();
        let used = cut(&room[..filled], |message| messages.push(source, message));
        add(&counters.messages, messages.parts.len() as u64);
        add(&counters.bytes, messages.bytes.len() as u64);
        if !messages.send(queue) {
            return Ended::Failed;
        }
        let Some(used) = used else { return Ended::Cut };
        room.copy_within(used..filled, 0);
        filled -= used;
    }
    Ended::Stopped
}

#[cfg(test)]
mod tests {
    use super::*;
    use crossbeam_channel::bounded;
    use packetrig_flow::collect::ExporterList;
    use std::sync::atomic::AtomicBool;

    /// How reading ends, and how many messages were there.
    fn read_of(file: File, is_over: bool) -> (Ended, u64) {
        let shared = Shared {
            over: AtomicBool::new(is_over),
            allowed: ExporterList::default(),
            connections: 1,
            patience_ns: 1,
            first_message_ns: 1,
        };
        let address = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
        let source = Source { address, port: 0, transport: Transport::File };
        let (queue, _taken) = bounded(9);
        let counters = Counters::default();
        let ended = read(file, source, &shared, &counters, &queue);
        (ended, counters.messages.load(Ordering::Relaxed))
    }

    #[test]
    fn a_file_that_is_whole_one_that_is_cut_a_stop_and_a_failure_are_told_apart() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a");
        let message = [&[0, 10, 0, 20][..], &[0; 16]].concat();
        let stored = |bytes: &[u8]| {
            std::fs::write(&path, bytes).unwrap();
            File::open(&path).unwrap()
        };
        let two = message.repeat(2);
        assert_eq!(read_of(stored(&two), false), (Ended::Whole, 2));
        assert_eq!(read_of(stored(&[]), false), (Ended::Whole, 0));
        assert_eq!(read_of(stored(&two[..30]), false), (Ended::Cut, 1));
        let foreign = [&message[..], b"what is this?"].concat();
        assert_eq!(read_of(stored(&foreign), false), (Ended::Cut, 1), "messages before it count");
        assert_eq!(read_of(stored(&two), true), (Ended::Stopped, 0));
        assert_eq!(read_of(File::open(directory.path()).unwrap(), false), (Ended::Failed, 0));
    }
}
