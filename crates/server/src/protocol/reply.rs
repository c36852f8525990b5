//! Replies of both protocols: the form in which a client sees an outcome of the store. Pure; appends to a buffer.

use tapetum::{Error, Outcome};

use super::binary::{self, Origin, Status};
use super::meta_reply::{self, MetaAnswer};
use super::number::push_decimal;

/// Ends a line, and the value of a text get.
pub const LINE_END: &[u8] = b"\r\n";
/// Ends a text get.
pub const TEXT_GET_END: &[u8] = b"END\r\n";

/// The state of a request that its reply needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// One key of a text get. A miss adds nothing to the reply.
    TextGet {
        stamps: bool,
        touch: bool,
    },
    /// Closes a text get.
    TextGetEnd,
    Text {
        answer: TextAnswer,
        noreply: bool,
    },
    /// `now` is the arrival time, in unix seconds.
    Meta {
        answer: MetaAnswer,
        now: u32,
    },
    Binary {
        answer: BinaryAnswer,
        origin: Origin,
        quiet: bool,
    },
    /// Not a client's request: reads the item for watchers, before a request that changes it.
    Lookup,
    /// The reply has been written already.
    Silent,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TextAnswer {
    /// With a stamp, an absent key gives NOT_FOUND, otherwise NOT_STORED.
    Store {
        stamped: bool,
    },
    Increment {
        decrement: bool,
    },
    Touch,
    Delete,
    FlushAll,
    /// The reply is written when the errand's answer comes. `memlimit`: a failure is reported in memcached's words.
    Errand {
        memlimit: bool,
    },
    /// The reply is written when the password was looked at.
    Login,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BinaryAnswer {
    Get {
        with_key: bool,
        touch: bool,
    },
    Touch,
    Store {
        verb: binary::BinaryVerb,
        stamped: bool,
    },
    Increment {
        decrement: bool,
    },
    Delete,
    Flush,
    /// The reply is written when the password was looked at.
    Login,
}

impl Form {
    /// Whether the outcome has a value, whose size is unknown beforehand.
    pub fn is_get(self) -> bool {
        match self {
            Form::TextGet { .. } | Form::Lookup => true,
            Form::Meta { answer, .. } => matches!(answer, MetaAnswer::Get { .. } | MetaAnswer::Debug),
            Form::Binary { answer, .. } => matches!(answer, BinaryAnswer::Get { .. } | BinaryAnswer::Touch),
            _ => false,
        }
    }

    /// Whether the key is kept until the reply: it repeats the key, or a text in its place, or the request is named if it was slow.
    pub fn keeps_key(self) -> bool {
        match self {
            Form::TextGet { .. } | Form::Meta { .. } | Form::Text { answer: TextAnswer::Store { .. }, .. } => true,
            Form::Binary { answer, .. } => {
                matches!(answer, BinaryAnswer::Get { with_key: true, .. } | BinaryAnswer::Store { .. })
            }
            _ => false,
        }
    }
}

/// Appends the reply for `outcome`, whose value, if any, is `value`.
pub fn encode(out: &mut Vec<u8>, form: Form, key: &[u8], outcome: &Outcome, value: &[u8]) {
    match form {
        Form::TextGet { stamps, .. } => match outcome {
            Outcome::Value { flags, stamp, .. } => {
                text_value_head(out, key, stamps, ValueHead { flags: *flags, stamp: *stamp, value_bytes: value.len() });
                out.extend_from_slice(value);
                out.extend_from_slice(LINE_END);
            }
            Outcome::Missing => {}
            other => text_failure(out, other),
        },
        Form::TextGetEnd => out.extend_from_slice(TEXT_GET_END),
        Form::Meta { answer, now } => {
            if !meta_reply::encode(out, answer, now, key, outcome, value) {
                text_failure(out, outcome);
            }
        }
        Form::Text { noreply: true, .. } | Form::Lookup | Form::Silent => {}
        Form::Text { answer, noreply: false } => text(out, answer, outcome),
        Form::Binary { answer, origin, quiet } => binary(out, answer, origin, quiet, key, outcome, value),
    }
}

/// Whether a reply in this form to this outcome ends the get that it belongs to.
pub fn breaks_off_get(form: Form, outcome: &Outcome) -> bool {
    matches!(form, Form::TextGet { .. }) && !matches!(outcome, Outcome::Value { .. } | Outcome::Missing)
}

/// The facts about an item that a reply gives before its value.
#[derive(Clone, Copy)]
pub struct ValueHead {
    pub flags: u32,
    pub stamp: u64,
    pub value_bytes: usize,
}

/// The line before the value of a text get. The value and [`LINE_END`] follow.
pub fn text_value_head(out: &mut Vec<u8>, key: &[u8], stamps: bool, head: ValueHead) {
    out.reserve(head.value_bytes + key.len() + 64);
    out.extend_from_slice(b"VALUE ");
    out.extend_from_slice(key);
    out.push(b' ');
    push_decimal(out, u64::from(head.flags));
    out.push(b' ');
    push_decimal(out, head.value_bytes as u64);
    if stamps {
        out.push(b' ');
        push_decimal(out, head.stamp);
    }
    out.extend_from_slice(LINE_END);
}

/// The whole reply to a binary get, except the value that follows.
pub fn binary_value_head(out: &mut Vec<u8>, origin: Origin, key: &[u8], head: ValueHead) {
    let body_bytes = 4 + key.len() + head.value_bytes;
    out.reserve(binary::HEADER_BYTES + body_bytes);
    binary_header(out, origin, 0, 4, key.len(), body_bytes, head.stamp);
    out.extend_from_slice(&head.flags.to_be_bytes());
    out.extend_from_slice(key);
}

fn text(out: &mut Vec<u8>, answer: TextAnswer, outcome: &Outcome) {
    let word: &[u8] = match (answer, outcome) {
        (TextAnswer::Store { .. }, Outcome::Stored { .. }) => b"STORED\r\n",
        (TextAnswer::Store { .. }, Outcome::Exists) => b"EXISTS\r\n",
        (TextAnswer::Store { stamped: false }, Outcome::NotStored | Outcome::Missing) => b"NOT_STORED\r\n",
        (_, Outcome::Missing) => b"NOT_FOUND\r\n",
        (TextAnswer::Increment { .. }, Outcome::Number { number, .. }) => {
            push_decimal(out, *number);
            b"\r\n"
        }
        (TextAnswer::Touch, Outcome::Touched { .. }) => b"TOUCHED\r\n",
        (TextAnswer::Delete, Outcome::Deleted) => b"DELETED\r\n",
        (TextAnswer::FlushAll, Outcome::Done) => b"OK\r\n",
        (_, other) => return text_failure(out, other),
    };
    out.extend_from_slice(word);
}

fn text_failure(out: &mut Vec<u8>, outcome: &Outcome) {
    match outcome {
        Outcome::NotNumber => {
            out.extend_from_slice(b"CLIENT_ERROR cannot increment or decrement non-numeric value\r\n");
        }
        Outcome::Failed(Error::ValueTooLarge { .. }) => out.extend_from_slice(super::text::TOO_LARGE.as_bytes()),
        // libmemcached and others recognise exactly these words.
        Outcome::Failed(error) if error.is_full() => out.extend_from_slice(super::text::FULL.as_bytes()),
        other => {
            out.extend_from_slice(b"SERVER_ERROR ");
            out.extend_from_slice(one_line(other).as_bytes());
            out.extend_from_slice(b"\r\n");
        }
    }
}

/// A failure as one line of text.
fn one_line(outcome: &Outcome) -> String {
    let text = match outcome {
        Outcome::Failed(error) => error.to_string(),
        other => format!("the store gave an answer that does not fit the question ({other:?}): please report this"),
    };
    text.replace(|character: char| character.is_control(), " ")
}

fn binary(
    out: &mut Vec<u8>,
    answer: BinaryAnswer,
    origin: Origin,
    quiet: bool,
    key: &[u8],
    outcome: &Outcome,
    value: &[u8],
) {
    match (answer, outcome) {
        (BinaryAnswer::Get { .. } | BinaryAnswer::Touch, Outcome::Value { flags, stamp, .. }) => {
            let value = if answer == BinaryAnswer::Touch { b"" } else { value };
            let head = ValueHead { flags: *flags, stamp: *stamp, value_bytes: value.len() };
            binary_value_head(out, origin, key, head);
            out.extend_from_slice(value);
        }
        (BinaryAnswer::Get { .. }, Outcome::Missing) if quiet => {}
        (BinaryAnswer::Get { with_key: true, .. }, Outcome::Missing) => {
            binary_header(out, origin, Status::NotFound as u16, 0, key.len(), key.len(), 0);
            out.extend_from_slice(key);
        }
        (BinaryAnswer::Store { .. }, Outcome::Stored { stamp }) => binary_success(out, origin, quiet, *stamp),
        (BinaryAnswer::Delete, Outcome::Deleted) | (BinaryAnswer::Flush, Outcome::Done) => {
            binary_success(out, origin, quiet, 0)
        }
        (BinaryAnswer::Increment { .. }, Outcome::Number { .. }) if quiet => {}
        (BinaryAnswer::Increment { .. }, Outcome::Number { number, stamp, .. }) => {
            binary_header(out, origin, 0, 0, 0, 8, *stamp);
            out.extend_from_slice(&number.to_be_bytes());
        }
        (BinaryAnswer::Store { verb, .. }, Outcome::NotStored | Outcome::Missing) => {
            let status = match (verb, outcome) {
                (binary::BinaryVerb::Append | binary::BinaryVerb::Prepend, _) => Status::NotStored,
                (binary::BinaryVerb::Add, Outcome::NotStored) => Status::Exists,
                _ => Status::NotFound,
            };
            binary_refusal(out, origin, status, status.text());
        }
        (_, Outcome::Missing) => binary_refusal(out, origin, Status::NotFound, Status::NotFound.text()),
        (_, Outcome::Exists) => binary_refusal(out, origin, Status::Exists, Status::Exists.text()),
        (_, Outcome::NotNumber) => binary_refusal(out, origin, Status::NotNumber, Status::NotNumber.text()),
        (_, Outcome::Failed(Error::ValueTooLarge { .. })) => {
            binary_refusal(out, origin, Status::TooLarge, Status::TooLarge.text())
        }
        (_, Outcome::Failed(error)) if error.is_full() => {
            binary_refusal(out, origin, Status::OutOfMemory, Status::OutOfMemory.text())
        }
        (_, other) => binary_refusal(out, origin, Status::InternalError, &one_line(other)),
    }
}

fn binary_header(
    out: &mut Vec<u8>,
    origin: Origin,
    status: u16,
    extra_bytes: u8,
    key_bytes: usize,
    body_bytes: usize,
    stamp: u64,
) {
    let mut header = [0u8; binary::HEADER_BYTES];
    header[0] = 0x81;
    header[1] = origin.opcode;
    header[2..4].copy_from_slice(&(key_bytes as u16).to_be_bytes());
    header[4] = extra_bytes;
    header[6..8].copy_from_slice(&status.to_be_bytes());
    header[8..12].copy_from_slice(&(body_bytes as u32).to_be_bytes());
    header[12..16].copy_from_slice(&origin.opaque.to_be_bytes());
    header[16..24].copy_from_slice(&stamp.to_be_bytes());
    out.extend_from_slice(&header);
}

pub fn binary_success(out: &mut Vec<u8>, origin: Origin, quiet: bool, stamp: u64) {
    if !quiet {
        binary_header(out, origin, 0, 0, 0, 0, stamp);
    }
}

pub fn binary_refusal(out: &mut Vec<u8>, origin: Origin, status: Status, text: &str) {
    binary_header(out, origin, status as u16, 0, 0, text.len(), 0);
    out.extend_from_slice(text.as_bytes());
}

/// A reply that is a key, a value or both, as for version and stat.
pub fn binary_pair(out: &mut Vec<u8>, origin: Origin, key: &[u8], value: &[u8]) {
    binary_header(out, origin, 0, 0, key.len(), key.len() + value.len(), 0);
    out.extend_from_slice(key);
    out.extend_from_slice(value);
}

#[cfg(test)]
mod tests {
    use super::*;
    use tapetum::ValueRange;

    fn text_of(form: Form, outcome: Outcome) -> String {
        let mut out = Vec::new();
        encode(&mut out, form, b"key", &outcome, b"abc");
        String::from_utf8(out).unwrap()
    }

    const VALUE: Outcome =
        Outcome::Value { flags: 7, stamp: 9, expiry: tapetum::Expiry::NONE, value: ValueRange { start: 0, end: 3 } };

    #[test]
    fn text_values_carry_their_stamp_only_on_request() {
        assert_eq!(text_of(Form::TextGet { stamps: false, touch: false }, VALUE), "VALUE key 7 3\r\nabc\r\n");
        assert_eq!(text_of(Form::TextGet { stamps: true, touch: false }, VALUE), "VALUE key 7 3 9\r\nabc\r\n");
        assert_eq!(text_of(Form::TextGet { stamps: true, touch: false }, Outcome::Missing), "");
    }

    #[test]
    fn an_absent_key_is_not_stored_unless_a_stamp_was_asked_for() {
        let form = |stamped| Form::Text { answer: TextAnswer::Store { stamped }, noreply: false };
        assert_eq!(text_of(form(false), Outcome::Missing), "NOT_STORED\r\n");
        assert_eq!(text_of(form(true), Outcome::Missing), "NOT_FOUND\r\n");
    }

    #[test]
    fn a_failure_is_one_line() {
        let form = Form::Text { answer: TextAnswer::Delete, noreply: false };
        let error = Error::Io("a\r\nget b".into());
        let text = text_of(form, Outcome::Failed(error));
        assert!(text.starts_with("SERVER_ERROR ") && text.ends_with("\r\n"), "{text}");
        assert_eq!(text.matches('\n').count(), 1);
        assert_eq!(text_of(Form::Text { answer: TextAnswer::Delete, noreply: true }, Outcome::Deleted), "");
    }

    #[test]
    fn a_full_store_answers_in_the_words_of_memcached() {
        let now = 1_700_000_000;
        let forms = [
            Form::Text { answer: TextAnswer::Store { stamped: false }, noreply: false },
            Form::Text { answer: TextAnswer::Increment { decrement: false }, noreply: false },
            Form::TextGet { stamps: false, touch: true },
            Form::Meta { answer: MetaAnswer::Set { stamped: false }, now },
            Form::Meta { answer: MetaAnswer::Arithmetic { decrement: false }, now },
        ];
        for error in [Error::FullFlash, Error::FullIndex, Error::FullManifest] {
            for form in forms {
                let text = text_of(form, Outcome::Failed(error.clone()));
                assert_eq!(text, "SERVER_ERROR out of memory storing object\r\n", "{form:?}");
            }
            let (mut out, origin) = (Vec::new(), Origin { opcode: 1, opaque: 1 });
            let answer = BinaryAnswer::Store { verb: binary::BinaryVerb::Set, stamped: false };
            encode(&mut out, Form::Binary { answer, origin, quiet: true }, b"", &Outcome::Failed(error), b"");
            assert_eq!((&out[6..8], &out[24..]), (&[0, 0x82][..], &b"Out of memory"[..]));
        }
    }

    #[test]
    fn quiet_forms_say_what_is_worth_saying() {
        let origin = Origin { opcode: 9, opaque: 1 };
        let number_made = Outcome::Number { number: 1, stamp: 1, expiry_before: None };
        let length = |answer, outcome| {
            let mut out = Vec::new();
            encode(&mut out, Form::Binary { answer, origin, quiet: true }, b"", &outcome, b"abc");
            out.len()
        };
        assert_eq!(length(BinaryAnswer::Get { with_key: false, touch: false }, Outcome::Missing), 0);
        assert_eq!(length(BinaryAnswer::Get { with_key: false, touch: false }, VALUE), 24 + 4 + 3);
        assert_eq!(
            length(BinaryAnswer::Store { verb: binary::BinaryVerb::Set, stamped: false }, Outcome::Stored { stamp: 1 }),
            0
        );
        assert_eq!(
            length(BinaryAnswer::Store { verb: binary::BinaryVerb::Add, stamped: false }, Outcome::NotStored),
            24 + 20
        );
        assert_eq!(length(BinaryAnswer::Increment { decrement: false }, number_made), 0);
        assert_eq!(length(BinaryAnswer::Delete, Outcome::Missing), 24 + 9);
    }
}
