//! What the threads of a program may still do, as the kernel says.

use packetrig_sys::clock;
use packetrig_sys::sandbox::{
    OfferedProtections, ProcessCapabilities, ProcessUser, ThreadStatus, read_thread_statuses,
};

/// What engines of runs need: the row of `serve` and `agent` in `docs/book/sandbox.md`.
pub const RIG: ProcessCapabilities = ProcessCapabilities::NET_RAW
    .union_with(ProcessCapabilities::NET_ADMIN)
    .union_with(ProcessCapabilities::BPF)
    .union_with(ProcessCapabilities::PERFMON)
    .union_with(ProcessCapabilities::IPC_LOCK)
    .union_with(ProcessCapabilities::SYS_NICE);

/// A thread gives itself its name: a busy machine may see it before.
const PATIENCE_NS: u64 = 10_000_000_000;
const LOOK_NS: u64 = 20_000_000;

/// What the threads of a program hold together.
#[derive(Debug)]
pub struct Holding {
    program: &'static str,
    process: u32,
    /// Each of them.
    pub threads: Vec<ThreadStatus>,
}

impl Holding {
    /// Of a process whose remarks say that its sandbox stands. Prints that line, which `make eval-safety` reads.
    #[expect(clippy::print_stdout, reason = "the evaluation reads this line")]
    pub fn of(program: &'static str, process: u32, remarks: &str) -> Self {
        let holding = Self { program, process, threads: read_thread_statuses(process).expect("it runs") };
        let line = remarks.lines().find(|line| line.contains(": sandbox: ")).unwrap_or_default();
        println!("{line}");
        assert!(
            line.contains(&holding.capabilities().to_string()),
            "{line}: the kernel says otherwise: {holding:?}"
        );
        holding
    }

    fn capabilities(&self) -> ProcessCapabilities {
        ProcessCapabilities::from_bits(self.threads.iter().fold(0, |all, thread| all | thread.effective))
    }

    /// No thread has or can gain more than this; every one is filtered.
    pub fn assert_at_most(&self, allowed: ProcessCapabilities) {
        let offer = OfferedProtections::read_offered_protections();
        for thread in &self.threads {
            let can = thread.effective | thread.permitted | thread.ambient | thread.bounding;
            assert_eq!(can & !allowed.bits(), 0, "{}: {thread:?}", self.program);
            assert!(thread.no_new_privs, "{}: {thread:?}", self.program);
            assert_eq!(thread.is_filtered, offer.seccomp, "{}: {thread:?}", self.program);
        }
        assert_eq!(allowed.bits() & ProcessCapabilities::SYS_ADMIN.bits(), 0, "{}", self.program);
    }

    /// Threads of this name have no capability, and a filter beside that of the process. There is one at least.
    pub fn assert_confined(&self, name: &str) {
        for thread in self.await_named(name) {
            assert_eq!((thread.effective, thread.permitted), (0, 0), "{}: {thread:?}", self.program);
            assert!(thread.filters.is_none_or(|filters| filters >= 2), "{}: {thread:?}", self.program);
        }
    }

    fn await_named(&self, name: &str) -> Vec<ThreadStatus> {
        let deadline = clock::monotonic_ns() + PATIENCE_NS;
        loop {
            let threads = read_thread_statuses(self.process).expect("it runs");
            let named: Vec<_> = threads.iter().filter(|thread| thread.name == name).cloned().collect();
            if !named.is_empty() {
                return named;
            }
            assert!(clock::monotonic_ns() < deadline, "{}: no thread {name} in {threads:?}", self.program);
            clock::sleep_until_ns(clock::monotonic_ns() + LOOK_NS);
        }
    }

    /// All threads are that user's.
    pub fn assert_user(&self, name: &str) {
        // An ordinary user's lab has one user.
        if let Ok(user) = ProcessUser::find_by_name(name) {
            let is_that = |thread: &ThreadStatus| thread.user == user.uid;
            assert!(self.threads.iter().all(is_that), "{}: {:?}", self.program, self.threads);
        }
    }
}
