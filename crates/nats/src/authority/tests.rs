use super::*;
use std::os::unix::fs::PermissionsExt;

fn authority() -> (tempfile::TempDir, FleetAuthority) {
    let place = tempfile::TempDir::new().expect("a place");
    let authority = FleetAuthority::open_or_create(&place.path().join("fleet")).expect("it is founded");
    (place, authority)
}

fn keys() -> NodeKeys {
    NodeKeys::from_private_key(&KeyPair::generate().expect("a key").serialize_pem()).expect("derived")
}

#[test]
fn authority_files_are_private_and_reopened_unchanged() {
    let (place, authority) = authority();
    authority.issue_server_certificate(&["127.0.0.1".into()]).expect("a certificate");
    let directory = place.path().join("fleet");
    for entry in fs::read_dir(&directory).expect("it is there") {
        let entry = entry.expect("readable");
        let mode = entry.metadata().expect("readable").permissions().mode() & 0o777;
        assert_eq!(mode, 0o600, "{:?}", entry.file_name());
    }
    let again = FleetAuthority::open_or_create(&directory).expect("it is there");
    assert_eq!(again.read_certificate_pem().expect("kept"), authority.read_certificate_pem().expect("kept"));
    assert_eq!(again.read_signing_key().expect("kept"), authority.read_signing_key().expect("kept"));
}

fn admit(authority: &FleetAuthority, name: &str, key: &NodeKeys) -> Result<NodeAdmission, Error> {
    let secret = authority.create_secret("test", Some(1), None).expect("made");
    authority.admit_node(&NodeName(name.into()), key, &secret.0, 1000)
}

#[test]
fn node_name_belongs_to_first_key() {
    let (_place, authority) = authority();
    let (name, key) = (NodeName("a".into()), keys());
    let first = admit(&authority, "a", &key).expect("it is free");
    let again = admit(&authority, "a", &key).expect("it is its own");
    assert_eq!((&first.grants, &first.controller), (&again.grants, &again.controller));
    assert!(matches!(admit(&authority, "a", &keys()), Err(Error::Taken(_))));
    for bad in ["controller", "A", "a.b", "", ">"] {
        assert!(matches!(admit(&authority, bad, &key), Err(Error::Name(_))), "{bad}");
    }
    assert_eq!(authority.list_node_names().expect("listed"), std::slice::from_ref(&name));
    authority.remove_node(&name).expect("it is there");
    assert_eq!(authority.list_node_names().expect("listed"), []);
}

#[test]
fn whoever_has_no_good_secret_reserves_no_name() {
    let (_place, authority) = authority();
    let name = NodeName("a".into());
    assert!(matches!(authority.admit_node(&name, &keys(), "00", 1000), Err(Error::Secret)));
    assert_eq!(authority.list_node_names().expect("listed"), []);
    let once = authority.create_secret("bench", Some(1), None).expect("made");
    authority.admit_node(&name, &keys(), &once.0, 1000).expect("the name is free");
    let second = authority.admit_node(&NodeName("b".into()), &keys(), &once.0, 1000);
    assert!(matches!(second, Err(Error::Secret)), "used up");
    assert_eq!(authority.list_node_names().expect("listed"), [name]);
}

#[test]
fn admission_without_valid_secret_reveals_no_names() {
    let (_place, authority) = authority();
    let (name, own) = (NodeName("a".into()), keys());
    let once = authority.create_secret("bench", Some(1), None).expect("made");
    authority.admit_node(&name, &own, &once.0, 1000).expect("the name is free");
    for secret in ["00", &once.0] {
        let refused = authority.admit_node(&name, &keys(), secret, 1000);
        assert!(matches!(refused, Err(Error::Secret)), "{refused:?}");
    }
    assert!(matches!(authority.admit_node(&name, &own, "00", 1000), Err(Error::Secret)), "its own key");
    authority.admit_node(&name, &own, &once.0, 1000).expect("it asks again, for it lost the answer");
    assert!(matches!(admit(&authority, "a", &keys()), Err(Error::Taken(_))), "with a good one");
}

#[test]
fn renewal_binds_claims_of_older_membership() {
    let (_place, authority) = authority();
    let (name, own) = (NodeName("a".into()), keys());
    let earlier = NodeKeys { user: String::new(), ..own.clone() };
    admit(&authority, "a", &earlier).expect("the name is free");
    let account = || {
        let admitted = authority.read_admitted_node(&name).expect("read").expect("it is there");
        authority.read_server_accounts().expect("made").sign_node_account_claims(&admitted).expect("made").id
    };
    let before = account();
    authority.renew_certificate(&name, &own, 2000).expect("it is in the fleet");
    assert_ne!(account(), before, "the old claims are worth nothing");
}

#[test]
fn concurrent_opens_create_one_authority() {
    let place = tempfile::TempDir::new().expect("a place");
    let directory = &place.path().join("fleet");
    let all: std::collections::BTreeSet<_> = std::thread::scope(|scope| {
        let open = || {
            let own = FleetAuthority::open_or_create(directory).expect("it is founded");
            let accounts = own.read_server_accounts().expect("it has them");
            (
                own.read_certificate_pem().expect("it has one"),
                accounts.sign_operator_token().expect("it signs"),
                own.read_signing_key().expect("it has"),
            )
        };
        let opening: Vec<_> = (0..8).map(|_| scope.spawn(open)).collect();
        opening.into_iter().map(|it| it.join().expect("it ends")).collect()
    });
    assert_eq!(all.len(), 1);
}

#[test]
fn single_use_secret_admits_one_node() {
    let (place, authority) = authority();
    let once = authority.create_secret("bench", Some(1), None).expect("made");
    // Two authorities, as two processes would hold the directory.
    let directory = &place.path().join("fleet");
    let secret = &once.0;
    let let_in = std::thread::scope(|scope| {
        let ask = |number: usize| {
            let own = FleetAuthority::open_or_create(directory).expect("it is there");
            own.admit_node(&NodeName(format!("n{number}")), &keys(), secret, 1000).is_ok()
        };
        let asking: Vec<_> = (0..8).map(|number| scope.spawn(move || ask(number))).collect();
        asking.into_iter().filter_map(|it| it.join().ok()).filter(|is_in| *is_in).count()
    });
    assert_eq!((let_in, authority.list_node_names().expect("listed").len()), (1, 1));
}

#[test]
fn failed_admission_uses_no_secret() {
    let (place, authority) = authority();
    let once = authority.create_secret("bench", Some(1), None).expect("made");
    let signing_key = place.path().join("fleet").join(SIGNING_KEY_FILE);
    let intact = fs::read(&signing_key).expect("written");
    fs::write(&signing_key, "damaged").expect("writable");
    let ask = || authority.admit_node(&NodeName("a".into()), &keys(), &once.0, 1000);
    assert!(matches!(ask(), Err(Error::Damaged(_))));
    assert_eq!(authority.list_node_names().expect("listed"), []);
    fs::write(&signing_key, intact).expect("writable");
    ask().expect("the use is still there");
}

#[test]
fn readmitted_name_gets_new_generation() {
    let (_place, authority) = authority();
    let (name, key) = (NodeName("a".into()), keys());
    let generation = || authority.list_admitted_nodes().expect("listed").remove(0).common_name();
    admit(&authority, "a", &key).expect("it is free");
    let first = generation();
    let renewed = authority.renew_certificate(&name, &key, 2000).expect("it is in the fleet");
    assert_eq!((generation(), renewed.grants.as_str()), (first.clone(), ""), "no secret is given again");
    assert!(renewed.expires > 2000);
    assert!(
        matches!(authority.renew_certificate(&name, &keys(), 2000), Err(Error::Unknown(_))),
        "another key"
    );
    authority.remove_node(&name).expect("it is there");
    assert!(matches!(authority.renew_certificate(&name, &key, 2000), Err(Error::Unknown(_))), "removed");
    admit(&authority, "a", &key).expect("it is free");
    assert_ne!(generation(), first);
}

#[test]
fn secret_respects_use_count_expiry_and_revocation() {
    let (_place, authority) = authority();
    let once = authority.create_secret("bench", Some(1), Some(100)).expect("made");
    assert!(matches!(authority.use_secret_once(&once.0, 100), Err(Error::Secret)), "too late");
    assert!(matches!(authority.use_secret_once("00", 99), Err(Error::Secret)), "unknown");
    authority.use_secret_once(&once.0, 99).expect("good");
    assert!(matches!(authority.use_secret_once(&once.0, 99), Err(Error::Secret)), "used up");
    let any = authority.create_secret("room", None, None).expect("made");
    authority.use_secret_once(&any.0, u64::MAX).expect("good");
    assert_eq!(authority.revoke_secrets("room").expect("there"), 1);
    assert!(matches!(authority.use_secret_once(&any.0, 0), Err(Error::Secret)), "taken back");
}

#[test]
fn repeated_admission_is_free_and_undo_is_complete() {
    let (_place, authority) = authority();
    let (name, key) = (NodeName("a".into()), keys());
    let once = authority.create_secret("bench", Some(1), None).expect("made");
    let first = authority.admit_node(&name, &key, &once.0, 1000).expect("it is free");
    let again = authority.admit_node(&name, &key, &once.0, 1000).expect("it is the same question");
    assert_eq!(first.grants, again.grants);
    // Undoing an admission that changed nothing takes nothing away.
    authority.undo_admission(&name, &again, &once.0).expect("nothing to do");
    assert_eq!(authority.list_node_names().expect("listed"), std::slice::from_ref(&name));
    assert!(matches!(
        authority.admit_node(&NodeName("b".into()), &keys(), &once.0, 1000),
        Err(Error::Secret)
    ));
    authority.undo_admission(&name, &first, &once.0).expect("it can");
    assert_eq!(authority.list_node_names().expect("listed"), []);
    let other = authority.admit_node(&name, &keys(), &once.0, 1000).expect("name and use are there again");
    authority.undo_admission(&name, &first, &once.0).expect("it can");
    assert_eq!(authority.list_node_names().expect("listed"), [name], "another one has the name by now");
    assert_ne!(other.grants, first.grants);
}
