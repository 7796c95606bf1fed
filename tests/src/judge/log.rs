//! What the forwarder did to each frame, from its log.

use std::collections::BTreeMap;

/// What it says of a frame that left through a port.
const LEAVING: [&str; 5] = ["sent", "copy", "flood", "reflect", "misdeliver"];
/// The port where frames of `port0` should leave.
const RIGHT_EXIT: &str = "port1";

/// A frame that the forwarder received.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JudgedFrame {
    /// When the forwarder read it, on the monotonic clock.
    pub received_ns: u64,
    /// When each copy left at the right port.
    pub left_ns: Vec<u64>,
    /// Copies that left at other ports.
    pub astray: u64,
    /// Copies that left at the right port after a rule had changed a byte of the payload.
    pub corrupted: u64,
    /// Copies that left at the right port after a rule had changed the address.
    pub rewritten: u64,
    /// Rules changed it so far.
    is_corrupt: bool,
    is_other_address: bool,
    /// The interface refused it.
    pub is_refused: bool,
}

/// The frames with one source port that came from `port0`, in the order of their arrival.
#[derive(Clone, Debug, Default)]
pub struct JudgedStream(pub Vec<JudgedFrame>);

/// A whole log.
#[derive(Clone, Debug, Default)]
pub struct JudgeLog {
    streams: BTreeMap<i32, JudgedStream>,
    /// Why the log may not be the whole truth.
    pub problems: Vec<String>,
}

impl JudgeLog {
    pub(super) fn parse(text: &str) -> Self {
        let mut log = Self::default();
        let mut has_end = false;
        for line in text.lines().skip(1) {
            if let Some(footer) = line.strip_prefix("# ") {
                has_end |= footer.starts_with("totals ");
                log.problems.extend(problem_in(footer));
            } else {
                log.add(line);
            }
        }
        if !has_end {
            log.problems.push("the log has no end".to_owned());
        }
        log
    }

    /// The stream whose source port is `key`; an empty one if none of its frames came.
    pub fn stream(&self, key: u16) -> JudgedStream {
        self.streams.get(&i32::from(key)).cloned().unwrap_or_default()
    }

    /// Frames without a source port.
    pub fn without_key(&self) -> JudgedStream {
        self.streams.get(&-1).cloned().unwrap_or_default()
    }

    /// How long each frame of every stream was in the forwarder, of those that left once.
    pub fn residences_ns(&self) -> Vec<u64> {
        let frames = self.streams.values().flat_map(|stream| &stream.0);
        let residences = frames.filter_map(|frame| match frame.left_ns[..] {
            [left_ns] => Some(left_ns.saturating_sub(frame.received_ns)),
            _ => None,
        });
        residences.collect()
    }

    fn add(&mut self, line: &str) {
        let fields: Vec<&str> = line.split('\t').collect();
        let [port, key, number, _, received_ns, fates] = fields[..] else {
            self.problems.push(format!("no line of a frame: {line}"));
            return;
        };
        if port != "port0" {
            return;
        }
        let key = key.parse().expect("a key is a number");
        let frames = &mut self.streams.entry(key).or_default().0;
        if number != frames.len().to_string() {
            self.problems.push(format!("key {key}: number {number} where {} was due", frames.len()));
        }
        let received_ns = received_ns.parse().expect("a time is a number");
        let mut frame = JudgedFrame { received_ns, ..JudgedFrame::default() };
        fates.split(',').for_each(|fate| frame.add_fate(fate));
        frames.push(frame);
    }
}

/// A count in the footer that should be zero.
fn problem_in(footer: &str) -> Option<String> {
    let (name, rest) = footer.split_once(' ')?;
    let is_wrong = match name {
        "kernel_drops" | "unread" => !rest.ends_with(" 0"),
        "offload" => !rest.ends_with("partial_checksum=0 merged=0"),
        "totals" => !rest.contains(" unsent=0 "),
        _ => false,
    };
    is_wrong.then(|| footer.to_owned())
}

impl JudgedFrame {
    fn add_fate(&mut self, fate: &str) {
        let mut words = fate.split(':');
        let (name, port, time) = (words.next().unwrap_or_default(), words.next(), words.next());
        match name {
            // Fates stand in the order of the rules: what leaves later is changed.
            "corrupt" => self.is_corrupt = true,
            "rewrite_mac" => self.is_other_address = true,
            "send_failed" => self.is_refused = true,
            _ if LEAVING.contains(&name) && port == Some(RIGHT_EXIT) => {
                self.left_ns.push(time.and_then(|time| time.parse().ok()).expect("a departure has a time"));
                self.corrupted += u64::from(self.is_corrupt);
                self.rewritten += u64::from(self.is_other_address);
            }
            _ if LEAVING.contains(&name) => self.astray += 1,
            _ => {}
        }
    }

    fn is_delivered(&self) -> bool {
        !self.left_ns.is_empty()
    }
}

impl JudgedStream {
    fn count(&self, which: impl Fn(&JudgedFrame) -> bool) -> u64 {
        self.0.iter().filter(|frame| which(frame)).count() as u64
    }

    /// Frames that the forwarder read.
    pub fn received(&self) -> u64 {
        self.0.len() as u64
    }

    /// Different frames that left at the right port.
    pub fn delivered(&self) -> u64 {
        self.count(JudgedFrame::is_delivered)
    }

    /// Frames that left at the right port, copies included.
    pub fn left(&self) -> u64 {
        self.0.iter().map(|frame| frame.left_ns.len() as u64).sum()
    }

    /// Frames that left at the right port and were changed in their payload before.
    pub fn corrupted(&self) -> u64 {
        self.0.iter().map(|frame| frame.corrupted).sum()
    }

    /// Frames that left at the right port and got another address before.
    pub fn rewritten(&self) -> u64 {
        self.0.iter().map(|frame| frame.rewritten).sum()
    }

    /// Frames that left at other ports.
    pub fn astray(&self) -> u64 {
        self.0.iter().map(|frame| frame.astray).sum()
    }

    /// Frames that a rule kept from the right port: the device's loss.
    pub fn lost_by_device(&self) -> u64 {
        self.count(|frame| !frame.is_delivered() && !frame.is_refused)
    }

    /// Frames that the interface refused: the port had no carrier.
    pub fn refused(&self) -> u64 {
        self.count(|frame| !frame.is_delivered() && frame.is_refused)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "in_if\tkey\tnumber\thash\treceived_ns\tfates\n";
    const FRAMES: &str = "port0\t7\t0\tab\t100\tsent:port1:110\n\
        port0\t7\t1\tab\t200\tdrop\n\
        port0\t7\t2\tab\t300\tmisdeliver:port2:310\n\
        port0\t7\t3\tab\t400\tcopy:port1:410,corrupt:9,sent:port1:420\n\
        port1\t7\t0\tab\t450\tsent:port0:460\n\
        port0\t-1\t0\tab\t500\tarp_drop\n\
        port0\t7\t4\tab\t600\tsend_failed:port1:100\n";
    const END: &str = "# kernel_drops port0 0\n# totals received=7 unsent=0 drop=1\n";

    #[test]
    fn judge_log_counts_first_port_frames_by_fate() {
        let log = JudgeLog::parse(&format!("{HEAD}{FRAMES}{END}"));
        assert_eq!(log.problems, Vec::<String>::new());
        let stream = log.stream(7);
        assert_eq!((stream.received(), stream.delivered(), stream.left()), (5, 2, 3));
        assert_eq!((stream.lost_by_device(), stream.refused(), stream.astray()), (2, 1, 1));
        assert_eq!(stream.corrupted(), 1, "the copy left before the change");
        assert_eq!(log.without_key().lost_by_device(), 1);
    }

    #[test]
    fn incomplete_judge_log_reports_problems() {
        let problems = |text: &str| JudgeLog::parse(&format!("{HEAD}{text}")).problems;
        assert_eq!(problems(FRAMES), ["the log has no end"]);
        let dropped = END.replace("port0 0", "port0 3");
        assert_eq!(problems(&dropped), ["kernel_drops port0 3"]);
        assert_eq!(problems(&END.replace("unsent=0", "unsent=2")).len(), 1);
        assert_eq!(
            problems(&format!("port0\t7\t1\tab\t1\tdrop\n{END}")),
            ["key 7: number 1 where 0 was due"]
        );
    }
}
