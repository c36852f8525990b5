//! The audit: a line in the log for each request that needs the role of an admin, with who asked, from where, what, and how it ended.
//!
//! Threads: any.

use std::ffi::OsStr;

use tapetum_depot::Destination;

use crate::failure::Failure;
use crate::request::{Request, Role};

/// Whoever asks, and how.
#[derive(Clone, Copy, Debug)]
pub struct Asker<'a> {
    /// A user's name, or what else is known.
    pub name: &'a str,
    /// An address, or a process of this machine.
    pub from: &'a str,
    pub door: &'static str,
}

/// Notes how a request ended, if it needed the role of an admin.
pub fn note(asker: Asker<'_>, request: &str, ended: &Result<(), Failure>) {
    let Asker { name, from, door } = asker;
    match ended {
        Ok(()) => tracing::info!("audit: {name:?} from {from} over {door}: {request}: done"),
        Err(failure) => tracing::info!("audit: {name:?} from {from} over {door}: {request}: {failure}"),
    }
}

/// A request that needs the role of an admin, in words; `None` of any other.
pub fn words(request: &Request) -> Option<String> {
    if request.needs().0 != Role::Admin {
        return None;
    }
    Some(match request {
        Request::CreateKeyspace(create) => format!("create keyspace {:?}", create.name),
        Request::DropKeyspace { name } => format!("drop keyspace {name:?}"),
        Request::RenameKeyspace { from, to } => format!("rename keyspace {from:?} to {to:?}"),
        Request::SetFormat { keyspace, .. } => format!("set the format of keyspace {keyspace:?}"),
        Request::GrowBlockDevice { name, size_bytes } => format!("grow block device {name:?} to {size_bytes} bytes"),
        Request::Grow { capacity_bytes } => format!("grow the store to {capacity_bytes} bytes"),
        Request::ResizeMemory { memory_bytes } => format!("resize the memory to {memory_bytes} bytes"),
        // A text that is no place may hold a password.
        Request::Backup { to, .. } => match Destination::parse(OsStr::new(to)) {
            Ok(_) => format!("back up to {to:?}"),
            Err(_) => "back up to what is no place".into(),
        },
        Request::Promote { force } => format!("promote{}", if *force { " by force" } else { "" }),
        _ => "another request of an admin".into(),
    })
}
