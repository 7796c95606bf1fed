//! How a page looks: at every width, in the dark, on paper, and to those that do not see it.

use crate::sample;
use packetrig_tests::browser::Browser;
use packetrig_tests::skip;
use serde_json::json;

const WIDTHS: [u32; 3] = [360, 1280, 2560];
/// A page for 64 streams and ten minutes must stay below this.
const MAX_BYTES: usize = 1_000_000;

#[test]
fn nothing_sticks_out_at_any_width() {
    let Some(mut browser) = Browser::start() else { return };
    let probes = sample::page_of_probes(20);
    let page = sample::page(6, 60);
    for width in WIDTHS {
        for page in [&probes, &page] {
            browser.open(&page.file, width);
            let widest = browser.evaluate("document.documentElement.scrollWidth");
            assert_eq!(widest, width, "the page scrolls sideways");
        }
        // The picture of the ledger fits the width: one of its two forms is shown.
        let shown = browser.evaluate(
            "[...document.querySelectorAll('.ledger svg')].filter((svg) => svg.getBoundingClientRect().width > 0).length",
        );
        assert_eq!(shown, 1);
        let picture = browser.photograph();
        assert!(picture.len() > 10_000, "a picture of {} bytes shows nothing", picture.len());
        if let Some(directory) = std::env::var_os("PACKETRIG_SCREENSHOTS") {
            let file = std::path::Path::new(&directory).join(format!("report-{width}.png.base64"));
            std::fs::write(file, picture).unwrap();
        }
    }
}

#[test]
fn printed_page_is_compact_with_verdict_first() {
    let Some(mut browser) = Browser::start() else { return };
    let page = sample::page(6, 60);
    browser.prefer("dark");
    browser.open(&page.file, 1280);
    browser.call("Emulation.setEmulatedMedia", json!({"media": "print"}));
    let background = browser.evaluate("getComputedStyle(document.body).backgroundColor");
    assert_eq!(background, "rgb(255, 255, 255)", "paper is white, also for readers of dark pages");
    let place = browser.evaluate("document.querySelector('.verdict-large').getBoundingClientRect().bottom");
    assert!(place.as_f64().unwrap() < 500.0, "{place}");
    let pdf = browser.call("Page.printToPDF", json!({"printBackground": true, "preferCSSPageSize": true}));
    // Base64 has four characters for three bytes.
    let bytes = pdf["data"].as_str().unwrap().len() / 4 * 3;
    assert!((10_000..3_000_000).contains(&bytes), "a PDF of {bytes} bytes");
}

#[test]
fn ten_minute_page_stays_below_one_megabyte() {
    let page = sample::page(64, 600);
    assert!(page.bytes < MAX_BYTES, "{} bytes", page.bytes);
}

#[test]
fn axe_finds_nothing() {
    let Some(axe) = skip::client("axe") else { return };
    let axe = std::fs::read_to_string(axe).unwrap();
    let Some(mut browser) = Browser::start() else { return };
    let [few, many, probes] = [sample::page(6, 20), sample::page(300, 20), sample::page_of_probes(6)];
    for (what, page, width, scheme) in [
        ("few", &few, 1280, "light"),
        ("few", &few, 360, "dark"),
        ("many", &many, 1280, "dark"),
        ("probes", &probes, 1280, "light"),
        ("probes", &probes, 360, "dark"),
    ] {
        browser.prefer(scheme);
        browser.open(&page.file, width);
        assert_eq!(browser.axe_violations(&axe), Vec::<String>::new(), "{what}, {width} px, {scheme}");
    }
}
