//! Runs a command on a machine that loses its processors now and then, like a guest of a busy hypervisor.
//!
//! One real-time thread per processor spins through the same outages. After an outage the machine runs for
//! nine times as long, so that a tenth of the time is lost.

use crate::lab;
use anyhow::{Context, Result};
use packetrig_sys::{clock, sched};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// Above every real-time thread of the tests.
const STARVING_PRIORITY: i32 = 99;
const MIN_OUTAGE_MS: u64 = 20;
const MAX_OUTAGE_MS: u64 = 600;
/// The machine runs for this multiple of each outage's length: a tenth of the time is outage.
const PAUSE_PER_OUTAGE: u64 = 9;
/// All threads know an outage before it begins.
const FIRST_OUTAGE_DELAY_MS: u64 = 200;

/// Runs `command` while all processors are taken away from it again and again.
pub(crate) fn run(command: &str, arguments: &[&str]) -> Result<ExitCode> {
    let has_ended = Arc::new(AtomicBool::new(false));
    let began = clock::monotonic_ns();
    let mut thieves = Vec::new();
    for cpu in sched::read_allowed_cpus()? {
        let has_ended = Arc::clone(&has_ended);
        let (ready, is_ready) = std::sync::mpsc::channel();
        thieves.push(thread::spawn(move || {
            let prepared = raise_to_real_time_priority(cpu);
            let may_spin = prepared.is_ok();
            // The receiver waits for exactly this message.
            let _waiting = ready.send(prepared);
            if may_spin {
                spin_through_outages(began, &has_ended);
            }
        }));
        is_ready.recv().context("a thread ended before it began")??;
    }
    let outcome = lab::run_command(command, arguments);
    has_ended.store(true, Ordering::Relaxed);
    for thief in thieves {
        drop(thief.join());
    }
    outcome
}

fn raise_to_real_time_priority(cpu: usize) -> Result<()> {
    sched::pin_thread(cpu)?;
    sched::request_fifo_scheduling(STARVING_PRIORITY).context("the processors cannot be taken away")
}

/// All threads draw the same outages, so that all processors are gone at once.
fn spin_through_outages(began_ns: u64, has_ended: &AtomicBool) {
    let mut outages = ProcessorOutages { seed: began_ns, next_ns: began_ns + ms(FIRST_OUTAGE_DELAY_MS) };
    while !has_ended.load(Ordering::Relaxed) {
        let (from_ns, until_ns) = outages.draw_outage();
        thread::sleep(Duration::from_nanos(from_ns.saturating_sub(clock::monotonic_ns())));
        while clock::monotonic_ns() < until_ns {
            std::hint::spin_loop();
        }
    }
}

struct ProcessorOutages {
    seed: u64,
    next_ns: u64,
}

impl ProcessorOutages {
    /// Begin and end of the next outage.
    fn draw_outage(&mut self) -> (u64, u64) {
        // Knuth's MMIX constants; the upper bits are the random ones.
        self.seed = self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let length_ms = MIN_OUTAGE_MS + (self.seed >> 33) % (MAX_OUTAGE_MS - MIN_OUTAGE_MS + 1);
        let from_ns = self.next_ns;
        let until_ns = from_ns + ms(length_ms);
        self.next_ns = until_ns + PAUSE_PER_OUTAGE * ms(length_ms);
        (from_ns, until_ns)
    }
}

const fn ms(count: u64) -> u64 {
    count * 1_000_000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outages_take_tenth_of_time_with_varied_lengths() {
        let mut outages = ProcessorOutages { seed: 7, next_ns: 0 };
        let lengths: Vec<u64> =
            (0..1000).map(|_| outages.draw_outage()).map(|(from, until)| until - from).collect();
        assert_eq!(lengths.iter().sum::<u64>() * 10, outages.next_ns);
        assert!(*lengths.iter().min().unwrap() < ms(30) && *lengths.iter().max().unwrap() > ms(590));
        assert!(lengths.iter().all(|length| (ms(MIN_OUTAGE_MS)..=ms(MAX_OUTAGE_MS)).contains(length)));
    }
}
