//! The drive as a picture: one character for each stretch of it, chosen by its most common content, and for records by the share of valid
//! bytes. Pure.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

use tapetum::Inspection;
use tapetum::inspect::{Area, AreaKind};

use tapetum_service::inspect_lines::kind_name;
use tapetum_service::{duration, size};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Canvas {
    pub columns: usize,
    /// The most rows of the map itself.
    pub rows: usize,
    pub colours: bool,
}

/// Freezes that have a row of their own below the map.
const FREEZES_SHOWN: usize = 4;

/// Shades of records, by the share of valid bytes.
const SHADES: [(char, u64, &str); 4] =
    [('█', 90, "≥ 90 %"), ('▓', 60, "≥ 60 %"), ('▒', 30, "≥ 30 %"), ('░', 0, "less")];

/// Letter and colour (ANSI) of a kind. Records have shades instead of a letter.
fn look(kind: AreaKind) -> (char, u8) {
    match kind {
        AreaKind::Superblock => ('S', 37),
        AreaKind::Manifest => ('M', 33),
        AreaKind::ManifestCopy => ('m', 33),
        AreaKind::Log => ('L', 35),
        AreaKind::Data => ('█', 32),
        AreaKind::Keys => ('K', 36),
        AreaKind::Large => ('V', 34),
        AreaKind::Nodes => ('N', 32),
        AreaKind::Extensions => ('E', 34),
        AreaKind::Held => ('H', 31),
        AreaKind::Checkpoint => ('C', 36),
        AreaKind::Free => ('·', 90),
        AreaKind::Unused => (' ', 90),
        // The legend gives its name.
        _ => ('+', 34),
    }
}

/// The contents of a stretch of the drive.
#[derive(Clone, Default)]
pub struct Cell {
    bytes: BTreeMap<AreaKind, u64>,
    /// Valid bytes of the records.
    valid_bytes: u64,
}

/// A drive in cells of one size, and all of it as one cell.
pub struct Cells {
    pub total_bytes: u64,
    pub cell_bytes: u64,
    pub cells: Vec<Cell>,
    pub whole: Cell,
}

impl Cell {
    pub fn bytes(&self) -> impl Iterator<Item = (AreaKind, u64)> + '_ {
        self.bytes.iter().map(|(kind, bytes)| (*kind, *bytes))
    }

    /// The kind that takes most of it.
    pub fn kind(&self) -> AreaKind {
        self.bytes.iter().max_by_key(|(_, bytes)| **bytes).map_or(AreaKind::Unused, |(kind, _)| *kind)
    }

    /// The share of valid bytes among its records.
    pub fn valid_percent(&self) -> u64 {
        let data = self.bytes.get(&AreaKind::Data).copied().unwrap_or(0);
        (self.valid_bytes * 100).checked_div(data).unwrap_or(0)
    }
}

/// Divides a drive into so many cells, or fewer.
pub fn cells(inspection: &Inspection, cells_max: usize) -> Cells {
    let total_bytes = inspection.areas.last().map_or(0, |area| area.offset_bytes + area.length_bytes);
    let cell_bytes = total_bytes.div_ceil(cells_max.max(1) as u64).max(4096).next_multiple_of(4096);
    // By segment: valid bytes of records, and all bytes of records.
    let shares: BTreeMap<u32, (u64, u64)> = inspection
        .segments
        .iter()
        .map(|segment| (segment.number as u32, (segment.valid_bytes, segment.record_bytes.max(1))))
        .collect();
    let mut cells = vec![Cell::default(); total_bytes.div_ceil(cell_bytes) as usize];
    let mut whole = Cell::default();
    for area in &inspection.areas {
        let (valid, records) = area.segment.and_then(|segment| shares.get(&segment)).copied().unwrap_or((0, 1));
        let add = |cell: &mut Cell, bytes: u64| {
            *cell.bytes.entry(area.kind).or_default() += bytes;
            if area.kind == AreaKind::Data {
                cell.valid_bytes += (u128::from(bytes) * u128::from(valid) / u128::from(records)) as u64;
            }
        };
        add(&mut whole, area.length_bytes);
        for (cell, bytes) in stretches(area, cell_bytes) {
            add(&mut cells[cell], bytes);
        }
    }
    Cells { total_bytes, cell_bytes, cells, whole }
}

pub fn draw(inspection: &Inspection, canvas: Canvas) -> String {
    let columns = canvas.columns.max(16);
    let Cells { total_bytes, cell_bytes, cells, whole } = cells(inspection, columns * canvas.rows.max(1));
    let mut out = String::new();
    for row in cells.chunks(columns) {
        draw_row(row, canvas.colours, &mut out);
    }
    legend(&whole, total_bytes, cell_bytes, canvas.colours, &mut out);
    freezes(inspection, &mut out);
    out
}

/// The rows that freezes take below the legend.
pub fn freeze_rows(inspection: &Inspection) -> usize {
    let freezes = inspection.freezes.len();
    freezes.min(FREEZES_SHOWN) + usize::from(freezes > FREEZES_SHOWN)
}

/// Adds a row for each freeze: the map has no mark for what freezes keep, as that lies among all the rest.
fn freezes(inspection: &Inspection, out: &mut String) {
    let time = |us| duration::shown(Duration::from_micros(us));
    for freeze in inspection.freezes.iter().take(FREEZES_SHOWN) {
        // Writing to a string cannot fail.
        let _ = writeln!(
            out,
            "freeze {} keeps {} from writers, and {} of memory; it is {} old, and ends in {}",
            freeze.id,
            size::shown(freeze.flash_bytes),
            size::shown(freeze.memory_bytes),
            time(freeze.age_us),
            time(freeze.left_us)
        );
    }
    if let more @ 1.. = inspection.freezes.len().saturating_sub(FREEZES_SHOWN) {
        let _ = writeln!(out, "{more} more freezes: `tapetum freeze list` prints all");
    }
}

/// The cells that an area touches, and its bytes in each of them.
fn stretches(area: &Area, cell_bytes: u64) -> impl Iterator<Item = (usize, u64)> {
    let (mut at, end) = (area.offset_bytes, area.offset_bytes + area.length_bytes);
    std::iter::from_fn(move || {
        let cell = at / cell_bytes;
        let next = end.min((cell + 1) * cell_bytes);
        let bytes = next.checked_sub(at).filter(|bytes| *bytes > 0)?;
        at = next;
        Some((cell as usize, bytes))
    })
}

fn shade(percent: u64) -> char {
    SHADES.iter().find(|(_, least, _)| percent >= *least).map_or('░', |(shade, ..)| *shade)
}

fn draw_row(row: &[Cell], colours: bool, out: &mut String) {
    let mut colour_now = 0;
    for cell in row {
        let kind = cell.kind();
        let (letter, colour) = look(kind);
        if colours && colour != colour_now {
            // Writing to a string cannot fail.
            let _ = write!(out, "\x1b[{colour}m");
            colour_now = colour;
        }
        out.push(if kind == AreaKind::Data { shade(cell.valid_percent()) } else { letter });
    }
    out.push_str(if colours { "\x1b[0m\n" } else { "\n" });
}

fn legend(whole: &Cell, total_bytes: u64, cell_bytes: u64, colours: bool, out: &mut String) {
    let free_bytes = whole.bytes.get(&AreaKind::Free).copied().unwrap_or(0);
    let percent = |bytes: u64| (bytes * 100).checked_div(total_bytes).unwrap_or(0);
    let _ = writeln!(
        out,
        "\n{}, {} free ({} %); a character is {}",
        size::shown(total_bytes),
        size::shown(free_bytes),
        percent(free_bytes),
        size::shown(cell_bytes)
    );
    for (&kind, &bytes) in &whole.bytes {
        let (letter, colour) = look(kind);
        let (start, end) = if colours { (format!("\x1b[{colour}m"), "\x1b[0m") } else { (String::new(), "") };
        let _ = write!(
            out,
            "{start}{letter}{end} {:15} {:>10} {:>3} %",
            kind_name(kind),
            size::shown(bytes),
            percent(bytes)
        );
        if kind == AreaKind::Data {
            let _ = write!(out, "   {} % of it valid:", whole.valid_percent());
            for (shade, _, meaning) in SHADES {
                let _ = write!(out, " {start}{shade}{end} {meaning}");
            }
        }
        out.push('\n');
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tapetum::inspect::{FreezeInspection, SegmentInspection};

    fn inspection() -> Inspection {
        let segment = |number, valid_bytes| SegmentInspection {
            number,
            valid_bytes,
            record_bytes: 100,
            ..SegmentInspection::default()
        };
        let mut areas = Vec::new();
        let mut offset_bytes = 0;
        for (pages, kind, segment) in [
            (2, AreaKind::Superblock, None),
            (14, AreaKind::Log, None),
            (16, AreaKind::Data, Some(1)),
            (8, AreaKind::Data, Some(2)),
            (8, AreaKind::Keys, Some(2)),
            (16, AreaKind::Free, None),
        ] {
            let length_bytes = pages * 4096;
            areas.push(Area { offset_bytes, length_bytes, kind, segment });
            offset_bytes += length_bytes;
        }
        Inspection { segments: vec![segment(1, 95), segment(2, 10)], areas, ..Inspection::default() }
    }

    #[test]
    fn each_character_is_what_most_of_its_stretch_is() {
        let picture = draw(&inspection(), Canvas { columns: 16, rows: 2, colours: false });
        let rows: Vec<&str> = picture.lines().collect();
        assert_eq!(rows[..3], ["SLLLLLLL████████", "░░░░KKKK········", ""]);
        assert!(rows[3].starts_with("256 KiB, 64 KiB free (25 %); a character is 8 KiB"), "{picture}");
        let data = rows.iter().find(|row| row.contains("data")).unwrap();
        assert!(data.contains("96 KiB  37 %   66 % of it valid"), "{picture}");
        assert!(!picture.contains('\x1b'));
    }

    #[test]
    fn freezes_are_below_the_legend() {
        let freeze =
            FreezeInspection { id: 7, flash_bytes: 3 << 20, left_us: 5_000_000, ..FreezeInspection::default() };
        let inspection = Inspection { freezes: vec![freeze; 6], ..inspection() };
        let picture = draw(&inspection, Canvas { columns: 16, rows: 2, colours: false });
        let rows: Vec<&str> = picture.lines().rev().take(freeze_rows(&inspection)).collect();
        assert_eq!(rows[0], "2 more freezes: `tapetum freeze list` prints all");
        assert!(rows[1..].iter().all(|row| row.starts_with("freeze 7 keeps 3 MiB from writers")), "{picture}");
    }

    #[test]
    fn colours_end_where_they_began() {
        let picture = draw(&inspection(), Canvas { columns: 16, rows: 1, colours: true });
        assert!(picture.lines().filter(|line| line.contains('\x1b')).all(|line| line.contains("\x1b[0m")));
        assert_eq!(draw(&Inspection::default(), Canvas { columns: 1, rows: 0, colours: false }).lines().count(), 2);
    }
}
