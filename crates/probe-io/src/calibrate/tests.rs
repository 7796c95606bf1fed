use super::*;
use crate::lab::LabCable;

#[test]
fn calibration_delivers_all_probes_with_ordered_stamps() {
    let Some(lab) = LabCable::new() else { return };
    let extent = CalibrationOptions { count: 200, gap: Nanos::from_micros(50), train: 50 };
    let (near, far) = (lab.at("a"), lab.at("b"));
    let found = calibrate_mechanisms((&near, &far), &[], &ReleaseMechanism::ALL, extent, &|| false).unwrap();
    assert_eq!(found.len(), ReleaseMechanism::ALL.len());
    for found in &found {
        if found.obstacle.is_some() {
            assert_eq!(found.sent, 0);
            continue;
        }
        assert_eq!((found.sent, found.arrived, found.out_of_order), (200, 200, 0), "{found:?}");
        let (error, released) = (found.error_ns.unwrap(), found.release_to_arrival_ns.unwrap());
        assert!(error.least <= error.p50 && error.p50 <= error.most, "{found:?}");
        if found.mechanism != ReleaseMechanism::Ring {
            assert!(error.least > 0, "nothing arrives before its instant: {found:?}");
            assert!(released.most > 0, "{found:?}");
        }
    }
    let can: Vec<_> = found.iter().filter(|f| f.obstacle.is_none()).map(|f| f.mechanism).collect();
    assert!(
        can.starts_with(&[ReleaseMechanism::Sleep, ReleaseMechanism::Spin, ReleaseMechanism::Ring]),
        "{can:?}"
    );
    let kept = build_stored_calibration(&near, &found);
    assert_eq!((kept.driver.as_str(), kept.mechanisms.len()), ("veth", can.len()));
}

#[test]
fn calibration_refuses_interface_with_foreign_address() {
    let Some(lab) = LabCable::new() else { return };
    let mut links = NamespaceLinks::open_in(&lab.netns).unwrap();
    links.add_address(lab.index("b"), "10.1.2.3".parse().unwrap(), 24).unwrap();
    let extent = CalibrationOptions { count: 1, gap: Nanos::ZERO, train: 1 };
    let (near, far) = (lab.at("a"), lab.at("b"));
    let perform = |confirmed: &[PortLocation]| {
        calibrate_mechanisms((&near, &far), confirmed, &[ReleaseMechanism::Sleep], extent, &|| false)
    };
    let refused = perform(std::slice::from_ref(&near));
    assert!(matches!(refused, Err(Error::Guard(packetrig_guard::Error::Refused(_)))), "{refused:?}");
    assert_eq!(perform(std::slice::from_ref(&far)).unwrap()[0].arrived, 1);
}
