use super::*;

const NOW: u32 = 1_700_000_000;
const SOON: Expiry = Expiry::from_secs(NOW + 50);
const ACCESS: Access = Access { was_read: true, idle_seconds: 61 };

fn reply(answer: MetaAnswer, tail: &[u8], outcome: &Outcome) -> String {
    let mut out = Vec::new();
    assert!(encode(&mut out, answer, NOW, tail, outcome, b"abc"));
    String::from_utf8(out).unwrap()
}

fn found(expiry_before: Option<Expiry>, marks: Marks, won: bool) -> Outcome {
    let value = ValueRange { start: 0, end: 3 };
    Outcome::Leased { flags: 7, stamp: 9, expiry_before, marks, won, access: ACCESS, value }
}

const GET: MetaAnswer = MetaAnswer::Get { touch: false };

#[test]
fn an_item_is_shown_in_the_order_of_the_flags() {
    let item = found(Some(SOON), Marks::NONE, false);
    assert_eq!(reply(GET, b"key", &item), "HD\r\n");
    let all = "VA 3 s3 t50 c9 f7 h1 l61 kkey Oq\r\nabc\r\n";
    assert_eq!(reply(GET, b"key v s t c f h l k Oq Lproxy q", &item), all);
    assert_eq!(reply(GET, b"key t", &found(Some(Expiry::NONE), Marks::NONE, false)), "HD t-1\r\n");
}

#[test]
fn the_line_of_an_item_in_dram_is_that_of_any() {
    for (expiry, access) in [(Expiry::NONE, ACCESS), (SOON, Access::default())] {
        let item = DramItem { flags: 7, expiry, stamp: 9, value_bytes: 3, marks: Marks::NONE };
        let value = ValueRange { start: 0, end: 3 };
        let (flags, stamp, expiry_before, marks, won) = (7, 9, Some(expiry), Marks::NONE, false);
        let outcome = Outcome::Leased { flags, stamp, expiry_before, marks, won, access, value };
        for tail in ["key v", "key s t v c f h k Oq Lproxy q l", "key  v Oopaque  k "] {
            let mut line = Vec::new();
            assert!(value_line(&mut line, tail.as_bytes(), NOW, &item, access));
            assert_eq!(String::from_utf8(line).unwrap() + "abc\r\n", reply(GET, tail.as_bytes(), &outcome));
        }
        for marks in [Marks { stale: true, leased: false }, Marks { stale: false, leased: true }] {
            let mut line = Vec::new();
            assert!(!value_line(&mut line, b"key v", NOW, &DramItem { marks, ..item }, access) && line.is_empty());
        }
    }
}

#[test]
fn marks_come_last() {
    let (stale, leased) = (Marks { stale: true, leased: true }, Marks { stale: false, leased: true });
    assert_eq!(reply(GET, b"key c", &found(Some(Expiry::NONE), stale, true)), "HD c9 X W\r\n");
    assert_eq!(reply(GET, b"key c", &found(Some(Expiry::NONE), stale, false)), "HD c9 Z X\r\n");
    assert_eq!(reply(GET, b"key", &found(None, leased, true)), "HD W\r\n");
}

#[test]
fn a_flag_shows_the_expiry_as_those_before_it_left_it() {
    let (there, made) = (found(Some(SOON), Marks::NONE, false), found(None, Marks::NONE, true));
    assert_eq!(reply(GET, b"key t T30", &there), "HD t50\r\n");
    assert_eq!(reply(GET, b"key T30 t N20", &there), "HD t30\r\n");
    assert_eq!(reply(GET, b"key N20 t", &there), "HD t50\r\n");
    assert_eq!(reply(GET, b"key t N20", &made), "HD t-1 W\r\n");
    assert_eq!(reply(GET, b"key T30 N20 t", &made), "HD t20 W\r\n");
}

#[test]
fn quiet_hides_what_was_to_be_expected() {
    assert_eq!(reply(GET, b"key k q", &Outcome::Missing), "");
    assert_eq!(reply(GET, b"key k Oq", &Outcome::Missing), "EN kkey Oq\r\n");
    let set = MetaAnswer::Set { stamped: true };
    assert_eq!(reply(set, b"key 3 c q", &Outcome::Stored { stamp: 5 }), "");
    assert_eq!(reply(set, b"key 3 c k", &Outcome::Stored { stamp: 5 }), "HD c5 kkey\r\n");
    assert_eq!(reply(set, b"key 3 c q", &Outcome::Exists), "EX c0\r\n");
    assert_eq!(reply(set, b"key 3 q", &Outcome::Missing), "NF\r\n");
    assert_eq!(reply(MetaAnswer::Set { stamped: false }, b"key 3 q", &Outcome::Missing), "NS\r\n");
    let delete = MetaAnswer::Delete { invalidate: false };
    assert_eq!(reply(delete, b"key q", &Outcome::Deleted), "");
    assert_eq!(reply(delete, b"key q", &Outcome::Missing), "NF\r\n");
}

#[test]
fn a_key_that_came_in_base64_goes_back_as_its_bytes_are_written() {
    assert_eq!(reply(GET, b"aa=a b k", &Outcome::Missing), "EN kaaA= b\r\n");
    assert_eq!(reply(GET, b"aa=a k", &Outcome::Missing), "EN kaa=a\r\n");
}

#[test]
fn numbers_and_what_is_known_of_an_item() {
    let sum = Outcome::Number { number: 42, stamp: 9, expiry_before: Some(Expiry::NONE) };
    let answer = MetaAnswer::Arithmetic { decrement: false };
    assert_eq!(reply(answer, b"n v t T30 c", &sum), "VA 2 t-1 c9\r\n42\r\n");
    assert_eq!(reply(answer, b"n q", &sum), "");
    assert_eq!(reply(answer, b"n q k", &Outcome::Exists), "EX kn\r\n");
    let item = found(Some(SOON), Marks::NONE, false);
    assert_eq!(reply(MetaAnswer::Debug, b"key", &item), "ME key exp=-50 la=61 cas=9 fetch=yes cls=0 size=6\r\n");
    let coded = reply(MetaAnswer::Debug, b"aaA= b", &item);
    assert_eq!(coded, "ME aaA= exp=-50 la=61 cas=9 fetch=yes cls=0 size=5\r\n");
}
