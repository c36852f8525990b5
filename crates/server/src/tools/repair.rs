//! `repair`: reports the damage in a store and the cost of a repair, repairs, and undoes a repair; and `dump --skip-bad`.

use std::io::{self, Write};
use std::ops::ControlFlow;
use std::path::Path;

use tapetum::repair::{self, RepairReport, SalvagedItem};
use tapetum::{Options, Place};

use super::item_lines::{self, Format};
use super::keep_file::{self, KeepFile};
use tapetum_service::opening::OpenError;
use tapetum_service::reply::ItemRow;

/// Bytes to gather before a write.
const BATCH_BYTES: usize = 1 << 20;

/// Reports what a repair would do. Writes nothing to the store.
pub fn look(place: &Place, options: &Options, out: &mut dyn Write) -> Result<(), Box<dyn std::error::Error>> {
    let report = options.examine(place, |drive, _| repair::look(drive)).map_err(OpenError::from)?;
    print(&report, "would be", out)?;
    if report.is_clean() {
        return Ok(());
    }
    writeln!(
        out,
        "nothing was written: --yes repairs the store; `tapetum dump --skip-bad` prints what can be read of it as it is"
    )
    .map_err(Into::into)
}

/// Repairs the store, and keeps the replaced bytes.
pub fn repair(
    place: &Place,
    options: &Options,
    keep: Option<&Path>,
    out: &mut dyn Write,
) -> Result<(), Box<dyn std::error::Error>> {
    let mut keeper = KeepFile::beside(&place.path(), keep)?;
    let repaired = options.operate(place, |drive| repair::repair(drive, &mut keeper));
    let report = repaired.map_err(OpenError::from)?;
    print(&report, "is", out)?;
    if let Some(kept) = keeper.path() {
        let kept = kept.display();
        writeln!(
            out,
            "what was replaced is in {kept}: `tapetum repair --undo {kept}` puts it back, as long as the store is not written to"
        )?;
    }
    Ok(())
}

/// Undoes a repair.
pub fn put_back(place: &Place, kept: &Path, out: &mut dyn Write) -> Result<(), Box<dyn std::error::Error>> {
    let path = place.path();
    let store_id = match tapetum::inspect_at(place) {
        Ok(inspection) => Some(inspection.field("store_id")),
        Err(error @ (tapetum::OpenError::InUse { .. } | tapetum::OpenError::NoStore { .. })) => {
            return Err(OpenError::from(error).into());
        }
        // An interrupted undo may have left an unreadable manifest.
        Err(_) => None,
    };
    let _lock = tapetum::lock(place).map_err(OpenError::from)?;
    let bytes = keep_file::undo(kept, &path, store_id)?;
    writeln!(out, "{bytes} bytes of {} are as they were before the repair", path.display()).map_err(Into::into)
}

fn print(report: &RepairReport, done: &str, out: &mut dyn Write) -> io::Result<()> {
    for part in &report.made_anew {
        writeln!(out, "{done} made anew, at no loss: {part}")?;
    }
    for loss in &report.losses {
        writeln!(out, "{done} lost: {loss}")?;
    }
    for segment in &report.segments_rewritten {
        writeln!(out, "{done} written anew with what can be read of it: segment {segment}")?;
    }
    for node in &report.nodes_rewritten {
        writeln!(out, "{done} written anew with what can be read: {node}")?;
    }
    if report.is_clean() {
        return writeln!(out, "no damage found");
    }
    writeln!(out, "lost in all: {}", sum(report))
}

fn sum(report: &RepairReport) -> String {
    let (items, ranges) = (report.items_lost(), report.ranges_lost());
    let plural = |count: u64| if count == 1 { "" } else { "s" };
    let mut sum =
        format!("{items} item{}, and the writes of {ranges} range{} of stamps", plural(items), plural(ranges));
    let (gone, older) = report.key_ranges_lost();
    if gone > 0 {
        sum.push_str(&format!("; all items of {gone} range{} of keys", plural(gone)));
    }
    if older > 0 {
        sum.push_str(&format!("; the last writes of {older} range{} of keys", plural(older)));
    }
    sum
}

/// Writes the readable items of a keyspace whose keys begin with `prefix`. Unreadable ones are named on `complaints`.
///
/// # Errors
/// Also after all the rest was written, if something could not be read.
pub fn dump(
    place: &Place,
    options: &Options,
    keyspace: &str,
    prefix: &[u8],
    format: Format,
    out: &mut dyn Write,
    complaints: &mut dyn Write,
) -> Result<(), Box<dyn std::error::Error>> {
    let (mut text, mut written) = (Vec::new(), Ok(()));
    let examined = options.examine(place, |drive, _| {
        repair::salvage(drive, keyspace, |item: SalvagedItem<'_>| {
            if item.key.starts_with(prefix) {
                let SalvagedItem { key, value, flags, expiry, .. } = item;
                item_lines::write(format, &ItemRow { key: key.into(), value: value.into(), flags, expiry }, &mut text);
            }
            if text.len() >= BATCH_BYTES {
                written = out.write_all(&text);
                text.clear();
            }
            if written.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })
    });
    let report = examined.map_err(OpenError::from)?;
    written.and_then(|()| out.write_all(&text)).and_then(|()| out.flush())?;
    if !report.losses.is_empty() {
        for loss in &report.losses {
            writeln!(complaints, "not dumped: {loss}")?;
        }
        return Err(format!("not all was dumped; not dumped in all: {}", sum(&report)).into());
    }
    Ok(())
}
