//! Freezes of the store that a server has open: clients make them, name them by their ids, and end them.
//!
//! A freeze is left to its time, not to its client's connection: commands that read it come one after the other.

use std::time::Duration;

use tapetum::{FreezeEnd, FreezeError, FreezeOptions, FrozenView, Store};

use super::OpenStore;
use crate::caller::Caller;
use crate::failure::{Failure, FailureKind};
use crate::reply::{FreezeRow, Reply};
use crate::request::Freeze;
use crate::suggestion::nearest;

/// Bytes of an owner's name.
const OWNER_BYTES_MAX: usize = 255;

pub fn freeze(open: OpenStore<'_>, asked: Freeze, caller: &mut dyn Caller) -> Result<(), Failure> {
    let Freeze { owner, lasts_ms, flash_bytes_max } = asked;
    if owner.is_empty() || owner.len() > OWNER_BYTES_MAX || owner.contains(char::is_control) {
        return Err(Failure::bad(format!(
            "the owner of a freeze is a text of 1 to {OWNER_BYTES_MAX} bytes without control characters: give another --owner"
        )));
    }
    let options = FreezeOptions { owner, lasts: Duration::from_millis(lasts_ms), flash_bytes_max };
    let freeze = served(open)?.freeze(&options).map_err(|error| failure(open, error))?;
    caller.take(Reply::Freezes(vec![freeze.report().into()]))?;
    // Whoever has left would not know its id: the drop ends it then.
    freeze.leave();
    Ok(())
}

pub fn list(open: OpenStore<'_>, caller: &mut dyn Caller) -> Result<(), Failure> {
    let reports = served(open)?.freezes();
    Ok(caller.take(Reply::Freezes(reports.into_iter().map(FreezeRow::from).collect()))?)
}

pub fn renew(open: OpenStore<'_>, id: u64, lasts_ms: u64, caller: &mut dyn Caller) -> Result<(), Failure> {
    let renewed = served(open)?.renew_freeze(id, Duration::from_millis(lasts_ms));
    renewed.map_err(|error| failure(open, error))?;
    let report = find(open, id)?.report();
    Ok(caller.take(Reply::Freezes(vec![report.into()]))?)
}

pub fn release(open: OpenStore<'_>, id: u64) -> Result<(), Failure> {
    served(open)?.release_freeze(id).map_err(|error| failure(open, error))
}

pub fn find(open: OpenStore<'_>, id: u64) -> Result<FrozenView, Failure> {
    served(open)?.frozen(id).map_err(|error| failure(open, error))
}

/// The store, if it is one that a server has open.
fn served(open: OpenStore<'_>) -> Result<&Store, Failure> {
    match open.server {
        Some(_) => Ok(open.store),
        None => Err(Failure::bad(format!(
            "a freeze lives in a running server, and none has {} open: start `tapetum serve`, and freeze the store with `tapetum freeze create`",
            open.place.path().display()
        ))),
    }
}

pub fn failure(open: OpenStore<'_>, error: FreezeError) -> Failure {
    let told = match error {
        FreezeError::Store(error) => return open.failure(error),
        FreezeError::TooManyOfOwner { owner, limit } => {
            let told = format!(
                "{owner:?} has {limit} freezes, as many as one owner may have: end one with `tapetum freeze release ID`; `tapetum freeze list` \
                 prints them"
            );
            return Failure::new(FailureKind::Unavailable, told);
        }
        FreezeError::TooMany { limit } => {
            let told = format!(
                "the store has {limit} freezes, and takes no more: end one with `tapetum freeze release ID`; `tapetum freeze list` prints them"
            );
            return Failure::new(FailureKind::Unavailable, told);
        }
        FreezeError::Lasts { limit } => {
            let hours = limit.as_secs() / 3600;
            format!(
                "a freeze lasts at most {hours} hours: make it shorter, and let it last longer with `tapetum freeze renew`"
            )
        }
        FreezeError::FlashNeeded => {
            return Failure::new(
                FailureKind::Full,
                "the store has no flash for a freeze: delete something, or give the store more (`tapetum resize --capacity`)",
            );
        }
        FreezeError::Ended { id, why } => format!("freeze {id} has ended: {}", why_ended(why)),
        FreezeError::Unknown { id } => format!(
            "there is no freeze {id}: it ended long ago, or the server was started since; `tapetum freeze list` prints those there are"
        ),
    };
    Failure::bad(told)
}

fn why_ended(why: FreezeEnd) -> &'static str {
    match why {
        FreezeEnd::Released => "it was released; make another with `tapetum freeze create`",
        FreezeEnd::Expired => {
            "its time was over; make another with `tapetum freeze create`, and renew it in time, or let it last longer (--for)"
        }
        FreezeEnd::FlashNeeded => {
            "writers needed the flash that it kept, or it kept more than it may; make another with `tapetum freeze create`, read it faster, \
             or give it more (--flash) and the store more (`tapetum resize --capacity`)"
        }
        FreezeEnd::Closed => "the server closed the store; make another with `tapetum freeze create`",
    }
}

pub fn unknown_keyspace(view: &FrozenView, name: &str) -> Failure {
    let keyspaces = view.keyspaces();
    let near = nearest(name, keyspaces.iter().map(|keyspace| &keyspace.entry().name[..]));
    let near = near.map_or(String::new(), |near| format!("did you mean {near:?}? "));
    let id = view.id();
    let told = format!(
        "freeze {id} has no keyspace {name:?}: {near}`tapetum keyspace list --freeze {id}` prints those that there were when it was made"
    );
    Failure::new(FailureKind::UnknownKeyspace, told)
}
