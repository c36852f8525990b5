//! `tapetum freeze`: makes, lists, renews and releases freezes of a running server's store.

use std::error::Error;
use std::time::Duration;

use serde_json::{Value, json};
use tapetum_service::reply::{FreezeRow, Reply};
use tapetum_service::request::{Freeze, Request};
use tapetum_service::{duration, size};

use super::commands::{Outcome, tell};
use super::freeze_arguments::FreezeCommand;
use super::reach::Reached;
use super::table::table;
use crate::cli::arguments::{PlaceArguments, StoreArguments};

pub fn run(command: FreezeCommand) -> Outcome {
    match command {
        FreezeCommand::Create { owner, lasts, flash, place } => {
            let owner = owner.unwrap_or_else(user);
            let request = Request::Freeze(Freeze { owner, lasts_ms: millis(lasts), flash_bytes_max: flash });
            let made = one(ask(place, request)?)?;
            // Standard output has the id alone, for scripts.
            print(&format!("{}\n", made.id))?;
            tell(&created(&made));
            Ok(())
        }
        FreezeCommand::List { json, place } => print(&list(&ask(place, Request::Freezes)?, json)),
        FreezeCommand::Renew { id, lasts, place } => {
            let renewed = one(ask(place, Request::RenewFreeze { id, lasts_ms: millis(lasts) })?)?;
            print(&format!("freeze {id} lasts {} from now on\n", time(renewed.left_us)))
        }
        FreezeCommand::Release { id, place } => {
            ask(place, Request::ReleaseFreeze { id })?;
            print(&format!("freeze {id} was released\n"))
        }
    }
}

fn ask(place: PlaceArguments, request: Request) -> Result<Vec<FreezeRow>, Box<dyn Error>> {
    let mut reached = Reached::for_reading(&StoreArguments { place, memory: None })?;
    match reached.gather(request)?.pop() {
        Some(Reply::Freezes(rows)) => Ok(rows),
        _ => Ok(Vec::new()),
    }
}

fn one(mut rows: Vec<FreezeRow>) -> Result<FreezeRow, Box<dyn Error>> {
    Ok(rows.pop().ok_or("no freeze was told")?)
}

/// The name of the user who runs this command.
fn user() -> String {
    let named =
        ["USER", "LOGNAME"].into_iter().find_map(|name| std::env::var(name).ok().filter(|name| !name.is_empty()));
    named.unwrap_or_else(|| format!("user {}", rustix::process::getuid().as_raw()))
}

fn created(freeze: &FreezeRow) -> String {
    let FreezeRow { id, owner, keyspaces, left_us, pause_us, .. } = freeze;
    let shown = if *keyspaces == 1 { "1 keyspace".to_owned() } else { format!("{keyspaces} keyspaces") };
    format!(
        "freeze {id} of {owner:?} shows {shown} for {}; writers waited {} for it; read it with --freeze {id}, as in \
         `tapetum dump --freeze {id}`",
        time(*left_us),
        time(*pause_us)
    )
}

fn list(rows: &[FreezeRow], json: bool) -> String {
    if json {
        return format!("{:#}\n", Value::from_iter(rows.iter().map(described)));
    }
    table(["id", "owner", "age", "left", "keyspaces", "flash", "memory", "pause"], rows.iter().map(cells))
}

fn cells(freeze: &FreezeRow) -> [String; 8] {
    [
        freeze.id.to_string(),
        freeze.owner.clone(),
        time(freeze.age_us),
        time(freeze.left_us),
        freeze.keyspaces.to_string(),
        size::shown(freeze.flash_bytes),
        size::shown(freeze.memory_bytes),
        time(freeze.pause_us),
    ]
}

fn described(freeze: &FreezeRow) -> Value {
    json!({
        "id": freeze.id,
        "owner": freeze.owner,
        "stamp": freeze.stamp,
        "moment_unix_ms": freeze.moment_unix_ms,
        "age_us": freeze.age_us,
        "left_us": freeze.left_us,
        "pause_us": freeze.pause_us,
        "copied_nodes": freeze.copied_nodes,
        "keyspaces": freeze.keyspaces,
        "flash_bytes": freeze.flash_bytes,
        "memory_bytes": freeze.memory_bytes,
    })
}

fn time(us: u64) -> String {
    duration::shown(Duration::from_micros(us))
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn print(text: &str) -> Outcome {
    super::commands::print(text.as_bytes())
}
