//! `inspect`: superblock, manifest and segments as tables or JSON, and the map, once or again and again.

// The server is above the simulator: what watches may wait.
#![allow(clippy::disallowed_methods)]

use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use serde_json::{Map, Value, json};
use tapetum::Inspection;

use super::drive_map::{self, Canvas};
use super::inspect_lines::kind_name;
use crate::{os, size};

/// Rows below the map.
const LEGEND_ROWS: usize = 13;

/// Superblock, manifest and segments as text.
pub fn report(inspection: &Inspection) -> String {
    let mut out = String::new();
    for (title, fields) in [("superblock", &inspection.superblock), ("manifest", &inspection.manifest)] {
        out.push_str(&format!("{title}\n"));
        out.extend(fields.iter().map(|(name, value)| format!("  {name:18} {}\n", shown(name, *value))));
    }
    out.push_str("segments\n");
    let columns = ["number", "entries", "valid", "%", "bytes", "valid", "%", "data", "keys", "stamp_max"];
    let mut rows: Vec<Vec<String>> = vec![columns.iter().map(ToString::to_string).collect()];
    for segment in &inspection.segments {
        let share = |part: u64, whole: u64| (part * 100).checked_div(whole).unwrap_or(0).to_string();
        rows.push(vec![
            segment.number.to_string(),
            segment.entries.to_string(),
            segment.valid_entries.to_string(),
            share(segment.valid_entries, segment.entries),
            size::shown(segment.record_bytes),
            size::shown(segment.valid_bytes),
            share(segment.valid_bytes, segment.record_bytes),
            format!("{} extents", segment.data_extents),
            format!("{} extents", segment.key_extents),
            segment.stamp_max.to_string(),
        ]);
    }
    let width = |column: usize| rows.iter().map(|row| row[column].len()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns.len()).map(width).collect();
    for row in &rows {
        let cells: Vec<String> = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:>width$}")).collect();
        out.push_str(&format!("  {}\n", cells.join("  ")));
    }
    out
}

fn shown(name: &str, value: u64) -> String {
    if name.ends_with("_bytes") { format!("{value} ({})", size::shown(value)) } else { value.to_string() }
}

/// All of it, the areas too.
pub fn to_json(inspection: &Inspection) -> Value {
    let object = |fields: &[(String, u64)]| -> Value {
        fields.iter().map(|(name, value)| (name.clone(), Value::from(*value))).collect::<Map<_, _>>().into()
    };
    let segments: Vec<Value> = inspection
        .segments
        .iter()
        .map(|segment| {
            segment.fields().into_iter().map(|(name, value)| (name.to_string(), Value::from(value))).collect()
        })
        .collect();
    let areas: Vec<Value> = inspection
        .areas
        .iter()
        .map(|area| {
            let (kind, segment) = (kind_name(area.kind), area.segment);
            json!({ "offset_bytes": area.offset_bytes, "length_bytes": area.length_bytes, "kind": kind, "segment": segment })
        })
        .collect();
    json!({
        "superblock": object(&inspection.superblock),
        "manifest": object(&inspection.manifest),
        "segments": segments,
        "areas": areas,
    })
}

/// Prints the map, as large as the terminal allows; with `every`, again and again until the user has seen enough.
pub fn map<E: From<io::Error>>(ask: impl Fn() -> Result<Inspection, E>, every: Option<Duration>) -> Result<(), E> {
    let mut out = io::stdout();
    let terminal = out.is_terminal();
    loop {
        let (columns, rows) = os::terminal_size().filter(|_| terminal).unwrap_or((80, 24 + LEGEND_ROWS));
        let colours = terminal && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        let canvas = Canvas { columns, rows: rows.saturating_sub(LEGEND_ROWS).max(4), colours };
        let picture = drive_map::draw(&ask()?, canvas);
        // One write, from the top of the screen, so that it does not flicker.
        let (before, after) = if terminal && every.is_some() { ("\x1b[H", "\x1b[J") } else { ("", "") };
        let text = format!("{before}{}{after}", if terminal { picture.replace('\n', "\x1b[K\n") } else { picture });
        match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
            other => other?,
        }
        let Some(every) = every else { return Ok(()) };
        std::thread::sleep(every);
    }
}
