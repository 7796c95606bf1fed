//! What a reader does with a page: open, compare with the data, sort, search, point, scroll.

use crate::sample::{self, SamplePage};
use packetrig_report::StreamReport;
use packetrig_tests::browser::Browser;
use serde_json::{Value, json};

/// Seconds of processor time that a scroll step may take.
const LONGEST_SCROLL: f64 = 0.1;

/// What the browser complained about since the page was opened.
fn complaints(browser: &Browser) -> Vec<String> {
    let events = browser.events.iter();
    let bad = events.filter(|event| match event["method"].as_str().unwrap_or_default() {
        "Runtime.exceptionThrown" | "Log.entryAdded" | "Runtime.consoleAPICalled" => true,
        "Network.requestWillBeSent" => {
            let url = event["params"]["request"]["url"].as_str().unwrap_or_default();
            !url.starts_with("file://")
        }
        _ => false,
    });
    bad.map(ToString::to_string).collect()
}

/// The texts of a column of the table of streams, as they stand now.
fn column(browser: &mut Browser, table: &str, index: usize) -> Vec<String> {
    let script = format!(
        "[...document.querySelectorAll('#{table} tbody tr')].filter((row) => !row.hidden && row.cells.length > 2)
            .map((row) => row.cells[{index}].textContent)"
    );
    serde_json::from_value(browser.evaluate(&script)).unwrap()
}

fn click_heading(browser: &mut Browser, table: &str, name: &str) {
    let script = format!(
        "[...document.querySelectorAll('#{table} thead button')].find((button) => button.textContent.startsWith('{name}')).click()"
    );
    browser.evaluate(&script);
}

fn search(browser: &mut Browser, words: &str) {
    browser.evaluate(&format!(
        "{{ const box = document.querySelector('input[type=search]'); box.value = '{words}';
            box.dispatchEvent(new Event('input')); }}"
    ));
}

/// The program passes the same cases (`page::quantity`, `watch`).
#[test]
fn scripts_write_numbers_as_the_program_does() {
    let Some(mut browser) = Browser::start() else { return };
    let cases: Value =
        serde_json::from_str(include_str!("../../../crates/page/assets/number_cases.json")).unwrap();
    // The forms are inside the report's script, before everything that needs a page.
    let report = include_str!("../../../crates/page/assets/report.js");
    let (_, forms) = report.split_once("const THIN").unwrap();
    let (forms, _) = forms.split_once("// What a value is sorted by").unwrap();
    let exact = format!("const THIN{forms}");
    let live = include_str!("../../../crates/page/assets/live/format.js");
    let short = live.replace("import { el } from \"./dom.js\";", "").replace("export ", "");
    for (script, cases) in [(exact, &cases["exact"]), (short, &cases["short"])] {
        let texts =
            format!("(() => {{ {script}\n return {cases}.map(([form, value]) => FORMS[form](value)); }})()");
        let wanted: Vec<&Value> = cases.as_array().unwrap().iter().map(|case| &case[2]).collect();
        assert_eq!(browser.evaluate(&texts), json!(wanted));
    }
}

#[test]
fn page_opens_from_disk_without_requests() {
    let Some(mut browser) = Browser::start() else { return };
    let page = sample::page(3, 20);
    browser.open(&page.file, 1280);
    assert_eq!(complaints(&browser), Vec::<String>::new());
    let heading = browser.evaluate("document.querySelector('h1').textContent");
    assert_eq!(heading, "core & edge");
    let name = browser.evaluate("document.querySelector('#streams-table tbody th').textContent");
    assert_eq!(name, "voice \"gold\" </script><b>", "a foreign name is text");
    let verdict = browser.evaluate("document.querySelector('.verdict-large').innerText");
    assert!(verdict.as_str().unwrap().contains("FAIL"), "{verdict}");
}

#[test]
fn page_numbers_match_the_report() {
    let Some(mut browser) = Browser::start() else { return };
    let SamplePage { report, file, .. } = &sample::page(12, 20);
    browser.open(file, 1280);
    let found = browser.evaluate(
        "Object.fromEntries([...document.querySelectorAll('#streams-table tbody tr')].map((row) =>
            [row.cells[0].textContent, [...row.cells].map((cell) => cell.dataset.value || null)]))",
    );
    for stream in &report.streams {
        assert_eq!(found[&stream.name], expected_values(stream), "{}", stream.name);
    }
    let accounts = browser.evaluate(
        "Object.fromEntries([...document.querySelectorAll('#ledger tbody tr')].map((row) =>
            [row.cells[0].textContent, row.cells[1].dataset.value]))",
    );
    for (account, frames) in report.ledger.accounts() {
        let name = packetrig_page::draw::ledger::account_name(account);
        assert_eq!(accounts[name], frames.to_string(), "{name}");
    }
}

/// In the order of the table.
fn expected_values(stream: &StreamReport) -> Value {
    let (sent, got) = (stream.sent.as_ref().unwrap(), stream.received.as_ref().unwrap());
    let (loss, latency) = (stream.loss.unwrap(), stream.latency.unwrap());
    let text = |value: u64| json!(value.to_string());
    json!([
        Value::Null,
        text(loss.lost),
        format!("{}/{}", loss.lost, loss.expected),
        text(loss.in_doubt),
        Value::Null,
        text(latency.p50.as_u64()),
        text(latency.p99.as_u64()),
        text(latency.p999.as_u64()),
        text(latency.max.as_u64()),
        text(sent.frames),
        text(got.frames),
        text(stream.asked_milli.unwrap()),
        text(sent.rate.unwrap().frames_milli),
        text(got.rate.unwrap().frames_milli),
        text(got.rate.unwrap().l2.bits_per_second()),
        text(got.sequence.duplicates),
        text(got.sequence.reordered),
        Value::Null,
        Value::Null
    ])
}

#[test]
fn probe_grid_shows_pairs_in_their_cells() {
    let Some(mut browser) = Browser::start() else { return };
    let page = sample::page_of_probes(4);
    browser.open(&page.file, 1280);
    let cells = browser.evaluate(
        "[...document.querySelectorAll('#probes-grid tbody tr')].map((row) => [...row.cells].map((cell) => cell.textContent.trim()))",
    );
    let line = |from: &str, to: &str| {
        let lines = &page.report.probes.as_ref().unwrap().lines;
        lines.iter().find(|line| line.from == from && line.to == to)
    };
    let names: Vec<String> = (0..4).map(|node| format!("node<{node}>")).collect();
    for (row, from) in names.iter().enumerate() {
        assert_eq!(cells[row][0], from.as_str(), "{cells}");
        for (column, to) in names.iter().enumerate() {
            let cell = cells[row][column + 1].as_str().unwrap();
            match line(from, to).map(|line| line.found.as_ref()) {
                None => assert!(cell.starts_with('–'), "{cell}"),
                Some(None) => assert!(cell.contains("missing"), "{cell}"),
                Some(Some(found)) => {
                    let median = found.delay_there.unwrap().p50_ns / 1000;
                    assert!(cell.starts_with(&median.to_string()), "{median} µs is not in {cell}");
                    assert_eq!(cell.contains("lost"), found.counts.lost > 0, "{cell}");
                }
            }
        }
    }
}

#[test]
fn a_reader_sorts_and_searches_streams() {
    let Some(mut browser) = Browser::start() else { return };
    let page = sample::page(40, 20);
    browser.open(&page.file, 1280);
    click_heading(&mut browser, "streams-table", "lost");
    let most = page.report.streams.iter().max_by_key(|stream| stream.loss.unwrap().lost).unwrap();
    assert_eq!(column(&mut browser, "streams-table", 0)[0], most.name, "the largest loss first");
    let sorted = browser.evaluate("document.querySelector('#streams-table th[aria-sort]').ariaSort");
    assert_eq!(sorted, "descending");
    search(&mut browser, "0017");
    assert_eq!(column(&mut browser, "streams-table", 0), ["stream 0017"]);
    let shown = browser
        .evaluate("[...document.querySelectorAll('details.stream')].filter((one) => !one.hidden).length");
    assert_eq!(shown, 1, "the charts of the others are hidden, too");
}

#[test]
fn chart_values_show_for_pointer_and_keys() {
    let Some(mut browser) = Browser::start() else { return };
    let page = sample::page(1, 20);
    browser.open(&page.file, 1280);
    let hint = "document.querySelector('.hint').innerText";
    browser
        .evaluate("document.querySelector('svg[data-unit=\"frames/s\"]').scrollIntoView({block: 'center', behavior: 'instant'})");
    let place = browser.evaluate(
        "(() => { const box = document.querySelector('svg[data-unit=\"frames/s\"]').getBoundingClientRect();
            return [box.left + box.width / 2, box.top + box.height / 2]; })()",
    );
    browser.call("Input.dispatchMouseEvent", json!({"type": "mouseMoved", "x": place[0], "y": place[1]}));
    let pointed = browser.evaluate(hint);
    assert!(pointed.as_str().unwrap().contains("sent: 9\u{202f}000 frames/s"), "{pointed}");
    // The keys go from the first column; the last second has fewer frames.
    browser.evaluate("document.querySelector('svg[data-unit=\"frames/s\"]').focus()");
    for kind in ["keyDown", "keyUp"] {
        browser.call("Input.dispatchKeyEvent", json!({"type": kind, "key": "End", "code": "End"}));
    }
    let keyed = browser.evaluate(hint);
    assert!(keyed.as_str().unwrap().contains("second 20\nsent: 3\u{202f}000 frames/s"), "{keyed}");
}

#[test]
fn four_thousand_streams_are_sorted_searched_and_scrolled() {
    let Some(mut browser) = Browser::start() else { return };
    let page = sample::page(4096, 10);
    browser.open(&page.file, 1280);
    let table = "streams-virtual";
    assert_eq!(
        browser.evaluate("document.querySelector('#streams-virtual').getAttribute('aria-rowcount')"),
        "4097"
    );
    click_heading(&mut browser, table, "latency p99");
    let slowest = page.report.streams.iter().max_by_key(|stream| stream.latency.unwrap().p99).unwrap();
    let first = column(&mut browser, table, 6)[0].clone();
    assert_eq!(
        first,
        packetrig_page::quantity::format_time(slowest.latency.unwrap().p99),
        "script and page write alike"
    );
    search(&mut browser, "stream 4095");
    assert_eq!(column(&mut browser, table, 0), ["stream 4095"]);
    search(&mut browser, "");
    let longest = (0..40).map(|step| least_scroll_time(&mut browser, step * 3200)).fold(0.0, f64::max);
    let rows = browser.evaluate("document.querySelectorAll('#streams-virtual tbody tr').length");
    assert!(rows.as_u64().unwrap() < 80, "only what is seen is there: {rows} rows");
    // Of processor time, so that other work on the machine does not count: a step is several tasks, none longer than all.
    assert!(longest < LONGEST_SCROLL, "a scroll step took {longest} s");
}

/// Seconds that a scroll step takes. A slow one is repeated: time that a host takes away from its guest counts as processor time, too.
fn least_scroll_time(browser: &mut Browser, top: u32) -> f64 {
    let mut least = scroll_time(browser, top);
    for _ in 0..3 {
        if least < LONGEST_SCROLL {
            break;
        }
        // To another place first: it is there already.
        scroll_time(browser, top + 64_000);
        least = least.min(scroll_time(browser, top));
    }
    least
}

/// Seconds of processor time that the page takes to scroll its table.
fn scroll_time(browser: &mut Browser, top: u32) -> f64 {
    let before = browser.worked();
    browser.evaluate(&format!(
        "new Promise((done) => {{ document.querySelector('.virtual-box').scrollTop = {top};
            requestAnimationFrame(() => requestAnimationFrame(() => done(1))); }})"
    ));
    browser.worked() - before
}
