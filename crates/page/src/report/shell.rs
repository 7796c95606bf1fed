//! The page around the content: head, security policy, styles, script.

use super::elements::write_section;
use crate::markup::Markup;
use base64::Engine as _;
use sha2::{Digest as _, Sha256};

const REPORT_STYLE: &str = include_str!("../../assets/report.css");
const REPORT_SCRIPT: &str = include_str!("../../assets/report.js");

/// The sections of a page, and the list of contents that leads to them.
#[derive(Debug, Default)]
pub(super) struct PageParts {
    body: Markup,
    /// Id and name of each section.
    contents: Vec<(&'static str, &'static str)>,
}

impl PageParts {
    /// Adds a section, called `name` in the list of contents.
    pub(super) fn add_section(
        &mut self,
        id: &'static str,
        name: &'static str,
        title: &str,
        fill: impl FnOnce(&mut Markup),
    ) {
        write_section(&mut self.body, id, title, fill);
        self.contents.push((id, name));
    }
}

/// Renders a complete page. `head` comes above the list of contents.
pub(super) fn render_page(title: &str, head: &Markup, parts: &PageParts, version: &str) -> String {
    let mut page = Markup::new();
    page.add_unescaped_text("<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n");
    // A `meta` element, because a file from the disk has no HTTP headers. It comes first, because the policy applies
    // only to the elements after it.
    page.empty_element(
        "meta",
        &[("http-equiv", "Content-Security-Policy"), ("content", &build_content_policy())],
    );
    page.empty_element("meta", &[("name", "viewport"), ("content", "width=device-width, initial-scale=1")]);
    page.empty_element("meta", &[("name", "color-scheme"), ("content", "light dark")]);
    page.empty_element("meta", &[("name", "generator"), ("content", &format!("packetrig {version}"))]);
    page.add_element("title", &[], title);
    // The hashes of the policy cover exactly the text between the tags.
    page.open_element("style", &[])
        .add_unescaped_text(crate::PAGE_STYLES)
        .add_unescaped_text(REPORT_STYLE)
        .close_element("style");
    page.add_unescaped_text(
        // The link is for users of a keyboard: it skips the list of contents.
        "\n</head>\n<body>\n<a class=\"skip-link\" href=\"#verdict\">Skip to the verdict</a>\n",
    );
    page.open_element("header", &[("class", "page-head")]).append(head).close_element("header");
    page.open_element("nav", &[("class", "contents no-print"), ("aria-label", "Contents")])
        .open_element("ul", &[]);
    for (id, name) in &parts.contents {
        page.open_element("li", &[]);
        page.add_element("a", &[("href", &format!("#{id}"))], name).close_element("li");
    }
    page.close_element("ul").close_element("nav");
    page.open_element("main", &[]).append(&parts.body).close_element("main");
    page.open_element("footer", &[("class", "page-foot muted")]);
    page.open_element("p", &[]).add_text("Made by packetrig ").add_text(version);
    page.add_text(
        ". This page is complete in itself and loads nothing. Exact data is in the files beside it.",
    )
    .close_element("p");
    page.close_element("footer");
    page.add_unescaped_text("\n<script>")
        .add_unescaped_text(REPORT_SCRIPT)
        .add_unescaped_text("</script>\n</body>\n</html>\n");
    page.into_string()
}

/// The content security policy: allows only the page's own style and script.
fn build_content_policy() -> String {
    let style = hash_content(&[crate::PAGE_STYLES, REPORT_STYLE]);
    let script = hash_content(&[REPORT_SCRIPT]);
    format!(
        // `default-src 'none'` also refuses files beside the page. The hashes allow exactly the content of this page.
        "default-src 'none'; style-src '{style}'; script-src '{script}'; img-src data:; base-uri 'none'; form-action 'none'"
    )
}

fn hash_content(parts: &[&str]) -> String {
    let mut hasher = Sha256::new();
    for part in parts {
        hasher.update(part);
    }
    format!("sha256-{}", base64::engine::general_purpose::STANDARD.encode(hasher.finalize()))
}
