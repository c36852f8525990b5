//! The command's side of the socket.
//!
//! Threads: one. It looks every now and then whether its caller still wants the answer.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tapetum_drive::Size;
use tapetum_kernels::record::VALUE_BYTES_MAX;

use super::frame::{
    self, ANSWER_BYTES_MAX, FrameHead, FrameKind, GREETING_BYTES, GreetingHead, HEAD_BYTES, PROTOCOL_VERSION,
    REQUEST_BYTES_MAX,
};
use super::framing::{AnswerReader, FrameError, Told};
use super::path::SocketPath;
use crate::asked::Asked;
use crate::caller::{Caller, CallerLeft, Gathering};
use crate::failure::{Failure, FailureKind};
use crate::request::{Request, Role};
use crate::size;

/// How often it looks whether its caller has left.
const LOOK: Duration = Duration::from_millis(50);

/// A connection with a running server.
pub struct Connection {
    stream: UnixStream,
    path: PathBuf,
}

impl Connection {
    /// Connects with the server at `path`; `None` if none listens there.
    ///
    /// # Errors
    /// If something else listens there, or a server of another version.
    pub fn open(path: &Path) -> Result<Option<Connection>, Failure> {
        // Whatever is wrong with the path, opening the store tells it in better words: a socket that a killed server left may also be
        // another user's.
        let connected = SocketPath::of(path).and_then(|socket| UnixStream::connect(socket.short()));
        let Ok(stream) = connected else { return Ok(None) };
        let unusable = |error: io::Error| {
            let told = format!("the server's socket {} cannot be used: {error}", path.display());
            Failure::new(FailureKind::Unavailable, told)
        };
        stream.set_read_timeout(Some(LOOK)).map_err(unusable)?;
        let mut connection = Connection { stream, path: path.into() };
        connection.greet()?;
        Ok(Some(connection))
    }

    fn greet(&mut self) -> Result<(), Failure> {
        // What the server says is what counts, if it has ended before all was written: it may be full.
        let _ = self.stream.write_all(&frame::greeting());
        let mut head = [0; GREETING_BYTES];
        self.fill(&mut head, &mut Gathering::default(), Role::Read)?;
        let Some(head) = GreetingHead::parse(head) else {
            let told = format!("{} is no socket of a tapetum server: move it away", self.path.display());
            return Err(Failure::new(FailureKind::Unavailable, told));
        };
        let mut version = vec![0; head.version_bytes];
        self.fill(&mut version, &mut Gathering::default(), Role::Read)?;
        if head.protocol_version == PROTOCOL_VERSION {
            return Ok(());
        }
        let (version, own) = (String::from_utf8_lossy(&version).into_owned(), env!("CARGO_PKG_VERSION"));
        let told = format!(
            "the running server is tapetum {version} (protocol {}), this command is {own} (protocol {PROTOCOL_VERSION}): use the \
             server's own, or restart it with this one",
            head.protocol_version
        );
        Err(Failure::new(FailureKind::OtherVersion, told))
    }

    /// Reads until `buffer` is full, or the caller leaves.
    fn fill(&mut self, buffer: &mut [u8], caller: &mut dyn Caller, role: Role) -> Result<(), Failure> {
        let mut filled = 0;
        while filled < buffer.len() {
            match self.stream.read(&mut buffer[filled..]) {
                Ok(0) => return Err(self.broken(&io::ErrorKind::UnexpectedEof.into(), role)),
                Ok(bytes) => filled += bytes,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if caller.has_left() {
                        return Err(CallerLeft.into());
                    }
                }
                Err(error) => return Err(self.broken(&error, role)),
            }
        }
        Ok(())
    }

    /// The connection broke before the answer was whole.
    fn broken(&self, error: &io::Error, role: Role) -> Failure {
        let doubt = match role {
            Role::Read => "ask again when it serves again",
            Role::Write | Role::Admin => "it may or may not have been done: look when it serves again",
        };
        let told = format!("the server at {} ended before it had answered ({error}): {doubt}", self.path.display());
        Failure::new(FailureKind::Unavailable, told)
    }

    fn nonsense(&self, why: &str) -> Failure {
        let told = format!("the server at {} answered with what makes no sense: {why}", self.path.display());
        Failure::new(FailureKind::Unavailable, told)
    }
}

/// After a failure that is [`FailureKind::Cancelled`] or [`FailureKind::Unavailable`] the connection may be of no more use.
impl Asked for Connection {
    fn call(&mut self, request: &Request, caller: &mut dyn Caller) -> Result<(), Failure> {
        let (role, _) = request.needs();
        let frame = frame::framed_data(FrameKind::Request, request).map_err(|error| self.broken(&error, role))?;
        if frame.len() > REQUEST_BYTES_MAX {
            let (has, most) = (size::grouped(frame.len() as u64), Size(VALUE_BYTES_MAX as u64));
            return Err(Failure::bad(format!(
                "the request has {has} bytes, and no store takes values of more than {most}: split it"
            )));
        }
        // As in a greeting.
        let _ = self.stream.write_all(&frame);
        let (mut answer, mut body) = (AnswerReader::default(), Vec::new());
        loop {
            let mut head = [0; HEAD_BYTES];
            self.fill(&mut head, caller, role)?;
            let head = FrameHead::parse(head, ANSWER_BYTES_MAX).map_err(|why| self.nonsense(&why))?;
            body.resize(head.body_bytes, 0);
            self.fill(&mut body, caller, role)?;
            match answer.take(head.kind, &mut body, caller) {
                Ok(Told::More) => {}
                Ok(Told::Done) => return Ok(()),
                Err(FrameError::Failed(failure)) => return Err(failure),
                Err(FrameError::Nonsense(why)) => return Err(self.nonsense(&why)),
            }
        }
    }
}
