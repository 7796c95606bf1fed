//! A log whose bytes were changed: the check says in which file.

use super::{check, lab, number, send, start};
use packetrig_tests::program::Running;
use rustix::process::Signal;
use serde_json::Value;
use std::path::{Path, PathBuf};

/// Changes one byte of a file.
fn flip(path: &Path, at: usize) {
    let mut bytes = std::fs::read(path).unwrap();
    bytes[at] ^= 0x20;
    std::fs::write(path, bytes).unwrap();
}

fn shown(directory: &Path) -> String {
    Running::start(&["log", "check", &directory.display().to_string()], "").finish().stdout
}

#[test]
fn changed_log_byte_is_found_in_its_file() {
    let Some(lab) = lab() else { return };
    for flags in [&[][..], &["--zstd"]] {
        let directory = tempfile::tempdir().unwrap();
        let mut log = start(&lab, directory.path(), &[&["--rotate-size", "1MB"], flags].concat());
        send(&lab.ports()[0], 1..=2500);
        log.signal(Signal::TERM);
        assert_eq!(log.finish().code, Some(0));
        let (code, checked) = check(directory.path(), &[]);
        assert_eq!((code, &checked["complete"]), (0, &Value::Bool(true)), "{checked}");
        let files = number(&checked, "/log/files");
        assert_eq!((number(&checked, "/log/checksums/files"), files > 0), (files, true), "{checked}");
        let text = shown(directory.path());
        assert!(text.contains(&format!("checksums of {files} file")), "{text}");
        let mut paths: Vec<PathBuf> =
            std::fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
        paths.retain(|path| path.metadata().unwrap().len() > 0);
        for path in paths {
            // In the bytes of a frame, which no count shows.
            let at = usize::try_from(path.metadata().unwrap().len()).unwrap() / 2;
            flip(&path, at);
            let (code, checked) = check(directory.path(), &[]);
            assert_eq!(
                (code, &checked["complete"]),
                (1, &Value::Bool(false)),
                "{}: {checked}",
                path.display()
            );
            let text = shown(directory.path());
            let name = path.file_name().unwrap().to_str().unwrap();
            let number = name.strip_prefix("log-").and_then(|name| name.split('.').next());
            let words = number.map_or_else(
                || "index.jsonl was changed".to_owned(),
                |number| format!("file {} ", number.trim_start_matches('0')),
            );
            assert!(text.contains(&words), "{}: {text}", path.display());
            flip(&path, at);
        }
        assert_eq!(check(directory.path(), &[]).0, 0, "all is as it was");
    }
}
