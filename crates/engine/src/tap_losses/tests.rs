use super::*;

fn at(ms: u64) -> MonoTime {
    MonoTime::from_nanos(ms * 1_000_000)
}

struct Place {
    _place: tempfile::TempDir,
    directory: PathBuf,
}

fn place() -> Place {
    let place = tempfile::tempdir().expect("a place");
    let directory = place.path().join("x/tap-losses");
    Place { _place: place, directory }
}

/// (from, until, frames) in ms.
fn found(place: &Place, from: u64, until: u64) -> Vec<(u64, u64, Option<u64>)> {
    let ms = |time: MonoTime| time.since(at(0)).as_u64() / 1_000_000;
    let found = find_tap_loss_periods_in(&place.directory, at(from), at(until), Nanos::from_millis(1));
    found.into_iter().map(|time| (ms(time.from), ms(time.until), time.frames)).collect()
}

#[test]
fn tap_losses_are_found_only_within_run_time() {
    let place = place();
    let mut log = TapLossLog::create_loss_log_in(&place.directory, "t", at(1000)).unwrap();
    log.report_losses(at(1100), at(1100), 0).unwrap();
    log.report_losses(at(1200), at(1200), 7).unwrap();
    log.report_losses(at(1300), at(1300), 7).unwrap();
    log.report_losses(at(5000), at(5000), 9).unwrap();
    assert_eq!(found(&place, 500, 1150), [(1100, 1200, Some(7))]);
    assert_eq!(found(&place, 1200, 1300), []);
    assert_eq!(found(&place, 1150, 4000), [(1100, 1200, Some(7)), (1300, 5000, Some(2))]);
    // The rings are not read at the same time: a loss in one of them may be as late as now.
    log.report_losses(at(5100), at(5200), 12).unwrap();
    assert_eq!(found(&place, 5050, 5090), [(5000, 5200, Some(3))]);
    log.close_loss_log(at(6000), 13).unwrap();
    assert_eq!(found(&place, 5500, 9000), [(5100, 6000, Some(1))], "its end is told, too");
    assert_eq!(found(&place, 6000, 9000), []);
}

#[test]
fn a_tap_without_losses_leaves_nothing() {
    let place = place();
    TapLossLog::create_loss_log_in(&place.directory, "t", at(1000))
        .unwrap()
        .close_loss_log(at(2000), 0)
        .unwrap();
    assert_eq!(runtime_directory::list_names(&place.directory), Vec::<std::ffi::OsString>::new());
    assert_eq!(found(&place, 500, 3000), []);
}

#[test]
fn silent_tap_is_doubtful_since_last_report() {
    let place = place();
    let mut log = TapLossLog::create_loss_log_in(&place.directory, "t", at(1000)).unwrap();
    log.report_losses(at(2000), at(2000), 0).unwrap();
    assert_eq!(found(&place, 1500, 3000), [(2000, 3000, None)]);
    assert_eq!(found(&place, 2500, 3000), [(2000, 3000, None)], "it lives and stands still");
    drop(log);
    assert_eq!(found(&place, 1500, 3000), [(2000, 3000, None)], "it was killed during the run");
    assert_eq!(found(&place, 2500, 3000), [], "it was killed before the run");
}

#[test]
fn oldest_tap_losses_are_merged_without_losing_frames() {
    let place = place();
    let mut log = TapLossLog::create_loss_log_in(&place.directory, "t", at(0)).unwrap();
    (1..=1000).for_each(|n| log.report_losses(at(10 * n), at(10 * n), n).unwrap());
    let found = found(&place, 0, 10_000);
    assert_eq!(found.len(), MAX_LOSSES);
    assert_eq!(found[0], (0, 10 * (1000 - MAX_LOSSES as u64 + 1), Some(1000 - MAX_LOSSES as u64 + 1)));
    assert_eq!(found.iter().filter_map(|(_, _, frames)| *frames).sum::<u64>(), 1000);
}

#[test]
fn files_of_long_ended_taps_are_removed() {
    let place = place();
    let log = TapLossLog::create_loss_log_in(&place.directory, "old", at(1000)).unwrap();
    log.close_loss_log(at(2000), 5).unwrap();
    let later = at(2001) + ENDED_TAP_FILE_LIFETIME;
    let living = TapLossLog::create_loss_log_in(&place.directory, "living", at(1000)).unwrap();
    drop(TapLossLog::create_loss_log_in(&place.directory, "new", later).unwrap());
    let mut left: Vec<String> =
        list_files(&place.directory).iter().filter_map(|path| Some(read_file(path)?.tap)).collect();
    left.sort();
    assert_eq!(left, ["living", "new"]);
    drop(living);
}

#[test]
fn tap_loss_becomes_event_and_caveat_naming_tap() {
    let mut result = NodeResult { started: at(1000), ended: at(3000), ..NodeResult::default() };
    let times = [Some(12), None].map(|frames| TapLossPeriod {
        tap: "eth1-eth2".into(),
        from: at(1500),
        until: at(1600),
        frames,
    });
    add_tap_loss_caveats(&mut result, &times);
    for time in &times {
        let PortEvent { what, from, until, only_sending } = time.port_event();
        assert_eq!(what, PortEventKind::TapDropped { frames: time.frames });
        assert_eq!((from, until, only_sending), (at(1500), Some(at(1600)), false));
    }
    let texts: Vec<&str> = result.caveats.iter().map(|caveat| caveat.text.as_str()).collect();
    assert!(texts[0].contains("tap eth1-eth2") && texts[0].contains("lost 12 frames"), "{texts:?}");
    assert!(texts[0].contains("between 0.500 s and 0.600 s"), "{texts:?}");
    assert!(texts[1].contains("reports no counts after 0.500 s"), "{texts:?}");
    assert!(result.caveats.iter().all(|caveat| caveat.doubt == CaveatKind::TapLost && !caveat.matters));
}
