//! Processor, priority and scheduling class of the calling thread.
//!
//! This module owns nothing; the settings end with the thread.

use crate::Error;
use rustix::thread::CpuSet;

/// Processors the calling thread may run on.
pub fn read_allowed_cpus() -> Result<Vec<usize>, Error> {
    let set = rustix::thread::sched_getaffinity(None)
        .map_err(|errno| Error::from_call("sched_getaffinity", "this thread", errno))?;
    Ok((0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect())
}

/// Returns one more than the highest number that a processor of this machine can have.
pub fn read_possible_cpu_count() -> u32 {
    let text = std::fs::read_to_string("/sys/devices/system/cpu/possible").unwrap_or_default();
    // The list ends with the highest number: `0-7`, or `0-3,8-11`.
    let last = text.trim().rsplit([',', '-']).next().and_then(|last| last.parse::<u32>().ok());
    last.unwrap_or(0) + 1
}

/// Keeps the calling thread on one processor.
pub fn pin_thread(cpu: usize) -> Result<(), Error> {
    let object = format!("processor {cpu}");
    if cpu >= CpuSet::MAX_CPU {
        return Err(Error::from_call("sched_setaffinity", object, rustix::io::Errno::INVAL));
    }
    let mut set = CpuSet::new();
    set.set(cpu);
    rustix::thread::sched_setaffinity(None, &set)
        .map_err(|errno| Error::from_call("sched_setaffinity", object, errno))
}

/// Gives the calling thread precedence over ordinary threads (niceness -15); needs CAP_SYS_NICE.
pub fn raise_thread_priority() -> Result<(), Error> {
    rustix::process::setpriority_process(None, -15)
        .map_err(|errno| Error::from_call("setpriority", "this thread", errno))
}

/// Asks for the FIFO real-time class at `priority` (1 to 99); needs CAP_SYS_NICE or an RLIMIT_RTPRIO that allows it.
pub fn request_fifo_scheduling(priority: i32) -> Result<(), Error> {
    set_scheduling_class(libc::SCHED_FIFO, priority)
        .map_err(|error| error.with_rights("needs CAP_SYS_NICE, or an `rtprio` limit in limits.conf"))
}

/// Gives up a real-time class of the calling thread.
pub fn return_to_ordinary_scheduling() -> Result<(), Error> {
    set_scheduling_class(libc::SCHED_OTHER, 0)
}

/// The system call itself: musl's function of this name only returns ENOSYS.
fn set_scheduling_class(class: libc::c_int, priority: i32) -> Result<(), Error> {
    // SAFETY: 0 is the calling thread; the kernel reads one number, the whole of its `struct sched_param`, from a live value.
    let done = unsafe { libc::syscall(libc::SYS_sched_setscheduler, 0, class, &raw const priority) };
    if done == 0 { Ok(()) } else { Err(Error::last_os_error("sched_setscheduler", "this thread")) }
}

/// Reads how long real-time threads may run in each period, and the period, in microseconds. `None` if there is no
/// limit, or the kernel does not report it.
pub fn read_real_time_limits() -> Option<(u64, u64)> {
    Some((read_kernel_number("sched_rt_runtime_us")?, read_kernel_number("sched_rt_period_us")?))
}

/// Reads a number; `None` also for -1, which the kernel uses for "no limit".
fn read_kernel_number(name: &str) -> Option<u64> {
    std::fs::read_to_string(format!("/proc/sys/kernel/{name}")).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pinned_thread_has_one_processor() {
        let first = read_allowed_cpus().unwrap()[0];
        std::thread::spawn(move || {
            pin_thread(first).unwrap();
            assert_eq!(read_allowed_cpus().unwrap(), [first]);
        })
        .join()
        .unwrap();
    }

    #[test]
    fn an_impossible_processor_is_an_error() {
        assert!(pin_thread(usize::MAX).is_err());
        assert!(pin_thread(CpuSet::MAX_CPU - 1).is_err());
    }

    #[test]
    fn real_time_priority_is_granted_or_permission_error() {
        let asked = std::thread::spawn(|| request_fifo_scheduling(1)).join().unwrap();
        if let Err(error) = asked {
            assert!(error.is_permission_error(), "{error}");
        }
        assert!(std::thread::spawn(|| request_fifo_scheduling(1_000)).join().unwrap().is_err());
    }
}
