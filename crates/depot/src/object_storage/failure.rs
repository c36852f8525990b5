//! Why object storage did not do what it was asked, in words that help, and whether asking again may.
//!
//! Only the status and the code of a server's answer are told: its text may quote the request, with what signed it.

use std::error::Error;
use std::fmt;

use object_store::client::HttpError;
use tapetum::backup::DepotError;

/// See the [module](self).
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Failure {
    /// There is an object of this name.
    Exists,
    /// There is no object of this name.
    Missing,
    NoBucket,
    /// No credentials were found, or their source did not answer.
    NoCredentials(String),
    /// The server does not accept the credentials, or they do not suffice.
    Denied(String),
    /// The clocks of this machine and of the server differ too much.
    Clock,
    /// The address is http, which was not allowed.
    Insecure,
    /// The environment has a setting that makes no sense.
    Setting(String),
    /// The server ignores the condition of a put.
    Unconditional,
    Full(String),
    /// Another request for the same object was under way, each time.
    Conflict,
    /// The server was asked for too much, or failed, each time.
    Busy(String),
    /// No connection, or one that broke.
    Unreachable(String),
    /// It did not answer in time.
    NoAnswer,
    Other(String),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Exists => f.write_str("there is an object of this name"),
            Failure::Missing => f.write_str("there is no such object"),
            Failure::NoBucket => f.write_str("there is no such bucket: make it first, or correct its name, AWS_REGION or AWS_ENDPOINT_URL"),
            Failure::NoCredentials(why) => write!(
                f,
                "no credentials ({why}): set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the environment of the process that keeps the backups, \
                 which is the server's where a server has the store open; ~/.aws is not read"
            ),
            Failure::Denied(code) => write!(
                f,
                "access is denied ({code}): AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY must be a valid pair, of AWS_REGION, that may list, get, put and \
                 delete objects there"
            ),
            Failure::Clock => f.write_str("this machine's clock and the server's differ too much: set the clock, as by NTP"),
            Failure::Insecure => f.write_str(
                "AWS_ENDPOINT_URL is http, by which everybody on the way reads and changes the backups: give https, or set AWS_ALLOW_HTTP=true if \
                 the network is your own",
            ),
            Failure::Setting(what) => write!(f, "the environment does not fit: {what}"),
            Failure::Unconditional => f.write_str(
                "the server overwrites objects that a request said must not exist (it ignores If-None-Match): two writers would destroy each \
                 other's backups; nothing was written; use a server that supports conditional writes",
            ),
            Failure::Full(code) => write!(f, "there is no room ({code})"),
            Failure::Conflict => f.write_str("other requests for the same object came in between each time: try again"),
            Failure::Busy(code) => write!(f, "the server is overloaded or failed ({code}): try again"),
            Failure::Unreachable(why) => write!(
                f,
                "the server cannot be reached ({why}): look at the network, AWS_ENDPOINT_URL and AWS_REGION; SSL_CERT_FILE names certificates of \
                 your own"
            ),
            Failure::NoAnswer => f.write_str("the server did not answer in time: look at the network, and try again"),
            Failure::Other(what) => f.write_str(what),
        }
    }
}

/// Codes of answers, by what they mean; a status that has no code counts by itself.
const CODES_OF_ROOM: [&str; 4] = ["QuotaExceeded", "InsufficientStorage", "EntityTooLarge", "XMinioStorageFull"];
const CODES_TO_RETRY: [&str; 4] = ["RequestTimeout", "SlowDown", "InternalError", "ServiceUnavailable"];

impl Failure {
    /// Reads an error of `object_store`.
    pub fn of(error: &object_store::Error) -> Failure {
        use object_store::Error as E;
        if let E::AlreadyExists { source, .. } = error
            && let Some(E::Precondition { .. } | E::NotModified { .. }) = source.downcast_ref()
        {
            return Failure::Exists;
        }
        if let Some(failure) = connection(error) {
            return failure;
        }
        let text = error.to_string();
        match (status(&text), code(&text)) {
            // A store in memory, of tests.
            (None, None) if matches!(error, E::AlreadyExists { .. }) => Failure::Exists,
            (None, None) if matches!(error, E::NotFound { .. }) => Failure::Missing,
            (None, None) => Failure::Other(root(error).to_string()),
            (status, code) => answered(status.unwrap_or(0), code),
        }
    }

    /// Whether the same request may succeed soon.
    pub fn is_passing(&self) -> bool {
        matches!(self, Failure::Conflict | Failure::Busy(_) | Failure::Unreachable(_) | Failure::NoAnswer)
    }

    pub fn at(&self, doing: &str, place: &str) -> DepotError {
        let is_full = matches!(self, Failure::Full(_));
        DepotError { doing: format!("{doing} {place}"), why: self.to_string(), is_full }
    }
}

fn answered(status: u16, code: Option<&str>) -> Failure {
    let told = || code.map_or_else(|| status.to_string(), str::to_owned);
    match (status, code.unwrap_or_default()) {
        (_, "NoSuchBucket") => Failure::NoBucket,
        (_, "RequestTimeTooSkewed" | "RequestExpired") => Failure::Clock,
        (507, _) => Failure::Full(told()),
        (_, code) if CODES_OF_ROOM.contains(&code) => Failure::Full(told()),
        (_, "NotImplemented") | (501, _) => Failure::Unconditional,
        (404, _) => Failure::Missing,
        (401 | 403, _) => Failure::Denied(told()),
        (409, _) => Failure::Conflict,
        (412, _) => Failure::Exists,
        (_, code) if CODES_TO_RETRY.contains(&code) => Failure::Busy(told()),
        (408 | 429 | 500..=599, _) => Failure::Busy(told()),
        (301 | 307 | 400, "" | "PermanentRedirect" | "TemporaryRedirect" | "AuthorizationHeaderMalformed") => {
            Failure::Setting(format!("the server answered {}; AWS_REGION must be the bucket's", told()))
        }
        _ => Failure::Other(format!("the server answered {}", told())),
    }
}

/// A failure between here and the server.
fn connection(error: &object_store::Error) -> Option<Failure> {
    let mut source: Option<&(dyn Error + 'static)> = Some(error);
    while let Some(error) = source {
        if error.is::<HttpError>() {
            return Some(Failure::Unreachable(root(error).to_string()));
        }
        source = error.source();
    }
    None
}

/// The innermost cause: outer ones name URLs.
pub fn root<'a>(error: &'a (dyn Error + 'static)) -> &'a (dyn Error + 'static) {
    let mut root = error;
    while let Some(source) = root.source() {
        root = source;
    }
    root
}

fn status(text: &str) -> Option<u16> {
    let (_, rest) = text.split_once("status code: ")?;
    rest.get(..3)?.parse().ok()
}

/// The code of an answer in XML.
fn code(text: &str) -> Option<&str> {
    let (_, rest) = text.split_once("<Code>")?;
    let (code, _) = rest.split_once("</Code>")?;
    let is_word = code.len() <= 64 && code.bytes().all(|byte| byte.is_ascii_alphanumeric());
    is_word.then_some(code)
}
