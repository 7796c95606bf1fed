//! The compiled OTG model that is committed (`model/compiled`) is what its sources in `model/` say.
//!
//! Patterns are expanded from their table, then all is compiled. The table of refused members is completed with those
//! that every pattern has. After a change to `model/`, write both files anew:
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
    let (patterns, refused) = expand(&model);
    let descriptor = compile(&model, &patterns).unwrap_or_else(|error| panic!("{error:?}"));
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

/// The patterns as Protocol Buffers source, and the complete table of refused members.
fn expand(model: &Path) -> (String, String) {
    let table = fs::read_to_string(model.join("patterns.txt")).expect("the table of patterns");
    let mut refused = fs::read_to_string(model.join("refused.txt")).expect("the table of refused members");
    let mut proto = String::from("syntax = \"proto3\";\npackage otg;\nimport \"auto.proto\";\n");
    for line in table.lines().filter(|line| !line.starts_with('#')) {
        let mut words = line.split_whitespace();
        let name = format!("PatternFlow{}", words.next().expect("a line has a name"));
        let words: Vec<&str> = words.collect();
        match words.as_slice() {
            ["checksum"] => proto += &checksum(&name),
            [kind, more @ ..] => pattern(&name, kind, more, &mut proto, &mut refused),
            [] => panic!("`{line}` has no type"),
        }
    }
    (proto, refused)
}

/// Drops the places in the sources, which are most of a descriptor.
fn compile(model: &Path, patterns: &str) -> Result<Vec<u8>, protox::Error> {
    let made = tempfile::tempdir().expect("there is room for temporary files");
    fs::write(made.path().join("patterns.proto"), patterns).expect("there is room for temporary files");
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
