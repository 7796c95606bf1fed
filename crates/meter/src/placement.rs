//! Which processors the workers of live sources run on: those near their own interface first.
//!
//! A processor gets one worker. Where there are more workers than processors nothing is said: the kernel knows better.

use crate::Error;
use crate::source::PortLocation;
use packetrig_sys::sched;
use std::fs;

/// A processor for each worker, interface after interface; `None`: anywhere.
pub(crate) fn processors(locations: &[PortLocation], of_each: usize) -> Vec<Option<usize>> {
    let near: Vec<Vec<usize>> = locations.iter().map(|at| near(at).unwrap_or_default()).collect();
    assign(&sched::cpus().unwrap_or_default(), &near, of_each)
}

/// Keeps the calling thread on a processor, if that is to be one, and asks for precedence there.
pub(crate) fn settle(processor: Option<usize>) {
    if let Some(processor) = processor {
        // It works elsewhere, too; and with ordinary priority.
        sched::pin(processor).unwrap_or(());
        sched::request_precedence().unwrap_or(());
    }
}

/// Does something on a processor, if it is to be one. The kernel takes a ring's memory from the node of whoever opens the ring,
/// so rings are opened where their worker runs.
pub(crate) fn on<T: Send>(
    processor: Option<usize>,
    act: impl FnOnce() -> Result<T, Error> + Send,
) -> Result<T, Error> {
    let Some(processor) = processor else { return act() };
    std::thread::scope(|scope| {
        let placed = || {
            sched::pin(processor).unwrap_or(());
            act()
        };
        let thread = std::thread::Builder::new().name("meter-open".into());
        let opening = thread.spawn_scoped(scope, placed).map_err(Error::Thread)?;
        opening.join().unwrap_or(Err(Error::Panicked("the thread that opens rings")))
    })
}

/// Gives every interface processors near it, in turn, as long as there are any; then what is left to those that got none.
fn assign(allowed: &[usize], near: &[Vec<usize>], of_each: usize) -> Vec<Option<usize>> {
    let mut assigned = vec![None; near.len() * of_each];
    if assigned.len() > allowed.len() {
        return assigned;
    }
    let mut free = allowed.to_vec();
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
    fn a_list_is_read_as_the_kernel_writes_it() {
        assert_eq!(list("0-2,8\n"), [0, 1, 2, 8]);
        assert_eq!(list(""), [0; 0]);
    }

    fn assigned(allowed: &[usize], near: &[&[usize]], of_each: usize) -> Vec<usize> {
        let near: Vec<Vec<usize>> = near.iter().map(|near| near.to_vec()).collect();
        assign(allowed, &near, of_each).into_iter().flatten().collect()
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
        // The first one's place is not known.
        assert_eq!(assigned(&[0, 1], &[&[], &[0]], 1), [1, 0]);
        // Both want the same: each has one, and the rest is shared.
        assert_eq!(assigned(&[0, 1, 2, 3], &[&[0, 1], &[0, 1]], 2), [0, 2, 1, 3]);
        assert_eq!(assigned(&[0, 1], &[&[], &[]], 1), [0, 1]);
    }

    #[test]
    fn more_workers_than_processors_run_anywhere() {
        assert_eq!(assign(&[0, 1], &[vec![0], vec![1], vec![0]], 1), [None; 3]);
    }
}
