//! A server that root starts has a user of its own, and everything that the fleet does with the server works with it.

use crate::fleet::{Fleet, fabric, node, roomy};
use crate::server::{program, say, setup};
use packetrig_fleet::fabric::{Endpoint as _, Fabric as _};
use packetrig_fleet::message::{MessageBody, NodeName, Nonce};
use packetrig_nats::broker::{BrokerSetup, Error, MessageServer, ServerUser};
use packetrig_nats::{NatsEndpoint, NatsFabric};
use packetrig_sys::sandbox::{self, ProcessCapabilities, ProcessUser, ThreadStatus, read_thread_statuses};
use packetrig_units::Nanos;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::Command;
use std::sync::MutexGuard;
use std::time::Duration;

/// The server's own user; `None` where it has none.
fn own_user(server: &MessageServer) -> Option<ProcessUser> {
    match server.user() {
        ServerUser::Own(user) => Some(user.clone()),
        ServerUser::Starter(reason) => {
            say(&format!("skipped: no user for the server: {reason}"));
            None
        }
    }
}

fn server(fleet: &Fleet) -> MutexGuard<'_, MessageServer> {
    fleet.broker.lock().expect("whole")
}

fn assert_confined(process: u32, user: &ProcessUser) {
    let status = fs::read_to_string(format!("/proc/{process}/status")).expect("it runs");
    let (uid, gid) = (user.uid, user.gid);
    for line in [format!("Uid:\t{uid}\t{uid}\t{uid}\t{uid}"), format!("Gid:\t{gid}\t{gid}\t{gid}\t{gid}")] {
        assert!(status.contains(&line), "{status}");
    }
    for thread in read_thread_statuses(process).expect("it runs") {
        let ThreadStatus { effective, permitted, ambient, bounding, .. } = thread;
        assert_eq!(effective | permitted | ambient | bounding, 0, "{thread:?}");
        assert!(thread.groups.is_empty() && thread.no_new_privs, "{thread:?}");
    }
}

/// Sends messages until one arrives, as the state machines do.
fn assert_reaches(controller: &mut NatsEndpoint, agent: &mut NatsEndpoint) {
    let is_heard = (0..600).any(|_| {
        controller.post_message(agent.name(), MessageBody::RollCall(Nonce(1))).unwrap_or(());
        agent.receive_message(Nanos::from_millis(100)).is_some()
    });
    assert!(is_heard);
}

fn kill(process: u32) {
    let status = Command::new("kill").args(["-9", &process.to_string()]).status().expect("there is a kill");
    assert!(status.success());
}

/// The process of the server once its keeper has reported the second start.
fn await_second_start(fleet: &Fleet) -> u32 {
    let is_told = (0..600).any(|_| {
        std::thread::sleep(Duration::from_millis(50));
        server(fleet).server_start_count() == 2
    });
    assert!(is_told, "the server comes back");
    server(fleet).process_id()
}

/// Every file below belongs to the user, and no other user may use it.
fn assert_owned(directory: &Path, user: &ProcessUser) {
    for entry in fs::read_dir(directory).expect("it is there") {
        let path = entry.expect("it is there").path();
        // The server removes files of its own at any time.
        let Ok(facts) = fs::symlink_metadata(&path) else { continue };
        assert_eq!((facts.uid(), facts.mode() & 0o007), (user.uid, 0), "{}", path.display());
        if facts.is_dir() {
            assert_owned(&path, user);
        }
    }
}

#[test]
fn server_of_root_has_a_user_of_its_own_and_works() {
    let Some(program) = program() else { return };
    let fleet = Fleet::new(program);
    let Some(user) = own_user(&server(&fleet)) else { return };
    let first = server(&fleet).process_id();
    assert_confined(first, &user);
    // Admitted while the server runs: its account is a file that the server reads.
    let member = fleet.member("a");
    let mut agent = fabric(&member).open_endpoint(node("a")).expect("it is let in");
    let mut controller = fleet.controller().open_endpoint(NodeName::controller()).expect("it is free");
    assert_reaches(&mut controller, &mut agent);
    // Killed: the server that comes back is confined as well.
    kill(first);
    assert_reaches(&mut controller, &mut agent);
    let second = await_second_start(&fleet);
    assert_confined(second, &user);
    // Asked by a signal to read its configuration and its new certificate.
    let asker = fleet.authority.load_system_user_credentials().expect("it has keys");
    server(&fleet).reload_configuration(&asker).expect("it reads them again");
    assert_eq!(server(&fleet).process_id(), second);
    // Removed: its account's file goes, and it is refused.
    fleet.authority.remove_node(&node("a")).expect("it is known");
    let nodes = fleet.authority.list_admitted_nodes().expect("readable");
    server(&fleet)
        .set_allowed_nodes(&nodes, fleet.authority.load_system_user_credentials().expect("keys"))
        .expect("it obeys");
    let access = roomy(member.server_access().expect("it is whole"));
    assert!(NatsFabric::new(access).and_then(|again| again.open_endpoint(node("a"))).is_err());
    assert_owned(&fleet.place.path().join("server"), &user);
    drop(fleet);
    assert!(!Path::new(&format!("/proc/{second}")).exists(), "it ends with the fleet");
}

/// Starts the server from a thread that cannot change users, as in a container without these capabilities.
fn start_without_rights(setup: &BrokerSetup) -> Result<MessageServer, Error> {
    std::thread::scope(|scope| {
        let starting = scope.spawn(|| {
            sandbox::limit_rights(ProcessCapabilities::NONE).expect("anybody may give up rights");
            MessageServer::start_server_and_wait(setup.clone())
        });
        starting.join().expect("no panic")
    })
}

#[test]
fn server_without_right_to_change_users_runs_as_its_starter() {
    let Some(program) = program() else { return };
    let place = tempfile::TempDir::new().expect("a place for the server");
    let setup = setup(program, &place);
    let server = start_without_rights(&setup).expect("it starts all the same");
    let own = packetrig_sys::owner::own_user();
    assert!(
        read_thread_statuses(server.process_id()).expect("it runs").iter().all(|thread| thread.user == own)
    );
    let ServerUser::Starter(reason) = server.user() else { panic!("{:?}", server.user()) };
    assert!(reason.contains("only root") || reason.contains("CAP_SETUID"), "{reason}");
    drop(server);
    // Now with the right: the files become the server's. Without it again, nobody could use them.
    let server = MessageServer::start_server_and_wait(setup.clone()).expect("it starts");
    let Some(user) = own_user(&server) else { return };
    assert_confined(server.process_id(), &user);
    assert_owned(&setup.directory, &user);
    drop(server);
    let refused = start_without_rights(&setup).expect_err("the files are another user's").to_string();
    let expected = format!("{}: the directory belongs to user {}", setup.directory.display(), user.uid);
    assert!(refused.starts_with(&expected) && refused.contains("chown -R"), "{refused}");
}
