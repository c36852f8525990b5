//! The contents of a store as names and values: the form in which a server sends them (`stats inspect`) and a tool reads them.
//!
//! ```text
//! superblock:<name> <number>      manifest:<name> <number>
//! segment:<number> <name>=<number> …
//! groups:<keyspace>:<class> <name>=<number> …      tree:<keyspace> <name>=<number> …      freeze:<id> <name>=<number> …
//! area:<offset> <bytes> <kind> [<segment>]
//! ```
//! Pure.

use tapetum::inspect::{
    AREA_KINDS, Area, AreaKind, FreezeInspection, GroupInspection, SegmentInspection, TreeInspection,
};
use tapetum::{Inspection, KeyPlace, Location, NodePlace, RecordFacts};

pub fn kind_name(kind: AreaKind) -> &'static str {
    AREA_KINDS.iter().find(|(other, _)| *other == kind).map_or("unknown", |(_, name)| name)
}

pub fn to_lines(inspection: &Inspection) -> Vec<(String, String)> {
    let mut lines = Vec::new();
    for (part, fields) in [("superblock", &inspection.superblock), ("manifest", &inspection.manifest)] {
        lines.extend(fields.iter().map(|(name, value)| (format!("{part}:{name}"), value.to_string())));
    }
    for segment in &inspection.segments {
        lines.push((format!("segment:{}", segment.number), joined(&segment.fields())));
    }
    for groups in &inspection.groups {
        lines.push((format!("groups:{}:{}", groups.keyspace, groups.class), joined(&groups.fields())));
    }
    for tree in &inspection.trees {
        lines.push((format!("tree:{}", tree.keyspace), joined(&tree.fields())));
    }
    for freeze in &inspection.freezes {
        lines.push((format!("freeze:{}", freeze.id), joined(&freeze.fields())));
    }
    for area in &inspection.areas {
        let segment = area.segment.map_or(String::new(), |segment| format!(" {segment}"));
        let value = format!("{} {}{segment}", area.length_bytes, kind_name(area.kind));
        lines.push((format!("area:{}", area.offset_bytes), value));
    }
    lines
}

fn joined(fields: &[(&str, u64)]) -> String {
    fields.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(" ")
}

/// Reads the lines of [`to_lines`]. Unknown lines of a newer server are ignored.
pub fn from_lines(lines: &[(String, String)]) -> Result<Inspection, String> {
    let mut inspection = Inspection::default();
    for (name, value) in lines {
        let wrong = || format!("the server says {name:?} {value:?}, which makes no sense here: use its own tapetum");
        let number = |text: &str| text.parse::<u64>().map_err(|_| wrong());
        let (part, rest) = name.split_once(':').ok_or_else(wrong)?;
        match part {
            "superblock" => inspection.superblock.push((rest.into(), number(value)?)),
            "manifest" => inspection.manifest.push((rest.into(), number(value)?)),
            "segment" | "groups" | "tree" | "freeze" => {
                let fields = value.split(' ').map(|field| {
                    let (name, value) = field.split_once('=').ok_or_else(wrong)?;
                    Ok((name, number(value)?))
                });
                let fields: Vec<(&str, u64)> = fields.collect::<Result<_, String>>()?;
                add_fields(part, &fields, &mut inspection);
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

/// Adds a segment, groups, a tree or a freeze. Unknown fields of a newer server are ignored.
fn add_fields(part: &str, fields: &[(&str, u64)], inspection: &mut Inspection) {
    match part {
        "segment" => {
            let mut segment = SegmentInspection::default();
            for (name, value) in fields {
                segment.set(name, *value);
            }
            inspection.segments.push(segment);
        }
        "groups" => {
            let mut groups = GroupInspection::default();
            for (name, value) in fields {
                groups.set(name, *value);
            }
            inspection.groups.push(groups);
        }
        "freeze" => {
            let mut freeze = FreezeInspection::default();
            for (name, value) in fields {
                freeze.set(name, *value);
            }
            inspection.freezes.push(freeze);
        }
        _ => {
            let mut tree = TreeInspection::default();
            for (name, value) in fields {
                tree.set(name, *value);
            }
            inspection.trees.push(tree);
        }
    }
}

/// The place of a key, as names and values.
pub fn location_lines(location: &Location) -> Vec<(String, String)> {
    let mut lines: Vec<(&str, String)> = vec![("hash_key", format!("{:032x}", location.hash))];
    lines.extend(location.partition.map(|partition| ("partition", partition.to_string())));
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
        KeyPlace::Node(place) => push_node(place, &mut lines),
    }
    lines.into_iter().map(|(name, value)| (name.to_string(), value)).collect()
}

fn push_node(place: &NodePlace, lines: &mut Vec<(&str, String)>) {
    let fence = |key: &[u8]| key.escape_ascii().to_string();
    lines.push(("place", if place.record.is_some() { "data node" } else { "nowhere" }.into()));
    lines.push(("node", place.node.to_string()));
    lines.push(("depth", place.depth.to_string()));
    lines.push(("cached", place.is_cached.to_string()));
    lines.push(("dirty", place.is_dirty.to_string()));
    lines.push(("low_fence", fence(&place.low)));
    lines.push(("high_fence", place.high.as_deref().map_or("none".into(), fence)));
    lines.push(("node_records", place.records.to_string()));
    lines.push(("node_used_bytes", place.used_bytes.to_string()));
    if let Some(image) = &place.image {
        lines.push(("extent", image.extent.to_string()));
        lines.push(("page", image.page.to_string()));
        lines.push(("flash_at", image.flash_bytes.to_string()));
        lines.push(("image_stamp", image.stamp.to_string()));
    }
    if let Some(record) = &place.record {
        push_record(record, lines);
    }
    if let Some(extension) = &place.extension {
        lines.push(("extension_extent", extension.extent.to_string()));
        lines.push(("extension_page", extension.page.to_string()));
        lines.extend(extension.flash_bytes.map(|flash| ("extension_at", flash.to_string())));
        lines.push(("extension_bytes", extension.length_bytes.to_string()));
        lines.push(("extension_stamp", extension.stamp.to_string()));
        lines.push(("extension_whole", extension.is_whole.to_string()));
    }
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
    fn a_key_of_an_ordered_keyspace_is_told_with_its_node() {
        let image = tapetum::ImagePlace { extent: 4, page: 5, flash_bytes: 6, stamp: 7 };
        let place = NodePlace {
            node: 1,
            depth: 2,
            image: Some(image),
            is_cached: true,
            is_dirty: false,
            low: b"a b\n".to_vec(),
            high: None,
            records: 3,
            used_bytes: 12,
            record: None,
            extension: None,
        };
        let lines = location_lines(&Location { hash: 1, partition: None, place: KeyPlace::Node(place) });
        let of = |name: &str| lines.iter().find(|line| line.0 == name).map(|line| line.1.as_str());
        assert_eq!((of("place"), of("partition")), (Some("nowhere"), None));
        assert_eq!((of("low_fence"), of("high_fence"), of("image_stamp")), (Some("a b\\n"), Some("none"), Some("7")));
    }

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
            groups: vec![GroupInspection { keyspace: 3, class: 2, slots_used: 9, ..GroupInspection::default() }],
            trees: vec![TreeInspection { keyspace: 3, nodes: 8, ..TreeInspection::default() }],
            freezes: vec![FreezeInspection { id: 1 << 40, flash_bytes: 4096, ..FreezeInspection::default() }],
            areas: areas.collect(),
        };
        let mut lines = to_lines(&inspection);
        assert_eq!(from_lines(&lines), Ok(inspection.clone()));
        lines.push(("novelty:x".into(), "y".into()));
        assert_eq!(from_lines(&lines), Ok(inspection));
        for (name, value) in
            [("area:0", "1 moon"), ("segment:0", "x"), ("tree:0", "nodes=x"), ("superblock:x", "y"), ("pid", "1")]
        {
            assert!(from_lines(&[(name.into(), value.into())]).is_err(), "{name}");
        }
    }
}
