//! Which processors the workers of live sources run on: those near the interface first.
//!
//! A processor gets one worker. Where there are more workers than processors nothing is said: the kernel knows better.

use crate::source::PortLocation;
use packetrig_sys::sched;
use std::fs;

/// A processor for each worker; `None`: anywhere.
pub(crate) fn processors(locations: &[PortLocation], workers: usize) -> Vec<Option<usize>> {
    let allowed = sched::cpus().unwrap_or_default();
    if workers > allowed.len() {
        return vec![None; workers];
    }
    let near = locations.iter().find_map(near).unwrap_or_default();
    order(&allowed, &near).into_iter().map(Some).take(workers).collect()
}

/// Keeps the calling thread on a processor, if that is to be one, and asks for precedence there.
pub(crate) fn settle(processor: Option<usize>) {
    if let Some(processor) = processor {
        // It works elsewhere, too; and with ordinary priority.
        sched::pin(processor).unwrap_or(());
        sched::request_precedence().unwrap_or(());
    }
}

/// Near ones first.
fn order(allowed: &[usize], near: &[usize]) -> Vec<usize> {
    let (mut first, rest): (Vec<_>, Vec<_>) = allowed.iter().partition(|cpu| near.contains(cpu));
    first.extend(rest);
    first
}

/// Processors of the memory node that an interface of this namespace is attached to.
fn near(location: &PortLocation) -> Option<Vec<usize>> {
    if location.namespace.is_some() {
        return None;
    }
    let read = |path: String| fs::read_to_string(path).ok();
    let node = read(format!("/sys/class/net/{}/device/numa_node", location.interface))?;
    let node: u32 = node.trim().parse().ok()?;
    Some(list(&read(format!("/sys/devices/system/node/node{node}/cpulist"))?))
}

/// `0-3,8` as numbers.
fn list(text: &str) -> Vec<usize> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.parse::<usize>().ok()?..=last.parse::<usize>().ok()?)
    };
    text.trim().split(',').filter_map(range).flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_processors_come_first() {
        assert_eq!(list("0-2,8\n"), [0, 1, 2, 8]);
        assert_eq!(list(""), [0; 0]);
        assert_eq!(order(&[0, 1, 2, 3], &[2, 3, 9]), [2, 3, 0, 1]);
        assert_eq!(order(&[0, 1], &[]), [0, 1]);
    }

    #[test]
    fn more_workers_than_processors_run_anywhere() {
        assert_eq!(processors(&[], 100_000), vec![None; 100_000]);
    }
}
