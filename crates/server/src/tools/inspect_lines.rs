//! What is inside a store as names and values: how a server tells it (`stats inspect`) and a tool reads it again.
//!
//! ```text
//! superblock:<name> <number>      manifest:<name> <number>
//! segment:<number> <name>=<number> …
//! area:<offset> <bytes> <kind> [<segment>]
//! ```
//! Pure.

use tapetum::inspect::{AREA_KINDS, Area, AreaKind, SegmentInspection};
use tapetum::{Inspection, KeyPlace, Location, RecordFacts};

pub fn kind_name(kind: AreaKind) -> &'static str {
    AREA_KINDS.iter().find(|(other, _)| *other == kind).map_or("unknown", |(_, name)| name)
}

pub fn to_lines(inspection: &Inspection) -> Vec<(String, String)> {
    let mut lines = Vec::new();
    for (part, fields) in [("superblock", &inspection.superblock), ("manifest", &inspection.manifest)] {
        lines.extend(fields.iter().map(|(name, value)| (format!("{part}:{name}"), value.to_string())));
    }
    for segment in &inspection.segments {
        let fields: Vec<String> = segment.fields().iter().map(|(name, value)| format!("{name}={value}")).collect();
        lines.push((format!("segment:{}", segment.number), fields.join(" ")));
    }
    for area in &inspection.areas {
        let segment = area.segment.map_or(String::new(), |segment| format!(" {segment}"));
        let value = format!("{} {}{segment}", area.length_bytes, kind_name(area.kind));
        lines.push((format!("area:{}", area.offset_bytes), value));
    }
    lines
}

/// Reads what [`to_lines`] says. What a newer server says beyond that is passed over.
pub fn from_lines(lines: &[(String, String)]) -> Result<Inspection, String> {
    let mut inspection = Inspection::default();
    for (name, value) in lines {
        let wrong = || format!("the server says {name:?} {value:?}, which makes no sense here: use its own tapetum");
        let number = |text: &str| text.parse::<u64>().map_err(|_| wrong());
        let (part, rest) = name.split_once(':').ok_or_else(wrong)?;
        match part {
            "superblock" => inspection.superblock.push((rest.into(), number(value)?)),
            "manifest" => inspection.manifest.push((rest.into(), number(value)?)),
            "segment" => {
                let mut segment = SegmentInspection::default();
                for field in value.split(' ') {
                    let (name, value) = field.split_once('=').ok_or_else(wrong)?;
                    segment.set(name, number(value)?);
                }
                inspection.segments.push(segment);
            }
            "area" => {
                let mut words = value.split(' ');
                let length_bytes = number(words.next().unwrap_or_default())?;
                let kind = words.next().unwrap_or_default();
                let (kind, _) = *AREA_KINDS.iter().find(|(_, name)| *name == kind).ok_or_else(wrong)?;
                let segment = words.next().map(|text| text.parse().map_err(|_| wrong())).transpose()?;
                inspection.areas.push(Area { offset_bytes: number(rest)?, length_bytes, kind, segment });
            }
            _ => {}
        }
    }
    Ok(inspection)
}

/// Where a key lives, in names and values.
pub fn location_lines(location: &Location) -> Vec<(String, String)> {
    let mut lines: Vec<(&str, String)> =
        vec![("hash_key", format!("{:032x}", location.hash)), ("partition", location.partition.to_string())];
    match &location.place {
        KeyPlace::Nowhere { segment } => {
            lines.push(("place", "nowhere".into()));
            lines.extend(segment.map(|number| ("another_keys_segment", number.to_string())));
        }
        KeyPlace::Buffer { buffer, sealed, flash_bytes, record } => {
            lines.push(("place", "write buffer".into()));
            lines.push(("buffer", buffer.to_string()));
            lines.push(("sealed", sealed.to_string()));
            lines.push(("flash_at", flash_bytes.to_string()));
            push_record(record, &mut lines);
        }
        KeyPlace::Segment(place) => {
            lines.push(("place", "segment".into()));
            lines.push(("segment", place.segment.to_string()));
            lines.push(("entry", place.entry.to_string()));
            lines.push(("extent", place.extent.to_string()));
            lines.push(("page", place.page.to_string()));
            lines.push(("page_at", place.page_at.to_string()));
            lines.push(("flash_at", place.flash_bytes.to_string()));
            lines.push(("read_bytes", place.read_bytes.to_string()));
            lines.push(("valid", place.valid.to_string()));
            push_record(&place.record, &mut lines);
        }
    }
    lines.into_iter().map(|(name, value)| (name.to_string(), value)).collect()
}

fn push_record(record: &RecordFacts, lines: &mut Vec<(&str, String)>) {
    lines.extend([
        ("record", record.kind.clone()),
        ("live", record.live.to_string()),
        ("codec", record.codec.clone()),
        ("record_bytes", record.record_bytes.to_string()),
        ("key_bytes", record.key_bytes.to_string()),
        ("stored_bytes", record.stored_bytes.to_string()),
        ("value_bytes", record.value_bytes.to_string()),
        ("flags", record.flags.to_string()),
        ("expiry", record.expiry.to_string()),
        ("stamp", record.stamp.to_string()),
    ]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_server_says_is_read_again() {
        let segment = SegmentInspection { number: 7, entries: 10, valid_bytes: 99, ..SegmentInspection::default() };
        let areas = AREA_KINDS.iter().enumerate().map(|(at, (kind, _))| Area {
            offset_bytes: at as u64 * 4096,
            length_bytes: 4096,
            kind: *kind,
            segment: (*kind == AreaKind::Data).then_some(7),
        });
        let inspection = Inspection {
            superblock: vec![("capacity_bytes".into(), 1)],
            manifest: vec![("epoch".into(), 2)],
            segments: vec![segment],
            areas: areas.collect(),
        };
        let mut lines = to_lines(&inspection);
        assert_eq!(from_lines(&lines), Ok(inspection.clone()));
        lines.push(("novelty:x".into(), "y".into()));
        assert_eq!(from_lines(&lines), Ok(inspection));
        for (name, value) in [("area:0", "1 moon"), ("segment:0", "x"), ("superblock:x", "y"), ("pid", "1")] {
            assert!(from_lines(&[(name.into(), value.into())]).is_err(), "{name}");
        }
    }
}
