//! The classes of the DRAM tier under memcached's names: `stats slabs`, `stats items`, and what its exporter for Prometheus calls
//! them. Classes without slabs are left out, and numbered all the same: from 1, the smallest first. No state.

use tapetum::SlabClass;

/// A figure of a class.
pub struct ClassFigure {
    pub in_stats: &'static str,
    pub in_exporter: &'static str,
    /// One sentence, without its full stop.
    pub help: &'static str,
    pub value: fn(&SlabClass) -> u64,
}

const fn figure(
    in_stats: &'static str,
    in_exporter: &'static str,
    help: &'static str,
    value: fn(&SlabClass) -> u64,
) -> ClassFigure {
    ClassFigure { in_stats, in_exporter, help, value }
}

pub const OF_SLABS: [ClassFigure; 6] = [
    figure("chunk_size", "chunk_size_bytes", "Bytes of a slot", |class| class.slot_bytes as u64),
    figure("chunks_per_page", "chunks_per_page", "Slots of a slab", |class| class.slots / class.slabs.max(1)),
    figure("total_pages", "current_pages", "Slabs of the class", |class| class.slabs),
    figure("total_chunks", "current_chunks", "Slots of the class", |class| class.slots),
    figure("used_chunks", "chunks_used", "Slots that hold an item", |class| class.slots_used),
    figure("free_chunks", "chunks_free", "Slots that hold none", |class| class.slots - class.slots_used),
];

/// Ages are left out: the tier knows orders, not times.
pub const OF_ITEMS: [ClassFigure; 3] = [
    figure("number", "current_items", "Items in DRAM", |class| class.slots_used),
    figure("evicted", "items_evicted_total", "Items that left DRAM for others; flash has them", |class| {
        class.evictions
    }),
    figure("evicted_unfetched", "items_evicted_unfetched_total", "Of these, not asked for since they came", |class| {
        class.evictions_unused
    }),
];

pub fn numbered(classes: &[SlabClass]) -> impl Iterator<Item = (usize, &SlabClass)> {
    classes.iter().enumerate().filter(|(_, class)| class.slabs > 0).map(|(at, class)| (at + 1, class))
}

type Line = (&'static str, fn(&SlabClass) -> u64);

/// What memcached's exporter must find in each class, or it fails to read it. Commands are not counted by class here: what was set is
/// what came in, and of the others there are none.
const COMMANDS: [Line; 3] = [("cmd_set", |class| class.puts), ("cas_hits", |_| 0), ("cas_badval", |_| 0)];

pub fn slabs(classes: &[SlabClass]) -> Vec<(String, String)> {
    let mut lines = lines(classes, in_stats(&OF_SLABS).chain(COMMANDS), "");
    let active: Vec<_> = numbered(classes).collect();
    if !active.is_empty() {
        let bytes: u64 = active.iter().map(|(_, class)| class.slots * class.slot_bytes as u64).sum();
        lines.push(("active_slabs".into(), active.len().to_string()));
        lines.push(("total_malloced".into(), bytes.to_string()));
    }
    lines
}

pub fn items(classes: &[SlabClass]) -> Vec<(String, String)> {
    lines(classes, in_stats(&OF_ITEMS), "items:")
}

fn in_stats(figures: &[ClassFigure]) -> impl Iterator<Item = Line> + Clone {
    figures.iter().map(|figure| (figure.in_stats, figure.value))
}

fn lines(classes: &[SlabClass], of_class: impl Iterator<Item = Line> + Clone, before: &str) -> Vec<(String, String)> {
    let lines = |(number, class)| {
        of_class.clone().map(move |(name, value)| (format!("{before}{number}:{name}"), value(class).to_string()))
    };
    numbered(classes).flat_map(lines).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_keep_their_number_and_those_without_slabs_say_nothing() {
        let class = SlabClass {
            slot_bytes: 128,
            slabs: 2,
            slots: 10,
            slots_used: 7,
            puts: 9,
            evictions: 5,
            evictions_unused: 4,
        };
        let classes = [SlabClass { slabs: 0, slots: 0, slots_used: 0, ..class }, class];
        let line = |name: &str, value: &str| (name.to_string(), value.to_string());
        assert_eq!(slabs(&classes)[..2], [line("2:chunk_size", "128"), line("2:chunks_per_page", "5")]);
        assert_eq!(
            slabs(&classes)[5..],
            [
                line("2:free_chunks", "3"),
                line("2:cmd_set", "9"),
                line("2:cas_hits", "0"),
                line("2:cas_badval", "0"),
                line("active_slabs", "1"),
                line("total_malloced", "1280")
            ]
        );
        let expected = [("items:2:number", "7"), ("items:2:evicted", "5"), ("items:2:evicted_unfetched", "4")];
        assert_eq!(items(&classes), expected.map(|(name, value)| line(name, value)));
        assert!(items(&classes[..1]).is_empty() && slabs(&classes[..1]).is_empty());
    }
}
