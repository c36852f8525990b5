//! Logins as memcached's protocols and HTTP carry them, and the users file.

use tapetum::fuzzing::Input;
use tapetum_access::credentials::{CREDENTIALS_BYTES_MAX, Credentials, NoCredentials};
use tapetum_access::password::PASSWORD_BYTES_MAX;
use tapetum_access::rights::Rights;
use tapetum_access::users::{self, User, Users};
use tapetum_server::protocol::binary::{self, BinaryCommand};
use tapetum_server::protocol::{Parsed, login};
use tapetum_service::request::Role;

use crate::memcached::{arrivals, take};

/// Names and passwords are read as they are written, and frames of logins are the same however the input is cut.
pub fn sasl(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let (cuts, step) = (input.array(), input.u8());
    let input = input.rest();
    credentials(input);
    let parse = |rest, _| match login::parse(rest) {
        Some(Ok((command, consumed_bytes))) => Parsed::Command { command, consumed_bytes, skip_bytes: 0 },
        Some(Err(total_bytes)) => Parsed::NeedMore { total_bytes, scanned_bytes: 0 },
        None => Parsed::Close,
    };
    assert_eq!(take(input, arrivals(cuts, input.len()), parse), take(input, [input.len()].into_iter(), parse));
    sasl_frame(cuts, usize::from(step), input);
}

fn credentials(input: &[u8]) {
    if let Some(read) = looked_at(Credentials::of_plain(input)) {
        assert_eq!(Credentials::of_plain(&joined(b"\0", &read, b"\0")), Ok(read));
    }
    if let Some(read) = looked_at(Credentials::of_words(input)) {
        assert_eq!(Credentials::of_words(&joined(b"", &read, b" ")), Ok(read));
    }
    looked_at(Credentials::of_basic(input));
    looked_at(Credentials::of_basic(&[b"Basic ", input].concat()));
}

fn looked_at(read: Result<Credentials, NoCredentials>) -> Option<Credentials> {
    let read = read.ok()?;
    assert!((1..=PASSWORD_BYTES_MAX).contains(&read.password.bytes().len()));
    Some(read)
}

fn joined(start: &[u8], credentials: &Credentials, separator: &[u8]) -> Vec<u8> {
    [start, credentials.name.as_bytes(), separator, credentials.password.bytes()].concat()
}

/// A frame of `SASL auth` whose mechanism is the first bytes of `body`.
fn sasl_frame(cuts: [u8; 4], mechanism_bytes: usize, body: &[u8]) {
    let Some((mechanism, message)) = body.split_at_checked(mechanism_bytes) else { return };
    let mut frame = vec![0x80, 0x21, 0, mechanism.len() as u8, 0, 0, 0, 0];
    frame.extend_from_slice(&(body.len() as u32).to_be_bytes());
    frame.extend_from_slice(&[0; 12]);
    frame.extend_from_slice(body);
    for length in arrivals(cuts, frame.len()).filter(|length| *length < frame.len()) {
        if let Parsed::Command { command: (_, BinaryCommand::SaslAuth { .. }), .. } =
            binary::parse(&frame[..length], CREDENTIALS_BYTES_MAX)
        {
            panic!("{length} bytes are taken for {}", frame.len());
        }
    }
    match binary::parse(&frame, CREDENTIALS_BYTES_MAX) {
        Parsed::Command {
            command: (_, BinaryCommand::SaslAuth { mechanism: read, message: said }),
            consumed_bytes,
            ..
        } => {
            assert_eq!((read, said, consumed_bytes), (mechanism, message, frame.len()));
        }
        Parsed::Command { command: (_, BinaryCommand::Refused { .. }), .. } => {
            assert!(mechanism.is_empty() || mechanism.len() > 250 || message.len() > CREDENTIALS_BYTES_MAX);
        }
        _ => panic!("a whole frame is something else"),
    }
}

/// A file that is read is read again after each edit, with the same users but for the one that was edited.
pub fn users_file(bytes: &[u8]) {
    written(bytes);
    let Ok(read) = Users::parse(bytes) else { return };
    let text = std::str::from_utf8(bytes).expect("a file that was read is UTF-8, but for lines that mean nothing");
    let mut last = None;
    for user in read.iter() {
        let again = Users::parse(users::with(text, user).as_bytes()).expect("a user was replaced by himself");
        assert!(again.len() == read.len() && read.iter().all(|other| again.find(&other.name) == Some(other)));
        let less = users::without(text, &user.name).expect("the user is there");
        let less = Users::parse(less.as_bytes()).expect("a line was taken out");
        assert!(less.len() + 1 == read.len() && less.find(&user.name).is_none());
        assert!(less.iter().all(|other| read.find(&other.name) == Some(other)));
        last = Some(user);
    }
    if let Some(user) = last {
        assert!(users::without("", &user.name).is_none());
    }
}

/// A user with any name and rights over keyspaces of any names is read back from the line that is written.
fn written(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let (name_bytes, keyspace_bytes, role) = (input.u8(), input.u8(), input.u8());
    let mut text = |length: u8| std::str::from_utf8(input.bytes(usize::from(length)));
    let (Ok(name), Ok(keyspace)) = (text(name_bytes), text(keyspace_bytes)) else { return };
    if users::check_name(name).is_err() || keyspace.is_empty() {
        return;
    }
    let mut rights = Rights::default();
    rights.add([Role::Read, Role::Write, Role::Admin][usize::from(role) % 3], Some(keyspace));
    if role > 127 {
        rights.add(Role::Read, None);
    }
    let user = User { name: name.into(), rights, hash: None };
    let text = users::with(users::HEAD, &user);
    let read = Users::parse(text.as_bytes()).expect("a line that was written");
    assert_eq!(read.find(name).map(|read| &**read), Some(&user));
}
