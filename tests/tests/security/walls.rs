//! What each long-running program still may do once it has started, as the kernel says: the table of `docs/book/walls.md`.

use packetrig_sys::caps::Rights;
use packetrig_sys::sandbox::{Capabilities, Offer, ThreadStatus, User, threads_of};
use packetrig_testkit::Lab;
use packetrig_testkit::lab::LabPort;
use packetrig_tests::program::Running;
use packetrig_tests::skip;

/// What the threads of a program hold together.
struct Holding {
    program: &'static str,
    threads: Vec<ThreadStatus>,
}

impl Holding {
    /// Once the program has said that its sandbox stands.
    fn of(program: &'static str, running: &mut Running) -> Self {
        running.await_remark(&format!("{program}: sandbox: "));
        let holding = Self { program, threads: threads_of(running.process()).expect("it runs") };
        holding.say(running);
        holding
    }

    /// A line for `make eval-safety`, with what the program says of itself.
    #[expect(clippy::print_stdout, reason = "the evaluation reads this line")]
    fn say(&self, running: &Running) {
        let remarks = running.remarks();
        let line = remarks.lines().find(|line| line.contains(": sandbox: ")).unwrap_or_default();
        println!("{line}");
        assert!(line.contains(&self.capabilities().to_string()), "{line}: the kernel says otherwise");
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::from_bits(self.threads.iter().fold(0, |all, thread| all | thread.effective))
    }

    /// No thread has or can gain more than this; none can become what it is not.
    fn assert_at_most(&self, allowed: Capabilities) {
        let offer = Offer::read();
        for thread in &self.threads {
            let can = thread.effective | thread.permitted | thread.ambient | thread.bounding;
            assert_eq!(can & !allowed.bits(), 0, "{}: {thread:?}", self.program);
            assert!(thread.no_new_privs, "{}: {thread:?}", self.program);
            assert_eq!(thread.is_filtered, offer.seccomp, "{}: {thread:?}", self.program);
        }
        assert_eq!(allowed.bits() & Capabilities::SYS_ADMIN.bits(), 0, "{}", self.program);
    }

    fn assert_user(&self, name: &str) {
        // An ordinary user's lab has one user.
        if let Ok(user) = User::find(name) {
            assert!(
                self.threads.iter().all(|thread| thread.user == user.uid),
                "{}: {:?}",
                self.program,
                self.threads
            );
        }
    }
}

fn start(arguments: &[&str]) -> Running {
    Running::start(arguments, "")
}

fn is_root() -> bool {
    Rights::current().user == 0
}

#[test]
fn a_collector_holds_nothing_and_is_nobody() {
    let places = ["--listen", "udp://127.0.0.1:0", "--listen", "tcp://127.0.0.1:0"];
    let mut running = start(&[&["collect", "--time", "60s"][..], &places].concat());
    let holding = Holding::of("collect", &mut running);
    assert!(holding.threads.len() > 3, "threads that were there before have given up their rights, too");
    holding.assert_at_most(Capabilities::NONE);
    if is_root() {
        holding.assert_user("nobody");
    }
}

#[test]
fn a_collector_that_writes_is_the_owner_of_its_directory() {
    if !is_root() || User::find("nobody").is_err() {
        return;
    }
    let place = tempfile::tempdir().unwrap();
    let owned = place.path().join("owned");
    std::fs::create_dir(&owned).unwrap();
    let nobody = User::find("nobody").unwrap();
    std::os::unix::fs::chown(&owned, Some(nobody.uid), Some(nobody.gid)).unwrap();
    let mut permissions = std::fs::metadata(place.path()).unwrap().permissions();
    std::os::unix::fs::PermissionsExt::set_mode(&mut permissions, 0o755);
    std::fs::set_permissions(place.path(), permissions).unwrap();
    let listen = ["collect", "--time", "60s", "--listen", "udp://127.0.0.1:0", "--directory"];
    let mut running = start(&[&listen[..], &[owned.to_str().unwrap()]].concat());
    Holding::of("collect", &mut running).assert_user("nobody");
    // What is root's stays usable for root only, and the line says so.
    let of_root = place.path().join("of-root");
    let mut running = start(&[&listen[..], &[of_root.to_str().unwrap()]].concat());
    let holding = Holding::of("collect", &mut running);
    holding.assert_user("root");
    holding.assert_at_most(Capabilities::NONE);
    assert!(running.remarks().contains("root because"), "{}", running.remarks());
}

#[test]
fn a_meter_holds_nothing_by_whichever_way_it_listens() {
    let Some(lab) = skip::lab(Lab::pair) else { return };
    let location = LabPort::location(&lab.ports()[0]);
    let has_bpf = skip::may_use_bpf(packetrig_sys::xdp::obstacle().map_or(Ok(()), Err));
    for source in ["packet", "xdp", "headers"].into_iter().take(if has_bpf { 3 } else { 1 }) {
        let mut running = start(&["meter", &location, "--source", source, "--time", "1500ms"]);
        let holding = Holding::of("meter", &mut running);
        holding.assert_at_most(Capabilities::NONE);
        holding.assert_user("nobody");
        // Its end takes no rights either.
        let finished = running.finish();
        assert_eq!(finished.code, Some(0), "{source}: {}", finished.stderr);
    }
}

#[test]
fn a_reflector_holds_nothing() {
    let mut running = start(&["probe", "reflect", "127.0.0.1:18620", "--time", "60s"]);
    let holding = Holding::of("reflect", &mut running);
    holding.assert_at_most(Capabilities::NONE);
    if is_root() {
        holding.assert_user("nobody");
    }
}

#[test]
fn without_a_sandbox_the_first_lines_say_so() {
    let mut running =
        start(&["collect", "--sandbox", "off", "--time", "60s", "--listen", "udp://127.0.0.1:0"]);
    running.await_remark("collect: sandbox off: ");
    let threads = threads_of(running.process()).unwrap();
    assert!(threads.iter().all(|thread| !thread.is_filtered), "{threads:?}");
}

#[test]
fn an_unknown_user_is_named_before_anything_is_opened() {
    let finished = start(&["collect", "--user", "no-such-user", "--time", "1s"]).finish();
    if is_root() {
        finished.assert_refused(super::USAGE, &["no-such-user", "--user"]);
    }
}
