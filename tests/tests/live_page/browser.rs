//! A run is driven from the page, in a real browser.

use packetrig_tests::browser::Browser;
use packetrig_tests::served_lab::ServedLab;
use packetrig_tests::skip;
use serde_json::Value;

/// A browser at the page of a server; `None` if one of them cannot be had.
fn open(port: u16) -> Option<(ServedLab, Browser)> {
    let rig = ServedLab::start(port)?;
    let mut browser = Browser::start()?;
    browser.open_address(&format!("{}/ui/", rig.origin()));
    Some((rig, browser))
}

/// The number in the list of the ledger, where it says `NAME: NUMBER`.
fn ledger(name: &str) -> String {
    format!(
        "Number([...document.querySelectorAll('#ledger-list li')].map((item) => item.textContent)
            .find((text) => text.includes('{name}: '))?.split(': ').pop().split(' (')[0].replace(/[^0-9]/g, '') || NaN)"
    )
}

fn demand_clean(rig: &ServedLab, browser: &Browser) {
    assert_eq!(browser.complaints(), Vec::<String>::new());
    let foreign: Vec<String> = browser
        .requested()
        .into_iter()
        .filter(|address| !address.starts_with(&rig.origin()) && !address.starts_with("data:"))
        .collect();
    assert_eq!(foreign, Vec::<String>::new(), "the page loads nothing from elsewhere");
}

#[test]
fn page_controls_run_from_load_to_stop() {
    let Some((rig, mut browser)) = open(18_913) else { return };
    browser.await_true("document.querySelector('#link').textContent.includes('Connected')");
    assert!(browser.text("main").contains("This server has no configuration"));
    let file = tempfile::NamedTempFile::new().expect("there is room for a configuration");
    std::fs::write(file.path(), rig.configuration().to_string()).expect("there is room for a configuration");
    browser.choose_file("#configuration-file", file.path());
    browser.click("#configuration-file + button");
    browser.await_true("document.querySelectorAll('.stream-table tbody th').length === 2");
    // A name is text, whatever is in it.
    assert_eq!(browser.text(".stream-table tbody th"), "<b>video</b>");

    browser.click("[data-change=start]");
    browser.await_true(&format!("{} > 200", ledger("counted")));
    browser
        .await_true("document.querySelector('#run-state').textContent.includes('streams that transmit: 2')");
    let before = browser.evaluate(&ledger("counted"));
    browser.await_true(&format!("{} > {before} + 100", ledger("counted")));

    rig.cut_the_path();
    browser.await_true(&format!("{} > 300", ledger("in flight or lost")));
    assert_eq!(browser.evaluate(&ledger("dropped by the sending interface")), 0);
    assert_eq!(browser.evaluate(&ledger("dropped by our full ring")), 0);
    browser.click("[data-change=stop]");
    browser.await_true("document.querySelector('#loss-note').textContent.includes('Nothing moves')");
    // What is drawn is what a script reads.
    let live = rig.get("/api/v1/live");
    assert_eq!(
        browser.evaluate(&ledger("lost on the path or in doubt")),
        live["run"]["losses"]["path_or_in_doubt"]
    );
    assert_eq!(browser.evaluate(&ledger("counted")), live["run"]["ledger"]["counted"]);

    browser.click("#end-run");
    browser.await_true("document.querySelector('h1').textContent === 'No run'");
    browser.click("a[data-page=runs]");
    browser.await_true(
        "document.querySelector('h1').textContent === 'Results' && document.querySelector('tbody a')",
    );
    browser.click("tbody a");
    browser.await_true("document.querySelector('h1').textContent.startsWith('Run ')");
    let in_the_end = format!("{} + {}", ledger("lost on the path"), ledger("lost in doubt"));
    assert_eq!(browser.evaluate(&in_the_end), live["run"]["losses"]["path_or_in_doubt"]);
    demand_clean(&rig, &browser);
}

#[test]
fn page_stays_correct_after_reload_and_restart() {
    let Some((mut rig, mut browser)) = open(18_914) else { return };
    rig.post("/config", &rig.configuration());
    rig.post("/api/v1/streams", &serde_json::json!({ "change": "start" }));
    browser.await_true(&format!("{} > 100", ledger("counted")));
    browser.reload();
    browser.await_true(&format!("{} > 100", ledger("counted")));
    let shown = browser.evaluate(&ledger("counted"));
    browser.await_true(&format!("{} > {shown}", ledger("counted")));
    let is_still_sending = rig.get("/api/v1/live")["run"]["totals"]["started"].clone();
    assert_eq!(is_still_sending, 2, "a viewer that comes and goes does not disturb the run");
    demand_clean(&rig, &browser);

    rig.restart();
    browser.await_true(
        "document.querySelector('#link').textContent.includes('Connected') && document.querySelector('h1').textContent === 'No run'",
    );
    rig.post("/config", &rig.configuration());
    browser.await_true("document.querySelectorAll('.stream-table tbody th').length === 2");
    assert_eq!(rig.get("/api/v1/live")["configuration"], 1);
}

#[test]
fn page_fits_all_widths_and_labels_controls() {
    let Some((rig, mut browser)) = open(18_915) else { return };
    rig.post("/config", &rig.configuration());
    rig.post("/api/v1/streams", &serde_json::json!({ "change": "start" }));
    browser.await_true(&format!("{} > 20", ledger("counted")));
    for (width, is_dark) in [(360, false), (360, true), (1280, false), (3840, true)] {
        browser.resize(width);
        browser.prefer(if is_dark { "dark" } else { "light" });
        browser.await_true(&format!("innerWidth === {width}"));
        let overflow = browser.evaluate("document.documentElement.scrollWidth - innerWidth");
        assert!(overflow.as_i64().is_some_and(|pixels| pixels <= 0), "{width}: {overflow} pixels too wide");
        let covered = browser.evaluate(
            "[...document.querySelectorAll('svg.ledger, svg.plot')].filter((node) => node.getBoundingClientRect().width < 100).length",
        );
        assert_eq!(covered, 0, "{width}: a drawing is too small");
    }
    let nameless: Value = browser.evaluate(
        "[...document.querySelectorAll('button, input, select, a')].filter((node) => !(node.textContent.trim()
            || node.getAttribute('aria-label') || document.querySelector(`label[for=\"${node.id}\"]`)))
            .map((node) => node.outerHTML)",
    );
    assert_eq!(nameless, serde_json::json!([]));
    assert_eq!(browser.evaluate("document.querySelectorAll('[role=img]:not([aria-label])').length"), 0);
}

#[test]
fn axe_finds_no_violations_on_run_and_results() {
    let Some(axe) = skip::client("axe") else { return };
    let axe = std::fs::read_to_string(axe).expect("a client that was installed");
    let Some((rig, mut browser)) = open(18_920) else { return };
    rig.post("/config", &rig.configuration());
    rig.post("/api/v1/streams", &serde_json::json!({ "change": "start" }));
    browser.await_true(&format!("{} > 20", ledger("counted")));
    for (page, heading) in [("live", "Run "), ("runs", "Results")] {
        browser.evaluate(&format!("location.hash = '#/{page}'"));
        browser.await_true(&format!("document.querySelector('h1')?.textContent.startsWith('{heading}')"));
        for (width, scheme) in [(1280, "light"), (360, "dark")] {
            browser.resize(width);
            browser.prefer(scheme);
            let found = browser.axe_violations(&axe);
            assert_eq!(found, Vec::<String>::new(), "{page}, {width} px, {scheme}");
        }
    }
}

#[test]
fn the_book_is_read_and_searched_on_the_page() {
    let Some(axe) = skip::client("axe") else { return };
    let axe = std::fs::read_to_string(axe).expect("a client that was installed");
    let Some((rig, mut browser)) = open(18_936) else { return };
    browser
        .await_true("[...document.querySelectorAll('#pages a')].some((link) => link.textContent === 'Docs')");
    browser.evaluate(
        "[...document.querySelectorAll('#pages a')].find((link) => link.textContent === 'Docs').click()",
    );
    browser.await_true("document.querySelector('h1')?.textContent === 'The book'");
    browser.evaluate(
        "document.querySelector('#words').value = 'packetrig.rules.yml'; document.querySelector('form button').click()",
    );
    browser.await_true("document.querySelector('h1')?.textContent.endsWith('lines with all of these words')");
    browser.evaluate("document.querySelector('main li a').click()");
    browser.await_true("document.querySelector('article pre') !== null && location.hash !== ''");
    assert_eq!(browser.evaluate("document.querySelector(location.hash) !== null"), true);
    browser.open_address(&format!("{}/book/verdicts", rig.origin()));
    for (width, scheme) in [(1280, "light"), (360, "dark")] {
        browser.resize(width);
        browser.prefer(scheme);
        browser.await_true(&format!(
            "innerWidth === {width} && document.querySelector('article table') !== null"
        ));
        let overflow = browser.evaluate("document.documentElement.scrollWidth - innerWidth");
        assert!(overflow.as_i64().is_some_and(|pixels| pixels <= 0), "{width}: {overflow} pixels too wide");
        assert_eq!(browser.axe_violations(&axe), Vec::<String>::new(), "{width} px, {scheme}");
    }
    demand_clean(&rig, &browser);
}
