use super::*;

fn find<'a>(path: &str, document: &'a str) -> Result<Option<JsonToken<'a>>, JsonError> {
    JsonPath::parse(path).unwrap().find(document.as_bytes())
}

#[test]
fn paths_lead_to_values() {
    let document = r#" {"a": {"b": [10, {"c": "x\"y"}, -2.5e3]}, "n": null, "t" :true, "ab":[[],{}], "a": 1} "#;
    for (path, expected) in [
        ("$.a.b[0]", Some(JsonToken::Number("10"))),
        ("$.a.b[1].c", Some(JsonToken::String(br#"x\"y"#))),
        ("$.a.b[2]", Some(JsonToken::Number("-2.5e3"))),
        ("$.a.b[3]", None),
        ("$.a.x", None),
        ("$.a[0]", None),
        ("$.n", Some(JsonToken::Null)),
        ("$.n.x", None),
        ("$[\"t\"]", Some(JsonToken::Bool(true))),
        ("$.ab", Some(JsonToken::Nested)),
        ("$.ab[0][0]", None),
        ("$", Some(JsonToken::Nested)),
    ] {
        assert_eq!(find(path, document), Ok(expected), "{path}");
    }
}

#[test]
fn a_name_that_is_written_with_escapes_is_found() {
    let document = r#"{"\u0061\/":1,"\ud83d\ude00":2}"#;
    assert_eq!(find("$[\"a/\"]", document), Ok(Some(JsonToken::Number("1"))));
    assert_eq!(find("$[\"😀\"]", document), Ok(Some(JsonToken::Number("2"))));
}

#[test]
fn what_is_no_json_on_the_way_is_an_error() {
    for document in [
        "",
        "{",
        "{\"a\"",
        "{\"a\":",
        "{\"b\":1",
        "{\"b\":1,",
        "{\"b\":1 2}",
        "{b:1}",
        "{\"b\":01,\"a\":1}",
        "{\"b\":tru,\"a\":1}",
        "{\"b\":[1,],\"a\":1}",
        "{\"b\":{\"c\":1,},\"a\":1}",
        "{\"b\":[1},\"a\":1}",
        "{\"b\":\"\n\",\"a\":1}",
        "{\"a\":-}",
        "{\"a\":1.}",
        "{\"a\":1e}",
        "{\"a\":+1}",
        "{\"a\":\"x",
        "{\"a\":\"x\\",
    ] {
        assert_eq!(find("$.a", document), Err(JsonError::Malformed), "{document}");
    }
}

/// One whose value is there is not looked at behind it.
#[test]
fn where_there_is_no_value_the_document_is_json_to_its_end() {
    for document in [
        "text",
        "12 13",
        "\"x",
        "truth",
        "-",
        "[1,",
        "{} x",
        "{}}",
        "{\"b\":1}x",
        "{\"b\":{\"c\":1},}",
        "{\"b\":{\"c\":1},\"d\"}",
        "{\"b\":{\"c\":1}",
        "{\"b\":{\"c\":1]",
        "{\"b\":[}",
        "{\"c\":\"\\q\"}",
        "{\"c\":\"\\u12g4\"}",
    ] {
        for path in ["$.a", "$.b.a", "$.b[0].a", "$[3]"] {
            assert_eq!(find(path, document), Err(JsonError::Malformed), "{path} in {document}");
        }
        assert_eq!(check_document(document.as_bytes()), Err(JsonError::Malformed), "{document}");
    }
    for document in ["{\"a\":1_000}", "{\"a\":12ab}", "{\"a\":01}", "{\"a\":0x10}", "{\"a\":null5}", "{\"a\":1.2.3}"] {
        assert_eq!(find("$.a", document), Err(JsonError::Malformed), "{document}");
    }
    for document in [
        " null ",
        "12",
        "\"x\"",
        "[1, {\"a\": 2}]",
        "{}",
        "[]",
        "{\"b\":{\"c\":1},\"d\":[2,\"\\ud83d\"]} \n",
        "{\"b\":[{\"c\":[]},1],\"d\":2}",
    ] {
        for path in ["$.a", "$.b.a", "$.b[0].a", "$[3]"] {
            assert_eq!(find(path, document), Ok(None), "{path} in {document}");
        }
        assert_eq!(check_document(document.as_bytes()), Ok(()), "{document}");
    }
    assert_eq!(find("$.a", "{\"a\":1, behind"), Ok(Some(JsonToken::Number("1"))));
    assert_eq!(check_document(b"{\"a\":1, behind"), Err(JsonError::Malformed));
}

#[test]
fn nesting_is_bounded() {
    let nested = |depth: usize| format!("{{\"b\":{}{},\"a\":1}}", "[".repeat(depth), "]".repeat(depth));
    assert_eq!(find("$.a", &nested(JSON_DEPTH_MAX - 1)), Ok(Some(JsonToken::Number("1"))));
    assert_eq!(find("$.a", &nested(JSON_DEPTH_MAX)), Err(JsonError::Deep));
    assert_eq!(find("$.a", &"{\"b\":".repeat(1 << 20)), Err(JsonError::Deep));
}

#[test]
fn escapes_are_characters_or_errors() {
    let text = |content: &str| {
        let mut text = Vec::new();
        let whole = unescape(content.as_bytes(), |piece| {
            text.extend_from_slice(piece);
            true
        });
        whole.map(|_| String::from_utf8(text).unwrap())
    };
    assert_eq!(text(r#"a\n\t\"\\\/\u00e9\ud83d\ude00z"#).unwrap(), "a\n\t\"\\/é😀z");
    for content in [r"\", r"\x", r"\u12", r"\u12g4", r"\ud83d", r"\ud83dx", r"\ude00", r"\ud83d\u0041"] {
        assert_eq!(text(content), Err(JsonError::Malformed), "{content}");
    }
}
