//! The users file: who there is, by one line each. Pure.
//!
//! ```text
//!   # tapetum users
//!   alice  read:papers,write:default  $argon2id$v=19$m=19456,t=2,p=1$…
//!   root   admin:*                    $argon2id$…
//!   disks  write:disk0                -            known by a certificate alone
//!     name   rights                     hash of the password
//! ```
//! 1. A line has three words. In names of keyspaces, white space, control characters, `%`, `,` and `*` are written as %XX.
//! 2. `*` stands for every keyspace and for the store itself.
//! 3. Empty lines, and those that begin with `#`, are kept and mean nothing.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use tapetum_service::escapes;
use tapetum_service::request::Role;

use crate::password::Hash;
use crate::rights::Rights;

/// The first line of a new file.
pub const HEAD: &str = "# tapetum users\n";
const NAME_BYTES_MAX: usize = 128;
const OF_STORE: &str = "*";
const NO_PASSWORD: &str = "-";

#[derive(Debug, PartialEq, Eq)]
pub struct User {
    pub name: String,
    pub rights: Rights,
    /// `None`: known by a certificate alone.
    pub hash: Option<Hash>,
}

/// See the [module](self).
#[derive(Debug)]
pub struct Users {
    by_name: HashMap<String, Arc<User>>,
    nobody: Hash,
}

/// A line that makes no sense.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsersError {
    pub line: usize,
    why: String,
}

impl fmt::Display for UsersError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.why)
    }
}

impl std::error::Error for UsersError {}

impl Users {
    /// # Errors
    /// Names the first line that makes no sense.
    pub fn parse(text: &[u8]) -> Result<Users, UsersError> {
        let mut by_name: HashMap<String, (usize, Arc<User>)> = HashMap::new();
        for (number, line) in lines(text) {
            let wrong = |why: String| UsersError { line: number, why };
            let line = str::from_utf8(line).map_err(|_| wrong("it is not UTF-8".into()))?;
            let Some(user) = User::parse(line).map_err(wrong)? else { continue };
            let name = user.name.clone();
            if let Some((before, _)) = by_name.insert(name.clone(), (number, Arc::new(user))) {
                return Err(wrong(format!("the user {name:?} is in line {before} already: leave one of them out")));
            }
        }
        let by_name: HashMap<_, _> = by_name.into_iter().map(|(name, (_, user))| (name, user)).collect();
        let hashes = by_name.values().filter_map(|user: &Arc<User>| user.hash.as_ref());
        let nobody = hashes.max_by_key(|hash| hash.cost()).map_or_else(Hash::of_nobody, Hash::as_costly_of_nobody);
        Ok(Users { by_name, nobody })
    }

    /// The hash for names that are not there: looking at it takes as long as at the costliest of those that are.
    pub fn hash_of_nobody(&self) -> &Hash {
        &self.nobody
    }

    pub fn find(&self, name: &str) -> Option<&Arc<User>> {
        self.by_name.get(name)
    }

    pub fn none() -> Users {
        Users { by_name: HashMap::new(), nobody: Hash::of_nobody() }
    }

    pub fn len(&self) -> usize {
        self.by_name.len()
    }

    pub fn is_empty(&self) -> bool {
        self.by_name.is_empty()
    }

    /// In no order.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<User>> {
        self.by_name.values()
    }
}

impl User {
    /// `None` of a line that means nothing.
    fn parse(line: &str) -> Result<Option<User>, String> {
        let mut words = line.split_ascii_whitespace();
        let Some(name) = words.next().filter(|word| !word.starts_with('#')) else { return Ok(None) };
        check_name(name)?;
        let (Some(rights), Some(hash), None) = (words.next(), words.next(), words.next()) else {
            return Err(format!("the user {name:?} has no rights and hash behind the name, or more than these"));
        };
        let rights = parse_rights(rights).map_err(|why| format!("of the user {name:?}: {why}"))?;
        let hash = match hash {
            NO_PASSWORD => None,
            text => Some(text.parse().map_err(|error| format!("of the user {name:?}: {error}"))?),
        };
        Ok(Some(User { name: name.into(), rights, hash }))
    }

    /// Its line.
    fn to_line(&self) -> String {
        let hash = self.hash.as_ref().map_or(NO_PASSWORD, Hash::text);
        format!("{} {} {hash}\n", self.name, rights_text(&self.rights))
    }
}

/// # Errors
/// Says why it is no name of a user.
pub fn check_name(name: &str) -> Result<(), String> {
    // Passwords follow a colon in HTTP, and white space in memcached's text.
    let is_none = |character: char| character.is_whitespace() || character.is_control() || character == ':';
    match name {
        "" => Err("the name is empty: give one".into()),
        name if name.len() > NAME_BYTES_MAX => {
            Err(format!("the name has {} bytes, and {NAME_BYTES_MAX} are the most", name.len()))
        }
        name if name.starts_with('#') || name.contains(is_none) => Err(format!(
            "{name:?} is no name for a user: leave out white space, control characters, colons and a # at its begin"
        )),
        _ => Ok(()),
    }
}

/// Rights as the file has them.
pub fn rights_text(rights: &Rights) -> String {
    let text = |(role, keyspace): (Role, Option<&str>)| {
        let keyspace =
            keyspace.map_or(OF_STORE.into(), |name| escapes::word(name).replace(',', "%2C").replace(OF_STORE, "%2A"));
        format!("{}:{keyspace}", role.name())
    };
    rights.iter().map(text).collect::<Vec<_>>().join(",")
}

fn parse_rights(text: &str) -> Result<Rights, String> {
    let mut rights = Rights::default();
    for right in text.split(',') {
        let (role, keyspace) = right.split_once(':').ok_or_else(|| {
            format!(
                "{right:?} is no right: give read:KEYSPACE, write:KEYSPACE or admin:KEYSPACE, and * for all of them"
            )
        })?;
        let role = Role::named(role).ok_or_else(|| format!("there is no role {role:?}: give read, write or admin"))?;
        match keyspace {
            "" => return Err(format!("{right:?} names no keyspace")),
            OF_STORE => rights.add(role, None),
            name => {
                rights.add(role, Some(&unworded(name).ok_or_else(|| format!("{name:?} is no name of a keyspace"))?))
            }
        }
    }
    Ok(rights)
}

/// The name that [`escapes::word`] wrote.
fn unworded(word: &str) -> Option<String> {
    let (mut bytes, mut rest) = (Vec::with_capacity(word.len()), word.as_bytes());
    while let Some((&byte, behind)) = rest.split_first() {
        rest = behind;
        match byte {
            b'%' => {
                let digits = rest.get(..2).filter(|digits| digits.iter().all(u8::is_ascii_hexdigit))?;
                bytes.push(u8::from_str_radix(str::from_utf8(digits).ok()?, 16).ok()?);
                rest = &rest[2..];
            }
            byte => bytes.push(byte),
        }
    }
    String::from_utf8(bytes).ok()
}

/// The lines of a text with their numbers, the first of which is 1.
fn lines(text: &[u8]) -> impl Iterator<Item = (usize, &[u8])> {
    (1..).zip(text.split(|byte| *byte == b'\n'))
}

/// A text in which `user` is, in the place of who had the name before, or at the end.
pub fn with(text: &str, user: &User) -> String {
    let mut changed = without(text, &user.name).unwrap_or_else(|| text.to_owned());
    if !changed.is_empty() && !changed.ends_with('\n') {
        changed.push('\n');
    }
    changed + &user.to_line()
}

/// A text without a user; `None` if he is not in it.
pub fn without(text: &str, name: &str) -> Option<String> {
    let is_other = |line: &&str| line.split_ascii_whitespace().next() != Some(name);
    let changed: String = text.split_inclusive('\n').filter(is_other).collect();
    (changed != text).then_some(changed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::password::Password;

    const HASH: &str = "$argon2id$v=19$m=65536,t=2,p=1$c29tZXNhbHQ$CTFhFdXPJO1aFaMaO6Mm5c8y7cJHAph8ArZWb2GRPPc";

    fn rights(text: &str) -> Rights {
        parse_rights(text).unwrap()
    }

    #[test]
    fn users_are_read_whatever_ends_their_lines() {
        let text =
            format!("{HEAD}\r\n\r\nalice\tread:a,write:b {HASH}\r\n  root  admin:* {HASH}\n# bob\ndisks write:d -");
        let users = Users::parse(text.as_bytes()).unwrap();
        assert_eq!(users.len(), 3);
        assert_eq!(users.find("alice").unwrap().rights, rights("read:a,write:b"));
        assert!(users.find("root").unwrap().hash.as_ref().unwrap().is_of(&Password::new(b"password").unwrap()));
        assert!(users.find("disks").unwrap().hash.is_none() && users.find("bob").is_none());
    }

    #[test]
    fn what_makes_no_sense_is_named_with_its_line() {
        for (line, told) in [
            ("alice", "line 2: the user \"alice\" has no rights and hash"),
            ("alice read:a", "has no rights and hash"),
            ("alice read:a - more", "or more than these"),
            ("alice peek:a -", "there is no role \"peek\": give read, write or admin"),
            ("alice a -", "\"a\" is no right: give read:KEYSPACE"),
            ("alice read: -", "names no keyspace"),
            ("alice read:%zz -", "is no name of a keyspace"),
            ("alice read:%ff -", "is no name of a keyspace"),
            ("alice read:%+f -", "is no name of a keyspace"),
            ("alice read:a secret", "the password's hash is none of Argon2id's"),
            ("al:ice read:a -", "is no name for a user"),
            ("alice read:a -\nbob read:a -\nalice read:b -", "line 4: the user \"alice\" is in line 2 already"),
        ] {
            let error = Users::parse(format!("{HEAD}{line}").as_bytes()).unwrap_err().to_string();
            assert!(error.contains(told), "{error}");
            assert!(!error.contains("secret"), "a password that stands there by mistake is not shown: {error}");
        }
        assert_eq!(Users::parse(b"\n\n\xff read:a -").unwrap_err().line, 3);
    }

    #[test]
    fn ten_thousand_users_are_found() {
        let text: String = (0..10_000).map(|at| format!("user{at} read:k{at} {HASH}\n")).collect();
        let users = Users::parse(text.as_bytes()).unwrap();
        assert_eq!(users.len(), 10_000);
        assert_eq!(users.find("user9999").unwrap().rights, rights("read:k9999"));
    }

    #[test]
    fn a_user_is_put_and_taken_out_and_all_else_stays() {
        let user = |name: &str, text| User { name: name.into(), rights: rights(text), hash: None };
        let text = with(&format!("{HEAD}# who is who\nbob read:a -"), &user("alice", "read:a"));
        assert_eq!(text, format!("{HEAD}# who is who\nbob read:a -\nalice read:a -\n"));
        let text = with(&text, &user("bob", "write:a"));
        assert_eq!(text, format!("{HEAD}# who is who\nalice read:a -\nbob write:a -\n"));
        assert_eq!(without(&text, "alice").unwrap(), format!("{HEAD}# who is who\nbob write:a -\n"));
        assert_eq!(without(&text, "carol"), None);
    }

    #[test]
    fn names_of_keyspaces_may_have_anything_in_them() {
        let mut held = Rights::default();
        for name in ["a b", "100%", "a,b", "*", "x:y", "\u{e9}", "**"] {
            held.add(Role::Write, Some(name));
        }
        held.add(Role::Read, None);
        let text = rights_text(&held);
        assert!(!text.contains(char::is_whitespace));
        assert_eq!(rights(&text), held);
    }
}
