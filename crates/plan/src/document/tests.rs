use super::*;

fn error(text: &str) -> PlanProblem {
    *parse_document(text).unwrap_err()
}

#[test]
fn json_and_yaml_give_the_same_tree() {
    fn bare(node: &DocumentNode<'_>) -> String {
        match &node.value {
            DocumentValue::Null => "null".into(),
            DocumentValue::Scalar(text) => text.to_string(),
            DocumentValue::List(items) => format!("{:?}", items.iter().map(bare).collect::<Vec<_>>()),
            DocumentValue::Object(members) => {
                format!(
                    "{:?}",
                    members.iter().map(|member| (&member.name, bare(&member.node))).collect::<Vec<_>>()
                )
            }
        }
    }
    let json = parse_document("{\"a\": [1, \"2\", null], \"b\": {\"c\": true}}").unwrap();
    let yaml = parse_document("a: [1, '2', ~]\nb:\n  c: true\n").unwrap();
    assert_eq!(bare(&json), bare(&yaml));
}

#[test]
fn places_point_at_the_value() {
    let node = parse_document("a: 1\nbcd: xyz\n").unwrap();
    let DocumentValue::Object(members) = node.value else { panic!("an object") };
    assert_eq!((members[1].node.place.span, members[1].node.place.position), ((10, 13), (2, 6)));
}

#[test]
fn the_place_of_many_lines_is_the_first() {
    let node = parse_document("first line\nsecond line\nthird line\n").unwrap();
    assert_eq!((node.place.span, node.place.position), ((0, 10), (1, 1)));
}

#[test]
fn duplicate_keys_and_extra_documents_are_refused() {
    assert!(error("a: 1\na: 2").message.contains("twice"));
    assert!(error("a: 1\n---\nb: 2").message.contains("second document"));
    assert!(error("").message.contains("empty"));
    assert!(error("{a: [").message.contains("cannot read this as YAML or JSON"));
}

#[test]
fn a_yaml_bomb_is_refused_and_not_expanded() {
    let mut bomb = String::from("a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n");
    for level in 1..12 {
        let below = format!("*a{}", level - 1);
        bomb.push_str(
            &["a", &level.to_string(), ": &a", &level.to_string(), " [", &vec![below; 10].join(","), "]\n"]
                .concat(),
        );
    }
    assert!(error(&bomb).message.contains("values"), "{:?}", error(&bomb));
}

#[test]
fn indentation_tab_is_reported_at_its_position() {
    for (text, position) in [
        ("ports:\n  - name: a\n    location: eth1\n\tspeed: x\nflows: []\n", (4, 1)),
        ("ports:\n\t- name: a\n", (2, 1)),
        ("a:\n  b: 1\n  \tc: 2\n", (3, 3)),
        ("a:\n  - b: über\n\n\t- c\n", (4, 1)),
    ] {
        let problem = error(text);
        assert_eq!(problem.position, Some(position), "{text:?}: {}", problem.message);
        assert!(problem.message.contains("tab"), "{}", problem.message);
        let (start, end) = problem.span.unwrap();
        assert_eq!(&text[start..end], "\t");
    }
    assert!(parse_document("{\n\t\"a\": [\n\t\t1\n\t]\n}\n").is_ok(), "JSON may be indented with tabs");
}

#[test]
fn depth_and_size_are_limited() {
    assert!(parse_document(&"[".repeat(100_000)).is_err());
    assert!(parse_document("a:\n").is_ok());
    assert!(error(&" ".repeat(MAX_BYTES + 1)).message.contains("bytes"));
}

#[test]
fn ten_megabytes_of_nonsense_end_in_an_error() {
    let nonsense: String = (0u32..10_000_000)
        .map(|i| char::from(33 + u8::try_from(u64::from(i) * 7919 % 90).unwrap()))
        .collect();
    assert!(parse_document(&nonsense).is_err());
}
