//! A thread that starts other threads with its own network namespace and its own rights.
//!
//! A thread inherits both from the thread that starts it. So a program that has given up rights can still run work with the
//! rights of a [`ResidentThread`] that it started before. The thread ends when the value is dropped.

use crate::error::ignore_failure;
use crate::{Error, netns::NetNs};
use std::panic::AssertUnwindSafe;
use std::sync::mpsc::{Receiver, Sender, channel, sync_channel};
use std::sync::{Mutex, PoisonError};

type ResidentJob = Box<dyn FnOnce() + Send>;

#[derive(Debug)]
pub struct ResidentThread {
    jobs: Mutex<Sender<ResidentJob>>,
    name: String,
}

impl ResidentThread {
    /// Starts the thread in the caller's namespace and with the caller's rights.
    pub fn start_thread_here(name: &str) -> Result<Self, Error> {
        let (jobs, inbox) = channel();
        let thread = std::thread::Builder::new().name(name.to_owned());
        let started = thread.spawn(move || run_resident_jobs(&inbox));
        started.map_err(|error| Error::from_call("spawn", name, error))?;
        Ok(Self { jobs: Mutex::new(jobs), name: name.to_owned() })
    }

    /// Starts the thread in the namespace `netns`.
    pub fn start_thread_in(netns: &NetNs, name: &str) -> Result<Self, Error> {
        netns.run_in_namespace(|| Self::start_thread_here(name))?
    }

    /// Runs `work` on a new thread in the namespace of this thread and with its rights. A panic of `work` continues in the caller.
    pub fn run_job<'a, T: Send + 'a>(&self, work: impl FnOnce() -> T + Send + 'a) -> Result<T, Error> {
        let (done, result) = sync_channel(1);
        let job: Box<dyn FnOnce() + Send + 'a> = Box::new(move || {
            let worked = std::panic::catch_unwind(AssertUnwindSafe(work));
            // The caller waits for the result, so the channel has a receiver.
            ignore_failure(done.send(worked));
        });
        // SAFETY: only the lifetime changes. The values that the job borrows live until this function
        // returns, and it returns only once the job has run, which consumes the work, or was dropped: either
        // event closes the channel or sends a value.
        let job: ResidentJob = unsafe { std::mem::transmute(job) };
        let sent = self.jobs.lock().unwrap_or_else(PoisonError::into_inner).send(job);
        sent.map_err(|_| self.no_thread_error())?;
        let worked = result.recv().map_err(|_| self.no_thread_error())?;
        Ok(worked.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    }

    /// Error for a job: the kernel could not start a thread for it.
    fn no_thread_error(&self) -> Error {
        Error::from_call("spawn", self.name.clone(), rustix::io::Errno::AGAIN)
    }
}

fn run_resident_jobs(inbox: &Receiver<ResidentJob>) {
    let name = std::thread::current().name().unwrap_or("resident").to_owned();
    for job in inbox {
        // A job without a thread is dropped: its channel closes, and the caller gets an error.
        drop(std::thread::Builder::new().name(name.clone()).spawn(job));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_done_with_what_the_caller_lends() {
        let resident = ResidentThread::start_thread_here("resident").unwrap();
        let mut numbers = vec![1, 2];
        let length = resident.run_job(|| {
            numbers.push(std::thread::current().name().unwrap().len());
            numbers.len()
        });
        assert_eq!(length.unwrap(), 3);
        assert_eq!(numbers, [1, 2, "resident".len()]);
    }

    #[test]
    fn a_panic_goes_on_in_the_caller() {
        let resident = ResidentThread::start_thread_here("resident").unwrap();
        let panicked = std::thread::spawn(move || resident.run_job(|| panic!("no"))).join();
        assert!(panicked.is_err());
    }
}
