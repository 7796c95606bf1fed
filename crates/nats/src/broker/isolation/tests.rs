use super::*;
use std::net::SocketAddr;
use std::process::Stdio;
use tempfile::TempDir;

/// A fleet of an earlier version: all its files are root's. Other users may look into its directory.
fn earlier_fleet() -> TempDir {
    let place = tempfile::tempdir().expect("a place");
    fs::set_permissions(place.path(), fs::Permissions::from_mode(0o755)).expect("it is ours");
    for name in ["broker/own", "broker/deep/own", "authority/operator.key", "fleet.json"] {
        let file = place.path().join(name);
        let directory = file.parent().expect("it has one");
        fs::create_dir_all(directory).expect("a directory");
        private_files::write_file(&file, name).expect("a file");
    }
    place
}

fn setup_in(place: &TempDir, port: u16) -> BrokerSetup {
    BrokerSetup {
        program: None,
        listen: SocketAddr::from(([127, 0, 0, 1], port)),
        directory: place.path().join("broker"),
        store_room: 7,
        security: None,
        nodes: Vec::new(),
    }
}

/// A shell in the place of the server, or `None` where it gets no user of its own.
fn shell_as_server(place: &TempDir) -> Option<PreparedServer> {
    let program = ServerProgram::open("/bin/sh".into()).expect("there is a shell");
    let setup = setup_in(place, 4222);
    let taken = DedicatedServerUser::take(&setup, &program);
    let own = taken.inspect_err(|reason| println!("skipped: no user for the server: {reason}")).ok()?;
    let (user, shown_directory) = (ServerUser::Own(own.user), setup.directory);
    Some(PreparedServer { user, program, directory: own.directory, shown_directory, threads: own.threads })
}

/// Output of a script in the place of the server, without any other wall.
fn run(isolation: &PreparedServer, script: &str) -> String {
    let output = isolation.run_as_server(|| {
        let mut command = isolation.build_server_command();
        command.arg("-c").arg(script).stdin(Stdio::null());
        command.output().map_err(server_io_error("it starts"))
    });
    String::from_utf8_lossy(&output.expect("it ends").stdout).trim().to_owned()
}

#[test]
fn program_of_servers_user_reads_no_key_without_other_walls() {
    let place = earlier_fleet();
    let Some(isolation) = shell_as_server(&place) else { return };
    let read = |path: &str| run(&isolation, &format!("read -r line < {path}; echo \"$line\""));
    // The shell's last line has no end, so `read` fails, but it has read the line.
    assert_eq!([read("own"), read("deep/own")], ["broker/own", "broker/deep/own"]);
    let above = place.path().display();
    for path in ["../authority/operator.key".to_owned(), format!("{above}/authority/operator.key")] {
        assert_eq!(read(&path), "", "{path}");
    }
    assert_eq!(read("../fleet.json"), "");
    assert_eq!(run(&isolation, "echo more > new && echo done"), "done");
    assert_eq!(run(&isolation, "echo more > ../new && echo done"), "");
    assert_eq!(run(&isolation, "ln ../fleet.json linked && echo done"), "");
    assert_eq!(run(&isolation, &format!("kill -0 {} && echo done", std::process::id())), "");
}

#[test]
fn servers_files_are_written_as_its_user() {
    let place = earlier_fleet();
    let Some(isolation) = shell_as_server(&place) else { return };
    let ServerUser::Own(user) = isolation.user() else { panic!("it has its own") };
    let key = place.path().join("authority/operator.key");
    // What root would write through such a link.
    assert_eq!(run(&isolation, &format!("ln -s {} planted && echo done", key.display())), "done");
    let planted = isolation.directory().join("planted");
    let write =
        || private_files::write_file(&planted, "x").map_err(server_io_error(planted.display().to_string()));
    let refused = isolation.run_as_server(write).expect_err("the key is root's").to_string();
    assert!(refused.starts_with(&format!("{}/broker/planted: ", place.path().display())), "{refused}");
    assert_eq!(fs::read_to_string(&key).expect("root reads it"), "authority/operator.key");
    let file = isolation.directory().join("accounts.jwt");
    let write = || private_files::replace_file(&file, "x").map_err(server_io_error("a file"));
    isolation.run_as_server(write).expect("it is the user's directory");
    let facts = fs::metadata(place.path().join("broker/accounts.jwt")).expect("it is there");
    assert_eq!((facts.uid(), facts.gid(), facts.mode() & 0o7777), (user.uid, user.gid, 0o600));
}

#[test]
fn directory_goes_back_to_its_owner_and_stays_with_a_number() {
    let place = earlier_fleet();
    let owner = || fs::metadata(place.path().join("broker/deep/own")).expect("it is there").uid();
    let before = owner();
    let Some(isolation) = shell_as_server(&place) else { return };
    let ServerUser::Own(user) = isolation.user() else { panic!("it has its own") };
    assert_eq!(owner(), user.uid);
    let again = shell_as_server(&place).expect("as before");
    assert_eq!(again.user(), isolation.user());
    // As if this process could not change users now.
    user::reclaim_directory(&place.path().join("broker")).expect("root may do that");
    assert_eq!(owner(), before);
}

#[test]
fn reasons_against_another_user_are_given() {
    let place = earlier_fleet();
    let Some(_) = shell_as_server(&place) else { return };
    let program = place.path().join("server");
    fs::copy("/bin/sh", &program).expect("there is a shell");
    let take = |port: u16, mode: u32| {
        fs::set_permissions(&program, fs::Permissions::from_mode(mode)).expect("it is ours");
        let held = ServerProgram::open(program.clone()).expect("it is there");
        DedicatedServerUser::take(&setup_in(&place, port), &held).map(|_| ())
    };
    assert_eq!(take(4222, 0o755), Ok(()));
    assert!(take(4222, 0o700).is_err_and(|reason| reason.contains("run `chmod o+x`")));
    assert!(take(1, 0o755).is_err_and(|reason| reason.contains("listen at port 1")));
    let linked = place.path().join("linked");
    std::os::unix::fs::symlink(place.path().join("broker"), &linked).expect("a link");
    let held = ServerProgram::open("/bin/sh".into()).expect("there is a shell");
    let through_link = BrokerSetup { directory: linked, ..setup_in(&place, 4222) };
    assert!(DedicatedServerUser::take(&through_link, &held).is_err(), "a link may lead anywhere");
}
