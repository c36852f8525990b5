use super::*;

fn judged(line: &[u8]) -> Judged<'_> {
    judge(verb(line).unwrap(), line)
}

fn flags(line: &[u8]) -> Flags {
    match judged(line) {
        Judged::Command(line) | Judged::Set { line, .. } => line.flags,
        other => panic!("{other:?}"),
    }
}

fn complaint(line: &[u8]) -> &'static str {
    match judged(line) {
        Judged::Refused(complaint) | Judged::RefusedSet { complaint, .. } => complaint,
        other => panic!("{other:?}"),
    }
}

#[test]
fn two_letters_alone_make_a_verb() {
    assert_eq!(verb(b"mg a"), Some(MetaVerb::Get));
    assert_eq!(verb(b"  mn"), Some(MetaVerb::NoOp));
    for other in [&b"m"[..], b"mgg a", b"mg\ta", b"mx a", b"", b"   ", b"get a", b"MG a"] {
        assert_eq!(verb(other), None, "{other:?}");
    }
}

#[test]
fn a_line_keeps_what_its_reply_repeats() {
    let Judged::Command(line) = judged(b"  mg  key v  Oq ") else { panic!() };
    assert_eq!((line.key, line.tail), (&b"key"[..], &b"key v  Oq "[..]));
    let Judged::Set { line, length_bytes } = judged(b"ms key 5 T30 c") else { panic!() };
    assert_eq!((line.key, line.tail, length_bytes), (&b"key"[..], &b"key 5 T30 c"[..], 5));
}

#[test]
fn flags_carry_their_tokens() {
    let read = flags(b"mg Zm9v N30 R-5 T0 C7 F4294967295 J9 D2 I u b");
    assert_eq!((read.vivify, read.recache, read.touch), (Some(30), Some(-5), Some(0)));
    assert_eq!((read.stamp, read.client_flags, read.initial, read.delta()), (Some(7), u32::MAX, 9, 2));
    assert!(read.stale && read.unnoticed && read.base64 && read.touch_after_vivify && !read.touch_before_recache);
    let other = flags(b"mg a T1 N2 R3");
    assert!(!other.touch_after_vivify && other.touch_before_recache);
    assert_eq!(flags(b"ma a").delta(), 1);
}

#[test]
fn modes_are_each_commands_own() {
    assert_eq!(flags(b"ms a 0 MA").set_mode(), Some(SetMode::Append));
    assert_eq!(flags(b"ma a M-").decrements(), Some(true));
    assert_eq!(complaint(b"ms a 0 MI"), BAD_SET_MODE);
    assert_eq!(complaint(b"ma a MA"), BAD_ARITHMETIC_MODE);
    assert_eq!(flags(b"md a MX"), Flags { mode: Some(b'X'), ..Flags::default() });
}

#[test]
fn the_first_unknown_flag_wins_over_all_else_and_the_last_bad_token_over_others() {
    assert_eq!(complaint(b"mg a Tx v v"), DUPLICATE);
    assert_eq!(complaint(b"mg a Tx \xff"), DUPLICATE);
    assert_eq!(complaint(b"mg a Tx X"), INVALID);
    assert_eq!(complaint(b"mg a Tx Jx"), BAD_INITIAL);
    assert_eq!(complaint(b"mg a Jx Fx"), BAD_INITIAL);
    assert_eq!(complaint(b"mg a Fx"), BAD_FORMAT);
    assert_eq!(complaint(b"mg a M"), BAD_MODE_LENGTH);
    assert_eq!(complaint(b"md a Tx"), BAD_FLAG);
    assert_eq!(complaint(b"mg aaa b"), BAD_KEY);
}

#[test]
fn lengths_have_their_limits() {
    let key = [b'k'; KEY_BYTES_MAX + 1];
    assert_eq!(complaint(&[b"mg ", &key[..]].concat()), BAD_FORMAT);
    assert!(matches!(judged(&[b"mg ", &key[1..]].concat()), Judged::Command(_)));
    let flag_words: Vec<u8> = b"cfhklOPLqstuvCDIJ".iter().flat_map(|flag| [b' ', *flag]).collect();
    let many = [b"mg a", &flag_words[..], b" x"].concat();
    assert_eq!(complaint(&many), TOO_MANY_FOR_GET);
    let opaque = [b'O'; OPAQUE_BYTES_MAX + 1];
    assert_eq!(complaint(&[b"mg a ", &opaque[..]].concat()), BAD_OPAQUE);
    assert!(matches!(judged(&[b"mg a ", &opaque[1..]].concat()), Judged::Command(_)));
    assert_eq!(complaint(b"mg"), ERROR);
    assert_eq!(complaint(b"ms a"), BAD_FORMAT);
    assert_eq!(complaint(b"ms a -1"), BAD_FORMAT);
    assert_eq!(complaint(b"me"), BAD_FORMAT);
}

#[test]
fn the_value_of_a_refused_set_is_thrown_away_once_its_length_is_known() {
    assert_eq!(judged(b"ms a 3 X"), Judged::RefusedSet { complaint: INVALID, length_bytes: 3 });
    assert_eq!(judged(b"ms a x X"), Judged::Refused(BAD_FORMAT));
}

#[test]
fn a_debug_looks_at_a_b_in_the_first_place_only() {
    assert!(flags(b"me Zm9v b").base64);
    assert!(!flags(b"me Zm9v X b").base64);
    assert_eq!(complaint(b"me a b"), BAD_FORMAT);
}
