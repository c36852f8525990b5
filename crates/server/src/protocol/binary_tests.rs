use super::*;
use proptest::prelude::*;

const LIMIT: usize = 1 << 20;

fn packet(code: u8, extras: &[u8], key: &[u8], value: &[u8]) -> Vec<u8> {
    let mut bytes = vec![BINARY_MAGIC, code];
    bytes.extend_from_slice(&(key.len() as u16).to_be_bytes());
    bytes.extend_from_slice(&[extras.len() as u8, 0, 0, 0]);
    bytes.extend_from_slice(&((extras.len() + key.len() + value.len()) as u32).to_be_bytes());
    bytes.extend_from_slice(&7u32.to_be_bytes());
    bytes.extend_from_slice(&9u64.to_be_bytes());
    [bytes.as_slice(), extras, key, value].concat()
}

fn refusal(input: &[u8]) -> (Status, bool, usize) {
    match parse(input, LIMIT) {
        Parsed::Command { command: (_, BinaryCommand::Refused { status, close }), skip_bytes, .. } => {
            (status, close, skip_bytes)
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_set_is_header_extras_key_and_value() {
    let input = packet(opcode::SETQ, &[0, 0, 0, 5, 0, 0, 0, 60], b"key", b"value");
    let expected = BinaryCommand::Store {
        verb: BinaryVerb::Set,
        key: b"key",
        flags: 5,
        exptime: 60,
        stamp: 9,
        value: b"value",
        quiet: true,
    };
    let origin = Origin { opcode: opcode::SETQ, opaque: 7 };
    assert_eq!(
        parse(&input, LIMIT),
        Parsed::Command { command: (origin, expected), consumed_bytes: input.len(), skip_bytes: 0 }
    );
    let short = &input[..input.len() - 1];
    assert_eq!(parse(short, LIMIT), Parsed::NeedMore { total_bytes: input.len(), scanned_bytes: 0 });
}

#[test]
fn lengths_that_disagree_are_refused_before_the_body_comes() {
    let mut input = packet(opcode::GET, b"", b"key", b"");
    input[3] = 200;
    assert_eq!(refusal(&input[..HEADER_BYTES]), (Status::UnknownCommand, true, 0));
    let mut input = packet(opcode::GET, b"", b"key", b"");
    input[4] = 3;
    assert_eq!(refusal(&input), (Status::UnknownCommand, true, 0));
    assert_eq!(refusal(&packet(opcode::GET, b"", &[b'k'; 251], b"")), (Status::InvalidArguments, true, 0));
    assert_eq!(refusal(&packet(opcode::SET, b"", b"k", b"v")), (Status::InvalidArguments, true, 0));
    assert_eq!(refusal(&packet(opcode::INCREMENT, &[0; 8], b"k", b"")), (Status::InvalidArguments, true, 0));
    assert_eq!(refusal(&packet(opcode::FLUSH, &[0; 3], b"", b"")), (Status::InvalidArguments, true, 0));
    assert_eq!(refusal(&packet(opcode::NOOP, b"", b"", b"v")), (Status::InvalidArguments, true, 0));
}

#[test]
fn an_unknown_command_is_skipped_whole() {
    assert_eq!(refusal(&packet(0x50, b"ee", b"key", b"value")), (Status::UnknownCommand, false, 10));
}

#[test]
fn a_login_is_taken_whole() {
    let input = packet(opcode::SASL_AUTH, b"", b"PLAIN", b"\0user\0word");
    let Parsed::Command { command: (_, command), consumed_bytes, skip_bytes: 0 } = parse(&input, LIMIT) else {
        panic!()
    };
    assert_eq!(command, BinaryCommand::SaslAuth { mechanism: b"PLAIN", message: b"\0user\0word" });
    assert_eq!(consumed_bytes, input.len());
    assert_eq!(
        refusal(&packet(opcode::SASL_AUTH, b"", b"PLAIN", &[0; LIMIT + 1])),
        (Status::NotAllowed, false, LIMIT + 1)
    );
}

#[test]
fn a_value_over_the_limit_is_skipped_and_never_waited_for() {
    let mut input = packet(opcode::SET, &[0; 8], b"k", b"");
    input[8..12].copy_from_slice(&u32::MAX.to_be_bytes());
    let Parsed::Command { command: (_, command), consumed_bytes, skip_bytes } = parse(&input, LIMIT) else { panic!() };
    assert_eq!(command, BinaryCommand::TooLarge { key: b"k", delete: true });
    assert_eq!((consumed_bytes, skip_bytes), (HEADER_BYTES + 9, u32::MAX as usize - 9));
}

#[test]
fn an_increment_of_all_ones_does_not_create() {
    let mut extras = [0; 20];
    extras[7] = 3;
    extras[15] = 10;
    let input = packet(opcode::DECREMENT, &extras, b"n", b"");
    let Parsed::Command { command: (_, command), .. } = parse(&input, LIMIT) else { panic!() };
    let initial = Some((10, 0));
    assert_eq!(
        command,
        BinaryCommand::Increment { key: b"n", delta: 3, decrement: true, initial, stamp: 9, quiet: false }
    );
    extras[16..].fill(0xff);
    let input = packet(opcode::INCREMENT, &extras, b"n", b"");
    let Parsed::Command { command: (_, BinaryCommand::Increment { initial, .. }), .. } = parse(&input, LIMIT) else {
        panic!()
    };
    assert_eq!(initial, None);
}

#[test]
fn another_first_byte_closes() {
    assert_eq!(parse(b"get a\r\n", LIMIT), Parsed::Close);
}

proptest! {
    /// Random headers: no panic, no length asked for beyond the limit, and no byte consumed that is not there.
    #[test]
    fn judges_any_header(
        code: u8, key in 0u16..300, extras in 0u8..30, body in prop_oneof![0u32..600, any::<u32>()],
        rest in prop::collection::vec(any::<u8>(), 0..700),
    ) {
        let mut input = packet(code, b"", b"", b"");
        input[2..4].copy_from_slice(&key.to_be_bytes());
        input[4] = extras;
        input[8..12].copy_from_slice(&body.to_be_bytes());
        input.extend_from_slice(&rest);
        let whole = format!("{:?}", parse(&input, 64));
        let mut needed = 1;
        // Every prefix either asks for more, within reason, or gives the same as the whole.
        for end in 1..=input.len() {
            match parse(&input[..end], 64) {
                Parsed::NeedMore { total_bytes, .. } => {
                    prop_assert!(total_bytes > end && total_bytes <= HEADER_BYTES + 20 + KEY_BYTES_MAX + 64);
                    prop_assert!(total_bytes >= needed);
                    needed = total_bytes;
                }
                other => {
                    prop_assert!(end >= needed);
                    prop_assert_eq!(format!("{other:?}"), whole.clone());
                }
            }
        }
    }

    /// The fast parser and the general one agree on gets.
    #[test]
    fn the_short_way_to_gets_leads_where_the_long_one_does(
        code in prop_oneof![0u8..0x10, any::<u8>()], key in 0u16..300, extras in 0u8..2, more in 0u32..3,
        rest in prop::collection::vec(any::<u8>(), 0..300),
    ) {
        let mut input = packet(code, b"", b"", b"");
        input[2..4].copy_from_slice(&key.to_be_bytes());
        input[4] = extras;
        input[8..12].copy_from_slice(&(u32::from(key) + u32::from(extras) + more).to_be_bytes());
        input.extend_from_slice(&rest);
        let long = match parse(&input, 64) {
            Parsed::Command { command: (origin, BinaryCommand::Get { key, with_key, .. }), consumed_bytes, .. } => {
                prop_assert_eq!(consumed_bytes, HEADER_BYTES + key.len());
                Some((key, with_key, origin))
            }
            _ => None,
        };
        prop_assert_eq!(parse_get(&input).map(|get| (get.key, get.with_key, get.origin)), long);
    }

    /// The fast parser and the general one agree on unconditional sets.
    #[test]
    fn the_short_way_to_sets_leads_where_the_long_one_does(
        code in prop_oneof![Just(opcode::SET), Just(opcode::SETQ), any::<u8>()], key in 0u16..300,
        extras in prop_oneof![Just(8u8), 0u8..12], value in 0u32..80, less in 0u32..3, stamp in 0u64..2,
        rest in prop::collection::vec(any::<u8>(), 0..400),
    ) {
        let mut input = packet(code, b"", b"", b"");
        input[2..4].copy_from_slice(&key.to_be_bytes());
        input[4] = extras;
        let body = (u32::from(key) + u32::from(extras) + value).saturating_sub(less);
        input[8..12].copy_from_slice(&body.to_be_bytes());
        input[16..24].copy_from_slice(&stamp.to_be_bytes());
        input.extend_from_slice(&rest);
        let long = match parse(&input, 64) {
            Parsed::Command {
                command: (origin, BinaryCommand::Store { verb: BinaryVerb::Set, key, flags, exptime, stamp: 0, value, quiet }),
                consumed_bytes,
                ..
            } => {
                prop_assert_eq!(consumed_bytes, HEADER_BYTES + 8 + key.len() + value.len());
                Some((key, value, flags, exptime, quiet, origin))
            }
            _ => None,
        };
        let short = parse_set(&input, 64);
        prop_assert_eq!(short.map(|set| (set.key, set.value, set.flags, set.exptime, set.quiet, set.origin)), long);
    }
}
