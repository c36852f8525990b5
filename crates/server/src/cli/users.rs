//! `tapetum user`: edits the users file.

use std::error::Error;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, fchown};
use std::path::Path;

use serde_json::{Value, json};
use tapetum_access::gate::GateError;
use tapetum_access::password::Hash;
use tapetum_access::rights::Rights;
use tapetum_access::secret_file;
use tapetum_access::users::{self, HEAD, User, Users};
use tapetum_service::request::Role;

use super::access_arguments::{UserCommand, UsersFileArguments};
use super::commands::{Outcome, tell};
use super::passwords::{self, Asking};
use super::table::table;
use crate::output;
use crate::store::unfinished;

/// Stands for every keyspace and the store itself.
const ALL: &str = "*";

pub fn run(command: UserCommand) -> Outcome {
    match command {
        UserCommand::Add { name, read, write, admin, replace, certificate, password_file, file } => {
            users::check_name(&name)?;
            let rights = rights(&[(Role::Read, read), (Role::Write, write), (Role::Admin, admin)]);
            if rights.is_empty() {
                return Err(format!(
                    "{name} may do nothing: give --read, --write or --admin KEYSPACE, or '*' for all of them"
                )
                .into());
            }
            let hash = match certificate {
                true => None,
                false => Some(Hash::of(&passwords::password(password_file.as_deref(), Asking::Twice)?)?),
            };
            add(&file.users_file, &User { name, rights, hash }, replace)
        }
        UserCommand::List { json, file } => list(&file, json),
        UserCommand::Remove { name, file } => edit(&file.users_file, false, |text| {
            let none = || format!("there is no user {name} in {}", file.users_file.display());
            Ok(users::without(text, &name).ok_or_else(none)?)
        }),
    }
}

fn rights(given: &[(Role, Vec<String>); 3]) -> Rights {
    let mut rights = Rights::default();
    for (role, keyspaces) in given {
        keyspaces.iter().for_each(|name| rights.add(*role, Some(&name[..]).filter(|name| *name != ALL)));
    }
    rights
}

fn add(path: &Path, user: &User, replace: bool) -> Outcome {
    edit(path, true, |text| {
        if !replace && users::without(text, &user.name).is_some() {
            return Err(format!(
                "there is a user {} already: give --replace for another password and other rights",
                user.name
            )
            .into());
        }
        Ok(users::with(text, user))
    })
}

/// Changes the file as a whole: a server that reads it meanwhile sees the old one or the new one.
fn edit(path: &Path, makes: bool, change: impl FnOnce(&str) -> Result<String, Box<dyn Error>>) -> Outcome {
    let _lock = unfinished::lock_folder_of(path)?;
    let text = match secret_file::read_to_edit(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound && makes => HEAD.as_bytes().to_vec().into(),
        read => read.map_err(|error| GateError::Read { path: path.into(), error })?,
    };
    // A file that a server would refuse is not edited.
    Users::parse(&text).map_err(|error| GateError::Users { path: path.into(), error })?;
    let changed = change(str::from_utf8(&text)?)?;
    let new = unfinished::path_of(path);
    let written = owner(path).and_then(|owner| write(&new, changed.as_bytes(), owner));
    let written = written.and_then(|()| unfinished::finish(path));
    written.map_err(|error| format!("{}: {error}", path.display()))?;
    tell("a running server reads the users again on SIGHUP (`systemctl reload tapetum`, or `kill -HUP PID`)");
    Ok(())
}

/// The user and group to give the file to, if root edits it: those who have it, or its folder. A server that is another user's could not read
/// it otherwise.
fn owner(path: &Path) -> io::Result<Option<(u32, u32)>> {
    if !rustix::process::geteuid().is_root() {
        return Ok(None);
    }
    let found = match fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => fs::metadata(unfinished::folder_of(path))?,
        found => found?,
    };
    Ok(Some((found.uid(), found.gid())))
}

fn write(path: &Path, text: &[u8], owner: Option<(u32, u32)>) -> io::Result<()> {
    // A command that was stopped has left it: nobody else writes, since the folder is locked.
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    if let Some((user, group)) = owner {
        fchown(&file, Some(user), Some(group))?;
    }
    file.write_all(text)?;
    file.sync_all()
}

fn list(UsersFileArguments { users_file }: &UsersFileArguments, as_json: bool) -> Outcome {
    let text =
        secret_file::read_to_edit(users_file).map_err(|error| GateError::Read { path: users_file.clone(), error })?;
    let users = Users::parse(&text).map_err(|error| GateError::Users { path: users_file.clone(), error })?;
    let mut users: Vec<_> = users.iter().cloned().collect();
    users.sort_by(|one, other| one.name.cmp(&other.name));
    let known_by = |user: &User| if user.hash.is_some() { "password" } else { "certificate" };
    if as_json {
        let shown: Vec<_> = users
            .iter()
            .map(|user| json!({"name": user.name, "rights": users::rights_text(&user.rights), "known_by": known_by(user)}))
            .collect();
        return Ok(output::print(format!("{:#}\n", Value::from(shown)).as_bytes())?);
    }
    let cells = users.iter().map(|user| [user.name.clone(), known_by(user).into(), users::rights_text(&user.rights)]);
    Ok(output::print(table(["user", "known by", "rights"], cells).as_bytes())?)
}
