use super::*;
use std::os::unix::fs::{PermissionsExt, symlink};

#[test]
fn a_file_is_replaced_whole_and_removed_once() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("x/taps/t.json");
    write_file(&path, b"one").unwrap();
    write_file(&path, b"two").unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), b"two");
    assert_eq!(std::fs::read_dir(path.parent().unwrap()).unwrap().count(), 1, "no draft is left");
    remove_file(&path).unwrap();
    remove_file(&path).unwrap();
    assert!(!path.exists());
}

#[test]
fn threads_that_write_one_file_share_no_draft() {
    const WRITES: usize = 200;
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("x/taps/t.json");
    let write = |text: u8| {
        for _ in 0..WRITES {
            write_file(&path, &[text; 4096]).unwrap();
            let read = read_file(&path).unwrap();
            assert!(read.len() == 4096 && read.iter().all(|byte| *byte == read[0]), "a mixed file");
        }
    };
    std::thread::scope(|scope| {
        for text in b"abcd" {
            scope.spawn(move || write(*text));
        }
    });
    assert_eq!(list_names(path.parent().unwrap()), ["t.json"], "no draft is left");
}

#[test]
fn draft_of_killed_process_blocks_no_writer() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("x/taps/t.json");
    write_file(&path, b"one").unwrap();
    for number in 0..100 {
        let left = format!("t.json.{}-{number}", process::current_process_id());
        std::fs::write(path.with_file_name(left), b"").unwrap();
    }
    write_file(&path, b"two").unwrap();
    assert_eq!(read_file(&path).unwrap(), b"two");
}

#[test]
fn directory_writable_by_others_is_not_used() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("x/tap/t.json");
    write_file(&path, b"one").unwrap();
    assert_eq!(read_file(&path).unwrap(), b"one");
    for open in [place.path().join("x"), place.path().join("x/tap")] {
        let mode = |mode| std::fs::set_permissions(&open, std::fs::Permissions::from_mode(mode)).unwrap();
        mode(0o777);
        assert!(read_file(&path).is_err() && write_file(&path, b"two").is_err());
        assert!(list_names(path.parent().unwrap()).is_empty());
        mode(0o700);
    }
    assert_eq!(list_names(path.parent().unwrap()), ["t.json"]);
}

#[test]
fn symbolic_links_are_not_followed() {
    let place = tempfile::tempdir().unwrap();
    let secret = place.path().join("secret");
    std::fs::write(&secret, b"{}").unwrap();
    let path = place.path().join("x/tap/t.json");
    write_file(&path, b"one").unwrap();
    std::fs::remove_file(&path).unwrap();
    symlink(&secret, &path).unwrap();
    assert!(read_file(&path).is_err());
    // One is replaced, not written through.
    write_file(&path, b"two").unwrap();
    assert_eq!(
        (std::fs::read(&secret).unwrap(), std::fs::read(&path).unwrap()),
        (b"{}".to_vec(), b"two".to_vec())
    );
    symlink(place.path().join("x"), place.path().join("y")).unwrap();
    assert!(read_file(&place.path().join("y/tap/t.json")).is_err());
}

#[test]
fn link_to_foreign_directory_is_never_written_through() {
    let place = tempfile::tempdir().unwrap();
    let strangers = place.path().join("strangers");
    std::fs::create_dir(&strangers).unwrap();
    symlink(&strangers, place.path().join("packetrig-1000")).unwrap();
    let path = place.path().join("packetrig-1000/locks/x");
    assert!(
        write_file(&path, b"").is_err()
            && open_lock_file(&path).is_err()
            && lock_file_for_update(&path).is_none()
    );
    assert_eq!(std::fs::read_dir(&strangers).unwrap().count(), 0, "made through the link");
    // Nor in a directory that others can write to, and not through a link in it.
    let open = place.path().join("open");
    std::fs::create_dir(&open).unwrap();
    std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o777)).unwrap();
    assert!(write_file(&open.join("locks/x"), b"").is_err());
    assert_eq!(std::fs::read_dir(&open).unwrap().count(), 0, "made where others can write");
    let own = place.path().join("own");
    std::fs::create_dir(&own).unwrap();
    symlink(&strangers, own.join("locks")).unwrap();
    assert!(write_file(&own.join("locks/x"), b"").is_err());
    assert_eq!(std::fs::read_dir(&strangers).unwrap().count(), 0);
}

#[test]
fn private_session_directory_is_preferred() {
    let place = tempfile::tempdir().unwrap();
    let session = place.path().join("1000");
    let fallback = std::env::temp_dir().join("packetrig-1000");
    let chosen = || user_runtime_directory(place.path(), &std::env::temp_dir(), None, 1000);
    assert_eq!(chosen(), fallback, "there is none");
    std::fs::create_dir(&session).unwrap();
    let mode = |mode| std::fs::set_permissions(&session, std::fs::Permissions::from_mode(mode)).unwrap();
    mode(0o700);
    assert_eq!(chosen(), session.join("packetrig"));
    mode(0o777);
    assert_eq!(chosen(), fallback, "others may write to it");
    mode(0o700);
    if let Err(error) = std::os::unix::fs::chown(&session, Some(65_534), None) {
        return println!("skipped: nothing can be given away: {error}");
    }
    assert_eq!(chosen(), fallback, "it is another user's");
}

#[test]
fn occupied_shared_directory_falls_back_to_home() {
    let place = tempfile::tempdir().unwrap();
    let (temporary, home) = (place.path().join("tmp"), place.path().join("home"));
    std::fs::create_dir(&temporary).unwrap();
    std::fs::create_dir(&home).unwrap();
    let (shared, at_home) = (temporary.join("packetrig-1000"), home.join(".cache/packetrig/run-1"));
    let chosen = || user_runtime_directory(place.path(), &temporary, Some(at_home.clone()), 1000);
    assert_eq!(chosen(), shared, "nobody was there before");
    std::fs::create_dir(&shared).unwrap();
    assert_eq!(chosen(), shared, "it is the user's own");
    if let Err(error) = std::os::unix::fs::chown(&shared, Some(65_534), None) {
        return println!("skipped: nothing can be given away: {error}");
    }
    assert_eq!(chosen(), at_home);
    write_file(&chosen().join("locks/x"), b"").unwrap();
    // Processes of one user agree, also after the other one has gone.
    std::fs::remove_dir(&shared).unwrap();
    assert_eq!(chosen(), at_home);
    symlink("/nowhere", &shared).unwrap();
    assert_eq!(chosen(), at_home);
}

#[test]
fn occupied_directory_error_names_run_dir_variable() {
    let place = tempfile::tempdir().unwrap();
    let taken = place.path().join("packetrig-1000");
    std::fs::create_dir(&taken).unwrap();
    if let Err(error) = std::os::unix::fs::chown(&taken, Some(65_534), None) {
        return println!("skipped: nothing can be given away: {error}");
    }
    let error = write_file(&taken.join("locks/x"), b"").unwrap_err();
    assert!(error.to_string().contains("PACKETRIG_RUN_DIR"), "{error}");
}

#[test]
fn only_files_of_a_sane_size_are_read() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("x/tap/t.json");
    let longest = usize::try_from(LONGEST_FILE).unwrap();
    write_file(&path, &vec![b' '; longest]).unwrap();
    assert_eq!(read_file(&path).unwrap().len(), longest);
    write_file(&path, &vec![b' '; longest + 1]).unwrap();
    assert!(read_file(&path).is_err());
}
