//! The classes of the DRAM tier under memcached's names, for `stats slabs` and `stats items`, and under those of memcached's exporter.
//! Classes without slabs are left out, but keep their numbers: from 1, the smallest class first. No state.
//!
//! The small queue is shown as *hot*, because new items pass through it, and the main queue as *warm*; there is no *cold*. Times of access
//! are known to about a minute, and so are ages.

use tapetum::SlabClass;

pub struct ClassFigure {
    pub in_stats: &'static str,
    pub in_exporter: &'static str,
    /// The exporter's type, unless Prometheus would then require the name to end in `_total`.
    pub kind: &'static str,
    /// One sentence, without the full stop.
    pub help: &'static str,
    pub value: fn(&SlabClass) -> u64,
}

type Value = fn(&SlabClass) -> u64;

const fn gauge(in_stats: &'static str, in_exporter: &'static str, help: &'static str, value: Value) -> ClassFigure {
    ClassFigure { in_stats, in_exporter, kind: "gauge", help, value }
}

const fn counter(in_stats: &'static str, in_exporter: &'static str, help: &'static str, value: Value) -> ClassFigure {
    ClassFigure { in_stats, in_exporter, kind: "counter", help, value }
}

const fn untyped(in_stats: &'static str, in_exporter: &'static str, help: &'static str, value: Value) -> ClassFigure {
    ClassFigure { in_stats, in_exporter, kind: "untyped", help, value }
}

pub const OF_SLABS: [ClassFigure; 8] = [
    gauge("chunk_size", "chunk_size_bytes", "Bytes of a slot", |class| class.slot_bytes as u64),
    gauge("chunks_per_page", "chunks_per_page", "Slots of a slab", |class| class.slots / class.slabs.max(1)),
    gauge("total_pages", "current_pages", "Slabs of the class", |class| class.slabs),
    gauge("total_chunks", "current_chunks", "Slots of the class", |class| class.slots),
    gauge("used_chunks", "chunks_used", "Slots that hold an item", |class| class.slots_used),
    gauge("free_chunks", "chunks_free", "Slots that hold none", |class| class.slots - class.slots_used),
    gauge("free_chunks_end", "chunks_free_end", "Slots of a slab that were never cut from it: none", |_| 0),
    gauge("mem_requested", "mem_requested_bytes", "Bytes of the items in its slots", |class| class.item_bytes),
];

pub const OF_ITEMS: [ClassFigure; 15] = [
    gauge("number", "current_items", "Items in DRAM", |class| class.slots_used),
    gauge("number_hot", "hot_items", "Slots in the small queue, empty ones too", |class| class.small.slots),
    gauge("number_warm", "warm_items", "Slots in the main queue, empty ones too", |class| class.main.slots),
    gauge("age_hot", "hot_age_seconds", "Since the next of the small queue was asked for", |class| {
        class.small.idle_seconds.into()
    }),
    gauge("age_warm", "warm_age_seconds", "Since the next of the main queue was asked for", |class| {
        class.main.idle_seconds.into()
    }),
    gauge("age", "items_age_seconds", "Since the longer unasked of these two was asked for", |class| {
        class.small.idle_seconds.max(class.main.idle_seconds).into()
    }),
    counter("evicted", "items_evicted_total", "Items that left DRAM for others; flash has them", |class| {
        class.evictions
    }),
    counter("evicted_unfetched", "items_evicted_unfetched_total", "Of these, not asked for since they came", |class| {
        class.evictions_unused
    }),
    gauge(
        "evicted_time",
        "items_evicted_time_seconds",
        "How long the last that left had not been asked for, the longest of the parts",
        |class| class.evicted_idle_seconds.into(),
    ),
    untyped("moves_to_warm", "items_moves_to_warm", "Items that moved on into the main queue", |class| {
        class.moves_to_main
    }),
    untyped("moves_within_lru", "items_moves_within_lru", "Turns of the main queue that let an item stay", |class| {
        class.moves_within_main
    }),
    counter(
        "outofmemory",
        "items_outofmemory_total",
        "Writes refused for want of DRAM: none, as flash takes them",
        |_| 0,
    ),
    counter("tailrepairs", "items_tailrepairs_total", "Repairs of a queue: there are none", |_| 0),
    counter("reclaimed", "items_reclaimed_total", "Slots taken from expired items: these go in their turn", |_| 0),
    counter("crawler_reclaimed", "items_crawler_reclaimed_total", "Items that a crawler freed: there is none", |_| 0),
];

/// A counter of a class: its name in `stats slabs`, the exporter's command and status, and its value.
type CountedCommand = (&'static str, [&'static str; 2], Value);

/// The exporter fails to read a class without the counters of sets and cas. Items put into the class count as sets. A command that changes
/// an item takes it out of DRAM, and is not counted by class.
pub const COMMANDS: [CountedCommand; 4] = [
    ("get_hits", ["get", "hit"], |class| class.hits),
    ("cmd_set", ["set", "hit"], |class| class.puts),
    ("cas_hits", ["cas", "hit"], |_| 0),
    ("cas_badval", ["cas", "badval"], |_| 0),
];

/// Figures of `stats items` that the exporter lacks.
const ALSO_OF_ITEMS: [(&str, Value); 2] = [("mem_requested", |class| class.item_bytes), ("number_cold", |_| 0)];

pub fn numbered(classes: &[SlabClass]) -> impl Iterator<Item = (usize, &SlabClass)> {
    classes.iter().enumerate().filter(|(_, class)| class.slabs > 0).map(|(at, class)| (at + 1, class))
}

/// Bytes of all slots.
pub fn total_malloced(classes: &[SlabClass]) -> u64 {
    classes.iter().map(|class| class.slots * class.slot_bytes as u64).sum()
}

pub fn slabs(classes: &[SlabClass]) -> Vec<(String, String)> {
    let commands = COMMANDS.map(|(name, _, value)| (name, value));
    let mut lines = lines(classes, in_stats(&OF_SLABS).chain(commands), "");
    let active = numbered(classes).count();
    if active > 0 {
        lines.push(("active_slabs".into(), active.to_string()));
        lines.push(("total_malloced".into(), total_malloced(classes).to_string()));
    }
    lines
}

pub fn items(classes: &[SlabClass]) -> Vec<(String, String)> {
    lines(classes, in_stats(&OF_ITEMS).chain(ALSO_OF_ITEMS), "items:")
}

fn in_stats(figures: &[ClassFigure]) -> impl Iterator<Item = (&'static str, Value)> + Clone {
    figures.iter().map(|figure| (figure.in_stats, figure.value))
}

fn lines(
    classes: &[SlabClass],
    of_class: impl Iterator<Item = (&'static str, Value)> + Clone,
    before: &str,
) -> Vec<(String, String)> {
    let lines = |(number, class)| {
        of_class.clone().map(move |(name, value)| (format!("{before}{number}:{name}"), value(class).to_string()))
    };
    numbered(classes).flat_map(lines).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tapetum::SlabQueue;

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
            evicted_idle_seconds: 40,
            hits: 11,
            item_bytes: 800,
            small: SlabQueue { slots: 1, idle_seconds: 20 },
            main: SlabQueue { slots: 8, idle_seconds: 30 },
            moves_to_main: 6,
            moves_within_main: 3,
        };
        let classes = [SlabClass { slabs: 0, slots: 0, slots_used: 0, ..class }, class];
        let found = |lines: Vec<(String, String)>, wanted: &[(&str, &str)]| {
            for (name, value) in wanted {
                assert!(lines.contains(&(name.to_string(), value.to_string())), "{name} {value}: {lines:?}");
            }
            lines
        };
        let slabs_wanted = [
            ("2:chunk_size", "128"),
            ("2:chunks_per_page", "5"),
            ("2:free_chunks", "3"),
            ("2:mem_requested", "800"),
            ("2:get_hits", "11"),
            ("2:cmd_set", "9"),
            ("active_slabs", "1"),
            ("total_malloced", "1280"),
        ];
        let lines = found(slabs(&classes), &slabs_wanted);
        assert_eq!(lines.len(), OF_SLABS.len() + COMMANDS.len() + 2);
        let items_wanted = [
            ("items:2:number", "7"),
            ("items:2:number_hot", "1"),
            ("items:2:number_warm", "8"),
            ("items:2:age", "30"),
            ("items:2:age_hot", "20"),
            ("items:2:evicted", "5"),
            ("items:2:evicted_time", "40"),
            ("items:2:evicted_unfetched", "4"),
            ("items:2:moves_to_warm", "6"),
            ("items:2:moves_within_lru", "3"),
        ];
        assert_eq!(found(items(&classes), &items_wanted).len(), OF_ITEMS.len() + ALSO_OF_ITEMS.len());
        assert!(items(&classes[..1]).is_empty() && slabs(&classes[..1]).is_empty());
    }
}
