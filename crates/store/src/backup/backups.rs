//! The backups of a depot: which there are, and which of them are believed.
//!
//! A generation is of one writer at a time ([`super::lease`]). When another takes over, it notes from which backup its own generation begins. A backup of
//! an earlier generation that came after that one is of a writer that had lost its lease and did not know: it is not believed.
//!
//! The object `store` says whose depot it is. Where that was removed, the manifests say it, if they all name one store; that store's next backup puts
//! the object anew. Backups are restored without it: their manifests suffice.

use super::depot::Depot;
use super::digest::Digest;
use super::error::BackupError;
use super::manifest::{BackupManifest, ManifestError, VERSION};
use super::name::{self, BackupName};
use std::collections::BTreeSet;
use tapetum_base::manifest::base_marks::History;
use tapetum_drive::fail_point;

/// The object `store` begins with this, before the format's version.
const HEAD: &str = "tapetum backups, format ";

/// Makes the depot a store's, unless it is one.
///
/// # Errors
/// As [`refuse_other_store`].
pub fn claim(depot: &dyn Depot, store_id: u64) -> Result<(), BackupError> {
    let object = format!("{HEAD}{VERSION}\nstore {store_id:016x}\n");
    refuse_other_store(depot, store_id)?;
    depot.put_new(name::STORE, object.as_bytes())?;
    refuse_other_store(depot, store_id)
}

/// Refuses a depot that has the backups of another store, before anything is written there.
///
/// # Errors
/// [`BackupError::OtherStore`]; as [`owner`]; if the depot cannot be read.
pub fn refuse_other_store(depot: &dyn Depot, store_id: u64) -> Result<(), BackupError> {
    match owner(depot)? {
        Some(owner) if owner != store_id => Err(BackupError::OtherStore { place: depot.place() }),
        _ => Ok(()),
    }
}

/// The id of the store whose depot it is. `None`: nobody's yet.
///
/// # Errors
/// As [`named_owner`]; [`BackupError::Ownerless`] if neither the object `store` nor the manifests say it.
pub fn owner(depot: &dyn Depot) -> Result<Option<u64>, BackupError> {
    match named_owner(depot)? {
        None => owner_by_manifests(depot),
        owner => Ok(owner),
    }
}

/// The id of the store that the object `store` names. `None`: there is no such object.
///
/// # Errors
/// [`BackupError::OtherFormat`]; [`BackupError::Foreign`] if something else is there.
pub fn named_owner(depot: &dyn Depot) -> Result<Option<u64>, BackupError> {
    let Some(bytes) = depot.get(name::STORE)? else { return Ok(None) };
    let foreign = || BackupError::Foreign { place: depot.place() };
    let text = String::from_utf8(bytes).map_err(|_| foreign())?;
    let mut lines = text.lines();
    let version = lines.next().and_then(|line| line.strip_prefix(HEAD)?.parse().ok()).ok_or_else(foreign)?;
    if version != VERSION {
        return Err(BackupError::OtherFormat { place: depot.place(), version });
    }
    let id = lines.next().and_then(|line| u64::from_str_radix(line.strip_prefix("store ")?, 16).ok());
    id.map(Some).ok_or_else(foreign)
}

/// The id of the one store that all readable manifests name. `None`: there are no backups.
fn owner_by_manifests(depot: &dyn Depot) -> Result<Option<u64>, BackupError> {
    let (names, mut ids) = (list_all(depot)?, BTreeSet::new());
    for (name, _) in &names {
        match read(depot, name) {
            Ok(manifest) => drop(ids.insert(manifest.store_id)),
            Err(BackupError::BadManifest { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    match ids.len() {
        0 if names.is_empty() => Ok(None),
        1 => Ok(ids.first().copied()),
        _ => Err(BackupError::Ownerless { place: depot.place() }),
    }
}

/// Where a generation after the first began.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GenerationStart {
    pub generation: u64,
    /// Generation and sequence of the backup before it.
    pub before: (u64, u64),
    /// The history of the store whose backups it has.
    pub history: u64,
}

impl GenerationStart {
    /// Notes that a generation begins.
    pub fn put(&self, depot: &dyn Depot) -> Result<bool, BackupError> {
        let GenerationStart { before: (generation, sequence), history, .. } = self;
        let text = format!("after {generation} {sequence}\nhistory {history:016x}\n");
        Ok(depot.put_new(&name::generation(self.generation), text.as_bytes())?)
    }
}

/// All generations after the first, in their order.
pub fn starts(depot: &dyn Depot) -> Result<Vec<GenerationStart>, BackupError> {
    let mut starts = Vec::new();
    for entry in depot.list(name::GENERATIONS)? {
        let number = entry.name.rsplit('/').next().and_then(|number| number.parse().ok());
        let text = depot.get(&entry.name)?.and_then(|bytes| String::from_utf8(bytes).ok());
        let start = number.zip(text.as_deref()).and_then(|(generation, text)| parse_start(generation, text));
        let foreign = || BackupError::Foreign { place: format!("{} in {}", entry.name, depot.place()) };
        starts.push(start.ok_or_else(foreign)?);
    }
    starts.sort_by_key(|start| start.generation);
    Ok(starts)
}

fn parse_start(generation: u64, text: &str) -> Option<GenerationStart> {
    let mut lines = text.lines();
    let (generation_before, sequence) = lines.next()?.strip_prefix("after ")?.split_once(' ')?;
    let before = (generation_before.parse().ok()?, sequence.parse().ok()?);
    let history = u64::from_str_radix(lines.next()?.strip_prefix("history ")?, 16).ok()?;
    Some(GenerationStart { generation, before, history })
}

/// The last backup from which one of a store with this history may take parts over.
///
/// # Errors
/// [`BackupError::OtherHistory`]: a later generation is of another store, or the last backup is not of this one's past.
pub fn last_of_history(
    depot: &dyn Depot,
    history: History,
) -> Result<Option<(BackupName, BackupManifest)>, BackupError> {
    let other = || BackupError::OtherHistory { place: depot.place() };
    let start = last_start(depot)?;
    if start.is_some_and(|start| start.history != history.id) {
        return Err(other());
    }
    let generation = start.map_or(1, |start| start.generation);
    for name in list(depot)?.into_iter().rev() {
        let is_parent = history.id != 0 && history.parent == name.parent();
        if name.generation < generation && !is_parent {
            continue;
        }
        match read(depot, &name) {
            Ok(manifest) if is_parent || manifest.history == history => return Ok(Some((name, manifest))),
            Ok(_) => return Err(other()),
            Err(_) if is_parent => return Ok(None),
            // One that cannot be read is no reason to have no further backup.
            Err(_) => {}
        }
    }
    Ok(None)
}

/// Where the last generation began; `None`: the first one goes on.
///
/// # Errors
/// If the depot cannot be read.
pub fn last_start(depot: &dyn Depot) -> Result<Option<GenerationStart>, BackupError> {
    Ok(starts(depot)?.pop())
}

/// The highest generation that has begun; the first is 1.
pub fn generation_last(depot: &dyn Depot) -> Result<u64, BackupError> {
    Ok(last_start(depot)?.map_or(1, |start| start.generation))
}

/// All backups that are believed, the oldest first.
pub fn list(depot: &dyn Depot) -> Result<Vec<BackupName>, BackupError> {
    Ok(list_all(depot)?.into_iter().filter(|(_, is_believed)| *is_believed).map(|(name, _)| name).collect())
}

/// All backups, the oldest first, and whether each is believed.
pub fn list_all(depot: &dyn Depot) -> Result<Vec<(BackupName, bool)>, BackupError> {
    let entries = depot.list(name::BACKUPS)?;
    // After the list: a backup that is of an older generation is seen as such if the later one had begun before.
    let starts = starts(depot)?;
    let is_believed = |name: &BackupName| {
        let later = starts.iter().filter(|start| start.generation > name.generation);
        later.clone().all(|start| (name.generation, name.sequence) <= start.before) || fail_point!(BackupBelieveOlder)
    };
    let mut names: Vec<BackupName> = entries.iter().filter_map(|entry| BackupName::parse(&entry.name)).collect();
    names.sort();
    Ok(names.into_iter().map(|name| (name, is_believed(&name))).collect())
}

/// The backup of this number, or the last one.
///
/// # Errors
/// [`BackupError::NoBackups`], [`BackupError::Unknown`].
pub fn find(depot: &dyn Depot, sequence: Option<u64>) -> Result<BackupName, BackupError> {
    named_owner(depot)?;
    let names = list(depot)?;
    let last = names.last().ok_or_else(|| BackupError::NoBackups { place: depot.place() })?;
    let Some(sequence) = sequence else { return Ok(*last) };
    let found = names.iter().find(|name| name.sequence == sequence);
    found.copied().ok_or_else(|| BackupError::Unknown { place: depot.place(), sequence })
}

/// Reads a backup's manifest.
///
/// # Errors
/// [`BackupError::BadManifest`], [`BackupError::OtherFormat`].
pub fn read(depot: &dyn Depot, name: &BackupName) -> Result<BackupManifest, BackupError> {
    let bad = || BackupError::BadManifest { place: depot.place(), name: *name };
    let bytes = depot.get(&name.object())?.ok_or_else(bad)?;
    if Digest::of(&bytes) != name.digest {
        return Err(bad());
    }
    match BackupManifest::parse(&bytes) {
        Ok(manifest) => Ok(manifest),
        Err(ManifestError::Version(version)) => Err(BackupError::OtherFormat { place: depot.place(), version }),
        Err(ManifestError::NoManifest) => Err(bad()),
    }
}
