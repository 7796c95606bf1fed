//! Contents of files of names.

use packetrig_flow_store::filter::FlowFilter;
use packetrig_flow_store::names::FlowNames;
use std::sync::Arc;

/// The content of a file is names, or is refused on one line. Names can be asked for, by filters and by groupings.
pub fn flow_names(data: &[u8]) {
    let mut names = FlowNames::default();
    if let Err(fault) = names.add_file_content(data) {
        assert!(!fault.to_string().is_empty());
        return;
    }
    let asked =
        ["country in [DE FR]", "asn > 5", "as name = example", "name != a", "if name uplink", "service ssh"];
    for text in asked {
        // It is a filter, or says what is missing.
        match FlowFilter::parse_with_names(text, &names) {
            Ok(filter) => assert!(!filter.needed_columns().is_empty() || text.starts_with("if")),
            Err(error) => assert!(error.to_string().lines().count() == 4, "{error}"),
        }
    }
    let names = Arc::new(names);
    for by in ["src-country", "dst-asn", "src-as-name", "src-name,dst-name", "in-if-name", "service"] {
        if let Ok(grouping) = by.parse::<packetrig_flow_store::grouping::FlowGrouping>() {
            drop(grouping.with_names(&names));
        }
    }
}
