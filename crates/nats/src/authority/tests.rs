use super::*;
use std::os::unix::fs::PermissionsExt;

fn authority() -> (tempfile::TempDir, Authority) {
    let place = tempfile::TempDir::new().expect("a place");
    let authority = Authority::open(&place.path().join("fleet")).expect("it is founded");
    (place, authority)
}

fn point() -> Vec<u8> {
    KeyPair::generate().expect("a key").der_bytes().to_vec()
}

#[test]
fn its_files_are_its_owners_only_and_it_is_the_same_when_opened_again() {
    let (place, authority) = authority();
    authority.server(&["127.0.0.1".into()]).expect("a certificate");
    let directory = place.path().join("fleet");
    for entry in std::fs::read_dir(&directory).expect("it is there") {
        let entry = entry.expect("readable");
        let mode = entry.metadata().expect("readable").permissions().mode() & 0o777;
        assert_eq!(mode, 0o600, "{:?}", entry.file_name());
    }
    let again = Authority::open(&directory).expect("it is there");
    assert_eq!(again.certificate().expect("kept"), authority.certificate().expect("kept"));
    assert_eq!(again.signing().expect("kept"), authority.signing().expect("kept"));
}

#[test]
fn a_name_belongs_to_the_key_that_came_first() {
    let (_place, authority) = authority();
    let (name, key) = (NodeName("a".into()), point());
    let first = authority.admit(&name, &key).expect("it is free");
    let again = authority.admit(&name, &key).expect("it is its own");
    assert_eq!((&first.grants, &first.controller), (&again.grants, &again.controller));
    assert!(matches!(authority.admit(&name, &point()), Err(Error::Taken(_))));
    for bad in ["controller", "A", "a.b", "", ">"] {
        assert!(matches!(authority.admit(&NodeName(bad.into()), &key), Err(Error::Name(_))), "{bad}");
    }
    assert_eq!(authority.nodes().expect("listed"), std::slice::from_ref(&name));
    authority.remove(&name).expect("it is there");
    assert_eq!(authority.nodes().expect("listed"), []);
}

#[test]
fn a_secret_is_good_as_often_and_as_long_as_it_says() {
    let (_place, authority) = authority();
    let once = authority.allow("bench", Some(1), Some(100)).expect("made");
    assert!(authority.accepts(&once.0, 99).expect("asked"));
    assert!(!authority.accepts(&once.0, 100).expect("asked"), "too late");
    assert!(!authority.accepts("00", 99).expect("asked"), "unknown");
    authority.use_up(&once.0, 99).expect("good");
    assert!(matches!(authority.use_up(&once.0, 99), Err(Error::Secret)), "used up");
    let any = authority.allow("room", None, None).expect("made");
    authority.use_up(&any.0, u64::MAX).expect("good");
    assert_eq!(authority.revoke("room").expect("there"), 1);
    assert!(!authority.accepts(&any.0, 0).expect("asked"), "taken back");
}
