//! `tapetum backup`: makes, lists, verifies, restores and prunes backups.

use std::path::Path;

use serde_json::{Value, json};
use tapetum::backup::{self, BackupError, BackupManifest, BackupName, Depot, LostParts, Restore, Restored};
use tapetum::{Place, restore_at};
use tapetum_depot::Destination;
use tapetum_service::backups::{LASTS_MS, release, take_lease};
use tapetum_service::reply::{BackupRow, Reply};
use tapetum_service::request::Request;
use tapetum_service::service::Access;
use tapetum_service::size;

use super::backup_arguments::BackupCommand;
use super::commands::{Outcome, offline_options, print, tell};
use super::reach::Reached;
use super::table::table;
use super::times::unix_time;
use crate::cli::arguments::StoreArguments;

pub fn run(command: BackupCommand) -> Outcome {
    match command {
        BackupCommand::Create { to, anew, store } => create(to, anew, &store),
        BackupCommand::List { from, json } => list(&from, json),
        BackupCommand::Verify { from, number } => verify(&from, number),
        BackupCommand::Restore { from, into, number, partial } => restore(&from, &into, number, partial),
        BackupCommand::Prune { from, keep } => prune(&from, keep),
    }
}

fn create(to: Destination, anew: bool, store: &StoreArguments) -> Outcome {
    // A server has another working directory.
    let to = to.absolute()?.text().ok_or("the folder of backups has a name that is no text: give another")?;
    let mut reached = Reached::new(store, &offline_options(store), Access::Write)?;
    let made = reached.gather(Request::Backup { to, anew });
    match reached.close(made)?.pop() {
        Some(Reply::BackedUp(made)) => print(created(&made).as_bytes()),
        _ => Err("no backup was told".into()),
    }
}

fn counted(count: u64, thing: &str) -> String {
    if count == 1 { format!("1 {thing}") } else { format!("{count} {thing}s") }
}

fn created(made: &BackupRow) -> String {
    let BackupRow { number, keyspaces, drive_bytes, copied_bytes, .. } = *made;
    let shown = counted(keyspaces, "keyspace");
    let (has, copied) = (size::shown(drive_bytes), size::shown(copied_bytes));
    format!("backup {number} has {shown} in {has}, of which {copied} were copied\n")
}

/// A row of the list of backups.
struct Row {
    number: u64,
    /// `None`: the backup is gone.
    name: Option<(BackupName, bool)>,
    manifest: Option<BackupManifest>,
}

fn rows(depot: &dyn Depot) -> Result<Vec<Row>, BackupError> {
    let there = backup::list_all(depot)?.into_iter().map(|named| {
        let manifest = backup::read(depot, &named.0).ok();
        Row { number: named.0.sequence, name: Some(named), manifest }
    });
    let mut rows: Vec<Row> = there.collect();
    for number in backup::missing(depot)? {
        let is_later = |row: &Row| row.number > number && row.name.is_none_or(|(_, is_believed)| is_believed);
        let place = rows.iter().position(is_later).unwrap_or(rows.len());
        rows.insert(place, Row { number, name: None, manifest: None });
    }
    Ok(rows)
}

/// Says so if the object is gone that names the store whose backups these are.
fn tell_of_owner(depot: &dyn Depot) -> Result<(), BackupError> {
    if backup::named_owner(depot)?.is_some() {
        return Ok(());
    }
    match backup::owner(depot) {
        Ok(Some(_)) => tell(&format!(
            "the file `store` is gone from {}, which says whose backups these are: their manifests say it as well, and the store's next \
             backup puts it there again",
            depot.place()
        )),
        Ok(None) => {}
        Err(error @ BackupError::Ownerless { .. }) => tell(&error.to_string()),
        Err(error) => return Err(error),
    }
    Ok(())
}

fn list(from: &Destination, json: bool) -> Outcome {
    let depot = from.open()?;
    tell_of_owner(&*depot)?;
    let rows = rows(&*depot)?;
    if rows.is_empty() {
        backup::find(&*depot, None)?;
    }
    if json {
        return print(format!("{:#}\n", Value::from_iter(rows.iter().map(described))).as_bytes());
    }
    let head = ["number", "generation", "moment", "keyspaces", "bytes", "copied", "state"];
    print(table(head, rows.iter().map(cells)).as_bytes())
}

impl Row {
    fn state(&self) -> &'static str {
        match (self.name, &self.manifest) {
            (None, _) => "missing",
            (Some((_, false)), _) => "not believed",
            (Some(_), None) => "unreadable",
            (Some(_), Some(_)) => "whole",
        }
    }
}

fn cells(row: &Row) -> [String; 7] {
    let told = |tell: fn(&BackupManifest) -> String| row.manifest.as_ref().map_or("-".into(), tell);
    [
        row.number.to_string(),
        row.name.map_or("-".into(), |(name, _)| name.generation.to_string()),
        told(|manifest| unix_time(manifest.moment_unix_ms)),
        told(|manifest| manifest.keyspaces.len().to_string()),
        told(|manifest| size::shown(manifest.drive_bytes())),
        told(|manifest| size::shown(manifest.copied_bytes)),
        row.state().into(),
    ]
}

fn described(row: &Row) -> Value {
    let (name, manifest) = (row.name.map(|(name, _)| name), row.manifest.as_ref());
    json!({
        "number": row.number,
        "generation": name.map(|name| name.generation),
        "digest": name.map(|name| name.digest.to_string()),
        "state": row.state(),
        "moment_unix_ms": manifest.map(|manifest| manifest.moment_unix_ms),
        "stamp": manifest.map(|manifest| manifest.stamp),
        "keyspaces": manifest.map(|manifest| &manifest.keyspaces),
        "capacity_bytes": manifest.map(|manifest| manifest.capacity_bytes),
        "drive_bytes": manifest.map(BackupManifest::drive_bytes),
        "copied_bytes": manifest.map(|manifest| manifest.copied_bytes),
    })
}

fn verify(from: &Destination, number: Option<u64>) -> Outcome {
    let depot = from.open()?;
    tell_of_owner(&*depot)?;
    let (names, missing) = match number {
        Some(_) => (vec![backup::find(&*depot, number)?], Vec::new()),
        None => (backup::list(&*depot)?, backup::missing(&*depot)?),
    };
    let verified = backup::verify(&*depot, &names, &mut || true)?;
    if !missing.is_empty() {
        return Err(BackupError::Missing { place: depot.place(), numbers: missing }.into());
    }
    if names.is_empty() {
        backup::find(&*depot, None)?;
    }
    let are = if verified.backups == 1 { "is" } else { "are" };
    let (backups, packs) = (counted(verified.backups, "backup"), counted(verified.packs, "pack"));
    print(format!("{backups} {are} whole: {packs}, {}\n", size::shown(verified.bytes)).as_bytes())
}

fn restore(from: &Destination, into: &Path, number: Option<u64>, partial: bool) -> Outcome {
    let depot = from.open()?;
    let name = backup::find(&*depot, number)?;
    let manifest = backup::read(&*depot, &name)?;
    // A path that is not there is a directory, unless it looks like a drive's socket, with a partition or without, or like a file.
    let place = match (Place::on_drive(into), into.extension()) {
        (partition @ Place::Partition { .. }, _) if !into.is_dir() => partition,
        (_, Some(_)) => Place::Drive(into.into()),
        (_, None) => Place::at(into),
    };
    let how = if partial { Restore::Partial } else { Restore::Whole };
    let restored = restore_at(&place, &*depot, (&name, &manifest), how)?;
    let Restored { moment_unix_ms, drive_bytes, lacking, lost, .. } = restored;
    let (moment, bytes, path) = (unix_time(moment_unix_ms), size::shown(drive_bytes), place.path());
    print(format!("{} is the store as of {moment}: {bytes} of backup {}\n", path.display(), name.sequence).as_bytes())?;
    if !lacking.is_empty() {
        tell(&lacked(&lost, lacking.len(), &path));
    }
    Ok(())
}

fn lacked(lost: &LostParts, packs: usize, path: &Path) -> String {
    let LostParts { log, segments, large_values, nodes, extensions } = lost;
    let (segments, large_values) = (counted(*segments, "segment"), counted(*large_values, "large value"));
    let (nodes, extensions) = (counted(*nodes, "node"), counted(*extensions, "extension"));
    let (log, are) = (counted(*log, "part"), if packs == 1 { "is" } else { "are" });
    let packs = counted(packs as u64, "pack");
    format!(
        "{packs} {are} gone, cut or rotten; with them parts of {segments}, {large_values}, {nodes}, {extensions}, and {log} of the log: \
         run `tapetum repair` on {}, which says what is lost",
        path.display()
    )
}

fn prune(from: &Destination, keep: u32) -> Outcome {
    let depot = from.open()?;
    backup::find(&*depot, None)?;
    let mut lease = take_lease(&depot, "tapetum backup prune", LASTS_MS, &mut || true)?;
    let pruned = backup::prune(&*depot, keep as usize, &mut || lease.keep().is_ok() && lease.is_held());
    release(lease);
    let backup::Pruned { backups, packs, bytes } = pruned?;
    let were = if backups == 1 { "was" } else { "were" };
    let (backups, packs) = (counted(backups, "backup"), counted(packs, "pack"));
    print(format!("{backups} {were} removed, and {packs} of {}\n", size::shown(bytes)).as_bytes())
}
