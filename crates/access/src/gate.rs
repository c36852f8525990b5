//! The gate of a server: its users as they are now, and how one logs in.
//!
//! Threads: all of a server's.

#![allow(clippy::disallowed_methods)] // The server is above the simulator: clocks are the system's.

use std::fmt;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use crate::credentials::{Credentials, NoCredentials};
use crate::current::CurrentUsers;
pub use crate::desk::LoginMemory;
use crate::desk::{Attempt, Desk};
use crate::identity::{By, Identity};
use crate::remembered::Remembered;
use crate::secret_file;
use crate::slowness::Origin;
use crate::token::TokenOffice;
use crate::users::{Users, UsersError};

/// A token is good for so long.
const TOKEN_SECONDS: u64 = 24 * 3600;

/// See the [module](self).
pub struct Gate {
    path: PathBuf,
    current: Arc<CurrentUsers>,
    desk: Desk,
    remembered: Mutex<Remembered>,
    tokens: TokenOffice,
    logins: AtomicU64,
    failures: AtomicU64,
}

/// A users file that cannot be used.
#[derive(Debug)]
pub enum GateError {
    Read {
        path: PathBuf,
        error: io::Error,
    },
    Users {
        path: PathBuf,
        error: UsersError,
    },
    /// The system has no random bytes.
    Random,
}

impl fmt::Display for GateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GateError::Read { path, error } if error.kind() == io::ErrorKind::NotFound => write!(
                f,
                "there is no users file {}: make it by `tapetum user add NAME --admin '*' --users-file {0}`",
                path.display()
            ),
            GateError::Read { path, error } => write!(f, "the users file {} is not read: {error}", path.display()),
            GateError::Users { path, error } => write!(f, "{}: {error}", path.display()),
            GateError::Random => f.write_str("the system has no random bytes now: try again"),
        }
    }
}

impl std::error::Error for GateError {}

/// Why somebody is not let in. A name that is not there and a wrong password are told alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoginError {
    Wrong,
    /// As many wait as may.
    Busy,
}

impl fmt::Display for LoginError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LoginError::Wrong => "there is no such user, or the password is another one",
            LoginError::Busy => "too many log in now: try again in a while",
        })
    }
}

impl std::error::Error for LoginError {}

/// The verdict about a login.
pub type Verdict = Result<Identity, LoginError>;

/// How often somebody logged in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoginFigures {
    pub logins: u64,
    pub failures: u64,
}

impl Gate {
    /// Reads the users file.
    ///
    /// # Errors
    /// If it cannot be used.
    pub fn open(path: &Path) -> Result<Gate, GateError> {
        Ok(Gate {
            path: path.into(),
            current: Arc::new(CurrentUsers::new(read(path)?)),
            desk: Desk::new(),
            remembered: Mutex::new(Remembered::new().map_err(|_| GateError::Random)?),
            tokens: TokenOffice::new().map_err(|_| GateError::Random)?,
            logins: AtomicU64::new(0),
            failures: AtomicU64::new(0),
        })
    }

    /// Begins to look at passwords, with memory of a budget.
    ///
    /// # Errors
    /// If the system refuses threads.
    pub fn start(&self, memory: Arc<dyn LoginMemory>) -> io::Result<()> {
        self.desk.open(memory)
    }

    /// Looks at no password any more: logins that wait are told to try again.
    pub fn stop(&self) {
        self.desk.close();
    }

    /// Reads the users file again.
    ///
    /// # Errors
    /// The users stay as they are then.
    pub fn reload(&self) -> Result<usize, GateError> {
        let users = read(&self.path)?;
        let count = users.len();
        self.current.replace(users);
        Ok(count)
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn users(&self) -> Arc<Users> {
        self.current.users()
    }

    pub fn figures(&self) -> LoginFigures {
        LoginFigures { logins: self.logins.load(Ordering::Relaxed), failures: self.failures.load(Ordering::Relaxed) }
    }

    /// Logs somebody in. A password that was right within the last minute has a verdict at once; else `done` is told of it later, on another
    /// thread.
    pub fn log_in(
        self: &Arc<Self>,
        credentials: Result<Credentials, NoCredentials>,
        address: Option<IpAddr>,
        done: impl FnOnce(Verdict) + Send + 'static,
    ) -> Option<Verdict> {
        let origin = Origin::of(address);
        let Ok(Credentials { name, password }) = credentials else {
            self.desk.note_failure(origin);
            self.failures.fetch_add(1, Ordering::Relaxed);
            return Some(Err(LoginError::Wrong));
        };
        let (users, seen) = self.current.users_now();
        let user = users.find(&name).filter(|user| user.hash.is_some()).cloned();
        let hash = user.as_ref().and_then(|user| user.hash.clone());
        // A right password waits with those who are looked at or have failed: an answer at once would tell a guesser which is right.
        if let (Some(user), Some(hash)) = (&user, &hash)
            && self.desk.is_quiet(origin)
            && self.remembered().is_right(&name, hash, &password, Instant::now())
        {
            self.logins.fetch_add(1, Ordering::Relaxed);
            return Some(Ok(Identity::new(&self.current, user, seen, By::Password)));
        }
        let (gate, given) = (Arc::clone(self), password.clone());
        let done = move |is_right: Option<bool>| {
            let verdict = match user.filter(|_| is_right == Some(true)) {
                _ if is_right.is_none() => Err(LoginError::Busy),
                Some(user) => {
                    if let Some(hash) = &user.hash {
                        gate.remembered().remember(&user.name, hash, &given, Instant::now());
                    }
                    gate.logins.fetch_add(1, Ordering::Relaxed);
                    Ok(Identity::new(&gate.current, &user, seen, By::Password))
                }
                None => {
                    gate.failures.fetch_add(1, Ordering::Relaxed);
                    Err(LoginError::Wrong)
                }
            };
            done(verdict);
        };
        // A user who is not there takes as long as one who is.
        let hash = hash.unwrap_or_else(|| users.hash_of_nobody().clone());
        let print = self.remembered().print(&name, &hash, &password);
        let queued = self.desk.queue(Attempt { hash, password, origin, print, done: Box::new(done) });
        (!queued).then_some(Err(LoginError::Busy))
    }

    /// The user whose name a certificate has, which was verified.
    pub fn of_certificate(self: &Arc<Self>, name: &str) -> Option<Identity> {
        let (users, seen) = self.current.users_now();
        users.find(name).map(|user| Identity::new(&self.current, user, seen, By::Certificate))
    }

    /// A token for somebody who has logged in.
    pub fn token(&self, identity: &Identity) -> String {
        self.tokens.sign(identity.user(), unix_seconds() + TOKEN_SECONDS)
    }

    /// The user whose token it is.
    pub fn of_token(self: &Arc<Self>, token: &[u8]) -> Option<Identity> {
        let (users, seen) = self.current.users_now();
        let user = self.tokens.check(token, &users, unix_seconds())?;
        Some(Identity::new(&self.current, user, seen, By::Password))
    }

    fn remembered(&self) -> MutexGuard<'_, Remembered> {
        self.remembered.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn read(path: &Path) -> Result<Users, GateError> {
    let bytes = secret_file::read(path).map_err(|error| GateError::Read { path: path.into(), error })?;
    Users::parse(&bytes).map_err(|error| GateError::Users { path: path.into(), error })
}

fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::password::{Hash, Password};
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;
    use std::sync::mpsc::channel;
    use tapetum_service::request::{Role, Scope};

    struct Enough;

    impl LoginMemory for Enough {
        fn take(&self, _: usize, _: usize) -> bool {
            true
        }
        fn give(&self, _: usize, _: usize) {}
        fn wait(&self, _: bool) {}
    }

    fn password(text: &str) -> Password {
        Password::new(text.as_bytes()).unwrap()
    }

    fn write(path: &Path, text: &str) {
        fs::write(path, text).unwrap();
        fs::set_permissions(path, Permissions::from_mode(0o600)).unwrap();
    }

    fn log_in(gate: &Arc<Gate>, name: &str, word: &str) -> (Verdict, bool) {
        log_in_from(gate, name, word, None)
    }

    fn fails(gate: &Arc<Gate>, name: &str, word: &str) -> bool {
        log_in_from(gate, name, word, Some([192, 0, 2, 9].into())).0.err() == Some(LoginError::Wrong)
    }

    fn log_in_from(gate: &Arc<Gate>, name: &str, word: &str, from: Option<IpAddr>) -> (Verdict, bool) {
        let (sender, verdict) = channel();
        let credentials = Ok(Credentials { name: name.into(), password: password(word) });
        match gate.log_in(credentials, from, move |verdict| sender.send(verdict).unwrap()) {
            Some(verdict) => (verdict, true),
            None => (verdict.recv().unwrap(), false),
        }
    }

    #[test]
    fn rights_that_were_taken_away_are_gone_at_the_next_question() {
        let path = std::env::temp_dir().join(format!("tapetum-gate-{}", std::process::id()));
        let hash = Hash::of(&password("open sesame")).unwrap();
        write(&path, &format!("alice read:a,write:b {}\ndisks write:d -\n", hash.text()));
        let gate = Arc::new(Gate::open(&path).unwrap());
        gate.start(Arc::new(Enough)).unwrap();
        assert!(fails(&gate, "alice", "open") && fails(&gate, "nobody", "open sesame"));
        assert!(fails(&gate, "disks", "open sesame"), "a certificate's alone");
        let (first, at_once) = log_in(&gate, "alice", "open sesame");
        assert!(!at_once && log_in(&gate, "alice", "open sesame").1, "it is remembered");
        let where_some_failed = log_in_from(&gate, "alice", "open sesame", Some([192, 0, 2, 9].into()));
        assert!(where_some_failed.0.is_ok() && !where_some_failed.1, "it waits with those who guess");
        let mut alice = first.unwrap();
        assert!(alice.may(Role::Write, Scope::Keyspace("b")) && !alice.may(Role::Write, Scope::Keyspace("a")));
        let token = gate.token(&alice);
        let mut disks = gate.of_certificate("disks").unwrap();
        assert!(disks.may(Role::Write, Scope::Keyspace("d")));

        write(&path, &format!("alice read:a {}\n", hash.text()));
        assert_eq!(gate.reload().unwrap(), 1);
        assert!(alice.may(Role::Read, Scope::Keyspace("a")) && !alice.may(Role::Read, Scope::Keyspace("b")));
        assert!(gate.of_token(token.as_bytes()).is_some() && gate.of_certificate("disks").is_none());
        assert!(!disks.may(Role::Read, Scope::Keyspace("d")));

        write(&path, "alice read");
        let error = gate.reload().unwrap_err().to_string();
        assert!(error.contains("line 1") && alice.may(Role::Read, Scope::Keyspace("a")), "the old one holds: {error}");

        write(&path, &format!("alice read:a {}\n", Hash::of(&password("other")).unwrap().text()));
        gate.reload().unwrap();
        assert!(alice.rights().is_err() && gate.of_token(token.as_bytes()).is_none());
        assert_eq!(log_in(&gate, "alice", "open sesame").0.err(), Some(LoginError::Wrong));
        assert_eq!(gate.figures(), LoginFigures { logins: 3, failures: 4 });
        gate.stop();
        fs::remove_file(path).unwrap();
    }
}
