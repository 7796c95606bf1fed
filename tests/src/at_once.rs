//! Cases of one test that go at the same time.

/// Does this for all cases, each in a thread of its own: most of a run is waiting. Panics if one of them panics.
pub fn for_all<C: Sync, T: Send>(cases: &[C], act: impl Fn(&C) -> T + Sync) -> Vec<T> {
    std::thread::scope(|scope| {
        let act = &act;
        let running: Vec<_> = cases.iter().map(|case| scope.spawn(move || act(case))).collect();
        running.into_iter().map(|case| case.join().expect("the case that panicked has said why")).collect()
    })
}
