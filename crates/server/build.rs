//! Makes the descriptor of the OTG model from `model/`: patterns are expanded from their table, then all is compiled.
//!
//! Also completes the table of refused members with those that every pattern has.
#![expect(clippy::expect_used, reason = "a build script fails by panicking")]

use prost::Message;
use std::fmt::Write as _;
use std::path::Path;
use std::{env, fs};

fn main() {
    println!("cargo::rerun-if-changed=model");
    println!("cargo::rerun-if-changed=build.rs");
    let out = env::var_os("OUT_DIR").expect("cargo sets it");
    let out = Path::new(&out);
    let table = fs::read_to_string("model/patterns.txt").expect("the table of patterns");
    let mut refused = fs::read_to_string("model/refused.txt").expect("the table of refused members");
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
    fs::write(out.join("patterns.proto"), proto).expect("there is room in OUT_DIR");
    fs::write(out.join("refused.txt"), refused).expect("there is room in OUT_DIR");
    let descriptor = compile(out).unwrap_or_else(|error| panic!("{error:?}"));
    fs::write(out.join("otg.bin"), descriptor).expect("there is room in OUT_DIR");
}

/// Without the places in the sources, which are most of a descriptor.
fn compile(out: &Path) -> Result<Vec<u8>, protox::Error> {
    let mut compiler = protox::Compiler::new([Path::new("model"), out])?;
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
