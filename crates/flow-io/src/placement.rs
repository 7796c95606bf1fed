//! Assigns processors to the workers of live sources, if possible processors near the worker's interface.
//!
//! A processor gets at most one worker. If there are more workers than processors, no worker is pinned, because the
//! kernel distributes them better.

use crate::Error;
use crate::source::PortLocation;
use packetrig_sys::sched;
use std::fs;
use std::ops::RangeInclusive;

/// Chooses a processor for each of the `of_each` workers of every interface. The result lists the workers interface by
/// interface; `None` means that a worker may run on any processor.
pub(crate) fn assign_processors(locations: &[PortLocation], of_each: usize) -> Vec<Option<usize>> {
    let near: Vec<Vec<usize>> =
        locations.iter().map(|at| read_near_processors(at).unwrap_or_default()).collect();
    assign_nearest_processors(&sched::read_allowed_cpus().unwrap_or_default(), &near, of_each)
}

/// If the calling thread has a processor, pins the thread to it and asks for scheduling precedence.
pub(crate) fn pin_current_thread_if_assigned(processor: Option<usize>) {
    if let Some(processor) = processor {
        // Both calls only improve the speed. Without the rights for them, the worker runs correctly on any processor.
        drop(sched::pin_thread(processor));
        drop(sched::raise_thread_priority());
    }
}

/// Runs `act` on a processor, if one is given. The kernel allocates a ring's memory on the NUMA node of the thread that opens
/// it, so rings are opened where their worker runs.
pub(crate) fn run_on_processor<T: Send>(
    processor: Option<usize>,
    act: impl FnOnce() -> Result<T, Error> + Send,
) -> Result<T, Error> {
    let Some(processor) = processor else { return act() };
    std::thread::scope(|scope| {
        // The work runs on a separate thread, so that the caller is not left pinned.
        let thread = std::thread::Builder::new().name("meter-open".into());
        let opening =
            thread.spawn_scoped(scope, move || pin_and_run(processor, act)).map_err(Error::Thread)?;
        opening.join().unwrap_or(Err(Error::Panicked("the thread that opens rings")))
    })
}

fn pin_and_run<T>(processor: usize, act: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
    // A failure is harmless: the ring works, and only its memory may be on another node.
    drop(sched::pin_thread(processor));
    act()
}

/// Gives each interface in turn a free processor near it, if there is one. The remaining processors go to the workers
/// that have got none.
fn assign_nearest_processors(allowed: &[usize], near: &[Vec<usize>], of_each: usize) -> Vec<Option<usize>> {
    let mut assigned = vec![None; near.len() * of_each];
    if assigned.len() > allowed.len() {
        return assigned;
    }
    let mut free = allowed.to_vec();
    // Each interface gets one processor per round, so that the first interface does not take all processors of a node.
    for worker in 0..of_each {
        for (interface, near) in near.iter().enumerate() {
            let found = free.iter().position(|processor| near.contains(processor));
            assigned[interface * of_each + worker] = found.map(|at| free.remove(at));
        }
    }
    let without = assigned.iter_mut().filter(|processor| processor.is_none());
    for (processor, left) in without.zip(free) {
        *processor = Some(left);
    }
    assigned
}

/// Returns the processors of the NUMA node that an interface is attached to. `None` if the device has no node, or if
/// the interface is in another namespace: `/sys` does not show it here.
fn read_near_processors(location: &PortLocation) -> Option<Vec<usize>> {
    if location.namespace.is_some() {
        return None;
    }
    let node = fs::read_to_string(format!("/sys/class/net/{}/device/numa_node", location.interface)).ok()?;
    // The kernel writes -1 for a device without a node, which does not parse as `u32`.
    let node: u32 = node.trim().parse().ok()?;
    let processors = fs::read_to_string(format!("/sys/devices/system/node/node{node}/cpulist")).ok()?;
    Some(parse_cpu_list(&processors))
}

/// Parses a list such as `0-3,8`.
fn parse_cpu_list(text: &str) -> Vec<usize> {
    text.trim().split(',').filter_map(parse_cpu_range).flatten().collect()
}

fn parse_cpu_range(text: &str) -> Option<RangeInclusive<usize>> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    Some(first.parse().ok()?..=last.parse().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_list_parses_kernel_format() {
        assert_eq!(parse_cpu_list("0-2,8\n"), [0, 1, 2, 8]);
        assert_eq!(parse_cpu_list(""), [0; 0]);
    }

    fn assigned(allowed: &[usize], near: &[&[usize]], of_each: usize) -> Vec<usize> {
        let near: Vec<Vec<usize>> = near.iter().map(|near| near.to_vec()).collect();
        assign_nearest_processors(allowed, &near, of_each).into_iter().flatten().collect()
    }

    #[test]
    fn each_interface_has_processors_near_itself() {
        assert_eq!(assigned(&[0, 1, 2, 3], &[&[2, 3, 9]], 2), [2, 3]);
        assert_eq!(assigned(&[0, 1, 2, 3], &[&[0, 1], &[2, 3]], 2), [0, 1, 2, 3]);
        assert_eq!(assigned(&[0, 1, 2, 3], &[&[2, 3], &[0, 1]], 2), [2, 3, 0, 1]);
        assert_eq!(assigned(&[0, 1], &[&[1], &[0]], 1), [1, 0]);
    }

    #[test]
    fn no_interface_takes_what_is_near_another() {
        // The node of the first one is not known.
        assert_eq!(assigned(&[0, 1], &[&[], &[0]], 1), [1, 0]);
        // Both want the same: each has one, and the rest is shared.
        assert_eq!(assigned(&[0, 1, 2, 3], &[&[0, 1], &[0, 1]], 2), [0, 2, 1, 3]);
        assert_eq!(assigned(&[0, 1], &[&[], &[]], 1), [0, 1]);
    }

    #[test]
    fn more_workers_than_processors_run_anywhere() {
        assert_eq!(assign_nearest_processors(&[0, 1], &[vec![0], vec![1], vec![0]], 1), [None; 3]);
    }
}
