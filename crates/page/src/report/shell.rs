//! The page around the content: head, security policy, styles, script.

use super::elements::section;
use crate::markup::Markup;
use base64::Engine as _;
use sha2::{Digest as _, Sha256};

const REPORT_STYLE: &str = include_str!("../../assets/report.css");
const SCRIPT: &str = include_str!("../../assets/report.js");

/// The sections of a page, and the list of contents that leads to them.
#[derive(Debug, Default)]
pub(super) struct PageParts {
    body: Markup,
    /// Id and name of each section.
    contents: Vec<(&'static str, &'static str)>,
}

impl PageParts {
    /// Adds a section, called `name` in the list of contents.
    pub(super) fn add(
        &mut self,
        id: &'static str,
        name: &'static str,
        title: &str,
        fill: impl FnOnce(&mut Markup),
    ) {
        section(&mut self.body, id, title, fill);
        self.contents.push((id, name));
    }
}

/// Renders a complete page. `head` comes above the list of contents.
pub(super) fn render(title: &str, head: &Markup, parts: &PageParts, version: &str) -> String {
    let mut page = Markup::new();
    page.own_text("<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n");
    page.empty("meta", &[("http-equiv", "Content-Security-Policy"), ("content", &policy())]);
    page.empty("meta", &[("name", "viewport"), ("content", "width=device-width, initial-scale=1")]);
    page.empty("meta", &[("name", "color-scheme"), ("content", "light dark")]);
    page.empty("meta", &[("name", "generator"), ("content", &format!("packetrig {version}"))]);
    page.element("title", &[], title);
    // The hashes of the policy cover exactly the text between the tags.
    page.open("style", &[]).own_text(crate::STYLE).own_text(REPORT_STYLE).close("style");
    page.own_text("\n</head>\n<body>\n<a class=\"skip-link\" href=\"#verdict\">Skip to the verdict</a>\n");
    page.open("header", &[("class", "page-head")]).append(head).close("header");
    page.open("nav", &[("class", "contents no-print"), ("aria-label", "Contents")]).open("ul", &[]);
    for (id, name) in &parts.contents {
        page.open("li", &[]);
        page.element("a", &[("href", &format!("#{id}"))], name).close("li");
    }
    page.close("ul").close("nav");
    page.open("main", &[]).append(&parts.body).close("main");
    page.open("footer", &[("class", "page-foot muted")]);
    page.open("p", &[]).text("Made by packetrig ").text(version);
    page.text(". This page is complete in itself and loads nothing. Exact data is in the files beside it.")
        .close("p");
    page.close("footer");
    page.own_text("\n<script>").own_text(SCRIPT).own_text("</script>\n</body>\n</html>\n");
    page.into_string()
}

/// The content security policy: allows only the page's own style and script.
fn policy() -> String {
    let style = hash(&[crate::STYLE, REPORT_STYLE]);
    let script = hash(&[SCRIPT]);
    format!(
        "default-src 'none'; style-src '{style}'; script-src '{script}'; img-src data:; base-uri 'none'; form-action 'none'"
    )
}

fn hash(parts: &[&str]) -> String {
    let mut hasher = Sha256::new();
    for part in parts {
        hasher.update(part);
    }
    format!("sha256-{}", base64::engine::general_purpose::STANDARD.encode(hasher.finalize()))
}
