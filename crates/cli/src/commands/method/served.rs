//! Test methods that clients of `packetrig serve` start. Such a test is like one of the command line: its trials are
//! runs, and its journal and result are in the catalogue. It runs on a thread of its own.
//!
//! A client can neither give a shell command nor confirm an interface: only the user who starts the server can do this.

use super::traffic::DeviceTraffic;
use super::watch::{TestWatcher, TrialToBegin};
use super::{MethodHead, ResultFileOptions, TestEnd, TestSetup, begin_test};
use crate::args::FleetPlace as FleetArgs;
use crate::document::PlanText;
use crate::error::Error;
use packetrig_method::rfc2544::Rfc2544Test;
use packetrig_method::{
    CostRange, MethodOptions, MethodResult, RehearsedCost, TestMethod as _, TrialRequest, TrialResult,
};
use packetrig_server::{MethodRefusal, MethodService, replace_aliases};
use packetrig_stats::port::BackEnd;
use packetrig_store::files::PageChoice;
use packetrig_sys::resident::ResidentThread;
use packetrig_units::{BitRate, Nanos};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::any::Any;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};

/// Number of tests that the API lists, the newest ones. The catalogue has all tests.
const MAX_LISTED_TESTS: usize = 100;

/// Options that the user who started the server set for all tests.
#[derive(Clone, Debug, Default)]
pub(crate) struct ServedTestTerms {
    /// Directory of the catalogue, if the user named one.
    pub(crate) store: Option<PathBuf>,
    /// Directory of the fleet whose ports are served.
    pub(crate) fleet: Option<PathBuf>,
    pub(crate) confirmed: Vec<String>,
    pub(crate) back_end: Option<BackEnd>,
    /// Real locations of ports, by the names that documents use for them.
    pub(crate) aliases: BTreeMap<String, String>,
}

/// Request of a client to start a test.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct TestRequest {
    #[serde(default)]
    name: String,
    /// The member `options` of a `result.json`.
    options: Value,
    /// OTG documents: one, or one for each of two devices that are compared.
    plans: Vec<Value>,
    /// Speed of the links, if their drivers do not report it.
    #[serde(default)]
    link_bits_per_second: Option<BitRate>,
}

/// Reason to refuse a test.
#[derive(Debug, thiserror::Error)]
enum TestRefusal {
    #[error("{0}")]
    Invalid(String),
    #[error("test {0} is in progress; wait for its end, or stop it")]
    Busy(String),
    #[error(transparent)]
    Failed(#[from] Error),
}

/// Progress of a test, as clients see it.
#[derive(Clone, Debug, Serialize)]
struct TestProgress {
    id: String,
    name: String,
    method: &'static str,
    state: TestState,
    /// Time of the start, in nanoseconds since 1970 (UTC).
    started_wall_ns: u64,
    /// Trials that have ended.
    trials: u32,
    /// The trial in progress.
    trial: Option<TrialRequest>,
    /// Findings so far, in one line.
    known: String,
    to_go: Option<RemainingTrials>,
    /// Result so far, as in `result.json`.
    result: Option<MethodResult>,
    /// PASS, FAIL, INCONCLUSIVE or NOT JUDGED; `None` unless the test is complete.
    verdict: Option<&'static str>,
    /// Error of a test that failed.
    error: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum TestState {
    Running,
    /// A client has asked the test to stop, and the trial in progress is ending.
    Stopping,
    Complete,
    /// Stopped by a client. If at least one trial has ended, `packetrig test resume` continues the test.
    Stopped,
    Failed,
}

/// Estimate of the remaining trials and time. It ignores trials that must be repeated, and the time between trials.
#[derive(Clone, Copy, Debug, Serialize)]
struct RemainingTrials {
    least: TrialsAndTime,
    most: TrialsAndTime,
}

#[derive(Clone, Copy, Debug, Serialize)]
struct TrialsAndTime {
    trials: u32,
    time_ns: Nanos,
}

impl From<RehearsedCost> for TrialsAndTime {
    fn from(cost: RehearsedCost) -> Self {
        Self { trials: cost.trials, time_ns: cost.total_time() }
    }
}

impl From<CostRange> for RemainingTrials {
    fn from(cost: CostRange) -> Self {
        Self { least: cost.least.into(), most: cost.most.into() }
    }
}

/// A test that a client has started.
#[derive(Debug)]
struct ServedTest {
    progress: Mutex<TestProgress>,
    is_stopped: AtomicBool,
}

impl ServedTest {
    /// Makes the record of a test that starts now.
    fn new(head: &MethodHead) -> Self {
        let progress = TestProgress {
            id: head.id.clone(),
            name: head.name.clone(),
            method: head.options.name(),
            state: TestState::Running,
            started_wall_ns: head.started_wall_ns,
            trials: 0,
            trial: None,
            known: String::new(),
            to_go: None,
            result: None,
            verdict: None,
            error: None,
        };
        Self { progress: Mutex::new(progress), is_stopped: AtomicBool::new(false) }
    }

    fn lock_progress(&self) -> MutexGuard<'_, TestProgress> {
        // A poisoned lock is still usable: each change is one assignment, so a panic cannot leave a partial change.
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Starts tests for the clients of the API, one at a time, and lists the tests that it has started.
#[derive(Debug)]
pub(crate) struct MethodRunner {
    terms: ServedTestTerms,
    /// Starts the threads of tests with rights that the threads of the API do not have.
    rights: Arc<ResidentThread>,
    tests: Mutex<StartedTests>,
}

#[derive(Debug, Default)]
struct StartedTests {
    by_id: BTreeMap<String, Arc<ServedTest>>,
    /// The thread of the test that was started last.
    thread: Option<JoinHandle<()>>,
}

impl MethodRunner {
    /// Creates a runner. The thread `rights` starts the threads of its tests.
    pub(crate) fn new(terms: ServedTestTerms, rights: Arc<ResidentThread>) -> Self {
        Self { terms, rights, tests: Mutex::default() }
    }

    fn launch_test(&self, request: Value) -> Result<TestProgress, TestRefusal> {
        let mut tests = self.lock_tests();
        // One test runs at a time: two tests on the ports of one machine would disturb each other.
        if let Some(running) = tests.by_id.values().find(|test| !test.lock_progress().state.is_final()) {
            return Err(TestRefusal::Busy(running.lock_progress().id.clone()));
        }
        // The job runs on the thread with rights, and so does the thread that it
        // starts: threads inherit capabilities.
        let started = self.rights.run_job(|| start_served_test(&self.terms, request)).map_err(Error::from)?;
        let StartedTest { test, thread } = started?;
        let progress = test.lock_progress().clone();
        tests.by_id.insert(progress.id.clone(), test);
        // The thread that this replaces has ended, because its test has.
        tests.thread = Some(thread);
        while tests.by_id.len() > MAX_LISTED_TESTS {
            // Ids begin with the time, so the first one is the oldest.
            tests.by_id.pop_first();
        }
        Ok(progress)
    }

    /// Stops the test in progress and waits until it has ended.
    pub(crate) fn stop_test_and_wait(&self) {
        let thread = {
            let mut tests = self.lock_tests();
            tests.by_id.values().for_each(|test| test.is_stopped.store(true, Ordering::Release));
            tests.thread.take()
        };
        if let Some(thread) = thread {
            // A panic has been printed; the journal has the test's trials.
            drop(thread.join());
        }
    }

    fn find_test(&self, id: &str) -> Option<Arc<ServedTest>> {
        self.lock_tests().by_id.get(id).cloned()
    }

    fn lock_tests(&self) -> MutexGuard<'_, StartedTests> {
        self.tests.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl MethodService for MethodRunner {
    fn start_method(&self, request: Value) -> Result<Value, MethodRefusal> {
        let started = self.launch_test(request).map_err(|refusal| {
            let text = packetrig_units::message_with_causes(&refusal);
            match refusal {
                TestRefusal::Invalid(_) => MethodRefusal::Invalid(text),
                TestRefusal::Busy(_) => MethodRefusal::Busy(text),
                TestRefusal::Failed(_) => MethodRefusal::Failed(text),
            }
        })?;
        Ok(build_progress_json(&started))
    }

    fn list_methods(&self) -> Vec<Value> {
        self.lock_tests().by_id.values().map(|test| build_progress_json(&test.lock_progress())).collect()
    }

    fn method_state(&self, id: &str) -> Option<Value> {
        self.find_test(id).map(|test| build_progress_json(&test.lock_progress()))
    }

    fn stop_method(&self, id: &str) -> Option<Value> {
        let test = self.find_test(id)?;
        test.is_stopped.store(true, Ordering::Release);
        let mut progress = test.lock_progress();
        // A test that has ended keeps its state: a late stop must not make the test look unfinished.
        if progress.state == TestState::Running {
            progress.state = TestState::Stopping;
        }
        Some(build_progress_json(&progress))
    }
}

fn build_progress_json(progress: &TestProgress) -> Value {
    // The value has only numbers, texts and lists, which JSON can always represent.
    serde_json::to_value(progress).unwrap_or_default()
}

impl TestState {
    const fn is_final(self) -> bool {
        matches!(self, Self::Complete | Self::Stopped | Self::Failed)
    }
}

struct StartedTest {
    test: Arc<ServedTest>,
    thread: JoinHandle<()>,
}

/// Reads the request, begins the test and starts its thread.
fn start_served_test(terms: &ServedTestTerms, request: Value) -> Result<StartedTest, TestRefusal> {
    let mut request: TestRequest =
        serde_json::from_value(request).map_err(|error| TestRefusal::Invalid(error.to_string()))?;
    for plan in &mut request.plans {
        replace_aliases(plan, &terms.aliases);
    }
    let options = read_options(request.options)?;
    check_plans(&options, &request.plans, terms, request.link_bits_per_second)?;
    let setup = TestSetup {
        documents: request.plans.iter().map(Value::to_string).collect(),
        link: request.link_bits_per_second,
        confirmed: terms.confirmed.clone(),
        back_end: terms.back_end,
        fleet: terms.fleet.clone(),
        ..TestSetup::default()
    };
    let store = terms.store.clone();
    let running = begin_test(MethodHead::new(request.name, options, setup), store.as_deref())?;
    let test = Arc::new(ServedTest::new(&running.head));
    let of_thread = Arc::clone(&test);
    let thread = Builder::new().name("method".to_owned()).spawn(move || {
        let kept = ResultFileOptions { out: None, page: PageChoice::Write };
        let mut watcher = ProgressWatcher(&of_thread);
        run_and_record_end(&of_thread, || running.run_test_to_end(store.as_deref(), kept, &mut watcher));
    });
    let thread =
        thread.map_err(|error| TestRefusal::Failed(packetrig_fleet_io::Error::Thread(error).into()))?;
    Ok(StartedTest { test, thread })
}

/// Runs `work`, the trials of a test, and records how it ended. Also records a panic: otherwise the test would stay
/// `running` and block all other tests.
fn run_and_record_end(test: &ServedTest, work: impl FnOnce() -> Result<TestEnd, Error>) {
    // After a panic only the progress is used, and each of its changes leaves it complete.
    let ended = match catch_unwind(AssertUnwindSafe(work)) {
        Ok(ended) => ended.map_err(|error| packetrig_units::message_with_causes(&error)),
        Err(panic) => Err(format!(
            "bug: an assumption of packetrig failed: {}; please report the output of the server",
            extract_panic_message(&*panic)
        )),
    };
    record_test_end(test, ended);
}

fn extract_panic_message(panic: &(dyn Any + Send)) -> &str {
    if let Some(text) = panic.downcast_ref::<&str>() {
        return text;
    }
    panic.downcast_ref::<String>().map_or("no message", String::as_str)
}

/// Records the end of a test in its progress.
fn record_test_end(test: &ServedTest, ended: Result<TestEnd, String>) {
    let mut progress = test.lock_progress();
    progress.trial = None;
    progress.to_go = None;
    match ended {
        Ok(TestEnd::Complete { test, .. }) => {
            progress.result = Some(test.result().clone());
            progress.verdict = Some(test.verdict_word());
            progress.state = TestState::Complete;
        }
        Ok(TestEnd::Stopped) => progress.state = TestState::Stopped,
        Err(error) => {
            progress.error = Some(error);
            progress.state = TestState::Failed;
        }
    }
}

/// Reads the options of a method. Refuses unknown members, and methods that need a shell command.
fn read_options(given: Value) -> Result<MethodOptions, TestRefusal> {
    let options: MethodOptions = serde_json::from_value(given.clone())
        .map_err(|error| TestRefusal::Invalid(format!("options: {error}")))?;
    // The parsed options are compared with the given ones, because serde ignores unknown members: a misspelt
    // option would have no effect.
    let known = serde_json::to_value(&options).unwrap_or_default();
    if let Some(path) = find_unknown_member(&given, &known) {
        return Err(TestRefusal::Invalid(format!("options: the method has no option `{path}`")));
    }
    let needs_command = match &options {
        MethodOptions::Convergence(_) => true,
        MethodOptions::Rfc2544(options) => options.tests.contains(&Rfc2544Test::Reset),
        _ => false,
    };
    if needs_command {
        let text =
            "this method needs a shell command, which the API does not run; start it with `packetrig test`";
        return Err(TestRefusal::Invalid(format!("options: {text}")));
    }
    options
        .start_method()
        .map_err(|error| TestRefusal::Invalid(packetrig_units::message_with_causes(&error)))?;
    Ok(options)
}

/// Returns the path of the first member of `given` that `known` does not have.
fn find_unknown_member(given: &Value, known: &Value) -> Option<String> {
    match (given, known) {
        (Value::Object(given), Value::Object(known)) => given.iter().find_map(|(name, value)| {
            // `known` lacks the options that have no value, so a member that is null is no mistake.
            let Some(known) = known.get(name) else { return (!value.is_null()).then(|| name.clone()) };
            find_unknown_member(value, known).map(|path| format!("{name}.{path}"))
        }),
        (Value::Array(given), Value::Array(known)) => {
            given.iter().zip(known).find_map(|(given, known)| find_unknown_member(given, known))
        }
        _ => None,
    }
}

/// Reads the plans in the same way as the test does, so that a client learns of problems at once.
fn check_plans(
    options: &MethodOptions,
    plans: &[Value],
    terms: &ServedTestTerms,
    link: Option<BitRate>,
) -> Result<(), TestRefusal> {
    let most = if matches!(options, MethodOptions::Compare(_)) { 2 } else { 1 };
    if plans.is_empty() || plans.len() > most {
        let wanted = if most == 1 { "1 plan" } else { "1 or 2 plans" };
        let text = format!("plans: {} needs {wanted}, not {}", options.name(), plans.len());
        return Err(TestRefusal::Invalid(text));
    }
    let fleet = FleetArgs { fleet_directory: terms.fleet.clone() };
    for (number, plan) in plans.iter().enumerate() {
        // The check for files comes first: a client of the API must not make this program open a file.
        refuse_files_of_plan(number, plan)?;
        let document =
            PlanText { name: "the plan".to_owned(), text: plan.to_string(), is_from_options: false };
        let device = DeviceTraffic::from_document(document, &fleet, link)
            .map_err(|error| TestRefusal::Invalid(packetrig_units::message_with_causes(&error)))?;
        if device.find_fleet(&fleet)?.is_some() != terms.fleet.is_some() {
            let text = "plans: a port is not on this machine; only `packetrig serve --on-fleet` serves the \
                ports of a fleet";
            return Err(TestRefusal::Invalid(text.to_owned()));
        }
    }
    Ok(())
}

/// Refuses plans that name files: as with `/config`, a client of the API must not make this program read files.
fn refuse_files_of_plan(number: usize, plan: &Value) -> Result<(), TestRefusal> {
    let flows = plan["flows"].as_array().into_iter().flatten();
    let replay = flows.enumerate().find(|(_, flow)| flow.get("x_replay").is_some());
    replay.map_or(Ok(()), |(flow, _)| {
        let text = "plans that read capture files cannot be run over the API; use `packetrig test`";
        Err(TestRefusal::Invalid(format!("plans[{number}].flows[{flow}].x_replay: {text}")))
    })
}

/// Records the progress of a test for the clients of the API, and stops the test for them.
struct ProgressWatcher<'a>(&'a ServedTest);

impl TestWatcher for ProgressWatcher<'_> {
    fn is_stopped(&self) -> bool {
        self.0.is_stopped.load(Ordering::Acquire)
    }

    fn begin_trial(&mut self, trial: &TrialToBegin<'_>) {
        // The cost is computed before the lock is taken, because that simulates the rest of the method several times.
        let to_go = trial.options.remaining_cost(trial.method).ok().map(RemainingTrials::from);
        let mut progress = self.0.lock_progress();
        progress.trials = trial.number - 1;
        progress.trial = Some(trial.order.clone());
        progress.known = trial.method.describe_progress();
        progress.result = Some(trial.method.current_result());
        progress.to_go = to_go;
    }

    fn end_trial(&mut self, _: &TrialResult) {
        self.0.lock_progress().trials += 1;
    }

    fn report_unfinished_test(&mut self, _: &str) {}
}

#[cfg(test)]
mod tests;
