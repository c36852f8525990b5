//! `inspect`: superblock, manifest, segments, groups and trees as tables or JSON, and the map, once or again and again.

// The server is above the simulator: a command that watches may sleep.
#![allow(clippy::disallowed_methods)]

use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use serde_json::{Map, Value, json};
use tapetum::Inspection;
use tapetum::inspect::SLOT_CLASSES;

use super::drive_map::{self, Canvas};
use crate::{os, output};
use tapetum_service::inspect_lines::kind_name;
use tapetum_service::{duration, size};

/// Rows below the map, without those of freezes.
const LEGEND_ROWS: usize = 15;

/// Superblock, manifest, segments, groups and trees as text.
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
    push_table(&rows, &mut out);
    if !inspection.groups.is_empty() {
        push_groups(inspection, &mut out);
    }
    if !inspection.freezes.is_empty() {
        push_freezes(inspection, &mut out);
    }
    out
}

/// Groups and trees of ordered keyspaces.
fn push_groups(inspection: &Inspection, out: &mut String) {
    out.push_str("groups of ordered keyspaces\n");
    let columns = ["keyspace", "class", "groups", "open", "extents", "slots", "used", "%"];
    let mut rows: Vec<Vec<String>> = vec![columns.map(str::to_string).to_vec()];
    for groups in &inspection.groups {
        let is_open = inspection.trees.iter().any(|tree| tree.keyspace == groups.keyspace);
        let known = |text: String| if is_open { text } else { "?".into() };
        rows.push(vec![
            groups.keyspace.to_string(),
            SLOT_CLASSES.get(groups.class as usize).unwrap_or(&"?").to_string(),
            groups.groups.to_string(),
            groups.groups_open.to_string(),
            groups.extents.to_string(),
            groups.slots.to_string(),
            known(groups.slots_used.to_string()),
            known((groups.slots_used * 100).checked_div(groups.slots).unwrap_or(0).to_string()),
        ]);
    }
    push_table(&rows, out);
    if inspection.trees.is_empty() {
        return;
    }
    out.push_str("trees\n");
    let columns = ["keyspace", "items", "nodes", "unwritten", "depth", "mean", "search layer"];
    let mut rows: Vec<Vec<String>> = vec![columns.map(str::to_string).to_vec()];
    for tree in &inspection.trees {
        rows.push(vec![
            tree.keyspace.to_string(),
            tree.items.to_string(),
            tree.nodes.to_string(),
            tree.nodes_unwritten.to_string(),
            tree.depth_max.to_string(),
            format!("{}.{}", tree.depth_mean_tenths / 10, tree.depth_mean_tenths % 10),
            size::shown(tree.search_bytes),
        ]);
    }
    push_table(&rows, out);
}

fn push_freezes(inspection: &Inspection, out: &mut String) {
    out.push_str("freezes\n");
    let columns = ["id", "age", "left", "keyspaces", "flash", "memory", "pause"];
    let mut rows: Vec<Vec<String>> = vec![columns.map(str::to_string).to_vec()];
    for freeze in &inspection.freezes {
        let time = |us| duration::shown(Duration::from_micros(us));
        rows.push(vec![
            freeze.id.to_string(),
            time(freeze.age_us),
            time(freeze.left_us),
            freeze.keyspaces.to_string(),
            size::shown(freeze.flash_bytes),
            size::shown(freeze.memory_bytes),
            time(freeze.pause_us),
        ]);
    }
    push_table(&rows, out);
}

fn push_table(rows: &[Vec<String>], out: &mut String) {
    let width = |column: usize| rows.iter().map(|row| row[column].len()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..rows.first().map_or(0, Vec::len)).map(width).collect();
    for row in rows {
        let cells: Vec<String> = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:>width$}")).collect();
        out.push_str(&format!("  {}\n", cells.join("  ")));
    }
}

fn shown(name: &str, value: u64) -> String {
    if name.ends_with("_bytes") { format!("{value} ({})", size::shown(value)) } else { value.to_string() }
}

/// All of it, the areas too.
pub fn to_json(inspection: &Inspection) -> Value {
    let object = |fields: &[(String, u64)]| -> Value {
        fields.iter().map(|(name, value)| (name.clone(), Value::from(*value))).collect::<Map<_, _>>().into()
    };
    let named = |fields: Vec<(&str, u64)>| -> Value {
        fields.into_iter().map(|(name, value)| (name.to_string(), Value::from(value))).collect()
    };
    let segments: Vec<Value> = inspection.segments.iter().map(|segment| named(segment.fields())).collect();
    let groups: Vec<Value> = inspection.groups.iter().map(|groups| named(groups.fields())).collect();
    let trees: Vec<Value> = inspection.trees.iter().map(|tree| named(tree.fields())).collect();
    let freezes: Vec<Value> = inspection.freezes.iter().map(|freeze| named(freeze.fields())).collect();
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
        "groups": groups,
        "trees": trees,
        "freezes": freezes,
        "areas": areas,
    })
}

/// Prints the map, as large as the terminal allows; with `every`, again and again until the user has seen enough.
pub fn map<E: From<io::Error>>(ask: impl Fn() -> Result<Inspection, E>, every: Option<Duration>) -> Result<(), E> {
    let mut out = output::stdout();
    let terminal = io::stdout().is_terminal();
    loop {
        let (columns, rows) = os::terminal_size().filter(|_| terminal).unwrap_or((80, 24 + LEGEND_ROWS));
        let colours = terminal && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        let inspection = ask()?;
        let rows_below = LEGEND_ROWS + drive_map::freeze_rows(&inspection);
        let canvas = Canvas { columns, rows: rows.saturating_sub(rows_below).max(4), colours };
        let picture = drive_map::draw(&inspection, canvas);
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
