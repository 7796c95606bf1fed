//! Workers whose sources are made up.

use super::*;
use crate::source::Taken;
use packetrig_flow::table::TableOptions;
use std::sync::mpsc;

/// Nothing comes from it until it is stopped, unless it is to panic.
struct Idle {
    panics: bool,
    is_stopped: bool,
    ended: mpsc::Sender<()>,
}

impl Drop for Idle {
    fn drop(&mut self) {
        self.ended.send(()).unwrap_or(());
    }
}

impl Source for Idle {
    fn take(&mut self, _: &mut Intake) -> Result<Taken, Error> {
        assert!(!self.panics, "as wanted");
        Ok(if self.is_stopped { Taken::Ended } else { Taken::Nothing })
    }

    fn now_ns(&mut self, _: bool) -> u64 {
        1
    }

    fn wait(&mut self, _: u64) -> Result<(), Error> {
        std::thread::yield_now();
        Ok(())
    }

    fn ring_dropped(&mut self) -> Result<u64, Error> {
        Ok(0)
    }

    fn stop(&mut self) -> Result<(), Error> {
        self.is_stopped = true;
        Ok(())
    }

    fn delivered(&self) -> u64 {
        0
    }
}

fn options() -> MeterOptions {
    MeterOptions {
        input: Input::Files(FileOptions { files: vec![], workers: 1, pace: None }),
        parse: ParseOptions::default(),
        table: TableOptions { capacity: 64, ..TableOptions::default() },
        share: None,
        has_top: false,
    }
}

/// Starts a worker for each of these, which says whether it is to panic.
fn launch(panics: &[bool]) -> (Meter, mpsc::Receiver<()>) {
    let (ended, are_ended) = mpsc::channel();
    let source = |panics: &bool| {
        let source = Idle { panics: *panics, is_stopped: false, ended: ended.clone() };
        Box::new(source) as Box<dyn Source>
    };
    let sources = panics.iter().map(source).collect();
    let opened = || Ok(Opened { sources, reader: None, captured: Captured::Nothing });
    let books = Books::new();
    let processors = vec![None; panics.len()];
    let meter = Meter::launch(&options(), processors, &Channels::default(), &books, opened).unwrap();
    (meter, are_ended)
}

#[test]
fn a_meter_is_over_when_one_of_its_workers_has_panicked() {
    let (meter, ended) = launch(&[false, true]);
    // Longer than a test may last, if it never is.
    while !meter.is_over() {
        std::thread::yield_now();
    }
    meter.stop();
    assert!(matches!(meter.join(), Err(Error::Panicked("a worker"))));
    assert_eq!(ended.try_iter().count(), 2, "the other one has ended, too");
}

#[test]
fn a_meter_that_is_stopped_is_over() {
    let (meter, ended) = launch(&[false, false]);
    assert!(!meter.is_over());
    meter.stop();
    meter.join().unwrap();
    assert_eq!(ended.try_iter().count(), 2);
}

#[test]
fn where_no_source_can_be_opened_all_workers_have_left() {
    let (queue, taken) = bounded(1);
    let channels = Channels { sinks: vec![queue], ..Channels::default() };
    let books = Books::new();
    let none = || Err(Error::Panicked("nobody"));
    let refused = Meter::launch(&options(), vec![None; 3], &channels, &books, none);
    assert!(matches!(refused, Err(Error::Panicked("nobody"))));
    drop(channels);
    assert!(taken.try_recv().is_err_and(|error| error.is_disconnected()), "no worker holds a queue any more");
}

#[test]
fn an_interface_with_a_large_number_is_refused_by_name() {
    assert_eq!(number("eth1", 65_535).unwrap(), 65_535);
    let refused = number("eth1", 65_536).unwrap_err().to_string();
    assert!(refused.starts_with("eth1 has number 65536, and records have room"), "{refused}");
}
