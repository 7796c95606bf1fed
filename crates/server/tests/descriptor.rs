//! The compiled OTG model that is committed (`model/compiled`) is what its sources in `model/` say.
//!
//! The headers are expanded from their table, then all is compiled. The table of refused members is completed with
//! refused headers, and with those members that every pattern has. After a change to `model/`, write both files anew:
//!
//! ```text
//! PACKETRIG_REWRITE=1 cargo test -p packetrig-server --test descriptor
//! ```

use prost::Message;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

/// Set to rewrite the committed files instead of comparing them.
const REWRITE: &str = "PACKETRIG_REWRITE";

#[test]
fn the_committed_descriptor_is_compiled_from_these_sources() {
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("model");
    let ExpandedHeaders { proto, refused } = expand_headers(&model);
    let descriptor = compile(&model, &proto).unwrap_or_else(|error| panic!("{error:?}"));
    for (name, made) in [("otg.binpb", descriptor), ("refused.txt", refused.into_bytes())] {
        let committed = model.join("compiled").join(name);
        if std::env::var_os(REWRITE).is_some() {
            fs::write(&committed, made).expect("the source tree can be written");
        } else {
            let found = fs::read(&committed).expect("it is committed");
            assert!(found == made, "{} is out of date: {REWRITE}=1 writes it anew", committed.display());
        }
    }
}

/// The headers as Protocol Buffers source, and the complete table of refused members.
struct ExpandedHeaders {
    proto: String,
    refused: String,
}

fn expand_headers(model: &Path) -> ExpandedHeaders {
    let table = fs::read_to_string(model.join("headers.txt")).expect("the table of headers");
    let refused = fs::read_to_string(model.join("refused.txt")).expect("the table of refused members");
    let proto = String::from("syntax = \"proto3\";\npackage otg;\nimport \"auto.proto\";\n");
    let mut made = ExpandedHeaders { proto, refused };
    let lines: Vec<&str> = table.lines().filter(|line| !line.starts_with('#') && !line.is_empty()).collect();
    for block in lines.chunk_by(|_, next| next.starts_with(' ')) {
        made.add_message(block[0], &block[1..]);
    }
    made
}

impl ExpandedHeaders {
    /// Adds a message, and the patterns of its fields.
    fn add_message(&mut self, message: &str, lines: &[&str]) {
        let (mut choices, mut members, mut refused) = (String::new(), String::new(), Vec::new());
        for line in lines {
            let words: Vec<&str> = line.split_whitespace().collect();
            match words.as_slice() {
                ["choice", ..] => {
                    let values = line.trim_start().trim_start_matches("choice").split(',');
                    choices = values.map(choice_value).collect();
                }
                [number, name, "refused"] => refused.push((parse_number(number), *name)),
                [number, name, kind @ ("text" | "number" | "checksum"), more @ ..] => {
                    let pattern = format!("Pattern{message}{}", camel_case(name));
                    self.add_pattern(&pattern, kind, more);
                    members.extend([&pattern, " ", name, " = ", number, ";\n"]);
                }
                [number, name, kind @ ..] => {
                    members.extend([&kind.join(" "), " ", name, " = ", number, ";\n"]);
                }
                _ => panic!("`{line}` is no member of {message}"),
            }
            if message == "FlowHeader"
                && let [number, name, kind] = words.as_slice()
                && *kind != "refused"
            {
                choices += &choice_value(&format!("{} {name}", parse_number(number) - 1));
            }
        }
        if !choices.is_empty() {
            let values = ["message Choice { enum Enum { unspecified = 0; ", &choices, "} }\n"];
            members.extend(values.into_iter().chain(["optional Choice.Enum choice = 1;\n"]));
        }
        writeln!(self.proto, "message {message} {{\n{members}}}").expect("writing to text");
        if !refused.is_empty() {
            let row = |less| {
                let members: Vec<String> =
                    refused.iter().map(|(number, name)| format!("{} {name}", number - less)).collect();
                members.join(", ")
            };
            writeln!(self.refused, "{message}.Choice.Enum: {}\n{message}: {}", row(1), row(0))
                .expect("writing to text");
        }
    }

    fn add_pattern(&mut self, name: &str, kind: &str, more: &[&str]) {
        match kind {
            "checksum" => self.proto += &checksum(name),
            _ => pattern(name, kind, more, &mut self.proto, &mut self.refused),
        }
    }
}

fn parse_number(text: &str) -> u32 {
    text.parse().unwrap_or_else(|_| panic!("`{text}` is no number"))
}

/// A value like `2 tos` as Protocol Buffers source.
fn choice_value(text: &str) -> String {
    let (number, name) = text.trim().split_once(' ').unwrap_or_else(|| panic!("`{text}` is no choice"));
    format!("{name} = {number}; ")
}

/// `ether_type` as `EtherType`.
fn camel_case(name: &str) -> String {
    let capitalized = name.split('_').map(|word| word[..1].to_uppercase() + &word[1..]);
    capitalized.collect()
}

/// Drops the places in the sources, which are most of a descriptor.
fn compile(model: &Path, headers: &str) -> Result<Vec<u8>, protox::Error> {
    let made = tempfile::tempdir().expect("there is room for temporary files");
    fs::write(made.path().join("headers.proto"), headers).expect("there is room for temporary files");
    let mut compiler = protox::Compiler::new([model, made.path()])?;
    compiler.include_imports(true).include_source_info(false).open_file("service.proto")?;
    Ok(compiler.file_descriptor_set().encode_to_vec())
}

fn checksum(name: &str) -> String {
    format!(
        "message {name} {{
          message Choice {{ enum Enum {{ unspecified = 0; generated = 1; custom = 2; }} }}
          message Generated {{ enum Enum {{ unspecified = 0; good = 1; bad = 2; }} }}
          optional Choice.Enum choice = 1;
          optional Generated.Enum generated = 2;
          optional uint32 custom = 3;
        }}\n"
    )
}

/// `auto` stands before the counters where it is the default, and after `metric_tags` where it came later.
fn pattern(name: &str, kind: &str, more: &[&str], proto: &mut String, refused: &mut String) {
    let scalar = if kind == "text" { "string" } else { "uint32" };
    let has = |word: &str| more.contains(&word);
    let shift = u32::from(has("auto"));
    let (up, down, tags, last) = (5 + shift, 6 + shift, 7 + shift, 8 + shift);
    let mut choices = String::from("unspecified = 0; value = 2; values = 3; increment = 4; decrement = 5;");
    let mut fields = String::new();
    let automatic = match more.first() {
        Some(&"auto") => Some((format!("optional {scalar}"), 4)),
        Some(&"auto-last") => Some((format!("optional {scalar}"), last)),
        Some(&"auto-ipv4") => Some(("FlowIpv4Auto".to_owned(), last)),
        Some(&"auto-ipv6") => Some(("FlowIpv6Auto".to_owned(), last)),
        _ => None,
    };
    let random = last + u32::from(more.first().is_some_and(|word| word.starts_with("auto-")));
    if let Some((kind, number)) = automatic {
        choices += " auto = 1;";
        writeln!(fields, "{kind} auto = {number};").expect("writing to text");
    }
    if has("random") {
        choices += " random = 6;";
        writeln!(fields, "{name}Random random = {random};").expect("writing to text");
        let counts = "optional uint32 seed = 3; optional uint32 count = 4;";
        let draw = format!("optional {scalar} min = 1; optional {scalar} max = 2; {counts}");
        writeln!(proto, "message {name}Random {{ {draw} }}").expect("writing to text");
    }
    let counter =
        format!("optional {scalar} start = 1; optional {scalar} step = 2; optional uint32 count = 3;");
    write!(
        proto,
        "message {name}Counter {{ {counter} }}
        message {name} {{
          message Choice {{ enum Enum {{ {choices} }} }}
          optional Choice.Enum choice = 1;
          optional {scalar} value = 2;
          repeated {scalar} values = 3;
          {name}Counter increment = {up};
          {name}Counter decrement = {down};
          {fields}
        }}\n"
    )
    .expect("writing to text");
    writeln!(refused, "{name}: {tags} metric_tags").expect("writing to text");
}
